"""The closed-loop phases: one kind of call after the other as fast as it goes, for the phase's time or until there is nothing left to do.

Each function runs one phase on ``Calls`` and returns how many messages it was about; that number times the bytes of a message is what the
user wrote.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from rmqstore_benchmarks.grid.calls import Calls
from rmqstore_benchmarks.grid.load import Ids
from rmqstore_benchmarks.grid.named import ROLL_SPAN_MS
from rmqstore_benchmarks.grid.recording import Phase
from rmqstore_benchmarks.workloads import HOUR_MS, TOPIC

_MAX_EXTRA_BYTES: Final = 512 * 1024 * 1024
_MIN_EXTRA: Final = 20_000
_TICK_MESSAGES: Final = 4096
_FIRST_STEPS: Final = 1024
_WATCH_S: Final = 0.02


def schedule(calls: Calls, phase: Phase, seconds: float, backlog: int) -> int:
    """Add timers on top of the backlog, at most as many again (or 20 000, if that is more), or half a GiB."""
    most = min(max(backlog, _MIN_EXTRA), _MAX_EXTRA_BYTES // calls.load.message_bytes)
    added = 0
    until_s = time.perf_counter() + seconds
    while added < most and time.perf_counter() < until_s:
        made = calls.load.fresh(calls.clock.now_ms())
        calls.send(phase, made)
        added += len(made.ids)
    return added


def cancel(calls: Calls, phase: Phase, seconds: float, backlog: int) -> int:
    """Cancel timers picked at random, as many as there are beyond the backlog, at least a tenth of it."""
    before = calls.ledger.cancelled
    _cancel_random(calls, phase, max(calls.pending - backlog, backlog // 10, 1), seconds)
    return calls.ledger.cancelled - before


def trim(calls: Calls, phase: Phase, backlog: int) -> None:
    """Cancel what is beyond the backlog, picked at random."""
    _cancel_random(calls, phase, calls.pending - backlog, math.inf)


def _cancel_random(calls: Calls, phase: Phase, wanted: int, seconds: float) -> None:
    if wanted <= 0:
        return
    pending = calls.ledger.waiting(calls.ledger.open_ids(), calls.clock.now_ms())
    picked: Ids = np.random.default_rng(calls.ledger.made).choice(pending, min(wanted, len(pending)), replace=False)
    size = calls.load.workload.batch
    until_s = time.perf_counter() + seconds
    for first in range(0, len(picked), size):
        calls.cancel(phase, picked[first : first + size])
        if time.perf_counter() > until_s:
            break


def hand_over(calls: Calls, phase: Phase, seconds: float) -> int:
    """Let simulated time pass, some thousand due messages at a step."""
    moved = 0
    step_ms = max(int(calls.load.mean_wait_ms / _FIRST_STEPS), 1)
    until_s = time.perf_counter() + seconds
    while calls.pending and time.perf_counter() < until_s:
        count = calls.tick(phase, calls.clock.now_ms() + step_ms)
        moved += count
        if count < _TICK_MESSAGES // 2:
            # No longer than a wait: where a message is lost, nothing ends this but the phase's time.
            step_ms = min(2 * step_ms, max(int(calls.load.mean_wait_ms), 1))
        elif count > 2 * _TICK_MESSAGES:
            step_ms = max(step_ms // 2, 1)
    return moved


def hand_over_at_once(calls: Calls, phase: Phase, due_ms: int) -> int:
    """Let the clock strike: everything is due in one tick. How far it is, is looked at every 20 ms; that is how late messages are."""
    begin_ns = time.perf_counter_ns()

    def seen(moved: int, before: int, at_ns: int) -> None:
        if moved > before:
            phase.count("hand_over", moved - before, at_ns)
            phase.late(np.full(moved - before, at_ns - begin_ns), at_ns)

    offset = _delivered(calls)
    with _watching(lambda: _delivered(calls) - offset, seen) as last:
        moved = calls.tick(phase, due_ms, counted=False)
        end_ns = time.perf_counter_ns()
    seen(moved, last[0], end_ns)
    return moved


def pop_ack(calls: Calls, phase: Phase, seconds: float) -> int:
    """Pop and ack what is ready."""
    before = calls.ledger.acked
    until_s = time.perf_counter() + seconds
    while calls.ready > 0 and time.perf_counter() < until_s:
        if not calls.pop(phase)[0]:
            break
    return calls.ledger.acked - before


def roll(calls: Calls, phase: Phase) -> int:
    """Let eight days pass by the hour; nothing is due in them."""
    start_ms = calls.clock.now_ms()
    for hour in range(ROLL_SPAN_MS // HOUR_MS):
        begin_ns = time.perf_counter_ns()
        if calls.tick(phase, start_ms + (hour + 1) * HOUR_MS):
            raise RuntimeError("a timer was handed over although none was due")
        phase.call("hand_over", begin_ns, time.perf_counter_ns(), 0)
    return calls.pending


def _delivered(calls: Calls) -> int:
    return sum(sum(topic.max_offsets) for topic in calls.store.topics() if topic.name == TOPIC)


class _watching:  # noqa: N801 - reads as a statement
    """Looks at a growing count in a thread of its own; gives a list whose one entry is the count seen last."""

    def __init__(self, count: Callable[[], int], seen: Callable[[int, int, int], None]) -> None:
        self._count = count
        self._seen = seen
        self._last = [0]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-watching", daemon=True)

    def _run(self) -> None:
        while not self._done.wait(_WATCH_S):
            now = self._count()
            self._seen(now, self._last[0], time.perf_counter_ns())
            self._last[0] = max(now, self._last[0])

    def __enter__(self) -> list[int]:
        self._thread.start()
        return self._last

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
