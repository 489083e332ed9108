"""Search of the hand-over model: every state within small bounds, or walks by chance within larger ones; see docs/handover.md.

Run it from the top of the repository::

    python -m tests.model.handover_model A         # the protocol as it is
    python -m tests.model.handover_model E1 J      # variants by their ids, or by the letters that these begin with
    python -m tests.model.handover_model           # every variant; about ten minutes

What is searched is protocol.py; walks are taken by the tests alone. The exit code is 1 when a variant does not end as VARIANTS says.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from .protocol import Model, Settings, State, Violation


class Outcome(NamedTuple):
    """What a run found.

    ``trace`` holds the steps to a violation and, as last line, the violation; None when there is none. ``deepest`` is the longest cursor.
    """

    states: int
    trace: list[str] | None
    complete: bool
    deepest: int

    @property
    def violation(self) -> str:
        """The broken clause in one line; empty when none is broken."""
        return self.trace[-1] if self.trace else ""


def explore(settings: Settings) -> Outcome:
    """Search all states breadth first, so that a violation comes with a shortest trace."""
    model = Model(settings)
    deepest = 0
    start = model.start()
    came_from: dict[object, tuple[object, str] | None] = {model.canonical(start): None}
    queue = deque([(start, model.canonical(start), "")])

    def outcome(trace: list[str] | None = None, *, complete: bool = True) -> Outcome:
        return Outcome(len(came_from), trace, complete, deepest)

    while queue:
        st, key, label = queue.popleft()
        deepest = max(deepest, _length(st))
        try:
            if _worth_judging(st, label):
                model.drain(st)
            for label, after in model.successors(st):
                after_key = model.canonical(after)
                if after_key not in came_from:
                    came_from[after_key] = (key, label)
                    queue.append((after, after_key, label))
        except Violation as violation:
            return outcome([*_steps_to(came_from, key), *violation.steps, str(violation)])
        if len(came_from) > model.settings.max_states:
            return outcome(complete=False)
    return outcome()


def _steps_to(came_from: Mapping[object, tuple[object, str] | None], key: object) -> Iterable[str]:
    steps: list[str] = []
    while (origin := came_from[key]) is not None:
        key, label = origin
        steps.append(label)
    return reversed(steps)


def walk(settings: Settings, choose: Callable[[list[str]], str], steps: int = 60) -> None:
    """Take steps of kinds that are chosen, such as a put or a crash, and of a label of that kind.

    Raises:
        Violation: a clause is broken.
    """
    model = Model(settings)
    state = model.start()
    for _ in range(steps):
        kinds: dict[str, dict[str, State]] = {}
        for label, after in model.successors(state):
            kinds.setdefault(label.partition(" ")[0].partition("(")[0], {})[label] = after
        if not kinds:
            return
        # Crashes are rare, so that ticks get somewhere.
        kind = kinds[choose([each for each in sorted(kinds) for _ in range(1 if each == "crash:" else 4)])]
        label = choose(sorted(kind))
        state = kind[label]
        if _worth_judging(state, label):
            model.drain(state)


def _worth_judging(st: State, label: str) -> bool:
    """A tick's steps are deterministic, and a drain starts with the clock: judging idle and crashed states is enough."""
    return st.step.at in ("idle", "down") and not label.startswith("clock")


def _length(st: State) -> int:
    """The corners of the cursor."""
    return len(st.pops[-1].cursor) if st.pops else 0


# ---------------------------------------------------------------- variants


class Variant(NamedTuple):
    """One protocol with its bounds, and the clause that it breaks; None when it breaks none."""

    title: str
    breaks: str | None
    settings: Settings

    @property
    def is_walked(self) -> bool:
        """Whether there are too many states for a search."""
        return self.settings.messages > 3

    def within(self, **bounds: int) -> Settings:
        """Return the settings under other bounds."""
        return msgspec.structs.replace(self.settings, **bounds)

    def is_as_expected(self, outcome: Outcome) -> bool:
        """Say whether a search broke the clause that it should, or none."""
        return outcome.violation.startswith(f"{self.breaks}:") if self.breaks else not outcome.violation


def _wrong(clause: str, title: str, **settings: object) -> Variant:
    return Variant(title, clause, msgspec.convert(settings, Settings))


def _right(title: str, **settings: object) -> Variant:
    return Variant(title, None, msgspec.convert(settings, Settings))


_WIDE = {"messages": 4, "ticks": 4, "set_backs": 2, "cancels": 4, "limit": 2}

