"""What an article and RocketMQ's proposal RIP-43 say of the two designs, each put to the figures of a run by a rule that is stated.

The article explains the timer wheel of RIP-43 and RocksDB as the other way (its sections 3.3.2 and 3.3.3); the claims here give its sense.
The rules take ratios within one cell of the grid.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib.util
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from rmqstore_benchmarks.grid.stores import HOLLOW
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.statistics import DRAIN, POINT, known

SOURCE: Final = "the article on RocketMQ's timer messages, sections 3.3.2 and 3.3.3, which follow RIP-43"


# ---------------------------------------------------------------- two designs on the same cells

LEAST_RATIO: Final = 1.1
"""A ratio below this is no difference."""

Design = tuple[str, str]
"""An engine and its kind, as :func:`rmqstore_benchmarks.grid.results.kind_of` tells it."""

WHEEL: Final[Design] = ("wheel", "reference")
COPYING_WHEEL: Final[Design] = ("wheel", "copy")
ROCKSDB: Final[Design] = ("rocksdb", "inline")
SEPARATED: Final[Design] = ("rocksdb", "separated")


class Side(enum.Enum):
    """What one comparison says of a claim."""

    FOR = "for"
    AGAINST = "against"
    UNCLEAR = "unclear"


def of_design(figures: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Return the rows of one design."""
    return figures[(figures.engine == design[0]) & (figures.kind == design[1])]


def comparisons(rows: pd.DataFrame, first: Design, second: Design) -> pd.DataFrame:
    """Return a row for each cell on which both designs tell the figure in the same phase; where a design has several variants, for each.

    It has the columns of the first, ``second`` and its spread, ``ratio`` of the medians, and ``side``.
    """
    other = of_design(rows, second)
    return compared(of_design(rows, first).merge(other[other["median"] != 0], on=[*POINT, "phase"], suffixes=("", "_second")))


