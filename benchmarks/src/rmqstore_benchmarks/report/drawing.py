"""How figures are drawn with matplotlib: the look of each variant, axes and their scales; panels of lines and panels of bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rmqstore_benchmarks.report import text

INK: Final = "#1c2126"
SOFT: Final = "#66707a"
_SMALL: Final = 7.5
_WIDTH_INCHES: Final = 7.6
_SHADES: Final = (1.0, 0.6, 0.3)
_THICK: Final = 0.72
_LEAST: Final = 1e-3
"""Drawn for less on a logarithmic axis, which has no 0: a microsecond where times are in ms."""

STYLE: Final[dict[Any, Any]] = {
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
"""Of matplotlib, in which every figure is drawn."""

UNITS: Final[dict[str, Callable[[float], str]]] = {
    "messages/s": text.rate,
    "MiB/s": lambda value: f"{text.digits(value)} MiB/s",
    "ms": text.time_ms,
    "µs": lambda value: f"{text.digits(value)} µs",
    "bytes per user byte": text.factor,
}
"""By the unit of a row, how its figures are written."""


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


class Scale(NamedTuple):
    """An axis: its label, how its values are written, and whether it is logarithmic."""

    label: str
    text_of: Callable[[float], str]
    is_log: bool = True

    def apply(self, axes: Axes, which: str, values: Sequence[float]) -> None:
        """Give an axis ("x" or "y") its scale, with room around the values, at least a factor of four if it is logarithmic."""
        axis = getattr(axes, f"{which}axis")
        if self.is_log:
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
        axis.set_major_formatter(FuncFormatter(lambda value, _: self.text_of(value)))
        axis.set_label_text(self.label)


def subplots(count: int, height_inches: float, note: str, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as the page with ``note`` above it, and so many axes, each so high, row by row."""
    lines = -(-count // columns)
    figure = Figure(figsize=(_WIDTH_INCHES, lines * height_inches + 0.4), layout="constrained")
    axes = figure.subplots(lines, min(count, columns), squeeze=False).flatten().tolist()
    for spare in axes[count:]:
        spare.remove()
    figure.suptitle(note, x=0.01, ha="left", fontsize=_SMALL, color=SOFT, wrap=False)
    return figure, axes[:count]


def legend(figure: Figure, rows: pd.DataFrame, looks: Looks) -> None:
    """Name the variants once, below the figure."""
    handles = [Line2D([], [], label=variant, **looks[variant]._asdict()) for variant in by_variant(rows, looks)]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 5), handlelength=2.6)


def ends(rows: pd.DataFrame, *names: str) -> list[float]:
    """Return what an axis must show of these columns."""
    found: list[float] = rows[list(names)].stack().tolist()
    return found


# ---------------------------------------------------------------- lines and bars


def lines(rows: pd.DataFrame, looks: Looks, x: Scale, *, log_y: bool, columns: int = 2, height_inches: float = 2.8) -> Figure:
    """Draw a panel for each ``panel``: of each variant the medians over ``at``, and a band from lowest to highest.

    Panels in more than two columns share the scale of their values.
    """
    if log_y:
        rows = rows.assign(**rows[["median", "low", "high"]].clip(lower=_LEAST))
    panels = dict(list(rows.groupby(["panel", "unit"], sort=False)))
    figure, grid = subplots(len(panels), height_inches, rows.setting.iloc[0], columns)
    for axes, ((title, unit), here) in zip(grid, panels.items(), strict=True):
        stops = sorted(here["at"].unique())
        for variant, points in by_variant(here, looks).items():
            axes.plot(points["at"], points["median"], **looks[variant]._asdict())
            axes.fill_between(points["at"], points.low, points.high, color=looks[variant].color, alpha=0.2, linewidth=0)
        x.apply(axes, "x", stops)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(stops, labels=[x.text_of(each) for each in stops])
        if not x.is_log:
            room = 0.1 * (stops[-1] - stops[0]) or 0.5
            axes.set_xlim(stops[0] - room, stops[-1] + room)
        Scale("", UNITS[unit], log_y).apply(axes, "y", ends(rows if columns > 2 else here, "low", "high"))
        axes.set_title(title)
    legend(figure, rows, looks)
    return figure


def bars(rows: pd.DataFrame, looks: Looks, stacked: Collection[str] = ()) -> Figure:
    """Draw a panel for each ``panel``, with a bar from zero for each variant, and its spread.

    Of the panels ``stacked`` the parts stand one behind the other, with their sum; others have one.
    """
    panels = dict(list(rows.groupby("panel", sort=False)))
    of_setting = rows.drop_duplicates(["panel", "setting"]).groupby("setting", sort=False).panel
    settings = [f"{'; '.join(titles)}:\n    {setting}" if len(of_setting) > 1 else setting for setting, titles in of_setting]
    figure, grid = subplots(len(panels), 1.0 + 0.27 * rows.variant.nunique(), "\n".join([rows.unit.iloc[0], *settings]))
    for axes, (title, here) in zip(grid, panels.items(), strict=True):
        variants, parts, is_sum = list(by_variant(here, looks)), list(here.part.unique()), title in stacked
        starts = np.zeros(len(variants))
        labels: list[tuple[float, float, float]] = []
        for number, part in enumerate(parts):
            mine = here[here.part == part].set_index("variant").reindex(variants)
            places = np.arange(len(variants))
            colors = [looks[variant].color for variant in variants]
            axes.barh(places, mine["median"], _THICK * 0.95, left=starts, color=colors, alpha=_SHADES[number], linewidth=0)
            if is_sum:
                starts += mine["median"].fillna(0.0).to_numpy()
            else:
                axes.hlines(places, mine.low, mine.high, color=INK, linewidth=0.9)
                labels += zip(places, mine["median"], mine.high, strict=True)
        labels = labels or list(zip(range(len(variants)), starts, starts, strict=True))
        for place, value, end in labels:
            if not math.isnan(value):
                axes.annotate(text.digits(value), (end, place), (3, 0), textcoords="offset points", va="center", fontsize=_SMALL)
        axes.set_yticks(range(len(variants)), labels=variants)
        axes.set(ylim=(len(variants) - 0.4, -0.6), xlim=(0, np.nanmax([end for *_, end in labels]) * 1.2 or 1.0), title=title)
        axes.grid(visible=False, axis="y")
        if len(parts) > 1:
            handles = [Patch(color=SOFT, alpha=shade, linewidth=0, label=part) for part, shade in zip(parts, _SHADES, strict=False)]
            axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=len(parts), fontsize=7, handlelength=1)
    return figure
