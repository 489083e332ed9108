"""What is written while timers only wait and roll."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from rmqstore_benchmarks.report import bars, quantities
from rmqstore_benchmarks.report.drawing import note, panels, style
from rmqstore_benchmarks.report.looks import Look
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy, values
from rmqstore_benchmarks.report.slices import slices

_PARTS: Final = {"wchar_per_live_byte": "by the process", "device_write_per_live_byte": "to the device"}


def _data(measured: Measured) -> pa.Table:
    found = slices([each for each in measured.of("roll") if any(name in each.metrics for name in _PARTS)])
    if not found:
        return tidy([])
    rows = []
    for metric, part in _PARTS.items():
        for each in found[0].rows:
            if known := each.metrics.get(metric):
                rolled = each.metrics.get("rolled")
                names = {"variant": each.cell.variant, "part": part, "unit": "bytes per user byte kept"}
                rows.append({**names, **values(known), "rolled": rolled and rolled.median, "setting": found[0].setting})
    return tidy(rows)


def _draw(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    rows = table.to_pylist()
    variants = ordered({row["variant"] for row in rows}, looks)
    parts = [part for part in _PARTS.values() if any(row["part"] == part for row in rows)]
    with style():
        figure, (axes,) = panels(1, 1, 1.1 + 0.36 * len(variants))
        bars.grouped(axes, variants, parts, rows, looks)
        axes.set_xlabel("bytes written while rolling, over user bytes kept")
        axes.xaxis.set_label_coords(1.0, -0.16)
        axes.xaxis.label.set_horizontalalignment("right")
        note(figure, rows[0]["setting"])
    first = [row for row in rows if row["part"] == parts[0]]
    told = [f"{row['variant']} {quantities.digits(row['median'])}{_count(row['rolled'])}" for row in sorted(first, key=_median)]
    return Drawn(figure, f"Bytes written {parts[0]} while time passes and nothing is due, over user bytes kept: {quantities.joined(told)}.")


def _median(row: Mapping[str, float]) -> float:
    return row["median"]


def _count(rolled: float | None) -> str:
    return "" if rolled is None else f" ({quantities.short(rolled)} rolled)"


ROLLING: Final = Plot(
    "rolling",
    "Write amplification of rolling",
    "A wheel is shorter than the longest delay: a timer further away waits in a nearer slot and rolls on from there. It can be written "
    "anew "
    "(copy) or pointed to (reference). A key-ordered engine has nothing to roll.",
    "the phase roll",
    _data,
    _draw,
)
