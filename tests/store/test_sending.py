"""Where a store puts messages that leave the queue to it, by rows and by columns."""

from __future__ import annotations

from collections import Counter

import pytest

import rmqstore
from rmqstore import IllegalArgumentError, ManualClock, Message, MessageBatch
from rmqstore_conformance.stores import START_MS, directory

ROWS = 96


@pytest.mark.parametrize("has_columns", [False, True], ids=["rows", "columns"])
def test_queues_are_chosen_in_turn_of_those_messages_that_name_none(has_columns: bool) -> None:
    """Neither the rows between them that name a queue, nor those of a message group, nor those of another topic count."""
    messages = []
    for number in range(ROWS):
        messages += [
            Message("t", b"free"),
            Message("t", b"named", queue_id=3),
            Message("t", b"grouped", message_group=f"g{number}"),
            Message("u", b"other"),
        ]
    with (
        directory() as root,
        rmqstore.open(
            root / "store", engine="memory", default_queues=4, fifo_queues=2, clock=ManualClock(START_MS), services=False
        ) as store,
    ):
        batch = MessageBatch.of(messages)
        store.send_batch(batch.columns if has_columns else messages)
        found = Counter((message.topic, message.body, message.queue_id) for message in store.pop_batch("t", "g").messages)
        found.update((message.topic, message.body, message.queue_id) for message in store.pop_batch("u", "g").messages)
    for topic, body in (("t", b"free"), ("u", b"other")):
        assert [found[topic, body, queue] for queue in range(4)] == [ROWS // 4] * 4
    assert found["t", b"named", 3] == ROWS


def test_a_call_of_no_messages_leaves_its_marks() -> None:
    with directory() as root, rmqstore.open(root / "store", engine="memory", clock=ManualClock(START_MS), services=False) as store:
        assert [store.send_batch([], marks=[b"now"]).repeated for _ in range(2)] == [False, True]
        assert store.send_batch([Message("t", b"x")], marks=[b"now"]).repeated
        assert [store.send_batch([], marks=[b"later"], delay_ms=5000).repeated for _ in range(2)] == [False, True]
        with pytest.raises(IllegalArgumentError, match="a call of 0 messages"):
            store.send_batch([Message("t", b"x")], marks=[b"later"], delay_ms=5000)
        assert (store.topics.list(), store.pending().total) == ([], 0)
