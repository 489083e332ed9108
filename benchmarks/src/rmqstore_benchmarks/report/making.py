"""Making a report from a directory of results: read, draw, judge, and write one page as Markdown and as HTML.

The HTML page is the Markdown page with its pictures and the data behind them inside, so it needs no other file.
"""

from __future__ import annotations

import base64
import html
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from markdown_it import MarkdownIt

from rmqstore.errors import StorePathError
from rmqstore_benchmarks import machine
from rmqstore_benchmarks.grid.results import Results, read
from rmqstore_benchmarks.grid.tables import ON_REQUEST
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import COORDINATES, Measured, described, looks_of, ordered, place, slices
from rmqstore_benchmarks.report.claims import ALL_CLAIMS, SOURCE, Claim, Judgement, Verdict
from rmqstore_benchmarks.report.figures import PLOTS, Plot, style
from rmqstore_benchmarks.report.text import NOT_TOLD, TextTable
from rmqstore_benchmarks.statistics import DRAIN, Spread, cell_phases, latencies, summary

DPI: Final = 200
_MOST_ROWS: Final = 400
"""Rows of data below a figure; the CSV file has all."""

_TITLE: Final = "Storage engines for timed messages, compared"
_HOW: Final = (
    "Every figure is the median of the repeats of one cell, with the lowest and the highest beside it; shards of a run are added up. A run "
    "that lost, doubled or made up a message has no figure. Absolute rates hold for this machine at that hour; the ratios are what to take."
)
_HEADLINE: Final = (
    "schedule: timers a second on top of the backlog; drain: hand-over, pop and ack of the same message; sustained: the mixed load under "
    "which nothing grows; written and space: bytes over user bytes, by the process while scheduling and in blocks afterwards."
)
_CLAIMS: Final = f"The claims give the sense of {SOURCE}. Each verdict follows from the rule beside it, in one run on one machine."
_LEFT_OUT: Final = ("directory",)  # a path says nothing of a machine
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2126; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1.05rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #dde2e6; }
img { width: 100%; max-width: 60rem; height: auto; } details { font-size: .9rem; }
"""


class Shown(NamedTuple):
    """A figure that was drawn; ``png`` is the picture."""

    plot: Plot
    table: pa.Table
    finding: str
    png: bytes


class Contents(NamedTuple):
    """A whole report; ``left_out`` are plots whose data the run does not have."""

    results: Results
    headlines: list[TextTable]
    tables: list[TextTable]
    figures: list[Shown]
    left_out: list[Plot]
    claims: list[tuple[Claim, Judgement]]


class Made(NamedTuple):
    """What was written.

    Attributes:
        outcomes: how the runs ended, in a line.
        findings: by title of a figure.
        verdicts: by name of a claim.
        left_out: titles of the figures that the run has no data for, with what they need.
    """

    page: Path
    outcomes: str
    findings: dict[str, str]
    verdicts: dict[str, Verdict]
    left_out: dict[str, str]


def make(directory: Path, out: Path, *, dpi: int = DPI) -> Made:
    """Write ``report.html``, ``report.md``, ``summary.parquet``, and for each figure ``NAME.png`` and ``NAME.csv`` into ``out``.

    Files of these names are replaced, and a figure of an earlier report that has no data now is removed. Everything is read, drawn and
    judged before the first file is written.

    Raises:
        StorePathError: there are no results in ``directory``, or ``out`` is a file.
        TransferError: the results are not what the harness writes.
    """
    if out.exists() and not out.is_dir():
        raise StorePathError(f"{out} is a file; name a directory for the report")
    report, table = contents_of(directory, dpi)
    out.mkdir(parents=True, exist_ok=True)
    for shown in report.figures:
        (out / f"{shown.plot.name}.png").write_bytes(shown.png)
        pa_csv.write_csv(shown.table, out / f"{shown.plot.name}.csv")
    for plot in report.left_out:
        for kind in ("png", "csv"):
            (out / f"{plot.name}.{kind}").unlink(missing_ok=True)
    pq.write_table(table, out / "summary.parquet")
    (out / "report.md").write_text(to_markdown(report), encoding="utf-8")
    (out / "report.html").write_text(to_html(report), encoding="utf-8")
    return Made(
        out / "report.html",
        outcomes(report.results),
        {shown.plot.title: shown.finding for shown in report.figures},
        {claim.name: judgement.verdict for claim, judgement in report.claims},
        {plot.title: plot.needs for plot in report.left_out},
    )


def contents_of(directory: Path, dpi: int = DPI) -> tuple[Contents, pa.Table]:
    """Return all that stands in the report on a directory, and its summary table."""
    results = read(directory)
    phases = cell_phases(results)
    measured = Measured(results, phases, latencies(results), looks_of(run.cell for run in results.good))
    figures, left_out = [], []
    for plot in PLOTS:
        rows = plot.data(measured)
        if not rows:
            left_out.append(plot)
            continue
        table, picture = pa.Table.from_pylist(rows), io.BytesIO()
        with style():
            drawn = plot.draw(table, measured.looks)
            drawn.figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
        figures.append(Shown(plot, table, drawn.finding, picture.getvalue()))
    judged = [(claim, claim.judge(phases)) for claim in ALL_CLAIMS]
    return Contents(results, headlines(measured), tables(measured), figures, left_out, judged), summary(phases)


# ---------------------------------------------------------------- figures as text


class _Known(NamedTuple):
    """What is known at one point of the grid, by variant and phase; of latencies also by operation."""

    metrics: dict[tuple[str, str], dict[str, Spread]]
    late: dict[tuple[str, str, str], dict[float, Spread]]
    engines: dict[str, str]

    @classmethod
    def of(cls, measured: Measured, cells: Iterable[str]) -> _Known:
        chosen = set(cells)
        phases = [each for each in measured.phases if each.cell.cell_id in chosen]
        return cls(
            {(each.cell.variant, each.phase): each.metrics for each in phases},
            {(each.cell.variant, each.phase, each.operation): each.at_ms for each in measured.latencies if each.cell.cell_id in chosen},
            {each.cell.variant: each.cell.engine for each in phases},
        )


class _Column(NamedTuple):
    """A figure, or a percentile of an operation, of one phase; of what lies under the variant's engine, or its ratio to that."""

    heading: str
    phase: str
    what: str | tuple[str, float]
    text_of: Callable[[float], str]
    side: str = "own"

    def shown(self, known: _Known, variant: str) -> str:
        """Return it for one variant."""
        if self.side == "own":
            return _text(self._value(known, variant), self.text_of)
        below = next((name for name, engine in known.engines.items() if engine == f"raw-{known.engines[variant]}"), "")
        raw, own = self._value(known, below), self._value(known, variant)
        if self.side == "below":
            return _text(raw, self.text_of)
        return self.text_of(own / raw) if own is not None and raw is not None and raw.median else NOT_TOLD

    def _value(self, known: _Known, variant: str) -> Spread | None:
        if isinstance(self.what, str):
            return known.metrics.get((variant, self.phase), {}).get(self.what)
        operation, share = self.what
        return known.late.get((variant, self.phase, operation), {}).get(share)


