"""A stream that consumes as a group, played as Spark plays it: what is leased, given again after a crash, acked, and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.cli.doctor import Level, examine
from rmqstore.clock import SystemClock
from rmqstore.spark import Dataset
from rmqstore.spark.jobs import ShardProgress
from rmqstore.spark.resharding import reshard_all
from rmqstore.store.reader import ReadStore
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, SECOND_MS, committed, killed, rows, served

pytest.importorskip("pyspark", reason="needs PySpark", exc_type=ImportError)

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from rmqstore.spark import popping
from rmqstore.spark.popping import GroupReader
from rmqstore.spark.source import RmqstoreSource

pytestmark = pytest.mark.skipif(not ENGINE, reason="no durable engine is installed")
SCHEMA = StructType().add("body", "binary").add("attempt", "integer").add("receipt", "string").add("shard", "integer")
LEASE_MS = 60_000
MESSAGES = 20

Offset = dict[str, Any]


class Time:
    """The machine's time."""

    now_ms = NOW_MS


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    at = Time()
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: at.now_ms)
    return at


@pytest.fixture
def orders(dataset: Dataset, time: Time) -> Dataset:
    """Twenty messages that are due, in two shards."""
    sent(dataset, 0, MESSAGES)
    return dataset


def sent(dataset: Dataset, first: int, behind: int) -> None:
    for shard in dataset.shards:
        with dataset.open_shard(shard) as store:
            store.send_batch([rmqstore.Message("orders", b"%d" % number) for number in range(first, behind) if number % 2 == shard])


def reader_of(dataset: Dataset, **options: str) -> GroupReader:
    given = {"path": str(dataset.path), "view": "messages", "topic": "orders", "group": "billing", "invisible_ms": str(LEASE_MS), **options}
    reader = RmqstoreSource(given).streamReader(SCHEMA)
    assert isinstance(reader, GroupReader)
    return reader


def begun(reader: GroupReader) -> Offset:
    """The first micro-batch of a query, which is empty."""
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.partitions(reader.initialOffset(), start) == []
    return start


def latest(reader: GroupReader, start: Offset) -> Offset:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def popping_from(dataset: Dataset, **options: str) -> tuple[GroupReader, Offset, Offset]:
    """A query and its second micro-batch, the first one that has rows."""
    reader = reader_of(dataset, **options)
    start = begun(reader)
    return reader, start, latest(reader, start)


