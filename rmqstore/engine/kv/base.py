"""``OrderedKV``: what a key-ordered database must give to hold a store; the seam below ``rmqstore.engine``.

Five abilities: get, atomic batch, range scan, range delete, sync. Keys and values are bytes, keys sort bytewise, and live in *spaces*
(column family, named sub-database) that are fixed when the database is made. Keys are at most :data:`MAX_KEY_BYTES` long.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rmqstore.errors import RmqstoreError

MAX_KEY_BYTES = 511
"""The longest key that ``rmqstore.engine`` ever writes (LMDB's limit); the shortest is one byte."""

PAGE_BYTES = 8 * 1024 * 1024
"""A scan ends its page once it holds this many bytes of values, so that memory stays bounded (T8)."""

Entry = tuple[bytes, bytes]

Alone = Callable[[Callable[[], None]], None]
"""Runs a step while no other call is under way."""


_FEW: Final = 64
"""So many keys of a range are removed one by one, where the database does that better."""

_VALUE = itemgetter(1)


def at_once(step: Callable[[], None]) -> None:
    """Run a step, for somebody whose calls are all made by one thread."""
    step()


class PutMany(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=0):
    """Set every (key, value) of ``items`` in ``space``.

    Written down, a change is an array that begins with its tag; a database that keeps a journal of them may rely on that.
    """

    space: int
    items: Sequence[tuple[bytes, bytes]]


class DeleteMany(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """Remove every key of ``keys`` from ``space``; keys that are not there do not matter."""

    space: int
    keys: Sequence[bytes]


class DeleteRange(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """Remove every key with ``start <= key < stop`` from ``space``.

    Best given tight: ranges that begin where the last one ended are cheaper than ranges that all begin at the same key.
    """

    space: int
    start: bytes
    stop: bytes


class DeleteFew(DeleteRange, frozen=True, gc=False):
    """A range of which the caller knows every key that it holds, and they are few.

    Some databases remove a few keys better one by one: RocksDB goes through all range deletes that are in memory at each read.
    """

    keys: Sequence[bytes]


class IfLost(enum.Enum):
    """What is no longer true when a write is lost, those before it being there."""

    ANSWERS = "what calls answered"
    LEASES = "leases that were given, and nothing else: pops need not wait for them with ``pop.flush = async``"
    NOTHING = "nothing that anybody was told: it is done again"


class WriteBatch(msgspec.Struct):
    """Changes that become visible and durable together; they apply in the order in which they were added.

    ``if_lost`` says what a call that does not wait for this write has to say of it. A database may have batches of its own kind, which hold
    more; see ``QueueLog.new_batch``.
    """

    ops: list[PutMany | DeleteMany | DeleteRange] = []
    if_lost: IfLost = IfLost.ANSWERS

    def put(self, space: int, key: bytes, value: bytes) -> None:
        """Set one key."""
        self.ops.append(PutMany(space, ((key, value),)))

    def put_many(self, space: int, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Set many keys; faster when they are sorted."""
        if items:
            self.ops.append(PutMany(space, items))

    def delete(self, space: int, key: bytes) -> None:
        """Remove one key."""
        self.ops.append(DeleteMany(space, (key,)))

    def delete_many(self, space: int, keys: Sequence[bytes]) -> None:
        """Remove many keys."""
        if keys:
            self.ops.append(DeleteMany(space, keys))

    def delete_range(self, space: int, start: bytes, stop: bytes, keys: Sequence[bytes] = ()) -> None:
        """Remove ``start <= key < stop``; ``keys`` are all that are there, when the caller knows them."""
        if keys and len(keys) <= _FEW:
            self.ops.append(DeleteFew(space, start, stop, keys))
        elif start < stop:
            self.ops.append(DeleteRange(space, start, stop))

    def __bool__(self) -> bool:
        return bool(self.ops)


def take_page(
    entries: Iterator[tuple[bytes, bytes]], limit: int, page_bytes: int, past: Callable[[bytes], bool] | None = None
) -> list[tuple[bytes, bytes]]:
    """Return the first ``limit`` entries, or fewer: through the one with which the values exceed ``page_bytes``.

    ``past`` tells whether a key is beyond the range, for iterators that do not stop there by themselves. Reads in slices that grow
    with what the values leave of ``page_bytes``, so that little is read for nothing and memory stays bounded.
    """
    page: list[tuple[bytes, bytes]] = []
    room_bytes = page_bytes
    step = max(1, min(16, page_bytes >> 15))
    while (wanted := min(step, limit - len(page))) > 0:
        chunk = list(islice(entries, wanted))
        if past is not None and chunk and past(chunk[-1][0]):
            chunk = list(takewhile(lambda entry: not past(entry[0]), chunk))
        chunk_bytes = sum(map(len, map(_VALUE, chunk)))
        if chunk_bytes > room_bytes:
            for entry in chunk:
                page.append(entry)
                room_bytes -= len(entry[1])
                if room_bytes < 0:
                    return page
        page += chunk
        if len(chunk) < wanted:
            return page
        room_bytes -= chunk_bytes
        step = max(1, min(4 * step, 1024, room_bytes * wanted // (chunk_bytes + 1)))
    return page


def is_last(page: Sequence[tuple[bytes, bytes]], limit: int, page_bytes: int = PAGE_BYTES) -> bool:
    """Say whether a page of a scan shows by itself that nothing follows: neither the limit nor the bytes have ended it."""
    return len(page) < limit and sum(map(len, map(_VALUE, page))) <= page_bytes


class Readable(ABC):
    """What an adapter of a database implements of its reads, when the kit does the rest: checks, merging, refusing."""

    name: str
    """What messages call it: the path of the engine's directory."""

    @abstractmethod
    def get(self, space: int, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None."""

    @abstractmethod
    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int
    ) -> list[tuple[bytes, bytes]]:
        """As ``OrderedKV.scan``, of one state; it is asked for one entry at least, of a range that is not empty."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files; idempotent, and done again where it was interrupted."""


class Refusal(NamedTuple):
    """Why calls are refused; every call gets an exception of its own."""

    error: type[RmqstoreError]
    message: str
    cause: BaseException | None = None


class OrderedKV(ABC):
    """A key-ordered database with atomic batches, opened by one process. Every method may be called from any thread.

    ``write`` and the reads see each other at once; durability is a second step, ``sync``. A write that raises has changed nothing.
    A database that found no room, so that what was not durable may be gone, refuses calls with ``StoreFullError``: the owner calls
    :meth:`reopen` and reads its state again. After a failed sync everything raises ``StorePoisonedError`` until the process opens the
    database afresh.

    Attributes:
        refusal: why calls are refused; None while they are let in.
    """

    refusal: Refusal | None = None

    def check(self) -> None:
        """Raise when calls are refused."""
        refusal = self.refusal
        if refusal is not None:
            raise refusal.error(refusal.message) from refusal.cause

    @abstractmethod
    def get(self, space: int, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None."""

    @abstractmethod
    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries with ``start <= key < stop`` (None: to the end), in key order or, with ``reverse``, against it.

        Also ends after the entry with which the values exceed ``page_bytes``, but never sooner: :func:`is_last`. One page is one
        consistent view.
        """

    @abstractmethod
    def write(self, batch: WriteBatch) -> int:
        """Apply ``batch`` atomically and return its position, which grows by 1 with each write of this open database.

        Raises:
            StoreFullError: no room; nothing was written.
        """

    @abstractmethod
    def sync(self, position: int | None = None) -> None:
        """Return when every write up to ``position`` (None: all that is left) is durable; at once when it is already.

        Concurrent calls share one disk sync. A durable position is answered in any state, also when other calls are refused.

        Raises:
            StoreFullError: no room (F1), or the write at ``position`` was lost to that before a :meth:`reopen`.
            StorePoisonedError: the disk failed (F2).
        """

    @property
    @abstractmethod
    def position(self) -> int:
        """Position of the last write; 0 before the first."""

    @property
    @abstractmethod
    def durable_position(self) -> int:
        """Position up to which writes would survive a power loss."""

    @abstractmethod
    def reopen(self) -> None:
        """Open the database again after ``StoreFullError``; positions go on, what was not durable may be gone."""

    @abstractmethod
    def after_interrupt(self) -> None:
        """Work out again what is in memory, as an exception from outside, that of a signal handler, may have come between any two steps.

        Comes before anything else once a call was cut short, while no other call but ``sync`` is under way. Afterwards the write that was
        cut short is there, wholly, or it is not. Nothing to do for a database that keeps nothing in memory.

        Raises:
            StorePoisonedError: only an open can do it.
        """

    @abstractmethod
    def snapshot(self, path: Path, alone: Alone = at_once) -> None:
        """Write a durable copy to the new directory ``path``, which opens as a database of the same kind.

        It holds the writes up to one position, at least that of when this was called. All other methods are called meanwhile; what is done
        by ``alone`` keeps them out, so it should take no longer the more the database holds.
        """

    @abstractmethod
    def close(self) -> None:
        """Sync and let go of the files; idempotent. One that was interrupted is made whole by the next (F4)."""

    def write_back(self) -> bool:
        """Write what a pop buffer holds; says whether there was anything. Serialised as ``write`` is."""
        return False

    # ------------------------------------------------------------ derived

    def get_many(self, space: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None; each is a view of its own."""
        return [self.get(space, key) for key in keys]

    def floor(self, space: int, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the entry with the greatest key <= ``key``, or None; mostly it is just this key, which is found sooner than by a scan."""
        value = self.get(space, key)
        if value is not None:
            return key, value
        found = self.scan(space, b"", key + b"\x00", 1, reverse=True)
        return found[0] if found else None

    def scan_all(self, space: int, start: bytes = b"", stop: bytes | None = None, page: int = 1000) -> Iterable[tuple[bytes, bytes]]:
        """Yield a whole range, page by page; each page is a view of its own, and up to twice as long as the one before."""
        while True:
            entries = self.scan(space, start, stop, page)
            yield from entries
            if is_last(entries, page):
                return
            start = entries[-1][0] + b"\x00"
            page = max(page, min(2 * page, 1024))
