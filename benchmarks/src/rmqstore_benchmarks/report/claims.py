"""What an article and RocketMQ's proposal RIP-43 say of the two designs, each put to the figures of a run by one rule.

The article explains the timer wheel of RIP-43 and RocksDB as the other way (its sections 3.3.2 and 3.3.3); the claims here give its sense.
A claim says that something is more than something else. It is weighed on each cell of the grid that has both, like with like, by the
interval of their ratio; the rule is the same for each claim and for its opposite (docs/method.md).
"""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame

from rmqstore_benchmarks.grid.stores import HOLLOW
from rmqstore_benchmarks.report import text as words
from rmqstore_benchmarks.statistics import COLD_DRAIN, CONFIDENCE, DRAIN, DRAINS, POINT, Formula, interval, known

SOURCE: Final = "the article on RocketMQ's timer messages, sections 3.3.2 and 3.3.3, which follow RIP-43"

MARGIN: Final = 1.1
"""A ratio up to this, either way, is no difference that matters."""

LEAST_REPEATS: Final = 5
"""With fewer repeats on either side a cell says nothing."""

RULE: Final = (
    f"The rule, the same for each claim and for its opposite: on each cell that has what is compared, in at least {LEAST_REPEATS} repeats, "
    f"the ratio of the medians gets an interval of {CONFIDENCE:.0%} by bootstrap. An interval above {MARGIN:g} is *more*, one below "
    f"1/{MARGIN:g} *less*, one between the two *alike*, any other shows nothing. More on all cells: confirmed. Less on all: refuted. Alike "
    "on all: no difference. Two of the three, on some cells each: it depends. Else it is not shown."
)


class Side(enum.StrEnum):
    """What one cell says of a claim."""

    MORE = enum.auto()
    LESS = enum.auto()
    ALIKE = enum.auto()
    UNCLEAR = enum.auto()


NAMES: Final = {Side.MORE: "more", Side.LESS: "less", Side.ALIKE: "alike", Side.UNCLEAR: "not shown"}


