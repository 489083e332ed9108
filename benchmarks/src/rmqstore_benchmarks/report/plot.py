"""What a figure of the report is: a table with the data behind it, and a drawing with one finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from matplotlib.figure import Figure

from rmqstore_benchmarks.report.aggregates import CellPhase, Spread
from rmqstore_benchmarks.report.looks import Look
from rmqstore_benchmarks.report.percentiles import Latency
from rmqstore_benchmarks.report.reading import Results


class Measured(NamedTuple):
    """What figures are made from."""

    results: Results
    phases: list[CellPhase]
    latencies: list[Latency]
    looks: dict[str, Look]

    def of(self, *phases: str) -> list[CellPhase]:
        """Return what is known of these phases."""
        return [each for each in self.phases if each.phase in phases]


class Drawn(NamedTuple):
    """A figure, and what it shows in one sentence."""

    figure: Figure
    finding: str


class Plot(NamedTuple):
    """One figure of the report.

    Attributes:
        name: of its files.
        reading: how it is read, a sentence or two.
        needs: what must have been measured; said when it was not.
        data: the tidy table behind it; empty when what it needs is not there.
        draw: from that table.
    """

    name: str
    title: str
    reading: str
    needs: str
    data: Callable[[Measured], pa.Table]
    draw: Callable[[pa.Table, Mapping[str, Look]], Drawn]


def tidy(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table, columns in the order of the first row."""
    return pa.Table.from_pylist([dict(row) for row in rows]) if rows else pa.table({})


def values(found: Spread) -> dict[str, Any]:
    """Return a spread as the columns that all tables share."""
    return {"median": found.median, "low": found.low, "high": found.high, "repeats": found.repeats}


def ordered(variants: set[str], looks: Mapping[str, Look]) -> list[str]:
    """Return variants in the order that every figure has."""
    return [variant for variant in looks if variant in variants]
