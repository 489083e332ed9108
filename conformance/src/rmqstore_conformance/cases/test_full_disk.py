"""F1, F3: a disk that is really full: a small file system in memory, with a file in it that takes what is left.

It needs the right to mount one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqstore import AckOutcome, CancelOutcome, ManualClock, Message, MessageBatch, PoppedMessage, Store, StoreFullError
from rmqstore.errors import LostCallsError
from rmqstore.store.ticker import Duties
from rmqstore_conformance.faults.filling import SmallDisk, small_disk
from rmqstore_conformance.faults.recording import played
from rmqstore_conformance.faults.script import START_MS, Step, open_script
from rmqstore_conformance.faults.showing import Shown, difference, show
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.stores import Pair, read_ids
from rmqstore_conformance.targets import Target

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(300)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with ExitStack() as ending:
        try:
            made = ending.enter_context(small_disk(tmp_path / "disk"))
        except OSError as error:
            pytest.skip(f"not run: {error.strerror}")
        yield made


def _open(disk: SmallDisk, pair: Pair, target: Target, clock: ManualClock, **settings: Any) -> Store:
    return open_script(disk.store, pair, {**target.settings, **settings}, clock)


@pytest.mark.clause("F1", "F3")
def test_each_call_on_a_full_disk(disk: SmallDisk, durable_engine: Pair, target: Target) -> None:
    """F1: every call of a script meets a full disk first: it fails whole, and succeeds when there is room."""
    play = played(durable_engine, target.settings).without_upkeep()
    clock = ManualClock(START_MS)
    full = 0
    with _open(disk, durable_engine, target, clock) as store:
        calls = Workload(store, clock).calls
        for before, step in zip(play.steps, play.steps[1:], strict=False):
            disk.fill()
            try:
                calls[step.name]()
            except StoreFullError as error:
                full += 1
                assert str(disk.store) in str(error), f"{error} does not name the store"
                disk.free()
                _check(store, before, *([step] if step.call.may_halt else []))
                calls[step.name]()
            disk.free()
            _check(store, step)
    # A log may take room ahead of its end, so few calls need more.
    assert full, "the disk was never full"
    with _open(disk, durable_engine, target, clock) as store:
        _check(store, play.steps[-1])


def _check(store: Store, *steps: Step) -> None:
    """Compare what is shown with the state after one of some steps, but for the time of a pop: one that found no room uses it up (P2)."""
    shown, allowed = _timeless(show(store)), [_timeless(each.shown) for each in steps]
    assert shown in allowed, f"it should be as after {steps[0].name}: {difference(shown, allowed[0])}"


def _timeless(shown: Shown) -> Shown:
    queues = [[name, [[pair for pair in row if pair[0] != "first_pop_ms"] for row in rows]] for name, rows in shown["queues"]]
    return {**shown, "queues": queues}


@pytest.mark.clause("F1", "H3")
def test_behind_a_full_disk_a_cursor_that_is_not_durable_is_not_called_so(disk: SmallDisk, durable_engine: Pair, target: Target) -> None:
    """F1: what is read again behind a call that found no room may not be durable yet; timers are removed by what is."""
    clock = ManualClock(START_MS)
    with _open(disk, durable_engine, target, clock) as store:
        store.send(Message("t", b"x"), delay_ms=1000)
        clock.advance(2000)
        pops = store.engine.pops
        ticket = next(step for step in store._hand_over.steps(clock.now_ms()) if isinstance(step, tuple))[1]
        cursor = pops.timer_cursor()
        large = MessageBatch(messages=(Message("t", os.urandom(100_000), queue_id=0, message_id="large", born_ms=START_MS),))
        disk.fill()
        with contextlib.suppress(StoreFullError):
            for _ in range(100):
                pops.append(large, clock.now_ms())
        disk.free()
        pops.topic("t")
        assert pops.durable_cursor() != cursor or pops.durable_position >= ticket.position, "what the cursor is from is not durable"


@pytest.mark.clause("F1", "R3")
def test_a_store_is_opened_or_made_on_a_full_disk(disk: SmallDisk, durable_engine: Pair, target: Target) -> None:
    """F1: a store that finds no room when it is made or opened says so, and loses nothing by it."""
    clock = ManualClock(START_MS)
    disk.fill()
    with pytest.raises(StoreFullError):
        _open(disk, durable_engine, target, clock)
    disk.free()
    with _open(disk, durable_engine, target, clock) as store:
        store.send(Message("t", b"x"))
    disk.fill()
    with contextlib.suppress(StoreFullError):
        _open(disk, durable_engine, target, clock).close()
    disk.free()
    with _open(disk, durable_engine, target, clock) as store:
        assert len(store.pop("t", "g")) == 1
        assert store.verify() == []


@pytest.mark.clause("F1", "F3")
@pytest.mark.needs("snapshot")
def test_a_snapshot_that_finds_no_room_is_gone(disk: SmallDisk, durable_engine: Pair, target: Target) -> None:
    """F1: a snapshot that finds no room leaves nothing behind, and the store goes on."""
    with _open(disk, durable_engine, target, ManualClock(START_MS)) as store:
        store.send_batch([Message("t", os.urandom(1000)) for _ in range(100)])
        disk.fill()
        with pytest.raises(StoreFullError):
            store.snapshot(disk.path / "copy")
        assert not (disk.path / "copy").exists()
        disk.free()
        store.send(Message("t", b"x"))
        assert store.lag("t", "g").ready == 101
        assert store.verify() == []


@pytest.mark.parametrize("asked", ["a call", "close", "close at once"])
def test_f1_answers_that_a_full_disk_took_are_told(disk: SmallDisk, durable_engine: Pair, target: Target, asked: str) -> None:
    """F1: under ``flush = async`` a full disk takes calls that were answered: the next call of the application says so, once."""
    clock = ManualClock(START_MS)
    answered = 0
    store = _open(disk, durable_engine, target, clock, flush="async")
    store.send(Message("t", b"x"))
    store.flush()
    disk.fill()
    with contextlib.suppress(StoreFullError):
        for _ in range(300):
            store.send(Message("t", os.urandom(1000)))
            answered += 1
    # The background thread finds out, and can tell only a log.
    duties = Duties(store)
    works = [duties.flush] if asked == "close at once" else [duties.flush, duties.flush, duties.tick]
    for work in works:
        with contextlib.suppress(StoreFullError):
            work()
    disk.free()
    if asked != "close at once":
        with contextlib.suppress(StoreFullError):
            duties.tick()
    told = False
    try:
        store.lag("t", "g") if asked == "a call" else store.close()
    except LostCallsError:
        told = True
    if asked == "a call":
        store.lag("t", "g")
        store.send(Message("t", b"y"))
        answered += 1
        store.close()
    with _open(disk, durable_engine, target, clock) as store:
        found = store.lag("t", "g").ready
        assert store.verify() == []
    assert told or found == answered + 1, f"{answered + 1} were answered, {found} are there, and nothing was said"


@pytest.mark.clause("F3", "P2", "P3", "P5")
def test_f1_leases_that_a_full_disk_took_are_told(disk: SmallDisk, durable_engine: Pair, target: Target) -> None:
    """F1: so it is with leases under ``pop.flush = async``: their messages come again, no receipt does, and all else is as it was."""
    clock = ManualClock(START_MS)
    given: list[PoppedMessage] = []
    with _open(disk, durable_engine, target, clock, pop__flush="async") as store:
        store.send_batch([Message("t", b"%d" % number) for number in range(400)])
        held = store.pop("t", group="g", max_messages=1)
        assert store.ack(held) == [AckOutcome.ACKED]
        disk.fill()
        with contextlib.suppress(StoreFullError):
            for _ in range(100):
                given += store.pop("t", group="g", max_messages=1, invisible_ms=60_000)
        with pytest.raises(StoreFullError):
            store.send_batch([Message("t", bytes(1_000_000))] * 100)
        disk.free()
        told = False
        try:
            store.lag("t", "g")
        except LostCallsError as error:
            told = True
            assert "pop.flush = async" in str(error)
        assert store.ack(held) == [AckOutcome.ALREADY_ACKED]
        left = store.lag("t", "g").ready
        assert told or left == 399 - len(given), f"{len(given)} were leased, {399 - left} are, and nothing was said"
        again = store.pop("t", group="g", max_messages=100)
        assert not {each.receipt for each in again} & {each.receipt for each in given}, "a receipt was given a second time"
        assert AckOutcome.ACKED not in store.ack(given) or not told
        assert store.ack(again) == [AckOutcome.ACKED] * len(again)
        assert store.verify() == []


@pytest.mark.clause("C2", "C4")
@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "behind another send"])
def test_f1_what_cancels_answer_behind_a_full_disk_holds(disk: SmallDisk, durable_engine: Pair, target: Target, is_later: bool) -> None:
    """F1: with room again cancels succeed, and what they say of a timer whose tick found none is what they say behind a reopen."""
    clock = ManualClock(START_MS)
    with _open(disk, durable_engine, target, clock) as store:
        sent = store.send(Message("t", os.urandom(1000)), delay_ms=1000)
        disk.fill()
        with contextlib.suppress(StoreFullError):
            for _ in range(100):
                store.send(Message("t", os.urandom(1000)), delay_ms=5000)
        disk.free()
        assert store.cancel_key("t", "none") == []
        clock.advance(1000)
        disk.fill()
        with contextlib.suppress(StoreFullError):
            store.tick()
        disk.free()
        if is_later:
            store.send(Message("t", b"later"), delay_ms=3_600_000)
        first = store.cancel(sent)
    with _open(disk, durable_engine, target, clock) as store:
        assert store.cancel(sent) is first
        store.tick()
        assert len(store.pop("t", "g")) == (first is CancelOutcome.ALREADY_DELIVERED)
        assert store.verify() == []


@pytest.mark.clause("F1", "F3", "X3")
def test_threads_on_a_disk_that_is_full_at_times(disk: SmallDisk, durable_engine: Pair, target: Target) -> None:
    """F1: the failure of one thread's call does not take along what another thread was told is stored."""
    told: list[str] = []
    refused: list[str] = []
    stop = threading.Event()
    errors: list[BaseException] = []

    def send(thread: int, store: Store) -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                name = f"{thread}-{number}"
                message = Message("t", os.urandom(500), message_id=name, deliver_at_ms=START_MS + 500 if number % 2 else None)
                try:
                    store.send(message)
                except StoreFullError:
                    refused.append(name)
                    stop.wait(0.001)
                else:
                    told.append(name)
        except BaseException as error:
            errors.append(error)

    clock = ManualClock(START_MS)
    with _open(disk, durable_engine, target, clock) as store:
        threads = [threading.Thread(target=send, args=(number, store)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(12):
            seen, was_refused = len(told), len(refused)
            while len(told) < seen + 20 and not errors:
                stop.wait(0.002)
            disk.fill()
            while len(refused) < was_refused + 4 and not errors:
                stop.wait(0.002)
            disk.free()
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert store.verify() == []
    with _open(disk, durable_engine, target, clock) as store:
        clock.advance(10_000)
        store.tick()
        stored = Counter(name for queue in range(2) for name in read_ids(store, "t", queue))
        assert store.verify() == []
    assert refused
    assert [name for name in told if stored[name] != 1] == []
    assert [name for name in refused if stored[name]] == []


@pytest.mark.clause("F1")
def test_x5_a_store_that_was_renamed_meets_a_full_disk(disk: SmallDisk, durable_engine: Pair, target: Target) -> None:
    """X5: what opens its files again when a disk was full finds them where the store is by then."""
    clock = ManualClock(START_MS)
    with _open(disk, durable_engine, target, clock) as store:
        store.send(Message("t", b"x", message_id="before"))
        disk.store.rename(disk.path / "moved")
        disk.fill()
        is_full = False
        while not is_full:
            try:
                store.send(Message("t", os.urandom(1000), message_id="filler"))
            except StoreFullError:
                is_full = True
        disk.free()
        store.send(Message("t", b"x", message_id="behind"))
        found = [name for queue in range(2) for name in read_ids(store, "t", queue)]
        assert {"before", "behind"} <= set(found)
        assert store.verify() == []
    assert not disk.store.exists()
