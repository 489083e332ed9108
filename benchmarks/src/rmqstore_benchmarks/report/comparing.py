"""Two designs beside each other on the same cells: ratios, and how clear they are."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.aggregates import CellPhase, Spread
from rmqstore_benchmarks.report.looks import kind_of
from rmqstore_benchmarks.report.reading import Cell
from rmqstore_benchmarks.report.slices import COORDINATES

LEAST_RATIO: Final = 1.1
"""A ratio below this is no difference."""

Design = tuple[str, str]
"""An engine and its kind, as :func:`rmqstore_benchmarks.report.looks.kind_of` tells it."""

WHEEL: Final[Design] = ("wheel", "reference")
COPYING_WHEEL: Final[Design] = ("wheel", "copy")
ROCKSDB: Final[Design] = ("rocksdb", "inline")
SEPARATED: Final[Design] = ("rocksdb", "separated")


class Side(enum.Enum):
    """What one comparison says of a claim."""

    FOR = "for"
    AGAINST = "against"
    UNCLEAR = "unclear"


class Comparison(NamedTuple):
    """Two spreads of one figure on the same cell; the claim is that the first is larger."""

    cell: Cell
    first: Spread
    second: Spread

    @property
    def ratio(self) -> float:
        """The first median over the second."""
        return self.first / self.second

    @property
    def side(self) -> Side:
        """For the claim from a ratio of :data:`LEAST_RATIO` on; unclear where repeats overlap all the same, since that may be chance."""
        if self.ratio < LEAST_RATIO:
            return Side.AGAINST
        return Side.FOR if self.first.is_apart_from(self.second) else Side.UNCLEAR


def design_of(cell: Cell) -> Design:
    """Return the design of a cell's engine."""
    return cell.engine, kind_of(cell)


def comparisons(
    phases: Sequence[CellPhase], metric: str, first: Design, second: Design, only: Callable[[CellPhase], bool] = lambda _: True
) -> list[Comparison]:
    """Return a comparison for each cell on which both designs tell the figure in the same phase.

    ``only`` chooses among the cells of the first design. Where a design has several variants, each is compared.
    """
    found = []
    for one in phases:
        if design_of(one.cell) != first or metric not in one.metrics or not only(one):
            continue
        for other in phases:
            is_match = design_of(other.cell) == second and other.phase == one.phase and place(other.cell) == place(one.cell)
            if is_match and metric in other.metrics and other.metrics[metric].median:
                found.append(Comparison(one.cell, one.metrics[metric], other.metrics[metric]))
    return found


def place(cell: Cell) -> tuple[object, ...]:
    """Return the point of the grid, whatever the engine."""
    return tuple(getattr(cell, name) for name in COORDINATES)


def told(found: Sequence[Comparison]) -> str:
    """Return the ratios as text: ``1.4 × (one cell)``, ``1.1 × to 2.3 × (median 1.4 ×, 6 cells)``; said when a cell was not repeated."""
    ratios = sorted(each.ratio for each in found)
    is_single = any(1 in (each.first.repeats, each.second.repeats) for each in found)
    end = ", one repeat, so chance is not excluded" if is_single else ""
    if len(ratios) == 1:
        return f"{quantities.factor(ratios[0])} (one cell{end})"
    middle = ratios[len(ratios) // 2] if len(ratios) % 2 else (ratios[len(ratios) // 2 - 1] + ratios[len(ratios) // 2]) / 2
    low, high = quantities.factor(ratios[0]), quantities.factor(ratios[-1])
    if low == high:
        return f"{low} (on each of {len(ratios)} cells{end})"
    return f"{low} to {high} (median {quantities.factor(middle)}, {len(ratios)} cells{end})"


def where(found: Sequence[Comparison], side: Side) -> str:
    """Return on how many cells a comparison falls to one side, with the sizes and backlogs of these."""
    here = [each.cell for each in found if each.side is side]
    if not here:
        return "on none"
    bodies = sorted({cell.body_bytes for cell in here})
    backlogs = sorted({cell.backlog for cell in here})
    return f"on {len(here)} of {len(found)} ({_range(bodies, quantities.size)} bodies, {_range(backlogs, quantities.short)} pending)"


def _range(values: Sequence[float], text_of: Callable[[float], str]) -> str:
    return text_of(values[0]) if len(values) == 1 else f"{text_of(values[0])} to {text_of(values[-1])}"
