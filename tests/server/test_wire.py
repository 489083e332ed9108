"""Values and frames on the wire: what goes in comes out, of the same type."""

from __future__ import annotations

import enum
import tracemalloc
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import rmqstore
from rmqstore import Message, MessageBatch, PoppedMessage, Store, errors
from rmqstore.contract import AckOutcome, InitMode, Receipt, TimerHandle, TimerReceipts, WriteStatus
from rmqstore.server import wire
from rmqstore.server.calls import CALLS, LONG, PARTS, POPS, QUICK, REPEATABLE, Passing
from rmqstore.server.clients import ROW_BYTES, Limits
from rmqstore.server.remote import RemoteStore
from rmqstore.server.sharing import SharedStore
from rmqstore.server.wire import HEAD, frame, unpack
from rmqstore.store.receipts import PoppedMessages
from rmqstore.store.sending import CallName, SendReceipt, SendReceipts
from tests.server.served import Served


def pack(value: object) -> bytes:
    """Return a value as it travels, without the head of its frame."""
    return bytes(frame(value))[HEAD.size :]


_texts = st.text(max_size=20)
_plain = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | _texts | st.binary(max_size=20)
_times = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])) | st.datetimes()
_messages = st.builds(
    Message,
    topic=_texts,
    body=st.binary(max_size=20),
    tag=st.none() | _texts,
    keys=st.lists(_texts, max_size=3).map(tuple),
    properties=st.dictionaries(_texts, _texts, max_size=3),
    deliver_at_ms=st.none() | st.integers(0, 2**62),
)
_receipts = st.builds(
    Receipt,
    topic=_texts,
    group=_texts,
    broker=_texts,
    **{name: st.integers(0, 2**62) for name in "queue_id queue_offset ck_start_offset pop_time_ms invisible_ms retry_flag epoch".split()},
)
_values = st.recursive(
    _plain | _times | st.timedeltas() | _messages | _receipts | st.sampled_from([*AckOutcome, *InitMode]),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=300)
@given(_values)
def test_a_value_comes_out_as_it_went_in(value: object) -> None:
    came = unpack(pack(value))
    assert came == value
    assert type(came) is type(value)


@given(st.text(st.characters(categories=["Cs", "L"]), max_size=10))
def test_a_text_that_is_no_unicode_comes_out_too(text: str) -> None:
    assert unpack(pack([text, Message(text, b"x")])) == [text, Message(text, b"x")]


@given(st.binary(max_size=200))
def test_what_is_no_value_is_refused(data: bytes) -> None:
    try:
        unpack(data)
    except errors.IllegalArgumentError:
        pass


@settings(max_examples=300)
@given(_values, st.data())
def test_a_damaged_frame_is_a_value_or_is_refused(value: object, data: st.DataObject) -> None:
    whole = bytearray(pack(value))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        unpack(bytes(whole))
    except errors.IllegalArgumentError:
        pass


def test_a_duration_that_no_timedelta_has_is_refused() -> None:
    longest = pack(timedelta.max)
    too_long = longest.replace(b"\xce\x3b\x9a\xc9\xff", b"\xce\x3b\x9a\xca\x00")  # 999,999,999 days, and one more
    assert too_long != longest
    with pytest.raises(errors.IllegalArgumentError, match="no value"):
        unpack(too_long)


@given(_values | st.sampled_from([MessageBatch.of([Message("t", b"x")] * 3), CallName((b"x",)), ValueError("x"), 1 << 70, "\ud800"]))
def test_a_value_is_weighed_to_its_end(value: object) -> None:
    """What comes behind it counts as what came before."""
    with patch.object(wire, "_STEPS", 1 << 40):
        none, alone, twice = (wire.decoded_bytes(pack([value] * times), 1 << 40) for times in range(3))
    assert twice - alone == alone - none > 0


@pytest.mark.parametrize(
    "value", [{}, [], {0: 0}, "xy", 1000, -30, 0.5, (), timedelta(1), TimerHandle(1, 2, 3, 4), Message("t", b"x"), int]
)
@pytest.mark.parametrize("most_bytes", [1 << 20, 1 << 40])
def test_values_take_no_more_than_they_are_weighed(value: object, most_bytes: int) -> None:
    """Also where they are not looked at one by one, when that cannot be ten times too little."""
    data = pack([value] * 5000)
    tracemalloc.start()
    there = unpack(data)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(there) == 5000
    found = wire.decoded_bytes(data, most_bytes)
    assert found > most_bytes or found * 3 > taken


