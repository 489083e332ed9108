"""What a task does: one round of one shard, with a producer and consumers at the same time, or the drain behind the last round."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa

from rmqstore import TickReport
from rmqstore_benchmarks.load.consumer import consume
from rmqstore_benchmarks.load.plan import HORIZON_MS, Plan
from rmqstore_benchmarks.load.producer import produce
from rmqstore_benchmarks.load.shard import Shard, StoppedError, opened

_STEP_MS: Final = 20_000


def run_round(plan: Plan, number: int, round_: int) -> pa.RecordBatch:
    """Play a round of a shard and return the calls that were made; the round ``plan.rounds`` is the drain.

    Raises:
        InjectedFailureError: the load test lets this task fail.
        StoreLockedError: another attempt held the store for too long.
    """
    with opened(plan, number, round_) as shard:
        threads = [_started(shard, partial(consume, shard, consumer)) for consumer in range(plan.consumers)]
        try:
            (_drain if round_ >= plan.rounds else _send)(shard)
            shard.stop()
        except BaseException as error:
            shard.stop(error)
        finally:
            for thread in threads:
                thread.join()
        shard.raise_error()
    return shard.calls.batch()


def _send(shard: Shard) -> None:
    """Send the chunks of the round while time passes and consumers consume; what is not due then is left to the next round."""
    sent: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def all_chunks() -> None:
        try:
            produce(shard, shard.plan.chunks_of_round(shard.number, shard.round), lambda: sent.put(True))
        finally:
            sent.put(False)

    producer = _started(shard, all_chunks)
    try:
        while sent.get():
            _tick(shard)
    finally:
        producer.join()
    _tick(shard)
    shard.wait_until_idle()


def _drain(shard: Shard) -> None:
    """Let time pass until nothing is due within a day, or all that may take is over (the wheel also wakes to roll far timers)."""
    until_ms = shard.now_ms + shard.plan.drain_ms()
    while True:
        _tick(shard)
        shard.wait_until_idle()
        ahead_ms = shard.store.next_wake_ms()
        if ahead_ms is None or ahead_ms > HORIZON_MS or shard.now_ms > until_ms:
            return
        shard.move_to(shard.now_ms + max(ahead_ms, _STEP_MS))


def _tick(shard: Shard) -> None:
    def moved(report: TickReport) -> int:
        return report.moved

    shard.call("tick", shard.store.tick, moved)
    shard.strike()


def _started(shard: Shard, act: Callable[[], None]) -> threading.Thread:
    """Start a thread whose error ends the attempt."""

    def run() -> None:
        try:
            act()
        except StoppedError:
            shard.stop()
        except BaseException as error:
            shard.stop(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
