"""PySpark and rmqstore: data sets of stores as a data source, one shard a task (docs/spark.md).

Spark needs the extra ``spark`` (PySpark 4.2 or newer) and Java 17; importing this package needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqstore.batch import IN_SCHEMA
from rmqstore.errors import ConfigError
from rmqstore.spark.columns import ddl
from rmqstore.spark.dataset import Dataset
from rmqstore.spark.ingest import ShardReport
from rmqstore.spark.routing import shard_of
from rmqstore.spark.running import HandOverReport, ScheduleReport, hand_over, migrate, schedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = ddl(IN_SCHEMA)
"""The columns of a message in Spark's DDL; all but topic and body may be missing."""

_PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"

__all__ = [
    "SCHEMA",
    "Dataset",
    "HandOverReport",
    "ScheduleReport",
    "ShardReport",
    "hand_over",
    "migrate",
    "register",
    "schedule",
    "shard_of",
]


def register(spark: SparkSession, *, push_down: bool = False) -> None:
    """Make the format ``rmqstore`` known to a session.

    Args:
        push_down: let reads take conditions on ``topic`` and ``deliver_at_ms`` along. The options ``topic``, ``from_ms`` and ``to_ms`` do
            the same without a risk: Spark 4.3 keeps what was pushed into a frame that ``load`` gave, and the next query on the same frame,
            with other conditions or none, gets the rows of the first one. So with this, load a new frame for each query.

    Raises:
        ConfigError: ``push_down`` without ``spark.sql.python.filterPushdown.enabled``, with which Spark would refuse every read.
    """
    from rmqstore.spark.source import PushdownSource, RmqstoreSource

    if push_down and spark.conf.get(_PUSH_DOWN, "false") != "true":
        raise ConfigError(f"push_down needs a session with {_PUSH_DOWN} = true")
    spark.dataSource.register(PushdownSource if push_down else RmqstoreSource)
