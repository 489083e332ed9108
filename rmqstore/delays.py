"""Asking for a delay as RocketMQ's producers do: by one of 18 levels, or by properties of the message.

The four request properties are read in the order of :data:`REQUEST_PROPERTIES`, and the first that asks for a time wins (RocketMQ
``HookUtils.handleScheduleMessage``). They are requests, so they are not stored with the message. A level above the highest counts as the
highest, and a level below 1 asks for nothing, as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from rmqstore.batch import MessageBatch, map_parts
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, IllegalMessageError
from rmqstore.late import pa, pc, schemas
from rmqstore.message import MAX_TIME_MS, NO_PLACE, REQUEST_PROPERTIES, Message
from rmqstore.when import timedelta_ms

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_REQUESTS = frozenset(REQUEST_PROPERTIES)
_MAX_BACKOFF = 100

DELAY_LEVELS_MS: Final = (
    *(seconds * _SECOND_MS for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""The delays of levels 1 to 18, ms (RocketMQ ``MessageStoreConfig.messageDelayLevel``)."""

RETRY_BACKOFF_MS: Final = tuple(
    seconds * _SECOND_MS for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""How long a message waits after its 1st, 2nd … failed attempt, ms (RocketMQ client ``popDelayLevel``); the last one repeats."""


def level_ms(level: int) -> int:
    """Return the delay of a level that a caller named, ms.

    Raises:
        IllegalArgumentError: there is no such level.
    """
    if type(level) is not int:
        raise IllegalArgumentTypeError(f"delay_level must be an int of 1 to {len(DELAY_LEVELS_MS)}, not {level!r}")
    if not 1 <= level <= len(DELAY_LEVELS_MS):
        raise IllegalArgumentError(
            f"delay_level must be 1 to {len(DELAY_LEVELS_MS)} (1 s to 2 h), not {level}; give delay= for any other time"
        )
    return DELAY_LEVELS_MS[level - 1]


def backoff_ms(attempt: int, table: Sequence[int]) -> int:
    """Return how long a message waits whose delivery number ``attempt`` failed, ms."""
    return table[min(max(attempt, 1), len(table)) - 1]


def requested_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return the deliver time that properties ask for, ms; None when they ask for none.

    Raises:
        IllegalMessageError: the value is no whole number, or out of range.
    """
    for name in REQUEST_PROPERTIES:
        if name not in properties:
            continue
        number = _number(name, properties[name])
        if name == "DELAY":
            if number < 1:
                continue
            wanted_ms = now_ms + DELAY_LEVELS_MS[min(number, len(DELAY_LEVELS_MS)) - 1]
        elif name == "TIMER_DELIVER_MS":
            wanted_ms = number
        else:
            wanted_ms = now_ms + number * (_SECOND_MS if name == "TIMER_DELAY_SEC" else 1)
        if not 0 <= wanted_ms <= MAX_TIME_MS:
            raise IllegalMessageError(f"property {name!r} asks for the time {wanted_ms} ms; 0 to 2**62 is allowed")
        return wanted_ms
    return None


def _number(name: str, text: str) -> int:
    try:
        # int() takes underscores and blanks, which no producer writes.
        number = int(text) if text.lstrip("+-").isdecimal() and len(text) < 20 else None
    except ValueError:
        number = None
    if number is None or (number < 0 and name != "DELAY"):
        raise IllegalMessageError(f"property {name!r} must be a whole number of at least 0, not {text[:40]!r}")
    return number


def without_requests(message: Message, now_ms: int) -> Message:
    """Return a message whose deliver time is what its properties asked for, and whose properties ask for nothing.

    Raises:
        IllegalMessageError: a value is not allowed, or the message has a deliver time or a message group as well.
    """
    if not message.properties or _REQUESTS.isdisjoint(message.properties):
        return message
    wanted_ms = requested_ms(message.properties, now_ms)
    kept = {name: value for name, value in message.properties.items() if name not in REQUEST_PROPERTIES}
    if wanted_ms is None:
        return msgspec.structs.replace(message, properties=kept)
    if message.deliver_at_ms is not None:
        raise IllegalMessageError("deliver_at_ms and a property that asks for a time exclude each other; give one")
    if message.message_group is not None:
        raise IllegalMessageError(NO_PLACE)
    return msgspec.structs.replace(message, properties=kept, deliver_at_ms=wanted_ms)


def batch_without_requests(batch: MessageBatch, now_ms: int) -> MessageBatch:
    """Return a batch in which every row is :func:`without_requests`; errors name the row."""
    if batch.has_columns:
        return _columns_without_requests(batch, now_ms)
    if not any(message.properties and not _REQUESTS.isdisjoint(message.properties) for message in batch.messages):
        return batch
    rows = []
    for row, message in enumerate(batch.messages):
        if isinstance(message, Message):
            try:
                rows.append(without_requests(message, now_ms))
            except IllegalMessageError as error:
                error.args = (f"row {row}: {error}",)
                raise
    return MessageBatch(messages=rows)


def _columns_without_requests(batch: MessageBatch, now_ms: int) -> MessageBatch:
    columns = batch.columns
    properties = columns.column("properties")
    if properties.null_count == len(properties):
        return batch
    names, _, _ = map_parts(properties)
    if not pc.any(pc.is_in(names, value_set=pa.array(REQUEST_PROPERTIES))).as_py():
        return batch
    rows = [each for each in MessageBatch(columns=columns).messages if isinstance(each, Message)]
    kept = batch_without_requests(MessageBatch(messages=rows), now_ms).messages
    arrays = dict(zip(columns.schema.names, columns.columns, strict=True))
    arrays["properties"] = pa.array([list(each.properties.items()) or None for each in kept], schemas.IN_SCHEMA.field("properties").type)
    arrays["deliver_at_ms"] = pa.array([each.deliver_at_ms for each in kept], pa.int64())
    return MessageBatch(columns=pa.RecordBatch.from_arrays([arrays[name] for name in schemas.IN_SCHEMA.names], schema=schemas.IN_SCHEMA))


def backoff_table(backoff: Sequence[timedelta]) -> list[int]:
    """Return a table of back-offs as a caller gives it, in ms.

    Raises:
        IllegalArgumentTypeError: it is no list of 1 to 100 durations.
    """
    if not isinstance(backoff, Sequence) or isinstance(backoff, str | bytes) or not 1 <= len(backoff) <= _MAX_BACKOFF:
        raise IllegalArgumentTypeError(f"backoff must be a list of 1 to {_MAX_BACKOFF} durations, not {backoff!r}")
    return [timedelta_ms("each of backoff", each, minimum=1) for each in backoff]
