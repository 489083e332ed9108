"""The figures of the report: for each the table behind it, its drawing, and what it shows in a sentence or two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rmqstore_benchmarks.grid.stores import NULL_ENGINE
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import Measured, slices
from rmqstore_benchmarks.report.drawing import (
    INK,
    SOFT,
    Looks,
    bar_height,
    bars,
    by_variant,
    legend,
    line,
    pairs,
    scale,
    subplots,
    ticks,
)
from rmqstore_benchmarks.statistics import CURVE, DRAIN, LARGEST, POINT, SPREAD, known, latencies

_EDGES: Final = ["median", "low", "high"]
_LEAST_MS: Final = 1e-3


class Drawn(NamedTuple):
    """A figure, and what it shows."""

    figure: Figure
    finding: str


class Plot(NamedTuple):
    """One figure of the report.

    Attributes:
        name: of its files.
        reading: how it is read, a sentence or two.
        needs: what must have been measured; said when it was not.
        data: the rows behind it; none when what it needs is not there.
        draw: from these rows.
    """

    name: str
    title: str
    reading: str
    needs: str
    data: Callable[[Measured], pd.DataFrame]
    draw: Callable[[pd.DataFrame, Looks], Drawn]


class Panel(NamedTuple):
    """One set of axes, or one part of its bars: a figure of a phase.

    Attributes:
        scale: what the figure is multiplied by before it is drawn.
    """

    panel: str
    phase: str
    metric: str
    unit: str
    part: str = ""
    scale: float = 1.0


def _tidy(figures: pd.DataFrame, panels: Sequence[Panel], along: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row for each panel, variant and value of the coordinates ``along``, of the cells that compare most."""
    wanted = pd.DataFrame(panels)
    found = slices(figures.merge(wanted[["phase", "metric"]].drop_duplicates()), along)
    if not found:
        return pd.DataFrame()
    rows = wanted.merge(found[0].rows, on=["phase", "metric"])
    rows[_EDGES] = rows[_EDGES].mul(rows.scale, axis=0)
    rows = rows.assign(setting=found[0].setting)[["panel", "part", "unit", "variant", *along, *SPREAD, "setting"]]
    return rows.sort_values(list(along), kind="stable") if along else rows


def _span(rows: pd.DataFrame, least: float) -> list[float]:
    """Return the ends of the spreads, at least ``least``."""
    ends: list[float] = rows[["low", "high"]].clip(lower=least).stack().tolist()
    return ends


# ---------------------------------------------------------------- the balance of writing and reading

_ALONG: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "backlog": ("pending", text.short),
    "body_bytes": ("bodies", text.size),
}


def front(points: pd.DataFrame) -> pd.Series:
    """Return which points are on the Pareto front: no other one equals or beats them in both columns while beating them in one.

    More is better in both columns.
    """
    x, y = (points[name].to_numpy() for name in points)
    beats = (x[:, None] >= x) & (y[:, None] >= y) & ((x[:, None] > x) | (y[:, None] > y))
    return pd.Series(~beats.any(axis=0), points.index)


def _balance_rows(measured: Measured) -> pd.DataFrame:
    drains = known(measured.figures, "rate", DRAIN)[["cell_id", *_EDGES]].set_index("cell_id").add_prefix("drain_")
    rates = known(measured.figures, "rate", "schedule").join(drains, on="cell_id", how="inner")
    found = {along: each[0] for along in _ALONG if (each := slices(rates, (along,)))}
    rows = [each.rows.assign(along=along, at=each.rows[along], setting=each.setting) for along, each in found.items()]
    if not rows:
        return pd.DataFrame()
    names = {"median": "schedule_rate", "low": "schedule_low", "high": "schedule_high", "drain_median": "drain_rate"}
    whole = pd.concat(rows, ignore_index=True).rename(columns=names)
    whole["on_front"] = whole.groupby(["along", "at"], group_keys=False)[["schedule_rate", "drain_rate"]].apply(front)
    rates = [f"{name}_{edge}" for name in ("schedule", "drain") for edge in ("rate", "low", "high")]
    return whole.sort_values(["along", "variant", "at"])[["along", "variant", "at", *rates, "repeats", "on_front", "setting"]]


