"""A session whose JVM is killed: what is told, and that nothing of stopping it hides that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rmqstore.spark.sessions import why_not

_PROGRAM = """
import os, signal, sys
from rmqstore.errors import SparkLostError, TransferError
from rmqstore.spark.sessions import session

try:
    with session(quick=True) as spark:
        os.kill(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
        try:
            spark.range(3).count()
        except Exception as error:
            if sys.argv[1] == "half done":
                raise TransferError("job 'nightly' is half done") from error
            raise
except (SparkLostError, TransferError) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("given", "told"),
    [("raw", "SparkLostError Spark's process, the JVM, is gone"), ("half done", "TransferError job 'nightly' is half done")],
)
def test_a_session_whose_jvm_is_killed_says_so_unless_an_error_of_ours_says_more(given: str, told: str) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    run = subprocess.run([sys.executable, "-c", _PROGRAM, given], capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(told)
