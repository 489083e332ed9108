"""``BufferedKV``: an ``OrderedKV`` over a database that only knows durable transactions, such as LMDB.

``write`` goes into an overlay in memory, ``sync`` commits the overlay as one transaction; reads see overlay and database merged.

There are at most two overlays: the *active* one takes writes, the *flushing* one is being committed and never changes again. Both hang
on ``_layers``, newest first, which is only ever replaced as a whole, under the lock.

Why no interleaving loses or reorders a write:

1. Writes enter the active overlay under the lock, in the order of their positions; the leader of a sync turns the active overlay into
   the flushing one under the lock too. So every write is in exactly one overlay, and flushing holds a prefix of what is not durable.
2. There is one leader at a time, and a new overlay is swapped in only when no flushing one is left. So transactions follow the order
   of positions, and each is all of one overlay: what is durable is always a prefix that ends between two writes.
3. The flushing overlay is taken away only after its commit returned. So at every moment each write is in an overlay, in the database,
   or in both, and in both does not matter, because applying an overlay twice is applying it once (``overlay``).
4. A read that finds its space untouched in ``_layers`` reads the database after it looked; by 3 that has all that the overlays of that
   moment did not have. Any other read goes through the database, a page after the other, together with the overlays, under the lock: no
   swap comes between, and a commit that comes between two pages is of the flushing overlay, which does not matter, by 3. Each key is in
   one of the pages, and the overlays show the same of it over the database before that commit and behind it.
5. A leader that is interrupted leaves the flushing overlay where it is; the next leader commits it, again or for the first time, before
   anything newer. An overlay that a write or a read was interrupted in is rebuilt from the batches that it was made of
   (``after_interrupt``), before any leader takes it for the flushing one: half a batch is never committed.

When a commit finds no room, calls are refused; both overlays are dropped by :meth:`reopen`. Positions go on, ``durable_position`` is then
``position`` again (nothing that is left is not durable), and a sync of a dropped position raises ``StoreFullError``.

A commit whose first leader was interrupted may have come to its end before: no room for it poisons.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Final

from rmqstore.engine.kv.base import PAGE_BYTES, Alone, Entry, Readable, WriteBatch, at_once, is_last, take_page
from rmqstore.engine.kv.group_commit import CommittedKV
from rmqstore.engine.kv.overlay import Changes, Overlay, SpaceChange
from rmqstore.errors import StoreError, StoreFullError

OVERLAY_BYTES: Final = 4 * 1024 * 1024
"""A write that finds more bytes of values than this in the active overlay syncs first, in every flush mode."""

OVERLAY_ENTRIES: Final = 16_384
"""Likewise for entries."""

_KEY: Final = itemgetter(0)


class Base(Readable):
    """A database that commits durable transactions. Reads come from any thread, ``commit`` from one at a time, beside the reads."""

    @abstractmethod
    def commit(self, changes: Sequence[SpaceChange]) -> None:
        """Apply ``changes`` in one transaction and return when it is durable. May be asked to apply the same again.

        Raises:
            StoreFullError: no room. Any other error means that what is durable is unknown.
        """

    @abstractmethod
    def reopen(self) -> None:
        """Let go of the files and open them again. Raises ``StoreFullError`` when there is still no room."""

    @abstractmethod
    def snapshot(self, path: Path) -> None:
        """Write a durable copy of what one commit left to the new directory ``path``. All other methods are called meanwhile."""


class BufferedKV(CommittedKV):
    """See the module docstring.

    Args:
        base: the database, opened; owned from now on.
        spaces: how many spaces it has.
    """

    def __init__(self, base: Base, spaces: int) -> None:
        super().__init__(base.name)
        self._base = base
        self._spaces = spaces
        self._layers: tuple[Overlay, ...] = (Overlay(spaces),)
        self._is_half_done = False
        self._tried_position = 0

    # ------------------------------------------------------------ reads

    def get(self, space: int, key: bytes) -> bytes | None:
        if self.refusal is not None:
            self.check()
        for overlay in self._layers:
            if overlay.spaces[space] is not None:
                return self._get_merged(space, key)
        return self._base.get(space, key)

    def _get_merged(self, space: int, key: bytes) -> bytes | None:
        with self.lock:
            for overlay in self._layers:
                changes = overlay.spaces[space]
                if changes is not None:
                    if key in changes.items:
                        return changes.items[key]
                    if changes.hidden is not None and changes.hidden.around(key) is not None:
                        return None
        # After the lock a newer value may get committed; then this read counts as having come after that write.
        return self._base.get(space, key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        if self.refusal is not None:
            self.check()
        if limit <= 0 or (stop is not None and start >= stop):
            return []
        for overlay in self._layers:
            if overlay.spaces[space] is not None:
                break
        else:
            return self._base.scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes)
        with self.lock:
            layers = [changes for overlay in self._layers if (changes := overlay.spaces[space]) is not None]
            below = _below(self._base, layers, space, start, stop, limit, page_bytes, reverse=reverse)
            entries = _merged(layers, below, start, stop, reverse=reverse) if layers else below
            return take_page(entries, limit, page_bytes)

    # ------------------------------------------------------------ writes

    def write(self, batch: WriteBatch) -> int:
        if self.refusal is not None:
            self.check()
        active = self._layers[0]
        if active.bytes > OVERLAY_BYTES or active.count > OVERLAY_ENTRIES:
            self.sync(active.position)
        with self.lock:
            if self.refusal is not None:
                self.check()
            if self._is_half_done:
                self._make_anew()
            self._is_half_done = True
            active = self._layers[0]
            active.apply(batch)
            self.position = active.position = position = self.position + 1
            self._is_half_done = False
            return position

    def after_interrupt(self) -> None:
        with self.lock:
            self._make_anew()

    def _make_anew(self) -> None:
        """Rebuild the overlays, as an exception from outside may have come between any two steps of changing or reading one."""
        self._layers = tuple(overlay.made_anew() for overlay in self._layers)
        self.position = self._layers[0].position
        self._is_half_done = False

    def _sync_to_disk(self) -> int:
        """Commit the flushing overlay that an interrupted leader left, or the active one."""
        with self.lock:
            if self._is_half_done:
                self._make_anew()
            if len(self._layers) == 1:
                self._layers = (Overlay(self._spaces, self.position), self._layers[0])
            flushing = self._layers[1]
        was_tried, self._tried_position = self._tried_position == flushing.position, flushing.position
        try:
            self._base.commit(flushing.effects())
        except StoreFullError as error:
            if was_tried:
                raise StoreError(f"{error}, in a commit that had been interrupted: whether it is there is unknown") from error
            raise
        with self.lock:
            self.durable_position = flushing.position
            self._layers = self._layers[:1]
        return flushing.position

    # ------------------------------------------------------------ life cycle

    def _reopen_files(self) -> int:
        self._base.reopen()
        with self.lock:
            # The position that it is let in again with.
            self._layers = (Overlay(self._spaces, self.position + 1),)
        return self.durable_position

    def snapshot(self, path: Path, alone: Alone = at_once) -> None:
        # What a commit leaves is all writes up to some position, so no call has to be kept out.
        self.sync()
        self._base.snapshot(path)

    def _let_go(self) -> None:
        self._base.close()


def _merged(layers: Sequence[Changes], below: Iterator[Entry], start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Entry]:
    """Yield what a range holds when ``layers``, newest first, are laid over what of the database shows through, ``below``."""
    ranges = [changes.range(start, stop, reverse=reverse) for changes in layers]
    newest = layers[0]
    last: bytes | None = None
    # Of entries of one key, that of the newest layer comes first. There are two layers at most.
    for key, value in merge(*ranges, below, key=_KEY, reverse=reverse):
        if key != last and value is not None and (newest.hidden is None or key in newest.items or newest.hidden.around(key) is None):
            yield key, value
        last = key


def _below(
    base: Base, layers: Sequence[Changes], space: int, start: bytes, stop: bytes | None, limit: int, page_bytes: int, *, reverse: bool
) -> Iterator[Entry]:
    """Yield what the database has in a range where no range delete hides it."""
    layers = [changes for changes in layers if changes.hidden is not None]
    if not reverse and (hidden := _hiding(layers, start)) is not None:
        start = hidden[1]
    while page := base.scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes):
        yield from [entry for entry in page if _hiding(layers, entry[0]) is None] if layers else page
        if is_last(page, limit, page_bytes):
            return
        # What is hidden may be one long range, which no page begins within, or many short ones, which a page reads over.
        last = page[-1][0]
        hidden = _hiding(layers, last)
        if reverse:
            stop = last if hidden is None else hidden[0]
        else:
            start = last + b"\x00" if hidden is None else hidden[1]


def _hiding(layers: Sequence[Changes], key: bytes) -> tuple[bytes, bytes] | None:
    """Return a range that one of ``layers`` deletes and a key is in; None when there is none."""
    for changes in layers:
        if changes.hidden is not None and (found := changes.hidden.around(key)) is not None:
            return found
    return None
