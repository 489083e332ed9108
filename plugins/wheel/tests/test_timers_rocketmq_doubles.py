"""D1–D7, T1 and rolling: how RocketMQ's file wheel doubles timers, keeps them waiting, and lets them escape (docs/rip43.md)."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugins.wheel.tests.breaking import Power, WheelStores, everywhere, failing_syncs, parked_reasons, refusing_writes, rolls
from rmqstore import CancelOutcome, MessageBatch, Store, StoreClosedError, StoreFullError, StorePoisonedError
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, message, pop_all, read_ids


def sent(count: int) -> list[str]:
    return sorted(f"m{n}" for n in range(count))


# ---------------------------------------------------------------- D1, D2: crashes between a put and a check point


def test_d1_a_kill_right_after_the_hand_over_replays_nothing(stores: WheelStores) -> None:
    """RocketMQ notes a slot as done up to 1 s after its puts, and replays it; here messages and cursor are one record of one log."""
    store = stores.open()
    store.send_batch([message(n) for n in range(10)], delay_ms=1000)
    stores.clock.advance(1000)
    assert store.tick().handed_over == 10
    for _ in range(3):
        store = stores.killed(store)
        assert store.tick().handed_over == 0
        assert sorted(read_ids(store)) == sent(10)
        assert store.pending().total == 0
    assert store.verify() == []


def test_d2_a_redo_puts_no_timer_into_the_wheel_twice(stores: WheelStores) -> None:
    """RocketMQ's redo keeps units while the queue cursor goes back, so they are put again; here both follow from the log, however often."""
    store = stores.open()
    store.send_batch([message(n) for n in range(5)], delay_ms=1000)
    store.engine.timers._ledger.make_check_point()  # type: ignore[attr-defined]
    for n in range(5, 10):
        store.send(message(n), delay_ms=1000)
    for _ in range(3):
        store = stores.killed(store)
        index = store.engine.timers._index  # type: ignore[attr-defined]
        assert index.wheel.count_in(index.wheel.slot_of(START_MS + 1000)) == 10
        assert sorted(index.wheel.units.read(0, index.wheel.units.count)["reserved"].tolist()) == list(range(1, 11))
        assert everywhere(store) == sent(10)
    stores.clock.advance(1000)
    assert store.tick().handed_over == 10
    assert store.verify() == []


# ---------------------------------------------------------------- D3, D4, D7: calls that fail in the middle


def test_d3_a_batch_that_fails_leaves_nothing_to_double(stores: WheelStores) -> None:
    """RocketMQ's enqueue redoes its whole batch when one entry fails; here a put that fails at any write has put none of its timers."""
    store = stores.open()
    store.send(message("first", body=b"x" * 50_000), delay_ms=1000)
    failed = 0
    for at in range(40):
        batch = [message(f"{at}-{n}", body=b"y" * 3000) for n in range(20)]
        with refusing_writes(after=at, times=1) as disk:
            try:
                store.send_batch(batch, delay_ms=1000)
            except StoreFullError:
                failed += 1
                assert store.pending().total == 1 + 20 * (at + 1 - failed)
                store = stores.killed(store) if at % 2 else store
        if not disk.refused:
            break
    assert failed >= 4
    for n in range(failed):
        store.send_batch([message(f"{n}-{row}", body=b"y" * 3000) for row in range(20)], delay_ms=1000)
    stores.clock.advance(1000)
    store.tick()
    assert set(Counter(read_ids(store)).values()) == {1}
    assert len(read_ids(store)) == 1 + 20 * (failed + 1)
    assert store.verify() == []


@pytest.mark.parametrize("at", [0, 1, 2])
def test_d4_a_sync_that_fails_is_not_taken_for_a_put_that_failed(stores: WheelStores, at: int) -> None:
    """RocketMQ puts again when the flush timed out, though the message is there; here the store stops, and opened anew it has it once."""
    store = stores.open()
    store.send(message("timer"), delay_ms=1000)
    stores.clock.advance(1000)
    with failing_syncs(after=at) as disk:
        for call in (store.tick, lambda: store.send(message("late"), delay_ms=1000, marks=(b"late",)), lambda: store.send(message("now"))):
            try:
                call()
            except StorePoisonedError:
                break
    assert disk.refused == 1, "a failed sync was repeated"
    with pytest.raises(StorePoisonedError):
        store.tick()
    store = stores.killed(store)
    store.send(message("late"), delay_ms=1000, marks=(b"late",))
    store.tick()
    stores.clock.advance(1000)
    store.tick()
    counts = Counter(read_ids(store))
    assert counts["mtimer"] == counts["mlate"] == 1
    assert counts["mnow"] <= 1


