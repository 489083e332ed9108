"""What is RocksDB's own: damaged files, tombstones, settings."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rocksdict
from hypothesis import given, strategies as st

import rmqstore_rocksdb.kv
from plugins.rocksdb.tests.opened import SPACES, numbers, open_kv, put
from rmqstore.engine.kv.base import DeleteFew, DeleteMany, DeleteRange, PutMany, Refusal, WriteBatch
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.errors import (
    CorruptStoreError,
    FormatVersionError,
    StoreClosedError,
    StoreError,
    StoreForkedError,
    StoreFullError,
    StoreLockedError,
    StorePoisonedError,
)
from rmqstore_conformance.faults.interrupting import Interrupted, interrupted
from rmqstore_conformance.stores import directory
from rmqstore_rocksdb.database import Database
from rmqstore_rocksdb.gaps import Gap, Gaps
from rmqstore_rocksdb.kv import RocksDBKV, open_rocksdb
from rmqstore_rocksdb.plugin import INFO, rmqstore_engines
from rmqstore_rocksdb.scans import Read, read_forward
from rmqstore_rocksdb.tuning import RocksDBTuning, translated

# ---------------------------------------------------------------- tables and blobs


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """A closed store and its one table file with data."""
    home = tmp_path / "engine"
    home.mkdir()
    kv = open_kv(home)
    for number in range(300):
        put(kv, number, os.urandom(1000))
    kv.close()
    return home, max(home.glob("db/*.sst"), key=lambda file: file.stat().st_size)


def test_a_damaged_block_is_found_by_every_read_that_meets_it(tables: tuple[Path, Path]) -> None:
    home, table = tables
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 0xFF
    table.write_bytes(data)
    kv = open_kv(home)
    reads: list[Callable[[], object]] = [
        lambda: kv.scan(1, b"", None, 1000),
        lambda: kv.scan(1, b"", None, 1000, reverse=True),
        lambda: [kv.get(1, number.to_bytes(4, "big")) for number in range(300)],
    ]
    for read in reads:
        with pytest.raises(CorruptStoreError) as caught:
            read()
        assert Path(caught.value.file) == table
        assert 0 < int(caught.value.offset) < len(data)
    assert len(kv.scan(1, b"", None, 100)) == 100
    kv.close()


@pytest.mark.parametrize("fate", ["gone", "cut"])
def test_a_table_file_that_is_not_whole_stops_the_open(tables: tuple[Path, Path], fate: str) -> None:
    home, table = tables
    if fate == "gone":
        table.unlink()
    else:
        table.write_bytes(table.read_bytes()[:5000])
    with pytest.raises(CorruptStoreError) as caught:
        open_kv(home)
    assert Path(caught.value.file) == table


def test_separated_values_lie_in_blob_files(tmp_path: Path) -> None:
    tuning = RocksDBTuning(values="separated", separate_bytes=512, compression="none")
    kv = open_rocksdb(tmp_path, SPACES, tuning)
    put(kv, 1, b"small")
    put(kv, 2, b"large" * 200)
    kv.close()
    assert [file.stat().st_size > 1000 for file in tmp_path.glob("db/*.blob")] == [True]
    kv = open_rocksdb(tmp_path, SPACES, tuning)
    assert [len(value) for _, value in kv.scan(1, b"", None, 5)] == [5, 1000]
    kv.close()


def test_many_range_deletes_are_flushed_out_of_memory(tmp_path: Path) -> None:
    kv = open_kv(tmp_path)
    for number in range(1100):
        batch = WriteBatch()
        batch.put(1, (number + 1).to_bytes(4, "big"), b"v")
        batch.delete_range(1, number.to_bytes(4, "big"), (number + 1).to_bytes(4, "big"))
        kv.write(batch)
    kv.sync()
    assert kv._gaps.crowded(1) == []
    assert numbers(kv) == [1100]
    kv.close()


# ---------------------------------------------------------------- gaps

keys = st.binary(min_size=1, max_size=2).map(lambda raw: bytes(byte % 8 + 97 for byte in raw))
changes = st.one_of(
    st.builds(lambda some: PutMany(0, [(key, b"") for key in some]), st.lists(keys, min_size=1, max_size=3)),
    st.builds(DeleteMany, st.just(0), st.lists(keys, min_size=1, max_size=3)),
    st.builds(lambda a, b: DeleteRange(0, min(a, b), max(a, b) + b"\x00"), keys, keys),
    st.builds(lambda a, b: DeleteFew(0, min(a, b), max(a, b) + b"\x00", ()), keys, keys),
)


@given(st.lists(st.lists(changes, min_size=1, max_size=3), max_size=15))
def test_a_gap_is_empty(batches: list[list[PutMany | DeleteMany | DeleteRange]]) -> None:
    gaps = Gaps(1)
    here: set[bytes] = set()
    for ops in batches:
        batch = WriteBatch()
        for op in ops:
            batch.ops.append(op)
            if isinstance(op, PutMany):
                here |= {key for key, _ in op.items}
            elif isinstance(op, DeleteMany):
                here -= set(op.keys)
            else:
                here = {key for key in here if not op.start <= key < op.stop}
        gaps.follow(batch)
        gap = gaps.gaps[0]
        if gap is not None:
            assert [key for key in here if gap.low <= key < gap.high] == []


def test_a_scan_teaches_nothing_about_a_state_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path)
    put(kv, 9, b"")
    batch = WriteBatch()
    batch.delete_range(1, (5).to_bytes(4, "big"), (8).to_bytes(4, "big"))
    kv.write(batch)

    def read_and_write(*args: Any) -> Read:
        found = read_forward(*args)
        put(kv, 3, b"came meanwhile")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(rmqstore_rocksdb.kv, "read_forward", read_and_write)
        assert len(kv.scan(1, b"\x00", None, 1)) == 1
    assert numbers(kv) == [3, 9]
    assert kv.scan(1, b"", (6).to_bytes(4, "big"), 1, reverse=True)[0][1] == b"came meanwhile"
    kv.close()


def test_gaps_grow_by_what_touches_them() -> None:
    gaps = Gaps(1)
    gaps.learn(0, b"a", b"b")
    assert gaps.gaps[0] is None
    batch = WriteBatch()
    batch.delete_range(0, b"f", b"h")
    batch.delete_range(0, b"h", b"k")
    gaps.follow(batch)
    assert gaps.gaps[0] == Gap(b"f", b"k")
    gaps.learn(0, b"a", b"c")
    assert gaps.gaps[0] == Gap(b"f", b"k")
    gaps.learn(0, b"", b"f")
    assert gaps.gaps[0] == Gap(b"", b"k")
    batch = WriteBatch()
    batch.put_many(0, [(b"c", b""), (b"d", b""), (b"x", b"")])
    gaps.follow(batch)
    assert gaps.gaps[0] == Gap(b"d\x00", b"k")


# ---------------------------------------------------------------- the announcement


def test_settings_are_the_tuning() -> None:
    assert rmqstore_engines() == [INFO]
    tuning = RocksDBTuning()
    assert {setting.key.removeprefix("rocksdb."): setting.default for setting in INFO.settings} == {
        name: getattr(tuning, name) for name in RocksDBTuning.__struct_fields__
    }
    assert {setting.key for setting in INFO.settings if setting.baked} == {"rocksdb.values"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("IO error: No space left on device: While appending to file: /x/1.log: No space left on device", StoreFullError),
        ("IO error: While lock file: /x/LOCK: Resource temporarily unavailable", StoreLockedError),
        ("Corruption: block checksum mismatch in /x/1.sst offset 12 size 3", CorruptStoreError),
        ("Not implemented: unsupported format", FormatVersionError),
        ("IO error: While fdatasync: /x/1.log: Input/output error", StoreError),
    ],
)
def test_errors_are_translated(text: str, kind: type[Exception]) -> None:
    error = translated(Exception(text), Path("/x"))
    assert type(error) is kind
    assert "/x" in str(error)


def test_errors_of_ours_come_back_as_they_are() -> None:
    for error in (KeyError("k"), StoreClosedError("closed")):
        assert translated(error, Path("/x")) is error


# ---------------------------------------------------------------- interrupts


def test_a_scan_that_is_interrupted_keeps_nobody_from_closing(tmp_path: Path) -> None:
    kv = open_kv(tmp_path)
    put(kv, 1, b"v")
    kept: list[BaseException] = []
    for step in range(1, 1000):
        try:
            interrupted(lambda: kv.scan(1, b"", None, 10), step)
        except Interrupted as error:
            # As a notebook keeps the last one, with all that its frames hold.
            kept.append(error)
            kv.after_interrupt()
        else:
            break
    assert len(kept) > 10
    closing = threading.Thread(target=kv.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert numbers(open_kv(tmp_path)) == [1]


def test_a_write_that_is_interrupted_is_there_or_not_and_counted(tmp_path: Path) -> None:
    kv = open_kv(tmp_path)
    kept: list[BaseException] = []
    for step in range(1, 1000):
        before = kv.position
        try:
            interrupted(lambda step=step: put(kv, step, b"v"), step)  # type: ignore[misc]
        except Interrupted as error:
            kept.append(error)
            kv.after_interrupt()
        assert (step in numbers(kv)) == (kv.position == before + 1)
        if len(kept) < step:
            break
    assert len(kept) > 10
    kv.close()
    open_kv(tmp_path).close()


class Uncountable(int):
    """A position at which memory runs out."""

    def __add__(self, other: int) -> int:
        raise MemoryError


def test_a_write_that_was_not_counted_is_counted_afterwards(tmp_path: Path) -> None:
    kv = open_kv(tmp_path)
    before = put(kv, 1, b"v")
    kv.position = Uncountable(before)
    with pytest.raises(MemoryError):
        put(kv, 2, b"v")
    assert numbers(kv) == [1, 2]
    kv.position = before
    kv.after_interrupt()
    assert kv.position == before + 1
    kv.close()


# ---------------------------------------------------------------- reopening


def full(kv: RocksDBKV) -> int:
    """Have a write in the log that is not durable yet, when the disk says that it has no room; returns its position."""
    position = put(kv, 1, b"v")
    kv.refuse_full(OSError(errno.ENOSPC, "no room"))
    return position


def listening(call: Callable[[], None]) -> tuple[threading.Thread, list[StoreError | None]]:
    """Return a thread that makes a call, and the list to which it adds the error that comes of it, or None."""
    said: list[StoreError | None] = []

    def listen() -> None:
        try:
            call()
            said.append(None)
        except StoreError as error:
            said.append(error)

    return threading.Thread(target=listen, daemon=True), said


def test_a_sync_that_meets_a_reopen_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path)
    position = full(kv)
    syncing, said = listening(lambda: kv.sync(position))
    close_database = kv._close_database

    def meeting() -> None:
        close_database()
        syncing.start()
        syncing.join(0.2)

    monkeypatch.setattr(kv, "_close_database", meeting)
    kv.reopen()
    syncing.join(20)
    assert said == [None]
    monkeypatch.undo()
    kv.close()


def test_what_is_in_the_log_can_be_synced_when_the_database_does_not_open_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path)
    position = full(kv)

    def has_no_room() -> None:
        raise StoreFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(kv, "_open", has_no_room)
        with pytest.raises(StoreFullError):
            kv.reopen()
    kv.sync(position)
    kv.reopen()
    assert numbers(kv) == [1]
    kv.close()


def test_a_reopen_after_one_that_was_interrupted_tells_what_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path)
    kv.snapshot(tmp_path / "before")
    position = full(kv)
    opened = kv._open

    def lose_the_log() -> Database:
        shutil.rmtree(tmp_path / "db")
        shutil.copytree(tmp_path / "before" / "db", tmp_path / "db")
        return opened()

    with monkeypatch.context() as patched:
        patched.setattr(kv, "_open", lose_the_log)
        patched.setattr(kv, "readmit", broken)
        with pytest.raises(KeyboardInterrupt):
            kv.reopen()
    kv.reopen()
    assert numbers(kv) == []
    with pytest.raises(StoreFullError):
        kv.sync(position)
    put(kv, 2, b"v")
    kv.refuse_full(OSError(errno.ENOSPC, "no room"))
    position = kv.position
    kv.reopen()
    kv.sync(position)
    kv.close()


def test_a_reopen_in_a_forked_child_does_not_wait_for_a_lock_of_its_parent(tmp_path: Path) -> None:
    kv = open_kv(tmp_path)
    kv.refusal = Refusal(StoreForkedError, "opened before the fork")
    with kv.leading, pytest.raises(StoreForkedError):
        kv.reopen()
    kv.refusal = None
    kv.close()


class Watched:
    """A lock that tells when somebody is about to wait for it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.is_wanted = threading.Event()

    def __enter__(self) -> None:
        self.is_wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_reopen_that_waits_for_a_sync_hears_that_the_disk_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path)
    position = full(kv)
    leading = Watched(kv.leading)
    reopening, said = listening(kv.reopen)

    def fail() -> None:
        monkeypatch.setattr(kv, "leading", leading)
        reopening.start()
        assert leading.is_wanted.wait(20)
        raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(kv._db, "sync", fail)
    with pytest.raises(StorePoisonedError):
        kv.sync(position)
    reopening.join(20)
    assert [type(each) for each in said] == [StorePoisonedError]
    with pytest.raises(StorePoisonedError):
        kv.sync(position)
    monkeypatch.undo()
    kv.close()


