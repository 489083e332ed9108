"""An engine directory that is popped and acked in, and files as RocketMQ reads and writes them, for the tests of what is for brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plugins.wheel.tests.made_records import encode_record
from rmqstore.batch import MessageBatch
from rmqstore.contract import EngineOptions, EngineSession, PopBuffer, PopRequest, PopStore, PopTxn, Receipt
from rmqstore.message import Message
from rmqstore_wheel.engine import WheelPops, open_session, sizes_of
from rmqstore_wheel.formats import check_points as codec, commit_log, config_files, consume_queue, index_file, properties
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint
from rmqstore_wheel.formats.commit_log import Record
from rmqstore_wheel.formats.index_file import HEADER_BYTES, SLOT_BYTES, Header
from rmqstore_wheel.log.ledger import Sizes

NOW = 1_700_000_000_000
BROKER = "broker-a"
REVIVE_TOPIC = f"rmq_sys_REVIVE_LOG_{BROKER}"


@contextmanager
def opened(
    path: Path, limits: PopBuffer | None = None, sizes: Sizes | None = None, *, revive_log: bool = True, **how: Any
) -> Iterator[EngineSession]:
    path.mkdir(exist_ok=True)
    options = EngineOptions(store_tag=7, broker=BROKER, pop_buffer=limits, engine={"revive_log": revive_log}, **how)
    session = open_session(path, options, sizes or sizes_of(options))
    try:
        yield session
    finally:
        session.close()


@contextmanager
def pops_in(path: Path, limits: PopBuffer | None = None, sizes: Sizes | None = None, **how: Any) -> Iterator[WheelPops]:
    """Open an engine directory for pops alone."""
    with opened(path, limits, sizes, **how) as session:
        pops = session.pops()
        assert isinstance(pops, WheelPops)
        yield pops


def send(pops: PopStore, count: int, topic: str = "t", queue: int = 0) -> None:
    """Append messages; every third one has the tag b, the others have a."""
    tags = ["a" if number % 3 else "b" for number in range(count)]
    messages = [Message(topic, b"x", tag, message_id=f"{number}", born_ms=NOW, queue_id=queue) for number, tag in enumerate(tags)]
    pops.apply(PopTxn(appends=MessageBatch(messages=messages)), NOW)


def take(pops: PopStore, count: int, now_ms: int = NOW, group: str = "g", **how: Any) -> list[Receipt]:
    return list(pops.pop(PopRequest("t", group, count, 60_000, **how), now_ms)[0].messages.receipts())


class Held(NamedTuple):
    """One message of a lease."""

    topic: str
    group: str
    queue_id: int
    offset: int


def records_of(root: Path) -> list[Record]:
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data) and (size := int.from_bytes(data[at : at + 4])):
            if int.from_bytes(data[at + 4 : at + 8], signed=True) == commit_log.MAGIC_BLANK:
                break
            found.append(commit_log.decode_record(data[at : at + size], log_offset=int(path.name) + at))
            at += size
    return found


def passed(root: Path) -> dict[int, int]:
    """Return how far the reader of the revive topic is, by queue."""
    offsets = root / "config" / config_files.OFFSETS_FILE
    table = config_files.decode_offsets(offsets.read_bytes()).table if offsets.exists() else {}
    return table.get(f"{REVIVE_TOPIC}@CID_RMQ_SYS_REVIVE_GROUP", {})


def revive_records(root: Path) -> list[Record]:
    """Return the records of the revive topic in the order of the log, found through its consume queues, whose units must fit them.

    What the reader has passed may be gone from the log.
    """
    by_place = {record.physical_offset: record for record in records_of(root)}
    first = min(int(path.name) for path in (root / "commitlog").iterdir())
    found = []
    for path in (root / "consumequeue" / REVIVE_TOPIC).glob("*/*"):
        data = path.read_bytes()
        # The last file is as long as what is set aside.
        whole = memoryview(data)[: len(data) // consume_queue.UNIT_BYTES * consume_queue.UNIT_BYTES]
        for at, unit in enumerate(consume_queue.decode(whole), int(path.name) // consume_queue.UNIT_BYTES):
            if not unit["size"]:
                break
            if int(unit["log_offset"]) < first:
                assert at <= passed(root)[int(path.parent.name)]
                continue
            record = by_place[int(unit["log_offset"])]
            tag = properties.decode(record.properties)[properties.TAG]
            assert (record.topic.decode(), record.queue_id, record.queue_offset) == (REVIVE_TOPIC, int(path.parent.name), at)
            assert (int(unit["size"]), int(unit["tags_code"])) == (len(encode_record(record)), consume_queue.tags_code(tag))
            found.append(record)
    return sorted(found, key=lambda record: record.physical_offset)


def bodies_of(root: Path) -> list[CheckPoint | Ack | BatchAck]:
    """Return what the revive topic says, decoded by the tags."""
    found: list[CheckPoint | Ack | BatchAck] = []
    for record in revive_records(root):
        tag = properties.decode(record.properties)[properties.TAG]
        if tag == codec.CK_TAG:
            found.append(codec.decode_check_point(record.body))
            assert codec.encode_check_point(found[-1]) == record.body
        elif tag == codec.ACK_TAG:
            found.append(codec.decode_ack(record.body))
            assert codec.encode_ack(found[-1]) == record.body
        else:
            found.append(codec.decode_batch_ack(record.body))
            assert codec.encode_ack(found[-1]) == record.body
        assert record.queue_id == found[-1].pop_ms % 8
    return found


def offsets_in(point: CheckPoint) -> list[int]:
    return [point.start_offset + distance for distance in point.distances or range(point.count)]


def running(root: Path) -> dict[Held, int]:
    """Return the leases that run by the revive log alone, with their ends: what a broker's ``PopReviveService`` would go by."""
    behind = passed(root)
    points: dict[tuple[str, str, int, int, int, str | None], CheckPoint] = {}
    # A copy lies behind what came after it, but keeps its place in the queue.
    found = sorted(zip(revive_records(root), bodies_of(root), strict=True), key=lambda pair: (pair[0].queue_id, pair[0].queue_offset))
    for record, each in found:
        if record.queue_offset <= behind.get(record.queue_id, -1):
            continue
        key = (each.topic, each.group, each.queue_id, each.start_offset, each.pop_ms, each.broker)
        if isinstance(each, CheckPoint):
            assert key not in points
            points[key] = each
        elif key in points:
            for offset in [each.ack_offset] if isinstance(each, Ack) else each.ack_offsets:
                index = points[key].index_of(offset)
                assert index is not None
                assert not points[key].acked_bits >> index & 1
                points[key].acked_bits |= 1 << index
    return {
        Held(point.topic, point.group, point.queue_id, offset): point.revive_ms
        for point in points.values()
        for index, offset in enumerate(offsets_in(point))
        if not point.acked_bits >> index & 1
    }