def _us(value: float) -> str:
    return f"{text.digits(value)} µs"


def _percent(value: float) -> str:
    return f"{value:.0%}"


_AT_A_GLANCE: Final = (
    _Column("schedule", "schedule", "rate", text.rate),
    _Column("drain", DRAIN, "rate", text.rate),
    _Column("sustained", "mixed", "rate", text.rate),
    _Column("CPU a message", "schedule", "cpu_us_per_message", _us),
    _Column("written", "schedule", "wchar_per_user_byte", text.factor),
    _Column("space", "schedule", "disk_per_live_byte", text.factor),
    _Column("recovery", "recover", "wall_s", lambda seconds: text.time_ms(seconds * 1000)),
    _Column("lateness p99 at 80 % load", "open_80", ("lateness", 0.99), text.time_ms),
)
_SCHEDULING: Final = (
    _Column("schedule", "schedule", "call_rate", text.rate),
    _Column("by lists", "send_lists", "call_rate", text.rate),
    _Column("below", "schedule", "call_rate", text.rate, "below"),
    _Column("share", "schedule", "call_rate", _percent, "ratio"),
    _Column("one send p50", "send_one", ("schedule", 0.5), text.time_ms),
    _Column("p99", "send_one", ("schedule", 0.99), text.time_ms),
    _Column("below, p50", "send_one", ("schedule", 0.5), text.time_ms, "below"),
    _Column("factor", "send_one", ("schedule", 0.5), text.factor, "ratio"),
)
_DRAINING: Final = (
    _Column("cancel", "cancel", "call_rate", text.rate),
    _Column("hand-over", "hand_over", "call_rate", text.rate),
    _Column("pop + ack: 1", "pop_one", "call_rate", text.rate),
    _Column("32", "pop_ack", "call_rate", text.rate),
    _Column("1024", "pop_many", "call_rate", text.rate),
    _Column("hand over, pop + ack by 32", DRAIN, "call_rate", text.rate),
)
_CONSUMING: Final = tuple(
    column
    for threads in (1, 8, 64)
    for phase in (f"consume_{threads}",)
    for column in (
        _Column(f"{threads} thread{'s' if threads > 1 else ''}", phase, "rate", text.rate),
        _Column("pop p99", phase, ("pop", 0.99), text.time_ms),
        _Column("slowest", phase, "slowest_thread", _percent),
        _Column("first queue dry", phase, "first_queue_dry", _percent),
    )
)
_CONSUMERS: Final = (
    "Consumers: messages a second; slowest: what the slowest thread got of an even part; first queue dry: as a share of the whole time"
)
_TABLES: Final = {
    "Schedule: messages by second in calls of the store, beside the database or file below it": _SCHEDULING,
    "Drain: messages by second in calls of the store": _DRAINING,
    _CONSUMERS: _CONSUMING,
}


