"""The checker of histories: what some order of the calls explains, and what none does."""

from __future__ import annotations

import pytest

from rmqstore_conformance.histories import Event, explained


def events(*told: tuple[str, str, str, int, int]) -> list[Event]:
    """Return events of (call, answer, receipt, begin, end)."""
    return [Event(*each, thread=0) for each in told]


SENT = ("send", "sent", "", 0, 1)
SCHEDULED = ("schedule", "sent", "", 0, 1)

EXPLAINED = {
    "consumed": [SENT, ("pop", "given", "a", 2, 3), ("ack", "ACKED", "a", 4, 5), ("left", "gone", "", 9, 9)],
    "popped while the send was under way": [("send", "sent", "", 0, 5), ("pop", "given", "a", 1, 2), ("left", "leased", "", 9, 9)],
    "two acks race, one wins": [
        SENT,
        ("pop", "given", "a", 2, 3),
        ("ack", "ALREADY_ACKED", "a", 4, 7),
        ("ack", "ACKED", "a", 5, 6),
        ("left", "gone", "", 9, 9),
    ],
    "released, given again, the old receipt is stale": [
        SENT,
        ("pop", "given", "a", 2, 3),
        ("release", "RELEASED", "a", 4, 5),
        ("pop", "given", "b", 6, 7),
        ("ack", "STALE", "a", 8, 9),
        ("left", "leased", "", 10, 10),
    ],
    "cancelled twice": [SCHEDULED, ("cancel", "CANCELLED", "", 2, 3), ("cancel", "CANCELLED", "", 4, 5), ("left", "gone", "", 9, 9)],
    "too late to cancel": [
        SCHEDULED,
        ("deliver", "delivered", "", 0, 9),
        ("cancel", "ALREADY_DELIVERED", "", 2, 3),
        ("left", "ready", "", 9, 9),
    ],
}

NOT_EXPLAINED = {
    "given twice": [SENT, ("pop", "given", "a", 2, 3), ("pop", "given", "b", 4, 5)],
    "given before it was sent": [("pop", "given", "a", 0, 1), ("send", "sent", "", 2, 3)],
    "acked twice": [SENT, ("pop", "given", "a", 2, 3), ("ack", "ACKED", "a", 4, 7), ("ack", "ACKED", "a", 5, 6)],
    "acked, and yet there": [SENT, ("pop", "given", "a", 2, 3), ("ack", "ACKED", "a", 4, 5), ("left", "ready", "", 9, 9)],
    "lost": [SENT, ("left", "gone", "", 9, 9)],
    "stale while it holds": [SENT, ("pop", "given", "a", 2, 3), ("ack", "STALE", "a", 4, 5), ("left", "leased", "", 9, 9)],
    "cancelled and delivered": [
        SCHEDULED,
        ("cancel", "CANCELLED", "", 2, 3),
        ("deliver", "delivered", "", 0, 9),
        ("left", "ready", "", 9, 9),
    ],
    "said to be delivered, and never was": [SCHEDULED, ("cancel", "ALREADY_DELIVERED", "", 2, 3), ("left", "gone", "", 9, 9)],
    "unknown after it was scheduled": [SCHEDULED, ("cancel", "UNKNOWN", "", 2, 3), ("left", "pending", "", 9, 9)],
    "acked after the release had ended": [
        SENT,
        ("pop", "given", "a", 2, 3),
        ("release", "RELEASED", "a", 4, 5),
        ("ack", "ACKED", "a", 6, 7),
    ],
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_is_explained(name: str) -> None:
    assert explained(events(*EXPLAINED[name]))


@pytest.mark.parametrize("name", NOT_EXPLAINED)
def test_what_is_not_explained(name: str) -> None:
    assert not explained(events(*NOT_EXPLAINED[name]))
