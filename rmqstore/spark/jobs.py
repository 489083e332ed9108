"""A job: one write of many messages into a data set, exactly once, in two phases.

::

    jobs/<job>/staged/<name>.arrow    phase 1: what the tasks checked and set aside, split by shard; no store is touched
    jobs/<job>/rejected/<name>.arrow  rows that are no messages, where they are collected, each with the reason
    jobs/<job>/job.json               the commit: names the files that count; from now on the messages belong to the data set
    jobs/<job>/shard-00000.json       phase 2: a shard takes its chunks in; begun, and later done
    jobs/<job>/done.json              every shard has everything, or the job was given up; takes the place of job.json

Why no crash and no retry loses or doubles a row: In phase 1 every attempt of a task writes a file of its own, so attempts, also ones that
run at a time or meet the rows in another order, do not touch each other. Spark takes the answer of one attempt per task, and the commit
names the files of these answers. It is one rename, under a lock of the job: before it nothing was sent, after it the files never change,
and what the disk changes is refused by the sums that the commit holds (``staging``). The tasks split their rows by the shards that the data
set had when the write began. It may have got another number of them since (``resharding``), so the commit reads the manifest again under
that lock, and refuses files that were split otherwise, or a data set that is on its way; behind the commit, nobody begins to move it before
the job has come to its end. Which shards have a part of the job its files tell. So the chunks of phase 2, made of the batches of these
files in their order, are the same for every sender, however often. Each carries a mark of data set, job, and the file and number of its
first batch, which the store keeps in the same atomic step as the messages (I1); a chunk whose mark is there is skipped. One task at a time
is at work in a shard, which it owns, or reaches by who serves it, and it looks under that lock whether the shard is done, so a late twin
finds nothing to do. *Done* is written when everything is durable; from then on the marks may be forgotten.

A shard that another process serves may have lost a chunk that it answered: under ``flush = "async"`` its owner may be killed before the
flush, which the next owner then answers; or it meets a full disk, and tells somebody else. So there a flush is not enough: behind it all
chunks are sent once more. If the store has each of them already, they were there before that flush, and so are durable; if not, what was
new is flushed, and they are sent again. A send whose connection breaks is not made again there, as it would find its own copy; the shard
is tried again. Before each round the witness, as below, tells that no mark was forgotten.

Before *done* marks must not be forgotten, and no clock tells: a store drops marks by the clock and the ``mark_memory_ms`` of its current
owner, which need not be those of the job. So a shard gets a *witness* before its first chunk (``rmqstore.store.witness``): a mark on each
side of the store that is older than those of the chunks. Marks go oldest first, so while the witness is there none of them is gone, and a
chunk whose mark is not there was not sent. *Begun* is written when the witness is durable, and before anything is sent; a shard that was
begun and has no witness is refused. The argument needs that the job's own marks are younger, so a clock that was set back gets another
witness; both go by the clock of the store, also where another process serves it.

A job with the same id after the commit skips phase 1, completes what is missing, and refuses rows that are others than it had; before the
commit it starts again. Of the jobs that came to their end the newest are known (:data:`KEPT_JOBS`); the id of an older one is a new one.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rmqstore.engine.kv.directory import sync_path
from rmqstore.errors import CorruptStoreError, IllegalArgumentError, IllegalArgumentTypeError, TransferError
from rmqstore.spark.dataset import Dataset, read_json, write_json
from rmqstore.spark.staging import CHUNK_BYTES, CHUNK_ROWS, StagedFile, read_rejected
from rmqstore.store.directory import flocked

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A job id can be the name of a directory and part of a mark."""

_RECORD: Final = "job.json"
_DONE: Final = "done.json"
_GONE: Final = ".gone"
_Content = TypeVar("_Content", bound=msgspec.Struct)

_MICRO_BATCH: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]+)")
"""The id of a micro-batch: its query, and its number."""

