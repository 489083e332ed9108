"""A disk that is really full (F1): what is left of a check point that found no room, and files of the log that go all the same.

It is a small file system in memory, so these tests need the right to mount one.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, patch

import pytest

from plugins.wheel.tests.stores import HOUR_MS, START_MS, Run, drop_check_points, ledger_of, noted, opened
from plugins.wheel.tests.test_commit_log import append, pieces
from rmqstore import ManualClock, Message, Store, StoreFullError, StorePathError
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.engine.shared import Shared
from rmqstore_conformance.faults.filling import SmallDisk, small_disk
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.files.spare import Spare
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.reclaim.reclaim import AGAIN_MS


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with ExitStack() as ending:
        try:
            made = ending.enter_context(small_disk(tmp_path / "disk", size_mib=60))
        except OSError as error:
            pytest.skip(f"not run: {error.strerror}")
        yield made


def test_check_points_that_find_no_room_leave_the_wheel_of_the_one_before(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Else the next open would make everything anew from the log."""
    with opened(disk.store) as store:
        # What a check point holds of these calls is more than the room that is left to it, which is enough for a wheel.
        for number in range(1000):
            store.send_batch([Message("t", b"x", deliver_at_ms=START_MS + 60_000)], marks=[b"%05d" % number + bytes(240)])
        ledger = ledger_of(store)
        ledger.make_check_point()
        for attempt in range(3):
            store.send(Message("t", b"x", deliver_at_ms=START_MS + 70_000 + 1000 * attempt))
            disk.fill()
            disk.leave(64 * 1024)
            before = (disk.store / "wheel" / "db" / "timerwheel").stat().st_ino
            with pytest.raises(StoreFullError):
                ledger.make_check_point()
            assert (disk.store / "wheel" / "db" / "timerwheel").stat().st_ino != before, "the wheel was written"
            disk.free()
        copy_tree(disk.store, tmp_path / "killed")
        ledger.make_check_point()
    fits = noted(monkeypatch, Ledger, "resume", lambda fits, *_: fits)
    for path in (tmp_path / "killed", disk.store):
        with opened(path) as store:
            assert store.pending().total == 1003
            assert store.verify() == []
    assert fits == [True, True]


# ---------------------------------------------------------------- files that go


