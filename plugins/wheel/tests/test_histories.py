"""Random histories on a wheel with small files, a small ring and a short roll window: files of the log go, and what is live is copied.

Slots are cancelled to nothing and used again, timers roll. In what is written, and not closed yet, an inspection finds no damage.
"""

from __future__ import annotations

from typing import Any

import pytest

from plugins.wheel.tests.power.builds import make_small
from plugins.wheel.tests.stores import SMALL, noted
from rmqstore import ReadStore, Store
from rmqstore_conformance.model.history import Histories
from rmqstore_conformance.model.surroundings import WholeMachine
from rmqstore_conformance.stores import Pair
from rmqstore_wheel.inspecting import inspect
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.reclaim.reclaim import FileCopy
from rmqstore_wheel.timers import index as timer_index, table as timer_table
from rmqstore_wheel.timers.index import TimerIndex

FILE_BYTES = 64 * 1024
"""The messages of the histories fit into no smaller one."""

HISTORY = SMALL._replace(
    log_file_bytes=FILE_BYTES,
    queue_file_units=16,
    timer_file_units=16,
    check_point_bytes=4 * FILE_BYTES,
    check_point_calls=30,
    slice_bytes=2 * FILE_BYTES,
    index_slots=4,
    index_entries=16,  # four a slot, as the files of brokers have
)
BUFFER = {"pop__buffer": True, "pop__buffer_stay_ms": 2000, "pop__buffer_left_ms": 500, "pop__buffer_check_points": 6}


@pytest.fixture(autouse=True)
def _inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect what is written when a history looks at all of it."""
    look = WholeMachine.look

    def inspecting(machine: WholeMachine, view: Store | ReadStore | None = None, *, whole: bool) -> None:
        look(machine, view, whole=whole)
        if whole and view is None:
            found = inspect(machine.store.path / "wheel")
            assert found is not None
            assert found.damage == ()

    monkeypatch.setattr(WholeMachine, "look", inspecting)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("settings", "count"), [({}, 5), (BUFFER, 3)], ids=["usual", "with a pop buffer"])
def test_any_history_agrees_with_the_oracle(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], count: int) -> None:
    make_small(monkeypatch, HISTORY)
    made = [noted(monkeypatch, *what) for what in ((Ledger, "make_check_point"), (Ledger, "release_log"), (FileCopy, "_copy"))]
    histories = Histories(Pair("wheel", "wheel"), settings=settings)
    for number in range(count):
        histories.run(f"small {number}", steps=120)
    assert all(made)


@pytest.mark.timeout(300)
def test_any_history_agrees_with_the_oracle_when_slots_are_crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two timers a slot is; the files are small, so that those of the facts go while a slot is read."""
    make_small(monkeypatch, HISTORY)
    monkeypatch.setattr(timer_index, "_WINDOW_TIMERS", 1)
    monkeypatch.setattr(timer_index, "_FACTS_A_TIMER", 10**6)
    monkeypatch.setattr(timer_table, "_PAGE", 2)
    slots = noted(monkeypatch, TimerIndex, "in_crowded")
    histories = Histories(Pair("wheel", "wheel"))
    for number in range(5):
        histories.run(f"crowded {number}", steps=120)
    assert len(slots) > 10
