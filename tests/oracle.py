"""What a store must answer, modelled with lists and dicts; it shares nothing with any engine.

Where the contract leaves freedom (which queue a pop takes first, how far a filtered pop looks beyond its last message, the order in which
leases of one tick are revived) the model takes over what the store did after checking that it was allowed; elsewhere it is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rmqstore import AckOutcome, CancelOutcome, ChangeOutcome, Lag, Message, PoppedMessage, ReleaseOutcome

RETRY = -1
"""The source of a lease that came from the retry topic; other sources are queue numbers."""

Place = tuple[str, str]
"""(topic, group)."""


@dataclass
class Timer:
    """One put: ``due`` is its deliver time, or its tick when it was sent without one."""

    seq: int
    tick: int
    due: int
    message: Message
    sealed: bool = False
    cancelled: bool = False
    delivered: bool = False

    @property
    def pending(self) -> bool:
        return not (self.cancelled or self.delivered)


@dataclass
class Entry:
    """One message in a queue or in a retry topic, with the deliveries that were counted before."""

    message: Message
    counted: int = 0
    first_pop_ms: int | None = None


@dataclass
class Held:
    """One lease; ``ended`` is None while it runs."""

    entry: Entry
    topic: str
    group: str
    source: int
    expiry: int
    ended: str | None = None


@dataclass
class Standing:
    """Where a group stands on a topic."""

    offsets: dict[int, int] = field(default_factory=dict)
    retry: list[Entry] = field(default_factory=list)
    retry_offset: int = 0
    dead: int = 0


class Oracle:
    """The state of one store, as its users may see it."""

    def __init__(
        self,
        *,
        precision_ms: int = 1000,
        max_retries: int = 16,
        max_in_flight: int = 0,
        limit: int = 4096,
        cancel_memory_ms: int = 86_400_000,
        outcome_memory_ms: int = 600_000,
    ) -> None:
        self.precision_ms = precision_ms
        self.max_retries = max_retries
        self.max_in_flight = max_in_flight
        self.limit = limit
        self.cancel_memory_ms = cancel_memory_ms
        self.outcome_memory_ms = outcome_memory_ms
        self.timers: list[Timer] = []
        self.queues: dict[str, list[list[Entry]]] = {}
        self.standings: dict[Place, Standing] = {}
        self.leases: dict[str, Held] = {}
        self.attempts: dict[tuple[str, str, str], tuple[int, list[str]]] = {}
        self.deliveries: Counter[tuple[str, str]] = Counter()
        self.returns: Counter[tuple[str, str]] = Counter()
        self.until_ms = -1
        self.latest_ms = -1

    # ------------------------------------------------------------ timers

    def create_topic(self, name: str, queues: int) -> None:
        known = self.queues.setdefault(name, [])
        known.extend([] for _ in range(queues - len(known)))

    def tick_of(self, deliver_at_ms: int | None, now: int) -> int:
        due = now if deliver_at_ms is None else deliver_at_ms
        rounded = -(-due // self.precision_ms) * self.precision_ms
        return min(rounded, now) if due <= now else rounded

    def send(self, messages: Sequence[Message], now: int) -> list[Timer] | None:
        """Take a batch: as timers when any row is in the future, else straight into the queues (then None)."""
        if not any(each.deliver_at_ms is not None and each.deliver_at_ms > now for each in messages):
            for each in messages:
                self._enqueue(each)
            return None
        made = []
        for each in messages:
            tick = self.tick_of(each.deliver_at_ms, now)
            due = tick if each.deliver_at_ms is None else each.deliver_at_ms
            made.append(Timer(len(self.timers), tick, due, each))
            self.timers.append(made[-1])
        return made

    def _enqueue(self, message: Message) -> None:
        self.create_topic(message.topic, (message.queue_id or 0) + 1)
        self.queues[message.topic][message.queue_id or 0].append(Entry(message))

    def cancel(self, timer: Timer) -> set[CancelOutcome]:
        """Cancel, and return the answers that are true; more than one only when the store may have forgotten."""
        forgettable = self.latest_ms >= timer.due + self.cancel_memory_ms
        if timer.delivered or (timer.sealed and not timer.cancelled):
            answers = {CancelOutcome.ALREADY_DELIVERED}
            return answers | {CancelOutcome.UNKNOWN} if timer.delivered and forgettable else answers
        if timer.cancelled:
            return {CancelOutcome.CANCELLED, CancelOutcome.UNKNOWN} if forgettable else {CancelOutcome.CANCELLED}
        timer.cancelled = True
        return {CancelOutcome.CANCELLED}

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel every pending timer of (topic, key); returns how many can be."""
        found = [t for t in self.timers if t.pending and not t.sealed and t.message.topic == topic and key in t.message.keys]
        for timer in found:
            timer.cancelled = True
        return len(found)

    def seal(self, now: int) -> None:
        self.until_ms = now
        for timer in self.timers:
            if timer.pending and timer.tick <= now:
                timer.sealed = True

    def hand_over(self, limit: int) -> int:
        """Move the first ``limit`` sealed timers, by tick and put, to their queues."""
        due = [timer for timer in self.timers if timer.pending and timer.sealed and timer.tick <= self.until_ms]
        due.sort(key=lambda timer: (timer.tick, timer.seq))
        for timer in due[:limit]:
            timer.delivered = True
            self._enqueue(timer.message)
        return len(due[:limit])

    def pending(self) -> list[Timer]:
        """Return the pending timers in the order of ``scan``."""
        return sorted((timer for timer in self.timers if timer.pending), key=lambda timer: (timer.tick, timer.seq))

    def wake_ms(self) -> int | None:
        """Return when something happens at the earliest: the tick of an unsealed timer, a running lease's end."""
        times = [timer.tick for timer in self.timers if timer.pending and not timer.sealed]
        return min(times + [held.expiry for held in self.leases.values() if held.ended is None], default=None)

    # ------------------------------------------------------------ pops

    def standing(self, topic: str, group: str) -> Standing:
        return self.standings.setdefault((topic, group), Standing())

    def in_flight(self, topic: str, group: str, source: int | None = None) -> int:
        held = (h for h in self.leases.values() if h.ended is None and (h.topic, h.group) == (topic, group))
        return sum(source is None or h.source == source for h in held)

    def lag(self, topic: str, group: str) -> Lag:
        at = self.standings.get((topic, group), Standing())
        ready = sum(len(queue) - at.offsets.get(number, 0) for number, queue in enumerate(self.queues.get(topic, [])))
        return Lag(ready, self.in_flight(topic, group), len(at.retry) - at.retry_offset, at.dead)

    def _available(self, topic: str, group: str, source: int, tags: frozenset[str] | None) -> list[tuple[int, Entry]]:
        """Return (offset, entry) of what a pop may take from a source, in order."""
        at = self.standing(topic, group)
        start = at.retry_offset if source == RETRY else at.offsets.get(source, 0)
        entries = at.retry if source == RETRY else self.queues[topic][source]
        listed = list(enumerate(entries))[start:]
        return listed if tags is None or source == RETRY else [each for each in listed if each[1].message.tag in tags]

    def _room(self, topic: str, group: str, source: int) -> int:
        return max(self.max_in_flight - self.in_flight(topic, group, source), 0) if self.max_in_flight else 10**9

    def repeated(self, topic: str, group: str, attempt_id: str, now: int) -> list[str]:
        """Return the receipts that a repeat of this attempt must give again."""
        end, receipts = self.attempts.get((topic, group, attempt_id), (0, []))
        return [text for text in receipts if end > now and self.leases[text].ended is None and self.leases[text].expiry > now]

    def popped(
        self,
        topic: str,
        group: str,
        got: Sequence[PoppedMessage],
        now: int,
        invisible: int,
        *,
        max_messages: int,
        tags: frozenset[str] | None,
        offsets: Mapping[int, int],
        queue: int | None = None,
        attempt_id: str | None = None,
    ) -> None:
        """Check a pop and take it over; ``offsets`` is where the group stands on each queue afterwards."""
        self.create_topic(topic, 1)
        at = self.standing(topic, group)
        if attempt_id is not None and (again := self.repeated(topic, group, attempt_id, now)):
            assert sorted(str(m.receipt) for m in got) == sorted(again), "a repeated attempt gets the same leases"
            assert {str(m.receipt): m.message_id for m in got} == {r: self.leases[r].entry.message.message_id for r in again}
            return
        asked = [queue] if queue is not None else list(range(len(self.queues[topic])))
        by_source: dict[int, list[PoppedMessage]] = {}
        for each in got:
            by_source.setdefault(_source_of(each), []).append(each)
        assert set(by_source) <= {RETRY, *asked}
        free = {s: min(len(self._available(topic, group, s, tags)), self._room(topic, group, s)) for s in (RETRY, *asked)}
        assert len(got) == min(max_messages, sum(free.values())), f"{len(got)} popped, {free} were there for {max_messages}"
        limits = {source: self._room(topic, group, source) for source in asked}
        for source in (RETRY, *asked):
            taken = by_source.get(source, [])
            listed = self._available(topic, group, source, tags)
            assert len(taken) <= free[source], "more than the in-flight limit lets out"
            assert [(m.queue_offset, m.message_id) for m in taken] == [(o, e.message.message_id) for o, e in listed[: len(taken)]]
            for each, (_, entry) in zip(taken, listed, strict=False):
                self._lease(topic, group, source, each, entry, now + invisible, now)
            if source == RETRY:
                at.retry_offset += len(taken)
                continue
            behind = listed[len(taken) - 1][0] + 1 if taken else at.offsets.get(source, 0)
            next_one = listed[len(taken)][0] if len(taken) < len(listed) else len(self.queues[topic][source])
            reached = offsets.get(source, 0)
            assert behind <= reached <= next_one, f"queue {source}: offset {reached} is outside of {behind}–{next_one}"
            if len(got) < max_messages and len(taken) < limits[source]:
                assert reached == next_one, "filtered-out messages stall the offset"
            at.offsets[source] = reached
        for number, offset in offsets.items():
            assert offset == at.offsets.get(number, 0), f"queue {number} was not asked for"
        if attempt_id is not None and got:
            self.attempts[topic, group, attempt_id] = (now + invisible, [str(m.receipt) for m in got])

    def _lease(self, topic: str, group: str, source: int, got: PoppedMessage, entry: Entry, expiry: int, now: int) -> None:
        sent = entry.message
        assert (got.topic, got.body, got.tag, got.keys) == (topic, sent.body, sent.tag, sent.keys)
        assert dict(got.properties) == dict(sent.properties)
        assert got.attempt == entry.counted + 1
        if sent.deliver_at_ms is not None and source != RETRY:
            assert got.store_ms >= sent.deliver_at_ms, "handed over early"
        if entry.first_pop_ms is not None:
            assert got.first_pop_ms == entry.first_pop_ms
        assert got.receipt is not None
        assert got.receipt not in self.leases, "two leases share a receipt"
        self.leases[got.receipt] = Held(Entry(sent, entry.counted, got.first_pop_ms), topic, group, source, expiry)
        self.deliveries[group, str(sent.message_id)] += 1

    def _outcome_is_open(self, held: Held) -> bool:
        return held.ended is not None and self.latest_ms >= held.expiry + self.outcome_memory_ms

    def ack(self, receipt: str) -> set[AckOutcome]:
        held = self.leases[receipt]
        answers = {None: {AckOutcome.ACKED}, "acked": {AckOutcome.ALREADY_ACKED}, "moved": {AckOutcome.STALE}}[held.ended]
        if self._outcome_is_open(held):
            answers = answers | {AckOutcome.UNKNOWN, AckOutcome.STALE}
        held.ended = held.ended or "acked"
        return answers

    def change(self, receipt: str, new_receipt: str | None, expiry: int) -> set[ChangeOutcome]:
        held = self.leases[receipt]
        if held.ended is None:
            held.ended = "moved"
            if new_receipt is not None:
                assert new_receipt not in self.leases
                self.leases[new_receipt] = Held(held.entry, held.topic, held.group, held.source, expiry)
            return {ChangeOutcome.CHANGED}
        answers = {ChangeOutcome.ALREADY_ACKED} if held.ended == "acked" else {ChangeOutcome.STALE}
        return answers | {ChangeOutcome.UNKNOWN, ChangeOutcome.STALE} if self._outcome_is_open(held) else answers

    def release(self, receipt: str) -> set[ReleaseOutcome]:
        held = self.leases[receipt]
        if held.ended is None:
            self._give_back(held, counted=False)
            return {ReleaseOutcome.RELEASED}
        answers = {ReleaseOutcome.ALREADY_ACKED} if held.ended == "acked" else {ReleaseOutcome.STALE}
        return answers | {ReleaseOutcome.UNKNOWN, ReleaseOutcome.STALE} if self._outcome_is_open(held) else answers

    def _give_back(self, held: Held, *, counted: bool) -> str:
        held.ended = "moved"
        at = self.standing(held.topic, held.group)
        entry = Entry(held.entry.message, held.entry.counted + counted, held.entry.first_pop_ms)
        if entry.counted > self.max_retries:
            at.dead += 1
            return "dead"
        at.retry.append(entry)
        self.returns[held.group, str(entry.message.message_id)] += 1
        return "retried"

    def revive(self, now: int) -> Counter[str]:
        """Give back every lease that ended; the order within a retry topic is taken over by :meth:`reorder`."""
        self.latest_ms = max(self.latest_ms, now)
        expired = [held for held in self.leases.values() if held.ended is None and held.expiry <= now]
        return Counter(self._give_back(held, counted=True) for held in expired)

    def reorder(self, topic: str, group: str, lying: Sequence[tuple[str, int, int | None]]) -> None:
        """Take over the order of the retry topic, given as (id, counted deliveries, first pop); what was popped keeps its place."""
        at = self.standing(topic, group)
        pool = list(at.retry)
        ordered = []
        for each in lying:
            matching = [entry for entry in pool if (entry.message.message_id, entry.counted, entry.first_pop_ms) == each]
            assert matching, f"(id, count, first pop) {each} lies in the retry topic of {group}, expected are {pool}"
            pool.remove(matching[0])
            ordered.append(matching[0])
        assert not pool, f"missing from the retry topic: {pool}"
        assert ordered[: at.retry_offset] == at.retry[: at.retry_offset]
        at.retry = ordered

    def reset(self, topic: str, group: str, queue: int, offset: int) -> None:
        """Move a group; its leases on the queue turn STALE."""
        self.standing(topic, group).offsets[queue] = offset
        for held in self.leases.values():
            if held.ended is None and (held.topic, held.group, held.source) == (topic, group, queue):
                held.ended = "moved"

    def running(self) -> Iterable[str]:
        """Return the receipts of running leases."""
        return [receipt for receipt, held in self.leases.items() if held.ended is None]


def _source_of(popped: PoppedMessage) -> int:
    flag = str(popped.receipt).split(" ")[4]
    return popped.queue_id if flag == "0" else RETRY
