"""One comparison of what was sent with what came out, in every form and for every field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rmqstore import Message, MessageBatch, PoppedMessage
from rmqstore_conformance.fidelity import FIELDS, as_sent, came_out, check, differences

SENT = Message("t", b"b", "tag", ("k1", "k2"), {"n": "1", "N": "2"}, "group", 5, "m1", 7, 3)
SEEN = PoppedMessage("t", b"b", "tag", ("k1", "k2"), {"N": "2", "n": "1"}, "group", 5, "m1", 7, 3, 11, 12, 2, 13)
PLACE = {"queue_offset": 11, "store_ms": 12, "attempt": 2, "first_pop_ms": 13}
OTHERS: dict[str, Any] = {
    "topic": "T", "body": b"B", "tag": None, "keys": ("k2", "k1"), "properties": {"n": "1"}, "message_group": "Group", "deliver_at_ms": 6,
    "message_id": "M1", "born_ms": 8, "queue_id": 0, "queue_offset": 12, "store_ms": 11, "attempt": 1, "first_pop_ms": None,
}  # fmt: skip


def row_of(message: PoppedMessage) -> dict[str, Any]:
    row: dict[str, Any] = MessageBatch(messages=[message]).columns.to_pylist()[0]
    return row


def test_what_is_as_it_was_sent_differs_in_nothing() -> None:
    assert differences(SENT, SEEN, **PLACE) == differences(SENT, row_of(SEEN), **PLACE) == []
    assert differences(SENT, SENT) == []
    assert as_sent(SEEN) == SENT
    assert came_out(MessageBatch(messages=[SEEN])) == [SEEN]


@pytest.mark.parametrize("name", OTHERS)
def test_each_field_that_differs_is_named_with_both_values(name: str) -> None:
    other = msgspec.structs.replace(SEEN, **{name: OTHERS[name]})
    for seen in (other, row_of(other)):
        lines = differences(SENT, seen, **PLACE)
        assert len(lines) == 1
        assert lines[0].startswith("property 'N': sent '2', seen None" if name == "properties" else name)
        with pytest.raises(AssertionError, match=f"popped, message 'm1': {lines[0][:8]}"):
            check(SENT, seen, "popped", **PLACE)


def test_fields_left_to_the_store_must_be_there() -> None:
    sent = msgspec.structs.replace(SENT, message_id=None, born_ms=None, queue_id=None)
    assert differences(sent, SEEN) == []
    assert [line.partition(":")[0] for line in differences(sent, sent)] == ["message_id", "born_ms", "queue_id"]
    assert differences(sent, SEEN, born_ms=8) == ["born_ms: sent 8, seen 7"]


def test_types_count_and_properties_are_there_once() -> None:
    assert differences(SENT, {**row_of(SEEN), "born_ms": 7.0}) == ["born_ms: sent 7, seen 7.0"]
    twice = {**row_of(SEEN), "properties": [("n", "1"), ("N", "2"), ("n", "1")]}
    assert differences(SENT, twice) == ["properties: a name stands there twice, seen [('n', '1'), ('N', '2'), ('n', '1')]"]


def test_known_fields_count_in_place_of_the_sent_ones() -> None:
    copy = msgspec.structs.replace(SEEN, topic="%RETRY%g+t", deliver_at_ms=None)
    assert differences(SENT, copy, topic="%RETRY%g+t", deliver_at_ms=None) == []
    assert set(FIELDS) <= set(OTHERS)


def test_columns_that_say_something_else_are_told() -> None:
    class Torn(MessageBatch):
        @property
        def columns(self) -> Any:
            return MessageBatch(messages=[msgspec.structs.replace(SEEN, attempt=9)]).columns

    with pytest.raises(AssertionError, match="row 0 of the columns beside the struct, message 'm1': attempt: expected 2, seen 9"):
        came_out(Torn(messages=[SEEN]))


def test_long_values_are_shortened() -> None:
    long = msgspec.structs.replace(SENT, body=b"x" * 5000)
    (line,) = differences(long, SEEN)
    assert len(line) < 200
    assert "(5000 long)" in line
