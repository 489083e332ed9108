"""Many messages at once, as columns (docs/contract.md): what ``send_batch`` takes, what ``pop_batch`` and ``due`` give.

A :class:`MessageBatch` holds its messages in one of three forms — a list of structs (small calls), an Arrow record batch (big ones), or
something of an engine's own (a :class:`BatchSource`) — and makes the others when asked.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from rmqstore import message as limits
from rmqstore.columns import bytes_of, constant_of, lengths_of
from rmqstore.errors import IllegalArgumentError, IllegalMessageError, IllegalMessageTypeError, IllegalNameError
from rmqstore.late import np, pa, pc, schemas
from rmqstore.message import Message, PoppedMessage, check_message, check_topic

_REQUIRED = ("topic", "body")


class BatchSource(Protocol):
    """An engine's own form of messages; an engine that knows the type takes it as it is, without decoding."""

    def __len__(self) -> int: ...

    def columns(self) -> pa.RecordBatch:
        """Return the columns of ``IN_SCHEMA``, or of ``OUT_SCHEMA`` for messages on their way out."""

    def messages(self) -> Sequence[Message | PoppedMessage]:
        """Return one struct a message."""


class MessageBatch:
    """Messages in a row order that every engine keeps. Immutable. ``len()`` is the number of messages."""

    __slots__ = ("_columns", "_messages", "_source")

    def __init__(
        self,
        messages: Sequence[Message | PoppedMessage] | None = None,
        columns: pa.RecordBatch | None = None,
        source: BatchSource | None = None,
    ) -> None:
        """Wrap what is already checked; users call :meth:`of` or :meth:`from_arrow`."""
        self._messages = messages
        self._columns = columns
        self._source = source

    @classmethod
    def of(cls, messages: Sequence[Message]) -> MessageBatch:
        """Check and wrap structs.

        Raises:
            IllegalMessageError: naming the row and the field at fault.
        """
        if isinstance(messages, Message | str | bytes) or not isinstance(messages, Sequence):
            raise IllegalMessageTypeError(f"a batch is a list of Message, not {type(messages).__name__}")
        rows = list(messages)
        if len(rows) >= _MANY and (columns := _plain_columns(rows)) is not None and _are_legal(columns):
            return cls(columns=columns)
        _check_rows(rows)
        return cls(messages=rows)

    @classmethod
    def from_arrow(cls, data: pa.RecordBatch | pa.Table) -> MessageBatch:
        """Check Arrow data and wrap it; columns may come in any order, and those of ``OUT_SCHEMA`` that mean nothing here are ignored.

        ``large_`` variants of string, binary and list columns, and views of strings and binaries, are taken as well.

        Raises:
            IllegalMessageError: naming the column, and the first row at fault where there is one.
        """
        if not isinstance(data, pa.RecordBatch | pa.Table):
            raise IllegalMessageTypeError(f"columns must be a pyarrow RecordBatch or Table, not {type(data).__name__}")
        columns = _conform(data)
        _check_columns(columns)
        return cls(columns=columns)

    @property
    def source(self) -> BatchSource | None:
        """The engine's own form, when the batch came from one."""
        return self._source

    @property
    def has_columns(self) -> bool:
        """Whether the columns are at hand, so that reading them costs nothing."""
        return self._columns is not None

    @property
    def columns(self) -> pa.RecordBatch:
        """The messages as one Arrow record batch."""
        if self._columns is None:
            self._columns = columns_of(self._messages or ()) if self._source is None else self._source.columns()
        return self._columns

    @property
    def messages(self) -> Sequence[Message | PoppedMessage]:
        """The messages as structs."""
        if self._messages is None:
            self._messages = self._source.messages() if self._source is not None else _messages_of(self.columns)
        return self._messages

    def __len__(self) -> int:
        if self._messages is not None:
            return len(self._messages)
        if self._columns is not None:
            return int(self._columns.num_rows)
        return len(self._source) if self._source is not None else 0

    def __reduce__(self) -> tuple[Any, ...]:
        # An engine's own form stays with the engine.
        return MessageBatch, ((None, self.columns) if self._source is None and self._messages is None else (list(self.messages), None))

    def __repr__(self) -> str:
        return f"MessageBatch({len(self)} messages)"


def columns_of(messages: Sequence[Message | PoppedMessage]) -> pa.RecordBatch:
    """Return structs as columns: of ``OUT_SCHEMA`` when they are popped ones, else of ``IN_SCHEMA``."""
    schema = schemas.OUT_SCHEMA if messages and isinstance(messages[0], PoppedMessage) else schemas.IN_SCHEMA
    return pa.RecordBatch.from_arrays([_column(field, _values(messages, field.name)) for field in schema], schema=schema)


