"""The sorted map in memory, and the overlay of changes that are not in the database yet.

:class:`SortedMap` is a dict plus its keys in order; it is also the whole of the ``memory`` engine. :class:`Overlay` holds, per space,
puts, deletes and range deletes in a normal form that no longer needs the order in which they came:

- ``entries``: key → value, or None where the key is deleted;
- ``hidden``: ranges whose keys in the database below are deleted.

An entry wins over every range, because a range delete takes the entries it covers out as it comes in. So the effect on the database is
"delete the ranges, then put and delete the entries", and applying it twice is the same as applying it once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Generic, TypeVar

import msgspec

from rmqstore.engine.kv.base import DeleteFew, DeleteMany, PutMany, WriteBatch

V = TypeVar("V")

_BY_KEY = (DeleteMany, DeleteFew)
_VALUE = itemgetter(1)
_CHUNK_KEYS = 1024
_INSORT_KEYS = 8
"""Up to so many new keys of one chunk go in one by one; more are appended and sorted, which Timsort does as a merge of two runs."""


class SortedKeys:
    """Distinct byte strings in order, cut in chunks so that adding or removing one moves little memory."""

    __slots__ = ("_chunks", "_count", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        self._lasts: list[bytes] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, keys: list[bytes]) -> None:
        """Take in ``keys``, none of which is here; the list is used up."""
        keys.sort()
        total = len(keys)
        if total * 4 >= self._count:
            flat = sorted(chain(*self._chunks, keys))
            self._chunks = [flat[i : i + _CHUNK_KEYS] for i in range(0, len(flat), _CHUNK_KEYS)]
            self._lasts = [chunk[-1] for chunk in self._chunks]
        else:
            low = 0
            while low < total:
                low = self._add_to_chunk(keys, low)
        self._count += total

    def _add_to_chunk(self, keys: list[bytes], low: int) -> int:
        """Put the keys from ``low`` on that belong to one chunk there; return where the next chunk's begin."""
        at = bisect_left(self._lasts, keys[low])
        if at == len(self._lasts):
            at, high = at - 1, len(keys)
        else:
            high = bisect_right(keys, self._lasts[at], low)
        chunk = self._chunks[at]
        if keys[low] > chunk[-1]:
            chunk += keys[low:high]
        elif high - low <= _INSORT_KEYS:
            for key in keys[low:high]:
                insort(chunk, key)
        else:
            chunk += keys[low:high]
            chunk.sort()
        if len(chunk) > 2 * _CHUNK_KEYS:
            pieces = [chunk[i : i + _CHUNK_KEYS] for i in range(0, len(chunk), _CHUNK_KEYS)]
            self._chunks[at : at + 1] = pieces
            self._lasts[at : at + 1] = [piece[-1] for piece in pieces]
        else:
            self._lasts[at] = chunk[-1]
        return high

    def remove(self, key: bytes) -> None:
        """Take out ``key``, which is here."""
        at = bisect_left(self._lasts, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]
        self._count -= 1

    def remove_range(self, start: bytes, stop: bytes) -> list[bytes]:
        """Take out the keys with ``start <= key < stop`` and return them, in order."""
        first, end = bisect_left(self._lasts, start), bisect_left(self._lasts, stop) + 1
        removed: list[bytes] = []
        kept: list[list[bytes]] = []
        for chunk in self._chunks[first:end]:
            low, high = bisect_left(chunk, start), bisect_left(chunk, stop)
            removed += chunk[low:high]
            del chunk[low:high]
            if chunk:
                kept.append(chunk)
        self._chunks[first:end] = kept
        self._lasts[first:end] = [chunk[-1] for chunk in kept]
        self._count -= len(removed)
        return removed

    def runs(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[list[bytes]]:
        """Yield the keys with ``start <= key < stop`` as sorted lists; with ``reverse``, from the end and each list turned round."""
        first = bisect_left(self._lasts, start)
        end = len(self._lasts) if stop is None else bisect_left(self._lasts, stop) + 1
        chunks = self._chunks[first:end]
        for chunk in reversed(chunks) if reverse else chunks:
            low = bisect_left(chunk, start) if chunk[0] < start else 0
            high = bisect_left(chunk, stop) if stop is not None and chunk[-1] >= stop else len(chunk)
            run = chunk[low:high]
            if reverse:
                run.reverse()
            yield run


class SortedMap(Generic[V]):
    """A dict that can also be read by key range. Puts go into ``items`` itself; the first range call after them sorts what is new."""

    __slots__ = ("_keys", "items")

    def __init__(self) -> None:
        self.items: dict[bytes, V] = {}
        self._keys: SortedKeys | None = None

    def __len__(self) -> int:
        return len(self.items)

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove many keys; those that are not there do not matter."""
        ordered = self._ordered()
        for key in keys:
            if key in self.items:
                del self.items[key]
                ordered.remove(key)

    def remove_range(self, start: bytes, stop: bytes) -> None:
        """Remove the keys with ``start <= key < stop``."""
        if self.items:
            for key in self._ordered().remove_range(start, stop):
                del self.items[key]

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, V]]:
        """Yield the entries with ``start <= key < stop`` in key order, or against it; the map must not change meanwhile."""
        items = self.items
        for run in self._ordered().runs(start, stop, reverse=reverse):
            yield from zip(run, map(items.__getitem__, run), strict=True)

    def sort_anew(self) -> None:
        """Forget the order of the keys, which an exception from outside may have left half changed; the entries themselves never are."""
        self._keys = None

    def _ordered(self) -> SortedKeys:
        if (ordered := self._keys) is None:
            ordered = self._keys = SortedKeys()
        # A dict keeps insertion order and leaves an overwritten key in its place, so the keys not sorted in yet are its last ones.
        fresh = len(self.items) - len(ordered)
        if fresh:
            ordered.add(list(islice(reversed(self.items), fresh)))
        return ordered


class KeyRanges:
    """Disjoint ranges of keys, in order; a key is in one with ``start <= key < stop``."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._stops: list[bytes] = []

    def add(self, start: bytes, stop: bytes) -> None:
        """Add a range, joined with those it meets."""
        first, end = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if first < end:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[end - 1])
        self._starts[first:end] = [start]
        self._stops[first:end] = [stop]

    def around(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the range that a key is in; None when it is in none."""
        at = bisect_right(self._starts, key) - 1
        return (self._starts[at], self._stops[at]) if at >= 0 and key < self._stops[at] else None

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges."""
        return list(zip(self._starts, self._stops, strict=True))


class SpaceChange(msgspec.Struct, frozen=True):
    """The effect on one space, to be applied in this order; ``puts`` and ``deletes`` are sorted and share no key."""

    space: int
    ranges: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    puts: list[tuple[bytes, bytes]]


class Changes(SortedMap[bytes | None]):
    """The changes of one space in normal form (see the module docstring); ``hidden`` is None where no range is."""

    __slots__ = ("hidden",)

    def __init__(self) -> None:
        # As in the map, without a call of it: each commit has these anew for each space.
        self.items: dict[bytes, bytes | None] = {}
        self._keys = None
        self.hidden: KeyRanges | None = None

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Hide everything with ``start <= key < stop``."""
        self.remove_range(start, stop)
        if self.hidden is None:
            self.hidden = KeyRanges()
        self.hidden.add(start, stop)


class Overlay:
    """Changes of all spaces, with the position up to which they go and an upper estimate of their size."""

    __slots__ = ("_base", "_batches", "bytes", "count", "position", "spaces")

    def __init__(self, spaces: int, position: int = 0) -> None:
        self.spaces: list[Changes | None] = [None] * spaces
        self.position = self._base = position
        self.count = 0
        self.bytes = 0
        self._batches: list[WriteBatch] = []

    def made_anew(self) -> Overlay:
        """Return an overlay of all batches that came in here, that one too whose :meth:`apply` did not come to its end."""
        made = Overlay(len(self.spaces), self._base)
        for batch in self._batches:
            made.apply(batch)
            made.position += 1
        return made

    def apply(self, batch: WriteBatch) -> None:
        """Take in a batch, its changes in their order."""
        self._batches.append(batch)
        for op in batch.ops:
            changes = self.spaces[op.space]
            if changes is None:
                changes = self.spaces[op.space] = Changes()
            if isinstance(op, PutMany):
                changes.items.update(op.items)
                self.count += len(op.items)
                self.bytes += sum(map(len, map(_VALUE, op.items)))
            elif isinstance(op, _BY_KEY):
                changes.items.update(dict.fromkeys(op.keys))
                self.count += len(op.keys)
            else:
                changes.delete_range(op.start, op.stop)
                self.count += 1

    def effects(self) -> list[SpaceChange]:
        """Return what to do to the database, space by space. Reads the dicts only, so it may run beside readers of a closed overlay."""
        effects: list[SpaceChange] = []
        for space, changes in enumerate(self.spaces):
            if changes is None:
                continue
            deletes: list[bytes] = []
            puts: list[tuple[bytes, bytes]] = []
            for key, value in sorted(changes.items.items()):
                if value is None:
                    deletes.append(key)
                else:
                    puts.append((key, value))
            effects.append(SpaceChange(space, [] if changes.hidden is None else changes.hidden.pairs(), deletes, puts))
        return effects
