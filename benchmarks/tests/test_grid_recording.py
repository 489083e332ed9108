"""What is read from the machine: bytes, blocks, RocksDB's log, and a limit on memory that holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rmqstore_benchmarks.grid import recording
from rmqstore_benchmarks.grid.recording import (
    FLOOR_BYTES,
    NoLimitError,
    Phase,
    anon_bytes,
    compaction_bytes,
    limit_for,
    limited_group,
    measured,
    sync_files,
)
from rmqstore_benchmarks.grid.tables import buckets_of

MIB = 1024 * 1024
_TAKE = """
import sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
taken = bytearray(b"x" * (int(sys.argv[2]) * 1024 * 1024))
print(len(taken))
"""


def test_what_is_written_is_counted_and_what_a_machine_cannot_tell_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(None, 1), (3, 3)])
    monkeypatch.setattr(recording, "device_bytes", lambda directory: next(readings))
    (tmp_path / "sub").mkdir()
    columns = measured(Phase("r", 0, "fill"), tmp_path, lambda _: (tmp_path / "sub" / "file").write_bytes(os.urandom(MIB)))
    assert (columns["wchar_bytes"] or MIB) >= MIB
    assert columns["disk_bytes"] >= MIB
    assert columns["wall_s"] > 0
    assert [columns[name] for name in ("compaction_bytes", "device_write_bytes", "device_read_bytes")] == [None, None, 2]
    sync_files(tmp_path, forget=True)
    assert (tmp_path / "sub" / "file").stat().st_size == MIB
    assert (anon_bytes() or MIB) >= MIB


def test_compaction_is_what_rocksdb_logs(tmp_path: Path) -> None:
    assert compaction_bytes(tmp_path) is None
    (tmp_path / "db").mkdir()
    line = '2026/01/01-00:00:00 7f EVENT_LOG_v1 {"time_micros": 1, "event": "%s", "total_output_size": %d, "total_blob_output_size": 5}\n'
    (tmp_path / "db" / "LOG").write_text(line % ("compaction_finished", 100) + line % ("flush_finished", 7) + "words\n")
    (tmp_path / "db" / "LOG.old.1").write_text(line % ("compaction_finished", 1000))
    assert compaction_bytes(tmp_path) == 1110


def test_a_phase_counts_by_the_second() -> None:
    phase = Phase("r", 0, "mixed")
    begin = phase.begin_ns
    phase.call("schedule", begin, begin + 2_000_000, 10)
    phase.call("schedule", begin + 1_000_000_000, begin + 1_250_000_000, 10, intended_ns=begin + 900_000_000)
    phase.count("hand_over", 7, begin + 2_000_000_000)
    phase.late(np.array([5_000_000, -3]))
    phase.look()
    tables = {name: table.to_pylist() for name, table in phase.tables({"messages": 20}).items()}
    (row,) = tables["phases"]
    assert (row["calls"], row["call_s"], row["messages"], row["cpu_s"]) == (2, 0.252, 20, None)
    assert row["anon_peak_bytes"] == tables["seconds"][0]["anon_bytes"]
    assert [tuple(each[name] for name in ("second", "scheduled", "handed_over", "longest_call_ms")) for each in tables["seconds"]] == [
        (0, 10, 0, 2.0),
        (1, 10, 0, 250.0),
        (2, 0, 7, None),
    ]
    slow, stalled, late = buckets_of(np.array([2_000_000, 350_000_000, 5_000_000])).tolist()
    expected = {("schedule", slow): 1, ("schedule", stalled): 1, ("lateness", late): 1, ("lateness", 0): 1}
    assert {(each["operation"], each["bucket"]): each["n"] for each in tables["histograms"]} == expected


def test_a_quarter_of_the_backlog_but_enough_to_run() -> None:
    assert limit_for(4 * 2**30) == 2**30
    assert limit_for(1000) == FLOOR_BYTES


def test_a_child_in_the_group_has_no_more_than_the_limit() -> None:
    try:
        with limited_group("test of the limit", 64 * MIB) as group:
            small, large = (
                subprocess.run([sys.executable, "-c", _TAKE, str(group), str(mib)], capture_output=True, check=False, timeout=60)
                for mib in (16, 256)
            )
            assert group.is_dir()
    except NoLimitError as error:
        pytest.skip(str(error))
    assert small.returncode == 0
    assert large.returncode == -signal.SIGKILL
    assert not group.exists()
