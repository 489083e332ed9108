"""The mutants that are named with no case are wrong, each in one way: its proof holds on the engine that it was made of and not on it.

A proof has the name of its mutant. It uses the public API alone, returns on a sound engine, and fails an assertion on the mutant. What
``kill -9`` leaves is a copy of the store's directory (:func:`copied`, :func:`moments`).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from rmqstore import Message, PoppedMessage, Store
from rmqstore.contract import CancelOutcome, GroupSettings, InitMode, MessageState, Side
from rmqstore.plugins import get_plugins
from rmqstore_conformance.proving import mutants, mutants_of_disks
from rmqstore_conformance.proving.planting import WrongEngine
from rmqstore_conformance.stores import DAY_MS, START_MS, Pair, Stores, message, read_ids, stores_of
from rmqstore_lmdb.kv import LmdbBase

S = START_MS

Proof: TypeAlias = Callable[[Stores], None]

PROOFS: dict[str, Proof] = {}


def proof(prove: Proof) -> Proof:
    PROOFS[prove.__name__] = prove
    return prove


def passed(stores: Stores, store: Store, by_ms: int) -> None:
    """Let time pass, and a tick come."""
    stores.clock.advance(by_ms)
    store.tick()


def sent(stores: Stores, message: Message, **settings: Any) -> PoppedMessage:
    """Send a message for now, and pop it."""
    store = stores.open(**settings)
    store.send(message)
    return store.pop(message.topic, "g")[0]


def failed_once(stores: Stores, message: Message, **pop: Any) -> Store:
    """Send a message and let the lease of its first pop end."""
    store = stores.open()
    store.send(message)
    assert store.pop(message.topic, "g", invisible_ms=1000, **pop)
    passed(stores, store, 1000)
    return store


def refused(error: type[Exception], call: Callable[[], object]) -> None:
    """Show that a call is refused."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def many(count: int, body: bytes = b"x", **fields: Any) -> list[Message]:
    return [Message("t", body, message_id=f"m{number}", **fields) for number in range(count)]


def copied(stores: Stores, name: str = "copy", **settings: Any) -> Store:
    """Open what a kill would leave of the store now."""
    shutil.copytree(stores.root / "store", stores.root / name)
    return stores.open(name, **settings)


@contextmanager
def moments(stores: Stores) -> Iterator[Callable[..., Iterator[Store]]]:
    """Copy the store after each transaction of a block; then give each copy, opened."""
    plain, names = LmdbBase.commit, []

    def commit(base: LmdbBase, changes: Any) -> None:
        plain(base, changes)
        names.append(f"moment{len(names)}")
        shutil.copytree(stores.root / "store", stores.root / names[-1])

    def opened(**settings: Any) -> Iterator[Store]:
        for name in names:
            with stores.open(name, **settings) as store:
                yield store

    LmdbBase.commit = commit
    try:
        yield opened
    finally:
        LmdbBase.commit = plain


def meeting(side: Side, calls: Sequence[Callable[[], Any]], inside: Callable[[], None] = lambda: None) -> list[Any]:
    """Make calls by threads that all have begun while a side is held; ``inside`` runs then."""
    answers: list[Any] = [None] * len(calls)

    def make(at: int) -> None:
        answers[at] = calls[at]()

    threads = [threading.Thread(target=make, args=(at,)) for at in range(len(calls))]
    with side.held():
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # by then each waits for the side
        inside()
    for thread in threads:
        thread.join()
    return answers


# ---------------------------------------------------------------- data: pops


@proof
def page_borders_eat_bytes(stores: Stores) -> None:
    assert len(sent(stores, Message("t", b"x" * 4096)).body) == 4096


@proof
def sliced_columns_unmoved(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "body": [b"a", b"bb", b"ccc"]}).slice(1))
    assert [each.body for each in store.pop("t", "g")] == [b"bb", b"ccc"]


