"""Record headers over which RocksDB's reader loops for ever: cut when nobody was promised what lies behind, else named."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore.errors import CorruptStoreError
from rmqstore_rocksdb import wal
from rmqstore_rocksdb.kv import RocksDBKV, open_rocksdb
from rmqstore_rocksdb.reading import view_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

SPACES = ("meta", "timers")
HEADER = struct.Struct("<IHB")
BLOCK = 32 * 1024
RECORDS, SYNCED = 120, 40

# A test that fails here does not return; the time limit is its answer.
pytestmark = pytest.mark.timeout(60)


def open_kv(path: Path) -> RocksDBKV:
    return open_rocksdb(path, SPACES, RocksDBTuning())


@pytest.fixture(scope="module")
def crashed(killed: Callable[[int, int, int], Path]) -> Path:
    """A store that was never closed; its log has several blocks, the records of the first of them are synced."""
    return killed(RECORDS, SYNCED, 700)


@pytest.fixture
def image(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "engine"))


def set_trap(image: Path, offset: int, kind: int, length: int) -> Path:
    """Put a header into the log, as if a power cut had left something else there."""
    (log,) = [file for file in image.glob("db/*.log") if file.stat().st_size]
    data = bytearray(log.read_bytes())
    data[offset : offset + HEADER.size] = HEADER.pack(0x12345678, length, kind)
    log.write_bytes(data)
    return log


def headers(log: Path) -> list[int]:
    """Return where records begin."""
    return [header.at for header in wal._headers(log.read_bytes())]


def kept_by(kv: RocksDBKV) -> int:
    return len(list(kv.scan_all(1)))


@pytest.mark.parametrize("kind", [5, 6, 7, 8, 11])
@pytest.mark.parametrize("length", [100, 54_298])
@pytest.mark.parametrize("where", ["last block", "middle block", "within a block", "last bytes"])
def test_a_trap_behind_what_was_synced_is_cut(image: Path, kind: int, length: int, where: str) -> None:
    (log,) = [file for file in image.glob("db/*.log") if file.stat().st_size]
    size = log.stat().st_size
    begins = headers(log)
    offset = {
        "last block": size // BLOCK * BLOCK,
        "middle block": BLOCK,
        "within a block": next(at for at in begins if at > BLOCK + 2000),
        "last bytes": begins[-1],
    }[where]
    set_trap(image, offset, kind, length)
    found = wal.trap(image / "db")
    assert found is not None
    assert found.offset == offset
    view = view_rocksdb(image, SPACES, RocksDBTuning())
    seen = len(list(view.scan_all(1)))
    view.close()
    kv = open_kv(image)
    assert SYNCED <= kept_by(kv) == seen < RECORDS
    kv.close()
    assert wal.trap(image / "db") is None
    kv = open_kv(image)
    assert kept_by(kv) == seen
    kv.close()


@pytest.mark.parametrize("kind", [5, 8, 11])
def test_a_trap_within_what_was_synced_is_corruption_and_named(image: Path, kind: int) -> None:
    (log,) = [file for file in image.glob("db/*.log") if file.stat().st_size]
    offset = headers(log)[SYNCED // 2]
    set_trap(image, offset, kind, 100)
    before = log.read_bytes()
    for call in (lambda: open_kv(image), lambda: view_rocksdb(image, SPACES, RocksDBTuning())):
        with pytest.raises(CorruptStoreError) as caught:
            call()
        assert (caught.value.file, caught.value.offset) == (str(log), offset)
    assert log.read_bytes() == before, "the evidence stays"


def test_later_logs_go_with_the_trap(image: Path) -> None:
    """What lies behind a cut is no prefix, in whichever file."""
    log = set_trap(image, BLOCK, 5, 100)
    later = log.with_name(f"{int(log.stem) + 1000:06d}.log")
    later.write_bytes(log.read_bytes()[:BLOCK])
    kv = open_kv(image)
    assert kept_by(kv) < RECORDS
    kv.close()


def test_logs_as_they_are_written_hold_no_trap(crashed: Path, tmp_path: Path) -> None:
    assert wal.trap(crashed / "db") is None
    assert wal.trap(tmp_path) is None
