"""``rmqstore bench report``: make a page, pictures and verdicts of a run of the grid; needs ``rmqstore-benchmarks[report]``."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated, Final

import typer
from rich.text import Text

from rmqstore.cli import show
from rmqstore.cli.options import examples
from rmqstore.errors import IllegalArgumentError

EXAMPLES: Final = examples("rmqstore bench report bench-results", "rmqstore bench report bench-results --out docs/benchmark")


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where `rmqstore bench run` left its results.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", metavar="OUT", help="Where the report goes; DIR/report if not given.")] = None,
) -> None:
    """Make the report on a run of the grid.

    Writes report.html, which needs no other file, report.md, and a picture and a CSV file for each figure, as well as summary.parquet with
    all medians. Needs neither an engine nor Java: pip install 'rmqstore-benchmarks[report]'.
    """
    made = _making().make(directory, out if out is not None else directory / "report")
    for title, finding in made.findings.items():
        show.line(Text.assemble((f"{title}: ", "bold"), finding))
    for name, verdict in made.verdicts.items():
        show.line(Text.assemble(("claim, ", "bold"), (name, "bold"), f": {verdict.value}"))
    for plot in made.left_out:
        show.note(f"left out: {plot.title}; it needs {plot.needs}")
    show.note(made.outcomes)
    show.line(f"report: {made.page}")


def _making() -> ModuleType:
    try:
        return importlib.import_module("rmqstore_benchmarks.report.making")
    except ImportError as error:
        raise IllegalArgumentError(f"the report cannot be made ({error}): pip install 'rmqstore-benchmarks[report]'") from error
