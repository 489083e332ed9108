"""A ledger of answers: which (operation, outcome) pairs scripts gave, what they rested on, and which of them the power was cut behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmqstore.contract import AckOutcome, CancelOutcome, ChangeOutcome, RejectOutcome, ReleaseOutcome
from rmqstore_conformance.faults.answers import UNSYNCED
from rmqstore_conformance.faults.script import Play

Pair = tuple[str, str]
"""An operation and an outcome."""

_OUTCOMES: Final[dict[str, Sequence[str]]] = {
    **dict.fromkeys(("send", "send later", "send_batch", "send_batch later"), ("APPLIED", "REPEATED")),
    "cancel": [each.name for each in CancelOutcome],
    "cancel_key": ("CANCELLED", "ALREADY_DELIVERED", "NOTHING"),
    "pop": ("GIVEN", "NOTHING"),
    "pop in order": ("GIVEN", "NOTHING"),
    "ack": [each.name for each in AckOutcome],
    "change_invisible": [each.name for each in ChangeOutcome],
    "release": [each.name for each in ReleaseOutcome],
    "reject": [each.name for each in RejectOutcome],
    "retry_later": ("CHANGED", "STALE"),
    "resend_dead": ("1", "0"),
    "drop_dead": ("1", "0"),
    "tick": ("MOVED", "NOTHING"),
    **dict.fromkeys(("set_group", "delete_group", "delete_topic", "reset_offset", "flush"), ("DONE",)),
    "create_topic": ("2",),
}
"""What calls can answer."""

_NEEDS: Final = {"cancel_key": "cancel_by_key", "pop in order": "fifo"}


class Probes:
    """See the module.

    Args:
        plays: of the scripts that are cut.
        absent: optional capabilities that the engines do not declare.
    """

    def __init__(self, plays: Sequence[Play], absent: Sequence[str] = ()) -> None:
        self._absent = absent
        self._rests: dict[Pair, set[str]] = {}
        self._cut: set[Pair] = set()
        self._unsynced = 0
        for step in (step for play in plays for step in play.steps[1:] if step.call.operation):
            self._rests.setdefault((step.call.operation, step.answer.outcome), set()).add(step.call.rests_on)
            self._unsynced += step.call.rests_on.startswith(UNSYNCED)

    def note(self, play: Play, steps: int) -> None:
        """Note that the power was cut behind the first answers of a play."""
        self._cut |= {(step.call.operation, step.answer.outcome) for step in play.steps[1 : steps + 1]}

    def missing(self) -> list[str]:
        """Return the pairs that no cut came behind, of those that calls can give and of those that they gave."""
        can = {(operation, outcome) for operation, outcomes in _OUTCOMES.items() for outcome in outcomes if self._is_offered(operation)}
        return [f"{operation} {outcome}" for operation, outcome in sorted((can | self._rests.keys()) - self._cut)]

    def _is_offered(self, operation: str) -> bool:
        return _NEEDS.get(operation) not in self._absent

    def __str__(self) -> str:
        missing = self.missing()
        told = f"{len(self._cut)} pairs of operation and outcome, {self._unsynced} answers rest on what was not synced"
        return f"{told}; not probed: {', '.join(missing)}" if missing else told
