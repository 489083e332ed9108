"""Due timers that are alike are cut together; one among them that only looks so is not cut as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from plugins.wheel.tests.made_records import FRAME, V6, WHEEL, encode_record
from plugins.wheel.tests.summed import summed
from plugins.wheel.tests.test_due_records import deliver, waiting
from rmqstore.message import Message
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.records.message_records import as_delivered, route_of

OUT_MS: Final = 1_790_000_000_000
_HOME: Final = b"REAL_TOPIC\x01orders\x02REAL_QID\x013\x02TIMER_OUT_MS\x011790000000000\x02"


def timer(row: int, by: int = 0, *, noted: bytes = b"", behind: bytes = b"", host: bytes | None = None, **fields: Any) -> bytes:
    """Return a timer whose property is ``by`` bytes longer than usual."""
    given = {"topic": "orders", "body": b"%040d" % row, "message_id": f"{row:010d}", "queue_id": 3, "out_ms": OUT_MS + row, **fields}
    out_ms = given.pop("out_ms")
    message = Message(**given, properties={"user": "u" * (120 + by)})
    return waiting(message, out_ms, noted, behind, **({} if host is None else {"born_host": host}))


def edited(old: bytes, new: bytes) -> Callable[[int], bytes]:
    """Return a timer whose properties are changed."""

    def made(row: int) -> bytes:
        record = log.decode_record(timer(row, len(old) - len(new), out_ms=OUT_MS))
        text = record.properties[: record.properties.rindex(b"RMQS_CRC\x01")]
        assert text.count(old) == 1
        return encode_record(summed(msgspec.structs.replace(record, properties=text.replace(old, new))))

    return made


def pretending(row: int) -> bytes:
    """Return a timer whose body goes on as the record of another one does, to where its own topic and properties have to begin."""
    record = timer(row)
    begin, text = log.FIXED_BYTES + 40, log.FIXED_BYTES + 40 + 1 + len(WHEEL) + 2
    body = record[log.FIXED_BYTES : text + 60]
    rest = record[text + 60 + (text - begin) : record.rindex(b"RMQS_CRC\x01")]
    assert rest.startswith(b"uuuu")
    whole = log.decode_record(record)
    return encode_record(summed(msgspec.structs.replace(whole, body=body, properties=b"k\x01" + rest[2:])))


ODD: Final[dict[str, Callable[[int], bytes]]] = {
    "a shorter body": lambda row: timer(row, 1, body=b"%039d" % row),
    "a shorter topic": lambda row: timer(row, 1, topic="order"),
    "a longer topic": lambda row: timer(row, -1, topic="orders2"),
    "another topic": lambda row: timer(row, topic="others"),
    "a longer queue id": lambda row: timer(row, -1, queue_id=13),
    "another queue": lambda row: timer(row, queue_id=7),
    "no queue": lambda row: timer(row, -1, queue_id=None),
    "a shorter time": lambda row: timer(row, 1, out_ms=179_000_000_000),
    "no time": edited(b"TIMER_OUT_MS\x011790000000000\x02", b"TIMER_OUT_NS\x011790000000000\x02"),
    "a tag": lambda row: timer(row, -len("TAGS") - 4, tag="ab"),
    "keys": lambda row: timer(row, -len("KEYS") - 4, keys=("k1",)),
    "what the engine noted": lambda row: timer(row, -16, noted=b"RMQS_TICK\x0110000\x02"),
    "a frame behind it": lambda row: timer(row, -len(FRAME), behind=FRAME),
    "the host of a broker": lambda row: timer(row, -12, host=V6),
    "a topic of an earlier wait": edited(b"uuuuuuuuuuuu\x02", b"u\x02REAL_TOPIC\x01x\x02"),
    "rolls": edited(b"\x02TIMER_OUT_MS", b"\x02TIMER_ROLL_TIMES\x013\x02TIMER_OUT_MS"),
    "another order": edited(_HOME, b"REAL_QID\x013\x02REAL_TOPIC\x01orders\x02TIMER_OUT_MS\x011790000000000\x02"),
    "two values in one": edited(b"REAL_TOPIC\x01orders\x02", b"REAL_TOPIC\x01or\x02ers\x02"),
    "a topic of control characters": edited(b"REAL_TOPIC\x01orders\x02", b"REAL_TOPIC\x01or\x01ers\x02"),
    "no queue's name": edited(b"REAL_QID\x013\x02", b"REAL_QIX\x013\x02"),
    "no sum": lambda row: timer(row).replace(b"RMQS_CRC\x01", b"user_CRC\x01"),
    "a body that holds what lies behind others": lambda row: pretending(row),
    "a queue that is no number": edited(b"REAL_QID\x013\x02", b"REAL_QID\x01x\x02"),
    "nothing of a timer": edited(_HOME, b"a\x01" + b"b" * (len(_HOME) - 3) + b"\x02"),
}


@pytest.mark.parametrize("places", [(0,), (17,), (39,), (0, 1, 2), range(0, 40, 2)], ids=str)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_one_is_cut_as_if_it_were_alone(name: str, places: tuple[int, ...]) -> None:
    made = [ODD[name](row) if row in places else timer(row) for row in range(40)]
    assert len({len(record) for record in made}) == 1
    expected = [bytes(as_delivered(memoryview(record))) for record in made]
    found = deliver(made)
    assert found.records == expected
    topics, numbers, queue_ids = found.routes
    routes = [(topics[number], queue_id) for number, queue_id in zip(numbers, queue_ids.tolist(), strict=True)]
    assert routes == [route_of(record) for record in expected]
    assert found.may_have_tags or not any(b"TAGS\x01" in record for record in expected)


@pytest.mark.parametrize("queue_id", [None, 0, 1023, 99_999_999_999])
def test_the_queues_of_all_are_read(queue_id: int | None) -> None:
    made = [timer(row, queue_id=queue_id) for row in range(40)]
    expected = [bytes(as_delivered(memoryview(record))) for record in made]
    assert deliver(made).records == expected


@pytest.mark.parametrize("topic", [WHEEL, b"rmq_sys_wheel_timeX"])
def test_a_record_of_another_topic_among_them_goes_alone(topic: bytes) -> None:
    made = [timer(row) for row in range(40)]
    record = log.decode_record(made[20])
    made[20] = encode_record(msgspec.structs.replace(record, topic=topic))
    assert deliver(made).records == [bytes(as_delivered(memoryview(record))) for record in made]


@pytest.mark.parametrize("framed", [0, 3])
def test_those_that_are_alike_are_cut_together(framed: int) -> None:
    """Also when some are the last ones of their calls, and end with a frame's property."""
    made = [timer(row, behind=FRAME if row < framed else b"") for row in range(40)]
    expected = [bytes(as_delivered(memoryview(record))) for record in made]
    found = deliver(made)
    assert found.records == expected
    assert found.routes.topics == [b"orders"]
    assert not found.may_have_tags
    assert found.encoded.starts.tolist() == (np.arange(40) * len(expected[0])).tolist()


@pytest.mark.parametrize("topics", [("others",), ("orders", "others"), ("orders",)], ids=str)
def test_those_among_them_that_are_longer_go_to_their_own_topics(topics: tuple[str, ...]) -> None:
    made = [timer(row) if row % 20 else timer(row, topic=topics[row // 20 % len(topics)], behind=FRAME) for row in range(60)]
    expected = [bytes(as_delivered(memoryview(record))) for record in made]
    routes = deliver(made).routes
    found = [(routes.topics[number], queue_id) for number, queue_id in zip(routes.numbers, routes.queue_ids.tolist(), strict=True)]
    assert found == [route_of(record) for record in expected]


def test_timers_for_the_topic_in_which_they_wait_wait_on() -> None:
    made = [timer(row, topic=WHEEL.decode()) for row in range(40)]
    expected = [route_of(bytes(as_delivered(memoryview(record)))) for record in made]
    topics, numbers, queue_ids = deliver(made).routes
    assert [(topics[number], queue_id) for number, queue_id in zip(numbers, queue_ids.tolist(), strict=True)] == expected