def _draw_balance(table: pd.DataFrame, looks: Looks) -> Drawn:
    parts = dict(list(table.groupby("along")))
    notes = [f"{_ALONG[along][0]}: {rows.setting.iloc[0]}" for along, rows in parts.items()]
    note = "\n".join([*notes, "larger markers: more pending, larger bodies; grey: the Pareto front of each size of marker"])
    figure, grid = pairs(len(parts), 4.0, note)
    for axes, (along, rows) in zip(grid, parts.items(), strict=True):
        word, text_of = _ALONG[along]
        for which, name in (("x", "schedule"), ("y", "drain")):
            scale(axes, which, rows[[f"{name}_low", f"{name}_high"]].stack().tolist(), text.short)
        stops = sorted(rows["at"].unique())
        for at in stops:
            best = rows[(rows["at"] == at) & rows.on_front].sort_values(["schedule_rate", "drain_rate"])
            x, y = best.schedule_rate.tolist(), best.drain_rate.tolist()
            edge = ([axes.get_xlim()[0], *x, x[-1]], [y[0], *y, axes.get_ylim()[0]])
            axes.step(*edge, where="pre", color=SOFT, linewidth=0.8, alpha=0.55, zorder=1)
        for variant, path in by_variant(rows, looks).items():
            look = looks[variant]
            sizes = [3.6 + 4.0 * stops.index(at) / max(len(stops) - 1, 1) for at in path["at"]]
            axes.plot(path.schedule_rate, path.drain_rate, look.linestyle, color=look.color, linewidth=1)
            axes.scatter(path.schedule_rate, path.drain_rate, [size**2 for size in sizes], look.color, marker=look.marker, zorder=4)
            axes.hlines(path.drain_rate, path.schedule_low, path.schedule_high, color=look.color, linewidth=0.7)
            axes.vlines(path.schedule_rate, path.drain_low, path.drain_high, color=look.color, linewidth=0.7)
        axes.set(xlabel="schedule, messages/s", ylabel="hand over + pop + ack, messages/s")
        axes.set_title(f"{word}: {text_of(stops[0])} to {text_of(stops[-1])}")
    legend(figure, table, looks)
    return Drawn(figure, " ".join(_balance_finding(along, rows, looks) for along, rows in parts.items()))


def _balance_finding(along: str, rows: pd.DataFrame, looks: Looks) -> str:
    word, text_of = _ALONG[along]
    most = rows["at"].max()
    here = rows[rows["at"] == most]
    writer, reader = (here.loc[here[name].idxmax()] for name in ("schedule_rate", "drain_rate"))
    where = f"With {text_of(most)} {word}" if along == "backlog" else f"With {word} of {text_of(most)}"
    return (
        f"{where}, {writer.variant} schedules fastest ({text.rate(writer.schedule_rate)}) and {reader.variant} drains fastest "
        f"({text.rate(reader.drain_rate)}); on the Pareto front: {text.joined(list(by_variant(here[here.on_front], looks)))}."
    )


# ---------------------------------------------------------------- one coordinate


class _Sweep(NamedTuple):
    """Figures along one coordinate."""

    along: str
    label: str
    text_of: Callable[[float], str]
    panels: tuple[Panel, ...]
    value_of: Callable[[float], str] = text.short
    is_log_x: bool = True
    is_log_y: bool = False

    def rows(self, measured: Measured) -> pd.DataFrame:
        return _tidy(measured.figures, self.panels, (self.along,))

    def draw(self, rows: pd.DataFrame, looks: Looks) -> Drawn:
        parts = list(rows.groupby(["panel", "unit"], sort=False))
        stops = sorted(rows[self.along].unique())
        figure, grid = pairs(len(parts), 2.8, rows.setting.iloc[0])
        for axes, ((title, unit), here) in zip(grid, parts, strict=True):
            for variant, points in by_variant(here, looks).items():
                line(axes, looks[variant], points, self.along)
            if self.is_log_x:
                scale(axes, "x", stops, self.text_of)
            ticks(axes.xaxis, stops, [self.text_of(each) for each in stops])
            scale(axes, "y", _span(here, _LEAST_MS), self.value_of, is_log=self.is_log_y)
            axes.set(xlabel=self.label, ylabel=unit)
            axes.set_title(title)
        legend(figure, rows, looks)
        return Drawn(figure, " ".join(self._finding(title, here, looks) for (title, unit), here in parts if unit != _MIB))

    def _finding(self, title: str, rows: pd.DataFrame, looks: Looks) -> str:
        least, most = self.text_of(rows[self.along].min()), self.text_of(rows[self.along].max())
        told = [
            f"{variant} {self.value_of(points['median'].iloc[0])} to {self.value_of(points['median'].iloc[-1])}"
            for variant, points in by_variant(rows, looks).items()
        ]
        return f"{title}, {self.label} {least} to {most}: {', '.join(told)}."


