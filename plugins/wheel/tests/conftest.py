"""Fixtures: stores of the engine under a clock that stands still until it is moved."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

# What these tests share is imported as ``plugins.wheel.tests.…``; an editable install of rmqstore has the root on the path already.
if (_ROOT := str(Path(__file__).parents[3])) not in sys.path:
    sys.path.insert(0, _ROOT)

from plugins.wheel.tests.power.builds import make_small
from plugins.wheel.tests.stores import AGAIN_MS, SMALL, Run, WheelStores
from rmqstore_conformance.stores import directory


@pytest.fixture
def stores() -> Iterator[WheelStores]:
    """Stores of the wheel engine, and what crashes leave of them."""
    with directory() as root, closing(WheelStores(root)) as factory:
        yield factory


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files for stores that are opened from now on."""
    make_small(monkeypatch, SMALL, slots=4096, roll_window=1024, again_ms=AGAIN_MS)


@pytest.fixture
def run(tmp_path: Path, small_log: None) -> Iterator[Run]:
    """A store with small files."""
    one = Run(tmp_path / "store")
    yield one
    one.store.close()
