"""What an article and RocketMQ's proposal RIP-43 say of the two designs, each put to the figures of a run by a rule that is stated.

The article explains the timer wheel of RIP-43 and RocksDB as the other way (its sections 3.3.2 and 3.3.3); the claims here give its sense.
A claim is weighed on each cell of the grid that has what it takes, like with like; the verdict is what the cells say together.
"""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd
from pandas import DataFrame

from rmqstore_benchmarks.report import text as words
from rmqstore_benchmarks.statistics import DRAIN, POINT, known

SOURCE: Final = "the article on RocketMQ's timer messages, sections 3.3.2 and 3.3.3, which follow RIP-43"


class Side(enum.StrEnum):
    """What one cell says of a claim."""

    FOR = enum.auto()
    AGAINST = enum.auto()
    UNCLEAR = enum.auto()


class Verdict(enum.Enum):
    """What the run says of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    DEPENDS = "depends"
    NOT_MEASURED = "not measured in this run"


class Judgement(NamedTuple):
    """A verdict and the figure that it rests on."""

    verdict: Verdict
    evidence: str


Found = Callable[[DataFrame], DataFrame]
"""Finds, among all figures, the cells that a claim is weighed on, with the ``side`` of each."""


class Claim(NamedTuple):
    """One claim.

    Attributes:
        about: whose advantage or fault it is said to be.
        rule: how the verdict follows from the figures.
        needs: what must be measured.
        found: where it is weighed.
        evidence: the figures of these cells in words.
    """

    name: str
    about: str
    text: str
    rule: str
    needs: str
    found: Found
    evidence: Callable[[DataFrame, DataFrame], str]

    def judge(self, figures: DataFrame) -> Judgement:
        """Apply the rule to all figures of all cells."""
        found = self.found(figures)
        if found.empty:
            return Judgement(Verdict.NOT_MEASURED, f"it takes {self.needs}")
        return Judgement(verdict_of(found), self.evidence(found, figures))


def verdict_of(found: DataFrame) -> Verdict:
    """Return the verdict of cells that are all for a claim, all against it, or neither."""
    if found.empty:
        return Verdict.NOT_MEASURED
    if (found.side == Side.FOR).all():
        return Verdict.CONFIRMED
    return Verdict.REFUTED if (found.side == Side.AGAINST).all() else Verdict.DEPENDS


def _sided(found: DataFrame, are_for: pd.Series, are_against: pd.Series | None = None) -> DataFrame:
    """Return cells with their sides; all that are not for the claim are against it where nothing else is said."""
    against = ~are_for if are_against is None else are_against
    return found.assign(side=pd.Series(Side.UNCLEAR, found.index, object).mask(against, Side.AGAINST).mask(are_for, Side.FOR))


# ---------------------------------------------------------------- two designs on the same cells

LEAST_RATIO: Final = 1.1
"""A ratio below this is no difference."""

RATIO_RULE: Final = (
    f"on every cell that both have, the ratio is {LEAST_RATIO:g} or more and no repeat of one lies among those of the other: confirmed; "
    f"below {LEAST_RATIO:g} on every cell: refuted; else it depends"
)

Design = tuple[str, str]
"""An engine and its kind, as :func:`rmqstore_benchmarks.grid.tables.kind_of` tells it."""

WHEEL: Final[Design] = ("wheel", "reference")
ROCKSDB: Final[Design] = ("rocksdb", "inline")
SEPARATED: Final[Design] = ("rocksdb", "separated")


def of_design(figures: DataFrame, design: Design) -> DataFrame:
    """Return the rows of one design."""
    return figures[(figures.engine == design[0]) & (figures.kind == design[1])]


def comparisons(rows: DataFrame, first: Design, second: Design) -> DataFrame:
    """Return a row for each cell on which both designs tell the figure in the same phase; where a design has several variants, for each.

    It has the columns of the first, the spread of the second (``…_second``), ``ratio`` of the medians, and ``side``.
    """
    other = of_design(rows, second)
    return compared(of_design(rows, first).merge(other[other["median"] != 0], on=[*POINT, "phase"], suffixes=("", "_second")))


def compared(pairs: DataFrame) -> DataFrame:
    """Return pairs of spreads with ``ratio`` and ``side``; the claim is that the first is larger.

    For the claim from a ratio of :data:`LEAST_RATIO` on; unclear where repeats overlap all the same, since that may be chance.
    """
    ratios = pairs["median"] / pairs.median_second
    are_apart = (pairs.low > pairs.high_second) | (pairs.high < pairs.low_second)
    return _sided(pairs.assign(ratio=ratios), (ratios >= LEAST_RATIO) & are_apart, ratios < LEAST_RATIO)


def told(found: DataFrame) -> str:
    """Return the ratios as text: ``1.4 × (one cell)``, ``1.1 × to 2.3 × (median 1.4 ×, 6 cells)``; said when a cell was not repeated."""
    is_single = (found[["repeats", "repeats_second"]] == 1).any(axis=None)
    cells = f"median {words.factor(found.ratio.median())}, {len(found)} cells" if len(found) > 1 else "one cell"
    return f"{_range(found.ratio, words.factor)} ({cells}{', one repeat, so chance is not excluded' if is_single else ''})"


def where(found: DataFrame, side: Side) -> str:
    """Return on how many cells a comparison falls to one side, with the sizes and backlogs of these."""
    here = found[found.side == side]
    if here.empty:
        return "on none"
    bodies, backlogs = _range(here.body_bytes, words.size), _range(here.backlog, words.short)
    return f"on {len(here)} of {len(found)} ({bodies} bodies, {backlogs} pending)"


def _range(values: pd.Series, text_of: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys((text_of(values.min()), text_of(values.max()))))


def _on_cells(metric: str, phases: tuple[str, ...], first: Design, second: Design) -> Found:
    """Return what compares a figure of two designs."""
    return lambda figures: comparisons(known(figures, metric, *phases), first, second)


def by_ratio(name: str, about: str, text: str, figure: str, says: str, pairs: Found, *beside: tuple[str, Found]) -> Claim:
    """Return a claim that :data:`RATIO_RULE` decides.

    Args:
        figure: what the ratio is of.
        says: what the ratios are, which stand for ``{}``.
        pairs: what is compared.
        beside: further ratios that are told and decide nothing.
    """

    def evidence(found: DataFrame, figures: DataFrame) -> str:
        most = found.loc[found.ratio.idxmax()]
        sentences = [says.format(told(found)), f"it is clearly more {where(found, Side.FOR)}"]
        sentences.append(f"at most, {words.short(most['median'])} against {words.short(most.median_second)}")
        sentences += [words_of.format(told(others)) for words_of, more in beside if len(others := more(figures))]
        return "; ".join(sentences)

    return Claim(name, about, text, f"{figure}: {RATIO_RULE}", f"{figure}, on one cell", pairs, evidence)


# ---------------------------------------------------------------- where a claim is weighed

ROLL_NONE: Final = 0.05
"""Bytes written over bytes kept below which rolling writes nothing to speak of."""

ROLL_MUCH: Final = 1.0
"""Bytes written over bytes kept from which rolling writes as much as if it wrote the messages anew."""

LARGE_BODY_BYTES: Final = 4096
"""A value is large from here on."""

READ_MUCH: Final = 2.0
"""Bytes read from the device a user byte from which reading is amplified."""

READ_LITTLE: Final = 1.25
"""Bytes read a user byte up to which it is not."""

_WRITING: Final = ("fill", "schedule", "mixed")


def package_lines(*packages: str) -> int:
    """Return the lines of packages together that are neither empty nor comments; 0 when one is not installed. None is imported."""
    specs = [importlib.util.find_spec(package) for package in packages]
    folders = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    lines = [line.strip() for folder in folders for file in Path(folder).rglob("*.py") for line in file.read_text("utf-8").splitlines()]
    return 0 if None in specs else sum(bool(line) and not line.startswith("#") for line in lines)


def _lines_of_source(figures: DataFrame) -> DataFrame:
    ordered, wheel = package_lines("rmqstore.engine", "rmqstore_rocksdb"), package_lines("rmqstore_wheel")
    found = DataFrame({"ordered": [ordered], "wheel": [wheel]})[: min(ordered, wheel)]
    return _sided(found.assign(ratio=found.wheel / found.ordered), found.wheel / found.ordered >= LEAST_RATIO)


def _rolled(figures: DataFrame) -> DataFrame:
    """Return the wheels of the cell on which RocksDB keeps most, with what each wrote (``wheel``) and RocksDB did, over bytes kept."""
    rolled = figures[figures.phase == "roll"].pivot_table(index=[*POINT, "engine", "kind"], columns="metric", values="median").reset_index()
    rolled = rolled.reindex(columns=[*POINT, "engine", "kind", "live_bytes", "wchar_per_live_byte"]).dropna()
    wheels = rolled[rolled.engine == "wheel"].drop(columns="live_bytes").rename(columns={"wchar_per_live_byte": "wheel"})
    both = of_design(rolled, ROCKSDB).drop(columns=["engine", "kind"]).merge(wheels, on=POINT)
    most = both[both.live_bytes == both.live_bytes.max()].drop_duplicates("kind")
    return _sided(most, (most.wchar_per_live_byte <= ROLL_NONE) & (most.wheel >= ROLL_MUCH))


def _short_of_memory(figures: DataFrame, metric: str) -> DataFrame:
    """Return the rows of cold drains that had less memory than messages, so that what is read twice comes from the disk twice.

    Of several shards none counts, since each sees what all read.
    """
    limits = known(figures, "memory_limit_per_user_byte", "cold_drain")
    cells = limits.cell_id[(limits["median"] < 1) & (limits.shards == 1)]
    rows = known(figures, metric, "cold_drain")
    return rows[rows.cell_id.isin(cells)]


def _cold_reads(figures: DataFrame) -> DataFrame:
    """Return what the wheel reads short of memory, with its rate there over that with warm pages."""
    reads = of_design(_short_of_memory(figures, "device_read_per_user_byte"), WHEEL)
    cold, warm = (rates.set_index("cell_id")["median"] for rates in (known(figures, "rate", "cold_drain"), known(figures, "rate", DRAIN)))
    reads = reads.assign(slowed=reads.cell_id.map(cold / warm))
    return _sided(reads, reads["median"] >= READ_MUCH, reads["median"] <= READ_LITTLE)


def _where_compacted(figures: DataFrame) -> DataFrame:
    compacted = of_design(known(figures, "compaction_per_user_byte", *_WRITING), ROCKSDB)
    found = comparisons(known(figures, "cpu_us_per_message", *_WRITING), ROCKSDB, WHEEL)
    return found.merge(compacted.loc[compacted["median"] > 0, ["cell_id", "phase"]])


def _growth(figures: DataFrame, design: Design) -> DataFrame:
    """Return for each large body and setting the schedule rate at the smallest backlog against that at the largest."""
    rates = of_design(known(figures, "rate", "schedule"), design)
    rates = rates[rates.body_bytes >= LARGE_BODY_BYTES].sort_values("backlog", kind="stable")
    keys = ["variant", *(name for name in POINT if name != "backlog")]
    pairs = rates.drop_duplicates(keys).merge(rates.drop_duplicates(keys, keep="last"), on=keys, suffixes=("", "_second"))
    return compared(pairs[pairs.backlog < pairs.backlog_second])


def _beside_the_best(figures: DataFrame) -> DataFrame:
    """Return for each cell how fast the wheel writes (``writes``) and reads (``reads``), over the best other durable engine."""
    rates = known(figures, "rate", "schedule", DRAIN)
    rates = rates[rates.engine != "memory"]
    keys = [*POINT, "phase"]
    best = rates[rates.engine != "wheel"].groupby(keys)["median"].max()
    wheel = of_design(rates, WHEEL).drop_duplicates(keys, keep="last").set_index(keys)["median"]
    ratios = (wheel / best).unstack("phase").reindex(columns=["schedule", DRAIN]).dropna().set_axis(["writes", "reads"], axis=1)
    return _sided(ratios, (ratios.writes >= LEAST_RATIO) & (ratios.reads <= 1 / LEAST_RATIO))


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
        f"lines of source, the wheel's over the key-ordered engine's: {LEAST_RATIO:g} or more confirms, less refutes; no matter of "
        "throughput",
        "both engines installed beside the report: their source is counted, no run can show this",
        _lines_of_source,
        lambda found, figures: (
            f"{found.wheel[0]:,} lines of the wheel against {found.ordered[0]:,}, the layer that RocksDB shares with LMDB included "
            f"({words.factor(found.ratio[0])}); lines stand in for simplicity here, and the wheel's are also those of RocketMQ's file "
            "formats"
        ),
    ),
    Claim(
        "no rolling",
        FOR,
        "It avoids the write amplification that comes from rolling messages.",
        f"bytes written in the phase roll over user bytes kept, on the cell that keeps most: RocksDB at most {ROLL_NONE:g} and every "
        f"wheel {ROLL_MUCH:g} or more confirms; RocksDB at most {ROLL_NONE:g} and only some wheel {ROLL_MUCH:g} or more: it depends; else "
        "refuted",
        "the phase roll of RocksDB and of a wheel on one cell",
        _rolled,
        lambda found, figures: (
            f"bytes that the process wrote while rolling, over {words.size(found.live_bytes.iloc[0])} kept: "
            f"RocksDB {words.digits(found.wchar_per_live_byte.iloc[0])}, "
            + ", ".join(f"the wheel by {each.kind} {words.digits(each.wheel)}" for each in found.itertuples())
        ),
    ),
    by_ratio(
        "less page-cache pollution",
        FOR,
        "To a degree it avoids polluting the page cache.",
        "bytes read from the device a user byte, drained with less memory than messages, wheel over RocksDB",
        "with too little memory the wheel reads {} as much from the device as RocksDB",
        lambda figures: comparisons(_short_of_memory(figures, "device_read_per_user_byte"), WHEEL, ROCKSDB),
    ),
    by_ratio(
        "sorting on write",
        AGAINST,
        "Writing has to sort, which takes extra time.",
        "schedule rate, wheel over RocksDB",
        "the wheel schedules {} as fast",
        _on_cells("rate", ("schedule",), WHEEL, ROCKSDB),
        ("of CPU time RocksDB takes {} as much", _on_cells("cpu_us_per_message", ("schedule",), ROCKSDB, WHEEL)),
    ),
    by_ratio(
        "compaction costs CPU",
        AGAINST,
        "Compacting the keys may take extra CPU.",
        "CPU time a message where compaction ran, RocksDB over wheel",
        "where compaction ran, RocksDB takes {} the wheel's CPU time a message; that is all of it, of which compaction is a part",
        _where_compacted,
    ),
    by_ratio(
        "retrieval costs compute",
        AGAINST,
        "Finding the messages takes much computing.",
        "CPU time a message handed over, RocksDB over wheel",
        "handing over, RocksDB takes {} the wheel's CPU time a message",
        _on_cells("cpu_us_per_message", ("hand_over",), ROCKSDB, WHEEL),
    ),
    by_ratio(
        "slower as it grows",
        DECIDED,
        "With large values compaction grows with the stored volume, and writing slows down bit by bit.",
        f"schedule rate of RocksDB with bodies of {words.size(LARGE_BODY_BYTES)} or more, smallest backlog over largest",
        "with large values its rate at the smallest backlog is {} that at the largest",
        lambda figures: _growth(figures, ROCKSDB),
        ("the wheel's changes by {} likewise", lambda figures: _growth(figures, WHEEL)),
    ),
    by_ratio(
        "separation hurts reading",
        DECIDED,
        "Keeping values apart from keys saves the speed of writing, but reading suffers badly.",
        "drain rate of RocksDB, values inline over separated",
        "inline values drain {} as fast as separated ones",
        _on_cells("rate", (DRAIN, "cold_drain"), ROCKSDB, SEPARATED),
        ("in turn, separated ones are scheduled {} as fast", _on_cells("rate", ("schedule",), SEPARATED, ROCKSDB)),
    ),
    Claim(
        "random reads, page cache",
        OF_THE_WHEEL,
        "Going from the timer log to the commit log cannot but read at random and pollute the page cache.",
        f"bytes read from the device a user byte, drained with less memory than messages: {READ_MUCH:g} or more on every cell confirms, "
        f"{READ_LITTLE:g} or less on every cell refutes, else it depends",
        "the phase cold_drain of the wheel with a memory limit below the size of the messages",
        _cold_reads,
        lambda found, figures: (
            f"with too little memory the wheel reads {_range(found['median'], words.digits)} bytes from the device a user byte"
            + (f", and drains at {found.slowed.min():.0%} of its rate with warm pages at the least" if found.slowed.notna().any() else "")
        ),
    ),
    Claim(
        "reading given for writing",
        OF_THE_WHEEL,
        "Writing and reading cannot both be had: the wheel gives up some speed of reading to secure that of writing.",
        f"the wheel over the best other durable engine: schedule rate {LEAST_RATIO:g} or more, and drain rate {1 / LEAST_RATIO:.2g} or "
        "less, on every cell confirms, on none refutes, else it depends",
        "schedule, hand_over and pop_ack of the wheel and of another durable engine",
        _beside_the_best,
        lambda found, figures: (
            f"beside the best other durable engine the wheel schedules {_range(found.writes, words.factor)} as fast and drains "
            f"{_range(found.reads, words.factor)} as fast; faster at writing on {(found.writes >= LEAST_RATIO).sum()} of {len(found)} "
            f"cells, slower at reading on {(found.reads <= 1 / LEAST_RATIO).sum()}"
        ),
    ),
)
