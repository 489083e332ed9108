"""Bytes written, read and kept, over the bytes that the user gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore_benchmarks.report import bars, quantities
from rmqstore_benchmarks.report.aggregates import CellPhase
from rmqstore_benchmarks.report.drawing import first, note, panels, style
from rmqstore_benchmarks.report.looks import Look
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy, values
from rmqstore_benchmarks.report.slices import slices


class _Panel(NamedTuple):
    """One kind of amplification.

    Attributes:
        parts: by the phase, what it is called.
        is_sum: the parts are stages of a message's life, which add up.
    """

    title: str
    metric: str
    parts: dict[str, str]
    is_sum: bool


_LIFE: Final = {"schedule": "schedule", "hand_over": "hand over", "pop_ack": "pop + ack"}
_PANELS: Final = (
    _Panel("Written by the process", "wchar_per_user_byte", _LIFE, True),
    _Panel("Written to the device", "device_write_per_user_byte", _LIFE, True),
    _Panel("Read from the device", "device_read_per_user_byte", {"drain": "drain, as cached", "cold_drain": "drain, cold"}, False),
    _Panel("Space", "disk_per_live_byte", {"schedule": "timers pending", "mixed": "after mixed load"}, False),
)


def _data(measured: Measured) -> pa.Table:
    wanted = {(panel.metric, phase) for panel in _PANELS for phase in panel.parts}
    known = [each for each in measured.phases if any((name, each.phase) in wanted for name in each.metrics)]
    found = slices(known)
    if not found:
        return tidy([])
    rows = []
    for panel in _PANELS:
        for phase, part in _comparable(panel, found[0].rows).items():
            for each in found[0].rows:
                if each.phase == phase and (metric := each.metrics.get(panel.metric)):
                    names = {"panel": panel.title, "variant": each.cell.variant, "part": part, "unit": "bytes per user byte"}
                    rows.append({**names, **values(metric), "setting": found[0].setting})
    return tidy(rows)


def _comparable(panel: _Panel, rows: Sequence[CellPhase]) -> dict[str, str]:
    """Return the parts of a panel; of those that add up only what every variant tells, since sums of other parts cannot be compared."""
    if not panel.is_sum:
        return panel.parts
    told = {phase: {each.cell.variant for each in rows if each.phase == phase and panel.metric in each.metrics} for phase in panel.parts}
    return {phase: part for phase, part in panel.parts.items() if told[phase] and told[phase] == set().union(*told.values())}


def _draw(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    rows = table.to_pylist()
    shown = [panel for panel in _PANELS if any(row["panel"] == panel.title for row in rows)]
    with style():
        count = len({row["variant"] for row in rows})
        lines = (len(shown) + 1) // 2
        figure, grid = panels(lines, 2, lines * (1.05 + 0.27 * count) + 0.2)
        for axes, panel in zip(first(grid, len(shown)), shown, strict=True):
            here = [row for row in rows if row["panel"] == panel.title]
            variants = ordered({row["variant"] for row in here}, looks)
            parts = [part for part in panel.parts.values() if any(row["part"] == part for row in here)]
            (bars.stacked if panel.is_sum else bars.grouped)(axes, variants, parts, here, looks)
            axes.set_title(panel.title)
        note(figure, f"bytes over user bytes, space over kept user bytes; {rows[0]['setting']}")
    absent = [panel.title.lower() for panel in _PANELS if panel not in shown]
    end = f" Not told: {quantities.joined(absent)}." if absent else ""
    return Drawn(figure, " ".join(filter(None, (_sentence(panel, rows) for panel in shown))) + end)


def _sentence(panel: _Panel, rows: list[dict[str, Any]]) -> str:
    """Return the least and the most of one kind; of parts that do not add up, by the last part that is there."""
    here = [row for row in rows if row["panel"] == panel.title]
    if panel.is_sum:
        totals: dict[str, float] = {}
        for row in here:
            totals[row["variant"]] = totals.get(row["variant"], 0.0) + row["median"]
        stages = [part for part in panel.parts.values() if any(row["part"] == part for row in here)]
        what = "" if len(stages) == len(panel.parts) else f" ({quantities.joined(stages)} only)"
    else:
        part = [each for each in panel.parts.values() if any(row["part"] == each for row in here)][-1]
        totals = {row["variant"]: row["median"] for row in here if row["part"] == part}
        what = f" ({part})"
    low, high = min(totals, key=lambda name: totals[name]), max(totals, key=lambda name: totals[name])
    if low == high:
        return f"{panel.title}{what}: {quantities.factor(totals[low])} for {low}."
    return f"{panel.title}{what}: from {quantities.factor(totals[low])} for {low} to {quantities.factor(totals[high])} for {high}."


AMPLIFICATION: Final = Plot(
    "amplification",
    "Write, read and space amplification",
    "Written: over the life of a message, which is scheduled, handed over, popped and acked once; its topic, body, keys and properties "
    "are 1. "
    "The device counts for everybody on the machine. Read: by the drain, as the page cache is, and with little memory. Space: blocks in "
    "use "
    "over user bytes that are still kept.",
    "bytes in the phases schedule, hand_over, pop_ack, mixed or cold_drain",
    _data,
    _draw,
)
