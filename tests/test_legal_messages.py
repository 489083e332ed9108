"""Rows, columns and long lists of rows agree on what is legal, at the limits of design §5.8 and beyond."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings

from rmqstore import IN_SCHEMA, IllegalArgumentError, Message, MessageBatch, RmqstoreError
from rmqstore.message import MAX_BODY_BYTES, MAX_PROPERTIES_BYTES, PARKED_TOPIC

TRICKY = st.sampled_from([*"aé€😀 |\t\n\r\v\f\x00\x01\x02\x1f\x7f\x85\xa0\u2028\u3000%+.-_", "ab", "||"])
WORDS = st.lists(TRICKY, max_size=6).map("".join)
NEAR = st.sampled_from([126, 127, 128, 254, 255, 256])
LONG_WORDS = st.builds(lambda letter, size: letter * size, st.sampled_from(["a", "é"]), NEAR)
NAMES = st.one_of(
    WORDS, LONG_WORDS, st.sampled_from(["t", "%RETRY%g", "%DLQ%g", PARKED_TOPIC, "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", "a%b|c"])
)
TIMES = st.one_of(st.none(), st.sampled_from([-(2**63), -1, 0, 1, 2**62, 2**62 + 1, 2**63 - 1]), st.integers(-5, 10**13))
TEXTS = st.one_of(WORDS, LONG_WORDS)
PAIRS = st.dictionaries(st.one_of(TEXTS, st.sampled_from(["KEYS", "POP_CK", "RMQS_FRAME"])), TEXTS, max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "topic": NAMES,
    "body": st.sampled_from([b"", b"x", bytes(MAX_BODY_BYTES), bytes(MAX_BODY_BYTES + 1)]),
    "tag": st.none() | TEXTS,
    "keys": st.lists(TEXTS, max_size=3).map(tuple),
    "properties": PAIRS,
    "message_group": st.none() | TEXTS,
    "deliver_at_ms": TIMES,
    "message_id": st.none() | TEXTS,
    "born_ms": TIMES,
    "queue_id": st.none() | st.sampled_from([-1, 0, 1, 1023, 1024, 2**31 - 1, -(2**31)]),
}


FEW, MANY = 2, 200


@pytest.fixture(scope="module", autouse=True)
def _many() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmqstore.batch._MANY", MANY)
        yield


def by_rows(fields: dict[str, Any], rows: int = FEW) -> RmqstoreError | None:
    """Return how a list of so many rows, whose second is the message, is refused; None when it is taken."""
    try:
        batch = MessageBatch.of([Message("t", b"x"), Message(**fields), *[Message("t", b"x")] * (rows - 2)])
    except RmqstoreError as error:
        return error
    assert batch.columns.slice(0, FEW).equals(MessageBatch(messages=[Message("t", b"x"), Message(**fields)]).columns)
    return None


def table_of(fields: dict[str, Any]) -> pa.RecordBatch:
    """Return a good row and then one of ``fields``."""
    rows: list[dict[str, Any]] = [{"topic": "t", "body": b"x"}, fields]
    arrays = []
    for field in IN_SCHEMA:
        values = [row.get(field.name) for row in rows]
        if field.name == "properties":
            values = [None if value is None else list(value.items()) for value in values]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=IN_SCHEMA)


def by_columns(fields: dict[str, Any]) -> RmqstoreError | None:
    """Return how the column path refuses a message; None when it takes it."""
    try:
        MessageBatch.from_arrow(table_of(fields))
    except RmqstoreError as error:
        return error
    return None


def agree(fields: dict[str, Any]) -> bool:
    """Check that all paths say the same; returns whether the message is legal."""
    row, column, among_many = by_rows(fields), by_columns(fields), by_rows(fields, MANY)
    assert (type(row), str(row)) == (type(among_many), str(among_many))
    assert (row is None) == (column is None), f"rows: {row or 'legal'}; columns: {column or 'legal'}"
    if row is not None:
        assert isinstance(row, IllegalArgumentError)
        assert "row 1" in str(row)
        assert isinstance(column, IllegalArgumentError)
    return row is None


def test_a_plain_message_is_legal() -> None:
    assert agree({"topic": "t", "body": b"x"})


@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.differing_executors])
@given(data=st.data())
def test_both_paths_agree_on_each_field(field: str, data: st.DataObject) -> None:
    agree({"topic": "t", "body": b"x", field: data.draw(FIELDS[field])})


@settings(max_examples=150)
@given(
    st.fixed_dictionaries(
        {"topic": st.just("t"), "body": st.just(b"x")}, optional={n: s for n, s in FIELDS.items() if n not in ("topic", "body")}
    )
)
@example({"topic": "t", "body": b"x", "message_group": "g", "deliver_at_ms": 5})
def test_both_paths_agree_on_whole_messages(fields: dict[str, Any]) -> None:
    agree(fields)


class Word(str):
    """A text of another type."""


class Named(str, Enum):  # noqa: UP042 - what this is about
    """Texts of which an f-string makes their names."""

    A = "a"


class Plain(StrEnum):
    """Texts of which it does not."""

    A = "a"


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        True,
        1.0,
        "a",
        "\ud800",
        Word("a"),
        Named.A,
        Plain.A,
        b"a",
        bytearray(b"a"),
        memoryview(b"a"),
        ("a",),
        ["a"],
        [1],
        (1,),
        (None,),
    ],
)
@pytest.mark.parametrize("field", FIELDS)
def test_a_long_list_takes_the_types_that_a_short_one_takes(field: str, value: object) -> None:
    few, many = (by_rows({"topic": "t", "body": b"x", field: value}, rows) for rows in (FEW, MANY))
    assert (type(few), str(few)) == (type(many), str(many))


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1},
        {1: "a"},
        {"a": None},
        {Word("a"): "b"},
        {Named.A: "b"},
        {"a": Named.A},
        {"a": Plain.A},
        MappingProxyType({"a": "b"}),
        OrderedDict(a="b"),
        {},
    ],
)
def test_a_long_list_takes_the_properties_that_a_short_one_takes(value: object) -> None:
    few, many = (by_rows({"topic": "t", "body": b"x", "properties": value}, rows) for rows in (FEW, MANY))
    assert (type(few), str(few)) == (type(many), str(many))


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("field", ["topic", "tag", "keys", "message_group", "message_id", "properties"])
def test_a_text_that_is_written_as_another_one_is_refused(field: str, rows: int) -> None:
    values = {"keys": [lambda text: ("b", text)], "properties": [lambda text: {text: "b"}, lambda text: {"b": text}]}
    for made in values.get(field, [lambda text: text]):
        error = by_rows({"topic": "t", "body": b"x", field: made(Named.A)}, rows)
        assert isinstance(error, IllegalArgumentError)
        assert isinstance(error, TypeError)
        assert "must be a str, not Named; give its .value" in str(error)
        assert by_rows({"topic": "t", "body": b"x", field: made(Plain.A)}, rows) is None


def test_a_long_list_of_something_else_is_refused_as_a_short_one_is() -> None:
    for other in ({"topic": "t"}, None, "t"):
        with pytest.raises(IllegalArgumentError, match=f"row 199: expected a Message, not {type(other).__name__}"):
            MessageBatch.of([*[Message("t", b"x")] * 199, other])  # type: ignore[list-item]


BIG: dict[str, Any] = {
    "one property": lambda size: {"properties": {"p": "v" * size}},
    "an unusual property": lambda size: {"properties": {"é": "€" * (size // 3) + "v" * (size % 3)}},
    "many properties": lambda size: {"properties": {**{f"p{n}": "v" * 100 for n in range(20)}, "p": "v" * size}},
    "one key": lambda size: {"keys": ("k" * size,)},
    "many keys": lambda size: {"keys": (*["k" * 50] * 40, "k" * size)},
    "a tag": lambda size: {"tag": "t" * size},
    "a tag and a given id": lambda size: {"tag": "t" * size, "message_id": "i"},
    "a property and a long id": lambda size: {"properties": {"p": "v" * size}, "message_id": "i" * 255},
    "a property and a group": lambda size: {"properties": {"p": "v" * size}, "message_group": "g" * 255},
    "a property and a long topic": lambda size: {"properties": {"p": "v" * size}, "topic": "t" * 127},
    "all of them": lambda size: {
        "properties": {"p": "v" * size},
        "keys": ("a", "b"),
        "tag": "t",
        "message_id": "é" * 9,
        "message_group": "g",
    },
}


def _largest(legal: Any) -> int:
    """Return the largest size that is legal, by bisection; nothing above a legal size is assumed legal."""
    low, high = 1, MAX_PROPERTIES_BYTES + 1
    assert legal(low)
    assert not legal(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if legal(middle) else (low, middle)
    return low


@pytest.mark.parametrize("kind", BIG)
def test_both_paths_draw_the_line_at_the_same_byte(kind: str) -> None:
    def fields(size: int) -> dict[str, Any]:
        return {"topic": "t", "body": b"x", **BIG[kind](size)}

    rows = _largest(lambda size: by_rows(fields(size)) is None)
    columns = _largest(lambda size: by_columns(fields(size)) is None)
    assert rows == columns, f"{kind}: the row path takes up to {rows} bytes, the column path {columns}"


# ---------------------------------------------------------------- columns that are wrong as such

STRINGS = pa.map_(pa.string(), pa.string())


def _text_of(data: bytes) -> pa.Array:
    return pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0" + len(data).to_bytes(4, "little")), pa.py_buffer(data))


BAD_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "topic: null": ({"topic": pa.array([None], pa.string())}, "topic"),
    "body: null": ({"body": pa.array([None], pa.binary())}, "body"),
    "body: text": ({"body": pa.array(["x"])}, "body"),
    "body: fixed size": ({"body": pa.array([b"x"], pa.binary(1))}, "body"),
    "topic: bytes": ({"topic": pa.array([b"t"])}, "topic"),
    "topic: dictionary": ({"topic": pa.array(["t"]).dictionary_encode()}, "topic"),
    "topic: not UTF-8": ({"topic": _text_of(b"\xff")}, "topic"),
    "tag: not UTF-8": ({"tag": _text_of(b"\xff")}, "tag"),
    "message_id: not UTF-8": ({"message_id": _text_of(b"\xed\xa0\x80")}, "message_id"),
    "message_group: int": ({"message_group": pa.array([1])}, "message_group"),
    "keys: text": ({"keys": pa.array(["k"])}, "keys"),
    "keys: ints": ({"keys": pa.array([[1]])}, "keys"),
    "keys: a null inside": ({"keys": pa.array([["a", None]])}, "keys"),
    "keys: not UTF-8": ({"keys": pa.ListArray.from_arrays([0, 1], _text_of(b"\xff"))}, "keys"),
    "properties: a struct": ({"properties": pa.array([{"a": "b"}])}, "properties"),
    "properties: ints": ({"properties": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, "properties"),
    "properties: a null value": ({"properties": pa.array([[("a", None)]], STRINGS)}, "properties"),
    "properties: one of the system": ({"properties": pa.array([[("a", "1"), ("__CRC32#", "2")]], STRINGS)}, "__CRC32#"),
    "properties: one of an engine": ({"properties": pa.array([[("RMQS_X", "1")]], STRINGS)}, "RMQS_X"),
    "properties: one name twice": ({"properties": pa.array([[("a", "1"), ("a", "2")]], STRINGS)}, "property 'a'"),
    "deliver_at_ms: int32": ({"deliver_at_ms": pa.array([1], pa.int32())}, "deliver_at_ms"),
    "deliver_at_ms: timestamp": ({"deliver_at_ms": pa.array([1], pa.timestamp("ms"))}, "deliver_at_ms"),
    "deliver_at_ms: float": ({"deliver_at_ms": pa.array([1.0])}, "deliver_at_ms"),
    "deliver_at_ms: uint64": ({"deliver_at_ms": pa.array([2**63], pa.uint64())}, "deliver_at_ms"),
    "born_ms: text": ({"born_ms": pa.array(["1"])}, "born_ms"),
    "queue_id: int64": ({"queue_id": pa.array([1], pa.int64())}, "queue_id"),
    "unknown": ({"colour": pa.array(["red"])}, "colour"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_a_wrong_column_is_named(case: str) -> None:
    columns, culprit = BAD_COLUMNS[case]
    table = pa.table({"topic": pa.array(["t"]), "body": pa.array([b"x"]), **columns})
    for data in (table, *table.to_batches()):
        with pytest.raises(IllegalArgumentError, match=culprit):
            MessageBatch.from_arrow(data)


def test_keys_below_a_null_are_none_of_a_message() -> None:
    keys = pa.ListArray.from_arrays([0, 1, 2, 4], pa.array(["a", "b", "c", "d"]), mask=pa.array([True, False, False]))
    for column in (keys, keys.cast(pa.large_list(pa.string()))):
        table = pa.table({"topic": ["t"] * 3, "body": [b"x"] * 3, "keys": column})
        assert [each.keys for each in MessageBatch.from_arrow(table).messages] == [(), ("b",), ("c", "d")]
        taken = MessageBatch.from_arrow(table.slice(0, 2)).columns.column("keys")
        assert (taken.type, taken.flatten().to_pylist(), taken.offsets.to_pylist()) == (pa.list_(pa.string()), ["b"], [0, 0, 1])


PROPERTY_ROWS = [("a", "1"), ("b", "2")]
AT_FAULT: dict[str, tuple[dict[str, Any], str]] = {
    "a blank": ({"keys": [["é", "good"], ["b", "al so", "bad\t"]]}, "'al so'"),
    "an empty text before a tab": ({"keys": [["a"], ["", "bad\t"]]}, "a key is empty"),
    "an empty text at the end": ({"keys": [["a"], ["b", ""]]}, "row 1: a key is empty"),
    "a separator": ({"properties": [PROPERTY_ROWS, [("a", "1"), ("b", "x\x02y")]]}, "row 1: property 'b' holds U.0001"),
    "a name twice": ({"properties": [PROPERTY_ROWS, [*PROPERTY_ROWS, ("b", "3")]]}, "row 1: property 'b' stands there twice"),
}


@pytest.mark.parametrize("case", AT_FAULT)
def test_the_first_text_at_fault_is_shown(case: str) -> None:
    columns, shown = AT_FAULT[case]
    arrays = {name: pa.array(values, IN_SCHEMA.field(name).type) for name, values in columns.items()}
    table = pa.table({"topic": ["t", "t"], "body": [b"x", b"y"], **arrays})
    with pytest.raises(IllegalArgumentError, match=shown):
        MessageBatch.from_arrow(table)


@pytest.mark.parametrize("missing", ["topic", "body"])
def test_a_missing_column_is_named(missing: str) -> None:
    table = pa.table({"topic": pa.array(["t"]), "body": pa.array([b"x"]), "tag": pa.array(["a"])}).drop_columns([missing])
    with pytest.raises(IllegalArgumentError, match=missing):
        MessageBatch.from_arrow(table)


def test_a_column_given_twice_is_named() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["t"]), pa.array([b"x"]), pa.array([b"y"])], names=["topic", "body", "body"])
    with pytest.raises(IllegalArgumentError, match="body"):
        MessageBatch.from_arrow(batch)


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"topic": st.sampled_from("tu"), "body": st.sampled_from([b"x", b"yy"])},
            optional={
                "tag": st.sampled_from([None, "é"]),
                "keys": st.sampled_from([(), ("a",), ("b", "c")]),
                "properties": st.sampled_from([{}, {"p": "q"}, {"p": "ä", "r": "s"}]),
                "message_id": st.none() | st.just("id"),
                "deliver_at_ms": st.none() | st.integers(0, 5),
            },
        ),
        min_size=1,
        max_size=8,
    ),
    cut=st.tuples(st.integers(0, 7), st.integers(0, 8)),
    large=st.booleans(),
)
def test_columns_and_rows_are_the_same_messages(rows: list[dict[str, Any]], cut: tuple[int, int], large: bool) -> None:
    """Slices, chunks and the large and view types of Arrow come in as the rows that they hold."""
    messages = [Message(**row) for row in rows]
    columns = MessageBatch.of(messages).columns
    if large:
        wide = {"topic": pa.large_string(), "body": pa.large_binary(), "tag": pa.large_string(), "keys": pa.large_list(pa.large_string())}
        columns = columns.cast(pa.schema([field.with_type(wide.get(field.name, field.type)) for field in columns.schema]))
    start, length = cut[0] % len(rows), cut[1]
    sliced = columns.slice(start, length)
    assert list(MessageBatch.from_arrow(sliced).messages) == messages[start : start + length]
    chunked = pa.Table.from_batches([columns.slice(0, start), sliced, columns.slice(start + length)])
    assert list(MessageBatch.from_arrow(chunked).messages) == messages
