"""The figures of the report: for each the table behind it, its drawing, and what it shows in a sentence or two.

A table has a row for each ``panel`` of the figure, each variant and each place ``at`` which it was measured (or ``part`` of a bar), with
the spread of the figure there, its ``unit`` and the ``setting`` that all rows share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from rmqstore_benchmarks.grid.stores import NULL_ENGINE
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import Measured, most_compared
from rmqstore_benchmarks.report.drawing import SOFT, UNITS, Looks, Scale, bars, by_variant, ends, legend, lines, subplots
from rmqstore_benchmarks.statistics import CURVE, DRAIN, LARGEST, POINT, SPREAD, known, latencies

_EDGES: Final = ["median", "low", "high"]


def extremes(rows: pd.DataFrame) -> str:
    """Return for each panel between which variants its figures lie: at the last place that all have, or in the last part."""
    sentences = []
    for (panel, unit), here in rows.groupby(["panel", "unit"], sort=False):
        form = UNITS[unit]
        if "at" in here:
            here = here[here["at"] == here.groupby("variant")["at"].max().min()]
        elif panel not in STACKED:
            here = here[here.part == here.part.iloc[-1]]
        totals = here.groupby("variant")["median"].sum()
        least, most = (f"{form(totals[name])} for {name}" for name in (totals.idxmin(), totals.idxmax()))
        where = text.joined(list(here.part.unique()))
        sentences.append(f"{panel} ({where}): {f'from {least} to {most}' if totals.nunique() > 1 else least}.")
    return " ".join(sentences)


class Plot(NamedTuple):
    """One figure of the report.

    Attributes:
        name: of its files.
        reading: how it is read, a sentence or two.
        needs: what must have been measured; said when it was not.
        data: the rows behind it; none when what it needs is not there.
        draw: from these rows.
        finding: what these rows show.
    """

    name: str
    title: str
    reading: str
    needs: str
    data: Callable[[Measured], pd.DataFrame]
    draw: Callable[[pd.DataFrame, Looks], Figure]
    finding: Callable[[pd.DataFrame], str] = extremes


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


def _of_panels(figures: pd.DataFrame, panels: Sequence[Panel], *along: str) -> pd.DataFrame:
    """Return the rows of each panel, of the cells that compare most; with ``along`` over the values of this coordinate."""
    wanted = pd.DataFrame(panels)
    rows = wanted.merge(most_compared(figures.merge(wanted[["phase", "metric"]].drop_duplicates()), *along), on=["phase", "metric"])
    rows[_EDGES] = rows[_EDGES].mul(rows["scale"], axis=0)
    for name in along:
        _, where = ALONG[name]
        rows = rows.assign(at=rows[name], part=rows[name].map(where)).sort_values(name, kind="stable")
    return rows[["panel", "part", "unit", "variant", *(["at"] if along else []), *SPREAD, "setting"]]


# ---------------------------------------------------------------- over one coordinate

ALONG: Final[dict[str, tuple[Scale, Callable[[float], str]]]] = {
    "backlog": (Scale("timers pending", text.short), lambda value: f"{text.short(value)} timers pending"),
    "body_bytes": (Scale("body", text.size), lambda value: f"bodies of {text.size(value)}"),
    "shards": (Scale("shards", text.short, is_log=False), lambda value: f"{value:.0f} shards"),
}
"""Coordinates of a cell that a figure may go along: their axis, and a value of it in words."""

_RATE, _VOLUME = "messages/s", "MiB/s"
_PER_MIB: Final = 1 / 2**20
_OVER_BACKLOG: Final = (Panel("Schedule", "schedule", "rate", _RATE), Panel("Hand over", "hand_over", "rate", _RATE))
_OVER_BODY: Final = (
    Panel("Schedule", "schedule", "rate", _RATE),
    Panel("Hand over, pop, ack", DRAIN, "rate", _RATE),
    Panel("Schedule", "schedule", "user_bytes_per_s", _VOLUME, scale=_PER_MIB),
    Panel("Hand over, pop, ack", DRAIN, "user_bytes_per_s", _VOLUME, scale=_PER_MIB),
)
_MOST_NAMED: Final = 4
"""So many steps have room in a title, one by one."""

_RECOVERY: Final = (Panel("Open after kill -9", "recover", "wall_s", "ms", scale=1000.0),)
_OVER_SHARDS: Final = (Panel("Sustainable mixed load", "mixed", "rate", _RATE), Panel("Schedule", "schedule", "rate", _RATE))


def front(points: pd.DataFrame) -> pd.Series:
    """Return which points are on the Pareto front: no other one equals or beats them in both columns while beating them in one.

    More is better in both columns.
    """
    x, y = (points[name].to_numpy() for name in points)
    beats = (x[:, None] >= x) & (y[:, None] >= y) & ((x[:, None] > x) | (y[:, None] > y))
    return pd.Series(~beats.any(axis=0), points.index)


def _balance_rows(measured: Measured) -> pd.DataFrame:
    """Return the rate of scheduling with that of the drain beside it (``drain_…``), over backlogs and over bodies."""
    drains = known(measured.figures, "rate", DRAIN)[["cell_id", *_EDGES]].set_index("cell_id").add_prefix("drain_")
    rates = known(measured.figures, "rate", "schedule").join(drains, on="cell_id", how="inner")
    found = {along: most_compared(rates, along) for along in ("backlog", "body_bytes")}
    rows = pd.concat([each.assign(panel=along, at=each[along]) for along, each in found.items()], ignore_index=True)
    if rows.empty:
        return rows
    rows["on_front"] = rows.groupby(["panel", "at"], group_keys=False)[["median", "drain_median"]].apply(front)
    drained = [f"drain_{name}" for name in _EDGES]
    return rows.sort_values(["panel", "variant", "at"])[["panel", "variant", "at", *SPREAD, *drained, "on_front", "setting"]]


def _draw_balance(rows: pd.DataFrame, looks: Looks) -> Figure:
    panels = dict(list(rows.groupby("panel")))
    notes = [f"{ALONG[along][0].label}: {here.setting.iloc[0]}" for along, here in panels.items()]
    note = "\n".join([*notes, "larger markers: more pending, larger bodies; grey: the Pareto front of each size of marker"])
    figure, grid = subplots(len(panels), 4.0, note)
    for axes, (along, here) in zip(grid, panels.items(), strict=True):
        Scale("schedule", text.rate).apply(axes, "x", ends(here, "low", "high"))
        Scale("hand over + pop + ack", text.rate).apply(axes, "y", ends(here, "drain_low", "drain_high"))
        stops = sorted(here["at"].unique())
        for at in stops:
            best = here[(here["at"] == at) & here.on_front].sort_values(["median", "drain_median"])
            x, y = best["median"].tolist(), best.drain_median.tolist()
            edge = ([axes.get_xlim()[0], *x, x[-1]], [y[0], *y, axes.get_ylim()[0]])
            axes.step(*edge, where="pre", color=SOFT, linewidth=0.8, alpha=0.55, zorder=1)
        for variant, path in by_variant(here, looks).items():
            look = looks[variant]
            sizes = [(3.6 + 4.0 * stops.index(at) / max(len(stops) - 1, 1)) ** 2 for at in path["at"]]
            axes.plot(path["median"], path.drain_median, look.linestyle, color=look.color, linewidth=1)
            axes.scatter(path["median"], path.drain_median, sizes, look.color, marker=look.marker, zorder=4)
            axes.hlines(path.drain_median, path.low, path.high, color=look.color, linewidth=0.7)
            axes.vlines(path["median"], path.drain_low, path.drain_high, color=look.color, linewidth=0.7)
        named = [ALONG[along][0].text_of(stop) for stop in stops]
        axes.set_title(f"{ALONG[along][0].label}: {text.joined(named) if len(named) <= _MOST_NAMED else f'{named[0]} to {named[-1]}'}")
    legend(figure, rows, looks)
    return figure


def _balance_finding(rows: pd.DataFrame) -> str:
    sentences = []
    for along, here in rows.groupby("panel"):
        most = here[here["at"] == here["at"].max()]
        writer, reader = (most.loc[most[name].idxmax()] for name in ("median", "drain_median"))
        sentences.append(
            f"With {ALONG[along][1](most['at'].iloc[0])}, {writer.variant} schedules fastest ({text.rate(writer['median'])}) and "
            f"{reader.variant} drains fastest ({text.rate(reader.drain_median)}); on the Pareto front: "
            f"{text.joined(most[most.on_front].variant.tolist())}."
        )
    return " ".join(sentences)


# ---------------------------------------------------------------- bars

_USER: Final = "bytes per user byte"
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
STACKED: Final = (_WRITTEN, _DEVICE)
"""Panels whose parts are stages of a message's life, which add up."""

