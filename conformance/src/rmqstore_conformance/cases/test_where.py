"""A look-up by id or key tells of every place where a message is, and for whom (P14)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmqstore import MessageState, Store, Whereabouts
from rmqstore.contract import NO_RETRY, Receipt
from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import Stores, id_of, key_of, label, message

(T,) = topics(__name__.rpartition(".")[2], 1)
G, H = groups(__name__.rpartition(".")[2], 2)

LEASE = timedelta(seconds=10)


def _states(store: Store, number: object, topic: str | None = None) -> dict[str, MessageState]:
    found = store.where(id=id_of(f"m{number}"), topic=topic)
    assert len({each.group for each in found}) == len(found), "one place for each group"
    assert {label(each.message) for each in found} <= {f"m{number}"}
    return {each.group: each.state for each in found}


def _only(store: Store, group: str) -> Whereabouts:
    (found,) = (each for each in store.where(id=id_of("m1")) if each.group == group)
    return found


def test_p14_where_a_message_is_on_its_way(durable_stores: Stores) -> None:
    """P14: a timer, ready, leased, backing off, to be retried, dead, resent, done: told for each group, beside others and over an open."""
    store = durable_stores.open(max_retries=1)
    clock = durable_stores.clock
    store.send_batch([message(n, keys=(key_of("k"), key_of(f"k{n}"))) for n in range(2, 40)])
    handle = store.send(message(1, keys=(key_of("mine"),)), delay=timedelta(minutes=1)).handle
    (timer,) = store.where(key=key_of("mine"))
    assert (timer.state, timer.handle, timer.message.topic) == (MessageState.PENDING, handle, T)
    assert timer.until_ms == clock.now_ms() + 60_000
    assert store.where(id=id_of("m1"), topic="other") == []
    clock.advance(timedelta(minutes=1))
    store.tick()
    assert _states(store, 1) == {"": MessageState.READY}
    for group in (G, H):
        while popped := store.pop(T, group, invisible=LEASE):
            store.ack([each for each in popped if label(each) != "m1"])
    assert _states(store, 1) == {G: MessageState.LEASED, H: MessageState.LEASED}
    held = _only(store, G)
    assert (held.until_ms, held.attempt) == (clock.now_ms() + 10_000, 1)
    receipt = Receipt.parse(held.receipt)
    assert receipt is not None
    assert (receipt.group, receipt.retry_flag) == (G, NO_RETRY)
    store.ack(_only(store, H).receipt)
    store.close()
    store = durable_stores.open(max_retries=1)
    assert _states(store, 1) == {G: MessageState.LEASED, H: MessageState.DONE}
    clock.advance(LEASE)
    store.tick()
    # Retention may take what every group has popped, and what is done with it is nowhere then.
    assert _states(store, 1) in ({G: MessageState.RETRY}, {G: MessageState.RETRY, H: MessageState.DONE})
    assert _states(store, 1, T) == _states(store, 1)
    assert _states(store, 5) in ({}, {G: MessageState.DONE, H: MessageState.DONE})
    again = store.pop(T, G, invisible=LEASE)
    assert (_only(store, G).state, _only(store, G).attempt) == (MessageState.LEASED, 2)
    store.retry_later(again, delay=timedelta(minutes=5), reason="no stock")
    waits = _only(store, G)
    assert (waits.state, waits.until_ms, waits.reason) == (MessageState.BACKING_OFF, clock.now_ms() + 300_000, "no stock")
    clock.advance(timedelta(minutes=5))
    store.tick()
    dead = _only(store, G)
    assert (dead.state, dead.attempt) == (MessageState.DEAD, 2)
    assert "no stock" in dead.reason
    store.dead_letters.resend(store.dead_letters.list(G))
    assert _only(store, G).state is MessageState.RETRY
    store.ack(store.pop(T, G))
    assert MessageState.RETRY not in _states(store, 1).values()
    assert len({label(each.message) for each in store.where(key=key_of("k"), topic=T)}) in (0, 38)
    assert store.where(id=id_of("m99")) == []


@pytest.mark.clause("C1")
def test_p14_what_was_cancelled_is_nowhere(stores: Stores) -> None:
    """P14: a cancelled timer is at no place; one of the same id and key that was not cancelled is."""
    store = stores.open()
    first, second = (store.send(message(1, keys=(key_of("k"),)), delay=timedelta(minutes=1)) for _ in range(2))
    assert {each.handle for each in store.where(key=key_of("k"))} == {first.handle, second.handle}
    store.cancel(first)
    assert [each.handle for each in store.where(id=id_of("m1"))] == [second.handle]
    for given in ({}, {"id": "a", "key": "b"}, {"id": ""}, {"key": "a b"}, {"id": "a", "topic": "a b"}):
        with pytest.raises(IllegalArgumentError):
            store.where(**given)
