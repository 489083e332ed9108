"""The log of frames: what is kept of it by a recovery, and what is refused."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from plugins.wheel.tests.made_records import encode_record
from plugins.wheel.tests.stores import meanwhile, noted, overwrite
from rmqstore.errors import CorruptStoreError, FormatVersionError
from rmqstore_wheel.files.chain import FileChain
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.formats import log_reading
from rmqstore_wheel.formats.commit_log import Record, decode_record, encode_blank
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.log import frames
from rmqstore_wheel.log.commit_log import CommitLog, Frame
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import parts_of

FILE_BYTES = 4096


def record(number: int, body_bytes: int = 50) -> bytes:
    return record_of(b"%d " % number * body_bytes)


def record_of(body: bytes, text: bytes = b"TAGS\x01a\x02") -> bytes:
    """Return a record with its sum behind the text of its properties."""
    found = encode_record(Record(topic=b"t", body=body, properties=text + sums.ROOM))
    return sums.sealed(found, len(found) - sums.PROPERTY_BYTES - len(text))


def pieces_of(*records: bytes) -> list[Encoded]:
    return frames.with_room(joined(records))


def pieces(numbers: Sequence[int], body_bytes: int = 50) -> list[Encoded]:
    return pieces_of(*(record(number, body_bytes) for number in numbers))


def append(log: CommitLog, frame: Sequence[Encoded], epoch: int = 1) -> int:
    """Append one frame; returns where its first record is."""
    planned = log.plan(frame)
    log.write(planned, epoch)
    return planned[0][0]


def opened(path: Path) -> CommitLog:
    return CommitLog(Disk(), path, FILE_BYTES)


def recovered(path: Path) -> tuple[CommitLog, list[Frame]]:
    log = opened(path)
    return log, list(log.recover(log.chain.first))


def bodies(log: CommitLog, found: Sequence[Frame]) -> list[bytes]:
    return [
        decode_record(log.record(part.file_start + start, size), log_offset=part.file_start + start).body
        for frame in found
        for part in frame.parts
        for start, size in zip(part.starts.tolist(), part.sizes.tolist(), strict=True)
    ]


def left_of(path: Path) -> list[bytes]:
    """Return the bodies of what a recovery keeps."""
    log, found = recovered(path)
    left = bodies(log, found)
    log.close()
    return left


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "commitlog"


@pytest.fixture
def log(path: Path) -> Iterator[CommitLog]:
    """A log of one call."""
    log = opened(path)
    append(log, pieces([1]))
    yield log
    log.close()


ONE = b"1 " * 50
"""The body of that call."""


def test_frames_come_back_whole_over_many_files(path: Path) -> None:
    log = opened(path)
    calls = [[1], [2, 3], list(range(4, 40)), [40], list(range(41, 90)), [90], *([number, number + 1] for number in range(91, 171, 2))]
    for numbers in calls:
        start = append(log, pieces(numbers))
        assert len(numbers) > 2 or start // FILE_BYTES == (log.tail - 1) // FILE_BYTES, "what fits into a file is never cut in two"
    log.sync()
    log.close()
    again, found = recovered(path)
    assert [sum(len(part.starts) for part in frame.parts) for frame in found] == [len(numbers) for numbers in calls]
    assert bodies(again, found) == [b"%d " % number * 50 for number in range(1, 171)]
    assert again.tail == found[-1].end == log.tail
    assert len(again.chain.starts) > 3


@pytest.mark.parametrize("lost", [1, 8, 30, 62, 63, 64, 65, 66, 67, 200, 5000])
def test_a_torn_frame_is_cut_off_and_what_follows_goes_on(path: Path, lost: int) -> None:
    """Whatever is missing of the last call, all of it goes, and the next one takes its place."""
    log = opened(path)
    append(log, pieces([1, 2]))
    kept = log.tail
    append(log, pieces(range(3, 30)))
    end = log.tail
    for start in range(max(end - lost, kept), end):
        log.chain.file(start // FILE_BYTES * FILE_BYTES).write_at(start % FILE_BYTES, b"\0")
    log.close()
    again, found = recovered(path)
    assert bodies(again, found) == [ONE, b"2 " * 50]
    assert again.tail == kept
    append(again, pieces([7]), 2)
    again.close()
    assert left_of(path) == [ONE, b"2 " * 50, b"7 " * 50]


@pytest.mark.parametrize("count", [1, 3])
def test_a_call_that_lacks_a_sector_is_cut_off(path: Path, tmp_path: Path, count: int) -> None:
    """Whichever sector of it did not reach the disk, also between a record's sum and its end; nothing passes for a record of a broker."""
    for length in range(1000, 1500, 7):
        log = opened(path)
        append(log, pieces([1]))
        kept = log.tail
        long = record_of(b"long", b"p\x01" + b"v" * length + b"\x02")
        append(log, pieces_of(long, *(record(number) for number in range(2, count + 1))))
        end = log.tail
        log.close()
        for sector in range(kept // 512, -(-end // 512)):
            shutil.copytree(path, tmp_path / "torn")
            begin, stop = max(sector * 512, kept), min((sector + 1) * 512, end)
            overwrite(tmp_path / "torn" / f"{0:020}", begin, bytes(stop - begin))
            assert left_of(tmp_path / "torn") == [ONE]
            shutil.rmtree(tmp_path / "torn")
        shutil.rmtree(path)


def test_only_the_last_property_ends_a_frame(path: Path) -> None:
    """Neither what a body ends with, nor a property of the user whose name ends alike, wherever it is before the end of the record."""
    for length in range(70):
        log = opened(path)
        text = b"xRMQS_FRAME\x01" + b"v" * length + b"\x02UNIQ_KEY\x01k\x02"
        append(log, pieces_of(record_of(b"b" + text[:length], text), record(2)))
        log.close()
        again, found = recovered(path)
        assert [len(part.starts) for frame in found for part in frame.parts] == [2]
        again.close()
        shutil.rmtree(path)


@pytest.mark.parametrize("known_by", ["nothing", "a later call", "a check point"])
def test_damage_is_refused_when_it_is_known_that_all_was_on_disk_there(log: CommitLog, path: Path, known_by: str) -> None:
    """What is not whole was whole once then; where nothing says so, it goes, and what is behind it too."""
    first = log.tail
    append(log, pieces([2]))
    if known_by == "a later call":
        log.sync()
    append(log, pieces([3]))
    log.chain.file(0).write_at(first + 100, b"\xff")
    log.close()
    again = opened(path)
    again.promised = log.tail if known_by == "a check point" else 0
    if known_by == "nothing":
        assert bodies(again, list(again.recover(0))) == [ONE]
        return
    with pytest.raises(CorruptStoreError) as caught:
        list(again.recover(0))
    assert (caught.value.offset, caught.value.file) == (first, str(path / "00000000000000000000"))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("damaged", [0, 1])
def test_damage_to_a_call_longer_than_a_file_is_refused_when_another_one_knows_of_it(path: Path, damaged: int, is_known: bool) -> None:
    log = opened(path)
    places = []
    for first in (0, 100, 200):
        places.append(append(log, pieces(range(first + 1, first + 60))))
        if is_known:
            log.sync()
    assert len(log.chain.starts) > 3 * 2
    log.chain.write_at(places[damaged] + FILE_BYTES + 100, b"\xff")
    log.close()
    again = opened(path)
    if is_known:
        with pytest.raises(CorruptStoreError, match=f"a later one at {places[damaged + 1]} says"):
            list(again.recover(0))
    else:
        assert len(list(again.recover(0))) == damaged


def test_a_copy_of_a_frame_in_a_body_proves_nothing(log: CommitLog, path: Path) -> None:
    """A message may hold a piece of the log; with the end of its own call torn, only a frame that stands where it says is evidence."""
    log.sync()
    copied = bytes(frames.whole([record(2)], parts_of(record(2))[3], 50_000, 1, 40_000, 100_000) or b"")
    append(log, pieces_of(record_of(b"x" * 100 + copied, b"")))
    end = log.tail
    log.chain.file(0).write_at(end - 30, bytes(30))
    log.close()
    assert left_of(path) == [ONE]


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 0), (3, FILE_BYTES - 100), (40, 3 * FILE_BYTES)])
def test_what_looks_like_the_end_of_a_frame_in_a_body_proves_nothing_and_costs_little(
    log: CommitLog, path: Path, monkeypatch: pytest.MonkeyPatch, count: int, size: int
) -> None:  # fmt: skip
    """Whatever lengths it says; of a file that such frames would fill, the records are looked at once."""
    log.sync()
    tail = log.tail
    second = append(log, pieces(range(2, 30)))
    end = frames.PROPERTY + b"%08x %010x %08x %016x %08x\x02" % (count, size, 1, tail + 1, 0)
    append(log, pieces_of(record_of(b"x" * 40 + 20 * end, b"")))
    log.chain.write_at(second + 100, b"\xff")
    log.chain.write_at(log.tail - 30, bytes(30))
    log.close()
    assert log.tail > 2 * FILE_BYTES, "what looks like an end is in a file that begins behind the damage"
    scanned = noted(monkeypatch, log_reading, "scan")
    assert left_of(path) == [ONE]
    assert size < FILE_BYTES or len(scanned) < 10


