"""T4, T5: delays asked for as RocketMQ's producers do: 18 levels, and properties in their order of precedence."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rmqstore import IllegalArgumentError, IllegalMessageError, Message, MessageBatch
from rmqstore.delays import DELAY_LEVELS_MS
from rmqstore_conformance.data import topics
from rmqstore_conformance.stores import START_MS, Stores, id_of, label, message, message_group_of

(T,) = topics(__name__, 1)

MINUTE_MS = 60_000


@pytest.mark.clause("T4")
def test_t2_the_eighteen_delay_levels(engine_stores: Stores) -> None:
    """T2: 1 s 5 s 10 s 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h; any other level is refused, and nothing is stored."""
    store = engine_stores.open()
    expected = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    assert [ms // 1000 for ms in DELAY_LEVELS_MS] == expected
    for level, seconds in enumerate(expected, start=1):
        store.send(message(level), delay_level=level)
        store.send_batch([message(f"b{level}")], delay_level=level)
        assert store.pending([START_MS + seconds * 1000, START_MS + seconds * 1000 + 1]).counts == (2,)
    for wrong in (0, 19, -1, True, "3", 1.0):
        with pytest.raises(IllegalArgumentError):
            store.send(message("x"), delay_level=wrong)  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError):
        store.send(message("x"), delay_level=1, delay_ms=5)
    with pytest.raises(IllegalArgumentError):
        store.send(message("x", deliver_at_ms=5), delay_level=1)
    assert store.pending().total == 36


CASES: list[tuple[dict[str, str], int | None]] = [
    ({"DELAY": "3"}, START_MS + 10_000),
    ({"DELAY": "99"}, START_MS + 7_200_000),
    ({"TIMER_DELAY_SEC": "5"}, START_MS + 5000),
    ({"TIMER_DELAY_MS": "1500"}, START_MS + 1500),
    ({"TIMER_DELIVER_MS": str(START_MS + 777)}, START_MS + 777),
    ({"TIMER_DELIVER_MS": "5"}, 5),
    ({"DELAY": "1", "TIMER_DELAY_SEC": "50", "TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "9"}, START_MS + 1000),
    ({"DELAY": "0", "TIMER_DELAY_MS": "5", "TIMER_DELAY_SEC": "50"}, START_MS + 50_000),
    ({"DELAY": "-1", "TIMER_DELIVER_MS": str(START_MS + 9), "TIMER_DELAY_MS": "5"}, START_MS + 5),
    ({"DELAY": "0"}, None),
]


@pytest.mark.parametrize("form", ["send", "messages", "columns"])
@pytest.mark.parametrize(("properties", "deliver_at_ms"), CASES)
def test_t4_properties_ask_for_a_time_in_their_order(
    engine_stores: Stores, form: str, properties: dict[str, str], deliver_at_ms: int | None
) -> None:
    """T4: DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, the first one wins; they are not stored; other rows are untouched."""
    store = engine_stores.open()
    asked = message(1, properties={"colour": "red", **properties})
    others = [message(2, properties={"colour": "blue"}), message(3), message(4, deliver_at_ms=START_MS + 60_000)]
    sent: list[Message] = [others[0], asked, *others[1:]]
    if form == "send":
        for each in sent:
            store.send(each)
    elif form == "messages":
        store.send_batch(sent)
    else:
        store.send_batch(MessageBatch.of(sent).columns)
    pending = {label(each.message): each for each in store.scan().timers}
    if form == "send" and (deliver_at_ms is None or deliver_at_ms <= START_MS):
        found: Any = store.get(id_of("m1"))
        assert found.deliver_at_ms == deliver_at_ms
    else:
        found = pending["m1"].message
        assert found.deliver_at_ms == deliver_at_ms
    assert dict(found.properties) == {"colour": "red"}
    assert pending["m4"].deliver_at_ms == START_MS + 60_000


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "x"},
        {"TIMER_DELAY_MS": "-1"},
        {"TIMER_DELAY_SEC": "1.5"},
        {"TIMER_DELIVER_MS": "9" * 19},
        {"TIMER_DELAY_MS": "1_0"},
        {"DELAY": "²"},
    ],
)
def test_t4_bad_requests_are_refused_whole(engine_stores: Stores, properties: dict[str, str]) -> None:
    """T4: what is no number, or out of range, names the property, and the row in a batch; nothing of the call is stored."""
    store = engine_stores.open()
    bad = message(1, properties=properties)
    for call in (
        lambda: store.send(bad),
        lambda: store.send_batch([message(0), bad]),
        lambda: store.send_batch(MessageBatch.of([message(0), bad]).columns),
    ):
        with pytest.raises(IllegalMessageError, match=next(iter(properties))) as caught:
            call()
    assert "row 1" in str(caught.value)
    assert store.topics.list() == []
    assert store.pending().total == 0


@pytest.mark.clause("P9")
def test_t4_two_requests_of_different_kinds_are_refused(engine_stores: Stores) -> None:
    """T4: a property beside a deliver time, or beside a message group, leaves open what is meant; a time for a whole batch wins."""
    store = engine_stores.open()
    for wrong in (
        Message(T, b"x", properties={"TIMER_DELAY_MS": "5"}, deliver_at_ms=START_MS + 1),
        Message(T, b"x", properties={"DELAY": "1"}, message_group=message_group_of("a")),
    ):
        with pytest.raises(IllegalMessageError):
            store.send(wrong)
        with pytest.raises(IllegalMessageError):
            store.send_batch([message(1), wrong])
    with pytest.raises(IllegalArgumentError):
        store.send(Message(T, b"x", properties={"DELAY": "1"}), delay_ms=5)
    store.send_batch([Message(T, b"x", properties={"DELAY": "1"})], delay_ms=MINUTE_MS)
    assert store.pending().earliest_ms == START_MS + MINUTE_MS
    table = pa.table({"topic": [T], "body": [b"x"]})
    store.send_batch(table, delay_level=5)
    assert store.pending().total == 2
