"""What an article and RocketMQ's proposal RIP-43 say of the two designs, each put to the figures of a run by a rule that is stated.

The article explains the timer wheel of RIP-43 and RocksDB as the other way (its sections 3.3.2 and 3.3.3); the claims here give its sense.
The rules take ratios within one cell of the grid; :mod:`rmqstore_benchmarks.report.comparing` says when a ratio counts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rmqstore_benchmarks.report.aggregates import CellPhase
from rmqstore_benchmarks.report.comparing import LEAST_RATIO, Comparison, Side

SOURCE: Final = "the article on RocketMQ's timer messages, sections 3.3.2 and 3.3.3, which follow RIP-43"


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
