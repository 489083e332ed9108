"""Search of the hand-over model: every state within small bounds, or random walks within larger ones; see docs/handover.md.

Run it from the top of the repository::

    python -m tests.model.handover_model                      # the protocol as it is
    python -m tests.model.handover_model --set crashes=1 --set cancels=1
    python -m tests.model.handover_model --variant E1 --variant J
    python -m tests.model.handover_model --all --jobs 2       # every variant; about six minutes
    python -m tests.model.handover_model --list

What is searched is protocol.py; the exit code is 1 when a variant does not end as VARIANTS says.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from .cursor_schemes import Stairs
from .protocol import Model, Settings, State, Violation

WALK_STEPS = 60
_WALK_WEIGHTS = {"open": 8, "due": 8, "apply": 8, "forget": 8, "pops.sync": 8, "nothing": 8, "crash": 1}
_OTHER_WEIGHT = 3


class Outcome(NamedTuple):
    """What a run found.

    ``trace`` holds the steps to a violation and, as last line, the violation; None when there is none. ``deepest`` is the longest cursor.
    """

    states: int
    trace: list[str] | None
    complete: bool
    seconds: float
    deepest: int

    @property
    def violation(self) -> str:
        """The broken clause in one line; empty when none is broken."""
        return self.trace[-1] if self.trace else ""


def explore(settings: Settings) -> Outcome:
    """Search all states breadth first, so that a violation comes with a shortest trace, or take ``settings.walks`` random walks."""
    model = Model(settings)
    return _walks(model) if settings.walks else _search(model)


def _search(model: Model) -> Outcome:
    started = time.monotonic()
    depth = _Depth(model)
    start = model.start()
    came_from: dict[object, tuple[object, str] | None] = {model.canonical(start): None}
    queue = deque([(start, model.canonical(start), "")])

    def outcome(trace: list[str] | None = None, *, complete: bool = True) -> Outcome:
        return Outcome(len(came_from), trace, complete, time.monotonic() - started, depth.deepest)

    while queue:
        st, key, label = queue.popleft()
        depth.note(st)
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


def _walks(model: Model) -> Outcome:
    """Random walks, weighted so that ticks get somewhere and crashes stay rare; ``states`` counts different ones."""
    started = time.monotonic()
    depth = _Depth(model)
    rng = random.Random(model.settings.walk_seed)
    seen: set[int] = set()

    def outcome(trace: list[str] | None = None) -> Outcome:
        return Outcome(len(seen), trace, True, time.monotonic() - started, depth.deepest)

    for _ in range(model.settings.walks):
        st = model.start()
        steps: list[str] = []
        try:
            for _ in range(WALK_STEPS):
                kinds: dict[str, list[tuple[str, State]]] = {}
                for label, after in model.successors(st):
                    kinds.setdefault(_kind(label), []).append((label, after))
                if not kinds:
                    break
                weights = [_WALK_WEIGHTS.get(kind, _OTHER_WEIGHT) for kind in kinds]
                label, st = rng.choice(rng.choices(list(kinds.values()), weights)[0])
                steps.append(label)
                seen.add(hash(model.canonical(st)))
                depth.note(st)
                if _worth_judging(st, label):
                    model.drain(st)
        except Violation as violation:
            return outcome([*steps, *violation.steps, str(violation)])
    return outcome()


def _kind(label: str) -> str:
    return label.partition(" ")[0].rstrip(":;").partition("(")[0]


def _worth_judging(st: State, label: str) -> bool:
    """A tick's steps are deterministic, and a drain starts with the clock: judging idle and crashed states is enough."""
    return st.step.at in ("idle", "down") and not label.startswith("clock")


class _Depth:
    """The longest staircase that was met."""

    def __init__(self, model: Model) -> None:
        self.deepest = 0
        self._counts = isinstance(model.scheme, Stairs)

    def note(self, st: State) -> None:
        if st.pops and self._counts:
            self.deepest = max(self.deepest, len(st.pops[-1].cursor))


# ---------------------------------------------------------------- variants


class Variant(NamedTuple):
    """One protocol with its bounds, and the clause that it breaks; None when it breaks none."""

    title: str
    breaks: str | None
    settings: Settings

    def within(self, **bounds: int) -> Settings:
        """Return the settings under other bounds."""
        return msgspec.structs.replace(self.settings, **bounds)


def _wrong(clause: str, title: str, **settings: object) -> Variant:
    return Variant(title, clause, msgspec.convert(settings, Settings))


def _right(title: str, **settings: object) -> Variant:
    return Variant(title, None, msgspec.convert(settings, Settings))


_WIDE = {"messages": 4, "ticks": 4, "set_backs": 2, "cancels": 4, "limit": 2, "walks": 10_000}

