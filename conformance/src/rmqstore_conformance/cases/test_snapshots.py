"""R7: copies of a store that is in use: each is the store of one moment, whole or not there."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

import rmqstore
from rmqstore import CancelOutcome
from rmqstore.errors import StorePoisonedError
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.faults.interrupting import Interrupted, Interrupts, TimedOut
from rmqstore_conformance.stores import Stores, label, message, state_of
from rmqstore_conformance.targets import Target

(T,) = topics(__name__, 1)
G, H = groups(__name__, 2)

pytestmark = pytest.mark.needs("snapshot")

FAR = timedelta(days=1)
SOON = timedelta(seconds=1)
INTERRUPTS = 40
BETWEEN = 20


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_r7_a_snapshot_is_one_moment(durable_stores: Stores, target: Target, seed: int, flush: str) -> None:
    """R7: at some step of a snapshot another thread sends, cancels, pops, acks or ticks: the copy is as before that call, or behind it."""
    store = durable_stores.open(flush=flush)
    chance = random.Random(f"{durable_stores.pair} {seed}")
    steps = Interrupts(chance)
    keys = (label("key"),)
    for number in range(target.times(BETWEEN)):
        ready = [store.send(message(f"ready{number}-{n}", keys=keys), delay=FAR) for n in range(2)]
        store.send_batch([message(f"now{number}-{n}") for n in range(3)])
        held = store.pop(T, G, max_messages=1, invisible=FAR)
        store.send_batch([message(f"soon{number}-{n}") for n in range(2)], delay=SOON)
        durable_stores.clock.advance(SOON)
        calls: list[Callable[[], object]] = [
            partial(store.send_batch, [message(f"far{number}-{n}", keys=keys) for n in range(2)], delay=FAR),
            partial(store.cancel, ready),
            partial(store.ack, held),
            partial(store.pop, T, H, max_messages=2, invisible=FAR, attempt_id=f"a{number}"),
            store.tick,
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
        if call == store.tick and other.ident is not None:
            # A hand-over goes in steps; the copy makes those that it lacks.
            copy.tick()
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
    came = number = 0
    while number < target.times(INTERRUPTS) or (not came and number < INTERRUPTS):
        number += 1
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
@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "opened"])
def test_c3_a_restored_copy_and_its_original_give_out_nothing_alike(durable_stores: Stores, is_restored: bool) -> None:
    """C3: both go on from one state; what one of them gives out since, the other never held. A snapshot that is opened itself is a copy."""
    store = durable_stores.open()
    store.send_batch([message(number) for number in range(4)])
    store.snapshot(durable_stores.root / ("snapshot" if is_restored else "copy"))
    if is_restored:
        rmqstore.restore(durable_stores.root / "snapshot", durable_stores.root / "copy")
    both = (durable_stores.reopen(store), durable_stores.open("copy"))
    timers = [each.send(message(f"later{at}"), delay=FAR) for at, each in enumerate(both)]
    held = [each.pop(T, G, max_messages=2, invisible=FAR) for each in both]
    for own, other in ((0, 1), (1, 0)):
        assert both[own].cancel(timers[other]) is CancelOutcome.UNKNOWN
        assert {each.name for each in both[own].ack(held[other])} <= {"UNKNOWN", "STALE"}
        assert both[own].lag(T, G).in_flight == 2
        assert both[own].pending().total == 1