def headlines(measured: Measured) -> list[TextTable]:
    """Return a table for each durability, on the cells that compare most variants."""
    wanted = {column.phase for column in _AT_A_GLANCE}
    found: dict[str, TextTable] = {}
    for each in slices([phase for phase in measured.phases if phase.phase in wanted]):
        known = _Known.of(measured, {row.cell.cell_id for row in each.rows})
        found.setdefault(each.fixed["durability"], _table(known, _AT_A_GLANCE, each.setting, measured))
    return [table for _, table in sorted(found.items(), key=lambda item: (item[0] != "power_loss", item[0]))]


def tables(measured: Measured) -> list[TextTable]:
    """Return a table of each kind for each point of the grid at which a phase was measured that runs only where it is named."""
    points: dict[tuple[Any, ...], set[str]] = {}
    for each in measured.phases:
        points.setdefault(place(each.cell), set()).add(each.cell.cell_id)
    named = {place(each.cell) for each in measured.of(*ON_REQUEST)}
    found = []
    for caption, columns in _TABLES.items():
        for point in sorted(named, key=str):
            setting = described(dict(zip(COORDINATES, point, strict=True)))
            made = _table(_Known.of(measured, points[point]), columns, f"{caption}; {setting}", measured)
            if made.rows:
                found.append(made)
    return found


def _table(known: _Known, columns: Sequence[_Column], caption: str, measured: Measured) -> TextTable:
    """Return the figures of each variant, without columns and rows of which nothing is known."""
    variants = ordered({variant for variant, engine in known.engines.items() if not engine.startswith("raw-")}, measured.looks)
    cells = {variant: [column.shown(known, variant) for column in columns] for variant in variants}
    told = [at for at in range(len(columns)) if any(row[at] != NOT_TOLD for row in cells.values())]
    own = [at for at in told if columns[at].side == "own"]
    rows = [(variant, *(row[at] for at in told)) for variant, row in cells.items() if any(row[at] != NOT_TOLD for at in own)]
    return TextTable(caption, ("variant", *(columns[at].heading for at in told)), rows)


def _text(value: Spread | None, text_of: Callable[[float], str]) -> str:
    """Return a median, with lowest and highest beside it where they differ."""
    if value is None:
        return NOT_TOLD
    middle, low, high = text_of(value.median), text_of(value.low), text_of(value.high)
    if low == high:
        return middle
    number, _, unit = low.rpartition(" ")
    return f"{middle} ({number if high.endswith(f' {unit}') else low} to {high})"


def outcomes(results: Results) -> str:
    """Return how many runs ended how."""
    counts = Counter(run.outcome for run in results.runs)
    others = "".join(f", {count} {outcome}" for outcome, count in sorted(counts.items()) if outcome != "ok")
    return f"{len({run.cell.cell_id for run in results.runs})} cells, {len(results.runs)} runs: {counts['ok']} good{others}"


