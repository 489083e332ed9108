"""Making a report from a directory of results: read, draw, judge, and write one page as Markdown and as HTML.

The HTML page is the Markdown page with its pictures and the data behind them inside, so it needs no other file.
"""

from __future__ import annotations

import base64
import html
import io
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib as mpl
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
from markdown_it import MarkdownIt

from rmqstore.errors import StorePathError
from rmqstore_benchmarks import machine
from rmqstore_benchmarks.grid.stores import HOLLOW, NULL_ENGINE
from rmqstore_benchmarks.grid.tables import ENVIRONMENT, RESULTS, TABLES, read
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import Measured, described
from rmqstore_benchmarks.report.claims import ALL_CLAIMS, RULE, SOURCE, Claim, Judgement, Side, Verdict, false_claims, weighed
from rmqstore_benchmarks.report.drawing import STYLE, looks_of
from rmqstore_benchmarks.report.figures import PLOTS, Plot
from rmqstore_benchmarks.report.tables import choices, headlines, open_loops, tables
from rmqstore_benchmarks.report.text import NOT_TOLD, TextTable
from rmqstore_benchmarks.statistics import KEPT_UP, POINT, figures, known, latencies

DPI: Final = 200
_MOST_ROWS: Final = 400
"""Rows of data below a figure; the CSV file has all."""

_TITLE: Final = "Storage engines for timed messages, compared"
_HOW: Final = (
    "Every figure is the median of the repeats of one cell, with the lowest and the highest beside it; shards of a run are added up. A run "
    "that lost, doubled or made up a message has no figure. Absolute rates hold for this machine at that hour; the ratios are what to take."
)
_HEADLINES: Final = {
    "schedule": "timers a second on top of the backlog",
    "drain": "hand-over, pop and ack of the same message",
    "sustained": "everything at once, in a closed loop",
    "written": "by the process while scheduling, over user bytes",
    "space": "blocks in use afterwards, over user bytes",
    "recovery": "the open behind kill -9, with what the phases before it left",
}
"""What columns mean whose name is not enough."""
_CLAIMS: Final = f"The claims give the sense of {SOURCE}. {RULE}"
_CHOICES: Final = (
    "By messages a second in calls of the store: the fastest engine of each row first; beside it, behind a comma, those that the rule of "
    "the claims below does not show to be slower; behind a semicolon the next one, and how many times as fast as it the first one is."
)
_LOOPS: Final = (
    "Sustained is what the closed loop did behind a warm-up of the same length; if its later half is far from 1 ×, it was not steady yet. "
    f"An open loop that did less than {KEPT_UP:.0%} of what was offered was overloaded, and has no latencies. The load's own is the share "
    "of the closed loop outside of calls: making messages and keeping the account. One thread does it between them, so latencies have it."
)
_LEFT_OUT: Final = ("directory",)  # a path says nothing of a machine
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2126; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1.05rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #dde2e6; }
img { width: 100%; max-width: 60rem; height: auto; } details { font-size: .9rem; }
"""


class Shown(NamedTuple):
    """A figure that was drawn from ``rows``; ``png`` is the picture."""

    plot: Plot
    rows: pd.DataFrame
    finding: str
    png: bytes


class Report(NamedTuple):
    """A whole report.

    Attributes:
        page: where its page is.
        left_out: plots whose data the run does not have.
        same: what the rule of the claims says of variants that are the same.
    """

    page: Path
    measured: Measured
    headlines: list[TextTable]
    choices: TextTable
    loops: list[TextTable]
    tables: list[TextTable]
    figures: list[Shown]
    left_out: list[Plot]
    claims: list[tuple[Claim, Judgement]]
    same: pd.DataFrame

    @property
    def findings(self) -> dict[str, str]:
        """What each figure shows, by its title."""
        return {shown.plot.title: shown.finding for shown in self.figures}

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By name of a claim."""
        return {claim.name: judgement.verdict for claim, judgement in self.claims}

    @property
    def outcomes(self) -> str:
        """How the runs ended, in a line."""
        runs = self.measured.results.runs
        counts = Counter(runs.outcome)
        others = "".join(f", {count} {outcome}" for outcome, count in sorted(counts.items()) if outcome != "ok")
        return f"{runs.cell_id.nunique()} cells, {len(runs)} runs: {counts['ok']} good{others}"


