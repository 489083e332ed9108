"""The half of the oracle that holds queues, groups, leases and dead letters, modelled with lists and dicts.

Where the contract leaves freedom (which queue a pop takes first, how far a filtered pop looks beyond its last message, the order in which
leases of one tick are revived, the queue of a resent message) the model takes over what the store did after checking that it was allowed;
elsewhere it is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from rmqstore import AckOutcome, ChangeOutcome, Lag, Message, PoppedMessage, RejectOutcome, ReleaseOutcome
from rmqstore.contract import Subscription
from rmqstore.message import (
    PROPERTY_DLQ_ATTEMPTS,
    PROPERTY_DLQ_REASON,
    PROPERTY_ORIGIN_ID,
    PROPERTY_ORIGIN_TOPIC,
    dlq_topic,
    reason_text,
    retry_topic,
)
from rmqstore.store.dead_letters import DeadLetter
from rmqstore_conformance.fidelity import check, differences, matching

Outcome = TypeVar("Outcome", AckOutcome, ChangeOutcome, ReleaseOutcome, RejectOutcome)

RETRY = -1
"""The source of a lease that came from the retry topic; other sources are queue numbers."""

Place = tuple[str, str]
"""(topic, group)."""

Passes = Callable[[Message], bool]
"""A filter."""


@dataclass
class Entry:
    """One message in a queue or in a retry topic, with the deliveries that were counted before.

    ``is_spared``: in a FIFO run, one before it died since it was leased.
    """

    message: Message
    store_ms: int
    counted: int = 0
    first_pop_ms: int | None = None
    is_spared: bool = False

    def lying(self, topic: str, queue: int, offset: int) -> dict[str, Any]:
        """Return what is known of the message where it is, beside what was sent."""
        place = {"topic": topic, "queue_id": queue, "queue_offset": offset}
        return {**place, "store_ms": self.store_ms, "attempt": self.counted, "first_pop_ms": self.first_pop_ms}


@dataclass
class Queue:
    """A queue by offsets; what is before ``first`` was reclaimed."""

    entries: list[Entry] = field(default_factory=list)
    first: int = 0


@dataclass
class Held:
    """One lease; ``ended`` is None while it runs, then says how: acked, moved (changed, or given back), erased with its topic or group."""

    entry: Entry
    topic: str
    group: str
    source: int
    offset: int
    expiry: int
    receipt: str
    ended: str | None = None
    is_backing_off: bool = False
    reason: str = ""
    moved_by: str = ""


@dataclass
class Letter:
    """A dead letter; it ``counts`` in the lag until its topic is deleted. Its ``offset`` is None until it was seen."""

    entry: Entry
    origin: str
    died_ms: int
    reason: str
    counts: bool = True
    offset: int | None = None

    @property
    def properties(self) -> dict[str, str]:
        """Those of the message, and what the store adds."""
        return {
            **self.entry.message.properties,
            PROPERTY_DLQ_REASON: self.reason,
            PROPERTY_DLQ_ATTEMPTS: str(self.entry.counted),
            PROPERTY_ORIGIN_TOPIC: self.origin,
            PROPERTY_ORIGIN_ID: str(self.entry.message.message_id),
        }

    def differences(self, found: DeadLetter, group: str) -> list[str]:
        sent = self.entry.message
        told = (found.group, found.reason, found.attempts, found.origin_topic, found.origin_message_id, found.died_ms)
        facts = (group, self.reason, self.entry.counted, self.origin, sent.message_id, self.died_ms)
        lying = Entry(sent, self.died_ms).lying(dlq_topic(group), 0, found.message.queue_offset if self.offset is None else self.offset)
        lines = [] if told == facts else [f"told of it: expected {facts}, seen {told}"]
        return lines + differences(sent, found.message, **lying, properties=self.properties)


@dataclass
class Standing:
    """Where a group stands on a topic.

    Attributes:
        ordered: None until it pops.
        unacked: its FIFO runs by queue and offset.
        is_loose: whether messages came to the retry topic in an order that is not known yet.
        since_first: pops since the last one that certainly looked at the retry topic first; None: there was none since the open.
        lasts: pops in a row that certainly looked at it last.
        passed_over: by queue, pops that gave messages of other queues while this one had some, too.
    """

    ordered: bool | None = None
    last_ms: int = 0
    active_ms: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    unacked: dict[int, dict[int, Entry]] = field(default_factory=dict)
    retry: Queue = field(default_factory=Queue)
    retry_offset: int = 0
    expired: int = 0
    is_loose: bool = False
    since_first: int | None = None
    lasts: int = 0
    passed_over: dict[int, int] = field(default_factory=dict)


@dataclass
class Offer:
    """What one source has for a pop, by offsets: what comes back in its place, then what is new; and for how many there is ``room``."""

    back: list[tuple[int, Entry]]
    new: list[tuple[int, Entry]]
    room: int

    @property
    def listed(self) -> list[tuple[int, Entry]]:
        return [*self.back, *self.new][: self.room]


class PopOracle:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        """Those of the store that is open; another open may change them."""
        self.queues: dict[str, list[Queue]] = {}
        self.standings: dict[Place, Standing] = {}
        self.leases: dict[str, Held] = {}
        self.live: dict[str, Held] = {}
        self.letters: dict[str, list[Letter]] = {}
        self.attempts: dict[tuple[str, str, str], tuple[int, list[str]]] = {}
        self.latest_ms = -1
        self.group_queues: dict[str, int] = {}
        self.arranged: set[str] = set()
        self.retries_of: dict[str, int] = {}
        self.backoffs_of: dict[str, tuple[int, ...]] = {}
        self.last_pop_ms = -1

    # ------------------------------------------------------------ what there is

    @property
    def group_expiry_ms(self) -> int:
        return int(self.settings.get("group_expiry_ms", 0))

    def create_topic(self, name: str, queues: int) -> None:
        known = self.queues.setdefault(name, [])
        known.extend(Queue() for _ in range(queues - len(known)))

    def enqueue(self, message: Message, now: int) -> None:
        self.create_topic(message.topic, (message.queue_id or 0) + 1)
        self.queues[message.topic][message.queue_id or 0].entries.append(Entry(message, now))

    def standing(self, topic: str, group: str) -> Standing:
        return self.standings.setdefault((topic, group), Standing())

    def held_by(self, topic: str, group: str, source: int | None = None) -> list[Held]:
        return [h for h in self.live.values() if (h.topic, h.group) == (topic, group) and source in (None, h.source)]

    def waiting_in_place(self, topic: str, group: str, queue: int) -> list[tuple[int, Entry]]:
        """Return (offset, entry) of what a FIFO group was given, did not ack, and does not hold."""
        run = self.standings.get((topic, group), Standing()).unacked.get(queue, {})
        leased = {held.offset for held in self.held_by(topic, group, queue)}
        return sorted(((offset, entry) for offset, entry in run.items() if offset not in leased), key=lambda each: each[0])

    def new_ones(self, topic: str, group: str, source: int) -> list[tuple[int, Entry]]:
        """Return (offset, entry) of what the group was never given of a source, in order."""
        at = self.standings.get((topic, group), Standing())
        queue = at.retry if source == RETRY else self.queues[topic][source]
        start = max(at.retry_offset if source == RETRY else at.offsets.get(source, 0), queue.first)
        return list(enumerate(queue.entries))[start:]

    def lag(self, topic: str, group: str) -> Lag:
        numbers = range(len(self.queues.get(topic, [])))
        return Lag(
            ready=sum(len(self.new_ones(topic, group, number)) for number in numbers),
            in_flight=sum(not held.is_backing_off for held in self.held_by(topic, group)),
            backing_off=sum(held.is_backing_off for held in self.held_by(topic, group)),
            retry=len(self.new_ones(topic, group, RETRY)) + sum(len(self.waiting_in_place(topic, group, number)) for number in numbers),
            dead=sum(letter.counts and letter.origin == topic for letter in self.letters.get(group, [])),
            expired=self.standings.get((topic, group), Standing()).expired,
        )

    def rest(self, topic: str, group: str, queue: int | None) -> int:
        """Return how many messages of the queues asked for are ready now; none of a queue whose FIFO run is leased."""
        at = self.standing(topic, group)
        asked = [
            number
            for number in (range(len(self.queues[topic])) if queue is None else (queue,))
            if not (at.ordered and self.held_by(topic, group, number))
        ]
        there = sum(len(self.new_ones(topic, group, number)) + len(self.waiting_in_place(topic, group, number)) for number in asked)
        return there + len(self.new_ones(topic, group, RETRY))

    def is_ready(self, topic: str, group: str) -> bool:
        """Say whether a pop without a filter gives something."""
        at = self.standings.get((topic, group), Standing())
        sources = [*range(len(self.queues.get(topic, []))), RETRY]
        return any(
            self._room(topic, group, source, ordered=bool(at.ordered))
            and (self.new_ones(topic, group, source) or self.waiting_in_place(topic, group, source))
            for source in sources
        )

    def running_leases(self) -> list[tuple[str, str, int, int, str, int, int | None, int, bool, str, str]]:
        """Return what ``leases()`` lists, in its order: where, whose, which delivery, since when, until when, whether it waits and why."""
        found = [
            (h.topic, h.group, max(h.source, 0), h.offset, str(h.entry.message.message_id), h.entry.counted + 1, h.entry.first_pop_ms,
             h.expiry, h.is_backing_off, h.reason, h.receipt)
            for h in self.live.values()
        ]  # fmt: skip
        return sorted(found, key=lambda each: (each[:4], each[-1]))

    def check_subscriptions(self, found: Sequence[Subscription]) -> None:
        """Check who pops what and how, and take over when each group is said to have popped last: true to an eighth of the expiry (Q3)."""
        expected = {place: at for place, at in self.standings.items() if at.ordered is not None}
        assert {(each.topic, each.group): each.is_ordered for each in found} == {place: at.ordered for place, at in expected.items()}
        for each in found:
            at = expected[each.topic, each.group]
            assert each.active_ms <= at.last_ms
            assert not self.group_expiry_ms or at.last_ms - each.active_ms < max(self.group_expiry_ms // 8, 1)
            at.active_ms = each.active_ms

    # ------------------------------------------------------------ pops

    def _room(self, topic: str, group: str, source: int, *, ordered: bool) -> int:
        held, most = len(self.held_by(topic, group, source)), self.settings["max_in_flight"] or 10**9
        if ordered and source != RETRY:
            return 0 if held else most
        return max(most - held, 0)

    def repeated(self, topic: str, group: str, attempt_id: str, now: int) -> list[str] | None:
        """Return the receipts that a repeat of this attempt must give again; None when it is no repeat."""
        end, receipts = self.attempts.get((topic, group, attempt_id), (0, []))
        if end <= now:
            return None
        return [text for text in receipts if text in self.live and self.live[text].expiry > now]

    def register(self, topic: str, group: str, now: int, *, order: bool) -> None:
        """Take note of a pop: the first one fixes how the group pops the topic and where it starts, on all queues at once (P9, P11)."""
        self.create_topic(topic, 1)
        at = self.standing(topic, group)
        assert at.ordered in (None, order)
        starts_at_end = at.ordered is None and self.settings["init"] == "max"
        for number, queue in enumerate(self.queues[topic]):
            at.offsets.setdefault(number, len(queue.entries) if starts_at_end else 0)
        at.last_ms = now if at.ordered is None else max(at.last_ms, now)
        at.ordered = order

    def popped(
        self,
        topic: str,
        group: str,
        got: Sequence[PoppedMessage],
        now: int,
        invisible: int,
        *,
        max_messages: int,
        passes: Passes,
        offsets: Mapping[int, int],
        order: bool = False,
        queue: int | None = None,
        attempt_id: str | None = None,
    ) -> None:
        """Check a pop and take it over; ``offsets`` is where the group stands on each queue afterwards."""
        self.register(topic, group, now, order=order)
        at = self.standing(topic, group)
        at.since_first = None if at.since_first is None else at.since_first + 1
        if attempt_id is not None and (again := self.repeated(topic, group, attempt_id, now)) is not None:
            assert sorted(str(m.receipt) for m in got) == sorted(again), "a repeated attempt gets the same leases"
            for each in got:
                held = self.live[str(each.receipt)]
                self._came_out(topic, group, held.source, each, held.entry, held.offset)
            at.lasts = 0
            return
        asked = [queue] if queue is not None else list(range(len(self.queues[topic])))
        offers = {source: self._offer(topic, group, source, passes, ordered=order) for source in (RETRY, *asked)}
        taken: dict[int, list[PoppedMessage]] = {}
        for each in got:
            taken.setdefault(_source_of(each), []).append(each)
        assert taken.keys() <= offers.keys()
        free = {source: len(offer.listed) for source, offer in offers.items()}
        assert len(got) == min(max_messages, sum(free.values())), f"{len(got)} popped, {free} were there for {max_messages}"
        self._check_turn(at, len(taken.get(RETRY, ())), len(got), free, max_messages)
        if queue is None:
            self._check_rotation(at, taken.keys(), {number: free[number] for number in asked})
        for source, offer in offers.items():
            own = taken.get(source, [])
            assert len(own) <= free[source], "more than the in-flight limit lets out"
            listed = offer.listed[: len(own)]
            assert [(m.queue_offset, m.message_id) for m in own] == [(offset, entry.message.message_id) for offset, entry in listed]
            for each, (_, entry) in zip(own, listed, strict=True):
                self._lease(topic, group, source, each, entry, now, invisible)
            if source == RETRY:
                at.retry_offset = own[-1].queue_offset + 1 if len(own) > len(offer.back) else at.retry_offset
                continue
            if order:
                at.unacked.setdefault(source, {}).update((each.queue_offset, self.live[str(each.receipt)].entry) for each in own)
            may_stop = len(got) == max_messages or len(own) == offer.room
            at.offsets[source] = self._moved_on(topic, at, source, offer, len(own), offsets.get(source, 0), may_stop=may_stop)
        for number, offset in offsets.items():
            assert offset == at.offsets.get(number, 0), f"queue {number} was not asked for"
        if attempt_id is not None and got:
            self.attempts[topic, group, attempt_id] = (now + invisible, [str(m.receipt) for m in got])

    def _offer(self, topic: str, group: str, source: int, passes: Passes, *, ordered: bool) -> Offer:
        new = self.new_ones(topic, group, source)
        return Offer(
            back=self.waiting_in_place(topic, group, source),
            # What a group got once comes back whatever the filter is.
            new=new if source == RETRY else [each for each in new if passes(each[1].message)],
            room=self._room(topic, group, source, ordered=ordered),
        )

    def _moved_on(self, topic: str, at: Standing, queue: int, offer: Offer, taken: int, reached: int, *, may_stop: bool) -> int:
        """Check how far a group moved on in a queue: behind what it took, and, unless it ``may_stop`` there, what is left out, too."""
        fresh = max(taken - len(offer.back), 0)
        behind = offer.new[fresh - 1][0] + 1 if fresh else at.offsets[queue]
        next_one = offer.new[fresh][0] if fresh < len(offer.new) else len(self.queues[topic][queue].entries)
        assert behind <= reached <= next_one, f"queue {queue}: offset {reached} is outside of {behind}–{next_one}"
        assert may_stop or reached == next_one, "filtered-out messages stall the offset"
        return reached

    def _check_turn(self, at: Standing, of_retry: int, got: int, free: Mapping[int, int], most: int) -> None:
        """Check that every so many pops the retry topic comes first, and last in all others (P13); mostly a pop does not tell."""
        retry, queues = free[RETRY], sum(free.values()) - free[RETRY]
        if not (retry and queues and most < retry + queues):
            at.lasts = 0
            return
        is_first = of_retry == min(most, retry)
        assert is_first or got - of_retry == min(most, queues), f"{of_retry} of {got} from the retry topic, of {retry} beside {queues}"
        share = self.settings["retry_share"]
        period = round(1 / share) if share else None
        if is_first:
            assert period is not None, "the retry topic comes first, and its share is 0"
            assert at.since_first is None or at.since_first >= period, f"the retry topic comes first again after {at.since_first} pops"
            at.since_first, at.lasts = 0, 0
        else:
            at.lasts += 1
            assert period is None or at.lasts < period, f"the retry topic comes last {at.lasts} times in a row"

    @staticmethod
    def _check_rotation(at: Standing, gave: Set[int], free: Mapping[int, int]) -> None:
        """Check that the queue that a pop looks at first goes round: none that has messages is passed over for two rounds (P13)."""
        for number, ready in free.items():
            if not ready or number in gave:
                at.passed_over[number] = 0
            elif gave - {RETRY}:
                at.passed_over[number] = at.passed_over.get(number, 0) + 1
                assert at.passed_over[number] <= 2 * len(free), f"queue {number} was passed over by {at.passed_over[number]} pops"

    def forget_turns(self) -> None:
        """Take note of an open: whose turn it is begins again."""
        for at in self.standings.values():
            at.since_first, at.lasts = None, 0
            at.passed_over.clear()

    def _lease(self, topic: str, group: str, source: int, got: PoppedMessage, entry: Entry, now: int, invisible: int) -> None:
        popped_ms = _pop_time_of(str(got.receipt))
        assert now <= popped_ms <= max(now, self.last_pop_ms + 1), f"popped at {popped_ms}, now is {now}"
        if entry.first_pop_ms is None:
            entry = replace(entry, first_pop_ms=now)
        self._came_out(topic, group, source, got, entry, got.queue_offset)
        sent = entry.message
        if sent.deliver_at_ms is not None and source != RETRY:
            assert got.store_ms >= sent.deliver_at_ms, "handed over early"
        self._hold(Held(entry, topic, group, source, got.queue_offset, now + invisible, str(got.receipt)))

    def _came_out(self, topic: str, group: str, source: int, got: PoppedMessage, entry: Entry, offset: int) -> None:
        """Check a popped message, whole; one of a retry topic comes under the name of the topic that was popped."""
        lying = entry.lying(topic, max(source, 0), offset)
        check(entry.message, got, f"popped by {group!r}", **{**lying, "attempt": entry.counted + 1})

    def _hold(self, held: Held) -> None:
        assert held.receipt not in self.leases, "two leases share a receipt"
        self.last_pop_ms = max(self.last_pop_ms, _pop_time_of(held.receipt))
        self.leases[held.receipt] = self.live[held.receipt] = held

    # ------------------------------------------------------------ the ends of leases

    def _end(self, held: Held, how: str, moved_by: str = "") -> None:
        held.ended = how
        held.moved_by = moved_by
        self.live.pop(held.receipt, None)

    def _outcomes(self, held: Held, done: Outcome) -> set[Outcome]:
        """Return what a call on a lease may answer: ``done`` where it runs; UNKNOWN as well once the memory of it may be over."""
        kind = type(done)
        if held.ended is None:
            return {done}
        gone = {kind["STALE"], kind["UNKNOWN"]}
        known = {"acked": {kind["ALREADY_ACKED"]}, "moved": {kind["STALE"]}, "erased": gone}[held.ended]
        return known | gone if self.latest_ms >= held.expiry + self.settings["outcome_memory_ms"] else known

    def ack(self, receipt: str) -> set[AckOutcome]:
        held = self.leases[receipt]
        allowed = self._outcomes(held, AckOutcome.ACKED)
        if held.ended is None:
            self._end(held, "acked")
            self.standing(held.topic, held.group).unacked.get(held.source, {}).pop(held.offset, None)
        return allowed

    def change(
        self, receipt: str, new_receipt: str | None, expiry: int, *, is_backing_off: bool = False, reason: str = ""
    ) -> set[ChangeOutcome]:
        held = self.leases[receipt]
        allowed = self._outcomes(held, ChangeOutcome.CHANGED)
        if held.ended is None:
            self._end(held, "moved", "changed")
            if new_receipt is not None:
                new = Held(held.entry, held.topic, held.group, held.source, held.offset, expiry, new_receipt)
                new.is_backing_off, new.reason = is_backing_off, reason_text(reason)
                self._hold(new)
        return allowed

    def release(self, receipt: str, now: int) -> set[ReleaseOutcome]:
        held = self.leases[receipt]
        allowed = self._outcomes(held, ReleaseOutcome.RELEASED)
        if held.ended is None:
            self._give_back(held, now, counted=False)
        return allowed

    def reject(self, receipt: str, reason: str, now: int) -> set[RejectOutcome]:
        held = self.leases[receipt]
        allowed = self._outcomes(held, RejectOutcome.REJECTED)
        if held.ended is None:
            self._give_back(held, now, counted=True, rejected=reason_text(reason) or "rejected")
        return allowed

    def _give_back(self, held: Held, now: int, *, counted: bool, may_die: bool = True, rejected: str = "") -> str:
        self._end(held, "moved", "rejected" if rejected else "revived" if counted else "released")
        at = self.standing(held.topic, held.group)
        entry = Entry(held.entry.message, now, held.entry.counted + counted, held.entry.first_pop_ms)
        run = at.unacked[held.source] if at.ordered and held.source != RETRY else None
        if rejected or (counted and may_die and entry.counted > self.retries_of.get(held.group, self.settings["max_retries"])):
            said = f": {held.reason}" if held.reason else ""
            why = rejected or f"delivered {entry.counted} time{'s' * (entry.counted > 1)} without an ack{said}"
            self.letters.setdefault(held.group, []).append(Letter(entry, held.topic, now, why))
            if run is not None:
                del run[held.offset]
            return "dead"
        if run is not None:
            run[held.offset] = replace(entry, store_ms=held.entry.store_ms)
        else:
            at.retry.entries.append(entry)
            at.is_loose = True
        return "retried"

    def revive(self, now: int) -> Counter[str]:
        """Give back every lease that ended; the order within retry topics and dead letter queues is taken over later.

        Of a FIFO run only the head may die, and those that were leased behind it not with it (P9).
        """
        self.latest_ms = max(self.latest_ms, now)
        report: Counter[str] = Counter()
        ends: dict[tuple[int, str, str, int], list[Held]] = {}
        for held in self.live.values():
            if held.expiry <= now:
                ends.setdefault((held.expiry, held.topic, held.group, held.source), []).append(held)
        for _, expired in sorted(ends.items()):
            at = self.standing(expired[0].topic, expired[0].group)
            in_order = bool(at.ordered) and expired[0].source != RETRY
            for held in expired:
                run = at.unacked[held.source] if in_order else {}
                is_head = in_order and held.offset == min(run)
                may_die = not in_order or (is_head and (held.is_backing_off or not run[held.offset].is_spared))
                what = self._give_back(held, now, counted=True, may_die=may_die)
                report[what] += 1
                if in_order and what == "dead":
                    for other in self.held_by(held.topic, held.group, held.source):
                        run[other.offset] = replace(run[other.offset], is_spared=True)
        return report

    def reorder(self, topic: str, group: str, lying: Sequence[PoppedMessage]) -> None:
        """Take over the order of a retry topic from what is there now; what was popped keeps its place.

        What the upkeep of this very tick took is checked by where the queue begins.
        """
        at = self.standing(topic, group)
        at.is_loose = False
        begin = lying[0].queue_offset if lying else len(at.retry.entries)
        pool = at.retry.entries[begin:]
        ordered: list[Entry] = []
        for offset, seen in enumerate(lying, begin):
            known = at.retry.entries[offset] if offset < len(at.retry.entries) else None

            def differs(each: Entry, seen: PoppedMessage = seen, offset: int = offset) -> list[str]:
                return differences(each.message, seen, **each.lying(retry_topic(group, topic), 0, offset))

            what = f"in the retry topic of {group!r}, at {offset}, of {len(pool)} that may"
            ordered.append(matching(what, sorted(pool, key=lambda each: each is not known), differs))
            pool = [each for each in pool if each is not ordered[-1]]
        assert not pool, f"missing from the retry topic: {pool}"
        popped = max(at.retry_offset - begin, 0)
        assert [id(each) for each in ordered[:popped]] == [id(each) for each in at.retry.entries[begin:][:popped]]
        at.retry.entries[begin:] = ordered

    # ------------------------------------------------------------ operators

    def reset(self, topic: str, group: str, queue: int, offset: int, now: int) -> None:
        """Move a group; its leases on the queue turn STALE, its FIFO run there is dropped."""
        at = self.standing(topic, group)
        at.offsets[queue] = offset
        at.unacked.pop(queue, None)
        at.last_ms = max(at.last_ms, now)
        for held in self.held_by(topic, group, queue):
            self._end(held, "moved", "reset")

    def delete_topic(self, name: str) -> None:
        """Forget a topic; its dead letters stay and no longer count, since a new topic of the name is another one."""
        self.queues.pop(name, None)
        self.group_queues.pop(name, None)
        self.arranged.discard(name)
        self._erase(lambda topic, group: topic == name)
        for letters in self.letters.values():
            for letter in letters:
                letter.counts = letter.counts and letter.origin != name

    def delete_group(self, name: str) -> None:
        """Forget a group; its dead letters stay."""
        self.retries_of.pop(name, None)
        self.backoffs_of.pop(name, None)
        self._erase(lambda topic, group: group == name)

    def _erase(self, is_meant: Callable[[str, str], bool]) -> None:
        self.standings = {place: at for place, at in self.standings.items() if not is_meant(*place)}
        for held in self.leases.values():
            if is_meant(held.topic, held.group):
                self._end(held, "erased")

    def take_over_letters(self, group: str, found: Sequence[DeadLetter]) -> None:
        """Check the dead letters of a group, whole; the order of those that died in one tick is taken over."""
        pool = list(self.letters.get(group, []))
        ordered = []
        for each in found:
            what = f"dead letter {each.message.queue_offset} of {group!r}"
            letter = matching(what, pool, lambda letter: letter.differences(each, group))  # noqa: B023 - called at once
            letter.offset = each.message.queue_offset
            pool = [other for other in pool if other is not letter]
            ordered.append(letter)
        assert not pool, f"missing from the dead letters of {group}: {pool}"
        self.letters[group] = ordered

    def remove_letters(self, group: str, chosen: Iterable[Letter], now: int, *, resend: bool) -> list[Message]:
        """Take letters out; returns what goes to the end of a topic, because its group pops it in order."""
        to_topics = []
        for letter in chosen:
            self.letters[group] = [other for other in self.letters[group] if other is not letter]
            message = _as_sent_back(letter.entry.message)
            at = self.standing(letter.origin, group)
            if resend and at.ordered:
                to_topics.append(message)
            elif resend:
                at.retry.entries.append(Entry(message, now))
                at.is_loose = True
        return to_topics

    # ------------------------------------------------------------ retention

    def reclaimed(self, min_offsets: Mapping[tuple[str, int], int], now: int) -> int:
        """Check where each queue begins after upkeep, and take it over (Q1–Q3).

        What went was too old or consumed, and not pinned; what is at the head and may go by one of the two rules alone is gone. Attempts
        of which the time is over are forgotten, also by a clock that is set back afterwards. Returns how much went before a group had
        popped it, added up over the groups.
        """
        expired = 0
        retention_ms, by_consumption = self.settings.get("retention_ms", 0), self.settings.get("reclaim") == "consumed"
        self.attempts = {key: each for key, each in self.attempts.items() if each[0] > now}
        for topic, queues in self.queues.items():
            for number, queue in enumerate(queues):
                consumed = self._consumed(topic, number, now) if by_consumption else 0
                old = [bool(retention_ms) and 0 < now - retention_ms > entry.store_ms for entry in queue.entries]
                aged = next((at for at in range(queue.first, len(old)) if not old[at]), len(old))
                mixed = next((at for at in range(queue.first, len(old)) if not old[at] and at >= consumed), len(old))
                pin = self._pin(topic, number, len(old))
                must, may = (max(min(offset, pin), queue.first) for offset in (max(aged, consumed), mixed))
                first = min_offsets[topic, number]
                assert must <= first <= may, (
                    f"{topic}/{number} begins at {first}; {must} to {may} is allowed (aged {aged}, consumed {consumed}, pinned {pin})"
                )
                for (name, _), at in self.standings.items():
                    if name == topic and at.ordered is not None:
                        missed = max(first - max(at.offsets.get(number, 0), queue.first), 0)
                        at.expired += missed
                        expired += missed
                queue.first = first
        for (_, group), at in self.standings.items():
            held = [h.offset for h in self.live.values() if (h.group, h.source) == (group, RETRY) and at is self.standings[h.topic, group]]
            at.retry.first = max(min([at.retry_offset, *held]), at.retry.first)
        return expired

    def _consumed(self, topic: str, number: int, now: int) -> int:
        longest = self.group_expiry_ms + self.group_expiry_ms // 8
        counting = [
            at
            for (name, _), at in self.standings.items()
            if name == topic and at.ordered is not None and (not self.group_expiry_ms or now - at.active_ms <= longest)
        ]
        return min((at.offsets.get(number, 0) for at in counting), default=0)

    def _pin(self, topic: str, number: int, end: int) -> int:
        leased = [held.offset for held in self.live.values() if (held.topic, held.source) == (topic, number)]
        unacked = [offset for (name, _), at in self.standings.items() if name == topic for offset in at.unacked.get(number, {})]
        return min([end, *leased, *unacked])


def _as_sent_back(message: Message) -> Message:
    """Return a message as it is sent back from the dead letters: for now, in no queue yet."""
    return msgspec.structs.replace(message, deliver_at_ms=None, queue_id=None)


def _pop_time_of(receipt: str) -> int:
    return int(receipt.split(" ")[1])


def _source_of(popped: PoppedMessage) -> int:
    flag = str(popped.receipt).split(" ")[4]
    return popped.queue_id if flag == "0" else RETRY
