"""Commands that meet a data set: ``doctor`` looks it over, finishes and undoes; others ask all its shards, or name one."""

from __future__ import annotations

import pyarrow as pa
import pytest

import rmqstore
from rmqstore import Message
from rmqstore.spark import Dataset
from rmqstore.spark.ingest import ingest_shard
from rmqstore.spark.jobs import Job
from rmqstore.spark.staging import stage
from rmqstore_conformance.stores import HOUR_MS
from tests.cli.conftest import ENGINE, Command
from tests.spark.datasets import ENGINES

pytestmark = pytest.mark.usefixtures("now")


@pytest.fixture
def half(cli: Command) -> Job:
    """A job of which one shard of two has its part."""
    job = Job(Dataset.create(cli.data, shards=2, engine=ENGINE), "half")
    names = [str(number) for number in range(40)]
    columns = {"topic": ["orders"] * 40, "body": [b"x"] * 40, "keys": [[name] for name in names], "deliver_at_ms": [4_000_000_000_000] * 40}
    job.commit([stage(job, [pa.record_batch(columns)], 0)])
    ingest_shard(job, 0)
    return job


def test_the_doctor_names_and_finishes_a_half_done_job(cli: Command, half: Job) -> None:
    ill = cli("doctor", "data")
    assert ill.code == 3
    assert "half of 40 messages has not come to its end: some are missing in shard 1" in ill.out
    finished = cli.good("doctor", "data", "--finish")
    assert "messages were sent that were missing" in finished.err
    assert half.missing_shards() == []
    checks = {each["check"] for each in cli.good("doctor", "data", "--json").json["checks"]}
    assert {"data set", "shards"} <= checks


def test_the_doctor_undoes_what_was_not_sent(cli: Command, half: Job) -> None:
    kept = cli("doctor", "data", "--undo")
    assert kept.code == 3
    assert "so it can only be finished" in kept.err
    assert cli("doctor", "data", "--undo", "--finish").code == 2


@pytest.fixture
def full(cli: Command) -> Dataset:
    """Two shards, in each of which group g holds one of three messages, gave one up, and a timer waits whose number is the shard's."""
    dataset = Dataset.create(cli.data, shards=2, engine=ENGINE)
    for shard in dataset.shards:
        with rmqstore.open(dataset.shard_path(shard), services=False, clock=cli.clock) as store:
            store.send_batch([Message("mails", b"x", message_id=f"m{shard}-{number}", keys=("all",)) for number in range(3)])
            _, bad = store.pop("mails", "g", max_messages=2, invisible_ms=HOUR_MS)
            store.reject(bad, reason=f"why {shard}")
            store.send(Message("orders", b"later", keys=("all",)), delay_ms=HOUR_MS * (shard + 1))
    return dataset


def test_commands_that_make_no_sense_name_a_shard(cli: Command, full: Dataset) -> None:
    before = [path.stat().st_mtime_ns for path in sorted(full.path.rglob("*"))]
    for command in (
        ("inspect", "data"),
        ("peek", "data", "mails"),
        ("pop", "data", "mails", "-g", "g"),
        ("send", "data", "mails", "x"),
        ("pause", "data", "sends"),
        ("group", "data", "g"),
        ("schedules", "list", "data"),
        ("top", "data", "--once"),
    ):
        assert f"name one of its shards, such as {full.shard_path(0)}" in cli.bad(1, *command)
    assert [path.stat().st_mtime_ns for path in sorted(full.path.rglob("*"))] == before


def test_what_reads_answers_for_all_shards(cli: Command, full: Dataset) -> None:
    histogram = cli.good("timers", "data", "--json").json
    assert histogram["total"] == sum(bucket["count"] for bucket in histogram["buckets"]) == 2
    assert histogram["latest_ms"] - histogram["earliest_ms"] == HOUR_MS
    listed = cli.good("timers", "data", "--list", "--topic", "orders", "--json").json["timers"]
    assert [timer["deliver_at_ms"] for timer in listed] == [histogram["earliest_ms"], histogram["latest_ms"]]
    (standing,) = cli.good("lag", "data", "--json").json["lags"]
    assert {name: standing[name] for name in ("ready", "in_flight", "dead")} == {"ready": 2, "in_flight": 2, "dead": 2}
    assert [(queue["shard"], queue["next_offset"]) for queue in standing["queues"]] == [(0, 2), (1, 2)]
    assert cli.good("lag", "data", "--queues").lines[0].split()[2] == "shard"
    assert len(cli.good("leases", "data", "--json").json["leases"]) == 2
    assert len(cli.good("where", "data", "--key", "all", "--json").json["places"]) == 8
    assert "m1-2" in cli.good("peek", "data", "--id", "m1-2").out
    (topic,) = cli.good("topics", "list", "data", "--json").json["topics"]
    assert [queue["shard"] for queue in topic["queues"]] == [0, 1]
    assert cli.good("topics", "list", "data").lines[1].split()[:3] == ["mails", "2", "6"]
    assert [each["topic"] for each in cli.good("groups", "list", "data", "--json").json["groups"]] == ["mails"]
    assert cli.good("dlq", "list", "data", "--json").json == {"groups": {"g": 2}}
    assert {letter["reason"] for letter in cli.good("dlq", "list", "data", "g", "--json").json["dead_letters"]} == {"why 0", "why 1"}
    assert cli.good("verify", "data", "--json").json["differences"] == []