VARIANTS: dict[str, Variant] = {
    # The protocol, and other ways to write it that hold as well.
    "A": _right("the protocol, 2 crashes, 1 set-back", max_states=2_000_000),
    "A1": _right("the protocol, 2 set-backs, 1 crash", set_backs=2, crashes=1, cancels=1),
    "A2": _right("the protocol, lost puts are sent again", resend=True, cancels=1),
    "A3": _right("the protocol, 3 messages, batches of 2", limit=2, messages=3, ticks=2, crashes=1, cancels=1),
    "A5": _right("one log with the seal in it, no timers.sync", one_log=True, presync="never", cancels=1, crashes=1),
    "A6": _wrong("C4", "one log, seal in memory only", one_log=True, presync="never", seal_record=False),
    "A7": _right("the protocol, walks", **_WIDE),
    "A8": _right("one log without timers.sync, lost puts are sent again, walks", one_log=True, presync="never", resend=True, **_WIDE),
    "A10": _right("a crash undoes every forget", forget_synced=False, crashes=1, cancels=1),
    "A11": _right("timers.sync only when the batch rests on something that is not durable", presync="rests-on", crashes=1, cancels=1),
    # One (tick, seq) pair as cursor.
    "B1": _wrong("T2", "single cursor", cursor="pair", cancels=0),
    # The timers' sync.
    "D1": _wrong("T2", "apply before timers.sync", presync="never"),
    "D2": _wrong("H1", "apply before timers.sync, lost puts are sent again", presync="never", resend=True, cancels=0),
    "D3": _right("apply before timers.sync, no cancels, nothing sent again", presync="never", cancels=0),
    # The seal.
    "E1": _wrong("C4", "seal in memory only", seal_record=False),
    "E2": _wrong("C4", "seal in memory only, the clock is never set back", seal_record=False, set_backs=0),
    "E3": _wrong("C4", "the answer ALREADY_DELIVERED does not wait for the seal record", answer_synced=False),
    "E4": _right("a seal at open", seal_at_open=True, crashes=1, cancels=1),
    "E5": _right("a seal at open, walks", seal_at_open=True, **_WIDE),
    "E6": _wrong("C4", "seal in memory only, a seal at open", seal_record=False, seal_at_open=True),
    "E7": _right("seal in memory only, a seal at open, the clock is never set back", seal_record=False, seal_at_open=True, set_backs=0),
    # Handles.
    "F1": _wrong("C6", "a handle is the bare seq", handle="seq"),
    "F2": _wrong("C3", "ALREADY_DELIVERED worked out from the handle", answer="handle"),
    # The next seq.
    "G1": _wrong("T2", "next seq from the timer log alone, apply before timers.sync", presync="never", next_seq="log", cancels=0),
    "G2": _right("next seq from the timer log alone", next_seq="log", crashes=1, cancels=1),
    # What due gives, what forget reclaims, when a cancel is too late.
    "H1": _wrong("T1", "due gives all that is sealed", hold=False),
    "I1": _wrong("T2", "forget by the volatile cursor", forget="volatile", cancels=0),
    "I2": _wrong("T2", "forget by (tick, seq) <= the first corner", forget="lexical", cancels=0),
    "I3": _wrong("C1", "a cancel wins until the apply", cut="apply"),
    # Corners that are dropped.
    "J1": _wrong("H1", "a corner is dropped at once", max_corners=1, drop_checked=False, cancels=0),
    "J2": _right("a corner is dropped after a durable forget", max_corners=1, cancels=0, set_backs=2),
    "J3": _wrong("H1", "a corner is dropped after a forget without a sync", max_corners=1, cancels=0, set_backs=2, forget_synced=False),
    "J4": _right("a corner is dropped after a durable forget, cancels", max_corners=1, cancels=1, crashes=1),
    "J5": _right("a corner is dropped after a durable forget, walks", max_corners=1, **{**_WIDE, "set_backs": 3}),
}


# ---------------------------------------------------------------- command line


def report(name: str, outcome: Outcome) -> str:
    """Return the outcome in words, a violation with its numbered steps, and what was expected if it is another one."""
    variant = VARIANTS[name]
    head = f"{name}: {variant.title}: {outcome.states} states, longest cursor {outcome.deepest}"
    if outcome.trace is None:
        lines = [f"{head}: no violation" + ("" if outcome.complete else " up to the state limit")]
    else:
        steps = [f"  {number:2}. {step}" for number, step in enumerate(outcome.trace[:-1], 1)]
        lines = [f"{head}: VIOLATION", *steps, f"      {outcome.violation}"]
    if not variant.is_as_expected(outcome):
        lines.append(f"      expected: {variant.breaks or 'no violation'}")
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """Search the variants of these ids, or with ids that begin with these letters, all when none is given; return the exit code."""
    chosen = [name for name, variant in VARIANTS.items() if (not names or name in names or name[0] in names) and not variant.is_walked]
    is_all_as_expected = bool(chosen)
    for name in chosen:
        outcome = explore(VARIANTS[name].settings)
        print(report(name, outcome), flush=True)
        is_all_as_expected &= VARIANTS[name].is_as_expected(outcome)
    return 0 if is_all_as_expected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
