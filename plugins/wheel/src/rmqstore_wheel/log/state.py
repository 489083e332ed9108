"""The state of both sides beside messages and timers: sorted maps in memory, one a space, which the journal makes durable.

Leases, outcomes, offsets, groups, marks: what ``rmqstore.engine.schema`` calls ``meta``, ``traces`` and ``leases``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from rmqstore.engine.kv.base import DeleteMany, DeleteRange, PutMany, take_page
from rmqstore.engine.kv.overlay import SortedMap
from rmqstore.engine.schema import LEASES, META, SPACES, TRACES
from rmqstore_wheel.log.journal import Change, Copied

KEPT_SPACES: Final = (META, TRACES, LEASES)
"""The spaces that live here; timers and queues have files of their own."""

PIECE_BYTES: Final = 512 * 1024
"""About as long is the body of a journal record at most."""

_PIECE_KEYS: Final = 4096


class State:
    """The maps; callers see to it that one thread at a time changes them."""

    def __init__(self) -> None:
        self._maps: list[SortedMap[bytes]] = [SortedMap() for _ in SPACES]

    def get(self, space: int, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._maps[space].items.get(key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int
    ) -> list[tuple[bytes, bytes]]:  # fmt: skip
        """Return a page of a range; see ``OrderedKV.scan``."""
        return take_page(self._maps[space].range(start, stop, reverse=reverse), limit, page_bytes)

    def apply(self, change: PutMany | DeleteMany | DeleteRange) -> None:
        """Do one change."""
        entries = self._maps[change.space]
        if isinstance(change, PutMany):
            entries.put_many(change.items)
        elif isinstance(change, DeleteMany):
            entries.remove_many(change.keys)
        else:
            entries.remove_range(change.start, change.stop)

    def put(self, space: int, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many keys."""
        self._maps[space].put_many(entries)

    def entries(self, space: int) -> list[tuple[bytes, bytes]]:
        """Return all of a map, in no order."""
        return list(self._maps[space].items.items())

    @property
    def bytes(self) -> int:
        """About how many bytes a copy of everything has."""
        return sum(len(key) + len(value) for space in KEPT_SPACES for key, value in self._maps[space].items.items())

    def clear(self) -> None:
        """Forget everything."""
        self._maps = [SortedMap() for _ in SPACES]

    def copy(self) -> Iterator[PutMany]:
        """Yield the whole state as changes of moderate size."""
        for space in KEPT_SPACES:
            yield from pieces(space, self._maps[space].range(b"", None))


def pieces(space: int, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[PutMany]:
    """Cut entries into changes of moderate size."""
    waiting = iter(entries)
    while chunk := list(islice(waiting, _PIECE_KEYS)):
        first = size = 0
        for at, (key, value) in enumerate(chunk):
            size += len(key) + len(value)
            if size > PIECE_BYTES:
                yield PutMany(space, chunk[first : at + 1])
                first, size = at + 1, 0
        if first < len(chunk):
            yield PutMany(space, chunk[first:])


def _bytes_of(change: Change) -> int:
    if isinstance(change, PutMany):
        return sum([len(key) + len(value) for key, value in change.items])
    if isinstance(change, DeleteMany):
        return sum(map(len, change.keys))
    return len(change.seqs) + len(change.epochs) + len(change.cancelled) if isinstance(change, Copied) else 64


def cut(changes: Sequence[Change]) -> list[list[Change]]:
    """Return changes in groups that each make a journal record of moderate size."""
    if sum(map(_bytes_of, changes)) <= PIECE_BYTES:
        return [list(changes)]
    groups: list[list[Change]] = [[]]
    size = 0
    for change in changes:
        parts: Sequence[Change] = [change]
        if isinstance(change, PutMany) and len(change.items) > 1:
            parts = list(pieces(change.space, change.items))
        for part in parts:
            part_bytes = _bytes_of(part)
            if groups[-1] and size + part_bytes > PIECE_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part_bytes
    return groups
