"""``BufferedPops``: what pops and acks changed of the state and the log does not say yet (``PopBufferMergeService``).

The state has every change at once, so no caller sees a difference. Here stands which keys are ahead of the log, and what the log says
of each. They are written as one frame, the last value of each key, so a lease that began and ended meanwhile is written once, and has no
check point or ack in the revive log at all.

Why a crash loses no message and leaves no half of a call. What is held is written all together, so what the log says is the state as it
was when that was done last, and whatever else was written since. None of that needs what is held to be there:

- A pop or an ack that is held has keys of its own group alone: leases, their ends, what is to be forgotten when, where the group stands.
  So the log without it says that the messages were not given, or not acked: they come again, as declared.
- Only appends, the timer cursor, marks and what timers need are written alone. Neither depends on a lease, nor on where a group stands.
- Any other call is written behind what is held, in its frame: a change, a release, a revive, a reset; and what retention does, as it looks
  at leases and at what groups have consumed.
- That a group pops a topic, since when and how, is never held, since what is kept for the group, and where it begins, follows from that.
  Nor are new groups, topics and ids, ordered pops, and whatever appends a message.

What no lease pins in the log, retention may take after a crash (Q1): a message that came near its age while its lease was held.

Receipts of leases that a crash took are of an earlier epoch than whatever is leased afterwards, so they are STALE.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rmqstore.contract import PopBuffer
from rmqstore.engine.kv.base import DeleteMany, PutMany
from rmqstore.engine.schema import COUNT, EPOCH_KEY, FIFO, LEASE, LEASES, MARK, MARK_AGE, META, PROGRESS, TOPIC, TRACES
from rmqstore_wheel.log.journal import Change, State

MARGIN_MS: Final = 1500
"""What a lease must have left more than ``left_ms`` to be held (``PopBufferMergeService.interval``)."""

_GROUP_QUEUE: Final = slice(1, 13)
_TIMES: Final = struct.Struct("<qq")
_ALONE: Final = (EPOCH_KEY[0], TOPIC[0], COUNT[0], MARK[0], MARK_AGE[0])
"""Tables of what appends and timers change: single values, topics, counts, marks."""

_KEYS_OF_CHECK_POINT: Final = 4
"""How many keys one check point takes, and its acks alone may take no more."""

_KEYS: Final = 4096
"""Keys that are removed by one change."""


class BufferedPops:
    """The keys; the caller serialises all calls."""

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