class Verdict(enum.Enum):
    """What the run says of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NO_DIFFERENCE = "no difference"
    DEPENDS = "depends"
    NOT_SHOWN = "not shown"
    NOT_MEASURED = "not measured in this run"


def side_of(low: float, high: float, repeats: int = LEAST_REPEATS) -> Side:
    """Return what an interval of a ratio says, made of so many repeats at least."""
    if repeats < LEAST_REPEATS:
        return Side.UNCLEAR
    if low > MARGIN:
        return Side.MORE
    if high < 1 / MARGIN:
        return Side.LESS
    return Side.ALIKE if low >= 1 / MARGIN and high <= MARGIN else Side.UNCLEAR


def verdict_of(found: DataFrame) -> Verdict:
    """Return the verdict of cells with their ``side``; of the claim turned round it is the opposite."""
    told = set(found.side) - {Side.UNCLEAR}
    if found.empty:
        return Verdict.NOT_MEASURED
    if len(told) > 1:
        return Verdict.DEPENDS
    return _OF_ALL[told.pop()] if found.side.nunique() == 1 and told else Verdict.NOT_SHOWN


_OF_ALL: Final = {Side.MORE: Verdict.CONFIRMED, Side.LESS: Verdict.REFUTED, Side.ALIKE: Verdict.NO_DIFFERENCE}
"""By what every cell says."""


class Judgement(NamedTuple):
    """A verdict and the figure that it rests on."""

    verdict: Verdict
    evidence: str


Found = Callable[[DataFrame], DataFrame]
"""Finds, among all figures, the cells that a claim is weighed on, with ``ratio``, ``lowest``, ``highest`` and ``side`` of each."""


class Claim(NamedTuple):
    """One claim.

    Attributes:
        about: whose advantage or fault it is said to be.
        figure: the ratio that is said to be more than 1.
        needs: what must be measured.
        found: where it is weighed.
        says: what the ratios are, which stand for ``{}``.
        beside: further ratios that are told and decide nothing.
    """

    name: str
    about: str
    text: str
    figure: str
    needs: str
    found: Found
    says: str
    beside: tuple[tuple[str, Found], ...] = ()

    def judge(self, figures: DataFrame) -> Judgement:
        """Apply the rule to all figures of all cells."""
        found = self.found(figures)
        if found.empty:
            return Judgement(Verdict.NOT_MEASURED, f"it takes {self.needs}")
        told_beside = [told(says, others) for says, more in self.beside if len(others := more(figures))]
        return Judgement(verdict_of(found), "; ".join([told(self.says, found), *told_beside]))


# ---------------------------------------------------------------- cells side by side

LEAST_S: Final = 0.25
"""A phase that is over sooner shows how it begins, and no rate."""

_TIMED: Final = ("rate", "call_rate", "cpu_us_per_message", "store_cpu_us_per_message")


def weighed(figures: DataFrame) -> DataFrame:
    """Return the figures on which claims are weighed.

    Of phases shorter than :data:`LEAST_S` those that depend on time are none. Nor are those of several stores at a time: phases of
    theirs that have the same name need not be at the same time, so the sum of their rates is more than what they do together.
    """
    lengths = known(figures, "wall_s")
    short = pd.MultiIndex.from_frame(lengths.loc[lengths["median"] < LEAST_S, ["cell_id", "phase"]])
    is_short = pd.MultiIndex.from_frame(figures[["cell_id", "phase"]]).isin(short) & figures.metric.isin(_TIMED)
    return figures[~is_short & (figures.shards == 1)]


Design = tuple[str, str]
"""An engine and its kind, as :func:`rmqstore_benchmarks.grid.tables.kind_of` tells it."""

WHEEL: Final[Design] = ("wheel", "reference")
COPYING: Final[Design] = ("wheel", "copy")
ROCKSDB: Final[Design] = ("rocksdb", "inline")
SEPARATED: Final[Design] = ("rocksdb", "separated")
RAW: Final[Design] = ("raw-rocksdb", "")
BY_ARRIVAL: Final[Design] = ("raw-rocksdb-by-arrival", "")
UNCOMPACTED: Final[Design] = ("raw-rocksdb-uncompacted", "")
LMDB: Final[Design] = ("lmdb", "")


def of_design(figures: DataFrame, design: Design) -> DataFrame:
    """Return the rows of one design; where several variants have it, of the first."""
    rows = figures[(figures.engine == design[0]) & (figures.kind == design[1])]
    return rows[rows.variant == rows.variant.min()]


def beside(*sides: DataFrame, on: Sequence[str] = (*POINT, "phase")) -> DataFrame:
    """Return the points that all sides have, the values of each in a column of its own: ``values0``, ``values1`` …"""
    found = sides[0].rename(columns={"values": "values0"})
    for at, side in enumerate(sides[1:], 1):
        found = found.merge(side[[*on, "values"]].rename(columns={"values": f"values{at}"}), on=list(on))
    return found


def _samples(found: DataFrame) -> list[str]:
    return [name for name in found if name.startswith("values")]


def compared(found: DataFrame, formula: Formula = lambda first, second: first / second) -> DataFrame:
    """Return rows of :func:`beside` with ``ratio``, ``lowest``, ``highest`` and ``side``; the claim is that the first side is more."""
    rows = []
    for given in found[_samples(found)].itertuples(index=False):
        samples = [each for each in given if isinstance(each, tuple)]  # a side that a cell lacks is none
        ratio, lowest, highest = interval(samples, formula)
        rows.append((ratio, lowest, highest, side_of(lowest, highest, min(map(len, samples)))))
    return found.assign(**DataFrame(rows, found.index, ["ratio", "lowest", "highest", "side"]))


def told(says: str, found: DataFrame) -> str:
    """Return what ratios are and what they say: ``it writes 1.8 × to 3.5 × as much (more on 13 of 14 cells, not shown on 1)``."""
    counts = found.side.value_counts()
    said = [f"{name} on {counts[side]}" for side, name in NAMES.items() if side in counts]
    low, high = words.factor(found.ratio.min()), words.factor(found.ratio.max())
    if len(found) == 1:
        one = found.iloc[0]
        said = [f"{words.digits(one.lowest)} to {words.digits(one.highest)}", f"one cell: {NAMES[one.side]}"]
    else:
        said[0] += f" of {len(found)} cells"
    return f"{says.format(low if low == high else f'{low} to {high}')} ({', '.join(said)})"


def _on_cells(metric: str, phases: tuple[str, ...], first: Design, second: Design, where: Found = lambda figures: figures) -> Found:
    """Return what compares a figure of two designs, among the figures to which ``where`` narrows all."""

    def found(figures: DataFrame) -> DataFrame:
        rows = known(where(figures), metric, *phases)
        return compared(beside(of_design(rows, first), of_design(rows, second)))

    return found


def _where_compactions(wrote: str, design: Design) -> Found:
    """Return what narrows figures to points and phases in which compactions of a design that ended there wrote so many bytes a user byte.

    Args:
        wrote: a condition on the repeats: ``low > 0`` for compactions in each, ``high == 0`` for none in any.
    """

    def narrowed(figures: DataFrame) -> DataFrame:
        rows = of_design(known(figures, "compaction_per_user_byte"), design)
        return figures.merge(rows.query(wrote)[[*POINT, "phase"]])

    return narrowed


# ---------------------------------------------------------------- where a claim is weighed

LARGE_BODY_BYTES: Final = 4096
"""A value is large from here on."""

_IN_FILES_BYTES: Final = 4 << 25
"""A backlog of four of RocksDB's memtables is in files for the most part; separated values are so only there."""

