"""``ViewKV``: an ``OrderedKV`` that shows one state of a database and refuses to change it.

The owner of the database may be another process that goes on writing. :meth:`ViewKV.reopen` moves the view on to what is there then.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from threading import RLock
from typing import Never

from rmqstore.engine.kv.base import PAGE_BYTES, Alone, Entry, Readable, WriteBatch, at_once
from rmqstore.engine.kv.group_commit import CommittedKV
from rmqstore.errors import UnsupportedOperationError


class FixedView(Readable):
    """One state of a database that somebody else may own; called by one thread at a time."""

    @abstractmethod
    def renew(self) -> None:
        """Move on to the newest state; when that fails, the old one stays."""


class ViewKV(CommittedKV):
    """See the module docstring; owns ``view`` from now on."""

    def __init__(self, view: FixedView) -> None:
        super().__init__(view.name)
        self._view = view
        self._lock = RLock()

    def get(self, space: int, key: bytes) -> bytes | None:
        self.check()
        with self._lock:
            return self._view.get(space, key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        self.check()
        if limit <= 0 or (stop is not None and start >= stop):
            return []
        with self._lock:
            return self._view.scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes)

    def write(self, batch: WriteBatch) -> int:
        self._refuse_to_be("written to")

    def _sync_to_disk(self) -> int:
        return 0

    def reopen(self) -> None:
        """Move on to what is there now."""
        self.check()
        with self._lock:
            self._view.renew()

    def after_interrupt(self) -> None:
        """A view keeps nothing in memory."""

    def snapshot(self, path: Path, alone: Alone = at_once) -> None:
        self._refuse_to_be("copied")

    def _refuse_to_be(self, what: str) -> Never:
        raise UnsupportedOperationError(
            f"{self._view.name} is open for reading and cannot be {what}; open it without read_only=True for that"
        )

    def _let_go(self) -> None:
        with self._lock:
            self._view.close()