# ---------------------------------------------------------------- snapshots


def test_a_checkpoint_finds_nothing_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write that into tables with the GIL held."""
    kv = open_kv(tmp_path)
    put(kv, 1, b"v" * 1000)
    make = rocksdict.Checkpoint
    in_memory: list[int | None] = []

    def patched(db: rocksdict.Rdict) -> rocksdict.Checkpoint:
        in_memory.extend(family.property_int_value("rocksdb.num-entries-active-mem-table") for family in kv._db.families)
        return make(db)

    monkeypatch.setattr(rocksdict, "Checkpoint", patched)
    with directory() as elsewhere:
        kv.snapshot(elsewhere / "copy")
    assert in_memory == [0] * len(SPACES)
    kv.close()


def test_calls_go_on_while_tables_are_copied_onto_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path)
    for number in range(100):
        put(kv, number, b"v" * 1000)

    def patched(source: Path, copy: Path) -> None:
        def others() -> None:
            kv.sync(put(kv, 1000, b"late"))
            assert len(numbers(kv)) == 101

        thread = threading.Thread(target=others, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "other calls wait for the copy"
        copy_tree(source, copy)

    monkeypatch.setattr("rmqstore_rocksdb.kv.copy_tree", patched)
    with directory() as elsewhere:
        if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("not run: there is no other file system here")
        kv.snapshot(elsewhere / "copy")
        assert numbers(open_kv(elsewhere / "copy")) == list(range(100))
        monkeypatch.setattr("rmqstore_rocksdb.kv.copy_tree", broken)
        with pytest.raises(KeyboardInterrupt):
            kv.snapshot(elsewhere / "second")
        assert [each.name for each in elsewhere.iterdir()] == ["copy"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["LOCK", "db"]
    kv.close()
    # What a killed snapshot leaves.
    shutil.copytree(tmp_path / "db", tmp_path / "db.copy-0000")
    assert numbers(open_kv(tmp_path)) == [*range(100), 1000]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["LOCK", "db"]


def broken(*_: object) -> None:
    raise KeyboardInterrupt
