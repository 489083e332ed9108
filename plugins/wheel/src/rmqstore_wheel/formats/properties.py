"""The properties of a message as RocketMQ's text, and where the fields of a message are among them (``MessageDecoder``, ``MessageConst``).

::

    name U+0001 value U+0002 name U+0001 value U+0002 …      UTF-8

There is no escaping. Reading drops an entry whose name or value is empty, takes an entry without its final U+0002, and lets the last
entry of a name win. Fields of a message that are properties here: ``UNIQ_KEY`` message id, ``TAGS`` tag, ``KEYS`` keys joined by a blank,
``__SHARDINGKEY`` message group, ``TIMER_DELIVER_MS`` deliver time, ``1ST_POP_TIME`` first pop time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from rmqstore.batch import map_parts
from rmqstore.columns import codes_of, constant_of, numbers_column, offsets_of
from rmqstore.late import pa, pc, schemas
from rmqstore.message import OWN_PROPERTY_PREFIX, REQUEST_PROPERTIES, SYSTEM_PROPERTIES, Message, PoppedMessage
from rmqstore_wheel.formats.binary_columns import Ints, Octets, Piece, Rows, block_cells, cells

MESSAGE_ID: Final = "UNIQ_KEY"
TAG: Final = "TAGS"
KEYS: Final = "KEYS"
MESSAGE_GROUP: Final = "__SHARDINGKEY"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
OUT_MS: Final = "TIMER_OUT_MS"
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
FIRST_POP_MS: Final = "1ST_POP_TIME"
OWN_PREFIX: Final = OWN_PROPERTY_PREFIX

KEY_SEPARATOR: Final = " "
FIELDS: Final = (MESSAGE_ID, TAG, KEYS, MESSAGE_GROUP, DELIVER_MS, FIRST_POP_MS, REAL_TOPIC, REAL_QUEUE_ID, OUT_MS)
"""Properties that are read into columns of their own."""

HIDDEN: Final = frozenset(SYSTEM_PROPERTIES | set(REQUEST_PROPERTIES) | set(FIELDS))
"""Names that are not among the properties that a user sees; so is every name that starts with ``RMQS_``."""

_END, _IS = b"\x02", b"\x01"
_MAX_REGULAR: Final = 8


def is_hidden(name: str) -> bool:
    """Say whether a property is no business of the application."""
    return name in HIDDEN or name.startswith(OWN_PREFIX)


# ---------------------------------------------------------------- one message


def encode(properties: Mapping[str, Any]) -> bytes:
    """Return the text of properties, in the order of the mapping; those that are None are left out."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items() if value is not None]).encode()


def decode(text: bytes) -> dict[str, str]:
    """Read a text, by RocketMQ's rules for what is not well formed. Bytes that are no UTF-8 become U+FFFD."""
    found = {}
    for entry in text.decode(errors="replace").split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            found[name] = value
    return found


def encode_message(message: Message | PoppedMessage) -> bytes:
    """Return the text of a message's own properties and of the fields that RocketMQ keeps among them."""
    parts = [f"{name}\x01{value}\x02" for name, value in message.properties.items()] if message.properties else []
    if message.keys:
        parts.append(f"KEYS\x01{' '.join(message.keys)}\x02")
    if message.tag is not None:
        parts.append(f"TAGS\x01{message.tag}\x02")
    if message.message_group is not None:
        parts.append(f"__SHARDINGKEY\x01{message.message_group}\x02")
    if message.message_id is not None:
        parts.append(f"UNIQ_KEY\x01{message.message_id}\x02")
    if message.deliver_at_ms is not None:
        parts.append(f"TIMER_DELIVER_MS\x01{message.deliver_at_ms}\x02")
    return "".join(parts).encode()


# ---------------------------------------------------------------- columns to text


