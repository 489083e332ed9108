"""The balance of writing and reading: each variant as a point of schedule rate and drain rate, with the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.aggregates import DRAIN, CellPhase
from rmqstore_benchmarks.report.drawing import SMALL, count_axis, note, panels, style, widen_log
from rmqstore_benchmarks.report.looks import SOFT, Look
from rmqstore_benchmarks.report.pareto import front
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy
from rmqstore_benchmarks.report.slices import slices

_HEIGHT: Final = 4.0
_ALONG: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "backlog": ("over backlog", quantities.short),
    "body_bytes": ("over body size", quantities.size),
}
_NEAR: Final = ((6, 0, "left"), (-6, 0, "right"), (0, 7, "center"), (0, -7, "center"), (6, 8, "left"), (-6, -8, "right"), (6, -8, "left"))
_SIDES: Final = (*_NEAR, (-6, 8, "right"), (0, 15, "center"), (0, -15, "center"), (10, 16, "left"), (10, -16, "left"), (-10, 16, "right"))

Rows = list[dict[str, Any]]


def _data(measured: Measured) -> pa.Table:
    rows = []
    for along in _ALONG:
        points = _points(measured)
        found = slices([schedule for schedule, _ in points.values()], (along,))
        if not found:
            continue
        for schedule in found[0].rows:
            drain = points[schedule.cell.cell_id][1]
            of_point: dict[str, Any] = {"along": along, "variant": schedule.cell.variant, "at": getattr(schedule.cell, along)}
            for name, each in (("schedule", schedule), ("drain", drain)):
                metric = each.metrics["rate"]
                of_point |= {f"{name}_rate": metric.median, f"{name}_low": metric.low, f"{name}_high": metric.high}
            of_point["repeats"] = schedule.metrics["rate"].repeats
            rows.append({**of_point, "on_front": False, "setting": found[0].setting})
    for along, at in {(row["along"], row["at"]) for row in rows}:
        here = [row for row in rows if (row["along"], row["at"]) == (along, at)]
        for place in front([(row["schedule_rate"], row["drain_rate"]) for row in here]):
            here[place]["on_front"] = True
    return tidy(sorted(rows, key=lambda row: (row["along"], row["variant"], row["at"])))


def _points(measured: Measured) -> dict[str, tuple[CellPhase, CellPhase]]:
    """Return by cell its two coordinates, where both are known."""
    drains = {each.cell.cell_id: each for each in measured.of(DRAIN) if "rate" in each.metrics}
    return {
        each.cell.cell_id: (each, drains[each.cell.cell_id])
        for each in measured.of("schedule")
        if "rate" in each.metrics and each.cell.cell_id in drains
    }


def _draw(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    rows = table.to_pylist()
    parts = {along: [row for row in rows if row["along"] == along] for along in _ALONG}
    parts = {along: of_part for along, of_part in parts.items() if of_part}
    with style():
        figure, grid = panels(1, len(parts), _HEIGHT)
        for axes, (along, of_part) in zip(grid, parts.items(), strict=True):
            _draw_plane(axes, along, of_part, looks)
        settings = [f"{_ALONG[along][0]}: {of_part[0]['setting']}" for along, of_part in parts.items()]
        note(figure, "\n".join([*settings, "larger markers: more pending, larger bodies; grey: the Pareto front of each size of marker"]))
    return Drawn(figure, " ".join(_finding(along, of_part, looks) for along, of_part in parts.items()))


def _draw_plane(axes: Axes, along: str, rows: Rows, looks: Mapping[str, Look]) -> None:
    title, text_of = _ALONG[along]
    widen_log(axes, [row[edge] for row in rows for edge in ("schedule_low", "schedule_high")], is_x=True, share=0.16)
    widen_log(axes, [row[edge] for row in rows for edge in ("drain_low", "drain_high")], share=0.12)
    stops = sorted({row["at"] for row in rows})
    texts: list[tuple[str, float, float, str]] = []
    for at in stops:
        best = sorted((row for row in rows if row["at"] == at and row["on_front"]), key=lambda row: row["schedule_rate"])
        _draw_front(axes, [(row["schedule_rate"], row["drain_rate"]) for row in best])
    for variant in ordered({row["variant"] for row in rows}, looks):
        look, path = looks[variant], [row for row in rows if row["variant"] == variant]
        across, up = [row["schedule_rate"] for row in path], [row["drain_rate"] for row in path]
        axes.plot(across, up, look.dash, color=look.colour, linewidth=1.0, alpha=0.75, zorder=3)
        for row in path:
            size = 3.6 + 4.0 * stops.index(row["at"]) / max(len(stops) - 1, 1)
            edge: dict[str, Any] = {"markeredgecolor": look.text_colour if row["on_front"] else look.colour, "markeredgewidth": 0.8}
            axes.plot(row["schedule_rate"], row["drain_rate"], look.marker, color=look.colour, markersize=size, zorder=4, **edge)
            bars: dict[str, Any] = {"color": look.colour, "linewidth": 0.7, "zorder": 2}
            axes.hlines(row["drain_rate"], row["schedule_low"], row["schedule_high"], **bars)
            axes.vlines(row["schedule_rate"], row["drain_low"], row["drain_high"], **bars)
        texts.append((variant, across[-1], up[-1], look.text_colour))
    axes.set_title(f"{title}, {text_of(stops[0])} to {text_of(stops[-1])}")
    axes.set_xlabel("schedule, messages/s")
    axes.set_ylabel("hand over + pop + ack, messages/s")
    count_axis(axes.xaxis, is_log=True)
    count_axis(axes.yaxis, is_log=True)
    _write_beside(axes, texts, [(row["schedule_rate"], row["drain_rate"]) for row in rows])


def _draw_front(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draw a front as the edge of what its points dominate."""
    (left, _), (_, bottom) = axes.get_xlim(), (0, axes.get_ylim()[0])
    across, up = [left], [points[0][1]]
    for at, (x, y) in enumerate(points):
        across += [x, x]
        up += [y, points[at + 1][1] if at + 1 < len(points) else bottom]
    axes.plot(across, up, color=SOFT, linewidth=0.8, alpha=0.55, zorder=1)


