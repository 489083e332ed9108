"""Latency percentiles of every operation over the load, with the slip of the load itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.drawing import legend, line, note, panels, style, time_axis, widen_log
from rmqstore_benchmarks.report.lateness import LOADS
from rmqstore_benchmarks.report.looks import Look
from rmqstore_benchmarks.report.percentiles import LARGEST
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy, values
from rmqstore_benchmarks.report.slices import slices

_OPERATIONS: Final = ("schedule", "cancel", "hand_over", "pop", "ack", "slip")
_SHOWN: Final = {0.5: "p50", 0.99: "p99", 0.999: "p99.9", LARGEST: "max"}
_LEAST_MS: Final = 1e-3
_ROW_INCHES: Final = 1.25


def _data(measured: Measured) -> pa.Table:
    loaded = [each for each in measured.latencies if each.phase in LOADS and each.operation in _OPERATIONS]
    found = slices(loaded)
    if not found:
        return tidy([])
    rows = []
    for each in found[0].rows:
        names = {"operation": each.operation, "load_percent": LOADS[each.phase], "variant": each.cell.variant}
        for share, text in _SHOWN.items():
            if share in each.at_ms:
                rows.append({**names, "percentile": text, "unit": "ms", **values(each.at_ms[share]), "setting": found[0].setting})
    return tidy(sorted(rows, key=lambda row: (_OPERATIONS.index(row["operation"]), row["variant"], row["load_percent"])))


def _draw(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    rows = table.to_pylist()
    operations = [each for each in _OPERATIONS if any(row["operation"] == each for row in rows)]
    known = {each: {row["operation"] for row in rows if row["percentile"] == each} for each in _SHOWN.values()}
    # A column for the slip alone, or one operation, would be empty paper: the table has its figures.
    percentiles = [each for each, having in known.items() if 2 * len(having) > len(operations)]
    loads = sorted({row["load_percent"] for row in rows})
    variants = ordered({row["variant"] for row in rows}, looks)
    with style():
        size = (len(operations), len(percentiles), 0.9 + _ROW_INCHES * len(operations))
        figure, grid = panels(*size, sharex=True, sharey="row")
        for at, axes in enumerate(grid):
            operation, percentile = operations[at // len(percentiles)], percentiles[at % len(percentiles)]
            in_row = [row for row in rows if row["operation"] == operation]
            for variant in variants:
                here = [row for row in in_row if row["percentile"] == percentile and row["variant"] == variant]
                if here:
                    line(axes, looks[variant], [_floored(row) for row in here], "load_percent")
            if at % len(percentiles) == 0:
                widen_log(axes, [max(row[edge], _LEAST_MS) for row in in_row for edge in ("low", "high")])
                axes.set_ylabel(operation.replace("_", " "), fontweight="bold")
                time_axis(axes.yaxis)
            if at < len(percentiles):
                axes.set_title(percentile)
            if at >= len(grid) - len(percentiles):
                axes.set_xlabel("load, %")
            axes.set_xlim(loads[0] - 8, loads[-1] + 8)
            axes.set_xticks(loads, labels=[str(each) for each in loads])
        legend(figure, variants, looks)
        note(figure, rows[0]["setting"])
    return Drawn(figure, _finding(rows))


def _floored(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: max(row[name], _LEAST_MS) for name in ("low", "median", "high")}}


def _finding(rows: list[dict[str, Any]]) -> str:
    loads = sorted({row["load_percent"] for row in rows})
    load = 80 if 80 in loads else loads[-1]
    tail = [row for row in rows if row["load_percent"] == load and row["percentile"] == "p99"]
    tail = tail or [row for row in rows if row["load_percent"] == load]
    called = [row for row in tail if row["operation"] != "slip"]
    sentences = []
    if called:
        best, worst = min(called, key=_median), max(called, key=_median)
        sentences.append(
            f"At {load} % load the {worst['percentile']} lies between {quantities.time_ms(best['median'])} ({best['operation']} of "
            f"{best['variant']}) and {quantities.time_ms(worst['median'])} ({worst['operation']} of {worst['variant']})."
        )
    slips = [row for row in tail if row["operation"] == "slip"]
    if slips:
        worst = max(slips, key=_median)
        sentences.append(
            f"The load itself began its calls late by at most {quantities.time_ms(worst['median'])} at the {worst['percentile']} "
            f"({worst['variant']})."
        )
    return " ".join(sentences)


def _median(row: Mapping[str, Any]) -> float:
    return float(row["median"])


OPERATIONS_OVER_LOAD: Final = Plot(
    "latency-over-load",
    "Latency over load",
    "Each row is an operation, each column a percentile; time is logarithmic, from the intended start of the call. Slip is how late the "
    "load "
    "itself began: where it is large, the machine had no room for more load, whatever the engine.",
    "operations in the phases open_50, open_80 or open_95",
    _data,
    _draw,
)
