"""The load test as Spark jobs: rounds, drain, audit, and the ledger closed in SQL; and its directory, from which another process goes on.

Each job ends in one action, since Spark runs a task's writing once per action. Counts and the first faults come back to the driver.

``load-test.json`` has the plans of all engines and where they run; ``ENGINE/done/JOB.json`` is the mark of a job, with what the jobs behind
it and the report need of it. What a job does is safe to do again, as Spark does it again when a task fails: what is stored is recognised by
its marks, and the ledger knows what every attempt was told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from rmqstore.errors import CorruptStoreError, FormatVersionError, IllegalArgumentError, RmqstoreError
from rmqstore.spark.dataset import write_json
from rmqstore_benchmarks.load.clients import run_round
from rmqstore_benchmarks.load.closing import FOUND, Closed, audit, close_ledger
from rmqstore_benchmarks.load.ledger import SCHEMA, files_of, table_of
from rmqstore_benchmarks.load.plan import VERSION, Failure, Plan, note_once, noted, of_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ---------------------------------------------------------------- the directory

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


def write_begun(root: Path, begun: Begun) -> None:
    """Write what a load test in ``root`` begins with."""
    write_json(root / _FILE, begun.below(Path()))


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
            f"{root} has no load test, for it has no {_FILE}; name the directory that --keep made, or that an ended run told of"
        ) from None
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
        version = found.get("version", VERSION)
        if version == VERSION:
            return msgspec.convert(found, Begun).below(root)
    except msgspec.MsgspecError as error:
        raise CorruptStoreError(f"{file} is damaged ({error}), so the load test cannot be resumed", file=str(file)) from error
    raise FormatVersionError(
        f"{file} has a plan of version {version}, and this rmqstore plays version {VERSION}: resume it with the rmqstore that began it"
    )


def mark_done(plan: Plan, job: str, done: Done) -> None:
    """Note durably that a job is done."""
    write_json(_mark(plan, job), done)


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


def forget_audit(plan: Plan) -> None:
    """Let the audit of a plan, and what comes behind it, be done once more."""
    for name in reversed(job_names(plan)[-2:]):
        _mark(plan, name).unlink(missing_ok=True)


def unfinished(root: Path, begun: Begun, error: Exception) -> UnfinishedError:
    """Return what to tell of a load test that ``error`` ended."""
    jobs = [(plan.engine, job, done_of(plan, job) is not None) for plan in begun.plans for job in job_names(plan)]
    where = next((f"{engine}: {job}" for engine, job, is_done in jobs if not is_done), "the end")
    done: dict[str, list[str]] = {}
    for engine, job, is_done in jobs:
        if is_done:
            done.setdefault(engine, []).append(job)
    parts = [f"{engine}: {', '.join(names)}" for engine, names in done.items()]
    what = str(error) if isinstance(error, RmqstoreError) else f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return UnfinishedError(
        f"the load test ended in {where}. {what.rstrip('.')}. Done: {'; '.join(parts) or 'no job'}. "
        f"Stores, ledger and tables are in {root}; to go on there: rmqstore load-test --resume {root}"
    )


def _mark(plan: Plan, job: str) -> Path:
    return plan.done_path() / f"{job.replace(' ', '-')}.json"


def job_names(plan: Plan) -> list[str]:
    """Return the names of the jobs of a plan, in order."""
    return [*(f"round {number + 1}" for number in range(plan.rounds)), "drain", "audit", "ledger"]


# ---------------------------------------------------------------- the jobs

Batches = Iterator[pa.RecordBatch]
Told = Callable[[str], None]
_LOOK_AGAIN_S: Final = 0.02


class Outcome(msgspec.Struct, frozen=True):
    """What one engine's load test gave.

    Attributes:
        injected: how often each failure that was asked for happened.
        job_s: wall time of each job; of one that was done again, that of the last time.
    """

    plan: Plan
    closed: Closed
    injected: dict[str, int]
    job_s: dict[str, float]

    def problems(self) -> list[str]:
        """Return one sentence for everything that is wrong, none when the ledger closes."""
        closed = self.closed
        found = [f"{ids:,} ids: {fault}" for fault, ids in closed.faults.items()]
        found += closed.broken
        if not found and not closed.is_closed:
            found.append(f"{closed.ids:,} ids, but {sum(closed.states.values()) - closed.states['none']:,} ends")
        found += [f"no {failure} failed, though that was asked for" for failure, times in self.injected.items() if not times]
        return found


def run_load(spark: SparkSession | None, plan: Plan, told: Told = lambda job: None) -> Outcome:
    """Play a plan and close its ledger; goes on behind the last job that is done, if the plan was begun before.

    Args:
        spark: None if all jobs are done.
        told: called with the name of each job before it starts.
    """
    plan.make_directories()
    rounds = [partial(_played, round_=round_) for round_ in range(plan.rounds + 1)]
    acts: list[Callable[[SparkSession, Plan], Closed | None]] = [*rounds, _audited, close_ledger]
    for name, act in zip(job_names(plan), acts, strict=True):
        told(name)
        if spark is not None and done_of(plan, name) is None:
            start_s = time.perf_counter()
            closed = act(spark, plan)
            mark_done(plan, name, Done(time.perf_counter() - start_s, closed))
    outcome = read_outcome(plan)
    assert outcome is not None, "every job has its mark"
    return outcome


def read_outcome(plan: Plan) -> Outcome | None:
    """Return what the load test of a plan gave, by the marks of its jobs; None when it has not ended."""
    done = {name: each for name in job_names(plan) if (each := done_of(plan, name)) is not None}
    closed = next((each.closed for each in done.values() if each.closed is not None), None)
    if closed is None or len(done) < len(job_names(plan)):
        return None
    counts = {failure: noted(plan.injected_path(), failure) for failure in plan.failures} | {Failure.CONSUMER: closed.deaths}
    injected = {failure.value: counts[failure] for failure in plan.failures}
    return Outcome(plan, closed, injected, {name: each.seconds for name, each in done.items()})


def _each_number(act: Callable[[int], Batches]) -> Callable[[Batches], Batches]:
    """Return the function of a Spark task: does ``act`` for every number in its rows."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from act(number)

    return run


