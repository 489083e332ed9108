"""A RocketMQ store written by hand with the codecs: small files, every kind of them, as a broker or as rmqstore leaves them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from plugins.wheel.tests.broker_view import BrokerIndex
from plugins.wheel.tests.made_records import encode_record
from plugins.wheel.tests.stores import overwrite
from rmqstore.contract import Inspection, Section
from rmqstore_wheel.formats import check_points, commit_log, config_files, consume_queue, index_file, properties, timer_log, wheel
from rmqstore_wheel.formats.commit_log import Record
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.inspecting import inspect

NOW = 1_700_000_000_000
REVIVE = "rmq_sys_REVIVE_LOG_c"
LOG_BYTES, TIMER_BYTES = 4096, 20 * 52 + 16
RING = wheel.Ring(1000, 3600)
INDEX_SLOTS = 8


def slot_time_ms(ring: wheel.Ring, due_ms: int) -> int:
    """Return the time whose slot RocketMQ gives to a deliver time: the last multiple of the precision before it (``HookUtils``)."""
    return (-(-due_ms // ring.precision_ms) - 1) * ring.precision_ms


def ring_place(ring: wheel.Ring, time_ms: int) -> int:
    return time_ms // ring.precision_ms % ring.length


class Sizes(NamedTuple):
    """How large the files are."""

    log_bytes: int = LOG_BYTES
    queue_units: int = 16
    timer_bytes: int = TIMER_BYTES
    ring: wheel.Ring = RING
    index_slots: int = INDEX_SLOTS


USUAL = Sizes()


class Built:
    """A store that is filled in memory; ``write`` puts it into ``path``."""

    def __init__(self, path: Path, sizes: Sizes = USUAL) -> None:
        self.path = path
        self.sizes = sizes
        self.log = bytearray()
        self.queues: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        self.units = bytearray()
        self.wheel = bytearray(sizes.ring.file_bytes)
        self.slots = np.frombuffer(self.wheel, wheel.SLOT)
        self.check = config_files.TimerCheck(read_ms=NOW)
        self.offsets = config_files.ConsumerOffsets()
        self.index = bytearray(index_file.file_bytes(sizes.index_slots))

    # ------------------------------------------------------------ filling

    def append(self, topic: str, body: bytes = b"body", queue_id: int = 0, store_ms: int = NOW, **texts: object) -> int:
        """Append a message and its unit; returns its log offset."""
        queue = self.queues[topic, queue_id]
        record = Record(
            topic=topic.encode(),
            body=body,
            properties=properties.encode(texts),
            queue_id=queue_id,
            queue_offset=len(queue) // 20,
            store_ms=store_ms,
            born_ms=store_ms,
        )
        size = len(encode_record(record))
        left = self.sizes.log_bytes - len(self.log) % self.sizes.log_bytes
        if not commit_log.fits(size, left):
            self.log += commit_log.encode_blank(left).ljust(left, b"\xee")
        place = record.physical_offset = len(self.log)
        self.log += encode_record(record)
        queue += consume_queue.encode_one(place, size, consume_queue.tags_code(texts.get("TAGS")))
        if texts.get("KEYS"):
            hashed = index_file.key_hash(index_file.index_key(topic, str(texts["KEYS"])))
            BrokerIndex(self.index, self.sizes.index_slots).put([(hashed, place, store_ms)])
        return place

    def timer(self, topic: str, due_ms: int, body: bytes = b"timer", flags: int = 1, slot_ms: int | None = None, **texts: object) -> int:
        """Append a timer, its unit in the timer log, and put it into its slot; returns the position of the unit."""
        out_ms = slot_time_ms(self.sizes.ring, due_ms)
        wanted = {"REAL_TOPIC": topic, "REAL_QID": 0, "TIMER_OUT_MS": out_ms, **texts}
        place = self.append(WHEEL_TOPIC, body, 0, NOW, **wanted)
        self.check = config_files.TimerCheck(self.check.read_ms, 0, len(self.queues[WHEEL_TOPIC, 0]) // 20)
        return self.unit(out_ms if slot_ms is None else slot_ms, place, flags)

    def unit(self, slot_ms: int, log_offset: int, flags: int = 1) -> int:
        left = self.sizes.timer_bytes - len(self.units) % self.sizes.timer_bytes
        if left < timer_log.UNIT_BYTES + timer_log.BLANK_BYTES:
            self.units += timer_log.encode_blank(left).ljust(left, b"\0")
        position = len(self.units)
        slot_ms -= slot_ms % self.sizes.ring.precision_ms
        tick, place = slot_ms // self.sizes.ring.precision_ms, ring_place(self.sizes.ring, slot_ms)
        known, first, last, timers, _ = self.slots[place].item()
        if known != tick:
            first, last, timers = position, -1, 0
        self.units += timer_log.encode_one(timer_log.UNIT_BYTES, last, flags, NOW, slot_ms - NOW, log_offset, 100, 0, 0)
        self.slots[place] = (tick, first, position, timers + (-1 if flags & timer_log.DELETE else 1), 0)
        self.check = config_files.TimerCheck(self.check.read_ms, len(self.units), self.check.queue_offset)
        return position

    def pop(self, point: check_points.CheckPoint, acks: tuple[int, ...] = ()) -> None:
        """Write a check point and acks straight into the revive topic."""
        self.append(REVIVE, check_points.encode_check_point(point), TAGS="ck")
        for offset in acks:
            ack = check_points.Ack(point.topic, point.group, point.queue_id, point.start_offset, point.pop_ms, offset, point.broker)
            self.append(REVIVE, check_points.encode_ack(ack), TAGS="ack")

    # ------------------------------------------------------------ writing

    def write(self) -> Path:
        self._set("commitlog", self.log, self.sizes.log_bytes)
        for (topic, queue_id), units in self.queues.items():
            self._set(f"consumequeue/{topic}/{queue_id}", units, self.sizes.queue_units * 20)
        self._set("timerlog", self.units, self.sizes.timer_bytes)
        self._file("timerwheel", self.wheel)
        self._file("config/timercheck", config_files.encode_timer_check(self.check).ljust(4096, b"\0"))
        self._file("config/consumerOffset.json", config_files.encode_offsets(self.offsets))
        self._file("config/timermetrics", b'{"timingCount":{"t":{"count":3,"timeStamp":%d}}}' % NOW)
        run = config_files.OrderInfo(pop_ms=NOW, invisible_ms=60_000, offsets=[0, 1], last_consume_ms=NOW, acked_bits=1)
        self._file("config/consumerOrderInfo.json", config_files.encode_orders({"t@fifo": {0: run}}))
        self._file("checkpoint", b"".join(number.to_bytes(8) for number in (NOW, NOW, NOW, 0, len(self.log))).ljust(4096, b"\0"))
        self._file("abort", b"4711")
        self._file(f"index/{index_file.file_name(NOW)}", self.index)
        return self.path

    def _set(self, name: str, data: bytearray, file_bytes: int) -> None:
        (self.path / name).mkdir(parents=True, exist_ok=True)
        for start in range(0, len(data), file_bytes):
            self._file(f"{name}/{start:020d}", bytes(data[start : start + file_bytes]).ljust(file_bytes, b"\0"))

    def _file(self, name: str, data: bytes | bytearray) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)

    # ------------------------------------------------------------ damaging and looking

    def patch(self, name: str, at: int, data: bytes) -> None:
        """Change bytes of a file that was written."""
        overwrite(self.path / name, at, data)

    def look(self, now_ms: int | None = NOW) -> Inspection:
        found = inspect(self.path, now_ms)
        assert found is not None
        return found

    def damage(self) -> list[tuple[str, int | None]]:
        return [(each.file, each.offset) for each in self.look().damage]

    def see_damage(self, file: str, offset: int | None, what: str, *, only: bool = True) -> None:
        """Inspect; the first damage, and the only one, must be this."""
        first, *others = self.look().damage
        assert (first.file, first.offset) == (file, offset)
        assert what in first.what
        assert not (only and others)


def section(found: Inspection, heading: str) -> Section:
    """Return the table with this heading, or beginning of one."""
    (only,) = [each for each in found.sections if each.heading.startswith(heading)]
    return only


def rows(found: Inspection, heading: str) -> list[dict[str, object]]:
    table = section(found, heading)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture
def empty(tmp_path: Path) -> Built:
    return Built(tmp_path / "store")


@pytest.fixture
def broker(empty: Built) -> Built:
    """A broker's store with some of everything, written: two log files, two topics, timers, a cancel, pops. Nothing of rmqstore's."""
    fill(empty)
    empty.write()
    return empty


def fill(store: Built) -> None:
    for number in range(20):
        store.append("t", b"%d" % number * 10, queue_id=number % 2, TAGS="a", KEYS=f"k{number}", UNIQ_KEY=f"id{number}")
    for number in range(6):
        store.timer("t", NOW + 30_000 + number % 2 * 1000, UNIQ_KEY=f"timer{number}")
    store.timer("t", NOW + 200_000, UNIQ_KEY="later", TIMER_DELIVER_MS=NOW + 200_000)
    store.timer("t", NOW + 200_000, b"0", flags=timer_log.DELETE | 1, TIMER_DEL_UNIQKEY="t+later")
    store.timer("t", NOW + 3_000_000, UNIQ_KEY="latest")
    point = check_points.CheckPoint("t", "g", 0, 0, NOW, 60_000, 3, [0, 1, 2], broker="b")
    store.pop(point, acks=(1,))
    done = check_points.CheckPoint("t", "g", 1, 0, NOW, 60_000, 2, broker="b")
    store.pop(done, acks=(0, 1))
    store.offsets = config_files.ConsumerOffsets({"t@g": {0: 3, 1: 2}})
