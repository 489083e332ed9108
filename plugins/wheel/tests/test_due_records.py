"""Due timers come home as records of their topics, those of other brokers too; those that are alike are cut together, an odd one is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from plugins.wheel.tests.made_records import FRAME, MESSAGE, V6, WHEEL, bare, encode_record, record_of, summed, with_room
from plugins.wheel.tests.stores import noted, opened
from rmqstore import ManualClock
from rmqstore.message import Message
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.records import addressing, message_records as records


def waiting(message: Message, out_ms: int, noted: bytes = b"", behind: bytes = b"", **fields: Any) -> bytes:
    """Return a timer as the engine writes it into the wheel topic; ``noted`` stands before its sum, and ``behind`` after it."""
    queue_id = -1 if message.queue_id is None else message.queue_id
    system = f"REAL_TOPIC\x01{message.topic}\x02REAL_QID\x01{queue_id}\x02TIMER_OUT_MS\x01{out_ms}\x02".encode()
    record = record_of(
        message, topic=WHEEL.decode(), queue_id=0, system=system + noted, store_ms=8, queue_offset=6, physical_offset=77, **fields
    )
    return encode_record(summed(record, behind))


def expected_of(message: Message, out_ms: int) -> bytes:
    """Return the record of a timer that came home, made from the message."""
    record = record_of(message, system=f"TIMER_OUT_MS\x01{out_ms}\x02".encode())
    return encode_record(with_room(record))


def deliver(made: Sequence[bytes], rows: Sequence[int] | None = None, gap: bytes = b"") -> records.LogRecords:
    """Return the timers of some rows of a buffer."""
    sizes = np.array([len(record) for record in made], np.int64)
    starts = np.cumsum(sizes + len(gap)) - sizes
    picked = np.arange(len(made)) if rows is None else np.array(rows, np.int64)
    return addressing.for_delivery(b"".join(gap + record for record in made), starts[picked], sizes[picked])


def routes_of(found: records.LogRecords) -> list[tuple[bytes, int]]:
    topics, numbers, queue_ids = found.routes
    return [(topics[number], queue_id) for number, queue_id in zip(numbers, queue_ids.tolist(), strict=True)]


TIMER = st.builds(lambda message, due: msgspec.structs.replace(message, deliver_at_ms=due), MESSAGE, st.integers(0, 2**62))
NOTED = st.sampled_from([b"", b"RMQS_TICK\x011000\x02RMQS_EPOCH\x013\x02"])
OUT = st.sampled_from([0, 7, 1_790_000_000_000, 2**62]) | st.integers(1_000_000_000_000, 9_999_999_999_999)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(TIMER, OUT, NOTED, st.booleans()), min_size=1, max_size=6),
    st.sampled_from([1, 10, 30]),
    st.sampled_from([b"", b"gap"]),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_due_timers_come_home(timers: list[tuple[Message, int, bytes, bool]], times: int, gap: bytes, random: Any, twice: bool) -> None:
    timers = timers * times
    made = [waiting(message, out_ms, noted, FRAME * framed) for message, out_ms, noted, framed in timers]
    expected = [expected_of(message, out_ms) for message, out_ms, _, _ in timers]
    assert deliver(made, gap=gap).records == expected
    rows = list(range(len(timers))) + [0] * twice
    random.shuffle(rows)
    found = deliver(made, rows, gap)
    assert found.records == [expected[row] for row in rows]
    assert list(found.messages()) == [timers[row][0] for row in rows]
    assert routes_of(found) == [records.route_of(expected[row]) for row in rows]


def test_regular_timers_are_not_cut_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = noted(monkeypatch, addressing, "_one_by_one", lambda _, buffer, starts, sizes: len(starts))
    timers = [(Message(f"topic-{'x' * (row % 5)}{row % 100:02d}", b"b" * row, message_id="m"), 10 ** (row % 3)) for row in range(1, 3000)]
    made = [waiting(message, out_ms, behind=FRAME * (row % 7 == 0)) for row, (message, out_ms) in enumerate(timers)]
    found = deliver(made)
    assert found.records == [expected_of(*timer) for timer in timers]
    assert not found.may_have_tags
    assert alone == []
    made[5] = waiting(*timers[5], b"TIMER_ROLL_TIMES\x011\x02")
    assert deliver(made).records == [expected_of(*timer) for timer in timers]
    assert alone == [1]


ENTRY = st.tuples(
    st.sampled_from(["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "RMQS_FRAME", "RMQS_X", "user", ""]),
    st.sampled_from(["1", "-1", "-2", "99999999999", "orders", "", "a\x01b", "f" * 50, "t" * 128, "RMQS_", "\x02"]),
).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02")


@settings(max_examples=300)
@given(
    st.lists(
        st.builds(
            log.Record,
            topic=st.sampled_from([WHEEL, WHEEL, WHEEL, b"t", b"SCHEDULE_TOPIC_XXXX", b"t" * 200]),
            body=st.sampled_from([b"", b"body", b"\x02REAL_TOPIC\x01t\x02"]),
            properties=st.tuples(
                st.lists(ENTRY, max_size=4).map("".join),
                st.sampled_from(["", "UNIQ_KEY\x01m\x02"]),
                st.sampled_from(["", "REAL_TOPIC\x01orders\x02REAL_QID\x013\x02TIMER_OUT_MS\x01123\x02"]),
                st.lists(ENTRY, max_size=2).map("".join),
                st.sampled_from(["", "", "user\x01open", "RMQS_FRAME\x01x", "\x02"]),
            ).map(lambda parts: "".join(parts).encode()),
            queue_id=st.integers(-1, 3),
            queue_offset=st.just(5),
            physical_offset=st.just(6),
            store_ms=st.just(7),
            prepared_offset=st.just(8),
            flag=st.just(9),
            born_host=st.sampled_from([log.LOCAL_HOST, V6]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_timers_of_other_brokers_come_home_alike_by_both_ways(made: list[log.Record]) -> None:
    # None of ours is without the end of its last property, which a sum stands behind.
    ours = [msgspec.structs.replace(record, properties=record.properties.removesuffix(b"user\x01open")) for record in made]
    ours = [record for record in ours if record.properties[-1:] in (b"", b"\x02")]
    encoded = [encode_record(record) for record in (*made, *map(summed, ours))]
    alone = [records.as_delivered(record) for record in encoded]
    assert deliver(encoded * 30).records == alone * 30
    for record, before, after in zip(made + ours, encoded, alone, strict=True):
        found = log.decode_record(after)
        topic, queue_id = records.route_of(before)
        entries = [
            entry
            for entry in record.properties.decode().split("\x02")
            if not entry.startswith(("REAL_TOPIC\x01", "REAL_QID\x01", "TIMER_ROLL_TIMES\x01", "RMQS_"))
        ]
        assert [entry for entry in bare(found).properties.decode().split("\x02") if entry] == [entry for entry in entries if entry]
        assert found == msgspec.structs.replace(
            record,
            topic=topic,
            queue_id=queue_id,
            properties=found.properties,
            queue_offset=0,
            physical_offset=0,
            store_ms=0,
            sys_flag=found.sys_flag,
        )


def test_the_crc_is_carried_over_and_not_made_anew() -> None:
    message = Message("orders", b"body" * 9, message_id="m", deliver_at_ms=5)
    record = bytearray(waiting(message, 4))
    record[8:12] = b"\x12\x34\x56\x78"
    for found in (*deliver([bytes(record)]).records, *deliver([bytes(record)] * 30).records):
        assert found[8:12] == b"\x12\x34\x56\x78"


# ---------------------------------------------------------------- one among many that only looks like them

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
    "the topic in which it waits": lambda row: timer(row, len("orders") - len(WHEEL), topic=WHEEL.decode()),
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
    expected = [bytes(records.as_delivered(memoryview(record))) for record in made]
    found = deliver(made)
    assert found.records == expected
    assert routes_of(found) == [records.route_of(record) for record in expected]
    assert found.may_have_tags or not any(b"TAGS\x01" in record for record in expected)


def test_due_timers_of_several_files_come_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their records are cut to messages file by file, and put together in the order of their ticks, tags and all."""
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: Sizes(log_file_bytes=64 * 1024))
    start_ms = 1_700_000_000_000
    clock = ManualClock(start_ms)
    sent = [
        Message(
            f"t{number % 2}",
            b"%d" % number * (1 + number % 300),
            message_id=f"m{number}",
            tag="red" if number % 5 == 0 else None,
            deliver_at_ms=start_ms + 1000 * (1 + number * 37 % 100),
        )
        for number in range(400)
    ]
    with opened(tmp_path / "store", clock) as store:
        store.send_batch(sent)
        clock.advance(200_000)
        store.tick()
        for topic in ("t0", "t1"):
            due = sorted((each for each in sent if each.topic == topic), key=lambda each: each.deliver_at_ms or 0)
            found = store.read(topic, limit=1000).messages
            assert [(each.message_id, each.body, each.tag) for each in found] == [(each.message_id, each.body, each.tag) for each in due]
            assert {each.tag for each in store.pop(topic, "g", max_messages=32, filter="red")} == {"red"}
        assert store.verify() == []
