"""Sessions of which a part is killed: the JVM, which is told whatever hides it, or a worker of a cluster, which costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rmqstore.spark.sessions import why_not
from tests.spark.datasets import ENGINE

_PROGRAM = """
import os, signal
from rmqstore.errors import SparkLostError, TransferError
from rmqstore.spark.sessions import session

try:
    with session(quick=True):
        try:
            with session(quick=True) as spark:
                os.kill(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
                spark.range(3).count()
        except SparkLostError as error:
            print(error)
            raise TransferError("job 'nightly' is half done") from error
except TransferError as error:
    print(error)
"""


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_session_whose_jvm_is_killed_says_so_unless_an_error_of_ours_says_more() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    lost, more = run.stdout.splitlines()
    assert lost.startswith("Spark's process, the JVM, is gone")
    assert more == "job 'nightly' is half done"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not ENGINE, reason="no durable engine is installed")
def test_an_executor_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    pytest.importorskip("rmqstore_benchmarks")
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    options = ["--cluster", "--failures", "executor", "--engine", ENGINE, "--messages", "2000", "--shards", "2", "--report", "load.json"]
    subprocess.run([sys.executable, "-m", "rmqstore", "load-test", *options], cwd=tmp_path, timeout=560, check=True)
    (found,) = json.loads((tmp_path / "load.json").read_text())["engines"]
    assert found["injected"] == {"executor": 1}
    assert found["closed"]["died"] > 0
    assert found["problems"] == []