KEPT_JOBS: Final = 10_000
"""So many finished jobs of a data set are known at least; a tenth more, and the oldest go."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the commit wrote.

    Attributes:
        chunk_rows, chunk_bytes: small batches of a shard go together up to so many; kept here, since the chunks must stay the same.
        now_ms: the time at which the shards take the messages in; None = that of the machine.
        is_done: every shard has everything, and the staged files may be gone; also when the job was given up.
        is_dropped: it was given up, so what is missing is not sent.
    """

    files: list[StagedFile]
    chunk_rows: int
    chunk_bytes: int
    now_ms: int | None = None
    is_done: bool = False
    is_dropped: bool = False

    @property
    def rows(self) -> int:
        """Messages of the job."""
        return sum(file.rows for file in self.files)

    @property
    def rejected(self) -> int:
        """Rows that were set aside, since they are no messages."""
        return sum(file.rejected for file in self.files)

    @property
    def shards(self) -> dict[int, int]:
        """How many of them each shard gets that has a part of it, by the number of shards that the data set had then."""
        rows: Counter[int] = Counter()
        for batch in chain.from_iterable(file.batches for file in self.files):
            rows[batch.shard] += batch.rows
        return dict(sorted(rows.items()))


class ShardProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a shard is: since when it takes chunks in, by the clock of its store, and whether it has them all."""

    begun_ms: int
    is_done: bool = False


class Job:
    """A job of a data set; exists in its directory only once something was staged."""

    def __init__(self, dataset: Dataset, job_id: str) -> None:
        self.dataset = dataset
        if not isinstance(job_id, str):
            raise IllegalArgumentTypeError(f"job_id must be a str, not {job_id!r}")
        if not _ID.fullmatch(job_id):
            raise IllegalArgumentError(
                f"job_id {job_id!r} is not 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
            )
        self.id = job_id
        self.path = dataset.path / "jobs" / self.id
        self.staged = self.path / "staged"
        self.rejected = self.path / "rejected"

    # ------------------------------------------------------------ phase 1

    def commit(
        self, files: Iterable[StagedFile], now_ms: int | None = None, check: Callable[[Job, JobRecord], None] = lambda *_: None
    ) -> JobRecord:
        """Let these files be the job, unless it was committed before; what else was staged goes. Returns the record that counts.

        ``check`` is called with the job and the record before that is written, and raises what refuses it.

        Raises:
            TransferError: another run with the same job id failed meanwhile and took the staged files away; or a task only counted its
                rows, as the job was committed then, and it was taken back since; or the data set has got another number of shards.
            ConfigError: it is on its way to another number of shards, or to another engine.
        """
        with _locked(self.dataset):
            record = self.record()
            if record is None:
                files = list(files)
                self._check_split(files)
                named = sorted((file for file in files if file.rows or file.rejected), key=lambda file: file.name)
                record = JobRecord(files=named, chunk_rows=CHUNK_ROWS, chunk_bytes=CHUNK_BYTES, now_ms=now_ms)
                sizes: list[tuple[Path, int | None]] = [(self.staged / file.name, file.size_bytes) for file in record.files]
                sizes += [(self.rejected / file.name, file.rejected_bytes) for file in record.files if file.rejected]
                # What was only counted has no file at all.
                if not all(path.is_file() and size_bytes in (None, path.stat().st_size) for path, size_bytes in sizes):
                    raise TransferError(
                        f"staged files of job {self.id!r} are gone or cut off: it was taken back, or another run of it failed, while this "
                        "write was under way; nothing of it was stored, so run it again"
                    )
                check(self, record)
                for folder in (self.staged, self.rejected, self.path, self.path.parent):
                    if folder.is_dir():
                        sync_path(folder)
                write_json(self.path / _RECORD, record)
            kept = set() if record.is_done else {self.staged / file.name for file in record.files}
            self._sweep(kept | {self.rejected / file.name for file in record.files if file.rejected})
        return record

    def _check_split(self, files: Iterable[StagedFile]) -> None:
        """Refuse rows that are not split by the shards that there are; with the lock held, which whoever changes them takes, too."""
        found = Dataset.open(self.dataset.path)
        found.check_settled()
        others = {file.split for file in files if file.name} - {found.manifest.shards}
        if others:
            raise TransferError(
                f"the rows of job {self.id!r} were split among {min(others)} shards, and data set {found.path} has got "
                f"{found.manifest.shards} since; nothing of it was stored, so run it again"
            )

    def discard(self) -> None:
        """Leave nothing of a job that was not committed; of one that was, everything stays."""
        if self.path.is_dir():
            with _locked(self.dataset):
                if self.record() is None:
                    shutil.rmtree(self.path, ignore_errors=True)

    def withdraw(self) -> bool:
        """Take back a committed job of which no shard has begun; False when one has, and everything stays."""
        with _locked(self.dataset):
            record = self.record()
            if record is not None and any(self.progress(shard) is not None for shard in record.shards):
                return False
            (self.path / _RECORD).unlink(missing_ok=True)
            sync_path(self.path)
            shutil.rmtree(self.path, ignore_errors=True)
        return True

    def drop(self) -> dict[int, ShardProgress | None]:
        """Give a committed job up: what is sent stays, what is missing is never sent. Returns how far each shard was that has a part of it.

        Raises:
            TransferError: it was never committed, or has come to its end.
            StoreLockedError: a shard is open, so its part may be on the way.
        """
        record = self.record()
        with self.dataset.locked([] if record is None else self.missing_shards()), _locked(self.dataset):
            if record is None or self.record() != record or record.is_done:
                raise TransferError(f"there is no half done job {self.id!r} in {self.dataset.path} to give up")
            found = {shard: self.progress(shard) for shard in record.shards}
            self._close(msgspec.structs.replace(record, is_dropped=True))
        return found

    def check_same(self, found: Iterable[StagedFile]) -> None:
        """Refuse other rows than the committed job brought, by their number, and by topic, keys and body of each; all else may differ.

        They are what the tasks of a write staged, or counted when they found the job committed.
        """
        record, files = self.record(), list(found)
        if record is None:
            return
        rows, had = sum(file.rows + file.rejected for file in files), record.rows + record.rejected
        if rows != had or sum(file.rows_sum for file in files) != sum(file.rows_sum for file in record.files):
            others = f"{rows} others" if rows == had else str(rows)
            raise TransferError(
                f"job {self.id!r} of {self.dataset.path} has brought {had} messages, and this write has {others}, of which none "
                "was stored: other rows need a job_id of their own"
            )

    def record(self) -> JobRecord | None:
        """Return what was committed; None before the commit."""
        # In this order, since the second one is there before the first one goes.
        return self._read(_RECORD, JobRecord) or self._read(_DONE, JobRecord)

    def is_unfinished(self) -> bool:
        """Say whether it was committed and not finished; of one that is finished, nothing is read."""
        record = self._read(_RECORD, JobRecord)
        return record is not None and not record.is_done

    def summary(self) -> dict[str, Any]:
        """Return the row of the view ``jobs``; :class:`FileNotFoundError` when the job was forgotten.

        Its state is ``staging`` (it runs, or its driver is gone), ``committed`` (not all of it is sent), ``done`` or ``dropped``;
        ``changed_ms`` is when it came to that, or when a shard got on with it last.
        """
        record, row = self.record(), {"job_id": self.id, "changed_ms": self.path.stat().st_mtime_ns // 1_000_000}
        if record is None:
            return row | {"state": "staging"}
        state = "dropped" if record.is_dropped else "done" if record.is_done else "committed"
        return row | {"state": state, "rows": record.rows, "rejected": record.rejected}

    # ------------------------------------------------------------ phase 2

    def progress(self, shard: int) -> ShardProgress | None:
        """Return how far a shard is; None when it has not begun."""
        return self._read(f"shard-{shard:05}.json", ShardProgress)

    def note_begun(self, shard: int, progress: ShardProgress) -> None:
        """Write down durably that a shard begins, unless the job was taken back meanwhile; the caller owns the shard."""
        with _locked(self.dataset):
            self.committed()
            self.note_progress(shard, progress)

    def note_not_begun(self, shard: int) -> None:
        """Take :meth:`note_begun` back, since nothing was sent."""
        (self.path / f"shard-{shard:05}.json").unlink(missing_ok=True)
        sync_path(self.path)

    def note_progress(self, shard: int, progress: ShardProgress) -> None:
        """Write down durably how far a shard is, which the caller owns."""
        write_json(self.path / f"shard-{shard:05}.json", progress)

    def missing_shards(self) -> list[int]:
        """Return the shards that do not have everything yet; raises as :meth:`committed`."""
        record = self.committed()
        return [shard for shard in record.shards if not self.has_all(record, shard)]

    def committed(self) -> JobRecord:
        """Return the record of a job that goes on; :class:`TransferError` when it was given up, or taken back behind its commit."""
        record = self.record()
        if record is None:
            raise TransferError(
                f"job {self.id!r} of {self.dataset.path} is not known here, or was taken back; nothing of it was sent, so run it again"
            )
        if record.is_dropped:
            raise TransferError(f"job {self.id!r} of {self.dataset.path} was given up; write what is missing with another job id")
        return record

    def has_all(self, record: JobRecord, shard: int) -> bool:
        """Say whether a shard has everything of its part."""
        return record.is_done or ((progress := self.progress(shard)) is not None and progress.is_done)

    def finish(self) -> JobRecord:
        """Note that every shard has everything, and remove the staged files; returns the record, and raises, as :meth:`committed`.

        The record stays, until there are many newer ones.
        """
        record = self.committed()
        if not self.missing_shards():
            self._close(record)
            prune(self.dataset)
        return record

    def _close(self, record: JobRecord) -> None:
        if not record.is_done:
            write_json(self.path / _DONE, msgspec.structs.replace(record, is_done=True))
            (self.path / _RECORD).unlink(missing_ok=True)
            sync_path(self.path)  # with the files gone, it must not come back
        shutil.rmtree(self.staged, ignore_errors=True)
        self._sweep({self.rejected / file.name for file in record.files if file.rejected})

    def _sweep(self, kept: Set[Path]) -> None:
        """Remove what another run of the job has set aside."""
        for entry in {*self.staged.glob("*"), *self.rejected.glob("*")} - kept:
            entry.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove what is known of a finished job, in one step; of any other, everything stays."""
        gone = self.path.with_name(f".{self.id}.{secrets.token_hex(4)}{_GONE}")
        with _locked(self.dataset):
            record = self.record()
            if record is None or not record.is_done:
                return
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    @contextmanager
    def completing(self) -> Iterator[None]:
        """Commit the job and send it in this block; an error tells how the job is completed."""
        self.path.mkdir(parents=True, exist_ok=True)
        with flocked(self.path, fcntl.LOCK_SH):
            try:
                yield
            except Exception as error:
                record = self.record()
                if record is None or record.is_done:
                    raise
                raise self.half_done(f"; {type(error).__name__}: {error}") from error

    def is_running(self) -> bool:
        """Say whether a driver is committing the job or sending it."""
        try:
            with _locked(self.dataset), flocked(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB):  # of two who ask, neither is that driver
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def half_done(self, why: str = "") -> TransferError:
        """Return the error of a job that was committed and not finished, with the ways on."""
        return TransferError(
            f"job {self.id!r} of data set {self.dataset.path} has not come to its end: run the same write again with job_id {self.id!r} "
            f'(.option("job_id", "{self.id}") of a plain write; a stream does so when its query starts again), or '
            f"`rmqstore doctor {self.dataset.path} --finish`{why}"
        )

    def _read(self, name: str, kind: type[_Content]) -> _Content | None:
        return read_json(self.path / name, kind, f"the record {self.path / name} of job {self.id!r}")