def test_a_difference_names_its_shard(cli: Command, full: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.store.reader.Reader.verify", lambda store: [f"{store.path.name} is ill"])
    assert cli("verify", "data").lines == ["shard 0: shard-00000 is ill", "shard 1: shard-00001 is ill"]


def test_each_shard_is_asked_to_cancel_and_to_ack(cli: Command, full: Dataset) -> None:
    first, second = (timer["handle"] for timer in cli.good("timers", "data", "--list", "--json").json["timers"])
    with rmqstore.open(full.shard_path(1), clock=cli.clock, services=False):
        assert "shard-00001" in cli.bad(1, "cancel", "data", first)
    answer = cli("cancel", "data", second, "none", "--json")
    assert answer.code == 3
    assert [item["outcome"] for item in answer.json["items"]] == ["cancelled", "unknown"]
    by_key = cli.good("cancel", "data", "--topic", "orders", "--key", "all", "--json").json
    assert [item["outcome"] for item in by_key["items"]] == ["cancelled"]
    assert cli.good("cancel", "data", first).out.startswith("cancelled")
    receipts = [lease["receipt"] for lease in cli.good("leases", "data", "--json").json["leases"]]
    assert cli.good("ack", "data", *receipts, "--json").json["all_done"]


@pytest.mark.parametrize("way", ["snapshot", "dump"])
def test_a_copy_of_a_data_set_becomes_one(cli: Command, full: Dataset, way: str) -> None:
    done = Job(full, "done")
    done.commit([stage(done, [pa.record_batch({"topic": ["orders"], "body": [b"x"], "deliver_at_ms": [4_000_000_000_000]})], 0)])
    copy, again = str(cli.root / "copy"), str(cli.root / "again")
    assert "job 'done' of data set" in cli.bad(1, way, "data", copy)
    assert not (cli.root / "copy").exists()
    for shard in done.missing_shards():
        ingest_shard(done, shard)
    done.finish()
    cli.good(way, "data", copy)
    assert "exists already" in cli.bad(1, way, "data", copy)
    if way == "snapshot":
        assert cli.good("timers", copy, "--json").json["total"] == 3
    cli.good(*(("restore",) if way == "snapshot" else ("load",)), copy, again)
    for view in (("timers", "--list"), ("lag",), ("leases",)):
        assert cli.good(view[0], again, *view[1:], "--json").json == cli.good(view[0], "data", *view[1:], "--json").json
    record = Job(Dataset.open(again), "done").record()
    assert record is not None
    assert record.is_done
    assert [entry.name for entry in cli.root.iterdir() if "." in entry.name] == []
    cli.good("doctor", again)


def test_a_dump_of_a_data_set_may_change_its_engine(cli: Command, full: Dataset) -> None:
    dump, copy = str(cli.root / "dump"), str(cli.root / "copy")
    cli.good("dump", "data", dump)
    assert cli("dump", "data", dump, "--resume").code == 2
    cli.good("load", dump, copy, "--engine", ENGINES[0], "--precision", "100ms")
    made = Dataset.open(copy)
    assert (made.manifest.engine, made.manifest.settings) == (ENGINES[0], {"precision_ms": 100})
    made.check_ready(is_served_too=True)


def test_the_doctor_gives_a_job_up(cli: Command, half: Job) -> None:
    given_up = cli.good("doctor", "data", "--drop-job", half.id)
    assert f"Job {half.id}: given up" in given_up.err
    assert "all were sent" in given_up.err
    assert "nothing was sent" in given_up.err
    assert cli("doctor", "data", "--finish", "--drop-job", half.id).code == 2
