"""R7: copies of a store that is in use: each is the store of one moment, whole or not there."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeVar

import pytest

import rmqstore
from rmqstore import CancelOutcome, Store
from rmqstore.errors import StorePoisonedError
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.faults.interrupting import Interrupted, Interrupts, TimedOut
from rmqstore_conformance.stores import Stores, label, message, read_ids, state_of
from rmqstore_conformance.targets import Target

(T,) = topics(__name__.rpartition(".")[2], 1)
G, H = groups(__name__.rpartition(".")[2], 2)

Answer = TypeVar("Answer")

pytestmark = pytest.mark.needs("snapshot")

WORKERS = 3
SNAPSHOTS = 4
LEAST, MOST = 40, 1500
"""So many calls a worker has made before a snapshot, and makes at most."""

FAR = timedelta(days=1)
SOON = timedelta(milliseconds=300)
INTERRUPTS = 40
BETWEEN = 30


class Pops(NamedTuple):
    """What the pop side holds of one worker: how many messages came to its topic, how many are ready, and which are leased."""

    sent: int
    ready: int
    leased: tuple[str, ...]


class Worker:
    """Makes calls on a topic of its own, one after the other, and knows what is there after each.

    Attributes:
        begun, answered: how many calls.
        pops, timers: what either side holds after so many calls.
        soon: after how many calls which timer is there that a tick hands over.
    """

    def __init__(self, store: Store, number: int) -> None:
        self.topic = f"w{number}"
        self.begun = self.answered = 0
        self.pops = [Pops(0, 0, ())]
        self.timers: list[tuple[str, ...]] = [()]
        self.soon: dict[str, int] = {}
        self._store = store
        self._moved = threading.Condition()

    def _call(self, call: Callable[[], Answer], pops: Pops | None = None, timers: tuple[str, ...] | None = None) -> Answer:
        self.pops.append(self.pops[-1] if pops is None else pops)
        self.timers.append(self.timers[-1] if timers is None else timers)
        self.begun += 1
        result = call()
        with self._moved:
            self.answered += 1
            self._moved.notify()
        return result

    def wait(self, calls: int) -> None:
        """Return when so many calls were answered."""
        with self._moved:
            assert self._moved.wait_for(lambda: self.answered >= calls, timeout=60), f"{self.topic} stands still"

    def run(self, is_over: Callable[[], bool]) -> None:
        """Send, send for later, cancel, pop and ack, in turn."""
        store, topic = self._store, self.topic
        taken = 0
        for turn in itertools.count():
            if is_over() or self.answered >= MOST:
                return
            name = f"{topic}-{turn}"
            sent, ready, _ = self.pops[-1]
            self._call(partial(store.send, message(name, topic)), Pops(sent + 1, ready + 1, ()))
            late = f"mlate-{name}"
            receipt = self._call(partial(store.send, message(late[1:], topic), delay=FAR), timers=(*self.timers[-1], late))
            if turn % 3:
                assert self._call(partial(store.cancel, str(receipt.handle)), timers=self.timers[-1][:-1]) is CancelOutcome.CANCELLED
            if turn % 2:
                leased = Pops(sent + 1, ready, (f"m{topic}-{taken}",))
                popped = self._call(partial(store.pop, topic, G, max_messages=1, invisible=FAR), leased)
                self._call(partial(store.ack, popped), Pops(sent + 1, ready, ()))
                taken += 1
            soon = f"soon-{name}"
            self.soon[f"m{soon}"] = self.begun + 1
            self._call(partial(store.send, message(soon, "soon"), delay=SOON))

    def moments(self, copy: Store, begin: int, end: int) -> tuple[set[int], set[int]]:
        """Return after how many calls, from ``begin`` to ``end``, what either side of a copy holds was so: of the pops, of the timers."""
        lag = copy.lag(self.topic, G)
        leased = tuple(label(each) for each in copy.leases() if label(each).startswith(f"m{self.topic}-"))
        timers = (each.message for each in copy.scan(limit=100_000).timers)
        held = tuple(sorted((label(each) for each in timers if each.topic == self.topic), key=lambda name: int(str(name).split("-")[-1])))
        (sent,) = (each.max_offsets[0] for each in copy.topics.list() if each.name == self.topic)
        pops = Pops(sent, lag.ready, leased)
        counts = range(begin, end + 1)
        return {count for count in counts if self.pops[count] == pops}, {count for count in counts if self.timers[count] == held}


class Taken(NamedTuple):
    """A snapshot, and how many calls of each worker were answered before it, and begun when it was there."""

    name: str
    answered: list[int]
    begun: list[int]


def test_r7_a_snapshot_is_one_moment(durable_stores: Stores) -> None:
    """R7: copies beside threads that send, cancel, pop, ack and tick: each worker's calls up to one of them, and none behind it."""
    store = durable_stores.open(flush="async")
    workers = [Worker(store, number) for number in range(WORKERS)]
    for worker in workers:
        store.topics.create(worker.topic, 1)
        # Registered before the calls that are counted.
        store.pop(worker.topic, G)
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.is_set():
            durable_stores.tick_after(store, timedelta(milliseconds=100))

    taken: list[Taken] = []
    with ThreadPoolExecutor(WORKERS + 1) as pool:
        futures = [pool.submit(worker.run, is_over.is_set) for worker in workers] + [pool.submit(tick)]
        try:
            for number in range(SNAPSHOTS):
                for worker in workers:
                    worker.wait(LEAST * (number + 1))
                answered = [worker.answered for worker in workers]
                path = store.snapshot(durable_stores.root / f"copy{number}")
                taken.append(Taken(path.name, answered, [worker.begun for worker in workers]))
        finally:
            is_over.set()
        for future in futures:
            future.result()
    assert store.verify() == []
    durable_stores.clock.advance(timedelta(minutes=1))
    for each in taken:
        copy = durable_stores.open(each.name)
        assert copy.verify() == []
        for worker, begin, end in zip(workers, each.answered, each.begun, strict=True):
            pops, timers = worker.moments(copy, begin, end)
            assert pops, f"{each.name}: messages of {worker.topic} as after none of the calls {begin} to {end}"
            assert timers, f"{each.name}: timers of {worker.topic} as after none of the calls {begin} to {end}"
            if len({*durable_stores.pair}) == 1:
                assert pops & timers, f"{each.name}: {worker.topic} has messages of one moment and timers of another"
        copy.tick()
        arrived = read_ids(copy, "soon")
        assert len(arrived) == len(set(arrived)), f"{each.name}: a message was handed over twice"
        for worker, begin, end in zip(workers, each.answered, each.begun, strict=True):
            must = {name for name, at in worker.soon.items() if at <= begin}
            may = {name for name, at in worker.soon.items() if at <= end}
            there = {name for name in arrived if name.startswith(f"msoon-{worker.topic}-")}
            assert must <= there <= may, f"{each.name}: lacks {sorted(must - there)[:5]}, or has {sorted(there - may)[:5]}"
        assert copy.verify() == []
        copy.close()


