"""The figures of the report: for each the table behind it, its drawing, and what it shows in a sentence or two."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rmqstore_benchmarks.grid.results import Run
from rmqstore_benchmarks.grid.stores import NULL_ENGINE
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import COORDINATES, GRID, INK, SOFT, Look, Measured, described, ordered, place, slices
from rmqstore_benchmarks.statistics import CURVE, DRAIN, LARGEST, CellPhase, Spread, latencies

Rows = list[dict[str, Any]]
Looks = Mapping[str, Look]

_WIDTH_INCHES: Final = 7.6
_SMALL: Final = 7.5
_SHADES: Final = (1.0, 0.6, 0.3)
_THICK: Final = 0.72
_LEAST_MS: Final = 1e-3
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


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
        draw: from a table of these rows.
    """

    name: str
    title: str
    reading: str
    needs: str
    data: Callable[[Measured], Rows]
    draw: Callable[[pa.Table, Looks], Drawn]


class Panel(NamedTuple):
    """One set of axes, or one part of its bars: a figure of a phase.

    Attributes:
        scale: what the figure is multiplied by before it is drawn.
    """

    title: str
    phase: str
    metric: str
    unit: str
    part: str = ""
    scale: float = 1.0


# ---------------------------------------------------------------- what all have in common


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style inside."""
    with mpl.rc_context(_STYLE):
        yield


def _axes(rows: int, columns: int, height_inches: float, note: str, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as the page with ``note`` above it, and its axes row by row."""
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    figure.suptitle(note, x=0.01, ha="left", fontsize=_SMALL, color=SOFT, wrap=False)
    return figure, [axes for row in grid for axes in row]


