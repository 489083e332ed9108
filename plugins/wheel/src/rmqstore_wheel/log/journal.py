"""The journal: what a call changed beside the messages that it appended, as one record of the log.

A record of the topic :data:`TOPIC`, whose body is MessagePack: a list of changes, each a list that begins with its kind::

    [0, space, [[key, value], …]]     set keys                 spaces and keys are those of rmqstore.engine.schema
    [1, space, [key, …]]              remove keys
    [2, space, start, stop]           remove the keys from start to before stop
    [3, topic, queue]                 remove a queue with all its messages
    [4, topic, queue, [offset, …]]    remove messages from a queue
    [5]                               everything so far is void: a whole copy of the state follows
    [6, seqs, epochs, cancelled]      what the copies of timers in this frame do not say themselves

The state that these changes make are sorted maps in memory, one a space: what ``rmqstore.engine.schema`` calls ``meta``, ``traces`` and
``leases``. Timers and queues have files of their own. The leases of a pop, the outcomes of acks, offsets, groups, resets and FIFO runs are
such keys; check points and acks are written in RocketMQ's form beside them, for programs that read the log as it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast

import msgspec

from rmqstore.engine.kv.base import DeleteMany, DeleteRange, PutMany, take_page
from rmqstore.engine.kv.overlay import SortedMap
from rmqstore.engine.schema import LEASES, META, SPACES, TRACES
from rmqstore_wheel.formats.commit_log import Form

TOPIC: Final = "rmq_sys_rmqstore_journal"
_FORM: Final = Form(TOPIC.encode())

PUT, DELETE, DELETE_RANGE, DROP_QUEUE, CLEAR, RESTART, COPIED = range(7)


class DropQueue(msgspec.Struct, frozen=True):
    """Remove a queue with all its messages."""

    topic: str
    queue: int


class ClearOffsets(msgspec.Struct, frozen=True):
    """Remove messages from a queue; nothing is at their offsets then."""

    topic: str
    queue: int
    offsets: list[int]


class Restart(msgspec.Struct, frozen=True):
    """Everything so far is void: a whole copy of the state follows."""


class Copied(msgspec.Struct, frozen=True):
    """What copies of timers do not say themselves: seqs (``<i8``), epochs (``<u4``), whether each is cancelled (``u1``)."""

    seqs: bytes
    epochs: bytes
    cancelled: bytes


Change = PutMany | DeleteMany | DeleteRange | DropQueue | ClearOffsets | Restart | Copied

_KINDS: Final[dict[type, int]] = {
    PutMany: PUT,
    DeleteMany: DELETE,
    DeleteRange: DELETE_RANGE,
    DropQueue: DROP_QUEUE,
    ClearOffsets: CLEAR,
    Restart: RESTART,
    Copied: COPIED,
}
_TYPES: Final[dict[int, Any]] = {number: kind for kind, number in _KINDS.items()}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def decode(body: bytes) -> list[Change]:
    """Read the body of a journal record."""
    return [_TYPES[kind](*fields) for kind, *fields in _decoder.decode(body)]


def record(changes: Sequence[Change], number: int, store_ms: int) -> bytes:
    """Return the ``number``-th journal record; it has no properties."""
    body = []
    for change in changes:  # as a loop: every call runs this
        body.append((_KINDS[type(change)], *msgspec.structs.astuple(change)))
    return _FORM.encode(_encoder.encode(body), b"", 0, number, store_ms)


KEPT_SPACES: Final = (META, TRACES, LEASES)
"""The spaces that live here; timers and queues have files of their own."""

PIECE_BYTES: Final = 512 * 1024
"""About as long is the body of a journal record at most."""

_PIECE_KEYS: Final = 4096


_MOST_GONE: Final = 4096


class State:
    """The maps; callers ensure that one thread at a time changes them.

    A key that is removed stands for None until somebody reads a range: most calls remove a key, and taking it out of the order of all is
    dearer than the call.

    Attributes:
        items: of each space, what its keys stand for.
    """

    def __init__(self) -> None:
        self._maps: list[SortedMap[bytes | None]] = [SortedMap() for _ in SPACES]
        self.items = [each.items for each in self._maps]
        self._gone: list[list[bytes]] = [[] for _ in SPACES]

    def get(self, space: int, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self.items[space].get(key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int
    ) -> list[tuple[bytes, bytes]]:  # fmt: skip
        """Return a page of a range; see ``OrderedKV.scan``."""
        return take_page(self._range(space, start, stop, reverse=reverse), limit, page_bytes)

    def _range(self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._take_out(space)
        # None of them is None then.
        return cast("Iterator[tuple[bytes, bytes]]", self._maps[space].range(start, stop, reverse=reverse))

    def _take_out(self, space: int) -> None:
        """Take the keys out of the map that were removed, and not set again."""
        if gone := self._gone[space]:
            items = self.items[space]
            self._maps[space].remove_many([key for key in gone if items.get(key, b"") is None])
            gone.clear()

    def apply(self, changes: Iterable[Change]) -> list[Change]:
        """Make changes; returns those that are none of the state's."""
        others: list[Change] = []
        for change in changes:
            if isinstance(change, PutMany):
                self.items[change.space].update(change.items)
            elif isinstance(change, DeleteMany):
                items, gone = self.items[change.space], self._gone[change.space]
                for key in change.keys:
                    if key in items:
                        items[key] = None
                        gone.append(key)
                if len(gone) > _MOST_GONE:
                    self._take_out(change.space)
            elif isinstance(change, DeleteRange):
                self._maps[change.space].remove_range(change.start, change.stop)
            elif isinstance(change, Restart):
                self.clear()
            else:
                others.append(change)
        return others

    def put(self, space: int, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many keys."""
        self.items[space].update(entries)

    def entries(self, space: int) -> list[tuple[bytes, bytes]]:
        """Return all of a map, in no order."""
        return [(key, value) for key, value in self.items[space].items() if value is not None]

    @property
    def bytes(self) -> int:
        """About how many bytes a copy of everything has."""
        return sum(len(key) + len(value) for space in KEPT_SPACES for key, value in self.entries(space))

    def clear(self) -> None:
        """Forget everything."""
        for each, gone in zip(self._maps, self._gone, strict=True):
            each.items.clear()
            each.sort_anew()
            gone.clear()

    def copy(self) -> Iterator[PutMany]:
        """Yield the whole state as changes of moderate size."""
        for space in KEPT_SPACES:
            yield from pieces(space, self._range(space, b"", None))


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
