"""Records of the commit log by the batch, as columns, and their bytes; ``commit_log`` draws the layout, ``log_reading`` is the way back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.columns import bytes_of, constant_of, offsets_of, pieces_of
from rmqstore.errors import IllegalArgumentError
from rmqstore.late import pa
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Measured, Octets, Part, Piece, cells, join_columns, measure, taken

_COPIED_BODY_BYTES: Final = 4096

HEAD: Final = np.dtype(
    {
        "names": log.HEAD_FIELDS,
        "formats": ">i4 >i4 >i4 >i4 >i4 >i8 >i8 >i4 >i8 V8 >i8 V8 >i4 >i8 >i4".split(),
    }
)
"""What is before the body of a record whose hosts are IPv4."""

_NUMBERS: Final = ("queue_id", "queue_offset", "born_ms", "store_ms", "reconsume_times")


class Columns(msgspec.Struct, kw_only=True):
    """Records as columns; a number, or one piece of bytes, stands for every row. Binary columns without nulls.

    ``properties`` are pieces that are joined in their order; records that were read have one.
    """

    topic: Part
    body: pa.Array
    properties: Sequence[Piece] = ()
    queue_id: Ints | int = 0
    queue_offset: Ints | int = 0
    physical_offset: Ints | int = 0
    born_ms: Ints | int = 0
    store_ms: Ints | int = 0
    reconsume_times: Ints | int = 0

    def __len__(self) -> int:
        return len(self.body)

    @property
    def text(self) -> pa.Array:
        """The properties of records that were read."""
        (text,) = self.properties
        return text


class Encoded(NamedTuple):
    """Records as bytes, one behind the other from byte 0 on: ``data`` may be written to, ``starts`` and ``sizes`` are in bytes."""

    data: Octets
    starts: Ints
    sizes: Ints

    def place(self, physical_offset: int) -> None:
        """Write into every record where it is: the first one at ``physical_offset`` of the log, all without a gap."""
        if len(self.starts):
            cells(self.data, ">i8")[self.starts + log.PHYSICAL_OFFSET_AT] = physical_offset + self.starts

    def split(self, bytes_left: int) -> tuple[Encoded, Encoded]:
        """Return the records that still go into a file with this much room, and the others."""
        count = int(np.searchsorted(self.starts + self.sizes, bytes_left - log.BLANK_BYTES, side="right"))
        return self.part(0, count), self.part(count, len(self.starts))

    def take(self, rows: Ints) -> Encoded:
        """Return copies of some of them, in this order."""
        sizes = self.sizes[rows]
        pieces = pieces_of(self.data, np.append(self.starts, len(self.data)))
        return Encoded(taken(pieces, rows), np.cumsum(sizes) - sizes, sizes)

    def part(self, first: int, behind: int) -> Encoded:
        """Return those from row ``first`` to before row ``behind``, without a copy."""
        if first == behind:
            return Encoded(self.data[:0], self.starts[:0], self.sizes[:0])
        begin, end = int(self.starts[first]), int(self.starts[behind - 1] + self.sizes[behind - 1])
        return Encoded(self.data[begin:end], self.starts[first:behind] - begin, self.sizes[first:behind])


# ---------------------------------------------------------------- writing


def encode_columns(columns: Columns) -> Encoded:
    """Return the records of a batch, in its order: of this machine, and not placed yet.

    Raises:
        IllegalArgumentError: a topic or the properties of a row have a length that no record can hold.
    """
    rows = len(columns)
    if not rows:
        return joined([])
    topic, magic = _topic_part(columns.topic)
    body = measure(columns.body)
    properties = [measure(part) for part in columns.properties]
    properties_bytes = np.broadcast_to(sum(each.lengths for each in properties), rows)
    if properties_bytes.max() > log.MAX_PROPERTIES_BYTES:
        row = int((properties_bytes > log.MAX_PROPERTIES_BYTES).argmax())
        raise IllegalArgumentError(
            f"row {row}: the properties have {properties_bytes[row]} bytes; a record holds at most {log.MAX_PROPERTIES_BYTES}"
        )
    sizes = properties_bytes + (HEAD.itemsize + 2 + topic.lengths + body.lengths)
    head = np.zeros(rows, HEAD)
    head["size"] = sizes
    head["magic"] = magic
    head["crc"] = body_crcs(columns.body)
    head["body_bytes"] = body.lengths
    for name in _NUMBERS:
        value = getattr(columns, name)
        if isinstance(value, np.ndarray) or value:
            head[name] = value
    head["born_host"] = head["store_host"] = np.void(log.LOCAL_HOST)
    ends = np.cumsum(sizes)
    lengths = measure(properties_bytes.astype(">i2"))
    return Encoded(join_columns([measure(head), body, topic, lengths, *properties], rows, int(ends[-1])), ends - sizes, sizes)


def joined(records: Sequence[Bytes]) -> Encoded:
    """Return records that are bytes already, one behind the other."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    return Encoded(np.frombuffer(bytearray().join(records), np.uint8), sizes.cumsum() - sizes, sizes)


def _topic_part(topic: Part) -> tuple[Measured, Ints | int]:
    """Return the topics with their lengths before them, and the magics that go with them."""
    if isinstance(topic, bytes):
        return measure(log.topic_field(topic)), log.magic_of(topic)
    alike = constant_of(topic)
    if alike is not None:
        return _topic_part(alike)
    distinct = topic.dictionary_encode()
    names = distinct.dictionary.to_pylist()
    fields = pa.array([log.topic_field(name) for name in names], pa.binary()).take(distinct.indices)
    return measure(fields), np.array([log.magic_of(name) for name in names])[distinct.indices.to_numpy()]


def body_crcs(body: pa.Array) -> Ints:
    """Return what each record holds as the CRC of its body."""
    data, ends = bytes_of(body), offsets_of(body)
    if len(data) <= _COPIED_BODY_BYTES * len(body):
        bodies = body.to_pylist()  # faster than slices of the buffer, at the price of a copy
    else:
        view, first = memoryview(data), int(ends[0])
        bodies = [view[start - first : end - first] for start, end in itertools.pairwise(ends.tolist())]
    return np.fromiter(map(crc32, bodies), np.uint32, len(body)) & 0x7FFFFFFF
