"""F1, F3: a disk that is really full: a small file system in memory, with a file in it that takes what is left.

It needs the right to mount one.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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

ROUNDS, LEAST_ROUNDS = 12, 5
"""How often the disk becomes full while threads send; the second however little effort is asked for."""

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(300)]


class Disk:
    """A small disk, and the store of one pair of engines on it."""

    def __init__(self, disk: SmallDisk, pair: Pair, target: Target) -> None:
        self.path, self.store = disk.path, disk.store
        self.fill, self.free = disk.fill, disk.free
        self.clock = ManualClock(START_MS)
        self.pair = pair
        self.settings = target.settings

    def open(self, **settings: Any) -> Store:
        """Open the store, made as needed."""
        return open_script(self.store, self.pair, {**self.settings, **settings}, self.clock)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Have no byte free within a ``with`` block, which a call that finds no room ends."""
        self.fill()
        with suppress(StoreFullError):
            yield
        self.free()


@pytest.fixture
def disk(tmp_path: Path, durable_engine: Pair, target: Target) -> Iterator[Disk]:
    with ExitStack() as ending:
        try:
            made = ending.enter_context(small_disk(tmp_path / "disk"))
        except OSError as error:
            pytest.skip(f"not run: {error.strerror}")
        yield Disk(made, durable_engine, target)


@pytest.mark.clause("F1", "F3")
def test_each_call_on_a_full_disk(disk: Disk) -> None:
    """F1: every call of a script meets a full disk first: it fails whole, and succeeds when there is room."""
    play = played(disk.pair, disk.settings).without_upkeep()
    full = 0
    with disk.open() as store:
        calls = Workload(store, disk.clock).calls
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
    with disk.open() as store:
        _check(store, play.steps[-1])


def _check(store: Store, *steps: Step) -> None:
    """Compare what is shown with the state after one of some steps, but for the time of a pop: one that found no room uses it up (P2)."""
    shown, allowed = _timeless(show(store)), [_timeless(each.shown) for each in steps]
    assert shown in allowed, f"it should be as after {steps[0].name}: {difference(shown, allowed[0])}"


def _timeless(shown: Shown) -> Shown:
    queues = [[name, [[pair for pair in row if pair[0] != "first_pop_ms"] for row in rows]] for name, rows in shown["queues"]]
    return {**shown, "queues": queues}


@pytest.mark.clause("F1", "H3")
def test_behind_a_full_disk_a_cursor_that_is_not_durable_is_not_called_so(disk: Disk) -> None:
    """F1: what is read again behind a call that found no room may not be durable yet; timers are removed by what is."""
    with disk.open() as store:
        store.send(Message("t", b"x"), delay_ms=1000)
        disk.clock.advance(2000)
        pops = store.engine.pops
        ticket = next(step for step in store._hand_over.steps(disk.clock.now_ms()) if isinstance(step, tuple))[1]
        cursor = pops.timer_cursor()
        large = MessageBatch(messages=(Message("t", os.urandom(100_000), queue_id=0, message_id="large", born_ms=START_MS),))
        with disk.full():
            for _ in range(100):
                pops.append(large, disk.clock.now_ms())
        pops.topic("t")
        assert pops.durable_cursor() != cursor or pops.durable_position >= ticket.position, "what the cursor is from is not durable"


@pytest.mark.clause("F1", "K2")
def test_a_disk_that_is_full_for_long_is_no_step_of_the_clock(disk: Disk) -> None:
    """F1: ticks that find no room are ticks: once there is room they go on, however long that took."""
    with disk.open(clock__max_step_ms=3000) as store:
        store.send_batch([Message("t", os.urandom(500_000)) for _ in range(20)], delay_ms=1000)
        store.tick()
        full = 0
        with disk.full():
            for _ in range(5):
                disk.clock.advance(2000)
                try:
                    store.tick()
                except StoreFullError:
                    full += 1
        assert full, "the disk was never full"
        store.tick()
        assert store.lag("t", "g").ready == 20


@pytest.mark.clause("F1", "R3")
def test_a_store_is_opened_or_made_on_a_full_disk(disk: Disk) -> None:
    """F1: a store that finds no room when it is made or opened says so, and loses nothing by it."""
    with disk.full(), pytest.raises(StoreFullError):
        disk.open()
    with disk.open() as store:
        store.send(Message("t", b"x"))
    with disk.full():
        disk.open().close()
    with disk.open() as store:
        assert len(store.pop("t", "g")) == 1
        assert store.verify() == []


