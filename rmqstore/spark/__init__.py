"""PySpark and rmqstore: data sets of stores as a data source, one shard a task (docs/spark.md).

Spark needs the extra ``spark`` (PySpark 4.2 or newer) and Java 17; importing this package needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqstore.schemas import IN_SCHEMA
from rmqstore.spark.cancels import cancel
from rmqstore.spark.columns import ddl, shard_of
from rmqstore.spark.dataset import Dataset
from rmqstore.spark.ingest import ShardReport
from rmqstore.spark.running import HandOverReport, ScheduleReport, hand_over, migrate, read, reshard, schedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = ddl(IN_SCHEMA)
"""The columns of a message in Spark's DDL; all but topic and body may be missing."""

__all__ = [
    "SCHEMA",
    "Dataset",
    "HandOverReport",
    "ScheduleReport",
    "ShardReport",
    "cancel",
    "hand_over",
    "migrate",
    "read",
    "register",
    "reshard",
    "schedule",
    "shard_of",
]


def register(spark: SparkSession) -> None:
    """Make the format ``rmqstore`` known to a session."""
    from rmqstore.spark.source import RmqstoreSource

    spark.dataSource.register(RmqstoreSource)