def _grid(count: int, height_inches: float, note: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many axes, two in a row of so many inches."""
    lines = (count + 1) // 2
    figure, axes = _axes(lines, min(count, 2), lines * height_inches + 0.4, note)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def _scaled(axes: Axes, which: str, values: Sequence[float], text_of: Callable[[float], str], *, is_log: bool = True) -> None:
    """Give an axis ("x" or "y") its scale, with room around the values, at least a factor of four if it is logarithmic, and its labels."""
    axis = getattr(axes, f"{which}axis")
    if is_log:
        low, high = min(values), max(values)
        if high / low < 4:
            middle = math.sqrt(low * high)
            low, high = middle / 2, middle * 2
        room = (high / low) ** 0.08
        getattr(axes, f"set_{which}scale")("log")
        getattr(axes, f"set_{which}lim")(low / room, high * room)
        axis.set_major_locator(LogLocator(numticks=12, subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    else:
        getattr(axes, f"set_{which}lim")(0, max(values) * 1.05 or 1)
        axis.set_major_locator(MaxNLocator(nbins=5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value)))


def _ticks(axis: Any, places: Sequence[float], labels: Sequence[str], **given: Any) -> None:
    """Put ticks at these places alone."""
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(list(places), labels=list(labels), **given)


def _line(axes: Axes, look: Look, points: Rows, x: str) -> None:
    """Draw medians as a line and their spread as thin bars."""
    across = [point[x] for point in points]
    axes.plot(across, [point["median"] for point in points], look.dash, color=look.colour, marker=look.marker, zorder=3)
    axes.vlines(across, [point["low"] for point in points], [point["high"] for point in points], color=look.colour, linewidth=0.9)


def _legend(figure: Figure, variants: Sequence[str], looks: Looks) -> None:
    """Name the variants once, below the figure."""
    handles = []
    for variant in variants:
        look: dict[str, Any] = looks[variant]._asdict()
        handles.append(Line2D([], [], color=look["colour"], marker=look["marker"], linestyle=look["dash"], label=variant))
    figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 5), handlelength=2.6)


def _by_variant(rows: Rows, looks: Looks) -> dict[str, Rows]:
    return {variant: [row for row in rows if row["variant"] == variant] for variant in ordered({row["variant"] for row in rows}, looks)}


def _split(rows: Rows, *keys: str) -> dict[Any, Rows]:
    """Return the rows by the values of these columns, in the order of the rows."""
    found: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]]].append(row)
    return found


def _edges(rows: Rows, least: float = 0.0) -> list[float]:
    return [max(row[edge], least) for row in rows for edge in ("low", "high")]


def _tidy(measured: Measured, panels: Sequence[Panel], along: Sequence[str] = ()) -> Rows:
    """Return a row for each panel, variant and value of the coordinates ``along``, of the cells that compare most."""
    wanted = {(panel.phase, panel.metric) for panel in panels}
    found = slices([each for each in measured.phases if any((each.phase, name) in wanted for name in each.metrics)], along)
    rows = []
    for panel in panels if found else ():
        for each in found[0].rows:
            if each.phase == panel.phase and (value := each.metrics.get(panel.metric)):
                names = {"panel": panel.title, "part": panel.part, "unit": panel.unit, "variant": each.cell.variant}
                at = {name: getattr(each.cell, name) for name in along}
                rows.append({**names, **at, **_values(value, panel.scale), "setting": found[0].setting})
    return sorted(rows, key=lambda row: [row[name] for name in along])


def _values(found: Spread, scale: float = 1.0) -> dict[str, Any]:
    return {"median": found.median * scale, "low": found.low * scale, "high": found.high * scale, "repeats": found.repeats}


# ---------------------------------------------------------------- the balance of writing and reading

_ALONG: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "backlog": ("pending", text.short),
    "body_bytes": ("bodies", text.size),
}


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the Pareto front: the places of the points that no other one equals or beats in both coordinates while beating it in one.

    More is better in both coordinates. They come by falling x; equal points are on the front together.
    """
    found: list[int] = []
    best = -math.inf
    for at in sorted(range(len(points)), key=lambda at: (-points[at][0], -points[at][1])):
        if points[at][1] > best or (found and points[at] == points[found[-1]]):
            found.append(at)
            best = points[at][1]
    return found


def _balance_rows(measured: Measured) -> Rows:
    drains = {each.cell.cell_id: each.metrics["rate"] for each in measured.of(DRAIN) if "rate" in each.metrics}
    known = [each for each in measured.of("schedule") if "rate" in each.metrics and each.cell.cell_id in drains]
    rows = []
    for along in _ALONG:
        found = slices(known, (along,))
        for each in found[0].rows if found else ():
            of_point: dict[str, Any] = {"along": along, "variant": each.cell.variant, "at": getattr(each.cell, along)}
            for name, rate in (("schedule", each.metrics["rate"]), ("drain", drains[each.cell.cell_id])):
                of_point |= {f"{name}_rate": rate.median, f"{name}_low": rate.low, f"{name}_high": rate.high}
            rows.append({**of_point, "repeats": each.metrics["rate"].repeats, "on_front": False, "setting": found[0].setting})
    for here in _split(rows, "along", "at").values():
        for at in front([(row["schedule_rate"], row["drain_rate"]) for row in here]):
            here[at]["on_front"] = True
    return sorted(rows, key=lambda row: (row["along"], row["variant"], row["at"]))


def _draw_balance(table: pa.Table, looks: Looks) -> Drawn:
    parts = _split(table.to_pylist(), "along")
    notes = [f"{_ALONG[along][0]}: {rows[0]['setting']}" for along, rows in parts.items()]
    note = "\n".join([*notes, "larger markers: more pending, larger bodies; grey: the Pareto front of each size of marker"])
    figure, grid = _grid(len(parts), 4.0, note)
    for axes, (along, rows) in zip(grid, parts.items(), strict=True):
        word, text_of = _ALONG[along]
        for which, name in (("x", "schedule"), ("y", "drain")):
            _scaled(axes, which, [row[f"{name}_{edge}"] for row in rows for edge in ("low", "high")], text.short)
        stops = sorted({row["at"] for row in rows})
        for at in stops:
            best = sorted((row["schedule_rate"], row["drain_rate"]) for row in rows if row["at"] == at and row["on_front"])
            edge = [(axes.get_xlim()[0], best[0][1]), *best, (best[-1][0], axes.get_ylim()[0])]
            axes.step(*zip(*edge, strict=True), where="pre", color=SOFT, linewidth=0.8, alpha=0.55, zorder=1)
        for variant, path in _by_variant(rows, looks).items():
            look = looks[variant]
            axes.plot(
                [row["schedule_rate"] for row in path], [row["drain_rate"] for row in path], look.dash, color=look.colour, linewidth=1
            )
            for row in path:
                size = 3.6 + 4.0 * stops.index(row["at"]) / max(len(stops) - 1, 1)
                axes.plot(row["schedule_rate"], row["drain_rate"], look.marker, color=look.colour, markersize=size, zorder=4)
                axes.hlines(row["drain_rate"], row["schedule_low"], row["schedule_high"], color=look.colour, linewidth=0.7)
                axes.vlines(row["schedule_rate"], row["drain_low"], row["drain_high"], color=look.colour, linewidth=0.7)
        axes.set_title(f"{word}: {text_of(stops[0])} to {text_of(stops[-1])}")
        axes.set_xlabel("schedule, messages/s")
        axes.set_ylabel("hand over + pop + ack, messages/s")
    _legend(figure, ordered({row["variant"] for rows in parts.values() for row in rows}, looks), looks)
    return Drawn(figure, " ".join(_balance_finding(along, rows, looks) for along, rows in parts.items()))


def _balance_finding(along: str, rows: Rows, looks: Looks) -> str:
    word, text_of = _ALONG[along]
    most = max(row["at"] for row in rows)
    here = [row for row in rows if row["at"] == most]
    best = ordered({row["variant"] for row in here if row["on_front"]}, looks)
    writer, reader = (max(here, key=lambda row: row[name]) for name in ("schedule_rate", "drain_rate"))
    where = f"With {text_of(most)} {word}" if along == "backlog" else f"With {word} of {text_of(most)}"
    return (
        f"{where}, {writer['variant']} schedules fastest ({text.rate(writer['schedule_rate'])}) and {reader['variant']} drains fastest "
        f"({text.rate(reader['drain_rate'])}); on the Pareto front: {text.joined(best)}."
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

    def rows(self, measured: Measured) -> Rows:
        return _tidy(measured, self.panels, (self.along,))

    def draw(self, table: pa.Table, looks: Looks) -> Drawn:
        rows = table.to_pylist()
        parts = _split(rows, "panel", "unit")
        stops = sorted({row[self.along] for row in rows})
        figure, grid = _grid(len(parts), 2.8, rows[0]["setting"])
        for axes, ((title, unit), here) in zip(grid, parts.items(), strict=True):
            for variant, points in _by_variant(here, looks).items():
                _line(axes, looks[variant], points, self.along)
            if self.is_log_x:
                _scaled(axes, "x", stops, self.text_of)
            _ticks(axes.xaxis, stops, [self.text_of(each) for each in stops])
            _scaled(axes, "y", _edges(here, _LEAST_MS), self.value_of, is_log=self.is_log_y)
            axes.set_title(title)
            axes.set_xlabel(self.label)
            axes.set_ylabel(unit)
        _legend(figure, ordered({row["variant"] for row in rows}, looks), looks)
        return Drawn(figure, " ".join(self._finding(title, here, looks) for (title, unit), here in parts.items() if unit != _MIB))

    def _finding(self, title: str, rows: Rows, looks: Looks) -> str:
        least, most = (self.text_of(edge(row[self.along] for row in rows)) for edge in (min, max))
        told = [
            f"{variant} {self.value_of(points[0]['median'])} to {self.value_of(points[-1]['median'])}"
            for variant, points in _by_variant(rows, looks).items()
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


def _bars(axes: Axes, rows: Rows, parts: Sequence[str], looks: Looks, *, is_sum: bool = False) -> None:
    """Draw the parts of each variant as bars from zero: one behind the other with their sum, or below each other with their spread."""
    lines = _by_variant(rows, looks)
    step = _THICK if is_sum else _THICK / len(parts)
    ends = []
    for at, (variant, mine) in enumerate(lines.items()):
        start = 0.0
        for row in sorted(mine, key=lambda row: parts.index(row["part"])):
            number = parts.index(row["part"])
            y = at if is_sum else at + (number - (len(parts) - 1) / 2) * step
            axes.barh(y, row["median"], step * 0.95, left=start, color=looks[variant].colour, alpha=_SHADES[number], linewidth=0)
            if is_sum:
                start += row["median"]
            else:
                axes.hlines(y, row["low"], row["high"], color=INK, linewidth=0.9)
                ends.append((y, row["median"], row["high"]))
        if is_sum:
            ends.append((at, start, start))
    for y, value, end in ends:
        axes.annotate(text.digits(value), (end, y), (3, 0), textcoords="offset points", va="center", fontsize=_SMALL)
    axes.set_yticks(range(len(lines)), labels=list(lines))
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlim(0, max(end for _, _, end in ends) * 1.2 or 1.0)
    axes.grid(visible=False, axis="y")
    if len(parts) > 1:
        handles = [Patch(color=SOFT, alpha=shade, linewidth=0, label=part) for part, shade in zip(parts, _SHADES, strict=False)]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=len(parts), fontsize=7, handlelength=1)


def _bar_height(rows: Rows) -> float:
    return 1.0 + 0.27 * len({row["variant"] for row in rows})


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
_SUMS: Final = (_WRITTEN, _DEVICE)
"""Panels whose parts are stages of a message's life, which add up."""


def _amplification_rows(measured: Measured) -> Rows:
    """Return all parts; of those that add up only what every variant tells, since sums of other parts cannot be compared."""
    rows = _tidy(measured, _AMPLIFIED)
    told = {key: {row["variant"] for row in here} for key, here in _split(rows, "panel", "part").items()}
    every = {panel: {row["variant"] for row in here} for panel, here in _split(rows, "panel").items()}
    return [row for row in rows if row["panel"] not in _SUMS or told[row["panel"], row["part"]] == every[row["panel"]]]


def _draw_amplification(table: pa.Table, looks: Looks) -> Drawn:
    rows = table.to_pylist()
    shown = _split(rows, "panel")
    figure, grid = _grid(len(shown), _bar_height(rows), f"bytes over user bytes, space over kept user bytes; {rows[0]['setting']}")
    sentences = []
    for axes, (title, here) in zip(grid, shown.items(), strict=True):
        parts = list(_split(here, "part"))
        _bars(axes, here, parts, looks, is_sum=title in _SUMS)
        axes.set_title(title)
        last = here if title in _SUMS else [row for row in here if row["part"] == parts[-1]]
        totals = {variant: sum(row["median"] for row in mine) for variant, mine in _by_variant(last, looks).items()}
        stages = f" ({text.joined(parts)} only)" if len(parts) < len(_STAGES) else ""
        if title not in _SUMS:
            stages = f" ({parts[-1]})"
        low, high = min(totals, key=lambda name: totals[name]), max(totals, key=lambda name: totals[name])
        span = f"from {text.factor(totals[low])} for {low} to {text.factor(totals[high])} for {high}"
        sentences.append(f"{title}{stages}: {span if low != high else f'{text.factor(totals[low])} for {low}'}.")
    if absent := [title.lower() for title in dict.fromkeys(panel.title for panel in _AMPLIFIED) if title not in shown]:
        sentences.append(f"Not told: {text.joined(absent)}.")
    return Drawn(figure, " ".join(sentences))


_ROLLED: Final = (
    Panel("Rolling", "roll", "wchar_per_live_byte", "bytes per user byte kept", "by the process"),
    Panel("Rolling", "roll", "device_write_per_live_byte", "bytes per user byte kept", "to the device"),
)


def _draw_rolling(table: pa.Table, looks: Looks) -> Drawn:
    rows = table.to_pylist()
    parts = list(_split(rows, "part"))
    figure, (axes,) = _grid(1, _bar_height(rows), rows[0]["setting"])
    _bars(axes, rows, parts, looks)
    axes.set_title("bytes written while rolling, over user bytes kept")
    told = [f"{row['variant']} {text.digits(row['median'])}" for row in rows if row["part"] == parts[0]]
    return Drawn(figure, f"Bytes written {parts[0]} while time passes and nothing is due, over user bytes kept: {text.joined(told)}.")


_OVERHEAD: Final = {"schedule": "Schedule", "hand_over": "Hand over", "pop_ack": "Pop and ack", "mixed": "Mixed"}


def _overhead_rows(measured: Measured) -> Rows:
    """Return the time of a message in the phases that both the null engine and another one went through, where most did."""
    places: dict[tuple[Any, ...], list[CellPhase]] = defaultdict(list)
    for each in measured.of(*_OVERHEAD):
        if "rate" in each.metrics:
            places[place(each.cell)].append(each)
    best: Rows = []
    for at, members in places.items():
        null, others = ({each.phase for each in members if (each.cell.engine == NULL_ENGINE) is is_null} for is_null in (True, False))
        rows = []
        for each in members:
            if each.phase in null & others:
                rate = each.metrics["rate"]
                time_us = Spread(1e6 / rate.median, 1e6 / rate.high, 1e6 / rate.low, rate.repeats)
                names = {"panel": _OVERHEAD[each.phase], "part": "", "unit": "µs a message", "variant": each.cell.variant}
                rows.append(
                    {
                        **names,
                        "is_null": each.cell.engine == NULL_ENGINE,
                        **_values(time_us),
                        "setting": described(dict(zip(COORDINATES, at, strict=True))),
                    }
                )
        best = max(best, rows, key=len)
    return best


def _draw_overhead(table: pa.Table, looks: Looks) -> Drawn:
    rows = table.to_pylist()
    shown = _split(rows, "panel")
    figure, grid = _grid(len(shown), _bar_height(rows), rows[0]["setting"])
    sentences = []
    for axes, (title, here) in zip(grid, shown.items(), strict=True):
        _bars(axes, here, [""], looks)
        null = next(row["median"] for row in here if row["is_null"])
        axes.axvline(null, color=SOFT, linewidth=1, linestyle="--", zorder=5)
        axes.set_title(f"{title}, µs a message")
        fastest = min((row for row in here if not row["is_null"]), key=lambda row: row["median"])
        sentences.append(
            f"{title}: without an engine a message takes {text.digits(null)} µs, {null / fastest['median']:.0%} of what it takes with the "
            f"fastest ({fastest['variant']}, {text.digits(fastest['median'])} µs)."
        )
    return Drawn(figure, " ".join(sentences))


# ---------------------------------------------------------------- under an open loop

LOADS: Final = {"open_50": 50, "open_80": 80, "open_95": 95}
"""Phases of an open loop, and their load in percent of the sustainable rate."""

_TICKS: Final = {0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %", 0.99999: "99.999 %"}
_OPERATIONS: Final = ("schedule", "cancel", "hand_over", "pop", "ack", "slip")
_SHOWN: Final = {0.5: "p50", 0.99: "p99", 0.999: "p99.9", LARGEST: "max"}


def _lateness_rows(measured: Measured) -> Rows:
    found = slices([each for each in measured.latencies if each.operation == "lateness" and each.phase in LOADS])
    if not found:
        return []
    cells = {each.cell.cell_id for each in found[0].rows}
    rows = [
        {"load_percent": LOADS[each.phase], "variant": each.cell.variant, "share": share, "unit": "ms", **_values(at_ms)}
        for each in latencies(measured.results, CURVE, cells=cells, phases=set(LOADS), operations={"lateness"})
        for share, at_ms in each.at_ms.items()
    ]
    rows.sort(key=lambda row: (row["load_percent"], row["variant"], row["share"]))
    return [{**row, "setting": found[0].setting} for row in rows]


def _draw_lateness(table: pa.Table, looks: Looks) -> Drawn:
    rows = table.to_pylist()
    loads = _split(rows, "load_percent")
    behind = min(1 - row["share"] for row in rows)
    ticks = {1 / (1 - share): label for share, label in _TICKS.items() if 1 - share >= behind * 0.9}
    figure, grid = _axes(1, len(loads), 3.3, rows[0]["setting"], sharey=True)
    for axes, (load, here) in zip(grid, loads.items(), strict=True):
        for variant, curve in _by_variant(here, looks).items():
            across = [1 / (1 - row["share"]) for row in curve]
            low, middle, high = ([max(row[name], _LEAST_MS) for row in curve] for name in ("low", "median", "high"))
            axes.plot(across, middle, looks[variant].dash, color=looks[variant].colour)
            axes.fill_between(across, low, high, color=looks[variant].colour, alpha=0.15, linewidth=0)
        _scaled(axes, "y", _edges(rows, _LEAST_MS), text.time_ms)
        axes.set_xscale("log")
        axes.set_xlim(1, 1.1 / behind)
        _ticks(axes.xaxis, list(ticks), list(ticks.values()), rotation=40, ha="right")
        axes.set_title(f"{load} % load")
        axes.set_xlabel("messages not later")
    _legend(figure, ordered({row["variant"] for row in rows}, looks), looks)
    return Drawn(figure, _lateness_finding(rows, looks))


def _lateness_finding(rows: Rows, looks: Looks) -> str:
    load = max((row["load_percent"] for row in rows), key=lambda percent: (percent == 80, percent))
    at = [row for row in rows if row["load_percent"] == load and row["share"] <= 0.99 + 1e-9]
    share = max(set.intersection(*({row["share"] for row in mine} for mine in _by_variant(at, looks).values())))
    before = {row["variant"]: row["median"] for row in sorted(at, key=lambda row: row["median"]) if row["share"] == share}
    told = text.joined([f"{variant} {text.time_ms(ms)}" for variant, ms in before.items()])
    finding = f"At {load} % load, {text.digits(share * 100)} % of the messages are at most so late: {told}."
    heavy = max(row["load_percent"] for row in rows)
    after = {row["variant"]: row["median"] for row in rows if row["load_percent"] == heavy and row["share"] == share}
    both = ordered(before.keys() & after.keys(), looks)
    if heavy == load or not both:
        return finding
    # Up or down: the distance on the logarithmic axis.
    most = max(both, key=lambda variant: abs(math.log(max(after[variant], _LEAST_MS) / max(before[variant], _LEAST_MS))))
    return f"{finding} At {heavy} % it changes most for {most}, from {text.time_ms(before[most])} to {text.time_ms(after[most])}."


def _operation_rows(measured: Measured) -> Rows:
    found = slices([each for each in measured.latencies if each.phase in LOADS and each.operation in _OPERATIONS])
    rows = []
    for each in found[0].rows if found else ():
        names = {"operation": each.operation, "load_percent": LOADS[each.phase], "variant": each.cell.variant, "unit": "ms"}
        for share, name in _SHOWN.items():
            if share in each.at_ms:
                rows.append({**names, "percentile": name, **_values(each.at_ms[share]), "setting": found[0].setting})
    return sorted(rows, key=lambda row: (_OPERATIONS.index(row["operation"]), row["variant"], row["load_percent"]))


def _draw_operations(table: pa.Table, looks: Looks) -> Drawn:
    rows = table.to_pylist()
    operations = _split(rows, "operation")
    known = {each: {row["operation"] for row in rows if row["percentile"] == each} for each in _SHOWN.values()}
    # A column for the slip alone, or one operation, would be empty paper: the table has its figures.
    percentiles = [each for each, having in known.items() if 2 * len(having) > len(operations)]
    loads = sorted({row["load_percent"] for row in rows})
    size = (len(operations), len(percentiles), 0.9 + 1.25 * len(operations))
    figure, grid = _axes(*size, rows[0]["setting"], sharex=True, sharey="row")
    for at, axes in enumerate(grid):
        operation, percentile = list(operations)[at // len(percentiles)], percentiles[at % len(percentiles)]
        here = [row for row in operations[operation] if row["percentile"] == percentile]
        for variant, points in _by_variant(here, looks).items():
            _line(axes, looks[variant], points, "load_percent")
        if at % len(percentiles) == 0:
            _scaled(axes, "y", _edges(operations[operation], _LEAST_MS), text.time_ms)
            axes.set_ylabel(operation.replace("_", " "), fontweight="bold")
        if at < len(percentiles):
            axes.set_title(percentile)
        _ticks(axes.xaxis, loads, [f"{each} %" for each in loads])
    _legend(figure, ordered({row["variant"] for row in rows}, looks), looks)
    load = 80 if 80 in loads else loads[-1]
    at_load = [row for row in rows if row["load_percent"] == load]
    tail = sorted([row for row in at_load if row["percentile"] == "p99"] or at_load, key=lambda row: float(row["median"]))
    sentences = []
    if called := [row for row in tail if row["operation"] != "slip"]:
        best, worst = (f"{text.time_ms(row['median'])} ({row['operation']} of {row['variant']})" for row in (called[0], called[-1]))
        sentences.append(f"At {load} % load the {called[-1]['percentile']} lies between {best} and {worst}.")
    if slips := [row for row in tail if row["operation"] == "slip"]:
        sentences.append(f"The load itself began its calls late by at most {text.time_ms(slips[-1]['median'])} ({slips[-1]['variant']}).")
    return Drawn(figure, " ".join(sentences))


# ---------------------------------------------------------------- second by second

_STALL_MS: Final = 100.0
_LEAST_SECONDS: Final = 2
_COUNTED: Final = {"fill": "scheduled", "schedule": "scheduled", "hand_over": "handed_over", "pop_ack": "acked", "mixed": "scheduled"}
"""By phase, what is counted."""


class _OfRun(NamedTuple):
    run: Run
    phase: str

    @property
    def cell(self) -> Any:
        return self.run.cell


def _timeline_rows(measured: Measured) -> Rows:
    """Return what the first repeat of each cell counted in each second that all shards worked through."""
    lasted: dict[tuple[str, str], float] = {}
    for row in measured.results.phases.select(["run_id", "phase", "wall_s"]).to_pylist():
        if row["wall_s"] is not None:
            key = row["run_id"], row["phase"]
            lasted[key] = min(row["wall_s"], lasted.get(key, row["wall_s"]))
    full: dict[tuple[str, str], dict[int, tuple[float, float]]] = defaultdict(dict)
    for row in measured.results.seconds.to_pylist():
        key = row["run_id"], row["phase"]
        if row["phase"] in _COUNTED and row["second"] + 1 <= lasted.get(key, 0.0) + 0.01:
            count, longest_ms = full[key].get(row["second"], (0.0, 0.0))
            full[key][row["second"]] = (count + row[_COUNTED[row["phase"]]], max(longest_ms, row["longest_call_ms"] or 0.0))
    is_known = {key for key, seconds in full.items() if len(seconds) >= _LEAST_SECONDS and any(count for count, _ in seconds.values())}
    firsts = {run.cell: run for run in sorted(measured.results.good, key=lambda run: -run.repeat)}
    found = slices([_OfRun(run, phase) for phase in _COUNTED for run in firsts.values() if (run.run_id, phase) in is_known])
    return [
        {"phase": each.phase, "counted": _COUNTED[each.phase], "variant": each.cell.variant, "repeat": each.run.repeat, "second": second}
        | {"rate": count, "longest_call_ms": longest_ms, "setting": found[0].setting}
        for each in (found[0].rows if found else ())
        for second, (count, longest_ms) in sorted(full[each.run.run_id, each.phase].items())
    ]


def _draw_timeline(table: pa.Table, looks: Looks) -> Drawn:
    rows = table.to_pylist()
    phases = _split(rows, "phase")
    note = f"markers: a call took over {_STALL_MS:.0f} ms in that second; repeat {rows[0]['repeat']}; {rows[0]['setting']}"
    figure, grid = _grid(len(phases), 2.1, note)
    dips = []
    for axes, (phase, here) in zip(grid, phases.items(), strict=True):
        for variant, points in _by_variant(here, looks).items():
            look, stalled = looks[variant], [row for row in points if row["longest_call_ms"] > _STALL_MS]
            axes.plot([row["second"] + 0.5 for row in points], [row["rate"] for row in points], look.dash, color=look.colour)
            axes.plot([row["second"] + 0.5 for row in stalled], [row["rate"] for row in stalled], look.marker, color=look.colour, mec=INK)
            rates = sorted(row["rate"] for row in points)
            if middle := rates[len(rates) // 2]:
                dips.append((rates[0] / middle, variant, phase))
        axes.set_title(f"{phase.replace('_', ' ')}: {here[0]['counted'].replace('_', ' ')}")
        _scaled(axes, "y", [row["rate"] for row in here], text.short, is_log=False)
        axes.set_ylabel("messages/s")
        axes.set_xlabel("s since the phase began")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    lines = _by_variant(rows, looks)
    _legend(figure, list(lines), looks)
    told = [f"{variant} in {sum(row['longest_call_ms'] > _STALL_MS for row in mine)} of {len(mine)}" for variant, mine in lines.items()]
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
        _draw_amplification,
    ),
    Plot(
        "rolling",
        "Write amplification of rolling",
        "A wheel is shorter than the longest delay: a timer further away waits in a nearer slot and rolls on from there. It can be written "
        "anew (copy) or pointed to (reference). A key-ordered engine has nothing to roll.",
        "the phase roll",
        lambda measured: _tidy(measured, _ROLLED),
        _draw_rolling,
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
        "Time a message, from the rates; the null engine does all but the call of the store. What lies left of the dashed line is no "
        "engine's.",
        "the null engine beside another one on the same cell",
        _overhead_rows,
        _draw_overhead,
    ),
)
"""In the order of the report."""