@pytest.mark.clause("F1", "F3")
@pytest.mark.needs("snapshot")
def test_a_snapshot_that_finds_no_room_is_gone(disk: Disk) -> None:
    """F1: a snapshot that finds no room leaves nothing behind, and the store goes on."""
    with disk.open() as store:
        store.send_batch([Message("t", os.urandom(1000)) for _ in range(100)])
        with disk.full(), pytest.raises(StoreFullError):
            store.snapshot(disk.path / "copy")
        assert not (disk.path / "copy").exists()
        store.send(Message("t", b"x"))
        assert store.lag("t", "g").ready == 101
        assert store.verify() == []


@pytest.mark.parametrize("asked", ["a call", "close", "close at once"])
def test_f1_answers_that_a_full_disk_took_are_told(disk: Disk, asked: str) -> None:
    """F1: under ``flush = async`` a full disk takes calls that were answered: the next call of the application says so, once."""
    answered = 0
    store = disk.open(flush="async")
    store.send(Message("t", b"x"))
    store.flush()
    # The background thread finds out, and can tell only a log.
    duties = Duties(store)
    with disk.full():
        with suppress(StoreFullError):
            for _ in range(300):
                store.send(Message("t", os.urandom(1000)))
                answered += 1
        for work in [duties.flush] if asked == "close at once" else [duties.flush, duties.flush, duties.tick]:
            with suppress(StoreFullError):
                work()
    if asked != "close at once":
        with suppress(StoreFullError):
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
    with disk.open() as store:
        found = store.lag("t", "g").ready
        assert store.verify() == []
    assert told or found == answered + 1, f"{answered + 1} were answered, {found} are there, and nothing was said"


@pytest.mark.clause("F3", "P2", "P3", "P5")
def test_f1_leases_that_a_full_disk_took_are_told(disk: Disk) -> None:
    """F1: so it is with leases under ``pop.flush = async``: their messages come again, no receipt does, and all else is as it was."""
    given: list[PoppedMessage] = []
    with disk.open(pop__flush="async") as store:
        store.send_batch([Message("t", b"%d" % number) for number in range(400)])
        held = store.pop("t", group="g", max_messages=1)
        assert store.ack(held) == [AckOutcome.ACKED]
        with disk.full():
            with suppress(StoreFullError):
                for _ in range(100):
                    given += store.pop("t", group="g", max_messages=1, invisible_ms=60_000)
            with pytest.raises(StoreFullError):
                store.send_batch([Message("t", bytes(1_000_000))] * 100)
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
def test_f1_what_cancels_answer_behind_a_full_disk_holds(disk: Disk, is_later: bool) -> None:
    """F1: with room again cancels succeed, and what they say of a timer whose tick found none is what they say behind a reopen."""
    with disk.open() as store:
        sent = store.send(Message("t", os.urandom(1000)), delay_ms=1000)
        with disk.full():
            for _ in range(100):
                store.send(Message("t", os.urandom(1000)), delay_ms=5000)
        assert store.cancel_key("t", "none") == []
        disk.clock.advance(1000)
        with disk.full():
            store.tick()
        if is_later:
            store.send(Message("t", b"later"), delay_ms=3_600_000)
        first = store.cancel(sent)
    with disk.open() as store:
        assert store.cancel(sent) is first
        store.tick()
        assert len(store.pop("t", "g")) == (first is CancelOutcome.ALREADY_DELIVERED)
        assert store.verify() == []


@pytest.mark.clause("F1", "F3", "X3")
def test_threads_on_a_disk_that_is_full_at_times(disk: Disk, target: Target) -> None:
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

    with disk.open() as store:
        threads = [threading.Thread(target=send, args=(number, store)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(max(target.times(ROUNDS), LEAST_ROUNDS)):
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
    with disk.open() as store:
        disk.clock.advance(10_000)
        store.tick()
        stored = Counter(name for queue in range(2) for name in read_ids(store, "t", queue))
        assert store.verify() == []
    assert refused
    assert [name for name in told if stored[name] != 1] == []
    assert [name for name in refused if stored[name]] == []


@pytest.mark.clause("F1")
def test_x5_a_store_that_was_renamed_meets_a_full_disk(disk: Disk) -> None:
    """X5: what opens its files again when a disk was full finds them where the store is by then."""
    with disk.open() as store:
        store.send(Message("t", b"x", message_id="before"))
        disk.store.rename(disk.path / "moved")
        with disk.full():
            while True:
                store.send(Message("t", os.urandom(1000), message_id="filler"))
        store.send(Message("t", b"x", message_id="behind"))
        found = [name for queue in range(2) for name in read_ids(store, "t", queue)]
        assert {"before", "behind"} <= set(found)
        assert store.verify() == []
    assert not disk.store.exists()
