"""Messages in files: JSONL, CSV and Parquet with the columns of ``rmqstore.IN_SCHEMA``, read in batches that carry a mark each.

JSONL and CSV are read line by line, and the mark of a batch is a digest of the file up to its end: a file that was corrected keeps the
marks of its batches before the change. One that grew does as well, but its last batch, of fewer rows than others, ended where the file did:
with more rows it is another one, and those that were stored are stored again. No mark can tell how many of them were: a store knows of a
mark whether it is there, and gives it to the call that asks. Parquet is checked as a whole before the first batch, and its marks are of the
whole file.
"""

from __future__ import annotations

import base64
import binascii
import csv
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from rmqstore.batch import MessageBatch, columns_of
from rmqstore.cli.times import parse_time
from rmqstore.errors import IllegalArgumentError, IllegalMessageError
from rmqstore.late import pa
from rmqstore.message import Message, PoppedMessage

if TYPE_CHECKING:
    from pyarrow import parquet as pq

MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
"""A batch ends when its bodies reach this size, however few rows it has."""

_KNOWN = dict.fromkeys((*Message.__struct_fields__, "body_base64", "deliver_at"))
_OTHERS = (frozenset(PoppedMessage.__struct_fields__) - frozenset(_KNOWN)) | {"receipt", "handle", "lease_end_ms"}
_IGNORED = _OTHERS | {f"{name.removesuffix('_ms')}_iso" for name in (*_KNOWN, *_OTHERS) if name.endswith("_ms")}
"""What other commands print of a message beside what it is made of."""
_NUMBERS = ("deliver_at_ms", "born_ms", "queue_id")
_PROPERTY = "properties."
_CSV_FIELD_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


Format: TypeAlias = Literal["jsonl", "csv", "parquet"]
"""How a file holds messages."""

