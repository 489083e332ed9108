"""Throughput second by second, with the stalls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from matplotlib.ticker import MaxNLocator

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.drawing import count_axis, first, legend, note, panels, style
from rmqstore_benchmarks.report.looks import INK, Look
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy
from rmqstore_benchmarks.report.reading import Cell, Run
from rmqstore_benchmarks.report.slices import slices

STALL_MS: Final = 100.0
"""A second with a call longer than this is marked."""

_SHOWN: Final = {"fill": "scheduled", "schedule": "scheduled", "hand_over": "handed_over", "pop_ack": "acked", "mixed": "scheduled"}
"""By phase, what is counted."""

_TITLES: Final = {
    "fill": "Fill: timers scheduled",
    "schedule": "Schedule: timers scheduled",
    "hand_over": "Hand over: messages handed over",
    "pop_ack": "Pop and ack: messages acked",
    "mixed": "Mixed: timers scheduled",
}

_LEAST_SECONDS: Final = 2


class _OfRun(NamedTuple):
    """The rows of one phase of one run."""

    cell: Cell
    run: Run
    phase: str


def _data(measured: Measured) -> pa.Table:
    full = _full_seconds(measured)
    runs: dict[str, Run] = {}
    for run in sorted(measured.results.good, key=lambda run: run.repeat):
        runs.setdefault(run.cell.cell_id, run)
    known = [_OfRun(run.cell, run, phase) for run in runs.values() for phase in _SHOWN if (run.run_id, phase) in full]
    found = slices(known)
    if not found:
        return tidy([])
    rows = []
    for each in sorted(found[0].rows, key=lambda each: (list(_SHOWN).index(each.phase), each.cell.variant)):
        for second, (count, longest_ms) in sorted(full[each.run.run_id, each.phase].items()):
            rows.append(
                {
                    "phase": each.phase,
                    "counted": _SHOWN[each.phase],
                    "variant": each.cell.variant,
                    "repeat": each.run.repeat,
                    "second": second,
                    "rate": count,
                    "longest_call_ms": longest_ms,
                    "setting": found[0].setting,
                }
            )
    return tidy(rows)


def _full_seconds(measured: Measured) -> dict[tuple[str, str], dict[int, tuple[float, float | None]]]:
    """Return by run and phase the count and the longest call of each second that all shards worked through."""
    lasted: dict[tuple[str, str], float] = {}
    for row in measured.results.phases.select(["run_id", "phase", "wall_s"]).to_pylist():
        if row["wall_s"] is not None:
            key = row["run_id"], row["phase"]
            lasted[key] = min(row["wall_s"], lasted.get(key, row["wall_s"]))
    found: dict[tuple[str, str], dict[int, tuple[float, float | None]]] = defaultdict(dict)
    for row in measured.results.seconds.to_pylist():
        key = row["run_id"], row["phase"]
        count = row[_SHOWN[row["phase"]]] if row["phase"] in _SHOWN else None
        if count is None or row["second"] + 1 > lasted.get(key, 0.0) + 0.01:
            continue
        before, longest_ms = found[key].get(row["second"], (0.0, None))
        calls = [each for each in (longest_ms, row["longest_call_ms"]) if each is not None]
        found[key][row["second"]] = (before + count, max(calls, default=None))
    return {
        key: seconds for key, seconds in found.items() if len(seconds) >= _LEAST_SECONDS and any(count for count, _ in seconds.values())
    }


def _draw(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    rows = table.to_pylist()
    phases = [phase for phase in _SHOWN if any(row["phase"] == phase for row in rows)]
    variants = ordered({row["variant"] for row in rows}, looks)
    with style():
        columns = min(len(phases), 2)
        lines = (len(phases) + columns - 1) // columns
        figure, grid = panels(lines, columns, 0.6 + 2.1 * lines)
        for axes, phase in zip(first(grid, len(phases)), phases, strict=True):
            here = [row for row in rows if row["phase"] == phase]
            for variant in variants:
                of_variant = [row for row in here if row["variant"] == variant]
                look = looks[variant]
                axes.plot([row["second"] + 0.5 for row in of_variant], [row["rate"] for row in of_variant], look.dash, color=look.colour)
                stalled = [row for row in of_variant if _is_stalled(row)]
                spots: dict[str, Any] = {
                    "color": look.colour,
                    "markeredgecolor": INK,
                    "markeredgewidth": 0.7,
                    "zorder": 4,
                    "clip_on": False,
                }
                for row in stalled:
                    axes.plot(row["second"] + 0.5, row["rate"], look.marker, **spots)
            axes.set_title(_TITLES[phase])
            axes.set_ylim(0, max(row["rate"] for row in here) * 1.08 or 1)
            axes.set_xlim(0, max(row["second"] for row in here) + 1)
            axes.set_ylabel("messages/s")
            axes.set_xlabel("s since the phase began")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
            count_axis(axes.yaxis)
        legend(figure, variants, looks)
        note(figure, f"markers: a call took over {STALL_MS:.0f} ms in that second; repeat {rows[0]['repeat']}; {rows[0]['setting']}")
    return Drawn(figure, _finding(rows, phases, variants))


def _is_stalled(row: Mapping[str, Any]) -> bool:
    return row["longest_call_ms"] is not None and row["longest_call_ms"] > STALL_MS


def _finding(rows: list[dict[str, Any]], phases: list[str], variants: list[str]) -> str:
    stalls = {variant: sum(_is_stalled(row) for row in rows if row["variant"] == variant) for variant in variants}
    seconds = {variant: sum(row["variant"] == variant for row in rows) for variant in variants}
    told = quantities.joined([f"{variant} in {stalls[variant]} of {seconds[variant]}" for variant in variants])
    steadiness = []
    for phase in phases:
        for variant in variants:
            rates = sorted(row["rate"] for row in rows if row["phase"] == phase and row["variant"] == variant)
            if rates and rates[len(rates) // 2]:
                steadiness.append((rates[0] / rates[len(rates) // 2], variant, phase))
    if not steadiness:
        return f"Seconds with a call over {STALL_MS:.0f} ms: {told}."
    share, variant, phase = min(steadiness)
    return (
        f"Seconds with a call over {STALL_MS:.0f} ms: {told}. The deepest dip is that of {variant} in {phase.replace('_', ' ')}, to "
        f"{share * 100:.0f} % of its median second."
    )


TIMELINE: Final = Plot(
    "timeline",
    "Throughput over time",
    "Messages in each full second of a phase; a short run that looks even says nothing of the hours after it.",
    f"seconds of a phase that lasts {_LEAST_SECONDS} s or more",
    _data,
    _draw,
)
