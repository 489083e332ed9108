"""Who owns the store of a shard: the process of the attempt itself, or one that serves it to the attempt, and is killed.

The second kind does what ``rmqstore serve`` does, but on the simulated clock: its attempt writes the time to its stdin, and it writes it
back when its clock has moved. It ends when its stdin does, so none outlives its attempt. A lock beside the ledger keeps the shard with one
attempt while the owner of its store is begun anew, when the store itself is nobody's.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, TextIO, TypeVar

import msgspec

import rmqstore
from rmqstore.errors import StoreLockedError, StoreUnavailableError
from rmqstore.server.serving import ServerThread
from rmqstore.store.directory import SOCKET_NAME
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.plan import SETTINGS, Plan

_Held = TypeVar("_Held")
_LOOK_AGAIN_S: Final = 0.05
_CLIENT_PATIENCE: Final = timedelta(minutes=5)


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
        self._held, waited = _waited_for(lambda: _held(plan.ledger_path(number) / "held"), plan.patience_s)
        try:
            self.waited = self._begin() or waited
            self.store = rmqstore.connect(plan.store_path(number), patience=_CLIENT_PATIENCE)
        except BaseException:
            self._end()
            raise

    def move_to(self, now_ms: int) -> None:
        """Let its clock show ``now_ms``."""
        with self._lock:
            self.now_ms = now_ms
            self._process.stdin.write(f"{now_ms}\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            self._hear()

    def kill(self) -> None:
        """Kill the process, and begin another one at the same time; calls that are under way find it."""
        with self._lock:
            if not self._is_closed:
                self.deaths += 1
                self._process.kill()
                self._reap()
                self.dead += 1
                self._begin()

    def close(self) -> None:
        """Close client and store, orderly; idempotent.

        Raises:
            StoreUnavailableError: the process did not end well.
        """
        with self._lock:
            if self._is_closed:
                return
            self.store.close()
            code = self._end()
        if code:
            raise StoreUnavailableError(f"the process that served shard {self._number} ended with {code}")

    def _begin(self) -> bool:
        """Start a process; returns whether it had to wait for the store."""
        plan = msgspec.json.encode(self._plan).decode()
        command = [sys.executable, "-m", __name__, plan, str(self._number), str(self.now_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._hear() == "waited"

    def _hear(self) -> str:
        said: str = self._process.stdout.readline()  # type: ignore[union-attr]
        if not said:
            raise StoreUnavailableError(f"the process that serves shard {self._number} has ended; its stderr says why")
        return said.strip()

    def _end(self) -> int:
        self._is_closed = True
        code = self._reap() if hasattr(self, "_process") else 0
        self._held.close()
        return code

    def _reap(self) -> int:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        return self._process.wait()


def _held(file: Path) -> TextIO:
    made = file.open("w")
    try:
        fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        made.close()
        raise StoreLockedError(f"another attempt has the shard of {file}") from None
    except BaseException:
        made.close()
        raise
    return made


def _serve(plan: Plan, number: int, now_ms: int) -> None:
    """Serve the store of a shard until stdin ends."""
    clock = rmqstore.ManualClock(now_ms)
    store, waited = open_store(plan, number, clock)
    place = store.engine.directory.held / SOCKET_NAME
    served = ServerThread(store, lambda entrance: entrance.listen_unix(place))
    print("waited" if waited else "opened", flush=True)
    for line in sys.stdin:
        clock.set(int(line))
        print(line, end="", flush=True)
    served.stop()
    store.close()


if __name__ == "__main__":
    _serve(msgspec.json.decode(sys.argv[1], type=Plan), int(sys.argv[2]), int(sys.argv[3]))
