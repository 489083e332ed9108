"""The background thread outlives whatever a tick raises."""

from __future__ import annotations

import logging
import threading

import pytest

from rmqstore.services.signals import Signal
from rmqstore.services.ticker import Ticker


class Failing:
    """Fails in its first tick with an error that is none of the store's own."""

    def __init__(self, wake: Signal) -> None:
        self._wake = wake
        self.ticks = 0
        self.second = threading.Event()

    def service_tick(self) -> None:
        self.ticks += 1
        if self.ticks == 1:
            self._wake.notify()  # so that the pause behind the failure ends at once
            raise RuntimeError("a plug-in of somebody's")
        self.second.set()

    def next_wake_ms(self) -> int | None:
        return None

    def service_flush(self) -> None:
        raise AssertionError("nothing asks for it")


def test_a_tick_that_fails_with_any_error_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    wake = Signal()
    store = Failing(wake)
    ticker = Ticker(store, wake, 1000, None)
    with caplog.at_level(logging.ERROR, "rmqstore"):
        ticker.start()
        came = store.second.wait(30)
        ticker.stop()
    assert came, "the thread ended with the first failure"
    assert "a plug-in of somebody's" in caplog.text, "it is told, with what happened"
