"""A report as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
from typing import Final

from rmqstore_benchmarks.report import contents
from rmqstore_benchmarks.report.claims import Claim, Judgement, Verdict
from rmqstore_benchmarks.report.contents import Contents, Shown
from rmqstore_benchmarks.report.headline import TextTable

MOST_ROWS: Final = 400
"""Rows of data below a figure; the CSV file has all."""

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2126; background: #fff; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 2.2rem 0 .3rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; min-width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; }
th { border-bottom: 2px solid #9aa4ad; white-space: nowrap; }
tr + tr td { border-top: 1px solid #dde2e6; } .numbers td + td, .numbers th + th { text-align: right; padding: .3rem .2rem .3rem .7rem; }
.numbers td { font-variant-numeric: tabular-nums; white-space: nowrap; } .numbers th { white-space: normal; vertical-align: bottom; }
.numbers td span { display: block; color: #66707a; font-size: .92em; white-space: nowrap; }
.soft { color: #66707a; font-size: .85rem; } p.soft { margin: 1rem 0 .3rem; }
img { width: 100%; max-width: 60rem; height: auto; display: block; margin: .6rem 0; } .picture { overflow-x: auto; }
 .finding { font-weight: 600; margin: .2rem 0; }
details { font-size: .9rem; margin-bottom: 1rem; } details .wide { max-height: 24rem; overflow: auto; } summary { cursor: pointer; }
.claim { border-top: 1px solid #dde2e6; padding: .7rem 0; display: grid; grid-template-columns: 11rem 1fr; column-gap: 1.2rem; }
.claim p { margin: 0 0 .25rem; } .verdict { font-weight: 600; }
.confirmed { color: #14713a; } .refuted { color: #b3261e; } .depends { color: #8a5a00; } .absent { color: #66707a; }
@media (max-width: 40rem) { body { margin-top: 1rem; } .claim { grid-template-columns: 1fr; }
  .picture img { min-width: 38rem; } }
@media print { details { display: none; } h3 { break-after: avoid; } img { break-inside: avoid; } }
"""
_CLASSES: Final = {Verdict.NOT_MEASURED: "absent"}


def to_html(report: Contents) -> str:
    """Return the page."""
    results = report.results
    parts = [f"<h1>{_e(contents.TITLE)}</h1><p>{_e(contents.outcomes(results))}. {_e(contents.HOW)}</p>"]
    parts.append(f"<h2>At a glance</h2><p class=soft>{_e(contents.HEADLINE)}</p>")
    parts += [_table(table, numbers=True) for table in report.headlines]
    parts.append(f"<h2>Claims</h2><p class=soft>{_e(contents.CLAIMS)}</p>" + "".join(_claim(*each) for each in report.claims))
    parts.append("<h2>Figures</h2>")
    parts += [_figure(shown) for shown in report.figures]
    if report.left_out:
        items = "".join(f"<li>{_e(plot.title)}: needs {_e(plot.needs)}</li>" for plot in report.left_out)
        parts.append(f"<p>{_e(contents.PENDING_NOTE)}:</p><ul>{items}</ul>")
    if bad := contents.bad_runs(results):
        parts.append("<h2>Runs without figures</h2>" + _table(bad))
    if said := contents.remarks(results):
        parts.append(f"<h2>Remarks</h2><details><summary>of {len(said.rows)} good runs</summary>{_table(said)}</details>")
    parts.append("<h2>Conditions</h2>" + _table(contents.conditions(results)))
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{_e(contents.TITLE)}</title>'
        f"<style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _e(text: str) -> str:
    return html.escape(text)


def _table(table: TextTable, *, numbers: bool = False) -> str:
    caption = f'<p class="soft">{_e(table.caption)}</p>' if table.caption else ""
    head = "".join(f"<th>{_e(name)}</th>" for name in table.header) if any(table.header) else ""
    rows = "".join("<tr>" + "".join(f"<td>{_cell(cell) if numbers else _e(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    kind = ' class="numbers"' if numbers else ""
    return f'{caption}<div class="wide"><table{kind}><tr>{head}</tr>{rows}</table></div>'


def _cell(text: str) -> str:
    """Put the spread of a figure below it."""
    middle, bracket, edges = text.partition(" (")
    return f"{_e(middle)}<span>{_e(edges.removesuffix(')'))}</span>" if bracket else _e(text)


def _claim(claim: Claim, judgement: Judgement) -> str:
    kind = _CLASSES.get(judgement.verdict, judgement.verdict.value)
    return (
        f'<div class="claim"><div><span class="soft">{_e(claim.side)}</span><br><span class="verdict {kind}">{_e(judgement.verdict.value)}'
        f"</span></div><div><p><b>{_e(claim.text)}</b></p><p>{_e(_sentence(judgement.evidence))}</p>"
        f'<p class="soft">Rule: {_e(claim.rule)}.</p></div></div>'
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _figure(shown: Shown) -> str:
    plot = shown.plot
    picture = base64.b64encode(shown.png).decode()
    data = _table(contents.data_table(shown.table, MOST_ROWS), numbers=True)
    return (
        f'<h3 id="{plot.name}">{_e(plot.title)}</h3><p class="finding">{_e(shown.finding)}</p>'
        f'<div class="picture"><img alt="{_e(plot.title)}" src="data:image/png;base64,{picture}"></div>'
        f'<p class="soft">{_e(plot.reading)}</p>'
        f"<details><summary>the data</summary>{data}</details>"
    )