_ROLLED: Final = tuple(
    Panel("Written while rolling", "roll", metric, _USER, part)
    for metric, part in (("device_write_per_live_byte", "to the device"), ("wchar_per_live_byte", "by the process"))
)
_OVERHEAD: Final = tuple(
    Panel(title, phase, "us_per_message", "µs", "a message")
    for phase, title in {"schedule": "Schedule", "hand_over": "Hand over", "pop_ack": "Pop and ack", "mixed": "Mixed"}.items()
)


def _amplification_rows(measured: Measured) -> pd.DataFrame:
    """Return all parts; of those that add up only what every variant tells, since sums of other parts cannot be compared."""
    rows = _of_panels(measured.figures, _AMPLIFIED)
    told, every = (rows.groupby(keys).variant.transform("nunique") for keys in (["panel", "part"], ["panel"]))
    return rows[~rows.panel.isin(STACKED) | (told == every)]


def _amplification_finding(rows: pd.DataFrame) -> str:
    absent = [title.lower() for title in dict.fromkeys(each.panel for each in _AMPLIFIED) if title not in rows.panel.array]
    return extremes(rows) + (f" Not told: {text.joined(absent)}." if absent else "")


def _overhead_rows(measured: Measured) -> pd.DataFrame:
    """Return the time of a message in the phases that both the null engine and another one went through."""
    times = known(measured.whole, "us_per_message", *(panel.phase for panel in _OVERHEAD))
    sides = times.assign(is_null=times.engine == NULL_ENGINE).groupby([*POINT, "phase"]).is_null.transform("nunique")
    return _of_panels(times[sides == 2], _OVERHEAD)


