"""A cluster of processes on this machine: a worker that dies while it writes loses and doubles nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rmqstore.spark import Dataset
from rmqstore.spark.sessions import why_not
from tests.spark.datasets import ENGINE, ENGINES
from tests.spark.killed_worker import NOW_MS

ROWS = 4000


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")
def test_a_worker_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    program = str(Path(__file__).with_name("killed_worker.py"))
    run = subprocess.run(
        [sys.executable, program, str(tmp_path), ENGINE, str(ROWS)], capture_output=True, text=True, timeout=380, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["killed"]
    assert found["report"]["rows"] == ROWS
    # The chunk that the killed task had sent is there, and was not sent again.
    assert 0 < found["report"]["repeated"] < ROWS
    dataset = Dataset.open(tmp_path / "data")
    numbers: list[int] = []
    for shard in dataset.shards:
        with dataset.open_shard(shard, now_ms=NOW_MS) as store:
            assert store.verify() == []
            numbers += [int(timer.message.body) for timer in store.scan(limit=2 * ROWS).timers]
    assert sorted(numbers) == list(range(ROWS))
