"""The cells of a report: what is known of them, and which of them can stand side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pandas as pd

from rmqstore_benchmarks.grid.results import Results
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.drawing import Looks
from rmqstore_benchmarks.statistics import POINT

_USUAL_BODY_BYTES: Final = 256


class Measured(NamedTuple):
    """What figures, tables and claims are made from: the long tables of :mod:`rmqstore_benchmarks.statistics`.

    Attributes:
        figures, latencies: of engines.
        whole: figures also of what is no engine.
    """

    results: Results
    figures: pd.DataFrame
    latencies: pd.DataFrame
    whole: pd.DataFrame
    looks: Looks


class Slice(NamedTuple):
    """Rows of cells that share all coordinates but those that a figure goes along.

    Attributes:
        fixed: the shared coordinates by name.
    """

    fixed: dict[str, Any]
    rows: pd.DataFrame

    @property
    def setting(self) -> str:
        """The shared coordinates, for people."""
        return described(self.fixed)


def described(fixed: Mapping[str, Any]) -> str:
    """Return coordinates as a line: ``order-timeout, 256 B, 100 k pending, power loss, 1 shard``."""
    forms: dict[str, Callable[[Any], str]] = {
        "workload": str,
        "body_bytes": lambda value: f"bodies of {text.size(value)}",
        "backlog": lambda value: f"{text.short(value)} pending",
        "durability": lambda value: f"safe from {value.replace('_', ' ')}",
        "shards": lambda value: f"{value} shard{'' if value == 1 else 's'}",
    }
    return ", ".join(form(fixed[name]) for name, form in forms.items() if name in fixed)


def slices(rows: pd.DataFrame, along: Sequence[str] = ()) -> list[Slice]:
    """Return every slice, the one that compares most first.

    ``along`` names the coordinates that may differ: then a variant is in it only with two values of them or more. The first slice is that
    of most variants, then of most rows, of the stricter durability, of the larger backlog, and of the usual body.
    """
    names = [name for name in POINT if name not in along]
    found = []
    for values, members in rows.groupby(names, sort=False):
        points = members.drop_duplicates(["variant", *along]).variant.value_counts()
        points = points[points > 1] if along else points
        kept = members[members.variant.isin(points.index)]
        if len(points):
            fixed = dict(zip(names, values, strict=True))
            score = (len(points), points.sum(), len(kept.drop_duplicates(["cell_id", "phase"])))
            found.append((score, _preference(fixed), Slice(fixed, kept)))
    found.sort(key=lambda each: each[:2], reverse=True)
    return [each for *_, each in found]


def _preference(fixed: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        fixed.get("durability") == "power_loss",
        -fixed.get("shards", 1),
        fixed.get("backlog", 0),
        -abs(math.log2(max(fixed.get("body_bytes", _USUAL_BODY_BYTES), 1) / _USUAL_BODY_BYTES)),
        fixed.get("workload", ""),
    )
