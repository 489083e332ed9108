"""How figures are drawn with matplotlib: the look of each variant, axes and their scales, lines, bars, legends."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rmqstore_benchmarks.report import text

INK: Final = "#1c2126"
SOFT: Final = "#66707a"
SMALL: Final = 7.5
_WIDTH_INCHES: Final = 7.6
_SHADES: Final = (1.0, 0.6, 0.3)
_THICK: Final = 0.72
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dde2e6",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
}

# ---------------------------------------------------------------- variants


class Look(NamedTuple):
    """How a variant is drawn."""

    color: str
    marker: str
    linestyle: str


Looks = Mapping[str, Look]
"""By variant, in the order that every figure has."""

_LOOKS: Final = {
    ("wheel", "reference"): Look("#0072b2", "o", "-"),
    ("wheel", "copy"): Look("#56b4e9", "s", "--"),
    ("rocksdb", "inline"): Look("#d55e00", "^", "-"),
    ("rocksdb", "separated"): Look("#e69f00", "v", "--"),
    ("lmdb", ""): Look("#009e73", "D", "-"),
    ("memory", ""): Look("#cc79a7", "P", ":"),
    ("null", ""): Look("#8a939b", "x", ":"),
}
"""By engine and the setting that makes a design of its own of it: Okabe's and Ito's colours, one hue for an engine."""

_SPARE: Final = [
    Look(color, marker, "-.") for color, marker in zip(("#7b5aa6", "#8c6d1f", "#3b3b98", "#b0416b", "#4a7c59"), "Xph*d", strict=True)
]


def looks_of(cells: pd.DataFrame) -> Looks:
    """Return the look of each variant of these cells; where two share a design, the later ones by name get spare looks."""
    designs = {row.variant: (row.engine, row.kind) for row in cells.itertuples()}
    found: dict[str, Look] = {}
    spare = 0
    for variant in sorted(designs, key=lambda variant: (len(variant), variant)):
        look = _LOOKS.get(designs[variant])
        if look is None or look in found.values():
            look = _SPARE[spare % len(_SPARE)]
            spare += 1
        found[variant] = look
    ranks = {design: rank for rank, design in enumerate(_LOOKS)}
    return dict(sorted(found.items(), key=lambda item: (ranks.get(designs[item[0]], len(ranks)), item[0])))


def by_variant(rows: pd.DataFrame, looks: Looks) -> dict[str, pd.DataFrame]:
    """Return the rows of each variant, in the order that every figure has."""
    groups = dict(list(rows.groupby("variant", sort=False)))
    return {variant: groups[variant] for variant in looks if variant in groups}


# ---------------------------------------------------------------- axes


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style inside."""
    with mpl.rc_context(_STYLE):
        yield


def subplots(rows: int, columns: int, height_inches: float, note: str, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as the page with ``note`` above it, and its axes row by row."""
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared).flatten().tolist()
    figure.suptitle(note, x=0.01, ha="left", fontsize=SMALL, color=SOFT, wrap=False)
    return figure, axes


def pairs(count: int, height_inches: float, note: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many axes, two in a row of so many inches."""
    lines = (count + 1) // 2
    figure, axes = subplots(lines, min(count, 2), lines * height_inches + 0.4, note)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def scale(axes: Axes, which: str, values: Sequence[float], text_of: Callable[[float], str], *, is_log: bool = True) -> None:
    """Give an axis ("x" or "y") its scale, with room around the values, at least a factor of four if it is logarithmic, and its labels."""
    axis = getattr(axes, f"{which}axis")
    if is_log:
        low, high = min(values), max(values)
        if high / low < 4:
            middle = math.sqrt(low * high)
            low, high = middle / 2, middle * 2
        room = (high / low) ** 0.08
        axes.set(**{f"{which}scale": "log", f"{which}lim": (low / room, high * room)})
        axis.set_major_locator(LogLocator(numticks=12, subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    else:
        axes.set(**{f"{which}lim": (0, max(values) * 1.05 or 1)})
        axis.set_major_locator(MaxNLocator(nbins=5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value)))


def ticks(axis: Any, places: Sequence[float], labels: Sequence[str], **given: Any) -> None:
    """Put ticks at these places alone."""
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(list(places), labels=list(labels), **given)


def legend(figure: Figure, rows: pd.DataFrame, looks: Looks) -> None:
    """Name the variants once, below the figure."""
    handles = [Line2D([], [], label=variant, **looks[variant]._asdict()) for variant in by_variant(rows, looks)]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 5), handlelength=2.6)


# ---------------------------------------------------------------- lines and bars


def line(axes: Axes, look: Look, points: pd.DataFrame, x: str) -> None:
    """Draw medians as a line and their spread as thin bars."""
    axes.plot(points[x], points["median"], zorder=3, **look._asdict())
    axes.vlines(points[x], points.low, points.high, color=look.color, linewidth=0.9)


def bars(axes: Axes, rows: pd.DataFrame, parts: Sequence[str], looks: Looks, *, is_sum: bool = False) -> None:
    """Draw the parts of each variant as bars from zero: one behind the other with their sum, or below each other with their spread."""
    lines = by_variant(rows, looks)
    step = _THICK if is_sum else _THICK / len(parts)
    ends = []
    for at, (variant, mine) in enumerate(lines.items()):
        start = 0.0
        for number, part in enumerate(parts):
            for row in mine[mine.part == part].itertuples():
                y = at if is_sum else at + (number - (len(parts) - 1) / 2) * step
                axes.barh(y, row.median, step * 0.95, left=start, color=looks[variant].color, alpha=_SHADES[number], linewidth=0)
                if is_sum:
                    start += row.median
                else:
                    axes.hlines(y, row.low, row.high, color=INK, linewidth=0.9)
                    ends.append((y, row.median, row.high))
        if is_sum:
            ends.append((at, start, start))
    for y, value, end in ends:
        axes.annotate(text.digits(value), (end, y), (3, 0), textcoords="offset points", va="center", fontsize=SMALL)
    axes.set_yticks(range(len(lines)), labels=list(lines))
    axes.set(ylim=(len(lines) - 0.4, -0.6), xlim=(0, max(end for _, _, end in ends) * 1.2 or 1.0))
    axes.grid(visible=False, axis="y")
    if len(parts) > 1:
        handles = [Patch(color=SOFT, alpha=shade, linewidth=0, label=part) for part, shade in zip(parts, _SHADES, strict=False)]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=len(parts), fontsize=7, handlelength=1)


def bar_height(rows: pd.DataFrame) -> float:
    """Return the height of axes with a bar for each variant, inches."""
    return 1.0 + 0.27 * int(rows.variant.nunique())
