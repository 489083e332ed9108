"""Taking the power from a store at every call that it makes to the disk."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from plugins.wheel.tests.power.book import Event, window
from plugins.wheel.tests.power.draining import Drain, Shown
from plugins.wheel.tests.power.life import START_MS, Life, options
from plugins.wheel.tests.power.recording import Trace, recorded
from plugins.wheel.tests.power.small_store import remove, scratch, small_wheel
from plugins.wheel.tests.power.workloads import Workload
from rmqstore.contract import EngineOptions
from rmqstore.errors import RmqstoreError
from rmqstore_conformance.power.content import Image, digest_of, read_image, write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.power.volume import Call, Volume
from rmqstore_wheel import check_point
from rmqstore_wheel.engine import WheelEngine

_RARE: Final = {"creation", "roll", "reclaim"}
_MORE: Final = 2
"""So many times as many states are taken of kinds of calls that go to the disk seldom."""


class State(NamedTuple):
    """A directory that a power loss behind ``cut`` calls may leave, and of which kinds the call was that it interrupted."""

    number: int
    cut: int
    kinds: frozenset[str]
    image: Image


def settings_of(workload: Workload) -> EngineOptions:
    """Return what a workload's engine is opened with; where messages go by their age, so do the answers to cancels."""
    memory = {"cancel_memory_ms": workload.retention_ms} if workload.retention_ms else {}
    return options(workload.precision_ms, retention_ms=workload.retention_ms, **memory)


