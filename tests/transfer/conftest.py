"""Stores to move, and ends of processes that move them: a call raises in place of beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmqstore_conformance.stores import Pair, Stores, stores_of
from tests.pairs import ENGINES


@pytest.fixture(params=ENGINES)
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Stores of each engine, or of those that a test names."""
    with stores_of(Pair(request.param, request.param)) as factory:
        yield factory


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
