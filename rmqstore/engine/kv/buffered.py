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
4. A read that finds its space untouched in ``_layers`` opens its view of the database after it looked; by 3 that view has all that the
   overlays of that moment did not have. Any other read takes what it needs from the overlays, and opens its view, under the lock: no
   swap comes between, and a commit that comes between is of the flushing overlay, which does not matter, by 3.
5. A leader that is interrupted leaves the flushing overlay where it is; the next leader commits it, again or for the first time, before
   anything newer. An overlay that a write or a read was interrupted in is rebuilt from the batches that it was made of
   (``after_interrupt``), before any leader takes it for the flushing one: half a batch is never committed.

When a commit finds no room, calls are refused; both overlays are dropped by :meth:`reopen`. Positions go on, ``durable_position`` is then
``position`` again (nothing that is left is not durable), and a sync of a dropped position raises ``StoreFullError`` for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from rmqstore.engine.kv.base import PAGE_BYTES, Alone, WriteBatch, at_once, take_page
from rmqstore.engine.kv.group_commit import CommittedKV, GroupCommit
from rmqstore.engine.kv.overlay import Overlay, SpaceChange

OVERLAY_BYTES: Final = 4 * 1024 * 1024
"""A write that finds more bytes of values than this in the active overlay syncs first, in every flush mode."""

OVERLAY_ENTRIES: Final = 16_384
"""Likewise for entries."""

Entry = tuple[bytes, bytes]


class ViewLostError(Exception):
    """The database had to throw a view away (its map moved, it was reopened); read again from the start. Never leaves this package."""


class View(ABC):
    """One consistent state of the database; closed with ``close``, by the thread that opened it."""

    @abstractmethod
    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        """As ``OrderedKV.scan``."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the state."""


class Base(ABC):
    """A database that commits durable transactions. Reads come from any thread, ``commit`` from one at a time, beside the reads."""

    name: str
    """What messages call it: its path."""

    @abstractmethod
    def get(self, space: int, key: bytes) -> bytes | None:
        """Return the committed value of ``key``, or None."""

    @abstractmethod
    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        """As ``OrderedKV.scan``, of a view of its own."""

    @abstractmethod
    def view(self) -> View:
        """Open a view of what is committed now."""

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

    @abstractmethod
    def close(self) -> None:
        """Let go of the files."""


class BufferedKV(CommittedKV):
    """See the module docstring.

    Args:
        base: the database, opened; owned from now on.
        spaces: how many spaces it has.
    """

    def __init__(self, base: Base, spaces: int) -> None:
        self._base = base
        self._spaces = spaces
        self._commits = GroupCommit(base.name, self._commit)
        self._lock = self._commits.lock
        self._layers: tuple[Overlay, ...] = (Overlay(spaces),)
        self._is_half_done = False

    # ------------------------------------------------------------ reads

    def get(self, space: int, key: bytes) -> bytes | None:
        commits = self._commits
        if commits.refusal is not None:
            commits.check()
        for overlay in self._layers:
            if overlay.spaces[space] is not None:
                return self._get_merged(space, key)
        return self._base.get(space, key)

    def _get_merged(self, space: int, key: bytes) -> bytes | None:
        with self._lock:
            for overlay in self._layers:
                changes = overlay.spaces[space]
                if changes is not None:
                    entries = changes.entries.items
                    if key in entries:
                        return entries[key]
                    if changes.hidden.around(key) is not None:
                        return None
        # After the lock a newer value may get committed; then this read counts as having come after that write.
        return self._base.get(space, key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        self._commits.check()
        if limit <= 0 or (stop is not None and start >= stop):
            return []
        for overlay in self._layers:
            if overlay.spaces[space] is not None:
                break
        else:
            return self._base.scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes)
        while True:
            with self._lock:
                window = _Window(self._layers, space, start, stop, limit, reverse)
                view = self._base.view()
            try:
                return window.merge(view, limit, page_bytes)
            except ViewLostError:
                continue
            finally:
                view.close()

    # ------------------------------------------------------------ writes

    def write(self, batch: WriteBatch) -> int:
        commits = self._commits
        commits.check()
        active = self._layers[0]
        if active.bytes > OVERLAY_BYTES or active.count > OVERLAY_ENTRIES:
            commits.sync(active.position)
        with self._lock:
            commits.check()
            if self._is_half_done:
                self._make_anew()
            self._is_half_done = True
            active = self._layers[0]
            active.apply(batch)
            commits.position = active.position = position = commits.position + 1
            self._is_half_done = False
            return position

    def after_interrupt(self) -> None:
        with self._lock:
            self._make_anew()

    def _make_anew(self) -> None:
        """Rebuild the overlays, as an exception from outside may have come between any two steps of changing or reading one."""
        self._layers = tuple(overlay.made_anew() for overlay in self._layers)
        self._commits.position = self._layers[0].position
        self._is_half_done = False

    def _commit(self) -> int:
        """Commit the flushing overlay that an interrupted leader left, or the active one."""
        with self._lock:
            if self._is_half_done:
                self._make_anew()
            if len(self._layers) == 1:
                self._layers = (Overlay(self._spaces, self._commits.position), self._layers[0])
            flushing = self._layers[1]
        self._base.commit(flushing.effects())
        with self._lock:
            self._layers = self._layers[:1]
        return flushing.position

    # ------------------------------------------------------------ life cycle

    def reopen(self) -> None:
        if self._commits.refusal is None:
            self.sync()
        self._commits.wait_refused()
        kept = self.durable_position
        self._base.reopen()
        with self._lock:
            self._layers = (Overlay(self._spaces, self._commits.position),)
        self._commits.readmit(kept)

    def snapshot(self, path: Path, alone: Alone = at_once) -> None:
        # What a commit leaves is all writes up to some position, so no call has to be kept out.
        self.sync()
        self._base.snapshot(path)

    def close(self) -> None:
        commits = self._commits
        if commits.closed:
            return
        try:
            if commits.refusal is None:
                commits.sync(None)
        finally:
            commits.close()
            self._base.close()