def encode_parts(columns: pa.RecordBatch) -> list[Piece]:
    """Return the texts of a batch of ``IN_SCHEMA`` as pieces to be joined in their order; the same text as :func:`encode_message`."""
    parts: list[Piece] = []
    properties, keys = columns.column("properties"), columns.column("keys")
    if properties.null_count < len(properties):
        _add_map(parts, properties)
    if keys.null_count < len(keys):
        joined = pc.binary_join(keys, KEY_SEPARATOR)
        if (pc.list_value_length(keys).to_numpy(zero_copy_only=False) == 0).any():
            joined = pc.if_else(pc.equal(joined, ""), pa.scalar(None, joined.type), joined)
        _add(parts, KEYS, joined)
    _add(parts, TAG, columns.column("tag"))
    _add(parts, MESSAGE_GROUP, columns.column("message_group"))
    _add(parts, MESSAGE_ID, columns.column("message_id"))
    _add(parts, DELIVER_MS, columns.column("deliver_at_ms"))
    return parts


def _add_map(parts: list[Piece], properties: pa.MapArray) -> None:
    names, values, offsets = map_parts(properties)
    per_row, rest = divmod(len(names), len(properties))
    if not rest and 0 < per_row <= _MAX_REGULAR and (np.diff(offsets.to_numpy()) == per_row).all():
        numbers = names.dictionary_encode()
        table = numbers.indices.to_numpy().reshape(-1, per_row)
        if (table == table[0]).all():  # every row has the same names in the same order, so each is a column
            for place, number in enumerate(table[0].tolist()):
                _add(parts, numbers.dictionary[number].as_py(), values.take(pa.array(np.arange(place, len(values), per_row))))
            return
    entries = pc.binary_join_element_wise(_binary(names), _IS, _binary(values), _END, b"")
    parts.append(pc.binary_join(pa.ListArray.from_arrays(offsets, entries), b""))


def property_part(name: str, values: pa.Array) -> list[Piece]:
    """Return the pieces of one property, given as a column of texts or integers; a null row leaves it out."""
    parts: list[Piece] = []
    _add(parts, name, values)
    return parts


def _add(parts: list[Piece], name: str, values: pa.Array) -> None:
    if values.null_count == len(values):
        return
    start = name.encode() + _IS
    if values.null_count:
        parts.append(pc.fill_null(pc.binary_join_element_wise(start, _binary(values), _END, b""), b""))
        return
    if pa.types.is_integer(values.type):
        pieces = decimal_parts(values.to_numpy()) or [_binary(values)]
    else:
        alike = constant_of(values)
        pieces = [_binary(values) if alike is None else alike]
    for piece in (start, *pieces, _END):
        if isinstance(piece, bytes) and parts and isinstance(parts[-1], bytes):
            parts[-1] += piece
        else:
            parts.append(piece)


def _binary(column: pa.Array) -> pa.Array:
    """Return the text of integers, strings or bytes as bytes."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column.view(pa.binary()) if column.type == pa.string() else column.cast(pa.binary())


# ---------------------------------------------------------------- values


def integers(column: pa.Array) -> pa.Array:
    """Return a column of decimal texts as int64; null where a text is none that Java would parse."""
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.int64())
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return pa.array([integer(text) for text in column.to_pylist()], pa.int64())


def integer(text: str | None) -> int | None:
    """Return a decimal text as an int of 64 bits, or None."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def split_keys(text: str | None) -> tuple[str, ...]:
    """Return the keys of a ``KEYS`` property."""
    if not text:
        return ()
    keys = text.split(KEY_SEPARATOR)
    return tuple(filter(None, keys)) if len(keys) > 1 else (text,)


_GROUP: Final = 4
_TEN_THOUSAND: Final = 10**_GROUP
_WORDS: Final = np.frombuffer(b"".join(b"%04d" % number for number in range(_TEN_THOUSAND)), "u4")
_DIGITS: Final = _WORDS.view(np.uint8).reshape(-1, _GROUP)


