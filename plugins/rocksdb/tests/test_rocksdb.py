"""What is RocksDB's own: recovery of its log, damaged files, tombstones, settings."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import rmqstore_rocksdb.kv
from rmqstore.engine.kv.base import DeleteFew, DeleteMany, DeleteRange, PutMany, WriteBatch
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.engine.kv.group_commit import Refusal
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
from rmqstore_rocksdb import wal
from rmqstore_rocksdb.gaps import Gap, Gaps
from rmqstore_rocksdb.kv import RocksDBKV, open_rocksdb
from rmqstore_rocksdb.plugin import INFO, rmqstore_engines
from rmqstore_rocksdb.reading import view_rocksdb
from rmqstore_rocksdb.scans import Read, read_forward
from rmqstore_rocksdb.tuning import RocksDBTuning, translated

SPACES = ("meta", "timers")
RECORDS, SYNCED = 120, 70
HEADER = struct.Struct("<IHB")
BLOCK = 32 * 1024
"""The log is cut into blocks of so many bytes; two are full of what was synced."""

Mutation = Callable[[bytearray], bytes | bytearray]


def open_kv(path: Path) -> RocksDBKV:
    return open_rocksdb(path, SPACES, RocksDBTuning())


def put(kv: RocksDBKV, number: int, value: bytes) -> int:
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), value)
    return kv.write(batch)


def numbers(kv: RocksDBKV) -> list[int]:
    return [int.from_bytes(key, "big") for key, _ in kv.scan_all(1)]


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
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a process that was killed with -9: ``RECORDS`` records of one size in its log, ``SYNCED`` of them synced.

    A copy of a store that is in use would do if RocksDB did not delete files in the background while they are copied.
    """
    home = tmp_path_factory.mktemp("killed")
    arguments = [str(home), str(RECORDS), str(SYNCED), "1000"]
    ended = subprocess.run([sys.executable, "-c", _WRITER, *arguments], timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return home


@pytest.fixture
def image(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "engine"))


def log_of(image: Path) -> Path:
    (log,) = [file for file in image.glob("db/*.log") if file.stat().st_size]
    return log


def damage(image: Path, mutation: Mutation) -> Path:
    log = log_of(image)
    log.write_bytes(mutation(bytearray(log.read_bytes())))
    return log


def at(record: float) -> Callable[[bytearray], int]:
    return lambda data: int(len(data) * record / RECORDS)


def cut(record: float) -> Mutation:
    return lambda data: data[: at(record)(data)]


def flip(record: float) -> Mutation:
    def mutate(data: bytearray) -> bytearray:
        data[at(record)(data)] ^= 0xFF
        return data

    return mutate


def zero(first: float, last: float) -> Mutation:
    def mutate(data: bytearray) -> bytearray:
        low, high = at(first)(data), at(last)(data)
        data[low:high] = bytes(high - low)
        return data

    return mutate


@pytest.mark.parametrize(
    ("mutation", "kept"),
    [
        (lambda data: data, RECORDS),
        (lambda data: data + os.urandom(3000), RECORDS),
        (lambda data: data + bytes(3000), RECORDS),
        (cut(RECORDS - 0.5), RECORDS - 1),
        (cut(100.5), 100),
        (cut(SYNCED + 0.5), SYNCED),
        (flip(RECORDS - 0.5), RECORDS - 1),
        (flip(SYNCED + 1.5), SYNCED + 1),
        (zero(100.5, 104.5), 100),
        (zero(100.5, RECORDS), 100),
    ],
    ids=["whole", "garbage behind", "zeros behind", "cut last", "cut many", "cut at sync", "torn last", "torn", "hole", "zeros"],
)
def test_a_torn_tail_is_cut_to_whole_writes(image: Path, mutation: Mutation, kept: int) -> None:
    damage(image, mutation)
    for turn in range(2):
        kv = open_kv(image)
        assert numbers(kv) == list(range(kept)) + [1000 + number for number in range(turn)]
        kv.sync(put(kv, 1000 + turn, b"v"))
        kv.close()


