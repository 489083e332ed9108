"""One page of a range of a column family, forward or backward: ``start <= key < stop``.

The iterator is made under the lock that orders writes, which fixes the state it sees; it is read outside. Both return the page, up to
``limit`` entries, at least 1, through the one with which the values exceed ``page_bytes``; and an interval that reading it proved empty,
for ``Gaps.learn``. ``gap`` is an interval known to be empty, which they do not walk.

rocksdict has a faster iterator, ``items``, which these do not use: it stops alike at the end of the range and at bad data, and it steps
on after the last entry that is wanted, maybe into tombstones. In rocksdict 0.3.29 ``set_iterate_lower_bound`` sets the *upper* bound, so
only upper bounds are given to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from rocksdict import RdictIter

from rmqstore_rocksdb.gaps import Gap

Entry: TypeAlias = tuple[bytes, bytes]
Read: TypeAlias = tuple[list[Entry], tuple[bytes, bytes] | None]


def read_forward(cursor: RdictIter, start: bytes, stop: bytes | None, gap: Gap | None, limit: int, page_bytes: int) -> Read:
    """Read a page in key order."""
    if gap is not None and gap.low <= start < gap.high:
        start = gap.high
        if stop is not None and start >= stop:
            return [], None
    valid, key_at, value_at, step = cursor.valid, cursor.key, cursor.value, cursor.next
    page: list[Entry] = []
    cursor.seek(start)
    while valid():
        value = value_at()
        page.append((key_at(), value))
        page_bytes -= len(value)
        if len(page) == limit or page_bytes < 0:
            break
        step()
    else:
        cursor.status()
    return page, (start, page[0][0]) if page and page[0][0] > start else None


def read_backward(cursor: RdictIter, start: bytes, stop: bytes | None, gap: Gap | None, limit: int, page_bytes: int) -> Read:
    """Read a page against the key order."""
    scan = _Backward(cursor, stop, gap)
    page: list[Entry] = []
    for entry in scan.entries():
        if entry[0] < start:
            break
        page.append(entry)
        page_bytes -= len(entry[1])
        if len(page) == limit or page_bytes < 0:
            break
    return page, scan.empty


class _Backward:
    """All entries below ``stop``, against the key order.

    To stand on a key from above, RocksDB looks at the key before it. So the lowest key above the gap is read from below, forward, and
    the steps backward end at the second lowest.
    """

    def __init__(self, cursor: RdictIter, stop: bytes | None, gap: Gap | None) -> None:
        self._cursor = cursor
        self._stop = stop
        self._gap = gap
        self.empty: tuple[bytes, bytes] | None = None

    def entries(self) -> Iterator[Entry]:
        cursor, gap = self._cursor, self._gap
        if gap is None or (self._stop is not None and self._stop <= gap.low):
            cursor.seek_to_last()
        else:
            if self._stop is None or gap.high < self._stop:
                yield from self._entries_above(gap.high)
            cursor.seek_for_prev(gap.low)
            self.empty = (cursor.key() + b"\x00" if cursor.valid() else b"", gap.low)
        yield from self._steps_back()

    def _entries_above(self, low: bytes) -> Iterator[Entry]:
        cursor = self._cursor
        cursor.seek(low)
        if not cursor.valid():
            cursor.status()
            return
        cursor.next()
        if cursor.valid():
            second = cursor.key()
            cursor.seek_to_last()
            yield from self._steps_back(second)
        else:
            cursor.status()
        cursor.seek(low)
        if cursor.valid():
            yield cursor.key(), cursor.value()
        else:
            cursor.status()

    def _steps_back(self, until: bytes | None = None) -> Iterator[Entry]:
        cursor = self._cursor
        while cursor.valid():
            key = cursor.key()
            yield key, cursor.value()
            if key == until:
                return
            cursor.prev()
        cursor.status()
