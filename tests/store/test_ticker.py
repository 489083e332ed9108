"""The background thread outlives whatever a tick raises."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import ClockStepError, ManualClock, Message, RmqstoreError, StoreFullError, StorePoisonedError
from rmqstore.errors import CorruptStoreError, IllegalArgumentError, LostCallsError
from rmqstore.store.tick import TickReport
from rmqstore.store.ticker import Duties, Ticker
from rmqstore.store.waits import Signal
from tests.pairs import ENGINES


class Failing(Duties):
    """Fails in its first tick with an error that is none of the store's own."""

    def __init__(self, wake: Signal) -> None:
        self._wake = wake
        self.ticks = 0
        self.second = threading.Event()

    def tick(self) -> TickReport:
        self.ticks += 1
        if self.ticks == 1:
            self._wake.notify()  # so that the pause behind the failure ends at once
            raise RuntimeError("a plug-in of somebody's")
        self.second.set()
        return TickReport()

    def wake_ms(self) -> int | None:
        return None

    def flush(self) -> None:
        raise AssertionError("nothing asks for it")


def test_a_tick_that_fails_with_any_error_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    wake = Signal()
    duties = Failing(wake)
    ticker = Ticker(duties, wake, 1000, None)
    with caplog.at_level(logging.ERROR, "rmqstore"):
        ticker.start()
        came = duties.second.wait(30)
        ticker.stop()
    assert came, "the thread ended with the first failure"
    assert "a plug-in of somebody's" in caplog.text, "it is told, with what happened"


class Stuck(Failing):
    """Fails in each tick; its flushes do not."""

    def tick(self) -> TickReport:
        raise ClockStepError("the clock is wrong, until an operator comes")

    def flush(self) -> None:
        self.ticks += 1
        self._wake.notify()
        if self.ticks == 2:
            self.second.set()


def test_what_was_sent_gets_to_the_disk_while_every_tick_fails() -> None:
    wake = Signal()
    duties = Stuck(wake)
    ticker = Ticker(duties, wake, 1000, 0)
    ticker.start()
    came = duties.second.wait(30)
    ticker.stop()
    assert came


class Pauses(Signal):
    """Notes the pauses of a ticker instead of waiting, and ends it behind some."""

    def __init__(self) -> None:
        super().__init__()
        self.ticker: Ticker | None = None
        self.lasted_s: list[float] = []

    def wait_beyond(self, seen: int, timeout_s: float) -> None:
        self.lasted_s.append(timeout_s)
        if self.ticker is not None and len(self.lasted_s) >= 5:
            self.ticker._stopping = True


class StandsStill(Failing):
    def tick(self) -> TickReport:
        raise IllegalArgumentError("schedule 'nightly' stands still: zone 'Mars' is no time zone that this machine knows")


def test_a_schedule_that_stands_still_keeps_no_timer_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """T2: as long as its zone is missing each tick ends with an error; all else was done, and the next one is not later for it."""
    wake = Pauses()
    wake.ticker = Ticker(StandsStill(wake), wake, 1000, None)
    with caplog.at_level(logging.WARNING, "rmqstore"):
        wake.ticker._run()
    assert wake.lasted_s == [0.1] * 5
    assert "Mars" in str(wake.ticker.failure), "health tells it"
    assert len(caplog.records) == 1


def test_an_exit_without_a_close_ends_the_thread_first(tmp_path: Path) -> None:
    """Else it may be in the middle of a tick while the interpreter takes down what the tick uses."""
    program = """
import atexit, sys, threading
def show():
    print([each.name for each in threading.enumerate() if each.name == "rmqstore-ticker"])
atexit.register(show)
import rmqstore
store = rmqstore.open(sys.argv[1], engine="memory")
store.send(rmqstore.Message("t", b"x"), delay=rmqstore_delay)
"""
    program = program.replace("rmqstore_delay", "__import__('datetime').timedelta(seconds=1)")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "s")], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("of_upkeep", "told"),
    [
        (StoreFullError("no room for upkeep"), "no room for messages"),
        (LostCallsError("answers are gone"), "answers are gone"),
        (StorePoisonedError("a sync failed"), "a sync failed"),
    ],
)
def test_of_two_errors_of_a_tick_the_worse_one_is_told_with_the_other(tmp_path: Path, of_upkeep: RmqstoreError, told: str) -> None:
    """The first one, unless upkeep says more than that there is no room."""
    clock = ManualClock(1_700_000_000_000)
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], services=False, clock=clock) as store:
        store.send(Message("t", b"x"), delay=timedelta(seconds=1))
        clock.advance(1000)
        with (
            patch.object(store.engine.pops, "apply", side_effect=StoreFullError("no room for messages")),
            patch.object(store.engine.pops, "maintain", side_effect=of_upkeep),
            pytest.raises(type(of_upkeep), match=told) as raised,
        ):
            store._ticking.run(clock.now_ms(), always=True)
        (note,) = raised.value.__notes__
        assert {told, note.partition(": ")[2]} == {"no room for messages", str(of_upkeep)}
        assert store.tick().handed_over == 1


def test_one_part_of_a_tick_that_fails_keeps_no_other_from_its_work(tmp_path: Path) -> None:
    """F1: leases end, upkeep makes room and schedules send, whatever else finds no room or meets damage."""
    clock = ManualClock(1_700_000_000_000)
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], services=False, clock=clock, clock__max_step_ms=3000) as store:
        store.send(Message("t", b"due"), delay=timedelta(seconds=1))
        store.send(Message("u", b"leased"))
        assert len(store.pop("u", "g", invisible=timedelta(seconds=1))) == 1
        store.schedules.put("s", timedelta(seconds=1), Message("v", b"x"))
        engine = store.engine
        with (
            patch.object(engine.timers, "due", side_effect=StoreFullError("no room for messages")),
            patch.object(engine.timers, "maintain", side_effect=CorruptStoreError("damaged", file="f")),
            patch.object(engine.pops, "maintain", wraps=engine.pops.maintain) as upkeep,
        ):
            for number in range(1, 4):
                clock.advance(2000)
                with pytest.raises(CorruptStoreError, match="damaged") as raised:
                    store.tick()
                assert raised.value.__notes__[-1] == "another part of the same tick failed, too: no room for messages"
                assert store.lag("u", "g").retry == 1
                assert store.lag("v", "g").ready == 2 * number
                assert upkeep.call_count == number
        assert store.tick().handed_over == 1


def test_an_expired_lease_wakes_nobody_before_the_turn_of_the_revive(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    with rmqstore.open(tmp_path / "store", engine="memory", services=False, clock=clock, revive_interval_ms=1000) as store:
        duties = Duties(store)
        store.send(Message("t", b"x"))
        duties.tick()
        assert len(store.pop("t", "g", invisible=timedelta(milliseconds=100))) == 1
        assert duties.wake_ms() == 1000
        clock.advance(300)
        duties.tick()
        assert (duties.wake_ms(), store.next_wake_ms()) == (700, -200)
        clock.advance(700)
        assert duties.tick().retried == 1
        assert duties.wake_ms() is None