@pytest.mark.parametrize("at", range(0, 12, 2))
def test_d7_an_error_in_mid_slot_repeats_nothing(stores: WheelStores, at: int) -> None:
    """RocketMQ starts the slot again after an exception, with what it delivered already; here the next tick goes on behind it."""
    store = stores.open(hand_over_limit=2)
    store.send_batch([message(n) for n in range(9)], delay_ms=1000)
    stores.clock.advance(1000)
    with refusing_writes(after=at, times=1) as disk, pytest.raises(StoreFullError):
        store.tick()
    assert disk.refused == 1
    assert everywhere(store) == sent(9)
    store.tick()
    assert read_ids(store) == [f"m{n}" for n in range(9)]
    assert store.verify() == []


# ---------------------------------------------------------------- D5, D6: orderly ends


@pytest.mark.parametrize("limit", [1, 7])
def test_d5_a_close_in_the_middle_of_a_tick(stores: WheelStores, limit: int) -> None:
    """RocketMQ saves its cursors and then stops workers that still deliver; here a close in mid-tick leaves each timer in one place."""
    store = stores.open(hand_over_limit=limit)
    store.send_batch([message(n) for n in range(400)], delay_ms=1000)
    stores.clock.advance(1000)
    started = threading.Event()
    errors: list[BaseException] = []

    def tick() -> None:
        try:
            for _ in store._hand_over.steps(stores.clock.now_ms()):
                started.set()
        except StoreClosedError:
            pass
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=tick)
    worker.start()
    started.wait(10)
    store = stores.reopen(store, hand_over_limit=limit)
    worker.join()
    assert errors == []
    assert everywhere(store) == sent(400)
    store.tick()
    assert sorted(read_ids(store)) == sent(400)
    assert store.verify() == []


def test_d6_a_copy_goes_on_where_the_first_stood(stores: WheelStores) -> None:
    """RocketMQ's promoted slave replays up to 3 s of slots; here a copy of any moment has messages and cursor together."""
    store = stores.open(hand_over_limit=3)
    store.send_batch([message(n) for n in range(9)], delay_ms=1000)
    stores.clock.advance(1000)
    moments = set()
    for _ in store._hand_over.steps(stores.clock.now_ms()):
        copies = [stores.killed(store)]
        snapshot = store.snapshot(stores.root / f"snapshot{len(moments)}-{len(list(stores.root.iterdir()))}")
        copies.append(stores.open(snapshot.name))
        for copy in copies:
            moments.add(copy.pending().total)
            assert everywhere(copy) == sent(9)
            copy.tick()
            assert sorted(read_ids(copy)) == sent(9)
            copy.close()
    assert moments == {0, 3, 6, 9}


# ---------------------------------------------------------------- T1: one slot after the other


def test_t1_a_backlog_goes_in_one_tick_and_poison_holds_nothing_up(stores: WheelStores) -> None:
    """RocketMQ waits a latch for each slot, and one stuck message stops all later slots; here one tick takes them all in a few batches."""
    store = stores.open(precision_ms=100, hand_over_limit=4096)
    slots = 600
    rows = [message(n, deliver_at_ms=START_MS + 100 * (1 + n % slots)) for n in range(20_000)]
    store.send_batch(MessageBatch.of(rows).columns)
    assert damage_timers(store, b"body 12345") == 1
    stores.clock.advance(100 * slots)
    with failing_syncs(after=1_000_000) as disk:
        report = store.tick()
    assert report.handed_over == 20_000
    assert disk.calls <= 4
    assert len(read_ids(store)) == 19_999
    assert list(parked_reasons(store)) == ["timer 12346"]
    assert store.verify() == []


