"""C1–C6: cancel is answered truly."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from rmqstore import CancelOutcome, IllegalArgumentTypeError, Store
from rmqstore.contract import TimerHandle
from rmqstore_conformance.data import topics
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, Stores, ids, key_of, message, pop_all, read_ids

(T,) = topics(__name__, 1)

CANCELLED, LATE, UNKNOWN = CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED, CancelOutcome.UNKNOWN


def put(store: Store, number: int | str, delay: int = 5000, **fields: Any) -> str:
    """Send one timer and return its handle."""
    handle = store.send(message(number, **fields), delay_ms=delay).handle
    assert handle is not None
    return handle


def test_c1_cancelled_before_its_tick_is_sealed_never_comes(stores: Stores) -> None:
    """C1: up to the last ms before its tick; alone, and inside a batch whose others come."""
    store = stores.open()
    handles = [each.handle or "" for each in store.send_batch([message(n, deliver_at_ms=START_MS + 4500) for n in range(6)])]
    alone = put(store, "alone")
    assert store.cancel(handles[2]) is CANCELLED
    stores.tick_at(store, START_MS + 4999)
    assert store.cancel([handles[0], alone, handles[5]]) == [CANCELLED] * 3
    assert store.pending().total == 3
    stores.tick_after(store, DAY_MS)
    assert read_ids(store) == ["m1", "m3", "m4"]


def test_c1_cancelled_rows_stay_so_while_their_call_is_reclaimed_bit_by_bit(stores: Stores) -> None:
    """C1: a long tick reclaims while it runs; a cancelled row that is then the only one left of its call does not come to life."""
    store = stores.open(hand_over_limit=1)
    handles = [each.handle or "" for each in store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(80)])]
    put(store, "behind", 1000)
    gone = [*range(31, 48), 79]
    assert store.cancel([handles[n] for n in gone]) == [CANCELLED] * len(gone)
    stores.clock.advance(1000)
    for _ in range(3):
        for number, _step in enumerate(store._hand_over.steps(stores.clock.now_ms())):
            store.flush()
            store.engine.timers.forget(store.engine.pops.durable_cursor())
            if number > 90:
                break
    assert read_ids(store) == [f"m{n}" for n in range(80) if n not in gone] + ["mbehind"]
    assert store.cancel([handles[n] for n in gone]) == [CANCELLED] * len(gone)


def test_c1_due_but_not_yet_sealed_can_be_cancelled(stores: Stores) -> None:
    """C1: what counts is the seal, not the clock."""
    store = stores.open()
    handle = put(store, 1)
    stores.clock.advance(HOUR_MS)
    assert store.cancel(handle) is CANCELLED
    assert store.tick().handed_over == 0


def test_c2_after_the_seal_it_is_too_late(stores: Stores) -> None:
    """C2: ALREADY_DELIVERED from the seal on, through every step of the hand-over and after it; and it was delivered."""
    store = stores.open(hand_over_limit=1)
    handles = [put(store, n) for n in range(3)]
    stores.clock.advance(5000)
    for step in store._hand_over.steps(stores.clock.now_ms()):
        assert store.cancel(handles) == [LATE] * 3, f"after {step}"
    assert store.cancel(handles) == [LATE] * 3
    assert read_ids(store) == ["m0", "m1", "m2"]


def test_c3_never_put_is_unknown(stores: Stores) -> None:
    """C3: garbage, a handle of another store, a seq or an epoch that was never given, a changed tick: UNKNOWN, and harmless."""
    store = stores.open()
    other = stores.open("other")
    handle = put(store, 1)
    foreign = put(other, 1)
    parsed = TimerHandle.parse(handle)
    assert parsed is not None
    forged = [
        TimerHandle(parsed.store_tag, parsed.epoch, parsed.seq + 1, parsed.tick),
        TimerHandle(parsed.store_tag, parsed.epoch + 1, parsed.seq, parsed.tick),
        TimerHandle(parsed.store_tag, parsed.epoch, parsed.seq, parsed.tick + 1000),
        TimerHandle(parsed.store_tag ^ 1, parsed.epoch, parsed.seq, parsed.tick),
        TimerHandle(parsed.store_tag, parsed.epoch, 2**64 - 1, 2**64 - 1),
        TimerHandle(parsed.store_tag, 0, 0, 0),
    ]
    ends = {"store_tag": 2**32, "epoch": 2**32, "seq": 2**63, "tick": 2**63}
    edges = [msgspec.structs.replace(parsed, **{field: value}) for field, end in ends.items() for value in (-1, end - 1, end)]
    flipped = base64.urlsafe_b64decode(handle + "==")
    texts = ["", "garbage", "é", "\x00", handle[:-1], handle + "A", base64.urlsafe_b64encode(flipped[:-1] + b"\x00").decode(), foreign]
    given: list[str | TimerHandle] = [*texts, *(each.text() for each in forged), *forged, *edges]
    assert store.cancel(given) == [UNKNOWN] * len(given)
    assert store.cancel("garbage") is UNKNOWN
    assert store.pending().total == 1
    stores.tick_after(store, 5000)
    assert read_ids(store) == ["m1"]
    assert store.cancel([*forged, foreign]) == [UNKNOWN] * 7
    assert other.cancel(foreign) is CANCELLED


def test_c3_wrong_types_are_errors(engine_stores: Stores) -> None:
    """C3: what is no text and no handle is refused with a typed error; the others of the list are left alone."""
    store = engine_stores.open()
    handle = put(store, 1)
    wrongs: tuple[Any, ...] = (None, 7, [handle, None], [handle, b"x"], {handle})
    for wrong in wrongs:
        with pytest.raises(IllegalArgumentTypeError):
            store.cancel(wrong)
    assert store.pending().total == 1
    assert store.cancel([]) == []


def test_c4_a_repeat_stays_cancelled_within_the_memory(stores: Stores) -> None:
    """C4: also in one call, after the time has passed, and up to ``cancel_memory`` past due."""
    store = stores.open()
    alone = put(store, 1)
    in_a_run = [each.handle or "" for each in store.send_batch([message(f"r{n}", deliver_at_ms=START_MS + 5000) for n in range(3)])]
    assert store.cancel([alone, alone, in_a_run[1], in_a_run[1]]) == [CANCELLED] * 4
    assert store.pending().total == 2
    for passed in (1000, 5000, 6000, HOUR_MS, 5000 + DAY_MS - 1):
        stores.tick_at(store, START_MS + passed)
        assert store.cancel([alone, in_a_run[1]]) == [CANCELLED, CANCELLED], f"{passed} ms later"
        expected = [CANCELLED] if passed < 5000 else [LATE]
        if passed >= 5000:
            assert store.cancel([in_a_run[0]]) == expected
    assert len(read_ids(store)) == 2


def test_c4_beyond_the_memory_the_answer_is_never_a_lie(stores: Stores) -> None:
    """C4: later on a delivered one is never called CANCELLED, nor a cancelled one ALREADY_DELIVERED, and the space is given back."""
    store = stores.open(cancel_memory_ms=10_000)
    kept, gone = put(store, 1), put(store, 2)
    assert store.cancel(gone) is CANCELLED
    stores.tick_after(store, 5000)
    stores.tick_after(store, DAY_MS)
    assert store.cancel(kept) in (LATE, UNKNOWN)
    assert store.cancel(gone) in (CANCELLED, UNKNOWN)
    assert store.cancel([kept, gone]) == [UNKNOWN, UNKNOWN], "upkeep has dropped both tombstones"


@pytest.mark.clause("H1")
def test_c5_a_sealed_tick_is_too_late_also_after_a_reopen(durable_stores: Stores) -> None:
    """C5: ALREADY_DELIVERED was answered after a seal, then the store closes before the hand-over: it is delivered all the same."""
    store = durable_stores.open()
    handle = put(store, 1)
    durable_stores.clock.advance(5000)
    steps = store._hand_over.steps(durable_stores.clock.now_ms())
    next(steps)
    assert store.cancel(handle) is LATE
    steps.close()
    durable_stores.clock.set(START_MS)
    store = durable_stores.reopen(store)
    assert store.cancel(handle) is LATE
    assert store.tick().handed_over == 0
    assert durable_stores.tick_after(store, 5000).handed_over == 1


def test_c6_messages_of_one_id_share_no_cancel(stores: Stores) -> None:
    """C6: of timers with equal topic, id, body and time, in one call and in two, a cancel takes the one that its handle names."""
    store = stores.open()
    handles = [each.handle or "" for each in store.send_batch([message("same", deliver_at_ms=START_MS + 5000) for _ in range(3)])]
    handles += [put(store, "same"), put(store, "same")]
    assert len(set(handles)) == 5
    assert store.cancel([handles[1], handles[4]]) == [CANCELLED] * 2
    assert store.pending().total == 3
    assert stores.tick_after(store, 5000).handed_over == 3
    assert read_ids(store) == ["msame"] * 3
    assert store.cancel(handles) == [LATE, CANCELLED, LATE, LATE, CANCELLED]


@pytest.mark.needs("cancel_by_key")
def test_c6_by_key_cancels_all_pending_of_topic_and_key(stores: Stores) -> None:
    """C6: every pending timer of (topic, key), in put order; not other topics, not other keys, not parts of keys, nothing twice."""
    store = stores.open()
    far, near = 9000, 2000
    wanted = [
        put(store, 1, far, keys=(key_of("k"),)),
        put(store, 2, near, keys=(key_of("j"), key_of("k"))),
        put(store, 3, far, keys=(key_of("k"), key_of("k"))),
    ]
    others = [
        put(store, 4, far, keys=(key_of("kk"),)),
        put(store, 5, far, keys=(key_of("j"),)),
        put(store, 6, far),
        put(store, 7, far, topic="u", keys=(key_of("k"),)),
    ]
    store.send_batch([message(f"b{n}", deliver_at_ms=START_MS + far, keys=(key_of("k"),)) for n in range(3)])
    early = put(store, 8, 1000, keys=(key_of("k"),))
    stores.tick_after(store, 1000)
    assert store.cancel_key(T, key_of("k")).count(CANCELLED) == 6
    assert store.cancel_key(T, key_of("k")).count(CANCELLED) == 0
    assert store.cancel(wanted) == [CANCELLED] * 3
    assert store.cancel(early) is LATE
    assert store.cancel_key(T, key_of("nobody")) == []
    assert store.cancel_key("nowhere", key_of("k")) == []
    assert store.cancel_keys(T, [key_of("nobody"), key_of("k")]) == [[], []]
    stores.tick_after(store, DAY_MS)
    assert sorted(read_ids(store)) == ["m4", "m5", "m6", "m8"]
    assert ids(pop_all(store, "u")) == ["m7"]
    assert store.cancel(others) == [LATE] * 4


@pytest.mark.needs("cancel_by_key")
def test_c6_many_keys_are_cancelled_in_one_call(stores: Stores) -> None:
    """C6: each key has the outcomes of its timers, in put order; a timer of two of the keys is in both lists, and is cancelled once."""
    j, k, other = key_of("j"), key_of("k"), key_of("other")
    carried = ((k,), (j, k), (), (j,), (other,), (k,))
    both, of_k = [CANCELLED, CANCELLED], [CANCELLED, CANCELLED, LATE]
    for others in (1, 50):
        store, begun_ms = stores.open(f"{others}"), stores.clock.now_ms()
        store.send_batch([message(n, keys=keys, deliver_at_ms=begun_ms + 9000 - 1000 * n) for n, keys in enumerate(carried)])
        # The last one falls due.
        stores.clock.advance(4000)
        assert next(store._hand_over.steps(stores.clock.now_ms())) == "seal"
        nobodys = [key_of(f"nobody-{number}") for number in range(others)]
        assert store.cancel_keys(T, [j, *nobodys, k, j]) == [both, *([] for _ in nobodys), of_k, both]
        assert store.pending().total == 3
        assert store.cancel_keys(T, []) == []
        stores.tick_after(store, DAY_MS)
        assert sorted(read_ids(store)) == ["m2", "m4", "m5"]


def test_c2_a_send_is_cancelled_by_its_receipt(stores: Stores) -> None:
    """C2, C3: the receipt of a send stands for its handle; a message that was sent for now never was a timer."""
    store = stores.open()
    later, now = store.send(message(1), delay=timedelta(minutes=1)), store.send(message(2))
    many = store.send_batch([message(3), message(4)], delay=timedelta(minutes=1))
    assert later.handle is not None
    assert later.handle in repr(later)
    assert store.cancel(later) is CANCELLED
    assert store.cancel([later, now, *many]) == [CANCELLED, UNKNOWN, CANCELLED, CANCELLED]


@pytest.mark.clause("C6")
@pytest.mark.needs("cancel_by_key")
def test_c3_a_key_of_what_is_gone_is_of_nothing(stores: Stores) -> None:
    """C3: what was cancelled or handed over is pending under its key no more, also when others of its call, key and tick are, or were."""
    store = stores.open()
    k, other = (key_of("k"),), (key_of("other"),)
    one, two, three, _ = store.send_batch([message(n, keys=(k, k, other, ())[n], deliver_at_ms=START_MS + 1000) for n in range(4)])
    assert store.cancel([one, three]) == [CANCELLED] * 2
    assert store.cancel_key(T, other[0]) == []
    assert store.cancel_key(T, k[0]) == [CANCELLED]
    assert store.cancel_key(T, k[0]) == []
    assert store.cancel([one, two, three]) == [CANCELLED] * 3
    store.send_batch([message(n, keys=k, deliver_at_ms=START_MS + 1000 * n) for n in (4, 5)])
    assert stores.tick_after(store, 4000).handed_over == 2
    store.tick()
    assert store.cancel_key(T, k[0]) == [CANCELLED]
    assert store.pending().total == 0


@pytest.mark.clause("C2", "H4")
@pytest.mark.needs("cancel_by_key")
def test_c6_outcomes_by_key_go_by_the_puts(stores: Stores) -> None:
    """C6: what a running tick has sealed and what is pending stand in the order of the puts, not of the ticks."""
    store = stores.open()
    key = key_of("k")
    for number, due_ms in enumerate((9000, 1000, 8000, 1000)):
        store.send(message(number, keys=(key,)), delay_ms=due_ms)
    stores.clock.advance(1000)
    assert next(store._hand_over.steps(stores.clock.now_ms())) == "seal"
    assert [each.name for each in store.cancel_key(T, key)] == ["CANCELLED", "ALREADY_DELIVERED"] * 2
    assert store.tick().handed_over == 2
    assert ids(pop_all(store)) == ["m1", "m3"]