def make(directory: Path, out: Path, *, dpi: int = DPI) -> Report:
    """Write ``report.html``, ``report.md``, ``summary.parquet``, and for each figure ``NAME.png`` and ``NAME.csv`` into ``out``.

    What was measured goes there as well, so that the report can be made again from ``out``. Files of these names are replaced, and a
    figure of an earlier report that has no data now is removed. Everything is read, drawn and judged before the first file is written.

    Raises:
        StorePathError: there are no results in ``directory``, or ``out`` is a file.
        TransferError: the results are not what the harness writes.
    """
    if out.exists() and not out.is_dir():
        raise StorePathError(f"{out} is a file; name a directory for the report")
    report = _report_on(directory, out / "report.html", dpi)
    out.mkdir(parents=True, exist_ok=True)
    for shown in report.figures:
        (out / f"{shown.plot.name}.png").write_bytes(shown.png)
        pa_csv.write_csv(pa.Table.from_pandas(shown.rows, preserve_index=False), out / f"{shown.plot.name}.csv")
    for plot in report.left_out:
        for kind in ("png", "csv"):
            (out / f"{plot.name}.{kind}").unlink(missing_ok=True)
    report.measured.whole.to_parquet(out / "summary.parquet", index=False)
    if not out.samefile(directory):
        (out / RESULTS).mkdir(exist_ok=True)
        for name in TABLES:
            shutil.copyfile(directory / RESULTS / f"{name}.parquet", out / RESULTS / f"{name}.parquet")
        if report.measured.results.environment:
            shutil.copyfile(directory / ENVIRONMENT, out / ENVIRONMENT)
    (out / "report.md").write_text(to_markdown(report), encoding="utf-8")
    report.page.write_text(to_html(report), encoding="utf-8")
    return report


def _report_on(directory: Path, page: Path, dpi: int) -> Report:
    """Return all that stands in the report on a directory."""
    results = read(directory)
    whole = figures(results)
    # What is the same engine under another name is there for the claims, and stands in no figure beside itself.
    first = results.good.sort_values("variant").drop_duplicates(["engine", "settings", *POINT]).cell_id
    engines, late = (rows[~rows.engine.isin(HOLLOW) & rows.cell_id.isin(first)] for rows in (whole, latencies(results, whole)))
    measured = Measured(results, engines, late, whole, looks_of(results.good))
    drawings, left_out = [], []
    for plot in PLOTS:
        rows = plot.data(measured)
        if rows.empty:
            left_out.append(plot)
            continue
        rows, picture = rows.reset_index(drop=True), io.BytesIO()
        with mpl.rc_context(STYLE):
            plot.draw(rows, measured.looks).savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
        drawings.append(Shown(plot, rows, plot.finding(rows), picture.getvalue()))
    judged = [(claim, claim.judge(weighed(whole))) for claim in ALL_CLAIMS]
    fixed = headlines(measured), choices(measured), open_loops(measured), tables(measured)
    return Report(page, measured, *fixed, drawings, left_out, judged, false_claims(weighed(whole)))


def _conditions(measured: Measured) -> TextTable:
    """Return what the figures depend on."""
    results, runs = measured.results, measured.results.runs
    flat = pd.json_normalize({name: value for name, value in results.environment.items() if name not in _LEFT_OUT}, sep=": ")
    rows = [(name.replace("_", " "), str(values.iloc[0])) for name, values in flat.items() if values.iloc[0] not in (None, "")]
    rows.append(("seeds of the runs", ", ".join(str(int(seed)) for seed in sorted(runs.seed.dropna().unique()))))
    rows.append(("time of all runs", text.time_ms(runs.wall_s.sum() * 1000)))
    for variant, settings in runs.groupby("variant").settings.unique().items():
        rows.append((f"settings of {variant}", " or ".join(each or "the defaults" for each in settings)))
    times = known(measured.whole, "us_per_message", "schedule")
    for load in times[times.engine == NULL_ENGINE].itertuples():
        point = described({name: getattr(load, name) for name in ("workload", "body_bytes")})
        rows.append((f"the load alone, {point}", f"{text.digits(load.median)} µs a message scheduled"))
    return TextTable("", ("", ""), rows)


