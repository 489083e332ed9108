"""What ``rmqstore load-test`` asks for, checked before anything runs, and played engine by engine."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from rmqstore.errors import IllegalArgumentError, UnsupportedOperationError
from rmqstore.plugins import EngineState, get_plugins
from rmqstore.spark.failures import typed
from rmqstore.spark.sessions import session, why_not
from rmqstore_benchmarks.load.owner import held
from rmqstore_benchmarks.load.plan import Failure, Plan, chunk_for
from rmqstore_benchmarks.load.run import (
    Begun,
    Outcome,
    done_of,
    forget_audit,
    job_names,
    read_begun,
    read_outcome,
    run_load,
    unfinished,
    write_begun,
)
from rmqstore_benchmarks.machine import default_directory

_QUICK_MESSAGES: Final = 50_000
_CLUSTER: Final = "local-cluster[2,1,1024]"
"""A master and two workers in the process of Spark, whose executors, of a core and 1024 MiB each, are processes of their own."""

_LOCAL_WITHOUT_RETRIES: Final = re.compile(r"local(\[[^,\]]*\]|\[[^,\]]*,\s*1\])?")

Told = Callable[[str, str, int, int], None]
"""Is told the engine and the name of each job before it starts, or when it is done; and its number, of how many."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command.

    Attributes:
        engines: names; all durable ones that are installed when empty.
        failures: names of failures, or ``none`` alone; all that the place can show when empty.
        master: a Spark cluster, or None for this machine.
        cluster: let executors be processes of their own on this machine.
        served: reach each store through a process that serves it.
        directory: where the stores go; every executor must reach it.
        keep: a new directory in which everything stays; overrides ``directory``.
        resume: the directory of a load test that was begun; all else is said by it.
        audit: that of one that has played its rounds: its stores are read once more, and its ledger closed.
    """

    engines: Sequence[str] = ()
    messages: int = 20_000
    shards: int = 4
    seed: int = 0
    failures: Sequence[str] = ()
    master: str | None = None
    cluster: bool = False
    served: bool = False
    directory: Path | None = None
    keep: Path | None = None
    resume: Path | None = None
    audit: Path | None = None

    @property
    def there(self) -> Path | None:
        """The directory of a load test that was begun before."""
        return self.resume or self.audit


def durable_engines() -> list[str]:
    """Return the installed engines whose stores outlive a process."""
    infos = [entry.info for entry in get_plugins().engines() if entry.state is EngineState.OK and entry.info is not None]
    return [info.name for info in infos if not info.capabilities.keeps_nothing]


def plans(request: Request) -> list[Plan]:
    """Check a request and return a plan for each engine, with its directory relative to that of the load test; nothing is made.

    Raises:
        IllegalArgumentError: naming what is wrong.
        UnknownEngineError, EngineNotInstalledError, BrokenEngineError: an engine cannot be used.
        UnsupportedOperationError: an engine keeps nothing, so it has nothing to show.
    """
    for name, number in (("--messages", request.messages), ("--shards", request.shards)):
        if number < 1:
            raise IllegalArgumentError(f"{name} must be at least 1, not {number}")
    if request.messages < request.shards:
        raise IllegalArgumentError(f"--messages {request.messages} is less than --shards {request.shards}: a shard would be empty")
    if not 0 <= request.seed < 2**63:
        raise IllegalArgumentError(f"--seed must be 0 to 2**63 - 1, not {request.seed}")
    failures = _failures(request)
    engines = list(dict.fromkeys(request.engines)) or durable_engines()
    if not engines:
        raise IllegalArgumentError("no durable engine is installed; for example: pip install 'rmqstore[all]'")
    for engine in engines:
        get_plugins().load_engine(engine)
        if engine not in durable_engines():
            raise UnsupportedOperationError(
                f"engine {engine!r} keeps nothing beyond its process, and a load test moves stores from task to task"
            )
    chunk = chunk_for(request.messages, request.shards)
    plan = Plan("", "", request.messages, request.shards, request.seed, failures, chunk=chunk, is_served=request.served)
    return [msgspec.structs.replace(plan, engine=engine, directory=engine) for engine in engines]


def run(request: Request, told: Told = lambda engine, job, number, jobs: None) -> Iterator[Outcome]:
    """Play a request, engine by engine.

    An engine whose ledger was closed gives its outcome again, without Spark.

    Raises:
        IllegalArgumentError: the request, or this machine, does not allow it; nothing was run.
        FileExistsError: ``keep`` exists.
        StoreLockedError: another process plays what is to be resumed, or audited.
        UnfinishedError: an error ended it; the message says where it can be resumed.
    """
    begun = _begun(request)
    if request.keep is not None and request.keep.exists():
        raise FileExistsError(f"{request.keep} exists already; name a new directory, or remove it")
    directory = request.directory or default_directory()
    if not directory.is_dir():
        raise IllegalArgumentError(f"--directory {directory} is no directory")
    is_ended = request.resume is not None and all(read_outcome(plan) is not None for plan in begun.plans)
    if not is_ended and (reason := why_not()):
        raise IllegalArgumentError(f"the load test cannot run: {reason}")
    numbers, jobs = itertools.count(), sum(len(job_names(plan)) for plan in begun.plans)
    with _root(request, directory, begun) as root, ExitStack() as stack:
        if request.audit is not None:
            for plan in begun.plans:
                forget_audit(plan)
        spark = None
        if not is_ended:
            is_quick = all(plan.messages <= _QUICK_MESSAGES for plan in begun.plans)
            spark = stack.enter_context(session(_CLUSTER if begun.cluster else begun.master, name="rmqstore load-test", quick=is_quick))
        for plan in begun.below(root).plans:

            def tell(job: str, engine: str = plan.engine) -> None:
                told(engine, job, next(numbers), jobs)

            yield run_load(spark, plan, tell)


def _begun(request: Request) -> Begun:
    if request.there is None:
        return Begun(plans=tuple(plans(request)), master=request.master, cluster=request.cluster)
    begun = read_begun(request.there.resolve())
    if request.audit is not None:
        for plan in begun.plans:
            if undone := [job for job in job_names(plan)[:-2] if done_of(plan, job) is None]:
                raise IllegalArgumentError(
                    f"--audit {request.audit}: {undone[0]} of {plan.engine} was not played to its end; --resume goes on there"
                )
    return begun


def _failures(request: Request) -> tuple[Failure, ...]:
    if request.cluster and request.master is not None:
        raise IllegalArgumentError("--cluster and --master exclude each other; give one")
    names = [name for given in request.failures for name in given.split(",")]
    known = [failure.value for failure in Failure]
    if names == ["none"]:
        return ()
    for name in names:
        if name not in known:
            raise IllegalArgumentError(f"--failures {name!r} is none of {', '.join(known)}; or give none alone")
    needs = {Failure.EXECUTOR: (request.cluster, "--cluster, whose"), Failure.OWNER: (request.served, "--served, whose")}
    absent = {failure.value: words for failure, (is_there, words) in needs.items() if not is_there}
    wanted = names or [name for name in known if name not in absent]
    failures = tuple(failure for failure in Failure if failure.value in wanted)
    for name in wanted:
        if name in absent:
            raise IllegalArgumentError(f"--failures {name} needs {absent[name]} processes can be killed")
    if (
        {Failure.TASK, Failure.WORKER}.intersection(failures)
        and request.master is not None
        and _LOCAL_WITHOUT_RETRIES.fullmatch(request.master)
    ):
        raise IllegalArgumentError(f"--master {request.master} never tries a task again; local[2,4] has two slots and four attempts")
    return failures


@contextmanager
def _root(request: Request, directory: Path, begun: Begun) -> Iterator[Path]:
    """Give the directory of the load test, held; one that nobody named is removed, unless an error ended what was begun there."""
    made: Path | None = None
    if request.there is not None:
        root = request.there.resolve()
    elif request.keep is not None:
        request.keep.mkdir(parents=True)
        root = request.keep.resolve()
    else:
        root = made = Path(tempfile.mkdtemp(prefix="rmqstore-load-", dir=directory)).resolve()
    try:
        if request.there is None:
            write_begun(root, begun)
        with held(root, f"the load test in {root} is played by another process; wait for its end, or end it"):
            try:
                yield root
            except Exception as error:
                if not any(Path(plan.directory).exists() for plan in begun.below(root).plans):
                    raise
                made = None
                raise unfinished(root, begun.below(root), typed(error)) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
