"""The oracle: what a store must hold, given what its killed workers said.

``Book.begin`` and ``Book.end`` follow the calls of a worker and check every answer. After a kill ``Book.check`` compares a reopened store
with the book, decides whether the call that was under way happened (wholly or not at all), and takes that over. ``Book.drain`` ends a run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rmqstore import AckOutcome, ManualClock, Store
from rmqstore_conformance.kills.worker import GROUPS, PRECISION_MS, TOPIC, lags

PENDING, DELIVERED, CANCELLED, UNSTORED = "pending", "delivered", "cancelled", "not stored"
LIVE, ACKED, MOVED = "LIVE", "ACKED", "MOVED"
_STATE_SEEN = {"ACKED": LIVE, "CHANGED": LIVE, "RELEASED": LIVE, "ALREADY_ACKED": ACKED, "STALE": MOVED}

Event = dict[str, Any]


@dataclass
class Sent:
    """One message. ``maybe_sealed``: the number of the first killed tick that may have closed it without handing it over; 0 for none."""

    name: str
    deliver_ms: int | None
    key: str
    sent_ms: int
    order: int
    place: str = UNSTORED
    maybe_sealed: int = 0

    @property
    def due_ms(self) -> int:
        """The first tick that hands it over (T2, T4)."""
        if self.deliver_ms is None or self.deliver_ms <= self.sent_ms:
            return self.sent_ms
        return -(-self.deliver_ms // PRECISION_MS) * PRECISION_MS


@dataclass
class Lease:
    """One lease, and the states that it may be in."""

    group: str
    name: str
    receipt: str
    until_ms: int
    states: set[str] = field(default_factory=lambda: {LIVE})


class Book:
    """The messages and leases of one store directory, through many lives of its workers."""

    kind = "work"
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self.messages: dict[str, Sent] = {}
        self.leases: dict[str, Lease] = {}
        self.handles: list[list[str]] = []
        self.open_call: Event | None = None
        self.last_op = "idle"
        self._killed_ticks = 0
        self._lag = {group: [0, 0, 0, 0] for group in GROUPS}

    # ------------------------------------------------------------ following a worker

    def begin(self, event: Event) -> None:
        """Take note of a call before it is made."""
        self.open_call = event
        self.now_ms = event["now"]
        if event["op"].startswith("send"):
            for name, deliver_ms, key in event["messages"]:
                self.messages[name] = Sent(name, deliver_ms, key, self.now_ms, len(self.messages))

    def end(self, event: Event) -> None:
        """Check the answer of the open call and take it over."""
        call = self.open_call
        assert call is not None
        lag = event["lag"]
        if call["op"] == "open":
            assert lag == self._lag, "opening a store changed where its groups stand"
        else:
            getattr(self, f"_after_{call['op']}")(call, event["result"])
        self._lag = lag
        self.last_op = call["op"]
        self.open_call = None

    def _after_send_batch(self, call: Event, handles: list[str | None]) -> None:
        now_ms = self.now_ms
        rows = call["messages"]
        goes_to_timers = any(deliver_ms is not None and deliver_ms > now_ms for _, deliver_ms, _ in rows)
        for (name, _, _), handle in zip(rows, handles, strict=True):
            assert (handle is not None) == goes_to_timers
            self.messages[name].place = PENDING if goes_to_timers else DELIVERED
            if handle is not None:
                self.handles.append([handle, name])

    _after_send = _after_send_batch

    def _due(self) -> list[Sent]:
        return [sent for sent in self.messages.values() if sent.place == PENDING and sent.due_ms <= self.now_ms]

    def _expired(self) -> list[Lease]:
        return [lease for lease in self.leases.values() if LIVE in lease.states and lease.until_ms <= self.now_ms]

    def _after_tick(self, call: Event, handed_over: int) -> None:
        due = self._due()
        assert handed_over == len(due), f"{handed_over} handed over, due were {[sent.name for sent in due]}"
        for sent in due:
            sent.place = DELIVERED
        for lease in self._expired():
            lease.states = lease.states - {LIVE} | {MOVED}

    def _after_cancel(self, call: Event, outcomes: list[str]) -> None:
        for name, outcome in zip(call["ids"], outcomes, strict=True):
            self._cancelled(self.messages[name], outcome)

    def _cancelled(self, sent: Sent, outcome: str) -> None:
        if sent.place == DELIVERED:
            assert outcome == "ALREADY_DELIVERED", f"{sent} answers {outcome}"
        elif sent.place == CANCELLED:
            assert outcome == "CANCELLED", f"{sent} answers {outcome}"
        elif not sent.maybe_sealed:
            assert outcome == "CANCELLED", f"{sent} answers {outcome}"
            sent.place = CANCELLED
        else:
            assert outcome in ("CANCELLED", "ALREADY_DELIVERED"), f"{sent} answers {outcome}"
            if outcome == "CANCELLED":
                sent.place, sent.maybe_sealed = CANCELLED, 0

    def _with_key(self, key: str) -> list[Sent]:
        return sorted((s for s in self.messages.values() if s.key == key and s.place == PENDING), key=lambda s: s.order)

    def _after_cancel_key(self, call: Event, outcomes: list[str]) -> None:
        # What was handed over may still be found, and answers ALREADY_DELIVERED; what is pending is always found.
        found = self._with_key(call["key"])
        certain = [sent for sent in found if not sent.maybe_sealed]
        count = outcomes.count("CANCELLED")
        assert len(certain) <= count <= len(found)
        assert set(outcomes) <= {"CANCELLED", "ALREADY_DELIVERED"}
        # What was due at one killed tick was due at all later ones, so these are open if those of earlier ones are, and never the reverse.
        open_ones = sorted(found, key=lambda sent: (sent not in certain, -sent.maybe_sealed))
        cancelled, sealed = open_ones[:count], open_ones[count:]
        assert not sealed or not cancelled or cancelled[-1] in certain or cancelled[-1].maybe_sealed > sealed[0].maybe_sealed, (
            "a killed tick sealed a part of what was due"
        )
        for sent in cancelled:
            sent.place, sent.maybe_sealed = CANCELLED, 0

    def _after_pop(self, call: Event, popped: list[list[str]]) -> None:
        group = call["group"]
        names = Counter(name for _, name in popped)
        assert max(names.values(), default=1) == 1, f"one pop gave a message twice: {names}"
        for lease in self.leases.values():
            if lease.group == group and lease.name in names:
                assert MOVED in lease.states, f"{lease.name} was given to group {group} although its lease is {lease.states}"
                lease.states = {MOVED}
        ready, _, retry, _ = self._lag[group]
        assert len(popped) == min(call["wanted"], ready + retry), f"{len(popped)} popped of {call['wanted']}, lag {self._lag[group]}"
        for receipt, name in popped:
            assert self.messages[name].place == DELIVERED
            assert receipt not in self.leases, "two leases share a receipt"
            self.leases[receipt] = Lease(group, name, receipt, self.now_ms + call["invisible"])

    def _used(self, receipts: list[str], outcomes: list[str], becomes: str) -> None:
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            lease = self.leases[receipt]
            assert _STATE_SEEN[outcome] in lease.states, f"{lease} answers {outcome}"
            lease.states = {becomes} if _STATE_SEEN[outcome] == LIVE else {_STATE_SEEN[outcome]}

    def _after_ack(self, call: Event, outcomes: list[str]) -> None:
        self._used(call["receipts"], outcomes, ACKED)

    def _after_release(self, call: Event, outcomes: list[str]) -> None:
        self._used(call["receipts"], outcomes, MOVED)

    def _after_change(self, call: Event, results: list[list[str]]) -> None:
        self._used(call["receipts"], [outcome for outcome, _ in results], MOVED)
        for receipt, (_, new) in zip(call["receipts"], results, strict=True):
            if new is not None:
                old = self.leases[receipt]
                self.leases[new] = Lease(old.group, old.name, new, self.now_ms + call["invisible"])

    # ------------------------------------------------------------ after a kill

    def check(self, store: Store) -> None:
        """Compare a reopened store with the book, and settle the call that was under way."""
        assert store.verify() == []
        pending, delivered = self._look(store)
        call, self.open_call = self.open_call, None
        lag = lags(store)
        happened = self._settle_messages(call, pending, delivered)
        self._settle_leases(call, lag, happened)
        self._lag = lag
        for sent in self.messages.values():
            found = PENDING if sent.name in pending else DELIVERED if sent.name in delivered else sent.place
            assert found == sent.place, f"{sent} is {found} now, after a kill in {call and call['op']}"
            if sent.place in (CANCELLED, UNSTORED):
                assert sent.name not in pending | delivered
            else:
                assert (sent.name in pending) + (sent.name in delivered) == 1, f"{sent} is lost or there twice"

    def _look(self, store: Store) -> tuple[set[str], set[str]]:
        """Return the names of all pending timers and of all messages in the topic; none is there twice."""
        timers: Counter[str] = Counter()
        after: tuple[int, int] | None = None
        while True:
            page = store.scan(after=after, limit=50)
            timers.update(timer.message.message_id or "" for timer in page.timers)
            if (after := page.next_after) is None:
                break
        assert store.pending().total == sum(timers.values())
        queues = next((topic.queues for topic in store.topics.list() if topic.name == TOPIC), 0)
        rows = [row for queue in range(queues) for row in store.read(TOPIC, queue, 0, 1_000_000).messages]
        names = Counter(str(row.message_id) for row in rows)
        doubled = [name for name, count in (timers + names).items() if count > 1]
        assert not doubled, f"stored twice: {doubled}"
        assert timers.keys() | names.keys() <= self.messages.keys()
        for row in rows:
            assert row.body.decode() == row.message_id
            assert getattr(row, "store_ms", 0) >= (self.messages[row.message_id].deliver_ms or 0) or not row.deliver_at_ms, (
                f"{row} came early"
            )
        return set(timers), set(names)

    def _settle_messages(self, call: Event | None, pending: set[str], delivered: set[str]) -> bool | None:
        """Settle what a killed send, cancel or tick did to messages; returns whether it happened, None when this does not tell."""
        op = call["op"] if call else ""
        if call and op.startswith("send"):
            sent = [self.messages[name] for name, _, _ in call["messages"]]
            there = [each.name in pending or each.name in delivered for each in sent]
            assert all(there) or not any(there), f"a part of a send was stored: {there}"
            if there[0]:
                self._after_send_batch(call, ["" if each.name in pending else None for each in sent])
                self.handles = [each for each in self.handles if each[0]]
            return there[0]
        if op == "tick":
            self._killed_ticks += 1
            due = sorted(self._due(), key=lambda each: (each.due_ms, each.order))
            for each in due:
                if each.name in delivered:
                    each.place, each.maybe_sealed = DELIVERED, 0
                else:
                    each.maybe_sealed = each.maybe_sealed or self._killed_ticks
        if call and op in ("cancel", "cancel_key"):
            found = [self.messages[name] for name in call["ids"]] if op == "cancel" else self._with_key(call["key"])
            open_ones = [each for each in found if each.place == PENDING]
            gone = [each for each in open_ones if each.name not in pending]
            certain = [each for each in open_ones if not each.maybe_sealed]
            assert not gone or all(each in gone for each in certain), "a part of a cancel was stored"
            for each in gone:
                each.place, each.maybe_sealed = CANCELLED, 0
            return bool(gone) if certain else None
        return None

    def _settle_leases(self, call: Event | None, lag: dict[str, list[int]], sent: bool | None) -> None:
        """Settle what a killed call did to leases, by where the groups stand before and after."""
        op = call["op"] if call else ""
        for group, (ready, in_flight, retry, dead) in self._lag.items():
            allowed = [[ready, in_flight, retry, dead]]
            if call and op.startswith("send") and sent:
                allowed = [[ready + sum(self.messages[n].place == DELIVERED for n, _, _ in call["messages"]), in_flight, retry, dead]]
            elif call and op == "pop" and call["group"] == group:
                count = min(call["wanted"], ready + retry)
                allowed += [[ready - part, in_flight + count, retry - count + part, dead] for part in range(count + 1)]
            elif call and op in ("ack", "release") and call["group"] == group:
                allowed += self._after_killed_use(call, lag[group], op)
            elif call and op == "change" and call["group"] == group:
                for receipt in call["receipts"]:
                    if LIVE in self.leases[receipt].states:
                        self.leases[receipt].states.add(MOVED)
            elif op == "tick":
                moved = self._after_killed_tick(group, lag[group])
                allowed = [[lag[group][0], in_flight - moved, retry + moved, dead]]
                assert lag[group][0] >= ready
            assert lag[group] in allowed, f"group {group} stands at {lag[group]} after a kill in {call}; allowed is {allowed}"

    def _after_killed_use(self, call: Event, now: list[int], op: str) -> list[list[int]]:
        leases = [self.leases[receipt] for receipt in call["receipts"]]
        sure = sum(lease.states == {LIVE} for lease in leases)
        possible = sum(LIVE in lease.states for lease in leases)
        ready, in_flight, retry, dead = self._lag[call["group"]]
        count = in_flight - now[1]
        for lease in leases:
            if LIVE in lease.states and count:
                lease.states = lease.states - {LIVE} | {ACKED if op == "ack" else MOVED}
        return [[ready, in_flight - n, retry + n * (op == "release"), dead] for n in range(max(sure, 1), possible + 1)]

    def _after_killed_tick(self, group: str, now: list[int]) -> int:
        expired = [lease for lease in self._expired() if lease.group == group]
        moved = self._lag[group][1] - now[1]
        assert moved >= 0
        if moved:
            for lease in expired:
                lease.states.add(MOVED)
        return moved

    # ------------------------------------------------------------ the end of a run

    def state_of(self) -> Event:
        """Return what the next worker needs to go on."""
        leases = {g: [[lease.receipt, lease.name] for lease in self.leases.values() if lease.group == g][-40:] for g in GROUPS}
        return {"now": self.now_ms, "handles": self.handles[-60:], "leases": leases}

    def drain(self, store: Store, clock: ManualClock) -> None:
        """Ack or pop everything there is, and check that each message comes exactly once a group, unless it was acked or cancelled."""
        self.check(store)
        came = {group: Counter[str]() for group in GROUPS}
        for group in GROUPS:
            for held in self._drain_now(store, group, came[group]):
                assert held.states != {LIVE}, f"{held} was broken by a crash"
            live = [lease for lease in self.leases.values() if lease.group == group and lease.states == {LIVE}]
            for lease in live[::2]:
                assert store.ack(lease.receipt) is AckOutcome.ACKED, f"{lease} does not hold any more"
                lease.states = {ACKED}
        while any(sum(lag[:3]) for lag in lags(store).values()) or store.pending().total:
            clock.advance(10_000)
            store.tick()
            for group in GROUPS:
                self._drain_now(store, group, came[group])
        for group in GROUPS:
            self._check_drained(group, came[group])
        assert store.verify() == []

    def _drain_now(self, store: Store, group: str, came: Counter[str]) -> list[Lease]:
        """Pop and ack what is ready; returns the leases of it that the book knows."""
        names = set()
        while popped := store.pop(TOPIC, group, max_messages=100):
            assert set(store.ack(popped)) == {AckOutcome.ACKED}
            names |= {message.message_id for message in popped}
            came.update(message.message_id for message in popped)
        return [lease for lease in self.leases.values() if lease.group == group and lease.name in names]

    def _check_drained(self, group: str, came: Counter[str]) -> None:
        acked: dict[str, set[bool]] = {}
        for lease in self.leases.values():
            if lease.group == group and ACKED in lease.states:
                acked.setdefault(lease.name, set()).update({True} if lease.states == {ACKED} else {True, False})
        for sent in self.messages.values():
            if sent.place in (CANCELLED, UNSTORED):
                wanted = {0}
            else:
                done = acked.get(sent.name, {False})
                wanted = {0} if done == {True} else {0, 1} if True in done else {1}
            assert came[sent.name] in wanted, f"{sent} came {came[sent.name]} times to group {group}, expected {wanted}"