class Run:
    """A workload that was run to its end: the calls that it made to the disk, and what it was told."""

    def __init__(self, workload: Workload, name: str = "", within: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self.workload = workload
        self.name = name
        self.settings = settings_of(workload)
        with scratch() as root, small_wheel(), within():
            trace = Trace(root)
            with recorded(trace) as disk:
                life = Life(WheelEngine(disk, workload.sizes), root, self.settings, lambda: len(trace))
                workload.run(life)
                life.close()
            self.left = {path: content for path, content in read_image(root).items() if Path(path).name != "LOCK"}
        self.calls: list[Call] = trace.calls
        self.events = life.events
        self.handles = life.handles
        self._paths = {call.file: call.path for call in self.calls if call.kind in ("make", "open")}
        self._kinds = [frozenset(self._kinds_of(event)) for event in self.events]
        self._known = [set(event.arguments[1]) if event.effect == "put" else set() for event in self.events]

    def _kinds_of(self, event: Event) -> Iterator[str]:
        made = [call for call in self.calls[event.begin : event.end] if call.kind == "make"]
        written = {self._paths[call.file] for call in self.calls[event.begin : event.end] if call.kind == "write"}
        is_check_point = any(call.path.endswith("checkpoint.new") for call in made)
        if event.kind != "check point" or is_check_point:
            yield event.kind
        if is_check_point:
            yield "check point"
        if any(call.kind == "remove" and "/commitlog/" not in call.path for call in self.calls[event.begin : event.end]):
            yield "reclaim"
        if event.kind != "creation" and any("/commitlog/" in call.path for call in made):
            yield "file roll-over"
        if event.kind == "tick" and any("/timerlog/" in path for path in written):
            yield "roll"

    def event_at(self, cut: int) -> int:
        """Return the number of the event that is interrupted."""
        return max((number for number, event in enumerate(self.events) if event.begin < cut), default=0)

    def states(self, per_cut: int, seed: int = 0, *, stride: int = 1, syncs: bool = True) -> Iterator[State]:
        """Yield states: for every call to the disk the plainest ones, and random others, ``per_cut`` of them or fewer."""
        chance = random.Random(f"{self.name} {seed}")
        volume = Volume(syncs=syncs)
        seen: set[tuple[bytes, int, int]] = set()
        for call in self.calls:
            volume.do(call)
            if volume.calls % stride:
                continue
            number = self.event_at(volume.calls)
            fates = fates_of(volume, self.events[number].begin, chance)
            wanted = per_cut * (_MORE if per_cut > 1 and self._kinds[number] & _RARE else 1)
            head, rest = fates[: min(2, wanted)], fates[2:]
            images = (volume.image(each) for each in head + chance.sample(rest, len(rest)))
            taken = 0
            for image in images:
                key = (digest_of(image), *window(self.events, volume.calls))
                if key not in seen:
                    seen.add(key)
                    yield State(len(seen), volume.calls, self._kinds[number], image)
                    taken += 1
                    if taken >= wanted:
                        break

    def drain_at(self, cut: int, now_ms: int | None = None) -> Drain:
        """Return how a state is drained."""
        number = self.event_at(cut)
        now_ms = self.events[number].now_ms if now_ms is None else now_ms
        most = window(self.events, cut)[1]
        known = set().union(*self._known[:most])
        return Drain(
            self.settings,
            self.workload.places,
            now_ms,
            [time_ms for time_ms in (START_MS + each for each in self.workload.times_ms) if time_ms > now_ms],
            {} if self.workload.retention_ms else {name: handle for name, handle in self.handles.items() if name in known},
            sorted({mark for event in self.events if event.effect in ("put", "append") for mark in event.arguments[2]}),
        )

    def faults(self, cut: int, shown: Shown) -> list[str]:
        """Say what is wrong with what a store showed after a power loss; empty when some legal number of calls gives just that."""
        drain = self.drain_at(cut)
        least, most = window(self.events, cut)
        nearest: list[str] | None = None
        for number in range(least, most + 1):
            found = shown.differences(drain.expected(self.events[:number]))
            if not found:
                return []
            if nearest is None or len(found) < len(nearest):
                nearest = [f"calls: {number} of {least} to {most}", *found]
        return nearest or ["no calls at all"]

    def check_point_faults(self, cut: int, root: Path) -> list[str]:
        """Say so when no sound check point is left although one was finished (an open would read the whole log)."""
        finished = 0
        offsets: list[int] = []
        for event, kinds in zip(self.events, self._kinds, strict=True):
            if "check point" in kinds and event.end <= cut:
                finished += 1
        found = check_point.read_all(root / "db" / check_point.DIRECTORY)
        offsets = [each.offset for each in found]
        return [f"{finished} check points were finished, none is left"] if finished and not offsets else []


class Wrong(NamedTuple):
    """A state that did not show what it should."""

    workload: str
    state: State
    faults: list[str]

    def __str__(self) -> str:
        return f"{self.workload}, cut behind call {self.state.cut} ({', '.join(sorted(self.state.kinds))}): {'; '.join(self.faults)}"[:1500]


class Verdict:
    """What came out of looking at many states."""

    def __init__(self) -> None:
        self.states = 0
        self.kinds: Counter[str] = Counter()
        self.wrong: list[Wrong] = []
        self._begun = time.perf_counter()

    def __str__(self) -> str:
        spent = time.perf_counter() - self._begun
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))
        return f"{self.states} states in {spent:.0f} s, {self.states / spent:.0f} a second: {kinds}; {len(self.wrong)} wrong"


def judge(run: Run, states: Iterator[State], verdict: Verdict, *, stop_at: int = 20) -> None:
    """Open, drain and judge states."""
    with ExitStack() as stack:
        base = stack.enter_context(scratch())
        stack.enter_context(small_wheel())
        for number, state in enumerate(states):
            root = base / str(number)
            verdict.states += 1
            verdict.kinds.update(state.kinds)
            if faults := look(run, state, root):
                verdict.wrong.append(Wrong(run.name, state, faults))
                if len(verdict.wrong) >= stop_at:
                    return


def look(run: Run, state: State, root: Path) -> list[str]:
    """Return what is wrong with a state; its directory is made and removed."""
    write_image(root, state.image)
    try:
        faults = run.check_point_faults(state.cut, root)
        # Half of the stores are closed and opened once more.
        shown = run.drain_at(state.cut).of(WheelEngine(sizes=run.workload.sizes), root, again=state.number % 2 == 0)
    except (RmqstoreError, OSError, ValueError, LookupError, AssertionError, TypeError) as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        remove(root)
    return faults + run.faults(state.cut, shown)
