"""Bad input to every public call: a typed error that names the culprit, nothing changed, and the store goes on."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from msgspec.structs import replace

import rmqstore
from rmqstore import IllegalArgumentError, InitMode, ManualClock, Message, MessageBatch, Receipt, RmqstoreError, Store
from rmqstore.contract import AckOutcome, CancelOutcome, TimerHandle
from tests.pairs import ENGINES

NOW_MS = 1_700_000_000_000
NAN = float("nan")
HUGE = 2**80
LONE = "\ud800"
RESERVED = ("%RETRY%x", "%DLQ%x", "%PARKED%", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX")
BAD_NAMES: list[Any] = [None, 5, b"t", True, "", "a b", "a.b", "ä", LONE, "a\x00", "a\n", "+", "t" * 128, ["t"], *RESERVED]
WRONG: list[Any] = [2**70, -(2**70), "x", None, 1.5, [], LONE]
UNREADABLE = [name for name in BAD_NAMES if name not in ("%DLQ%x", "%PARKED%")]
BAD_INTS: list[Any] = ["1", 1.5, NAN, True, [1], b"1"]


@pytest.fixture(scope="module", params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a message, a timer and a lease in it."""
    path = tmp_path_factory.mktemp("bad") / "store"
    with rmqstore.open(path, engine=request.param, clock=ManualClock(NOW_MS), services=False, fifo_queues=1) as found:
        found.send_batch([Message("t", b"1"), Message("t", b"2", message_group="g")])
        found.send(Message("t", b"later", keys=("k",)), delay_ms=10_000)
        found.pop("t", "g", max_messages=1, invisible_ms=100_000)
        yield found


def _state(store: Store) -> object:
    stats = store.stats()
    return (
        stats.timers.pending,
        stats.timers.last_seq,
        stats.pops.topics,
        stats.pops.groups,
        stats.pops.messages,
        stats.pops.in_flight,
        store.lag("t", "g"),
        store.topics.list(system=True),
    )


def _refused(store: Store, call: Callable[[Store], object], culprit: str) -> RmqstoreError:
    before = _state(store)
    with pytest.raises(RmqstoreError) as caught:
        call(store)
    assert culprit in str(caught.value)
    assert _state(store) == before
    assert store.verify() == []
    assert store.read("t").messages, "the store does not go on"
    return caught.value


def _message(**fields: Any) -> Message:
    return Message(**{"topic": "t", "body": b"x", **fields})


# ---------------------------------------------------------------- one message

BAD_FIELDS: dict[str, list[Any]] = {
    "topic": BAD_NAMES,
    "body": [None, "x", b"", bytearray(b"x"), memoryview(b"x"), 5, bytes(4 * 1024 * 1024 + 1)],
    "tag": ["", "a b", "a|b", "a\n", "\x00", LONE, 5, b"a", "t" * 32_768],
    "keys": ["k", None, 5, ("",), ("a b",), (None,), (5,), (LONE,), ("k" * 32_768,), {"k"}, {"k": "v"}],
    "properties": [
        5, "p", "", [], None, [("a", "b")], {("a",): "b"}, {"a": ""}, {"": "a"}, {"a": None}, {5: "a"}, {"a": 5}, {"a": "\x01"},
        {"\x02": "a"}, {"DLQ_REASON": "x"}, {"ORIGIN_TOPIC": "x"}, {"KEYS": "x"}, {"TIMER_OUT_MS": "1"}, {"RMQS_X": "x"},
        {"__CRC32#": "x"}, {LONE: "a"}, {"a": LONE}, {"a": "x" * 32_768},
    ],
    "message_group": ["", "a b", 5, LONE, "g" * 256],
    "deliver_at_ms": ["1", 1.5, NAN, True, -1, HUGE, 2**63],
    "message_id": ["", "a b", 5, LONE, "i" * 256],
    "born_ms": ["1", 1.5, True, -1, HUGE],
    "queue_id": ["1", 1.5, True, -1, 1024, HUGE],
}  # fmt: skip
CULPRITS = {"keys": "key", "properties": "propert"}


@pytest.mark.parametrize("field", BAD_FIELDS)
def test_bad_field(store: Store, field: str) -> None:
    for value in BAD_FIELDS[field]:
        bad = _message(**{field: value})
        _refused(store, lambda s: s.send(bad), CULPRITS.get(field, field))  # noqa: B023 - called at once
        error = _refused(store, lambda s: s.send_batch([_message(), bad]), CULPRITS.get(field, field))  # noqa: B023
        assert "row 1" in str(error)