@pytest.mark.parametrize(
    ("mutation", "record"),
    [(flip(0.5), 0), (flip(40.5), 40), (flip(SYNCED - 0.5), SYNCED - 1), (zero(40.5, 45), 40), (cut(SYNCED - 0.5), None), (cut(0), None)],
    ids=["first", "middle", "last synced", "hole", "cut", "all cut"],
)
def test_damage_in_what_was_synced_is_corruption_and_named(image: Path, mutation: Mutation, record: int | None) -> None:
    log = damage(image, mutation)
    size = log.stat().st_size
    before = log.read_bytes()
    with pytest.raises(CorruptStoreError) as caught:
        open_kv(image)
    assert caught.value.file == str(log)
    if record is None:
        assert caught.value.offset == size
    else:
        assert abs(int(caught.value.offset) - size * record / RECORDS) < 64
        assert log.read_bytes() == before, "the evidence stays"
        with pytest.raises(CorruptStoreError, match="damaged"):
            view_rocksdb(image, SPACES, RocksDBTuning())
    with pytest.raises(CorruptStoreError):
        open_kv(image)


def test_a_torn_mark_promises_nothing(image: Path) -> None:
    damage(image, flip(40.5))
    (image / "db" / "SYNCED").write_bytes(b"\x00\x01\x02")
    kv = open_kv(image)
    assert numbers(kv) == list(range(40))
    kv.close()


# ---------------------------------------------------------------- record headers over which RocksDB's reader loops for ever


def set_trap(image: Path, offset: int, kind: int, length: int) -> Path:
    """Put a header into the log, as if a power cut had left something else there."""
    log = log_of(image)
    put_header(log, offset, kind, length)
    return log


def put_header(log: Path, offset: int, kind: int, length: int) -> None:
    data = bytearray(log.read_bytes())
    data[offset : offset + HEADER.size] = HEADER.pack(0x12345678, length, kind)
    log.write_bytes(data)


def headers(log: Path) -> list[int]:
    """Return where records begin."""
    return [header.at for header in wal._headers(log.read_bytes())]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [5, 6, 7, 8, 11])
@pytest.mark.parametrize("length", [100, 54_298])
@pytest.mark.parametrize("where", ["last block", "middle block", "within a block", "last bytes"])
def test_a_trap_behind_what_was_synced_is_cut(image: Path, kind: int, length: int, where: str) -> None:
    log = log_of(image)
    size = log.stat().st_size
    begins = headers(log)
    offset = {
        "last block": size // BLOCK * BLOCK,
        "middle block": 3 * BLOCK,
        "within a block": next(at for at in begins if at > 3 * BLOCK + 2000),
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
    assert SYNCED <= len(numbers(kv)) == seen < RECORDS
    kv.close()
    assert wal.trap(image / "db") is None
    kv = open_kv(image)
    assert len(numbers(kv)) == seen
    kv.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [5, 8, 11])
def test_a_trap_within_what_was_synced_is_corruption_and_named(image: Path, kind: int) -> None:
    log = log_of(image)
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
    log = set_trap(image, 3 * BLOCK, 5, 100)
    later = log.with_name(f"{int(log.stem) + 1000:06d}.log")
    later.write_bytes(log.read_bytes()[:BLOCK])
    kv = open_kv(image)
    assert len(numbers(kv)) < RECORDS
    kv.close()


def test_logs_as_they_are_written_hold_no_trap(crashed: Path, several: Path, tmp_path: Path) -> None:
    assert wal.trap(crashed / "db") is None
    assert wal.trap(several / "db") is None
    assert wal.trap(tmp_path) is None


def test_logs_of_batches_that_begin_anywhere_in_a_block_hold_no_trap(tmp_path: Path) -> None:
    """A block ends with a header alone, or with a part of the head of a batch, sooner or later."""
    kv = open_kv(tmp_path)
    for number in range(8000):
        put(kv, number, bytes(number % 61))
    log = log_of(tmp_path)
    rooms = {BLOCK - header.at % BLOCK for header in wal._headers(log.read_bytes()) if header.first}
    assert any(room < 7 + 12 for room in rooms)
    assert wal.trap(log.parent) is None
    kv.close()


