"""The mutants that are named with no case are wrong, each in one way: its proof holds on the engine that it was made of and not on it.

A proof has the name of its mutant. It uses the public API alone, returns on a sound engine, and fails an assertion on the mutant. What
``kill -9`` leaves is a copy of the store's directory (:func:`copied`). A call that is two transactions of the database may be cut in two.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from rmqstore import Message, PoppedMessage, Store
from rmqstore.contract import GroupSettings, InitMode, MessageState, Side
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


def calls(stores: Stores) -> Iterator[object]:
    """Make calls of every kind, one after the other."""
    store = stores.open(retention_ms=DAY_MS)
    yield store.pop("old", "g")
    yield store.send(message(1, "old"))
    yield (receipt := store.send(message(2), delay_ms=DAY_MS, marks=[b"k"]))
    yield store.cancel(receipt)
    yield store.send_batch(many(2500))
    yield (leased := store.pop("t", "g", max_messages=603))
    yield store.ack(leased[3:])
    yield store.change_invisible(leased[:1], invisible_ms=1000)
    yield store.reject(leased[1:2])
    yield store.dead_letters.resend(store.dead_letters.list("g"))
    stores.clock.advance(1000)
    yield store.tick()
    yield store.pop("t", "h", order=True)
    yield store.topics.delete("t")
    stores.clock.advance(2 * DAY_MS)
    yield store.tick()
    yield store.flush()


def transactions(engine: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many transactions each of the calls is."""
    plain, counts = LmdbBase.commit, [0]

    def commit(base: LmdbBase, changes: Any) -> None:
        plain(base, changes)
        counts[-1] += 1

    with stores_of(Pair(engine, engine)) as stores, monkeypatch.context() as patched:
        patched.setattr(LmdbBase, "commit", commit)
        for _ in calls(stores):
            counts.append(0)
    return counts


TWO_WRITES = [each for each in mutants_of_disks.MUTANTS if each.kind == "two-writes"]


@pytest.mark.parametrize("mutant", TWO_WRITES, ids=lambda mutant: mutant.name)
def test_a_call_that_may_be_cut_in_two_is_more_transactions_than_that_of_the_engine(
    mutant: WrongEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = zip(transactions(mutant.engine, monkeypatch), transactions(mutant.base, monkeypatch), strict=True)
    assert any(wrong > sound for wrong, sound in both)


# ---------------------------------------------------------------- each on its mutant

UNNAMED = [each for kit in (mutants, mutants_of_disks) for each in kit.MUTANTS if not each.caught_by and each not in TWO_WRITES]


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
