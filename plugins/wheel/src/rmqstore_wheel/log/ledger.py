"""``Ledger``: the commit log with all that is derived from it, as the ``OrderedKV`` of both sides.

A call is one frame: the messages that it appends, then the journal record that says what else it changes. The frame is the commit. What
caches will hold is written before it, behind their ends, where no reader looks; after it only numbers in memory change, which cannot fail.
So a call that fails changes nothing, and what a reader sees is always some number of whole frames. A call that is interrupted anywhere on
the way leaves what a crash would leave, and is treated so: all files are opened again (``after_interrupt``).

Why no crash point loses or doubles anything here: after a crash, the log holds a prefix of whole frames that reaches at least to the last
sync (``frames``), and everything else is a function of such a prefix. The check point is the value of that function for a prefix that was
durable before the check point was written; an open takes it and applies the frames behind it. Should it be missing, or any cache not be
what it vouches for, then the whole of the log is applied to nothing, which gives the same. Neither way writes to the log, so a crash during
an open changes nothing. Caches that are being rebuilt are in doubt from before the first of them changes until a check point of theirs is
durable, and older ones are gone (``files.units.RebuildReason``): a crash in between, or the loss of another cache, has all rebuilt again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Protocol, TypeVar

from rmqstore.contract import PopBuffer
from rmqstore.engine.kv.base import PAGE_BYTES, Alone, WriteBatch, at_once
from rmqstore.engine.kv.directory import EngineHome
from rmqstore.engine.kv.group_commit import CommittedKV, is_from_outside
from rmqstore.engine.pops.state import load_kept, load_topics
from rmqstore.engine.schema import EPOCH_KEY, LEASES, META
from rmqstore.errors import NO_ROOM, CorruptStoreError, StoreError, StoreFullError
from rmqstore_wheel.files.chain import FailedSyncError
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.spare import Spare
from rmqstore_wheel.files.units import RebuildReason, UnitLog
from rmqstore_wheel.formats import commit_log as log_format, consume_queue, index_file
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.log import check_point, frames, journal
from rmqstore_wheel.log.call import BrokerRecords, Call, Few, LogBatch, Messages, gathered
from rmqstore_wheel.log.check_point import CheckPoint, TimerSection
from rmqstore_wheel.log.commit_log import FILL_BYTES, CommitLog, Frame
from rmqstore_wheel.log.consume_queues import ConsumeQueues
from rmqstore_wheel.log.journal import KEPT_SPACES, BufferedPops, Change, Copied, State
from rmqstore_wheel.log.replay import Replay
from rmqstore_wheel.log.store_copy import StoreCopy

_REBUILD: Final = "rebuild"
"""A file of this name says that the caches are to be rebuilt."""

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_SPARE: Final = "spare"
_SPARE_PARTS: Final = 16
"""This part of a file of the log is set aside for what leads to room, but at least twice as much as the log sets aside at a time."""

_SHARE_OF_SPARE: Final = 8
"""So much of that may be filled by what a check point holds of queues, as a full disk takes it from there."""

T = TypeVar("T")


class Sizes(NamedTuple):
    """Sizes of the files; RocketMQ's, unless less is asked for.

    Attributes:
        check_point_bytes, check_point_calls: after so much of the log, or so many calls, a check point is due.
        index_slots, index_entries: of an index file.
        slice_bytes: of the log are looked at, or copied, in a piece.
        copy_live_percent: from files of which less is live, what is live is copied.
    """

    log_file_bytes: int = log_format.FILE_BYTES
    queue_file_units: int = consume_queue.FILE_UNITS
    timer_file_units: int = 2_016_492
    check_point_bytes: int = 64 * 1024 * 1024
    check_point_calls: int = 50_000
    index_slots: int = index_file.SLOTS
    index_entries: int = index_file.SLOTS * index_file.ENTRIES_PER_SLOT
    slice_bytes: int = 2 * 1024 * 1024
    copy_live_percent: int = 30


class TimerCaches(Protocol):
    """What the timers derive from the log."""

    def start(self, section: TimerSection | None) -> None:
        """Begin with what a check point says, or with nothing."""

    def replay(self, view: memoryview, file_start: int, starts: Ints, sizes: Ints, frame_epochs: Ints) -> None:
        """Apply records of the wheel's topic that were found in a file of the log."""

    def check_point(self) -> TimerSection:
        """Make everything durable that a check point vouches for."""

    def release(self) -> None:
        """Let files go that the check point written last needs no more."""

    def copied(self, seqs: Ints) -> Copied:
        """Return what copies of timers do not say themselves."""

    def take_copied(self, change: Copied) -> None:
        """Apply what was said of copies, behind them."""

    def unsaid(self) -> list[Change]:
        """Return what is neither in the state nor follows from messages that are kept."""

    def settle(self) -> None:
        """Take away what was in the files and does not follow from the log, at the end of an open."""

    def reopen(self) -> None:
        """Let go of the files, and forget everything; ``start`` comes next."""

    def close(self) -> None:
        """Let go of the files."""


