"""The load test as Spark jobs: rounds, drain, audit, and the ledger closed in SQL.

Each job ends in one action, since Spark runs a task's writing once per action. What comes back to the driver are sums and the first faults.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from rmqstore_benchmarks.histogram import percentile
from rmqstore_benchmarks.load.audit import FOUND, audit
from rmqstore_benchmarks.load.calls import CALLS
from rmqstore_benchmarks.load.closing import Closed, close_ledger
from rmqstore_benchmarks.load.failures import Failure, Note, note_once, notes, of_round
from rmqstore_benchmarks.load.ledger import TABLE, files_of, table_of
from rmqstore_benchmarks.load.plan import Plan
from rmqstore_benchmarks.load.rounds import run_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqstore.spark.standalone import StandaloneCluster

Batches = Iterator[pa.RecordBatch]
Told = Callable[[str], None]
_LOOK_AGAIN_S: Final = 0.02


class Op(msgspec.Struct, frozen=True):
    """Calls of one kind: how many, how many messages they moved, the time they took together, s, and the latency of one, ms."""

    calls: int
    messages: int
    seconds: float
    p50_ms: float
    p99_ms: float


class Outcome(msgspec.Struct, frozen=True):
    """What one engine's load test gave.

    Attributes:
        injected: how often each failure that was asked for happened.
        ops: the calls of attempts that ended well, by name.
        job_s: wall time of each job.
    """

    plan: Plan
    closed: Closed
    injected: dict[str, int]
    ops: dict[str, Op]
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


def run_load(
    spark: SparkSession, plan: Plan, told: Told = lambda job: None, *, cluster: StandaloneCluster | None = None, victim: int = 0
) -> Outcome:
    """Play a plan and close its ledger; its directory must not exist yet.

    Args:
        told: called with the name of each job before it starts.
        cluster: where executors can be killed.
        victim: the worker of ``cluster`` that is killed.
    """
    plan.make_directories()
    job_s: dict[str, float] = {}
    cells: Counter[tuple[str, int, str]] = Counter()

    @contextmanager
    def job(name: str) -> Iterator[None]:
        told(name)
        start_s = time.perf_counter()
        yield
        job_s[name] = time.perf_counter() - start_s

    for round_ in range(plan.rounds + 1):
        due = of_round(plan.failures, round_, plan.rounds)
        killing = _killed(cluster, plan, round_, victim) if cluster is not None and Failure.EXECUTOR in due else nullcontext()
        with job(job_names(plan)[round_]), killing:
            cells += _play(spark, plan, round_, copies=2 if Failure.TWIN in due else 1)
    with job("audit"):
        shards = spark.range(0, plan.shards, 1, plan.shards)
        shards.mapInArrow(_Task(plan, _audit), FOUND).write.parquet(plan.table_path("found"))
        shards.mapInArrow(_Task(plan, _told), TABLE).write.parquet(plan.table_path("told"))
    with job("ledger"):
        closed = close_ledger(spark, plan)
    return Outcome(plan, closed, _injected(plan, closed), _ops(cells), job_s)


class _Task:
    """The function of a Spark task: does ``act`` for every shard that its rows name."""

    def __init__(self, plan: Plan, act: Callable[[Plan, int], Batches], copies: int = 1) -> None:
        self._plan, self._act, self._copies = plan, act, copies

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                # Copies of a shard are neighbours, so that they run at the same time.
                yield from self._act(self._plan, number // self._copies)


class _Round:
    """What a task does in a round."""

    def __init__(self, round_: int) -> None:
        self._round = round_

    def __call__(self, plan: Plan, shard: int) -> Batches:
        yield run_round(plan, shard, self._round)


def _audit(plan: Plan, shard: int) -> Batches:
    return audit(plan, shard)


def _told(plan: Plan, shard: int) -> Batches:
    return table_of(plan.ledger_path(shard), shard)


def _play(spark: SparkSession, plan: Plan, round_: int, copies: int) -> Counter[tuple[str, int, str]]:
    """Play a round on all shards and return the sums of its calls by kind, bucket and column."""
    from pyspark.sql import functions

    tasks = plan.shards * copies
    made = spark.range(0, tasks, 1, tasks).mapInArrow(_Task(plan, _Round(round_), copies), CALLS)
    sums = [functions.sum(name).alias(name) for name in ("calls", "messages", "ns")]
    found: Counter[tuple[str, int, str]] = Counter()
    for row in made.groupBy("op", "bucket").agg(*sums).collect():
        for name in ("calls", "messages", "ns"):
            found[row["op"], row["bucket"], name] += row[name]
    return found


@contextmanager
def _killed(cluster: StandaloneCluster, plan: Plan, round_: int, victim: int) -> Iterator[None]:
    """Kill a worker of the cluster, with its executor, as soon as a task of the round has opened a store; another one takes its place."""
    before = _opened(plan)
    is_over = threading.Event()
    errors: list[BaseException] = []

    def kill() -> None:
        try:
            while not is_over.wait(_LOOK_AGAIN_S):
                if _opened(plan) > before:
                    if note_once(plan.injected_path(), Note(Failure.EXECUTOR.value, round_, -1)):
                        cluster.kill_worker(victim)
                        cluster.add_worker()
                    return
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


def _opened(plan: Plan) -> int:
    return sum(len(files_of(plan.ledger_path(shard))) for shard in range(plan.shards))


def _injected(plan: Plan, closed: Closed) -> dict[str, int]:
    noted = Counter(note.failure for note in notes(plan.injected_path()))
    # Attempts that ended well beyond one for each shard and job; a lost executor may let Spark play a task again, which is no twin.
    twins = closed.attempts - closed.died - plan.shards * (plan.rounds + 1)
    counted = {Failure.TWIN: max(min(plan.shards, twins), 0), Failure.CONSUMER: closed.deaths}
    return {failure.value: counted.get(failure, noted[failure.value]) for failure in plan.failures}


def _ops(cells: Counter[tuple[str, int, str]]) -> dict[str, Op]:
    found: dict[str, Op] = {}
    for op in sorted({op for op, _, _ in cells}):
        counts = {bucket: number for (name, bucket, column), number in cells.items() if name == op and column == "calls"}
        total = {column: sum(n for (name, _, each), n in cells.items() if name == op and each == column) for column in ("messages", "ns")}
        p50_ms, p99_ms = (percentile(counts, share) / 1e6 for share in (0.5, 0.99))
        found[op] = Op(sum(counts.values()), total["messages"], total["ns"] / 1e9, p50_ms, p99_ms)
    return found


def job_names(plan: Plan) -> list[str]:
    """Return the names of the jobs of a plan, in order."""
    return [*(f"round {number + 1}" for number in range(plan.rounds)), "drain", "audit", "ledger"]


def check_new(directory: Path) -> None:
    """Refuse a directory that exists.

    Raises:
        FileExistsError: naming it.
    """
    if directory.exists():
        raise FileExistsError(f"{directory} exists already; name a new directory, or remove it")
