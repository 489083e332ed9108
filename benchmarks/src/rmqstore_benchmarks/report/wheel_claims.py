"""What is said of the timer wheel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.aggregates import DRAIN, CellPhase
from rmqstore_benchmarks.report.claims import Claim, Judgement, Verdict, not_measured
from rmqstore_benchmarks.report.comparing import LEAST_RATIO, WHEEL, design_of, place
from rmqstore_benchmarks.report.reading import NULL_ENGINE
from rmqstore_benchmarks.report.rocksdb_claims import is_short_of_memory

READ_MUCH: Final = 2.0
"""Bytes read from the device a user byte from which reading is amplified."""

READ_LITTLE: Final = 1.25
"""Bytes read a user byte up to which it is not."""

_NOT_DURABLE: Final = ("memory", NULL_ENGINE)
OF_THE_WHEEL: Final = "of the wheel"


def _random_reads(phases: Sequence[CellPhase]) -> Judgement:
    cold = [each for each in phases if each.phase == "cold_drain" and design_of(each.cell) == WHEEL and is_short_of_memory(each)]
    reads = [each.metrics["device_read_per_user_byte"] for each in cold if "device_read_per_user_byte" in each.metrics]
    if not reads:
        return not_measured("the phase cold_drain of the wheel with a memory limit below the size of the messages")
    low, high = min(each.median for each in reads), max(each.median for each in reads)
    verdict = Verdict.CONFIRMED if low >= READ_MUCH else Verdict.REFUTED if high <= READ_LITTLE else Verdict.DEPENDS
    span = " to ".join(dict.fromkeys((quantities.digits(low), quantities.digits(high))))
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
    return " to ".join(dict.fromkeys((quantities.factor(min(ratios)), quantities.factor(max(ratios)))))


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
