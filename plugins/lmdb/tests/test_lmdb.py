"""What is LMDB's own: the growing map, files that are not whole, errors that mean something else."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.kv.buffered import BufferedKV
from rmqstore.errors import CorruptStoreError, FormatVersionError, StoreFullError, StorePoisonedError
from rmqstore_lmdb.kv import FORMAT_VERSION, LmdbBase, open_lmdb
from rmqstore_lmdb.reading import view_lmdb

SPACES = ("meta", "timers")
MIB = 1024 * 1024


def open_kv(path: Path, map_bytes: int = MIB) -> BufferedKV:
    path.mkdir(exist_ok=True)
    return open_lmdb(path, SPACES, map_bytes=map_bytes)


def write(kv: BufferedKV, first: int, count: int, value: bytes = b"v" * 350) -> int:
    batch = WriteBatch()
    batch.put_many(1, [((first + number).to_bytes(4, "big"), value) for number in range(count)])
    return kv.write(batch)


def base_of(kv: BufferedKV) -> LmdbBase:
    base = kv._base
    assert isinstance(base, LmdbBase)
    return base


# ---------------------------------------------------------------- the map


def test_the_map_grows_under_readers(tmp_path: Path) -> None:
    kv = open_kv(tmp_path / "s")
    kv.sync(write(kv, 0, 100))
    problems: list[str] = []
    # Reads are rationed: py-lmdb lets the GIL go at every put, and readers that never wait would take it for a while each time.
    ration = threading.Semaphore(0)
    turns, reads = 24, 6

    def read() -> None:
        try:
            for _ in range(turns * reads):
                ration.acquire()
                page = kv.scan(1, b"", None, 200)
                assert [int.from_bytes(key, "big") for key, _ in page[:100]] == list(range(100))
                assert kv.get(1, (50).to_bytes(4, "big")) == b"v" * 350
                assert kv.floor(1, (99).to_bytes(4, "big")) is not None
        except BaseException as error:
            problems.append(repr(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(1, turns + 1):
        position = write(kv, turn * 1000, 1000)
        ration.release(len(readers) * reads)
        kv.sync(position)
    for reader in readers:
        reader.join()
    assert problems == []
    assert base_of(kv)._moves >= 8
    assert sum(1 for _ in kv.scan_all(1)) == 24_100
    kv.close()
    kv = open_kv(tmp_path / "s")
    assert base_of(kv)._map_bytes >= 2 * (tmp_path / "s" / "db" / "data.mdb").stat().st_size
    assert sum(1 for _ in kv.scan_all(1)) == 24_100
    kv.close()


def test_one_batch_may_be_many_times_the_map(tmp_path: Path) -> None:
    kv = open_kv(tmp_path / "s")
    kv.sync(write(kv, 0, 100_000))
    batch = WriteBatch()
    batch.delete_range(1, (10).to_bytes(4, "big"), (99_990).to_bytes(4, "big"))
    kv.sync(kv.write(batch))
    assert sum(1 for _ in kv.scan_all(1)) == 20
    kv.close()


def test_no_address_space_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path / "s")
    base = base_of(kv)
    kept = base._map_bytes
    base._map_bytes = 2**61
    write(kv, 0, 5000)
    with pytest.raises(StoreFullError):
        kv.sync()
    base._map_bytes = kept
    kv.reopen()
    kv.sync(write(kv, 0, 100))
    kv.close()


def test_freed_pages_are_used_again(tmp_path: Path) -> None:
    kv = open_kv(tmp_path / "s")
    sizes = []
    for turn in range(40):
        batch = WriteBatch()
        batch.delete_range(1, b"\x00", (turn * 1000).to_bytes(4, "big"))
        kv.write(batch)
        kv.sync(write(kv, turn * 1000, 1000))
        kv.scan(1, b"", None, 10)
        sizes.append((tmp_path / "s" / "db" / "data.mdb").stat().st_size)
    assert sizes[-1] <= sizes[9], "no reader of an old state is left behind"
    kv.close()


# ---------------------------------------------------------------- snapshots


class Patched:
    """Stands in for an environment."""

    def __init__(self, env: lmdb.Environment, meanwhile: Callable[[], None]) -> None:
        self._env = env
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class Copying(Patched):
    """Does something in another thread while it is copied."""

    def copy(self, path: str, *, compact: bool) -> None:
        self._meanwhile()
        self._env.copy(path, compact=compact)


def test_calls_go_on_while_the_environment_is_copied(tmp_path: Path) -> None:
    kv = open_kv(tmp_path / "s")
    base = base_of(kv)
    while base._file.stat().st_size <= base._map_bytes // 2:
        kv.sync(write(kv, kv.position * 200, 200))
    count = len(list(kv.scan_all(1)))

    def calls() -> None:
        assert base._map_bytes >= 2 * base._file.stat().st_size
        kv.sync(write(kv, 1_000_000, 200))
        assert kv.get(1, (1_000_000).to_bytes(4, "big")) is not None
        assert len(list(kv.scan_all(1))) == count + 200

    def meanwhile() -> None:
        thread = threading.Thread(target=calls, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "other calls wait for the copy"

    base._env = Copying(base._env, meanwhile)  # type: ignore[assignment]
    kv.snapshot(tmp_path / "copy")
    copy = open_kv(tmp_path / "copy")
    assert len(list(copy.scan_all(1))) == count + 200
    copy.close()
    kv.close()


class Crowded(Patched):
    """Finds no address space for a longer map."""

    def set_mapsize(self, _: int) -> None:
        self._env.set_mapsize(2**62)


def test_a_snapshot_without_address_space_leaves_calls_let_in(tmp_path: Path) -> None:
    kv = open_kv(tmp_path / "s")
    base = base_of(kv)
    while base._file.stat().st_size <= base._map_bytes // 2:
        kv.sync(write(kv, kv.position * 200, 200))
    kept = base._map_bytes
    base._env = Crowded(base._env, lambda: None)  # type: ignore[assignment]
    with pytest.raises(StoreFullError, match="address space"):
        kv.snapshot(tmp_path / "copy")
    assert base._map_bytes == kept
    assert kv.get(1, (0).to_bytes(4, "big")) is not None
    kv.sync(write(kv, 1_000_000, 1))
    kv.snapshot(tmp_path / "copy")
    copy = open_kv(tmp_path / "copy")
    assert list(copy.scan_all(1)) == list(kv.scan_all(1))
    copy.close()
    kv.close()


@pytest.mark.parametrize("does", ["grows", "copies"])
def test_an_environment_that_cannot_be_opened_again_is_opened_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """F1: no address space for a longer map, and no descriptor for the lock file of the one that goes on without it."""
    kv = open_kv(tmp_path / "s")
    base = base_of(kv)
    while base._file.stat().st_size <= base._map_bytes // 2:
        kv.sync(write(kv, kv.position * 200, 200))
    count = len(list(kv.scan_all(1)))
    view = view_lmdb(tmp_path / "s", FORMAT_VERSION, SPACES)
    base._env = Crowded(base._env, lambda: None)  # type: ignore[assignment]
    system_open = os.open

    def no_descriptor(path: Any, *rest: Any, **options: Any) -> int:
        if str(path).endswith("lock.mdb"):
            raise OSError(errno.EMFILE, "Too many open files")
        return system_open(path, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_descriptor)
        if does == "grows":
            write(kv, 1_000_000, 5000)
        calls = {"grows": (kv.sync, kv.reopen, kv.sync), "copies": (lambda: kv.snapshot(tmp_path / "a"), lambda: kv.scan(1, b"", None, 1))}
        for call in calls[does]:
            with pytest.raises(StoreFullError):
                call()
    if does == "grows":
        kv.reopen()
    assert len(list(kv.scan_all(1))) == count
    view.reopen()
    assert len(list(view.scan_all(1))) == count
    kv.sync(write(kv, 1_000_000, 5000))
    kv.snapshot(tmp_path / "b")
    view.reopen()
    assert len(list(view.scan_all(1))) == count + 5000
    view.close()
    kv.close()


@pytest.mark.parametrize("does", ["grows", "closes", "reopens"])
def test_what_takes_the_map_away_waits_for_the_copy(tmp_path: Path, does: str) -> None:
    kv = open_kv(tmp_path / "s")
    base = base_of(kv)
    kv.sync(write(kv, 0, 200))
    works = {"grows": lambda: kv.sync(write(kv, 1000, 10_000)), "closes": kv.close, "reopens": kv.reopen}
    thread = threading.Thread(target=works[does])

    def meanwhile() -> None:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()

    base._env = Copying(base._env, meanwhile)  # type: ignore[assignment]
    kv.snapshot(tmp_path / "copy")
    thread.join(60)
    assert not thread.is_alive()
    copy = open_kv(tmp_path / "copy")
    assert len(list(copy.scan_all(1))) == 200
    copy.close()
    kv.close()


# ---------------------------------------------------------------- files


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The data file of a closed store."""
    kv = open_kv(tmp_path / "s")
    kv.sync(write(kv, 0, 3000))
    kv.close()
    return tmp_path / "s" / "db" / "data.mdb"


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 40_000, 500_000])
def test_a_file_cut_short_is_corruption_not_a_dead_process(closed: Path, size: int) -> None:
    os.truncate(closed, size)

    def read_all() -> None:
        kv = open_kv(closed.parents[1])
        try:
            for _ in kv.scan_all(1):
                pass
        finally:
            kv.close()

    with pytest.raises(CorruptStoreError) as caught:
        read_all()
    assert caught.value.file == str(closed)


