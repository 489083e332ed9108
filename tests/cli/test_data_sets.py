"""Commands that meet a data set: ``doctor`` looks it over, finishes and undoes; others name its shards."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from rmqstore.spark import Dataset
from rmqstore.spark.ingest import ingest_shard
from rmqstore.spark.jobs import Job
from rmqstore.spark.staging import stage
from tests.cli.conftest import ENGINE, Command


@pytest.fixture(autouse=True)
def now(cli: Command) -> None:
    """Doctors compare the clock with the times of files, so it is that of the machine."""
    cli.clock.set(time.time_ns() // 1_000_000)


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


def test_other_commands_name_the_shards(cli: Command, half: Job) -> None:
    for command in (("topics", "list"), ("inspect",)):
        assert "name one of its shards" in cli.bad(1, *command, "data")
    assert cli.good("timers", str(half.dataset.shard_path(0))).out


def test_the_doctor_gives_a_job_up(cli: Command, half: Job) -> None:
    given_up = cli.good("doctor", "data", "--drop-job", half.id)
    assert f"Job {half.id}: given up" in given_up.err
    assert "all were sent" in given_up.err
    assert "nothing was sent" in given_up.err
    assert cli("doctor", "data", "--finish", "--drop-job", half.id).code == 2
