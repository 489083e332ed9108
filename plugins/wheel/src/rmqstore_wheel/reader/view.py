"""``ReadView``: one state of an engine directory that another process may own, and the way from it to a newer one.

Why every state is a prefix of the owner's calls with everything durable in it: what is seen is always the value of one function, the one
of which ``ledger`` says that caches and state are its value, for a prefix of whole frames of the log. The check point is that value for
the prefix before its offset, and no byte of a cache is believed that it does not vouch for (``units``, the CRC of the wheel's
snapshot). Then all whole frames behind it are applied (``log``), and what was durable when the log was looked at is in whole frames.

The check point is read before the log's files are opened, so that they reach as far as it says, and it is still the newest one then. An
owner removes only files that its newest check point does not need; those that it removes later are open here.

While the owner makes a check point, replaces a snapshot or removes files, what was read may not fit together; then everything is read
again. When that does not help, or what is needed of a cache is gone later, the value of the function is computed from the whole of the
log.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rmqstore.contract import EngineOptions
from rmqstore.engine.kv.base import Entry
from rmqstore.engine.kv.directory import EngineHome
from rmqstore.engine.kv.snapshot_view import FixedView
from rmqstore.errors import CorruptStoreError, RmqstoreError, StorePathError
from rmqstore_wheel.log import check_point
from rmqstore_wheel.log.check_point import CheckPoint
from rmqstore_wheel.log.ledger import Ledger, Sizes
from rmqstore_wheel.reader.log import ReadDisk, ReadLog
from rmqstore_wheel.reader.units import OutrunError, ReadUnits
from rmqstore_wheel.timers.index import TimerIndex

_ATTEMPTS: Final = 5
"""So often an owner may be faster, which it is when it makes a check point or removes a file meanwhile."""

_CHANGES: Final = (OutrunError, CorruptStoreError, OSError)
"""What an owner can cause by changing the files while they are read; errors of the store that are no damage are among them."""


class ReadLedger(Ledger):
    """A ledger of which only the log is in files that it trusts.

    Attributes:
        seal: how the last frame ends that is applied.
        is_whole: all of what was seen of the log is applied.
    """

    log: ReadLog

    def __init__(self, home: EngineHome, sizes: Sizes, precision_ms: int, log: ReadLog) -> None:
        super().__init__(ReadDisk(), home.database, sizes, home, log=log, unit_log=ReadUnits)
        self.index = TimerIndex(self, precision_ms)
        self.timers = self.index
        self.seal = b""
        self.is_whole = False

    def settle(self) -> None:
        """Note that all of what was seen of the log is applied."""
        self.seal = self.log.last_seal()
        self.is_whole = True
        self._trim_queues()

    def catch_up(self) -> None:
        """Apply what came since.

        Raises:
            OutrunError: the log is not a continuation of what was seen.
            CorruptStoreError: the log is damaged.
        """
        self.is_whole = False
        self.log.look(self.seal)
        self._replay(self.log.recover(self.log.tail, self.log.epoch))
        self.settle()

    def refuse_cut_log(self, candidates: Iterable[CheckPoint]) -> None:
        """Raise when the log ends before a check point.

        Raises:
            CorruptStoreError: naming the check point's offset.
        """
        for candidate in candidates:
            self._is_of_this_log(candidate)

    def rebuild_upto(self, limit: int) -> None:
        """Rebuild everything from the log before ``limit``, in memory.

        Raises:
            CorruptStoreError: the log no longer goes so far.
        """
        self._start(CheckPoint(offset=self.log.chain.first))
        self._replay(self.log.recover(self.log.chain.first, limit=limit))
        if self.log.tail != limit:
            path = str(self.log.chain.path_of(self.log.tail))
            raise CorruptStoreError(f"{path}: the call at offset {self.log.tail} is damaged", file=path, offset=self.log.tail)
        self.settle()

    def close(self) -> None:
        self.close_caches()
        self.log.close()

    def close_caches(self) -> None:
        """Let go of all files but the log's."""
        self.timers.close()
        self.queues.close()