@contextmanager
def _locked(dataset: Dataset) -> Iterator[None]:
    """Let what decides about jobs happen one after the other: commit, discard, withdraw, and the beginning of a shard."""
    path = dataset.path / "jobs"
    while True:
        with flocked(path, fcntl.LOCK_EX) as held:
            # Of one that waited here, another data set may have taken the place, with a lock of its own.
            if path.exists() and os.path.samestat(os.fstat(held), path.stat()):
                yield
                return


def job_of_write(dataset: Dataset, job_id: str | None) -> Job:
    """Return the job of a write: that of the id, or a new one, refused while another is half done and idle, which it may be again."""
    if job_id is not None:
        return Job(dataset, job_id)
    for job in unfinished_jobs(dataset):
        if not job.is_running():
            raise job.half_done("; a write of other rows meanwhile needs a job_id of its own")
    return Job(dataset, secrets.token_hex(8))


def jobs_of(dataset: Dataset) -> list[Job]:
    """Return the jobs of a data set, by id."""
    folder = dataset.path / "jobs"
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        # No id begins with a dot, as the lock and what is on its way out do.
        return [Job(dataset, name) for name in sorted(entry.name for entry in entries if _ID.fullmatch(entry.name) and entry.is_dir())]


def unfinished_jobs(dataset: Dataset) -> list[Job]:
    """Return the jobs that were committed and not finished."""
    return [job for job in jobs_of(dataset) if job.is_unfinished()]


