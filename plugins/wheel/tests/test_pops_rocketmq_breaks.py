"""P1–P14: the ways in which RocketMQ's pops lose messages or give them twice; none of them does so here (docs/rip43.md)."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from plugins.wheel.tests.breaking import Power, WheelStores, parked_reasons, refusing_writes
from rmqstore import AckOutcome, ChangeOutcome, InitMode, Lag, PoppedMessage, Store, StoreFullError
from rmqstore.contract import Receipt
from rmqstore.message import PARKED_TOPIC, retry_topic
from rmqstore_conformance.damaging import damage_messages
from rmqstore_conformance.stores import HOUR_MS, ids, message, pop_all


def fill(store: Store, count: int = 6) -> list[str]:
    store.send_batch([message(n) for n in range(count)])
    return [f"m{n}" for n in range(count)]


def all_of_them(lag: Lag) -> int:
    return lag.ready + lag.in_flight + lag.retry + lag.dead


# ---------------------------------------------------------------- P1, P2: two pops of one range


def test_p1_no_lease_ends_because_a_lock_is_old(stores: WheelStores) -> None:
    """RocketMQ's cleaner takes locks away after 60 s, so two pops read one range; here a lease lasts its time, however long that is."""
    store = stores.open()
    fill(store)
    held = store.pop("t", "g", max_messages=3, invisible_ms=10 * HOUR_MS)
    seen = ids(held)
    for _ in range(3):
        stores.clock.advance(3 * HOUR_MS)
        assert store.tick().retried == 0
        seen += ids(store.pop("t", "g", max_messages=1, invisible_ms=10 * HOUR_MS))
        store = stores.killed(store)
    assert seen == [f"m{n}" for n in range(6)]
    assert store.ack(held) == [AckOutcome.ACKED] * 3


def test_p2_a_kill_after_a_pop_gives_nothing_again(stores: WheelStores) -> None:
    """RocketMQ's check points wait in memory, so a crash gives the whole range again; here every pop is in the log before its answer."""
    store = stores.open()
    fill(store)
    first = store.pop("t", "g", max_messages=4, invisible_ms=1000)
    store.ack(first[:2])
    store = stores.killed(store)
    assert ids(store.pop("t", "g")) == ["m4", "m5"]
    assert store.ack([first[1], first[2]]) == [AckOutcome.ALREADY_ACKED, AckOutcome.ACKED]
    store = stores.killed(store)
    stores.clock.advance(1000)
    assert store.tick().retried == 1
    assert ids(store.pop("t", "g")) == ["m3"]


# ---------------------------------------------------------------- P3, P4, P5, P10: writes that fail


@pytest.mark.parametrize("failures", [1, 5])
def test_p3_an_ack_that_fails_says_so(stores: WheelStores, failures: int) -> None:
    """RocketMQ logs a failed ack and answers success; here the call fails, changes nothing, and can be made again."""
    store = stores.open()
    fill(store)
    popped = store.pop("t", "g")
    for _ in range(failures):
        with refusing_writes() as disk, pytest.raises(StoreFullError):
            store.ack(popped)
        assert disk.refused
        assert store.lag("t", "g").in_flight == 6
    assert store.ack(popped) == [AckOutcome.ACKED] * 6
    store = stores.killed(store)
    stores.clock.advance(60_000)
    assert store.tick().retried == 0
    assert store.ack(popped) == [AckOutcome.ALREADY_ACKED] * 6


def test_p4_a_revive_that_fails_at_any_write_loses_nothing(stores: WheelStores) -> None:
    """RocketMQ commits the revive position before the copies are written (#10985); here a lease ends in the step that writes the copy."""
    failed = 0
    for at in range(20):
        store = stores.open(f"s{at}", reclaim="age")
        sent = fill(store)
        store.pop("t", "g", invisible_ms=1000)
        stores.clock.advance(1000)
        with refusing_writes(after=at, times=1) as disk:
            try:
                store.tick()
            except StoreFullError:
                failed += 1
                lag = store.lag("t", "g")
                assert (lag.in_flight, lag.retry) == (6, 0)
        store = stores.killed(store)
        stores.clock.advance(1000)
        store.tick()
        assert ids(pop_all(store)) == sent
        assert store.verify() == []
        if not disk.refused:
            break
    assert failed >= 2


