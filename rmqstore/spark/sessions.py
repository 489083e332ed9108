"""Quiet Spark sessions on one machine or on a cluster, and whether Spark can run at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmqstore.errors import IllegalArgumentError, RmqstoreError, SparkLostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BATCH_ROWS: Final = 10_000
"""Rows of an Arrow batch between Spark and Python."""

SMALL_MESSAGES: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
"""Settings for messages of a few KiB at most, of which a whole Arrow batch fits into memory several times: Spark does not look after every
row whether a batch has its bytes."""

# The heap begins small and grows by its old part, so without a size the young one is collected every few batches.
_FAST_JVM: Final = "-XX:+UseSerialGC -Xmn512m"
_QUICK_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# What is off here reports failed tasks; the error of a job that fails for good reaches Python as an exception.
_QUIET: Final = (
    "executor.Executor",
    "scheduler.TaskSetManager",
    "scheduler.TaskSchedulerImpl",
    "util.Utils",
    "sql.execution.datasources.v2",
    "sql.execution.datasources.FileFormatWriter",
)

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.c.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
""" + "".join(f"logger.{number}.name = org.apache.spark.{name}\nlogger.{number}.level = off\n" for number, name in enumerate(_QUIET))

_LOST: Final = (
    "Spark's process, the JVM, is gone: killed, or ended for want of memory, say. What tasks were told is done, what they were at may be"
)


def why_not() -> str | None:
    """Return why Spark cannot run here; None when it can."""
    missing = [name for name in ("pandas", "pyspark") if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; pip install 'rmqstore[spark]'"
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    if java is None or subprocess.run([str(java), "-version"], capture_output=True, check=False).returncode:
        return "there is no Java runtime; Spark needs Java 17 or newer on PATH or in JAVA_HOME"
    return None


@contextmanager
def session(
    master: str | None = None, *, name: str = "rmqstore", quick: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Give a session that logs nothing but errors and stops at the end.

    Args:
        master: the cluster; by default this machine with all its cores, and up to four attempts for a task.
        name: what the cluster calls the application.
        quick: start fast rather than run fast, for small jobs: a small heap, and a compiler that does not optimise much.
        settings: further settings of Spark, which win; :data:`SMALL_MESSAGES` are some.

    Times are UTC, and speculation is off: two attempts that write one shard wait for each other.

    Raises:
        IllegalArgumentError: Spark cannot run here.
        SparkLostError: Spark's process ended while the session was in use, and no error of ours says more.
    """
    if reason := why_not():
        raise IllegalArgumentError(f"there can be no Spark session: {reason}")
    with tempfile.TemporaryDirectory(prefix="rmqstore-spark-", ignore_cleanup_errors=True) as scratch:
        Path(scratch, "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        os.environ |= {"SPARK_CONF_DIR": scratch, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
        from pyspark.sql import SparkSession

        slots = min(len(os.sched_getaffinity(0)), 8)
        given = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g" if quick else "3g",
            "spark.driver.extraJavaOptions": _QUICK_JVM if quick else _FAST_JVM,
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(slots),
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
            "spark.speculation": "false",
            **(settings or {}),
        }
        builder: Any = SparkSession.builder
        spark: SparkSession = builder.master(master or f"local[{slots},4]").appName(name).config(map=given).getOrCreate()
        try:
            yield spark
        except Exception as error:
            # An error of ours says more, such as which job is half done; what Spark was asked last says "connection refused".
            if not isinstance(error, RmqstoreError) and _is_lost(spark):
                raise SparkLostError(_LOST) from error
            raise
        finally:
            if not _is_lost(spark):
                spark.stop()


def _is_lost(spark: SparkSession) -> bool:
    """Say whether the process behind a session is gone."""
    from py4j.protocol import Py4JNetworkError

    try:
        spark.sparkContext.defaultParallelism  # noqa: B018  # asks the JVM
    except Exception as error:  # also of a session that its user stopped
        return isinstance(error, Py4JNetworkError | OSError)
    return False