_RATE: Final = "messages/s"
_MIB: Final = "MiB/s"
_PER_MIB: Final = 1 / 2**20
_BACKLOG: Final = _Sweep(
    "backlog",
    "timers pending",
    text.short,
    (Panel("Schedule", "schedule", "rate", _RATE), Panel("Hand over", "hand_over", "rate", _RATE)),
)
_BODY: Final = _Sweep(
    "body_bytes",
    "body",
    text.size,
    (
        Panel("Schedule", "schedule", "rate", _RATE),
        Panel("Hand over, pop, ack", DRAIN, "rate", _RATE),
        Panel("Schedule", "schedule", "user_bytes_per_s", _MIB, scale=_PER_MIB),
        Panel("Hand over, pop, ack", DRAIN, "user_bytes_per_s", _MIB, scale=_PER_MIB),
    ),
    is_log_y=True,
)
_RECOVERY: Final = _Sweep(
    "backlog",
    "timers pending",
    text.short,
    (Panel("Open after kill -9", "recover", "wall_s", "time", scale=1000.0),),
    value_of=text.time_ms,
    is_log_y=True,
)
_SHARDS: Final = _Sweep(
    "shards",
    "shards",
    text.short,
    (Panel("Sustainable mixed load", "mixed", "rate", _RATE), Panel("Schedule", "schedule", "rate", _RATE)),
    is_log_x=False,
)


# ---------------------------------------------------------------- bars

_USER: Final = "bytes per user byte"
_SIGNS: Final = {_USER: "×", "µs": "µs"}
"""By unit, how a figure is told."""

_WRITTEN, _DEVICE, _READ, _SPACE = "Written by the process", "Written to the device", "Read from the device", "Space"
_STAGES: Final = {"schedule": "schedule", "hand_over": "hand over", "pop_ack": "pop + ack"}
_AMPLIFIED: Final = (
    *(Panel(_WRITTEN, phase, "wchar_per_user_byte", _USER, part) for phase, part in _STAGES.items()),
    *(Panel(_DEVICE, phase, "device_write_per_user_byte", _USER, part) for phase, part in _STAGES.items()),
    Panel(_READ, DRAIN, "device_read_per_user_byte", _USER, "drain, as cached"),
    Panel(_READ, "cold_drain", "device_read_per_user_byte", _USER, "drain, cold"),
    Panel(_SPACE, "schedule", "disk_per_live_byte", _USER, "timers pending"),
    Panel(_SPACE, "mixed", "disk_per_live_byte", _USER, "after mixed load"),
)
_SUMS: Final = (_WRITTEN, _DEVICE)
"""Panels whose parts are stages of a message's life, which add up."""


def _amplification_rows(measured: Measured) -> pd.DataFrame:
    """Return all parts; of those that add up only what every variant tells, since sums of other parts cannot be compared."""
    rows = _tidy(measured.figures, _AMPLIFIED)
    if rows.empty:
        return rows
    told, every = (rows.groupby(keys).variant.transform("nunique") for keys in (["panel", "part"], ["panel"]))
    return rows[~rows.panel.isin(_SUMS) | (told == every)]


