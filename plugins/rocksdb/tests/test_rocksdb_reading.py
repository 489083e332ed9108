"""Reading a RocksDB beside an owner that writes, flushes, compacts and deletes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rmqstore
from rmqstore import ManualClock, Message, StorePathError
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.kv.directory import EngineHome
from rmqstore.engine.schema import SPACES
from rmqstore_rocksdb import reading
from rmqstore_rocksdb.kv import FORMAT_VERSION, open_rocksdb
from rmqstore_rocksdb.reading import OutrunError, StandIn, view_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

_BUSY_OWNER = """
import os, sys
from pathlib import Path
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.schema import SPACES
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

kv = open_rocksdb(Path(sys.argv[1]), SPACES, RocksDBTuning(values=sys.argv[2], separate_bytes=64))
number = 0
print("ready", flush=True)
while True:
    batch = WriteBatch()
    for space in range(len(SPACES)):
        batch.put(space, b"number", number.to_bytes(8, "big"))
        batch.put(space, number.to_bytes(8, "big"), os.urandom(200))
        batch.delete_range(space, max(number - 300, 0).to_bytes(8, "big"), max(number - 200, 0).to_bytes(8, "big"))
    kv.write(batch)
    if number % 20 == 0:
        kv._db.families[number // 20 % len(SPACES)].flush()
    if number % 200 == 0:
        for family in kv._db.families:
            family.compact_range(None, None)
    number += 1
"""


@pytest.mark.parametrize("values", ["inline", "separated"])
def test_a_reader_keeps_up_with_a_busy_owner(tmp_path: Path, values: str) -> None:
    """Each of 50 states is whole: all spaces hold the same number, and every entry that belongs to it."""
    owner = subprocess.Popen([sys.executable, "-c", _BUSY_OWNER, str(tmp_path), values], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        kv = view_rocksdb(tmp_path, SPACES, RocksDBTuning(values=values))
        numbers: list[int] = []
        while len(set(numbers)) < 50:
            kv.reopen()
            found = {kv.get(space, b"number") for space in range(len(SPACES))}
            assert len(found) == 1
            number = int.from_bytes(found.pop() or b"", "big")
            numbers.append(number)
            for space in (0, len(SPACES) - 1):
                # Tables and blobs of this state are read late, when the owner has compacted them away.
                kept = [int.from_bytes(key, "big") for key, _ in kv.scan(space, b"\x00" * 8, b"number", 1000)]
                assert kept == list(range(kept[0], number + 1))
        kv.close()
    finally:
        owner.kill()
        owner.communicate()
    assert numbers == sorted(numbers)


def test_a_state_stays_when_all_its_files_are_gone(tmp_path: Path) -> None:
    for values in ("inline", "separated"):
        (tmp_path / values).mkdir()
        kv = open_rocksdb(tmp_path / values, SPACES, RocksDBTuning(values=values, separate_bytes=64))
        items = [(b"%04d" % n, os.urandom(500)) for n in range(1000)]
        batch = WriteBatch()
        batch.put_many(1, items)
        kv.write(batch)
        kv._db.families[1].flush()
        view = view_rocksdb(tmp_path / values, SPACES, RocksDBTuning(values=values))
        before = {path.name for path in (tmp_path / values / "db").glob("*.[sb][sl][to]*")}
        batch = WriteBatch()
        batch.delete_many(1, [key for key, _ in items])
        kv.write(batch)
        kv._db.families[1].flush()
        kv._db.families[1].compact_range(None, None)
        assert not before & {path.name for path in (tmp_path / values / "db").iterdir()}
        assert view.scan(1, b"", None, 2000) == items
        assert view.scan(1, b"", None, 2, reverse=True) == items[:-3:-1]
        assert view.get(1, b"0500") == items[500][1]
        view.reopen()
        assert view.scan(1, b"", None, 10) == []
        view.close()
        view.close()
        kv.close()


def test_no_stand_in_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = tmp_path / "tmp"
    places.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for values in ("inline", "separated"):
        path = tmp_path / values
        with rmqstore.open(path, engine="rocksdb", services=False, clock=ManualClock(0), rocksdb__values=values) as store:
            store.send(Message("t", b"x" * 2000))
            with rmqstore.open(path, read_only=True) as reader:
                reader.refresh()
                assert len(reader.read("t")) == 1
    assert list(places.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208


def test_an_owner_that_is_always_faster_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_rocksdb(tmp_path, SPACES, RocksDBTuning()).close()
    attempts = 0

    def outrun(self: StandIn, source: Path) -> None:
        nonlocal attempts
        attempts += 1
        raise OutrunError

    monkeypatch.setattr(StandIn, "_fill", outrun)
    with pytest.raises(StorePathError, match="faster"):
        view_rocksdb(tmp_path, SPACES, RocksDBTuning())
    assert attempts == reading._ATTEMPTS


def test_a_log_that_vanishes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check, a reader would read a manifest that needs a log, and not see that the log is gone."""
    kv = open_rocksdb(tmp_path, SPACES, RocksDBTuning())
    batch = WriteBatch()
    batch.put(0, b"a", b"1")
    kv.write(batch)
    source = EngineHome(tmp_path, "rocksdb", FORMAT_VERSION).database
    read_bytes = Path.read_bytes

    def read_then_flush(self: Path) -> bytes:
        content = read_bytes(self)
        if self.name.startswith("MANIFEST"):
            for family in kv._db.families:
                family.flush()
            more = WriteBatch()
            more.put(0, b"b", b"2")
            kv.write(more)
            for family in kv._db.families:
                family.flush()
        return content

    monkeypatch.setattr(Path, "read_bytes", read_then_flush)
    with pytest.raises(OutrunError):
        StandIn(source)
    monkeypatch.undo()
    StandIn(source).close()
    kv.close()