def compared(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs of spreads with ``ratio`` and ``side``; the claim is that the first is larger.

    For the claim from a ratio of :data:`LEAST_RATIO` on; unclear where repeats overlap all the same, since that may be chance.
    """
    ratios = pairs["median"] / pairs.median_second
    is_apart = (pairs.low > pairs.high_second) | (pairs.high < pairs.low_second)
    sides = [
        Side.AGAINST if ratio < LEAST_RATIO else Side.FOR if apart else Side.UNCLEAR for ratio, apart in zip(ratios, is_apart, strict=True)
    ]
    return pairs.assign(ratio=ratios, side=pd.Series(sides, pairs.index, object))


def told(found: pd.DataFrame) -> str:
    """Return the ratios as text: ``1.4 × (one cell)``, ``1.1 × to 2.3 × (median 1.4 ×, 6 cells)``; said when a cell was not repeated."""
    is_single = (found[["repeats", "repeats_second"]] == 1).any(axis=None)
    end = ", one repeat, so chance is not excluded" if is_single else ""
    low, high = text.factor(found.ratio.min()), text.factor(found.ratio.max())
    if len(found) == 1:
        return f"{low} (one cell{end})"
    if low == high:
        return f"{low} (on each of {len(found)} cells{end})"
    return f"{low} to {high} (median {text.factor(found.ratio.median())}, {len(found)} cells{end})"


def where(found: pd.DataFrame, side: Side) -> str:
    """Return on how many cells a comparison falls to one side, with the sizes and backlogs of these."""
    here = found[found.side == side]
    if here.empty:
        return "on none"
    bodies, backlogs = _range(here.body_bytes, text.size), _range(here.backlog, text.short)
    return f"on {len(here)} of {len(found)} ({bodies} bodies, {backlogs} pending)"


def _range(values: pd.Series, text_of: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys((text_of(values.min()), text_of(values.max()))))


# ---------------------------------------------------------------- claims and verdicts


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


class Claim(NamedTuple):
    """One claim.

    Attributes:
        side: whose advantage or fault it is said to be.
        rule: how the verdict follows from the figures.
        judge: applies the rule to all figures of all cells.
    """

    name: str
    side: str
    text: str
    rule: str
    judge: Callable[[pd.DataFrame], Judgement]


RATIO_RULE: Final = (
    f"on every cell that both have, the ratio is {LEAST_RATIO:g} or more and no repeat of one lies among those of the other: confirmed; "
    f"below {LEAST_RATIO:g} on every cell: refuted; else it depends"
)


def verdict_of(found: pd.DataFrame) -> Verdict:
    """Return the verdict of :data:`RATIO_RULE`."""
    if found.empty:
        return Verdict.NOT_MEASURED
    if (found.side == Side.FOR).all():
        return Verdict.CONFIRMED
    return Verdict.REFUTED if (found.side == Side.AGAINST).all() else Verdict.DEPENDS


def by_ratio(found: pd.DataFrame, needs: str, evidence: Callable[[pd.DataFrame], str]) -> Judgement:
    """Return the verdict of :data:`RATIO_RULE` with its evidence, or that the run lacks what it takes."""
    return not_measured(needs) if found.empty else Judgement(verdict_of(found), evidence(found))


def not_measured(needs: str) -> Judgement:
    """Return that a run lacks what a claim needs."""
    return Judgement(Verdict.NOT_MEASURED, f"it takes {needs}")


# ---------------------------------------------------------------- for RocksDB and against it, and what decided against it

SMALLER: Final = 2 / 3
"""Code is simpler from this share of the other's lines down."""

ROLL_NONE: Final = 0.05
"""Bytes written over bytes kept below which rolling writes nothing to speak of."""

ROLL_MUCH: Final = 1.0
"""Bytes written over bytes kept from which rolling writes as much as if it wrote the messages anew."""

LARGE_BODY_BYTES: Final = 4096
"""A value is large from here on."""

FOR: Final = "for RocksDB"
AGAINST: Final = "against RocksDB"
DECIDED: Final = "decided against RocksDB"


def _simple_flow(figures: pd.DataFrame) -> Judgement:
    ordered, wheel = package_lines("rmqstore.engine", "rmqstore_rocksdb"), package_lines("rmqstore_wheel")
    if not ordered or not wheel:
        return not_measured("both engines installed beside the report: their source is counted, no run can show this")
    share = ordered / wheel
    verdict = Verdict.CONFIRMED if share <= SMALLER else Verdict.REFUTED if share >= 1 else Verdict.DEPENDS
    return Judgement(
        verdict,
        f"{ordered:,} lines of code, the layer that it shares with LMDB included, against the wheel's {wheel:,} ({share * 100:.0f} %); "
        "lines stand in for simplicity here, and the wheel's are also those of RocketMQ's file formats",
    )


def _no_rolling(figures: pd.DataFrame) -> Judgement:
    rolled = figures[figures.phase == "roll"].pivot_table(index=[*POINT, "engine", "kind"], columns="metric", values="median")
    rolled = rolled.reindex(columns=["live_bytes", "wchar_per_live_byte"]).dropna().reset_index(["engine", "kind"])
    both = rolled.index.intersection(of_design(rolled, ROCKSDB).index).intersection(rolled.index[rolled.engine == "wheel"])
    if both.empty:
        return not_measured("the phase roll of RocksDB and of a wheel on one cell")
    most = rolled.loc[[of_design(rolled.loc[both], ROCKSDB).live_bytes.idxmax()]]
    rocksdb = of_design(most, ROCKSDB).iloc[0]
    wheels = pd.concat([of_design(most, COPYING_WHEEL), of_design(most, WHEEL)])
    parts = [f"RocksDB {text.digits(rocksdb.wchar_per_live_byte)}"]
    parts += [f"the wheel by {each.kind} {text.digits(each.wchar_per_live_byte)}" for each in wheels.itertuples()]
    are_much = wheels.wchar_per_live_byte >= ROLL_MUCH
    if rocksdb.wchar_per_live_byte > ROLL_NONE or not are_much.any():
        verdict = Verdict.REFUTED
    else:
        verdict = Verdict.CONFIRMED if are_much.all() else Verdict.DEPENDS
    return Judgement(verdict, f"bytes that the process wrote while rolling, over {text.size(rocksdb.live_bytes)} kept: {', '.join(parts)}")


def short_of_memory(figures: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of cold drains that had less memory than messages, so that what is read twice comes from the disk twice.

    Of several shards none counts, since each sees what all read.
    """
    limits = known(figures, "memory_limit_per_user_byte", "cold_drain")
    cells = limits.cell_id[(limits["median"] < 1) & (limits.shards == 1)]
    rows = known(figures, metric, "cold_drain")
    return rows[rows.cell_id.isin(cells)]


def _less_pollution(figures: pd.DataFrame) -> Judgement:
    found = comparisons(short_of_memory(figures, "device_read_per_user_byte"), WHEEL, ROCKSDB)
    if found.empty:
        return not_measured("the phase cold_drain of both with a memory limit below the size of the messages")
    worst = found.loc[found.ratio.idxmax()]
    return Judgement(
        verdict_of(found),
        f"with too little memory the wheel reads {told(found)} as much from the device as RocksDB; where it differs most, "
        f"{text.digits(worst['median'])} against {text.digits(worst.median_second)} bytes a user byte",
    )


def _sorting(figures: pd.DataFrame) -> Judgement:
    cpu = comparisons(known(figures, "cpu_us_per_message", "schedule"), ROCKSDB, WHEEL)
    end = "" if cpu.empty else f"; of CPU time RocksDB takes {told(cpu)} as much"
    return by_ratio(
        comparisons(known(figures, "rate", "schedule"), WHEEL, ROCKSDB),
        "the phase schedule of the wheel and of RocksDB",
        lambda found: f"the wheel schedules {told(found)} as fast; it is clearly faster {where(found, Side.FOR)}{end}",
    )


def _compaction(figures: pd.DataFrame) -> Judgement:
    phases = ("fill", "schedule", "mixed")
    compacted = of_design(known(figures, "compaction_per_user_byte", *phases), ROCKSDB)
    if compacted.empty:
        return not_measured("compaction bytes of RocksDB in the phases fill, schedule or mixed")
    compacted = compacted[compacted["median"] > 0]
    if compacted.empty:
        return not_measured("more data: no compaction ran in fill, schedule or mixed")
    found = comparisons(known(figures, "cpu_us_per_message", *phases), ROCKSDB, WHEEL)
    found = found.merge(compacted[["cell_id", "phase"]])
    if found.empty:
        return not_measured("the wheel's CPU time on a cell where RocksDB compacted")
    return Judgement(
        verdict_of(found),
        f"where compaction ran, at most {text.digits(compacted['median'].max())} bytes a user byte, RocksDB takes {told(found)} the "
        "wheel's CPU time a message; that is all of its CPU time, of which compaction is a part",
    )


def _retrieval(figures: pd.DataFrame) -> Judgement:
    return by_ratio(
        comparisons(known(figures, "cpu_us_per_message", "hand_over"), ROCKSDB, WHEEL),
        "CPU time in the phase hand_over of the wheel and of RocksDB",
        lambda found: f"handing over, RocksDB takes {told(found)} the wheel's CPU time a message; clearly more {where(found, Side.FOR)}",
    )


def _slower_as_it_grows(figures: pd.DataFrame) -> Judgement:
    found = _growth(figures, ROCKSDB)
    if found.empty:
        return not_measured(f"the phase schedule of RocksDB at two backlogs with bodies of {text.size(LARGE_BODY_BYTES)} or more")
    worst = found.loc[found.ratio.idxmax()]
    wheel = _growth(figures, WHEEL)
    beside = "" if wheel.empty else f"; the wheel's changes by {told(wheel)} likewise"
    return Judgement(
        verdict_of(found),
        f"with large values its rate at the smallest backlog is {told(found)} that at the largest; at most, it falls from "
        f"{text.rate(worst['median'])} to {text.rate(worst.median_second)}{beside}",
    )


def _growth(figures: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Return for each large body and setting the schedule rate at the smallest backlog against that at the largest."""
    rates = of_design(known(figures, "rate", "schedule"), design)
    rates = rates[rates.body_bytes >= LARGE_BODY_BYTES].sort_values("backlog", kind="stable")
    keys = ["variant", *(name for name in POINT if name != "backlog")]
    pairs = rates.drop_duplicates(keys).merge(rates.drop_duplicates(keys, keep="last"), on=keys, suffixes=("", "_second"))
    return compared(pairs[pairs.backlog < pairs.backlog_second])


def _separation(figures: pd.DataFrame) -> Judgement:
    writing = comparisons(known(figures, "rate", "schedule"), SEPARATED, ROCKSDB)
    beside = "" if writing.empty else f"; in turn it schedules {told(writing)} as fast"
    return by_ratio(
        comparisons(known(figures, "rate", DRAIN, "cold_drain"), ROCKSDB, SEPARATED),
        "RocksDB with values inline and separated, in hand_over and pop_ack or in cold_drain",
        lambda found: f"inline values drain {told(found)} as fast as separated ones; clearly faster {where(found, Side.FOR)}{beside}",
    )


ROCKSDB_CLAIMS: Final = (
    Claim(
        "simple flow",
        FOR,
        "The flow is rather simple: key by time, scan what is due.",
        f"lines of code of the key-ordered engine over the wheel's: at most {SMALLER:.0%} confirms, 100 % or more refutes, else it "
        "depends; no matter of throughput",
        _simple_flow,
    ),
    Claim(
        "no rolling",
        FOR,
        "It avoids the write amplification that comes from rolling messages.",
        f"bytes written in the phase roll over user bytes kept, on the cell that keeps most: RocksDB at most {ROLL_NONE:g} and every "
        f"wheel {ROLL_MUCH:g} or more confirms; RocksDB at most {ROLL_NONE:g} and only some wheel {ROLL_MUCH:g} or more: it depends; else "
        "refuted",
        _no_rolling,
    ),
    Claim(
        "less page-cache pollution",
        FOR,
        "To a degree it avoids polluting the page cache.",
        f"bytes read from the device a user byte, drained with less memory than messages, wheel over RocksDB: {RATIO_RULE}",
        _less_pollution,
    ),
    Claim(
        "sorting on write",
        AGAINST,
        "Writing has to sort, which takes extra time.",
        f"schedule rate, wheel over RocksDB: {RATIO_RULE}",
        _sorting,
    ),
    Claim(
        "compaction costs CPU",
        AGAINST,
        "Compacting the keys may take extra CPU.",
        f"CPU time a message where compaction ran, RocksDB over wheel: {RATIO_RULE}",
        _compaction,
    ),
    Claim(
        "retrieval costs compute",
        AGAINST,
        "Finding the messages takes much computing.",
        f"CPU time a message handed over, RocksDB over wheel: {RATIO_RULE}",
        _retrieval,
    ),
    Claim(
        "slower as it grows",
        DECIDED,
        "With large values compaction grows with the stored volume, and writing slows down bit by bit.",
        f"schedule rate of RocksDB with bodies of {text.size(LARGE_BODY_BYTES)} or more, smallest backlog over largest: {RATIO_RULE}",
        _slower_as_it_grows,
    ),
    Claim(
        "separation hurts reading",
        DECIDED,
        "Keeping values apart from keys saves the speed of writing, but reading suffers badly.",
        f"drain rate of RocksDB, values inline over separated: {RATIO_RULE}",
        _separation,
    ),
)


# ---------------------------------------------------------------- of the wheel

READ_MUCH: Final = 2.0
"""Bytes read from the device a user byte from which reading is amplified."""

READ_LITTLE: Final = 1.25
"""Bytes read a user byte up to which it is not."""

_NOT_DURABLE: Final = frozenset({"memory"}) | HOLLOW
OF_THE_WHEEL: Final = "of the wheel"


def _random_reads(figures: pd.DataFrame) -> Judgement:
    reads = of_design(short_of_memory(figures, "device_read_per_user_byte"), WHEEL)["median"]
    if reads.empty:
        return not_measured("the phase cold_drain of the wheel with a memory limit below the size of the messages")
    verdict = Verdict.CONFIRMED if reads.min() >= READ_MUCH else Verdict.REFUTED if reads.max() <= READ_LITTLE else Verdict.DEPENDS
    span = _range(reads, text.digits)
    return Judgement(verdict, f"with too little memory the wheel reads {span} bytes from the device a user byte{_slowed(figures)}")


def _slowed(figures: pd.DataFrame) -> str:
    """Return what the wheel's cold drain's rate is of the warm one's, where both are known."""
    cold = of_design(short_of_memory(figures, "rate"), WHEEL).set_index("cell_id")["median"]
    shares = (cold / known(figures, "rate", DRAIN).set_index("cell_id")["median"]).dropna()
    return "" if shares.empty else f", and drains at {shares.min() * 100:.0f} % of its rate with warm pages at the least"


def _trades_reading_for_writing(figures: pd.DataFrame) -> Judgement:
    rates = known(figures, "rate", "schedule", DRAIN)
    rates = rates[~rates.engine.isin(_NOT_DURABLE)]
    best = rates[rates.engine != "wheel"].groupby([*POINT, "phase"])["median"].max().rename("best")
    wheel = of_design(rates, WHEEL).join(best, on=[*POINT, "phase"], how="inner").drop_duplicates([*POINT, "phase"], keep="last")
    ratios = wheel.assign(ratio=wheel["median"] / wheel.best).set_index([*POINT, "phase"]).ratio.unstack("phase")
    ratios = ratios.reindex(columns=["schedule", DRAIN]).dropna()
    if ratios.empty:
        return not_measured("schedule, hand_over and pop_ack of the wheel and of another durable engine")
    writes_first, reads_behind = ratios.schedule >= LEAST_RATIO, ratios[DRAIN] <= 1 / LEAST_RATIO
    as_said = writes_first & reads_behind
    verdict = Verdict.CONFIRMED if as_said.all() else Verdict.DEPENDS if as_said.any() else Verdict.REFUTED
    return Judgement(
        verdict,
        f"beside the best other durable engine the wheel schedules {_range(ratios.schedule, text.factor)} as fast and drains "
        f"{_range(ratios[DRAIN], text.factor)} as fast; faster at writing on {writes_first.sum()} of {len(ratios)} cells, slower at "
        f"reading on {reads_behind.sum()}",
    )


WHEEL_CLAIMS: Final = (
    Claim(
        "random reads, page cache",
        OF_THE_WHEEL,
        "Going from the timer log to the commit log cannot but read at random and pollute the page cache.",
        f"bytes read from the device a user byte, drained with less memory than messages: {READ_MUCH:g} or more on every cell confirms, "
        f"{READ_LITTLE:g} or less on every cell refutes, else it depends",
        _random_reads,
    ),
    Claim(
        "reading given for writing",
        OF_THE_WHEEL,
        "Writing and reading cannot both be had: the wheel gives up some speed of reading to secure that of writing.",
        f"the wheel over the best other durable engine: schedule rate {LEAST_RATIO:g} or more, and drain rate {1 / LEAST_RATIO:.2g} or "
        "less, on every cell confirms, on none refutes, else it depends",
        _trades_reading_for_writing,
    ),
)

ALL_CLAIMS: Final = (*ROCKSDB_CLAIMS, *WHEEL_CLAIMS)


# ---------------------------------------------------------------- how much source an engine is made of


@functools.cache
def package_lines(*packages: str) -> int | None:
    """Return the lines of code of packages together; None when one is not installed. Nothing is imported but their parents."""
    total = 0
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ImportError:
            return None
        if found is None or not found.submodule_search_locations:
            return None
        for folder in found.submodule_search_locations:
            total += sum(code_lines(file) for file in sorted(Path(folder).rglob("*.py")))
    return total


def code_lines(file: Path) -> int:
    """Return the lines of one module."""
    with tokenize.open(file) as stream:
        text = stream.read()
    rows = enumerate(text.splitlines(), start=1)
    lines = {number for number, row in rows if row.strip() and not row.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or node.body[0].lineno) + 1))
    return len(lines)
