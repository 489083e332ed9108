"""Random histories on a wheel with small files, a small ring and a short roll window: files of the log go, and what is live is copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from plugins.wheel.tests.power.builds import make_small
from rmqstore_conformance.model.history import Histories
from rmqstore_conformance.stores import Pair
from rmqstore_wheel.log.ledger import Ledger, Sizes
from rmqstore_wheel.reclaim.reclaim import FileCopy
from rmqstore_wheel.timers import index as timer_index, table as timer_table
from rmqstore_wheel.timers.index import TimerIndex

FILE_BYTES = 64 * 1024
"""The messages of the histories fit into no smaller one."""

SMALL = Sizes(
    log_file_bytes=FILE_BYTES,
    queue_file_units=16,
    timer_file_units=16,
    check_point_bytes=4 * FILE_BYTES,
    check_point_calls=30,
    slice_bytes=2 * FILE_BYTES,
    index_slots=64,
    index_entries=16,
)
BUFFER = {"pop__buffer": True, "pop__buffer_stay_ms": 2000, "pop__buffer_left_ms": 500, "pop__buffer_check_points": 6}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("settings", "count"), [({}, 5), (BUFFER, 3)], ids=["usual", "with a pop buffer"])
def test_any_history_agrees_with_the_oracle(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], count: int) -> None:
    made: list[str] = []

    def noting(owner: type, name: str) -> None:
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: (made.append(name), method(*given, **named))[1])

    make_small(monkeypatch, SMALL)
    noting(Ledger, "make_check_point")
    noting(Ledger, "release_log")
    noting(FileCopy, "_copy")
    histories = Histories(Pair("wheel", "wheel"), settings=settings)
    for number in range(count):
        histories.run(f"small {number}", steps=120)
    assert {"make_check_point", "release_log", "_copy"} <= set(made)


@pytest.mark.timeout(300)
def test_any_history_agrees_with_the_oracle_when_slots_are_crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two timers a slot is; the files are small, so that those of the facts go while a slot is read."""
    make_small(monkeypatch, SMALL)
    monkeypatch.setattr(timer_index, "_WINDOW_TIMERS", 1)
    monkeypatch.setattr(timer_index, "_FACTS_A_TIMER", 10**6)
    monkeypatch.setattr(timer_table, "_PAGE", 2)
    slots: list[int] = []
    in_crowded = TimerIndex.in_crowded

    def noting(index: TimerIndex, slot: int) -> Iterator[timer_table.Due]:
        slots.append(slot)
        return in_crowded(index, slot)

    monkeypatch.setattr(TimerIndex, "in_crowded", noting)
    histories = Histories(Pair("wheel", "wheel"))
    for number in range(5):
        histories.run(f"crowded {number}", steps=120)
    assert len(slots) > 10
