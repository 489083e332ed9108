"""Figures of one coordinate: rates over backlog and body size, recovery over backlog, scaling over shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.aggregates import DRAIN, CellPhase
from rmqstore_benchmarks.report.drawing import (
    EndLabel,
    count_axis,
    first,
    fixed_ticks,
    label_ends,
    line,
    note,
    panels,
    size_axis,
    style,
    time_axis,
    widen_log,
)
from rmqstore_benchmarks.report.looks import SOFT, Look
from rmqstore_benchmarks.report.plot import Drawn, Measured, Plot, ordered, tidy, values
from rmqstore_benchmarks.report.slices import slices

Rows = list[dict[str, Any]]


class Part(NamedTuple):
    """One panel of a sweep.

    Attributes:
        scale: what a figure is multiplied by before it is drawn.
    """

    title: str
    phase: str
    metric: str
    unit: str
    scale: float = 1.0


_RATE: Final = "messages/s"
_PER_MIB: Final = 1 / 2**20
_BACKLOG: Final = (Part("Schedule", "schedule", "rate", _RATE), Part("Hand over", "hand_over", "rate", _RATE))
_BODY: Final = (
    Part("Schedule", "schedule", "rate", _RATE),
    Part("Hand over, pop, ack", DRAIN, "rate", _RATE),
    Part("Schedule", "schedule", "user_bytes_per_s", "MiB/s", _PER_MIB),
    Part("Hand over, pop, ack", DRAIN, "user_bytes_per_s", "MiB/s", _PER_MIB),
)
_RECOVERY: Final = (Part("Open after kill -9", "recover", "wall_s", "time", 1000.0),)
_SHARDS: Final = (Part("Sustainable mixed load", "mixed", "rate", _RATE), Part("Schedule", "schedule", "rate", _RATE))


def _table(along: str, parts: Sequence[Part]) -> Callable[[Measured], pa.Table]:
    """Return what makes the tidy table: a row for each panel, variant and value of the coordinate ``along``."""

    def table(measured: Measured) -> pa.Table:
        found = slices(_with(measured.of(*(part.phase for part in parts)), parts), (along,))
        if not found:
            return tidy([])
        rows = []
        for part in parts:
            for each in found[0].rows:
                if each.phase == part.phase and (metric := each.metrics.get(part.metric)):
                    scaled = {key: value * (1 if key == "repeats" else part.scale) for key, value in values(metric).items()}
                    names = {"panel": part.title, "unit": part.unit, "variant": each.cell.variant, along: getattr(each.cell, along)}
                    rows.append({**names, **scaled, "setting": found[0].setting})
        return tidy(sorted(rows, key=lambda row: row[along]))

    return table


def _with(phases: list[CellPhase], parts: Sequence[Part]) -> list[CellPhase]:
    metrics = {(part.phase, part.metric) for part in parts}
    return [each for each in phases if any((each.phase, name) in metrics for name in each.metrics)]


def _split(table: pa.Table) -> dict[tuple[str, str], Rows]:
    """Return the rows of each panel, in the order of the table's panels."""
    found: dict[tuple[str, str], Rows] = {}
    for row in table.to_pylist():
        found.setdefault((row["panel"], row["unit"]), []).append(row)
    return found


def _by_variant(rows: Rows, looks: Mapping[str, Look]) -> dict[str, Rows]:
    return {variant: [row for row in rows if row["variant"] == variant] for variant in ordered({row["variant"] for row in rows}, looks)}


def _ends(lines: Mapping[str, Rows], looks: Mapping[str, Look]) -> list[EndLabel]:
    return [EndLabel(variant, rows[-1]["median"], looks[variant]) for variant, rows in lines.items()]


# ---------------------------------------------------------------- backlog