def _draw_bars(rows: pd.DataFrame, looks: Looks, panels: Sequence[Panel]) -> Drawn:
    shown = dict(list(rows.groupby("panel", sort=False)))
    figure, grid = pairs(len(shown), bar_height(rows), f"{rows.unit.iloc[0]}; {rows.setting.iloc[0]}")
    sentences = []
    for axes, (title, here) in zip(grid, shown.items(), strict=True):
        parts, is_sum = list(here.part.unique()), title in _SUMS
        bars(axes, here, parts, looks, is_sum=is_sum)
        axes.set_title(title)
        told = parts if is_sum else parts[-1:]
        totals = here[here.part.isin(told)].groupby("variant")["median"].sum()[list(by_variant(here[here.part.isin(told)], looks))]
        stages = f" ({text.joined(told)})" if len(told) < len(_STAGES) else ""
        low, high = totals.idxmin(), totals.idxmax()
        least, most = (f"{text.digits(totals[name])} {_SIGNS[here.unit.iloc[0]]} for {name}" for name in (low, high))
        sentences.append(f"{title}{stages}: {f'from {least} to {most}' if low != high else least}.")
    if absent := [title.lower() for title in dict.fromkeys(each.panel for each in panels) if title not in shown]:
        sentences.append(f"Not told: {text.joined(absent)}.")
    return Drawn(figure, " ".join(sentences))


_ROLLED: Final = tuple(
    Panel("Written while rolling", "roll", metric, _USER, part)
    for metric, part in (("device_write_per_live_byte", "to the device"), ("wchar_per_live_byte", "by the process"))
)
_OVERHEAD: Final = tuple(
    Panel(title, phase, "us_per_message", "µs", "a message")
    for phase, title in {"schedule": "Schedule", "hand_over": "Hand over", "pop_ack": "Pop and ack", "mixed": "Mixed"}.items()
)


def _overhead_rows(measured: Measured) -> pd.DataFrame:
    """Return the time of a message in the phases that both the null engine and another one went through."""
    times = known(measured.whole, "us_per_message", *(panel.phase for panel in _OVERHEAD))
    sides = times.assign(is_null=times.engine == NULL_ENGINE).groupby([*POINT, "phase"]).is_null.transform("nunique")
    return _tidy(times[sides == 2], _OVERHEAD)


# ---------------------------------------------------------------- under an open loop

LOADS: Final = {"open_50": 50, "open_80": 80, "open_95": 95}
"""Phases of an open loop, and their load in percent of the sustainable rate."""