# ---------------------------------------------------------------- pages


def to_markdown(report: Report, data_of: Callable[[Shown], str] = lambda shown: f"[Data]({shown.plot.name}.csv).") -> str:
    """Return the page; ``NAME.png`` of each figure lies beside it. ``data_of`` tells where the data behind a figure are."""
    results = report.measured.results
    headings = [heading for heading in _HEADLINES if any(heading in table.header for table in report.headlines)]
    meanings = "; ".join(f"{heading}: {_HEADLINES[heading]}" for heading in headings)
    parts = [f"# {_TITLE}", f"{report.outcomes}. {_HOW}", "## At a glance", meanings, *map(_as_markdown, report.headlines)]
    if report.choices.rows:
        parts += ["## Which engine", _CHOICES, _as_markdown(report.choices)]
    if report.tables:
        parts += ["## Side by side", *map(_as_markdown, report.tables)]
    claims = [(claim.about, claim.text, judged.verdict.value, judged.evidence, claim.figure) for claim, judged in report.claims]
    header = ("", "claim", "verdict", "what was found", "weighed by")
    if report.loops:
        parts += ["## Open loops", _LOOPS, *map(_as_markdown, report.loops)]
    parts += ["## Claims", _CLAIMS, _as_markdown(TextTable("", header, claims)), _said_of_the_same(report.same), "## Figures"]
    for shown in report.figures:
        plot = shown.plot
        parts += [f"### {plot.title}", f"**{_escaped(shown.finding)}**", f"![{plot.title}]({plot.name}.png)", plot.reading, data_of(shown)]
    if report.left_out:
        items = "\n".join(f"- {plot.title}: needs {plot.needs}" for plot in report.left_out)
        parts += ["Not drawn, since this run has not measured it:", items]
    runs = list(results.runs.itertuples())
    if bad := [(run.run_id, run.outcome, run.reason or NOT_TOLD) for run in runs if run.outcome != "ok"]:
        parts += ["## Runs without figures", _as_markdown(TextTable("", ("run", "outcome", "reason"), bad))]
    if said := [(run.run_id, run.reason) for run in runs if run.outcome == "ok" and run.reason]:
        parts += ["## Remarks", _as_markdown(TextTable("", ("run", "remark"), said))]
    parts += ["## Conditions", _as_markdown(_conditions(report.measured))]
    return "\n\n".join(parts) + "\n"


def _said_of_the_same(same: pd.DataFrame) -> str:
    """Return what the rule finds where there is nothing to find."""
    if same.empty:
        return "The rule was not put to the same engine under two names in this run."
    wrong = same[same.side.isin([Side.MORE, Side.LESS])]
    listed = [f"{row.metric} of {row.phase}, {row.variant} and {row.variant_second}, {row.cell_id}" for row in wrong.itertuples()]
    return (
        f"The rule, put to the same engine with the same settings under two names, on {len(same)} figures, of which some are of one "
        f"measurement: alike on {(same.side == Side.ALIKE).sum()}, not shown on {(same.side == Side.UNCLEAR).sum()}, a difference on "
        f"{len(wrong)}{': ' if listed else ''}{'; '.join(listed)}."
    )


def to_html(report: Report) -> str:
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
    rows = shown.rows.drop(columns="setting")
    table = rows.head(_MOST_ROWS).to_html(index=False, border=0, float_format=lambda value: text.digits(value, 4))
    more = len(rows) - _MOST_ROWS
    return f"<details><summary>the data{f', and {more:,} rows more' if more > 0 else ''}</summary>\n{table}\n</details>"


def _as_markdown(table: TextTable) -> str:
    rows = machine.table(list(map(_escaped, table.header)), [list(map(_escaped, row)) for row in table.rows])
    return f"**{_escaped(table.caption)}**\n\n{rows}" if table.caption else rows


def _escaped(words: str) -> str:
    for character in "\\|*_<`[":
        words = words.replace(character, "\\" + character)
    return " ".join(words.split())
