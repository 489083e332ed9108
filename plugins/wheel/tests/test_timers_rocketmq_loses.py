"""L1–L13: the ways in which RocketMQ's file wheel loses timers, or stops; none of them does so here (docs/rip43.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plugins.wheel.tests.breaking import Power, WheelStores, everywhere, parked_reasons, refusing_writes, small_files
from rmqstore import CancelOutcome, CorruptStoreError, IllegalMessageError, Message, StoreFullError, StoreLockedError
from rmqstore.message import MAX_BODY_BYTES
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, message, pop_all, read_ids

LAP_SLOTS = 1_209_600


# ---------------------------------------------------------------- L1: the log is cut behind a pending timer


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


# ---------------------------------------------------------------- L2: puts that fail


@pytest.mark.parametrize("failures", [1, 20])
def test_l2_a_hand_over_that_fails_again_and_again_drops_nothing(stores: WheelStores, failures: int) -> None:
    """RocketMQ drops a message whose put fails three times; here the hand-over is tried again until there is room."""
    store = stores.open(hand_over_limit=2)
    store.send_batch([message(n) for n in range(5)], delay_ms=1000)
    stores.clock.advance(1000)
    for _ in range(failures):
        with refusing_writes() as disk, pytest.raises(StoreFullError):
            store.tick()
        assert disk.refused
        assert everywhere(store) == [f"m{n}" for n in range(5)]
        stores.clock.advance(60_000)
    assert store.tick().handed_over == 5
    assert read_ids(store) == [f"m{n}" for n in range(5)]
    assert store.dead_letters.parked() == []
    assert store.verify() == []


# ---------------------------------------------------------------- L3, L9: the power goes


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_l3_no_power_cut_falls_between_the_slot_and_its_messages(stores: WheelStores, power: Power, flush: str) -> None:
    """RocketMQ syncs "slot done" while the messages are in the page cache; here each image of the disk has each message once."""
    images: list[Path] = []

    def keep_image() -> None:
        target = stores.root / f"image{len(images)}"
        images.append(power.image(store.path, target))

    store = stores.open(flush=flush)
    store.send_batch([message(n) for n in range(6)], deliver_at_ms=START_MS + 1000)
    store.flush()
    power.on_sync = keep_image
    for moment in range(1000, 4000, 1000):
        stores.clock.set(START_MS + moment)
        if moment == 1000:
            store.tick()
        store.engine.timers._ledger.make_check_point()  # type: ignore[attr-defined]
        store.engine.timers.maintain(stores.clock.now_ms(), 1000)
    power.on_sync = lambda: None
    assert len(images) > 4
    seen = set()
    for image in images:
        after = stores.cut_off(image)
        assert everywhere(after) == [f"m{n}" for n in range(6)]
        seen.add(after.pending().total)
        after.tick()
        assert read_ids(after) == [f"m{n}" for n in range(6)]
        assert after.verify() == []
        after.close()
    assert seen == {0, 6}


def test_l9_what_was_cut_off_is_not_read_as_something_else(stores: WheelStores, power: Power) -> None:
    """RocketMQ's wheel still points to what recovery cut off the log, and later reads another record there; here nothing of it is left."""
    store = stores.open(flush="async")
    store.send(message("kept"), delay_ms=5000)
    store.flush()
    lost = [store.send(message(f"lost{n}", body=b"lost" * 10), delay_ms=5000) for n in range(5)]
    tail = store.engine.timers._ledger.log.tail  # type: ignore[attr-defined]
    # The caches reached the disk with all their writes, the log did not.
    image = power.image(store.path, stores.root / "image", lambda path: path.parent.name != "commitlog")
    after = stores.cut_off(image)
    assert after.pending().total == 1
    new = [after.send(message(f"new{n}", body=b"new!" * 10), delay_ms=6000) for n in range(8)]
    assert after.engine.timers._ledger.log.tail > tail, "the new ones do not lie where the lost ones lay"  # type: ignore[attr-defined]
    assert after.cancel([each.handle for each in lost]) == [CancelOutcome.UNKNOWN] * 5
    assert after.cancel(new[0].handle) is CancelOutcome.CANCELLED
    stores.clock.advance(6000)
    after.tick()
    assert [(each.message_id, each.body[:4]) for each in pop_all(after)] == [
        ("mkept", b"body"),
        *((f"mnew{n}", b"new!") for n in range(1, 8)),
    ]
    assert after.verify() == []


# ---------------------------------------------------------------- L4: closed for long