class BrokerIndex:
    """An index file over a buffer, as ``IndexFile`` puts into it and looks up in it; entries are (hash, offset in the log, store time)."""

    def __init__(self, buffer: bytearray, slots: int, entries: int | None = None) -> None:
        assert len(buffer) == index_file.file_bytes(slots, entries)
        self._buffer = buffer
        self._limit = slots * index_file.ENTRIES_PER_SLOT if entries is None else entries
        self._slots = np.frombuffer(buffer, ">i4", slots, HEADER_BYTES)
        self._entries = np.frombuffer(buffer, index_file.ENTRY, self._limit, HEADER_BYTES + slots * SLOT_BYTES)

    @property
    def header(self) -> Header:
        return index_file.header_of(self._buffer)

    def put(self, rows: Sequence[tuple[int, int, int]]) -> int:
        """Append entries, as many as there is room for; returns how many."""
        header = self.header
        rows = rows[: self._limit - header.next_entry]
        if rows:
            hashes, offsets, times = np.array(rows, np.int64).T
            made = index_file.plan(header, self._slots[hashes % len(self._slots)], len(self._slots), hashes, offsets, times)
            self._entries[header.next_entry : made.header.next_entry] = made.entries
            self._slots[made.places] = made.numbers
            self._buffer[:HEADER_BYTES] = index_file.encode_header(made.header)
        return len(rows)

    def lookup(self, hashed: int) -> list[int]:
        """Return the offsets of entries with a hash, newest first."""
        found = []
        number = int(self._slots[hashed % len(self._slots)])
        while 0 < number < self.header.next_entry:
            entry_hash, offset, _, previous = self._entries[number].item()
            found += [offset] if entry_hash == hashed else []
            assert previous < number
            number = previous
        return found
