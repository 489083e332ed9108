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
from matplotlib.lines import Line2D

from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import Measured, described, most_compared
from rmqstore_benchmarks.report.claims import ALL_CLAIMS, MARGIN, NAMES, Side, verdict_of, weighed
from rmqstore_benchmarks.report.drawing import INK, SOFT, UNITS, Looks, Scale, bars, by_variant, ends, legend, lines, subplots
from rmqstore_benchmarks.statistics import DRAIN, LARGEST, POINT, SPREAD, known

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
        shared = least if len(totals) == 1 else f"{form(totals.iloc[0])} for all"
        where = text.joined(list(here.part.unique()))
        sentences.append(f"{panel} ({where}): {f'from {least} to {most}' if totals.nunique() > 1 else shared}.")
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


def _of_panels(measured: Measured, panels: Sequence[Panel], *along: str) -> pd.DataFrame:
    """Return the rows of each panel, of the cells that compare most; with ``along`` over the values of this coordinate."""
    wanted = pd.DataFrame(panels)
    of_panels = measured.figures.merge(wanted[["phase", "metric"]].drop_duplicates())
    rows = wanted.merge(most_compared(of_panels, *along), on=["phase", "metric"])
    rows[_EDGES] = rows[_EDGES].mul(rows["scale"], axis=0)
    for name in along:
        _, where = ALONG[name]
        rows = rows.assign(at=rows[name], part=rows[name].map(where)).sort_values(name, kind="stable")
    return rows[["panel", "part", "unit", "variant", *(["at"] if along else []), *SPREAD, "setting"]]


# ---------------------------------------------------------------- over one coordinate

