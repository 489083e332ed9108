"""Reports as JSON, Markdown and one self-contained HTML page."""

from __future__ import annotations

import html
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from rmqstore.contract import NewNames
from rmqstore_conformance.plugin import PACKAGE
from rmqstore_conformance.report import Capability, Outcome, Report, Result

_MARKS: Final = {Outcome.PASS: "✓", Outcome.FAIL: "✗", Outcome.DECLARED_ABSENT: "–", Outcome.NOT_RUN: "?"}
_LONGEST_ROWS: Final = 60

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2126; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; }
th { border-bottom: 2px solid #9aa4ad; } tr + tr td { border-top: 1px solid #dde2e6; } td.n { text-align: right; }
.pass { color: #14713a; } .fail { color: #b3261e; font-weight: 600; } .declared.absent, .not.run { color: #66707a; }
pre { background: #f3f5f7; padding: .7rem; overflow-x: auto; font-size: 12px; } code { font-size: 13px; }
"""


def to_json(reports: Sequence[Report]) -> str:
    """Return everything that is known, as one JSON document."""
    document = {"reports": [{**msgspec.to_builtins(each), "headline": each.headline} for each in reports]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


# ---------------------------------------------------------------- rows that both pages have


def header_rows(report: Report) -> list[tuple[str, str]]:
    """Return what a run depends on, by name."""
    header = report.header
    return [
        ("engines", f"timers: {header.pair.timers}, pops: {header.pair.pops}"),
        ("level", f"asked for {header.level}, reached {report.reached or 'none'}"),
        ("suite", f"{header.suite_version}, seed {header.seed}, effort {header.effort:g}"),
        ("settings", ", ".join(f"{key.replace('__', '.')} = {value}" for key, value in header.settings.items()) or "the defaults"),
        ("declared durability", ", ".join(f"flush = {flush}: {level}" for flush, level in header.durability.items())),
        *([("needs", "a file system where the sync of a new file keeps its name")] if header.new_names is NewNames.FILE_SYNC else []),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
        ("machine", f"{header.kernel}, {header.cpus} CPUs, {header.file_system}"),
        ("run", header.started),
        ("again", header.command),
    ]


def _counts(counts: dict[Outcome, int]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts.get(outcome)) or "no case"


def _probed(capability: Capability) -> str:
    return "by its cases" if capability.probed is None else "yes" if capability.probed else "no"


def _passed(capability: Capability) -> str:
    total = capability.passed + capability.failed
    return f"{capability.passed} of {total}" if total else "–"


def evidence(report: Report) -> list[tuple[str, str]]:
    """Return what cases have to show, by their ids."""
    return [(result.case.id, result.found) for result in report.results if result.found]


def not_run(report: Report) -> list[str]:
    """Return why cases did not run, with the number of them."""
    reasons = Counter(result.reason for result in report.results if result.outcome is Outcome.NOT_RUN)
    return [f"{count} not run: {reason}" for reason, count in reasons.items()]


def _failures(report: Report) -> list[Result]:
    return [result for result in report.results if result.outcome is Outcome.FAIL]


def alone(report: Report, result: Result) -> str:
    """Return the command that runs one case again, alone."""
    file, _, name = result.case.nodeid.partition("::")
    module = file.rpartition("/")[2].removesuffix(".py")
    return report.header.command.replace(PACKAGE, shlex.quote(f"{PACKAGE}.cases.{module}::{name}"), 1)


# ---------------------------------------------------------------- Markdown


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


def to_markdown(reports: Sequence[Report]) -> str:
    """Return a page with a part for each report."""
    return "\n".join(_markdown(each) for each in reports)


def _markdown(report: Report) -> str:
    parts = [f"# Conformance of {report.header.pair}", report.headline + ".", _table(("", ""), header_rows(report))]
    if notes := report.notes + not_run(report):
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    parts += ["## Capabilities", _table(("capability", "declared", "probed", "cases passed"), _capability_rows(report))]
    parts += ["## Clauses", _table(("", "clause", "", "cases"), _clause_rows(report))]
    if shown := evidence(report):
        parts += ["## Evidence", _table(("case", "what it did"), shown)]
    if failures := _failures(report):
        parts.append("## Failures")
        for result in failures:
            text = "\n".join(result.seen.splitlines()[-_LONGEST_ROWS:])
            parts += [f"### {result.case.id}", result.case.text, f"```\n{text}\n```", f"Alone: `{alone(report, result)}`"]
    return "\n\n".join(parts) + "\n"


def _capability_rows(report: Report) -> list[tuple[str, ...]]:
    return [(f"`{each.name}`", each.declared, _probed(each), _passed(each)) for each in report.capabilities]


def _clause_rows(report: Report) -> list[tuple[str, ...]]:
    return [(_MARKS[each.outcome], each.clause.id, each.clause.title, _counts(each.counts)) for each in report.clauses]


# ---------------------------------------------------------------- HTML


def to_html(reports: Sequence[Report]) -> str:
    """Return one page that needs no other file."""
    title = "Conformance of " + ", ".join(str(each.header.pair) for each in reports)
    body = "\n".join(_html(each) for each in reports)
    return f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{_e(title)}</title><style>{_STYLE}</style>\n{body}\n</html>\n"


def _e(text: Any) -> str:
    return html.escape(str(text))


def _html_table(head: Sequence[str], rows: Iterable[str]) -> str:
    return f"<table><tr>{''.join(f'<th>{_e(name)}' for name in head)}</tr>{''.join(rows)}</table>"


def _cells(*cells: object) -> str:
    return "".join(f"<td>{_e(cell)}" for cell in cells)


def _html(report: Report) -> str:
    parts = [f"<h1>Conformance of {_e(report.header.pair)}</h1><p><b>{_e(report.headline)}</b></p>"]
    parts.append(_html_table(("", ""), [f"<tr>{_cells(*row)}</tr>" for row in header_rows(report)]))
    if notes := report.notes + not_run(report):
        parts.append("<h2>Notes</h2><ul>" + "".join(f"<li>{_e(note)}" for note in notes) + "</ul>")
    rows = [f"<tr>{_cells(each.name, each.declared, _probed(each), _passed(each))}</tr>" for each in report.capabilities]
    parts.append("<h2>Capabilities</h2>" + _html_table(("capability", "declared", "probed", "cases passed"), rows))
    rows = []
    for each in report.clauses:
        name = each.outcome.value
        text = f"<details><summary>{_e(each.clause.title)}</summary><p>{_e(each.clause.text)}<p><b>Why.</b> {_e(each.clause.why)}</details>"
        rows.append(f'<tr><td>{_e(each.clause.id)}<td>{text}<td class="{name}">{_e(name)}<td>{_e(_counts(each.counts))}</tr>')
    parts.append("<h2>Clauses</h2>" + _html_table(("", "clause", "", "cases"), rows))
    if shown := evidence(report):
        parts.append("<h2>Evidence</h2>" + _html_table(("case", "what it did"), [f"<tr>{_cells(*row)}</tr>" for row in shown]))
    if failures := _failures(report):
        parts.append("<h2>Failures</h2>")
        for result in failures:
            text = "\n".join(result.seen.splitlines()[-_LONGEST_ROWS:])
            parts.append(f"<h3>{_e(result.case.id)}</h3><p>{_e(result.case.text)}<pre>{_e(text)}</pre>")
            parts.append(f"<p>Alone: <code>{_e(alone(report, result))}</code>")
    rows = [
        f'<tr>{_cells(result.case.id, result.case.text)}<td class="{result.outcome.value}">{_e(result.outcome.value)}'
        f"<td>{_e(result.reason)}<td class=n>{result.duration_s:.2f}</tr>"
        for result in report.results
    ]
    parts.append("<h2>Cases</h2>" + _html_table(("case", "what it tries", "", "reason", "s"), rows))
    return "\n".join(parts)


RENDERERS: Final[dict[str, Callable[[Sequence[Report]], str]]] = {".json": to_json, ".md": to_markdown, ".html": to_html}
"""By the end of a file's name."""