def test_r7_a_snapshot_is_one_moment_whatever_comes_between(durable_stores: Stores, target: Target, seed: int) -> None:
    """R7: at some step of a snapshot another thread sends, cancels, pops and acks: the copy is as before that call, or behind it."""
    store = durable_stores.open()
    chance = random.Random(f"{durable_stores.pair} {seed}")
    steps = Interrupts(chance)
    keys = (label("key"),)
    for number in range(target.times(BETWEEN)):
        ready = [store.send(message(f"ready{number}-{n}", keys=keys), delay=FAR) for n in range(2)]
        store.send_batch([message(f"now{number}-{n}") for n in range(3)])
        held = store.pop(T, G, max_messages=1, invisible=FAR)
        calls: list[Callable[[], object]] = [
            partial(store.send_batch, [message(f"far{number}-{n}", keys=keys) for n in range(2)], delay=FAR),
            partial(store.cancel, ready),
            partial(store.ack, held),
            partial(store.pop, T, H, max_messages=2, invisible=FAR, attempt_id=f"a{number}"),
        ]
        call = chance.choice(calls)
        before = state_of(store)
        other = threading.Thread(target=call)

        def come(other: threading.Thread = other) -> None:
            other.start()
            # The snapshot may hold what it waits for.
            other.join(0.2)

        steps.during(store, "snapshot", partial(store.snapshot, durable_stores.root / "copy"), come)
        if other.ident is not None:
            other.join()
        copy = durable_stores.open("copy")
        assert copy.verify() == []
        assert state_of(copy) in (before, state_of(store)), "the copy has a part of a call"
        copy.close()
        shutil.rmtree(durable_stores.root / "copy")


@pytest.mark.clause("R7", "F4")
@pytest.mark.level("extended")
# An interrupt between the opening of a file and the statement that closes it leaves that to Python, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_r7_an_interrupted_snapshot_is_not_there(durable_stores: Stores, target: Target, seed: int) -> None:
    """R7, F4: an exception from outside at any step of a snapshot: a whole copy or none, nothing left aside, and the store goes on."""
    store = durable_stores.open()
    for number in range(8):
        store.send(message(number))
        store.send(message(f"late{number}"), delay=FAR)
    store.pop(T, G, max_messages=3, invisible=FAR)
    chance = random.Random(f"{durable_stores.pair} {seed}")
    interrupts = Interrupts(chance)
    came = 0
    for number in range(target.times(INTERRUPTS)):
        store.send(message(f"more{number}"))
        before = state_of(store)
        path = durable_stores.root / "copy"
        try:
            interrupts.during(store, "snapshot", partial(store.snapshot, path))
        except (Interrupted, TimedOut):
            came += 1
        except StorePoisonedError:
            store = durable_stores.reopen(store)
        assert {each.name for each in durable_stores.root.iterdir()} <= {"store", "copy"}
        assert state_of(store) == before
        if path.exists():
            copy = durable_stores.open("copy")
            assert state_of(copy) == before
            copy.close()
            shutil.rmtree(path)
    assert came
    store.snapshot(durable_stores.root / "copy")
    assert state_of(durable_stores.open("copy")) == state_of(store)


@pytest.mark.clause("C6", "P5", "R7")
def test_c3_a_restored_copy_and_its_original_give_out_nothing_alike(durable_stores: Stores) -> None:
    """C3: both go on from one state; what one of them gives out since, the other never held."""
    store = durable_stores.open()
    store.send_batch([message(number) for number in range(4)])
    store.snapshot(durable_stores.root / "snapshot")
    rmqstore.restore(durable_stores.root / "snapshot", durable_stores.root / "copy")
    both = (durable_stores.reopen(store), durable_stores.open("copy"))
    timers = [each.send(message(f"later{at}"), delay=FAR) for at, each in enumerate(both)]
    held = [each.pop(T, G, max_messages=2, invisible=FAR) for each in both]
    for own, other in ((0, 1), (1, 0)):
        assert both[own].cancel(timers[other]) is CancelOutcome.UNKNOWN
        assert {each.name for each in both[own].ack(held[other])} <= {"UNKNOWN", "STALE"}
        assert both[own].lag(T, G).in_flight == 2
        assert both[own].pending().total == 1