# ---------------------------------------------------------------- under an open loop

_LOADS: Final = {"open_50": 50, "open_80": 80, "open_95": 95}
"""Phases of an open loop, and their load in percent of the sustainable rate."""

_OPERATIONS: Final = ("schedule", "cancel", "hand_over", "pop", "ack", "slip")
_SHOWN: Final = {0.5: "p50", 0.99: "p99", 0.999: "p99.9", LARGEST: "max"}
_LOAD: Final = Scale("", lambda percent: f"{percent:.0f} %", is_log=False)
_NOT_LATER: Final = Scale("messages not later", lambda one_in: f"{100 - 100 / one_in:.5g} %")


def _lateness_rows(measured: Measured) -> pd.DataFrame:
    """Return curves over the share of the messages that is not later; ``at`` is that one in so many is later."""
    under_load = measured.latencies[(measured.latencies.operation == "lateness") & measured.latencies.phase.isin(_LOADS)]
    whole = most_compared(under_load)[["cell_id", "phase", "setting"]].drop_duplicates()
    histograms = measured.results.histograms
    late = measured.results._replace(histograms=histograms[histograms.operation == "lateness"])
    curves = latencies(late, measured.figures, CURVE).merge(whole)
    one_in, load = 1 / (1 - curves.share), curves.phase.map(_LOADS)
    parts = one_in.map(lambda at: f"{_NOT_LATER.text_of(at)} not later")
    rows = curves.assign(panel=load.map("{} % load".format), load=load, part=parts, unit="ms", at=one_in)
    return rows.sort_values(["load", "variant", "at"])[["panel", "part", "unit", "variant", "at", *SPREAD, "setting"]]


