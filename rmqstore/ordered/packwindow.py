"""Windows onto the packs: a stretch of timers in the order of hand-over, read once and kept, so that no tick decodes a bucket again.

The packs of a bucket overlap in their ticks, so what is due next can only be told by looking at all of them. A window is what came of
that: every timer of the packs from one place on and before another. It holds about :data:`ROOM_BYTES` of records; a bucket that has more
is read once a window, so memory stays bounded however many timers fall into a minute (T8).

A window is a cache. Packs never change, so it stays right until a put adds a pack to it, which :meth:`Windows.note` takes in. What is
cancelled, covered or forgotten stays in it; who reads it leaves that out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from rmqstore.contract import TimerCursor
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import TIMERS
from rmqstore.ordered.packs import BUCKET_MS, Numbers, behind_bucket, bucket_of, decode_pack, end_of_bucket, from_bucket, parts_of
from rmqstore.ordered.runs import DamagedRunError
from rmqstore.ordered.timerlayout import parked_record

ROOM_BYTES: Final = 16 * 1024 * 1024
"""A window ends after the bucket in which its records reach this size, or within it when they reach twice as much."""

_NOTED_BYTES: Final = 4 * 1024 * 1024
_KEPT_WINDOWS: Final = 2
_PAGE: Final = 256

Place: TypeAlias = tuple[int, int]
"""Tick and seq."""

LAST: Final[Place] = (2**63 - 1, 0)
"""Behind the place of every timer."""


def pack_at(key: bytes) -> str:
    """Return how messages name a pack."""
    bucket, last_seq, _ = parts_of(key)
    return f"timer pack {bucket}/{last_seq}"


def place_of_damaged(key: bytes, forgotten: TimerCursor) -> Place:
    """Return where a damaged pack stands among the timers: where its first one did, or at the end of its bucket once that one is gone."""
    bucket, last_seq, first_tick = parts_of(key)
    return (end_of_bucket(bucket) if forgotten.covers(first_tick, last_seq) else first_tick), last_seq


class Window:
    """Every timer of the packs with ``start`` <= (tick, seq) < ``end``, sorted; row i of each column is one timer.

    ``damaged`` maps the places of packs that cannot be read, each of which has a row with one parked message, to (key, reason).
    """

    def __init__(self, start: Place, end: Place) -> None:
        self.start = start
        self.end = end
        self.ticks: Numbers = np.zeros(0, np.int64)
        self.seqs: Numbers = np.zeros(0, np.int64)
        self.epochs: Numbers = np.zeros(0, np.int64)
        self.stores: Numbers = np.zeros(0, np.int64)
        self.records: list[bytes] = []
        self.damaged: dict[Place, tuple[bytes, str]] = {}
        self._noted: list[tuple[bytes, bytes]] = []
        self._noted_bytes = 0

    def index(self, place: Place) -> int:
        """Return the row of the first timer at or behind a place."""
        low = int(np.searchsorted(self.ticks, place[0], "left"))
        high = int(np.searchsorted(self.ticks, place[0], "right"))
        return low + int(np.searchsorted(self.seqs[low:high], place[1], "left"))

    def place(self, row: int) -> Place:
        """Return the place of a row."""
        return int(self.ticks[row]), int(self.seqs[row])

    def note(self, key: bytes, value: bytes) -> bool:
        """Take in a pack that was put; False when that is more than is worth keeping."""
        self._noted.append((key, value))
        self._noted_bytes += len(value)
        return self._noted_bytes <= _NOTED_BYTES

    def settle(self, forgotten: TimerCursor) -> None:
        """Sort what was noted into the rows."""
        if self._noted:
            filling = _Filling(self, forgotten)
            for key, value in self._noted:
                filling.add(key, value)
            filling.flush(2 * ROOM_BYTES)
            self._noted, self._noted_bytes = [], 0


class _Filling:
    """Gathers packs for a window, and sorts them into its rows now and then."""

    def __init__(self, window: Window, forgotten: TimerCursor) -> None:
        self._window = window
        self._forgotten = forgotten
        self._begin()

    def _begin(self) -> None:
        self.bytes = 0
        self._counts: list[int] = []
        self._heads: list[tuple[int, int, int, int]] = []
        self._steps: list[int] = []
        self._backs: list[int] = []
        self._records: list[bytes] = []

    def add(self, key: bytes, value: bytes) -> None:
        """Take in one pack."""
        try:
            pack = decode_pack(key, value)
        except DamagedRunError as error:
            tick, seq = place_of_damaged(key, self._forgotten)
            self._window.damaged[tick, seq] = (key, str(error))
            self._heads.append((tick, seq, 0, 0))
            self._counts.append(1)
            self._steps.append(0)
            self._backs.append(0)
            self._records.append(parked_record(value, str(error), pack_at(key)))
        else:
            self._heads.append((pack.bucket, pack.last_seq, pack.epoch, pack.store_ms))
            self._counts.append(len(pack.records))
            self._steps += pack.steps
            self._backs += pack.backs
            self._records += pack.records
        self.bytes += len(value)

    def flush(self, room_bytes: int | None = None) -> int:
        """Sort what was gathered into the window, which ends after ``room_bytes`` then; returns the bytes of its records."""
        window = self._window
        heads = np.repeat(np.asarray(self._heads, np.int64).reshape(-1, 4), self._counts, axis=0)
        ticks = np.concatenate((window.ticks, heads[:, 0] + np.asarray(self._steps, np.int64)))
        seqs = np.concatenate((window.seqs, heads[:, 1] - np.asarray(self._backs, np.int64)))
        epochs, stores = np.concatenate((window.epochs, heads[:, 2])), np.concatenate((window.stores, heads[:, 3]))
        records = window.records + self._records
        self._begin()
        order = np.lexsort((seqs, ticks))
        order = order[~self._forgotten.covers_each(ticks[order], seqs[order])]
        window.ticks, window.seqs = ticks[order], seqs[order]
        first, stop = window.index(window.start), window.index(window.end)
        rows = order[first:stop].tolist()
        lengths = np.cumsum(np.fromiter((len(records[row]) for row in rows), np.int64, len(rows)))
        if room_bytes is not None and len(rows) and lengths[-1] > room_bytes:
            kept = max(int(np.searchsorted(lengths, room_bytes)), 1)
            window.end = window.place(first + kept)
            stop, rows, lengths = first + kept, rows[:kept], lengths[:kept]
        window.ticks, window.seqs = window.ticks[first:stop], window.seqs[first:stop]
        window.epochs, window.stores = epochs[rows], stores[rows]
        window.records = [records[row] for row in rows]
        window.damaged = {place: found for place, found in window.damaged.items() if window.start <= place < window.end}
        return int(lengths[-1]) if len(rows) else 0


class Windows:
    """The windows onto the packs of one database; the last ones that were asked for are kept.

    Args:
        forgotten: tells how far the packs are forgotten.
    """

    def __init__(self, kv: OrderedKV, forgotten: Callable[[], TimerCursor]) -> None:
        self._kv = kv
        self._forgotten = forgotten
        self._kept: list[Window] = []

    def clear(self) -> None:
        """Forget every window."""
        self._kept.clear()

    def drop_before(self, tick: int) -> None:
        """Let go of the windows that end before a tick."""
        self._kept = [window for window in self._kept if window.end[0] > tick]

    def note(self, key: bytes, value: bytes) -> None:
        """Take note of a pack that was put."""
        bucket = parts_of(key)[0]
        stay = [window for window in self._kept if not _meets(window, bucket) or window.note(key, value)]
        self._kept = stay

    def at(self, place: Place, stop_tick: int, *, keep: bool = True) -> Window:
        """Return a window with ``start`` <= ``place`` < ``end``.

        A new one reaches to the end of the bucket of ``stop_tick`` if it has room. ``keep``: it will be asked for again.
        """
        for window in self._kept:
            if window.start <= place < window.end:
                window.settle(self._forgotten())
                # What was noted may have made it end at or before ``place``.
                if place < window.end:
                    return window
        window = self._read(place, stop_tick)
        if keep:
            self._kept = [*self._kept[1 - _KEPT_WINDOWS :], window]
        return window

    def _read(self, place: Place, stop_tick: int) -> Window:
        window = Window(place, min((bucket_of(stop_tick) + BUCKET_MS, 0), LAST))
        filling = _Filling(window, self._forgotten())
        held_bytes = 0
        bucket = -1
        at, stop = from_bucket(place[0]), behind_bucket(stop_tick)
        while at < stop and (page := self._kv.scan(TIMERS, at, stop, _PAGE)):
            at = page[-1][0] + b"\x00"
            for key, value in page:
                found = parts_of(key)[0]
                if (found, 0) >= window.end:
                    filling.flush()
                    return window
                if found != bucket and held_bytes + filling.bytes > ROOM_BYTES:
                    held_bytes = filling.flush()
                    if held_bytes > ROOM_BYTES:
                        window.end = (found, 0)
                        return window
                bucket = found
                filling.add(key, value)
            if held_bytes + filling.bytes > 2 * ROOM_BYTES:
                held_bytes = filling.flush(ROOM_BYTES)
        filling.flush()
        return window


def _meets(window: Window, bucket: int) -> bool:
    return bucket < window.end[0] + (window.end[1] > 0) and bucket + BUCKET_MS > window.start[0]
