"""What an article and RocketMQ's proposal RIP-43 say of the two designs, each put to the figures of a run by a rule that is stated.

The article explains the timer wheel of RIP-43 and RocksDB as the other way (its sections 3.3.2 and 3.3.3); the claims here give its sense.
The rules take ratios within one cell of the grid.
"""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from rmqstore_benchmarks.report import text as words
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
    low, high = words.factor(found.ratio.min()), words.factor(found.ratio.max())
    if len(found) == 1:
        return f"{low} (one cell{end})"
    if low == high:
        return f"{low} (on each of {len(found)} cells{end})"
    return f"{low} to {high} (median {words.factor(found.ratio.median())}, {len(found)} cells{end})"


def where(found: pd.DataFrame, side: Side) -> str:
    """Return on how many cells a comparison falls to one side, with the sizes and backlogs of these."""
    here = found[found.side == side]
    if here.empty:
        return "on none"
    bodies, backlogs = _range(here.body_bytes, words.size), _range(here.backlog, words.short)
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
Pairs = Callable[[pd.DataFrame], pd.DataFrame]
"""Finds, among all figures, the pairs that :func:`compared` gives."""


def verdict_of(found: pd.DataFrame) -> Verdict:
    """Return the verdict of :data:`RATIO_RULE`."""
    if found.empty:
        return Verdict.NOT_MEASURED
    if (found.side == Side.FOR).all():
        return Verdict.CONFIRMED
    return Verdict.REFUTED if (found.side == Side.AGAINST).all() else Verdict.DEPENDS


def by_ratio(name: str, side: str, text: str, figure: str, needs: str, says: str, pairs: Pairs, *beside: tuple[str, Pairs]) -> Claim:
    """Return a claim that :data:`RATIO_RULE` decides.

    Args:
        figure: what the ratio is of.
        needs: what must be measured.
        says: what the ratios are, which stand for ``{}``.
        pairs: what is compared.
        beside: further ratios that are told and decide nothing.
    """

    def judge(figures: pd.DataFrame) -> Judgement:
        found = pairs(figures)
        if found.empty:
            return not_measured(needs)
        most = found.loc[found.ratio.idxmax()]
        sentences = [says.format(told(found)), f"it is clearly more {where(found, Side.FOR)}"]
        sentences.append(f"at most, {words.short(most['median'])} against {words.short(most.median_second)}")
        sentences += [words_of.format(told(others)) for words_of, more in beside if len(others := more(figures))]
        return Judgement(verdict_of(found), "; ".join(sentences))

    return Claim(name, side, text, f"{figure}: {RATIO_RULE}", judge)


def not_measured(needs: str) -> Judgement:
    """Return that a run lacks what a claim needs."""
    return Judgement(Verdict.NOT_MEASURED, f"it takes {needs}")


def _on_cells(metric: str, phases: tuple[str, ...], first: Design, second: Design) -> Pairs:
    """Return what compares a figure of two designs."""
    return lambda figures: comparisons(known(figures, metric, *phases), first, second)


# ---------------------------------------------------------------- what decides the others

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


def _simple_flow(figures: pd.DataFrame) -> Judgement:
    ordered, wheel = package_lines("rmqstore.engine", "rmqstore_rocksdb"), package_lines("rmqstore_wheel")
    if not ordered or not wheel:
        return not_measured("both engines installed beside the report: their source is counted, no run can show this")
    ratio = wheel / ordered
    return Judgement(
        Verdict.CONFIRMED if ratio >= LEAST_RATIO else Verdict.REFUTED,
        f"{wheel:,} lines of the wheel against {ordered:,}, the layer that RocksDB shares with LMDB included ({words.factor(ratio)}); "
        "lines stand in for simplicity here, and the wheel's are also those of RocketMQ's file formats",
    )


def package_lines(*packages: str) -> int:
    """Return the lines of packages together that are neither empty nor comments; 0 when one is not installed. None is imported."""
    specs = [importlib.util.find_spec(package) for package in packages]
    folders = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    lines = [line.strip() for folder in folders for file in Path(folder).rglob("*.py") for line in file.read_text("utf-8").splitlines()]
    return 0 if None in specs else sum(bool(line) and not line.startswith("#") for line in lines)


def _no_rolling(figures: pd.DataFrame) -> Judgement:
    rolled = figures[figures.phase == "roll"].pivot_table(index=[*POINT, "engine", "kind"], columns="metric", values="median")
    rolled = rolled.reindex(columns=["live_bytes", "wchar_per_live_byte"]).dropna().reset_index(["engine", "kind"])
    both = rolled.index.intersection(of_design(rolled, ROCKSDB).index).intersection(rolled.index[rolled.engine == "wheel"])
    if both.empty:
        return not_measured("the phase roll of RocksDB and of a wheel on one cell")
    most = rolled.loc[[of_design(rolled.loc[both], ROCKSDB).live_bytes.idxmax()]]
    rocksdb = of_design(most, ROCKSDB).iloc[0]
    wheels = pd.concat([of_design(most, COPYING_WHEEL), of_design(most, WHEEL)])
    parts = [f"RocksDB {words.digits(rocksdb.wchar_per_live_byte)}"]
    parts += [f"the wheel by {each.kind} {words.digits(each.wchar_per_live_byte)}" for each in wheels.itertuples()]
    are_much = wheels.wchar_per_live_byte >= ROLL_MUCH
    if rocksdb.wchar_per_live_byte > ROLL_NONE or not are_much.any():
        verdict = Verdict.REFUTED
    else:
        verdict = Verdict.CONFIRMED if are_much.all() else Verdict.DEPENDS
    return Judgement(verdict, f"bytes that the process wrote while rolling, over {words.size(rocksdb.live_bytes)} kept: {', '.join(parts)}")


