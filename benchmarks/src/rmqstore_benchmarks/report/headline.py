"""The table that a report begins with: each variant in one line, once for each durability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.aggregates import DRAIN, CellPhase, Spread
from rmqstore_benchmarks.report.plot import Measured, ordered
from rmqstore_benchmarks.report.slices import Slice, slices

NOT_TOLD: Final = "–"


class TextTable(NamedTuple):
    """A table as text.

    Attributes:
        caption: what holds for all of it.
    """

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class _Column(NamedTuple):
    """A figure of one phase."""

    heading: str
    phase: str
    metric: str
    text_of: Callable[[float], str]


_COLUMNS: Final = (
    _Column("schedule", "schedule", "rate", quantities.rate),
    _Column("drain", DRAIN, "rate", quantities.rate),
    _Column("sustained", "mixed", "rate", quantities.rate),
    _Column("CPU a message", "schedule", "cpu_us_per_message", lambda us: f"{quantities.digits(us)} µs"),
    _Column("written", "schedule", "wchar_per_user_byte", quantities.factor),
    _Column("space", "schedule", "disk_per_live_byte", quantities.factor),
    _Column("recovery", "recover", "wall_s", lambda seconds: quantities.time_ms(seconds * 1000)),
)
_LATE: Final = ("open_80", "lateness", 0.99)


def headlines(measured: Measured) -> list[TextTable]:
    """Return a table for each durability, on the cells that compare most variants."""
    wanted = {column.phase for column in _COLUMNS}
    found: dict[str, Slice[CellPhase]] = {}
    for each in slices([phase for phase in measured.phases if phase.phase in wanted]):
        found.setdefault(each.fixed["durability"], each)
    return [_table(measured, each) for _, each in sorted(found.items(), key=lambda item: (item[0] != "power_loss", item[0]))]


def _table(measured: Measured, chosen: Slice[CellPhase]) -> TextTable:
    by_phase = {(each.cell.variant, each.phase): each for each in chosen.rows}
    cells = {each.cell.cell_id for each in chosen.rows}
    phase, operation, share = _LATE
    late = {
        each.cell.variant: each.at_ms.get(share)
        for each in measured.latencies
        if each.cell.cell_id in cells and (each.phase, each.operation) == (phase, operation)
    }
    rows = []
    for variant in ordered({each.cell.variant for each in chosen.rows}, measured.looks):
        texts = []
        for column in _COLUMNS:
            known = by_phase.get((variant, column.phase))
            texts.append(_text(known.metrics.get(column.metric) if known else None, column.text_of))
        rows.append((variant, *texts, _text(late.get(variant), quantities.time_ms)))
    header = ("variant", *(column.heading for column in _COLUMNS), "lateness p99 at 80 % load")
    return TextTable(chosen.setting, header, rows)


def _text(value: Spread | None, text_of: Callable[[float], str]) -> str:
    """Return a median, with lowest and highest beside it where they differ."""
    if value is None:
        return NOT_TOLD
    middle, low, high = text_of(value.median), text_of(value.low), text_of(value.high)
    if low == high:
        return middle
    number, _, unit = low.rpartition(" ")
    return f"{middle} ({number if high.endswith(f' {unit}') else low} to {high})"