def job_under_way(dataset: Dataset, shard: int) -> Job | None:
    """Return a job that a shard has begun with and not finished, so that time must not go on there; None when there is none."""
    for job in unfinished_jobs(dataset):
        progress = job.progress(shard)
        if progress is not None and not progress.is_done:
            return job
    return None


def prune(dataset: Dataset, kept: int = KEPT_JOBS) -> None:
    """Forget the oldest of the finished jobs when there are a tenth more than ``kept``.

    Those that were given up stay, and the last one of each query, which Spark runs again when it was killed behind it.
    """
    folder = dataset.path / "jobs"
    if sum(1 for _ in folder.iterdir()) <= kept + kept // 10:
        return
    for left in folder.glob(f".*{_GONE}"):
        shutil.rmtree(left, ignore_errors=True)
    with suppress(FileNotFoundError):  # another driver is at it, too
        ended = [((job.path / _DONE).stat().st_mtime_ns, job) for job in jobs_of(dataset) if (job.path / _DONE).is_file()]
        last: dict[str, int] = {}
        for found in filter(None, (_MICRO_BATCH.fullmatch(job.id) for _, job in ended)):
            last[found[1]] = max(int(found[2]), last.get(found[1], 0))
        stays = {f"{query}-{number}" for query, number in last.items()}
        for _, job in sorted(ended, key=lambda each: each[0])[: max(len(ended) - kept, 0)]:
            record = job.record()
            if record is not None and not record.is_dropped and job.id not in stays:
                job.forget()


