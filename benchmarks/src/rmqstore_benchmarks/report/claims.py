"""What an article and RocketMQ's proposal RIP-43 say of the two designs, each put to the figures of a run by a rule that is stated.

The article explains the timer wheel of RIP-43 and RocksDB as the other way (its sections 3.3.2 and 3.3.3); the claims here give its sense.
The rules take ratios within one cell of the grid.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib.util
import statistics
import tokenize
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore_benchmarks.grid.results import Cell
from rmqstore_benchmarks.grid.stores import HOLLOW
from rmqstore_benchmarks.report import text
from rmqstore_benchmarks.report.cells import kind_of, place
from rmqstore_benchmarks.statistics import DRAIN, CellPhase, Spread

SOURCE: Final = "the article on RocketMQ's timer messages, sections 3.3.2 and 3.3.3, which follow RIP-43"


# ---------------------------------------------------------------- two designs on the same cells

LEAST_RATIO: Final = 1.1
"""A ratio below this is no difference."""

Design = tuple[str, str]
"""An engine and its kind, as :func:`rmqstore_benchmarks.report.cells.kind_of` tells it."""

WHEEL: Final[Design] = ("wheel", "reference")
COPYING_WHEEL: Final[Design] = ("wheel", "copy")
ROCKSDB: Final[Design] = ("rocksdb", "inline")
SEPARATED: Final[Design] = ("rocksdb", "separated")


class Side(enum.Enum):
    """What one comparison says of a claim."""

    FOR = "for"
    AGAINST = "against"
    UNCLEAR = "unclear"


class Comparison(NamedTuple):
    """Two spreads of one figure on the same cell; the claim is that the first is larger."""

    cell: Cell
    first: Spread
    second: Spread

    @property
    def ratio(self) -> float:
        """The first median over the second."""
        return self.first / self.second

    @property
    def side(self) -> Side:
        """For the claim from a ratio of :data:`LEAST_RATIO` on; unclear where repeats overlap all the same, since that may be chance."""
        if self.ratio < LEAST_RATIO:
            return Side.AGAINST
        return Side.FOR if self.first.is_apart_from(self.second) else Side.UNCLEAR


def design_of(cell: Cell) -> Design:
    """Return the design of a cell's engine."""
    return cell.engine, kind_of(cell)


def comparisons(
    phases: Sequence[CellPhase], metric: str, first: Design, second: Design, only: Callable[[CellPhase], bool] = lambda _: True
) -> list[Comparison]:
    """Return a comparison for each cell on which both designs tell the figure in the same phase.

    ``only`` chooses among the cells of the first design. Where a design has several variants, each is compared.
    """
    found = []
    for one in phases:
        if design_of(one.cell) != first or metric not in one.metrics or not only(one):
            continue
        for other in phases:
            is_match = design_of(other.cell) == second and other.phase == one.phase and place(other.cell) == place(one.cell)
            if is_match and metric in other.metrics and other.metrics[metric].median:
                found.append(Comparison(one.cell, one.metrics[metric], other.metrics[metric]))
    return found


def told(found: Sequence[Comparison]) -> str:
    """Return the ratios as text: ``1.4 × (one cell)``, ``1.1 × to 2.3 × (median 1.4 ×, 6 cells)``; said when a cell was not repeated."""
    ratios = sorted(each.ratio for each in found)
    is_single = any(1 in (each.first.repeats, each.second.repeats) for each in found)
    end = ", one repeat, so chance is not excluded" if is_single else ""
    if len(ratios) == 1:
        return f"{text.factor(ratios[0])} (one cell{end})"
    low, high = text.factor(ratios[0]), text.factor(ratios[-1])
    if low == high:
        return f"{low} (on each of {len(ratios)} cells{end})"
    return f"{low} to {high} (median {text.factor(statistics.median(ratios))}, {len(ratios)} cells{end})"


def where(found: Sequence[Comparison], side: Side) -> str:
    """Return on how many cells a comparison falls to one side, with the sizes and backlogs of these."""
    here = [each.cell for each in found if each.side is side]
    if not here:
        return "on none"
    bodies = sorted({cell.body_bytes for cell in here})
    backlogs = sorted({cell.backlog for cell in here})
    return f"on {len(here)} of {len(found)} ({_range(bodies, text.size)} bodies, {_range(backlogs, text.short)} pending)"


