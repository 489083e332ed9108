"""The checker of histories: what some order of the calls explains, and what none does."""

from __future__ import annotations

import pytest

from rmqstore_conformance.histories import Event, State, explained
from rmqstore_conformance.states import MarkState, MessageState, QueueState


def events(*told: tuple[str, str, str, int, int]) -> list[Event]:
    """Return events of (call, answer, receipt, begin, end); a pop gives the attempt that the letter of its receipt says."""
    found = [Event(*each, thread=0) for each in told]
    return [
        each._replace(attempt=1 if each.receipt < "m" else 2, low_ms=1000, high_ms=2000) if each.call == "pop" else each for each in found
    ]


def tick(call: str, at_ms: int, begin: int, end: int) -> Event:
    """Return one step of a tick."""
    return Event(call, "done", "", begin, end, 0, low_ms=at_ms, high_ms=at_ms)


def of_queue(*told: tuple[str, str, int, tuple[tuple[int, str], ...], int, int]) -> list[Event]:
    """Return events of (call, answer, wanted, found, begin, end)."""
    return [Event(call, answer, "", begin, end, 0, attempt=wanted, found=found) for call, answer, wanted, found, begin, end in told]


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
    "resent and given as new": [
        SENT,
        ("pop", "given", "a", 2, 3),
        ("reject", "REJECTED", "a", 4, 5),
        ("resend", "True", "", 6, 9),
        ("resend", "False", "", 6, 9),
        ("pop", "given", "b", 10, 11),
        ("left", "leased", "", 12, 12),
    ],
}

NOT_EXPLAINED = {
    "given twice": [SENT, ("pop", "given", "a", 2, 3), ("pop", "given", "b", 4, 5)],
    "given before it was sent": [("pop", "given", "a", 0, 1), ("send", "sent", "", 2, 3)],
    "acked twice": [SENT, ("pop", "given", "a", 2, 3), ("ack", "ACKED", "a", 4, 7), ("ack", "ACKED", "a", 5, 6)],
    "acked, and yet there": [SENT, ("pop", "given", "a", 2, 3), ("ack", "ACKED", "a", 4, 5), ("left", "ready", "", 9, 9)],
    "lost": [SENT, ("left", "gone", "", 9, 9)],
    "stale while it holds": [SENT, ("pop", "given", "a", 2, 3), ("ack", "STALE", "a", 4, 5), ("left", "leased", "", 9, 9)],
    "cancelled and there": [SCHEDULED, ("cancel", "CANCELLED", "", 2, 3), ("left", "ready", "", 9, 9)],
    "resent by two": [
        SENT,
        ("pop", "given", "a", 2, 3),
        ("reject", "REJECTED", "a", 4, 5),
        ("resend", "True", "", 6, 9),
        ("drop", "True", "", 6, 9),
    ],
    "an attempt is not counted": [SENT, ("pop", "given", "x", 2, 3), ("left", "leased", "", 9, 9)],
    "seen where it never was": [SENT, ("seen", "LEASED", "", 2, 3), ("left", "ready", "", 9, 9)],
    "said to be delivered, and never was": [SCHEDULED, ("cancel", "ALREADY_DELIVERED", "", 2, 3), ("left", "gone", "", 9, 9)],
    "unknown after it was scheduled": [SCHEDULED, ("cancel", "UNKNOWN", "", 2, 3), ("left", "pending", "", 9, 9)],
    "acked after the release had ended": [
        SENT,
        ("pop", "given", "a", 2, 3),
        ("release", "RELEASED", "a", 4, 5),
        ("ack", "ACKED", "a", 6, 7),
    ],
}


@pytest.mark.parametrize("name", [*EXPLAINED, *NOT_EXPLAINED])
def test_what_is_explained_and_what_is_not(name: str) -> None:
    assert explained(events(*{**EXPLAINED, **NOT_EXPLAINED}[name]), MessageState()) is (name in EXPLAINED)


# ---------------------------------------------------------------- ticks

TIMER = [Event("schedule", "sent", "", 0, 1, 0, high_ms=5000)]
HANDED = [*TIMER, tick("seal", 5000, 2, 9), tick("deliver", 5000, 2, 9)]
LEASED = events(SENT, ("pop", "given", "a", 2, 3))