def _operation_rows(measured: Measured) -> pd.DataFrame:
    """Return percentiles of operations over the load, in as many columns as all operations have."""
    found = measured.latencies[measured.latencies.operation.isin(_OPERATIONS) & measured.latencies.share.isin(_SHOWN)]
    rows = most_compared(found[found.phase.isin(_LOADS)])
    rows = rows[rows.groupby("share").operation.transform("nunique") == rows.operation.nunique()]
    rows = rows.assign(at=rows.phase.map(_LOADS), unit="ms", rank=rows.operation.map(_OPERATIONS.index))
    panels = [f"{operation.replace('_', ' ')} {_SHOWN[share]}" for operation, share in zip(rows.operation, rows.share, strict=True)]
    rows = rows.assign(panel=panels, part=rows["at"].map(_LOAD.text_of)).sort_values(["rank", "share", "variant", "at"], kind="stable")
    return rows[["panel", "part", "share", "unit", "variant", "at", *SPREAD, "setting"]]


def _draw_operations(rows: pd.DataFrame, looks: Looks) -> Figure:
    return lines(rows, looks, _LOAD, log_y=True, columns=rows.share.nunique(), height_inches=1.4)


# ---------------------------------------------------------------- second by second

_STALL_MS: Final = 100.0
_LEAST_SECONDS: Final = 2
_COUNTED: Final = {"fill": "scheduled", "schedule": "scheduled", "hand_over": "handed_over", "pop_ack": "acked", "mixed": "scheduled"}
"""By phase, what is counted."""


def _timeline_rows(measured: Measured) -> pd.DataFrame:
    """Return what the first repeat of each cell counted in each second that all shards worked through; marked is one with a stall."""
    runs = measured.results.good.sort_values("repeat", kind="stable").drop_duplicates("cell_id").sort_index()
    keys = ["run_id", "phase"]
    lasted_s = measured.results.phases.groupby(keys).wall_s.min().rename("lasted_s")
    seconds = measured.results.seconds.merge(runs, on="run_id").join(lasted_s, on=keys)
    seconds = seconds[seconds.phase.isin(_COUNTED) & (seconds.second + 1 <= seconds.lasted_s + 0.01)]
    counts = [seconds[counted].where(seconds.phase == phase, 0) for phase, counted in _COUNTED.items()]
    full = seconds.assign(rate=sum(counts)).groupby([*keys, "second"]).agg({"rate": "sum", "longest_call_ms": "max"}).reset_index()
    by_phase = full.groupby(keys)
    full = full[(by_phase.second.transform("size") >= _LEAST_SECONDS) & (by_phase.rate.transform("max") > 0)]
    rows = most_compared(pd.DataFrame({"phase": list(_COUNTED)}).merge(runs, how="cross").merge(full, on=keys))
    panels = rows.phase.map({phase: f"{phase}: {counted}".replace("_", " ") for phase, counted in _COUNTED.items()})
    rows = rows.assign(panel=panels, at=rows.second + 0.5, unit=_RATE, median=rows.rate, low=rows.rate, high=rows.rate)
    rows = rows.assign(marked=rows.longest_call_ms > _STALL_MS)
    return rows[["panel", "unit", "variant", "at", *_EDGES, "marked", "setting"]]


def _draw_timeline(rows: pd.DataFrame, looks: Looks) -> Figure:
    note = f"markers: a call took over {_STALL_MS:.0f} ms in that second; first repeat; "
    return lines(rows, looks, Scale("s since the phase began", text.digits, is_log=False), log_y=False, height_inches=2.1, note=note)


def _timeline_finding(rows: pd.DataFrame) -> str:
    told = [f"{variant} in {mine.marked.sum()} of {len(mine)}" for variant, mine in rows.groupby("variant", sort=False)]
    return f"Seconds with a call over {_STALL_MS:.0f} ms: {text.joined(told)}."


# ---------------------------------------------------------------- the figures


def _over(along: str, panels: Sequence[Panel]) -> Callable[[Measured], pd.DataFrame]:
    return lambda measured: _of_panels(measured.figures, panels, along)


def _draw_over(along: str, *, log_y: bool = False) -> Callable[[pd.DataFrame, Looks], Figure]:
    return partial(lines, x=ALONG[along][0], log_y=log_y)