def _values(messages: Sequence[Message | PoppedMessage], name: str) -> list[Any]:
    return [*map(attrgetter(name), messages)]


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    if field.name in ("keys", "properties"):
        if not any(values):
            return _nulls(len(values), field.type)
        values = [list(each.items() if field.name == "properties" else each) if each else None for each in values]
    return pa.array(values, field.type) if values.count(None) < len(values) else _nulls(len(values), field.type)


_MANY: Final = 768
"""So many structs are checked, and completed, as columns; with fewer, or with large bodies, it takes longer than row by row.

Both take the same with some 300 messages where an engine makes its records of columns, and with 1,000 where it makes each by itself.
"""

_SMALL_BODY_BYTES: Final = 1024
"""So long are bodies on average at most, of structs that become columns: a column copies them, several times until they are stored."""

_ABSENT: Final = type(None)
_PLAIN: Final[dict[str, set[type]]] = {
    "topic": {str},
    "body": {bytes},
    "tag": {str, _ABSENT},
    "keys": {tuple},
    "properties": {dict},
    "message_group": {str, _ABSENT},
    "deliver_at_ms": {int, _ABSENT},
    "message_id": {str, _ABSENT},
    "born_ms": {int, _ABSENT},
    "queue_id": {int, _ABSENT},
}
"""The types of the fields of a message, exactly: of any other, a column would take what a message must not have."""


def _plain_columns(rows: Sequence[Message]) -> pa.RecordBatch | None:
    """Return messages as columns; None when one of them is not wholly of the types that it should be, or bodies are large."""
    if {*map(type, rows)} != {Message}:
        return None
    fields = {name: _values(rows, name) for name in _PLAIN}
    if any({*map(type, fields[name])} - plain for name, plain in _PLAIN.items()):
        return None
    if sum(map(len, fields["body"])) > _SMALL_BODY_BYTES * len(rows):
        return None
    texts = chain(chain.from_iterable(fields["keys"]), *(chain(each, each.values()) for each in fields["properties"] if each))
    if {*map(type, texts)} - {str}:
        return None
    try:
        return pa.RecordBatch.from_arrays([_column(field, fields[field.name]) for field in schemas.IN_SCHEMA], schema=schemas.IN_SCHEMA)
    except (pa.ArrowException, TypeError, UnicodeEncodeError, OverflowError):
        return None


class ProofText(NamedTuple):
    """What stands behind ``PoppedMessage.receipt`` when the receipt came as text."""

    receipt: str

    def text(self) -> str:
        """Return it."""
        return self.receipt


def _messages_of(columns: pa.RecordBatch) -> Sequence[Message | PoppedMessage]:
    came_out = "queue_offset" in columns.schema.names
    names = schemas.OUT_SCHEMA.names if came_out else schemas.IN_SCHEMA.names
    values = {name: columns.column(name).to_pylist() for name in names}
    values["keys"] = [tuple(keys or ()) for keys in values["keys"]]
    values["properties"] = [dict(pairs or ()) for pairs in values["properties"]]
    if not came_out:
        return [Message(*row) for row in zip(*values.values(), strict=True)]
    values["proof"] = [None if text is None else ProofText(text) for text in values.pop("receipt")]
    return [PoppedMessage(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]


# ---------------------------------------------------------------- conforming and checking Arrow data

_MAX_SHARED_NULLS: Final = 16_384


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Return a column without values; batches of one length share it, unless it is long."""
    return _shared_nulls(count, kind) if count <= _MAX_SHARED_NULLS else pa.nulls(count, kind)


@functools.lru_cache(256)
def _shared_nulls(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)


def _conform(data: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    names = data.schema.names
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise IllegalMessageError(f"column {min(duplicates)!r} stands in the batch more than once")
    unknown = set(names) - set(schemas.OUT_SCHEMA.names)
    if unknown:
        raise IllegalMessageError(f"column {min(unknown)!r} is unknown; a batch has {', '.join(schemas.IN_SCHEMA.names)}")
    for name in _REQUIRED:
        if name not in names:
            raise IllegalMessageError(f"column {name!r} is missing; a batch needs at least {' and '.join(_REQUIRED)}")
    arrays = []
    for field in schemas.IN_SCHEMA:
        if field.name not in names:
            arrays.append(_nulls(data.num_rows, field.type))
            continue
        column = data.column(field.name)
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        arrays.append(_cast(column, field))
    return pa.RecordBatch.from_arrays(arrays, schema=schemas.IN_SCHEMA)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = column.type
    if kind != field.type:
        if not (pa.types.is_null(kind) or _same_kind(kind, field.type)):
            raise IllegalMessageTypeError(f"column {field.name!r} must be {field.type}, not {kind}")
        try:
            column = column.cast(field.type)
        except pa.ArrowInvalid as error:
            raise IllegalMessageError(f"column {field.name!r} cannot be read as {field.type}: {error}") from None
    if pa.types.is_list(field.type) and column.null_count:
        column = _with_empty_nulls(column)
    if field.name in _REQUIRED and column.null_count:
        raise IllegalMessageError(f"row {pc.index(column.is_null(), True).as_py()}: column {field.name!r} has a null; it must have none")
    return column


def _with_empty_nulls(column: pa.ListArray) -> pa.ListArray:
    """Return a list column without the entries that Arrow allows below its nulls."""
    ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy())
    if ends[-1] == column.offsets[-1].as_py() - column.offsets[0].as_py():
        return column
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(offsets, column.flatten(), type=column.type, mask=column.is_null())


def _same_kind(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Say whether ``kind`` is ``wanted`` with other offsets or other nullability inside."""
    if pa.types.is_string(wanted):
        return bool(pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
    if pa.types.is_binary(wanted):
        return bool(pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))
    if pa.types.is_list(wanted):
        return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _text(kind.value_type))
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(kind) and _text(kind.key_type) and _text(kind.item_type))
    return False


