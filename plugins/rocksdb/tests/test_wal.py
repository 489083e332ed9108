"""The write-ahead log at an open: torn tails, damage, what RocksDB does not get past, and holes that it does not see."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from plugins.rocksdb.tests.opened import SPACES, numbers, open_kv, put
from rmqstore.errors import CorruptStoreError, StoreError
from rmqstore_rocksdb import log_format, manifest, stand_in, wal
from rmqstore_rocksdb.reading import view_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

RECORDS, SYNCED = 120, 70
HEADER = struct.Struct("<IHB")
BLOCK = 32 * 1024
"""The log is cut into blocks of so many bytes; two are full of what was synced."""

Mutation = Callable[[bytearray], bytes | bytearray]


_WRITER = """
import os, signal, sys
from pathlib import Path
from rmqstore.engine.kv.base import WriteBatch
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

records, synced, value_bytes, write_buffer_mib = map(int, sys.argv[2:])
kv = open_rocksdb(Path(sys.argv[1]), ("meta", "timers"), RocksDBTuning(write_buffer_mib=write_buffer_mib))
kv._db._db.cancel_all_background(False)  # No memory table is written out, so no log was synced but by the sync.
for number in range(records):
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), os.urandom(value_bytes))
    position = kv.write(batch)
    if number == synced - 1:
        kv.sync(position)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(home: Path, records: int, synced: int, value_bytes: int = 1000, *, write_buffer_mib: int = 64) -> Path:
    """Have a process write records of one size and sync the first ones, and kill it with -9; a small buffer makes several logs."""
    arguments = [str(each) for each in (home, records, synced, value_bytes, write_buffer_mib)]
    ended = subprocess.run([sys.executable, "-c", _WRITER, *arguments], timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return home


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a process that was killed with -9: ``RECORDS`` records of one size in its log, ``SYNCED`` of them synced.

    A copy of a store that is in use would do if RocksDB did not delete files in the background while they are copied.
    """
    return killed(tmp_path_factory.mktemp("killed"), RECORDS, SYNCED)


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
    return [header.at for header in log_format.headers(log.read_bytes())]


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
    error = check_refuses(image, "within what was synced")
    assert (error.file, error.offset) == (str(log), offset)
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
    rooms = {BLOCK - header.at % BLOCK for header in log_format.headers(log.read_bytes()) if header.first}
    assert any(room < 7 + 12 for room in rooms)
    assert wal.trap(log.parent) is None
    kv.close()


# ---------------------------------------------------------------- holes that RocksDB's reader passes over

SEVERAL = 1200


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like ``crashed``, with three logs that are all needed; what was synced is in the first."""
    return killed(tmp_path_factory.mktemp("killed"), SEVERAL, SYNCED, write_buffer_mib=1)


def check_view_of(image: Path, kept: int) -> None:
    view = view_rocksdb(image, SPACES, RocksDBTuning())
    assert [int.from_bytes(key, "big") for key, _ in view.scan_all(1)] == list(range(kept))
    view.close()


def check_refuses(image: Path, match: str) -> CorruptStoreError:
    """Check that an owner and a reader are refused alike, and return why."""
    errors = []
    for call in (lambda: open_kv(image), lambda: view_rocksdb(image, SPACES, RocksDBTuning())):
        with pytest.raises(CorruptStoreError, match=match) as caught:
            call()
        errors.append(caught.value)
    assert (errors[0].file, errors[0].offset) == (errors[1].file, errors[1].offset)
    return errors[0]


def check_opens_with(image: Path, kept: int) -> None:
    """Check that a reader and an owner find the first writes, so many, and nothing else."""
    check_view_of(image, kept)
    kv = open_kv(image)
    assert numbers(kv) == list(range(kept))
    kv.close()


def ends(logs: list[Path]) -> list[list[int]]:
    """Return where the records of each log end, but for the last one."""
    return [[header.at for header in log_format.headers(log.read_bytes()) if header.first][1:] for log in logs]


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
        error = check_refuses(image, "within what was synced")
        assert (error.file, error.offset) == (str(logs[0]), 0)
        assert all(log.stat().st_size for log in logs[1:]), "the evidence stays"
        return
    kept = sum(len(each) + 1 for each in records[:log]) + sum(end <= at for end in records[log])
    check_view_of(image, kept)
    for turn in range(2):
        kv = open_kv(image)
        assert numbers(kv) == list(range(kept)) + [10_000 + number for number in range(turn)]
        kv.sync(put(kv, 10_000 + turn, b"v"))
        kv.close()


def test_a_first_log_that_is_missing_is_told(several: Path, tmp_path: Path) -> None:
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    first, *others = wal._logs(image / "db")
    first.rename(tmp_path / first.name)
    before = [log.read_bytes() for log in others]
    for _ in range(2):
        assert check_refuses(image, "is missing, with what was synced; nothing was changed; put it back").file == str(others[0])
    assert [log.read_bytes() for log in others] == before
    (tmp_path / first.name).rename(first)
    check_opens_with(image, SEVERAL)


@pytest.mark.parametrize("byte", [7, 9, 12])
def test_a_first_sequence_number_that_is_damaged_is_not_taken_for_a_missing_log(several: Path, tmp_path: Path, byte: int) -> None:
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    log = wal._logs(image / "db")[0]
    data = bytearray(log.read_bytes())
    data[byte] ^= 0x40
    log.write_bytes(data)
    assert wal.trap(image / "db") is None
    with pytest.raises(CorruptStoreError, match="its log is damaged within what was synced"):
        view_rocksdb(image, SPACES, RocksDBTuning())
    with pytest.raises(CorruptStoreError, match="is damaged at offset 0, within what was synced") as caught:
        open_kv(image)
    assert (caught.value.file, caught.value.offset) == (str(log), 0)


@pytest.mark.parametrize("content", [b"", b"MANIFEST-\0\n", b"MANIFEST-999999\n"], ids=["empty", "zero", "gone"])
def test_without_a_manifest_rocksdb_tells_what_is_wrong(several: Path, tmp_path: Path, content: bytes) -> None:
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    (image / "db" / "CURRENT").write_bytes(content)
    assert manifest.last_sequence(image / "db") is None
    with pytest.raises((CorruptStoreError, StoreError), match=r"CURRENT|MANIFEST"):
        open_kv(image)


def test_a_damaged_manifest_is_not_taken_for_a_missing_log(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    kv = open_kv(tmp_path / "made")
    for number in range(300):
        put(kv, number, b"v")
    kv.close()
    kv = open_kv(tmp_path / "made")
    kv.sync(put(kv, 300, b"v"))
    image = Path(shutil.copytree(tmp_path / "made", tmp_path / "engine"))
    kv.close()
    known = manifest.last_sequence(image / "db")
    assert known is not None
    assert known >= 300
    (found,) = (image / "db").glob("MANIFEST-*")
    found.write_bytes(found.read_bytes().replace(bytes((4, 0x80 | known % 128, known // 128)), bytes((4, 0x81, 0))))
    assert manifest.last_sequence(image / "db") == 1
    with pytest.raises(CorruptStoreError) as caught:
        open_kv(image)
    assert caught.value.file == str(found)


def test_damage_that_a_stand_in_meets_is_named_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_kv(tmp_path).close()
    path = tmp_path / "db"
    (found,) = path.glob("MANIFEST-*")

    def read(self: stand_in.StandIn, *_: object) -> NoReturn:
        raise CorruptStoreError(f"{self.path / found.name} is damaged", file=str(self.path / found.name), offset=7)

    monkeypatch.setattr(stand_in.StandIn, "read", read)
    with pytest.raises(CorruptStoreError) as caught:
        stand_in._asked(path, wal.all_of(path), (), RocksDBTuning())
    assert (caught.value.file, caught.value.offset) == (str(found), 7)
    assert str(caught.value).startswith(f"{found} is damaged")


def test_a_manifest_of_many_blocks_is_read_to_its_end(tmp_path: Path) -> None:
    """Of an edit that is cut by the end of a block the rest follows behind a header."""
    kv = open_kv(tmp_path)
    for number in range(200):
        position = put(kv, number, b"v")
        kv._db.families[1].flush(wait=True)
    (found,) = (tmp_path / "db").glob("MANIFEST-*")
    assert manifest.last_sequence(tmp_path / "db") == position
    assert found.stat().st_size > BLOCK
    kv.close()


def test_what_is_behind_a_first_log_that_a_power_cut_took_is_cut(several: Path, tmp_path: Path) -> None:
    """Its name was not durable, as nothing in it was synced."""
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    (image / "db" / "SYNCED").unlink()
    wal._logs(image / "db")[0].unlink()
    check_opens_with(image, 0)


def test_a_hole_is_found_before_a_header_that_rocksdb_does_not_get_past(several: Path, tmp_path: Path) -> None:
    """One power cut takes the end of a log, and leaves something else in a later one."""
    for trapped in (1, 2):
        image = Path(shutil.copytree(several, tmp_path / f"engine{trapped}"))
        logs = wal._logs(image / "db")
        records = ends(logs)
        os.truncate(logs[0], records[0][400])
        put_header(logs[trapped], records[trapped][100], 5, 100)
        check_opens_with(image, 401)


def test_a_page_that_was_not_written_is_a_hole(tmp_path: Path) -> None:
    """RocksDB takes zeros for the end of a block, and goes on with the next one; where that begins with a record, it sees nothing wrong."""
    killed(tmp_path, 300, SYNCED, 4096 - 7 - 12 - 9)
    whole = log_of(tmp_path).read_bytes()
    begins = [header.at for header in log_format.headers(whole) if header.first]
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
    killed(image, 10, 10, write_buffer_mib=1)
    shutil.move(old, image / "db" / old.name)
    if mark == "old":
        (image / "db" / "SYNCED").write_bytes(noted)
    tail = wal._logs(image / "db")[-1]
    tail.write_bytes(tail.read_bytes() + HEADER.pack(0x12345678, 100, 5) + b"x" * 50)
    check_opens_with(image, SEVERAL)


def test_a_log_that_comes_back_is_not_missed_by_the_others(several: Path, tmp_path: Path) -> None:
    """A power cut may undo the removal of a log; of those between it and what is needed, none is missing."""
    image = Path(shutil.copytree(several, tmp_path / "engine"))
    first, *_ = [Path(shutil.copy(log, tmp_path / log.name)) for log in wal._logs(image / "db")]
    kv = open_kv(image)
    kv.close()
    killed(image, 10, 5, write_buffer_mib=1)
    os.truncate(first, ends([first])[0][10])
    shutil.move(first, image / "db" / first.name)
    assert wal.trap(image / "db") is not None
    check_opens_with(image, SEVERAL)
