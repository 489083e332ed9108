"""What became of every message of a shard, by its number: made, cancelled, popped, acked. A store that disagrees gets no figures.

The columns lie in shared anonymous memory, so that they do not count as the process's own (``RssAnon``), which is what an engine is
measured by.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmqstore_benchmarks.grid.load import Ids

_FIRST_ROWS: Final = 1 << 16
_CANCELLED: Final = 1
_ACKED: Final = 2
_SHOWN: Final = 3


class Account:
    """The account of one shard; numbers count up from 0."""

    def __init__(self) -> None:
        self.made = 0
        self.cancelled = 0
        self.popped = 0
        self.acked = 0
        self._state: NDArray[np.uint8] = _column(_FIRST_ROWS, np.uint8)
        self._pops: NDArray[np.uint8] = _column(_FIRST_ROWS, np.uint8)
        self._ticks: Ids = _column(_FIRST_ROWS, np.int64)
        self._seqs: Ids = _column(_FIRST_ROWS, np.int64)
        self._wrong: dict[str, list[int]] = {}
        self._failures: list[str] = []

    # ------------------------------------------------------------ what happens

    def make(self, ids: Ids, ticks: Ids, first_seq: int) -> None:
        """Note that a send was acknowledged: row ``i`` became the put ``(ticks[i], first_seq + i)``."""
        self._grow(int(ids[-1]) + 1)
        rows = slice(int(ids[0]), int(ids[-1]) + 1)
        self._ticks[rows] = ticks
        self._seqs[rows] = np.arange(first_seq, first_seq + len(ids))
        self.made = max(self.made, rows.stop)

    def cancel(self, ids: Ids) -> None:
        """Note that the store said of these that they will never be delivered."""
        self._state[ids] |= _CANCELLED
        self.cancelled += len(ids)

    def pop(self, ids: Ids, attempts: Ids, now_ms: Ids) -> Ids:
        """Note deliveries at ``now_ms``, on the ``attempts`` that they tell; returns the ticks of those that came for the first time."""
        known = (ids >= 0) & (ids < self.made)
        if not known.all():
            self.refuse("foreign", ids[~known])
            ids, attempts, now_ms = ids[known], attempts[known], now_ms[known]
        self.popped += len(ids)
        self.refuse("early", ids[self._ticks[ids] > now_ms])
        self.refuse("delivered though cancelled", ids[self._state[ids] & _CANCELLED != 0])
        self.refuse("delivered again after its ack", ids[self._state[ids] & _ACKED != 0])
        self.refuse("doubled", ids[self._pops[ids] + 1 != attempts])
        ordered = np.sort(ids)
        self.refuse("doubled", ordered[1:][ordered[1:] == ordered[:-1]])
        first = ids[self._pops[ids] == 0]
        self._pops[ids] = np.minimum(self._pops[ids] + 1, 255)
        ticks: Ids = self._ticks[first]
        return ticks

    def ack(self, ids: Ids) -> None:
        """Note that the store said of these that they never come back."""
        self._state[ids] |= _ACKED
        self.acked += len(ids)

    def refuse(self, what: str, ids: Ids) -> None:
        """Note that something is wrong with these, if there are any."""
        if len(ids):
            self._wrong.setdefault(what, []).extend(ids.tolist())

    def fail(self, how: str) -> None:
        """Note that the store failed at what it must be able to do, in words."""
        self._failures.append(how)

    # ------------------------------------------------------------ what is known

    def waiting(self, ids: Ids, now_ms: int) -> Ids:
        """Return those that are not cancelled and whose tick is behind ``now_ms``, so that they can still be cancelled."""
        kept: Ids = ids[(self._ticks[ids] > now_ms) & (self._state[ids] == 0)]
        return kept

    def places(self, ids: Ids) -> tuple[list[int], list[int]]:
        """Return seqs and ticks, the store's names of the timers."""
        return self._seqs[ids].tolist(), self._ticks[ids].tolist()

    def due_by(self, times_ms: Ids) -> Ids:
        """Return how many were due by each of these times and not cancelled, so that they must have been handed over by then."""
        ticks = np.sort(self._ticks[: self.made][self._state[: self.made] & _CANCELLED == 0])
        counts: Ids = np.searchsorted(ticks, times_ms, side="right")
        return counts

    def open_ids(self) -> Ids:
        """Return the numbers that are neither cancelled nor acked: what the store must still hold."""
        return np.flatnonzero(self._state[: self.made] == 0)

    @property
    def kept(self) -> int:
        """How many the store must still hold."""
        return self.made - self.cancelled - self.acked

    def settle(self, held: Ids, now_ms: int) -> None:
        """Compare with the numbers that the store holds, each once, behind a hand-over at ``now_ms``."""
        ordered = np.sort(held)
        self.refuse("held twice", ordered[1:][ordered[1:] == ordered[:-1]])
        expected = self.open_ids()
        due = expected[self._ticks[expected] <= now_ms]
        self.refuse("not handed over", np.intersect1d(due, ordered))
        self.refuse("lost", np.setdiff1d(expected, ordered))
        self.refuse("held though it should be gone", np.setdiff1d(ordered, expected))

    def verdict(self) -> str:
        """Return what is wrong in words; empty when nothing is."""
        parts = [f"{len(ids)} {what} (ids {_listed(ids)})" for what, ids in self._wrong.items()] + self._failures
        return "; ".join(parts)

    def _grow(self, rows: int) -> None:
        have = len(self._state)
        if rows <= have:
            return
        for name in ("_state", "_pops", "_ticks", "_seqs"):
            old = getattr(self, name)
            new = _column(max(rows, 2 * have), old.dtype)
            new[:have] = old
            setattr(self, name, new)


def _listed(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:_SHOWN]))
    return f"{shown} …" if len(ids) > _SHOWN else shown


def _column(rows: int, kind: Any) -> NDArray[Any]:
    return np.frombuffer(mmap.mmap(-1, rows * np.dtype(kind).itemsize), kind)
