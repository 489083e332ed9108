"""Views without Spark: parts that give every row once, beside an owner, of a shard, a store or a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.spark import Dataset
from rmqstore.spark.jobs import Job
from rmqstore.spark.readout import Part, View, Wanted, plan, read
from rmqstore.spark.running import tick_shard
from rmqstore.spark.staging import stage
from rmqstore.transfer import migrate
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, SECOND_MS, committed, ingested, rows, rows_of, timers_of

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_give_every_timer_once_beside_an_owner(tmp_path: Path, engine: str) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=2, engine=engine)
    ingested(committed(dataset, "load", rows(0, 400)))
    with dataset.open_shard(0, now_ms=NOW_MS) as owner:
        late = rows(1000, 1, deliver_at_ms=pa.array([NOW_MS - SECOND_MS]))
        owner.send_batch(late, marks=[b"late"])
        owner.send_batch(rows(2000, 2, deliver_at_ms=pa.array([None, NOW_MS + SECOND_MS])))
        view = Wanted(view=View.TIMERS)
        parts = plan(str(dataset.path), view, 50)
        assert len(parts) >= 8
        assert all(sum(map(len, read(part, view))) <= 100 for part in parts)
        assert sorted(timers_of(dataset.path)) == [*range(400), 1000, 2000, 2001]
        chosen = {"from_ms": NOW_MS + 101 * SECOND_MS, "to_ms": NOW_MS + 201 * SECOND_MS}
        assert sorted(timers_of(dataset.path, **chosen)) == list(range(100, 200))
        assert sorted(timers_of(dataset.path, to_ms=NOW_MS)) == [1000]
        assert timers_of(dataset.path, topic="nobody") == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision_ms", [100, 1000])
def test_timers_of_the_last_tick_are_read(tmp_path: Path, engine: str, precision_ms: int) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine, settings={"precision_ms": precision_ms})
    last_ms = 2**62
    with dataset.open_shard(0, now_ms=last_ms - 100_000) as store:
        store.send_batch(rows(0, 3, deliver_at_ms=pa.array([last_ms - 5000, last_ms - 1, last_ms])))
    assert sorted(timers_of(dataset.path)) == [0, 1, 2]
    assert sorted(timers_of(dataset.path, to_ms=last_ms)) == [0, 1]
    assert timers_of(dataset.path, from_ms=last_ms) == [2]
    assert timers_of(dataset.path, from_ms=last_ms, to_ms=last_ms + 1) == [2]
    assert timers_of(dataset.path, from_ms=last_ms + 1) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_timers_are_read_with_the_handles_that_their_sends_gave(tmp_path: Path, engine: str) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine)
    with dataset.open_shard(0, now_ms=NOW_MS) as store:
        sent = store.send_batch(rows(0, 50))
    migrate(dataset.shard_path(0), engine=ENGINES[0] if engine != ENGINES[0] else ENGINES[-1])
    with rmqstore.open(dataset.shard_path(0), services=False, clock=rmqstore.ManualClock(NOW_MS)) as store:
        later = store.send_batch(rows(50, 50))
    found = rows_of(dataset.path, View.TIMERS, columns=("handle", "body"))
    handles = [each.handle for receipts in (sent, later) for each in receipts]
    assert {row["handle"]: int(row["body"]) for row in found} == {handle: number for number, handle in enumerate(handles)}


def test_messages_leases_and_lag_are_read_by_shard(dataset: Dataset) -> None:
    ingested(committed(dataset, "load", rows(0, 100)))
    moved = [tick_shard(dataset, shard, NOW_MS + 60 * SECOND_MS).handed_over for shard in dataset.shards]
    assert sum(moved) == 60
    with dataset.open_shard(0, now_ms=NOW_MS + 61 * SECOND_MS) as store:
        store.pop("orders", "billing", max_messages=5)
    assert sorted(messages(dataset)) == list(range(60))
    assert [row["group"] for row in rows_of(dataset.path, View.LEASES)] == ["billing"] * 5
    none = dict.fromkeys(("retry", "dead", "expired", "backing_off"), 0)
    (lag,) = rows_of(dataset.path, View.LAG)
    assert lag == {"shard": 0, "topic": "orders", "group": "billing", "ready": moved[0] - 5, "in_flight": 5, **none}


def test_dead_letters_are_read_with_group_and_reason(dataset: Dataset) -> None:
    with dataset.open_shard(1, now_ms=NOW_MS) as store:
        for topic in ("orders", "mails"):
            store.send_batch([rmqstore.Message(topic, b"1", keys=("k",)), rmqstore.Message(topic, b"2")])
            store.reject(store.pop(topic, "billing"), reason=f"no such {topic}")
    found = rows_of(dataset.path, View.DEAD_LETTERS)
    assert {(row["shard"], row["group"], row["origin_topic"], row["reason"], row["attempts"]) for row in found} == {
        (1, "billing", "orders", "no such orders", 1),
        (1, "billing", "mails", "no such mails", 1),
    }
    assert sorted((row["body"], row["keys"]) for row in found if row["origin_topic"] == "mails") == [(b"1", ["k"]), (b"2", None)]
    assert all(row["died_ms"] == NOW_MS and row["origin_message_id"] == row["message_id"] for row in found)
    narrow = rows_of(dataset.path, View.DEAD_LETTERS, topic="mails", columns=("reason",))
    assert narrow == [{"reason": "no such mails"}] * 2
    assert rows_of(dataset.path, View.DEAD_LETTERS, shard=0) == []


def test_jobs_are_read_with_their_states(dataset: Dataset) -> None:
    ingested(committed(dataset, "a-done", rows(0, 10)))
    committed(dataset, "b-half", rows(10, 5))
    stage(Job(dataset, "c-new"), [rows(20, 5)], 0)
    committed(dataset, "d-dropped", rows(30, 7)).drop()
    found = rows_of(dataset.path, View.JOBS)
    assert [(row["job_id"], row["state"], row["rows"], row["rejected"]) for row in found] == [
        ("a-done", "done", 10, 0),
        ("b-half", "committed", 5, 0),
        ("c-new", "staging", None, None),
        ("d-dropped", "dropped", 7, 0),
    ]
    assert all(abs(row["changed_ms"] - rmqstore.SystemClock().now_ms()) < 3_600_000 for row in found)
    assert rows_of(dataset.path, View.JOBS, job_id="b-half", columns=("state",)) == [{"state": "committed"}]
    assert rows_of(dataset.path, View.JOBS, job_id="nobody") == []
    with pytest.raises(rmqstore.StorePathError, match="that is a single store"):
        plan(str(dataset.shard_path(0)), Wanted(view=View.JOBS))


def messages(dataset: Dataset) -> Iterator[int]:
    view = Wanted(view=View.MESSAGES, columns=("queue_offset", "body", "shard"))
    for part in plan(str(dataset.path), view, 7):
        for batch in read(part, view):
            assert batch.schema.names == list(view.columns)
            assert batch.num_rows <= 7
            yield from map(int, batch.column("body").to_pylist())


def test_a_single_store_and_a_snapshot_are_read_as_shard_0(tmp_path: Path) -> None:
    with rmqstore.open(tmp_path / "one", engine=ENGINE, services=False, clock=rmqstore.ManualClock(NOW_MS)) as store:
        store.send_batch(rows(0, 10))
        store.snapshot(tmp_path / "copy")
        store.send_batch(rows(10, 10))
    assert sorted(timers_of(tmp_path / "copy")) == list(range(10))
    view = Wanted(view=View.TIMERS)
    (part,) = plan(str(tmp_path / "one"), view)
    assert part == Part(shard=0, path=str(tmp_path / "one"), store_id=part.store_id)
    assert sum(map(len, read(part, view))) == 20
    with pytest.raises(rmqstore.IllegalArgumentError, match="no column 'price'"):
        plan(str(tmp_path / "one"), Wanted(view=View.TIMERS, columns=("price",)))
    for path, what in ((tmp_path, "something else is there"), (tmp_path / "nope", "nothing is there")):
        with pytest.raises(rmqstore.StorePathError, match=f"neither a data set nor a store at .*: {what}"):
            plan(str(path), view)
    with pytest.raises(rmqstore.IllegalArgumentError, match="is a URI"):
        plan(f"file://{tmp_path}/one", view)
