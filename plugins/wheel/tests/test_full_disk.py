"""A disk that is really full (F1): what is left of a check point that found no room.

It is a small file system in memory, so these tests need the right to mount one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import ManualClock, Message, Store, StoreFullError
from rmqstore.engine.kv.directory import copy_tree
from rmqstore_conformance.faults.filling import SmallDisk, small_disk
from rmqstore_wheel.log.ledger import Ledger

START_MS = 1_700_000_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with ExitStack() as ending:
        try:
            made = ending.enter_context(small_disk(tmp_path / "disk"))
        except OSError as error:
            pytest.skip(f"not run: {error.strerror}")
        yield made


def opened(path: Path, **settings: Any) -> Store:
    return rmqstore.open(path, engine="wheel", services=False, clock=ManualClock(START_MS), **settings)


def ledger_of(store: Store) -> Ledger:
    session: Any = store.engine.sessions["wheel"]
    ledger: Ledger = session._shared.kv
    return ledger


def test_check_points_that_find_no_room_leave_the_wheel_of_the_one_before(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Else the next open would make everything anew from the log."""
    with opened(disk.store) as store:
        # What a check point holds of these calls is more than the room that is left to it, which is enough for a wheel.
        for number in range(1000):
            store.send_batch([Message("t", b"x", deliver_at_ms=START_MS + 60_000)], marks=[b"%05d" % number + bytes(240)])
        ledger = ledger_of(store)
        ledger.make_check_point()
        for attempt in range(3):
            store.send(Message("t", b"x", deliver_at_ms=START_MS + 70_000 + 1000 * attempt))
            disk.fill()
            disk.leave(64 * 1024)
            before = (disk.store / "wheel" / "db" / "timerwheel").stat().st_ino
            with pytest.raises(StoreFullError):
                ledger.make_check_point()
            assert (disk.store / "wheel" / "db" / "timerwheel").stat().st_ino != before, "the wheel was written"
            disk.free()
        copy_tree(disk.store, tmp_path / "killed")
        ledger.make_check_point()
    fits: list[bool] = []
    resume = Ledger.resume
    monkeypatch.setattr(Ledger, "resume", lambda ledger, found: fits.append(resume(ledger, found)) or fits[-1])
    for path in (tmp_path / "killed", disk.store):
        with opened(path) as store:
            assert store.pending().total == 1003
            assert store.verify() == []
    assert fits == [True, True]
