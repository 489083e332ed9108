"""Horizontal bars from zero, one for each variant, split or grouped by parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.drawing import SMALL
from rmqstore_benchmarks.report.looks import INK, SOFT, Look

_SHADES: Final = (1.0, 0.6, 0.3)
_THICK: Final = 0.72

Rows = Sequence[Mapping[str, Any]]


def stacked(axes: Axes, variants: Sequence[str], parts: Sequence[str], rows: Rows, looks: Mapping[str, Look]) -> None:
    """Draw the parts of each variant one behind the other, their sum at the end."""
    ends = []
    for place, variant in enumerate(variants):
        start = 0.0
        for part, shade in zip(parts, _SHADES, strict=False):
            for row in rows:
                if row["variant"] == variant and row["part"] == part:
                    axes.barh(place, row["median"], _THICK, left=start, color=looks[variant].colour, alpha=shade, linewidth=0)
                    start += row["median"]
        ends.append((place, start, start))
    _finish(axes, variants, parts, ends, quantities.digits)


def grouped(
    axes: Axes,
    variants: Sequence[str],
    parts: Sequence[str],
    rows: Rows,
    looks: Mapping[str, Look],
    text_of: Callable[[float], str] = quantities.digits,
) -> None:
    """Draw the parts of each variant below each other, each with its spread and its figure."""
    ends = []
    step = _THICK / len(parts)
    for place, variant in enumerate(variants):
        for at, part in enumerate(parts):
            y = place + (at - (len(parts) - 1) / 2) * step
            for row in rows:
                if row["variant"] == variant and row["part"] == part:
                    axes.barh(y, row["median"], step * 0.92, color=looks[variant].colour, alpha=_SHADES[at], linewidth=0)
                    axes.hlines(y, row["low"], row["high"], color=INK, linewidth=0.9)
                    ends.append((y, row["median"], row["high"]))
    _finish(axes, variants, parts, ends, text_of)


def _finish(
    axes: Axes, variants: Sequence[str], parts: Sequence[str], ends: Sequence[tuple[float, float, float]], text_of: Callable[[float], str]
) -> None:
    for y, value, end in ends:
        axes.annotate(text_of(value), (end, y), (3, 0), textcoords="offset points", va="center", fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(variants)), labels=list(variants))
    axes.set_ylim(len(variants) - 0.4, -0.6)
    axes.set_xlim(0, max([end for _, _, end in ends], default=1.0) * 1.2 or 1.0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    if len(parts) > 1:
        handles = [Patch(color=SOFT, alpha=shade, linewidth=0, label=part) for part, shade in zip(parts, _SHADES, strict=False)]
        axes.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0, -0.16),
            ncols=len(parts),
            fontsize=7,
            handlelength=1,
            columnspacing=1,
            borderaxespad=0,
        )
