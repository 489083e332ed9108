"""``OpenMarks``: the files that tell a broker, and an open after a crash, that a store is open.

- ``lock`` (``DefaultMessageStore``): locked as a broker locks it, so a broker and the engine never have the store open together;
- ``abort``: the process id, from an open until an orderly close; a broker that finds it rebuilds its caches.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmqstore.errors import StoreLockedError
from rmqstore_wheel.files.disk import Disk

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
