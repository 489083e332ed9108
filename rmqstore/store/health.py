"""How a store does: whether it hands over in time, and what waits in it (``store.health()``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from rmqstore.contract import Lag
from rmqstore.store.pauses import pauses_of

if TYPE_CHECKING:
    from rmqstore.store.reader import Reader

LATE_MS: Final = 10_000
"""Timers that wait so long behind their tick are a problem, and not a moment's load."""


class GroupHealth(msgspec.Struct, frozen=True):
    """How far a group is behind on a topic."""

    group: str
    topic: str
    lag: Lag


class Health(msgspec.Struct, frozen=True):
    """How a store does at one moment. A store that is closed or poisoned has none: the question raises the error that its calls raise.

    Attributes:
        is_ready: it takes calls, and hands over in time.
        problems: why not, a sentence each; and what an operator should know of.
        pending: timers that are pending.
        overdue: those whose tick has come, and that are not handed over.
        lateness_ms: how long the first of these waits, ms; 0 when there is none.
        groups: the groups by topic.
    """

    is_ready: bool
    problems: tuple[str, ...]
    pending: int
    overdue: int
    lateness_ms: int
    groups: tuple[GroupHealth, ...]


def health_of(store: Reader, now_ms: int, failure: Exception | None) -> Health:
    """Return how an open store does; ``failure``: the error of its last tick, while it has not ticked well since."""
    # A timer is due with its tick, which is up to one precision behind its time.
    due_ms = max(now_ms - store.engine.timers.precision_ms, 0)
    pending = store.pending([0, due_ms + 1])
    overdue = pending.counts[0]
    lateness_ms = max(now_ms - pending.earliest_ms, 0) if overdue and pending.earliest_ms is not None else 0
    problems = [] if failure is None else [f"the last tick failed, and is tried again: {failure}"]
    problems += map(str, pauses_of(store.engine.pops.notes()))
    if lateness_ms >= LATE_MS:
        problems.append(f"{overdue:,} timers are overdue, the first one by {lateness_ms / 1000:,.0f} s")
    groups = [GroupHealth(each.group, each.topic, store.lag(each.topic, each.group)) for each in store.groups.subscriptions()]
    return Health(not problems, tuple(problems), pending.total, overdue, lateness_ms, tuple(groups))
