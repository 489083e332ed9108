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

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, cast

import msgspec

from rmqstore.contract import PopBuffer
from rmqstore.engine import schema
from rmqstore.engine.kv.base import DeleteMany, DeleteRange, PutMany, take_page
from rmqstore.engine.kv.overlay import SortedMap
from rmqstore.engine.schema import COUNT, EPOCH_KEY, FIFO, LEASE, LEASES, MARK, MARK_AGE, META, PROGRESS, SPACES, TRACES
from rmqstore_wheel.formats.commit_log import Form

TOPIC: Final = "rmq_sys_rmqstore_journal"
_FORM: Final = Form(TOPIC.encode())


class DropQueue(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Remove a queue with all its messages."""

    topic: str
    queue: int


class ClearOffsets(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Remove messages from a queue; nothing is at their offsets then."""

    topic: str
    queue: int
    offsets: list[int]


class Restart(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Everything so far is void: a whole copy of the state follows."""


class Copied(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What copies of timers do not say themselves: seqs (``<i8``), epochs (``<u4``), whether each is cancelled (``u1``)."""

    seqs: bytes
    epochs: bytes
    cancelled: bytes


Change = PutMany | DeleteMany | DeleteRange | DropQueue | ClearOffsets | Restart | Copied

_encode: Final = msgspec.msgpack.Encoder().encode
decode: Final[Callable[[bytes], list[Change]]] = msgspec.msgpack.Decoder(list[Change]).decode
"""Reads the body of a journal record."""


def record(changes: Sequence[Change], number: int, store_ms: int) -> bytes:
    """Return the ``number``-th journal record; it has no properties."""
    return _FORM.encode(_encode(changes), b"", 0, number, store_ms)


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

    def entries(self, space: int) -> list[tuple[bytes, bytes]]:
        """Return all of a map, in no order."""
        return [(key, value) for key, value in self.items[space].items() if value is not None]

    @property
    def bytes(self) -> int:
        """About how many bytes a copy of everything has."""
        return sum(len(key) + len(value) for space in KEPT_SPACES for key, value in self.entries(space))

    def clear(self) -> None:
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


MARGIN_MS: Final = 1500
"""What a lease must have left more than ``left_ms`` to be held (``PopBufferMergeService.interval``)."""

_GROUP_QUEUE: Final = slice(1, 13)
_TIMES: Final = struct.Struct("<qq")
_ALONE: Final = (EPOCH_KEY[0], schema.TOPIC[0], COUNT[0], MARK[0], MARK_AGE[0])
"""Tables of what appends and timers change: single values, topics, counts, marks."""

_KEYS_OF_CHECK_POINT: Final = 4
"""How many keys one check point takes, and its acks alone may take no more."""

_KEYS: Final = 4096
"""Keys that are removed by one change."""


class BufferedPops:
    """What pops and acks changed of the state and the log does not say yet (``PopBufferMergeService``).

    The state has every change at once, so no caller sees a difference. Here stands which keys are ahead of the log, and what the log says
    of each. They are written as one frame, the last value of each key, so a lease that began and ended meanwhile is written once, and has
    no check point or ack in the revive log at all.

    Why a crash loses no message and leaves no half of a call. What is held is written all together, so what the log says is the state as it
    was when that was done last, and whatever else was written since. None of that needs what is held to be there:

    - A pop or an ack that is held has keys of its own group alone: leases, their ends, what is to be forgotten when, where the group
      stands. So the log without it says that the messages were not given, or not acked: they come again, as declared.
    - Only appends, the timer cursor, marks and what timers need are written alone. Neither depends on a lease, nor on where a group stands.
    - Any other call is written behind what is held, in its frame: a change, a release, a revive, a reset; and what retention does, as it
      looks at leases and at what groups have consumed.
    - That a group pops a topic, since when and how, is never held, since what is kept for the group, and where it begins, follows from
      that. Nor are new groups, topics and ids, ordered pops, and whatever appends a message.

    What no lease pins in the log, retention may take after a crash (Q1): a message that came near its age while its lease was held.

    Receipts of leases that a crash took are of an earlier epoch than whatever is leased afterwards, so they are STALE.

    The caller serialises all calls.
    """

    def __init__(self, limits: PopBuffer, state: State) -> None:
        self._limits = limits
        self._state = state
        self.clear()

    def __bool__(self) -> bool:
        return bool(self._logged)

    def clear(self) -> None:
        """Forget all, as it is in the log."""
        self._logged: dict[tuple[int, bytes], bytes | None] = {}
        self._of_queue: Counter[bytes] = Counter()
        self._check_points = 0
        self._since_ms: int | None = None
        self._next_end_ms: int | None = None

    def logged_lease(self, key: bytes) -> bytes | None:
        """Return what the log says of the key of a lease."""
        at = (LEASES, key)
        return self._logged[at] if at in self._logged else self._state.get(LEASES, key)

    # ------------------------------------------------------------ what may be held

    def takes(self, changes: Sequence[Change], now_ms: int) -> bool:
        """Hold what a call changes that is about to be done; False when it has to be written, and what is held with it."""
        if self.is_due(now_ms):
            return False
        begun: dict[bytes, int] = {}
        for change in changes:
            if not isinstance(change, PutMany | DeleteMany) or not _may_be_held(change):
                return False
            if isinstance(change, PutMany) and change.space == LEASES and not self._begin(begun, change.items):
                return False
        for key, expiry_ms in begun.items():
            self._of_queue[key[_GROUP_QUEUE]] += 1
            self._next_end_ms = expiry_ms if self._next_end_ms is None else min(self._next_end_ms, expiry_ms)
        self._check_points += len(begun)
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        for change in changes:
            if isinstance(change, PutMany | DeleteMany):
                for key in _keys_of(change):
                    self._logged.setdefault((change.space, key), self._state.get(change.space, key))
        return True

    def _begin(self, begun: dict[bytes, int], items: Sequence[tuple[bytes, bytes]]) -> bool:
        """Note the leases that begin, with their ends; False when one may not be held."""
        limits = self._limits
        for key, value in items:
            if key[0] != LEASE[0] or self._state.get(LEASES, key) is not None:
                continue
            expiry_ms, invisible_ms = _TIMES.unpack_from(value)
            begun[key] = expiry_ms
            if (
                invisible_ms < limits.left_ms + MARGIN_MS
                or self._check_points + len(begun) > limits.check_points
                or self._of_queue[key[_GROUP_QUEUE]] >= limits.queue_check_points
            ):
                return False
        return True

    def is_due(self, now_ms: int) -> bool:
        """Say whether something has been here for too long, by the clock, or ends too soon, or whether there is too much."""
        if self._since_ms is None:
            return False
        limits = self._limits
        stays_on = 0 <= now_ms - self._since_ms <= limits.stay_ms
        has_room = len(self._logged) < _KEYS_OF_CHECK_POINT * limits.check_points
        ends_soon = self._next_end_ms is not None and self._next_end_ms - now_ms < limits.left_ms
        return ends_soon or not (stays_on and has_room)

    # ------------------------------------------------------------ writing

    @staticmethod
    def concerns(changes: Sequence[Change]) -> bool:
        """Say whether a call has to do with leases or groups, so that what is held goes before it."""
        return not all(isinstance(change, PutMany | DeleteMany) and _is_alone(change) for change in changes)

    def changes(self) -> list[Change]:
        """Return what the log lacks."""
        puts: dict[int, list[tuple[bytes, bytes]]] = {META: [], LEASES: []}
        deletes: dict[int, list[bytes]] = {META: [], LEASES: []}
        for (space, key), logged in self._logged.items():
            value = self._state.get(space, key)
            if value is not None:
                if value != logged:
                    puts[space].append((key, value))
            elif logged is not None:
                deletes[space].append(key)
        found: list[Change] = [PutMany(space, items) for space, items in puts.items() if items]
        for space, keys in deletes.items():
            found += [DeleteMany(space, keys[at : at + _KEYS]) for at in range(0, len(keys), _KEYS)]
        return found


def _may_be_held(change: PutMany | DeleteMany) -> bool:
    if change.space == LEASES:
        return all(key[0] != FIFO[0] for key in _keys_of(change))
    return change.space == META and all(key[0] == PROGRESS[0] for key in _keys_of(change))


def _is_alone(change: PutMany | DeleteMany) -> bool:
    if change.space != META:
        return change.space == TRACES
    return all(key[0] in _ALONE for key in _keys_of(change))


def _keys_of(change: PutMany | DeleteMany) -> Sequence[bytes]:
    return [key for key, _ in change.items] if isinstance(change, PutMany) else change.keys
