"""What is SQLite's own: its log, its errors, its locks. What every engine promises is tested by the repository's clause tests."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from rmqstore.contract.engine import EngineOptions
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.kv.buffered import BufferedKV
from rmqstore.errors import CorruptStoreError, StoreError, StoreFullError, StoreLockedError, StorePoisonedError
from rmqstore_sqlite.engine import SqliteEngine
from rmqstore_sqlite.kv import FILE, WAL_BYTES, SqliteBase, open_sqlite

OPTIONS = EngineOptions(store_tag=1, broker="b")

CHILD = """
import os, sys
from pathlib import Path
from rmqstore.engine.kv.base import WriteBatch
from rmqstore_sqlite.kv import open_sqlite
kv = open_sqlite(Path(sys.argv[1]), 2)
def put(number):
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), b"v" * 300)
    kv.sync(kv.write(batch))
"""


def child(path: Path, body: str) -> subprocess.Popen[str]:
    """Start a process that opens ``path`` and runs ``body``."""
    command = [sys.executable, "-c", CHILD + body, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "engine"
    path.mkdir()
    return path


def open_kv(home: Path) -> BufferedKV:
    return open_sqlite(home, 2)


def base_of(kv: BufferedKV) -> SqliteBase:
    base = kv._base
    assert isinstance(base, SqliteBase)
    return base


def write(kv: BufferedKV, first: int, count: int = 1, value: bytes = b"v" * 300) -> int:
    batch = WriteBatch()
    batch.put_many(1, [((first + number).to_bytes(4, "big"), value) for number in range(count)])
    return kv.write(batch)


def numbers(kv: BufferedKV) -> list[int]:
    return [int.from_bytes(key, "big") for key, _ in kv.scan_all(1)]


def numbers_in(home: Path) -> list[int]:
    with closing(open_kv(home)) as kv:
        return numbers(kv)


# ---------------------------------------------------------------- crashes


def test_what_was_acknowledged_survives_kill_9(home: Path) -> None:
    with child(home, "for number in range(100_000):\n    put(number)\n    print(number, flush=True)") as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(50)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    found = numbers_in(home)
    assert found == list(range(len(found)))
    assert len(acknowledged) <= len(found) <= len(acknowledged) + 1


def test_a_power_cut_leaves_the_state_before_the_commit_or_after_it(home: Path, tmp_path: Path) -> None:
    """Whatever arrived of the log behind its last sync: a part of it, zeros, or something else."""
    chance = random.Random(1)
    log = Path("db", f"{FILE}-wal")
    image = tmp_path / "image"

    def shown(data: bytes) -> list[int]:
        shutil.copytree(home, image)
        (image / log).write_bytes(data)
        found = numbers_in(image)
        shutil.rmtree(image)
        return found

    with closing(open_kv(home)) as kv:
        for turn in range(6):
            before = (home / log).read_bytes()
            kv.sync(write(kv, turn * 100, 20))
            after = (home / log).read_bytes()
            new = list(range(turn * 100, turn * 100 + 20))
            old = [number for number in numbers(kv) if number < turn * 100]
            assert shown(after) == old + new
            assert shown(before) == old
            for _ in range(4):
                cut = chance.randrange(len(before), len(after))
                for rest in (b"", bytes(len(after) - cut), chance.randbytes(len(after) - cut)):
                    assert shown(after[:cut] + rest) == old, f"cut at {cut} of {len(before)}-{len(after)}"


def test_a_forked_child_that_ends_normally_leaves_the_log_alone(home: Path) -> None:
    body = "put(1)\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\nput(2)\nos.kill(os.getpid(), 9)"
    with child(home, body) as process:
        process.wait(60)
    assert numbers_in(home) == [1, 2]


def test_the_log_stays_short_and_outlives_a_renamed_directory(home: Path) -> None:
    sizes: list[int] = []
    with closing(open_kv(home)) as kv:
        for turn in range(12):
            kv.sync(write(kv, turn, value=bytes(1024 * 1024)))
            sizes.append((home / "db" / f"{FILE}-wal").stat().st_size)
        assert WAL_BYTES < max(sizes) < 2 * WAL_BYTES
        moved = home.rename(home.with_name("moved"))
        kv.sync(write(kv, 12))
    assert numbers_in(moved) == list(range(13))


# ---------------------------------------------------------------- damage


@pytest.fixture
def closed(home: Path) -> Path:
    """The file of a closed database."""
    with closing(open_kv(home)) as kv:
        write(kv, 0, 3000)
    return home / "db" / FILE


@pytest.mark.parametrize("keep_bytes", [0, 50, 4096, 40_000, 500_000])
def test_a_file_cut_short_is_corruption(closed: Path, keep_bytes: int) -> None:
    os.truncate(closed, keep_bytes)
    with pytest.raises(CorruptStoreError) as caught:
        numbers_in(closed.parents[1])
    assert caught.value.file == str(closed)


@pytest.mark.parametrize("offset", [0, 8192])
def test_an_overwritten_page_is_corruption(closed: Path, offset: int) -> None:
    with closed.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * 4096)
    with pytest.raises(CorruptStoreError, match=FILE):
        numbers_in(closed.parents[1])


def test_a_lost_file_is_not_made_anew(closed: Path) -> None:
    closed.unlink()
    with pytest.raises(CorruptStoreError, match="missing"):
        open_kv(closed.parents[1])
    assert not closed.exists()


def test_a_missing_table_is_corruption(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as stranger:
        stranger.execute("DROP TABLE entries")
    with pytest.raises(CorruptStoreError, match="no such table"):
        open_kv(closed.parents[1])


# ---------------------------------------------------------------- errors


def test_a_full_database_refuses_until_it_is_reopened(home: Path) -> None:
    kv = open_kv(home)
    kv.sync(write(kv, 0, 10))
    pages = base_of(kv)._connection.execute("PRAGMA page_count").fetchone()[0]
    base_of(kv)._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    lost = write(kv, 10, 1000)
    for _ in range(2):
        with pytest.raises(StoreFullError):
            kv.sync(lost)
    kv.reopen()
    assert numbers(kv) == list(range(10))
    kv.sync(write(kv, 10, 1000))
    kv.close()
    assert numbers_in(home) == list(range(1010))


class FailingConnection:
    """Stands for the connection; one statement fails."""

    def __init__(self, connection: sqlite3.Connection, statement: str, error: BaseException) -> None:
        self._connection = connection
        self._statement = statement
        self._error = error

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, statement: str) -> sqlite3.Cursor:
        if statement == self._statement:
            raise self._error
        return self._connection.execute(statement)


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("made to fail")
    error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE_MADE_TO_FAIL"
    return error


def test_an_io_error_of_a_commit_poisons(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(home)
    kv.sync(write(kv, 0))
    position = write(kv, 1)
    base = base_of(kv)
    with monkeypatch.context() as patched:
        patched.setattr(base, "_connection", FailingConnection(base._connection, "COMMIT", sqlite_error(sqlite3.SQLITE_IOERR_FSYNC)))
        with pytest.raises(StorePoisonedError, match="made to fail"):
            kv.sync(position)
    for call in (lambda: kv.sync(position), lambda: kv.get(1, b"x"), lambda: write(kv, 2), kv.reopen):
        with pytest.raises(StorePoisonedError):
            call()
    kv.close()
    assert numbers_in(home) == [0]


def test_an_interrupted_commit_is_made_by_the_next_sync(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(home)
    position = write(kv, 0)
    base = base_of(kv)
    with monkeypatch.context() as patched:
        patched.setattr(base, "_connection", FailingConnection(base._connection, "COMMIT", KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            kv.sync(position)
    kv.sync(position)
    kv.close()
    assert numbers_in(home) == [0]


def test_a_check_point_that_finds_no_room_fails_before_the_call_is_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(home)
    kv.sync(write(kv, 0, value=bytes(WAL_BYTES)))
    position = write(kv, 1)
    base = base_of(kv)
    with monkeypatch.context() as patched:
        full = sqlite_error(sqlite3.SQLITE_FULL)
        patched.setattr(base, "_connection", FailingConnection(base._connection, "PRAGMA wal_checkpoint(TRUNCATE)", full))
        with pytest.raises(StoreFullError):
            kv.sync(position)
    kv.reopen()
    assert numbers(kv) == [0]
    kv.close()


# ---------------------------------------------------------------- owners


def test_a_second_open_is_refused(home: Path) -> None:
    session = SqliteEngine().open(home, OPTIONS)
    with pytest.raises(StoreLockedError):
        SqliteEngine().open(home, OPTIONS)
    with closing(sqlite3.connect(home / "db" / FILE, timeout=0)) as stranger, pytest.raises(sqlite3.OperationalError, match="locked"):
        stranger.execute("SELECT count(*) FROM entries").fetchone()
    session.close()
    SqliteEngine().open(home, OPTIONS).close()


def test_a_stranger_with_the_file_open_is_waited_for_by_nobody(closed: Path) -> None:
    with closing(sqlite3.connect(closed, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLockedError, match=FILE):
            open_kv(closed.parents[1])
    assert len(numbers_in(closed.parents[1])) == 3000


def test_a_snapshot_opens_as_an_engine_directory(home: Path, tmp_path: Path) -> None:
    with closing(open_kv(home)) as kv:
        write(kv, 0, 100)
        kv.snapshot(tmp_path / "copy")
        kv.sync(write(kv, 100))
        assert sorted(path.name for path in (tmp_path / "copy" / "db").iterdir()) == ["FORMAT", FILE]
        with closing(open_kv(tmp_path / "copy")) as copy:
            assert numbers(copy) == list(range(100))
            copy.sync(write(copy, 7000))
        with pytest.raises(StoreError, match="new directory"):
            kv.snapshot(tmp_path / "copy")
        assert numbers(kv) == list(range(101))


# ---------------------------------------------------------------- the announcement
