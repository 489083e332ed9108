"""``Store``: one directory in which messages wait for their time and for their consumers.

The store joins a ``TimerStore`` and a ``PopStore`` by the hand-over, asks the clock, waits for the disk under ``flush = sync``, and turns
what users write (datetimes, texts, lists) into what the contract takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self, overload

from rmqstore.clock import Clock
from rmqstore.consuming import Consuming
from rmqstore.errors import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    LostCallsError,
)
from rmqstore.handover import HandOver
from rmqstore.opening import Opened, checked_clock, checked_path
from rmqstore.plugins import get_plugins
from rmqstore.producing import Producing
from rmqstore.readstore import ReadStore
from rmqstore.services.signals import Signal
from rmqstore.services.ticker import Ticker
from rmqstore.snapshots import write_snapshot
from rmqstore.ticking import Ticking, TickReport


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    mode: Literal["own"] = "own",
    engine: str | None = None,
    timer_engine: str | None = None,
    pop_engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> Store: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    mode: Literal["read"],
    engine: str | None = None,
    timer_engine: str | None = None,
    pop_engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> ReadStore: ...
def open(  # noqa: A001 - a store opens like a file
    path: str | os.PathLike[str],
    *,
    mode: Literal["own", "read"] = "own",
    engine: str | None = None,
    timer_engine: str | None = None,
    pop_engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> Store | ReadStore:
    """Open the store in the directory ``path``, made as needed; its parent must exist.

    Args:
        mode: "own" the store, or "read" one state of it while somebody else owns it, or nobody does (X1). A reader makes nothing, takes no
            lock and runs no services, so ``clock`` and ``services`` mean nothing to it.
        engine: the storage engine; ``timer_engine`` and ``pop_engine`` choose one for each side.
        clock: where time comes from; the machine's by default.
        services: run a background thread that hands over, revives and flushes. Without it the store moves only by :meth:`Store.tick`.
        settings: any setting of docs/configuration.md; a dot in its key is written ``__``.

    Raises:
        ConfigError: a setting is wrong, or differs from what the store was made with.
        UnknownEngineError, EngineNotInstalledError, BrokenEngineError: the engine cannot be used.
        StorePathError: the directory cannot be used.
        StoreLockedError: the store is open elsewhere.
        FormatVersionError, CorruptStoreError: what is there cannot be read.
        UnsupportedOperationError: the engine cannot be opened for reading (S1).
    """
    if mode not in ("own", "read"):
        raise IllegalArgumentError(f"mode must be 'own' or 'read', not {mode!r}")
    names = {"engine": engine, "timer_engine": timer_engine, "pop_engine": pop_engine}
    if not isinstance(services, bool):
        raise IllegalArgumentTypeError(f"services must be True or False, not {services!r}")
    clock = checked_clock(clock)
    if mode == "read":
        return ReadStore(checked_path(path), {**names, **settings})
    store = Store(Opened(checked_path(path), {**names, **settings}), clock, services=services)
    get_plugins().notify_opened(store)
    return store


class Store(Producing, Consuming):
    """An open store; made by :func:`rmqstore.open`, closed by :meth:`close` or a ``with`` statement. Safe to share between threads.

    Every call raises :class:`StoreClosedError` after ``close``, :class:`StoreForkedError` in a forked child, :class:`StoreFullError` when
    the disk has no room (then the call has changed nothing), and :class:`StorePoisonedError` after the disk failed.
    """

    def __init__(self, opened: Opened, clock: Clock, *, services: bool) -> None:
        super().__init__(opened, clock)
        self._tick_lock = threading.RLock()
        self._snapshot_lock = threading.RLock()
        self._ticker_wake = Signal()
        config = opened.config
        self._hand_over = HandOver(opened.timers, opened.pops, one_log=opened.one_log, limit=config.hand_over_limit, sync=self._sync_calls)
        self._ticking = Ticking(opened, self._hand_over, lambda side, ticket: self._settle(side, ticket))
        self._unsubscribe: Callable[[], None] | None = None
        if (subscribe := getattr(clock, "subscribe", None)) is not None:
            self._unsubscribe = subscribe(self._clock_moved)
        self._ticker: Ticker | None = None
        if services:
            flush_ms = None if self._sync_calls else config.flush_interval_ms
            self._ticker = Ticker(self, self._ticker_wake, config.precision_ms, flush_ms)
            self._ticker.start()

    # ------------------------------------------------------------ moving on

    def tick(self) -> TickReport:
        """Do what is due by the clock: hand over timers, revive expired leases, some upkeep.

        With ``services`` the store does this by itself.

        Raises:
            ClockStepError: the clock went forward by more than ``clock.max_step_ms`` (K2).
        """
        return self._tick(always=True)

    def service_tick(self) -> TickReport:
        """Do a tick of the background thread: revive and upkeep take their turns at their intervals."""
        with self._serving():
            return self._tick(always=False)

    def service_flush(self) -> None:
        """Flush for the background thread."""
        with self._serving():
            self.flush()

    def service_wake_ms(self) -> int | None:
        """Return in how many ms the background thread may have something to do, 0 or less when it has; None when nothing is waiting."""
        now_ms = self._clock.now_ms()
        wake_ms = self._ticking.next_wake_ms(now_ms)
        return None if wake_ms is None else wake_ms - now_ms

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Keep for the application's next call what no log alone may tell: that calls which were answered are gone."""
        untold, self._untold = self._untold, None
        try:
            yield
        except LostCallsError as error:
            untold = error
            raise
        finally:
            if untold is not None:
                self._untold = untold

    def _tick(self, *, always: bool) -> TickReport:
        self._check_open()
        with self._tick_lock, self._poisoning():
            report = self._ticking.run(self._clock.now_ms(), always=always)
        if report.retried or report.dead or report.parked:
            self._waits.anything()  # a retry topic, or the place in a queue that comes free
        elif report.moved:
            self._waits.moved(self._ends_of)
        return report

    def confirm_clock_step(self) -> None:
        """Accept the present time although the clock jumped by more than ``clock.max_step_ms`` (K2)."""
        self._check_open()
        with self._tick_lock:
            self._ticking.confirm(self._clock.now_ms())
        self._ticker_wake.notify()

    def next_wake_ms(self) -> int | None:
        """Return in how many ms something may be due, 0 or less when it is; None when nothing is waiting."""
        due = [at for at in (self._timers.next_tick_ms(), self._pops.next_expiry_ms()) if at is not None]
        return min(due) - self._clock.now_ms() if due else None

    # ------------------------------------------------------------ keeping

    def snapshot(self, path: str | os.PathLike[str]) -> Path:
        """Write a consistent copy of the store, which must not exist yet, while it runs; it opens like any store. Returns its path.

        It is the store of one moment of this call; other calls go on (R7). Where timers and messages are in two engines, each has its own
        moment, and ticks wait.
        """
        self._check_open()
        # No hand-over runs between two moments, so nothing is forgotten there; the timers go first.
        with self._snapshot_lock, nullcontext() if self._opened.one_log else self._tick_lock:
            return write_snapshot(self._opened, checked_path(path))

    def flush(self) -> None:
        """Make everything durable that was answered so far; only needed under ``flush = async`` or with ``pop.buffer``."""
        self._check_open()
        with self._poisoning():
            self._timers.sync()
            self._pops.sync()

    def close(self) -> None:
        """Make everything durable and let go of the directory; idempotent."""
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._check_open()
        if self._ticker is not None:
            self._ticker.stop()
        if self._unsubscribe is not None:
            self._unsubscribe()
        try:
            with self._snapshot_lock, self._tick_lock:
                self._closed = True
                self._opened.close()
        finally:
            self._waits.anything()
        if self._untold is not None:
            raise self._untold

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rmqstore.Store {self._path} ({'closed' if self._closed else 'open'})>"

    # ------------------------------------------------------------ underneath

    def wake(self) -> None:
        """Let everything that waits look again, after messages came in by another way than a call of the store."""
        self._check_open()
        self._clock_moved()

    def _clock_moved(self) -> None:
        self._ticker_wake.notify()
        self._waits.anything()