VARIANTS: dict[str, Variant] = {
    # The protocol, and other ways to write it that hold as well.
    "A": _right("the protocol, 2 crashes, 1 set-back", max_states=2_000_000),
    "A1": _right("the protocol, 2 set-backs, 1 crash", set_backs=2, crashes=1, cancels=1),
    "A2": _right("the protocol, lost puts are sent again", resend=True, cancels=1),
    "A3": _right("the protocol, 3 messages, batches of 2", limit=2, messages=3, ticks=2, crashes=1, cancels=1),
    "A4": _right("due stops before what is not durable, no timers.sync", presync="stop", crashes=1, cancels=1),
    "A5": _right("one log with the seal in it, no timers.sync", one_log=True, presync="never", cancels=1, crashes=1),
    "A6": _wrong("C4", "one log, seal in memory only", one_log=True, presync="never", seal_record=False),
    "A7": _right("the protocol, walks", **_WIDE),
    "A8": _right("one log without timers.sync, lost puts are sent again, walks", one_log=True, presync="never", resend=True, **_WIDE),
    "A9": _right("timers.sync leaves out seal records at the end", presync="but-seals", crashes=1, cancels=1),
    "A10": _right("a crash undoes every forget", forget_synced=False, crashes=1, cancels=1),
    "A11": _right("timers.sync only when the batch rests on something that is not durable", presync="rests-on", crashes=1, cancels=1),
    "A12": _right("timers.sync before every apply", presync="always", crashes=1, cancels=1),
    # One (tick, seq) pair as cursor.
    "B1": _wrong("C1", "single cursor, a late put goes into the last closed tick", scheme="single"),
    "B2": _right(
        "single cursor, a late put goes behind it, T1 judged by the seal",
        scheme="single",
        late="next",
        judge_early=False,
        crashes=1,
        cancels=0,
    ),
    "B3": _right("single cursor, the clock is never set back", scheme="single", set_backs=0, crashes=1, cancels=1),
    "B4": _wrong("T2", "single cursor, a late put keeps its tick", scheme="single", late="own", cancels=0, judge_early=False),
    "B5": _wrong("T1", "single cursor, a late put goes into the last closed tick, no cancels", scheme="single", cancels=0),
    # A stack of sorted logs.
    "C1": _wrong("H1", "levels, absent = nothing handed over", scheme="levels", set_backs=2, judge_early=False),
    "C2": _wrong("T2", "levels, absent = all handed over", scheme="levels", set_backs=2, judge_early=False, absent="done"),
    "C3": _wrong("T2", "levels, entries kept for ever", scheme="levels", set_backs=2, judge_early=False, absent="keep"),
    "C4": _wrong("C4", "unique levels, absent = all handed over", scheme="unique-levels", set_backs=2, judge_early=False, crashes=1),
    "C5": _wrong(
        "C4", "unique levels, entries kept for ever", scheme="unique-levels", set_backs=2, judge_early=False, absent="keep", crashes=1
    ),
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
    "G3": _right("corners hold the largest seq of the batch", next_seq="last", cancels=0),
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


def report(name: str, title: str, outcome: Outcome) -> str:
    """Return the outcome in words, a violation with its numbered steps."""
    head = f"{name}: {title}: {outcome.states} states, {outcome.seconds:.1f} s, longest cursor {outcome.deepest}"
    if outcome.trace is None:
        return f"{head}: no violation" + ("" if outcome.complete else " up to the state limit")
    steps = [f"  {number:2}. {step}" for number, step in enumerate(outcome.trace[:-1], 1)]
    return "\n".join([f"{head}: VIOLATION", *steps, f"      {outcome.violation}"])


def _parsed(pairs: list[str]) -> dict[str, object]:
    known = set(Settings.__struct_fields__)
    changes: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in known:
            raise SystemExit(f"--set takes NAME=VALUE with one of {', '.join(sorted(known))}; got {pair!r}")
        changes[name] = {"true": True, "false": False}.get(text.lower(), text)
    return changes


def _changed(settings: Settings, changes: dict[str, object]) -> Settings:
    try:
        return msgspec.convert({**msgspec.structs.asdict(settings), **changes}, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SystemExit(f"--set: {error}") from error


def _run(job: tuple[str, Variant]) -> tuple[str, bool]:
    name, variant = job
    outcome = explore(variant.settings)
    as_expected = outcome.violation.startswith(f"{variant.breaks}:") if variant.breaks else not outcome.violation
    note = "" if as_expected else f"\n      expected: {variant.breaks or 'no violation'}"
    return report(name, variant.title, outcome) + note, as_expected


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.handover_model", description="Search the model of the hand-over.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--variant", action="append", default=[], metavar="ID", help="variants of this id, or of this letter; may be repeated"
    )
    what.add_argument("--all", action="store_true", help="every variant")
    what.add_argument("--list", action="store_true", help="list the variants and stop")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="changes", help="change a setting; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=1, help="variants that run side by side")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:4} {variant.breaks or 'ok':3} {variant.title}" for name, variant in VARIANTS.items()))
        return 0
    chosen = {n: v for n, v in VARIANTS.items() if options.all or n in options.variant or n[0] in options.variant}
    if not chosen and options.variant:
        parser.error(f"no variant is called {' or '.join(options.variant)}; --list shows them")
    chosen = chosen or {"model": _right("recommended")}
    changes = _parsed(options.changes)
    jobs = [(name, variant._replace(settings=_changed(variant.settings, changes))) for name, variant in chosen.items()]
    if options.jobs == 1:
        return _print_all(map(_run, jobs))
    with multiprocessing.Pool(options.jobs, maxtasksperchild=1) as pool:
        return _print_all(pool.imap(_run, jobs))


def _print_all(runs: Iterable[tuple[str, bool]]) -> int:
    all_as_expected = True
    for text, as_expected in runs:
        print(text, flush=True)
        all_as_expected &= as_expected
    return 0 if all_as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