@contextmanager
def unchanged(dataset: Dataset) -> Iterator[None]:
    """Let no job be committed for a while, when the data set is still what it was when it was opened here; who changes it is in this."""
    with _locked(dataset):
        if Dataset.open(dataset.path).manifest != dataset.manifest:
            raise TransferError(f"data set {dataset.path} was moved, or began to be, since its manifest was read here; run it again")
        yield


@contextmanager
def at_rest(dataset: Dataset) -> Iterator[None]:
    """Let no job be committed for a while, when none is half done; as :func:`unchanged`."""
    with unchanged(dataset):
        check_no_job_waits(dataset)
        yield


def copy_finished(source: Dataset, target: Dataset) -> None:
    """Let a data set that has every message of another one know which jobs brought them, which were given up, and what they rejected."""
    (target.path / "jobs").mkdir()
    for job in jobs_of(source):
        record = job.record()
        if record is not None and record.is_done:
            same = Job(target, job.id)
            same.path.mkdir()
            if record.rejected and job.rejected.is_dir():
                same.rejected.mkdir()
                for file in (each for each in record.files if each.rejected):
                    try:
                        deque(read_rejected(job.rejected / file.name, file), maxlen=0)
                    except CorruptStoreError as error:
                        error.args = (f"{error}; restore it from a copy, or remove {job.rejected} to go on without what the job rejected",)
                        raise
                    sync_path(shutil.copyfile(job.rejected / file.name, same.rejected / file.name))
                sync_path(same.rejected)
            write_json(same.path / _DONE, record)
            for own, copy in ((job.path / _DONE, same.path / _DONE), (job.path, same.path)):
                shutil.copystat(own, copy)  # the oldest go first, there too


def check_no_job_waits(dataset: Dataset) -> None:
    """Refuse to move a data set while a job is half done: time that goes on makes its marks forgotten."""
    for job in unfinished_jobs(dataset):
        raise job.half_done()
