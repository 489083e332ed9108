"""Failures that a load test brings about on purpose, each noted on disk before it happens, so that it happens once and can be counted."""

from __future__ import annotations

import enum
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final


class Failure(enum.Enum):
    """What can be made to fail."""

    TASK = "task"
    """A task raises an exception in the middle of its work."""
    WORKER = "worker"
    """The Python worker of a task kills itself with SIGKILL while a call of the store runs."""
    TWIN = "twin"
    """Two tasks of one job have the same shard and the same work, as with speculation."""
    CONSUMER = "consumer"
    """A consumer ends while it holds leases."""
    EXECUTOR = "executor"
    """The executors are killed while their tasks run."""
    OWNER = "owner"
    """The process that serves a store is killed with SIGKILL while a call runs, and another one takes its place."""


_LONGEST_WAIT_S: Final = 0.002


class InjectedFailureError(RuntimeError):
    """A failure that the load test asked for."""


def of_round(failures: tuple[Failure, ...], round_: int, rounds: int) -> tuple[Failure, ...]:
    """Return the failures of one round; the round behind the last is the drain.

    Tasks fail in the first and the third round, workers die in the second and in the drain, twins run in the second, executors die in
    the third; with fewer rounds the later ones fall together. Consumers and owners die in all.
    """
    second, third = min(1, rounds - 1), min(2, rounds - 1)
    due = {Failure.TASK: (0, 2), Failure.WORKER: (second, rounds), Failure.TWIN: (second,), Failure.EXECUTOR: (third,)}
    return tuple(failure for failure in failures if round_ in due.get(failure, (round_,)))


def note_once(directory: Path, failure: Failure, round_: int, shard: int | None = None) -> bool:
    """Note a failure of a shard, or of several; returns False, and does nothing, when it has been noted before."""
    try:
        _note(directory, failure, round_, shard).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def noted(directory: Path, failure: Failure) -> int:
    """Return how often a failure was noted."""
    return len(list(directory.glob(f"*-{failure.value}")))


def _note(directory: Path, failure: Failure, round_: int, shard: int | None) -> Path:
    return directory / f"{round_}-{'all' if shard is None else shard}-{failure.value}"


class Injector:
    """Lets the failures of one attempt happen at calls that the seed chooses.

    Args:
        calls: about how many calls the attempt makes at least.

    Attributes:
        kills: what kills a process, by the failure that it is; without it the failure does not happen.
    """

    def __init__(self, directory: Path, due: tuple[Failure, ...], round_: int, shard: int, calls: int, seed: int) -> None:
        self._directory, self._round, self._shard = directory, round_, shard
        self._lock = threading.Lock()
        self._calls = 0
        rng = random.Random(f"{seed}/{round_}/{shard}")
        self._wait_s = rng.random() * _LONGEST_WAIT_S
        self._is_before = rng.random() < 0.5
        self.kills: dict[Failure, Callable[[], None]] = {Failure.WORKER: lambda: os.kill(os.getpid(), signal.SIGKILL)}
        self._at = {
            failure: rng.randint(2, max(calls, 3))
            for failure in (Failure.TASK, Failure.WORKER, Failure.OWNER)
            if failure in due and not _note(directory, failure, round_, shard).exists()
        }

    @contextmanager
    def around(self, op: str) -> Iterator[None]:
        """Wrap one call of the store.

        Raises:
            InjectedFailureError: this is the call at which the task fails, before it is made or behind it.
        """
        with self._lock:
            self._calls += 1
            due = [failure for failure, at in self._at.items() if self._calls >= at]
            for failure in due:
                del self._at[failure]
        due = [failure for failure in due if note_once(self._directory, failure, self._round, self._shard)]
        for failure in due:
            if failure in self.kills:
                threading.Thread(target=self._kill, args=(self.kills[failure],), daemon=True).start()
        fails = Failure.TASK in due
        if fails and self._is_before:
            raise InjectedFailureError(f"shard {self._shard}, round {self._round}: the load test lets this task fail before {op}")
        yield
        if fails:
            raise InjectedFailureError(f"shard {self._shard}, round {self._round}: the load test lets this task fail behind {op}")

    def _kill(self, kill: Callable[[], None]) -> None:
        # A moment later, so that the call is under way or just done.
        threading.Event().wait(self._wait_s)
        kill()