class Full:
    """A store whose log has filled the disk, to the last small message."""

    def __init__(self, disk: SmallDisk, **settings: Any) -> None:
        self.disk, self.clock, self.settings = disk, ManualClock(START_MS), {"wheel__log_file_mib": 8, **settings}
        self.store = self.opened()
        self.store.send(Message("far", b"x", message_id="far"), delay_ms=100 * HOUR_MS)
        self.store.send(Message("late", b"x", message_id="late"), delay_ms=2 * HOUR_MS)
        self.sent = 0
        for size in (20_000, 1):
            with pytest.raises(StoreFullError):
                self._fill(size)
        assert self.files[0] == 0
        assert len(self.files) > 3

    def _fill(self, size: int) -> None:
        while True:
            self.store.send(Message("t", bytes(size)))
            self.sent += 1
            if self.sent % 20 == 0:
                self.clock.advance(1000)
                self.store.tick()

    def opened(self) -> Store:
        return opened(self.disk.store, self.clock, **self.settings)

    @property
    def files(self) -> list[int]:
        """The numbers of the log's files."""
        log = ledger_of(self.store).log
        return [start // log.file_bytes for start in log.chain.starts]

    def consume(self) -> None:
        """Pop and ack all messages, while others try to send and time goes on."""
        while self.sent:
            held = self.store.pop("t", "g", max_messages=32)
            with suppress(StoreFullError):
                self.store.send(Message("other", b"x"))
            self.clock.advance(1000)
            self.store.tick()
            self.store.ack(held)
            self.sent -= len(held)

    def upkeep(self, rounds: int = 20) -> list[StoreFullError]:
        """Let time pass for everything to be looked at; returns what ticks said."""
        errors = []
        for _ in range(rounds):
            self.clock.advance(AGAIN_MS // 4)
            try:
                self.store.tick()
            except StoreFullError as error:
                errors.append(error)
        return errors

    def consume_and_check(self) -> None:
        self.consume()
        self.upkeep()
        self.clock.advance(2 * HOUR_MS)
        self.store.tick()
        self.check()

    def check(self) -> None:
        """See whether all goes on, though nothing else made room."""
        assert self.files[0] > 2
        assert len(self.files) == 1
        for _ in range(100):
            self.store.send(Message("t", bytes(20_000)))
        self.store.close()
        self.store = self.opened()
        assert self.store.verify() == []
        assert [each.message.message_id for each in self.store.scan().timers] == ["far"]
        assert [each.message_id for each in self.store.pop("late", "g")] == ["late"]
        self.store.close()


@pytest.mark.parametrize("due", [False, True], ids=["nothing due", "a timer is due"])
def test_what_was_consumed_goes_though_the_log_has_filled_the_disk(disk: SmallDisk, due: bool) -> None:
    """A timer that is due waits for room, and what makes it does not wait for the timer. A far one is copied out of the way."""
    full = Full(disk)
    full.consume()
    if due:
        full.clock.advance(2 * HOUR_MS)
    assert bool(full.upkeep()) is due
    full.consume_and_check()


def test_what_is_lent_stays_so_when_the_store_is_opened_anew(disk: SmallDisk) -> None:
    """Else each open would have messages in the place of what pops and upkeep need, until nothing of it is left."""
    full = Full(disk)
    for _ in range(3):
        full.store.ack(full.store.pop("t", "g", max_messages=32))
        full.sent -= 32
        full.store.close()
        full.store = full.opened()
        with pytest.raises(StoreFullError):
            full.store.send(Message("t", b"x"))
    full.consume_and_check()


def test_what_is_too_old_goes_though_the_log_has_filled_the_disk(disk: SmallDisk) -> None:
    full = Full(disk, reclaim="age", retention_ms=HOUR_MS)
    full.clock.advance(HOUR_MS)
    full.upkeep(1)
    full.clock.advance(2 * HOUR_MS)
    full.upkeep()
    full.check()


def test_what_is_lent_is_not_for_messages(disk: SmallDisk) -> None:
    """They would take it each time, until nothing of it is left when it would do."""
    other = disk.path / "other"
    other.write_bytes(bytes(16_000_000))
    full = Full(disk)
    ledger = ledger_of(full.store)
    assert ledger.spare.lend(to_upkeep=True)
    assert ledger.spare.lend(to_upkeep=True)
    disk.fill()
    for _ in range(3):
        with pytest.raises(StoreFullError):
            full.store.send(Message("t", b"x"))
    full.store.lag("t", "g")
    full.store.topics.create("u")
    full.store.topics.delete("u")  # what makes room is in no message
    other.unlink()
    for _ in range(3):
        full.store.send(Message("t", b"x"))
    assert not ledger.spare.is_lent
    full.store.close()


def test_a_large_call_that_finds_no_room_leaves_nothing_of_itself(disk: SmallDisk) -> None:
    """F1: also where its room was set aside in part."""
    many = [Message("t", bytes(1000), deliver_at_ms=START_MS + 1000)] * 1000
    with opened(disk.store) as store:
        store.send_batch(many)
        log = ledger_of(store).log
        tail = log.tail
        disk.fill()
        disk.leave(1_300_000)
        with pytest.raises(StoreFullError):
            store.send_batch(many)
        assert (log.tail, store.pending().total) == (tail, 1000)
        store.send_batch(many[:100])
        disk.free()
        store.send_batch(many)
    with opened(disk.store) as store:
        assert store.pending().total == 2100
        assert store.verify() == []


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EMFILE])
def test_upkeep_goes_on_where_nothing_can_be_set_aside(run: Run, monkeypatch: pytest.MonkeyPatch, why: int) -> None:
    """What it takes away makes room, on the disk and among the open files, and what comes behind it in a tick is done."""
    create = Disk.create

    def refused(disk: Disk, path: Path, length: int = 0) -> DiskFile:
        if path.name == "spare":
            raise OSError(why, os.strerror(why))
        return create(disk, path, length)

    monkeypatch.setattr(Disk, "create", refused)
    run.fill(3)
    run.upkeep()
    assert len(run.files) == 1


