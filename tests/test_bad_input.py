"""Bad input to every public call: a typed error that names the culprit, nothing changed, and the store goes on."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from importlib.util import find_spec
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import rmqstore
from rmqstore import IllegalArgumentError, InitMode, ManualClock, Message, MessageBatch, Receipt, RmqstoreError, Store
from rmqstore.contract import AckOutcome, CancelOutcome, ChangeOutcome, ReleaseOutcome, TimerHandle

NOW_MS = 1_700_000_000_000
NAN = float("nan")
HUGE = 2**80
LONE = "\ud800"
RESERVED = ("%RETRY%x", "%DLQ%x", "%PARKED%", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX")
BAD_NAMES = [None, 5, b"t", True, "", "a b", "a.b", "ä", LONE, "a\x00", "a\n", "+", "t" * 128, ["t"], *RESERVED]
WRONG: list[Any] = [2**70, -(2**70), "x", None, 1.5, [], LONE]
BAD_INTS = [None, "1", 1.5, NAN, True, [1], b"1"]


ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(f"rmqstore_{name}") is None, reason=f"rmqstore-{name} is not installed"))
    for name in ("memory", "wheel", "lmdb", "rocksdb")
]


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
FIELD_CASES = [(field, value) for field, values in BAD_FIELDS.items() for value in values]
CULPRITS = {"keys": "key", "properties": "propert"}


@pytest.mark.parametrize(("field", "value"), FIELD_CASES, ids=[f"{field}-{number}" for number, (field, _) in enumerate(FIELD_CASES)])
def test_bad_field(store: Store, field: str, value: Any) -> None:
    bad = _message(**{field: value})
    _refused(store, lambda s: s.send(bad), CULPRITS.get(field, field))
    error = _refused(store, lambda s: s.send_batch([_message(), bad]), CULPRITS.get(field, field))
    assert "row 1" in str(error)


TIMES: list[Any] = [
    "now", 1.5, NAN, True, -1, HUGE, datetime(2024, 1, 1),  # noqa: DTZ001
    datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
]  # fmt: skip
DURATIONS: list[Any] = ["1", 1.5, NAN, True, -1, timedelta(seconds=-1), HUGE, datetime(2024, 1, 1, tzinfo=UTC)]


NUMBERS: list[Any] = [0, 5, 30.0, NOW_MS]


@pytest.mark.parametrize("when", [*TIMES, *NUMBERS], ids=repr)
def test_bad_time(store: Store, when: Any) -> None:
    """A bare number is refused as well, since it may be meant in seconds."""
    _refused(store, lambda s: s.send(_message(), deliver_at=when), "deliver_at")
    _refused(store, lambda s: s.send_batch([_message()], deliver_at=when), "deliver_at")
    _refused(store, lambda s: s.scan(when), "from_")
    _refused(store, lambda s: s.scan(None, when), "to")


@pytest.mark.parametrize("when", [*TIMES, datetime(2024, 1, 1, tzinfo=UTC)], ids=repr)
def test_bad_time_in_ms(store: Store, when: Any) -> None:
    _refused(store, lambda s: s.send(_message(), deliver_at_ms=when), "deliver_at_ms")
    _refused(store, lambda s: s.send_batch([_message()], deliver_at_ms=when), "deliver_at_ms")
    _refused(store, lambda s: s.scan(from_ms=when), "from_ms")
    _refused(store, lambda s: s.scan(to_ms=when), "to_ms")
    _refused(store, lambda s: s.pending([when]), "edge")


@pytest.mark.parametrize("value", [*DURATIONS, *NUMBERS], ids=repr)
def test_bad_duration(store: Store, value: Any) -> None:
    """A bare number is refused as well, since it may be meant in seconds."""
    _refused(store, lambda s: s.send(_message(), delay=value), "delay")
    _refused(store, lambda s: s.send_batch([_message()], delay=value), "delay")
    _refused(store, lambda s: s.pop("t", "g", invisible=value), "invisible")
    _refused(store, lambda s: s.pop_batch("t", "g", wait=value), "wait")
    _refused(store, lambda s: s.change_invisible("x", value), "invisible")
    _refused(store, lambda s: s.retry_later([], value), "delay")
    _refused(store, lambda s: s.retry_later([], backoff=[value]), "backoff")


@pytest.mark.parametrize("value", [*DURATIONS, timedelta(seconds=1)], ids=repr)
def test_bad_duration_in_ms(store: Store, value: Any) -> None:
    _refused(store, lambda s: s.send(_message(), delay_ms=value), "delay_ms")
    _refused(store, lambda s: s.send_batch([_message()], delay_ms=value), "delay_ms")
    _refused(store, lambda s: s.pop("t", "g", invisible_ms=value), "invisible_ms")
    _refused(store, lambda s: s.pop_batch("t", "g", wait_ms=value), "wait_ms")
    _refused(store, lambda s: s.change_invisible("x", invisible_ms=value), "invisible_ms")
    _refused(store, lambda s: s.retry_later([], delay_ms=value), "delay_ms")


def test_a_bare_number_is_told_the_two_ways_out(store: Store) -> None:
    """What a caller reads who meant seconds."""
    error = _refused(store, lambda s: s.send(_message(), delay=30), "delay")  # type: ignore[arg-type]
    assert "timedelta(seconds=30)" in str(error)
    assert "delay_ms=" in str(error)
    error = _refused(store, lambda s: s.send(_message(), deliver_at=NOW_MS // 1000), "deliver_at")  # type: ignore[arg-type]
    assert "datetime" in str(error)
    assert "deliver_at_ms=" in str(error)


def test_a_duration_and_the_same_in_ms(store: Store) -> None:
    second = timedelta(seconds=1)
    _refused(store, lambda s: s.send(_message(), delay=second, delay_ms=1000), "delay_ms")
    _refused(store, lambda s: s.send(_message(), deliver_at=datetime.now(UTC), deliver_at_ms=NOW_MS), "deliver_at_ms")
    _refused(store, lambda s: s.pop("t", "g", invisible=second, invisible_ms=1000), "invisible_ms")
    _refused(store, lambda s: s.pop("t", "g", wait=second, wait_ms=1000), "wait_ms")
    _refused(store, lambda s: s.change_invisible("x", second, invisible_ms=1000), "invisible_ms")
    _refused(store, lambda s: s.change_invisible("x"), "invisible")
    _refused(store, lambda s: s.retry_later([], second, delay_ms=1000), "delay_ms")
    _refused(store, lambda s: s.scan(datetime.now(UTC), from_ms=0), "from_ms")


def test_no_lease_of_no_length(store: Store) -> None:
    _refused(store, lambda s: s.pop("t", "g", invisible_ms=0), "invisible")
    _refused(store, lambda s: s.pop("t", "g", invisible=timedelta(0)), "invisible")
    _refused(store, lambda s: s.change_invisible("x", invisible_ms=0), "invisible")
    _refused(store, lambda s: s.change_invisible("x", timedelta(0)), "invisible")


def test_the_longest_duration_of_python(store: Store) -> None:
    """``-timedelta.max`` is more than a ``timedelta`` can hold."""
    assert store.pop("t", "nobody-yet", invisible=timedelta.max, max_messages=1)
    sent = store.send(_message(), delay=timedelta.max)
    assert store.cancel(sent.handle or "") is CancelOutcome.CANCELLED


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
    "send nothing": (lambda s: s.send(None), "Message"),
    "send a list": (lambda s: s.send([_message()]), "Message"),
    "send a dict": (lambda s: s.send({"topic": "t"}), "Message"),
    "two deliver times": (lambda s: s.send(_message(), delay_ms=5, deliver_at_ms=5), "delay"),
    "own and given deliver time": (lambda s: s.send(_message(deliver_at_ms=NOW_MS + 5), delay_ms=5), "delay"),
    "group and delay": (lambda s: s.send(_message(message_group="g"), delay_ms=5), "message_group"),
    "batch: group and delay": (lambda s: s.send_batch([_message(), _message(message_group="g")], delay_ms=5), "message_group"),
    "columns: group and delay": (
        lambda s: s.send_batch(MessageBatch.of([_message(message_group="g")]).columns, delay_ms=5),
        "message_group",
    ),
    "batch of nothing": (lambda s: s.send_batch(None), "list of Message"),
    "batch of one": (lambda s: s.send_batch(_message()), "list of Message"),
    "batch of a generator": (lambda s: s.send_batch(m for m in [_message()]), "list of Message"),
    "batch of no text": (lambda s: s.send_batch(""), "list of Message"),
    "batch of texts": (lambda s: s.send_batch("ab"), "Message"),
    "batch of ints": (lambda s: s.send_batch([1]), "row 0"),
    "batch of popped messages": (lambda s: s.send_batch(list(s.read("t").messages)), "row 0"),
    "marks: bytes": (lambda s: s.send(_message(), marks=b"m"), "marks"),
    "marks: int": (lambda s: s.send(_message(), marks=5), "marks"),
    "marks: None": (lambda s: s.send_batch([_message()], marks=None), "marks"),
    "marks: empty": (lambda s: s.send(_message(), delay_ms=5, marks=[b""]), "mark"),
    "marks: long": (lambda s: s.send(_message(), delay_ms=5, marks=[b"m" * 256]), "mark"),
    "marks: text": (lambda s: s.send(_message(), marks=["m"]), "mark"),
    "cancel nothing": (lambda s: s.cancel(None), "handle"),
    "cancel bytes": (lambda s: s.cancel(b"abc"), "handle"),
    "cancel a list of None": (lambda s: s.cancel([None]), "handle"),
    "cancel_key: lone surrogate": (lambda s: s.cancel_key("t", LONE), "key"),
    "cancel_key: int": (lambda s: s.cancel_key("t", 5), "key"),
    "cancel_key: empty": (lambda s: s.cancel_key("t", ""), "key"),
    "pop: order against the group": (lambda s: s.pop("t", "g", order=True), "order"),
    "pop: order as int": (lambda s: s.pop("t", "g", order=1), "order"),
    "pop: attempt_id empty": (lambda s: s.pop("t", "g", attempt_id=""), "attempt_id"),
    "pop: attempt_id int": (lambda s: s.pop("t", "g", attempt_id=5), "attempt_id"),
    "pop: attempt_id lone surrogate": (lambda s: s.pop("t", "g", attempt_id=LONE), "attempt_id"),
    "pop: filter None": (lambda s: s.pop("t", "g", filter=None), "filter"),
    "pop: filter list": (lambda s: s.pop("t", "g", filter=["a"]), "filter"),
    "pop: filter empty": (lambda s: s.pop("t", "g", filter=" "), "filter"),
    "pop: filter lone surrogate": (lambda s: s.pop("t", "g", filter=LONE), "filter"),
    "pop: filter without a tag": (lambda s: s.pop("t", "g", filter="a || "), "filter"),
    "pop: filter SQL92": (lambda s: s.pop("t", "g", filter="a > > 5"), "filter"),
    "pop: too many": (lambda s: s.pop("t", "g", max_messages=1025), "max_messages"),
    "pop: none": (lambda s: s.pop_batch("t", "g", max_messages=0), "max_messages"),
    "pop: a queue of a new topic": (lambda s: s.pop("fresh", "fresh", queue=7), "queue"),
    "ack nothing": (lambda s: s.ack(None), "receipt"),
    "ack bytes": (lambda s: s.ack(b"x"), "receipt"),
    "ack a dict": (lambda s: s.ack({}), "receipt"),
    "ack a list of None": (lambda s: s.ack([None]), "receipt"),
    "ack what was only read": (lambda s: s.ack(s.read("t").messages), "without a lease"),
    "ack a batch that was only read": (lambda s: s.ack(s.read("t")), "without a lease"),
    "ack a batch to send": (lambda s: s.ack(MessageBatch.of([_message()])), "without a lease"),
    "release nothing": (lambda s: s.release(None), "receipt"),
    "change nothing": (lambda s: s.change_invisible(None, invisible_ms=5), "receipt"),
    "pending: int": (lambda s: s.pending(5), "edges"),
    "pending: None": (lambda s: s.pending(None), "edges"),
    "pending: falling": (lambda s: s.pending([3, 1]), "edges"),
    "scan: after text": (lambda s: s.scan(after="x"), "after"),
    "topics: system text": (lambda s: s.topics.list(system="x"), "system"),
    "set_group: backoff text": (lambda s: s.groups.set("g", backoff=""), "backoff"),
    "scan: after int": (lambda s: s.scan(after=5), "after"),
    "scan: after texts": (lambda s: s.scan(after=("a", "b")), "after"),
    "scan: after out of range": (lambda s: s.scan(after=(-1, HUGE)), "after"),
    "read: unknown topic": (lambda s: s.read("nobody"), "nobody"),
    "read: unknown queue": (lambda s: s.read("t", 9), "queue"),
    "read: limit 0": (lambda s: s.read("t", 0, 0, 0), "limit"),
    "read: offset below 0": (lambda s: s.read("t", 0, -1), "offset"),
    "read: offset huge": (lambda s: s.read("t", 0, HUGE), "offset"),
    "reset: text": (lambda s: s.groups.reset_offset("t", "g", "max"), "offset"),
    "reset: the name of an end": (lambda s: s.groups.reset_offset("t", "g", "min"), "InitMode.MIN"),
    "dead letters: limit below 0": (lambda s: s.dead_letters.list("g", limit=-1), "limit"),
    "dead letters: limit as text": (lambda s: s.dead_letters.list("g", limit="5"), "limit"),
    "parked: limit below 0": (lambda s: s.dead_letters.parked(limit=-1), "limit"),
    "resend nothing": (lambda s: s.dead_letters.resend(None), "dead_letters.list()"),
    "resend a text": (lambda s: s.dead_letters.resend("x"), "dead_letters.list()"),
    "resend popped messages": (lambda s: s.dead_letters.resend(list(s.read("t").messages)), "row 0"),
    "drop a list of None": (lambda s: s.dead_letters.drop([None]), "row 0"),
    "reset: beyond": (lambda s: s.groups.reset_offset("t", "g", 99), "offset"),
    "reset: unknown topic": (lambda s: s.groups.reset_offset("nobody", "g", InitMode.MIN), "nobody"),
    "create_topic: none": (lambda s: s.topics.create("fresh", 0), "queues"),
    "create_topic: too many": (lambda s: s.topics.create("fresh", 1025), "queues"),
    "snapshot: int": (lambda s: s.snapshot(5), "path"),
    "snapshot: no parent": (lambda s: s.snapshot("/nonexistent/copy"), "/nonexistent"),
    "snapshot: there already": (lambda s: s.snapshot("/tmp"), "/tmp"),
    "snapshot: below a file": (lambda s: s.snapshot("/dev/null/copy"), "/dev/null"),
    "snapshot: null byte": (lambda s: s.snapshot("/tmp/a\0b"), "path"),
    "snapshot: lone surrogate": (lambda s: s.snapshot(f"/tmp/{LONE}"), "path"),
    "snapshot: long name": (lambda s: s.snapshot("/tmp/" + "a" * 300), "aaa"),
}


@pytest.mark.parametrize("case", CALLS)
def test_bad_call(store: Store, case: str) -> None:
    call, culprit = CALLS[case]
    _refused(store, call, culprit)


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_bad_name(store: Store, name: Any) -> None:
    _refused(store, lambda s: s.topics.create(name), "topic")
    _refused(store, lambda s: s.cancel_key(name, "k"), "topic")
    _refused(store, lambda s: s.pop("t", name), "group")
    _refused(store, lambda s: s.lag("t", name), "group")
    _refused(store, lambda s: s.groups.offsets(name), "group")
    _refused(store, lambda s: s.groups.reset_offset("t", name, 0), "group")
    if name not in ("%DLQ%x", "%PARKED%"):
        _refused(store, lambda s: s.pop(name, "g"), "topic")
        _refused(store, lambda s: s.lag(name, "g"), "topic")
        _refused(store, lambda s: s.read(name), "topic")
        _refused(store, lambda s: s.groups.reset_offset(name, "g", 0), "topic")


@pytest.mark.parametrize("value", BAD_INTS, ids=repr)
def test_bad_number(store: Store, value: Any) -> None:
    _refused(store, lambda s: s.pop("t", "g", max_messages=value), "max_messages")
    _refused(store, lambda s: s.topics.create("fresh", value), "queues")
    _refused(store, lambda s: s.scan(limit=value), "limit")
    _refused(store, lambda s: s.read("t", 0, 0, value), "limit")
    _refused(store, lambda s: s.read("t", 0, value), "offset")
    _refused(store, lambda s: s.groups.reset_offset("t", "g", value), "offset")
    if value is not None:
        _refused(store, lambda s: s.read("t", value), "queue")
        _refused(store, lambda s: s.pop("t", "g", queue=value), "queue")
        _refused(store, lambda s: s.groups.reset_offset("t", "g", 0, queue=value), "queue")


def test_huge_times_are_legal_up_to_the_limit(store: Store) -> None:
    """``now + delay`` must not slip past 2**62 ms, where ``scan`` and ``deliver_at`` end."""
    _refused(store, lambda s: s.send(_message(), delay_ms=2**62), "delay")
    sent = store.send(_message(), deliver_at_ms=2**62)
    assert store.cancel(sent.handle or "") is CancelOutcome.CANCELLED


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


def _forged(store: Store) -> list[str | Receipt]:
    receipt = store.pop("t", "forger", max_messages=1)[0].proof
    assert isinstance(receipt, Receipt)
    text = receipt.text()
    fields = {name: getattr(receipt, name) for name in receipt.__struct_fields__}
    changed = [
        {"broker": "rmqs-00000000"}, {"epoch": receipt.epoch + 1}, {"queue_offset": 999}, {"queue_id": 77}, {"group": "nobody"},
        {"topic": "nobody"}, {"pop_time_ms": 5}, {"ck_start_offset": 2**63}, {"queue_id": -1}, {"retry_flag": 2},
    ]  # fmt: skip
    forged = [Receipt(**{**fields, **change}) for change in changed]
    texts = [
        "",
        " ",
        "x",
        LONE,
        f"0 0 0 0 0 {LONE} 0 0 0 t g 1 00000000",
        "9" * 500,
        text[:-1],
        text[1:],
        text + " ",
        text.replace("0", "1"),
        "é" * 60,
    ]
    return [*texts, *forged, *(each.text() for each in forged)]


def test_forged_receipts_are_unknown(store: Store) -> None:
    forged = _forged(store)
    store.groups.reset_offset("t", "forger", InitMode.MIN)
    before = _state(store)
    for each in forged:
        assert store.ack(each) is AckOutcome.UNKNOWN, each
        assert store.release(each) is ReleaseOutcome.UNKNOWN, each
        assert store.change_invisible(each, invisible_ms=5).outcome is ChangeOutcome.UNKNOWN, each
    assert _state(store) == before
    assert store.verify() == []


@pytest.mark.parametrize("field", ["topic", "group", "queue_id", "queue_offset", "ck_start_offset", "pop_time_ms", "broker", "epoch"])
def test_receipts_of_the_wrong_types(store: Store, field: str) -> None:
    """A receipt is a public struct, so anybody can make one: UNKNOWN, or a typed error."""
    receipt = store.pop("t", f"wrong-{field}", max_messages=1)[0].proof
    assert isinstance(receipt, Receipt)
    fields = {name: getattr(receipt, name) for name in receipt.__struct_fields__}
    bare = [value for value in WRONG if not _is_unknown(store.ack, Receipt(**{**fields, field: value}), AckOutcome.UNKNOWN)]
    store.groups.reset_offset("t", f"wrong-{field}", InitMode.MIN)
    assert bare == []
    assert store.verify() == []


def _is_unknown(call: Callable[[Any], object], forged: object, unknown: object) -> bool:
    """Whether a forged thing is refused in one of the two good ways."""
    try:
        return call(forged) is unknown
    except RmqstoreError:
        return True
    except Exception:
        return False


def test_forged_handles_are_unknown(store: Store) -> None:
    sent = store.send(_message(), delay_ms=50_000)
    text = sent.handle
    handle = TimerHandle.parse(text or "")
    assert text is not None
    assert handle is not None
    tag, epoch, seq, tick = handle.store_tag, handle.epoch, handle.seq, handle.tick
    forged: list[str | TimerHandle] = ["", "x", LONE, "é", text[:-1], text[1:], text + "A", text.swapcase(), "A" * 1000, "====", " " + text]
    forged += [TimerHandle(tag ^ 1, epoch, seq, tick), TimerHandle(tag, epoch + 1, seq, tick), TimerHandle(tag, epoch, seq + 1, tick)]
    forged += [TimerHandle(tag, epoch, seq, tick + 1000), TimerHandle(tag, epoch, 2**64 - 1, 2**64 - 1), TimerHandle(tag, 0, 0, 0)]
    assert store.cancel(forged) == [CancelOutcome.UNKNOWN] * len(forged)
    assert store.cancel(text) is CancelOutcome.CANCELLED


@pytest.mark.parametrize("field", ["store_tag", "epoch", "seq", "tick"])
def test_handles_of_the_wrong_types(store: Store, field: str) -> None:
    handle = store.scan().timers[0].handle
    fields = {name: getattr(handle, name) for name in handle.__struct_fields__}
    bare = [value for value in WRONG if not _is_unknown(store.cancel, TimerHandle(**{**fields, field: value}), CancelOutcome.UNKNOWN)]
    assert bare == []
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
