"""Options and pushed conditions of the data source, looked at without a session."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
from tests.spark.datasets import ENGINE, ENGINES

pytest.importorskip("pyspark", reason="needs PySpark", exc_type=ImportError)

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from rmqstore.spark.source import JobWriter, RmqstoreSource

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")
SCHEMA = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])


def writer(path: Path, **options: str) -> JobWriter:
    return RmqstoreSource({"path": str(path), "engine": ENGINE, **options}).writer(SCHEMA, overwrite=False)


def test_a_time_that_is_none_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(rmqstore.IllegalArgumentError, match="now_ms"):
        writer(tmp_path / "data", now_ms="-5")
    assert list(tmp_path.iterdir()) == []


def test_a_number_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rmqstore.IllegalArgumentError, match="option to_ms must be 9223372036854775807 at most"):
        RmqstoreSource({"path": str(tmp_path), "to_ms": str(2**63)}).schema()


def test_a_task_need_not_wait_for_a_lock(tmp_path: Path) -> None:
    assert writer(tmp_path / "data", lock_wait_ms="0")._lock_wait_ms == 0
    assert writer(tmp_path / "data")._lock_wait_ms == 600_000
