"""How all figures are drawn alike: type, axes, labels at the lines' ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.looks import GRID, INK, SOFT, Look

WIDTH_INCHES: Final = 7.6
SMALL: Final = 7.5
_POINTS_PER_INCH: Final = 72

_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "figure.facecolor": "white",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style inside."""
    with mpl.rc_context(_STYLE):
        yield


def panels(rows: int, columns: int, height_inches: float, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as the page, and its axes row by row."""
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, [axes for row in grid for axes in row]


def first(grid: Sequence[Axes], count: int) -> list[Axes]:
    """Return the first axes, and take the others out of their figure."""
    for axes in grid[count:]:
        axes.remove()
    return list(grid[:count])


def note(figure: Figure, text: str) -> None:
    """Put what holds for the whole figure above it."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=SMALL, color=SOFT, wrap=False)


def count_axis(axis: Any, *, is_log: bool = False) -> None:
    """Label an axis of counts or rates with k and M; a logarithmic one at the powers of ten alone, unless it has few of them."""
    if is_log:
        _log_ticks(axis)
    else:
        axis.set_major_locator(MaxNLocator(nbins=5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: quantities.short(value)))


def time_axis(axis: Any, *, is_log: bool = True) -> None:
    """Label an axis of ms with the unit that fits."""
    if is_log:
        _log_ticks(axis)
    axis.set_major_formatter(FuncFormatter(lambda value, _: quantities.time_ms(value)))


def size_axis(axis: Any, sizes: Sequence[float]) -> None:
    """Label a logarithmic axis of bytes at the sizes that were measured."""
    fixed_ticks(axis, sizes, [quantities.size(each) for each in sizes])


def fixed_ticks(axis: Any, places: Sequence[float], labels: Sequence[str]) -> None:
    """Put ticks at these places alone."""
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticks(list(places), labels=list(labels))


def _log_ticks(axis: Any) -> None:
    low, high = axis.get_view_interval()
    decades = np.log10(high / low) if low > 0 else 9
    axis.set_major_locator(LogLocator(numticks=12, subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0)))
    axis.set_minor_formatter(NullFormatter())


def widen_log(axes: Axes, values: Sequence[float], *, is_x: bool = False, share: float = 0.08) -> None:
    """Make an axis logarithmic with room around its values; at least a factor of four in all."""
    low, high = min(values), max(values)
    if high / low < 4:
        middle = (low * high) ** 0.5
        low, high = middle / 2, middle * 2
    room = (high / low) ** share
    if is_x:
        axes.set_xscale("log")
        axes.set_xlim(low / room, high * room)
    else:
        axes.set_yscale("log")
        axes.set_ylim(low / room, high * room)


def line(axes: Axes, look: Look, points: Sequence[Mapping[str, Any]], x: str = "x", *, label: str | None = None) -> None:
    """Draw medians as a line and their spread as thin bars."""
    across = [point[x] for point in points]
    middle = [point["median"] for point in points]
    axes.plot(across, middle, look.dash, color=look.colour, marker=look.marker, label=label, zorder=3)
    axes.vlines(across, [point["low"] for point in points], [point["high"] for point in points], color=look.colour, linewidth=0.9, zorder=2)


class EndLabel(NamedTuple):
    """A name beside the end of a line."""

    text: str
    y: float
    look: Look


def label_ends(axes: Axes, labels: Sequence[EndLabel], height_inches: float) -> None:
    """Write names right of the axes at the heights of their lines' ends, moved apart where they would overlap."""
    if not labels:
        return
    gap = 1.25 * SMALL / (height_inches * _POINTS_PER_INCH)
    to_axes = axes.transData + axes.transAxes.inverted()
    at = [float(np.clip(to_axes.transform((axes.get_xlim()[1], label.y))[1], 0, 1)) for label in labels]
    for place, label in zip(apart(at, gap), labels, strict=True):
        axes.annotate(
            label.text,
            xy=(1.0, place),
            xytext=(4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            color=label.look.text_colour,
            annotation_clip=False,
        )


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Return places moved as little as need be so that neighbours are ``gap`` apart; their order stays."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    groups: list[tuple[float, list[int]]] = []
    for at in order:
        centre, members = places[at], [at]
        while groups and groups[-1][0] + _half(groups[-1][1], gap) > centre - _half(members, gap) - 1e-9:
            members = groups.pop()[1] + members
            centre = sum(places[each] for each in members) / len(members)
        groups.append((centre, members))
    found = [0.0] * len(places)
    for centre, members in groups:
        for step, each in enumerate(members):
            found[each] = centre + (step - (len(members) - 1) / 2) * gap
    return found


def _half(members: Sequence[int], gap: float) -> float:
    return len(members) * gap / 2


def legend(figure: Figure, variants: Sequence[str], looks: Mapping[str, Look]) -> None:
    """Name the variants once, below the figure."""
    handles = []
    for variant in variants:
        look: dict[str, Any] = looks[variant]._asdict()
        handles.append(Line2D([], [], color=look["colour"], marker=look["marker"], linestyle=look["dash"], label=variant))
    figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 5), handlelength=2.6)
