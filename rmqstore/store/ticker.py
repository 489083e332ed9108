"""The one background thread of a store: hand-over, revive, upkeep, and flushing under ``flush = async``."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmqstore.errors import IllegalArgumentError, LostCallsError, RmqstoreError, StoreClosedError, StorePoisonedError
from rmqstore.store.waits import Signal

if TYPE_CHECKING:
    from rmqstore.store.store import Store
    from rmqstore.store.tick import TickReport

_log = logging.getLogger("rmqstore")

_AFTER_ERROR_S = 0.5

_END_POLL_S = 0.001


class Duties:
    """What the background thread does for a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tick(self) -> TickReport:
        """Do a tick of the background thread: revive and upkeep take their turns at their intervals."""
        with self._telling():
            return self._store._tick(always=False)

    def flush(self) -> None:
        """Flush for the background thread."""
        with self._telling():
            self._store.flush()

    def wake_ms(self) -> int | None:
        """Return in how many ms the background thread may have something to do, 0 or less when it has; None when nothing is waiting."""
        now_ms = self._store._clock.now_ms()
        wake_ms = self._store._ticking.next_wake_ms(now_ms)
        return None if wake_ms is None else wake_ms - now_ms

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Keep for the application's next call what no log alone may tell: that calls which were answered are gone."""
        try:
            yield
        except LostCallsError as error:
            self._store._untold = error
            raise


class Ticker:
    """Runs a tick whenever something is due, at the latest 0.1 × precision later; wakes at once when the clock is set by hand.

    A failing tick is logged, once for each error, and tried again, whatever it raised, since a full disk may have room later; only a
    poisoned or closed store ends the thread, and every call of the store then says why.
    """

    def __init__(self, duties: Duties, wake: Signal, precision_ms: int, flush_interval_ms: int | None) -> None:
        self._duties = duties
        self._wake = wake
        self._poll_s = precision_ms / 10_000
        self._flush_s = None if flush_interval_ms is None else flush_interval_ms / 1000
        self._stopping = self._is_over = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="rmqstore-ticker", daemon=True)

    @property
    def is_here(self) -> bool:
        """Whether this is its thread."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Start the thread."""
        _running.add(self)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for the tick that it is in."""
        self._stopping = True
        self._wake.notify()
        if not self.is_here and self._thread.is_alive():
            # Not by ``join``, which a close of a signal handler within it would wait for.
            while not self._is_over:
                time.sleep(_END_POLL_S)
            self._thread.join(1)

    def _run(self) -> None:
        try:
            self._tick_on()
        finally:
            self._is_over = True

    def _tick_on(self) -> None:
        flushed_s = time.monotonic()
        while not self._stopping:
            seen = self._wake.count
            try:
                try:
                    self._duties.tick()
                finally:  # a tick that fails again and again must not keep what was sent from the disk
                    if self._flush_s is not None and time.monotonic() - flushed_s >= self._flush_s:
                        self._duties.flush()
                        flushed_s = time.monotonic()
                pause_s = self._pause_s()
                self.failure = None
            except (StorePoisonedError, StoreClosedError) as error:
                if not self._stopping:
                    _log.error("the ticker of the store ends: %s", error)
                return
            except RmqstoreError as error:
                if str(error) != str(self.failure):
                    _log.warning("a tick failed and is tried again: %s", error)
                # A schedule that stands still keeps no timer waiting.
                self.failure, pause_s = error, self._poll_s if isinstance(error, IllegalArgumentError) else _AFTER_ERROR_S
            except Exception as error:
                # A fault of an engine or a plug-in; without hand-over and revive a store would stand still, and nothing would tell.
                _log.exception("a tick failed with an error that nobody expected, and is tried again")
                self.failure, pause_s = error, _AFTER_ERROR_S
            if not self._stopping:
                self._wake.wait_beyond(seen, pause_s)

    def _pause_s(self) -> float:
        due_ms = self._duties.wake_ms()
        pause_s = self._poll_s if due_ms is None else max(min(due_ms / 1000, self._poll_s), 0.001)
        return pause_s if self._flush_s is None else min(pause_s, self._flush_s)


_running: weakref.WeakSet[Ticker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End the threads of stores that were not closed: one that is within a tick while libraries are taken down may abort the process."""
    for ticker in list(_running):
        if ticker._thread.is_alive():  # in a forked child it is not, and its locks may be held
            ticker.stop()