def _text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind))


def _check_rows(messages: Iterable[object]) -> None:
    for row, message in enumerate(messages):
        try:
            if not isinstance(message, Message):
                raise IllegalMessageTypeError(f"expected a Message, not {type(message).__name__}")
            check_message(message)
        except IllegalArgumentError as error:
            error.args = (f"row {row}: {error}",)
            raise


def _check_columns(columns: pa.RecordBatch) -> None:
    """Refuse what :func:`check_message` refuses: whole columns tell whether there is such a row, and the rows which one it is."""
    if columns.num_rows and not _are_legal(columns):
        _check_rows(_messages_of(columns))


_WORDS: Final = (
    ("tag", "TAGS", limits.MAX_PROPERTIES_BYTES, r"[\s|\x00-\x1f]"),
    ("message_group", "__SHARDINGKEY", limits.MAX_GROUP_KEY_BYTES, r"[\s\x00-\x1f]"),
    ("message_id", "UNIQ_KEY", limits.MAX_ID_BYTES, r"[\s\x00-\x1f]"),
)
_NUMBERS: Final = (("deliver_at_ms", limits.MAX_TIME_MS), ("born_ms", limits.MAX_TIME_MS), ("queue_id", limits.MAX_QUEUES - 1))


def _are_legal(columns: pa.RecordBatch) -> bool:
    """Say whether every row is within the limits.

    Raises:
        IllegalMessageError: a row is no message at all: a text is none, or a property stands there twice.
    """
    given = {name: column for name, column in zip(columns.schema.names, columns.columns, strict=True) if column.null_count < len(column)}
    found = [_is_topic(topic) for topic in distinct_topics(given["topic"])]
    found += [_are_within(pc.binary_length(given["body"]), 1, limits.MAX_BODY_BYTES)]
    found += [_are_within(given[name], 0, maximum) for name, maximum in _NUMBERS if name in given]
    if given.keys() >= {"message_group", "deliver_at_ms"}:
        found.append(not pc.any(pc.and_(given["message_group"].is_valid(), given["deliver_at_ms"].is_valid())).as_py())
    if given.keys().isdisjoint(("tag", "message_group", "message_id", "keys", "properties")):
        return all(found)
    # The sum that RocketMQ's 16-bit length bounds.
    sizes = lengths_of(given["topic"]) + np.int64(limits.property_overhead_bytes(0))
    for name, property_name, max_bytes, illegal in _WORDS:
        head = len(property_name) + 2
        sizes += _lengths(columns.column(name), extra=head, absent=head + limits.MADE_ID_BYTES if name == "message_id" else 0)
        if name in given:
            _refuse_invalid_utf8(name, given[name])
            found.append(_are_within(pc.binary_length(given[name]), 1, max_bytes))
            found.append(not pc.any(pc.match_substring_regex(given[name], illegal)).as_py())
    if "keys" in given:
        keys = given["keys"].flatten()
        found.append(_are_texts("keys", keys, range(0x21)))
        sums = _sum_by_row(pc.list_parent_indices(given["keys"]), [keys], len(columns), 1)
        sizes += np.where(sums > 0, sums - 1 + len("KEYS") + 2, 0)
    if "properties" in given:
        names, values, offsets = map_parts(given["properties"])
        found += [_are_texts("properties", texts, range(1, 3)) for texts in (names, values)]
        refused = pc.is_in(names, value_set=pa.array(sorted(limits.REFUSED_PROPERTIES)))
        found.append(not pc.any(pc.or_(refused, pc.starts_with(names, limits.OWN_PROPERTY_PREFIX))).as_py())
        parents = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, names))
        _refuse_twice(parents, names)
        sizes += _sum_by_row(parents, [names, values], len(columns), 1)
    return all(found) and bool(sizes.max() <= limits.MAX_PROPERTIES_BYTES)


