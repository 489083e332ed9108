"""Files of messages: what is written in any format is read back the same, and marks name a batch of one content."""

from __future__ import annotations

import base64
import csv
import io
import json
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from rmqstore import Message
from rmqstore.batch import MessageBatch, columns_of
from rmqstore.cli.rows import Batch, Format, Shape, reader_of
from rmqstore.errors import IllegalMessageError
from rmqstore.message import SYSTEM_PROPERTIES
from rmqstore.schemas import IN_SCHEMA

_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=8)
_WORD = _TEXT.filter(lambda word: not any(each.isspace() or each == "|" for each in word))
_VALUE = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
_TIME = st.none() | st.integers(0, 2**62)

MESSAGES = st.builds(
    Message,
    st.sampled_from(("orders", "a|b", "%x")),
    st.binary(min_size=1, max_size=20),
    st.none() | _WORD,
    st.lists(_WORD, max_size=3).map(tuple),
    st.dictionaries(_VALUE.filter(lambda name: name not in SYSTEM_PROPERTIES and name == name.strip()), _VALUE, max_size=2),
    st.none(),
    _TIME,
    st.none() | _WORD,
    _TIME,
    st.none() | st.integers(0, 3),
)
SHAPE = Shape(None, 1000, "run")


def row_of(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object of what it has; the body as text where it is one."""
    row = {name: getattr(message, name) for name in IN_SCHEMA.names if getattr(message, name) not in (None, (), {})}
    row["keys"] = list(message.keys)
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        del row["body"]
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def jsonl(messages: list[Message]) -> bytes:
    return "".join(json.dumps(row_of(message)) + "\n" for message in messages).encode()


def csv_of(messages: list[Message]) -> bytes:
    rows = []
    for message in messages:
        row = row_of(message)
        row |= {f"properties.{name}": value for name, value in row.pop("properties", {}).items()}
        row["keys"] = " ".join(row["keys"])
        rows.append(row)
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, sorted({name for row in rows for name in row}) or ["body"])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def parquet(messages: list[Message]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([columns_of(messages)], IN_SCHEMA), sink)
    return sink.getvalue()


def read(content: bytes, kind: Format, shape: Shape = SHAPE) -> list[Batch]:
    return list(reader_of(None, io.BytesIO(content), kind, shape).batches)


def messages_of(batches: list[Batch]) -> list[Message]:
    return [each for batch in batches for each in MessageBatch(columns=batch.rows).messages if isinstance(each, Message)]


@given(st.lists(MESSAGES, max_size=5))
@settings(max_examples=150, deadline=None)
def test_every_format_is_read_back_the_same(messages: list[Message]) -> None:
    assert messages_of(read(jsonl(messages), "jsonl")) == messages
    assert messages_of(read(csv_of(messages), "csv")) == messages
    assert messages_of(read(parquet(messages), "parquet")) == messages


@given(st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_a_change_keeps_the_marks_of_the_batches_before_it_and_no_other(count: int, data: st.DataObject) -> None:
    shape = SHAPE._replace(rows=10)
    lines = [f'{{"topic": "t", "body": "{number}"}}\n'.encode() for number in range(count)]
    at = data.draw(st.integers(0, count - 1))
    changed = [*lines[:at], b'{"topic": "t", "body": "changed"}\n', *lines[at + 1 :]]
    before, after = (read(b"".join(each), "jsonl", shape) for each in (lines, changed))
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (old.mark == new.mark) == (number < at // 10)
    assert len({batch.mark for batch in before}) == len(before)


@given(st.sampled_from(get_args(Format)))
@settings(max_examples=3, deadline=None)
def test_another_run_has_other_marks(kind: Format) -> None:
    content = {"jsonl": jsonl, "csv": csv_of, "parquet": parquet}[kind]([Message("t", b"x")])
    assert read(content, kind)[0].mark == read(content, kind)[0].mark
    assert read(content, kind)[0].mark != read(content, kind, SHAPE._replace(run="other"))[0].mark


_NEARLY = st.text('{}[]",:\n\r bodytagkeys.1', max_size=100).map(lambda text: b'{"body": "x"}\n' + text.encode())


@given(st.binary(max_size=200) | _NEARLY | _NEARLY.map(lambda text: b"body,tag\n" + text), st.sampled_from(get_args(Format)))
@settings(max_examples=300, deadline=None)
def test_garbage_is_refused_with_a_place_or_read(content: bytes, kind: Format) -> None:
    try:
        read(content, kind)
    except IllegalMessageError as error:
        assert str(error).startswith("stdin")


class Growing(io.RawIOBase):
    """A file that ends where each piece does, for a moment."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [each for piece in pieces for each in (piece, b"")]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


def grown(*pieces: bytes) -> list[str]:
    stream = io.BufferedReader(Growing(*pieces))
    return [message.body.decode() for message in messages_of(list(reader_of(None, stream, "csv", SHAPE).batches))]


def test_a_line_that_grows_while_it_is_read_is_no_two_lines() -> None:
    assert grown(b"topic,body\nt,x\n", b"t,abcdef\n") == ["x"]
    with pytest.raises(IllegalMessageError, match=r"line 3: the line went on while it was read; .* when nobody writes it any more"):
        grown(b"topic,body\nt,x\nt,ab", b"cd,ef\n")
    assert grown(b"topic,body\nt,x\nt,ab") == ["x", "ab"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"topic": "t", "body": "a", "deliver_at": "2030-01-01T00:00Z", "deliver_at_ms": 5}', "deliver_at and deliver_at_ms say the same"),
        ("[" * 100_000, "this is no JSON"),
        ('{"topic": "t", "body": "\\ud800"}', "text that is no Unicode"),
    ],
    ids=["two times", "deep", "surrogate"],
)
def test_a_line_that_cannot_be_a_message_is_named(line: str, why: str) -> None:
    with pytest.raises(IllegalMessageError, match=f"line 1.*{why}"):
        read(line.encode(), "jsonl")
