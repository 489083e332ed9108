"""What tests of RocksDB's recovery begin with: the directory that a killed process left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Killed = Callable[[int, int, int], Path]

_WRITER = """
import os, signal, sys
from pathlib import Path
from rmqstore.engine.kv.base import WriteBatch
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

records, synced, value_bytes = map(int, sys.argv[2:])
kv = open_rocksdb(Path(sys.argv[1]), ("meta", "timers"), RocksDBTuning())
for number in range(records):
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), os.urandom(value_bytes))
    position = kv.write(batch)
    if number == synced - 1:
        kv.sync(position)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Return what writes records, syncs the first of them, is killed with -9, and returns its directory.

    A copy of a store that is in use would do if RocksDB did not delete files in the background while they are copied.
    """

    def directory_of(records: int, synced: int, value_bytes: int) -> Path:
        home = tmp_path_factory.mktemp("killed")
        arguments = [str(home), str(records), str(synced), str(value_bytes)]
        ended = subprocess.run([sys.executable, "-c", _WRITER, *arguments], timeout=60, capture_output=True, text=True, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        return home

    return directory_of
