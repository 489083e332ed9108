"""What Spark and the generator cost: the null engine, which is sent everything and stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from rmqstore_benchmarks.report import bars, quantities
from rmqstore_benchmarks.report.aggregates import CellPhase, Spread
from rmqstore_benchmarks.report.drawing import first, note, panels, style
from rmqstore_benchmarks.report.looks import SOFT, Look
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy, values
from rmqstore_benchmarks.report.reading import NULL_ENGINE, Cell
from rmqstore_benchmarks.report.slices import COORDINATES, described

_PHASES: Final = {"schedule": "Schedule", "hand_over": "Hand over", "pop_ack": "Pop and ack", "mixed": "Mixed"}


def _data(measured: Measured) -> pa.Table:
    rates = [each for each in measured.of(*_PHASES) if "rate" in each.metrics]
    places: dict[tuple[Any, ...], list[CellPhase]] = {}
    for each in rates:
        places.setdefault(_place(each.cell), []).append(each)
    both = {place: members for place, members in places.items() if _comparable(members)}
    if not both:
        return tidy([])
    place, members = max(both.items(), key=lambda item: (len(item[1]), str(item[0])))
    setting = described(dict(zip(COORDINATES, place, strict=True)))
    comparable = _comparable(members)
    rows = []
    for phase, title in _PHASES.items():
        for each in members:
            if each.phase == phase and phase in comparable:
                rate = each.metrics["rate"]
                time_us = Spread(1e6 / rate.median, 1e6 / rate.high, 1e6 / rate.low, rate.repeats)
                is_null = each.cell.engine == NULL_ENGINE
                names = {"panel": title, "variant": each.cell.variant, "is_null": is_null, "part": "", "unit": "µs a message"}
                rows.append({**names, **values(time_us), "setting": setting})
    return tidy(rows)


def _comparable(members: Sequence[CellPhase]) -> set[str]:
    """Return the phases that both the null engine and another one went through."""
    null, others = ({each.phase for each in members if (each.cell.engine == NULL_ENGINE) is is_null} for is_null in (True, False))
    return null & others


def _place(cell: Cell) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in COORDINATES)


def _draw(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    rows = table.to_pylist()
    titles = [title for title in _PHASES.values() if any(row["panel"] == title for row in rows)]
    with style():
        count = len({row["variant"] for row in rows})
        lines = (len(titles) + 1) // 2
        figure, grid = panels(lines, min(len(titles), 2), lines * (0.75 + 0.24 * count) + 0.3)
        for axes, title in zip(first(grid, len(titles)), titles, strict=True):
            here = [row for row in rows if row["panel"] == title]
            bars.grouped(axes, ordered({row["variant"] for row in here}, looks), [""], here, looks)
            null = next(row["median"] for row in here if row["is_null"])
            axes.axvline(null, color=SOFT, linewidth=1, linestyle=(0, (3, 2)), zorder=5)
            axes.set_title(title)
            axes.set_xlabel("µs a message")
        note(figure, rows[0]["setting"])
    return Drawn(figure, " ".join(_sentence(title, [row for row in rows if row["panel"] == title]) for title in titles))


def _sentence(title: str, rows: list[dict[str, Any]]) -> str:
    null = next(row for row in rows if row["is_null"])
    fastest = min((row for row in rows if not row["is_null"]), key=lambda row: row["median"])
    share = null["median"] / fastest["median"]
    return (
        f"{title}: without an engine a message takes {quantities.digits(null['median'])} µs, {share * 100:.0f} % of what it takes with the "
        f"fastest ({fastest['variant']}, {quantities.digits(fastest['median'])} µs)."
    )


OVERHEAD: Final = Plot(
    "overhead",
    "What Spark and the generator cost",
    "Time a message, from the rates; the null engine does all but the call of the store. What lies left of the dashed line is no engine's.",
    "the null engine beside another one on the same cell",
    _data,
    _draw,
)
