"""What stands in a report, whatever it is written as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.claims import SOURCE, Claim, Judgement
from rmqstore_benchmarks.report.headline import NOT_TOLD, TextTable
from rmqstore_benchmarks.report.plot import Plot
from rmqstore_benchmarks.report.reading import Results

TITLE: Final = "Storage engines for timed messages, compared"
HOW: Final = (
    "Every figure is the median of the repeats of one cell, with the lowest and the highest beside it; shards of a run are added up. A run "
    "that lost, doubled or made up a message has no figure. Absolute rates hold for this machine at that hour; the ratios are what to take."
)
HEADLINE: Final = (
    "schedule: timers a second on top of the backlog; drain: hand-over, pop and ack of the same message; sustained: the mixed load under "
    "which nothing grows; written and space: bytes over user bytes, by the process while scheduling and in blocks afterwards."
)
CLAIMS: Final = f"The claims give the sense of {SOURCE}. Each verdict follows from the rule beside it, in one run on one machine."
PENDING_NOTE: Final = "Not drawn, since this run has not measured it"

_LEFT_OUT: Final = ("directory",)  # a path says nothing of a machine
_SHOWN_COLUMNS: Final = ("setting",)


class Shown(NamedTuple):
    """A figure that was drawn.

    Attributes:
        png: the picture.
    """

    plot: Plot
    table: pa.Table
    finding: str
    png: bytes


class Contents(NamedTuple):
    """A whole report.

    Attributes:
        left_out: plots whose data the run does not have.
    """

    results: Results
    headlines: list[TextTable]
    figures: list[Shown]
    left_out: list[Plot]
    claims: list[tuple[Claim, Judgement]]


def outcomes(results: Results) -> str:
    """Return how many runs ended how."""
    counts = Counter(run.outcome for run in results.runs)
    others = "".join(f", {count} {outcome}" for outcome, count in sorted(counts.items()) if outcome != "ok")
    return f"{len({run.cell.cell_id for run in results.runs})} cells, {len(results.runs)} runs: {counts['ok']} good{others}"


def bad_runs(results: Results) -> TextTable | None:
    """Return the runs that have no figure, with their reason."""
    rows = [(run.run_id, run.outcome, run.reason or NOT_TOLD) for run in results.runs if run.outcome != "ok"]
    return TextTable("", ("run", "outcome", "reason"), rows) if rows else None


def remarks(results: Results) -> TextTable | None:
    """Return what good runs have to say."""
    rows = [(run.run_id, run.reason) for run in results.runs if run.outcome == "ok" and run.reason]
    return TextTable("", ("run", "remark"), rows) if rows else None


def claim_table(claims: list[tuple[Claim, Judgement]]) -> TextTable:
    """Return claims with their verdicts."""
    rows = [(claim.side, claim.text, judgement.verdict.value, judgement.evidence, claim.rule) for claim, judgement in claims]
    return TextTable("", ("", "claim", "verdict", "figure", "rule"), rows)


def conditions(results: Results) -> TextTable:
    """Return what the figures depend on."""
    rows = [(name.replace("_", " "), text) for name, text in flat(results.environment)]
    seeds = sorted({run.seed for run in results.runs if run.seed is not None})
    if seeds:
        shown = ", ".join(map(str, seeds[:5])) + (f" and {len(seeds) - 5} more" if len(seeds) > 5 else "")
        rows.append(("seed of the runs" if len(seeds) == 1 else "seeds of the runs", shown))
    walls = [run.wall_s for run in results.runs if run.wall_s is not None]
    if walls:
        rows.append(("time of all runs", quantities.time_ms(sum(walls) * 1000)))
    settings = {run.cell.variant: ", ".join(f"{key} = {value}" for key, value in run.cell.settings) for run in results.runs}
    rows += [(f"settings of {variant}", text or "the defaults") for variant, text in sorted(settings.items())]
    return TextTable("", ("", ""), rows)


def flat(environment: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested names and values as one list; lists and the innermost mappings become one text."""
    found = []
    for name, value in environment.items():
        if name in _LEFT_OUT:
            continue
        if isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values()):
            found += flat(value, f"{prefix}{name}: ")
        elif isinstance(value, Mapping):
            found.append((f"{prefix}{name}", ", ".join(f"{key} {each}" for key, each in value.items() if key not in _LEFT_OUT)))
        elif isinstance(value, list | tuple):
            found.append((f"{prefix}{name}", ", ".join(map(str, value))))
        elif value not in (None, ""):
            found.append((f"{prefix}{name}", str(value)))
    return found


def data_table(table: pa.Table, most_rows: int) -> TextTable:
    """Return the data behind a figure as text, without what is the same in every row of a setting."""
    names = [name for name in table.column_names if name not in _SHOWN_COLUMNS]
    rows = [tuple(_cell(row[name]) for name in names) for row in table.slice(0, most_rows).to_pylist()]
    more = len(table) - len(rows)
    return TextTable(f"and {more:,} rows more" if more > 0 else "", tuple(name.replace("_", " ") for name in names), rows)


def _cell(value: Any) -> str:
    if value is None:
        return NOT_TOLD
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return quantities.digits(value, 4 if abs(value) < 1e6 else 7)
    return f"{value:,}" if isinstance(value, int) else str(value)