# ---------------------------------------------------------------- holes that RocksDB's reader passes over

SEVERAL = 1200
_SEVERAL_LOGS = """
import os, signal, sys
from pathlib import Path
from rmqstore.engine.kv.base import WriteBatch
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

kv = open_rocksdb(Path(sys.argv[1]), ("meta", "timers"), RocksDBTuning(write_buffer_mib=1))
kv._db._db.cancel_all_background(False)  # No memory table is written out, so no log was synced but by the sync.
for number in range(int(sys.argv[2])):
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), os.urandom(1000))
    position = kv.write(batch)
    if number == int(sys.argv[3]) - 1:
        kv.sync(position)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like ``crashed``, with three logs that are all needed; what was synced is in the first."""
    home = tmp_path_factory.mktemp("killed")
    arguments = [str(home), str(SEVERAL), str(SYNCED)]
    ended = subprocess.run([sys.executable, "-c", _SEVERAL_LOGS, *arguments], timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return home


def ends(logs: list[Path]) -> list[list[int]]:
    """Return where the records of each log end, but for the last one."""
    return [[header.at for header in wal._headers(log.read_bytes()) if header.first][1:] for log in logs]


@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize("lost", ["one write", "many writes", "half a write", "all but one", "the whole log"])
def test_what_lies_behind_a_lost_end_of_a_log_is_cut(several: Path, tmp_path: Path, log: int, lost: str) -> None:
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    logs = wal._logs(image / "db")
    records = ends(logs)
    assert len(logs) == 3
    at = {
        "one write": records[log][-1],
        "many writes": records[log][100],
        "half a write": records[log][200] + 500,
        "all but one": records[log][0] if log else records[log][SYNCED - 1],
        "the whole log": 0,
    }[lost]
    os.truncate(logs[log], at)
    if lost == "the whole log" and log == 0:
        for call in (lambda: open_kv(image), lambda: view_rocksdb(image, SPACES, RocksDBTuning())):
            with pytest.raises(CorruptStoreError, match="within what was synced") as caught:
                call()
            assert (caught.value.file, caught.value.offset) == (str(logs[0]), 0)
        assert all(log.stat().st_size for log in logs[1:]), "the evidence stays"
        return
    kept = sum(len(each) + 1 for each in records[:log]) + sum(end <= at for end in records[log])
    view = view_rocksdb(image, SPACES, RocksDBTuning())
    assert [int.from_bytes(key, "big") for key, _ in view.scan_all(1)] == list(range(kept))
    view.close()
    for turn in range(2):
        kv = open_kv(image)
        assert numbers(kv) == list(range(kept)) + [10_000 + number for number in range(turn)]
        kv.sync(put(kv, 10_000 + turn, b"v"))
        kv.close()


def test_a_hole_is_found_before_a_header_that_rocksdb_does_not_get_past(several: Path, tmp_path: Path) -> None:
    """One power cut takes the end of a log, and leaves something else in a later one."""
    for trapped in (1, 2):
        image = Path(shutil.copytree(several, tmp_path / f"engine{trapped}"))
        logs = wal._logs(image / "db")
        records = ends(logs)
        os.truncate(logs[0], records[0][400])
        put_header(logs[trapped], records[trapped][100], 5, 100)
        view = view_rocksdb(image, SPACES, RocksDBTuning())
        assert len(list(view.scan_all(1))) == 401
        view.close()
        kv = open_kv(image)
        assert numbers(kv) == list(range(401))
        kv.close()


def test_a_page_that_was_not_written_is_a_hole(tmp_path: Path) -> None:
    """RocksDB takes zeros for the end of a block, and goes on with the next one; where that begins with a record, it sees nothing wrong."""
    arguments = [str(tmp_path), "300", str(SYNCED), str(4096 - 7 - 12 - 9)]
    ended = subprocess.run([sys.executable, "-c", _WRITER, *arguments], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    whole = log_of(tmp_path).read_bytes()
    begins = [header.at for header in wal._headers(whole) if header.first]
    page = next(at for at in range(4096 * 90, len(whole), 4096) if at in begins)
    for pages in (1, 2, 8):
        image = Path(shutil.copytree(tmp_path, tmp_path / f"image{pages}", ignore=shutil.ignore_patterns("image*")))
        data = bytearray(whole)
        data[page : page + 4096 * pages] = bytes(4096 * pages)
        log_of(image).write_bytes(data)
        kv = open_kv(image)
        assert numbers(kv) == list(range(begins.index(page)))
        kv.close()


@pytest.mark.parametrize("mark", ["new", "old"])
@pytest.mark.parametrize("which", [0, 2])
def test_garbage_in_a_log_that_comes_back_takes_nothing(several: Path, tmp_path: Path, which: int, mark: str) -> None:
    """A recovery removes logs; one comes back with a power cut, and something else is in it; the note of the last sync may be older."""
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    old = Path(shutil.copy(wal._logs(image / "db")[which], tmp_path / wal._logs(image / "db")[which].name))
    noted = (image / "db" / "SYNCED").read_bytes()
    put_header(old, ends([old])[0][200], 5, 100)
    open_kv(image).close()
    ended = subprocess.run([sys.executable, "-c", _SEVERAL_LOGS, str(image), "10", "10"], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    shutil.move(old, image / "db" / old.name)
    if mark == "old":
        (image / "db" / "SYNCED").write_bytes(noted)
    tail = wal._logs(image / "db")[-1]
    tail.write_bytes(tail.read_bytes() + HEADER.pack(0x12345678, 100, 5) + b"x" * 50)
    view = view_rocksdb(image, SPACES, RocksDBTuning())
    assert len(list(view.scan_all(1))) == SEVERAL
    view.close()
    kv = open_kv(image)
    assert numbers(kv) == list(range(SEVERAL))
    kv.close()


def test_a_log_that_comes_back_is_not_missed_by_the_others(several: Path, tmp_path: Path) -> None:
    """A power cut may undo the removal of a log; of those between it and what is needed, none is missing."""
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    first, *_ = [Path(shutil.copy(log, tmp_path / log.name)) for log in wal._logs(image / "db")]
    kv = open_kv(image)
    kv.close()
    process = subprocess.run([sys.executable, "-c", _SEVERAL_LOGS, str(image), "10", "5"], timeout=60, check=False)
    assert process.returncode == -signal.SIGKILL
    os.truncate(first, ends([first])[0][10])
    shutil.move(first, image / "db" / first.name)
    assert wal.trap(image / "db") is not None
    view = view_rocksdb(image, SPACES, RocksDBTuning())
    assert len(list(view.scan_all(1))) == SEVERAL
    view.close()
    kv = open_kv(image)
    assert numbers(kv) == list(range(SEVERAL))
    kv.close()


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


# ---------------------------------------------------------------- reopening


def full(kv: RocksDBKV) -> int:
    """Have a write in the log that is not durable yet, when the disk says that it has no room; returns its position."""
    position = put(kv, 1, b"v")
    kv.refuse_full(OSError(errno.ENOSPC, "no room"))
    return position


def test_a_sync_that_meets_a_reopen_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = open_kv(tmp_path)
    position = full(kv)
    said: list[BaseException | None] = []

    def sync() -> None:
        try:
            said.append(kv.sync(position))  # type: ignore[func-returns-value]
        except StoreError as error:
            said.append(error)

    syncing = threading.Thread(target=sync, daemon=True)
    let_go = kv._let_go

    def meeting() -> None:
        let_go()
        syncing.start()
        syncing.join(0.2)

    monkeypatch.setattr(kv, "_let_go", meeting)
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
    said: list[BaseException | None] = []

    def reopen() -> None:
        try:
            said.append(kv.reopen())  # type: ignore[func-returns-value]
        except StoreError as error:
            said.append(error)

    reopening = threading.Thread(target=reopen, daemon=True)

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


def broken(*_: Path) -> None:
    raise KeyboardInterrupt
