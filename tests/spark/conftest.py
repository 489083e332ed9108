"""One quiet Spark session for all tests of this directory that need one; they are left out where Spark cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rmqstore.spark import register
from rmqstore.spark.sessions import session, why_not

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at a time, four attempts each; push-down is possible, and off until a test asks for it."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with session("local[2,4]", quick=True, settings={"spark.sql.python.filterPushdown.enabled": "true"}) as running:
        register(running)
        yield running
