"""Few files of a store are open, and a read that may open no more is as one without room."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partialmethod
from pathlib import Path

import pytest

from plugins.wheel.tests.breaking import ledger_of, opened
from plugins.wheel.tests.small_log import SMALL, START_MS
from rmqstore import CancelOutcome, ManualClock, Message
from rmqstore.errors import StoreFullError, StorePoisonedError
from rmqstore_conformance.stores import read_ids
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.files import chain
from rmqstore_wheel.log import consume_queues
from rmqstore_wheel.timers.fetching import Fetcher, Units
from rmqstore_wheel.timers.index import Ints, TimerIndex

TIMERS = 3000
OPEN = 3


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: SMALL)


def _timers(first: int, count: int, due_ms: int) -> list[Message]:
    return [Message("t", b"x" * 100, message_id=f"m{at}", keys=(f"k{at}",), deliver_at_ms=due_ms) for at in range(first, first + count)]


def _open_files(path: Path) -> Counter[str]:
    """Return how many descriptors lead to the files of each directory of a store."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except OSError:  # that of the listing
            continue
        if target.is_relative_to(path) and target.is_file():
            found[target.parent.name] += 1
    return found


def test_a_store_of_many_files_keeps_few_of_them_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chain, consume_queues):
        monkeypatch.setattr(module, "share_of_descriptors", lambda part: OPEN)
    clock = ManualClock(START_MS)
    store = opened(tmp_path, clock, congestion_limit=0)
    for first in range(0, TIMERS, 100):
        store.send_batch(_timers(first, 100, START_MS + 1000 * (first // 100 % 7 + 1)))
    log_files = len(list(tmp_path.rglob("commitlog/*")))
    assert log_files > 20 * OPEN, "as many as the test is about"
    assert store.cancel_keys("t", [f"k{at}" for at in range(0, TIMERS, 100)]) == [[CancelOutcome.CANCELLED]] * (TIMERS // 100)
    ledger_of(store).make_check_point()  # what is not synced stays open
    clock.advance(60_000)
    assert len(store.engine.timers.scan(0, START_MS + 60_000, limit=TIMERS).timers) == TIMERS - TIMERS // 100
    found = _open_files(tmp_path)
    assert max(found[name] for name in ("commitlog", "timerlog", "0")) <= 2 * (OPEN + 1), "each takes two, and one may be written besides"
    while store.tick().handed_over:
        pass
    ledger_of(store).make_check_point()
    popped = []
    while taken := store.pop("t", "g", max_messages=32):
        popped += [each.message_id for each in taken]
    found = _open_files(tmp_path)
    assert max(found[name] for name in ("commitlog", "timerlog")) <= 2 * (OPEN + 1)
    assert sorted(popped) == sorted(f"m{at}" for at in range(TIMERS) if at % 100)
    assert store.verify() == []
    store.close()
    assert not _open_files(tmp_path)


def test_a_hand_over_that_fails_on_its_way_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers were read for it that it does not give."""
    clock = ManualClock(START_MS)
    monkeypatch.setattr(TimerIndex, "window", partialmethod(TimerIndex.window, limit=3))
    store = opened(tmp_path, clock, hand_over_limit=10)
    for first in range(0, 35, 5):
        store.send_batch(_timers(first, 5, START_MS + 1000 * (first + 1)))
    units, calls = Fetcher.units, 0

    def at_times(self: Fetcher, seqs: Ints) -> Units:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            raise StoreFullError("no descriptor")
        return units(self, seqs)

    monkeypatch.setattr(Fetcher, "units", at_times)
    clock.advance(60_000)
    for _ in range(20):
        with suppress(StoreFullError):
            store.tick()
    assert read_ids(store, "t") == [f"m{at}" for at in range(35)]
    assert store.pending().total == 0


def test_what_is_written_and_cannot_be_taken_over_is_not_taken_for_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(START_MS)
    store = opened(tmp_path, clock)
    sent = store.send_batch(_timers(0, 2, START_MS + 1000))

    def without_room(self: TimerIndex, seqs: Ints) -> None:
        raise StoreFullError("no descriptor")

    with monkeypatch.context() as patch:
        patch.setattr(TimerIndex, "cancel", without_room)
        with pytest.raises(StorePoisonedError, match="no descriptor"):
            store.cancel(sent)
    store.close()
    with opened(tmp_path, clock) as store:
        assert store.pending().total == 0
