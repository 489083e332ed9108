"""What one shard is given: batches of numbered messages, when each is due, and which are cancelled when.

Every body begins with the message's number, eight bytes; numbers of a shard count up from 0. The rest of a body is random bytes, cut from a
pool at a place that follows from the number, so that no engine gains by compression. Batch ``k`` is the same for the same seed, whatever
the engine does.

A store in equilibrium does not hold fresh timers only. The backlog is drawn as it would be found there: long waits are met more often
(proportionally to their length), each at a uniformly random age.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore_benchmarks.grid.named import BATCH, PRECISION_MS, TOPIC, Delays, NamedWorkload

ID_BYTES: Final = 8
KEY_BYTES: Final = 10
_FIRST_KEY: Final = 10 ** (KEY_BYTES - 1)
NEVER_MS: Final = 2**62
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_POOL_BYTES: Final = 3 * MAX_BATCH_BYTES
_SAMPLED: Final = 100_000
_ODD: Final = 0x9E3779B97F4A7C15
_CANDIDATES: Final = 8
"""Of so many drawn waits one is found in a store in equilibrium."""

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Made(NamedTuple):
    """One batch: its columns, and for every row its number, its due time and the time at which it is to be cancelled."""

    columns: pa.RecordBatch
    ids: Ids
    due_ms: Delays
    cancel_ms: Delays


class Load:
    """Makes the batches of one shard.

    Args:
        body_bytes: size of each body, at least 8.
        seed: of everything; each shard draws its own numbers from it.

    Attributes:
        made: how many messages were made; also the number of the next one.
        batches: in how many batches.
    """

    def __init__(self, workload: NamedWorkload, body_bytes: int, seed: int, shard: int = 0) -> None:
        self.workload = workload
        self.body_bytes = body_bytes
        self.message_bytes = len(TOPIC) + body_bytes + (KEY_BYTES if workload.has_keys else 0)
        self.batch_rows = max(min(BATCH, MAX_BATCH_BYTES // body_bytes), 1)
        self._seed = (seed, shard)
        self._pool = np.frombuffer(np.random.default_rng((*self._seed, 0)).bytes(_POOL_BYTES), np.uint8)
        self._cuts = np.lib.stride_tricks.sliding_window_view(self._pool, body_bytes)
        self.made = 0
        self.batches = 0
        self.mean_wait_ms = float(self._waits(np.random.default_rng((*self._seed, 1)), _SAMPLED)[2].mean())

    def damaged(self, ids: Ids, bodies: pa.Array) -> Mask:
        """Say which of these bodies, of messages that this load made, are not what was sent, byte by byte.

        Numbers that this load did not make are left out.
        """
        is_damaged, rows = np.zeros(len(ids), bool), self._own(ids)
        step = max(MAX_BATCH_BYTES // self.body_bytes, 1)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            is_damaged[part] = pc.not_equal(self._bodies(ids[part]), bodies.take(pa.array(part))).to_numpy(zero_copy_only=False)
        return is_damaged

    def frayed(self, ids: Ids, lengths: Ids, tails: Ids) -> Mask:
        """Say the same of lengths and last words of bodies (:func:`ends_of`) alone, which costs next to nothing."""
        rows = self._own(ids)
        is_frayed = np.zeros(len(ids), bool)
        is_frayed[rows] = lengths[rows] != self.body_bytes
        if self.body_bytes >= 2 * ID_BYTES:
            is_frayed[rows] |= tails[rows] != self._tails(ids[rows])
        return is_frayed

    def _own(self, ids: Ids) -> Ids:
        """Return the rows whose number was made here."""
        return np.flatnonzero((ids >= 0) & (ids < self.made))

    def _places(self, ids: Ids) -> Ids:
        """Return where in the pool the bodies of these numbers are cut."""
        spread = ids.astype(np.uint64) * np.uint64(_ODD)
        places: Ids = ((spread >> np.uint64(16)) % np.uint64(len(self._cuts))).astype(np.int64)
        return places

    def _tails(self, ids: Ids) -> Ids:
        """Return the last words of the bodies of these numbers."""
        return _words(self._pool, self._places(ids) + self.body_bytes - ID_BYTES, np.ones(len(ids), bool), 0)

    def fresh(self, now_ms: int, count: int | None = None) -> Made:
        """Return a batch of timers that are set at ``now_ms``."""
        rng, count = self._next(count)
        delays, cancels, _ = self._waits(rng, count)
        return self._batch(now_ms + delays, np.where(cancels == NEVER_MS, NEVER_MS, now_ms + cancels))

    def found(self, now_ms: int, count: int | None = None) -> Made:
        """Return a batch of timers as a store in equilibrium holds them at ``now_ms``; all due, or cancelled, later."""
        if self.workload.at_once:
            return self.fresh(now_ms, count)
        rng, count = self._next(count)
        delays, cancels, waits = self._waits(rng, _CANDIDATES * count)
        edges = np.cumsum(waits, dtype=np.float64)
        # A uniform place on all waits laid end to end picks a wait by its length, and an age in it.
        places = rng.uniform(0, edges[-1], count)
        rows = np.searchsorted(edges, places, side="right").clip(max=len(waits) - 1)
        ages = np.minimum((edges[rows] - places).astype(np.int64), waits[rows] - 1)
        cancel_ms = np.where(cancels[rows] == NEVER_MS, NEVER_MS, now_ms + cancels[rows] - ages)
        return self._batch(now_ms + delays[rows] - ages, cancel_ms)

    def due_at(self, due_ms: int, count: int) -> Made:
        """Return a batch of timers that are all due at one time, and not cancelled."""
        self.batches += 1
        return self._batch(np.full(count, due_ms, np.int64), np.full(count, NEVER_MS, np.int64))

    def _next(self, count: int | None) -> tuple[np.random.Generator, int]:
        self.batches += 1
        return np.random.default_rng((*self._seed, 1 + self.batches)), self.batch_rows if count is None else count

    def _waits(self, rng: np.random.Generator, count: int) -> tuple[Delays, Delays, Delays]:
        """Return delays, times from the send to the cancel, and the earlier of the two, ms."""
        delays = self.workload.delays_ms(rng, count)
        shares = rng.uniform(0, 1, count)
        is_cancelled = rng.uniform(0, 1, count) < self.workload.cancelled
        cancels = np.where(is_cancelled & (delays > 1), np.maximum((delays * shares).astype(np.int64), 1), NEVER_MS)
        return delays, cancels, np.minimum(delays, cancels)

    def _batch(self, due_ms: Delays, cancel_ms: Delays) -> Made:
        count = len(due_ms)
        ids = np.arange(self.made, self.made + count)
        self.made += count
        columns = {"topic": pa.array([TOPIC] * count), "body": self._bodies(ids), "deliver_at_ms": pa.array(due_ms)}
        if self.workload.has_keys:
            names = pa.array(ids + _FIRST_KEY).cast(pa.string())
            columns["keys"] = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32), names)
        return Made(pa.record_batch(columns), ids, due_ms, cancel_ms)

    def _bodies(self, ids: Ids) -> pa.Array:
        rows = self._cuts[self._places(ids)]
        rows[:, :ID_BYTES] = ids.astype("<i8").view(np.uint8).reshape(len(ids), ID_BYTES)
        offsets = (np.arange(len(ids) + 1) * self.body_bytes).astype(np.int32)
        return pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def ids_in(bodies: pa.Array) -> Ids:
    """Return the numbers that a column of bodies begins with; of a body shorter than a number, -1, which no message has."""
    edges, data = _laid_out(bodies)
    return _words(data, edges[:-1], np.diff(edges) >= ID_BYTES, -1)


def ends_of(bodies: pa.Array) -> tuple[Ids, Ids]:
    """Return the length and the last word, as a number, of each body of a column; of a body shorter than a word, 0."""
    edges, data = _laid_out(bodies)
    lengths = np.diff(edges)
    return lengths, _words(data, edges[1:] - ID_BYTES, lengths >= ID_BYTES, 0)


def _laid_out(bodies: pa.Array) -> tuple[Ids, NDArray[np.uint8]]:
    """Return where each body of a column begins, and the last one ends, in the bytes of all."""
    _, offsets, data = bodies.buffers()
    edges = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
    return edges, np.frombuffer(data or b"", np.uint8)


def _words(data: NDArray[np.uint8], places: Ids, are_there: Mask, absent: int) -> Ids:
    """Return the eight bytes at each of these places as a number, or ``absent`` where they are not there."""
    words = np.full(len(places), absent, np.int64)
    words[are_there] = data[places[are_there][:, None] + np.arange(ID_BYTES)].reshape(-1).view("<i8")
    return words


def ticks_of(due_ms: Delays) -> Ids:
    """Return the tick at which each due time is handed over (T2)."""
    ticks: Ids = -(-due_ms // PRECISION_MS) * PRECISION_MS
    return ticks


class Calendar:
    """What is to be cancelled, by the time at which it is."""

    def __init__(self, width_ms: int) -> None:
        self._width_ms = max(width_ms, 1)
        self._days: list[int] = []  # a heap
        self._ids: dict[int, list[Ids]] = {}

    def add(self, ids: Ids, times_ms: Delays) -> None:
        """Note ids with their times; those of :data:`NEVER_MS` are left out."""
        rows = np.flatnonzero(times_ms != NEVER_MS)
        days = times_ms[rows] // self._width_ms
        order = np.argsort(days, kind="stable")
        found, firsts = np.unique(days[order], return_index=True)
        for day, part in zip(found.tolist(), np.split(ids[rows[order]], firsts[1:]), strict=False):
            if day not in self._ids:
                heapq.heappush(self._days, day)
            self._ids.setdefault(day, []).append(part)

    def take(self, now_ms: int) -> Ids:
        """Return, and forget, the ids whose time has come."""
        parts = [np.zeros(0, np.int64)]
        while self._days and self._days[0] < now_ms // self._width_ms:
            parts += self._ids.pop(heapq.heappop(self._days))
        return np.concatenate(parts)