def test_a_lost_file_is_named(closed: Path) -> None:
    closed.unlink()
    with pytest.raises(CorruptStoreError, match="data\\.mdb"):
        open_kv(closed.parents[1])


@pytest.mark.parametrize(("offset", "kind"), [(16, CorruptStoreError), (20, FormatVersionError)], ids=["magic", "version"])
def test_meta_pages_of_another_kind(closed: Path, offset: int, kind: type[Exception]) -> None:
    data = bytearray(closed.read_bytes())
    for page in (0, 4096):
        data[page + offset] ^= 0xFF
    closed.write_bytes(data)
    with pytest.raises(kind, match="data\\.mdb"):
        open_kv(closed.parents[1])


def test_a_missing_sub_database_is_corruption(closed: Path) -> None:
    env = lmdb.open(str(closed.parent), max_dbs=4)
    with env.begin(write=True) as txn:
        txn.drop(env.open_db(b"meta", txn=txn))
    env.close()
    with pytest.raises(CorruptStoreError, match="sub-database"):
        open_kv(closed.parents[1])


# ---------------------------------------------------------------- errors


class FailingCommit(Patched):
    """Has no write transaction."""

    def begin(self, *args: object, write: bool = False) -> object:
        if write:
            self._meanwhile()
        return self._env.begin(*args)  # type: ignore[call-overload]


def eio() -> None:
    raise lmdb.Error("mdb_txn_commit: Input/output error")


def test_eio_poisons_unless_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Full when the failure is looked into; full before the commit, with room by then; never full.
    for full, free_bytes, kind in ((True, 1 << 30, StoreFullError), (False, 0, StoreFullError), (False, 1 << 30, StorePoisonedError)):
        kv = open_kv(tmp_path / f"{full}-{free_bytes}")
        base = base_of(kv)
        env = base._env
        assert base._disk_is_full() is False
        assert not (base._path / "probe").exists()
        write(kv, 0, 1)
        with monkeypatch.context() as patched:
            patched.setattr(base, "_env", FailingCommit(env, eio))
            patched.setattr(base, "_disk_is_full", lambda full=full: full)
            patched.setattr(base, "_free_bytes", lambda free_bytes=free_bytes: free_bytes)
            with pytest.raises(kind):
                kv.sync()
        kv.close()


# ---------------------------------------------------------------- the announcement
