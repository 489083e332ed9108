"""The cells of a report: what is known of them, and which of them can stand side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pandas as pd

from rmqstore_benchmarks.grid.tables import Results
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.drawing import Looks
from rmqstore_benchmarks.statistics import POINT

_USUAL_BODY_BYTES: Final = 256
_FORMS: Final[dict[str, Callable[[Any], str]]] = {
    "workload": str,
    "body_bytes": lambda value: f"bodies of {text.size(value)}",
    "backlog": lambda value: f"{text.short(value)} pending",
    "durability": lambda value: f"safe from {value.replace('_', ' ')}",
    "shards": lambda value: f"{value} shard{'' if value == 1 else 's'}",
}


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


def described(fixed: Mapping[str, Any]) -> str:
    """Return coordinates as a line: ``order-timeout, bodies of 256 B, 100 k pending, safe from power loss, 1 shard``."""
    return ", ".join(form(fixed[name]) for name, form in _FORMS.items() if name in fixed)


def slices(rows: pd.DataFrame, *along: str) -> list[pd.DataFrame]:
    """Return rows of cells that share all coordinates but those ``along``, which ``setting`` describes; what compares most comes first.

    With ``along`` a variant is in a slice only with two values of it or more. The first slice is that of most variants, then of most rows,
    of the stricter durability, of fewer shards, of the larger backlog, and of the usual body.
    """
    names = [name for name in POINT if name not in along]
    found = []
    for values, members in rows.groupby(names, sort=False):
        fixed = dict(zip(names, values, strict=True))
        points = members.drop_duplicates(["variant", *along]).variant.value_counts()
        points = points[points > 1] if along else points
        if len(points):
            kept = members[members.variant.isin(points.index)]
            score = (len(points), points.sum(), len(kept.drop_duplicates(["cell_id", "phase"])), *_preference(fixed))
            found.append((score, kept.assign(setting=described(fixed))))
    return [each for _, each in sorted(found, key=lambda each: each[0], reverse=True)]


def most_compared(rows: pd.DataFrame, *along: str) -> pd.DataFrame:
    """Return the first of :func:`slices`, or no row."""
    return next(iter(slices(rows, *along)), rows[:0].assign(setting=""))


def _preference(fixed: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        fixed.get("durability") == "power_loss",
        -fixed.get("shards", 1),
        fixed.get("backlog", 0),
        -abs(math.log2(fixed.get("body_bytes", _USUAL_BODY_BYTES) / _USUAL_BODY_BYTES)),
        fixed.get("workload", ""),
    )
