"""``KeyIndex``: from a key of a timer to the places of its messages in the log, by hash (``IndexFile``, ``IndexService``).

What came since the last check point is in memory; a check point moves it into RocketMQ's index files, so memory and check point stay small
however many keys there are. What is found by a hash may belong to another key, or to a timer that is gone: a caller that looks something up
compares.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import RebuildReason
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.log.check_point import KeyFileSums
from rmqstore_wheel.timers.key_file import KeyFile

_MAX_SETTLED: Final = 65_536
"""Of so many hashes it is remembered up to where nothing is pending."""

_LAST_MADE_MS: Final = 250_000_000_000_000
"""Names have years of four digits."""


class KeyIndex:
    """Hashes of ``topic#key`` and offsets of the commit log, which rise.

    Args:
        directory: of the index files; made when there is one.
        slots, entries: of each file.
    """

    def __init__(self, disk: Disk, directory: Path, slots: int, entries: int, ask_rebuild: Callable[[RebuildReason], None]) -> None:
        self._disk = disk
        self._directory = directory
        self._slots, self._entries = slots, entries
        self._ask_rebuild = ask_rebuild
        self._files: list[KeyFile] = []
        self._gone: list[KeyFile] = []
        self._recent = RecentKeys()
        self._added: list[tuple[Ints, Ints, Ints]] = []
        self._settled: dict[int, int] = {}

    def start(self, sums: Sequence[KeyFileSums]) -> None:
        """Begin with what a check point says.

        Raises:
            CorruptStoreError: that cannot be had.
        """
        self.close()
        self._files, self._gone, self._recent, self._added, self._settled = [], [], RecentKeys(), [], {}
        for each in sums:
            file = self._file(each.made_ms)
            self._files.append(file)
            file.start(each)
        known = {file.path for file in self._files}
        for path in sorted(self._directory.glob("[0-9]*")):
            if path not in known:
                self._disk.remove(path)

    def _file(self, made_ms: int) -> KeyFile:
        return KeyFile(self._disk, self._directory, made_ms, self._slots, self._entries, self._ask_rebuild)

    # ------------------------------------------------------------ use

    def add_many(self, hashes: Ints, offsets: Ints, store_ms: int | Ints) -> None:
        """Add entries."""
        if not len(hashes):
            return
        times = np.full(len(hashes), store_ms) if isinstance(store_ms, int) else store_ms
        self._added.append((hashes, offsets, times))
        self._recent.add_many(hashes, offsets)

    def lookup(self, hashed: int) -> list[int]:
        """Return the offsets of a hash that are not settled, oldest first.

        Raises:
            CorruptStoreError: a file is damaged.
        """
        settled = self._settled.get(hashed, -1)
        files = [file for file in self._files if file.header.last_offset > settled]
        found = [offset for file in files for offset in file.lookup(hashed, settled)]
        return found + self._recent.lookup(hashed, settled)

    def settle(self, hashed: int, offset: int) -> None:
        """Leave out the entries of a hash up to an offset from now on: nothing of them is ever pending again.

        Without this, to cancel and send by one key again and again would look at all that ever had it.
        """
        if len(self._settled) >= _MAX_SETTLED:
            self._settled.clear()
        self._settled[hashed] = offset

    def drop_before(self, offset: int) -> None:
        """Let files go that hold nothing at or behind an offset of the log, after the next check point."""
        while self._files and self._files[0].header.last_offset < offset:
            self._gone.append(self._files.pop(0))

    @property
    def last_ms(self) -> int:
        """Store time of the last message that is in a file; 0 for none."""
        return self._files[-1].header.last_ms if self._files else 0

    # ------------------------------------------------------------ check points

    def check_point(self) -> list[KeyFileSums]:
        """Make everything durable; returns what a check point has to know.

        Raises:
            OSError: no room, or the disk failed.
        """
        if self._added:
            hashes, offsets, times = (np.concatenate(column) for column in zip(*self._added, strict=True))
            while len(hashes):
                file = self._with_room(int(times[0]))
                count = min(file.room, len(hashes))
                file.put(hashes[:count], offsets[:count], times[:count])
                hashes, offsets, times = hashes[count:], offsets[count:], times[count:]
                self._added = [(hashes, offsets, times)] if len(hashes) else []
            self._recent = RecentKeys()
        return [file.sums() for file in self._files]

    def _with_room(self, store_ms: int) -> KeyFile:
        """Return the last file, or a new one when that is full."""
        if self._files and self._files[-1].room:
            return self._files[-1]
        after = max((file.made_ms + 1 for file in (*self._files, *self._gone)), default=0)
        file = self._file(max(min(store_ms, _LAST_MADE_MS), after))
        self._disk.make_directory(self._directory)
        try:
            file.create()
            self._disk.sync_directory(self._directory)
            self._disk.sync_directory(self._directory.parent)
        except BaseException:
            file.close()
            raise
        self._files.append(file)
        return file

    def release(self) -> None:
        """Remove files that a check point says are gone."""
        while self._gone:
            self._gone[0].remove()
            self._gone.pop(0)

    def close(self) -> None:
        """Let go of the files."""
        for file in (*self._files, *self._gone):
            file.close()


_FEW: Final = 512
"""So many entries wait in the dict."""

_FAN_OUT: Final = 4
"""So many runs, none more than so many times as long as the last one, become one."""


class RecentKeys:
    """Keys that are in no index file yet, as hashes and offsets, in the order in which they came: the offsets of one hash rise.

    Large calls become runs that are sorted by hash, and runs of like size become one, so that there are few; small calls wait in a dict.
    """

    def __init__(self) -> None:
        self._few: dict[int, list[int]] = {}
        self._few_count = 0
        self._runs: list[tuple[Ints, Ints]] = []

    def add_many(self, hashes: Ints, offsets: Ints) -> None:
        """Add entries that came behind all others."""
        if len(hashes) < _FEW:
            for hashed, offset in zip(hashes.tolist(), offsets.tolist(), strict=True):
                self._few.setdefault(hashed, []).append(offset)
            self._few_count += len(hashes)
            if self._few_count >= _FEW:
                self._settle()
        else:
            self._settle()
            self._add_run(hashes, offsets)

    def _settle(self) -> None:
        """Make a run of what waits in the dict."""
        if self._few:
            counts = [len(offsets) for offsets in self._few.values()]
            hashes = np.repeat(np.array(list(self._few), np.int64), counts)
            self._add_run(hashes, np.array([offset for offsets in self._few.values() for offset in offsets], np.int64))
            self._few, self._few_count = {}, 0

    def _add_run(self, hashes: Ints, offsets: Ints) -> None:
        self._runs.append(_sorted(hashes.astype(np.int32), offsets))
        while len(self._runs) >= _FAN_OUT and len(self._runs[-_FAN_OUT][0]) < _FAN_OUT * len(self._runs[-1][0]):
            hashes, offsets = (np.concatenate(column) for column in zip(*self._runs[-_FAN_OUT:], strict=True))
            self._runs[-_FAN_OUT:] = [_sorted(hashes, offsets)]

    def lookup(self, hashed: int, settled: int = -1) -> list[int]:
        """Return the offsets of a hash behind ``settled``, oldest first."""
        found: list[int] = []
        # Of another type, every search would copy the whole run first.
        key = np.int32(hashed)
        for hashes, offsets in self._runs:
            first, behind = np.searchsorted(hashes, key, "left"), np.searchsorted(hashes, key, "right")
            first += np.searchsorted(offsets[first:behind], settled, "right")
            found += offsets[first:behind].tolist()
        few = self._few.get(hashed, [])
        return found + few[bisect_right(few, settled) :]


def _sorted(hashes: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], offsets[order]