# ---------------------------------------------------------------- rolling: #7991, #8203, T6


def test_7991_a_cancel_before_or_after_any_roll_meets_its_timer(stores: WheelStores) -> None:
    """RocketMQ's cancel misses a message that had to roll; here it takes its timer between any two rolls, also after a kill."""
    store = stores.open(precision_ms=100)
    delay = 30 * HOUR_MS
    handles = [store.send(message(n), delay_ms=delay).handle for n in range(12)]
    kept = store.send(message("kept"), delay_ms=delay)
    assert kept.handle
    seen = set()
    for n, handle in enumerate(handles):
        seen.add(rolls(store))
        assert store.cancel(handle) is CancelOutcome.CANCELLED
        if n % 3 == 2:
            store = stores.killed(store, precision_ms=100)
        stores.clock.advance(delay // 12 - 1)
        store.tick()
        assert store.cancel(handle) is CancelOutcome.CANCELLED
    assert len(seen) > 3, "the timers hardly rolled"
    stores.clock.advance(12)
    assert store.tick().handed_over == 1
    assert read_ids(store) == ["mkept"]
    assert store.cancel(kept.handle) is CancelOutcome.ALREADY_DELIVERED
    assert store.verify() == []


@pytest.mark.parametrize("roll", ["reference", "copy"])
@pytest.mark.parametrize("killed", [False, True])
def test_t6_closed_across_three_roll_points(stores: WheelStores, precision_ms: int, killed: bool, roll: str) -> None:
    """RocketMQ rolls slot by slot as the clock passes them; here a store that slept through three rolls delivers once, in order."""
    settings: dict[str, Any] = {"precision_ms": precision_ms, "wheel__roll": roll}
    store = stores.open(**settings)
    window_ms = 172_800 * precision_ms
    due = START_MS + 5 * window_ms + 50
    receipts = [store.send(message(n, tag="x", properties={"n": f"{n}"}), deliver_at_ms=due + n * precision_ms) for n in range(4)]
    for n in range(4, 8):
        store.send(message(n), deliver_at_ms=due)
    stores.clock.advance(window_ms + precision_ms)
    store.tick()
    rolled = rolls(store)
    assert rolled >= 8, "nothing rolled"
    if killed:
        store = stores.killed(store, **settings)
    else:
        store = stores.reopen(store, **settings)
    name = store.path.name
    store.close()
    stores.clock.advance(3 * window_ms)
    store = stores.open(name, **settings)
    assert store.pending().total == 8
    assert store.tick().handed_over == 0
    assert store.cancel(receipts[3].handle) is CancelOutcome.CANCELLED
    stores.clock.set(due - 1)
    assert store.tick().handed_over == 0
    stores.clock.set(due + 4 * precision_ms)
    assert store.tick().handed_over == 7
    assert read_ids(store) == ["m0", "m4", "m5", "m6", "m7", "m1", "m2"]
    first = pop_all(store)[0]
    assert (first.body, first.tag, first.properties, first.deliver_at_ms) == (b"body 0", "x", {"n": "0"}, due)
    assert store.verify() == []


def test_a_roll_by_copy_writes_the_messages_again(stores: WheelStores) -> None:
    """As RocketMQ does; what was copied has its keys, and a message that cannot be read rolls by reference and is parked."""
    copying: dict[str, Any] = {"wheel__roll": "copy"}
    bodies = [b"%04d" % n * 250 for n in range(100)]
    store = stores.open(**copying)
    store.send_batch([message(n, body=bodies[n], keys=(f"k{n}",)) for n in range(100)], delay_ms=9 * DAY_MS)
    tail = store.engine.timers._ledger.log.tail  # type: ignore[attr-defined]
    assert store.cancel_key("t", "k7") == [CancelOutcome.CANCELLED]
    store = stores.reopen(store, **copying)
    assert damage_timers(store, bodies[8]) == 1
    for _ in range(30):
        stores.clock.advance(6 * HOUR_MS)
        store.tick()
    assert rolls(store) >= 98
    assert 1000 * rolls(store) < store.engine.timers._ledger.log.tail - tail < 1500 * rolls(store)  # type: ignore[attr-defined]
    for _ in range(3):
        store = stores.killed(store, **copying)
        stores.clock.advance(HOUR_MS)
        store.tick()
    assert store.cancel_key("t", "k9") == [CancelOutcome.CANCELLED]
    stores.clock.advance(9 * DAY_MS)
    assert store.tick().handed_over == 98
    assert read_ids(store) == [f"m{n}" for n in range(100) if n not in (7, 8, 9)]
    assert len(parked_reasons(store)) == 1
    assert store.verify() == []


def test_8203_what_was_put_at_once_does_not_roll_at_once(stores: WheelStores) -> None:
    """RocketMQ rolls a burst into one slot again and again; here its timers are spread over half of the window."""
    store = stores.open()
    store.send_batch([message(n) for n in range(1000)], delay_ms=9 * DAY_MS)
    slots = store.engine.timers._index.wheel.slots  # type: ignore[attr-defined]
    assert int(slots["timers"].max()) <= 5
    assert np.count_nonzero(slots["timers"]) > 900
    tail = store.engine.timers._ledger.log.tail  # type: ignore[attr-defined]
    for _ in range(30):
        stores.clock.advance(6 * HOUR_MS)
        store.tick()
    assert rolls(store) >= 1000
    assert store.engine.timers._ledger.log.tail - tail < 30_000, "rolling wrote the messages again"  # type: ignore[attr-defined]
    stores.clock.advance(9 * DAY_MS)
    assert store.tick().handed_over == 1000
    assert read_ids(store) == [f"m{n}" for n in range(1000)]


# ---------------------------------------------------------------- the clock


@pytest.mark.parametrize("leap_ms", [DAY_MS, 400 * DAY_MS])
def test_l4_d1_a_clock_that_jumps_back_and_forth(stores: WheelStores, precision_ms: int, leap_ms: int) -> None:
    """RocketMQ's cursors never go back, so after a leap of the clock timers are early or late; here each comes once, at its own time."""
    settings = {"precision_ms": precision_ms, "retention_ms": 0}
    store = stores.open(**settings)
    store.send(message("day"), delay_ms=leap_ms)
    for n in range(3):
        stores.clock.set(START_MS + leap_ms - 1000)
        store.tick()
        stores.clock.set(START_MS + n * 10_000)
        store.send(message(n), delay_ms=5000)
        store = stores.killed(store, **settings)
        stores.clock.advance(4999)
        store.tick()
        assert read_ids(store) == [f"m{each}" for each in range(n)]
        stores.clock.advance(1)
        store.tick()
        assert read_ids(store) == [f"m{each}" for each in range(n + 1)]
    stores.clock.set(START_MS + leap_ms)
    store.tick()
    assert read_ids(store) == ["m0", "m1", "m2", "mday"]
    assert store.verify() == []


def test_d1_power_cuts_around_puts_and_cancels(stores: WheelStores, power: Power) -> None:
    """RocketMQ may replay or forget what lies between two flushes; here every image has what was acknowledged, each timer once."""
    store = stores.open()
    told: list[str] = []
    gone: list[str] = []
    images: list[tuple[Path, list[str], list[str]]] = []

    def keep_image() -> None:
        target = stores.root / f"image{len(images)}"
        images.append((power.image(store.path, target), list(told), list(gone)))

    power.on_sync = keep_image
    _put_and_cancel(store, told, gone)
    power.on_sync = lambda: None
    assert len(images) >= 12
    stores.clock.advance(2000)
    for image, acknowledged, cancelled in images:
        after = stores.cut_off(image)
        after.tick()
        found = read_ids(after)
        assert set(acknowledged) - set(gone) <= set(found)
        assert not set(cancelled) & set(found)
        assert set(Counter(found).values()) <= {1}
        assert after.verify() == []
        after.close()


def _put_and_cancel(store: Store, told: list[str], gone: list[str]) -> None:
    for n in range(6):
        receipt = store.send(message(n), delay_ms=2000)
        told.append(f"m{n}")
        if n % 3 == 1:
            assert store.cancel(receipt.handle) is CancelOutcome.CANCELLED
            gone.append(f"m{n}")