def test_batches_as_large_as_a_server_takes_are_not_refused() -> None:
    limits = Limits()
    message = Message(
        "orders", b"x" * 50, tag="red", keys=("order-42",), properties={"colour": "green"}, message_id="x" * 32, born_ms=1 << 40
    )
    data = pack([1, "send_batch", [[message] * 1000], {}])
    assert wire.decoded_bytes(data, 1 << 40) * limits.frame_bytes // ROW_BYTES // 1000 < 2 * limits.frame_bytes


def test_the_head_is_the_length() -> None:
    data = frame([1, "x"])
    assert wire.HEAD.unpack_from(data) == (len(data) - 4,)
    assert unpack(data[4:]) == [1, "x"]


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_comes_as_its_class_with_its_words(name: str) -> None:
    error = getattr(errors, name)("why it is so, and what to do")
    came = unpack(pack(error))
    assert type(came) is type(error)
    assert str(came) == str(error)


def test_errors_keep_what_they_know() -> None:
    came = unpack(pack(errors.IllegalFilterError("wrong", expression="a >", position=3)))
    assert (came.expression, came.position) == ("a >", 3)
    came = unpack(pack(errors.CorruptStoreError("torn", file="/x/y", offset=77)))
    assert (came.file, came.offset) == ("/x/y", 77)
    came = unpack(pack(errors.IllegalFilterError("wrong", expression="\ud800 =", position=1 << 70)))
    assert (came.expression, came.position) == ("\ud800 =", 1 << 70)
    error = errors.StoreFullError("no room")
    error.free_bytes = 5  # type: ignore[attr-defined]
    came = unpack(pack(error))
    assert (type(came), str(came), came.free_bytes) == (errors.StoreFullError, "no room", 5)


def test_an_error_of_another_kind_says_which_it_was() -> None:
    class OddError(Exception):
        pass

    assert str(unpack(pack(OddError("x")))) == "OddError: x"
    assert type(unpack(pack(OddError("x")))) is errors.RmqstoreError
    assert type(unpack(pack(TypeError("x")))) is TypeError


class _Odd:
    def __repr__(self) -> str:
        return "<odd>"


class _Unshowable:
    def __repr__(self) -> str:
        raise ValueError("no")


class _Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(("value", "name", "shown"), [(_Odd(), "_Odd", "<odd>"), (bytearray(b"x"), "bytearray", "bytearray(b'x')")])
def test_a_stranger_has_its_name_and_what_it_shows(value: object, name: str, shown: str) -> None:
    came = unpack(pack([value]))[0]
    assert (type(came).__name__, repr(came)) == (name, shown)


def test_strangers_that_are_hard_to_show() -> None:
    assert repr(unpack(pack(_Unshowable()))) == "<_Unshowable>"
    assert repr(unpack(pack(_Colour.RED))) == "<_Colour.RED: 1>"
    assert unpack(pack(Path("/a/b"))) == "/a/b"


class _Kind(enum.StrEnum):
    RED = "red"


class _Shade(str, enum.Enum):  # noqa: UP042 - what this is about
    RED = "red"


class _Written(str, enum.Enum):  # noqa: UP042 - what this is about
    RED = "red"

    def __str__(self) -> str:
        return self.value


@pytest.mark.parametrize("member", [_Kind.RED, _Written.RED])
def test_a_member_that_is_written_as_its_text_is_that_text(member: str) -> None:
    came = unpack(pack([member, {member: member}]))
    assert came == ["red", {"red": "red"}]
    assert type(came[0]) is str


def test_another_member_comes_as_one_of_an_enum() -> None:
    came = unpack(pack([_Shade.RED, _Colour.RED, _Colour.RED]))
    assert [type(each).__name__ for each in came] == ["_Shade", "_Colour", "_Colour"]
    assert [repr(each) for each in came] == ["<_Shade.RED: 'red'>", *["<_Colour.RED: 1>"] * 2]
    assert all(isinstance(each, enum.Enum) and not isinstance(each, str) for each in came)
    assert len({*came, "red"}) == 4


class _Order(Message):
    note: str = ""


class _PoppedOrder(PoppedMessage):
    note: str = ""


def test_a_message_of_a_derived_type_comes_as_a_message() -> None:
    assert unpack(pack(_Order("t", b"x", keys=("k",), note="n"))) == Message("t", b"x", keys=("k",))
    popped = {field.name: None for field in msgspec.structs.fields(PoppedMessage)}
    assert unpack(pack(_PoppedOrder(**popped, note="n"))) == PoppedMessage(**popped)


