"""The tables of the report: which engine is fastest where, and each variant's figures side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pandas as pd

from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import Measured, described, slices
from rmqstore_benchmarks.report.claims import Side, side_of
from rmqstore_benchmarks.report.text import NOT_TOLD, TextTable
from rmqstore_benchmarks.statistics import DRAIN, KEPT_UP, POINT, interval, known


class _Column(NamedTuple):
    """A figure, or a percentile of an operation ("pop 0.99"), of one phase: the variant's own, that of what is below it, or the ratio."""

    heading: str
    phase: str
    what: str
    text_of: Callable[[float], str]
    side: str = "own"


def _us(value: float) -> str:
    return f"{text.digits(value)} µs"


def _percent(value: float) -> str:
    return f"{value:.0%}"


_AT_A_GLANCE: Final = (
    _Column("schedule", "schedule", "rate", text.rate),
    _Column("drain", DRAIN, "rate", text.rate),
    _Column("sustained", "mixed", "rate", text.rate),
    _Column("CPU a message", "schedule", "cpu_us_per_message", _us),
    _Column("written", "schedule", "wchar_per_user_byte", text.factor),
    _Column("space", "schedule", "disk_per_live_byte", text.factor),
    _Column("recovery", "recover", "wall_s", lambda seconds: text.time_ms(seconds * 1000)),
    _Column("lateness p99 at 50 % load", "open_50", "lateness 0.99", text.time_ms),
)
_SCHEDULING: Final = (
    _Column("schedule", "schedule", "call_rate", text.rate),
    _Column("by lists", "send_lists", "call_rate", text.rate),
    _Column("below", "schedule", "call_rate", text.rate, "below"),
    _Column("share", "schedule", "call_rate", _percent, "ratio"),
    _Column("one send p50", "send_one", "schedule 0.5", text.time_ms),
    _Column("p99", "send_one", "schedule 0.99", text.time_ms),
    _Column("below, p50", "send_one", "schedule 0.5", text.time_ms, "below"),
    _Column("factor", "send_one", "schedule 0.5", text.factor, "ratio"),
)
_DRAINING: Final = (
    _Column("cancel", "cancel", "call_rate", text.rate),
    _Column("hand-over", "hand_over", "call_rate", text.rate),
    _Column("pop + ack: 1", "pop_one", "call_rate", text.rate),
    _Column("32", "pop_ack", "call_rate", text.rate),
    _Column("1024", "pop_many", "call_rate", text.rate),
    _Column("hand over, pop + ack by 32", DRAIN, "call_rate", text.rate),
)
_CALLS: Final = (
    _Column("send", "send_one", "store_cpu_us_per_message", _us),
    _Column("pop + ack: 1", "pop_one", "store_cpu_us_per_message", _us),
    _Column("32", "pop_ack", "store_cpu_us_per_message", _us),
)
_PRODUCING: Final = tuple(
    column
    for threads in (1, 16, 64)
    for phase in (f"produce_{threads}",)
    for column in (
        _Column(f"{threads} thread{'s' if threads > 1 else ''}", phase, "rate", text.rate),
        _Column("send p99", phase, "schedule 0.99", text.time_ms),
    )
)
_CONSUMING: Final = tuple(
    column
    for threads in (1, 8, 64)
    for phase in (f"consume_{threads}",)
    for column in (
        _Column(f"{threads} thread{'s' if threads > 1 else ''}", phase, "rate", text.rate),
        _Column("pop p99", phase, "pop 0.99", text.time_ms),
        _Column("slowest", phase, "slowest_thread", _percent),
        _Column("first queue dry", phase, "first_queue_dry", _percent),
    )
)
_CONSUMERS: Final = (
    "Consumers: messages a second; slowest: what the slowest thread got of an even part; first queue dry: as a share of the whole time"
)
_SIDE_BY_SIDE: Final = ("send_lists", "send_one", "pop_one", "pop_many", *(each.phase for each in (*_PRODUCING, *_CONSUMING)))
"""Phases of which a specification wants a table at each point of its grid."""

_TABLES: Final = {
    "Schedule: messages by second in calls of the store, beside the database or file below it": _SCHEDULING,
    "Drain: messages by second in calls of the store": _DRAINING,
    "CPU of a message in calls of the store: one a call, and popped and acked by 32": _CALLS,
    "Producers: messages a second, one a call": _PRODUCING,
    _CONSUMERS: _CONSUMING,
}


_FASTEST: Final = {"schedule": "schedule", DRAIN: "hand over, pop, ack", "mixed": "all at once, sustained"}
_OPEN: Final = ("variant", "phase", "sustained", "later half of it", "the load's own", "offered", "done", "")


def choices(measured: Measured) -> TextTable:
    """Return which engine is fastest at each point of the grid, with those that are not shown to be slower, and the next one."""
    rates = known(measured.figures, "call_rate", *_FASTEST)
    rates = rates[(rates.engine != "memory") & (rates.shards == 1)]
    rows = []
    for values, here in rates.groupby(POINT):
        told = [_fastest(here[here.phase == phase]) for phase in _FASTEST]
        if any(each != NOT_TOLD for each in told):
            rows.append((described(dict(zip(POINT, values, strict=True))), *told))
    return TextTable("", ("", *_FASTEST.values()), rows)


