"""Check points and acks in the revive topic: what each call writes, and that they alone tell which leases run."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from plugins.wheel.tests.broker_view import (
    BROKER,
    NOW,
    REVIVE_TOPIC,
    Held,
    bodies_of,
    offsets_in,
    pops_in,
    revive_records,
    running,
    send,
    take,
)
from rmqstore.batch import MessageBatch
from rmqstore.contract import Change, InitMode, PopBuffer, PopRequest, PopStore, PopTxn, Receipt
from rmqstore.message import Message, retry_topic
from rmqstore_wheel.formats import properties
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint
from rmqstore_wheel.log.check_point import DIRECTORY
from rmqstore_wheel.log.ledger import Sizes


def point(start: int, count: int, pop_ms: int = NOW, invisible_ms: int = 60_000, topic: str = "t") -> CheckPoint:
    return CheckPoint(topic, "g", 0, start, pop_ms, invisible_ms, count, list(range(count)), broker=BROKER)


def texts_of(path: Path) -> list[dict[str, str]]:
    return [properties.decode(record.properties) for record in revive_records(path / "db")]


def test_a_pop_writes_a_check_point_with_the_next_offset(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 40)
        take(pops, 5)
        assert [topic.name for topic in pops.topics()] == ["t"]
    assert bodies_of(tmp_path / "db") == [point(0, 5)]
    assert texts_of(tmp_path) == [{"TAGS": "ck", "UNIQ_KEY": f"t@0@0@g@{NOW}@{BROKER}@ck", "RMQS_NEXT": "5"}]


def test_a_large_pop_writes_check_points_of_32(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 100)
        receipts = take(pops, 70)
        pops.apply(PopTxn(acks=receipts[30:66]), NOW)
    ends = [
        BatchAck("t", "g", 0, first, NOW, offsets, BROKER) for first, offsets in ((0, [30, 31]), (32, [*range(32, 64)]), (64, [64, 65]))
    ]
    assert bodies_of(tmp_path / "db") == [point(0, 32), point(32, 32), point(64, 6), *ends]
    assert [text.get("RMQS_NEXT") for text in texts_of(tmp_path)] == ["70", None, None, None, None, None]


def test_a_filter_leaves_gaps(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        take(pops, 4, filter="b")
    assert [offsets_in(each) for each in bodies_of(tmp_path / "db") if isinstance(each, CheckPoint)] == [[0, 3, 6, 9]]


def test_an_ack_and_a_batch_ack(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        receipts = take(pops, 5)
        pops.apply(PopTxn(acks=[receipts[2]]), NOW)
        pops.apply(PopTxn(acks=[receipts[2], receipts[4], receipts[0]]), NOW)
        pops.apply(PopTxn(acks=receipts[:1]), NOW)
    assert bodies_of(tmp_path / "db")[1:] == [Ack("t", "g", 0, 0, NOW, 2, BROKER), BatchAck("t", "g", 0, 0, NOW, [0, 4], BROKER)]
    assert texts_of(tmp_path)[1:] == [
        {"TAGS": "ack", "UNIQ_KEY": f"t@0@2@g@{NOW}@{BROKER}@ack"},
        {"TAGS": "bAck", "UNIQ_KEY": f"t@0@-1@g@{NOW}@{BROKER}@ack"},
    ]


def test_a_change_writes_a_new_check_point_and_acks_the_old_one(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        receipts = take(pops, 5)
        pops.apply(PopTxn(changes=[Change(receipts[3], 5_000)]), NOW + 10)
    assert bodies_of(tmp_path / "db")[1:] == [Ack("t", "g", 0, 0, NOW, 3, BROKER), point(3, 1, NOW + 10, 5_000)]


@pytest.mark.parametrize("how", ["reset", "topic", "made anew", "group"])
def test_leases_that_are_voided_are_acked(tmp_path: Path, how: str) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        receipts = take(pops, 4)
        pops.apply(PopTxn(acks=receipts[:1]), NOW)
        if how == "reset":
            pops.reset_offset("t", "g", None, 0, NOW)
        elif how == "group":
            pops.delete_group("g")
        else:
            pops.delete_topic("t")
    if how == "topic":
        # What groups had of it goes with upkeep, in a later session as well.
        with pops_in(tmp_path) as pops:
            pops.maintain(NOW, 100)
    if how == "made anew":
        # A broker must not take the old check point for one of the new topic.
        with pops_in(tmp_path) as pops:
            send(pops, 1)
    assert bodies_of(tmp_path / "db")[2:] == [BatchAck("t", "g", 0, 0, NOW, [1, 2, 3], BROKER)]


def test_leases_of_a_fifo_pop_that_go_with_their_topic_write_none(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        take(pops, 3, order=True)
        pops.delete_topic("t")
    with pops_in(tmp_path) as pops:
        pops.maintain(NOW, 100)
        assert pops.verify() == []
    assert bodies_of(tmp_path / "db") == []


def test_the_setting_turns_it_off(tmp_path: Path) -> None:
    with pops_in(tmp_path, revive_log=False) as pops:
        send(pops, 10)
        pops.apply(PopTxn(acks=take(pops, 4)), NOW)
    assert not (tmp_path / "db" / "consumequeue" / REVIVE_TOPIC).exists()
    with pops_in(tmp_path) as pops:
        take(pops, 4)
    assert bodies_of(tmp_path / "db") == [point(4, 4, NOW + 1, 59_999)]


def test_what_nobody_needs_is_reclaimed(tmp_path: Path) -> None:
    sizes = Sizes(queue_file_units=16, check_point_calls=8)
    queue = tmp_path / "db" / "consumequeue" / REVIVE_TOPIC / "0"
    with pops_in(tmp_path, sizes=sizes) as pops:
        send(pops, 400)
        held = take(pops, 1)
        for at in range(40):
            pops.apply(PopTxn(acks=take(pops, 1, NOW + 8 * at + 8)), NOW)
    assert len(list(queue.iterdir())) == 6
    with pops_in(tmp_path, sizes=sizes) as pops:
        for at in range(20):
            pops.apply(PopTxn(acks=take(pops, 1, NOW + 8 * at + 328)), NOW)
    assert len(list(queue.iterdir())) == 8
    assert list(running(tmp_path / "db")) == [Held("t", "g", 0, 0)]
    with pops_in(tmp_path, sizes=sizes) as pops:
        pops.apply(PopTxn(acks=held), NOW)
    assert len(list(queue.iterdir())) == 1
    assert running(tmp_path / "db") == {}


class History:
    """Random calls, and what must run after them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_ms = NOW
        self.receipts: list[Receipt] = []

    def call(self, pops: PopStore) -> None:
        chance = self.chance
        self.now_ms += chance.choice((0, 1, 500, 20_000, -3_000))
        some = chance.sample(self.receipts, min(len(self.receipts), chance.randrange(1, 50)))
        kind = chance.randrange(12)
        if kind < 2:
            topics = [(chance.choice("tu"), chance.randrange(2)) for _ in range(chance.randrange(1, 60))]
            messages = [Message(topic, b"x", message_id="m", born_ms=NOW, queue_id=queue) for topic, queue in topics]
            pops.apply(PopTxn(appends=MessageBatch(messages=messages)), self.now_ms)
        elif kind < 6:
            topic = chance.choice("tu")
            # One group takes one topic in order.
            group = chance.choice("gho")
            request = PopRequest(topic, group, chance.choice((1, 5, 40, 80)), chance.choice((1_000, 60_000)), order=group == "o")
            self.receipts += pops.pop(request, self.now_ms)[0].messages.receipts()
        elif kind < 8:
            pops.apply(PopTxn(acks=some), self.now_ms)
        elif kind == 8:
            changes = [Change(receipt, chance.choice((2_000, 90_000))) for receipt in some[10:14]]
            done, _ = pops.apply(PopTxn(acks=some[:10], changes=changes, releases=some[14:18]), self.now_ms)
            self.receipts += [result.receipt for result in done.changes if result.receipt is not None]
        elif kind == 9:
            pops.revive(self.now_ms, chance.choice((1, 3, 1000)))
        elif kind == 10:
            pops.maintain(self.now_ms, 100)
        elif chance.random() < 0.2 and pops.topics():
            if chance.random() < 0.5:
                pops.delete_group("h")
            else:
                pops.reset_offset(pops.topics()[0].name, "g", None, InitMode.MIN, self.now_ms)

    @staticmethod
    def held(pops: PopStore) -> dict[Held, int]:
        """Return the leases that run by the engine's own state, those of FIFO pops left out."""
        found = {}
        for lease in pops.leases():
            receipt = Receipt.parse(lease.receipt)
            assert receipt is not None
            if receipt.revive_qid != 999:
                assert receipt.revive_qid == receipt.pop_time_ms % 8, "as the records of its check point and acks are"
                topic = retry_topic(lease.group, lease.topic) if receipt.retry_flag else lease.topic
                found[Held(topic, lease.group, lease.queue_id, lease.queue_offset)] = lease.expiry_ms
        return found


LIMITS = (None, None, PopBuffer(), PopBuffer(stay_ms=1000, left_ms=500, check_points=5))


@pytest.mark.parametrize("seed", range(20))
def test_the_revive_log_alone_tells_which_leases_run(tmp_path: Path, seed: int) -> None:
    history = History(random.Random(seed))
    limits = LIMITS[seed % len(LIMITS)]
    sizes = Sizes(
        log_file_bytes=256 * 1024 if limits else 64 * 1024, queue_file_units=32, check_point_calls=history.chance.choice((7, 50_000))
    )
    for _ in range(4):
        with pops_in(tmp_path, limits, sizes=sizes) as pops:
            for _ in range(history.chance.randrange(5, 60)):
                history.call(pops)
            held = history.held(pops)
        assert running(tmp_path / "db") == held
    if history.chance.random() < 0.5:
        shutil.rmtree(tmp_path / "db" / DIRECTORY)
        shutil.rmtree(tmp_path / "db" / "consumequeue")
        with pops_in(tmp_path, limits, sizes=sizes) as pops:
            assert history.held(pops) == held
        assert running(tmp_path / "db") == held
