"""T9: congestion, over many draws of a seeded generator."""

from __future__ import annotations

import threading

import pytest

from rmqstore import FlowControlError, Message, Store
from rmqstore_conformance.stores import START_MS, Stores, message

DUE_MS = START_MS + 1000


def due(label: object, count: int, due_ms: int = DUE_MS) -> list[Message]:
    """Return so many messages that are due in one tick."""
    return [message(f"{label}-{n}", deliver_at_ms=due_ms) for n in range(count)]


def refused(store: Store, rows: list[Message]) -> bool:
    """Send a batch, take back what was taken, and say whether it was refused."""
    try:
        store.cancel(list(store.send_batch(rows)))
    except FlowControlError:
        return True
    return False


def test_t9_refusals_follow_the_formula(engine_stores: Stores) -> None:
    """T9: p = clamp((n - C) / C), with n the slot as the batch would leave it: nothing up to C, half at 1.5 C, everything from 2 C on."""
    limit, draws = 20, 200
    store = engine_stores.open(congestion_limit=limit, congestion_seed=7)
    for each in due("first", limit):
        store.send(each)
    assert store.pending().total == limit, "below the limit nothing is refused"
    half = due("half", limit // 2)
    share = sum(refused(store, half) for _ in range(draws)) / draws
    assert 0.42 < share < 0.58
    for n in range(20):
        with pytest.raises(FlowControlError, match=str(DUE_MS)):
            store.send_batch(due(f"y{n}", limit))
    assert store.pending().total == limit


def test_t9_one_draw_a_batch_at_its_fullest_slot(engine_stores: Stores) -> None:
    """T9: a batch that touches a crowded slot and many empty ones is refused as a whole, as often as the crowded slot asks for."""
    store = engine_stores.open(congestion_limit=10, congestion_seed=3)
    store.send_batch(due("first", 10))
    spread = [message(f"x{slot}", deliver_at_ms=DUE_MS + 1000 * slot) for slot in range(5)] + due("z", 2)
    share = sum(refused(store, spread) for _ in range(200)) / 200
    assert 0.22 < share < 0.38, "13 timers over a limit of 10 are refused with p = 0.3"
    assert store.pending().total == 10
    # Both slots get ten, and one of them would hold twenty.
    assert refused(store, due("far", 10, START_MS + 60_000) + due("near", 10))
    store = engine_stores.open("many", congestion_limit=10, congestion_seed=3)
    crowded = [DUE_MS + 1000 * slot for slot in range(5)]
    store.send_batch([each for due_ms in crowded for each in due(due_ms, 10, due_ms)])
    more = [each for due_ms in crowded for each in due(f"x{due_ms}", 3, due_ms)]
    share = sum(refused(store, more) for _ in range(200)) / 200
    assert 0.2 < share < 0.4, "one draw for the call, however many of its slots are as full as its fullest"
    assert store.pending().total == 50


def test_t9_the_same_seed_draws_the_same(engine_stores: Stores) -> None:
    """T9: the generator is injected by its seed."""

    def pattern(name: str, seed: int) -> list[bool]:
        store = engine_stores.open(name, congestion_limit=4, congestion_seed=seed)
        return [refused(store, due(n, 6)) for n in range(40)]

    assert pattern("one", 1) == pattern("two", 1)
    assert pattern("three", 1) != pattern("four", 2)


@pytest.mark.clause("F3")
def test_t9_a_refused_send_leaves_no_topic_behind(engine_stores: Stores) -> None:
    """T9: nothing is stored, not even the topic that the send named."""
    store = engine_stores.open(congestion_limit=1)
    with pytest.raises(FlowControlError):
        store.send_batch([message(n, "fresh", deliver_at_ms=DUE_MS) for n in range(3)])
    assert store.topics.list() == []
    assert store.pending().total == 0


def test_t9_what_is_handed_over_makes_room(engine_stores: Stores) -> None:
    """T9: the count of a slot falls with what leaves it, by hand-over or by cancel."""
    store = engine_stores.open(congestion_limit=2, congestion_seed=1)
    held = [store.send(each) for each in due("first", 2)]
    for each in due("x", 100):
        store.cancel(held.pop(0))
        held.append(store.send(each))
    assert engine_stores.tick_after(store, 1000).handed_over == 2
    engine_stores.clock.set(START_MS)
    for each in due("y", 2):
        store.send(each)
    assert store.pending().total == 2


@pytest.mark.clause("R1")
def test_t9_a_full_slot_is_full_behind_an_open(durable_stores: Stores) -> None:
    """T9: the count of a slot is that of its timers, whoever put them, and less what was cancelled."""
    store = durable_stores.open(congestion_limit=5)
    store.cancel(store.send_batch(due("first", 5))[0])
    store = durable_stores.reopen(store, congestion_limit=5)
    with pytest.raises(FlowControlError):
        store.send_batch(due("x", 6))
    store.send(due("in its place", 1)[0])
    assert store.pending().total == 5


def test_t9_what_is_due_already_counts(engine_stores: Stores) -> None:
    """T9: the slot of rows whose time has passed is as full as any other."""
    store = engine_stores.open(congestion_limit=5)
    with pytest.raises(FlowControlError):
        store.send_batch(due("past", 20, START_MS - 1) + due("x", 1))
    assert store.pending().total == 0


@pytest.mark.clause("F4", "T9")
def test_f3_what_was_refused_crowds_nothing(engine_stores: Stores) -> None:
    """F3: batches that a slot has no room for leave the slot as it was, however many of them come."""
    store = engine_stores.open(congestion_limit=5, congestion_seed=1)
    assert all(refused(store, due(n, 10)) for n in range(3))
    first, *rest = due("room", 5)
    # From another thread: a refusal leaves no lock behind.
    other = threading.Thread(target=store.send, args=(first,), daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive(), "a call that was refused holds up another thread"
    for each in rest:
        store.send(each)
    assert store.pending().total == 5