# ---------------------------------------------------------------- one argument

SECOND = timedelta(seconds=1)
DATE = datetime(2024, 1, 1, tzinfo=UTC)
TIMES: list[Any] = [
    "now", 1.5, NAN, True, -1, HUGE, datetime(2024, 1, 1),  # noqa: DTZ001
    datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
]  # fmt: skip
DURATIONS: list[Any] = ["1", 1.5, NAN, True, -1, timedelta(seconds=-1), HUGE, DATE]
NUMBERS: list[Any] = [0, 5, 30.0, NOW_MS]
"""Refused for a time and for a duration, since they may be meant in seconds."""

ARGUMENTS: list[tuple[list[Any], str, Callable[[Store, Any], object]]] = [
    ([*TIMES, *NUMBERS], "deliver_at", lambda s, v: s.send(_message(), deliver_at=v)),
    ([*TIMES, *NUMBERS], "deliver_at", lambda s, v: s.send_batch([_message()], deliver_at=v)),
    ([*TIMES, *NUMBERS], "from_", lambda s, v: s.scan(v)),
    ([*TIMES, *NUMBERS], "to", lambda s, v: s.scan(None, v)),
    ([*TIMES, DATE], "deliver_at_ms", lambda s, v: s.send(_message(), deliver_at_ms=v)),
    ([*TIMES, DATE], "deliver_at_ms", lambda s, v: s.send_batch([_message()], deliver_at_ms=v)),
    ([*TIMES, DATE], "from_ms", lambda s, v: s.scan(from_ms=v)),
    ([*TIMES, DATE], "to_ms", lambda s, v: s.scan(to_ms=v)),
    ([*TIMES, DATE], "edge", lambda s, v: s.pending([v])),
    ([*DURATIONS, *NUMBERS], "delay", lambda s, v: s.send(_message(), delay=v)),
    ([*DURATIONS, *NUMBERS], "delay", lambda s, v: s.send_batch([_message()], delay=v)),
    ([*DURATIONS, *NUMBERS, timedelta(0)], "invisible", lambda s, v: s.pop("t", "g", invisible=v)),
    ([*DURATIONS, *NUMBERS], "wait", lambda s, v: s.pop_batch("t", "g", wait=v)),
    ([*DURATIONS, *NUMBERS, timedelta(0)], "invisible", lambda s, v: s.change_invisible("x", v)),
    ([*DURATIONS, *NUMBERS], "delay", lambda s, v: s.retry_later([], v)),
    ([*DURATIONS, *NUMBERS], "backoff", lambda s, v: s.retry_later([], backoff=[v])),
    ([*DURATIONS, SECOND], "delay_ms", lambda s, v: s.send(_message(), delay_ms=v)),
    ([*DURATIONS, SECOND], "delay_ms", lambda s, v: s.send_batch([_message()], delay_ms=v)),
    ([*DURATIONS, SECOND, 0], "invisible_ms", lambda s, v: s.pop("t", "g", invisible_ms=v)),
    ([*DURATIONS, SECOND], "wait_ms", lambda s, v: s.pop_batch("t", "g", wait_ms=v)),
    ([*DURATIONS, SECOND, 0], "invisible_ms", lambda s, v: s.change_invisible("x", invisible_ms=v)),
    ([*DURATIONS, SECOND], "delay_ms", lambda s, v: s.retry_later([], delay_ms=v)),
    (BAD_NAMES, "topic", lambda s, v: s.topics.create(v)),
    (BAD_NAMES, "topic", lambda s, v: s.cancel_key(v, "k")),
    (BAD_NAMES, "group", lambda s, v: s.pop("t", v)),
    (BAD_NAMES, "group", lambda s, v: s.lag("t", v)),
    (BAD_NAMES, "group", lambda s, v: s.groups.offsets(v)),
    (BAD_NAMES, "group", lambda s, v: s.groups.reset_offset("t", v, 0)),
    (UNREADABLE, "topic", lambda s, v: s.pop(v, "g")),
    (UNREADABLE, "topic", lambda s, v: s.lag(v, "g")),
    (UNREADABLE, "topic", lambda s, v: s.read(v)),
    (UNREADABLE, "topic", lambda s, v: s.groups.reset_offset(v, "g", 0)),
    ([*BAD_INTS, None, 0, 1025], "max_messages", lambda s, v: s.pop("t", "g", max_messages=v)),
    ([*BAD_INTS, None, 0, 1025], "queues", lambda s, v: s.topics.create("fresh", v)),
    ([*BAD_INTS, None], "limit", lambda s, v: s.scan(limit=v)),
    ([*BAD_INTS, None, 0], "limit", lambda s, v: s.read("t", 0, 0, v)),
    ([*BAD_INTS, None, -1, HUGE], "offset", lambda s, v: s.read("t", 0, v)),
    ([*BAD_INTS, None, "max", 99], "offset", lambda s, v: s.groups.reset_offset("t", "g", v)),
    ([*BAD_INTS, 9], "queue", lambda s, v: s.read("t", v)),
    (BAD_INTS, "queue", lambda s, v: s.pop("t", "g", queue=v)),
    (BAD_INTS, "queue", lambda s, v: s.groups.reset_offset("t", "g", 0, queue=v)),
    ([b"m", 5, None, [b""], [b"m" * 256], ["m"]], "mark", lambda s, v: s.send(_message(), delay_ms=5, marks=v)),
    ([None, b"abc", [None]], "handle", lambda s, v: s.cancel(v)),
    ([LONE, 5, ""], "key", lambda s, v: s.cancel_key("t", v)),
    ([LONE, 5, ""], "key", lambda s, v: s.cancel_keys("t", ["k", v])),
    (["k", 5, None, {"k"}], "keys", lambda s, v: s.cancel_keys("t", v)),
    (["", 5, LONE], "attempt_id", lambda s, v: s.pop("t", "g", attempt_id=v)),
    ([None, ["a"], " ", LONE, "a || ", "a > > 5"], "filter", lambda s, v: s.pop("t", "g", filter=v)),
    ([True, 1], "order", lambda s, v: s.pop("t", "g", order=v)),
    ([None, b"x", {}, [None]], "receipt", lambda s, v: s.ack(v)),
    ([5, None, [3, 1]], "edge", lambda s, v: s.pending(v)),
    (["x", 5, ("a", "b"), (-1, HUGE)], "after", lambda s, v: s.scan(after=v)),
    ([-1, "5"], "limit", lambda s, v: s.dead_letters.list("g", limit=v)),
    ([5, "/tmp/a\0b", f"/tmp/{LONE}"], "path", lambda s, v: s.snapshot(v)),
]


