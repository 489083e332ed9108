"""What is timed: closed loops of one kind of call, everything at once, and the open loop on a fixed schedule.

Each function runs one phase on ``Calls`` and returns how many messages it was about; that number times the bytes of a message is what the
user wrote. A closed loop makes one call after the other as fast as it goes, for the phase's time or until there is nothing left to do.

Stores live in simulated time, f = λ·D/N times as fast as real time, and calls of an open loop are late from their intended begin:
docs/grid.md says why, under *Time*. The *slip* is the part of a late begin that is the load's own: behind the intended time and behind the
end of the call before.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

import rmqstore
from rmqstore.store.sending import SendReceipt
from rmqstore_benchmarks.grid.calls import GROUP, Calls, Form, messages_of
from rmqstore_benchmarks.grid.load import Ids, Load, Made
from rmqstore_benchmarks.grid.named import HOUR_MS, INVISIBLE_MS, MIXED_BATCH, POP_MESSAGES, ROLL_SPAN_MS, TOPIC, NamedWorkload
from rmqstore_benchmarks.grid.recording import Phase, every

_MAX_EXTRA_BYTES: Final = 512 * 1024 * 1024
_MIN_EXTRA: Final = 20_000
_TICK_MESSAGES: Final = 4096
_MOST_SINGLES: Final = 1000
_PRODUCED: Final = 4000
_FIRST_STEPS: Final = 1024
_WATCH_S: Final = 0.02

# ---------------------------------------------------------------- one kind of call


def schedule(calls: Calls, phase: Phase, seconds: float, backlog: int, form: Form = Form.COLUMNS) -> int:
    """Add timers on top of the backlog, at most as many again (or 20 000, if that is more), or half a GiB; 1000 when one at a time."""
    most = min(max(backlog, _MIN_EXTRA), _MAX_EXTRA_BYTES // calls.load.message_bytes)
    most, rows = (_MOST_SINGLES, 1) if form is Form.ONE else (most, None)
    before, until_s = calls.account.made, time.perf_counter() + seconds
    while calls.account.made - before < most and time.perf_counter() < until_s:
        calls.send(phase, calls.load.fresh(calls.clock.now_ms(), rows), form=form)
    return calls.account.made - before


def cancel(calls: Calls, phase: Phase, seconds: float, backlog: int) -> int:
    """Cancel timers picked at random, as many as there are beyond the backlog, at least a tenth of it."""
    before = calls.account.cancelled
    cancel_random(calls, phase, max(calls.pending - backlog, backlog // 10, 1), seconds)
    return calls.account.cancelled - before


def cancel_random(calls: Calls, phase: Phase, wanted: int, seconds: float = math.inf) -> None:
    """Cancel so many timers picked at random; none if it is less than one."""
    if wanted > 0:
        pending = calls.account.waiting(calls.account.open_ids(), calls.clock.now_ms())
        picked: Ids = np.random.default_rng(calls.account.made).choice(pending, min(wanted, len(pending)), replace=False)
        calls.cancel_all(phase, picked, seconds)


def hand_over(calls: Calls, phase: Phase, seconds: float, _: int) -> int:
    """Let simulated time pass, some thousand due messages at a step."""
    before, until_s = calls.handed, time.perf_counter() + seconds
    step_ms = max(int(calls.load.mean_wait_ms / _FIRST_STEPS), 1)
    while calls.pending and time.perf_counter() < until_s:
        moved = calls.tick(phase, calls.clock.now_ms() + step_ms)
        # No longer than a wait: where a message is lost, nothing ends this but the phase's time.
        step_ms = min(next_step_ms(step_ms, moved), max(int(calls.load.mean_wait_ms), 1))
    return calls.handed - before


def next_step_ms(step_ms: int, moved: int) -> int:
    """Return how far simulated time moves next, when the last step moved so many messages: some thousand are due at a time."""
    if moved < _TICK_MESSAGES // 2:
        return 2 * step_ms
    return max(step_ms // 2, 1) if moved > 2 * _TICK_MESSAGES else step_ms


def hand_over_at_once(calls: Calls, phase: Phase, _: float, __: int) -> int:
    """Let the clock strike: everything is due in one tick. How far it is, is looked at every 20 ms; that is how late messages are."""
    due_ms = calls.clock.now_ms() + int(calls.load.mean_wait_ms)
    offset, before = _delivered(calls), 0
    begin_ns = time.perf_counter_ns()

    def seen(moved: int, at_ns: int) -> None:
        nonlocal before
        if moved > before:
            phase.count("hand_over", moved - before, at_ns)
            phase.late(np.full(moved - before, at_ns - begin_ns))
            before = moved

    def watch() -> None:
        moved = _delivered(calls) - offset
        seen(moved, time.perf_counter_ns())

    with every(_WATCH_S, watch, "bench-watching"):
        moved = calls.tick(phase, due_ms, counted=False)
        end_ns = time.perf_counter_ns()
    seen(moved, end_ns)
    return moved


def _delivered(calls: Calls) -> int:
    return sum(sum(topic.max_offsets) for topic in calls.store.topics.list() if topic.name == TOPIC)


def pop_ack(calls: Calls, phase: Phase, seconds: float, _: int, most: int = POP_MESSAGES) -> int:
    """Pop and ack what is ready, ``most`` at a time."""
    before, until_s = calls.account.acked, time.perf_counter() + seconds
    while calls.ready > 0 and time.perf_counter() < until_s and calls.pop(phase, most=most)[0]:
        pass
    return calls.account.acked - before


def pop_many(calls: Calls, phase: Phase, seconds: float, _: int) -> int:
    """Pop and ack what is ready by large batches, as columns."""
    before, until_s = calls.account.acked, time.perf_counter() + seconds
    while time.perf_counter() < until_s and calls.pop_many(phase):
        pass
    return calls.account.acked - before


def roll(calls: Calls, phase: Phase, _: float, __: int) -> int:
    """Let eight days pass by the hour; nothing is due in them."""
    start_ms = calls.clock.now_ms()
    for hour in range(ROLL_SPAN_MS // HOUR_MS):
        begin_ns = time.perf_counter_ns()
        calls.tick(phase, start_ms + (hour + 1) * HOUR_MS)
        phase.call("hand_over", begin_ns, time.perf_counter_ns(), 0)
    return calls.pending


LOOPS: Final[dict[str, Callable[[Calls, Phase, float, int], int]]] = {
    "roll": roll,
    "schedule": schedule,
    "send_lists": partial(schedule, form=Form.LIST),
    "send_one": partial(schedule, form=Form.ONE),
    "cancel": cancel,
    "hand_over": hand_over,
    "pop_one": partial(pop_ack, most=1),
    "pop_ack": pop_ack,
    "pop_many": pop_many,
}
"""By name; each is given the seconds that it may last, and the backlog."""


class Producers:
    """Threads that send timers one a call, as many together whatever their number; the account hears of them behind the measured time."""

    def __init__(self, calls: Calls, threads: int) -> None:
        self._calls = calls
        self._threads = threads
        self._made = calls.load.fresh(calls.clock.now_ms(), _PRODUCED)
        self._messages = messages_of(self._made)
        self._sent: list[tuple[int, int, int, SendReceipt]] = []
        self._start = threading.Barrier(threads)

    def run(self, phase: Phase) -> int:
        """Send; returns how many timers were sent."""
        with ThreadPoolExecutor(self._threads) as pool:
            for sent in pool.map(self._produce, range(self._threads)):
                self._sent += sent
        return len(self._sent)

    def _produce(self, first: int) -> list[tuple[int, int, int, SendReceipt]]:
        send, sent = self._calls.store.send, []
        self._start.wait()
        for row in range(first, _PRODUCED, self._threads):
            begin_ns = time.perf_counter_ns()
            receipt = send(self._messages[row])
            sent.append((row, begin_ns, time.perf_counter_ns(), receipt))
        return sent

    def entered(self, phase: Phase) -> dict[str, Any]:
        """Enter all that was sent."""
        for row, begin_ns, end_ns, receipt in sorted(self._sent, key=itemgetter(0)):
            phase.call("schedule", begin_ns, end_ns, 1)
            only = slice(row, row + 1)
            self._calls.sent(Made(self._made.columns[only], *(column[only] for column in self._made[1:])), [receipt])
        return {}


_Taken = tuple[int, int, int, Sequence[rmqstore.PoppedMessage], list[rmqstore.AckOutcome]]
"""A pop: when it began and ended, when its ack ended, ns; what it gave, and what the ack said."""


class Consumers:
    """Threads of one group that pop and ack until nothing is left.

    What they got is entered behind the measured time. A thread starves when it gets little while others get much, a queue when its messages
    wait while those of others go: with fair turns all queues run dry together.
    """

    def __init__(self, calls: Calls, threads: int) -> None:
        self._calls = calls
        self._taken: list[list[_Taken]] = [[] for _ in range(threads)]
        self._start = threading.Barrier(threads)

    def run(self, phase: Phase) -> int:
        """Consume; returns how many messages were acked."""
        with ThreadPoolExecutor(len(self._taken)) as pool:
            return sum(pool.map(self._consume, self._taken))

    def _consume(self, taken: list[_Taken]) -> int:
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


# ---------------------------------------------------------------- everything at once

TICK_NS: Final = 100_000_000
"""Real time between two hand-overs: what the thread of a store takes at ticks of one second."""

_POLLS: Final = 1.25
"""Pops that are tried, for each that is needed: consumers that poll exactly as often as needed fall behind at the first empty answer."""


def mixed(calls: Calls, phase: Phase, seconds: float, backlog: int) -> int:
    """Send, cancel, hand over, pop and ack in the workload's shares, as fast as it goes; returns how many were sent.

    After each batch simulated time moves by what keeps the backlog the same (Little's law), and what then is to be cancelled, due and
    ready is worked off: cancels with every batch, a hand-over every 100 ms, pops a quarter more often than needed. So neither the backlog
    nor the ready messages grow, and the rate can be kept up for ever.
    """
    load, before = calls.load, calls.account.made
    count, polls = min(MIXED_BATCH, load.batch_rows), 0.0
    now_ms = float(calls.clock.now_ms())
    until_s = time.perf_counter() + seconds
    next_tick_ns = time.perf_counter_ns()
    while time.perf_counter() < until_s:
        calls.send(phase, load.fresh(calls.clock.now_ms(), count))
        now_ms += count * load.mean_wait_ms / max(backlog, 1)
        calls.clock.set(int(now_ms))
        calls.cancel(phase, calls.calendar.take(int(now_ms)))
        if (real_ns := time.perf_counter_ns()) >= next_tick_ns:
            calls.tick(phase, int(now_ms))
            next_tick_ns = real_ns + TICK_NS
        polls += count / _sent_per_poll(load.workload)
        while polls >= 1:
            polls -= 1
            if calls.ready > 0:
                calls.pop(phase)
    return calls.account.made - before


def _sent_per_poll(workload: NamedWorkload) -> float:
    """Return how many messages are sent between two tries to pop."""
    return POP_MESSAGES * workload.acked / ((1 - workload.cancelled) * _POLLS)


# ---------------------------------------------------------------- the open loop

_SPIN_NS: Final = 200_000
"""Sleeping wakes late by about so much; the rest of a wait is spent looking at the clock."""


class MachineTime:
    """The clock of a loop; a test gives one of its own."""

    def now_ns(self) -> int:
        """Return a time that only grows, ns."""
        return time.perf_counter_ns()

    def wait_until(self, at_ns: int) -> None:
        """Return when the clock shows ``at_ns``."""
        left_ns = at_ns - time.perf_counter_ns()
        if left_ns > _SPIN_NS:
            time.sleep((left_ns - _SPIN_NS) / 1e9)
        while time.perf_counter_ns() < at_ns:
            pass


class SimulatedTime(NamedTuple):
    """Simulated time that runs ``factor`` times as fast as real time, from ``start_ms`` at ``start_ns``."""

    start_ms: int
    start_ns: int
    factor: float

    def ms_at(self, at_ns: int) -> int:
        """Return the simulated time at a real time, ms."""
        return self.start_ms + int((at_ns - self.start_ns) / 1e6 * self.factor)

    def ns_at(self, at_ms: int) -> int:
        """Return the first real time at which simulated time has come to ``at_ms``, ns."""
        return self.start_ns + int(-(-(at_ms - self.start_ms) * 1e6 // self.factor))


@dataclass
class Stream:
    """Calls at fixed intervals.

    Attributes:
        interval_ns: between two intended begins.
        call: does one, of which it knows the intended begin, ns.
        next_ns: the next intended begin.
    """

    interval_ns: float
    call: Callable[[int], None]
    next_ns: float = 0.0


def open_loop(streams: Sequence[Stream], clock: MachineTime, seconds: float, slipped: Callable[[int], None]) -> None:
    """Run the streams for so long, one call after the other, the one with the earliest intended begin first.

    What was intended within the time is done even when it is late, but not later than twice the time.

    Args:
        slipped: is told the load's own delay before each call, ns.
    """
    begin_ns = clock.now_ns()
    end_ns = begin_ns + int(seconds * 1e9)
    for stream in streams:
        stream.next_ns = begin_ns + stream.interval_ns
    free_ns = begin_ns
    while True:
        stream = min(streams, key=lambda each: each.next_ns)
        intended_ns = int(stream.next_ns)
        if intended_ns >= end_ns or clock.now_ns() >= begin_ns + 2 * (end_ns - begin_ns):
            return
        clock.wait_until(intended_ns)
        slipped(clock.now_ns() - max(intended_ns, free_ns))
        stream.call(intended_ns)
        free_ns = clock.now_ns()
        stream.next_ns += stream.interval_ns


def at_rate(calls: Calls, phase: Phase, seconds: float, backlog: int, rate: float) -> int:
    """Do what :func:`mixed` does in an open loop at ``rate`` messages sent a second; returns how many were sent."""
    load, workload, clock = calls.load, calls.load.workload, MachineTime()
    before, first_tick = calls.account.made, len(calls.hand_over_ms)
    count = min(MIXED_BATCH, load.batch_rows)
    factor = rate / 1000 * load.mean_wait_ms / max(backlog, 1)
    simulated = SimulatedTime(calls.clock.now_ms(), clock.now_ns(), factor)

    def moved_on() -> int:
        now_ms = max(simulated.ms_at(clock.now_ns()), calls.clock.now_ms())
        calls.clock.set(now_ms)
        return now_ms

    def send(intended_ns: int) -> None:
        calls.send(phase, load.fresh(moved_on(), count), intended_ns)

    def cancel(intended_ns: int) -> None:
        calls.cancel(phase, calls.calendar.take(moved_on()), intended_ns)

    def tick(intended_ns: int) -> None:
        calls.tick(phase, moved_on(), intended_ns)

    def pop(intended_ns: int) -> None:
        if calls.ready <= 0:
            return  # a waiting consumer is not answered before there is something
        moved_on()
        _, ticks = calls.pop(phase, intended_ns)
        phase.late(_lateness_ns(calls, ticks[ticks > simulated.start_ms], simulated, first_tick))

    streams = [Stream(1e9 * count / rate, send), Stream(TICK_NS, tick), Stream(1e9 * _sent_per_poll(workload) / rate, pop)]
    if workload.cancelled:
        streams.append(Stream(1e9 * count / (rate * workload.cancelled), cancel))
    open_loop(streams, clock, seconds, phase.slip)
    return calls.account.made - before


def offered_per_s(load: Load, seconds: float, rate: float) -> float:
    """Return how many messages a second :func:`at_rate` is to send: those of whole batches whose intended begin is within the time."""
    count = min(MIXED_BATCH, load.batch_rows)
    return (math.ceil(seconds * rate / count) - 1) * count / seconds


def _lateness_ns(calls: Calls, ticks: Ids, simulated: SimulatedTime, first_tick: int) -> Ids:
    """Return how late messages of these ticks were handed over, real ns.

    A message is handed over by the first tick of the store at or behind its own tick (T2), so the times of the calls tell it.
    """
    late = []
    for tick in ticks.tolist():
        place = bisect_left(calls.hand_over_ms, tick, lo=first_tick)
        if place < len(calls.hand_over_ns):
            late.append(calls.hand_over_ns[place] - simulated.ns_at(tick))
    return np.asarray(late, np.int64)
