"""How late messages are handed over, as curves of percentiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from matplotlib.ticker import FixedLocator

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.drawing import EndLabel, label_ends, note, panels, style, time_axis, widen_log
from rmqstore_benchmarks.report.looks import Look
from rmqstore_benchmarks.report.percentiles import CURVE, latencies
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy, values
from rmqstore_benchmarks.report.slices import slices

LOADS: Final = {"open_50": 50, "open_80": 80, "open_95": 95}
"""Phases of an open loop, and their load in percent of the sustainable rate."""

_HEIGHT: Final = 3.3
_LEAST_MS: Final = 1e-3
_TICKS: Final = {0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %", 0.99999: "99.999 %"}


def _data(measured: Measured) -> pa.Table:
    late = [each for each in measured.latencies if each.operation == "lateness" and each.phase in LOADS]
    found = slices(late)
    if not found:
        return tidy([])
    cells = {each.cell.cell_id for each in found[0].rows}
    rows = []
    for each in latencies(measured.results, CURVE, cells=cells, phases=set(LOADS), operations={"lateness"}):
        for share, at_ms in each.at_ms.items():
            names = {"load_percent": LOADS[each.phase], "variant": each.cell.variant, "share": share, "unit": "ms"}
            rows.append({**names, **values(at_ms), "setting": found[0].setting})
    return tidy(sorted(rows, key=lambda row: (row["load_percent"], row["variant"], row["share"])))


def _draw(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    rows = table.to_pylist()
    loads = sorted({row["load_percent"] for row in rows})
    with style():
        figure, grid = panels(1, len(loads), _HEIGHT, sharey=True)
        behind = min(1 - row["share"] for row in rows)
        for axes, load in zip(grid, loads, strict=True):
            here = [row for row in rows if row["load_percent"] == load]
            labels = []
            for variant in ordered({row["variant"] for row in here}, looks):
                look, curve = looks[variant], [row for row in here if row["variant"] == variant]
                across = [1 / (1 - row["share"]) for row in curve]
                low, middle, high = ([max(row[name], _LEAST_MS) for row in curve] for name in ("low", "median", "high"))
                axes.plot(across, middle, look.dash, color=look.colour, zorder=3)
                axes.fill_between(across, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
                labels.append(EndLabel(variant, middle[-1], look))
            widen_log(axes, [max(row[edge], _LEAST_MS) for row in rows for edge in ("low", "high")])
            axes.set_xscale("log")
            axes.set_xlim(1, 1.1 / behind)
            ticks = {share: text for share, text in _TICKS.items() if 1 - share >= behind * 0.9}
            axes.xaxis.set_minor_locator(FixedLocator([]))
            axes.set_xticks([1 / (1 - share) for share in ticks], labels=list(ticks.values()), rotation=40, ha="right")
            axes.set_title(f"{load} % load")
            axes.set_xlabel("messages not later")
            if load == loads[-1]:
                label_ends(axes, labels, _HEIGHT * 0.65)
        grid[0].set_ylabel("lateness")
        time_axis(grid[0].yaxis)
        note(figure, rows[0]["setting"])
    return Drawn(figure, _finding(rows, looks))


def _finding(rows: list[dict[str, Any]], looks: Mapping[str, Look]) -> str:
    load = max((row["load_percent"] for row in rows), key=lambda percent: (percent == 80, percent))
    at = [row for row in rows if row["load_percent"] == load and row["share"] <= 0.99 + 1e-9]
    known = [{row["share"] for row in at if row["variant"] == variant} for variant in {row["variant"] for row in at}]
    share = max(set.intersection(*known))  # every curve begins at 0
    here = sorted((row for row in at if row["share"] == share), key=lambda row: row["median"])
    told = quantities.joined([f"{row['variant']} {quantities.time_ms(row['median'])}" for row in here])
    heavy = max(row["load_percent"] for row in rows)
    if heavy == load:
        return f"At {load} % load, {quantities.digits(share * 100)} % of the messages are at most so late: {told}."
    after = {row["variant"]: row["median"] for row in rows if row["load_percent"] == heavy and row["share"] == share}
    before = {row["variant"]: row["median"] for row in here if row["variant"] in after}
    end = ""
    if before:
        # Up or down: the distance on the logarithmic axis.
        most = max(
            ordered(set(before), looks),
            key=lambda variant: abs(math.log(max(after[variant], _LEAST_MS) / max(before[variant], _LEAST_MS))),
        )
        end = f" At {heavy} % it changes most for {most}, from {quantities.time_ms(before[most])} to {quantities.time_ms(after[most])}."
    return f"At {load} % load, {quantities.digits(share * 100)} % of the messages are at most so late: {told}.{end}"


LATENESS: Final = Plot(
    "lateness",
    "Lateness",
    "Hand-over less due time under an open loop: of all messages, the share on the axis below was not later than the line. Bands: "
    "lowest and "
    "highest repeat. A curve ends where fewer than one message lies behind.",
    "the operation lateness in the phases open_50, open_80 or open_95",
    _data,
    _draw,
)
