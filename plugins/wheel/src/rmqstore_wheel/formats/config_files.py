r"""The files of ``config/``, and which of a file and its backup counts.

The JSON files (``ConfigManager``, ``DataVersion``). A file X is written in four steps, so that at each moment X or X.bak is whole: X is
renamed to X.bak (when there is an X); the directory is synced; X is written and synced; the directory is synced. So a missing, empty or
torn X means that X.bak is the latest: one generation older at most. In names and maps that are integers in Java, keys are bare; what is
null is left out.

``consumerOffset.json``: how far each group has read each queue, the offset of the next message (``ConsumerOffsetManager``)::

    {
    \t"dataVersion":{"counter":…,"stateVersion":…,"timestamp":…},       each on a line of its own
    \t"groupTopicMap":{"group":["topic",…]},                            follows from the table; not read
    \t"offsetTable":{
    \t\t"topic@group":{0:12,1:7
    \t\t}
    \t}
    }

``consumerOrderInfo.json``: the un-acked run of every FIFO queue, names in alphabetical order (``ConsumerOrderInfoManager``)::

    {"table":{"topic@group":{<queue>:{
        "a": attempt id            "cm": acked messages as bits, i64        "i": invisible time, ms
        "l": last consumed, ms     "o": queue offsets: the first as it is, the others as distances from it
        "oc": {offset: times consumed before}    "ot": {offset: visible again at, ms}    "popTime": ms
    }}}}

``timermetrics``: how many timers wait per topic, estimates that may be negative; the engine only reads it (``TimerMetrics``)::

    {"dataVersion":{"counter":…,"stateVersion":…,"timestamp":…},"timingCount":{"topic":{"count":5,"timeStamp":…},…}}

``timercheck``: how far the timers are (``TimerCheckpoint``). 4096 bytes, of which the first 56 count; no checksum::

    0    i64  slots before this time, ms, are delivered
    8    i64  position up to which the timer log is on disk
    16   i64  next queue offset of the wheel's topic that is to be read
    24   i64  the same, as the master of a replicated broker told
    32   i64  state version      40  i64  when the version was made, ms      48  i64  its counter
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import fastjson
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.fastjson import Long

BACKUP_SUFFIX: Final = ".bak"


class DataVersion(msgspec.Struct, frozen=True, rename={"state_version": "stateVersion", "timestamp_ms": "timestamp"}):
    """How often and when a file changed. ``state_version`` is that of the broker's replication."""

    counter: Long = 0
    state_version: Long = 0
    timestamp_ms: Long = 0


OFFSETS_FILE: Final = "consumerOffset.json"
SEPARATOR: Final = "@"


class ConsumerOffsets(msgspec.Struct, rename={"table": "offsetTable", "version": "dataVersion"}):
    """The file. ``table`` has the next offset per queue, by ``topic@group``."""

    table: dict[str, dict[Long, Long]] = {}
    version: DataVersion = DataVersion()


def offsets_key(topic: str, group: str) -> str:
    """Return the name of a group on a topic."""
    return f"{topic}{SEPARATOR}{group}"


def split_offsets_key(name: str) -> tuple[str, str] | None:
    """Return (topic, group); None for a name that RocketMQ would pass over."""
    parts = name.split(SEPARATOR)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def encode_offsets(offsets: ConsumerOffsets) -> bytes:
    """Return the file."""
    topics: dict[str, set[str]] = {}
    for name in offsets.table:
        parts = split_offsets_key(name)
        if parts is not None:
            topics.setdefault(parts[1], set()).add(parts[0])
    value = {"dataVersion": msgspec.to_builtins(offsets.version), "groupTopicMap": topics, "offsetTable": offsets.table}
    return fastjson.dumps(value).encode()


def decode_offsets(data: Bytes) -> ConsumerOffsets:
    """Read the file."""
    return fastjson.read(data, ConsumerOffsets, OFFSETS_FILE)


ORDERS_FILE: Final = "consumerOrderInfo.json"


