"""The strangers are wrong, each in one way: its proof holds on the engine that it was made of and not on it, and plain use works."""

from __future__ import annotations

import pytest

import rmqstore
from conformance.tests import (
    stranger_proofs_of_crashes,  # noqa: F401 - fills PROOFS
    stranger_proofs_of_memory,  # noqa: F401
)
from conformance.tests.stranger_proofs import PROOFS
from rmqstore.contract import AckOutcome, CancelOutcome, RejectOutcome
from rmqstore.plugins import get_plugins
from rmqstore_conformance.proving import strangers
from rmqstore_conformance.proving.planting import LMDB, MEMORY, WrongEngine
from rmqstore_conformance.proving.strangers import STRANGERS
from rmqstore_conformance.stores import Pair, message, stores_of


@pytest.fixture(scope="module", autouse=True)
def _announced() -> None:
    if STRANGERS[0].engine not in {each.name for each in get_plugins().engines()}:
        get_plugins().add(strangers)


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: stranger.name)
def test_the_proof_tells_the_stranger_from_the_engine(stranger: WrongEngine) -> None:
    prove = PROOFS[stranger.name]
    with stores_of(Pair(stranger.base, stranger.base)) as stores:
        prove(stores)
    with stores_of(Pair(stranger.engine, stranger.engine)) as stores, pytest.raises(AssertionError):
        prove(stores)


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: stranger.name)
def test_plain_use_works(stranger: WrongEngine) -> None:
    with (
        stores_of(Pair(stranger.engine, stranger.engine)) as stores,
        # Without the witness, which looks at more than a user does.
        rmqstore.open(stores.root / "store", engine=stranger.engine, services=False, clock=stores.clock) as store,
    ):
        store.send(message(1, tag="a", keys=("k1",), properties={"p": "v"}))
        store.send(message(2), delay_ms=5000)
        cancelled = store.send(message(3), delay_ms=5000)
        assert store.cancel(cancelled) is CancelOutcome.CANCELLED
        assert [each.message.message_id for each in store.scan().timers] == ["m2"]
        stores.clock.advance(5000)
        assert store.tick().handed_over == 1
        first, second = store.pop("t", "g", invisible_ms=1000)
        assert (first.message_id, first.body, first.tag, first.keys, first.properties) == ("m1", b"body 1", "a", ("k1",), {"p": "v"})
        assert store.ack(first) is AckOutcome.ACKED
        stores.clock.advance(1000)
        assert store.tick().retried == 1
        [again] = store.pop("t", "g")
        assert (again.message_id, again.attempt) == (second.message_id, 2)
        assert store.reject(again) is RejectOutcome.REJECTED
        assert [each.message.message_id for each in store.dead_letters.list("g")] == ["m2"]
        assert store.pending().total == 0
        assert store.verify() == []


def test_there_is_a_proof_for_each_and_no_other() -> None:
    assert set(PROOFS) == {each.name for each in STRANGERS}


def test_there_are_enough_of_each_kind() -> None:
    bases = [each.base for each in STRANGERS]
    assert bases.count(MEMORY) >= 45
    assert bases.count(LMDB) >= 25
    assert {each.kind for each in STRANGERS} == {"data", "fidelity", "durability", "two-writes", "pairs", "concurrency", "logic"}
