"""The pop side over a queue log that is no key-ordered database, with records of another format, without any timers: nothing differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import ManualClock, Message
from rmqstore.batch import MessageBatch
from rmqstore.contract import EngineOptions, PopRequest, PopTxn, Reclaim, Removal
from rmqstore.contract.state import POP_TABLES
from rmqstore.engine import SPACES, records
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.queue_log import Aged, DamagedRun, PlacedRun, QueueLog, Run
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.shared import Shared
from rmqstore.message import PARKED_TOPIC, dlq_topic, retry_topic
from rmqstore_conformance.damaging import damage_messages
from rmqstore_memory.kv import MemoryKV

MARK = b"#"
NAMES = [f"m{n}" for n in range(12)]


class MarkedFormat:
    """A record is the ordinary one behind a mark that only this format takes off."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(records, name)

        def bare(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [bare(each) for each in value] if value and isinstance(value[0], bytes) else value
            if isinstance(value, bytes):
                assert value[:1] == MARK
                return value[1:]
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = function(*map(bare, args), **kwargs)
            if name in ("encode_batch", "encode_columns"):
                return [MARK + record for record in answer]
            return MARK + answer if name in ("encode_message", "with_delivery") else answer

        return call


class TableLog(QueueLog):
    """A table a queue, by topic name; a record without the mark of its format is damaged."""

    format = MarkedFormat()

    def __init__(self, tables: dict[tuple[str, int], dict[int, tuple[int, bytes]]]) -> None:
        self.tables = tables

    def runs_from(self, topic, queue, offset):
        for at, (store_ms, record) in sorted(self.tables[topic.name, queue].items()):
            if at >= offset:
                yield Run(at, store_ms, [record]) if record[:1] == MARK else DamagedRun(at, record, "broken")

    def aged(self, topic, queue, offset, before_ms, room_bytes):
        passed, latest = [], []
        for run in self.runs_from(topic, queue, offset):
            if isinstance(run, DamagedRun):
                latest.append(run)
            elif run.store_ms >= before_ms:
                return Aged(latest[0].first if latest else run.first, run.store_ms, passed)
            else:
                passed, latest = passed + latest, []
        return Aged(latest[0].first if latest else topic.next_offsets[queue], None, passed)

    def stored(self, topics, after, limit):
        runs = [
            PlacedRun(topic, queue, run) for topic in topics for queue in range(topic.queues) for run in self.runs_from(topic, queue, 0)
        ]
        runs.sort(key=lambda each: (each.topic.id, each.queue, each.run.first))
        start = int(after or b"0")
        for number, run in enumerate(runs[start : start + limit], start + 1):
            yield str(number).encode(), run

    def append(self, write, topic, queue, offset, records, now_ms):
        self.place(write, [PlacedRun(topic, queue, Run(offset, now_ms, list(records)))])
        return sum(map(len, records))

    def place(self, write, runs):
        for topic, queue, run in runs:
            self.tables[topic.name, queue].update((at, (run.store_ms, record)) for at, record in enumerate(run.records, run.first))

    def remove(self, write, topic, queue, offsets, is_wanted):
        table = self.tables[topic.name, queue]
        gone = [at for at in offsets if at in table and table[at][1][:1] == MARK and is_wanted(at, table[at][1])]
        for at in gone:
            del table[at]
        return gone

    def take_out(self, write, topic, queue, damaged):
        del self.tables[topic.name, queue][damaged.first]
        return min((at for at in self.tables[topic.name, queue] if at > damaged.first), default=topic.next_offsets[queue])

    def cut(self, write, topic, queue, first, target):
        for at in [at for at in self.tables[topic.name, queue] if at < target]:
            del self.tables[topic.name, queue][at]

    def was_cut(self, topic, queue, target):
        pass

    def delete(self, write, topic):
        for queue in range(topic.queues):
            self.tables.pop((topic.name, queue), None)


def over_tables() -> OrderedPops:
    tables = defaultdict(dict)
    return opened(lambda shared: TableLog(tables))


def opened(open_log: Any) -> OrderedPops:
    options = EngineOptions(store_tag=7, broker="b", max_retries=1, retention_ms=1000, reclaim=Reclaim.CONSUMED, default_queues=2)
    return OrderedPops(Shared(MemoryKV("log", len(SPACES)), options), open_log)


def tables_of(pops: OrderedPops) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for table in POP_TABLES:
        found[table], after = [], None
        while True:
            page = pops.export_state(table, after, 5)
            found[table] += page.rows.to_pylist()
            after = page.next
            if after is None:
                break
    return found


def played(pops: OrderedPops) -> list[Any]:
    """Do a bit of everything; return all that was answered."""
    seen: list[Any] = []

    def send(topic: str, ids: list[str], **fields: Any) -> None:
        batch = [
            Message(topic, b"body", "ab"[n % 2], (name,), {"x": str(n)}, message_id=name, born_ms=1, **fields) for n, name in enumerate(ids)
        ]
        pops.apply(PopTxn(appends=MessageBatch.of(batch)), 10)

    def pop(topic: str, group: str, now_ms: int, **fields: Any) -> Any:
        result, _ = pops.pop(PopRequest(topic, group, invisible_ms=100, **fields), now_ms)
        seen.append((result.messages.messages(), result.messages.columns().columns.to_pylist(), result.rest))
        return result.messages.receipts()

    send("t", NAMES)
    pop("t", "tags", 20, filter="a", attempt_id="once")
    pop("t", "tags", 21, filter="a", attempt_id="once")
    pop("t", "sql", 20, filter="x > 3 AND KEYS IS NOT NULL")
    receipts = pop("t", "g", 20, max_messages=8)
    seen.append(pops.apply(PopTxn(acks=list(receipts[:3]), releases=[receipts[3]]), 30)[0].acks)
    seen.append(pops.leases())
    seen.append(pops.revive(500, 100)[0])
    pop("t", "g", 600)
    pop("t", "g", 600)
    seen.append(pops.revive(900, 100)[0])
    letters = pops.read(dlq_topic("g"), 0, 0, 10).messages
    removals = [Removal(dlq_topic("g"), 0, each.queue_offset, each.message_id, "t" if at else None) for at, each in enumerate(letters[:2])]
    seen.append(pops.apply(PopTxn(removals=removals), 910)[0].removals)
    send("f", NAMES[:3], queue_id=0)
    pop("f", "o", 920, order=True)
    seen.append(pops.revive(1100, 100)[0])
    pops.apply(PopTxn(acks=list(pop("f", "o", 1200, order=True))), 1210)
    seen += [pops.maintain(3000, 100), pops.get("m5"), pops.topics(), pops.lag("t", "g"), pops.verify(), tables_of(pops)]
    pops.delete_topic("t")
    seen += [pops.topics(), pops.verify(), tables_of(pops)]
    return seen


def test_the_log_behind_the_queues_does_not_show() -> None:
    ordinary, other = played(opened(RunQueueLog)), played(over_tables())
    for here, there in zip(ordinary, other, strict=True):
        assert here == there


def test_state_goes_from_one_log_to_the_other() -> None:
    source = opened(RunQueueLog)
    batch = [Message("t", b"body", message_id=name, born_ms=1, queue_id=0) for name in NAMES]
    source.apply(PopTxn(appends=MessageBatch.of(batch)), 10)
    source.pop(PopRequest("t", "g", invisible_ms=100), 20)
    source.revive(500, 6)
    target = over_tables()
    target.import_state([(table, source.export_state(table, None, 100).rows) for table in POP_TABLES], 510)
    assert target.verify() == []
    places = [
        sorted((each["topic"], each["queue_offset"], each["message_id"]) for each in tables_of(side)["messages"])
        for side in (source, target)
    ]
    assert places[0] == places[1]
    assert len(target.read(retry_topic("g", "t"), 0, 0, 10)) == 6


@pytest.mark.parametrize("by", ["pop", "age"])
def test_a_damaged_message_of_another_log_is_parked(by: str) -> None:
    pops = over_tables()
    batch = [Message("t", b"body", message_id=name, born_ms=1, queue_id=0) for name in NAMES[:3]]
    pops.apply(PopTxn(appends=MessageBatch.of(batch)), 10)
    pops._log.tables["t", 0][1] = (10, b"broken")
    if by == "pop":
        found, _ = pops.pop(PopRequest("t", "g"), 20)
        assert [each.message_id for each in found.messages.messages()] == ["m0", "m2"]
    else:
        pops.maintain(5000, 10)
        assert pops.topics()[-1].min_offsets == (3, 0)
    assert [each.body for each in pops.read(PARKED_TOPIC, 0, 0, 10).messages] == [b"broken"]
    assert pops.verify() == []


def test_a_letter_that_went_bad_is_counted_off_without_a_look_at_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes still name its topic, so that a large dead letter queue holds up nobody when one of it is parked."""
    clock = ManualClock(1)
    with rmqstore.open(tmp_path, engine="memory", clock=clock, max_retries=0) as store:
        for topic in ("a", "b"):
            store.send_batch([Message(topic, b"body %d of %s" % (number, topic.encode())) for number in range(600)])
            while store.pop(topic, "g", max_messages=32, invisible_ms=1):
                clock.advance(1)
                store.tick()
        assert [store.lag(topic, "g").dead for topic in "ab"] == [600, 600]
        damage_messages(store, b"body 599 of a")
        read = []
        runs_from = RunQueueLog.runs_from

        def counted(log: RunQueueLog, topic: Any, queue: int, offset: int) -> Iterator[Run | DamagedRun]:
            for run in runs_from(log, topic, queue, offset):
                read.append(run)
                yield run

        monkeypatch.setattr(RunQueueLog, "runs_from", counted)
        store.groups.reset_offset(dlq_topic("g"), "repair", 599)
        store.pop(dlq_topic("g"), "repair")
        assert [store.lag(topic, "g").dead for topic in "ab"] == [599, 600]
        assert len(read) < 100
