"""What the timer side and the pop side of one database share: the lock, the epoch, and the way back after a full disk.

One lock serialises all calls of both sides; disk syncs run outside of it, so that concurrent ones share. When a write or a sync finds no
room, what was not durable may be gone, so the next call opens the database again and both sides read their state anew: a failed call
leaves nothing behind (F1, F3).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from rmqstore.contract import EngineOptions, Ticket
from rmqstore.errors import StoreClosedError, StoreError, StoreFullError, StorePoisonedError
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import EPOCH_KEY, META


class Shared:
    """The database of one session, with a new open epoch that is durable before anything else is written.

    With ``read_only`` there is no new epoch, and nothing is ever written.
    """

    def __init__(self, kv: OrderedKV, options: EngineOptions, *, read_only: bool = False) -> None:
        self.kv = kv
        self.options = options
        self.lock = threading.RLock()
        self._reloads: list[Callable[[], None]] = []
        self._stale = False
        self._poison: StorePoisonedError | None = None
        self._closed = False
        stored = kv.get(META, EPOCH_KEY)
        if read_only:
            self.epoch = int.from_bytes(stored or b"", "big")
            return
        self.epoch = max(int.from_bytes(stored or b"", "big") + 1, options.min_epoch)
        batch = WriteBatch()
        batch.put(META, EPOCH_KEY, self.epoch.to_bytes(4, "big"))
        kv.sync(kv.write(batch))

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Call ``reload`` whenever the database had to be opened again."""
        self._reloads.append(reload)

    def fresh(self) -> OrderedKV:
        """Return the database, opened again if it has to be; call it with the lock held, first thing in every call."""
        if self._closed:
            raise StoreClosedError("the store is closed")
        if self._poison is not None:
            raise StorePoisonedError(*self._poison.args) from self._poison
        if self._stale:
            self.kv.reopen()
            self.reload()
            self._stale = False
        return self.kv

    def reload(self) -> None:
        """Let both sides read their state anew."""
        for reload in self._reloads:
            reload()

    def refresh(self) -> None:
        """Read everything anew from what the database holds now; only for a session that writes nothing."""
        with self.lock:
            self._stale = True
            self.epoch = int.from_bytes(self.fresh().get(META, EPOCH_KEY) or b"", "big")

    def write(self, batch: WriteBatch) -> Ticket:
        """Apply a batch; the ticket waits for it."""
        try:
            return Ticket(self.kv.write(batch))
        except StoreError as error:
            self._note(error)
            raise

    def sync(self, ticket: Ticket | None) -> None:
        """Wait until ``ticket`` is durable; call it without the lock."""
        if self._closed:
            raise StoreClosedError("the store is closed")
        try:
            if ticket is None:
                with self.lock:
                    self.kv.write_back()
            self.kv.sync(None if ticket is None else ticket.position)
        except StoreError as error:
            self._note(error)
            raise

    def snapshot(self, path: Path) -> None:
        """Write a copy of the database."""
        with self.lock:
            try:
                self.fresh().snapshot(path)
            except StoreError as error:
                self._note(error)
                raise

    def _note(self, error: StoreError) -> None:
        """Remember what went wrong with the disk."""
        if isinstance(error, StoreFullError):
            self._stale = True
        elif isinstance(error, StorePoisonedError):
            self._poison = error

    def close(self) -> None:
        """Close the database once."""
        with self.lock:
            if not self._closed:
                self._closed = True
                self.kv.close()
