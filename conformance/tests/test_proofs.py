"""The mutants that are named with no case are wrong, each in one way that its proof tells, which holds on the engine that it was made of.

A proof has the name of its mutant, uses the public API alone, returns on a sound engine, and fails an assertion on the mutant. What a crash
may take or cut in two is told by calls of every kind: how many transactions each is, and how many its answer does not wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from rmqstore import Message, Store
from rmqstore.contract import InitMode, MessageState
from rmqstore.plugins import get_plugins
from rmqstore_conformance.proving import mutants, mutants_of_disks
from rmqstore_conformance.proving.planting import WrongEngine
from rmqstore_conformance.stores import DAY_MS, START_MS, Pair, Stores, message, read_ids, stores_of
from rmqstore_lmdb.kv import LmdbBase

Proof: TypeAlias = Callable[[Stores, Store], None]

PROOFS: dict[str, Proof] = {}


def proof(prove: Proof) -> Proof:
    PROOFS[prove.__name__] = prove
    return prove


@proof
def page_borders_eat_bytes(stores: Stores, store: Store) -> None:
    store.send(Message("t", b"x" * 4096))
    assert len(store.pop("t", "g")[0].body) == 4096


@proof
def sliced_columns_unmoved(stores: Stores, store: Store) -> None:
    store.send_batch(pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "body": [b"a", b"bb", b"ccc"]}).slice(1))
    assert [each.body for each in store.pop("t", "g")] == [b"bb", b"ccc"]


@proof
def dead_of_long_topics(stores: Stores, store: Store) -> None:
    topic = "t" * 64
    store.send(message(1, topic))
    store.reject(store.pop(topic, "g"))
    store.dead_letters.drop(store.dead_letters.list("g"))
    assert store.lag(topic, "g").dead == 0


@proof
def where_overlooks_waits(stores: Stores, store: Store) -> None:
    store.send(message(1))
    store.pop("t", "g", invisible_ms=1000, order=True)
    stores.clock.advance(1000)
    store.tick()
    assert [each.state for each in store.where(id="m1")] == [MessageState.RETRY]


@proof
def latest_outlives_cancel_key(stores: Stores, store: Store) -> None:
    store.send(message(1), delay_ms=5000)
    store.send(message(2, keys=("k",)), delay_ms=9000)
    store.cancel_key("t", "k")
    assert store.pending().latest_ms == START_MS + 5000


@proof
def parks_short(stores: Stores, store: Store) -> None:
    store.send(message(1, body=b"q" * 3000))
    store.close()
    for file in (stores.root / "store").glob("**/data.mdb"):
        data = file.read_bytes()
        assert b"q" * 3000 in data
        file.write_bytes(data.replace(b"q" * 3000, b"z" + b"q" * 2999))
    store = stores.open()
    store.pop("t", "g")
    assert len(store.dead_letters.parked()[0].message.body) >= 3000


@proof
def settings_read_before_they_are_set(stores: Stores, store: Store) -> None:
    with ThreadPoolExecutor() as threads, store.engine.pops.held():
        for group in ("g", "h"):
            threads.submit(store.groups.set, group, max_retries=3)
        time.sleep(0.2)  # by then each waits for the side
    assert [store.groups.settings(group).max_retries for group in ("g", "h")] == [3, 3]


@proof
def closes_without_sync(stores: Stores, store: Store) -> None:
    store = stores.reopen(store, flush="async")
    store.send(message(1))
    assert read_ids(stores.reopen(store)) == ["m1"]


# ---------------------------------------------------------------- what a crash may take, or cut in two


def calls(stores: Stores, store: Store) -> Iterator[object]:
    """Make calls of every kind, one after the other."""
    yield store.pop("old", "g")
    yield store.send(message(1, "old"))
    yield (receipt := store.send(message(2), delay_ms=DAY_MS, marks=[b"k"]))
    yield store.cancel(receipt)
    for delay_ms in (0, DAY_MS):
        yield store.send_batch([message(number) for number in range(2500)], delay_ms=delay_ms)
    yield (leased := store.pop("t", "g", max_messages=603))
    yield store.ack(leased[3:])
    yield store.change_invisible(leased[:1], invisible_ms=1000)
    yield store.reject(leased[1:2])
    yield store.dead_letters.resend(store.dead_letters.list("g"))
    stores.clock.advance(1000)
    yield store.tick()
    yield store.pop("t", "h", order=True)
    store.groups.set("h", max_retries=3)
    yield None
    store.groups.reset_offset("t", "g", InitMode.MIN)
    yield None
    store.topics.delete("t")
    yield None
    stores.clock.advance(2 * DAY_MS)
    yield store.tick()
    store.flush()
    yield None


def transactions(engine: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return how many transactions each of the calls is, and how many writes are not durable when it returns."""
    plain, made = LmdbBase.commit, [0]

    def commit(base: LmdbBase, changes: Any) -> None:
        plain(base, changes)
        made[0] += 1

    found = []
    with stores_of(Pair(engine, engine)) as stores, monkeypatch.context() as patched:
        patched.setattr(LmdbBase, "commit", commit)
        store = stores.open(retention_ms=DAY_MS)
        made[0] = 0
        for _ in calls(stores, store):
            stats = store.engine.pops.stats()
            found.append((made[0], stats.position - stats.durable_position))
            made[0] = 0
    return found


# ---------------------------------------------------------------- each on its mutant

UNNAMED = [each for kit in (mutants, mutants_of_disks) for each in kit.MUTANTS if not each.caught_by]
BY_CALLS = [each for each in UNNAMED if each.name not in PROOFS]


@pytest.fixture(scope="module", autouse=True)
def _announced() -> None:
    for kit in (mutants, mutants_of_disks):
        if kit.MUTANTS[0].engine not in {each.name for each in get_plugins().engines()}:
            get_plugins().add(kit)


@pytest.mark.parametrize("mutant", [each for each in UNNAMED if each.name in PROOFS], ids=lambda mutant: mutant.name)
def test_the_proof_tells_the_mutant_from_the_engine(mutant: WrongEngine) -> None:
    prove = PROOFS[mutant.name]
    with stores_of(Pair(mutant.base, mutant.base)) as stores:
        prove(stores, stores.open())
    with stores_of(Pair(mutant.engine, mutant.engine)) as stores, pytest.raises(AssertionError):
        prove(stores, stores.open())


@pytest.mark.parametrize("mutant", BY_CALLS, ids=lambda mutant: mutant.name)
def test_a_call_is_more_transactions_than_that_of_the_engine_or_does_not_wait_for_all(
    mutant: WrongEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = zip(transactions(mutant.engine, monkeypatch), transactions(mutant.base, monkeypatch), strict=True)
    assert any(wrong[0] > sound[0] or wrong[1] > sound[1] for wrong, sound in both)


def test_there_is_a_proof_for_each_and_no_other() -> None:
    assert set(PROOFS) <= {each.name for each in UNNAMED}
    assert {each.kind for each in BY_CALLS} == {"two-writes", "durability"}