def _fastest(rates: pd.DataFrame) -> str:
    """Return ``wheel; 1.8 × lmdb``, or ``wheel, lmdb; 1.5 × rocksdb-inline`` where the first is not shown to be faster than the second."""
    if len(rates) < 2:
        return NOT_TOLD
    best, *others = rates.sort_values("median", ascending=False).itertuples()
    near, slower = [best.variant], ""
    for other in others:
        ratio, lowest, highest = interval((best.values, other.values), lambda first, second: first / second)
        if side_of(lowest, highest, min(best.repeats, other.repeats)) is not Side.MORE:
            near.append(other.variant)
        elif not slower:
            slower = f"; {text.factor(ratio)} {other.variant}"
    return ", ".join(near) + slower


def open_loops(measured: Measured) -> list[TextTable]:
    """Return for each point of the grid what open loops offered and what was done, beside the sustained rate that it is a share of."""
    figures = measured.whole
    told = {(row.cell_id, row.phase, row.metric): row for row in figures.itertuples()}
    found: dict[str, list[tuple[str, ...]]] = {}
    for done in known(figures, "done_of_offered").itertuples():  # none of one too slow to have a batch of its own
        loop = told[done.cell_id, done.phase, "offered"]
        behind = sum(share < KEPT_UP for share in done.values)
        closed = {"rate": text.rate, "later_half": text.factor, "load_share": _percent}
        told_of_it = [_text(told.get((loop.cell_id, "mixed", metric)), form) for metric, form in closed.items()]
        said = f"overloaded in {behind} of {done.repeats}, so no latencies" if behind else "kept up"
        point = described({name: getattr(loop, name) for name in POINT})
        found.setdefault(point, []).append((loop.variant, loop.phase, *told_of_it, _text(loop, text.rate), _text(done, _percent), said))
    return [TextTable(point, _OPEN, rows) for point, rows in found.items()]


def headlines(measured: Measured) -> list[TextTable]:
    """Return a table for each durability, on the cells that compare most variants."""
    wanted = measured.figures[measured.figures.phase.isin([column.phase for column in _AT_A_GLANCE])]
    found: dict[str, TextTable] = {}
    for rows in slices(wanted):
        durability, setting = rows[["durability", "setting"]].iloc[0]
        if durability not in found:
            found[durability] = _table(measured, rows.cell_id, _AT_A_GLANCE, setting)
    return [table for _, table in sorted(found.items(), key=lambda item: (item[0] != "power_loss", item[0]))]


def tables(measured: Measured) -> list[TextTable]:
    """Return a table of each kind for each point of the grid at which one of :data:`_SIDE_BY_SIDE` was measured."""
    named = measured.figures[measured.figures.phase.isin(_SIDE_BY_SIDE)]
    points = named[POINT].drop_duplicates().sort_values(POINT).to_dict("records")
    cells = [measured.whole.merge(pd.DataFrame([point])).cell_id for point in points]
    found = [
        _table(measured, at, columns, f"{caption}; {described(point)}")
        for caption, columns in _TABLES.items()
        for point, at in zip(points, cells, strict=True)
    ]
    return [table for table in found if table.rows]


def _table(measured: Measured, cells: pd.Series, columns: Sequence[_Column], caption: str) -> TextTable:
    """Return the figures of each variant on some cells, without columns and rows of which nothing is known."""
    figures, latencies = (rows[rows.cell_id.isin(cells)] for rows in (measured.whole, measured.latencies))
    names = latencies.operation + latencies.share.map(lambda share: f" {share:g}")
    known = list(pd.concat([figures.assign(what=figures.metric), latencies.assign(what=names)]).itertuples())
    own = {(row.variant, row.phase, row.what): row for row in known}
    below = {(row.engine.removeprefix("raw-"), row.phase, row.what): row for row in known if row.engine.startswith("raw-")}
    engines = {row.variant: row.engine for row in known if not row.engine.startswith("raw-")}

    def shown(column: _Column, variant: str) -> str:
        one, raw = (of.get((name, column.phase, column.what)) for of, name in ((own, variant), (below, engines[variant])))
        if column.side == "ratio":
            return column.text_of(one.median / raw.median) if one is not None and raw is not None and raw.median else NOT_TOLD
        return _text(one if column.side == "own" else raw, column.text_of)

    cells_of = {variant: [shown(column, variant) for column in columns] for variant in measured.looks if variant in engines}
    told = [at for at in range(len(columns)) if any(row[at] != NOT_TOLD for row in cells_of.values())]
    mine = [at for at in told if columns[at].side == "own"]
    rows = [(variant, *(row[at] for at in told)) for variant, row in cells_of.items() if any(row[at] != NOT_TOLD for at in mine)]
    return TextTable(caption, ("variant", *(columns[at].heading for at in told)), rows)


def _text(value: Any, text_of: Callable[[float], str]) -> str:
    """Return the median of a spread, with lowest and highest beside it where they differ."""
    if value is None:
        return NOT_TOLD
    middle, low, high = text_of(value.median), text_of(value.low), text_of(value.high)
    if low == high:
        return middle
    number, _, unit = low.rpartition(" ")
    return f"{middle} ({number if high.endswith(f' {unit}') else low} to {high})"
