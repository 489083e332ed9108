"""Write the table of clauses and engines of docs/conformance/README.md, and the short one of the main README, from the reports of a run.

``make conformance`` runs the suite and then this; the reports are in build/conformance.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pages import table

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "build" / "conformance"
PAGE = ROOT / "docs" / "conformance" / "README.md"
MARKS = {"pass": "✓", "fail": "✗", "declared absent": "–", "not run": "?"}

HEAD = """\
# Conformance reports

Made by `make conformance`, which runs the suite on each engine and on two pairs of engines, and `docs/make_matrix.py`.

✓ cases passed and none failed · ✗ a case failed · – the engine declares that it does not have it, and refuses it · ? not run. A number is
that of the cases that passed. What a clause promises, and why: [the contract](../contract.md), or `rmqstore conformance --explain CLAUSE`.
"""


def outcome(clause: dict[str, Any]) -> str:
    """Return what became of a clause, as the reports have it: a failure first, then a pass."""
    return next((name for name in ("fail", "pass", "declared absent") if clause["counts"].get(name)), "not run")


def matrix(reports: dict[str, dict[str, Any]]) -> str:
    """Return clauses by engines."""
    clauses = {each["clause"]["id"]: each["clause"] for report in reports.values() for each in report["clauses"]}
    order = {name: at for at, name in enumerate(re.findall(r"^### ([A-Z]\d+):", (ROOT / "docs/contract.md").read_text(), re.MULTILINE))}
    rows = []
    for name in sorted(clauses, key=order.__getitem__):
        cells = []
        for report in reports.values():
            found = next((each for each in report["clauses"] if each["clause"]["id"] == name), None)
            said = "not run" if found is None else outcome(found)
            passed = 0 if found is None else found["counts"].get("pass", 0)
            cells.append(f"{MARKS[said]} {passed}" if passed else MARKS[said])
        rows.append((f"[{name}](../contract.md#{name.lower()})", clauses[name]["title"], *cells))
    return table(("clause", "", *(f"[{name}]({name}.md)" for name in reports)), rows)


def summary(reports: dict[str, dict[str, Any]]) -> str:
    """Return a line for each engine."""
    rows = []
    for name, report in reports.items():
        counts = [sum(result["outcome"] == each for result in report["results"]) for each in ("pass", "fail", "declared absent", "not run")]
        durability = report["header"]["durability"]["sync"].lower().replace("_", " ")
        reached = report["reached"] or "none"
        rows.append((f"[{name}](docs/conformance/{name}.md)", reached, *map(str, counts), durability))
    return table(("", "level reached", "cases passed", "failed", "declared absent", "not run", "survives, `flush = sync`"), rows)


def main() -> None:
    """Write both tables."""
    found = {path.stem: json.loads(path.read_text())["reports"][0] for path in REPORTS.glob("*.json")}
    reports = dict(sorted(found.items(), key=lambda item: ("+" in item[0], item[0])))
    first = next(iter(reports.values()))["header"]
    run = f"Run {first['started']}, suite {first['suite_version']}, {first['kernel']}, {first['cpus']} CPUs."
    PAGE.write_text(f"{HEAD}\n{matrix(reports)}\n{run}\n", encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    begin, end = "<!-- conformance: begin -->\n", "<!-- conformance: end -->"
    before, rest = text.split(begin)
    readme.write_text(f"{before}{begin}{summary(reports)}{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
