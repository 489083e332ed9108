"""Who owns the store of a shard: the process of the attempt itself, or one that serves it to the attempt, and is killed.

The second kind does what ``rmqstore serve`` does, but on the simulated clock: its attempt tells it the time, and it says so when its clock
has moved. It ends when its attempt does. A lock of the ledger's directory keeps the shard with one attempt while the owner of its store is
begun anew, when the store itself is nobody's.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

import rmqstore
from rmqstore.errors import StoreLockedError, StoreUnavailableError
from rmqstore.server.serving import ServerThread
from rmqstore.store.directory import SOCKET_NAME, flocked
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.plan import SETTINGS, Plan

_Held = TypeVar("_Held")
_LOOK_AGAIN_S: Final = 0.05
_CLIENT_PATIENCE: Final = timedelta(minutes=5)
_PROCESSES: Final = multiprocessing.get_context("spawn")


@contextmanager
def held(directory: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a directory.

    Raises:
        StoreLockedError: with the words of the refusal; another process holds it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(flocked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise StoreLockedError(refusal) from None
        yield


def open_store(plan: Plan, number: int, clock: rmqstore.ManualClock) -> tuple[rmqstore.Store, bool]:
    """Return the open store of a shard, and whether another attempt, which may be dying, had it meanwhile.

    Raises:
        StoreLockedError: it is still held after ``plan.patience_s``.
    """
    return _waited_for(
        lambda: rmqstore.open(plan.store_path(number), engine=plan.engine, clock=clock, services=False, **SETTINGS), plan.patience_s
    )


def _waited_for(hold: Callable[[], _Held], patience_s: float) -> tuple[_Held, bool]:
    """Hold what another attempt may still have; returns whether it had."""
    until_s, waited = time.monotonic() + patience_s, False
    while True:
        try:
            return hold(), waited
        except StoreLockedError:
            if time.monotonic() > until_s:
                raise
            waited = True
            time.sleep(_LOOK_AGAIN_S)


class Owner:
    """A process that serves the store of a shard, and a client of it.

    Attributes:
        store: the client.
        waited: another attempt had the shard, or its store, meanwhile.
        now_ms: the simulated time that it may have by now.
        deaths: how often it was killed, or is about to be.
        dead: how often it was, and is no more.

    Raises:
        StoreLockedError: another attempt still has the shard after ``plan.patience_s``.
        StoreUnavailableError: the process ended as it began.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan, self._number = plan, number
        self._lock = threading.Lock()
        self._is_closed = False
        self.now_ms = START_MS
        self.deaths = self.dead = 0
        with ExitStack() as stack:
            ledger = plan.ledger_path(number)
            refusal = f"another attempt has the shard of {ledger}"
            _, waited = _waited_for(lambda: stack.enter_context(held(ledger, refusal)), plan.patience_s)
            self._begin()
            stack.callback(self._end)
            self.waited = bool(self._hear()) or waited
            self.store = stack.enter_context(rmqstore.connect(plan.store_path(number), patience=_CLIENT_PATIENCE))
            self._stack = stack.pop_all()

    def move_to(self, now_ms: int) -> None:
        """Let its clock show ``now_ms``."""
        with self._lock:
            self.now_ms = now_ms
            self._pipe.send(now_ms)
            self._hear()

    def kill(self) -> None:
        """Kill the process, and begin another one at the same time; calls that are under way find it."""
        with self._lock:
            if not self._is_closed:
                self.deaths += 1
                self._process.kill()
                self._end()
                self.dead += 1
                self._begin()
                self._hear()

    def close(self) -> None:
        """Close client and store, orderly; idempotent.

        Raises:
            StoreUnavailableError: the process did not end well.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._stack.close()
        if self._process.exitcode:
            raise StoreUnavailableError(f"the process that served shard {self._number} ended with {self._process.exitcode}")

    def _begin(self) -> None:
        """Start a process, which says first whether it had to wait for the store."""
        self._pipe, its_end = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_serve, args=(self._plan, self._number, self.now_ms, its_end), daemon=True)
        self._process.start()
        its_end.close()

    def _hear(self) -> object:
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            raise StoreUnavailableError(f"the process that serves shard {self._number} has ended; its stderr says why") from None

    def _end(self) -> None:
        """Let the process see that nobody speaks to it any more, and wait for its end."""
        self._pipe.close()
        self._process.join()


def _serve(plan: Plan, number: int, now_ms: int, pipe: Connection[Any, int]) -> None:
    """Serve the store of a shard until nobody tells the time any more."""
    clock = rmqstore.ManualClock(now_ms)
    store, waited = open_store(plan, number, clock)
    place = store.engine.directory.held / SOCKET_NAME
    served = ServerThread(store, lambda entrance: entrance.listen_unix(place))
    pipe.send(waited)
    try:
        while True:
            clock.set(pipe.recv())
            pipe.send(True)
    except (EOFError, ConnectionError):
        served.stop()
        store.close()