def _played(spark: SparkSession, plan: Plan, round_: int) -> None:
    """Play a round on all shards."""
    due = of_round(plan.failures, round_, plan.rounds)
    copies = 2 if Failure.TWIN in due else 1
    tasks = plan.shards * copies

    def act(number: int) -> Batches:
        shard, copy = divmod(number, copies)  # copies of a shard are neighbours, so that they run at the same time
        run_round(plan, shard, round_)
        if copy:
            note_once(plan.injected_path(), Failure.TWIN, round_, shard)
        yield pa.record_batch({"number": [number]})

    made = spark.range(0, tasks, 1, tasks).mapInArrow(_each_number(act), "number long")
    with _killed(spark, plan, round_) if Failure.EXECUTOR in due else nullcontext():
        made.write.format("noop").mode("append").save()


def _audited(spark: SparkSession, plan: Plan) -> None:
    """Write the tables of what the stores hold and what the clients were told, over what an audit that ended early left."""
    from pyspark.sql.pandas.types import from_arrow_schema

    shards = spark.range(0, plan.shards, 1, plan.shards)
    told = _each_number(lambda shard: table_of(plan.ledger_path(shard)))
    for name, task, schema in (("found", _each_number(partial(audit, plan)), FOUND), ("told", told, SCHEMA)):
        shards.mapInArrow(task, from_arrow_schema(schema)).write.mode("overwrite").parquet(plan.table_path(name))


@contextmanager
def _killed(spark: SparkSession, plan: Plan, round_: int) -> Iterator[None]:
    """Kill the executors as soon as a task of the round has opened a store; Spark starts others.

    Of a cluster on this machine they are children of Spark's own process, beside Python processes of the driver. All are killed, as
    it is unknown which of them has the task.
    """
    before, is_over = _opened(plan), threading.Event()

    def kill() -> None:
        while _opened(plan) == before:
            if is_over.wait(_LOOK_AGAIN_S):
                return
        if note_once(plan.injected_path(), Failure.EXECUTOR, round_):
            jvm: Any = spark.sparkContext._jvm
            for child in jvm.java.lang.ProcessHandle.current().children().toArray():
                if child.info().command().orElse("").endswith("java"):
                    child.destroyForcibly()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            yield
        finally:
            is_over.set()
        killing.result()


def _opened(plan: Plan) -> int:
    return sum(len(files_of(plan.ledger_path(shard))) for shard in range(plan.shards))