def short_of_memory(figures: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of cold drains that had less memory than messages, so that what is read twice comes from the disk twice.

    Of several shards none counts, since each sees what all read.
    """
    limits = known(figures, "memory_limit_per_user_byte", "cold_drain")
    cells = limits.cell_id[(limits["median"] < 1) & (limits.shards == 1)]
    rows = known(figures, metric, "cold_drain")
    return rows[rows.cell_id.isin(cells)]


def _where_compacted(figures: pd.DataFrame) -> pd.DataFrame:
    compacted = of_design(known(figures, "compaction_per_user_byte", *_WRITING), ROCKSDB)
    found = comparisons(known(figures, "cpu_us_per_message", *_WRITING), ROCKSDB, WHEEL)
    return found.merge(compacted.loc[compacted["median"] > 0, ["cell_id", "phase"]])


def _growth(figures: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Return for each large body and setting the schedule rate at the smallest backlog against that at the largest."""
    rates = of_design(known(figures, "rate", "schedule"), design)
    rates = rates[rates.body_bytes >= LARGE_BODY_BYTES].sort_values("backlog", kind="stable")
    keys = ["variant", *(name for name in POINT if name != "backlog")]
    pairs = rates.drop_duplicates(keys).merge(rates.drop_duplicates(keys, keep="last"), on=keys, suffixes=("", "_second"))
    return compared(pairs[pairs.backlog < pairs.backlog_second])


def _random_reads(figures: pd.DataFrame) -> Judgement:
    reads = of_design(short_of_memory(figures, "device_read_per_user_byte"), WHEEL)["median"]
    if reads.empty:
        return not_measured("the phase cold_drain of the wheel with a memory limit below the size of the messages")
    verdict = Verdict.CONFIRMED if reads.min() >= READ_MUCH else Verdict.REFUTED if reads.max() <= READ_LITTLE else Verdict.DEPENDS
    cold = of_design(short_of_memory(figures, "rate"), WHEEL).set_index("cell_id")["median"]
    shares = (cold / known(figures, "rate", DRAIN).set_index("cell_id")["median"]).dropna()
    slowed = "" if shares.empty else f", and drains at {shares.min() * 100:.0f} % of its rate with warm pages at the least"
    span = _range(reads, words.digits)
    return Judgement(verdict, f"with too little memory the wheel reads {span} bytes from the device a user byte{slowed}")


def _trades_reading_for_writing(figures: pd.DataFrame) -> Judgement:
    rates = known(figures, "rate", "schedule", DRAIN)
    rates = rates[rates.engine != "memory"]
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
        f"beside the best other durable engine the wheel schedules {_range(ratios.schedule, words.factor)} as fast and drains "
        f"{_range(ratios[DRAIN], words.factor)} as fast; faster at writing on {writes_first.sum()} of {len(ratios)} cells, slower at "
        f"reading on {reads_behind.sum()}",
    )


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
    by_ratio(
        "less page-cache pollution",
        FOR,
        "To a degree it avoids polluting the page cache.",
        "bytes read from the device a user byte, drained with less memory than messages, wheel over RocksDB",
        "the phase cold_drain of both with a memory limit below the size of the messages",
        "with too little memory the wheel reads {} as much from the device as RocksDB",
        lambda figures: comparisons(short_of_memory(figures, "device_read_per_user_byte"), WHEEL, ROCKSDB),
    ),
    by_ratio(
        "sorting on write",
        AGAINST,
        "Writing has to sort, which takes extra time.",
        "schedule rate, wheel over RocksDB",
        "the phase schedule of the wheel and of RocksDB",
        "the wheel schedules {} as fast",
        _on_cells("rate", ("schedule",), WHEEL, ROCKSDB),
        ("of CPU time RocksDB takes {} as much", _on_cells("cpu_us_per_message", ("schedule",), ROCKSDB, WHEEL)),
    ),
    by_ratio(
        "compaction costs CPU",
        AGAINST,
        "Compacting the keys may take extra CPU.",
        "CPU time a message where compaction ran, RocksDB over wheel",
        f"a cell where RocksDB compacted in {words.joined(list(_WRITING))}, and the wheel's CPU time there",
        "where compaction ran, RocksDB takes {} the wheel's CPU time a message; that is all of it, of which compaction is a part",
        _where_compacted,
    ),
    by_ratio(
        "retrieval costs compute",
        AGAINST,
        "Finding the messages takes much computing.",
        "CPU time a message handed over, RocksDB over wheel",
        "CPU time in the phase hand_over of the wheel and of RocksDB",
        "handing over, RocksDB takes {} the wheel's CPU time a message",
        _on_cells("cpu_us_per_message", ("hand_over",), ROCKSDB, WHEEL),
    ),
    by_ratio(
        "slower as it grows",
        DECIDED,
        "With large values compaction grows with the stored volume, and writing slows down bit by bit.",
        f"schedule rate of RocksDB with bodies of {words.size(LARGE_BODY_BYTES)} or more, smallest backlog over largest",
        f"the phase schedule of RocksDB at two backlogs with bodies of {words.size(LARGE_BODY_BYTES)} or more",
        "with large values its rate at the smallest backlog is {} that at the largest",
        lambda figures: _growth(figures, ROCKSDB),
        ("the wheel's changes by {} likewise", lambda figures: _growth(figures, WHEEL)),
    ),
    by_ratio(
        "separation hurts reading",
        DECIDED,
        "Keeping values apart from keys saves the speed of writing, but reading suffers badly.",
        "drain rate of RocksDB, values inline over separated",
        "RocksDB with values inline and separated, in hand_over and pop_ack or in cold_drain",
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
