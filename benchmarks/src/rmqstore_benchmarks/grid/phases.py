"""The closed-loop phases: one kind of call after the other as fast as it goes, for the phase's time or until there is nothing left to do.

Each function runs one phase on ``Calls`` and returns how many messages it was about; that number times the bytes of a message is what the
user wrote.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from rmqstore_benchmarks.grid.calls import GROUP, Calls, Form
from rmqstore_benchmarks.grid.load import Ids
from rmqstore_benchmarks.grid.named import HOUR_MS, INVISIBLE_MS, POP_MESSAGES, ROLL_SPAN_MS, TOPIC
from rmqstore_benchmarks.grid.recording import Phase, every

_MAX_EXTRA_BYTES: Final = 512 * 1024 * 1024
_MIN_EXTRA: Final = 20_000
_TICK_MESSAGES: Final = 4096
_MOST_SINGLES: Final = 1000
_FIRST_STEPS: Final = 1024
_WATCH_S: Final = 0.02


def schedule(calls: Calls, phase: Phase, seconds: float, backlog: int, form: Form = Form.COLUMNS) -> int:
    """Add timers on top of the backlog, at most as many again (or 20 000, if that is more), or half a GiB; 1000 when one at a time."""
    most = min(max(backlog, _MIN_EXTRA), _MAX_EXTRA_BYTES // calls.load.message_bytes)
    rows = None
    if form is Form.ONE:
        most, rows = _MOST_SINGLES, 1
    added = 0
    until_s = time.perf_counter() + seconds
    while added < most and time.perf_counter() < until_s:
        made = calls.load.fresh(calls.clock.now_ms(), rows)
        calls.send(phase, made, form=form)
        added += len(made.ids)
    return added


def cancel(calls: Calls, phase: Phase, seconds: float, backlog: int) -> int:
    """Cancel timers picked at random, as many as there are beyond the backlog, at least a tenth of it."""
    before = calls.account.cancelled
    _cancel_random(calls, phase, max(calls.pending - backlog, backlog // 10, 1), seconds)
    return calls.account.cancelled - before


def trim(calls: Calls, phase: Phase, backlog: int) -> None:
    """Cancel what is beyond the backlog, picked at random."""
    _cancel_random(calls, phase, calls.pending - backlog, math.inf)


def _cancel_random(calls: Calls, phase: Phase, wanted: int, seconds: float) -> None:
    if wanted <= 0:
        return
    pending = calls.account.waiting(calls.account.open_ids(), calls.clock.now_ms())
    picked: Ids = np.random.default_rng(calls.account.made).choice(pending, min(wanted, len(pending)), replace=False)
    calls.cancel_all(phase, picked, seconds)


def hand_over(calls: Calls, phase: Phase, seconds: float) -> int:
    """Let simulated time pass, some thousand due messages at a step."""
    moved = 0
    step_ms = max(int(calls.load.mean_wait_ms / _FIRST_STEPS), 1)
    until_s = time.perf_counter() + seconds
    while calls.pending and time.perf_counter() < until_s:
        count = calls.tick(phase, calls.clock.now_ms() + step_ms)
        moved += count
        # No longer than a wait: where a message is lost, nothing ends this but the phase's time.
        step_ms = min(next_step_ms(step_ms, count), max(int(calls.load.mean_wait_ms), 1))
    return moved


def next_step_ms(step_ms: int, moved: int) -> int:
    """Return how far simulated time moves next, when the last step moved so many messages: some thousand are due at a time."""
    if moved < _TICK_MESSAGES // 2:
        return 2 * step_ms
    return max(step_ms // 2, 1) if moved > 2 * _TICK_MESSAGES else step_ms


def hand_over_at_once(calls: Calls, phase: Phase, seconds: float) -> int:
    """Let the clock strike: everything is due in one tick. How far it is, is looked at every 20 ms; that is how late messages are."""
    due_ms = calls.clock.now_ms() + int(calls.load.mean_wait_ms)
    offset, before = _delivered(calls), 0
    begin_ns = time.perf_counter_ns()

    def seen(moved: int, at_ns: int | None = None) -> None:
        nonlocal before
        at_ns = time.perf_counter_ns() if at_ns is None else at_ns
        if moved > before:
            phase.count("hand_over", moved - before, at_ns)
            phase.late(np.full(moved - before, at_ns - begin_ns))
        before = max(moved, before)

    with every(_WATCH_S, lambda: seen(_delivered(calls) - offset), "bench-watching"):
        moved = calls.tick(phase, due_ms, counted=False)
        end_ns = time.perf_counter_ns()
    seen(moved, end_ns)
    return moved


def pop_ack(calls: Calls, phase: Phase, seconds: float, most: int = POP_MESSAGES) -> int:
    """Pop and ack what is ready, ``most`` at a time."""
    before = calls.account.acked
    until_s = time.perf_counter() + seconds
    while calls.ready > 0 and time.perf_counter() < until_s:
        if not calls.pop(phase, most=most)[0]:
            break
    return calls.account.acked - before


def pop_many(calls: Calls, phase: Phase, seconds: float) -> int:
    """Pop and ack what is ready by large batches, as columns."""
    before = calls.account.acked
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s and calls.pop_many(phase):
        pass
    return calls.account.acked - before


class Consumers:
    """Threads of one group that pop and ack until nothing is left.

    What they got is entered behind the measured time. A thread starves when it gets little while others get much, a queue when its messages
    wait while those of others go: with fair turns all queues run dry together.
    """

    def __init__(self, calls: Calls, threads: int) -> None:
        self._calls = calls
        self._taken: list[list[tuple[int, int, int, Sequence[Any], Any]]] = [[] for _ in range(threads)]
        self._start = threading.Barrier(threads)

    def run(self, phase: Phase) -> int:
        """Consume; returns how many messages were acked."""
        with ThreadPoolExecutor(len(self._taken)) as pool:
            return sum(pool.map(self._consume, self._taken))

    def _consume(self, taken: list[tuple[int, int, int, Sequence[Any], Any]]) -> int:
        store = self._calls.store
        count = 0
        self._start.wait()
        while True:
            begin_ns = time.perf_counter_ns()
            messages = store.pop(TOPIC, GROUP, max_messages=POP_MESSAGES, invisible_ms=INVISIBLE_MS)
            popped_ns = time.perf_counter_ns()
            if not messages:
                return count
            outcomes = store.ack(messages)
            taken.append((begin_ns, popped_ns, time.perf_counter_ns(), messages, outcomes))
            count += len(messages)

    def entered(self, phase: Phase) -> dict[str, Any]:
        """Enter all that was taken; returns the columns of ``phases`` that tell how evenly it went."""
        calls = sorted((call for of_thread in self._taken for call in of_thread), key=lambda call: call[1])
        dry_ns: dict[int, int] = {}
        for call in calls:
            self._calls.taken(phase, *call)
            dry_ns |= dict.fromkeys((message.queue_id for message in call[3]), call[1])
        if not calls:
            return {}
        begin_ns, end_ns = calls[0][0], max(dry_ns.values())
        counts = [sum(len(messages) for *_, messages, _ in of_thread) for of_thread in self._taken]
        return {
            "slowest_thread": min(counts) * len(counts) / sum(counts),
            "first_queue_dry": (min(dry_ns.values()) - begin_ns) / (end_ns - begin_ns),
        }


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
    return sum(sum(topic.max_offsets) for topic in calls.store.topics.list() if topic.name == TOPIC)
