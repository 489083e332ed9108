"""Faults of RocketMQ's file wheel and pops, as far as it takes this engine's own files to see that it has none of them (docs/rip43.md)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugins.wheel.tests.breaking import WheelStores, everywhere, index_of, ledger_of, parked_reasons, rolls, small_files
from rmqstore import AckOutcome, CancelOutcome, CorruptStoreError, IllegalMessageError, InitMode, Message
from rmqstore.message import retry_topic
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, ids, message, pop_all, read_ids

LAP_SLOTS = 1_209_600

# ---------------------------------------------------------------- timers that are lost


def test_l1_retention_takes_no_log_from_a_pending_timer(stores: WheelStores) -> None:
    """RocketMQ deletes commit-log files after 72 h, and reads a timer of theirs as done; here it is delivered whole, however late."""
    settings = {"retention_ms": HOUR_MS}
    with small_files():
        store = stores.open(**settings)
        body = bytes(range(256)) * 8
        store.send(message("far", body=body), delay_ms=5 * DAY_MS)
        for hour in range(12):
            store.send_batch([message(f"{hour}-{n}", "flood", body=b"x" * 2048) for n in range(20)])
            stores.clock.advance(2 * HOUR_MS)
            store.tick()
        assert next(each for each in store.topics.list() if each.name == "flood").min_offsets[0] >= 200, "retention took nothing"
        assert not (stores.path(store) / "commitlog" / f"{0:020}").exists(), "nothing was reclaimed"
        store = stores.killed(stores.reopen(store, **settings), **settings)
        stores.clock.advance(5 * DAY_MS)
        assert store.tick().handed_over == 1
        assert [each.body for each in pop_all(store)] == [body]
        assert store.verify() == []


def test_l1_a_log_file_that_somebody_removed_is_told_of(stores: WheelStores) -> None:
    """RocketMQ counts a timer whose log file is gone as delivered; here a call says which file is missing, or the timer is parked."""
    with small_files():
        store = stores.open()
        for n in range(4):
            store.send(message(n, body=b"x" * 40_000), delay_ms=HOUR_MS)
        store = stores.reopen(store)
        first = min((stores.path(store) / "commitlog").iterdir())
        first.unlink()
        stores.clock.advance(HOUR_MS)
        with pytest.raises(CorruptStoreError, match=f"{first.name} is missing"):
            store.tick()
        store = stores.reopen(store)
        assert store.tick().handed_over == 4
        assert read_ids(store) == ["m1", "m2", "m3"]
        assert list(parked_reasons(store)) == ["timer 1"]
        store.close()
        third = sorted(first.parent.iterdir())[1]
        third.unlink()
        with pytest.raises(CorruptStoreError, match=f"{third.name} is missing"):
            stores.open()


def test_l4_two_laps_meet_in_one_slot(stores: WheelStores, precision_ms: int) -> None:
    """RocketMQ overwrites a slot that another lap still needs; here both timers live, and the older lap's comes first."""
    lap_ms = LAP_SLOTS * precision_ms
    store = stores.open(precision_ms=precision_ms)
    store.send(message("old"), deliver_at_ms=START_MS + HOUR_MS)
    stores.clock.advance(lap_ms)
    store.send_batch([message(f"new{n}") for n in range(3)], deliver_at_ms=START_MS + HOUR_MS + lap_ms)
    store = stores.killed(store, precision_ms=precision_ms)
    assert store.tick().handed_over == 1
    stores.clock.advance(HOUR_MS)
    assert store.tick().handed_over == 3
    assert read_ids(store) == ["mold", "mnew0", "mnew1", "mnew2"]
    assert store.verify() == []


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _spoil(path: Path) -> None:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        data = bytearray(file.read_bytes())
        at = next(at for at in range(len(data)) if data[at])
        data[at : at + 200] = bytes(byte ^ 0x5A for byte in data[at : at + 200])
        file.write_bytes(data)


@pytest.mark.parametrize("cache", ["timerlog", "timerwheel", "rmqstore/facts", "consumequeue/rmq_sys_wheel_timer"])
@pytest.mark.parametrize("harm", [_remove, _spoil], ids=["removed", "damaged"])
def test_l6_a_broken_chain_hides_no_timer(stores: WheelStores, cache: str, harm: object) -> None:
    """RocketMQ ends a slot without a word where its chain breaks; here an error names the file, and the next open mends it."""
    store = stores.open()
    store.send_batch([message(n) for n in range(30)], delay_ms=1000)
    store.close()
    harm(stores.root / "store" / "wheel" / "db" / cache)  # type: ignore[operator]
    stores.clock.advance(1000)
    refused = 0
    for _ in range(3):
        try:
            store = stores.open()
            store.tick()
            break
        except CorruptStoreError as error:
            refused += 1
            assert cache.split("/")[0] in str(error)
            store.close()
    assert refused <= 1
    assert read_ids(store) == [f"m{n}" for n in range(30)]
    assert store.verify() == []


def test_l6_a_chain_that_breaks_while_the_store_is_open_is_an_error(stores: WheelStores) -> None:
    """RocketMQ takes what it can walk and calls the slot done; here the tick fails, hands nothing over, and a new open has it all."""
    store = stores.open()
    for n in range(40):
        store.send(message(f"a{n}"), deliver_at_ms=START_MS + 1000)
        store.send(message(f"b{n}", "u"), deliver_at_ms=START_MS + 2000)
    units = index_of(store).wheel.units
    with units.chain.path_of(0).open("r+b") as file:
        file.seek(units.position(40) + 4)
        file.write((52 * 79).to_bytes(8))
    stores.clock.advance(2000)
    with pytest.raises(CorruptStoreError, match="timerlog"):
        store.tick()
    assert len(everywhere(store)) == 80
    store = stores.killed(store)
    store.tick()
    assert read_ids(store) == [f"ma{n}" for n in range(40)]
    assert read_ids(store, "u") == [f"mb{n}" for n in range(40)]


