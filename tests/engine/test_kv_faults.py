"""Full disks, broken disks, killed and forked processes, other people's directories: the two adapters that keep files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.errors import FormatVersionError, StoreError, StoreFullError, StorePathError
from rmqstore_lmdb.kv import open_lmdb
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

SPACES = ("meta", "timers")


class Adapter(NamedTuple):
    name: str
    open: Callable[[Path], OrderedKV]
    source: str


ADAPTERS = (
    Adapter("lmdb", lambda path: open_lmdb(path, SPACES), "from rmqstore_lmdb.kv import open_lmdb as open_kv"),
    Adapter(
        "rocksdb",
        lambda path: open_rocksdb(path, SPACES, RocksDBTuning()),
        "from functools import partial; from rmqstore_rocksdb.kv import open_rocksdb; from rmqstore_rocksdb.tuning import RocksDBTuning;"
        " open_kv = partial(open_rocksdb, tuning=RocksDBTuning())",
    ),
)
pytestmark = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)

CHILD = """
import sys
from pathlib import Path
from rmqstore.engine.kv.base import WriteBatch
{source}
kv = open_kv(Path(sys.argv[1]), {spaces})
def put(number):
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), b"v" * 300)
    return kv.write(batch)
print("open", flush=True)
sys.stdin.readline()
{body}
"""


def child(adapter: Adapter, path: Path, body: str) -> subprocess.Popen[str]:
    """Start a process that opens ``path``, says so, waits for a line, and runs ``body``."""
    script = CHILD.format(source=adapter.source, spaces=SPACES, body=body)
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "engine"
    path.mkdir()
    return path


def put(kv: OrderedKV, number: int, value: bytes = b"v") -> int:
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), value)
    return kv.write(batch)


def numbers(kv: OrderedKV) -> list[int]:
    return [int.from_bytes(key, "big") for key, _ in kv.scan_all(1)]


# ---------------------------------------------------------------- owners


def test_closing_lets_go_of_a_lock_whose_descriptor_was_copied(adapter: Adapter, home: Path) -> None:
    """As by a fork that runs no Python."""
    kv = adapter.open(home)
    part = kv if hasattr(kv, "_home") else kv._base  # type: ignore[attr-defined]
    copy = os.dup(part._home._lock_fd)  # type: ignore[attr-defined]
    kv.close()
    adapter.open(home).close()
    os.close(copy)


# ---------------------------------------------------------------- directories


def test_a_half_created_directory_starts_afresh(adapter: Adapter, home: Path) -> None:
    (home / "LOCK").touch()
    half = home / "db.new"
    half.mkdir()
    (half / "data.mdb").write_bytes(b"\x00" * 5000)
    (half / "CURRENT").write_bytes(b"")
    kv = adapter.open(home)
    kv.sync(put(kv, 1))
    kv.close()
    assert sorted(entry.name for entry in home.iterdir()) == ["LOCK", "db"]


def test_directories_of_others_are_refused_and_left_alone(adapter: Adapter, home: Path) -> None:
    other = next(each for each in ADAPTERS if each is not adapter)
    other.open(home).close()
    before = sorted(str(file) for file in home.rglob("*"))
    with pytest.raises(FormatVersionError, match=other.name):
        adapter.open(home)
    assert sorted(str(file) for file in home.rglob("*")) == before
    shutil.rmtree(home)
    home.mkdir()
    (home / "commitlog").mkdir()
    with pytest.raises(FormatVersionError, match="commitlog"):
        adapter.open(home)


@pytest.mark.parametrize("content", ["rmqstore {name} 99\n", "rmqstore {name}\n", "", None])
def test_other_format_versions_are_refused(adapter: Adapter, home: Path, content: str | None) -> None:
    adapter.open(home).close()
    file = home / "db" / "FORMAT"
    if content is None:
        file.unlink()
    else:
        file.write_text(content.format(name=adapter.name))
    with pytest.raises(FormatVersionError):
        adapter.open(home)


def test_a_missing_directory_is_named(adapter: Adapter, tmp_path: Path) -> None:
    with pytest.raises(StorePathError, match="nowhere"):
        adapter.open(tmp_path / "nowhere")


# ---------------------------------------------------------------- full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    mount = tmp_path / "mnt"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", mount], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system needs the right to mount one: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount")
def test_a_full_disk_refuses_loses_nothing_durable_and_goes_on_after_reopen(adapter: Adapter, small_disk: Path) -> None:
    path = small_disk / "engine"
    path.mkdir()
    kv = adapter.open(path)
    free = os.statvfs(small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 2 * 1024 * 1024))
    durable = last = -1

    def fill() -> None:
        nonlocal durable, last
        for last in range(10_000):
            batch = WriteBatch()
            batch.put_many(1, [(last.to_bytes(4, "big") + bytes([part]), os.urandom(350)) for part in range(50)])
            position = kv.write(batch)
            if last % 3 == 0:
                kv.sync(position)
                durable = last

    with pytest.raises(StoreFullError):
        fill()
    assert durable >= 0
    for call in (lambda: kv.get(1, b"x"), lambda: kv.scan(1, b"", None, 1), lambda: put(kv, 1), kv.sync):
        with pytest.raises(StoreFullError):
            call()
    position = kv.position
    filler.unlink()
    kv.reopen()
    found = [key for key, _ in kv.scan_all(1)]
    whole, rest = divmod(len(found), 50)
    assert rest == 0, "half a batch is there"
    assert found == [number.to_bytes(4, "big") + bytes([part]) for number in range(whole) for part in range(50)]
    assert durable < whole <= last + 1
    assert kv.durable_position == kv.position == position
    kv.sync(durable + 1)
    for lost in range(whole, position):
        with pytest.raises(StoreFullError, match="dropped"):
            kv.sync(lost + 1)
    assert put(kv, 2**31) == position + 1
    kv.sync()
    kv.close()
    kv = adapter.open(path)
    assert numbers(kv)[-1] == 2**31
    kv.close()


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount")
def test_a_disk_too_full_to_begin_with_is_said_to_be_full(adapter: Adapter, small_disk: Path) -> None:
    path = small_disk / "engine"
    path.mkdir()
    free = os.statvfs(small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize))
    with pytest.raises(StoreFullError):
        adapter.open(path)
    filler.unlink()
    kv = adapter.open(path)
    kv.sync(put(kv, 1))
    kv.close()


# ---------------------------------------------------------------- broken disk


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    ("fault", "error"),
    [("fdatasync,fsync:error=EIO:when=1", "StorePoisonedError"), ("fdatasync,fsync:error=ENOSPC:when=1", "StoreFullError")],
)
def test_a_failed_disk_sync(adapter: Adapter, home: Path, fault: str, error: str) -> None:
    """strace makes the next disk sync of a running process fail."""
    body = (
        "put(0); kv.sync(); print('synced', flush=True); sys.stdin.readline()\n"
        "put(1)\n"
        "for call in (kv.sync, kv.sync, lambda: kv.get(1, b'x'), lambda: put(2)):\n"
        "    try:\n        call(); print('nothing')\n    except Exception as error:\n        print(type(error).__name__)\n"
        "kv.close(); print('closed', flush=True)"
    )
    with child(adapter, home, body) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "synced\n"
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(process.pid), "-o", "/dev/null", "-e", f"inject={fault}"], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            process.kill()
            tracer.wait(30)
            tracer.stderr.close()
            pytest.skip(f"strace may not attach: {said.strip()}")
        heard = process.communicate("go\n", timeout=60)[0].split()
        tracer.send_signal(signal.SIGTERM)
        tracer.wait(30)
        tracer.stderr.close()
    assert heard == [error] * 4 + ["closed"]
    kv = adapter.open(home)
    assert numbers(kv)[:1] == [0]
    kv.sync(put(kv, 3))
    kv.close()


def test_errors_name_the_store(adapter: Adapter, home: Path) -> None:
    kv = adapter.open(home)
    kv.close()
    (home / "db" / "FORMAT").write_text("rmqstore other 1\n")
    with pytest.raises(StoreError, match=str(home)):
        adapter.open(home)