ALONG: Final[dict[str, tuple[Scale, Callable[[float], str]]]] = {
    "backlog": (Scale("timers pending", text.short), lambda value: f"{text.short(value)} timers pending"),
    "body_bytes": (Scale("body", text.size), lambda value: f"bodies of {text.size(value)}"),
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


# ---------------------------------------------------------------- the claims

_OF_CLAIMS: Final = ["claim", "verdict", "cell", "variant", "phase", "ratio", "lowest", "highest", "side", "setting"]
_SIDES: Final = {Side.MORE: ("#0072b2", "o"), Side.LESS: ("#d55e00", "s"), Side.ALIKE: (INK, "D"), Side.UNCLEAR: ("#a9b1b8", "x")}
"""By what a cell says: the colour and the marker of its ratio."""

_FARTHEST: Final = 10.0
"""Ratios beyond this, either way, are drawn at the end of the axis."""


def _claim_rows(measured: Measured) -> pd.DataFrame:
    """Return a row for each cell on which a claim is weighed."""
    found = [pd.DataFrame(columns=_OF_CLAIMS)]
    for claim in ALL_CLAIMS:
        cells = claim.found(weighed(measured.whole))
        if "variant" in cells and len(cells):  # lines of source are of no cell
            points = [{name: row[name] for name in POINT if name in row} for row in cells.to_dict("records")]
            verdict = verdict_of(cells).value
            cells = cells.assign(claim=claim.name, verdict=verdict, cell=[described(point) for point in points], setting="")
            found.append(cells.reindex(columns=_OF_CLAIMS))
    return pd.concat(found[1:] or found, ignore_index=True)


def _draw_claims(rows: pd.DataFrame, _: Looks) -> Figure:
    claims = dict(list(rows.groupby("claim", sort=False)))
    figure, (axes,) = subplots(1, 0.42 * len(claims) + 0.11 * len(rows) + 0.6, "", columns=1)
    axes.axvspan(1 / MARGIN, MARGIN, color=SOFT, alpha=0.18, linewidth=0)
    axes.axvline(1.0, color=SOFT, linewidth=0.8)
    place, ticks = 0.0, []
    for name, here in claims.items():
        ticks.append((place + 0.5 * (len(here) - 1), f"{name}\n{here.verdict.iloc[0]}"))
        for row in here.sort_values("ratio").itertuples():
            color, marker = _SIDES[row.side]
            low, ratio, high = (min(max(value, 1 / _FARTHEST), _FARTHEST) for value in (row.lowest, row.ratio, row.highest))
            axes.hlines(place, low, high, color=color, linewidth=1.1)
            axes.plot(ratio, place, marker, color=color, markersize=3.4)
            place += 1.0
        axes.axhline(place + 0.8, color="#dde2e6", linewidth=0.8)
        place += 2.6
    Scale("ratio", text.factor).apply(axes, "x", (1 / _FARTHEST, _FARTHEST))
    axes.set_yticks([at for at, _ in ticks], labels=[label for _, label in ticks])
    axes.set_ylim(place - 1.6, -1.4)
    axes.grid(visible=False, axis="y")
    handles = [Line2D([], [], label=NAMES[side], color=color, marker=marker, linewidth=1.1) for side, (color, marker) in _SIDES.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
    return figure


def _claim_finding(rows: pd.DataFrame) -> str:
    verdicts = rows.drop_duplicates("claim").groupby("verdict", sort=False).claim
    told = "; ".join(f"{verdict}: {text.joined(list(names))}" for verdict, names in verdicts)
    return f"{told[0].upper()}{told[1:]}. {len(rows)} cells."


# ---------------------------------------------------------------- bars

_USER: Final = "bytes per user byte"
_WRITTEN, _DEVICE = "Written by the process", "Written to the device"
_STAGES: Final = {"schedule": "schedule", "hand_over": "hand over", "pop_ack": "pop + ack"}
_AMPLIFIED: Final = (
    (
        *(Panel(_WRITTEN, phase, "wchar_per_user_byte", _USER, part) for phase, part in _STAGES.items()),
        *(Panel(_DEVICE, phase, "device_write_per_user_byte", _USER, part) for phase, part in _STAGES.items()),
    ),
    (Panel("Read from the device, cold", "cold_drain", "device_read_per_user_byte", _USER, "drain"),),
    (Panel("Space, timers pending", "schedule", "disk_per_live_byte", _USER, "behind schedule"),),
    (Panel("Space, mixed load", "mixed", "disk_per_live_byte", _USER, "behind mixed"),),
)
"""Panels that are of the same cells stand together."""

STACKED: Final = (_WRITTEN, _DEVICE)
"""Panels whose parts are stages of a message's life, which add up."""


def _amplification_rows(measured: Measured) -> pd.DataFrame:
    """Return all parts; of those that add up only what every variant tells, since sums of other parts cannot be compared."""
    rows = pd.concat([_of_panels(measured, panels) for panels in _AMPLIFIED], ignore_index=True)
    told, every = (rows.groupby(keys).variant.transform("nunique") for keys in (["panel", "part"], ["panel"]))
    return rows[~rows.panel.isin(STACKED) | (told == every)]


def _amplification_finding(rows: pd.DataFrame) -> str:
    titles = dict.fromkeys(each.panel for panels in _AMPLIFIED for each in panels)
    absent = [f"{title[0].lower()}{title[1:]}" for title in titles if title not in rows.panel.array]
    return extremes(rows) + (f" Not told: {'; '.join(absent)}." if absent else "")


# ---------------------------------------------------------------- under an open loop

_LOADS: Final = {"open_50": 50, "open_80": 80, "open_95": 95}
"""Phases of an open loop, and their load in percent of the sustainable rate."""

_OPERATIONS: Final = ("lateness", "schedule", "cancel", "hand_over", "pop", "ack")
_SHOWN: Final = {0.5: "p50", 0.99: "p99", 0.999: "p99.9", LARGEST: "max"}
_LOAD: Final = Scale("load, of its own sustained rate", lambda percent: f"{percent:.0f} %", is_log=False)


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


# ---------------------------------------------------------------- the figures


PLOTS: Final = (
    Plot(
        "claims",
        "The claims, cell by cell",
        "Each line is a cell: the ratio that the claim says is more than 1, with its interval of 95 %; the axis is logarithmic, and what "
        f"is beyond it is drawn at its end. An interval right of the grey band, from 1/{MARGIN:g} to {MARGIN:g}, is more, one left of it "
        "less, one within it alike; the others show nothing.",
        "what any claim is weighed on",
        _claim_rows,
        _draw_claims,
        _claim_finding,
    ),
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
        lambda measured: _of_panels(measured, _OVER_BACKLOG, "backlog"),
        partial(lines, x=ALONG["backlog"][0], log_y=False),
    ),
    Plot(
        "rate-over-body",
        "Rate over body size",
        "Both axes are logarithmic. Above, messages; below, the same as volume: where that line is flat, bytes are the limit, and not "
        "calls.",
        "the phases schedule, hand_over and pop_ack at two body sizes",
        lambda measured: _of_panels(measured, _OVER_BODY, "body_bytes"),
        partial(lines, x=ALONG["body_bytes"][0], log_y=True),
    ),
    Plot(
        "latency-over-load",
        "Latency over load",
        "Each row is an operation, each column a percentile; time is logarithmic, from the intended start of the call. Lateness is the end "
        "of the hand-over less the due time. The load is a share of what each variant sustains itself, so a slower one has less to do. An "
        "overloaded variant has no latencies.",
        "operations in the phases open_50, open_80 or open_95",
        _operation_rows,
        _draw_operations,
        lambda rows: extremes(rows[rows.share == rows.share[rows.share <= max(0.99, rows.share.min())].max()]),
    ),
    Plot(
        "amplification",
        "Write, read and space amplification",
        "Written: over the life of a message, which is scheduled, handed over, popped and acked once; its topic, body, keys and properties "
        "are 1. The device counts for everybody on the machine. Read: by a drain with a quarter of the memory that the messages would "
        "take. Space: blocks in use over user bytes that are still kept.",
        "bytes in the phases schedule, hand_over, pop_ack, mixed or cold_drain",
        _amplification_rows,
        partial(bars, stacked=STACKED),
        _amplification_finding,
    ),
)
"""In the order of the report."""
