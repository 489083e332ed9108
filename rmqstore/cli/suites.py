"""``rmqstore conformance``, ``bench`` and ``load-test``: refute an engine, compare the engines, account for every message.

They need distributions of their own: ``rmqstore-conformance``, or ``rmqstore-benchmarks``.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.text import Text

from rmqstore.cli import show
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import EnginesOption, complete_engine, examples, imported
from rmqstore.errors import IllegalArgumentError

_STYLES: Final = {"pass": "green", "fail": "bold red", "declared absent": "dim", "not run": "yellow"}


@examples(
    "rmqstore conformance memory",
    "rmqstore conformance acme --level extended --report acme.html --report acme.json",
    "rmqstore conformance acme --pop-engine memory",
    "rmqstore conformance --explain T6",
)
def conformance(
    name: Annotated[
        str | None,
        typer.Argument(metavar="ENGINE", help="Engine to refute; of the timers, if there are two.", autocompletion=complete_engine),
    ] = None,
    pop_engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Engine of the pops, if it is another.", autocompletion=complete_engine)
    ] = None,
    level: Annotated[Literal["core", "extended", "full"], typer.Option(help="How far to go.")] = "core",
    report: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Write a .json, .md or .html report.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of every store that is opened.")] = None,
    case: Annotated[str | None, typer.Option(metavar="WORDS", help="Only cases that match, as `pytest -k`.")] = None,
    seed: Annotated[str, typer.Option(metavar="N", help="Seed of all that is random; fresh: a new one.")] = "0",
    effort: Annotated[float, typer.Option(metavar="X", help="So many times the kills, disk states, failing calls.")] = 1.0,
    recorder: Annotated[
        Literal["strace", "fuse"], typer.Option(help="Who sees what a store writes; fuse also what goes through mappings.")
    ] = "strace",
    suite_version: Annotated[str | None, typer.Option(help="Leave out cases that are newer.")] = None,
    plugin: Annotated[list[str] | None, typer.Option(metavar="MODULE", help="Module that announces the engine.")] = None,
    expect_failure: Annotated[list[str] | None, typer.Option(metavar="CASE=REASON", help="A case that must fail, and why.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; more than one needs pytest-xdist.")] = 1,
    explain: Annotated[str | None, typer.Option(metavar="CLAUSE", help="Say what a clause promises, and its cases.")] = None,
) -> None:
    """Try to refute a storage engine, clause by clause.

    Ends with 3 when a clause is broken. The suite is a distribution of its own: pip install rmqstore-conformance.
    """
    command = imported("rmqstore_conformance.command", "the conformance suite cannot be imported", "rmqstore-conformance")
    if explain is not None:
        for line in command.explanation(explain):
            show.line(line)
        return
    if name is None:
        raise typer.BadParameter("name an engine; `rmqstore engines` lists them", param_hint="ENGINE")
    options = [("engine", name), ("pop-engine", pop_engine), ("level", level), ("recorder", recorder)]
    options += [("seed", seed), ("effort", str(effort)), ("suite-version", suite_version)]
    options += [("report", str(Path.cwd() / file)) for file in report or []]
    options += [("config", each) for each in setting or []]
    options += [("plugin", each) for each in plugin or []]
    options += [("expect-failure", each) for each in expect_failure or []]
    given = [word for option, value in options if value for word in (f"--rmq-{option}", value)]
    given += ["-k", case] if case else []
    is_broken = False
    for found in command.run(given, workers=workers):
        is_broken |= _show_verdicts(found, command)
    for file in report or []:
        show.line(f"report: {file}")
    if is_broken:
        raise typer.Exit(EXIT_NOT_DONE)


def _show_verdicts(found: Any, command: ModuleType) -> bool:
    """Print what came out for one pair of engines; returns whether something is broken."""
    for each in found.clauses:
        word = each.outcome.value
        counts = ", ".join(f"{number} {outcome.value}" for outcome, number in each.counts.items() if number)
        show.line(Text.assemble((f"{each.clause.id:4}", "bold"), (f"{word:16}", _STYLES.get(word, "")), f"{each.clause.title:40} {counts}"))
    show.line()
    for note in found.notes + command.not_run(found):
        show.line(f"note: {note}")
    for case, text in command.evidence(found):
        show.line(f"{case}: {text}")
    for text in command.failures(found):
        show.line(text)
    show.line(Text(found.headline, "bold"))
    return found.reached is None or found.reached < found.header.level


# ---------------------------------------------------------------- bench


@examples(
    "rmqstore bench run benchmarks/specs/small.toml --out build/small",
    "rmqstore bench run full.toml --out full --stores /mnt/disk",
    "rmqstore bench run full.toml --out full --master spark://host:7077",
)
def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="TOML file that says what is measured.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results go; a run that was ended goes on there.")],
    stores: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the stores go: the disk to measure. [default: /var/tmp]")
    ] = None,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark cluster; this machine if left out.")] = None,
) -> None:
    """Measure engines on a grid of workloads, sizes and backlogs.

    Spark runs one cell after the other, one task a store, and keeps each as soon as it is done. Results are Parquet tables in DIR/results.
    Ends with 3 when a run failed, or an engine lost or doubled a message; such a run has no figures.
    """
    harness, specs, machine = (_part(name) for name in ("grid.harness", "grid.spec", "machine"))
    checked = specs.read_spec(spec)
    place = stores if stores is not None else machine.default_directory()
    if not place.is_dir():
        raise IllegalArgumentError(f"--stores: {place} is no directory")
    command = shlex.join(["rmqstore", *sys.argv[1:]])
    with show.progress("{task.description}", MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("Spark starts", total=checked.runs)

        def tell(told: Any) -> None:
            progress.update(bar, description=told.run_id, completed=told.done)
            if told.outcome:
                reason = f": {told.reason}" if told.reason else ""
                progress.console.print(f"{told.done}/{told.runs} {told.run_id} {told.outcome}{reason}", soft_wrap=True)

        outcomes = harness.run_grid(checked, out, place, master=master, command=command, tell=tell)
    total = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    show.line(f"{show.count(sum(outcomes.values()), 'run')}: {total}; results: {out / 'results'}")
    if set(outcomes) - {"ok"}:
        raise typer.Exit(EXIT_NOT_DONE)


@examples("rmqstore bench workloads")
def workloads() -> None:
    """List the workloads that a specification can name."""
    named = _part("grid.named").named_workloads()
    rows = (
        {"workload": each.name, "cancelled": f"{each.cancelled:.0%}", "acked": f"{each.acked:.0%}", "about": each.about}
        for each in named.values()
    )
    show.table(rows, long=["about"], right=["cancelled", "acked"])


def _part(name: str) -> ModuleType:
    return imported(f"rmqstore_benchmarks.{name}", "the benchmarks cannot be imported", "rmqstore-benchmarks[spark]")


@examples("rmqstore bench report bench-results", "rmqstore bench report bench-results --out docs/benchmark")
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where `rmqstore bench run` left its results.")],
    out: Annotated[Path | None, typer.Option(metavar="OUT", help="Where the report goes; DIR/report if not given.")] = None,
) -> None:
    """Make the report on a run of the grid.

    Writes report.html, which needs no other file, report.md, and a picture and a CSV file for each figure, as well as summary.parquet with
    all medians. Needs neither an engine nor Java: pip install 'rmqstore-benchmarks[report]'.
    """
    made = imported("rmqstore_benchmarks.report.making", "the report cannot be made", "rmqstore-benchmarks[report]").make(
        directory, out if out is not None else directory / "report"
    )
    for title, finding in made.findings.items():
        show.line(Text.assemble((f"{title}: ", "bold"), finding))
    for name, verdict in made.verdicts.items():
        show.line(Text.assemble(("claim, ", "bold"), (name, "bold"), f": {verdict.value}"))
    for plot in made.left_out:
        show.note(f"left out: {plot.title}; it needs {plot.needs}")
    show.note(made.outcomes)
    show.line(f"report: {made.page}")


# ---------------------------------------------------------------- the load test


@examples(
    "rmqstore load-test",
    "rmqstore load-test --engine NAME --messages 1000000 --report load.md",
    "rmqstore load-test --cluster --failures executor,worker",
    "rmqstore load-test --served",
    "rmqstore load-test --resume load",
    "rmqstore load-test --master spark://host:7077 --directory /shared --messages 10000000 --shards 64",
)
def load_test(
    context: typer.Context,
    engine: EnginesOption = None,
    messages: Annotated[int, typer.Option(metavar="N", help="Messages of each engine.")] = 20_000,
    shards: Annotated[int, typer.Option(metavar="N", help="Stores of each engine, one task each.")] = 4,
    seed: Annotated[int, typer.Option(metavar="N", help="Decides what becomes of each message, and what fails where.")] = 0,
    failures: Annotated[
        list[str] | None,
        typer.Option(metavar="LIST", help="Of task, worker, twin, consumer, executor, owner, with commas; or none. All by default."),
    ] = None,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark cluster; this machine by default.")] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Run on two executors on this machine, and kill them.")] = False,
    served: Annotated[bool, typer.Option("--served", help="Reach each store through a process that serves it, and kill those.")] = False,
    directory: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the stores go; every executor must reach it.")] = None,
    report: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Write a .md or .json report.")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Leave stores, ledger and tables in this new directory.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with a load test that ended early, as it was begun in DIR.")
    ] = None,
    audit: Annotated[Path | None, typer.Option(metavar="DIR", help="Account once more for a load test that was kept in DIR.")] = None,
) -> None:
    """Account for every message while tasks and consumers die.

    Producers and consumers run in Spark tasks, on all durable engines by default; tasks, their processes and consumers die meanwhile. Each
    id must end exactly once: cancelled, acked, dead-lettered or pending; ends with 3 when one does not, and lists it with its history. When
    Spark or this process dies, --resume goes on behind the last job that was done; of one that has ended it shows the outcome again, and
    --audit reads its stores again. Needs Java 17, and: pip install 'rmqstore-benchmarks[spark]'
    """
    command, reporting = _part("load.command"), _part("load.report")
    for option, begun in (("resume", resume), ("audit", audit)):
        if begun is not None:
            _only(option, context)
    for file in report or []:
        reporting.check_report(file)
    request = command.Request(
        engines=engine or [],
        messages=messages,
        shards=shards,
        seed=seed,
        failures=failures or [],
        master=master,
        cluster=cluster,
        served=served,
        directory=directory,
        keep=keep,
        resume=resume,
        audit=audit,
    )
    outcomes = _played(command, request)
    rows = (dict(zip(reporting.HEADINGS, reporting.summary(outcome), strict=True)) for outcome in outcomes)
    show.table(rows, right=reporting.HEADINGS[1:])
    show.line()
    for outcome in outcomes:
        _tell(outcome, reporting)
    if report:
        machine = _part("machine").described(resume or audit or keep or directory or command.default_directory())
        for file in report:
            reporting.write_report(file, outcomes, shlex.join(["rmqstore", *_arguments()]), machine)
            show.note(f"report: {file}")
    if kept := resume or audit or keep:
        show.note(f"stores, ledger and tables are in {kept}")
    if any(outcome.problems() for outcome in outcomes):
        raise typer.Exit(EXIT_NOT_DONE)


def _only(option: str, context: typer.Context) -> None:
    """Refuse options that the plan of a load test has settled, which ``option`` goes on with."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in (option, "report") and source is not None and source.name == "COMMANDLINE":
            raise IllegalArgumentError(f"--{option} takes the load test as it was begun; leave out {parameter.opts[0]}")


