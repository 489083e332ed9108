"""Opening what a power loss left, and getting everything out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugins.wheel.tests.power.book import Event, Model, Popped
from plugins.wheel.tests.power.life import BATCH, abandon, open_store
from rmqstore.batch import MessageBatch
from rmqstore.contract import AckOutcome, Engine, EngineOptions, EngineSession, PopRequest, TimerHandle
from rmqstore.handover import HandOver
from rmqstore.message import PARKED_TOPIC, Message, dlq_topic

STEPS = 10_000
"""So many rounds of anything are taken to be endless."""

POP_MARK = b"pop"
"""How the marks begin that were given to the pops."""

Place = tuple[str, str]


@dataclass
class Shown:
    """What a store showed: timers at the open, what was popped at each time, what cancels said, which marks were known."""

    pending: dict[str, int] = field(default_factory=dict)
    popped: list[tuple[int, Place, Popped]] = field(default_factory=list)
    topics: dict[str, list[str]] = field(default_factory=dict)
    dead: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    marks: dict[bytes, bool] = field(default_factory=dict)
    parked: list[str] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def differences(self, other: Shown) -> list[str]:
        """Say what is not the same."""
        return [
            f"{name}: {ours} instead of {theirs}"
            for name, ours, theirs in ((name, getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
            if ours != theirs
        ]


@dataclass
class Drain:
    """How stores of one workload are drained: from ``now_ms`` on at each of some times.

    ``handles`` are cancelled in the end, ``marks`` given again; ``places`` are the topics and groups.
    """

    settings: EngineOptions
    places: Sequence[Place]
    now_ms: int
    times: Sequence[int]
    handles: dict[str, TimerHandle] = field(default_factory=dict)
    marks: Sequence[bytes] = ()

    def expected(self, events: Sequence[Event]) -> Shown:
        """Return what a store shows that holds these calls."""
        model = Model(self.places)
        for event in events:
            event.play(model)
        shown = Shown(pending=dict(model.pending))
        self._expect_taken(model, self.now_ms, shown)
        for time_ms in (self.now_ms, *self.times):
            model.due(time_ms)
            model.revive(time_ms)
            self._expect_taken(model, time_ms, shown)
        shown.topics = {topic: names[model.kept.get(topic, 0) :] for topic, names in model.topics.items()}
        shown.dead = {group: sorted(model.seats[topic, group].dead) for topic, group in self.places if model.seats[topic, group].dead}
        shown.answers = {name: model.answer(name) for name in self.handles}
        shown.marks = {mark: mark in model.marks for mark in self.marks}
        return shown

    def _expect_taken(self, model: Model, now_ms: int, shown: Shown) -> None:
        for place in self.places:
            if found := model.take(place):
                shown.popped.append((now_ms, place, found))

    def of(self, engine: Engine, path: Path, *, again: bool = True) -> Shown:
        """Open a directory and get everything out of it; ``again``: close it, and look at it once more."""
        shown = Shown()
        store = open_store(engine, path, self.settings)
        try:
            self._look(store, shown)
            self._empty(store, shown)
            self._finish(store, shown)
            if again:
                store.close()
        finally:
            abandon(store)
        if again:
            self._look_again(engine, path, shown)
        return shown

    def _look(self, store: EngineSession, shown: Shown) -> None:
        timers, pops = store.timers(), store.pops()
        shown.verified += timers.verify() + pops.verify()
        after = None
        for _ in range(STEPS):
            page = timers.scan(0, 2**62, after, 16)
            for each in page.timers:
                name = each.message.message_id or ""
                if name in shown.pending:
                    shown.faults.append(f"{name} is pending twice")
                shown.pending[name] = each.handle.tick
                if timers.get(each.handle) != each:
                    shown.faults.append(f"{name} is not found by its handle")
            if (after := page.next_after) is None:
                break
        else:
            shown.faults.append("a scan of the timers has no end")
        if timers.pending().total != len(shown.pending):
            shown.faults.append(f"{timers.pending().total} timers are pending, a scan finds {len(shown.pending)}")

    def _empty(self, store: EngineSession, shown: Shown) -> None:
        timers, pops = store.timers(), store.pops()
        hand_over = HandOver(timers, pops, one_log=store.one_log, limit=BATCH, sync=True)
        self._take(store, self.now_ms, shown)
        for time_ms in (self.now_ms, *self.times):
            for steps, _ in enumerate(hand_over.steps(time_ms)):
                if steps > STEPS:
                    shown.faults.append(f"the hand-over at {time_ms} has no end")
                    return
            pops.revive(time_ms, 1024)
            pops.sync()
            timers.forget(pops.durable_cursor())
            self._take(store, time_ms, shown)

    def _take(self, store: EngineSession, now_ms: int, shown: Shown) -> None:
        pops = store.pops()
        for topic, group in self.places:
            taken: Popped = []
            idle = 0
            for _ in range(STEPS):
                result, _ = pops.pop(PopRequest(topic, group, 1024, 60_000), now_ms)
                idle = 0 if len(result.messages) else idle + 1
                if idle == 2:
                    break
                found = result.messages.messages()
                taken += [(each.message_id, each.attempt) for each in found]
                shown.faults += [f"{each.message_id} has another body" for each in found if not each.body.endswith(_of(each.message_id))]
                outcomes, _ = pops.ack(result.messages.receipts(), now_ms)
                if any(outcome is not AckOutcome.ACKED for outcome in outcomes):
                    shown.faults.append(f"acks say {outcomes}")
            else:
                shown.faults.append(f"pops of {topic} by {group} have no end")
            if taken:
                shown.popped.append((now_ms, (topic, group), sorted(taken)))

    def _finish(self, store: EngineSession, shown: Shown) -> None:
        """Take down what is left, and what answers are given."""
        timers, pops = store.timers(), store.pops()
        shown.verified += timers.verify() + pops.verify()
        if timers.pending().total:
            shown.faults.append(f"{timers.pending().total} timers are pending after the drain")
        outcomes, _ = timers.cancel(list(self.handles.values()), self.times[-1])
        shown.answers = {name: outcome.name for name, outcome in zip(self.handles, outcomes, strict=True)}
        for topic in dict.fromkeys(topic for topic, _ in self.places):
            shown.topics[topic] = self._names(store, topic)
        for _, group in self.places:
            if dead := self._names(store, dlq_topic(group)):
                shown.dead[group] = sorted(dead)
        shown.parked = self._names(store, PARKED_TOPIC)
        for mark in self.marks:
            if mark.startswith(POP_MARK):
                result, ticket = pops.append(MessageBatch.of([Message("probe", b"p")]), self.times[-1], [mark])
                shown.marks[mark] = result.status.name == "REPEATED"
            else:
                receipts, ticket = timers.put(MessageBatch.of([Message("probe", b"p", deliver_at_ms=2**50)]), self.times[-1], [mark])
                shown.marks[mark] = receipts.status.name == "REPEATED"
            timers.sync(ticket)

    def _look_again(self, engine: Engine, path: Path, shown: Shown) -> None:
        """Look at the drained store after another open."""
        store = open_store(engine, path, self.settings)
        try:
            timers, pops = store.timers(), store.pops()
            shown.verified += timers.verify() + pops.verify()
            fresh = sum(not known for mark, known in shown.marks.items() if not mark.startswith(POP_MARK))
            if timers.pending().total != fresh:
                shown.faults.append(f"{timers.pending().total} timers are pending after the drain and another open, not {fresh}")
            before = len(shown.popped)
            self._take(store, self.times[-1], shown)
            if len(shown.popped) != before:
                shown.faults.append(f"popped after the drain: {shown.popped[before:]}")
            if any(self._names(store, topic) != names for topic, names in shown.topics.items()):
                shown.faults.append("topics changed over another open")
        finally:
            abandon(store)

    @staticmethod
    def _names(store: EngineSession, topic: str) -> list[str]:
        found = store.pops().topic(topic)
        if found is None:
            return []
        return [each.message_id or "" for each in store.pops().read(topic, 0, found.min_offsets[0], 100_000).messages]


def _of(name: str) -> bytes:
    return b" of " + name.encode()
