"""The cells of a report: what is known of them, which of them can stand side by side, and how each variant looks in every figure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from rmqstore_benchmarks.grid.results import Cell, Results
from rmqstore_benchmarks.grid.stores import HOLLOW
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.statistics import CellPhase, Latency

COORDINATES: Final = ("workload", "body_bytes", "backlog", "durability", "shards")
_USUAL_BODY_BYTES: Final = 256

INK: Final = "#1c2126"
SOFT: Final = "#66707a"
GRID: Final = "#dde2e6"


class Look(NamedTuple):
    """How a variant is drawn."""

    colour: str
    marker: str
    dash: str


_LOOKS: Final = {
    ("wheel", "reference"): Look("#0072b2", "o", "-"),
    ("wheel", "copy"): Look("#56b4e9", "s", "--"),
    ("rocksdb", "inline"): Look("#d55e00", "^", "-"),
    ("rocksdb", "separated"): Look("#e69f00", "v", "--"),
    ("lmdb", ""): Look("#009e73", "D", "-"),
    ("memory", ""): Look("#cc79a7", "P", ":"),
    ("null", ""): Look("#8a939b", "x", ":"),
    ("raw-wheel", ""): Look("#8fb8d4", "x", ":"),
    ("raw-rocksdb", ""): Look("#e0a479", "x", ":"),
    ("raw-lmdb", ""): Look("#8cc7b1", "x", ":"),
}
"""By engine and the setting that makes a design of its own of it: Okabe's and Ito's colours, one hue for an engine."""

_SPARE: Final = (
    Look("#7b5aa6", "X", "-."),
    Look("#8c6d1f", "p", "-."),
    Look("#3b3b98", "h", "-."),
    Look("#b0416b", "*", "-."),
    Look("#4a7c59", "d", "-."),
)

_KINDS: Final = {"wheel": ("roll", "reference"), "rocksdb": ("values", "inline")}
"""By engine, the setting that matters to a design, and its default."""


def kind_of(cell: Cell) -> str:
    """Return the design of a cell's engine.

    "copy" or "reference" for the wheel, "inline" or "separated" for RocksDB, else empty.
    """
    if cell.engine not in _KINDS:
        return ""
    name, default = _KINDS[cell.engine]
    return cell.setting(name) or default


def looks_of(cells: Iterable[Cell]) -> dict[str, Look]:
    """Return the look of each variant; where two share a design, the later ones by name get spare looks."""
    kinds = {cell.variant: (cell.engine, kind_of(cell)) for cell in cells}
    found: dict[str, Look] = {}
    spare = 0
    for variant in sorted(kinds, key=lambda variant: (len(variant), variant)):
        look = _LOOKS.get(kinds[variant])
        if look is None or look in found.values():
            look = _SPARE[spare % len(_SPARE)]
            spare += 1
        found[variant] = look
    return {variant: found[variant] for variant in sorted(found, key=lambda variant: (_rank(kinds[variant]), variant))}


def _rank(kind: tuple[str, str]) -> int:
    return list(_LOOKS).index(kind) if kind in _LOOKS else len(_LOOKS)


class Measured(NamedTuple):
    """What figures, tables and claims are made from."""

    results: Results
    phases: list[CellPhase]
    latencies: list[Latency]
    looks: dict[str, Look]

    def of(self, *phases: str) -> list[CellPhase]:
        """Return what is known of these phases."""
        return [each for each in self.phases if each.phase in phases]


def ordered(variants: set[str], looks: Mapping[str, Look]) -> list[str]:
    """Return variants in the order that every figure has."""
    return [variant for variant in looks if variant in variants]


# ---------------------------------------------------------------- cells that can be compared


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


def place(cell: Cell) -> tuple[Any, ...]:
    """Return the point of the grid, whatever the engine."""
    return tuple(getattr(cell, name) for name in COORDINATES)


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


def slices(rows: Iterable[T], along: Sequence[str] = ()) -> list[Slice[T]]:
    """Return every slice, the one that compares most first; what is no engine is in none.

    ``along`` names the coordinates that may differ: then a variant is in it only with two values of them or more. The first slice is that
    of most variants, then of most rows, of the stricter durability, of the larger backlog, and of the usual body.
    """
    fixed_names = [name for name in COORDINATES if name not in along]
    groups: dict[tuple[Any, ...], list[T]] = defaultdict(list)
    for row in rows:
        if row.cell.engine not in HOLLOW:
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