# ---------------------------------------------------------------- an open


@pytest.mark.parametrize("how", ["closed", "killed", "all is made anew"])
def test_an_open_goes_on_in_what_is_set_aside(disk: SmallDisk, tmp_path: Path, how: str) -> None:
    """Nobody could consume what has filled the disk else."""
    full = Full(disk)
    copy_tree(disk.store, tmp_path / "killed")
    full.store.close()
    if how == "killed":
        shutil.rmtree(disk.store)
        copy_tree(tmp_path / "killed", disk.store)
    elif how == "all is made anew":
        drop_check_points(disk.store)
        for made in ("consumequeue", "timerlog"):
            shutil.rmtree(disk.store / "wheel" / "db" / made)
    disk.fill()
    full.store = full.opened()
    disk.free()
    full.consume_and_check()


def test_an_open_reads_no_hole_where_that_takes_room(disk: SmallDisk) -> None:
    """A file of the log is a hole behind its end once the next one is begun, whose first call may find no room. On tmpfs that killed."""
    directory = disk.path / "commitlog"
    log = CommitLog(Disk(), directory, 8 << 20)
    append(log, pieces([1], 1_000_000))
    disk.fill()
    disk.leave(1_000_000)
    with pytest.raises(OSError, match="No space"):
        append(log, pieces([2], 3_400_000))
    assert len(log.chain.starts) == 2
    log.close()
    disk.fill()
    child = os.fork()
    if not child:
        os._exit(len(list(CommitLog(Disk(), directory, 8 << 20).recover(0))))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_what_is_set_aside_in_part_keeps_no_message_from_a_store_that_is_opened_anew(disk: SmallDisk) -> None:
    """As long as nothing of it was lent: there was no room for more, or the store was closed too early."""
    full = Full(disk)
    full.consume()
    full.upkeep()
    full.store.close()
    os.truncate(disk.store / "wheel" / "spare", 4 * 1024 * 1024)
    disk.fill()
    disk.leave(1_000_000)
    full.store = full.opened()
    full.store.send(Message("t", b"x"))
    disk.free()
    full.store.close()


def test_an_open_writes_its_epoch_in_what_is_set_aside(disk: SmallDisk) -> None:
    """What pops and acks have left in the log is less than some opens need."""
    full = Full(disk)
    full.store.close()
    refused = StoreFullError("no room")
    refused.__cause__ = OSError(errno.ENOSPC, "no room")
    with patch("rmqstore_wheel.engine.Shared", wraps=Shared, side_effect=[refused, DEFAULT]) as asked:
        full.store = full.opened()
    assert asked.call_count == 2
    full.store.close()
    disk.free()


def test_a_file_that_may_not_grow_leaves_nothing_open(tmp_path: Path) -> None:
    """A limit on the size of files is told as a full disk, which upkeep meets again and again."""
    files = len(list(Path("/proc/self/fd").iterdir()))

    refused = OSError(errno.EFBIG, "File too large")
    with patch.object(DiskFile, "truncate", side_effect=refused), pytest.raises(OSError, match="too large"):
        Disk().create(tmp_path / "file", 1 << 24)
    assert len(list(Path("/proc/self/fd").iterdir())) == files


@pytest.mark.parametrize("what", ["directory", "link that leads nowhere"])
def test_something_else_in_the_place_of_what_is_set_aside_is_named_at_once(tmp_path: Path, what: str) -> None:
    """It poisoned the store once its log had a second file."""
    opened(tmp_path / "s").close()
    path = tmp_path / "s" / "wheel" / "spare"
    if what == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    for _ in range(2):
        with pytest.raises(StorePathError, match="wheel/spare is in the place of"):
            opened(tmp_path / "s")
    path.rename(tmp_path / "away")
    opened(tmp_path / "s").close()


