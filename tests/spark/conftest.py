"""What tests of data sets share: an empty one; and one quiet Spark session, without which those that need it are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqstore.spark import Dataset, register
from rmqstore.spark.sessions import session, why_not
from tests.spark.datasets import ENGINE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CONNECT = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin", "spark.connect.grpc.binding.port": "0"}
"""Settings with which a session serves clients of Spark Connect as well, at a port of its choice."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at a time, four attempts each."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with session("local[2,4]", quick=True, settings=CONNECT) as running:
        register(running)
        yield running


@pytest.fixture(autouse=True)
def _two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt of a shard is a process, and the second one shows all that a fourth would."""
    monkeypatch.setattr("rmqstore.spark.ingest.ATTEMPTS", 2)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows or less at a time, when they are staged and when they are sent."""
    for module in ("staging", "jobs"):
        monkeypatch.setattr(f"rmqstore.spark.{module}.CHUNK_ROWS", 10)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two empty shards."""
    return Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)