def test_p4_a_power_cut_in_a_revive_loses_nothing(stores: WheelStores, power: Power) -> None:
    """RocketMQ may have committed the position without the copy when the power goes; here each image has all messages once."""
    store = stores.open()
    sent = fill(store)
    store.pop("t", "g", invisible_ms=1000)
    stores.clock.advance(1000)
    images: list[Path] = []
    power.on_sync = lambda: images.append(power.image(store.path, stores.root / f"image{len(images)}"))
    store.tick()
    power.on_sync = lambda: None
    assert len(images) >= 2
    for image in images:
        after = stores.cut_off(image)
        after.tick()
        again = pop_all(after)
        assert (ids(again), {each.attempt for each in again}) == (sent, {2})


def test_p5_a_revive_is_tried_until_it_succeeds(stores: WheelStores) -> None:
    """RocketMQ writes a check point anew when a copy fails and does not look whether that succeeds; here the lease stays what it was."""
    store = stores.open()
    fill(store, 1)
    store.pop("t", "g", invisible_ms=1000)
    for _ in range(20):
        stores.clock.advance(HOUR_MS)
        with refusing_writes(), pytest.raises(StoreFullError):
            store.tick()
    assert store.tick().retried == 1
    assert [(each.message_id, each.attempt) for each in pop_all(store)] == [("m0", 2)]


def test_p10_a_change_of_the_invisible_time_is_one_step(stores: WheelStores) -> None:
    """RocketMQ writes the new check point and then acks the old one; here both happen or none, at any write that fails and in any crash."""
    failed = 0
    for at in range(20):
        store = stores.open(f"s{at}")
        fill(store, 1)
        (old,) = store.pop("t", "g", invisible_ms=1000)
        result = None
        with refusing_writes(after=at, times=1) as disk:
            try:
                result = store.change_invisible(old, invisible_ms=5000)
            except StoreFullError:
                failed += 1
        store = stores.killed(store)
        assert store.lag("t", "g").in_flight == 1
        if result is None:
            assert store.ack(old) is AckOutcome.ACKED
            continue
        assert result.outcome is ChangeOutcome.CHANGED
        assert store.ack(old) is AckOutcome.STALE
        stores.clock.advance(4999)
        assert store.tick().retried == 0
        stores.clock.advance(1)
        assert store.tick().retried == 1
        assert ids(pop_all(store)) == ["m0"]
        if not disk.refused:
            break
    assert failed >= 1


# ---------------------------------------------------------------- P6, P7: where a lease lives


@pytest.mark.parametrize("cache", ["timerlog", "timerwheel", "rmqstore", "consumequeue"])
def test_p6_leases_and_acks_do_not_ride_the_timer(stores: WheelStores, cache: str) -> None:
    """RocketMQ keeps check points and acks as timers, which may be lost as such; here they are none, and outlive the loss of any cache."""
    store = stores.open()
    fill(store)
    popped = store.pop("t", "g", invisible_ms=1000)
    store.ack(popped[1:4])
    assert store.pending().total == 0
    assert store.engine.timers.stats().last_seq == 0
    store.engine.timers._ledger.make_check_point()  # type: ignore[attr-defined]

    def lose(db: Path) -> None:
        path = db / cache
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    store = stores.killed(store, lose)
    assert store.ack(popped[1]) is AckOutcome.ALREADY_ACKED
    stores.clock.advance(1000)
    assert store.tick().retried == 3
    assert ids(pop_all(store)) == ["m0", "m4", "m5"]
    assert store.verify() == []


def test_p7_no_power_cut_keeps_the_offset_and_drops_the_lease(stores: WheelStores, power: Power) -> None:
    """RocketMQ syncs the offset and has the check point in the page cache; here every image has both or neither, and all messages."""
    store = stores.open()
    sent = fill(store)
    images: list[tuple[Path, list[PoppedMessage]]] = []
    acked: list[PoppedMessage] = []
    power.on_sync = lambda: images.append((power.image(store.path, stores.root / f"image{len(images)}"), [*acked]))
    for _ in range(3):
        popped = store.pop("t", "g", max_messages=2, invisible_ms=1000)
        assert store.ack(popped[0]) is AckOutcome.ACKED
        acked.append(popped[0])
    store.close()
    power.on_sync = lambda: None
    stores.clock.advance(1000)
    for image, done in images:
        after = stores.cut_off(image)
        assert after.ack(done) == [AckOutcome.ALREADY_ACKED] * len(done)
        after.tick()
        rest = ids(pop_all(after))
        assert set(Counter(rest).values()) <= {1}
        assert set(rest) >= set(sent) - {f"m{n}" for n in (0, 2, 4)[: len(done) + 1]}
        assert not set(rest) & set(ids(done))
        after.close()
    assert len(images) >= 12