# ---------------------------------------------------------------- what is set aside


def spare_at(path: Path, pieces: int = 0) -> Spare:
    spare = Spare(Disk(), path, 10_000_000, 4_000_000)
    spare.open()
    assert all(spare.grow() for _ in range(pieces))
    return spare


def test_a_spare_comes_and_goes_in_pieces(disk: SmallDisk) -> None:
    path = disk.path / "spare"

    def kept() -> int:
        return path.stat().st_blocks * 512 // 1_000_000

    spare = spare_at(path)
    assert [(spare.grow(), kept()) for _ in range(4)] == [(True, 4), (True, 8), (True, 10), (False, 10)]
    spare.close()
    spare = spare_at(path)
    assert [(spare.lend(to_upkeep=False), kept()) for _ in range(3)] == [(True, 8), (True, 4), (False, 4)]
    assert [(spare.lend(to_upkeep=True), kept()) for _ in range(2)] == [(True, 0), (False, 0)]
    disk.fill()
    assert not spare.grow()
    assert kept() == 0
    disk.free()
    assert [(spare.grow(), spare.is_lent) for _ in range(4)] == [(True, True), (True, True), (True, False), (False, False)]
    spare.close()


def test_what_is_lent_is_known_to_the_next_open_and_what_was_never_there_is_not_lent(disk: SmallDisk) -> None:
    path = disk.path / "spare"
    spare = spare_at(path, pieces=2)
    for is_lent in (False, True, True):
        spare.close()
        spare = spare_at(path)
        assert spare.is_lent is is_lent
        spare.lend(to_upkeep=True)
    spare.close()
    spare = spare_at(path)
    assert [(spare.grow(), spare.is_lent) for _ in range(2)] == [(True, True), (True, False)]
    spare.close()


def test_what_is_lent_is_known_where_a_kill_comes_between_its_steps(disk: SmallDisk) -> None:
    path, lengths = disk.path / "spare", []

    def truncate(file: DiskFile, length: int) -> None:
        os.truncate(path, length)
        if not lengths:
            lengths.append(length)
            raise KeyboardInterrupt

    spare = spare_at(path, pieces=2)
    with patch.object(DiskFile, "truncate", truncate), pytest.raises(KeyboardInterrupt):
        spare.lend(to_upkeep=True)
    spare.close()
    spare = spare_at(path)
    assert spare.is_lent
    assert [(spare.grow(), spare.is_lent) for _ in range(3)] == [(True, True), (True, False), (False, False)]
    spare.close()


def test_nothing_is_written_for_a_piece_that_has_no_room(disk: SmallDisk) -> None:
    """Each refused send would write and remove it, and take the room of others meanwhile."""
    spare = spare_at(disk.path / "spare", pieces=1)
    disk.fill()
    disk.leave(3_000_000)
    with patch.object(DiskFile, "zero_fill", side_effect=AssertionError):
        assert not spare.grow()
    disk.leave(2_000_000)
    assert spare.grow()
    spare.close()


def test_nothing_is_lent_for_want_of_names(disk: SmallDisk) -> None:
    """Else each tick that cannot make a file would empty all of it, for nothing."""
    spare = spare_at(disk.path / "spare", pieces=1)
    names = os.statvfs(disk.path)
    subprocess.run(["mount", "-o", f"remount,nr_inodes={names.f_files - names.f_ffree}", disk.path], check=True)
    with pytest.raises(OSError, match="No space left"):
        (disk.path / "file").touch()
    assert not spare.lend(to_upkeep=True)
    with open(disk.path / "spare", "ab") as file:  # bytes are wanted as well
        os.posix_fallocate(file.fileno(), 10_000_000, os.statvfs(disk.path).f_bavail * names.f_frsize - 1_000_000)
    assert spare.lend(to_upkeep=True)
    spare.close()
