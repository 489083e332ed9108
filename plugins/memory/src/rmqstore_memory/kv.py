"""A sorted map in memory as an ``OrderedKV``.

This is all that a key-ordered database has to give. Read it beside ``rmqstore.engine.kv.base``, which says what each method promises.
"""

from __future__ import annotations

from pathlib import Path

from rmqstore.engine.kv.base import PAGE_BYTES, Alone, DeleteMany, PutMany, WriteBatch, at_once, take_page
from rmqstore.engine.kv.group_commit import CommittedKV
from rmqstore.engine.kv.overlay import SortedMap
from rmqstore.errors import UnsupportedOperationError


class MemoryKV(CommittedKV):
    """One sorted map per space, one lock around them all.

    ``CommittedKV`` is the part that every adapter shares: it counts positions, lets one thread sync for all that wait, and refuses calls
    on a closed store or in a forked child. A sync has nothing to do here, but positions become durable by it as in any other adapter, so
    code that forgets to sync shows up with this one too.
    """

    def __init__(self, name: str, spaces: int) -> None:
        super().__init__(name)
        self._maps: list[SortedMap[bytes]] = [SortedMap() for _ in range(spaces)]
        self._under_way: WriteBatch | None = None

    def _sync_to_disk(self) -> int:
        return self.position

    # ------------------------------------------------------------ reads: under the lock, so that half a batch is never seen

    def get(self, space: int, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None."""
        self.check()
        with self.lock:
            return self._maps[space].items.get(key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[tuple[bytes, bytes]]:
        """Return a page of a range; ``take_page`` ends it at either bound."""
        self.check()
        with self.lock:
            return take_page(self._maps[space].range(start, stop, reverse=reverse), limit, page_bytes)

    # ------------------------------------------------------------ writes: visible at once, durable by sync

    def write(self, batch: WriteBatch) -> int:
        """Apply the changes in their order, all or nothing, and give the batch the next position."""
        self.check()
        with self.lock:
            self._under_way = batch
            return self._finish(batch)

    def _finish(self, batch: WriteBatch) -> int:
        """Apply a batch; twice is as good as once."""
        for op in batch.ops:
            entries = self._maps[op.space]
            if isinstance(op, PutMany):
                entries.items.update(op.items)
            elif isinstance(op, DeleteMany):
                entries.remove_many(op.keys)
            else:
                entries.remove_range(op.start, op.stop)
        self.position += 1
        self._under_way = None
        return self.position

    def after_interrupt(self) -> None:
        """Finish a write that was cut short; the order of the keys is worked out again, as a read may have been cut short over it."""
        with self.lock:
            for entries in self._maps:
                entries.sort_anew()
            if self._under_way is not None:
                self._finish(self._under_way)

    # ------------------------------------------------------------ life cycle

    def snapshot(self, path: Path, alone: Alone = at_once) -> None:
        """Refuse: what is written to a file would not open as a store of this engine."""
        raise UnsupportedOperationError(f"engine 'memory' keeps nothing on disk, so there is nothing to copy to {path}")

    def _let_go(self) -> None:
        """Forget everything; ``close`` comes here behind a last sync, and a second time where it was interrupted."""
        self._maps = [SortedMap() for _ in self._maps]