def found(reader: GroupReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def lags(dataset: Dataset) -> Iterator[tuple[int, int, int]]:
    """What is ready, leased, and waits to be given again, shard by shard."""
    for shard in dataset.shards:
        with dataset.open_shard(shard) as store:
            lag = store.lag("orders", "billing")
            yield lag.ready, lag.in_flight, lag.retry


def popped_elsewhere(dataset: Dataset) -> list[int]:
    """What another consumer of the group gets."""
    bodies = []
    for shard in dataset.shards:
        with dataset.open_shard(shard) as store:
            store.tick()
            bodies += [int(message.body) for message in store.pop("orders", "billing")]
    return sorted(bodies)


def test_a_micro_batch_is_leased_until_the_next_look_acks_it(orders: Dataset) -> None:
    reader, start, end = popping_from(orders)
    assert numbers(found(reader, start, end)) == list(range(MESSAGES))
    assert {row["shard"] for row in found(reader, start, end)} == {0, 1}
    assert popped_elsewhere(orders) == []
    assert list(lags(orders)) == [(0, MESSAGES // 2, 0)] * 2
    assert latest(reader, end) == end
    assert list(lags(orders)) == [(0, 0, 0)] * 2
    sent(orders, MESSAGES, MESSAGES + 3)
    assert numbers(found(reader, end, latest(reader, end))) == list(range(MESSAGES, MESSAGES + 3))


def test_a_look_that_was_killed_before_its_end_leases_the_same_again(orders: Dataset) -> None:
    start = begun(reader_of(orders))
    with killed(popping, "sync_path", 0):
        latest(reader_of(orders), start)
    assert list(lags(orders)) == [(0, MESSAGES // 2, 0)] * 2
    reader = reader_of(orders)
    reader.prepareForTriggerAvailableNow()
    again = found(reader, start, latest(reader, start))
    assert (numbers(again), {row["attempt"] for row in again}) == (list(range(MESSAGES)), {1})


def test_a_look_that_was_killed_follows_its_note_whatever_came_since(orders: Dataset) -> None:
    reader, _, offset = popping_from(orders)
    latest(reader, offset)
    with orders.open_shard(1) as store:
        store.send_batch([rmqstore.Message("orders", b"%d" % number) for number in range(3000)])
    with killed(rmqstore.Store, "pop_batch", 2):
        reader_of(orders, maxRowsPerBatch="2500").latestOffset(offset, ReadMaxRows(2500))
    sent(orders, 5000, 9000)
    again = reader_of(orders)
    got = found(again, offset, latest(again, offset))
    assert (len(got), {row["shard"] for row in got}) == (2500, {1})
    assert [in_flight for _, in_flight, _ in lags(orders)] == [0, 2500]


def test_a_micro_batch_that_is_planned_again_has_the_same_rows_whatever_became_of_its_leases(orders: Dataset, time: Time) -> None:
    reader, start, end = popping_from(orders)
    before = found(reader, start, end)
    time.now_ms += LEASE_MS + SECOND_MS
    assert popped_elsewhere(orders) == list(range(MESSAGES))
    sent(orders, MESSAGES, MESSAGES + 2)
    reader = reader_of(orders)
    assert found(reader, start, end) == before
    # Their acks come too late, and take nothing from the other consumer.
    assert numbers(found(reader, end, latest(reader, end))) == [MESSAGES, MESSAGES + 1]
    assert [in_flight for _, in_flight, _ in lags(orders)] == [MESSAGES // 2 + 1] * 2


def test_what_was_not_acked_in_time_comes_in_a_later_micro_batch(orders: Dataset, time: Time) -> None:
    reader, _, end = popping_from(orders)
    time.now_ms += LEASE_MS + SECOND_MS
    for shard in orders.shards:
        with orders.open_shard(shard) as store:
            store.tick()
    again = found(reader, end, latest(reader, end))
    assert (numbers(again), {row["attempt"] for row in again}) == (list(range(MESSAGES)), {2})


def test_a_checkpoint_that_lost_its_last_micro_batch_gets_the_same_one_again(orders: Dataset, time: Time) -> None:
    """The sink may have it, and would pass over whatever else comes under its number."""
    reader = reader_of(orders, maxRowsPerBatch="8")
    start = begun(reader)
    first = latest(reader, start)
    second = latest(reader, first)  # acks the first one
    before = found(reader, start, second)
    time.now_ms += LEASE_MS + SECOND_MS
    again = reader_of(orders, maxRowsPerBatch="8")
    assert (latest(again, start), latest(again, first)) == (first, second)
    assert found(again, start, second) == before
    third = latest(again, second)
    assert numbers(before + found(again, second, third)) == list(range(MESSAGES))
    with pytest.raises(rmqstore.TransferError, match="its checkpoint was set back"):
        latest(reader_of(orders), start)


def test_a_query_that_ends_with_what_waits_acks_before_it_counts_that(orders: Dataset, time: Time) -> None:
    _, _, end = popping_from(orders)
    time.now_ms += LEASE_MS + SECOND_MS  # nobody looked since, so the leases that ended can still be acked
    reader = reader_of(orders)
    reader.prepareForTriggerAvailableNow()
    assert latest(reader, end) == end
    assert list(lags(orders)) == [(0, 0, 0)] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_who_flushes_later_neither_hides_what_waits_nor_keeps_leases_and_acks_in_memory(tmp_path: Path, engine: str) -> None:
    settings = {"flush": "async", "flush_interval_ms": 3_600_000}
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine, settings=settings)
    with served(dataset.shard_path(0)) as store:
        store.send_batch([rmqstore.Message("orders", b"%d" % number) for number in range(MESSAGES)])
        reader = reader_of(dataset)
        start = begun(reader)
        reader.prepareForTriggerAvailableNow()
        end = latest(reader, start)
        assert numbers(found(reader, start, end)) == list(range(MESSAGES))
        for in_flight in (MESSAGES, 0):
            with ReadStore(dataset.shard_path(0), {}) as view:
                lag = view.lag("orders", "billing")
                assert (lag.ready, lag.in_flight) == (0, in_flight)
            assert latest(reader, end) == end


def test_an_ack_that_was_cut_short_is_made_again(orders: Dataset) -> None:
    reader, _, end = popping_from(orders)
    with killed(rmqstore.Store, "ack"):
        latest(reader, end)
    assert sorted(in_flight for _, in_flight, _ in lags(orders)) == [0, MESSAGES // 2]
    assert latest(reader_of(orders), end) == end
    assert list(lags(orders)) == [(0, 0, 0)] * 2


def test_rounds_are_bounded_and_shared_out_and_their_files_go(orders: Dataset) -> None:
    reader = reader_of(orders, maxRowsPerBatch="7")
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    offset, sizes = begun(reader), []
    reader.prepareForTriggerAvailableNow()
    while (end := latest(reader, offset)) != offset:
        got = found(reader, offset, end)
        sizes.append([sum(row["shard"] == shard for row in got) for shard in orders.shards])
        sent(orders, 100 * len(sizes), 100 * len(sizes) + 2)
        offset = end
        assert len(list((orders.path / "streams").glob("*/*"))) <= 4
    assert [sum(each) for each in sizes] == [7, 7, 6]
    assert all(abs(first - second) <= 1 for first, second in sizes[:2])
    assert numbers(found(reader, offset, reader.latestOffset(offset, ReadMaxRows(2)))) == []
    whole = reader_of(orders)
    assert len(found(whole, offset, whole.latestOffset(offset, ReadAllAvailable()))) == 6


@pytest.fixture
def pops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that streams pop, as they come."""
    popped, shards = GroupReader._popped, []

    def noting(reader: GroupReader, shard: int, *given: Any) -> Any:
        shards.append(shard)
        return popped(reader, shard, *given)

    monkeypatch.setattr(GroupReader, "_popped", noting)
    return shards


def used_by_others(dataset: Dataset, first: int, behind: int) -> None:
    """Let another group pop and ack what comes now, in every shard, and what all groups have acked be reclaimed."""
    for shard in dataset.shards:
        with dataset.open_shard(shard) as store:
            store.pop("orders", "others")
    sent(dataset, first, behind)
    for shard in dataset.shards:
        with dataset.open_shard(shard) as store:
            store.ack(store.pop("orders", "others", max_messages=32))
            for _ in range(3):
                store.tick()


@pytest.mark.parametrize("init", ["min", "max"])
@pytest.mark.parametrize("stops", [False, True])
def test_a_look_at_an_empty_topic_makes_the_group_one_of_it_once(tmp_path: Path, init: str, stops: bool, pops: list[int]) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=3, engine=ENGINE, settings={"init": init})
    reader = reader_of(dataset, maxRowsPerBatch="1000")
    start = begun(reader)
    for _ in range(3):
        if stops:
            reader.prepareForTriggerAvailableNow()
        assert latest(reader, start) == start
    assert pops == [0, 1, 2]
    used_by_others(dataset, 0, MESSAGES)
    if stops:
        reader.prepareForTriggerAvailableNow()
    assert numbers(found(reader, start, latest(reader, start))) == list(range(MESSAGES))


def test_a_group_becomes_one_of_the_topic_in_each_shard_though_a_micro_batch_has_one_message(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=3, engine=ENGINE)
    sent(dataset, 0, MESSAGES)  # the third shard stays empty
    reader = reader_of(dataset, maxRowsPerBatch="1")
    offset = begun(reader)
    for _ in dataset.shards:
        offset = latest(reader, offset)
    for shard in dataset.shards:
        with ReadStore(dataset.shard_path(shard), {}) as view:
            assert [each.group for each in view.groups.subscriptions()] == ["billing"]


def test_a_query_that_stops_takes_at_most_a_message_of_a_shard_that_came_behind_its_count(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(dataset)
    offset = begun(reader)
    reader.prepareForTriggerAvailableNow()
    waiting, sizes = GroupReader._waiting, []

    def late(of: GroupReader) -> int:
        count = waiting(of)
        sent(dataset, 0, MESSAGES)
        return count

    monkeypatch.setattr(GroupReader, "_waiting", late)
    while (end := latest(reader, offset)) != offset:
        sizes.append(len(found(reader, offset, end)))
        offset = end
    assert sizes == [1, 1]


def test_a_query_that_stops_ends_though_its_micro_batches_take_longer_than_a_group_may_be_silent(dataset: Dataset, time: Time) -> None:
    """And messages come all the time: each look finds that the group must pop again, or counts as gone."""
    for shard in dataset.shards:
        path = dataset.shard_path(shard) / "rmqstore.toml"
        path.write_text(f"{path.read_text() if path.exists() else ''}\ngroup_expiry_ms = {8 * SECOND_MS}\n")
    sent(dataset, 0, MESSAGES)
    reader = reader_of(dataset)
    offset = begun(reader)
    reader.prepareForTriggerAvailableNow()
    sizes = []
    while (end := latest(reader, offset)) != offset:
        sizes.append(len(found(reader, offset, end)))
        assert sum(sizes) <= MESSAGES, "it takes what came behind its begin"
        sent(dataset, 0, MESSAGES)
        time.now_ms += 2 * SECOND_MS
        offset = end
    assert sum(sizes) == MESSAGES


@pytest.mark.parametrize("is_served", [False, True])
def test_a_group_that_only_looks_does_not_count_as_gone(tmp_path: Path, time: Time, pops: list[int], is_served: bool) -> None:
    """As with a consumer, an eighth of the time is told apart."""
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=ENGINE, settings={"group_expiry_ms": 80 * SECOND_MS})
    reader = reader_of(dataset)
    start = begun(reader)

    def looked() -> None:
        for _ in range(30):
            time.now_ms += 5 * SECOND_MS
            assert latest(reader, start) == start

    if is_served:  # by a clock that stands still, so a pop changes nothing there, and yet is not made by every look
        with served(dataset.shard_path(0)):
            looked()
    else:
        looked()
    assert len(pops) == 15
    if not is_served:
        used_by_others(dataset, 0, MESSAGES)
        assert numbers(found(reader, start, latest(reader, start))) == list(range(0, MESSAGES, 2))


def test_timers_that_are_due_are_handed_over_where_no_job_is_half_done(orders: Dataset, time: Time) -> None:
    for shard in orders.shards:
        with orders.open_shard(shard) as store:
            store.send_batch(rows(100 + shard, 1))
    job = committed(orders, "load", rows(200, 2))
    job.note_progress(1, ShardProgress(begun_ms=NOW_MS))
    time.now_ms += 1000 * SECOND_MS
    reader = reader_of(orders)
    start = begun(reader)
    assert numbers(found(reader, start, latest(reader, start))) == [*range(MESSAGES), 100]


def test_a_query_goes_on_in_the_shards_that_a_resharding_made(orders: Dataset) -> None:
    reader, _, end = popping_from(orders)
    assert latest(reader, end) == end  # acked: nothing is leased, which a resharding refuses
    reshard_all(Dataset.open(orders.path), 5)
    made = Dataset.open(orders.path)
    sent(made, MESSAGES, MESSAGES + 10)
    for shard in range(2, 5):
        with made.open_shard(shard) as store:
            store.send(rmqstore.Message("orders", b"%d" % (100 + shard)))
    got = found(reader, end, latest(reader, end))
    assert (numbers(got), {row["shard"] for row in got}) == ([*range(MESSAGES, MESSAGES + 10), 102, 103, 104], set(range(5)))


def test_what_is_not_there_any_more_is_told(orders: Dataset) -> None:
    reader, start, end = popping_from(orders)
    (file,) = (orders.path / "streams").glob("*/*.arrow")
    whole = file.read_bytes()
    footer_at = len(whole) - 10 - int.from_bytes(whole[-10:-6], "little")
    schema = pa.schema([("shard", pa.int32())])
    with pa.BufferOutputStream() as sink:
        pa.ipc.new_file(sink, schema).close()
        others = bytes(sink.getvalue())
    for damaged in (
        whole[:-7],
        whole[:footer_at] + bytes(8) + whole[footer_at + 8 :],
        whole.replace(b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"),
        whole.replace(b"orders", b"order\xff"),
        others,
    ):
        assert damaged != whole
        file.write_bytes(damaged)
        with pytest.raises(rmqstore.CorruptStoreError, match="cannot be read"):
            reader.partitions(start, end)
    file.unlink()
    with pytest.raises(rmqstore.TransferError, match="its checkpoint was set back"):
        reader.partitions(start, end)


def test_a_note_that_is_damaged_is_named(orders: Dataset) -> None:
    reader = reader_of(orders)
    start = begun(reader)
    note = orders.path / "streams" / start["consumer"] / "1.json"
    note.parent.mkdir(parents=True)
    (note.parent / "of others.arrow").write_bytes(b"")
    for content in (b"", b"{", b'{"shards": [0]}', b'{"shards": 1, "most": 2}'):
        note.write_bytes(content)
        with pytest.raises(rmqstore.CorruptStoreError, match="when it is removed, the query goes on") as caught:
            latest(reader, start)
        assert caught.value.file == str(note)
    note.unlink()
    assert numbers(found(reader, start, latest(reader, start))) == list(range(MESSAGES))


def test_consumers_are_named_and_what_a_kill_left_of_a_pop_is_removed(orders: Dataset) -> None:
    _, _, end = popping_from(orders)
    (place,) = (orders.path / "streams").iterdir()
    left = place / "2.0a1b2c3d.new"
    left.write_bytes(b"a part")
    (orders.path / "streams" / "empty").mkdir()
    told = [each.text for each in examine(orders.path, deep=False) if each.check == "streams"]
    assert len(told) == 2
    assert any(f"consumer {place.name} of group billing popped round 1 of topic orders" in each and str(place) in each for each in told)
    assert any("consumer empty has popped nothing yet" in each for each in told)
    (place / "1.arrow").write_bytes(b"no Arrow")
    (bad,) = [each for each in examine(orders.path, deep=False) if each.level is Level.WARNING and each.check == "streams"]
    assert f"round 1 of consumer {place.name} cannot be read" in bad.text
    (place / "1.arrow").unlink()
    latest(reader_of(orders), end)
    assert not left.exists()


def test_options_that_make_no_stream_of_a_group_are_refused(orders: Dataset, tmp_path: Path) -> None:
    for options, told in (
        ({"topic": ""}, "topic"),
        ({"group": "no group"}, "group"),
        ({"invisible_ms": "0"}, "invisible_ms must be 1 or more"),
        ({"view": "timers"}, "rmqstore.spark.hand_over"),
    ):
        with pytest.raises(rmqstore.IllegalArgumentError, match=told):
            reader_of(orders, **options)
    with pytest.raises(rmqstore.IllegalArgumentError, match="option topic is missing"):
        RmqstoreSource({"path": str(orders.path), "view": "messages", "group": "billing"}).streamReader(SCHEMA)
    for name in ("startingOffsets", "part_rows", "from_ms"):
        with pytest.raises(rmqstore.ConfigError, match=f"{name} is unknown to streams of a group"):
            reader_of(orders, **{name: "1"})
    rmqstore.open(tmp_path / "store", engine=ENGINE, services=False).close()
    with pytest.raises(rmqstore.StorePathError, match="that is a single store"):
        RmqstoreSource({"path": str(tmp_path / "store"), "view": "messages", "topic": "t", "group": "g"}).streamReader(SCHEMA)