def _arguments() -> list[str]:
    """Return the arguments of this process from the name of the command on."""
    given = sys.argv[1:]
    return given[given.index("load-test") :] if "load-test" in given else ["load-test"]


def _played(command: ModuleType, request: Any) -> list[Any]:
    """Run a request and show how far it is."""
    with show.progress("{task.description:28}", MofNCompleteColumn()) as progress:
        task = progress.add_task("starting Spark", total=None)

        def told(engine: str, job: str, number: int, jobs: int) -> None:
            progress.update(task, description=f"{engine}: {job}", completed=number, total=jobs)

        return list(command.run(request, told))


def _tell(outcome: Any, reporting: ModuleType) -> None:
    """Print what was made to fail, and how the ledger of one engine closes."""
    engine = outcome.plan.engine
    show.line(f"{engine}: {reporting.injected(outcome)}.")
    problems = outcome.problems()
    if not problems:
        show.line(
            Text.assemble(f"{engine}: ", ("the ledger closes", "green"), f", each of {show.count(outcome.closed.ids, 'id')} has one end.")
        )
        return
    show.line(Text.assemble(f"{engine}: ", ("the ledger does not close", "bold red")))
    for problem in problems:
        show.line(f"  {problem}")
    for fault in outcome.closed.listed:
        for line in reporting.fault_lines(fault):
            show.line(f"  {line}")