class ReadView(FixedView):
    """See the module docstring.

    Attributes:
        ledger: the state that is seen.
        is_rebuilt: it was made from the log, so it does not depend on any other file.
    """

    def __init__(self, home: EngineHome, options: EngineOptions, sizes: Sizes) -> None:
        self.name = str(home.directory)
        self._home = home
        self._precision_ms = options.precision_ms
        self._sizes = sizes
        self.is_rebuilt = False
        self.ledger = self._open()

    # ------------------------------------------------------------ reads

    def get(self, space: int, key: bytes) -> bytes | None:
        return self.ledger.get(space, key)

    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        return self.ledger.scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes)

    # ------------------------------------------------------------ opening

    def _open(self) -> ReadLedger:
        """Open the newest state.

        Raises:
            StorePathError, FormatVersionError, CorruptStoreError
        """
        root = self._home.existing()
        last: Exception | None = None
        for attempt in range(_ATTEMPTS):
            try:
                return self._attempt(root, is_last=attempt == _ATTEMPTS - 1)
            except _CHANGES as error:
                last = _checked(error)
        assert last is not None
        if isinstance(last, OSError) and not isinstance(last, RmqstoreError):
            raise StorePathError(f"{self.name}: {last.strerror or last}") from last
        raise last

    def _attempt(self, root: Path, *, is_last: bool) -> ReadLedger:
        stamp = self._stamp_of(root)
        candidates = check_point.read_all(root / check_point.DIRECTORY)
        log = ReadLog(root / "commitlog", self._sizes.log_file_bytes)
        ledger: ReadLedger | None = None
        try:
            if not is_last and self._stamp_of(root) != stamp:
                raise OutrunError(f"{root}: another check point came meanwhile")
            ledger = ReadLedger(self._home, self._sizes, self._precision_ms, log)
            if not (is_rebuilt := is_last or not candidates) and not ledger.resume(candidates):
                raise OutrunError(f"{root}: no check point fits")
            if is_rebuilt:
                ledger.refuse_cut_log(candidates)
                ledger.rebuild()
            ledger.settle()
        except BaseException:
            log.close()
            if ledger is not None:
                ledger.close_caches()
            raise
        self.is_rebuilt, self._stamp = is_rebuilt, stamp
        return ledger

    @staticmethod
    def _stamp_of(root: Path) -> tuple[int, int]:
        """Return what tells one check point file from the next."""
        try:
            found = (root / check_point.DIRECTORY / check_point.NAME).stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def rebuild(self) -> None:
        """Rebuild from the log the state that is seen, because a cache is no longer what it was.

        Raises:
            CorruptStoreError: the log is damaged.
        """
        old = self.ledger
        limit, epoch = old.log.tail, old.log.epoch
        try:
            new = ReadLedger(self._home, self._sizes, self._precision_ms, old.log)
            new.rebuild_upto(limit)
        except BaseException:
            old.log.tail, old.log.epoch = limit, epoch
            raise
        self.ledger = new
        self.is_rebuilt = True
        old.close_caches()

    # ------------------------------------------------------------ moving on

    def renew(self) -> None:
        if self.ledger.is_whole and not self._is_long():
            try:
                self.ledger.catch_up()
                return
            except _CHANGES as error:
                _checked(error)
        old = self.ledger
        self.ledger = self._open()
        old.close()

    def _is_long(self) -> bool:
        """Say whether so much was applied in memory that a newer check point is the better start."""
        return self.ledger.is_long() and self._stamp_of(self.ledger.root) != self._stamp

    def close(self) -> None:
        self.ledger.close()


def _checked(error: Exception) -> Exception:
    """Return an error that an owner may have caused; any other is raised."""
    if isinstance(error, RmqstoreError) and not isinstance(error, CorruptStoreError):
        raise error
    return error