def decimal_parts(values: Ints) -> list[Piece] | None:
    """Return the texts of some numbers, one at least, as pieces to be joined; None when one is negative, or not as long as the others."""
    low, high = int(values.min()), int(values.max())
    text = str(low)
    if low < 0 or len(str(high)) != len(text):
        return None
    own_digits = next(count for count in range(0, len(text) + _GROUP, _GROUP) if low // 10**count == high // 10**count)
    own_digits = min(own_digits, len(text))
    shared = text[: len(text) - own_digits].encode()
    if not own_digits:
        return [shared]
    own = _last_digits(values - (low - low % 10**own_digits), own_digits)
    return [shared, own] if shared else [own]


def _last_digits(values: Ints, count: int) -> Rows:
    """Return numbers of up to ``count`` digits with zeros before them."""
    found = np.empty(len(values), f"V{count}")
    at = count
    while at > _GROUP:
        values, whole = values // _TEN_THOUSAND, values
        at -= _GROUP
        block_cells(found, at, "u4")[:] = _WORDS[whole - values * _TEN_THOUSAND]
    found.view(np.uint8).reshape(-1, count)[:, :at] = _DIGITS[values, _GROUP - at :]
    return found


# ---------------------------------------------------------------- text to columns

_MAX_REGULAR_READ: Final = 32
_NONE: Final = np.zeros(0, np.int64)
_STEP: Final = 4
"""Pieces of an entry: a name, U+0001, a value, U+0002."""


class Properties(msgspec.Struct):
    """The properties of a batch: entry i is of row ``rows[i]`` and has the name ``names[ids[i]]``; its value is ``values[i * step]``.

    No row has a name twice. When ``is_regular``, each row has all names, in their order, and ``ids`` and ``rows`` are not needed.
    """

    names: list[str]
    ids: Ints
    rows: Ints
    values: pa.Array
    row_count: int
    step: int = 1
    is_regular: bool = False

    def column(self, name: str) -> pa.Array:
        """Return one property of every row, as texts; null where a row does not have it."""
        if name not in self.names:
            return pa.nulls(self.row_count, pa.string())
        at = self.names.index(name)
        if self.is_regular:
            return self.values.take(numbers_column((np.arange(self.row_count) * len(self.names) + at) * self.step))
        mine = np.flatnonzero(self.ids == at)
        picked, there = np.zeros(self.row_count, np.int64), np.zeros(self.row_count, np.uint8)
        picked[self.rows[mine]], there[self.rows[mine]] = mine * self.step, 1
        places = [pa.py_buffer(np.packbits(there, bitorder="little")), pa.py_buffer(picked)]
        return self.values.take(pa.Array.from_buffers(pa.int64(), self.row_count, places))

    def visible(self) -> pa.Array:
        """Return the properties that a user sees as a map column, null where a row has none."""
        shown = np.array([not is_hidden(name) for name in self.names], bool)
        if not shown.any():
            return pa.nulls(self.row_count, schemas.PROPERTIES)
        ids, rows = self.ids, self.rows
        if self.is_regular:
            ids, rows = np.tile(np.arange(len(self.names)), self.row_count), np.arange(self.row_count).repeat(len(self.names))
        mine = np.flatnonzero(shown[ids])
        counts = np.bincount(rows[mine], minlength=self.row_count)
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32(), mask=np.append(counts == 0, False))
        names = pa.array(self.names, pa.string()).take(pa.array(ids[mine]))
        return pa.MapArray.from_arrays(offsets, names, self.values.take(pa.array(mine * self.step)))


def decode_column(texts: pa.Array) -> Properties:
    """Read a binary column of texts; the same as :func:`decode` row by row."""
    return _decode_well_formed(texts) or _decode_rows(texts)


