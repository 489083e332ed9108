"""The directory of a load test: the plans that it was begun with and a mark for each job that is done, so that another process goes on.

``load-test.json`` has the plans of all engines and where they run; ``ENGINE/done/JOB.json`` is the mark of a job, with what the jobs behind
it and the report need of it. What a job does is safe to do again, as Spark does it again when a task fails: what is stored is recognised by
its marks, and the ledger knows what every attempt was told.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from rmqstore.errors import CorruptStoreError, FormatVersionError, IllegalArgumentError, RmqstoreError, StoreLockedError
from rmqstore.spark.dataset import write_json
from rmqstore_benchmarks.load.closing import Closed
from rmqstore_benchmarks.load.plan import VERSION, Plan

_FILE: Final = "load-test.json"


class UnfinishedError(RmqstoreError, RuntimeError):
    """A load test ended before its audit; what was done stays, and it can be resumed."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What a load test was begun with.

    Attributes:
        plans: one an engine; in the file each has its directory relative to the file.
        master, cluster: where it runs, as in the request.
    """

    version: int = VERSION
    plans: tuple[Plan, ...]
    master: str | None = None
    cluster: bool = False

    def below(self, root: Path) -> Begun:
        """Return the same with the directories of the plans in ``root``."""
        plans = tuple(msgspec.structs.replace(plan, directory=str(root / plan.engine)) for plan in self.plans)
        return msgspec.structs.replace(self, plans=plans)


class Done(msgspec.Struct, frozen=True):
    """The mark of a job that is done.

    Attributes:
        seconds: wall time of the job.
        closed: what the ledger gave, when this is the job that closed it.
    """

    seconds: float = 0.0
    closed: Closed | None = None


class _Versioned(msgspec.Struct):
    version: int


def write_begun(root: Path, begun: Begun) -> None:
    """Write what a load test in ``root`` begins with."""
    write_json(root / _FILE, msgspec.to_builtins(begun.below(Path())))


def read_begun(root: Path) -> Begun:
    """Return what the load test in ``root`` was begun with.

    Raises:
        IllegalArgumentError: ``root`` has no load test.
        FormatVersionError: its plan has another meaning to this version of rmqstore.
        CorruptStoreError: the file is damaged.
    """
    file = root / _FILE
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise IllegalArgumentError(
            f"--resume {root} has no load test, for it has no {_FILE}; name the directory that --keep made, or that an ended run told of"
        ) from None
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version == VERSION:
            return msgspec.json.decode(data, type=Begun).below(root)
    except msgspec.MsgspecError as error:
        raise CorruptStoreError(f"{file} is damaged ({error}), so the load test cannot be resumed", file=str(file)) from error
    raise FormatVersionError(
        f"{file} has a plan of version {version}, and this rmqstore plays version {VERSION}: resume it with the rmqstore that began it"
    )


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Keep others from playing the load test in ``root``.

    Raises:
        StoreLockedError: somebody plays it.
    """
    with (root / _FILE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(f"the load test in {root} is played by another process; wait for its end, or end it") from None
        yield


def mark_done(plan: Plan, job: str, done: Done) -> None:
    """Note durably that a job is done."""
    write_json(_mark(plan, job), msgspec.to_builtins(done))


def done_of(plan: Plan, job: str) -> Done | None:
    """Return the mark of a job; None when it is not done.

    Raises:
        CorruptStoreError: the mark is damaged.
    """
    file = _mark(plan, job)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Done)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CorruptStoreError(f"{file} is damaged ({error}); remove it, and the job is done again", file=str(file)) from error


def unfinished(root: Path, begun: Begun, jobs: Sequence[Sequence[str]], error: Exception) -> UnfinishedError:
    """Return what to tell of a load test that ``error`` ended; ``jobs`` are those of each plan, in order."""
    done = [[job for job in names if done_of(plan, job) is not None] for plan, names in zip(begun.plans, jobs, strict=True)]
    where = next(
        (
            f"{plan.engine}: {names[len(ended)]}"
            for plan, names, ended in zip(begun.plans, jobs, done, strict=True)
            if len(ended) < len(names)
        ),
        "the end",
    )
    parts = [f"{plan.engine}: {', '.join(ended)}" for plan, ended in zip(begun.plans, done, strict=True) if ended]
    what = str(error) if isinstance(error, RmqstoreError) else f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return UnfinishedError(
        f"the load test ended in {where}. {what.rstrip('.')}. Done: {'; '.join(parts) or 'no job'}. "
        f"Stores, ledger and tables are in {root}; to go on there: rmqstore load-test --resume {root}"
    )


def _mark(plan: Plan, job: str) -> Path:
    return plan.done_path() / f"{job.replace(' ', '-')}.json"
