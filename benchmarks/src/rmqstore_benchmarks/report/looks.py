"""One look for each variant, the same in every figure: a colour that the colour-blind can tell, a marker and a line style."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from rmqstore_benchmarks.report.reading import Cell

INK: Final = "#1c2126"
SOFT: Final = "#66707a"
GRID: Final = "#dde2e6"


class Look(NamedTuple):
    """How a variant is drawn."""

    colour: str
    marker: str
    dash: str

    @property
    def text_colour(self) -> str:
        """A darker shade of the colour, readable as text on white."""
        parts = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return "#" + "".join(f"{round(part * 0.68):02x}" for part in parts)


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
    """Return the design of a cell's engine: "copy" or "reference" for the wheel, "inline" or "separated" for RocksDB, else empty."""
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