_WRITING: Final = ("fill", "schedule")
_IN_ORDER: Final = "eight-oclock"
"""A workload in which what is due comes in the order in which it was stored."""


def package_lines(*packages: str) -> int:
    """Return the lines of packages together that are neither empty nor comments; 0 when one is not installed. None is imported."""
    specs = [importlib.util.find_spec(package) for package in packages]
    folders = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    lines = [line.strip() for folder in folders for file in Path(folder).rglob("*.py") for line in file.read_text("utf-8").splitlines()]
    return 0 if None in specs else sum(bool(line) and not line.startswith("#") for line in lines)


def _lines_of_source(figures: DataFrame) -> DataFrame:
    wheel, ordered = (package_lines("rmqstore.engine", own) for own in ("rmqstore_wheel", "rmqstore_rocksdb"))
    # A count is what it is, however often it is repeated.
    counted = DataFrame({"values0": [(wheel,) * LEAST_REPEATS], "values1": [(ordered,) * LEAST_REPEATS]})
    return compared(counted[: min(wheel, ordered)])


def _written(rows: DataFrame, design: Design) -> DataFrame:
    """Return the points of a design that rolls, with what it wrote when it was filled, and while it rolled."""
    filled, rolled = (
        known(of_design(rows, design), metric, phase)
        for phase, metric in (("fill", "device_write_per_user_byte"), ("roll", "device_write_per_live_byte"))
    )
    return beside(rolled, filled, on=POINT)


def _rolled(design: Design) -> Found:
    """Return by how much more rolling multiplies what the device gets of a wheel until a timer is due than what it gets of RocksDB."""

    def found(figures: DataFrame) -> DataFrame:
        ordered = _written(figures, ROCKSDB).rename(columns={"values0": "values2", "values1": "values3"})
        sides = _written(figures, design).merge(ordered[[*POINT, "values2", "values3"]])
        return compared(sides, lambda rolled, filled, other_rolled, other: (1 + rolled / filled) / (1 + other_rolled / other))

    return found


def _short_of_memory(figures: DataFrame) -> DataFrame:
    """Narrow figures to cells that drained with less memory than messages, so that what is read twice comes from the disk twice."""
    limits = known(figures, "memory_limit_per_user_byte", "cold_hand_over")
    return figures[figures.cell_id.isin(limits.cell_id[limits["median"] < 1])]


def _at_random(design: Design) -> Found:
    """Return what compares what a cold hand-over reads of timers that are due at random and in the order in which they were stored."""

    def found(figures: DataFrame) -> DataFrame:
        rows = of_design(known(_short_of_memory(figures), "device_read_per_user_byte", "cold_hand_over"), design)
        is_ordered = rows.workload == _IN_ORDER
        return compared(beside(rows[~is_ordered], rows[is_ordered], on=[name for name in POINT if name != "workload"]))

    return found


def _finding(figures: DataFrame) -> DataFrame:
    """Return the CPU time of RocksDB that hands over and compacts nothing, beside that of the wheel, and of the same layer on LMDB."""
    times = known(_where_compactions("high == 0", ROCKSDB)(figures), "cpu_us_per_message", "hand_over")
    return compared(pd.concat([beside(of_design(times, ROCKSDB), of_design(times, other)) for other in (WHEEL, LMDB)]))


def _in_files(figures: DataFrame) -> DataFrame:
    """Narrow figures to stores that are too large for RocksDB's memory, so that separated values are in files."""
    sizes = known(figures, "live_bytes", "fill")
    return figures[figures.cell_id.isin(sizes.cell_id[sizes["median"] >= _IN_FILES_BYTES])]


def _slowed(*designs: Design) -> Found:
    """Return the schedule rate of large bodies at the smallest backlog over that at the largest, of those at which RocksDB compacts.

    Below them it writes faster since it pays for no compaction yet. Of two designs, it is one's over the other's.
    """
    keys = [name for name in POINT if name != "backlog"]

    def slower(*ends: Any) -> Any:
        few, many = ends[: len(designs)], ends[len(designs) :]
        first, *second = (one / other for one, other in zip(few, many, strict=True))
        return first / second[0] if second else first

    def found(figures: DataFrame) -> DataFrame:
        rates = known(_where_compactions("low > 0", ROCKSDB)(figures), "call_rate", "schedule")
        rates = rates[rates.body_bytes >= LARGE_BODY_BYTES].sort_values("backlog", kind="stable")
        sides = beside(*(of_design(rates, design) for design in designs))
        sides = sides[sides.groupby(keys).backlog.transform("nunique") > 1]
        few, many = (sides.drop_duplicates(keys, keep=end) for end in ("first", "last"))
        return compared(few.merge(many[[*keys, *_samples(many)]], on=keys, suffixes=("", "_many")), slower)

    return found