@pytest.mark.parametrize("case", range(len(ARGUMENTS)), ids=[f"{number}-{culprit}" for number, (_, culprit, _) in enumerate(ARGUMENTS)])
def test_bad_argument(store: Store, case: int) -> None:
    values, culprit, call = ARGUMENTS[case]
    for value in values:
        _refused(store, lambda s: call(s, value), culprit)  # noqa: B023 - called at once


def test_a_bare_number_is_told_the_two_ways_out(store: Store) -> None:
    """What a caller reads who meant seconds."""
    error = _refused(store, lambda s: s.send(_message(), delay=30), "timedelta(seconds=30)")  # type: ignore[arg-type]
    assert "delay_ms=" in str(error)
    error = _refused(store, lambda s: s.send(_message(), deliver_at=NOW_MS // 1000), "datetime")  # type: ignore[arg-type]
    assert "deliver_at_ms=" in str(error)


def test_the_longest_durations_and_times(store: Store) -> None:
    """``-timedelta.max`` is more than a ``timedelta`` can hold; ``deliver_at`` ends at 2**62 ms, as does ``now + delay``."""
    assert store.pop("t", "nobody-yet", invisible=timedelta.max, max_messages=1)
    sent = [store.send(_message(), delay=timedelta.max), store.send(_message(), deliver_at_ms=2**62)]
    assert store.cancel([each.handle or "" for each in sent]) == [CancelOutcome.CANCELLED] * 2


@pytest.mark.parametrize(
    "when",
    [
        datetime(2023, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2023, 11, 20, 12, tzinfo=ZoneInfo("Europe/London")),
        datetime(2023, 10, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    ],
    ids=str,
)
def test_a_time_means_the_same_in_every_zone(store: Store, when: datetime) -> None:
    """Python subtracts two times of one zone by the wall clock, blind to summer time."""
    sent = store.send(_message(message_id="zoned"), deliver_at=when.replace(year=when.year + 50))
    due = [timer.deliver_at_ms for timer in store.scan().timers if timer.message.message_id == "zoned"]
    assert store.cancel(sent.handle or "") is CancelOutcome.CANCELLED
    assert due == [int(when.replace(year=when.year + 50).astimezone(UTC).timestamp() * 1000)]


CALLS: dict[str, tuple[Callable[[Store], object], str]] = {
    "a delay and the same in ms": (lambda s: s.send(_message(), delay=SECOND, delay_ms=1000), "delay_ms"),
    "a time and the same in ms": (lambda s: s.send(_message(), deliver_at=DATE, deliver_at_ms=NOW_MS), "deliver_at_ms"),
    "an invisible time and the same in ms": (lambda s: s.pop("t", "g", invisible=SECOND, invisible_ms=1000), "invisible_ms"),
    "a wait and the same in ms": (lambda s: s.pop("t", "g", wait=SECOND, wait_ms=1000), "wait_ms"),
    "a change and the same in ms": (lambda s: s.change_invisible("x", SECOND, invisible_ms=1000), "invisible_ms"),
    "a change to nothing": (lambda s: s.change_invisible("x"), "invisible"),
    "a retry and the same in ms": (lambda s: s.retry_later([], SECOND, delay_ms=1000), "delay_ms"),
    "a start and the same in ms": (lambda s: s.scan(DATE, from_ms=0), "from_ms"),
    "send nothing": (lambda s: s.send(None), "Message"),
    "send a list": (lambda s: s.send([_message()]), "Message"),
    "send a dict": (lambda s: s.send({"topic": "t"}), "Message"),
    "a delay beyond all times": (lambda s: s.send(_message(), delay_ms=2**62), "now + delay"),
    "two deliver times": (lambda s: s.send(_message(), delay_ms=5, deliver_at_ms=5), "delay"),
    "own and given deliver time": (lambda s: s.send(_message(deliver_at_ms=NOW_MS + 5), delay_ms=5), "delay"),
    "batch of nothing": (lambda s: s.send_batch(None), "list of Message"),
    "batch of one": (lambda s: s.send_batch(_message()), "list of Message"),
    "batch of a generator": (lambda s: s.send_batch(m for m in [_message()]), "list of Message"),
    "batch of no text": (lambda s: s.send_batch(""), "list of Message"),
    "batch of texts": (lambda s: s.send_batch("ab"), "Message"),
    "batch of ints": (lambda s: s.send_batch([1]), "row 0"),
    "batch of popped messages": (lambda s: s.send_batch(list(s.read("t").messages)), "row 0"),
    "batch with marks of nothing": (lambda s: s.send_batch([_message()], marks=None), "marks"),
    "pop a queue of a new topic": (lambda s: s.pop("fresh", "fresh", queue=7), "queue"),
    "pop a batch of none": (lambda s: s.pop_batch("t", "g", max_messages=0), "max_messages"),
    "ack what was only read": (lambda s: s.ack(s.read("t").messages), "without a lease"),
    "ack a batch that was only read": (lambda s: s.ack(s.read("t")), "without a lease"),
    "ack a batch to send": (lambda s: s.ack(MessageBatch.of([_message()])), "without a lease"),
    "release nothing": (lambda s: s.release(None), "receipt"),
    "change nothing": (lambda s: s.change_invisible(None, invisible_ms=5), "receipt"),
    "topics: system text": (lambda s: s.topics.list(system="x"), "system"),
    "set_group: backoff text": (lambda s: s.groups.set("g", backoff=""), "backoff"),
    "read: unknown topic": (lambda s: s.read("nobody"), "nobody"),
    "reset: the name of an end": (lambda s: s.groups.reset_offset("t", "g", "min"), "InitMode.MIN"),
    "reset: unknown topic": (lambda s: s.groups.reset_offset("nobody", "g", InitMode.MIN), "nobody"),
    "parked: limit below 0": (lambda s: s.dead_letters.parked(limit=-1), "limit"),
    "resend nothing": (lambda s: s.dead_letters.resend(None), "dead_letters.list()"),
    "resend a text": (lambda s: s.dead_letters.resend("x"), "dead_letters.list()"),
    "resend popped messages": (lambda s: s.dead_letters.resend(list(s.read("t").messages)), "row 0"),
    "drop a list of None": (lambda s: s.dead_letters.drop([None]), "row 0"),
    "snapshot: no parent": (lambda s: s.snapshot("/nonexistent/copy"), "/nonexistent"),
    "snapshot: there already": (lambda s: s.snapshot("/tmp"), "/tmp"),
    "snapshot: below a file": (lambda s: s.snapshot("/dev/null/copy"), "/dev/null"),
    "snapshot: long name": (lambda s: s.snapshot("/tmp/" + "a" * 300), "aaa"),
}


@pytest.mark.parametrize("case", CALLS)
def test_bad_call(store: Store, case: str) -> None:
    call, culprit = CALLS[case]
    _refused(store, call, culprit)


def test_a_popped_batch_can_be_sent_on(store: Store) -> None:
    """It has columns to send; taking it and storing nothing would lose messages."""
    batch = store.read("t", 0, 0, 2)
    before = store.stats().pops.messages
    try:
        receipts = store.send_batch(batch)
    except RmqstoreError:
        assert store.stats().pops.messages == before
    else:
        assert len(receipts) == 2
        assert store.stats().pops.messages == before + 2


@pytest.mark.timeout(30)
def test_wait_as_long_as_it_takes(store: Store) -> None:
    """The longest legal wait is a wait, not an overflow."""
    timer = threading.Timer(0.2, lambda: store.send(Message("long-awaited", b"x")))
    timer.start()
    try:
        assert len(store.pop("long-awaited", "g", wait_ms=2**62)) == 1
    finally:
        timer.join()


# ---------------------------------------------------------------- receipts and handles that are none


@pytest.mark.parametrize("proof", [Receipt, TimerHandle])
def test_proofs_of_the_wrong_types(store: Store, proof: type[Receipt | TimerHandle]) -> None:
    """They are public structs, so anybody can make one: UNKNOWN, or a typed error."""
    good: Any = store.scan().timers[0].handle if proof is TimerHandle else store.pop("t", "wrong", max_messages=1)[0].proof
    call: Callable[[Any], object] = store.cancel if proof is TimerHandle else store.ack
    for field in {*proof.__struct_fields__} - {"invisible_ms", "revive_qid", "log_offset"}:
        for value in WRONG:
            with suppress(RmqstoreError):
                assert call(replace(good, **{field: value})) in (CancelOutcome.UNKNOWN, AckOutcome.UNKNOWN), (field, value)
    assert store.verify() == []


# ---------------------------------------------------------------- clocks, and Arrow data as a whole


@pytest.mark.parametrize("value", [None, "1", 1.5, NAN, True, -1, HUGE], ids=repr)
def test_bad_clock_value(value: Any) -> None:
    clock = ManualClock(5)
    with pytest.raises(RmqstoreError, match=r"ms|milliseconds"):
        ManualClock(value)
    with pytest.raises(RmqstoreError, match=r"ms|milliseconds"):
        clock.set(value)
    with pytest.raises(RmqstoreError, match=r"ms|milliseconds"):
        clock.advance(value)
    assert clock.now_ms() == 5


def test_clock_moved_by_times_with_units() -> None:
    clock = ManualClock(datetime(2026, 3, 2, 9, 30, tzinfo=UTC))
    assert clock.now_ms() == 1_772_443_800_000
    assert clock.advance(timedelta(minutes=1)) == clock.now_ms() == 1_772_443_860_000
    assert clock.set(datetime(1970, 1, 1, tzinfo=UTC)) == clock.now_ms() == 0
    with pytest.raises(IllegalArgumentError, match="naive"):
        clock.set(datetime(2026, 3, 2))  # noqa: DTZ001
    with pytest.raises(RmqstoreError, match="step"):
        clock.advance(timedelta(seconds=-1))
    assert clock.now_ms() == 0


@pytest.mark.parametrize("data", [None, 5, "x", [], {}, [_message()], pa.array([1])], ids=lambda data: type(data).__name__)
def test_what_is_no_arrow_table(data: Any) -> None:
    with pytest.raises(RmqstoreError, match="RecordBatch or Table"):
        MessageBatch.from_arrow(data)


# ---------------------------------------------------------------- batches over processes


@pytest.mark.parametrize("form", ["structs", "columns"])
def test_a_batch_pickles(form: str) -> None:
    rows = [_message(), _message(body=b"y", keys=("a", "b"), properties={"p": "1"}, deliver_at_ms=NOW_MS)]
    batch = MessageBatch.of(rows)
    given = batch if form == "structs" else MessageBatch.from_arrow(batch.columns)
    assert list(pickle.loads(pickle.dumps(given)).messages) == rows


def test_what_a_store_gave_pickles(store: Store) -> None:
    given = store.read("t")
    assert list(pickle.loads(pickle.dumps(given)).messages) == list(given.messages)
    popped = store.pop_batch("t", "fresh", max_messages=5)
    again = pickle.loads(pickle.dumps(popped))
    assert list(again.messages) == list(popped.messages)
    assert set(store.ack(again)) == {AckOutcome.ACKED}
