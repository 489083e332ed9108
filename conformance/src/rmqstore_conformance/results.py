"""What became of the cases, clause by clause, and how far an engine came by that."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from rmqstore_conformance.case import Case
from rmqstore_conformance.clauses import Clause, clauses
from rmqstore_conformance.targets import Level


class Outcome(enum.Enum):
    """What became of a case. There is no fifth: what was left out has said why."""

    PASS = "pass"  # noqa: S105 - a word, no password
    FAIL = "fail"
    DECLARED_ABSENT = "declared absent"
    NOT_RUN = "not run"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A case and what became of it.

    Attributes:
        reason: why it did not run, or why it may fail.
        seen: of a failure, what was done, expected and seen.
        found: what a case that passed has to show for it, such as how many disk states it opened.
        expected: it failed as the caller of the suite had said; or, with a pass, it should have failed.
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    seen: str = ""
    found: str = ""
    expected: bool = False
    duration_s: float = 0.0


class ClauseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A clause and how many of its cases ended how."""

    clause: Clause
    counts: dict[Outcome, int]

    @property
    def outcome(self) -> Outcome:
        """FAIL with one failed case; PASS with one that passed; what was said of the others otherwise."""
        order = (Outcome.FAIL, Outcome.PASS, Outcome.DECLARED_ABSENT, Outcome.NOT_RUN)
        return next((each for each in order if self.counts.get(each)), Outcome.NOT_RUN)


def by_clause(results: Iterable[Result], level: Level) -> list[ClauseResult]:
    """Return every clause that a run of a level has to check, and those that it checked beyond."""
    counts: dict[str, dict[Outcome, int]] = {name: {} for name in clauses()}
    for result in results:
        for name in result.case.clauses:
            counts[name][result.outcome] = counts[name].get(result.outcome, 0) + 1
    return [ClauseResult(clause=each, counts=counts[each.id]) for each in clauses().values() if counts[each.id] or each.level <= level]


def level_reached(found: Sequence[ClauseResult], asked: Level) -> Level | None:
    """Return the highest level of which every clause holds: none has a failed case, and each has one that passed.

    A clause may have no case that passed when all of them need what the engine declares absent. What did not run holds nothing.
    """
    reached: Level | None = None
    for level in Level:
        if level > asked:
            break
        required = [each for each in found if each.clause.level <= level]
        if any(each.outcome in (Outcome.FAIL, Outcome.NOT_RUN) for each in required) or any(each.outcome is Outcome.FAIL for each in found):
            break
        reached = level
    return reached