def _is_topic(name: str) -> bool:
    try:
        check_topic(name)
    except IllegalNameError:
        return False
    return True


def _are_within(numbers: pa.Array, low: int, high: int) -> bool:
    bounds = pc.min_max(numbers)
    return bool(low <= bounds["min"].as_py() and bounds["max"].as_py() <= high)


def distinct_topics(column: pa.Array) -> list[str]:
    """Return the topics of a column of one row at least, in no order.

    Raises:
        IllegalMessageError: one is not valid UTF-8.
    """
    alike = constant_of(column)
    try:
        if alike is not None:
            return [alike.decode()]
        topics: list[str] = column.unique().to_pylist()
    except UnicodeDecodeError as error:
        raise IllegalMessageError(f"column 'topic' is not valid UTF-8: {error}") from None
    return topics


def topics_in(batch: MessageBatch) -> Iterator[str]:
    """Yield the topics of a batch of one row at least, some perhaps more than once."""
    if batch.has_columns:
        yield from distinct_topics(batch.columns.column("topic"))
    else:
        yield from (message.topic for message in batch.messages)


def _refuse_invalid_utf8(name: str, column: pa.Array) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise IllegalMessageError(f"column {name!r} is not valid UTF-8: {error}") from None


def _lengths(column: pa.Array, *, extra: int = 0, absent: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]] | int:
    """Return the bytes of every row and ``extra``, or ``absent`` where it is null."""
    if column.null_count == len(column):
        return absent
    lengths = lengths_of(column).astype(np.int64) + extra
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = absent
    return lengths


def _refuse_twice(parents: pa.Array, names: pa.Array) -> None:
    if not len(names):
        return
    numbered = names.dictionary_encode()
    count = len(numbered.dictionary)
    entries = np.sort(parents.to_numpy().astype(np.int64) * count + numbered.indices.to_numpy())
    again = entries[1:] == entries[:-1]
    if again.any():
        row, number = divmod(int(entries[int(again.argmax())]), count)
        raise IllegalMessageError(f"row {row}: property {numbered.dictionary[number].as_py()!r} stands there twice")


def map_parts(properties: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return (names, values, offsets) of a map column, offsets starting at 0, nulls and slices undone."""
    entries = np.diff(properties.offsets.to_numpy())
    entries[properties.is_null().to_numpy(zero_copy_only=False)] = 0
    offsets = pa.array(np.concatenate(([0], np.cumsum(entries))), pa.int32())
    if properties.null_count:
        properties = properties.drop_null()
    first, last = properties.offsets[0].as_py(), properties.offsets[len(properties)].as_py()
    return properties.keys.slice(first, last - first), properties.items.slice(first, last - first), offsets


def _are_texts(name: str, flat: pa.Array, illegal: range) -> bool:
    """Say whether all are texts of some length without illegal characters; those are below U+0080, and so bytes of their own in UTF-8."""
    if not len(flat):
        return True
    if flat.null_count:
        raise IllegalMessageError(f"column {name!r} holds a null inside; leave the entry out instead")
    _refuse_invalid_utf8(name, flat)
    wrong = np.frombuffer(bytes_of(flat), np.uint8) - np.uint8(illegal.start) < len(illegal)
    return bool(lengths_of(flat).min() > 0 and not wrong.any())


def _sum_by_row(parents: pa.Array, flats: list[pa.Array], rows: int, extra: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return per row the bytes of its texts, plus ``extra`` a text."""
    sums = np.zeros(rows, dtype=np.int64)
    for flat in flats:
        sums += np.bincount(parents.to_numpy(), weights=lengths_of(flat) + extra, minlength=rows).astype(np.int64)
    return sums
