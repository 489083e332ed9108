"""Ends of processes, as tests of transfer make them: a call raises in place of beginning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class CutShortError(Exception):
    """Raised where a test wants a run to end."""


def cut(*_: object, **__: object) -> Any:
    """End the run."""
    raise CutShortError


def cut_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, work: Callable[[], object], end: Callable[..., Any] = cut) -> None:
    """Let some work end where a call would begin."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, end)
        with pytest.raises(CutShortError):
            work()