@proof
def dead_of_long_topics(stores: Stores) -> None:
    store = stores.open()
    topic = "t" * 64
    store.send(message(1, topic))
    store.reject(store.pop(topic, "g"))
    store.dead_letters.drop(store.dead_letters.list("g"))
    assert store.lag(topic, "g").dead == 0


# ---------------------------------------------------------------- other stores and clocks


@proof
def where_overlooks_waits(stores: Stores) -> None:
    store = failed_once(stores, message(1), order=True)
    assert [each.state for each in store.where(id="m1")] == [MessageState.RETRY]


@proof
def latest_outlives_cancel_key(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=5000)
    store.send(message(2, keys=("k",)), delay_ms=9000)
    store.cancel_key("t", "k")
    assert store.pending().latest_ms == S + 5000


# ---------------------------------------------------------------- after a reopen


@proof
def parks_short(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1, body=b"q" * 3000))
    store.close()
    for file in (stores.root / "store").glob("**/data.mdb"):
        data = file.read_bytes()
        assert b"q" * 3000 in data
        file.write_bytes(data.replace(b"q" * 3000, b"z" + b"q" * 2999))
    store = stores.open()
    store.pop("t", "g")
    assert len(store.dead_letters.parked()[0].message.body) >= 3000


# ---------------------------------------------------------------- threads


@proof
def settings_read_before_they_are_set(stores: Stores) -> None:
    store = stores.open()
    meeting(store.engine.pops, [partial(store.groups.set, group, max_retries=3) for group in ("g", "h")])
    assert [store.groups.settings(group).max_retries for group in ("g", "h")] == [3, 3]


# ---------------------------------------------------------------- answers: timers


@proof
def large_puts_wait_for_less(stores: Stores) -> None:
    stores.open().send_batch(many(1200), delay_ms=5000)
    assert copied(stores).pending().total == 1200


# ---------------------------------------------------------------- answers: pops


@proof
def large_pops_wait_for_less(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(50))
    store.pop("t", "g", max_messages=50)
    assert copied(stores).lag("t", "g").in_flight == 50


@proof
def resets_at_once(stores: Stores) -> None:
    store = stores.open(reclaim="age")
    store.send(message(1))
    store.ack(store.pop("t", "g"))
    store.groups.reset_offset("t", "g", InitMode.MIN)
    assert copied(stores, reclaim="age").lag("t", "g").ready == 1


@proof
def settings_at_once(stores: Stores) -> None:
    stores.open().groups.set("g", max_retries=3)
    assert copied(stores).groups.settings("g") == GroupSettings(max_retries=3)


# ---------------------------------------------------------------- answers: sessions


@proof
def closes_without_sync(stores: Stores) -> None:
    store = stores.open(flush="async")
    store.send(message(1))
    assert read_ids(stores.reopen(store)) == ["m1"]


# ---------------------------------------------------------------- two writes


def _parts(stores: Stores, call: Callable[[], object], count: Callable[[Store], int], whole: set[int], **settings: Any) -> None:
    """Show that after each transaction of a call a count is one of those that whole calls leave."""
    with moments(stores) as opened:
        call()
    seen = [count(each) for each in opened(**settings)]
    assert seen
    assert set(seen) <= whole, seen


@proof
def marks_before_puts(stores: Stores) -> None:
    store = stores.open()

    def send(to: Store) -> int:
        to.send(message(1), delay_ms=5000, marks=[b"k"])
        return to.pending().total

    _parts(stores, lambda: send(store), send, {1})


@proof
def counters_behind_puts(stores: Stores) -> None:
    store = stores.open()
    both = [message(1, "a"), message(2, "b")]
    _parts(stores, lambda: store.send_batch(both, delay_ms=5000), lambda each: len(each.verify()), {0})


@proof
def traces_behind_cancels(stores: Stores) -> None:
    store = stores.open()
    receipt = store.send(message(1), delay_ms=5000)
    _parts(stores, lambda: store.cancel(receipt), lambda each: each.cancel(receipt) is CancelOutcome.CANCELLED, {1})