PLOTS: Final = (
    Plot(
        "balance",
        "Balance of writing and reading",
        "Right is faster writing, up is faster reading; both axes are logarithmic. A variant off the grey front is beaten at both by "
        "another one under the same load.",
        "the phases schedule, hand_over and pop_ack at two backlogs or two body sizes",
        _balance_rows,
        _draw_balance,
        _balance_finding,
    ),
    Plot(
        "rate-over-backlog",
        "Rate over backlog",
        "Messages a second while so many timers are pending; a line that falls is a store that slows down as it fills. Bands: lowest and "
        "highest repeat.",
        "the phases schedule or hand_over at two backlogs",
        _over("backlog", _OVER_BACKLOG),
        _draw_over("backlog"),
    ),
    Plot(
        "rate-over-body",
        "Rate over body size",
        "Both axes are logarithmic. Above, messages; below, the same as volume: where that line is flat, bytes are the limit, and not "
        "calls.",
        "the phases schedule, hand_over and pop_ack at two body sizes",
        _over("body_bytes", _OVER_BODY),
        _draw_over("body_bytes", log_y=True),
    ),
    Plot(
        "lateness",
        "Lateness",
        "Hand-over less due time under an open loop: of all messages, the share on the axis below was not later than the line. Bands: "
        "lowest and highest repeat. A curve ends where fewer than one message lies behind.",
        "the operation lateness in the phases open_50, open_80 or open_95",
        _lateness_rows,
        partial(lines, x=_NOT_LATER, log_y=True, columns=3, height_inches=3.3),
        lambda rows: extremes(rows[rows["at"] < 101]),
    ),
    Plot(
        "latency-over-load",
        "Latency over load",
        "Each row is an operation, each column a percentile; time is logarithmic, from the intended start of the call. Slip is how late "
        "the load itself began: where it is large, the machine had no room for more load, whatever the engine.",
        "operations in the phases open_50, open_80 or open_95",
        _operation_rows,
        _draw_operations,
        lambda rows: extremes(rows[rows.share == rows.share[rows.share <= max(0.99, rows.share.min())].max()]),
    ),
    Plot(
        "amplification",
        "Write, read and space amplification",
        "Written: over the life of a message, which is scheduled, handed over, popped and acked once; its topic, body, keys and properties "
        "are 1. The device counts for everybody on the machine. Read: by the drain, as the page cache is, and with little memory. Space: "
        "blocks in use over user bytes that are still kept.",
        "bytes in the phases schedule, hand_over, pop_ack, mixed or cold_drain",
        _amplification_rows,
        partial(bars, stacked=STACKED),
        _amplification_finding,
    ),
    Plot(
        "rolling",
        "Write amplification of rolling",
        "A wheel is shorter than the longest delay: a timer further away waits in a nearer slot and rolls on from there. It can be written "
        "anew (copy) or pointed to (reference). A key-ordered engine has nothing to roll.",
        "the phase roll",
        lambda measured: _of_panels(measured.figures, _ROLLED),
        bars,
    ),
    Plot(
        "recovery",
        "Recovery time",
        "Time of the open after kill -9; a flat line is an open that a check point bounds.",
        "the phase recover at two backlogs",
        _over("backlog", _RECOVERY),
        _draw_over("backlog", log_y=True),
    ),
    Plot(
        "shards",
        "Scaling over shards",
        "Stores beside each other, one in each Spark task; the shards share the machine's cores and its disk.",
        "the phases mixed or schedule with two numbers of shards",
        _over("shards", _OVER_SHARDS),
        _draw_over("shards"),
    ),
    Plot(
        "timeline",
        "Throughput over time",
        "Messages in each full second of a phase; a short run that looks even says nothing of the hours after it.",
        f"seconds of a phase that lasts {_LEAST_SECONDS} s or more",
        _timeline_rows,
        _draw_timeline,
        _timeline_finding,
    ),
    Plot(
        "overhead",
        "What Spark and the generator cost",
        "Time a message; the null engine does all but the call of the store, so what it takes is no engine's.",
        "the null engine beside another one on the same cell",
        _overhead_rows,
        bars,
    ),
)
"""In the order of the report."""
