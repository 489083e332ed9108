"""Files of the commit log go when nothing is live in them, and what is live in nearly dead ones is copied forward (T7, Q1-Q3)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmqstore
from rmqstore import CancelOutcome, ManualClock, Message, Store
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel import reclaim
from rmqstore_wheel.disk import Disk, DiskFile
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.ledger import Ledger, Sizes
from rmqstore_wheel.reclaim import AGAIN_MS, Reclaim

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
FAR_MS = START_MS + 1000 * HOUR_MS
FILE_BYTES = 16 * 1024
SMALL = Sizes(log_file_bytes=FILE_BYTES, queue_file_units=64, timer_file_units=64, check_point_calls=40, slice_bytes=2 * FILE_BYTES)


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: SMALL)


class Run:
    """A store of short memory whose queues go as they are consumed."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.clock = ManualClock(START_MS)
        self.settings = {"reclaim": "consumed", "cancel_memory_ms": 600_000, "retention_ms": 100 * HOUR_MS, "group_expiry_ms": 0, **settings}
        self.calls = 0
        self.store = self.opened()

    def opened(self) -> Store:
        return rmqstore.open(self.path, engine="wheel", services=False, clock=self.clock, **self.settings)

    @property
    def ledger(self) -> Ledger:
        session: Any = self.store._opened.sessions["wheel"]
        ledger: Ledger = session._shared._ledger
        return ledger

    @property
    def files(self) -> list[int]:
        """The numbers of the log's files."""
        return [start // FILE_BYTES for start in self.ledger.log.chain.starts]

    def reopen(self, *, rebuild: bool = False) -> None:
        self.store.close()
        if rebuild:
            drop_check_points(self.path)
        self.store = self.opened()

    def fill(self, files: int = 1, *, topic: str = "t", consume: bool = True) -> None:
        """Write messages until so many more files of the log are full, popped and acked as they come."""
        upto = self.ledger.log.tail + files * FILE_BYTES
        while self.ledger.log.tail < upto:
            self.store.send(Message(topic, b"x" * 700, message_id=f"f{self.calls}"))
            self.calls += 1
            if consume:
                self.consume(topic)

    def consume(self, topic: str = "t") -> list[str]:
        taken = self.store.pop(topic, "g", max_messages=32)
        if taken:
            self.store.ack([each.receipt for each in taken])
        return [each.message_id for each in taken]

    def far(self, *names: str, size: int = 100, due_ms: int = FAR_MS, **fields: Any) -> list[Any]:
        """Put timers for a far time; returns their handles."""
        rows = [Message("late", b"y" * size, message_id=name, keys=(f"k-{name}",), deliver_at_ms=due_ms, **fields) for name in names]
        return [self.store.send(row).handle for row in rows]

    def upkeep(self, rounds: int = 12) -> None:
        """Let time pass for everything to be looked at."""
        for _ in range(rounds):
            self.clock.advance(AGAIN_MS // 4)
            self.store.tick()

    def take_late(self) -> list[str]:
        """Go to the far time, and return what comes."""
        self.clock.set(max(FAR_MS + 1000, self.clock.now_ms()))
        self.store.confirm_clock_step() if hasattr(self.store, "confirm_clock_step") else None
        self.store.tick()
        found: list[str] = []
        while taken := self.consume("late"):
            found += taken
        return sorted(found)


def drop_check_points(path: Path) -> None:
    for found in path.rglob("checkpoint*"):
        if found.parent.name == "rmqstore" and found.is_file():
            found.unlink()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    one = Run(tmp_path / "store")
    yield one
    one.store.close()


# ---------------------------------------------------------------- going


def test_files_go_when_they_are_consumed(run: Run) -> None:
    run.fill(5)
    assert len(run.files) >= 5
    run.upkeep()
    assert len(run.files) <= 2
    assert run.files[0] >= 4


def test_files_go_by_age(tmp_path: Path) -> None:
    run = Run(tmp_path / "store", reclaim="age", retention_ms=HOUR_MS)
    run.fill(5, consume=False)
    run.upkeep(2)
    assert run.files[0] == 0
    run.clock.advance(HOUR_MS)
    run.upkeep()
    assert run.files[0] >= 4
    run.store.close()


def test_what_nobody_consumed_stays(run: Run) -> None:
    run.fill(5, consume=False)
    run.upkeep()
    assert run.files[0] == 0
    count = run.calls
    found: list[str] = []
    while taken := run.consume():
        found += taken
    assert found == [f"f{number}" for number in range(count)]


def test_a_leased_message_keeps_its_file(run: Run) -> None:
    for number in range(40):
        run.store.send(Message("held", b"z" * 400, message_id=f"h{number}"))
    taken = run.store.pop("held", "g", max_messages=40, invisible=HOUR_MS * 10)
    run.fill(5)
    run.upkeep()
    assert run.files[0] == 0, "over 30 % of it is leased"
    run.store.ack([each.receipt for each in taken])
    run.upkeep()
    assert run.files[0] > 0


def test_far_timers_survive_the_removal_of_fifty_files(run: Run) -> None:
    handles = run.far(*(f"a{number}" for number in range(10)))
    for _ in range(25):
        run.fill(2)
        run.upkeep(8)
    assert run.files[0] >= 50
    assert len(run.files) < 6
    assert run.store.cancel(handles[3]) is CancelOutcome.CANCELLED
    assert [each for each in run.store.cancel_key("late", "k-a5")] == [CancelOutcome.CANCELLED]
    assert run.store.get(handles[4]).message.message_id == "a4"
    assert {each.message.message_id for each in run.store.scan().timers} == {f"a{number}" for number in (0, 1, 2, 4, 6, 7, 8, 9)}
    assert run.store.cancel(handles[3]) is CancelOutcome.CANCELLED
    assert run.take_late() == [f"a{number}" for number in (0, 1, 2, 4, 6, 7, 8, 9)]