class _Window:
    """What the overlays say about a range: enough of it for ``limit`` entries, copied so that no lock is needed to merge it.

    ``end`` is the last key that ``overlaid`` is complete to, None when it is complete over the whole range.
    """

    def __init__(self, layers: Sequence[Overlay], space: int, start: bytes, stop: bytes | None, limit: int, reverse: bool) -> None:
        self._space, self._reverse = space, reverse
        self._start, self._stop = start, stop
        self._touched = [changes for overlay in reversed(layers) if (changes := overlay.spaces[space]) is not None]
        self._hidden = [changes.hidden.copied() for changes in self._touched if changes.hidden]
        depth = limit
        while True:
            overlaid, end = self._collect(depth)
            if end is None or sum([value is not None for value in overlaid.values()]) >= limit:
                break
            depth *= 4
        self.overlaid = overlaid
        self.end = end

    def _collect(self, depth: int) -> tuple[dict[bytes, bytes | None], bytes | None]:
        """Lay the changes over one another, oldest first, each as far as its first ``depth`` entries go."""
        overlaid: dict[bytes, bytes | None] = {}
        end: bytes | None = None
        for changes in self._touched:
            entries = changes.entries.range(self._start, self._stop, reverse=self._reverse)
            taken = list(islice(entries, depth))
            if next(entries, None) is not None:
                end = self._nearer(end, taken[-1][0])
            if overlaid and changes.hidden:
                overlaid = {key: value for key, value in overlaid.items() if changes.hidden.around(key) is None}
            overlaid.update(taken)
        if end is not None:
            overlaid = {key: value for key, value in overlaid.items() if not self._beyond(key, end)}
        return overlaid, end

    def _nearer(self, end: bytes | None, other: bytes) -> bytes:
        return other if end is None or self._beyond(end, other) else end

    def _beyond(self, key: bytes, end: bytes) -> bool:
        return key < end if self._reverse else key > end

    def merge(self, view: View, limit: int, page_bytes: int) -> list[Entry]:
        """Return the page that ``view`` under this window holds."""
        below, end = self._read_below(view, limit, page_bytes)
        merged = below + [(key, value) for key, value in self.overlaid.items() if value is not None]
        if end is not None:
            merged = [entry for entry in merged if not self._beyond(entry[0], end)]
        merged.sort(reverse=self._reverse)
        return take_page(iter(merged), limit, page_bytes)

    def _read_below(self, view: View, limit: int, page_bytes: int) -> tuple[list[Entry], bytes | None]:
        """Return what of the database shows through, far enough for ``limit`` entries, and the last key that this is complete to."""
        shown: list[Entry] = []
        room_bytes = page_bytes
        start, stop = self._start, self._stop
        if self.end is not None:
            start, stop = (self.end, stop) if self._reverse else (start, self.end + b"\x00")
        if not self._reverse and (hiding := self._hiding(start)) is not None:
            start = hiding[1]
        while page := view.scan(self._space, start, stop, limit - len(shown), reverse=self._reverse, page_bytes=room_bytes):
            fresh = [entry for entry in page if entry[0] not in self.overlaid and self._hiding(entry[0]) is None]
            shown += fresh
            room_bytes -= sum([len(value) for _, value in fresh])
            last = page[-1][0]
            if len(shown) >= limit or room_bytes < 0:
                return shown, self._nearer(self.end, last)
            # What is hidden may be one long range, which no page begins within, or many short ones, which a page reads over.
            hiding = self._hiding(last)
            if self._reverse:
                stop = last if hiding is None else hiding[0]
            else:
                start = last + b"\x00" if hiding is None else hiding[1]
        return shown, self.end

    def _hiding(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return a deleted range that hides a key of the database; None when there is none."""
        for ranges in self._hidden:
            if (found := ranges.around(key)) is not None:
                return found
        return None
