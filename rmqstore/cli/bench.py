"""``rmqstore bench``: compare the engines by load from Spark; needs the benchmarks, ``rmqstore-benchmarks``."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rmqstore.cli import show
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import examples
from rmqstore.cli.show import Column
from rmqstore.errors import IllegalArgumentError

RUN_EXAMPLES: Final = examples(
    "rmqstore bench run benchmarks/specs/small.toml --out build/small",
    "rmqstore bench run full.toml --out full --stores /mnt/disk",
    "rmqstore bench run full.toml --out full --master spark://host:7077",
)
WORKLOADS_EXAMPLES: Final = examples("rmqstore bench workloads")

_COLUMNS: Final = (Column("workload"), Column("cancelled", right=True), Column("acked", right=True), Column("about", long=True))


def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="TOML file that says what is measured.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the results go; a run that was ended goes on there.")],
    stores: Annotated[
        Path | None, typer.Option("--stores", metavar="DIR", help="Where the stores go: the disk to measure. [default: /var/tmp]")
    ] = None,
    master: Annotated[str | None, typer.Option("--master", metavar="URL", help="Spark cluster; this machine if left out.")] = None,
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
    with _Told(checked.runs) as told:
        outcomes = harness.run_grid(checked, out, place, master=master, command=command, tell=told.take)
    total = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    show.line(f"{show.count(sum(outcomes.values()), 'run')}: {total}; results: {out / 'results'}")
    if set(outcomes) - {"ok"}:
        raise typer.Exit(EXIT_NOT_DONE)


def workloads() -> None:
    """List the workloads that a specification can name."""
    named = _part("grid.named").named_workloads()
    show.table(_COLUMNS, [[each.name, f"{each.cancelled:.0%}", f"{each.acked:.0%}", each.about] for each in named.values()])


def _part(name: str) -> Any:
    try:
        return importlib.import_module(f"rmqstore_benchmarks.{name}")
    except ImportError as error:
        raise IllegalArgumentError(f"the benchmarks cannot be imported ({error}): pip install 'rmqstore-benchmarks[spark]'") from error


class _Told:
    """Shows on stderr where a grid is: a bar on a terminal, and a line for each run that ends."""

    def __init__(self, runs: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._console = show.error_console()
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._bar = self._progress.add_task("Spark starts", total=runs)

    def __enter__(self) -> _Told:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def take(self, told: Any) -> None:
        """Show one message of the harness."""
        self._progress.update(self._bar, description=told.run_id, completed=told.done)
        if told.outcome:
            reason = f": {told.reason}" if told.reason else ""
            self._progress.console.print(f"{told.done}/{told.runs} {told.run_id} {told.outcome}{reason}", soft_wrap=True)