def _conditions(results: Results) -> TextTable:
    """Return what the figures depend on."""
    rows = [(name.replace("_", " "), value) for name, value in _flat(results.environment)]
    seeds = sorted({run.seed for run in results.runs if run.seed is not None})
    rows.append(("seeds of the runs", ", ".join(map(str, seeds))))
    rows.append(("time of all runs", text.time_ms(sum(run.wall_s or 0.0 for run in results.runs) * 1000)))
    settings = {run.cell.variant: ", ".join(f"{key} = {value}" for key, value in run.cell.settings) for run in results.runs}
    rows += [(f"settings of {variant}", value or "the defaults") for variant, value in sorted(settings.items())]
    return TextTable("", ("", ""), rows)


def _flat(environment: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested names and values as one list."""
    found = []
    for name, value in environment.items():
        if name in _LEFT_OUT or value in (None, ""):
            continue
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}: ")
        else:
            found.append((f"{prefix}{name}", str(value)))
    return found


# ---------------------------------------------------------------- pages


def to_markdown(report: Contents, data_of: Callable[[Shown], str] = lambda shown: f"[Data]({shown.plot.name}.csv).") -> str:
    """Return the page; ``NAME.png`` of each figure lies beside it. ``data_of`` tells where the data behind a figure are."""
    results = report.results
    parts = [f"# {_TITLE}", f"{outcomes(results)}. {_HOW}", "## At a glance", _HEADLINE, *map(_as_markdown, report.headlines)]
    if report.tables:
        parts += ["## Side by side", *map(_as_markdown, report.tables)]
    claims = [(claim.side, claim.text, judged.verdict.value, judged.evidence, claim.rule) for claim, judged in report.claims]
    parts += ["## Claims", _CLAIMS, _as_markdown(TextTable("", ("", "claim", "verdict", "figure", "rule"), claims)), "## Figures"]
    for shown in report.figures:
        plot = shown.plot
        parts += [f"### {plot.title}", f"**{_escaped(shown.finding)}**", f"![{plot.title}]({plot.name}.png)", plot.reading, data_of(shown)]
    if report.left_out:
        items = "\n".join(f"- {plot.title}: needs {plot.needs}" for plot in report.left_out)
        parts += ["Not drawn, since this run has not measured it:", items]
    if bad := [(run.run_id, run.outcome, run.reason or NOT_TOLD) for run in results.runs if run.outcome != "ok"]:
        parts += ["## Runs without figures", _as_markdown(TextTable("", ("run", "outcome", "reason"), bad))]
    if said := [(run.run_id, run.reason) for run in results.good if run.reason]:
        parts += ["## Remarks", _as_markdown(TextTable("", ("run", "remark"), said))]
    parts += ["## Conditions", _as_markdown(_conditions(results))]
    return "\n\n".join(parts) + "\n"


def to_html(report: Contents) -> str:
    """Return the page with all that it shows inside."""
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(to_markdown(report, _details))
    for shown in report.figures:
        body = body.replace(f'src="{shown.plot.name}.png"', f'src="data:image/png;base64,{base64.b64encode(shown.png).decode()}"')
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(_TITLE)}</title>'
        f"<style>{_STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}</body></html>\n'


def _details(shown: Shown) -> str:
    """Return the data behind a figure, to be opened."""
    names = [name for name in shown.table.column_names if name != "setting"]
    rows = [tuple(_cell(row[name]) for name in names) for row in shown.table.slice(0, _MOST_ROWS).to_pylist()]
    more = len(shown.table) - len(rows)
    caption = f"and {more:,} rows more" if more > 0 else ""
    table = _as_markdown(TextTable(caption, tuple(name.replace("_", " ") for name in names), rows))
    return f"<details><summary>the data</summary>\n\n{table}\n\n</details>"


def _cell(value: Any) -> str:
    if value is None:
        return NOT_TOLD
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return text.digits(value, 4 if abs(value) < 1e6 else 7)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _as_markdown(table: TextTable) -> str:
    rows = machine.table(list(map(_escaped, table.header)), [list(map(_escaped, row)) for row in table.rows])
    return f"**{_escaped(table.caption)}**\n\n{rows}" if table.caption else rows


def _escaped(words: str) -> str:
    for character in "\\|*_<`[":
        words = words.replace(character, "\\" + character)
    return " ".join(words.split())
