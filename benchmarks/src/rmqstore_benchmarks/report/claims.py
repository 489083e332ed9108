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

import pandas as pd
from pandas import DataFrame

from rmqstore_benchmarks.grid.stores import HOLLOW
from rmqstore_benchmarks.report import text as words
from rmqstore_benchmarks.statistics import CONFIDENCE, DRAIN, POINT, Formula, interval, known

SOURCE: Final = "the article on RocketMQ's timer messages, sections 3.3.2 and 3.3.3, which follow RIP-43"

MARGIN: Final = 1.1
"""A ratio up to this, either way, is no difference that matters."""

LEAST_REPEATS: Final = 5
"""With fewer repeats on either side a cell says nothing."""

RULE: Final = (
    f"The rule, the same for each claim and for its opposite: on each cell that has what is compared, in at least {LEAST_REPEATS} repeats, "
    f"the ratio of the medians gets an interval of {CONFIDENCE:.0%} by bootstrap. An interval above {MARGIN:g} is *more*, one below "
    f"1/{MARGIN:g} *less*, one between the two *alike*, any other shows nothing. More on all cells: confirmed. Less or alike on all: "
    "refuted. More on some, and less or alike on others: it depends. Else it is not shown."
)


class Side(enum.StrEnum):
    """What one cell says of a claim."""

    MORE = enum.auto()
    LESS = enum.auto()
    ALIKE = enum.auto()
    UNCLEAR = enum.auto()