# ---------------------------------------------------------------- P8: keys


def test_p8_glued_keys_cannot_meet(stores: WheelStores) -> None:
    """RocketMQ's merge key of queue 1, offset 23 is that of queue 12, offset 3 in one ms, and one lease is lost; here both are there."""
    store = stores.open()
    store.topics.create("t", 13)
    store.send_batch([message(f"a{n}", queue_id=1) for n in range(24)] + [message(f"b{n}", queue_id=12) for n in range(4)])
    store.ack(store.pop("t", "g", queue=1, max_messages=23))
    store.ack(store.pop("t", "g", queue=12, max_messages=3))
    stores.clock.advance(1000)
    (first,) = store.pop("t", "g", queue=1, invisible_ms=1000)
    (second,) = store.pop("t", "g", queue=12, invisible_ms=1000)
    receipts = [Receipt.parse(each.receipt or "") for each in (first, second)]
    assert [(each.queue_id, each.ck_start_offset) for each in receipts if each] == [(1, 23), (12, 3)]
    assert len({each.pop_time_ms for each in receipts if each}) == 1
    assert store.ack(first) is AckOutcome.ACKED
    store = stores.killed(store)
    assert store.lag("t", "g") == Lag(0, 1, 0, 0)
    stores.clock.advance(1000)
    assert store.tick().retried == 1
    assert ids(pop_all(store)) == ["mb3"]


def test_p8_equal_offsets_of_many_queues_are_revived_all(stores: WheelStores) -> None:
    """RocketMQ sorts the check points in flight by their first offset alone, and one replaces another; here all of them come back."""
    store = stores.open()
    store.topics.create("t", 40)
    store.send_batch([message(n, queue_id=n) for n in range(40)])
    for queue in range(40):
        assert len(store.pop("t", "g", queue=queue, invisible_ms=1000)) == 1
    store = stores.killed(store)
    stores.clock.advance(1000)
    assert store.tick().retried == 40
    assert sorted(ids(pop_all(store))) == sorted(f"m{n}" for n in range(40))


# ---------------------------------------------------------------- P12: unreadable


@pytest.mark.parametrize("order", [False, True])
def test_p12_an_unreadable_leased_message_is_parked(stores: WheelStores, order: bool) -> None:
    """RocketMQ drops a leased message that it cannot read without a word; here an entry in %PARKED% says why, and the others come back."""
    store = stores.open(reclaim="age")
    fill(store, 3)
    store.pop("t", "g", invisible_ms=1000, order=order)
    store = stores.reopen(store, reclaim="age")
    assert damage_messages(store, b"body 1") == 1
    store = stores.killed(store, reclaim="age")
    stores.clock.advance(1000)
    store.tick()
    assert ids(pop_all(store, order=order)) == ["m0", "m2"]
    assert list(parked_reasons(store)) == ["t/0/1"]
    assert "CRC" in parked_reasons(store)["t/0/1"]
    assert store.topics.list(system=True)[0].name == PARKED_TOPIC
    assert store.lag("t", "g") == Lag(0, 0, 0, 0)
    assert any("CRC" in each for each in store.verify()), "the damage is still told of"


# ---------------------------------------------------------------- P13, P14: restarts


def test_p13_positions_and_records_change_together(stores: WheelStores) -> None:
    """RocketMQ's key-value pops move on past a write that failed and give the last batch again after a restart; here neither happens."""
    store = stores.open()
    fill(store, 9)
    seen: list[str] = []
    for at in range(3):
        with refusing_writes(after=at, times=1) as disk:
            try:
                popped = store.pop("t", "g", max_messages=3)
            except StoreFullError:
                store = stores.killed(store)
                popped = store.pop("t", "g", max_messages=3)
        assert disk.refused or at
        seen += ids(popped)
        store.ack(popped[:1])
        store = stores.killed(store)
    assert seen == [f"m{n}" for n in range(9)]
    assert store.pop("t", "g") == []
    assert store.lag("t", "g") == Lag(0, 6, 0, 0)


def test_p14_no_lease_is_lost_because_a_group_is_not_known_yet(stores: WheelStores) -> None:
    """RocketMQ skips a check point whose group or topic is not loaded yet; here all three are in one log, and read together."""
    store = stores.open(reclaim="age")
    fill(store, 4)
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
    assert all_of_them(store.lag("t", "g")) == 4
    assert store.verify() == []