def _draw_backlog(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    height = 3.0
    parts = _split(table)
    with style():
        figure, grid = panels(1, len(parts), height)
        for axes, ((title, unit), rows) in zip(grid, parts.items(), strict=True):
            lines = _by_variant(rows, looks)
            for variant, points in lines.items():
                line(axes, looks[variant], points, "backlog")
            widen_log(axes, [row["backlog"] for row in rows], is_x=True)
            axes.set_ylim(0, max(row["high"] for row in rows) * 1.05)
            axes.set_title(title)
            axes.set_xlabel("timers pending")
            axes.set_ylabel(unit)
            count_axis(axes.xaxis, is_log=True)
            count_axis(axes.yaxis)
            label_ends(axes, _ends(lines, looks), height * 0.7)
        note(figure, table["setting"][0].as_py())
    return Drawn(figure, " ".join(_kept(title, _by_variant(rows, looks), "backlog") for (title, _), rows in parts.items()))


def _kept(title: str, lines: Mapping[str, Rows], along: str) -> str:
    """Return how much of its rate each variant keeps from the least to the most."""
    full = {variant: rows for variant, rows in lines.items() if len(rows) > 1}
    if not full:
        return f"{title}: each variant has one backlog only."
    shares = sorted(((rows[-1]["median"] / rows[0]["median"], variant) for variant, rows in full.items()), reverse=True)
    low = quantities.short(min(rows[0][along] for rows in full.values()))
    high = quantities.short(max(rows[-1][along] for rows in full.values()))
    (best, leader), (worst, last) = shares[0], shares[-1]
    if leader == last:
        return f"{title}: from {low} to {high} pending, {leader} keeps {_percent(best)} of its rate."
    return f"{title}: from {low} to {high} pending, {leader} keeps {_percent(best)} of its rate, {last} {_percent(worst)}."


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


# ---------------------------------------------------------------- body size


def _draw_body(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    height = 5.4
    parts = _split(table)
    sizes = sorted(set(table["body_bytes"].to_pylist()))
    with style():
        figure, grid = panels((len(parts) + 1) // 2, 2, height if len(parts) > 2 else height / 2)
        for axes, ((title, unit), rows) in zip(first(grid, len(parts)), parts.items(), strict=True):
            lines = _by_variant(rows, looks)
            for variant, points in lines.items():
                line(axes, looks[variant], points, "body_bytes")
            widen_log(axes, sizes, is_x=True)
            widen_log(axes, [row[edge] for row in rows for edge in ("low", "high")])
            axes.set_title(title)
            axes.set_xlabel("body")
            axes.set_ylabel(unit)
            size_axis(axes.xaxis, _thinned(sizes))
            count_axis(axes.yaxis, is_log=True)
            label_ends(axes, _ends(lines, looks), height * 0.36)
        note(figure, table["setting"][0].as_py())
    return Drawn(figure, _body_finding(parts, looks))


_MOST_TICKS: Final = 5
_APART: Final = 5


def _thinned(sizes: Sequence[float]) -> list[float]:
    """Return sizes, if there are many only some that are far apart; the last one always."""
    kept: list[float] = []
    for each in reversed(sizes):
        if not kept or len(sizes) <= _MOST_TICKS or kept[-1] / each >= _APART:
            kept.append(each)
    return kept[::-1]


def _body_finding(parts: Mapping[tuple[str, str], Rows], looks: Mapping[str, Look]) -> str:
    sentences = []
    for (title, unit), rows in parts.items():
        if unit != _RATE:
            continue
        for at, words in ((min, "the smallest"), (max, "the largest")):
            body = at(row["body_bytes"] for row in rows)
            here = sorted((row for row in rows if row["body_bytes"] == body), key=lambda row: -row["median"])
            if len(here) > 1:
                best, worst = here[0], here[-1]
                sentences.append(
                    f"{title} at {words} body, {quantities.size(body)}: {best['variant']} leads with {quantities.rate(best['median'])}, "
                    f"{worst['variant']} comes last with {quantities.rate(worst['median'])}."
                )
    return " ".join(sentences) or _only_one(parts, looks)


def _only_one(parts: Mapping[tuple[str, str], Rows], looks: Mapping[str, Look]) -> str:
    (title, _), rows = next(iter(parts.items()))
    lines = _by_variant(rows, looks)
    variant, points = next(iter(lines.items()))
    least, most = points[0], points[-1]
    return (
        f"{title}: {variant} goes from {quantities.rate(least['median'])} at {quantities.size(least['body_bytes'])} to "
        f"{quantities.rate(most['median'])} at {quantities.size(most['body_bytes'])}; no other variant was measured."
    )


# ---------------------------------------------------------------- recovery


def _draw_recovery(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    height = 3.0
    rows = table.to_pylist()
    lines = _by_variant(rows, looks)
    with style():
        figure, (axes,) = panels(1, 1, height)
        for variant, points in lines.items():
            line(axes, looks[variant], points, "backlog")
        widen_log(axes, [row["backlog"] for row in rows], is_x=True)
        widen_log(axes, [max(row[edge], 1e-3) for row in rows for edge in ("low", "high")])
        axes.set_xlabel("timers pending")
        axes.set_ylabel("time to open")
        count_axis(axes.xaxis, is_log=True)
        time_axis(axes.yaxis)
        label_ends(axes, _ends(lines, looks), height * 0.75)
        note(figure, table["setting"][0].as_py())
    most = max(row["backlog"] for row in rows)
    here = sorted((row for row in rows if row["backlog"] == most), key=lambda row: row["median"])
    times = quantities.joined([f"{row['variant']} takes {quantities.time_ms(row['median'])}" for row in here])
    grown = {variant: points[-1]["median"] / points[0]["median"] for variant, points in lines.items() if len(points) > 1}
    worst = max(grown, key=lambda variant: grown[variant])
    span = f"{quantities.short(min(row['backlog'] for row in lines[worst]))} pending"
    return Drawn(
        figure,
        f"With {quantities.short(most)} pending, {times} to open after a kill; the largest growth since {span} is that of {worst}, "
        f"{quantities.factor(grown[worst])}.",
    )


# ---------------------------------------------------------------- shards


def _draw_shards(table: pa.Table, looks: Mapping[str, Look]) -> Drawn:
    height = 3.0
    parts = _split(table)
    shards = sorted(set(table["shards"].to_pylist()))
    with style():
        figure, grid = panels(1, len(parts), height)
        for axes, ((title, unit), rows) in zip(grid, parts.items(), strict=True):
            lines = _by_variant(rows, looks)
            top = max(row["high"] for row in rows)
            for variant, points in lines.items():
                ideal = [points[0]["median"] / points[0]["shards"] * number for number in shards]
                axes.plot(shards, ideal, color=looks[variant].colour, linewidth=0.7, linestyle=(0, (1, 3)), zorder=1)
                line(axes, looks[variant], points, "shards")
            axes.set_xlim(shards[0] - 0.1 * (shards[-1] - shards[0]), shards[-1] + 0.1 * (shards[-1] - shards[0]))
            axes.set_ylim(0, top * 1.25)
            axes.set_title(title)
            axes.set_xlabel("shards, one store and one task each")
            axes.set_ylabel(unit)
            fixed_ticks(axes.xaxis, shards, [str(each) for each in shards])
            count_axis(axes.yaxis)
            label_ends(axes, _ends(lines, looks), height * 0.7)
        grid[0].annotate("dotted: in proportion", xy=(0.02, 0.98), xycoords="axes fraction", va="top", fontsize=7, color=SOFT)
        note(figure, table["setting"][0].as_py())
    sentences = []
    for (title, _), rows in parts.items():
        gains = {
            variant: (points[0]["shards"], points[-1]["shards"], points[-1]["median"] / points[0]["median"])
            for variant, points in _by_variant(rows, looks).items()
            if len(points) > 1
        }
        if gains:
            few, many = min(gain[0] for gain in gains.values()), max(gain[1] for gain in gains.values())
            told = quantities.joined([f"{variant} {quantities.factor(gain[2])}" for variant, gain in gains.items()])
            sentences.append(f"{title}, from {few} to {many} shards: {told}.")
    return Drawn(figure, " ".join(sentences))


BACKLOG: Final = Plot(
    "rate-over-backlog",
    "Rate over backlog",
    "Messages a second while so many timers are pending; a line that falls is a store that slows down as it fills. Bars: lowest and "
    "highest "
    "repeat.",
    "the phases schedule or hand_over at two backlogs",
    _table("backlog", _BACKLOG),
    _draw_backlog,
)
BODY: Final = Plot(
    "rate-over-body",
    "Rate over body size",
    "Both axes are logarithmic. Above, messages; below, the same as volume: where that line is flat, bytes are the limit, and not calls.",
    "the phases schedule, hand_over and pop_ack at two body sizes",
    _table("body_bytes", _BODY),
    _draw_body,
)
RECOVERY: Final = Plot(
    "recovery",
    "Recovery time",
    "Time of the open after kill -9; a flat line is an open that a check point bounds.",
    "the phase recover at two backlogs",
    _table("backlog", _RECOVERY),
    _draw_recovery,
)
SHARDS: Final = Plot(
    "shards",
    "Scaling over shards",
    "Stores beside each other, one in each Spark task; the shards share the machine's cores and its disk.",
    "the phases mixed or schedule with two numbers of shards",
    _table("shards", _SHARDS),
    _draw_shards,
)
