"""Ticks: which one each row of a put gets, and the entries that hold it (T1, T4); where a batch of ``due`` ends; how crowded one may be.

The end of a batch is as the contract has it (docs/handover.md). Flow control of a crowded tick (T9) is RocketMQ's test the right way round,
once a batch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from rmqstore.contract import TimerCursor
from rmqstore.engine.runs import encode_run, encode_singles, run_lengths
from rmqstore.engine.schema import PAIR
from rmqstore.errors import DelayTooLongError, FlowControlError
from rmqstore.late import np

MINUTE_MS: Final = 60_000

_FEW: Final = 64
"""So few rows are placed one by one, which takes less than the first array."""

Times: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Entries: TypeAlias = "list[tuple[bytes, bytes]]"

Place: TypeAlias = tuple[int, int, int]
"""Tick, seq and epoch of a timer."""


class Placed(msgspec.Struct, frozen=True):
    """The rows of a put on their places.

    Attributes:
        ticks: tick of each row, ms.
        entries: the runs that hold them, in no order.
        by_minute: how many are due in which minute.
    """

    ticks: list[int]
    entries: Entries
    by_minute: dict[int, int]


def place(records: list[bytes], delivers: Sequence[int], first_seq: int, now_ms: int, precision_ms: int, epoch: int) -> Placed:
    """Give every row its tick (-1 = no deliver time); past ones are due with the very next tick (T4), and never early (T1)."""
    if len(records) == 1:
        tick, due = tick_and_due(delivers[0], now_ms, precision_ms)
        run = (PAIR.pack(tick, first_seq), encode_run(epoch, now_ms, records))
        return Placed([tick], [run], {due // MINUTE_MS: 1})
    if len(records) > _FEW:
        ticks, dues = ticks_and_dues(np.asarray(delivers, np.int64), now_ms, precision_ms)
        minutes, counts = np.unique(dues // MINUTE_MS, return_counts=True)
        by_minute = dict(zip(minutes.tolist(), counts.tolist(), strict=True))
        return Placed(ticks.tolist(), _runs_of(records, ticks, first_seq, now_ms, epoch), by_minute)
    placed = Placed([], [], {})
    rows: dict[int, list[int]] = {}
    for row, deliver in enumerate(delivers):
        tick, due = tick_and_due(deliver, now_ms, precision_ms)
        placed.ticks.append(tick)
        minute = due // MINUTE_MS
        placed.by_minute[minute] = placed.by_minute.get(minute, 0) + 1
        rows.setdefault(tick, []).append(row)
    for tick, group in rows.items():
        placed.entries.extend(_runs_of_tick(records, tick, group, first_seq, now_ms, epoch))
    return placed


def check_horizon(delivers: Sequence[int] | Times, now_ms: int, limit_ms: int) -> None:
    """Refuse deliver times more than ``limit_ms`` ahead; 0 = no limit.

    Raises:
        DelayTooLongError: naming the row (T5).
    """
    if limit_ms and len(delivers) and (latest := int(max(delivers))) - now_ms > limit_ms:
        row = list(delivers).index(latest)
        raise DelayTooLongError(
            f"row {row}: deliver time {latest} is {latest - now_ms} ms ahead; at most {limit_ms} ms are allowed (max_delay_ms)"
        )


def tick_and_due(deliver: int, now_ms: int, precision_ms: int) -> tuple[int, int]:
    """As :func:`ticks_and_dues`, of one put."""
    due = now_ms if deliver < 0 else deliver
    tick = -(-due // precision_ms) * precision_ms
    if due <= now_ms:
        tick = min(tick, now_ms)
    return tick, tick if deliver < 0 else due


def ticks_and_dues(delivers: Times, now_ms: Times | int, precision_ms: int) -> tuple[Times, Times]:
    """Return the tick and the due time of puts made at ``now_ms``, by their deliver times (-1 = none)."""
    due_ms = np.where(delivers < 0, now_ms, delivers)
    ticks = -(-due_ms // precision_ms) * precision_ms
    ticks = np.where(due_ms <= now_ms, np.minimum(ticks, now_ms), ticks)
    return ticks, np.where(delivers < 0, ticks, delivers)


def _runs_of(records: list[bytes], ticks: Times, first_seq: int, now_ms: int, epoch: int) -> Entries:
    """Group records by tick, keeping their order, into (key, run) entries, in no order."""
    order = np.argsort(ticks, kind="stable")
    in_order = ticks[order]
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    counts = np.diff(starts, append=len(order))
    keys = np.column_stack((in_order, order + first_seq)).astype(">u8").tobytes()
    rows: list[int] = order.tolist()
    alone: list[int] = starts[counts == 1].tolist()
    entries = list(
        zip([keys[16 * at : 16 * at + 16] for at in alone], encode_singles(epoch, now_ms, [records[rows[at]] for at in alone]), strict=True)
    )
    for start, count in zip(starts[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        entries.extend(_runs_of_tick(records, int(in_order[start]), rows[start : start + count], first_seq, now_ms, epoch))
    return entries


def _runs_of_tick(records: list[bytes], tick: int, rows: list[int], first_seq: int, now_ms: int, epoch: int) -> Entries:
    """Return the entries of records that are due at one tick, by their rows."""
    entries: Entries = []
    for begin, end in run_lengths([len(records[row]) for row in rows]):
        part = rows[begin:end]
        run = encode_run(epoch, now_ms, [records[row] for row in part], [row - part[0] for row in part])
        entries.append((PAIR.pack(tick, first_seq + part[0]), run))
    return entries


def reached(sealed: TimerCursor, until_ms: int, last: tuple[int, int] | None) -> list[tuple[int, int]]:
    """Return the corners of a batch that ends at ``last`` (None: nothing is left), for what is sealed and a last ``until_ms``."""
    corners = []
    for sealed_tick, seq in sealed.corners:
        tick = min(sealed_tick, until_ms)
        if last is None or tick < last[0]:
            corners.append((tick, seq))
        else:
            corners += [(last[0], min(last[1], seq)), (last[0] - 1, seq)]
    return corners


_KNOWN_SLOTS = 131_072


class Congestion:
    """Counts the timers of the slots that puts go to; off, and free, when ``limit`` is 0.

    Args:
        count: tells how many timers a tick holds.
        limit: timers a slot above which puts are refused with rising probability.
        generator: where the draws come from.
    """

    def __init__(self, count: Callable[[int], int], limit: int, generator: random.Random) -> None:
        self._count_anew = count
        self._limit = limit
        self._random = generator
        self._slots: dict[int, int] = {}

    def check(self, ticks: Sequence[int]) -> None:
        """Refuse a batch with p = clamp((n - limit) / limit), n being its fullest slot with the batch in it.

        Raises:
            FlowControlError: naming the slot.
        """
        if not self._limit or not ticks:
            return
        added = Counter(ticks)
        tick = max(added, key=lambda slot: added[slot] + self._count(slot))
        count = added[tick] + self._count(tick)
        if self._random.random() < min(max((count - self._limit) / self._limit, 0.0), 1.0):
            raise FlowControlError(
                f"slot {tick} ms would hold {count} timers, congestion_limit is {self._limit}; nothing was stored, try again later or "
                "spread the deliver times"
            )

    def _count(self, tick: int) -> int:
        if tick not in self._slots:
            if len(self._slots) >= _KNOWN_SLOTS:
                self._slots.clear()
            self._slots[tick] = self._count_anew(tick)
        return self._slots[tick]

    def note(self, ticks: Iterable[int], change: int) -> None:
        """Take over that every tick of ``ticks`` got (1) or lost (-1) a timer."""
        if self._slots:
            for tick, count in Counter(ticks).items():
                if tick in self._slots:
                    self._slots[tick] += change * count

    def lose(self, ticks: Iterable[int]) -> None:
        """Count these ticks again when they are asked for."""
        for tick in self._slots.keys() & set(ticks):
            del self._slots[tick]
