"""``ForBrokers``: all that is written for those who read a store with RocketMQ's eyes, and the marks that keep a broker out meanwhile.

- ``lock`` (``DefaultMessageStore``): locked as a broker locks it, so a broker and the engine never have the store open together;
- ``abort``: the process id, from an open until an orderly close; a broker that finds it makes its caches anew;
- the revive log (``revive_log``) and the files of a check point (``broker_files``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmqstore.errors import StoreLockedError
from rmqstore_wheel.broker_files import BrokerFiles
from rmqstore_wheel.check_point import CheckPoint
from rmqstore_wheel.disk import Disk
from rmqstore_wheel.journal import Change
from rmqstore_wheel.ledger import Beside, ForReaders, Ledger
from rmqstore_wheel.revive_log import ReviveLog
from rmqstore_wheel.timer_index import TimerIndex

LOCK: Final = "lock"
ABORT: Final = "abort"
OF_OPEN_STORE: Final = (LOCK, ABORT)
"""Files that no copy of a store has."""


class OpenMarks:
    """``lock`` and ``abort`` of a store that is open.

    Raises:
        StoreLockedError: a broker has it open.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._lock = disk.create(root / LOCK)
        try:
            if not self._lock.lock():
                raise StoreLockedError(f"{root} is open in another process, by RocketMQ's lock file; stop the broker first")
            self._lock.write_at(0, LOCK.encode())
            abort = disk.create(root / ABORT)
            try:
                abort.write_at(0, str(os.getpid()).encode())
            finally:
                abort.close()
            disk.sync_directory(root)
        except BaseException:
            self._lock.close()
            raise

    def remove_abort(self) -> None:
        """Note an orderly end."""
        with suppress(FileNotFoundError):
            self._disk.remove(self._root / ABORT)

    def close(self) -> None:
        """Let other processes in."""
        self._lock.close()


class ForBrokers(ForReaders):
    """What a ledger calls; see the module docstring. Without ``revive_log`` there are no check points and acks."""

    def __init__(self, ledger: Ledger, index: TimerIndex, marks: OpenMarks, revive_log: ReviveLog | None) -> None:
        self._marks = marks
        self._revive_log = revive_log
        self._files = BrokerFiles(ledger, index, revive_log)

    def beside(self, changes: Sequence[Change]) -> Beside | None:
        return None if self._revive_log is None else self._revive_log.beside(changes)

    def settle(self) -> None:
        if self._revive_log is not None:
            self._revive_log.settle()

    def check_pointed(self, found: CheckPoint) -> None:
        self._files.write(found)

    def closed(self) -> None:
        self._marks.remove_abort()

    def close(self) -> None:
        self._marks.close()