def test_arrow_data() -> None:
    batch = MessageBatch.of([Message("t", bytes([n]), keys=("k",)) for n in range(5)])
    came = unpack(pack(batch))
    assert isinstance(came, MessageBatch)
    assert came.columns.equals(batch.columns)
    assert unpack(pack(batch.columns)).to_pylist() == batch.columns.to_pylist()
    assert unpack(pack(pa.Table.from_batches([batch.columns]))).to_pylist() == batch.columns.to_pylist()
    assert len(unpack(pack(MessageBatch.of([])))) == 0


def test_arrow_data_whose_offsets_lead_elsewhere_is_refused() -> None:
    columns = MessageBatch.of([Message("t", bytes([n]) * 8) for n in range(5)]).columns
    at = columns.schema.get_field_index("body")
    offsets = pa.py_buffer(np.array([0, 8, 1 << 30, (1 << 30) + 8, 32, 40], np.int32))
    elsewhere = pa.Array.from_buffers(pa.binary(), 5, [None, offsets, columns.column(at).buffers()[2]])
    wrong = columns.set_column(at, columns.schema.field(at), elsewhere)
    for value in (wrong, MessageBatch(columns=wrong)):
        with pytest.raises(errors.IllegalArgumentError, match="no value"):
            unpack(pack(value))


def in_a_frame(data: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write(data)
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(wire._ARROW, sink.getvalue().to_pybytes()))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("body", [pa.array([b"x" * 50_000] * 2), pa.array([b"x" * 50_000] * 2).dictionary_encode()])
def test_compressed_arrow_data_is_refused(body: pa.Array, compression: str) -> None:
    """A frame of 33 KB held a gigabyte."""
    data = pa.table({"topic": ["t", "t"], "body": body})
    assert len(in_a_frame(data, compression)) < 5000
    with pytest.raises(errors.IllegalArgumentError, match="buffers compressed; send them as they are"):
        unpack(in_a_frame(data, compression))
    assert unpack(in_a_frame(data)).equals(data)


def views_of_one(count: int, nulls: int = 0, null_bytes: int = 0) -> pa.Array:
    views = np.zeros((count + nulls, 4), np.int32)
    views[:count, 0], views[:count, 1] = 1 << 20, int.from_bytes(b"xxxx", "little")
    views[count:, 0] = null_bytes
    valid = pa.array([True] * count + [False] * nulls).buffers()[1] if nulls else None
    return pa.Array.from_buffers(pa.binary_view(), count + nulls, [valid, pa.py_buffer(views), pa.py_buffer(b"x" * (1 << 20))])


@pytest.mark.parametrize(
    "wide",
    [
        {"topic": ["t"] * 300, "body": views_of_one(300)},
        {"topic": ["t"] * 301, "body": views_of_one(300, 1, -(1 << 31))},
        {"topic": pa.nulls(1 << 27), "body": pa.nulls(1 << 27)},
        {"topic": ["t"], "body": [b"x"], "keys": pa.ListArray.from_arrays(pa.array([0, 1 << 27], pa.int32()), pa.nulls(1 << 27))},
        {"topic": ["t"], "properties": pa.MapArray.from_arrays(pa.array([0, 300], pa.int32()), pa.array(["p"] * 300), views_of_one(300))},
    ],
)
def test_arrow_data_that_stands_for_more_than_a_frame_is_refused(wide: dict[str, Any]) -> None:
    with pytest.raises(errors.IllegalArgumentError, match=r"stand for \d+ bytes, and one call takes 268435456; send less"):
        unpack(in_a_frame(pa.table(wide)))


def test_views_and_nulls_come_in() -> None:
    data = pa.table(
        {
            "topic": pa.array(["t"] * 3, pa.string_view()),
            "body": views_of_one(3),
            "tag": pa.nulls(3),
            "keys": pa.array([["a"], [], None], pa.list_(pa.string_view())),
            "properties": pa.array([{"a": "b"}, {}, None], pa.map_(pa.string(), pa.string())),
        }
    )
    came = unpack(in_a_frame(data))
    assert came.equals(data)
    assert len(MessageBatch.from_arrow(came)) == 3
    assert unpack(in_a_frame(data.slice(0, 0))).num_rows == 0