@pytest.mark.parametrize("properties", [b"TAGS\x01a\x02UNIQ_KEY\x01k\x02", b"UNIQ_KEY\x01k", b""])
@pytest.mark.parametrize("before", [[], [1], [1, 2, 3]], ids=len)
@pytest.mark.parametrize("in_next_file", [False, True])
def test_records_of_a_broker_are_never_cut_off(path: Path, properties: bytes, before: list[int], in_next_file: bool) -> None:
    """A log without frames, one that a broker went on with, and one in which it began another file."""
    log = opened(path)
    for number in before:
        append(log, pieces([number]))
    at = log.tail
    if in_next_file:
        log.chain.reserve(FILE_BYTES)
        log.chain.write_at(at, encode_blank(FILE_BYTES - at))
        at = FILE_BYTES
    theirs = encode_record(Record(topic=b"theirs", body=b"precious", properties=properties, physical_offset=at))
    log.chain.reserve(at + len(theirs))
    log.chain.write_at(at, theirs)
    log.close()
    held = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(FormatVersionError, match=f"offset {at} a record of topic 'theirs'"):
        recovered(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == held


def test_a_frame_of_an_earlier_life_is_not_taken_for_a_newer_one(path: Path, tmp_path: Path) -> None:
    """Its place and its CRC are right, as the zeros over it never reached the disk; its epoch gives it away."""
    log = opened(path)
    append(log, pieces([1]))
    append(log, pieces([2]))
    end = log.tail
    append(log, pieces([3]))
    whole = bytes(log.chain.view(0))
    log.close()
    shutil.rmtree(path)
    log = opened(path)
    append(log, pieces([1]))
    append(log, pieces([9]), 2)
    assert log.tail == end
    log.chain.file(0).write_at(end, whole[end:])
    log.close()
    assert left_of(path) == [ONE, b"9 " * 50]


def test_few_records_make_the_same_frame_as_many(tmp_path: Path) -> None:
    logs = [opened(tmp_path / name) for name in ("few", "many")]
    few, many = logs
    for numbers in ([1], [2, 3], [4], [5, 6, 7], *([number] for number in range(8, 60))):
        records = [record(number) for number in numbers]
        frame = frames.whole(records, parts_of(records[-1])[3], few.tail, 3, few.durable, few.file_bytes)
        if frame is None:
            append(few, pieces(numbers), 3)
        else:
            few.write_whole(frame)
        append(many, pieces(numbers), 3)
        assert few.tail == many.tail
        for log in logs:
            log.sync()
    assert few.chain.starts == many.chain.starts
    assert len(few.chain.starts) > 2
    for start in few.chain.starts:
        assert bytes(few.chain.view(start)) == bytes(many.chain.view(start))


_WITHOUT_NEIGHBOURS = """
import ctypes, mmap, sys
from pathlib import Path
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.files.disk import Disk

class Guarded(CommitLog):
    def _looked_at(self, file_start):
        found = super()._looked_at(file_start)
        end = -(-len(found) // mmap.PAGESIZE) * mmap.PAGESIZE
        room = mmap.mmap(-1, end + mmap.PAGESIZE)
        room[end - len(found) : end] = found
        behind = ctypes.addressof(ctypes.c_char.from_buffer(room)) + end
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(behind), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        return memoryview(room)[end - len(found) : end]

log = Guarded(Disk(), Path(sys.argv[1]), int(sys.argv[2]))
print(sum(1 for _ in log.recover(log.chain.first)))
"""


def test_an_open_reads_nothing_behind_a_map(tmp_path: Path) -> None:
    """The page behind belongs to nobody, or to somebody else; ``mmap.find`` of a Python before 3.11.5 touches it."""
    log = opened(tmp_path)
    list(log.recover(log.chain.first))
    for number in range(3):
        append(log, pieces([number]))
    log.sync()
    command = [sys.executable, "-c", _WITHOUT_NEIGHBOURS, str(tmp_path), str(FILE_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


# ---------------------------------------------------------------- a sync within a write, and within the making of a file


def test_a_sync_that_begins_within_a_write_leaves_the_write_to_the_next(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: what is written while another thread syncs is synced by the next call, whose bytes were not there yet."""
    events: list[str] = []
    meanwhile(monkeypatch, DiskFile, "write_at", lambda *_: log.chain.sync())
    noted(monkeypatch, DiskFile, "write_at", lambda *_: events.append("written"))
    noted(monkeypatch, DiskFile, "sync", lambda *_: events.append("synced"))
    append(log, pieces([2]))
    log.sync()
    assert events[-1] == "synced"


def test_a_name_is_durable_when_a_sync_returns_also_behind_one_that_was_interrupted(log: CommitLog, path: Path) -> None:
    """F4: a sync that ends behind that of the files, before that of their names, leaves the names to the next one."""
    with patch.object(Disk, "sync_directory", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        log.sync()
    with patch.object(Disk, "sync_directory", autospec=True) as synced:
        log.sync()
    assert path in [call.args[1] for call in synced.call_args_list]


def test_files_that_are_cut_off_go_one_by_one_durably(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: of names that go without a sync between them, one in the middle might be lost first, and leave a gap that keeps the log shut."""
    chain = FileChain(Disk(), path, FILE_BYTES, FILE_BYTES)
    chain.reserve(5 * FILE_BYTES)
    chain.sync()
    events: list[str] = []
    noted(monkeypatch, Disk, "remove", lambda *_: events.append("removed"))
    noted(monkeypatch, Disk, "sync_directory", lambda *_: events.append("synced"))
    chain.drop_from(FILE_BYTES)
    chain.sync()
    assert events == ["removed", "synced"] * 4


def test_a_large_write_is_written_once_and_small_ones_go_into_zeros(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros ahead make the syncs of small calls short; of a large one, they would make it twice as much to write."""
    chain = FileChain(Disk(), path, 1 << 22, 1 << 20)
    written: list[int] = []
    noted(monkeypatch, DiskFile, "write_at", lambda _, __, ___, data: written.append(len(data)))
    large = b"large" * 100_000
    chain.write_at(0, large)
    assert written == [len(large)]
    chain.write_at(len(large), b"small")
    assert sum(written) >= len(large) + 1024
    assert bytes(chain.read(0, len(large) + 10)) == large + b"small" + bytes(5)


@pytest.mark.parametrize("why", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ENOMEM])
def test_where_no_room_can_be_set_aside_without_a_write_zeros_are_written(path: Path, why: int) -> None:
    chain = FileChain(Disk(), path, 1 << 22, 1 << 20)
    with patch("os.posix_fallocate", side_effect=OSError(why, "not here")):
        chain.reserve(1 << 19)
    assert chain.read(0, 1 << 19) == bytes(1 << 19)
    assert (path / ("0" * 20)).stat().st_blocks * 512 >= 1 << 19
    for broken in (OSError(errno.EIO, "broken"), OSError(errno.ENOSPC, "broken")):
        with patch("os.posix_fallocate", side_effect=broken), pytest.raises(OSError, match="broken"):
            chain.reserve(1 << 20)


def test_a_file_that_found_no_room_is_made_anew(path: Path) -> None:
    """F1: what was begun of it does not count as there."""
    chain = FileChain(Disk(), path, FILE_BYTES, FILE_BYTES)
    chain.reserve_in(3 * FILE_BYTES, 4 * FILE_BYTES)
    with patch.object(DiskFile, "zero_fill", side_effect=OSError(errno.ENOSPC, "no room")), pytest.raises(OSError, match="no room"):
        chain.reserve_in(FILE_BYTES, 2 * FILE_BYTES)
    chain.reserve_in(FILE_BYTES, 2 * FILE_BYTES)
    assert len(chain.read(FILE_BYTES, FILE_BYTES)) == FILE_BYTES


def test_a_sync_does_not_pass_over_names_that_another_thread_is_making_durable(log: CommitLog, path: Path) -> None:
    """R1: a file is begun while a sync is under way; neither takes a name for durable that the other one has not synced yet."""
    sync_directory = Disk.sync_directory
    events: list[str] = []

    def within(disk: Disk, directory: Path) -> None:
        if not events:
            events.append("begun")
            log.sync()  # of another thread
            events.append("answered")
        sync_directory(disk, directory)
        if directory == path:
            events.append("durable")

    with patch.object(Disk, "sync_directory", within):
        for number in range(40):
            append(log, pieces([number], 200))
    assert events.index("durable") < events.index("answered")