def _beside_the_best(phase: str, figures: DataFrame, formula: Formula) -> DataFrame:
    """Return the wheel beside the best other durable engine of each cell, which is chosen anew in each draw of their repeats."""
    rates = known(figures, "call_rate", phase)
    found = of_design(rates, WHEEL).rename(columns={"values": "values0"})
    others = rates[~rates.engine.isin(["wheel", "memory", *HOLLOW])].pivot(index=POINT, columns="variant", values="values")
    found = found.merge(others.add_prefix("values_").reset_index(), on=POINT)
    return compared(found, lambda wheel, *rest: formula(wheel, np.maximum.reduce(rest)))


def _writes_faster(figures: DataFrame) -> DataFrame:
    return _beside_the_best("schedule", figures, lambda wheel, best: wheel / best)


def _given_for_writing(figures: DataFrame) -> DataFrame:
    """Return how much faster the best other engine drains, on the cells on which the wheel is shown to write faster."""
    writes = _writes_faster(figures)
    reads = _beside_the_best(DRAIN, figures, lambda wheel, best: best / wheel)
    return reads.merge(writes.loc[writes.side == Side.MORE, POINT])


# ---------------------------------------------------------------- the claims

FOR: Final = "for RocksDB"
AGAINST: Final = "against RocksDB"
DECIDED: Final = "decided against RocksDB"
OF_THE_WHEEL: Final = "of the wheel"

