"""The scripts that are cut behind each answer give every answer there is, so that each is cut behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from rmqstore.contract import AckOutcome, CancelOutcome, ChangeOutcome, RejectOutcome, ReleaseOutcome
from rmqstore_conformance.faults.answers import Answers
from rmqstore_conformance.faults.scripts import play_of
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.stores import Pair

OUTCOMES: Final[dict[str, Sequence[str]]] = {
    **dict.fromkeys(("send", "send later", "send_batch", "send_batch later"), ("APPLIED", "REPEATED")),
    "cancel": [each.name for each in CancelOutcome],
    "cancel_key": ("CANCELLED", "ALREADY_DELIVERED", "NOTHING"),
    **dict.fromkeys(("pop", "pop in order"), ("GIVEN", "NOTHING")),
    "ack": [each.name for each in AckOutcome],
    "change_invisible": [each.name for each in ChangeOutcome],
    "release": [each.name for each in ReleaseOutcome],
    "reject": [each.name for each in RejectOutcome],
    "retry_later": ("CHANGED", "STALE"),
    **dict.fromkeys(("resend_dead", "drop_dead"), ("1", "0")),
    "tick": ("MOVED", "NOTHING"),
    **dict.fromkeys(("set_group", "delete_group", "delete_topic", "reset_offset", "flush"), ("DONE",)),
    "create_topic": ("2",),
}
"""By operation: what it can answer."""


@pytest.fixture(scope="module")
def answered() -> set[tuple[str, str]]:
    plays = [play_of(Pair("memory", "memory"), {}, script) for script in (Workload.name, Answers.name)]
    return {(step.call.operation, step.answer.outcome) for play in plays for step in play.steps}


@pytest.mark.parametrize("operation", OUTCOMES)
def test_every_outcome_is_given(answered: set[tuple[str, str]], operation: str) -> None:
    assert {(operation, outcome) for outcome in OUTCOMES[operation]} <= answered
