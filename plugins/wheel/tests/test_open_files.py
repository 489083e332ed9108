"""Few files of a store are open, and a read that may open no more is as one without room."""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from plugins.wheel.tests.stores import SMALL, START_MS, index_of, ledger_of, meanwhile, opened, sync_queues
from rmqstore import CancelOutcome, ManualClock, Message
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.errors import StoreFullError, StorePoisonedError
from rmqstore_conformance.stores import read_ids
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.files import chain
from rmqstore_wheel.files.units import UnitLog
from rmqstore_wheel.log import consume_queues
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.timers.fetching import Fetcher
from rmqstore_wheel.timers.index import Ints, TimerIndex
from rmqstore_wheel.timers.keys import KeyFile

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
    assert max(found[name] for name in ("commitlog", "timerlog", "0")) <= 2 * (OPEN + 2), "each takes two, and the last two stay besides"
    while store.tick().handed_over:
        pass
    ledger_of(store).make_check_point()
    popped = []
    while taken := store.pop("t", "g", max_messages=32):
        popped += [each.message_id for each in taken]
    found = _open_files(tmp_path)
    assert max(found[name] for name in ("commitlog", "timerlog")) <= 2 * (OPEN + 2)
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
    calls = count(1)

    def at_times(*_: object) -> None:
        if next(calls) % 4 == 0:
            raise StoreFullError("no descriptor")

    meanwhile(monkeypatch, Fetcher, "units", at_times)
    clock.advance(60_000)
    for _ in range(20):
        with suppress(StoreFullError):
            store.tick()
    assert read_ids(store, "t") == [f"m{at}" for at in range(35)]
    assert store.pending().total == 0


@contextmanager
def no_descriptor() -> Iterator[None]:
    """Map no file within a ``with`` block, as in a process that has no descriptor left."""
    made = mmap.mmap

    def mapped(descriptor: int, *given: Any, **named: Any) -> mmap.mmap:
        if descriptor >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return made(descriptor, *given, **named)

    with patch("rmqstore_wheel.files.disk.mmap.mmap", mapped):
        yield


def test_an_index_file_that_could_not_be_mapped_is_opened_anew(tmp_path: Path) -> None:
    """A kill within a check point left slots in it that the check point before does not know."""
    clock = ManualClock(START_MS)
    store = opened(tmp_path / "store", clock, congestion_limit=0)
    store.send_batch(_timers(0, 20, START_MS + 60_000))
    ledger_of(store).make_check_point()
    store.send_batch(_timers(20, 20, START_MS + 60_000))
    index_of(store).keys.check_point()
    copy_tree(tmp_path / "store", tmp_path / "killed")
    with opened(tmp_path / "killed", clock, congestion_limit=0) as again:
        with no_descriptor(), pytest.raises(StoreFullError):
            again.cancel_key("t", "k3")
        assert [again.cancel_key("t", f"k{at}") for at in range(40)] == [[CancelOutcome.CANCELLED]] * 40


@pytest.mark.parametrize("step", ["units", "keys"])
def test_a_check_point_that_is_made_again_sums_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:  # fmt: skip
    clock = ManualClock(START_MS)
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: Sizes(queue_file_units=5000, check_point_calls=10**9))
    store = opened(tmp_path, clock, congestion_limit=0)
    store.send_batch([Message("t", b"x") for _ in range(3000)])
    store.close()
    store = opened(tmp_path, clock, congestion_limit=0)
    for _ in range(7):
        store.send_batch([Message("t", b"x") for _ in range(1000)])
    store.send_batch(_timers(0, 10_000, START_MS + 60_000))
    sync_queues(store)
    kind, name = (UnitLog, "_sum_of") if step == "units" else (KeyFile, "_sum_entries")
    made, calls = getattr(kind, name), 0

    def without(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        if step == "keys" or self is ledger_of(store).queues.of("t", 0):
            calls += 1
            if calls == 2 or step == "keys":
                with no_descriptor():
                    return made(self, *arguments)
        return made(self, *arguments)

    with patch.object(kind, name, without), suppress(StoreFullError):
        ledger_of(store).make_check_point()
    assert calls
    ledger_of(store).make_check_point()
    store.close()
    with opened(tmp_path, clock, congestion_limit=0) as again:
        assert len(read_ids(again, "t")) == 10_000
        assert again.cancel_key("t", "k7") == [CancelOutcome.CANCELLED]
        assert again.verify() == []


@pytest.mark.parametrize("buffer", [False, True])
def test_a_read_that_may_open_no_file_is_told_what_it_lacks_and_goes_on_later(tmp_path: Path, *, buffer: bool) -> None:
    """F1; a pop buffer keeps what it holds."""
    with opened(tmp_path / "store", pop__buffer=buffer) as store:
        for topic in ("t", "u"):
            store.send(Message(topic, b"x"))
        assert store.pop("t", "g")
        sync_queues(store)
    with opened(tmp_path / "store", pop__buffer=buffer) as store:
        store.send(Message("t", b"y"))
        assert store.pop("t", "g")
        refused = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with patch.object(os, "open", side_effect=refused), pytest.raises(StoreFullError, match="Too many open files"):
            store.pop("u", "g")
        assert store.pop("u", "g")
        assert store.lag("t", "g").in_flight == 2
        assert store.verify() == []


@pytest.mark.parametrize("left", range(5))
def test_a_log_that_finds_few_descriptors_for_its_next_file_is_full_and_not_poisoned(tmp_path: Path, left: int) -> None:
    """It takes what it needs for that before it writes, and what was written is taken back by what is open."""
    store = opened(tmp_path)
    store.send(Message("t", b"x" * 10_000, message_id="first"))
    system_open, most = os.open, _descriptors() + left

    def opened_while_some_are_left(*arguments: Any, **named: Any) -> int:
        if _descriptors() >= most:
            raise OSError(errno.EMFILE, "Too many open files")
        return system_open(*arguments, **named)

    sent = ["first"]
    with no_descriptor(), patch.object(os, "open", opened_while_some_are_left):
        for number in range(3):
            with suppress(StoreFullError):
                store.send(Message("t", b"y" * 10_000, message_id=f"m{number}"))
                sent.append(f"m{number}")
    store.send(Message("t", b"z" * 10_000, message_id="last"))
    assert [each.message_id for each in store.read("t").messages] == [*sent, "last"]
    assert store.verify() == []
    assert left or sent == ["first"]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) - 1


def test_what_is_written_and_cannot_be_taken_over_is_not_taken_for_refused(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = opened(tmp_path, clock)
    sent = store.send_batch(_timers(0, 2, START_MS + 1000))

    def without_room(self: TimerIndex, seqs: Ints) -> None:
        raise StoreFullError("no descriptor")

    with patch.object(TimerIndex, "cancel", without_room), pytest.raises(StorePoisonedError, match="no descriptor"):
        store.cancel(sent)
    store.close()
    with opened(tmp_path, clock) as store:
        assert store.pending().total == 0