class OrderInfo(
    msgspec.Struct,
    rename={
        "pop_ms": "popTime",
        "invisible_ms": "i",
        "offsets": "o",
        "last_consume_ms": "l",
        "acked_bits": "cm",
        "attempt_id": "a",
        "visible_ms": "ot",
        "consumed": "oc",
    },
):
    """The run of one queue. Bit i of ``acked_bits`` (0 to 2**64 - 1) says that the message at ``offsets[i]`` is acked.

    ``visible_ms`` and ``consumed`` hold only offsets that differ from the rest: a changed invisible time, a count above 0.
    """

    pop_ms: Long = 0
    invisible_ms: Long | None = None
    offsets: list[Long] = []
    last_consume_ms: Long = 0
    acked_bits: Long = 0
    attempt_id: str | None = None
    visible_ms: dict[Long, Long] | None = None
    consumed: dict[Long, Long] | None = None

    def is_acked(self, place: int) -> bool:
        """Say whether the message at ``offsets[place]`` is acked."""
        return bool(self.acked_bits >> place & 1)


OrderTable = dict[str, dict[int, OrderInfo]]
"""Runs by ``topic@group`` and queue."""


class _Orders(msgspec.Struct):
    table: dict[str, dict[Long, OrderInfo]] = {}


def encode_orders(table: OrderTable) -> bytes:
    """Return the file."""
    value = {"table": {name: {queue: _to_json(info) for queue, info in queues.items()} for name, queues in table.items()}}
    return fastjson.dumps(value).encode()


def _to_json(info: OrderInfo) -> dict[str, Any]:
    first = info.offsets[0] if info.offsets else 0
    distances = [*info.offsets[:1], *(offset - first for offset in info.offsets[1:])]
    fields = msgspec.to_builtins(info) | {"cm": info.acked_bits - (info.acked_bits >> 63 << 64), "o": distances}
    return dict(sorted(fields.items()))


def decode_orders(data: Bytes) -> OrderTable:
    """Read the file."""
    table = fastjson.read(data, _Orders, ORDERS_FILE).table
    for info in (info for queues in table.values() for info in queues.values()):
        info.acked_bits &= 0xFFFF_FFFF_FFFF_FFFF
        info.offsets[1:] = [info.offsets[0] + distance for distance in info.offsets[1:]]
    return table


METRICS_FILE: Final = "timermetrics"


class TimingCount(msgspec.Struct, frozen=True, rename={"changed_ms": "timeStamp"}):
    """Timers that wait for a topic, and when their number last changed, ms."""

    count: Long = 0
    changed_ms: Long = 0


class TimerMetrics(msgspec.Struct, rename={"counts": "timingCount", "version": "dataVersion"}):
    """The file."""

    counts: dict[str, TimingCount] = {}
    version: DataVersion = DataVersion()


def decode_metrics(data: Bytes) -> TimerMetrics:
    """Read the file."""
    return fastjson.read(data, TimerMetrics, METRICS_FILE)


TIMER_CHECK_FILE: Final = "timercheck"
TIMER_CHECK_BYTES: Final = 4096
TIMER_CHECK_USED_BYTES: Final = 56

_FIELDS = struct.Struct(">7q")


class TimerCheck(msgspec.Struct, frozen=True):
    """The file, in the order of its fields."""

    read_ms: int = 0
    timer_log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version: DataVersion = DataVersion()


def encode_timer_check(check: TimerCheck) -> bytes:
    """Return the 56 bytes that count."""
    *numbers, version = msgspec.structs.astuple(check)
    return _FIELDS.pack(*numbers, version.state_version, version.timestamp_ms, version.counter)


def decode_timer_check(data: Bytes) -> TimerCheck:
    """Read the file.

    Raises:
        CorruptStoreError: it is too short.
    """
    if len(data) < TIMER_CHECK_USED_BYTES:
        raise CorruptStoreError(f"{TIMER_CHECK_FILE} has {len(data)} bytes; at least {TIMER_CHECK_USED_BYTES} are needed", offset=len(data))
    read_ms, position, offset, master, state_version, timestamp_ms, counter = _FIELDS.unpack_from(data)
    return TimerCheck(read_ms, position, offset, master, DataVersion(counter, state_version, timestamp_ms))
