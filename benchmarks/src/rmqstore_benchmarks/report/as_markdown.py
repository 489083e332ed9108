"""A report as Markdown, its pictures beside it."""

from __future__ import annotations

from rmqstore_benchmarks.report import contents
from rmqstore_benchmarks.report.contents import Contents, Shown
from rmqstore_benchmarks.report.headline import TextTable


def to_markdown(report: Contents) -> str:
    """Return the page; ``NAME.png`` and ``NAME.csv`` of each figure lie beside it."""
    results = report.results
    parts = [f"# {contents.TITLE}", f"{contents.outcomes(results)}. {contents.HOW}", "## At a glance", contents.HEADLINE]
    for table in report.headlines:
        parts += [f"**{_escaped(table.caption)}**", _table(table)]
    parts += ["## Claims", contents.CLAIMS, _table(contents.claim_table(report.claims)), "## Figures"]
    parts += [_figure(shown) for shown in report.figures]
    if report.left_out:
        parts.append(f"{contents.PENDING_NOTE}:\n\n" + "\n".join(f"- {plot.title}: needs {plot.needs}" for plot in report.left_out))
    if bad := contents.bad_runs(results):
        parts += ["## Runs without figures", _table(bad)]
    if said := contents.remarks(results):
        parts += ["## Remarks", _table(said)]
    parts += ["## Conditions", _table(contents.conditions(results))]
    return "\n\n".join(parts) + "\n"


def _figure(shown: Shown) -> str:
    plot = shown.plot
    return (
        f"### {plot.title}\n\n**{_escaped(shown.finding)}**\n\n![{plot.title}]({plot.name}.png)\n\n{plot.reading} [Data]({plot.name}.csv)."
    )


def _table(table: TextTable) -> str:
    lines = [table.header, ("---",) * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(text: str) -> str:
    for character in "\\|*_<`[":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
