"""Answers and the disk: no call answers before all that its answer rests on is durable, whatever else syncs at that time.

While one call stands at some place of its sync, another one runs to its end. What the other one did must be durable then. Also what the
first one did on the side that was asked, if the answer rests on that: if it is another one than without the first call, or if the call had
nothing to write and has something without. A cancel that says ALREADY_DELIVERED rests on the seal of the timer side, and not on the message
that a tick appends behind it. Reads, a pop that gives nothing, a tick that moves nothing, and a refusal say nothing about the disk.

What is durable is what the engine says, and more: where an engine's syncs are seen to reach the system, one of them must have begun behind
the begin of the call that wrote.
"""

from __future__ import annotations

import random
import re

from rmqstore_conformance.racing.playing import Answer, Player, Run, orders_of
from rmqstore_conformance.racing.turns import Plan

_SAYS_NOTHING = re.compile(r"\[\]|0|\(0, 0\)|\('\w+Error', .*\)", re.DOTALL)


def waits_for_the_disk(player: Player, calls: tuple[str, str], chance: random.Random, places: int) -> None:
    """Let each of two calls come while the other one is at the begin of its sync, or at one of so many other places of it.

    Raises:
        AssertionError: one answered too early.
    """
    alone = {call: player.alone(call) for call in calls}
    for order in orders_of(calls):
        first, second = order
        run = player.played(calls, Plan(order), looks=False)
        for place in _places_of_syncs(run, first, chance, places):
            run = player.played(calls, Plan(order, (place,)), looks=False)
            answer = run.answers[second]
            if alone[calls[second]].syncs and _has_written(answer):
                is_covered = any(began > answer.wrote for began in answer.syncs)
                assert is_covered, f"{calls[second]!r} answers, and nothing was synced since it wrote:\n{run.schedule}"
            if not _rests_on_others(answer, alone[calls[second]]):
                continue
            others = [(side, at) for each in answer.others for side, at in each.items() if side in answer.tickets]
            early = [f"{side} {at}" for side, at in others if at > answer.durable[side]]
            assert not early, (
                f"{calls[second]!r} answers {answer.text!r}, which rests on {calls[first]!r}, before that is durable "
                f"({', '.join(early)} of {answer.durable}):\n{run.schedule}"
            )


def _has_written(answer: Answer) -> bool:
    """Say whether a call wrote something itself, that was not durable at once: it got a position that no other call has."""
    others = [at for each in answer.others for at in each.values()]
    return answer.wrote >= 0 and max(answer.tickets.values()) > max(others, default=0)


def _rests_on_others(answer: Answer, alone: Answer) -> bool:
    """Say whether a call would have answered otherwise, or have written something, if the other one had not come first."""
    if _SAYS_NOTHING.fullmatch(answer.text):
        return False
    return answer.text != alone.text or (any(alone.tickets.values()) and not any(answer.tickets.values()))


def _places_of_syncs(run: Run, thread: int, chance: random.Random, count: int) -> list[int]:
    """Choose lines of a thread's syncs, each once."""
    found: dict[tuple[object, int], int] = {}
    for at, step in enumerate(run.steps, 1):
        if step.thread == thread and step.call >= 0 and run.calls[step.call].name == "sync":
            found.setdefault((step.code, step.line), at)
    begin, *others = sorted(found.values()) or [0]
    return [begin, *chance.sample(others, min(count, len(others)))]
