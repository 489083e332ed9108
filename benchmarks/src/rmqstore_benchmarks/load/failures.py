"""Failures that a load test brings about on purpose, each noted on disk before it happens, so that it happens once and can be counted."""

from __future__ import annotations

import enum
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec


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
    """An executor is killed with its Spark worker while its tasks run."""


_LONGEST_WAIT_S: Final = 0.002


class InjectedFailureError(RuntimeError):
    """A failure that the load test asked for."""


class Note(msgspec.Struct, frozen=True):
    """What was noted of one failure.

    Attributes:
        shard: -1 when it concerns several.
        op: the call before, in or behind which it happened; empty when it does not concern one.
    """

    failure: str
    round: int
    shard: int
    op: str = ""


def of_round(failures: tuple[Failure, ...], round_: int, rounds: int) -> tuple[Failure, ...]:
    """Return the failures of one round; the round behind the last is the drain.

    Tasks fail in the first and the third round, workers die in the second and in the drain, twins run in the second, an executor dies in
    the third; with fewer rounds the later ones fall together. Consumers die in all.
    """
    due: set[Failure] = {Failure.CONSUMER}
    last = rounds - 1
    if round_ in (0, 2):
        due.add(Failure.TASK)
    if round_ in (min(1, last), rounds):
        due.add(Failure.WORKER)
    if round_ == min(1, last):
        due.add(Failure.TWIN)
    if round_ == min(2, last):
        due.add(Failure.EXECUTOR)
    return tuple(failure for failure in failures if failure in due)


def note_once(directory: Path, note: Note) -> bool:
    """Note a failure durably; returns False, and does nothing, when it has been noted before."""
    path = directory / f"{note.round}-{note.shard}-{note.failure}.json"
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC)
    except FileExistsError:
        return False
    try:
        os.write(fd, msgspec.json.encode(note))
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def notes(directory: Path) -> list[Note]:
    """Return what was noted."""
    return [msgspec.json.decode(path.read_bytes(), type=Note) for path in sorted(directory.glob("*.json"))]


class Injector:
    """Lets the failures of one attempt happen at calls that the seed chooses.

    Args:
        calls: about how many calls the attempt makes at least.
    """

    def __init__(self, directory: Path, due: tuple[Failure, ...], round_: int, shard: int, calls: int, seed: int) -> None:
        self._directory = directory
        self._round, self._shard = round_, shard
        self._lock = threading.Lock()
        self._calls = 0
        rng = random.Random(f"{seed}/{round_}/{shard}")
        self._wait_s = rng.random() * _LONGEST_WAIT_S
        self._is_before = rng.random() < 0.5
        self._at = {
            failure: rng.randint(2, max(calls, 3))
            for failure in (Failure.TASK, Failure.WORKER)
            if failure in due and not Path(directory, f"{round_}-{shard}-{failure.value}.json").exists()
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
        if Failure.WORKER in due and note_once(self._directory, Note(Failure.WORKER.value, self._round, self._shard, op)):
            threading.Thread(target=self._kill, daemon=True).start()
        fails = Failure.TASK in due and note_once(self._directory, Note(Failure.TASK.value, self._round, self._shard, op))
        if fails and self._is_before:
            raise InjectedFailureError(f"shard {self._shard}, round {self._round}: the load test lets this task fail before {op}")
        yield
        if fails:
            raise InjectedFailureError(f"shard {self._shard}, round {self._round}: the load test lets this task fail behind {op}")

    def _kill(self) -> None:
        # A moment later, so that the call is under way or just done.
        threading.Event().wait(self._wait_s)
        os.kill(os.getpid(), signal.SIGKILL)