@pytest.mark.parametrize("killed", [False, True])
def test_l4_closed_for_longer_than_the_ring(stores: WheelStores, precision_ms: int, killed: bool) -> None:
    """RocketMQ skips what fell due more than one span of the wheel ago (16.8 h at 100 ms); here it is delivered, in order."""
    settings = {"precision_ms": precision_ms}
    store = stores.open(**settings)
    for n in (3, 1, 2):
        store.send(message(n), delay_ms=n * HOUR_MS)
    if killed:
        store = stores.killed(store, **settings)
    name = store.path.name
    store.close()
    stores.clock.advance(3 * LAP_SLOTS * precision_ms)
    store = stores.open(name, **settings)
    store.send(message("new"), delay_ms=1000)
    assert store.tick().handed_over == 3
    assert read_ids(store) == ["m1", "m2", "m3"]
    stores.clock.advance(1000)
    assert store.tick().handed_over == 1
    assert store.verify() == []


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


# ---------------------------------------------------------------- L6, L7: slots that end early


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
    units = store.engine.timers._index.wheel.units  # type: ignore[attr-defined]
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


def test_l7_the_cursor_never_passes_what_is_still_on_its_way(stores: WheelStores) -> None:
    """RocketMQ calls a slot done when its queues look idle; here a kill between any two steps finds each timer in one place, once."""
    store = stores.open(hand_over_limit=2)
    store.send_batch([message(n) for n in range(5)], delay_ms=1000)
    stores.clock.advance(1000)
    sent = [f"m{n}" for n in range(5)]
    for _ in store._hand_over.steps(stores.clock.now_ms()):
        assert everywhere(store) == sent
        copy = stores.killed(store)
        assert everywhere(copy) == sent
        copy.tick()
        assert read_ids(copy) == sent
        copy.close()
    assert read_ids(store) == sent


# ---------------------------------------------------------------- L8: unreadable, L11: too large


@pytest.mark.parametrize("reopened", [False, True])
def test_l8_an_unreadable_timer_is_parked_with_its_reason(stores: WheelStores, reopened: bool) -> None:
    """RocketMQ skips for good what it cannot read; here an entry in %PARKED% says why, and the others are delivered."""
    store = stores.open()
    store.send_batch([message(n) for n in range(5)], delay_ms=1000)
    if reopened:
        store = stores.reopen(store)
    assert damage_timers(store, b"body 2") == 1
    stores.clock.advance(1000)
    store.tick()
    assert read_ids(store) == ["m0", "m1", "m3", "m4"]
    assert list(parked_reasons(store)) == ["timer 3"]
    assert "CRC" in parked_reasons(store)["timer 3"]
    assert store.pending().total == 0
    assert store.verify() == []


def test_l8_damage_that_recovery_meets_is_an_error(stores: WheelStores) -> None:
    """RocketMQ cuts its log at the first record that it cannot read; here calls that were on disk are never cut off behind damage."""
    store = stores.open()
    for n in range(4):
        store.send(message(n), delay_ms=1000)
    damage_timers(store, b"body 1")
    with pytest.raises(CorruptStoreError, match="is damaged; a later one") as caught:
        stores.killed(store)
    assert caught.value.offset


def test_l11_a_message_of_any_legal_size_passes(stores: WheelStores) -> None:
    """RocketMQ's read buffer is one size, and a larger record stops all timers; here the largest goes through, and the next is refused."""
    store = stores.open()
    body = b"L" * MAX_BODY_BYTES
    store.send(message("before"), delay_ms=1000)
    store.send(message("large", body=body, properties={f"p{n}": "v" * 1000 for n in range(31)}), delay_ms=1000)
    store.send(message("after"), delay_ms=1000)
    with pytest.raises(IllegalMessageError):
        store.send(message("larger", body=body + b"L"), delay_ms=1000)
    with pytest.raises(IllegalMessageError):
        store.send_batch([message("good"), message("wide", properties={"p": "v" * 32_768})], delay_ms=1000)
    store = stores.killed(store)
    stores.clock.advance(1000)
    store.tick()
    assert read_ids(store) == ["mbefore", "mlarge", "mafter"]
    assert pop_all(store)[1].body == body


# ---------------------------------------------------------------- L10, L12


def test_l10_one_owner_at_a_time(stores: WheelStores) -> None:
    """RocketMQ's slave and master swap roles in mid-slot; here a store has one owner, and a copy has an epoch and handles of its own."""
    store = stores.open()
    store.send(message("both"), delay_ms=1000)
    with pytest.raises(StoreLockedError):
        stores.open()
    copy = stores.killed(store)
    assert copy.stats().timers.epoch > store.stats().timers.epoch
    mine, other = store.send(message("mine"), delay_ms=1000), copy.send(message("other"), delay_ms=1000)
    assert copy.cancel(mine.handle) is CancelOutcome.UNKNOWN
    assert store.cancel(other.handle) is CancelOutcome.UNKNOWN
    stores.clock.advance(1000)
    for each, expected in ((store, ["mboth", "mmine"]), (copy, ["mboth", "mother"])):
        each.tick()
        assert read_ids(each) == expected


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