def _decode_rows(texts: pa.Array) -> Properties:
    found = [decode(text) for text in texts.to_pylist()]
    names = list(dict.fromkeys(name for row in found for name in row))
    numbers = {name: number for number, name in enumerate(names)}
    return Properties(
        names,
        np.array([numbers[name] for row in found for name in row], np.int64),
        np.repeat(np.arange(len(found)), [len(row) for row in found]),
        pa.array([value for row in found for value in row.values()], pa.string()),
        len(found),
    )


def _decode_well_formed(texts: pa.Array) -> Properties | None:
    """Read texts that all are well formed; None when one is not.

    A column is laid over the bytes, whose elements are in turn a name, U+0001, a value, U+0002.
    """
    rows = len(texts)
    found = _find_entries(texts)
    if found is None or not _is_utf8(found.data):
        return None
    if not len(found.starts):
        return Properties([], found.starts, found.starts, pa.array([], pa.string()), rows)
    bounds = np.empty(4 * len(found.starts) + 1, np.int32)
    bounds[:-1:4], bounds[1::4], bounds[2::4], bounds[3::4] = found.starts, found.is_at, found.is_at + 1, found.end_at
    bounds[-1] = len(found.data)
    pieces = pa.Array.from_buffers(pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(found.data)])
    values = pieces.slice(2)
    names = _regular_names(found, rows)
    if names is not None:
        return Properties(names, _NONE, _NONE, values, rows, _STEP, is_regular=True)
    coded = pieces.take(numbers_column(np.arange(0, len(pieces), _STEP))).dictionary_encode()
    names, ids = coded.dictionary.to_pylist(), codes_of(coded).astype(np.int64)
    owners = np.searchsorted(found.offsets[1:], found.starts, side="right")
    if np.bincount(owners * len(names) + ids).max() > 1:  # a name stands twice in a row
        return None
    return Properties(names, ids, owners, values, rows, _STEP)


class _Found(NamedTuple):
    """The entries of well-formed texts: where each starts, where its U+0001 and its U+0002 are, and where the rows are, in ``data``."""

    data: Octets
    offsets: Ints
    starts: Ints
    is_at: Ints
    end_at: Ints


def _find_entries(texts: pa.Array) -> _Found | None:
    """Find the entries of texts that all are as RocketMQ writes them; None when one is not."""
    offsets = offsets_of(texts).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return _Found(np.zeros(0, np.uint8), offsets - first, _NONE, _NONE, _NONE)
    data = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    offsets = offsets - first
    separators = np.flatnonzero((data - 1) < 2)  # 1 or 2; 0 wraps round to 255
    if len(separators) % 2 or not len(separators):
        return None
    kinds = data[separators]
    is_at, end_at = separators[::2], separators[1::2]
    starts = np.concatenate(([0], end_at[:-1] + 1))
    if (kinds[::2] != 1).any() or (kinds[1::2] != 2).any() or (is_at == starts).any() or (end_at == is_at + 1).any():
        return None
    row_ends = offsets[1:][np.diff(offsets) > 0]
    if (data[row_ends - 1] != 2).any():
        return None
    return _Found(data, offsets, starts, is_at, end_at)


def _is_utf8(data: Octets) -> bool:
    """Say whether texts are UTF-8 one by one: they are when all are together, as the separators between them are ASCII."""
    if data.max(initial=0) < 0x80:
        return True
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _regular_names(found: _Found, rows: int) -> list[str] | None:
    """Return the names of every row, when they are the same in all."""
    data, offsets, starts, is_at, _ = found
    per_row, rest = divmod(len(starts), rows)
    if rest or per_row > _MAX_REGULAR_READ or not np.array_equal(starts[::per_row], offsets[:-1]):
        return None
    widths = (is_at - starts).reshape(rows, per_row)
    if not (widths == widths[0]).all():
        return None
    names = []
    for place, width in enumerate(widths[0].tolist()):
        each = cells(data, f"S{width}")[starts[place::per_row]]
        if not (each == each[0]).all():
            return None
        names.append(data[starts[place] : is_at[place]].tobytes().decode())
    return names if len(set(names)) == per_row else None
