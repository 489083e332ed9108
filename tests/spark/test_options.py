"""Options and pushed conditions of the data source, looked at without a session."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
from rmqstore.spark import Dataset
from rmqstore.spark.readout import View, Wanted
from tests.spark.datasets import ENGINE, ENGINES, committed, ingested, rows

pytest.importorskip("pyspark", reason="needs PySpark", exc_type=ImportError)

from pyspark.sql.datasource import EqualTo, GreaterThan, LessThanOrEqual
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from rmqstore.spark.source import JobWriter, PushdownReader, RmqstoreSource

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")
SCHEMA = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])


def writer(path: Path, **options: str) -> JobWriter:
    return RmqstoreSource({"path": str(path), "engine": ENGINE, **options}).writer(SCHEMA, overwrite=False)


def test_a_time_that_is_none_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(rmqstore.IllegalArgumentError, match="now_ms"):
        writer(tmp_path / "data", now_ms="-5")
    assert list(tmp_path.iterdir()) == []


def test_a_task_need_not_wait_for_a_lock(tmp_path: Path) -> None:
    assert writer(tmp_path / "data", lock_wait_ms="0")._lock_wait_ms == 0
    assert writer(tmp_path / "data")._lock_wait_ms == 600_000


def test_a_condition_does_not_show_system_topics(tmp_path: Path) -> None:
    condition = EqualTo(("topic",), "%RETRY%g")
    hidden = PushdownReader(str(tmp_path), Wanted(view=View.MESSAGES), 10)
    assert list(hidden.pushFilters([condition])) == [condition]
    shown = PushdownReader(str(tmp_path), Wanted(view=View.MESSAGES, system=True), 10)
    assert list(shown.pushFilters([condition])) == []


def test_conditions_on_the_last_times_are_read(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=ENGINE)
    ingested(committed(dataset, "load", rows(0, 10)))
    for condition, count in ((LessThanOrEqual(("deliver_at_ms",), 2**63 - 1), 10), (GreaterThan(("deliver_at_ms",), 2**63 - 1), 0)):
        reader = PushdownReader(str(dataset.path), Wanted(view=View.TIMERS), 100)
        assert list(reader.pushFilters([condition])) == []
        assert sum(len(batch) for part in reader.partitions() for batch in reader.read(part)) == count