@pytest.mark.parametrize("name", ["TIMER_OUT_MS", "REAL_TOPIC", "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES"])
def test_l12_a_user_cannot_set_what_the_wheel_sets(stores: WheelStores, name: str) -> None:
    """RocketMQ delivers at once what carries TIMER_OUT_MS already; here such a message is refused, one by one and in a batch."""
    store = stores.open()
    wrong = Message("t", b"x", properties={name: str(START_MS + 1000)})
    with pytest.raises(IllegalMessageError, match=name):
        store.send(wrong, delay_ms=1000)
    with pytest.raises(IllegalMessageError, match=name):
        store.send_batch([message(1), wrong], delay_ms=1000)
    assert store.pending().total == 0
    assert store.topics.list() == []


# ---------------------------------------------------------------- timers that come twice, or roll


def test_d2_a_redo_puts_no_timer_into_the_wheel_twice(stores: WheelStores) -> None:
    """RocketMQ's redo keeps units while the queue cursor goes back, so they are put again; here both follow from the log, however often."""
    store = stores.open()
    store.send_batch([message(n) for n in range(5)], delay_ms=1000)
    ledger_of(store).make_check_point()
    for n in range(5, 10):
        store.send(message(n), delay_ms=1000)
    for _ in range(3):
        store = stores.killed(store)
        index = index_of(store)
        assert index.wheel.count_in(index.wheel.slot_of(START_MS + 1000)) == 10
        assert sorted(index.wheel.units.read(0, index.wheel.units.count)["reserved"].tolist()) == list(range(1, 11))
        assert everywhere(store) == sorted(f"m{n}" for n in range(10))
    stores.clock.advance(1000)
    assert store.tick().handed_over == 10
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
    tail = ledger_of(store).log.tail
    assert store.cancel_key("t", "k7") == [CancelOutcome.CANCELLED]
    store = stores.reopen(store, **copying)
    assert damage_timers(store, bodies[8]) == 1
    for _ in range(30):
        stores.clock.advance(6 * HOUR_MS)
        store.tick()
    assert rolls(store) >= 98
    assert 1000 * rolls(store) < ledger_of(store).log.tail - tail < 1500 * rolls(store)
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
    slots = index_of(store).wheel.slots
    assert int(slots["timers"].max()) <= 5
    assert np.count_nonzero(slots["timers"]) > 900
    tail = ledger_of(store).log.tail
    for _ in range(30):
        stores.clock.advance(6 * HOUR_MS)
        store.tick()
    assert rolls(store) >= 1000
    assert ledger_of(store).log.tail - tail < 30_000, "rolling wrote the messages again"
    stores.clock.advance(9 * DAY_MS)
    assert store.tick().handed_over == 1000
    assert not index_of(store).wheel.slots["timers"].any(), "some slot still counts what is gone"
    assert read_ids(store) == [f"m{n}" for n in range(1000)]


# ---------------------------------------------------------------- pops


@pytest.mark.parametrize("cache", ["timerlog", "timerwheel", "rmqstore", "consumequeue"])
def test_p6_leases_and_acks_do_not_ride_the_timer(stores: WheelStores, cache: str) -> None:
    """RocketMQ keeps check points and acks as timers, which may be lost as such; here they are none, and outlive the loss of any cache."""
    store = stores.open()
    store.send_batch([message(n) for n in range(6)])
    popped = store.pop("t", "g", invisible_ms=1000)
    store.ack(popped[1:4])
    assert store.pending().total == 0
    assert store.engine.timers.stats().last_seq == 0
    ledger_of(store).make_check_point()

    def lose(db: Path) -> None:
        path = db / cache
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    store = stores.killed(store, lose)
    assert store.ack(popped[1]) is AckOutcome.ALREADY_ACKED
    stores.clock.advance(1000)
    assert store.tick().retried == 3
    assert ids(pop_all(store)) == ["m0", "m4", "m5"]
    assert store.verify() == []


def test_p14_no_lease_is_lost_because_a_group_is_not_known_yet(stores: WheelStores) -> None:
    """RocketMQ skips a check point whose group or topic is not loaded yet; here all three are in one log, and read together."""
    store = stores.open(reclaim="age")
    store.send_batch([message(n) for n in range(4)])
    store.pop("t", "g", max_messages=2, invisible_ms=1000)
    store.pop("t", "other", max_messages=1, invisible_ms=1000)

    def lose(db: Path) -> None:
        for path in db.iterdir():
            if path.name not in ("commitlog", "FORMAT"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    store.groups.delete("other")
    store = stores.killed(store, lose, reclaim="age")
    assert store.groups.list() == ["g"]
    stores.clock.advance(1000)
    assert store.tick().retried == 2
    assert store.engine.pops.topic(retry_topic("g", "t")) is not None
    assert sorted(ids(pop_all(store))) == ["m0", "m1", "m2", "m3"]
    store.groups.reset_offset("t", "g", InitMode.MIN)
    lag = store.lag("t", "g")
    assert lag.ready + lag.retry == 4
    assert store.verify() == []
