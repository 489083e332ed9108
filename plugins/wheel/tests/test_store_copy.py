"""Snapshots are copied while other calls go on, and are the store of one moment all the same (R7)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from plugins.wheel.tests.power.builds import make_small
from rmqstore import ManualClock, Message, Store
from rmqstore.engine.kv import directory as tree_copy
from rmqstore_conformance.stores import START_MS
from rmqstore_wheel.log import store_copy
from rmqstore_wheel.log.ledger import Ledger, Sizes

HOUR = timedelta(hours=1)
SMALL = Sizes(log_file_bytes=16 * 1024, queue_file_units=64, timer_file_units=64, check_point_calls=40, slice_bytes=32 * 1024,
              index_slots=64, index_entries=64)  # fmt: skip


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch, SMALL, slots=4096, roll_window=1024)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with _opened(tmp_path / "store", clock) as opened:
        yield opened


def _opened(path: Path, clock: ManualClock) -> Store:
    return rmqstore.open(
        path, engine="wheel", services=False, clock=clock, reclaim="consumed", cancel_memory_ms=600_000, group_expiry_ms=0,
        retention_ms=360_000_000
    )  # fmt: skip


def _ledger(store: Store) -> Ledger:
    session: Any = store.engine.sessions["wheel"]
    ledger: Ledger = session._shared.kv
    return ledger


def _elsewhere(work: Callable[[], None]) -> None:
    """Do something in another thread, and see to it that it comes to its end."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "other calls wait for the copy"
    assert errors == []


def _during(monkeypatch: pytest.MonkeyPatch, works: Iterator[Callable[[], None]]) -> None:
    """Do the next of some things in another thread before each file of the log, and before the others, are copied."""

    def before(real: Callable[..., object]) -> Callable[..., object]:
        def patched(*arguments: Any, **named: Any) -> object:
            _elsewhere(next(works, lambda: None))
            return real(*arguments, **named)

        return patched

    monkeypatch.setattr(store_copy, "copy_file", before(tree_copy.copy_file))
    monkeypatch.setattr(store_copy, "copy_tree", before(tree_copy.copy_tree))


def _contents(store: Store) -> tuple[list[str], list[str], list[str]]:
    """Return what is in the store: messages of the topic, pending timers, and those that are leased."""
    timers = sorted(str(each.message.message_id) for each in store.scan().timers)
    leased = sorted(each.message_id for each in store.leases())
    topics = sorted(each.name for each in store.topics.list())
    return [str(each.message_id) for topic in topics for each in store.read(topic, limit=1000).messages], timers, leased


def _fill(store: Store, count: int = 60) -> None:
    for number in range(count):
        store.send(Message("t", b"x" * 700, message_id=f"m{number}"))
        store.send(Message("t", b"x" * 100, message_id=f"d{number}", keys=(f"k{number}",)), delay=HOUR)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_files_that_are_rewritten_meanwhile_are_copied_anew(
    store: Store, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A name that is used again needs a check point at once. A copy that is outrun three times is made while nobody else calls."""
    _fill(store)
    store.send(Message("again", b"x", message_id="again0"))
    outrun = 0
    real = tree_copy.copy_tree

    def use_again() -> None:
        store.topics.delete("again")
        store.send(Message("again", b"x", message_id=f"again{outrun}"))
        store.pop("t", "g", max_messages=5)

    def patched(*arguments: Any, **named: Any) -> None:
        nonlocal outrun
        if outrun < times:
            outrun += 1
            _elsewhere(use_again)
        real(*arguments, **named)

    monkeypatch.setattr(store_copy, "copy_tree", patched)
    store.snapshot(tmp_path / "copy")
    assert outrun == times
    with _opened(tmp_path / "copy", clock) as copy:
        assert copy.verify() == []
        assert _contents(copy) == _contents(store)
        assert [each.message_id for each in copy.read("again").messages] == [f"again{times}"]


def test_what_waited_for_the_copy_is_made_up_for(store: Store, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While files are copied no file of the log goes, and no check point is made; afterwards both are."""
    ledger = _ledger(store)
    for number in range(200):
        store.send(Message("t", b"x" * 700, message_id=f"m{number}"))
        if number % 25 == 24:
            store.ack(store.pop("t", "g", max_messages=25))
    kept: list[list[int]] = []

    def upkeep() -> None:
        for _ in range(8):
            clock.advance(2000)
            store.send(Message("t", b"x" * 700))
            store.tick()
        kept.append(list(ledger.log.chain.starts))

    seen = ledger.log.chain.starts[0]
    rewrites = ledger.rewrites
    _during(monkeypatch, itertools.repeat(upkeep, 2))
    store.snapshot(tmp_path / "copy")
    assert [starts[0] for starts in kept] == [seen, seen]
    assert ledger.rewrites <= rewrites + 1
    for _ in range(12):
        clock.advance(2000)
        store.ack(store.pop("t", "g", max_messages=32))
        store.tick()
    assert ledger.log.chain.starts[0] > seen
    assert ledger.rewrites > rewrites + 1
    is_quick: list[bool] = []
    resume = Ledger.resume
    monkeypatch.setattr(Ledger, "resume", lambda ledger, found: is_quick.append(resume(ledger, found)) or is_quick[-1])
    with _opened(tmp_path / "copy", clock) as copy:
        assert copy.verify() == []
    assert is_quick == [True], "the copy was made anew from its log"
