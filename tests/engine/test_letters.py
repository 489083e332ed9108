"""A dead letter that cannot be read any more is counted off where it belongs; a parked entry is parked again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import ManualClock, Message
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.queue_log import DamagedRun, Run
from rmqstore.message import PARKED_TOPIC, dlq_topic
from rmqstore_conformance.damaging import damage_messages


def test_a_letter_that_went_bad_is_counted_off_without_a_look_at_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes still name its topic, so that a large dead letter queue holds up nobody when one of it is parked."""
    clock = ManualClock(1)
    with rmqstore.open(tmp_path, engine="memory", clock=clock, max_retries=0) as store:
        for topic in ("a", "b"):
            store.send_batch([Message(topic, b"body %d of %s" % (number, topic.encode())) for number in range(600)])
            while store.pop(topic, "g", max_messages=32, invisible_ms=1):
                clock.advance(1)
                store.tick()
        assert [store.lag(topic, "g").dead for topic in "ab"] == [600, 600]
        damage_messages(store, b"body 599 of a")
        read = []
        runs_from = RunQueueLog.runs_from

        def counted(log: RunQueueLog, topic: Any, queue: int, offset: int) -> Iterator[Run | DamagedRun]:
            for run in runs_from(log, topic, queue, offset):
                read.append(run)
                yield run

        monkeypatch.setattr(RunQueueLog, "runs_from", counted)
        store.groups.reset_offset(dlq_topic("g"), "repair", 599)
        store.pop(dlq_topic("g"), "repair")
        assert [store.lag(topic, "g").dead for topic in "ab"] == [599, 600]
        assert len(read) < 100


def test_the_last_parked_entries_that_went_bad_are_all_parked_again(tmp_path: Path) -> None:
    """One call parks both, and upkeep then takes none of the new entries for a part of what was damaged."""
    clock = ManualClock(1)
    with rmqstore.open(tmp_path, engine="memory", clock=clock) as store:
        bodies = [b"first body", b"second body"]
        for body in bodies:
            store.send(Message("t", body))
            damage_messages(store, body, spoil=lambda data: data + b"!")
            store.pop("t", "g")
        damage_messages(store, *bodies, spoil=lambda data: data + b"!")
        store.pop(PARKED_TOPIC, "audit")
        for _ in range(2):
            assert [letter.message.queue_offset for letter in store.dead_letters.parked()] == [2, 3]
            assert store.lag(PARKED_TOPIC, "audit").ready == 2
            clock.advance(60_000)
            store.tick()
