"""The properties of a message as RocketMQ's text, and where the fields of a message are among them (``MessageDecoder``, ``MessageConst``).

::

    name U+0001 value U+0002 name U+0001 value U+0002 …      UTF-8

There is no escaping. Reading drops an entry whose name or value is empty, takes an entry without its final U+0002, and lets the last
entry of a name win. Fields of a message that are properties here: ``UNIQ_KEY`` message id, ``TAGS`` tag, ``KEYS`` keys joined by a blank,
``__SHARDINGKEY`` message group, ``TIMER_DELIVER_MS`` deliver time, ``1ST_POP_TIME`` first pop time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rmqstore.batch import map_parts
from rmqstore.columns import constant_of
from rmqstore.late import pa, pc
from rmqstore.message import OWN_PROPERTY_PREFIX, REQUEST_PROPERTIES, SYSTEM_PROPERTIES, Message, PoppedMessage
from rmqstore_wheel.formats.binary_columns import Ints, Piece, Rows, block_cells

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
