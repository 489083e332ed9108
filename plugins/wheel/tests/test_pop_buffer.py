"""The pop buffer: leases that are acked soon are never written; a crash gives what was held again, and loses nothing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plugins.wheel.tests.broker_view import NOW, bodies_of, opened, pops_in, send, take
from plugins.wheel.tests.stores import WheelStores, refusing
from rmqstore import Store
from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    AckOutcome,
    Change,
    Durability,
    Flush,
    InitMode,
    Operation,
    PopBuffer,
    PopRequest,
    PopStore,
    PopTxn,
    Receipt,
    Reclaim,
)
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.engine.schema import ATTEMPT, LEASES, after_prefix
from rmqstore.errors import IllegalArgumentError, StoreFullError, StorePoisonedError
from rmqstore.message import Message
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint
from rmqstore_wheel.log.ledger import Ledger, Sizes
from rmqstore_wheel.plugin import INFO

LIMITS = PopBuffer()


def begin(pops: PopStore, count: int = 40) -> None:
    """Let the group be known, which is written at once."""
    send(pops, count)
    take(pops, 1)


@contextmanager
def killed(path: Path, **how: Any) -> Iterator[PopStore]:
    """Open what a kill would leave of an open directory."""
    copy_tree(path, path.with_name("killed"))
    with pops_in(path.with_name("killed"), LIMITS, **how) as left:
        yield left


# ---------------------------------------------------------------- what is held


def test_pops_and_acks_write_nothing_and_wait_for_nothing(tmp_path: Path) -> None:
    with pops_in(tmp_path, LIMITS) as pops:
        begin(pops)
        pops.sync()
        ledger = pops._ledger
        tail, position = ledger.log.tail, ledger.position
        receipts, ticket = pops.pop(PopRequest("t", "g", 5, 60_000), NOW)
        done, acked = pops.apply(PopTxn(acks=receipts.messages.receipts()), NOW + 5)
        assert set(done.acks) == {AckOutcome.ACKED}
        assert ticket.position == acked.position == position == pops.durable_position
        assert ledger.log.tail == tail


def test_what_was_acked_in_time_has_no_check_point_in_the_log(tmp_path: Path) -> None:
    with pops_in(tmp_path, LIMITS) as pops:
        begin(pops)
        receipts = take(pops, 5)
        pops.apply(PopTxn(acks=receipts), NOW)
        late = take(pops, 3)
        pops.apply(PopTxn(acks=late[1:2]), NOW)
    found = bodies_of(tmp_path / "db")
    assert [each.start_offset for each in found if isinstance(each, CheckPoint)] == [0, 6]
    assert not [each for each in found if isinstance(each, Ack | BatchAck)]
    (last,) = (each for each in found if isinstance(each, CheckPoint) and each.start_offset == 6)
    assert last.acked_bits == 0b10
    with pops_in(tmp_path, LIMITS) as pops:
        assert set(pops.apply(PopTxn(acks=receipts), NOW)[0].acks) == {AckOutcome.ALREADY_ACKED}
        assert pops.apply(PopTxn(acks=late), NOW)[0].acks == (AckOutcome.ACKED, AckOutcome.ALREADY_ACKED, AckOutcome.ACKED)


def test_a_close_that_was_interrupted_before_the_buffer_was_written_is_made_whole_and_says_what_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with pops_in(tmp_path, LIMITS) as pops:
        begin(pops)
        pops.sync()
        pops.apply(PopTxn(acks=take(pops, 5)), NOW)
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pops.close()
        with pytest.raises(StorePoisonedError, match=r"a close failed .*in the buffer"):
            pops.close()
    with pops_in(tmp_path, LIMITS) as pops:
        assert [receipt.queue_offset for receipt in take(pops, 3)] == [1, 2, 3]


def test_messages_and_timers_go_on_being_durable_at_once(tmp_path: Path) -> None:
    with opened(tmp_path / "a", LIMITS) as session:
        pops, timers = session.pops(), session.timers()
        begin(pops, 3)
        take(pops, 1)
        before = pops._ledger.log.tail
        send(pops, 2)
        timers.put(MessageBatch(messages=[Message("t", b"x", message_id="m", born_ms=NOW, queue_id=0, deliver_at_ms=NOW + 1000)]), NOW)
        assert pops._ledger.buffered, "neither needs what is held"
        assert pops._ledger.log.tail > before
        with killed(tmp_path / "a") as left:
            assert [receipt.queue_offset for receipt in take(left, 10)] == [1, 2, 3, 4]


CALLS: dict[str, Callable[[PopStore, list[Receipt]], object]] = {
    "change": lambda pops, held: pops.apply(PopTxn(changes=[Change(held[0], 90_000)]), NOW),
    "release": lambda pops, held: pops.apply(PopTxn(releases=held[:1]), NOW),
    "revive": lambda pops, held: pops.revive(NOW + 60_000, 10),
    "reset": lambda pops, held: pops.reset_offset("t", "g", None, 0, NOW),
    "delete a group": lambda pops, held: pops.delete_group("g"),
    "delete a topic": lambda pops, held: pops.delete_topic("t"),
    "ack with an append": lambda pops, held: pops.apply(
        PopTxn(acks=held, appends=MessageBatch(messages=[Message("t", b"x", message_id="m", born_ms=NOW, queue_id=0)])), NOW
    ),
    "mark": lambda pops, held: pops.apply(PopTxn(acks=held, marks=[b"m"]), NOW),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_needs_what_is_held_is_written_with_it(tmp_path: Path, name: str) -> None:
    with pops_in(tmp_path / "a", LIMITS) as pops:
        begin(pops, 10)
        CALLS[name](pops, take(pops, 3))
        assert not pops._ledger.buffered
        with killed(tmp_path / "a") as left:
            assert left.verify() == []
            assert left.leases() == pops.leases()
            assert left.offsets("g") == pops.offsets("g")


def test_ordered_pops_and_new_groups_are_written_at_once(tmp_path: Path) -> None:
    with pops_in(tmp_path, LIMITS) as pops:
        send(pops, 10)
        take(pops, 2)
        assert not pops._ledger.buffered, "the first pop of a group"
        pops.pop(PopRequest("t", "o", 1, 60_000, order=True), NOW)
        (receipt,) = pops.pop(PopRequest("t", "o2", 1, 60_000, order=True), NOW)[0].messages.receipts()
        pops.apply(PopTxn(acks=[receipt]), NOW)
        pops.pop(PopRequest("t", "o2", 1, 60_000, order=True), NOW)
        assert not pops._ledger.buffered


# ---------------------------------------------------------------- what follows from groups and leases


def names(pops: PopStore, topic: str, group: str, now_ms: int = NOW, **how: Any) -> list[str]:
    """Pop, and return the ids."""
    taken = pops.pop(PopRequest(topic, group, 32, 60_000, **how), now_ms)[0].messages
    return [row.message_id or "" for row in taken.messages()]


def append(pops: PopStore, topic: str, *ids: str, now_ms: int = NOW) -> None:
    rows = [Message(topic, b"x", message_id=name, born_ms=now_ms, queue_id=0) for name in ids]
    pops.apply(PopTxn(appends=MessageBatch(messages=rows)), now_ms)


def test_where_a_known_group_begins_on_another_topic_outlives_a_kill(tmp_path: Path) -> None:
    with pops_in(tmp_path / "a", LIMITS) as pops:
        append(pops, "A", "a")
        append(pops, "B", "old")
        names(pops, "A", "g")
        assert names(pops, "B", "g", init=InitMode.MAX) == []
        append(pops, "B", "new")
        with killed(tmp_path / "a") as left:
            assert names(left, "B", "g", NOW + 1, init=InitMode.MAX) == ["new"]


def test_that_a_known_group_pops_in_order_outlives_a_kill(tmp_path: Path) -> None:
    with pops_in(tmp_path / "a", LIMITS) as pops:
        append(pops, "A", "a")
        pops.create_topic("B", 1)
        names(pops, "A", "g")
        assert names(pops, "B", "g", order=True) == []
        with killed(tmp_path / "a") as left, pytest.raises(IllegalArgumentError, match="in order"):
            names(left, "B", "g")


@pytest.mark.parametrize("idle_ms", [0, 3 * 86_400_000], ids=["known elsewhere", "idle for long"])
def test_what_is_kept_for_a_group_outlives_a_kill(tmp_path: Path, idle_ms: int) -> None:
    how = {"reclaim": Reclaim.CONSUMED, "group_expiry_ms": 86_400_000}
    now_ms = NOW + idle_ms
    with pops_in(tmp_path / "a", LIMITS, **how) as pops:
        append(pops, "A", "a")
        names(pops, "A", "g")
        if idle_ms:
            append(pops, "B", "first")
            pops.apply(PopTxn(acks=pops.pop(PopRequest("B", "g"), NOW)[0].messages.receipts()), NOW)
            pops.maintain(NOW + 20_000, 10)
        append(pops, "B", *"123", now_ms=now_ms)
        others = pops.pop(PopRequest("B", "h"), now_ms)[0].messages.receipts()
        assert names(pops, "B", "g", now_ms + 1) == [*"123"]
        with killed(tmp_path / "a", **how) as left:
            left.apply(PopTxn(acks=others), now_ms + 2)
            left.maintain(now_ms + 3, 100)
            left.revive(now_ms + 60_001, 100)
            assert names(left, "B", "g", now_ms + 60_002) == [*"123"]


@pytest.mark.parametrize("how", [{"reclaim": Reclaim.CONSUMED}, {"retention_ms": 1000}], ids=["consumed", "age"])
def test_retention_goes_by_what_is_written(tmp_path: Path, how: dict[str, Any]) -> None:
    with pops_in(tmp_path / "a", LIMITS, **how) as pops:
        append(pops, "t", *"0123")
        receipts = take(pops, 32)
        pops.apply(PopTxn(acks=receipts), NOW + 2000)
        pops.maintain(NOW + 2000, 100)
        assert not pops._ledger.buffered
        with killed(tmp_path / "a", **how) as left:
            assert left.lag("t", "g").in_flight == 0
            report, _ = left.revive(NOW + 70_000, 100)
            assert (report.retried, report.parked) == (0, 0)


def test_an_attempt_is_forgotten_once(tmp_path: Path) -> None:
    with pops_in(tmp_path / "a", PopBuffer(stay_ms=60_000)) as pops:
        begin(pops, 6)
        pops.pop(PopRequest("t", "g", 1, 100, attempt_id="x"), NOW)
        pops.revive(NOW + 200, 100)
        pops.pop(PopRequest("t", "g", 1, 60_000, attempt_id="x"), NOW + 201)
        assert pops._ledger.buffered
        pops.maintain(NOW + 202, 100)
        copy_tree(tmp_path / "a", tmp_path / "b")
    with pops_in(tmp_path / "b", LIMITS) as pops:
        pops.maintain(NOW + 86_400_000, 1000)
        assert list(pops._ledger.scan_all(LEASES, ATTEMPT, after_prefix(ATTEMPT))) == []


# ---------------------------------------------------------------- limits


STAY_MS, SOON_MS = LIMITS.stay_ms, LIMITS.left_ms + 1500
HELD = {
    "what stays too long": [("pop", 0, True), ("maintain", STAY_MS, True), ("maintain", STAY_MS + 1, False)],
    "a pop notices too": [("pop", 0, True), ("pop", STAY_MS + 1, False)],
    "a clock that is set back keeps nothing": [("pop", 0, True), ("maintain", -1, False)],
    "a lease that ends soon": [("short pop", 0, False)],
    "a lease whose end comes near": [("pop until soon", 0, True), ("maintain", 1500, True), ("maintain", 1501, False)],
    "an ack of what is written already": [
        *[("pop", 0, True), ("maintain", STAY_MS + 1, False), ("ack", 20_000, True), ("maintain", 20_000, True)],
        *[("pop", 20_000, True), ("maintain", 20_000 + STAY_MS, True), ("maintain", 20_001 + STAY_MS, False)],
    ],
    "no more than allowed": [*[("pop", 0, True)] * 3, ("pop", 0, False)],
    "no more than allowed of a queue": [*[("pop", 0, True)] * 3, ("pop", 0, False)],
}
"""Calls, how long after the beginning each comes, ms, and whether anything is held behind it."""

OF_THREE = {"no more than allowed": PopBuffer(check_points=3), "no more than allowed of a queue": PopBuffer(queue_check_points=3)}


@pytest.mark.parametrize("name", HELD)
def test_what_is_held_is_written_in_time(tmp_path: Path, name: str) -> None:
    with pops_in(tmp_path, OF_THREE.get(name, LIMITS)) as pops:
        ledger = pops._ledger
        begin(pops)
        held: list[Receipt] = []
        for call, after_ms, is_held in HELD[name]:
            now_ms, tail = NOW + after_ms, ledger.log.tail
            if call == "maintain":
                pops.maintain(now_ms, 10)
            elif call == "ack":
                pops.apply(PopTxn(acks=held[:1]), now_ms)
            else:
                invisible_ms = {"pop": 60_000, "short pop": SOON_MS - 1, "pop until soon": SOON_MS}[call]
                held += pops.pop(PopRequest("t", "g", 1, invisible_ms), now_ms)[0].messages.receipts()
            assert bool(ledger.buffered) == is_held
            assert (ledger.log.tail == tail) == is_held
    acks = [each for each in bodies_of(tmp_path / "db") if isinstance(each, Ack)]
    assert len(acks) == sum(call == "ack" for call, *_ in HELD[name])


def test_many_acks_are_written_in_records_of_moderate_size(tmp_path: Path) -> None:
    sizes = Sizes(log_file_bytes=1024 * 1024, check_point_bytes=1 << 40, check_point_calls=1 << 40)
    with pops_in(tmp_path, PopBuffer(queue_check_points=200_000), sizes) as pops:
        append(pops, "t", *map(str, range(12_001)))
        take(pops, 1)
        receipts = [take(pops, 1)[0] for _ in range(12_000)]
        pops.maintain(NOW + LIMITS.stay_ms + 1, 10)
        for at in range(0, len(receipts), 1000):
            pops.apply(PopTxn(acks=receipts[at : at + 1000]), NOW + 20_000)
        pops.maintain(NOW + 40_000, 10)
        assert not pops._ledger.buffered
    with pops_in(tmp_path, LIMITS, sizes) as pops:
        assert pops.lag("t", "g").in_flight == 1


def test_acks_alone_are_limited_too(tmp_path: Path) -> None:
    with pops_in(tmp_path, PopBuffer(check_points=10)) as pops:
        ledger = pops._ledger
        begin(pops)
        receipts = [take(pops, 1)[0] for _ in range(30)]
        pops.sync()
        held = []
        for receipt in receipts:
            pops.apply(PopTxn(acks=[receipt]), NOW)
            held.append(bool(ledger.buffered))
        assert held.count(False) >= 2


@pytest.fixture
def store(stores: WheelStores) -> Store:
    """A store with 10 messages, of which the group g, which is known, holds one."""
    store = stores.open(pop__buffer=True)
    store.send_batch([Message("t", b"x", message_id=f"{number}") for number in range(10)])
    store.pop("t", "g", max_messages=1)
    return store


def test_flush_writes_what_is_held(stores: WheelStores, store: Store) -> None:
    store.ack(store.pop("t", "g", max_messages=4))
    store.flush()
    left = stores.killed(store)
    assert [message.message_id for message in left.pop("t", "g", max_messages=1)] == ["5"]


def test_a_close_on_a_full_disk_says_so(stores: WheelStores, store: Store) -> None:
    store.ack(store.pop("t", "g", max_messages=4))
    with refusing(), pytest.raises(StoreFullError):
        store.close()
    assert (stores.path(store) / "abort").exists()
    store = stores.open()
    assert [message.message_id for message in store.pop("t", "g", max_messages=1)] == ["1"]


def test_a_full_disk_keeps_what_is_held(stores: WheelStores, store: Store) -> None:
    held = store.pop("t", "g", max_messages=4)
    with refusing():
        assert set(store.ack(held[:2])) == {AckOutcome.ACKED}
        stores.clock.advance(LIMITS.stay_ms + 1)
        with pytest.raises(StoreFullError):
            store.pop("t", "g", max_messages=1)
    assert [message.message_id for message in store.pop("t", "g", max_messages=1)] == ["5"]
    store = stores.reopen(store)
    assert sorted(lease.message_id for lease in store.leases()) == ["0", "3", "4", "5"]
    assert store.verify() == []


# ---------------------------------------------------------------- anything goes


@pytest.mark.parametrize("seed", range(6))
def test_kills_lose_nothing_and_give_twice_only_what_was_not_written(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    limits = PopBuffer(stay_ms=chance.choice((50, 5000)), left_ms=10, check_points=chance.choice((4, 1000)))
    path, now_ms, sent = tmp_path / "0", NOW, 0
    acked: dict[str, set[str]] = {"g": set(), "h": set()}
    for life in range(5):
        with pops_in(path, limits, Sizes(check_point_calls=chance.choice((5, 50_000)))) as pops:
            leased: list[tuple[str, Receipt]] = []
            for _ in range(chance.randrange(5, 60)):
                now_ms += chance.choice((0, 1, 20, 200))
                kind = chance.randrange(10)
                if kind < 2:
                    rows = [Message("t", b"x", message_id=f"{sent + at}", born_ms=NOW, queue_id=0) for at in range(5)]
                    pops.apply(PopTxn(appends=MessageBatch(messages=rows)), now_ms)
                    sent += 5
                elif kind < 6:
                    group = chance.choice("gh")
                    taken = pops.pop(PopRequest("t", group, chance.choice((1, 3, 8)), chance.choice((3000, 60_000))), now_ms)[0].messages
                    leased += zip([row.message_id or "" for row in taken.messages()], taken.receipts(), strict=True)
                elif kind < 9:
                    some = chance.sample(leased, min(len(leased), 4))
                    done, _ = pops.apply(PopTxn(acks=[receipt for _, receipt in some]), now_ms)
                    for (name, receipt), outcome in zip(some, done.acks, strict=True):
                        if outcome is AckOutcome.ACKED:
                            acked[receipt.group].add(name)
                else:
                    pops.revive(now_ms, 100)
                    pops.maintain(now_ms, 100)
            copy_tree(path, tmp_path / f"{life + 1}")
        path = tmp_path / f"{life + 1}"
        copy_tree(path, tmp_path / "look")
        with pops_in(tmp_path / "look", limits) as pops:
            assert pops.verify() == []
            pops.revive(now_ms + 100_000, 10_000)
            for group, names in acked.items():
                found: list[str] = []
                while (taken := pops.pop(PopRequest("t", group, 100, 60_000), now_ms + 100_000)[0].messages) and len(taken):
                    found += [row.message_id or "" for row in taken.messages()]
                assert len(found) == len(set(found))
                assert set(found) >= {f"{number}" for number in range(sent)} - names
        shutil.rmtree(tmp_path / "look")


# ---------------------------------------------------------------- declared


def test_the_weaker_durability_is_declared() -> None:
    declared = INFO.capabilities
    for operation in Operation:
        weak = operation in (Operation.POP, Operation.ACK)
        assert declared.durability_of(operation, Flush.SYNC, LIMITS) is (Durability.NONE if weak else Durability.POWER_LOSS)
        assert declared.durability_of(operation, Flush.SYNC) is Durability.POWER_LOSS