def test_what_the_view_of_a_null_says_is_not_counted() -> None:
    data = pa.table({"topic": ["t"] * 4, "body": views_of_one(3, 1, (1 << 31) - 1)})
    assert unpack(in_a_frame(data)).equals(data)


def test_receipts_of_sends() -> None:
    timers = TimerReceipts(WriteStatus.REPEATED, 7, 2, 40, [1000, 2000])
    one = unpack(pack(SendReceipt("id", True, timers, 1)))
    assert (one.message_id, one.repeated, one.timer) == ("id", True, TimerHandle(7, 2, 41, 2000))
    assert unpack(pack(SendReceipt("id"))) == SendReceipt("id")
    many = unpack(pack(SendReceipts(["a", "b"], timers, True)))
    assert [(each.message_id, each.timer) for each in many] == [("a", TimerHandle(7, 2, 40, 1000)), ("b", TimerHandle(7, 2, 41, 2000))]
    assert many.repeated
    for ticks in (range(5, 7), np.arange(5, 7, dtype=np.int32)):  # of an engine of somebody's own
        of_others = unpack(pack(SendReceipts(["a", "b"], TimerReceipts(WriteStatus.APPLIED, 1, 2, 3, ticks), False)))  # type: ignore[arg-type]
        assert of_others.timers.ticks.tolist() == [5, 6]
    now = unpack(pack(SendReceipts(pa.array(["a"]), None, False)))
    assert (now[0].message_id, now[0].timer, len(now)) == ("a", None, 1)
    assert len(unpack(pack(SendReceipts((), None, False)))) == 0


def test_names_and_popped_messages() -> None:
    name = unpack(pack(CallName((b"x",))))
    assert type(name) is CallName
    assert tuple(name) == (b"x",)
    popped = PoppedMessages()
    popped.acks = [AckOutcome.ACKED]
    came = unpack(pack(popped))
    assert (list(came), came.acks) == ([], [AckOutcome.ACKED])


def test_every_struct_that_a_call_gives_is_known() -> None:
    """A struct of the public face that the wire does not know would come as a stranger."""
    public = {each for each in vars(rmqstore).values() if isinstance(each, type)}
    structs = {each for each in public if issubclass(each, msgspec.Struct)} - {SendReceipt}
    enums = {each for each in public if issubclass(each, enum.Enum)}
    assert structs <= {*wire._STRUCTS}
    assert enums <= {*wire._ENUMS}


def test_every_public_call_of_a_store_is_one_of_the_wire() -> None:
    public = {name for name in dir(rmqstore.Store) if not name.startswith("_")} - {"close", "consume", "engine", "path"}
    assert public - PARTS.keys() == set(CALLS)
    assert set(CALLS) <= set(vars(Passing))
    assert issubclass(RemoteStore, Passing)
    assert issubclass(SharedStore, Passing)
    with_store: Any = object.__new__(RemoteStore)
    for part in PARTS:
        calls = {name for name in dir(getattr(with_store, part)) if not name.startswith("_")}
        assert {f"{part}.{name}" for name in calls} <= QUICK | LONG
    assert REPEATABLE <= QUICK | LONG | POPS


def test_texts_and_messages_of_derived_types_go_in(client: Store) -> None:
    client.send(Message(_Kind.RED, b"1", tag=_Kind.RED, keys=(_Kind.RED,), properties={"kind": _Kind.RED}))
    client.send(_Order("red", b"2", note="not stored"))
    first, second = client.pop(_Kind.RED, "g")
    assert (first.tag, first.keys, first.properties, second.body) == ("red", ("red",), {"kind": "red"}, b"2")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.send(Message(_Shade.RED, b"x")),
        lambda store: store.lag(_Shade.RED, "g"),
        lambda store: store.send(Message("t", b"x", properties={_Shade.RED: "x"})),
        lambda store: store.send(Message("t", b"x", properties={("a", 1): "x"})),  # type: ignore[dict-item]
        lambda store: store.pop("t", "g", filter="a = '\ud800"),
        lambda store: store.snapshot(5),
        lambda store: store.transfer.dump(5),
    ],
)
def test_a_wrong_argument_is_refused_in_the_same_words(served: Served, call: Callable[[rmqstore.Store], object]) -> None:
    with pytest.raises(errors.IllegalArgumentError) as here:
        call(served.store)
    with pytest.raises(errors.IllegalArgumentError) as there:
        call(served.connect())
    assert type(there.value) is type(here.value)
    assert str(there.value) == str(here.value)
    assert vars(there.value) == vars(here.value)