_TICKS: Final = {0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %", 0.99999: "99.999 %"}
_OPERATIONS: Final = ("schedule", "cancel", "hand_over", "pop", "ack", "slip")
_SHOWN: Final = {0.5: "p50", 0.99: "p99", 0.999: "p99.9", LARGEST: "max"}


def _under_load(measured: Measured, operations: Sequence[str]) -> pd.DataFrame:
    """Return the percentiles of operations under an open loop, of the cells that compare most."""
    rows = measured.latencies[measured.latencies.operation.isin(operations) & measured.latencies.phase.isin(LOADS)]
    found = slices(rows)
    rows = found[0].rows if found else rows
    return rows.assign(load_percent=rows.phase.map(LOADS), unit="ms", setting=found[0].setting if found else "")


def _lateness_rows(measured: Measured) -> pd.DataFrame:
    whole = _under_load(measured, ("lateness",))
    results, histograms = measured.results, measured.results.histograms
    runs = results.good.run_id[results.good.cell_id.isin(whole.cell_id)]
    wanted = histograms.run_id.isin(runs) & histograms.phase.isin(LOADS) & (histograms.operation == "lateness")
    curves = latencies(results._replace(histograms=histograms[wanted]), CURVE)
    rows = curves.merge(whole[["cell_id", "phase", "load_percent", "unit", "setting"]].drop_duplicates())
    rows = rows.sort_values(["load_percent", "variant", "share"])
    return rows[["load_percent", "variant", "share", "unit", *SPREAD, "setting"]]


def _draw_lateness(rows: pd.DataFrame, looks: Looks) -> Drawn:
    loads = list(rows.groupby("load_percent"))
    behind = 1 - rows.share.max()
    places = {1 / (1 - share): label for share, label in _TICKS.items() if 1 - share >= behind * 0.9}
    figure, grid = subplots(1, len(loads), 3.3, rows.setting.iloc[0], sharey=True)
    for axes, (load, here) in zip(grid, loads, strict=True):
        for variant, curve in by_variant(here, looks).items():
            across, color = 1 / (1 - curve.share), looks[variant].color
            shown = curve[_EDGES].clip(lower=_LEAST_MS)
            axes.plot(across, shown["median"], looks[variant].linestyle, color=color)
            axes.fill_between(across, shown.low, shown.high, color=color, alpha=0.15, linewidth=0)
        scale(axes, "y", _span(rows, _LEAST_MS), text.time_ms)
        axes.set(xscale="log", xlim=(1, 1.1 / behind), xlabel="messages not later")
        ticks(axes.xaxis, list(places), list(places.values()), rotation=40, ha="right")
        axes.set_title(f"{load} % load")
    legend(figure, rows, looks)
    return Drawn(figure, _lateness_finding(rows, looks))


def _lateness_finding(rows: pd.DataFrame, looks: Looks) -> str:
    heavy = rows.load_percent.max()
    load = 80 if (rows.load_percent == 80).any() else heavy
    told = rows[(rows.load_percent == load) & (rows.share <= 0.99 + 1e-9)]
    share = told.groupby("variant").share.max().min()  # the curves of all variants go on to here
    at_share = rows[rows.share == share].pivot_table(index="variant", columns="load_percent", values="median")
    before = at_share[load].dropna().sort_values(kind="stable")
    late = text.joined([f"{variant} {text.time_ms(ms)}" for variant, ms in before.items()])
    finding = f"At {load} % load, {text.digits(share * 100)} % of the messages are at most so late: {late}."
    both = at_share[[load, heavy]].dropna() if heavy != load and heavy in at_share else before[:0]
    if both.empty:
        return finding
    # Up or down: the distance on the logarithmic axis.
    logs = both.clip(lower=_LEAST_MS).map(math.log)
    most = (logs[heavy] - logs[load]).abs().reindex([variant for variant in looks if variant in both.index]).idxmax()
    return f"{finding} At {heavy} % it changes most for {most}, from {text.time_ms(both[load][most])} to {text.time_ms(both[heavy][most])}."


def _operation_rows(measured: Measured) -> pd.DataFrame:
    rows = _under_load(measured, _OPERATIONS)
    rows = rows[rows.share.isin(_SHOWN)].assign(percentile=rows.share.map(_SHOWN))
    rows = rows.assign(rank=rows.operation.map(_OPERATIONS.index)).sort_values(["rank", "variant", "load_percent"], kind="stable")
    return rows[["operation", "load_percent", "variant", "unit", "percentile", *SPREAD, "setting"]]


def _draw_operations(rows: pd.DataFrame, looks: Looks) -> Drawn:
    operations = dict(list(rows.groupby("operation", sort=False)))
    having = rows.groupby("percentile").operation.nunique()
    # A column for the slip alone, or one operation, would be empty paper: the table has its figures.
    percentiles = [each for each in _SHOWN.values() if 2 * having.get(each, 0) > len(operations)]
    loads = sorted(rows.load_percent.unique())
    size = (len(operations), len(percentiles), 0.9 + 1.25 * len(operations))
    figure, grid = subplots(*size, rows.setting.iloc[0], sharex=True, sharey="row")
    for at, axes in enumerate(grid):
        operation, percentile = list(operations)[at // len(percentiles)], percentiles[at % len(percentiles)]
        whole = operations[operation]
        for variant, points in by_variant(whole[whole.percentile == percentile], looks).items():
            line(axes, looks[variant], points, "load_percent")
        if at % len(percentiles) == 0:
            scale(axes, "y", _span(whole, _LEAST_MS), text.time_ms)
            axes.set_ylabel(operation.replace("_", " "), fontweight="bold")
        if at < len(percentiles):
            axes.set_title(percentile)
        ticks(axes.xaxis, loads, [f"{each} %" for each in loads])
    legend(figure, rows, looks)
    load = 80 if 80 in loads else loads[-1]
    at_load = rows[rows.load_percent == load]
    tail = at_load[at_load.percentile == "p99"]
    tail = (at_load if tail.empty else tail).sort_values("median", kind="stable")
    called, slips = tail[tail.operation != "slip"], tail[tail.operation == "slip"]
    sentences = []
    if len(called):
        best, worst = (f"{text.time_ms(row['median'])} ({row.operation} of {row.variant})" for row in (called.iloc[0], called.iloc[-1]))
        sentences.append(f"At {load} % load the {called.percentile.iloc[-1]} lies between {best} and {worst}.")
    if len(slips):
        last = slips.iloc[-1]
        sentences.append(f"The load itself began its calls late by at most {text.time_ms(last['median'])} ({last.variant}).")
    return Drawn(figure, " ".join(sentences))


# ---------------------------------------------------------------- second by second

_STALL_MS: Final = 100.0
_LEAST_SECONDS: Final = 2
_COUNTED: Final = {"fill": "scheduled", "schedule": "scheduled", "hand_over": "handed_over", "pop_ack": "acked", "mixed": "scheduled"}
"""By phase, what is counted."""


def _timeline_rows(measured: Measured) -> pd.DataFrame:
    """Return what the first repeat of each cell counted in each second that all shards worked through."""
    good = measured.results.good
    runs = good.sort_values("repeat", kind="stable").drop_duplicates("cell_id").sort_index()
    keys = ["run_id", "phase"]
    lasted_s = measured.results.phases.groupby(keys).wall_s.min().rename("lasted_s")
    seconds = measured.results.seconds.merge(runs, on="run_id").join(lasted_s, on=keys)
    seconds = seconds[seconds.phase.isin(_COUNTED) & (seconds.second + 1 <= seconds.lasted_s + 0.01)]
    counts = [seconds[counted].where(seconds.phase == phase) for phase, counted in _COUNTED.items()]
    seconds = seconds.assign(rate=sum(count.fillna(0.0) for count in counts), longest_call_ms=seconds.longest_call_ms.fillna(0.0))
    full = seconds.groupby([*keys, "second"]).agg({"rate": "sum", "longest_call_ms": "max"}).reset_index()
    by_phase = full.groupby(keys)
    full = full[(by_phase.second.transform("size") >= _LEAST_SECONDS) & (by_phase.rate.transform("max") > 0)]
    rows = pd.DataFrame(_COUNTED.items(), columns=["phase", "counted"]).merge(runs, how="cross").merge(full, on=keys)
    found = slices(rows)
    rows = found[0].rows if found else rows
    names = ["phase", "counted", "variant", "repeat", "second", "rate", "longest_call_ms", "setting"]
    return rows.assign(setting=found[0].setting if found else "")[names]


def _draw_timeline(rows: pd.DataFrame, looks: Looks) -> Drawn:
    phases = dict(list(rows.groupby("phase", sort=False)))
    note = f"markers: a call took over {_STALL_MS:.0f} ms in that second; repeat {rows.repeat.iloc[0]}; {rows.setting.iloc[0]}"
    figure, grid = pairs(len(phases), 2.1, note)
    dips = []
    for axes, (phase, here) in zip(grid, phases.items(), strict=True):
        for variant, points in by_variant(here, looks).items():
            look, stalled = looks[variant], points[points.longest_call_ms > _STALL_MS]
            axes.plot(points.second + 0.5, points.rate, look.linestyle, color=look.color)
            axes.plot(stalled.second + 0.5, stalled.rate, look.marker, color=look.color, mec=INK)
            if middle := points.rate.quantile(0.5, interpolation="higher"):
                dips.append((points.rate.min() / middle, variant, phase))
        axes.set_title(f"{phase.replace('_', ' ')}: {here.counted.iloc[0].replace('_', ' ')}")
        scale(axes, "y", here.rate.tolist(), text.short, is_log=False)
        axes.set(xlabel="s since the phase began", ylabel="messages/s")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    legend(figure, rows, looks)
    told = [f"{variant} in {(mine.longest_call_ms > _STALL_MS).sum()} of {len(mine)}" for variant, mine in by_variant(rows, looks).items()]
    finding = f"Seconds with a call over {_STALL_MS:.0f} ms: {text.joined(told)}."
    if dips:
        share, variant, phase = min(dips)
        finding += f" The deepest dip is that of {variant} in {phase.replace('_', ' ')}, to {share:.0%} of its median second."
    return Drawn(figure, finding)


LATENESS: Final = Plot(
    "lateness",
    "Lateness",
    "Hand-over less due time under an open loop: of all messages, the share on the axis below was not later than the line. Bands: lowest "
    "and highest repeat. A curve ends where fewer than one message lies behind.",
    "the operation lateness in the phases open_50, open_80 or open_95",
    _lateness_rows,
    _draw_lateness,
)
PLOTS: Final = (
    Plot(
        "balance",
        "Balance of writing and reading",
        "Right is faster writing, up is faster reading; both axes are logarithmic. A variant off the grey front is beaten at both by "
        "another one under the same load.",
        "the phases schedule, hand_over and pop_ack at two backlogs or two body sizes",
        _balance_rows,
        _draw_balance,
    ),
    Plot(
        "rate-over-backlog",
        "Rate over backlog",
        "Messages a second while so many timers are pending; a line that falls is a store that slows down as it fills. Bars: lowest and "
        "highest repeat.",
        "the phases schedule or hand_over at two backlogs",
        _BACKLOG.rows,
        _BACKLOG.draw,
    ),
    Plot(
        "rate-over-body",
        "Rate over body size",
        "Both axes are logarithmic. Above, messages; below, the same as volume: where that line is flat, bytes are the limit, and not "
        "calls.",
        "the phases schedule, hand_over and pop_ack at two body sizes",
        _BODY.rows,
        _BODY.draw,
    ),
    LATENESS,
    Plot(
        "latency-over-load",
        "Latency over load",
        "Each row is an operation, each column a percentile; time is logarithmic, from the intended start of the call. Slip is how late "
        "the load itself began: where it is large, the machine had no room for more load, whatever the engine.",
        "operations in the phases open_50, open_80 or open_95",
        _operation_rows,
        _draw_operations,
    ),
    Plot(
        "amplification",
        "Write, read and space amplification",
        "Written: over the life of a message, which is scheduled, handed over, popped and acked once; its topic, body, keys and properties "
        "are 1. The device counts for everybody on the machine. Read: by the drain, as the page cache is, and with little memory. Space: "
        "blocks in use over user bytes that are still kept.",
        "bytes in the phases schedule, hand_over, pop_ack, mixed or cold_drain",
        _amplification_rows,
        partial(_draw_bars, panels=_AMPLIFIED),
    ),
    Plot(
        "rolling",
        "Write amplification of rolling",
        "A wheel is shorter than the longest delay: a timer further away waits in a nearer slot and rolls on from there. It can be written "
        "anew (copy) or pointed to (reference). A key-ordered engine has nothing to roll.",
        "the phase roll",
        lambda measured: _tidy(measured.figures, _ROLLED),
        partial(_draw_bars, panels=_ROLLED),
    ),
    Plot(
        "recovery",
        "Recovery time",
        "Time of the open after kill -9; a flat line is an open that a check point bounds.",
        "the phase recover at two backlogs",
        _RECOVERY.rows,
        _RECOVERY.draw,
    ),
    Plot(
        "shards",
        "Scaling over shards",
        "Stores beside each other, one in each Spark task; the shards share the machine's cores and its disk.",
        "the phases mixed or schedule with two numbers of shards",
        _SHARDS.rows,
        _SHARDS.draw,
    ),
    Plot(
        "timeline",
        "Throughput over time",
        "Messages in each full second of a phase; a short run that looks even says nothing of the hours after it.",
        f"seconds of a phase that lasts {_LEAST_SECONDS} s or more",
        _timeline_rows,
        _draw_timeline,
    ),
    Plot(
        "overhead",
        "What Spark and the generator cost",
        "Time a message; the null engine does all but the call of the store, so what it takes is no engine's.",
        "the null engine beside another one on the same cell",
        _overhead_rows,
        partial(_draw_bars, panels=()),
    ),
)
"""In the order of the report."""
