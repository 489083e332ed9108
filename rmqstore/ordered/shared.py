"""What the timer side and the pop side of one database share: the lock, the epoch, and the way back after a full disk.

One lock serialises all calls of both sides; disk syncs run outside of it, so that concurrent ones share. When a write or a sync finds no
room, what was not durable may be gone, so the next call opens the database again and both sides read their state anew: a failed call
leaves nothing behind (F1, F3).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqstore.contract import EngineOptions, Ticket
from rmqstore.errors import StoreClosedError, StoreFullError, StorePoisonedError
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
        with self._watched():
            return Ticket(self.kv.write(batch))

    def sync(self, ticket: Ticket | None) -> None:
        """Wait until ``ticket`` is durable; call it without the lock."""
        if self._closed:
            raise StoreClosedError("the store is closed")
        with self._watched():
            if ticket is None:
                with self.lock:
                    self.kv.write_back()
            self.kv.sync(None if ticket is None else ticket.position)

    def snapshot(self, path: Path) -> None:
        """Write a copy of the database."""
        with self.lock, self._watched():
            self.fresh().snapshot(path)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Remember what went wrong with the disk."""
        try:
            yield
        except StoreFullError:
            self._stale = True
            raise
        except StorePoisonedError as error:
            self._poison = error
            raise

    def close(self) -> None:
        """Close the database once."""
        with self.lock:
            if not self._closed:
                self._closed = True
                self.kv.close()