class Verdict(enum.Enum):
    """What the run says of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
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
    """Return the verdict of cells with their ``side``."""
    more, is_not = found.side == Side.MORE, found.side.isin([Side.LESS, Side.ALIKE])
    if found.empty:
        return Verdict.NOT_MEASURED
    if more.any() and is_not.any():
        return Verdict.DEPENDS
    return Verdict.CONFIRMED if more.all() else Verdict.REFUTED if is_not.all() else Verdict.NOT_SHOWN


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

Design = tuple[str, str]
"""An engine and its kind, as :func:`rmqstore_benchmarks.grid.tables.kind_of` tells it."""

WHEEL: Final[Design] = ("wheel", "reference")
COPYING: Final[Design] = ("wheel", "copy")
ROCKSDB: Final[Design] = ("rocksdb", "inline")
SEPARATED: Final[Design] = ("rocksdb", "separated")
RAW: Final[Design] = ("raw-rocksdb", "")
BY_ARRIVAL: Final[Design] = ("raw-rocksdb-by-arrival", "")
UNCOMPACTED: Final[Design] = ("raw-rocksdb-uncompacted", "")
NOTHING: Final[Design] = ("null", "")


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
    for samples in found[_samples(found)].itertuples(index=False):
        ratio, lowest, highest = interval(samples, formula)
        rows.append((ratio, lowest, highest, side_of(lowest, highest, min(map(len, samples)))))
    return found.assign(**DataFrame(rows, found.index, ["ratio", "lowest", "highest", "side"]))


def told(says: str, found: DataFrame) -> str:
    """Return what ratios are and what they say: ``it writes 1.8 × to 3.5 × as much (more on 13 of 14 cells, not shown on 1)``."""
    counts = found.side.value_counts()
    named = {Side.MORE: "more", Side.LESS: "less", Side.ALIKE: "alike", Side.UNCLEAR: "not shown"}
    said = [f"{name} on {counts[side]}" for side, name in named.items() if side in counts]
    low, high = words.factor(found.ratio.min()), words.factor(found.ratio.max())
    if len(found) == 1:
        one = found.iloc[0]
        said = [f"{words.digits(one.lowest)} to {words.digits(one.highest)}", f"one cell: {named[one.side]}"]
    else:
        said[0] += f" of {len(found)} cells"
    return f"{says.format(low if low == high else f'{low} to {high}')} ({', '.join(said)})"


def _on_cells(metric: str, phases: tuple[str, ...], first: Design, second: Design) -> Found:
    """Return what compares a figure of two designs."""

    def found(figures: DataFrame) -> DataFrame:
        rows = known(figures, metric, *phases)
        return compared(beside(of_design(rows, first), of_design(rows, second)))

    return found


# ---------------------------------------------------------------- where a claim is weighed

LARGE_BODY_BYTES: Final = 4096
"""A value is large from here on."""

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
    wheel, ordered = package_lines("rmqstore_wheel"), package_lines("rmqstore.engine", "rmqstore_rocksdb")
    # A count is what it is, however often it is repeated.
    counted = DataFrame({"values0": [(wheel,) * LEAST_REPEATS], "values1": [(ordered,) * LEAST_REPEATS]})
    return compared(counted[: min(wheel, ordered)])


def _rolled(figures: DataFrame) -> DataFrame:
    """Return what the wheels write until a timer is due, over what RocksDB does; the first writing of it is 1."""
    rows = known(figures, "wchar_per_live_byte", "roll")
    wheels = [beside(of_design(rows, design), of_design(rows, ROCKSDB)) for design in (COPYING, WHEEL)]
    return compared(pd.concat(wheels), lambda wheel, rocksdb: (1 + wheel) / (1 + rocksdb))


def _short_of_memory(figures: DataFrame) -> DataFrame:
    """Return what cold drains read from the disk that had less memory than messages, so that what is read twice comes from there twice.

    Of several shards none counts, since each sees what all read.
    """
    limits = known(figures, "memory_limit_per_user_byte", "cold_drain")
    cells = limits.cell_id[(limits["median"] < 1) & (limits.shards == 1)]
    rows = known(figures, "device_read_per_user_byte", "cold_drain")
    return rows[rows.cell_id.isin(cells)]


def _cold_reads(figures: DataFrame) -> DataFrame:
    rows = _short_of_memory(figures)
    return compared(beside(of_design(rows, WHEEL), of_design(rows, ROCKSDB)))


def _at_random(design: Design) -> Found:
    """Return what compares cold reads of what is due at random with those of what is due in the order in which it was stored."""

    def found(figures: DataFrame) -> DataFrame:
        rows = of_design(_short_of_memory(figures), design)
        is_ordered = rows.workload == _IN_ORDER
        return compared(beside(rows[~is_ordered], rows[is_ordered], on=[name for name in POINT if name != "workload"]))

    return found


def _compaction(figures: DataFrame) -> DataFrame:
    """Return the CPU time of RocksDB that compacts over one that does not, that of the load taken away, where compaction ran."""
    rows = known(figures, "cpu_us_per_message", *_WRITING)
    compacted = of_design(known(figures, "compaction_per_user_byte", *_WRITING), RAW)
    ran = compacted.loc[compacted["median"] > 0, [*POINT, "phase"]]
    sides = beside(of_design(rows, RAW), of_design(rows, UNCOMPACTED), of_design(rows, NOTHING))
    return compared(sides.merge(ran), lambda on, off, load: (on - load) / (off - load))


def _slowed(*designs: Design) -> Found:
    """Return the schedule rate of large bodies at the smallest backlog over that at the largest; of two designs, one's over the other's."""
    keys = [name for name in POINT if name != "backlog"]

    def slower(*ends: Any) -> Any:
        few, many = ends[: len(designs)], ends[len(designs) :]
        first, *second = (one / other for one, other in zip(few, many, strict=True))
        return first / second[0] if second else first

    def found(figures: DataFrame) -> DataFrame:
        rates = known(figures, "rate", "schedule")
        rates = rates[rates.body_bytes >= LARGE_BODY_BYTES].sort_values("backlog", kind="stable")
        sides = beside(*(of_design(rates, design) for design in designs))
        sides = sides[sides.groupby(keys).backlog.transform("nunique") > 1]
        few, many = (sides.drop_duplicates(keys, keep=end) for end in ("first", "last"))
        return compared(few.merge(many[[*keys, *_samples(many)]], on=keys, suffixes=("", "_many")), slower)

    return found


def _beside_the_best(phase: str, figures: DataFrame) -> DataFrame:
    """Return the wheel beside the best other durable engine of each cell."""
    rates = known(figures, "rate", phase)
    others = rates[~rates.engine.isin(["wheel", "memory", *HOLLOW])]
    return beside(of_design(rates, WHEEL), others.sort_values("median", kind="stable").drop_duplicates(POINT, keep="last"))


def _writes_faster(figures: DataFrame) -> DataFrame:
    return compared(_beside_the_best("schedule", figures))


def _given_for_writing(figures: DataFrame) -> DataFrame:
    """Return how much faster the best other engine drains, on the cells on which the wheel is shown to write faster."""
    writes = _writes_faster(figures)
    reads = compared(_beside_the_best(DRAIN, figures), lambda wheel, best: best / wheel)
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
        "the wheel has {} the lines, those of RocketMQ's file formats included; the layer that RocksDB shares with LMDB counts as "
        "RocksDB's, and lines stand in for simplicity",
    ),
    Claim(
        "no rolling",
        FOR,
        "It avoids the write amplification that comes from rolling messages.",
        "bytes written until a timer is due, its first writing included, a wheel's (that copies, that points) over RocksDB's",
        "the phase roll of RocksDB and of a wheel on one cell",
        _rolled,
        "a wheel writes {} as much",
    ),
    Claim(
        "less page-cache pollution",
        FOR,
        "To a degree it avoids polluting the page cache.",
        "bytes read from the device a user byte, drained with less memory than messages, wheel over RocksDB",
        "the phase cold_drain of both, with a memory limit below the size of the messages",
        _cold_reads,
        "with too little memory the wheel reads {} as much from the device",
    ),
    Claim(
        "sorting on write",
        AGAINST,
        "Writing has to sort, which takes extra time.",
        "messages a second in calls of bare RocksDB, keys in the order of arrival over keys by due time",
        "the phase fill or schedule of raw-rocksdb and of raw-rocksdb-by-arrival on one cell",
        _on_cells("call_rate", _WRITING, BY_ARRIVAL, RAW),
        "bare RocksDB takes entries that need no sorting {} as fast",
        (("beside it, the wheel schedules {} as fast as RocksDB", _on_cells("rate", ("schedule",), WHEEL, ROCKSDB)),),
    ),
    Claim(
        "compaction costs CPU",
        AGAINST,
        "Compacting the keys may take extra CPU.",
        "CPU time a message of bare RocksDB, the load's own taken away, compacting over not compacting",
        "the phase fill or schedule of raw-rocksdb, where compaction ran, of raw-rocksdb-uncompacted and of null on one cell",
        _compaction,
        "where compaction ran, bare RocksDB takes {} the CPU time",
        (("beside it, RocksDB takes {} the wheel's to schedule", _on_cells("cpu_us_per_message", ("schedule",), ROCKSDB, WHEEL)),),
    ),
    Claim(
        "retrieval costs compute",
        AGAINST,
        "Finding the messages takes much computing.",
        "CPU time a message handed over, RocksDB over wheel",
        "the phase hand_over of both on one cell",
        _on_cells("cpu_us_per_message", ("hand_over",), ROCKSDB, WHEEL),
        "handing over, RocksDB takes {} the wheel's CPU time",
    ),
    Claim(
        "slower as it grows",
        DECIDED,
        "With large values compaction grows with the stored volume, and writing slows down bit by bit.",
        f"schedule rate with bodies of {words.size(LARGE_BODY_BYTES)} or more, smallest backlog over largest, RocksDB's over the wheel's",
        f"the phase schedule of both with bodies of {words.size(LARGE_BODY_BYTES)} or more at two backlogs",
        _slowed(ROCKSDB, WHEEL),
        "as it grows RocksDB slows down {} as much as the wheel",
        (("RocksDB by {}", _slowed(ROCKSDB)), ("the wheel by {}", _slowed(WHEEL))),
    ),
    Claim(
        "separation hurts reading",
        DECIDED,
        "Keeping values apart from keys saves the speed of writing, but reading suffers badly.",
        "drain rate of RocksDB, values inline over separated",
        "the phases hand_over and pop_ack, or cold_drain, of both kinds of RocksDB on one cell",
        _on_cells("rate", (DRAIN, "cold_drain"), ROCKSDB, SEPARATED),
        "inline values drain {} as fast",
        (("in turn, separated ones are scheduled {} as fast", _on_cells("rate", ("schedule",), SEPARATED, ROCKSDB)),),
    ),
    Claim(
        "random reads",
        OF_THE_WHEEL,
        "Going from the timer log to the commit log cannot but read at random and pollute the page cache.",
        "bytes that the wheel reads from the device a user byte, drained with less memory than messages: due at random over due in the "
        "order of arrival",
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
    "rate": ("schedule", DRAIN, "cold_drain"),
    "call_rate": _WRITING,
    "cpu_us_per_message": ("schedule", "hand_over"),
    "device_read_per_user_byte": ("cold_drain",),
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