@pytest.mark.parametrize(
    ("told", "is_explained"),
    [
        ([*HANDED, *events(("cancel", "ALREADY_DELIVERED", "", 3, 4), ("left", "ready", "", 10, 10))], True),
        ([*HANDED, *events(("cancel", "CANCELLED", "", 3, 4), ("left", "gone", "", 10, 10))], True),
        ([*HANDED, *events(("cancel", "CANCELLED", "", 3, 4), ("left", "ready", "", 10, 10))], False),
        ([*HANDED, *events(("left", "pending", "", 10, 10))], False),
        ([*TIMER, tick("seal", 4999, 2, 9), tick("deliver", 4999, 2, 9), *events(("left", "ready", "", 10, 10))], False),
        ([*LEASED, tick("revive", 2000, 4, 5), *events(("ack", "STALE", "a", 6, 7), ("left", "ready", "", 8, 8))], True),
        ([*LEASED, tick("revive", 2000, 4, 5), *events(("ack", "ACKED", "a", 6, 7), ("left", "gone", "", 8, 8))], False),
        ([*LEASED, tick("revive", 1500, 4, 5), *events(("ack", "ACKED", "a", 6, 7), ("left", "gone", "", 8, 8))], True),
        ([*LEASED, tick("revive", 999, 4, 5), *events(("ack", "STALE", "a", 6, 7), ("left", "ready", "", 8, 8))], False),
        ([*LEASED, tick("revive", 2000, 4, 5), *events(("pop", "given", "x", 6, 7), ("left", "leased", "", 8, 8))], True),
    ],
)
def test_what_ticks_do(told: list[Event], is_explained: bool) -> None:
    assert explained(told, MessageState()) is is_explained


def test_attempts_that_are_used_up() -> None:
    told = [*LEASED, tick("revive", 2000, 4, 5)]
    assert explained([*told, *events(("left", "dead", "", 6, 6))], MessageState(max_retries=0))
    assert not explained([*told, *events(("left", "ready", "", 6, 6))], MessageState(max_retries=0))


# ---------------------------------------------------------------- marks and queues


def test_marks_that_are_stored_twice() -> None:
    first, second = Event("send", "APPLIED", "a", 0, 5, 0), Event("send", "REPEATED", "a", 1, 2, 1)
    assert explained([first, second], MarkState())
    assert not explained([first, first._replace(thread=1)], MarkState())
    assert not explained([first, second._replace(receipt="b")], MarkState())
    assert not explained([second, first._replace(begin=3)], MarkState())


ONE, TWO = ((0, "a"),), ((0, "a"), (1, "b"))
SENT_TWO = ("append", "sent", 0, ((0, ""), (1, "")), 0, 1)


def lag(ready: int, in_flight: int, retry: int, begin: int, end: int) -> tuple[str, str, int, tuple[tuple[int, str], ...], int, int]:
    return ("lag", "is", 0, ((ready, "ready"), (in_flight, "in flight"), (retry, "retry")), begin, end)


@pytest.mark.parametrize(
    ("told", "limit", "is_explained"),
    [
        (of_queue(SENT_TWO, ("pop", "given", 2, ONE, 2, 5), lag(1, 1, 0, 3, 4)), 1, True),
        (of_queue(SENT_TWO, ("pop", "given", 2, ONE, 2, 5), lag(2, 1, 0, 3, 4)), 1, False),
        (of_queue(SENT_TWO, ("pop", "given", 2, TWO, 2, 5)), 1, False),
        (of_queue(SENT_TWO, ("pop", "given", 2, TWO, 2, 5)), 0, True),
        (of_queue(SENT_TWO, ("pop", "given", 2, ONE, 2, 5)), 0, False),
        (of_queue(SENT_TWO, ("pop", "given", 1, ONE, 2, 5), ("pop", "given", 1, ((1, "b"),), 3, 4)), 0, False),
        (of_queue(SENT_TWO, ("pop", "given", 1, ONE, 2, 3), ("release", "RELEASED", 0, ONE, 4, 5), lag(1, 0, 1, 6, 7)), 0, True),
        (of_queue(SENT_TWO, ("pop", "given", 1, ONE, 2, 3), ("ack", "ACKED", 0, ONE, 4, 5), ("ack", "ACKED", 0, ONE, 4, 5)), 2, False),
        (of_queue(SENT_TWO, ("append", "sent", 0, ((1, ""),), 0, 1)), 2, False),
        (of_queue(("append", "sent", 0, ((1, ""),), 0, 9), ("append", "sent", 0, ((0, ""),), 0, 9)), 2, True),
    ],
)
def test_how_a_queue_stands(told: list[Event], limit: int, is_explained: bool) -> None:
    assert explained(told, QueueState(limit=limit)) is is_explained


def test_a_long_history_is_judged_at_once() -> None:
    """X3: 200 calls, of which three overlap at any time, take no time that grows beyond their number."""
    told = [Event("ack", "STALE", f"{n}", n, n + 3, n % 4) for n in range(200)]
    state: State = MessageState(place="ready")
    assert explained(told, state)