def _range(values: Sequence[float], text_of: Callable[[float], str]) -> str:
    return text_of(values[0]) if len(values) == 1 else f"{text_of(values[0])} to {text_of(values[-1])}"


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
        judge: applies the rule to all phases of all cells.
    """

    name: str
    side: str
    text: str
    rule: str
    judge: Callable[[Sequence[CellPhase]], Judgement]


RATIO_RULE: Final = (
    f"on every cell that both have, the ratio is {LEAST_RATIO:g} or more and no repeat of one lies among those of the other: confirmed; "
    f"below {LEAST_RATIO:g} on every cell: refuted; else it depends"
)


def verdict_of(found: Sequence[Comparison]) -> Verdict:
    """Return the verdict of :data:`RATIO_RULE`."""
    sides = {each.side for each in found}
    if not found:
        return Verdict.NOT_MEASURED
    return {frozenset({Side.FOR}): Verdict.CONFIRMED, frozenset({Side.AGAINST}): Verdict.REFUTED}.get(frozenset(sides), Verdict.DEPENDS)


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


def _simple_flow(phases: Sequence[CellPhase]) -> Judgement:
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


def _no_rolling(phases: Sequence[CellPhase]) -> Judgement:
    written = _rolled(phases)
    if not written:
        return not_measured("the phase roll of RocksDB and of a wheel on one cell")
    kept, by_design = max(written, key=lambda each: each[0])
    rocksdb = by_design[ROCKSDB]
    wheels = {name: value for name, value in by_design.items() if name != ROCKSDB}
    parts = [f"RocksDB {text.digits(rocksdb)}"]
    parts += [f"the wheel by {kind} {text.digits(value)}" for (_, kind), value in wheels.items()]
    much = [value >= ROLL_MUCH for value in wheels.values()]
    if rocksdb > ROLL_NONE or not any(much):
        verdict = Verdict.REFUTED
    else:
        verdict = Verdict.CONFIRMED if all(much) else Verdict.DEPENDS
    return Judgement(verdict, f"bytes that the process wrote while rolling, over {text.size(kept)} kept: {', '.join(parts)}")


def _rolled(phases: Sequence[CellPhase]) -> list[tuple[float, dict[Design, float]]]:
    """Return for each cell that RocksDB and a wheel rolled on the user bytes kept, and by design the bytes written over them."""
    cells: dict[tuple[object, ...], dict[Design, CellPhase]] = defaultdict(dict)
    for design in (ROCKSDB, COPYING_WHEEL, WHEEL):
        for each in _of(phases, "roll", design):
            if {"wchar_per_live_byte", "live_bytes"} <= each.metrics.keys():
                cells[place(each.cell)][design] = each
    return [
        (of_cell[ROCKSDB].metrics["live_bytes"].median, {key: each.metrics["wchar_per_live_byte"].median for key, each in of_cell.items()})
        for of_cell in cells.values()
        if ROCKSDB in of_cell and len(of_cell) > 1
    ]


def _of(phases: Sequence[CellPhase], phase: str, design: Design) -> list[CellPhase]:
    return [each for each in phases if each.phase == phase and design_of(each.cell) == design]


def is_short_of_memory(each: CellPhase) -> bool:
    """Return whether a cold drain had less memory than messages, so that what is read twice comes from the disk twice.

    Of several shards none counts, since each sees what all read.
    """
    limit = each.metrics.get("memory_limit_per_user_byte")
    return limit is not None and limit.median < 1 and each.cell.shards == 1


def _less_pollution(phases: Sequence[CellPhase]) -> Judgement:
    cold = [each for each in phases if each.phase == "cold_drain" and is_short_of_memory(each)]
    found = comparisons(cold, "device_read_per_user_byte", WHEEL, ROCKSDB)
    if not found:
        return not_measured("the phase cold_drain of both with a memory limit below the size of the messages")
    worst = max(found, key=lambda each: each.ratio)
    return Judgement(
        verdict_of(found),
        f"with too little memory the wheel reads {told(found)} as much from the device as RocksDB; where it differs most, "
        f"{text.digits(worst.first.median)} against {text.digits(worst.second.median)} bytes a user byte",
    )


def _sorting(phases: Sequence[CellPhase]) -> Judgement:
    found = comparisons([each for each in phases if each.phase == "schedule"], "rate", WHEEL, ROCKSDB)
    if not found:
        return not_measured("the phase schedule of the wheel and of RocksDB")
    cpu = comparisons([each for each in phases if each.phase == "schedule"], "cpu_us_per_message", ROCKSDB, WHEEL)
    end = f"; of CPU time RocksDB takes {told(cpu)} as much" if cpu else ""
    return Judgement(verdict_of(found), f"the wheel schedules {told(found)} as fast; it is clearly faster {where(found, Side.FOR)}{end}")


def _compaction(phases: Sequence[CellPhase]) -> Judgement:
    writing = [each for each in phases if each.phase in ("fill", "schedule", "mixed")]
    known = [each for each in writing if design_of(each.cell) == ROCKSDB and "compaction_per_user_byte" in each.metrics]
    if not known:
        return not_measured("compaction bytes of RocksDB in the phases fill, schedule or mixed")
    compacted = [each for each in known if each.metrics["compaction_per_user_byte"].median > 0]
    if not compacted:
        return not_measured("more data: no compaction ran in fill, schedule or mixed")
    most = max(each.metrics["compaction_per_user_byte"].median for each in compacted)
    ran = {(each.cell.cell_id, each.phase) for each in compacted}
    found = comparisons(writing, "cpu_us_per_message", ROCKSDB, WHEEL, lambda each: (each.cell.cell_id, each.phase) in ran)
    if not found:
        return not_measured("the wheel's CPU time on a cell where RocksDB compacted")
    return Judgement(
        verdict_of(found),
        f"where compaction ran, at most {text.digits(most)} bytes a user byte, RocksDB takes {told(found)} the wheel's CPU time a "
        "message; that is all of its CPU time, of which compaction is a part",
    )


def _retrieval(phases: Sequence[CellPhase]) -> Judgement:
    found = comparisons([each for each in phases if each.phase == "hand_over"], "cpu_us_per_message", ROCKSDB, WHEEL)
    if not found:
        return not_measured("CPU time in the phase hand_over of the wheel and of RocksDB")
    return Judgement(
        verdict_of(found),
        f"handing over, RocksDB takes {told(found)} the wheel's CPU time a message; clearly more {where(found, Side.FOR)}",
    )


def _slower_as_it_grows(phases: Sequence[CellPhase]) -> Judgement:
    found = _growth(phases, ROCKSDB)
    if not found:
        return not_measured(f"the phase schedule of RocksDB at two backlogs with bodies of {text.size(LARGE_BODY_BYTES)} or more")
    worst = max(found, key=lambda each: each.ratio)
    wheel = _growth(phases, WHEEL)
    beside = f"; the wheel's changes by {told(wheel)} likewise" if wheel else ""
    return Judgement(
        verdict_of(found),
        f"with large values its rate at the smallest backlog is {told(found)} that at the largest; at most, it falls from "
        f"{text.rate(worst.first.median)} to {text.rate(worst.second.median)}{beside}",
    )


def _growth(phases: Sequence[CellPhase], design: Design) -> list[Comparison]:
    """Return for each large body and setting the schedule rate at the smallest backlog against that at the largest."""
    series: dict[tuple[object, ...], list[tuple[int, CellPhase, Spread]]] = defaultdict(list)
    for each in _of(phases, "schedule", design):
        cell = each.cell
        if cell.body_bytes >= LARGE_BODY_BYTES and "rate" in each.metrics:
            key = (cell.variant, cell.workload, cell.body_bytes, cell.durability, cell.shards)
            series[key].append((cell.backlog, each, each.metrics["rate"]))
    found = []
    for points in series.values():
        points.sort(key=lambda point: point[0])
        if points[0][0] < points[-1][0]:
            found.append(Comparison(points[-1][1].cell, points[0][2], points[-1][2]))
    return found


def _separation(phases: Sequence[CellPhase]) -> Judgement:
    reading = [each for each in phases if each.phase in (DRAIN, "cold_drain")]
    found = comparisons(reading, "rate", ROCKSDB, SEPARATED)
    if not found:
        return not_measured("RocksDB with values inline and separated, in hand_over and pop_ack or in cold_drain")
    writing = comparisons([each for each in phases if each.phase == "schedule"], "rate", SEPARATED, ROCKSDB)
    beside = f"; in turn it schedules {told(writing)} as fast" if writing else ""
    return Judgement(
        verdict_of(found), f"inline values drain {told(found)} as fast as separated ones; clearly faster {where(found, Side.FOR)}{beside}"
    )


ROCKSDB_CLAIMS: Final = (
    Claim(
        "simple flow",
        FOR,
        "The flow is rather simple: key by time, scan what is due.",
        f"lines of code of the key-ordered engine over the wheel's: at most {SMALLER:.0%} confirms, 100 % or more refutes, else it "
        f"depends; no "
        "matter of throughput",
        _simple_flow,
    ),
    Claim(
        "no rolling",
        FOR,
        "It avoids the write amplification that comes from rolling messages.",
        f"bytes written in the phase roll over user bytes kept, on the cell that keeps most: RocksDB at most {ROLL_NONE:g} and every "
        f"wheel {ROLL_MUCH:g} or more "
        f"confirms; "
        f"RocksDB at most {ROLL_NONE:g} and only some wheel {ROLL_MUCH:g} or more: it depends; else refuted",
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


def _random_reads(phases: Sequence[CellPhase]) -> Judgement:
    cold = [each for each in phases if each.phase == "cold_drain" and design_of(each.cell) == WHEEL and is_short_of_memory(each)]
    reads = [each.metrics["device_read_per_user_byte"] for each in cold if "device_read_per_user_byte" in each.metrics]
    if not reads:
        return not_measured("the phase cold_drain of the wheel with a memory limit below the size of the messages")
    low, high = min(each.median for each in reads), max(each.median for each in reads)
    verdict = Verdict.CONFIRMED if low >= READ_MUCH else Verdict.REFUTED if high <= READ_LITTLE else Verdict.DEPENDS
    span = " to ".join(dict.fromkeys((text.digits(low), text.digits(high))))
    return Judgement(verdict, f"with too little memory the wheel reads {span} bytes from the device a user byte{_slowed(phases, cold)}")


def _slowed(phases: Sequence[CellPhase], cold: Sequence[CellPhase]) -> str:
    """Return what the cold drain's rate is of the warm one's, where both are known."""
    warm = {each.cell.cell_id: each.metrics["rate"] for each in phases if each.phase == DRAIN and "rate" in each.metrics}
    shares = [each.metrics["rate"] / warm[each.cell.cell_id] for each in cold if "rate" in each.metrics and each.cell.cell_id in warm]
    return f", and drains at {min(shares) * 100:.0f} % of its rate with warm pages at the least" if shares else ""


def _trades_reading_for_writing(phases: Sequence[CellPhase]) -> Judgement:
    writes, reads = _against_best(phases, "schedule"), _against_best(phases, DRAIN)
    both = sorted(set(writes) & set(reads), key=str)
    if not both:
        return not_measured("schedule, hand_over and pop_ack of the wheel and of another durable engine")
    writes_first = [writes[at] >= LEAST_RATIO for at in both]
    reads_behind = [reads[at] <= 1 / LEAST_RATIO for at in both]
    as_said = [first and behind for first, behind in zip(writes_first, reads_behind, strict=True)]
    verdict = Verdict.CONFIRMED if all(as_said) else Verdict.DEPENDS if any(as_said) else Verdict.REFUTED
    return Judgement(
        verdict,
        f"beside the best other durable engine the wheel schedules {_span([writes[at] for at in both])} as fast and drains "
        f"{_span([reads[at] for at in both])} as fast; faster at writing on {sum(writes_first)} of {len(both)} cells, slower at reading on "
        f"{sum(reads_behind)}",
    )


def _against_best(phases: Sequence[CellPhase], phase: str) -> dict[tuple[object, ...], float]:
    """Return by point of the grid the wheel's rate over the best rate of another durable engine."""
    known = [each for each in phases if each.phase == phase and "rate" in each.metrics and each.cell.engine not in _NOT_DURABLE]
    found = {}
    for each in known:
        others = [other.metrics["rate"].median for other in known if other.cell.engine != "wheel" and place(other.cell) == place(each.cell)]
        if design_of(each.cell) == WHEEL and others:
            found[place(each.cell)] = each.metrics["rate"].median / max(others)
    return found


def _span(ratios: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys((text.factor(min(ratios)), text.factor(max(ratios)))))


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
        f"less, "
        "on every cell confirms, on none refutes, else it depends",
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
