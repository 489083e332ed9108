"""``KeyIndex``: from a key of a timer to the places of its messages in the log, by hash (``IndexFile``, ``IndexService``).

What came since the last check point is in memory; a check point moves it into RocketMQ's index files, so memory and check point stay small
however many keys there are. What is found by a hash may belong to another key, or to a timer that is gone: a caller that looks something up
compares.

An index file (``formats.index_file``) is a cache that a check point vouches for. Entries are appended and slots are changed only when one
is made. So a file is what the last check point says, or a crash came in between. Then entries are behind those that the check point knows,
where no reader looks; a slot that was changed holds the number of such an entry, as a slot never holds a smaller number than before. Where
one does, all slots are worked out from the entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.files.units import RebuildReason
from rmqstore_wheel.formats import index_file as codec
from rmqstore_wheel.formats.binary_columns import Ints, Rows
from rmqstore_wheel.formats.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, Header
from rmqstore_wheel.log.check_point import KeyFileSums

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
        if not len(hashes):
            return
        times = np.full(len(hashes), store_ms) if isinstance(store_ms, int) else store_ms
        self._added.append((hashes, offsets, times))
        self._recent.add_many(hashes, offsets)

    def lookup(self, hashed: int) -> list[int]:
        """Return the offsets of a hash that are not settled, oldest first; see :meth:`KeyFile.lookup`."""
        settled = self._settled.get(hashed, -1)
        files = [file for file in self._files if file.header.last_offset > settled]
        found = [offset for file in files for offset in file.lookup(hashed, settled)]
        return found + self._recent.lookup(hashed, settled)

    def lookup_many(self, hashes: Ints) -> tuple[Ints, Ints]:
        """Return of many hashes, as pairs of the row of a hash and an offset, by row, what :meth:`lookup` does of each."""
        settled = np.fromiter(map(self._settled.get, hashes.tolist(), repeat(-1)), np.int64, len(hashes))
        found = [file.lookup_many(hashes, settled) for file in self._files if file.header.last_offset > settled.min()]
        rows, offsets = map(np.concatenate, zip(*found, self._recent.lookup_many(hashes, settled), strict=True))
        order = np.lexsort((offsets, rows))
        return rows[order], offsets[order]

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
            first, behind = hashes.searchsorted(key), hashes.searchsorted(key, "right")
            first += offsets[first:behind].searchsorted(settled, "right")
            found += offsets[first:behind].tolist()
        few = self._few.get(hashed, [])
        return found + few[bisect_right(few, settled) :]

    def lookup_many(self, hashes: Ints, settled: Ints) -> tuple[Ints, Ints]:
        """Return of many hashes, as pairs of the row of a hash and an offset, the offsets behind what is settled of each."""
        rows, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        keys = hashes.astype(np.int32)
        for run_hashes, run_offsets in self._runs:
            firsts = run_hashes.searchsorted(keys)
            counts = run_hashes.searchsorted(keys, "right") - firsts
            # Of each hash its places in the run, which are side by side.
            behind = np.cumsum(counts)
            rows.append(np.repeat(np.arange(len(keys)), counts))
            offsets.append(run_offsets[np.arange(behind[-1]) + np.repeat(firsts - behind + counts, counts)])
        few = [(row, offset) for row, hashed in enumerate(hashes.tolist()) for offset in self._few.get(hashed, ())] if self._few else []
        few_rows, few_offsets = np.array(few, np.int64).reshape(-1, 2).T
        of_rows, found = np.concatenate([*rows, few_rows]), np.concatenate([*offsets, few_offsets])
        kept = found > settled[of_rows]
        return of_rows[kept], found[kept]


def _sorted(hashes: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], offsets[order]


_BLOCK: Final = 4096
"""Entries that have a CRC-32 in common."""

_SEGMENT: Final = 16_384
"""Slots that have a CRC-32 in common."""

_PAGE: Final = 1024
"""Slots that are written together."""

_FILL_BYTES: Final = 1024 * 1024


class KeyFile:
    """One index file.

    Attributes:
        made_ms: what its name says.
        header: what is in it.
    """

    def __init__(
        self, disk: Disk, directory: Path, made_ms: int, slots: int, entries: int, ask_rebuild: Callable[[RebuildReason], None]
    ) -> None:
        self.made_ms = made_ms
        self.path = directory / codec.file_name(made_ms)
        self.header = Header()
        self._disk = disk
        self._ask_rebuild = ask_rebuild
        self._slots, self._limit = slots, entries
        self._length = codec.file_bytes(slots, entries)
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._file: DiskFile | None = None
        self._filled = 0
        self._heads: Ints | None = None
        self._entry_crcs: Ints = np.zeros(0, np.uint32)
        self._slot_crcs: Ints = np.zeros(-(-slots // _SEGMENT), np.uint32)
        self._entries_trusted = np.zeros(0, np.bool_)
        self._slots_trusted = np.ones(len(self._slot_crcs), np.bool_)

    # ------------------------------------------------------------ opening

    def create(self) -> None:
        """Make the file, empty; its name is durable with the directory."""
        self._file = self._disk.create(self.path, self._length)
        self._file.zero_fill(0, HEADER_BYTES)
        zeros = np.zeros(_SEGMENT, ">i4")
        self._slot_crcs[:] = crc32(zeros.data)
        self._slot_crcs[-1] = crc32(zeros[: (self._slots - 1) % _SEGMENT + 1].data)
        self._filled = self._entries_at

    def start(self, sums: KeyFileSums) -> None:
        self.header = Header(*sums.header)
        self._entry_crcs = np.frombuffer(sums.entries, "<u4").astype(np.uint32)
        self._slot_crcs = np.frombuffer(sums.slots, "<u4").astype(np.uint32)
        self._entries_trusted = np.zeros(len(self._entry_crcs), np.bool_)
        self._slots_trusted = np.zeros(len(self._slot_crcs), np.bool_)
        self._filled = self._entries_at + self.header.next_entry * ENTRY_BYTES
        try:
            length = self.path.stat().st_size
        except FileNotFoundError:
            raise CorruptStoreError(f"{self.path} is missing", file=str(self.path)) from None
        if length != self._length:
            raise CorruptStoreError(f"{self.path} has {length} bytes, not {self._length}", file=str(self.path))

    def _opened(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self.path)
            try:
                if any((self._segment(number) >= self.header.next_entry).any() for number in range(len(self._slot_crcs))):
                    self._heads = self._worked_out()
            except BaseException:
                self.close()  # else the next look would take it for what the slots say
                raise
        return self._file

    def _worked_out(self) -> Ints:
        """Return the slots by what the entries say."""
        heads = np.zeros(self._slots, np.int32)
        if self.header.next_entry == 1:
            return heads
        self._check_entries(0, self.header.next_entry)
        # Of entries of one slot the last one stays.
        heads[self._entry_view()["hash"][1 : self.header.next_entry].astype(np.int64) % self._slots] = np.arange(1, self.header.next_entry)
        return heads

    def sums(self) -> KeyFileSums:
        """Return what a check point has to know."""
        return KeyFileSums(self.made_ms, self.header, self._entry_crcs.astype("<u4").tobytes(), self._slot_crcs.astype("<u4").tobytes())

    # ------------------------------------------------------------ putting

    @property
    def room(self) -> int:
        return self._limit - self.header.next_entry

    def put(self, hashes: Ints, offsets: Ints, store_ms: Ints) -> None:
        """Append entries, one at least and no more than there is room for, and make them durable.

        Raises:
            OSError: no room, and nothing is changed; or the disk failed.
        """
        file = self._opened()
        file.view()  # which may find no descriptor, so it comes before the first write
        heads = self._heads_at(hashes % self._slots)
        made = codec.plan(self.header, heads, self._slots, hashes, offsets, store_ms)
        first, behind = self.header.next_entry, made.header.next_entry
        if first % _BLOCK and len(self._entry_crcs) > first // _BLOCK:
            self._check_entries(first - 1, first)
        pages = self._changed_pages(made.places)
        self._reserve(file, pages, behind)
        try:
            file.write_at(self._entries_at + first * ENTRY_BYTES, made.entries.view(np.uint8).data)
            for begin, stop in _runs(pages):
                self._write_slots(file, begin * _PAGE, min(stop * _PAGE, self._slots), made)
            file.write_at(0, codec.encode_header(made.header))
            file.sync()
        except BaseException:
            if self._heads is None:
                # The next open of it works the slots out, if any of them was written.
                self.close()
            raise
        # What was worked out may be in the file already, where the sums do not know it.
        segments = np.unique(pages * _PAGE // _SEGMENT) if self._heads is None else np.arange(len(self._slot_crcs))
        self.header, self._heads = made.header, None
        for segment in segments.tolist():
            self._slot_crcs[segment], self._slots_trusted[segment] = self._sum_slots(segment), True
        self._sum_entries(first, behind)

    def _write_slots(self, file: DiskFile, low: int, high: int, made: codec.Plan) -> None:
        """Write some slots as they are with new entries."""
        slots = self._slots_from(low, high) if self._heads is None else self._heads[low:high].astype(">i4")
        rows = slice(*np.searchsorted(made.places, [low, high]))
        slots[made.places[rows] - low] = made.numbers[rows]
        file.write_at(HEADER_BYTES + low * SLOT_BYTES, slots.view(np.uint8).data)

    def _changed_pages(self, places: Ints) -> Ints:
        """Return which pages of slots are to be written for changes at some places."""
        if self._heads is not None:
            places = np.append(places, np.flatnonzero(self._heads != self._slots_from(0, self._slots)))
        return np.unique(places // _PAGE)

    def _reserve(self, file: DiskFile, pages: Ints, behind: int) -> None:
        """See to it that the writes to come find room."""
        for page in pages.tolist():
            low, high = page * _PAGE, min((page + 1) * _PAGE, self._slots)
            if not self._slots_from(low, high).any():
                file.zero_fill(HEADER_BYTES + low * SLOT_BYTES, (high - low) * SLOT_BYTES)
        end = self._entries_at + behind * ENTRY_BYTES
        if end > self._filled:
            stop = min(max(end, self._filled + _FILL_BYTES), self._length)
            file.zero_fill(self._filled, stop - self._filled)
            self._filled = stop

    # ------------------------------------------------------------ sums

    def _sum_slots(self, segment: int) -> int:
        return crc32(self._segment(segment).view(np.uint8).data)

    def _sum_block(self, block: int) -> int:
        stop = min((block + 1) * _BLOCK, self.header.next_entry)
        return crc32(np.ascontiguousarray(self._entry_view()[block * _BLOCK : stop]).view(np.uint8).data)

    def _sum_entries(self, first: int, behind: int) -> None:
        """Take appended entries into the sums; of a block that goes on, what was there before is checked."""
        blocks = -(-behind // _BLOCK)
        more = blocks - len(self._entry_crcs)
        self._entry_crcs = np.append(self._entry_crcs, np.zeros(more, np.uint32))
        self._entries_trusted = np.append(self._entries_trusted, np.ones(more, np.bool_))
        for block in range(first // _BLOCK, blocks):
            self._entry_crcs[block], self._entries_trusted[block] = self._sum_block(block), True

    def _check_entries(self, first: int, behind: int) -> None:
        for block in range(first // _BLOCK, -(-behind // _BLOCK)):
            if not self._entries_trusted[block]:
                if self._sum_block(block) != self._entry_crcs[block]:
                    self._refuse(self._entries_at + block * _BLOCK * ENTRY_BYTES)
                self._entries_trusted[block] = True

    def _check_slots(self, segments: Ints) -> None:
        for segment in segments[~self._slots_trusted[segments]].tolist():
            if self._sum_slots(segment) != self._slot_crcs[segment]:
                self._refuse(HEADER_BYTES + segment * _SEGMENT * SLOT_BYTES)
            self._slots_trusted[segment] = True

    def _refuse(self, at: int) -> NoReturn:
        self._ask_rebuild(RebuildReason.DAMAGED)
        remedy = "open the store again, which makes it anew"
        raise CorruptStoreError(f"{self.path}: what lies at offset {at} is not what was written; {remedy}", file=str(self.path), offset=at)

    # ------------------------------------------------------------ looking

    def lookup(self, hashed: int, settled: int = -1) -> list[int]:
        """Return the offsets behind ``settled`` of entries with a hash, oldest first.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        return self._followed(int(self._heads_at(np.array([hashed % self._slots]))[0]), hashed, settled)

    def lookup_many(self, hashes: Ints, settled: Ints) -> tuple[Ints, Ints]:
        """Return of many hashes, as pairs of the row of a hash and an offset, what :meth:`lookup` does of each."""
        heads = self._heads_at(hashes % self._slots)
        found = list(map(self._followed, heads.tolist(), hashes.tolist(), settled.tolist()))
        offsets = np.fromiter(chain.from_iterable(found), np.int64)
        return np.repeat(np.arange(len(found)), list(map(len, found))), offsets

    def _followed(self, number: int, hashed: int, settled: int) -> list[int]:
        """Return the offsets behind ``settled`` of entries with a hash, oldest first, from an entry on that others of its slot precede."""
        found: list[int] = []
        while number:
            self._check_entries(number, number + 1)
            entry_hash, offset, _, previous = self._entry_view()[number].item()
            if offset <= settled:
                break
            if entry_hash == hashed:
                found.append(offset)
            if not 0 <= previous < number:
                self._refuse(self._entries_at + number * ENTRY_BYTES)
            number = previous
        return found[::-1]

    def _heads_at(self, places: Ints) -> Ints:
        self._opened()
        if self._heads is not None:
            return self._heads[places]
        self._check_slots(np.unique(places // _SEGMENT))
        pages, rows = np.unique(places // _PAGE, return_inverse=True)
        slots = np.concatenate([self._slots_from(begin * _PAGE, min(stop * _PAGE, self._slots)) for begin, stop in _runs(pages)])
        found: Ints = slots[rows * _PAGE + places % _PAGE].astype(np.int64)
        return found

    def _segment(self, number: int) -> Ints:
        return self._slots_from(number * _SEGMENT, min((number + 1) * _SEGMENT, self._slots))

    def _slots_from(self, low: int, high: int) -> Ints:
        """Return a copy of some slots.

        Most of them are holes. Through a map, a file system in memory would set room aside for each page that is looked at, and kill the
        process where it has none.
        """
        slots: Ints = np.zeros(high - low, ">i4")
        self._opened().read_into(HEADER_BYTES + low * SLOT_BYTES, slots.view(np.uint8).data)
        return slots

    def _entry_view(self) -> Rows:
        return codec.entries_of(self._opened().view()[self._entries_at :])

    # ------------------------------------------------------------ the end

    def remove(self) -> None:
        self.close()
        self._disk.remove(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _runs(pages: Ints) -> list[tuple[int, int]]:
    """Return rising numbers as (first, behind) of those that follow one another."""
    bounds = np.flatnonzero(np.diff(pages) != 1) + 1
    return [(int(pages[begin]), int(pages[stop - 1]) + 1) for begin, stop in pairwise([0, *bounds.tolist(), len(pages)]) if begin < stop]
