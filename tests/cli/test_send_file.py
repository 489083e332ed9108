"""``rmqstore send --from-file``: what is read from every format, rows at fault, marks, and what a second run of the same command does."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from rmqstore import Message
from rmqstore.batch import MessageBatch, columns_of
from rmqstore.cli import rows, send
from rmqstore.cli.rows import Batch, Format, Shape, reader_of
from rmqstore.errors import IllegalMessageError, StoreFullError
from rmqstore.message import SYSTEM_PROPERTIES, PoppedMessage
from rmqstore.schemas import IN_SCHEMA
from rmqstore_conformance.stores import START_MS
from tests.cli.conftest import ENGINE, Command

LATER_MS = START_MS + 3_600_000
MAKE = ("--create", "--engine", ENGINE)


def stored(cli: Command, topic: str = "orders") -> list[PoppedMessage]:
    """Return all messages of a topic, those of timers included, in order."""
    cli.clock.set(LATER_MS + 1000)
    with cli.owner() as store:
        store.tick()
        found = []
        while popped := store.pop(topic, "reader", max_messages=1024):
            found += popped
        return found


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def parquet(**columns: Any) -> bytes:
    return written(pa.table(columns))


def many(count: int) -> list[dict[str, Any]]:
    return [{"body": f"b{number}", "message_id": f"m{number}"} for number in range(count)]


def test_jsonl_with_messages_that_the_store_takes_in_calls_of_their_own(cli: Command) -> None:
    rows = [{"body": "ü", "message_group": "g"}, {"body_base64": "AP8=", "keys": "3 4", "deliver_at_ms": LATER_MS}]
    command = ("send", "data", "orders", "--from-file", cli.file("rows.jsonl", "\n" + jsonl(rows)), *MAKE)
    assert cli.good(*command).out == "2 messages stored in 1 batch\n"
    assert "2 rows were stored before" in cli.good(*command).err
    first, later = sorted(stored(cli), key=lambda message: message.keys)
    assert (first.body, first.message_group, first.keys) == ("ü".encode(), "g", ())
    assert (later.body, later.message_group, later.keys, later.store_ms >= LATER_MS) == (b"\x00\xff", None, ("3", "4"), True)


def test_csv_with_quoted_lines_empty_cells_and_properties(cli: Command) -> None:
    content = 'body,keys,properties.region,deliver_at,tag\n"a ""b""\nc",1 2,eu,,new\n\nlater,,,2023-11-14T23:13:20Z,\n'
    path = cli.file("rows.csv", "\ufeff" + content)
    cli.good("send", "data", "orders", "-f", path, *MAKE)
    with cli.owner() as store:
        assert sorted(timer.deliver_at_ms for timer in store.scan().timers) == [START_MS, LATER_MS]
    first, later = stored(cli)
    assert (first.body, first.keys, first.tag, dict(first.properties)) == (b'a "b"\nc', ("1", "2"), "new", {"region": "eu"})
    assert (later.body, later.keys, later.tag, dict(later.properties)) == (b"later", (), None, {})


def test_only_the_times_that_other_commands_print_are_passed_over(cli: Command) -> None:
    row = {"body": "a", "properties": {"valid_until_iso": "2026-01-01"}, "born_iso": "1970-01-01T00:00:00Z", "first_pop_iso": None}
    other = {"body": "b", "properties.valid_until_iso": "2026-01-02"}
    cli.good("send", "data", "orders", "-f", cli.file("a.jsonl", jsonl([row, other])), *MAKE)
    cli.good("send", "data", "orders", "-f", cli.file("a.csv", "body,properties.valid_until_iso,store_iso\nc,2026-01-03,1970-01-01\n"))
    assert [dict(message.properties) for message in stored(cli)] == [{"valid_until_iso": f"2026-01-0{day}"} for day in (1, 2, 3)]
    for path in (cli.file("b.jsonl", jsonl([{"body": "a", "valid_until_iso": "x"}])), cli.file("b.csv", "body,valid_until_iso\na,x\n")):
        assert "line 1, column 'valid_until_iso': the column is unknown" in cli.bad(1, "send", "data", "orders", "-f", path)


def test_parquet_with_two_columns_of_one_name_is_refused(cli: Command) -> None:
    path = cli.file("rows.parquet", written(pa.table([["a"], ["b"]], names=["body", "body"])))
    said = cli.bad(1, "send", "data", "orders", "-f", path, "--create")
    assert "there is more than one column 'body'; leave one" in said


def test_parquet_with_text_or_binary_bodies(cli: Command) -> None:
    path = cli.file("rows.parquet", parquet(body=["a", "b"], topic=[None, "other"], keys=[["1"], None]))
    cli.good("send", "data", "orders", "-f", path, *MAKE)
    cli.good("send", "data", "-f", cli.file("b.parquet", parquet(body=[b"\xff"], topic=["orders"])))
    assert [(message.body, message.keys) for message in stored(cli)] == [(b"a", ("1",)), (b"\xff", ())]
    assert [message.body for message in stored(cli, "other")] == [b"b"]


def test_what_pop_and_peek_print_can_be_sent_again(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQSTORE_RECLAIM", "age")
    cli.send("--tag", "new", "--key", "1", "--property", "region=eu")
    cli.good("send", "data", "orders", stdin=b"\x00\xff")
    cli.send("--delay", "30m")
    timers = cli.good("timers", "data", "--list", "--json").json["timers"]
    printed = cli.good("pop", "data", "orders", "-g", "g", "--max", "9", "--json").out
    peeked = cli.good("peek", "data", "orders", "--json").json["messages"]
    for number, text in enumerate((printed, jsonl(peeked), jsonl(timers))):
        cli.good("send", "data", "--from-file", cli.file(f"{number}.jsonl", text))
    bodies = [(message.body, message.tag, message.keys) for message in stored(cli)]
    assert bodies.count((b"body", "new", ("1",))) == 3
    assert bodies.count((b"\x00\xff", None, ())) == 3
    assert bodies.count((b"body", None, ())) == 2


def test_a_delay_holds_for_rows_that_have_no_time(cli: Command) -> None:
    path = cli.file("rows.jsonl", jsonl([{"body": "a"}, {"body": "b", "deliver_at_ms": START_MS + 1000}]))
    cli.good("send", "data", "orders", "-f", path, "--delay", "1h", *MAKE)
    with cli.owner() as store:
        assert [timer.deliver_at_ms for timer in store.scan().timers] == [START_MS + 1000, LATER_MS]


# ---------------------------------------------------------------- the same command again


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("delay", [(), ("--delay", "10m")])
def test_the_same_command_again_stores_nothing(cli: Command, suffix: str, delay: tuple[str, ...]) -> None:
    content = {
        "jsonl": jsonl(many(2500)),
        "csv": "body\n" + "".join(f"b{number}\n" for number in range(2500)),
        "parquet": parquet(body=[f"b{number}" for number in range(2500)]),
    }[suffix]
    path = cli.file(f"rows.{suffix}", content)
    command = ("send", "data", "orders", "-f", path, "--batch", "1000", *delay, *MAKE)
    assert cli.good(*command).out == "2,500 messages stored in 3 batches\n"
    cli.clock.advance(5000)
    again = cli.good(*command)
    assert again.out == "0 messages stored in 3 batches\n"
    assert "2,500 rows were stored before by the same command, and not again; --run NAME" in again.err
    assert len(stored(cli)) == 2500
    assert cli.good(*command, "--run", "2", "--json").json["stored"] == 2500


def test_another_file_of_the_same_content_is_another_run(cli: Command) -> None:
    for name in "ab":
        cli.good("send", "data", "orders", "-f", cli.file(f"{name}.jsonl", jsonl(many(2))), *MAKE)
    assert len(stored(cli)) == 4


def test_a_run_that_was_cut_short_goes_on(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cli.file("rows.jsonl", jsonl(many(3000)))
    command = ("send", "data", "orders", "-f", path, "--batch", "1000", *MAKE)
    calls = []
    send_batch = send._send_batch

    def failing(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise StoreFullError("no room")
        send_batch(*arguments)

    monkeypatch.setattr(send, "_send_batch", failing)
    said = cli.bad(1, *command)
    assert said == "rmqstore: no room; the first 1,000 rows are stored; run the same command again to go on, it stores nothing twice"
    monkeypatch.undo()
    monkeypatch.setattr("rmqstore.cli.stores.clock_factory", lambda: cli.clock)
    assert cli.good(*command, "--json").json == {"rows": 3000, "stored": 2000, "stored_before": 1000, "batches": 3}
    assert [message.message_id for message in stored(cli)] == [f"m{number}" for number in range(3000)]


def test_a_corrected_or_longer_file_keeps_what_is_stored(cli: Command) -> None:
    lines = many(2500)
    path = cli.file("rows.jsonl", jsonl([*lines[:2400], {"body": "x", "tag": "a b"}, *lines[2401:]]))
    command = ("send", "data", "orders", "-f", path, "--batch", "1000", *MAKE)
    said = cli.bad(1, *command)
    assert f"{path}, line 2401: tag 'a b' holds a blank" in said
    assert "the first 2,000 rows are stored; run the same command again" in said
    cli.file("rows.jsonl", jsonl(lines))
    assert cli.good(*command, "--json").json == {"rows": 2500, "stored": 500, "stored_before": 2000, "batches": 3}
    assert [message.message_id for message in stored(cli)] == [f"m{number}" for number in range(2500)]


def test_a_file_that_grew_behind_its_end_has_its_last_batch_stored_again(cli: Command) -> None:
    path = cli.file("rows.jsonl", jsonl(many(2500)))
    command = ("send", "data", "orders", "-f", path, "--batch", "1000", *MAKE)
    cli.good(*command)
    cli.file("rows.jsonl", jsonl(many(2600)))
    assert cli.good(*command, "--json").json == {"rows": 2600, "stored": 600, "stored_before": 2000, "batches": 3}
    # One that ended with a whole batch has nothing stored twice.
    whole = ("send", "data", "others", "-f", cli.file("whole.jsonl", jsonl(many(2000))), "--batch", "1000")
    cli.good(*whole)
    cli.file("whole.jsonl", jsonl(many(2600)))
    assert cli.good(*whole, "--json").json == {"rows": 2600, "stored": 600, "stored_before": 2000, "batches": 3}


def test_a_batch_ends_when_its_bodies_are_large(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BATCH_BYTES", 1000)
    large = [{"body": "x" * 600} for _ in range(5)]
    assert "in 3 batches" in cli.good("send", "data", "orders", "-f", cli.file("a.jsonl", jsonl(large)), *MAKE).out
    path = cli.file("a.parquet", parquet(body=["x" * 600] * 5))
    assert "5 messages stored in " in cli.good("send", "data", "orders", "-f", path).out
    assert "0 messages stored in " in cli.good("send", "data", "orders", "-f", path).out
    assert len(stored(cli)) == 10


# ---------------------------------------------------------------- rows at fault

GOOD = '{"body": "x"}\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"body": "x"', "line 2: this is no JSON"),
        ("[1]", "line 2: a line holds one JSON object"),
        ("{}", "line 2, column 'body': the row has no body"),
        ('{"body": 5}', "line 2, column 'body': this must be a text, not 5"),
        ('{"body": ""}', "line 2: body has 0 bytes"),
        ('{"body": "x", "body_base64": "eA=="}', "line 2, column 'body_base64': the row has a body too"),
        ('{"body_base64": "eA==", "body": "x"}', "line 2, column 'body': the row has a body_base64 too"),
        ('{"body_base64": "%"}', "line 2, column 'body_base64': this is no base64"),
        ('{"body": "x", "tga": "y"}', "line 2, column 'tga': the column is unknown; did you mean tag?"),
        ('{"body": "x", "zzzz": "y"}', "line 2, column 'zzzz': the column is unknown; there are topic, body"),
        ('{"body": "x", "topic": "a b"}', "line 2: topic name 'a b' is not made of"),
        ('{"body": "x", "topic": "%DLQ%g"}', "line 2: topic '%DLQ%g' starts with a reserved prefix"),
        ('{"body": "x", "keys": 5}', "line 2, column 'keys': keys are a list of texts"),
        ('{"body": "x", "keys": ["a b"]}', "line 2: a key 'a b' holds a blank"),
        ('{"body": "x", "properties": "y"}', "line 2, column 'properties': properties are an object of texts"),
        ('{"body": "x", "properties": {"a": 1}}', "line 2, column 'properties': this must be a text, not 1"),
        ('{"body": "x", "properties": {"KEYS": "1"}}', "line 2: property 'KEYS' belongs to the system"),
        ('{"body": "x", "deliver_at_ms": "soon"}', "line 2, column 'deliver_at_ms': 'soon' is no whole number"),
        ('{"body": "x", "deliver_at_ms": -1}', "line 2: deliver_at_ms must be 0"),
        ('{"body": "x", "deliver_at_ms": 1.5}', "line 2, column 'deliver_at_ms': 1.5 is no whole number"),
        ('{"body": "x", "deliver_at": "soon"}', "line 2, column 'deliver_at': 'soon' is no time"),
        ('{"body": "x", "queue_id": true}', "line 2, column 'queue_id': True is no whole number"),
        ('{"body": "x", "message_group": "g", "deliver_at_ms": 1}', "line 2: message_group and a deliver time"),
        ('{"body": "x", "deliver_at_ms": 99999999999999999999}', "line 2: deliver_at_ms must be 0"),
        ('{"body": "x", "queue_id": 5000000000}', "line 2: queue_id must be 0"),
        ('{"body": "x", "properties": {"\\u0001": "1"}}', "line 2: property '\\x01' holds U+0001"),
        ('{"body": "x", "tag": "\\ud800"}', "line 2: this is no JSON, or text that is no Unicode"),
        ('{"body": "x", "deliver_at": "2030-01-01", "deliver_at_ms": 5}', "line 2, column 'deliver_at': deliver_at and deliver_at_ms say"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_batch_is_stored(cli: Command, line: str, said: str) -> None:
    cli.send("--id", "first")
    text = cli.bad(1, "send", "data", "orders", "-f", "-", stdin=f"{GOOD}{line}\n{GOOD}")
    assert text.startswith(f"rmqstore: stdin, {said}")
    assert text.endswith("; nothing was stored")
    assert [message.message_id for message in stored(cli)] == ["first"]


def test_a_row_needs_a_topic_from_somewhere(cli: Command) -> None:
    cli.send()
    assert "column 'topic': the row has no topic; give it here, or TOPIC" in cli.bad(1, "send", "data", "-f", "-", stdin=GOOD)


def test_lines_that_nobody_can_read(cli: Command) -> None:
    cli.send()
    for line, said in ((b'{"body": "\xff"}', "byte 11 is no UTF-8"), (b"[" * 100_000, "this is no JSON")):
        assert f"stdin, line 2: {said}" in cli.bad(1, "send", "data", "t", "-f", "-", stdin=GOOD.encode() + line + b"\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("body,colour\nx,red\n", "line 1, column 'colour': the column is unknown"),
        ("body,body\nx,y\n", "line 1, column 'body': it stands in the heading more than once"),
        ("body,tag\nx\n", "line 2: the row has 1 cells, the heading 2"),
        ('body,tag\n"x\ny",\nz,a b\n', "line 4: tag 'a b' holds a blank"),
        ('body\n"x"y\n', "line 2: this is no CSV"),
        ("body,queue_id\nx,one\n", "line 2, column 'queue_id': 'one' is no whole number"),
        ("tag\nx\n", "line 2, column 'body': the row has no body"),
    ],
)
def test_a_bad_csv_file(cli: Command, content: str, said: str) -> None:
    cli.send()
    path = cli.file("rows.csv", content)
    assert cli.bad(1, "send", "data", "orders", "-f", path).startswith(f"rmqstore: {path}, {said}")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": ["a", "b"], "tag": ["x", "y z"]}, ", row 2: tag 'y z' holds a blank"),
        ({"body": ["a", ""]}, ", row 2: body has 0 bytes"),
        ({"body": ["a", "b"], "topic": ["t", "a b"]}, ", row 2: topic name 'a b' is not made of"),
        ({"body": ["a", None]}, ", row 2: column 'body' has a null"),
        ({"body": ["a"], "tag": [1]}, ": column 'tag' must be string, not int64"),
        ({"body": ["a"], "colour": ["red"]}, ": column 'colour' is unknown"),
        ({"tag": ["a"]}, ": column 'body' is missing"),
    ],
)
def test_a_bad_parquet_file_is_refused_before_anything_is_stored(cli: Command, columns: dict[str, Any], said: str) -> None:
    cli.send("--id", "first")
    path = cli.file("rows.parquet", parquet(**columns))
    text = cli.bad(1, "send", "data", "orders", "-f", path)
    assert text.startswith(f"rmqstore: {path}{said}")
    assert text.endswith("nothing was stored")
    assert [message.message_id for message in stored(cli)] == ["first"]


def test_a_bad_row_late_in_a_parquet_file_has_its_number_in_the_file(cli: Command) -> None:
    path = cli.file("rows.parquet", parquet(body=["a"] * 2500, tag=[*["x"] * 2400, "y z", *["x"] * 99]))
    text = cli.bad(1, "send", "data", "orders", "-f", path, "--batch", "1000", *MAKE)
    assert ", row 2401: tag 'y z'" in text
    assert text.endswith("nothing was stored")


def test_files_that_say_another_kind_than_they_are(cli: Command) -> None:
    cli.send()
    cli.good("send", "data", "orders", "-f", cli.file("rows.txt", GOOD), "--format", "jsonl")
    assert "is no Parquet file" in cli.bad(1, "send", "data", "orders", "-f", cli.file("rows.parquet", GOOD))


def test_an_empty_file_stores_nothing(cli: Command) -> None:
    assert cli.good("send", "data", "orders", "-f", "-", *MAKE).out == "0 messages stored in 0 batches\n"


# ---------------------------------------------------------------- what is read, and the marks of batches


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


FORMATS: dict[Format, Callable[[list[Message]], bytes]] = {
    "jsonl": lambda messages: jsonl(list(map(row_of, messages))).encode(),
    "csv": csv_of,
    "parquet": lambda messages: written(pa.Table.from_batches([columns_of(messages)], IN_SCHEMA)),
}


def read(content: bytes, kind: Format, shape: Shape = SHAPE) -> list[Batch]:
    return list(reader_of(None, io.BytesIO(content), kind, shape).batches)


def messages_of(batches: list[Batch]) -> list[Message]:
    return [each for batch in batches for each in MessageBatch(columns=batch.rows).messages if isinstance(each, Message)]


@given(st.lists(MESSAGES, max_size=5))
@settings(max_examples=150, deadline=None)
def test_every_format_is_read_back_the_same(messages: list[Message]) -> None:
    for kind, write in FORMATS.items():
        assert messages_of(read(write(messages), kind)) == messages


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


@pytest.mark.parametrize("kind", FORMATS)
def test_another_run_has_other_marks(kind: Format) -> None:
    content = FORMATS[kind]([Message("t", b"x")])
    assert read(content, kind)[0].mark == read(content, kind)[0].mark
    assert read(content, kind)[0].mark != read(content, kind, SHAPE._replace(run="other"))[0].mark


_NEARLY = st.text('{}[]",:\n\r bodytagkeys.1', max_size=100).map(lambda text: b'{"body": "x"}\n' + text.encode())


@given(st.binary(max_size=200) | _NEARLY | _NEARLY.map(lambda text: b"body,tag\n" + text), st.sampled_from(list(FORMATS)))
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