@proof
def large_sends_in_parts(stores: Stores) -> None:
    store = stores.open()
    _parts(stores, lambda: store.send_batch(many(2500)), lambda each: each.lag("t", "g").ready, {0, 2500})


@proof
def changes_in_two(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    leased = store.pop("t", "g")

    def comes_back(to: Store) -> int:
        stores.clock.set(S + DAY_MS)
        to.tick()
        return len(to.pop("t", "g"))

    _parts(stores, lambda: store.change_invisible(leased, invisible_ms=5000), comes_back, {1})


@proof
def large_acks_in_parts(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(600))
    leased = store.pop("t", "g", max_messages=600)
    _parts(stores, lambda: store.ack(leased), lambda each: each.lag("t", "g").in_flight, {0, 600})


@proof
def resent_before_removed(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"))
    letters = store.dead_letters.list("g")
    _parts(
        stores, lambda: store.dead_letters.resend(letters), lambda each: len(each.dead_letters.list("g")) + each.lag("t", "g").retry, {1}
    )


@proof
def retries_before_leases_end(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.pop("t", "g", invisible_ms=1000)
    stores.clock.advance(1000)

    def tick(of: Store) -> int:
        of.tick()
        return of.lag("t", "g").retry

    _parts(stores, store.tick, tick, {1})


@proof
def dead_counted_behind(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    leased = store.pop("t", "g")
    _parts(stores, lambda: store.reject(leased), lambda each: each.lag("t", "g").dead - len(each.dead_letters.list("g")), {0})


@proof
def offsets_behind_leases(stores: Stores) -> None:
    store = stores.open()
    store.pop("t", "g")
    store.send(message(1))

    def given(by: Store) -> int:
        stores.clock.set(S + DAY_MS)
        by.tick()
        return len(by.pop("t", "g"))

    _parts(stores, lambda: store.pop("t", "g", invisible_ms=1000), given, {1})


@proof
def runs_behind_leases(stores: Stores) -> None:
    store = stores.open(max_retries=0)
    store.send(message(1))

    def dead(of: Store) -> int:
        of.pop("t", "g", order=True, invisible_ms=1000)
        stores.clock.set(S + DAY_MS)
        of.tick()
        return of.lag("t", "g").dead

    _parts(stores, lambda: store.pop("t", "g", order=True, invisible_ms=1000), dead, {1}, max_retries=0)


@proof
def names_behind_messages(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    _parts(stores, lambda: store.topics.delete("t"), lambda each: each.lag("t", "g").ready - len(read_ids(each)), {0})


@proof
def expired_counted_behind(stores: Stores) -> None:
    store = stores.open(retention_ms=1000)
    store.pop("t", "g")
    store.send(message(1))
    stores.clock.advance(5000)

    def accounted(of: Store) -> int:
        lag = of.lag("t", "g")
        return lag.ready + lag.expired

    _parts(stores, lambda: (store.tick(), store.flush()), accounted, {1}, retention_ms=1000)


# ---------------------------------------------------------------- each on its mutant

UNNAMED = [each for kit in (mutants, mutants_of_disks) for each in kit.MUTANTS if not each.caught_by]


@pytest.fixture(scope="module", autouse=True)
def _announced() -> None:
    for kit in (mutants, mutants_of_disks):
        if kit.MUTANTS[0].engine not in {each.name for each in get_plugins().engines()}:
            get_plugins().add(kit)


@pytest.mark.parametrize("mutant", UNNAMED, ids=lambda mutant: mutant.name)
def test_the_proof_tells_the_mutant_from_the_engine(mutant: WrongEngine) -> None:
    prove = PROOFS[mutant.name]
    with stores_of(Pair(mutant.base, mutant.base)) as stores:
        prove(stores)
    with stores_of(Pair(mutant.engine, mutant.engine)) as stores, pytest.raises(AssertionError):
        prove(stores)


def test_there_is_a_proof_for_each_and_no_other() -> None:
    assert set(PROOFS) == {each.name for each in UNNAMED}
