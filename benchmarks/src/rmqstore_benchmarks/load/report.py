"""The outcome of a load test as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rmqstore.errors import IllegalArgumentError
from rmqstore_benchmarks.load.closing import FAULTS, STATES, Fault
from rmqstore_benchmarks.load.run import Outcome
from rmqstore_benchmarks.machine import sentence, table

_SUFFIXES: Final = (".md", ".json")
HEADINGS: Final = ("engine", "ids", *STATES, "in doubt", "deliveries", "again", "sent again", "tasks", "died", "seconds", "ids/s")
"""The columns of :func:`summary`; the first is a text, the others are numbers."""

_HAPPENED: Final = {
    "task": "tasks that raised in the middle",
    "worker": "Python workers killed in a call",
    "twin": "shards played by two tasks at once",
    "consumer": "consumers that died with their leases",
    "executor": "executors killed",
    "owner": "processes killed that served a store",
}
_LEGEND: Final = (
    "Every id is exactly once cancelled, acked, dead-lettered or pending. *in doubt*: ends that rest on a call whose answer nobody got. "
    "*again*: deliveries beyond the first of an id. *sent again*: messages repeated under a mark, and not stored again. *seconds*: all "
    "rounds and the drain."
)


def check_report(path: Path) -> None:
    """Refuse a report that cannot be written.

    Raises:
        IllegalArgumentError: its name has neither ending, or its directory does not exist.
    """
    if path.suffix not in _SUFFIXES:
        raise IllegalArgumentError(f"--report {path} must end in {' or '.join(_SUFFIXES)}")
    if not path.resolve().parent.is_dir():
        raise IllegalArgumentError(f"--report {path}: its directory does not exist")


def summary(outcome: Outcome) -> list[str]:
    """Return one engine's row under :data:`HEADINGS`."""
    closed = outcome.closed
    played_s = sum(seconds for name, seconds in outcome.job_s.items() if name not in ("audit", "ledger"))
    numbers = [closed.ids, *(closed.states[state] for state in STATES), sum(closed.in_doubt.values())]
    numbers += [closed.deliveries, closed.redeliveries, closed.repeated, closed.attempts, closed.died]
    return [outcome.plan.engine, *(f"{number:,}" for number in numbers), f"{played_s:.1f}", f"{closed.ids / played_s:,.0f}"]


def injected(outcome: Outcome) -> str:
    """Return what was made to fail, in one sentence."""
    closed = outcome.closed
    parts = [f"{_HAPPENED[failure]}: {times:,}" for failure, times in outcome.injected.items()]
    happened = "; ".join(parts) if parts else "nothing was made to fail"
    return (
        f"{happened}; of {closed.attempts:,} attempts {closed.died:,} died and {closed.waited:,} waited for a store that another one held"
    )


def fault_lines(fault: Fault) -> list[str]:
    """Return a faulty id with its history, a line each."""
    meaning = "; ".join(f"{name} ({FAULTS[name][0]})" for name in fault.faults)
    return [f"id {fault.id}, shard {fault.shard}: {meaning}", *(f"  {line}" for line in fault.history)]


def write_report(path: Path, outcomes: Sequence[Outcome], command: str, machine: dict[str, Any]) -> None:
    """Write a report; the ending of ``path`` says which."""
    if path.suffix == ".json":
        found = [{**msgspec.to_builtins(outcome), "problems": outcome.problems()} for outcome in outcomes]
        text = json.dumps({"command": command, "machine": machine, "engines": found}, indent=1)
    else:
        text = _markdown(outcomes, command, machine)
    path.write_text(f"{text}\n", encoding="utf-8")


def _markdown(outcomes: Sequence[Outcome], command: str, machine: dict[str, Any]) -> str:
    happened = "\n".join(f"- **{outcome.plan.engine}**: {injected(outcome)}." for outcome in outcomes)
    ends = table(HEADINGS, [summary(outcome) for outcome in outcomes])
    parts = ["# Load test", f"`{command}`: {sentence(machine)}", ends, _LEGEND, happened]
    for outcome in outcomes:
        if problems := outcome.problems():
            lines = [line for fault in outcome.closed.listed for line in fault_lines(fault)]
            parts.append(f"**{outcome.plan.engine} does not close**\n\n" + "\n".join(f"- {problem}" for problem in problems))
            parts.append("```\n" + "\n".join(lines) + "\n```")
        else:
            parts.append(f"**{outcome.plan.engine}: the ledger closes.**")
    return "\n\n".join(parts)
