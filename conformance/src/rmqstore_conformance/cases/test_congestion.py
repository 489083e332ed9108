"""T9: congestion, over many draws of a seeded generator."""

from __future__ import annotations

import threading

import pytest

from rmqstore import FlowControlError
from rmqstore_conformance.stores import START_MS, Stores, message


def test_t9_refusals_follow_the_formula(engine_stores: Stores) -> None:
    """T9: p = clamp((n - C) / C), with n the slot as the batch would leave it: nothing up to C, half at 1.5 C, everything from 2 C on."""
    limit, draws = 40, 400
    store = engine_stores.open(congestion_limit=limit, congestion_seed=7)
    for n in range(limit):
        store.send(message(n), deliver_at_ms=START_MS + 1000)
    assert store.pending().total == limit, "below the limit nothing is refused"
    refused = 0
    for n in range(draws):
        rows = [message(f"x{n}-{i}", deliver_at_ms=START_MS + 1000) for i in range(limit // 2)]
        try:
            handles = [each.handle for each in store.send_batch(rows)]
        except FlowControlError as error:
            refused += 1
            assert str(START_MS + 1000) in str(error), "the slot is named"
        else:
            store.cancel([handle for handle in handles if handle is not None])
        assert store.pending().total == limit
    assert 0.42 < refused / draws < 0.58
    for _ in range(20):
        with pytest.raises(FlowControlError):
            store.send_batch([message(f"y{i}", deliver_at_ms=START_MS + 1000) for i in range(limit)])
    assert store.pending().total == limit


def test_t9_one_draw_a_batch_at_its_fullest_slot(engine_stores: Stores) -> None:
    """T9: a batch that touches a crowded slot and many empty ones is refused as a whole, as often as the crowded slot asks for."""
    store = engine_stores.open(congestion_limit=10, congestion_seed=3)
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(10)])
    refused = 0
    for n in range(400):
        rows = [message(f"x{n}", deliver_at_ms=START_MS + 1000 * (1 + i)) for i in range(5)]
        rows += [message(f"z{n}-{i}", deliver_at_ms=START_MS + 1000) for i in range(2)]
        try:
            handles = [each.handle for each in store.send_batch(rows)]
        except FlowControlError:
            refused += 1
        else:
            store.cancel([handle for handle in handles if handle is not None])
        assert store.pending().total == 10
    assert 0.22 < refused / 400 < 0.38, "13 timers over a limit of 10 are refused with p = 0.3"
    rows = [message(f"{due}-{n}", deliver_at_ms=due) for due in (START_MS + 60_000, START_MS + 1000) for n in range(10)]
    with pytest.raises(FlowControlError):
        # Both slots get ten, and one of them would hold twenty.
        store.send_batch(rows)
    store = engine_stores.open("many", congestion_limit=10, congestion_seed=3)
    crowded = [START_MS + 1000 * (1 + slot) for slot in range(5)]
    store.send_batch([message(f"{due}-{n}", deliver_at_ms=due) for due in crowded for n in range(10)])
    refused = 0
    for n in range(200):
        try:
            sent = store.send_batch([message(f"{due}-{n}-{i}", deliver_at_ms=due) for due in crowded for i in range(3)])
        except FlowControlError:
            refused += 1
        else:
            store.cancel(sent)
    assert 0.2 < refused / 200 < 0.4, "one draw for the call, however many of its slots are as full as its fullest"


def test_t9_the_same_seed_draws_the_same(engine_stores: Stores) -> None:
    """T9: the generator is injected by its seed."""

    def pattern(name: str, seed: int) -> list[bool]:
        store = engine_stores.open(name, congestion_limit=4, congestion_seed=seed)
        taken = []
        for n in range(40):
            try:
                handle = store.send_batch([message(f"{n}-{i}", deliver_at_ms=START_MS + 1000) for i in range(6)])[0:6]
            except FlowControlError:
                taken.append(False)
            else:
                taken.append(True)
                store.cancel([each.handle for each in handle if each.handle is not None])
        return taken

    assert pattern("one", 1) == pattern("two", 1)
    assert pattern("three", 1) != pattern("four", 2)


@pytest.mark.clause("F3")
def test_t9_a_refused_send_leaves_no_topic_behind(engine_stores: Stores) -> None:
    """T9: nothing is stored, not even the topic that the send named."""
    store = engine_stores.open(congestion_limit=1)
    with pytest.raises(FlowControlError):
        store.send_batch([message(n, "fresh", deliver_at_ms=START_MS + 1000) for n in range(3)])
    assert store.topics.list() == []
    assert store.pending().total == 0


def test_t9_what_is_handed_over_makes_room(engine_stores: Stores) -> None:
    """T9: the count of a slot falls with what leaves it, by hand-over or by cancel."""
    store = engine_stores.open(congestion_limit=2, congestion_seed=1)
    first = [store.send(message(n), deliver_at_ms=START_MS + 1000) for n in range(2)]
    for n in range(100):
        handle = first.pop(0).handle
        assert handle is not None
        store.cancel(handle)
        first.append(store.send(message(f"x{n}"), deliver_at_ms=START_MS + 1000))
    assert engine_stores.tick_after(store, 1000).handed_over == 2
    engine_stores.clock.set(START_MS)
    for n in range(2):
        store.send(message(f"y{n}"), deliver_at_ms=START_MS + 1000)
    assert store.pending().total == 2


@pytest.mark.clause("F4", "T9")
def test_f3_what_was_refused_crowds_nothing(engine_stores: Stores) -> None:
    """F3: batches that a slot has no room for leave the slot as it was, however many of them come."""
    store = engine_stores.open(congestion_limit=5, congestion_seed=1)
    for _ in range(3):
        with pytest.raises(FlowControlError):
            store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(10)])
    # From another thread: a refusal leaves no lock behind.
    other = threading.Thread(target=store.send, args=(message("room-other"),), kwargs={"deliver_at_ms": START_MS + 1000}, daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive(), "a call that was refused holds up another thread"
    for n in range(4):
        store.send(message(f"room-{n}"), deliver_at_ms=START_MS + 1000)
    assert store.pending().total == 5