class BrokerWriter(Protocol):
    """What is written for those that read the files as a broker does.

    Attributes:
        records: returns what a call that makes some changes appends as well.
    """

    records: Callable[[Sequence[Change]], BrokerRecords | None]

    def settle(self) -> None:
        """Bring caches to what was written, and let go of what is of no use any more, before a check point."""

    def check_pointed(self, found: CheckPoint) -> None:
        """Write what goes with a check point that was just written."""

    def closed(self) -> None:
        """Note that the end was an orderly one."""

    def close(self) -> None:
        """Let go of the files."""


def home_of(directory: Path) -> EngineHome:
    """Return the engine's directory. Messages of format version 1 have no sums, so none of them could be told from a damaged one."""
    return EngineHome(directory, "wheel", 2, 2)


class Ledger(CommittedKV):
    """One open engine directory; see the module docstring.

    Args:
        root: RocketMQ's store directory.
        sizes: of the files.
        home: the engine's directory, which is closed with the ledger.
        min_epoch: no open epoch is below it.
        pop_buffer: limits of what pops and acks may leave to be written later.
        log: the commit log, when it is open already; unit_log: how caches are reached.

    Attributes:
        epoch: the open epoch, which every frame carries.
        store_ms: the latest store time of a message.
        buffered: what is to be written later, if anything may be.
        restart: where the last whole copy of the state begins in the log, -1 for none.
        brokers: what is written for brokers, once it is there.
        logged_lease: returns what the log says of the key of a lease, which is what the state says unless a pop or an ack is held.
        reopened: called once all was opened again after an interrupt, to begin again too.
        spare: room that is set aside for what leads to more of it.
        copying: held while the files are copied: check points and removals that can wait do.
        rewrites: grows before files change otherwise than behind what the check point vouches for.
    """

    def __init__(
        self,
        disk: Disk,
        root: Path,
        sizes: Sizes,
        home: EngineHome,
        *,
        min_epoch: int = 0,
        pop_buffer: PopBuffer | None = None,
        log: CommitLog | None = None,
        unit_log: type[UnitLog] = UnitLog,
    ) -> None:
        super().__init__(str(root.parent), keeps_written=True)
        self.disk = disk
        self.root = root
        self.unit_log = unit_log
        self.sizes = sizes
        self.epoch = min_epoch
        self._session_epoch = 0
        self._min_epoch = min_epoch
        self._home = home
        self._own = root / check_point.DIRECTORY
        self.log = CommitLog(disk, root / "commitlog", sizes.log_file_bytes) if log is None else log
        piece = min(FILL_BYTES, sizes.log_file_bytes)
        self.spare = Spare(disk, home.directory / _SPARE, max(sizes.log_file_bytes // _SPARE_PARTS, 2 * piece), piece)
        self._rebuild_reasons: set[RebuildReason] = set()
        self.queues = self._new_queues()
        self.state = State()
        self.buffered = None if pop_buffer is None else BufferedPops(pop_buffer, self.state)
        self.logged_lease = self.state.items[LEASES].get if self.buffered is None else self.buffered.logged_lease
        self.brokers: BrokerWriter | None = None
        self.reopened: list[Callable[[], None]] = []
        self.copying = Lock()
        self.rewrites = 0
        self.store_ms = 0
        self.restart = -1
        self._journal_records = 0
        self._check_point = CheckPoint()
        self._calls = 0
        # What is in memory may not be what the log says, so no check point may say it.
        self._is_cut_short = False

    # ------------------------------------------------------------ reads

    def get(self, space: int, key: bytes) -> bytes | None:
        if self.refusal is not None:
            self.check()
        with self.lock:
            return self.state.items[space].get(key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[tuple[bytes, bytes]]:
        if self.refusal is not None:
            self.check()
        with self.lock:
            return self.state.scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes)

    # ------------------------------------------------------------ writes

    def write(self, batch: WriteBatch) -> int:
        messages: Sequence[Messages | Few] = ()
        changes: Sequence[Change] = batch.ops
        consumes_at_ms = None
        if isinstance(batch, LogBatch):
            consumes_at_ms = batch.consumes_at_ms
            if batch.parts:
                messages, others = gathered(batch.parts)
                if messages and self.spare.is_lent:
                    self._take_back_spare()
                changes = [*others, *changes] if others else changes
        buffered = self.buffered
        if buffered is None:
            return self.append(messages, changes, for_brokers=self.brokers.records(changes) if changes and self.brokers else None)
        if consumes_at_ms is not None and not messages and buffered.takes(changes, consumes_at_ms):
            return self._hold(changes)
        if self.queues.dropped:
            self._free_names(messages)
        if consumes_at_ms is None and not buffered.concerns(changes):
            return self.append(messages, changes, for_brokers=self._for_brokers(changes))
        before = buffered.changes()
        position = self.append(messages, changes, before, self._for_brokers([*before, *changes]))
        buffered.clear()
        return position

    def _for_brokers(self, changes: Sequence[Change]) -> BrokerRecords | None:
        return None if self.brokers is None else self.brokers.records(changes)

    def _hold(self, changes: Sequence[Change]) -> int:
        """Apply a call that the log is told later; see ``BufferedPops``."""
        self.check()
        with self.lock:
            self.state.apply(changes)
            return self.position

    def write_back(self) -> bool:
        if not self.buffered:
            return False
        if changes := self.buffered.changes():
            self.append([], noted=changes, for_brokers=self._for_brokers(changes))
        self.buffered.clear()
        return True

    def append(
        self,
        messages: Sequence[Messages | Few],
        changes: Sequence[Change] = (),
        noted: Sequence[Change] = (),
        for_brokers: BrokerRecords | None = None,
    ) -> int:
        """Write one call as a frame and apply it; returns its position. What is ``noted`` is so already; it is written first, and no more.

        Raises:
            StoreFullError: no room; nothing was written.
            StorePoisonedError: the disk failed.
        """
        if self.refusal is not None:
            self.check()
        if self.queues.dropped:
            self._free_names(messages)
        said = [*noted, *changes] if noted else changes
        call = Call(self.log, self.queues, messages, said, for_brokers, self._journal_records, self.store_ms, self.epoch)
        place = self.log.tail
        try:  # as ``translated`` does, without its generator: every call runs this
            journal_records = call.commit()
        except OSError as error:
            if is_from_outside(error):
                raise
            if self.log.tail != place:  # it is written, and memory has a part of it at most
                raise self.refuse_poisoned(error, "taking over what was written") from error
            if messages or not self._lend(error, to_upkeep=False):
                raise self._refusal(error) from error
            journal_records = self._commit_in_spare(call)
        with self.lock:
            if changes and (others := self.state.apply(changes)):
                self._apply_others(others)
            self.position += 1
            position = self.position
        self._journal_records += journal_records
        self._calls += 1
        for each in messages:
            if each.store_ms > self.store_ms:
                self.store_ms = each.store_ms
        if for_brokers is not None and for_brokers.store_ms > self.store_ms:
            self.store_ms = for_brokers.store_ms
        return position

    def _commit_in_spare(self, call: Call) -> int:
        """Write a call again that appends no messages and found no room, for which a piece of the spare is lent by now.

        It is done at once: until its caller made it again, sends and upkeep would have set the piece aside again.
        """
        while True:
            try:
                return call.commit()
            except OSError as error:
                if not self._lend(error, to_upkeep=False):
                    raise self._refusal(error) from error

    def _free_names(self, messages: Sequence[Messages | Few]) -> None:
        if any((each.topic, each.queue) in self.queues.dropped for each in messages):
            # The files of a queue of this name are still there.
            self.make_check_point()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what the operating system says into the errors of a store."""
        try:
            yield
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> Exception:
        if isinstance(error, StoreError) or is_from_outside(error):
            raise error
        if error.errno in NO_ROOM:
            return StoreFullError(f"{self.name}: no room ({error.strerror}); make room and try again")
        return self.refuse_poisoned(error, "a write")

    def apply_again(self, changes: Sequence[Change], offset: int) -> None:
        """Apply what a journal record says that is at an offset of the log, at an open."""
        for change in changes:
            if isinstance(change, journal.Restart):
                self.restart = offset
        self._apply_others(self.state.apply(changes))
        self._journal_records += 1

    def _apply_others(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, journal.DropQueue):
                self.queues.drop(change.topic, change.queue)
            elif isinstance(change, journal.ClearOffsets):
                self.queues.clear(change.topic, change.queue, change.offsets)
            elif isinstance(change, Copied):
                self.timers.take_copied(change)

    # ------------------------------------------------------------ durability

    def _sync_to_disk(self) -> int:
        with self.lock:
            position = self.position
        self.log.sync()
        return position

    def reopen(self) -> None:
        """A write that found no room changed nothing, so there is nothing to read again."""
        self.check()

    def after_interrupt(self) -> None:
        """Let go of all files and open them again, as after a crash: what is in the log is there, and all else is made from that.

        Raises:
            StorePoisonedError: that cannot be done; or pops and acks are held that the log does not know.
        """
        self._is_cut_short = True
        self._refuse_held("a call")
        # No sync comes between.
        with self.leading:
            try:
                self._open_again()
            except Exception as error:
                if is_from_outside(error):
                    raise
                raise self.refuse_poisoned(error, "opening the files again after an interrupt") from error
        for begin_anew in self.reopened:
            begin_anew()
        self._is_cut_short = False

    def _refuse_held(self, what: str) -> None:
        """Poison what was cut short while the buffer held anything, which is in memory alone, and that may be half changed."""
        if self.buffered:
            held = InterruptedError("it was interrupted, and pops and acks are in the buffer that the log does not know")
            raise self.refuse_poisoned(held, what)

    def _open_again(self) -> None:
        self.rewrites += 1
        # The log that is opened knows nothing of what is not durable. Should this be cut short, the next sync would have nothing to do.
        self.log.sync()
        self.log.close()
        self.timers.reopen()
        self.log = CommitLog(self.disk, self.root / "commitlog", self.sizes.log_file_bytes)
        self.open(self.timers)
        with self.lock:
            self.position += 1
            self.durable_position = self.position

    # ------------------------------------------------------------ opening

    def open(self, timers: TimerCaches) -> None:
        """Bring caches and state to where the log ends; see the module docstring.

        Raises:
            CorruptStoreError: the log itself is damaged.
        """
        self.timers = timers
        self.disk.make_directory(self._own)
        found = check_point.read_all(self._own)
        # A sound check point was written when all before it was on disk, also when it is not used.
        self.log.promised = max((each.offset for each in found), default=0)
        if not self.resume([] if (self._own / _REBUILD).exists() else found):
            if found:
                # From here to the next check point, caches are not what these say, though parts of them may look like it.
                self.ask_rebuild(RebuildReason.REWRITTEN)
            self.rebuild()
        self._trim_queues()
        self.timers.settle()
        stored = int.from_bytes(self.state.get(META, EPOCH_KEY) or b"", "big")
        # Behind an interrupt it is the same session, whatever epoch a load has noted for the next one.
        self.epoch = self._session_epoch = self._session_epoch or max(stored + 1, self._min_epoch, self.epoch)
        self.durable_position = self.position
        self._rebuild_reasons = {RebuildReason.REWRITTEN} if (self._own / _REBUILD).exists() else set()

    def _trim_queues(self) -> None:
        """Let each queue begin where the state says: what is below is gone, or goes with the next check point."""
        ids = {topic.id: name for name, topic in load_topics(self).items()}
        for (topic_id, queue), first in load_kept(self).items():
            if topic_id in ids:
                self.queues.trim(ids[topic_id], queue, first)

    def ask_rebuild(self, why: RebuildReason) -> None:
        """Make the next open rebuild everything; see :class:`~rmqstore_wheel.files.units.RebuildReason`."""
        if not self._rebuild_reasons:
            self.disk.create(self._own / _REBUILD).close()
            self.disk.sync_directory(self._own)
        self._rebuild_reasons.add(why)

    def resume(self, candidates: Iterable[CheckPoint]) -> bool:
        """Bring caches and state from the first of some check points that they fit to where the log ends; False when none fits.

        Raises:
            CorruptStoreError: the log does not go as far as a check point says.
        """
        for candidate in candidates:
            if self._is_of_this_log(candidate):
                try:
                    self.in_spare(partial(self._begin_at, candidate))
                except (FailedSyncError, StoreFullError):
                    raise
                except (CorruptStoreError, OSError):
                    # If it is the log that is damaged, rebuilding everything says so again.
                    continue
                return True
        return False

    def _is_of_this_log(self, found: CheckPoint) -> bool:
        """Say whether the log still goes as far as the check point says, and from there on."""
        if found.offset < self.log.chain.first:
            return False
        if found.offset == self.log.chain.first and not found.calls:
            return True
        if not self.log.chain.holds(found.offset - frames.PROPERTY_BYTES, found.offset):
            raise CorruptStoreError(
                f"{self.log.chain.directory} ends at {self.log.chain.end}; it was on disk up to {found.offset}",
                file=str(self.log.chain.directory),
                offset=self.log.chain.end,
            )
        text = self.log.chain.read(found.offset - frames.PROPERTY_BYTES, frames.PROPERTY_BYTES)
        if frames.read_trailer(bytes(text)) is None:
            path = str(self.log.chain.path_of(found.offset - 1))
            raise CorruptStoreError(f"{path} does not hold the call that ends at {found.offset}", file=path, offset=found.offset)
        return True

    def _new_queues(self) -> ConsumeQueues:
        most_unsynced = self.spare.size // _SHARE_OF_SPARE
        return ConsumeQueues(
            self.disk, self.root / "consumequeue", self.sizes.queue_file_units, self.ask_rebuild, most_unsynced, self.unit_log
        )  # fmt: skip

    def _start(self, found: CheckPoint) -> None:
        self.queues.close()
        self.queues = self._new_queues()
        cleared = {(topic, queue): offsets for topic, queue, offsets in found.cleared}
        unsynced = {(topic, queue): stretches for topic, queue, stretches in found.unsynced}
        self.queues.start({(topic, queue): sums for topic, queue, sums in found.queues}, unsynced, cleared)
        self.state.clear()
        for space, entries in found.state:
            self.state.items[space].update(entries)
        self.timers.start(found.timers)
        self.epoch, self.store_ms, self._journal_records, self.restart = found.epoch, found.store_ms, found.journal, found.restart
        self._check_point = found
        self._calls = 0

    def rebuild(self) -> None:
        self.in_spare(partial(self._begin_at, CheckPoint(offset=self.log.chain.first)))
        if self.log.chain.first and self.restart < 0:
            path = str(self.log.chain.path_of(self.log.chain.first))
            raise CorruptStoreError(f"{path} is the first file, and no copy of the state follows: files before it are missing", file=path)

    def _begin_at(self, found: CheckPoint) -> None:
        """Begin with what a check point says, and apply what is behind it; where that ends halfway, it may be done again."""
        self._start(found)
        self._replay(self.log.recover(found.offset, found.epoch))

    def _replay(self, frames_of_log: Iterable[Frame]) -> None:
        replay = Replay(self)
        for frame in frames_of_log:
            replay.add(frame)
            self._calls += 1
        replay.finish()

    # ------------------------------------------------------------ check points

    def is_long(self) -> bool:
        """Say whether so much was applied since the last check point that an open would take long."""
        return self.log.tail - self._check_point.offset >= self.sizes.check_point_bytes or self._calls >= self.sizes.check_point_calls

    def upkeep(self, now_ms: int) -> bool:
        """Write what was held for long enough, and make a check point when one is due, if there is room; says whether it made one.

        When none is due, a file of a queue is synced instead, as long as the last one held too much.
        """
        try:
            if self.buffered is not None and self.buffered.is_due(now_ms):
                self.write_back()
            if is_due := self.is_long() and not self.copying.locked():
                self.make_check_point()
            elif self.queues.due:
                with self.translated():
                    self.queues.sync_next()
            return is_due
        except StoreFullError:
            self.queues.due.clear()  # the next check point says anew which are long; until there is room, nothing more can be done
            return False

    def make_check_point(self) -> None:
        """Write a check point of now, unless nothing happened since the last one; the caller keeps other calls out meanwhile."""
        self.write_back()
        if self.log.tail == self._check_point.offset and self._check_point.calls and not self._rebuild_reasons:
            return
        self.rewrites += 1
        self.sync()
        self.settle()
        with self.translated():
            section = self.timers.check_point()
            queues, unsynced = self.queues.check_point()
            found = CheckPoint(
                offset=self.log.tail,
                epoch=self.epoch,
                journal=self._journal_records,
                store_ms=self.store_ms,
                calls=self._check_point.calls + self._calls,
                state=[(space, self.state.entries(space)) for space in KEPT_SPACES],
                queues=[(topic, queue, sums) for (topic, queue), sums in queues.items()],
                cleared=[(topic, queue, offsets) for (topic, queue), offsets in self.queues.cleared().items()],
                timers=section,
                restart=self.restart,
                unsynced=[(topic, queue, stretches) for (topic, queue), stretches in unsynced.items()],
            )
            check_point.write(self.disk, self._own, found, keep_before=not self._rebuild_reasons)
            self.timers.release()
            self.queues.release()
            if self._rebuild_reasons == {RebuildReason.REWRITTEN}:
                self.disk.remove(self._own / _REBUILD)
                # Should the name come back with a crash, an open only takes longer.
                self._rebuild_reasons.clear()
                self.disk.sync_directory(self._own)
        self._check_point = found
        self._calls = 0
        if self.brokers is not None:
            with self.translated():
                self.brokers.check_pointed(found)

    def settle(self) -> None:
        """Bring the queues that are written for brokers to where the log is."""
        if self.brokers is not None:
            with self.translated():
                self.brokers.settle()

    # ------------------------------------------------------------ files that go

    def in_spare(self, work: Callable[[], T]) -> T:
        """Do some work of upkeep or of an open. Where it finds no room, the spare is lent to it, and it is done again."""
        while True:
            try:
                return work()
            except OSError as error:
                if not self._lend(error.__cause__ if type(error) is StoreFullError else error, to_upkeep=True):
                    raise

    def _lend(self, error: BaseException | None, *, to_upkeep: bool) -> bool:
        """Lend a piece of the spare to who met an error, if it was for want of room on the disk; says whether there was one."""
        with self.translated():
            return isinstance(error, OSError) and error.errno in _NO_SPACE and self.spare.lend(to_upkeep=to_upkeep)

    def grow_spare(self) -> None:
        """Set a piece of the spare aside, if there is room, also for the file itself."""
        with suppress(StoreFullError), self.translated():
            self.spare.grow()

    def _take_back_spare(self) -> None:
        with self.translated():
            while self.spare.is_lent:
                if not self.spare.grow():
                    raise StoreFullError(f"{self.name}: what room is left is for pops, acks and upkeep; make room and try again")

    def bytes_to_release(self, upto: int) -> int:
        """Return about how much :meth:`release_log` would write."""
        return self.state.bytes if self.restart < upto else 0

    def release_log(self, upto: int) -> None:
        """Remove the files of the log that end at or before ``upto``, in which nothing is that anybody needs; see ``reclaim``."""
        if self.restart < upto:
            self.write_back()
            self.append([], self.timers.unsaid())
            begin = self.log.tail
            self.append([], noted=[journal.Restart(), *self.state.copy()])
            self.restart = begin
        self.make_check_point()
        with self.translated():
            while self.log.chain.first + self.log.file_bytes <= upto:
                self.log.chain.drop_first()

    # ------------------------------------------------------------ the end

    def snapshot(self, path: Path, alone: Alone = at_once) -> None:
        with self.copying:
            self._home.snapshot(path, lambda copy: StoreCopy(self, copy).make(alone))

    def _make_durable(self) -> None:
        if self._is_cut_short:
            # By a call, or by the close before this one: all that was answered is in the log, and an open makes the rest from it.
            self._refuse_held("a close")
            self.sync()
            return
        self._is_cut_short = True
        self.write_back()
        self.sync()
        with suppress(StoreFullError):
            # Without it the next open only takes longer.
            self.make_check_point()
        if self.brokers is not None:
            with self.translated():
                self.brokers.closed()

    def _let_go(self) -> None:
        if self.brokers is not None:
            self.brokers.close()
        self.timers.close()
        self.queues.close()
        self.log.close()
        self.spare.close()
        self._home.close()