def _write_beside(axes: Axes, texts: Sequence[tuple[str, float, float, str]], points: Sequence[tuple[float, float]]) -> None:
    """Write names beside their points, on the first side where they hit neither another name nor a point, nor leave the axes."""
    box = axes.get_position()
    width, height = (np.array([box.width, box.height]) * _size_inches(axes) * 72).tolist()
    to_axes = axes.transData + axes.transAxes.inverted()
    taken: list[tuple[float, ...]] = [
        (x * width - 4, y * height - 4, x * width + 4, y * height + 4) for x, y in to_axes.transform(list(points))
    ]
    for text, x, y, colour in texts:
        left, bottom = (to_axes.transform((x, y)) * (width, height)).tolist()
        long, tall = 0.58 * SMALL * len(text), 1.1 * SMALL
        choices: list[tuple[int, int, tuple[float, ...], tuple[int, int, str]]] = []
        for across, up, align in _SIDES:
            start = left + across - {"left": 0.0, "right": long, "center": long / 2}[align]
            low = bottom + up - tall / 2
            here = (start, low, start + long, low + tall)
            hits = sum(_overlap(here, other) for other in taken)
            outside = here[0] < 0 or here[2] > width or here[1] < 0 or here[3] > height
            choices.append((hits + 10 * outside, len(choices), here, (across, up, align)))
        _, _, best, (across, up, align) = min(choices)
        taken.append(best)
        axes.annotate(text, (x, y), (across, up), textcoords="offset points", ha=align, va="center", fontsize=SMALL, color=colour, zorder=5)


def _size_inches(axes: Axes) -> Any:
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return figure.get_size_inches()


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _finding(along: str, rows: Rows, looks: Mapping[str, Look]) -> str:
    _, text_of = _ALONG[along]
    stops = sorted({row["at"] for row in rows})
    word = "pending" if along == "backlog" else "bodies"
    most = stops[-1]
    here = [row for row in rows if row["at"] == most]
    on_front = ordered({row["variant"] for row in here if row["on_front"]}, looks)
    writer = max(here, key=lambda row: row["schedule_rate"])
    reader = max(here, key=lambda row: row["drain_rate"])
    always = ordered(set.intersection(*({row["variant"] for row in rows if row["at"] == at and row["on_front"]} for at in stops)), looks)
    told = (
        f"{writer['variant']} schedules fastest ({quantities.rate(writer['schedule_rate'])}) and {reader['variant']} drains fastest "
        f"({quantities.rate(reader['drain_rate'])})"
        if writer is not reader
        else f"{writer['variant']} is fastest at both ({quantities.rate(writer['schedule_rate'])} scheduled, "
        f"{quantities.rate(writer['drain_rate'])} drained)"
    )
    where = f"With {text_of(most)} {word}" if along == "backlog" else f"With {word} of {text_of(most)}"
    kept = "" if always == on_front else f"; at every step: {quantities.joined(always) if always else 'none'}"
    return f"{where}, {told}; on the Pareto front: {quantities.joined(on_front)}{kept}."


BALANCE: Final = Plot(
    "balance",
    "Balance of writing and reading",
    "Right is faster writing, up is faster reading; both axes are logarithmic. A variant off the grey front is beaten at both by "
    "another one "
    "under the same load.",
    "the phases schedule, hand_over and pop_ack at two backlogs or two body sizes",
    _data,
    _draw,
)