ALL_CLAIMS: Final = (
    Claim(
        "simple flow",
        FOR,
        "The flow is rather simple: key by time, scan what is due.",
        "lines of source, the wheel's over the key-ordered engine's",
        "both engines installed beside the report: their source is counted, no run can show this",
        _lines_of_source,
        "the wheel has {} the lines, those of RocketMQ's file formats included; what both have in common counts on either side, and lines "
        "stand in for simplicity",
    ),
    Claim(
        "no rolling",
        FOR,
        "It avoids the write amplification that comes from rolling messages.",
        "bytes that the device gets until a timer is due over those of its first writing, of a wheel that copies over RocksDB",
        "the phases fill and roll of RocksDB and of a wheel that copies on one cell",
        _rolled(COPYING),
        "rolling makes a wheel that copies, as RocketMQ's does, write {} as much",
        (("one that points to the message {}", _rolled(WHEEL)),),
    ),
    Claim(
        "less page-cache pollution",
        FOR,
        "To a degree it avoids polluting the page cache.",
        "bytes read from the device a user byte, drained with less memory than messages, wheel over RocksDB",
        "the phase cold_drain of both, with a memory limit below the size of the messages",
        _on_cells("device_read_per_user_byte", (COLD_DRAIN,), WHEEL, ROCKSDB, _short_of_memory),
        "with too little memory the wheel reads {} as much from the device",
    ),
    Claim(
        "sorting on write",
        AGAINST,
        "Writing has to sort, which takes extra time.",
        "messages a second in calls of bare RocksDB that compacts nothing, keys in the order of arrival over keys by due time; either way "
        "a batch comes in the order of its keys",
        "the phase fill or schedule of raw-rocksdb, where no compaction ran, and of raw-rocksdb-by-arrival on one cell",
        # Keys that only grow need no compaction either.
        _on_cells("call_rate", _WRITING, BY_ARRIVAL, RAW, _where_compactions("high == 0", RAW)),
        "bare RocksDB takes entries that need no sorting {} as fast",
        (("beside it, the wheel schedules {} as fast as RocksDB", _on_cells("call_rate", ("schedule",), WHEEL, ROCKSDB)),),
    ),
    Claim(
        "compaction costs CPU",
        AGAINST,
        "Compacting the keys may take extra CPU.",
        "CPU time a message of bare RocksDB, in calls and in its own threads, compacting over not compacting",
        "the phase fill or schedule of raw-rocksdb, where compaction ran, and of raw-rocksdb-uncompacted on one cell",
        _on_cells("store_cpu_us_per_message", _WRITING, RAW, UNCOMPACTED, _where_compactions("low > 0", RAW)),
        "where compaction ran, bare RocksDB takes {} the CPU time",
        (("beside it, RocksDB takes {} the wheel's to schedule", _on_cells("cpu_us_per_message", ("schedule",), ROCKSDB, WHEEL)),),
    ),
    Claim(
        "retrieval costs compute",
        AGAINST,
        "Finding the messages takes much computing.",
        "CPU time a message handed over, which is found, written to its topic and taken out: RocksDB that compacts nothing meanwhile over "
        "the wheel, and over the same layer on LMDB",
        "the phase hand_over of RocksDB, where no compaction ran, and of the wheel or LMDB on one cell",
        _finding,
        "handing over, RocksDB takes {} their CPU time",
        (
            ("{} the wheel's, compactions included", _on_cells("cpu_us_per_message", ("hand_over",), ROCKSDB, WHEEL)),
            ("{} LMDB's", _on_cells("cpu_us_per_message", ("hand_over",), ROCKSDB, LMDB)),
        ),
    ),
    Claim(
        "slower as it grows",
        DECIDED,
        "With large values compaction grows with the stored volume, and writing slows down bit by bit.",
        f"schedule rate with bodies of {words.size(LARGE_BODY_BYTES)} or more, smallest backlog over largest, RocksDB's over the wheel's",
        f"the phase schedule of both with bodies of {words.size(LARGE_BODY_BYTES)} or more at two backlogs at which RocksDB compacts",
        _slowed(ROCKSDB, WHEEL),
        "as it grows RocksDB slows down {} as much as the wheel",
        (("RocksDB by {}", _slowed(ROCKSDB)), ("the wheel by {}", _slowed(WHEEL))),
    ),
    Claim(
        "separation hurts reading",
        DECIDED,
        "Keeping values apart from keys saves the speed of writing, but reading suffers badly.",
        "drain rate of RocksDB, values inline over separated",
        f"the phases hand_over and pop_ack, or cold_drain, of both kinds of RocksDB on one cell with {words.size(_IN_FILES_BYTES)} or more",
        _on_cells("call_rate", tuple(DRAINS), ROCKSDB, SEPARATED, _in_files),
        "inline values drain {} as fast",
        (("in turn, separated ones are scheduled {} as fast", _on_cells("call_rate", ("schedule",), SEPARATED, ROCKSDB, _in_files)),),
    ),
    Claim(
        "random reads",
        OF_THE_WHEEL,
        "Going from the timer log to the commit log cannot but read at random and pollute the page cache.",
        "bytes that the wheel reads from the device a user byte, handing over with less memory than messages: due at random over due in "
        "the order of arrival",
        f"the phase cold_drain of the wheel, with a memory limit below the size of the messages, of {_IN_ORDER} and another workload",
        _at_random(WHEEL),
        "what is due at random costs the wheel {} as much reading as what is due in the order in which it came",
        (("RocksDB {}", _at_random(ROCKSDB)),),
    ),
    Claim(
        "reading given for writing",
        OF_THE_WHEEL,
        "Writing and reading cannot both be had: the wheel gives up some speed of reading to secure that of writing.",
        "drain rate of the best other durable engine over the wheel's, where the wheel is shown to schedule faster than the best other",
        "the phases schedule, hand_over and pop_ack of the wheel and of another durable engine, and a cell on which it writes faster",
        _given_for_writing,
        "where the wheel writes faster, the best other engine drains {} as fast",
        (("the wheel schedules {} as fast", _writes_faster),),
    ),
)


# ---------------------------------------------------------------- the rule, put to itself


_WEIGHED: Final = {
    "call_rate": (*_WRITING, *DRAINS),
    "cpu_us_per_message": ("schedule", "hand_over"),
    "store_cpu_us_per_message": _WRITING,
    "device_read_per_user_byte": (COLD_DRAIN, "cold_hand_over"),
    "device_write_per_user_byte": ("fill",),
    "device_write_per_live_byte": ("roll",),
}
"""The figures that claims rest on, with their phases."""


def false_claims(figures: DataFrame) -> DataFrame:
    """Return what the rule says of variants that are the same engine with the same settings (an A/A test): no row may be more or less."""
    rows = pd.concat([known(figures, metric, *phases) for metric, phases in _WEIGHED.items()])
    keys = ["metric", "phase", *POINT]
    pairs = []
    for _, same in rows.groupby(["engine", "settings"], sort=False):
        for first, second in combinations(same.variant.unique(), 2):
            pairs.append(beside(same[same.variant == first], same[same.variant == second], on=keys).assign(variant_second=second))
    return compared(pd.concat(pairs)) if pairs else rows[:0]