SUFFIXES: Final[dict[str, Format]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


class Batch(NamedTuple):
    """Some rows of a file.

    Attributes:
        rows: columns of ``IN_SCHEMA``.
        place: which lines or rows these are, for messages to people.
        mark: names this batch of this file, so that it is stored once.
        progress: how much of the file is read, in the unit of :attr:`Reader.total`.
    """

    rows: pa.RecordBatch
    place: str
    mark: bytes
    progress: int


class Reader(NamedTuple):
    """A file of messages.

    Attributes:
        total: its size in bytes or in rows (``counts_rows``), None when that is not known.
        batches: its rows in order. A bad one is an IllegalMessageError, which names the file, the line or row, and the column.
    """

    total: int | None
    counts_rows: bool
    batches: Iterator[Batch]


class Shape(NamedTuple):
    """How rows become batches.

    Attributes:
        topic: topic of rows that have none of their own.
        rows: rows of a batch.
        run: what names this run beside the content of the file; part of every mark.
    """

    topic: str | None
    rows: int
    run: str


def reader_of(path: Path | None, stream: IO[bytes], format: Format, shape: Shape) -> Reader:  # noqa: A002 - what users call it
    """Return the reader of a file that is open as ``stream``; ``path`` is None for stdin."""
    name = "stdin" if path is None else str(path)
    if format == "parquet":
        file = _parquet(name, stream)
        return Reader(file.metadata.num_rows, True, _batches_of_rows(name, stream, file, shape))
    source = _Source(name, stream, shape.run)
    rows = _json_rows(source) if format == "jsonl" else _csv_rows(source)
    return Reader(None if path is None else path.stat().st_size, False, _batches_of_lines(source, rows, shape))


# ---------------------------------------------------------------- line by line


def _digest(run: str) -> hashlib.blake2b:
    return hashlib.blake2b(run.encode(errors="surrogateescape"), digest_size=16)


class _Source:
    """The lines of a text file, with a digest of what was read so far."""

    def __init__(self, name: str, stream: IO[bytes], run: str) -> None:
        self.name = name
        self.number = 0
        self.bytes = 0
        self.digest = _digest(run)
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        for line in self._stream:
            self.number += 1
            self.bytes += len(line)
            self.digest.update(line)
            if line[-1:] != b"\n" and self._stream.readline():  # else its halves would be two lines
                raise self.bad("the line went on while it was read; send the file when nobody writes it any more")
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.bad(f"byte {error.start + 1} is no UTF-8; save the file as UTF-8") from None
            yield text.removeprefix("\ufeff") if self.number == 1 else text

    def bad(self, what: str, column: str | None = None, number: int | None = None) -> IllegalMessageError:
        """Return the error about a line, the one that was read last by default."""
        where = f", column {column!r}" if column is not None else ""
        return IllegalMessageError(f"{self.name}, line {self.number if number is None else number}{where}: {what}")


_Row = tuple[int, Mapping[str, Any]]


def _batches_of_lines(source: _Source, rows: Iterator[_Row], shape: Shape) -> Iterator[Batch]:
    messages: dict[int, Message] = {}
    size, batch = 0, 0
    for number, row in rows:
        message = messages[number] = _message(source, number, row, shape.topic)
        size += len(message.body)
        if len(messages) >= shape.rows or size >= MAX_BATCH_BYTES:
            yield _batch(source, messages, batch)
            messages, size, batch = {}, 0, batch + 1
    if messages:
        yield _batch(source, messages, batch)


def _batch(source: _Source, messages: Mapping[int, Message], batch: int) -> Batch:
    """Make a batch of messages by line; they are checked together, and one by one only to name the line at fault."""
    given = list(messages.values())
    try:
        rows = MessageBatch.from_arrow(columns_of(given)).columns
    except (IllegalArgumentError, pa.ArrowException, ArithmeticError, UnicodeError) as error:
        try:
            MessageBatch.of(given)
        except IllegalArgumentError as found:
            row, what = _row_at_fault(found)
            raise source.bad(what, number=list(messages)[row or 0]) from None
        raise source.bad(f"this line or one of the {len(messages) - 1} before it cannot be stored: {error}") from error
    mark = f"{source.digest.hexdigest()}:{batch}".encode()
    return Batch(rows, f"{source.name}, lines {min(messages)}–{source.number}", mark, source.bytes)


def _message(source: _Source, number: int, row: Mapping[str, Any], topic: str | None) -> Message:
    values: dict[str, Any] = {"topic": topic, "body": None}
    if row.get("deliver_at") is not None and row.get("deliver_at_ms") is not None:
        raise source.bad("deliver_at and deliver_at_ms say the same; write one of them", "deliver_at", number)
    for column, value in row.items():
        if value is not None and column not in _IGNORED:
            try:
                _take(values, column, value)
            except IllegalArgumentError as error:
                raise source.bad(str(error), column, number) from None
    for column, hint in (("topic", "give it here, or TOPIC on the command line"), ("body", "write body, or body_base64")):
        if values[column] is None:
            raise source.bad(f"the row has no {column}; {hint}", column, number)
    return Message(**values)


def _json_rows(source: _Source) -> Iterator[_Row]:
    decoder = msgspec.json.Decoder()
    for text in source:
        if text.strip():
            try:
                row = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
                raise source.bad(f"this is no JSON, or text that is no Unicode: {error}") from None
            if not isinstance(row, dict):
                raise source.bad('a line holds one JSON object, such as {"body": "close 42", "keys": ["42"]}')
            yield source.number, row


def _csv_rows(source: _Source) -> Iterator[_Row]:
    csv.field_size_limit(_CSV_FIELD_BYTES)
    reader = csv.reader(source, strict=True)
    heading: list[str] | None = None
    start = 1
    try:
        for cells in reader:
            if heading is None:
                heading = [cell.strip() for cell in cells]
                _check_heading(source, heading)
            elif cells:
                if len(cells) != len(heading):
                    raise source.bad(f"the row has {len(cells)} cells, the heading {len(heading)}", number=start)
                yield start, {column: cell for column, cell in zip(heading, cells, strict=True) if cell}
            start = source.number + 1
    except csv.Error as error:
        raise source.bad(f"this is no CSV: {error}", number=start) from None


def _check_heading(source: _Source, heading: Sequence[str]) -> None:
    for column in heading:
        if heading.count(column) > 1:
            raise source.bad("it stands in the heading more than once", column)
        if column not in _IGNORED:
            try:
                _check_known(column)
            except IllegalArgumentError as error:
                raise source.bad(str(error), column) from None


def _check_known(column: str) -> None:
    if column in _KNOWN or (column.startswith(_PROPERTY) and column != _PROPERTY):
        return
    nearest = difflib.get_close_matches(column, _KNOWN, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(_KNOWN)} and properties.NAME"
    raise IllegalMessageError(f"the column is unknown; {hint}")


def _take(values: dict[str, Any], column: str, value: Any) -> None:
    """Put one cell into the fields of a message.

    Raises:
        IllegalArgumentError: the column is unknown, or its value has the wrong type.
    """
    _check_known(column)
    if column == "body_base64":
        try:
            body = base64.b64decode(_text(value), validate=True)
        except (binascii.Error, ValueError):
            raise IllegalMessageError("this is no base64") from None
        if values["body"] is not None:
            raise IllegalMessageError("the row has a body too; write one of the two")
        values["body"] = body
    elif column == "body":
        if values["body"] is not None:
            raise IllegalMessageError("the row has a body_base64 too; write one of the two")
        values["body"] = _text(value).encode(errors="surrogatepass")
    elif column == "deliver_at":
        values.setdefault("deliver_at_ms", parse_time(_text(value)))
    elif column == "keys":
        if not isinstance(value, str | list):
            raise IllegalMessageError(f"keys are a list of texts or one text with blanks between, not {_shown(value)}")
        values["keys"] = tuple(value.split()) if isinstance(value, str) else tuple(map(_text, value))
    elif column == "properties":
        if not isinstance(value, dict):
            raise IllegalMessageError(f"properties are an object of texts, not {_shown(value)}")
        for name, text in value.items():
            _take(values, f"{_PROPERTY}{name}", text)
    elif column.startswith(_PROPERTY):
        values.setdefault("properties", {})[column.removeprefix(_PROPERTY)] = _text(value)
    elif column in _NUMBERS:
        values[column] = _number(value)
    else:
        values[column] = _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise IllegalMessageError(f"this must be a text, not {_shown(value)}")
    return value


def _number(value: Any) -> int:
    if type(value) in (int, str):
        with suppress(ValueError):
            return int(value)
    raise IllegalMessageError(f"{_shown(value)} is no whole number")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _row_at_fault(error: IllegalArgumentError) -> tuple[int | None, str]:
    """Return which row of a batch an error is about, from 0, and what it says of it; None when it is about a column."""
    told = re.fullmatch(r"row (\d+): (.*)", str(error), re.DOTALL)
    return (int(told[1]), told[2]) if told else (None, str(error))


# ---------------------------------------------------------------- Parquet


def _parquet(name: str, stream: IO[bytes]) -> pq.ParquetFile:
    import pyarrow.parquet as pq  # few commands need it

    try:
        return pq.ParquetFile(stream)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IllegalMessageError(f"{name} is no Parquet file: {error}") from None


def _batches_of_rows(name: str, stream: IO[bytes], file: pq.ParquetFile, shape: Shape) -> Iterator[Batch]:
    """Read a file twice: to check it and to make its digest, then to give its rows."""
    for first, columns in _columns(name, file, shape):
        try:
            MessageBatch.from_arrow(columns)
        except IllegalArgumentError as error:
            row, what = _row_at_fault(error)
            where = "" if row is None else f", row {first + row + 1}"
            raise IllegalMessageError(f"{name}{where}: {what}") from None
    digest = _digest(shape.run)
    stream.seek(0)
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    for batch, (first, columns) in enumerate(_columns(name, file, shape)):
        end = first + columns.num_rows
        rows = MessageBatch.from_arrow(columns).columns
        yield Batch(rows, f"{name}, rows {first + 1}–{end}", f"{digest.hexdigest()}:{batch}".encode(), end)


def _columns(name: str, file: pq.ParquetFile, shape: Shape) -> Iterator[tuple[int, pa.RecordBatch]]:
    first = 0
    try:
        for read in file.iter_batches(shape.rows):
            for part in _parts(_completed(read, shape.topic)):
                yield first, part
                first += part.num_rows
    except pa.ArrowException as error:
        raise IllegalMessageError(f"{name}, behind row {first}: the file cannot be read: {error}") from None


def _completed(columns: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """Fill in the topic, and take a body of text as its bytes."""
    names = columns.schema.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise IllegalMessageError(f"there is more than one column {twice[0]!r}; leave one")
    if topic is not None:
        default = pa.scalar(topic, pa.string())
        if "topic" not in names:
            columns = columns.append_column("topic", pa.repeat(default, columns.num_rows))
        elif columns.column("topic").null_count:
            at = names.index("topic")
            columns = columns.set_column(at, "topic", columns.column(at).cast(pa.string()).fill_null(default))
    if "body" in names and (pa.types.is_string(kind := columns.column("body").type) or pa.types.is_large_string(kind)):
        columns = columns.set_column(names.index("body"), "body", columns.column("body").cast(pa.large_binary()))
    return columns


def _parts(columns: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into parts of bounded size."""
    if columns.nbytes <= MAX_BATCH_BYTES or columns.num_rows <= 1:
        yield columns
        return
    middle = columns.num_rows // 2
    yield from _parts(columns.slice(0, middle))
    yield from _parts(columns.slice(middle))
