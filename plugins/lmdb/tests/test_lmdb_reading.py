"""Reading an LMDB environment beside its owner: in one process, and from another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from rmqstore import StoreError, StorePathError
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.kv.snapshot_view import ViewKV
from rmqstore.engine.schema import SPACES
from rmqstore_lmdb import kv as owning, reading
from rmqstore_lmdb.kv import FORMAT_VERSION, open_lmdb
from rmqstore_lmdb.reading import view_lmdb

_CROWD = """
import sys
from contextlib import suppress
from pathlib import Path
from rmqstore.engine.schema import SPACES
from rmqstore.errors import StoreError
from rmqstore_lmdb.reading import view_lmdb

views = []
with suppress(StoreError):
    while True:
        views.append(view_lmdb(Path(sys.argv[1]), 1, SPACES))
print(len(views), flush=True)
sys.stdin.read()
"""


def _write(kv: OrderedKV, first: int, count: int, size: int = 100) -> None:
    batch = WriteBatch()
    batch.put_many(0, [(b"%08d" % number, os.urandom(size)) for number in range(first, first + count)])
    kv.sync(kv.write(batch))


def _count(kv: OrderedKV) -> int:
    return sum(1 for _ in kv.scan_all(0))


def test_a_view_outlives_a_move_of_the_owners_map(tmp_path: Path) -> None:
    kv = open_lmdb(tmp_path, SPACES, map_bytes=1 << 20)
    _write(kv, 0, 1000)
    views = [view_lmdb(tmp_path, FORMAT_VERSION, SPACES) for _ in range(2)]
    for step in range(1, 5):
        _write(kv, 1000 * step, 1000, size=2000)
    assert kv._base._map_bytes > 1 << 20
    for view in views:
        assert _count(view) == 1000
        assert view.get(0, b"%08d" % 999) is not None
        assert view.get(0, b"%08d" % 1000) is None
    views[0].reopen()
    assert [_count(view) for view in views] == [5000, 1000]
    kv.close()
    assert [_count(view) for view in views] == [5000, 1000]
    for view in views:
        view.close()
        view.close()
    assert reading._environments == {}


def test_a_view_that_got_no_copy_is_lost_and_can_be_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_lmdb(tmp_path, SPACES)
    _write(kv, 0, 10)
    view = view_lmdb(tmp_path, FORMAT_VERSION, SPACES)

    def no_room(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reading.tempfile, "mkdtemp", no_room)
    kv.close()
    monkeypatch.undo()
    with pytest.raises(StoreError, match="refresh"):
        view.get(0, b"a")
    with pytest.raises(StoreError, match="refresh"):
        view.scan(0, b"", None, 1)
    view.reopen()
    assert _count(view) == 10
    view.close()


def test_a_map_beyond_the_readers_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several views of one environment that is too small: each keeps its state, and the one that asks moves on."""
    monkeypatch.setattr(reading, "_MAP_BYTES", 1 << 20)
    kv = open_lmdb(tmp_path, SPACES, map_bytes=1 << 20)
    _write(kv, 0, 100)
    kv.close()
    views = [view_lmdb(tmp_path, FORMAT_VERSION, SPACES) for _ in range(3)]
    writer = f"""
from pathlib import Path
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.schema import SPACES
from rmqstore_lmdb.kv import open_lmdb
kv = open_lmdb(Path({str(tmp_path)!r}), SPACES, map_bytes=1 << 20)
for step in range(1, 6):
    batch = WriteBatch()
    batch.put_many(0, [(b"%08d" % (1000 * step + n), bytes(2000)) for n in range(1000)])
    kv.sync(kv.write(batch))
kv.close()
"""
    subprocess.run([sys.executable, "-c", writer], check=True)
    views[1].reopen()
    assert [_count(view) for view in views] == [100, 5100, 100]
    views[0].reopen()
    assert [_count(view) for view in views] == [5100, 5100, 100]
    for view in views:
        view.close()


def test_the_owner_knows_its_readers(tmp_path: Path) -> None:
    """Pages that a view shows are not used again, so the file grows; after a renewal they are."""
    kv = open_lmdb(tmp_path, SPACES)
    _write(kv, 0, 2000, size=1000)
    view = view_lmdb(tmp_path, FORMAT_VERSION, SPACES)
    file = tmp_path / "db" / "data.mdb"
    sizes = [file.stat().st_size]
    for _ in range(6):
        _write(kv, 0, 2000, size=1000)
        sizes.append(file.stat().st_size)
    assert sizes[-1] > 3 * sizes[0]
    for _ in range(2):
        view.reopen()
        _write(kv, 0, 2000, size=1000)
    settled = file.stat().st_size
    for _ in range(6):
        view.reopen()
        _write(kv, 0, 2000, size=1000)
    assert file.stat().st_size < settled + sizes[0]
    view.close()
    kv.close()


def _crowd(directory: Path) -> subprocess.Popen[str]:
    """Start a process that reads in as many places as are left."""
    reader = subprocess.Popen([sys.executable, "-c", _CROWD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert int(reader.stdout.readline()) > 0
    return reader


def _kill(reader: subprocess.Popen[str]) -> None:
    reader.kill()
    reader.communicate()


def test_pages_that_a_killed_reader_held_are_used_again(tmp_path: Path) -> None:
    kv = open_lmdb(tmp_path, SPACES)
    _write(kv, 0, 2000, size=1000)
    _kill(_crowd(tmp_path))
    file = tmp_path / "db" / "data.mdb"
    size = file.stat().st_size
    for _ in range(6):
        _write(kv, 0, 2000, size=1000)
    assert file.stat().st_size < 3 * size
    kv.close()


def test_the_places_of_killed_readers_are_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owning, "MAX_READERS", 8)
    kv = open_lmdb(tmp_path, SPACES)
    _write(kv, 0, 10)
    reader = _crowd(tmp_path)
    views: list[ViewKV] = []
    with pytest.raises(StoreError, match="READERS_FULL"):
        views.extend(view_lmdb(tmp_path, FORMAT_VERSION, SPACES) for _ in range(8))
    _kill(reader)
    views.append(view_lmdb(tmp_path, FORMAT_VERSION, SPACES))
    _kill(_crowd(tmp_path))
    assert [_count(view) for view in [kv, *views]] == [10] * (1 + len(views))
    for view in views:
        view.close()
    kv.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write")
def test_a_reader_that_may_not_write_the_lock_file_is_told(tmp_path: Path) -> None:
    open_lmdb(tmp_path, SPACES).close()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in tmp_path.parents:
        parent.chmod(0o755)
        if parent.name.startswith("pytest-of-"):
            break
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            os.setuid(65534)
            view_lmdb(tmp_path, FORMAT_VERSION, SPACES)
        except (StorePathError, lmdb.Error) as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    said = os.read(reader, 10_000).decode()
    os.close(reader)
    assert said.startswith("StorePathError")
    assert "lock.mdb" in said
