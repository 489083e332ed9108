"""Which cells can stand in one figure: those that differ in nothing but the variant and what the figure goes along."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.reading import NULL_ENGINE, Cell

_USUAL_BODY_BYTES: Final = 256

COORDINATES: Final = ("workload", "body_bytes", "backlog", "durability", "shards")


class HasCell(Protocol):
    """Anything that is known of a cell."""

    @property
    def cell(self) -> Cell: ...


T = TypeVar("T", bound=HasCell)


class Slice(NamedTuple, Generic[T]):
    """Rows of cells that share all coordinates but those that a figure goes along.

    Attributes:
        fixed: the shared coordinates by name.
    """

    fixed: dict[str, Any]
    rows: list[T]

    @property
    def setting(self) -> str:
        """The shared coordinates, for people."""
        return described(self.fixed)


def described(fixed: dict[str, Any]) -> str:
    """Return coordinates as a line: ``order-timeout, 256 B, 100 k pending, power loss, 1 shard``."""
    parts = []
    if "workload" in fixed:
        parts.append(str(fixed["workload"]))
    if "body_bytes" in fixed:
        parts.append(f"bodies of {quantities.size(fixed['body_bytes'])}")
    if "backlog" in fixed:
        parts.append(f"{quantities.short(fixed['backlog'])} pending")
    if "durability" in fixed:
        parts.append(f"safe from {str(fixed['durability']).replace('_', ' ')}")
    if "shards" in fixed:
        parts.append(f"{fixed['shards']} shard{'' if fixed['shards'] == 1 else 's'}")
    return ", ".join(parts)


def slices(rows: Iterable[T], along: Sequence[str] = ()) -> list[Slice[T]]:
    """Return every slice, the one that compares most first; the null engine is in none.

    ``along`` names the coordinates that may differ: then a variant is in it only with two values of them or more. The first slice is that
    of most variants, then of most rows, of the stricter durability, of the larger backlog, and of the usual body.
    """
    fixed_names = [name for name in COORDINATES if name not in along]
    groups: dict[tuple[Any, ...], list[T]] = defaultdict(list)
    for row in rows:
        if row.cell.engine != NULL_ENGINE:
            groups[tuple(getattr(row.cell, name) for name in fixed_names)].append(row)
    found = []
    for values, members in groups.items():
        points: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
        for row in members:
            points[row.cell.variant].add(tuple(getattr(row.cell, name) for name in along))
        full = {variant for variant, seen in points.items() if len(seen) > 1 or not along}
        if full:
            kept = [row for row in members if row.cell.variant in full]
            score = (len(full), sum(len(points[variant]) for variant in full), len(kept))
            found.append((score, Slice(dict(zip(fixed_names, values, strict=True)), kept)))
    found.sort(key=lambda each: (each[0], _preference(each[1].fixed)), reverse=True)
    return [each for _, each in found]


def _preference(fixed: dict[str, Any]) -> tuple[Any, ...]:
    return (
        fixed.get("durability") == "power_loss",
        -fixed.get("shards", 1),
        fixed.get("backlog", 0),
        -abs(math.log2(max(fixed.get("body_bytes", _USUAL_BODY_BYTES), 1) / _USUAL_BODY_BYTES)),
        fixed.get("workload", ""),
    )
