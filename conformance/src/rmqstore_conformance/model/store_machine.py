"""Random calls on one store and its oracle, side by side: sending, cancelling, ticking, popping, closing and copying."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmqstore import CancelOutcome, ChangeOutcome, IllegalArgumentError, Message, MessageBatch, PoppedMessage, Store
from rmqstore.contract import PopRequest
from rmqstore.message import RESERVED_PREFIXES, retry_topic
from rmqstore_conformance.model.pop_oracle import Standing
from rmqstore_conformance.model.timer_oracle import Oracle, Timer
from rmqstore_conformance.model.transcript import Transcript
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, Pair, stores_of

TOPICS = {"a": 1, "b": 2}
GROUPS = ("g", "h", "f")
TAGS = (None, "red", "blue")
KEYS = ((), ("k1",), ("k1", "k2"))
DELAYS = (-100_000, -1500, -1, 0, 1, 499, 500, 1000, 1001, 2500, 59_999, 60_000, HOUR_MS, 25 * HOUR_MS)
MOVES = (1, 100, 999, 1000, 1001, 5000, 60_000, HOUR_MS, DAY_MS, -1, -1000, -5000, -HOUR_MS, -DAY_MS)
INVISIBLE = (1, 1000, 5000, 60_000)


FILTERS: dict[str, Callable[[Message], bool]] = {
    "*": lambda message: True,
    "red": lambda message: message.tag == "red",
    "red || blue": lambda message: message.tag in ("red", "blue"),
    "n > 9": lambda message: int(message.properties["n"]) > 9,
    "TAGS = 'red' OR n BETWEEN 5 AND 12": lambda message: message.tag == "red" or 5 <= int(message.properties["n"]) <= 12,
}
"""What each filter lets pass."""


class Ask(NamedTuple):
    """Another way to ask for a time, or for an order: properties, what they mean in ms from now or at all, a message group."""

    properties: Mapping[str, str] = MappingProxyType({})
    delay_ms: int | None = None
    at_ms: int | None = None
    message_group: str | None = None


ASKS = (
    Ask({"DELAY": "2"}, delay_ms=5000),
    Ask({"DELAY": "99"}, delay_ms=2 * HOUR_MS),
    Ask({"DELAY": "0"}),
    Ask({"DELAY": "0", "TIMER_DELAY_MS": "1500"}, delay_ms=1500),
    Ask({"TIMER_DELIVER_MS": "5", "TIMER_DELAY_SEC": "3"}, delay_ms=3000),
    Ask({"TIMER_DELIVER_MS": "5"}, at_ms=5),
    Ask(message_group="one"),
    Ask(message_group="two"),
)
FIFO_QUEUES = 3
LEVELS = {1: 1000, 3: 10_000, 18: 2 * HOUR_MS}
NO_ASK = Ask()

rows = st.tuples(
    st.sampled_from(sorted(TOPICS)), st.integers(0, 1), st.sampled_from(TAGS), st.sampled_from(KEYS), st.none() | st.sampled_from(DELAYS),
    st.sampled_from((NO_ASK,) * len(ASKS) + ASKS),
)  # fmt: skip


class StoreMachine(RuleBasedStateMachine):
    """One store and its oracle, side by side."""

    pair: Pair

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stores = self.stack.enter_context(stores_of(self.pair))
        self.clock = self.stores.clock
        self.sent = 0
        self.snapshots = 0
        self.handles: list[tuple[str, Timer]] = []
        self.marked: dict[bytes, tuple[int, list[str | None]]] = {}
        self.marked_rows: dict[bytes, tuple[list[Message], list[Message]]] = {}
        self.popped: list[PoppedMessage] = []
        self.settled = True

    def teardown(self) -> None:
        error = sys.exc_info()[1]
        if error is not None and hasattr(self, "transcript"):
            program = self.transcript.saved()
            error.add_note(f"{program} does the same to a store of its own:\n\n{program.read_text(encoding='utf-8')}")
        self.stack.close()

    @initialize(
        precision=st.sampled_from((1000, 100)), retries=st.sampled_from((16, 2, 0)), limit=st.sampled_from((1, 2, 4096)),
        in_flight=st.sampled_from((0, 0, 3)), share=st.sampled_from((0.2, 0.0, 1.0)), flush=st.sampled_from(("sync", "async")),
        memory=st.sampled_from((DAY_MS, 60_000)), init=st.sampled_from(("min", "min", "max")),
        retention=st.sampled_from((0, 5000, HOUR_MS, 3 * DAY_MS)), reclaim=st.sampled_from(("age", "consumed")),
        expiry=st.sampled_from((0, 8000, 8 * HOUR_MS)),
    )  # fmt: skip
    def start(
        self, precision: int, retries: int, limit: int, in_flight: int, share: float, flush: str, memory: int, init: str, retention: int,
        reclaim: str, expiry: int,
    ) -> None:  # fmt: skip
        self.settings: dict[str, Any] = {
            "precision_ms": precision, "max_retries": retries, "hand_over_limit": limit, "max_in_flight": in_flight, "retry_share": share,
            "flush": flush, "cancel_memory_ms": memory, "init": init, "retention_ms": retention, "reclaim": reclaim,
            "group_expiry_ms": expiry, "fifo_queues": FIFO_QUEUES,
        }  # fmt: skip
        self.transcript = Transcript(self.pair, self.stores, self.settings)
        self.store: Store = self.transcript.watch(self.stores.open(**self.settings))
        self.oracle = Oracle(
            precision_ms=precision, max_retries=retries, max_in_flight=in_flight, limit=limit, cancel_memory_ms=memory,
            starts_at_end=init == "max", group_expiry_ms=expiry,
        )  # fmt: skip
        for topic, queues in TOPICS.items():
            self.store.create_topic(topic, queues)
            self.oracle.create_topic(topic, queues)
            self.oracle.arranged.add(topic)

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def queues_of(self, topic: str) -> int:
        """Return how many queues a topic has; a new one has one."""
        return len(self.oracle.queues.get(topic, [])) or 1

    def group_queues_of(self, topic: str) -> int:
        """Return over how many queues message groups are spread: fixed by the first message with one, which may make some (P9)."""
        is_empty = not any(queue.entries for queue in self.oracle.queues.get(topic, ()))
        least = FIFO_QUEUES if is_empty and topic not in self.oracle.arranged else 1
        return self.oracle.group_queues.get(topic) or max(self.queues_of(topic), least)

    def mode_of(self, topic: str, group: str) -> bool:
        """Return whether a group pops a topic in order; before its first pop, what is usual for it."""
        fixed = self.oracle.standings.get((topic, group), Standing()).ordered
        return (group == "f" or (group, topic) == ("h", "b")) if fixed is None else fixed

    # ------------------------------------------------------------ sending and cancelling

    def _message(self, row: tuple[str, int, str | None, tuple[str, ...], int | None, Ask]) -> tuple[Message, Message]:
        """Return a message as it is sent, and as it has to be understood."""
        topic, queue, tag, keys, delay, ask = row
        if delay is not None:
            ask = NO_ASK
        self.sent += 1
        own = {"n": str(self.sent)}
        sent = Message(
            topic, f"body {self.sent}".encode(), tag, keys, {**ask.properties, **own}, ask.message_group, message_id=f"m{self.sent}",
            deliver_at_ms=None if delay is None else self.now + delay, queue_id=None if ask.message_group else queue % TOPICS[topic],
        )  # fmt: skip
        due = sent.deliver_at_ms if ask.delay_ms is None else self.now + ask.delay_ms
        queue_id = zlib.crc32(ask.message_group.encode()) % self.group_queues_of(topic) if ask.message_group else sent.queue_id
        return sent, msgspec.structs.replace(sent, properties=own, deliver_at_ms=due if ask.at_ms is None else ask.at_ms, queue_id=queue_id)

    def _spread(self, meant: Sequence[Message]) -> None:
        for topic in {each.topic for each in meant if each.message_group is not None}:
            self.oracle.group_queues[topic] = self.group_queues_of(topic)
            self.oracle.create_topic(topic, self.oracle.group_queues[topic])

    @rule(row=rows, level=st.sampled_from((None, None, None, *LEVELS)))
    def send(self, row: Any, level: int | None) -> None:
        message, meant = self._message(row)
        if level is not None and meant.deliver_at_ms is None and meant.message_group is None:
            meant = msgspec.structs.replace(meant, deliver_at_ms=self.now + LEVELS[level])
        else:
            level = None
        self._spread([meant])
        receipt = self.store.send(message, delay_level=level)
        timers = self.oracle.send([meant], self.now)
        assert (receipt.handle is None) == (timers is None)
        if receipt.handle is not None and timers is not None:
            self.handles.append((receipt.handle, timers[0]))

    @rule(
        batch=st.lists(rows, max_size=8), mark=st.none() | st.sampled_from((b"w1", b"w2")), arrow=st.booleans(),
        level=st.sampled_from((None, None, None, None, *LEVELS)),
    )  # fmt: skip
    def send_batch(self, batch: Any, mark: bytes | None, arrow: bool, level: int | None) -> None:
        pairs = [self._message(row) for row in batch]
        messages, meant = [sent for sent, _ in pairs], [each for _, each in pairs]
        if level is not None and not any(each.message_group for each in messages):
            meant = [msgspec.structs.replace(each, deliver_at_ms=self.now + LEVELS[level]) for each in meant]
        else:
            level = None
        future = any(each.deliver_at_ms is not None and each.deliver_at_ms > self.now for each in meant)
        if mark is not None and (mark in self.marked or not future or level is not None):
            return
        given: Any = messages
        if arrow:
            given = MessageBatch.of(messages).columns
        self._spread(meant)
        receipts = self.store.send_batch(given, marks=[] if mark is None else [mark], delay_level=level)
        timers = self.oracle.send(meant, self.now) if messages else None
        assert [each.message_id for each in receipts] == [each.message_id for each in messages]
        assert [each.handle is None for each in receipts] == [timers is None] * len(messages)
        for each, timer in zip(receipts, timers or [], strict=False):
            assert each.handle is not None
            self.handles.append((each.handle, timer))
        if mark is not None:
            self.marked[mark] = (self.now, [each.handle for each in receipts])
            self.marked_rows[mark] = messages, meant

    @rule(topic=st.sampled_from(sorted(TOPICS)), count=st.integers(2, 8))
    def fill(self, topic: str, count: int) -> None:
        """Send messages for now in one call, so that there is something to consume."""
        pairs = [self._message((topic, number % 2, TAGS[number % len(TAGS)], (), None, NO_ASK)) for number in range(count)]
        self.store.send_batch([sent for sent, _ in pairs])
        self.oracle.send([meant for _, meant in pairs], self.now)

    @precondition(lambda self: self.marked)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """The same call with the same mark, while its rows are in the future, stores nothing and gives the first handles (I1)."""
        mark = data.draw(st.sampled_from(sorted(self.marked)))
        at, handles = self.marked[mark]
        messages, meant = self.marked_rows[mark]
        if max(m.deliver_at_ms or 0 for m in meant) <= self.now or self.oracle.latest_ms > at + 6 * DAY_MS:
            return
        receipts = self.store.send_batch(messages, marks=[mark])
        assert receipts.repeated
        assert [each.handle for each in receipts] == handles

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(0, len(self.handles) - 1), min_size=1, max_size=4))
        outcomes = self.store.cancel([self.handles[index][0] for index in chosen])
        for index, outcome in zip(chosen, outcomes, strict=True):
            allowed = self.oracle.cancel(self.handles[index][1])
            assert outcome in allowed, f"cancel of {self.handles[index][1]}: {outcome}, {allowed} would be true"

    @rule(topic=st.sampled_from(sorted(TOPICS)), key=st.sampled_from(("k1", "k2", "k3")))
    def cancel_key(self, topic: str, key: str) -> None:
        outcomes = Counter(self.store.cancel_key(topic, key))
        assert outcomes.pop(CancelOutcome.CANCELLED, 0) == self.oracle.cancel_key(topic, key)
        assert set(outcomes) <= {CancelOutcome.ALREADY_DELIVERED}

    # ------------------------------------------------------------ time

    @rule(ms=st.sampled_from(MOVES))
    def move_clock(self, ms: int) -> None:
        self.clock.set(self.now + ms)

    @rule()
    def tick(self) -> None:
        report = self.store.tick()
        self.oracle.seal(self.now)
        assert report.handed_over == self.oracle.hand_over(2**40, self.now)
        revived = self.oracle.revive(self.now)
        assert (report.retried, report.dead, report.parked) == (revived["retried"], revived["dead"], 0)
        self._take_over_retries()
        begins = {(topic.name, queue): first for topic in self.store.topics() for queue, first in enumerate(topic.min_offsets)}
        settings = self.settings
        by_consumption = settings["reclaim"] == "consumed"
        assert report.expired == self.oracle.reclaimed(
            begins, self.now, retention_ms=settings["retention_ms"], by_consumption=by_consumption
        )
        self.settled = self.settings["flush"] == "sync"
        wake = self.store.next_wake_ms()
        assert wake is None or wake > 0, "nothing is left to do, and yet the store wants to be woken"

    @rule(steps=st.integers(1, 8))
    def tick_that_breaks_off(self, steps: int) -> None:
        """A tick that ends in the middle, as by an error, between any two steps of the hand-over."""
        self.transcript.note(f"print(*zip(range({steps}), store._hand_over.steps(clock.now_ms())))  # a tick that breaks off")
        moved = 0
        for number, step in enumerate(self.store._hand_over.steps(self.now)):
            if step == "seal":
                self.oracle.seal(self.now)
            elif isinstance(step, tuple):
                self.settled = False
                moved += self.oracle.hand_over(self.oracle.limit, self.now)
                assert step[0] == moved
            if number + 1 == steps:
                return

    def _take_over_retries(self) -> None:
        for (topic, group), at in self.oracle.standings.items():
            if not at.retry.entries:
                continue
            batch = self.store.pops.read(retry_topic(group, topic), 0, at.retry.first, 100_000)
            lying = [(m.queue_offset, m.message_id, m.attempt, m.first_pop_ms) for m in batch.messages if isinstance(m, PoppedMessage)]
            # What the upkeep of this very tick took is checked by where the queue begins.
            begin = lying[0][0] if lying else len(at.retry.entries)
            gone = list(enumerate(at.retry.entries))[at.retry.first : begin]
            taken = [(offset, str(each.message.message_id), each.counted, each.first_pop_ms) for offset, each in gone]
            self.oracle.reorder(topic, group, taken + lying)

    # ------------------------------------------------------------ popping

    @rule(
        topic=st.sampled_from(sorted(TOPICS)), group=st.sampled_from(GROUPS), most=st.sampled_from((1, 2, 5, 1024)),
        invisible=st.sampled_from(INVISIBLE), filter=st.sampled_from(("*", "*", *FILTERS)), attempt=st.none() | st.sampled_from(("x", "y")),
        queue=st.none() | st.integers(0, 1), form=st.sampled_from(("messages", "columns", "request")),
        order=st.sampled_from((None, None, None, False, True)),
        stubborn=st.booleans(),
    )  # fmt: skip
    def pop(
        self, topic: str, group: str, most: int, invisible: int, filter: str, attempt: str | None, queue: int | None, form: str,
        order: bool | None, stubborn: bool,
    ) -> None:  # fmt: skip
        fixed = self.oracle.standings.get((topic, group), Standing()).ordered
        if fixed is not None and order not in (fixed, None) and stubborn:
            with pytest.raises(IllegalArgumentError, match="as its first pop fixed"):
                self.store.pop(topic, group, order=order)
            return
        order = self.mode_of(topic, group) if order is None or fixed is not None else order
        if queue is not None:
            queue %= self.queues_of(topic)
        options: dict[str, Any] = {"max_messages": most, "order": order, "filter": filter, "attempt_id": attempt, "queue": queue}
        rest = None
        if form == "columns":
            batch = self.store.pop_batch(topic, group, invisible_ms=invisible, **options)
            got = [each for each in batch.messages if isinstance(each, PoppedMessage)]
            assert [m.receipt for m in got] == (batch.columns.column("receipt").to_pylist() if got else [])
            assert [m.attempt for m in got] == batch.columns.column("attempt").to_pylist()
        elif form == "request":
            request = PopRequest(topic, group, invisible_ms=invisible, init=self.store.config.init, **options)
            result, ticket = self.store.pops.pop(request, self.now)
            self.store.pops.sync(ticket)
            got, rest = result.messages.messages(), result.rest
        else:
            got = self.store.pop(topic, group, invisible_ms=invisible, **options)
        self.popped = [*self.popped, *got][-20:]
        offsets = {each.queue_id: each.next_offset for each in self.store.offsets(group) if each.topic == topic}
        self.oracle.popped(
            topic, group, got, self.now, invisible, max_messages=most, passes=FILTERS[filter], offsets=offsets, order=order, queue=queue,
            attempt_id=attempt,
        )  # fmt: skip
        assert rest in (None, self.oracle.rest(topic, group, queue))

    @rule(topic=st.sampled_from(sorted(TOPICS)), group=st.sampled_from(GROUPS), rounds=st.integers(1, 3), data=st.data())
    def work(self, topic: str, group: str, rounds: int, data: st.DataObject) -> None:
        """Pop, pop again, ack a part, wait until a lease ends, and tick; some times over, so that runs go on and attempts are used up."""
        order = self.mode_of(topic, group)
        if not self.oracle.is_ready(topic, group):
            self.fill(topic, 4)
        for _ in range(rounds):
            for most in data.draw(st.sampled_from(((5,), (2, 2), (1, 5)))):
                self.pop(topic, group, most, data.draw(st.sampled_from(INVISIBLE)), "*", None, None, "messages", order, False)
                self.looks_like_the_oracle()
            held = sorted(each.receipt for each in self.oracle.held_by(topic, group))
            chosen = data.draw(st.lists(st.sampled_from(held), max_size=3, unique=True)) if held else []
            for receipt, outcome in zip(chosen, self.store.ack(chosen), strict=True):
                assert outcome in self.oracle.ack(receipt)
            ends = [each.expiry for each in self.oracle.held_by(topic, group)]
            self.clock.set(max(self.now, min(ends, default=self.now)))
            self.tick()
            self.looks_like_the_oracle()

    def _receipts(self, data: st.DataObject) -> list[str]:
        known = list(self.oracle.leases)
        return [known[-1 - index % len(known)] for index in data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))]

    @precondition(lambda self: self.oracle.leases)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        receipts = self._receipts(data)
        for receipt, outcome in zip(receipts, self.store.ack(receipts), strict=True):
            allowed = self.oracle.ack(receipt)
            assert outcome in allowed, f"ack of {receipt}: {outcome}, {allowed} would be true"

    @precondition(lambda self: self.oracle.leases)
    @rule(data=st.data(), invisible=st.sampled_from(INVISIBLE))
    def change_invisible(self, data: st.DataObject, invisible: int) -> None:
        receipts = self._receipts(data)
        for receipt, result in zip(receipts, self.store.change_invisible(receipts, invisible_ms=invisible), strict=True):
            assert (result.receipt is not None) == (result.outcome is ChangeOutcome.CHANGED)
            allowed = self.oracle.change(receipt, result.receipt.text() if result.receipt else None, self.now + invisible)
            assert result.outcome in allowed, f"change of {receipt}: {result.outcome}, {allowed} would be true"

    @precondition(lambda self: self.oracle.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        receipts = self._receipts(data)
        for receipt, outcome in zip(receipts, self.store.release(receipts), strict=True):
            allowed = self.oracle.release(receipt, self.now)
            assert outcome in allowed, f"release of {receipt}: {outcome}, {allowed} would be true"
        self._take_over_retries()

    # ------------------------------------------------------------ closing, copying

    @precondition(lambda self: self.pair.durable)
    @rule()
    def reopen(self) -> None:
        self.transcript.note("store.close()")
        self.store = self.transcript.watch(self.stores.reopen(self.store, **self.settings))
        self.oracle.until_ms = -1
        self.settled = True

    @precondition(lambda self: self.pair.durable)
    @rule(switch=st.booleans())
    def snapshot(self, switch: bool) -> None:
        self.snapshots += 1
        name = f"copy{self.snapshots}"
        self.store.snapshot(self.stores.root / name)
        copy = self.stores.open(name, **self.settings)
        original, self.store, settled, self.settled = self.store, copy, self.settled, True
        self.looks_like_the_oracle()
        if switch:
            self.transcript.note("store.close()")
            self.store = self.transcript.watch(copy)
            original.close()
            self.oracle.until_ms = -1
        else:
            copy.close()
            self.store, self.settled = original, settled

    # ------------------------------------------------------------ after every step

    @invariant()
    def looks_like_the_oracle(self) -> None:
        if not hasattr(self, "store"):
            return
        if not self.settled:
            self.store.flush()
            self.store.timers.forget(self.store.pops.durable_cursor())
        self._timers_look_right()
        for group in GROUPS:
            self.oracle.take_over_letters(group, self.store.dead_letters(group))
            for topic in TOPICS:
                assert self.store.lag(topic, group) == self.oracle.lag(topic, group)
                self._readiness_looks_right(topic, group)
        self.oracle.check_subscriptions(self.store.subscriptions())
        assert self.oracle.running_leases() == [
            (each.topic, each.group, each.queue_id, each.queue_offset, each.message_id, each.attempt, each.first_pop_ms, each.expiry_ms,
             each.is_backing_off, each.reason, each.receipt)
            for each in self.store.leases()
        ]  # fmt: skip
        self._queues_look_right()
        assert self.store.verify() == []

    def _timers_look_right(self) -> None:
        pending = self.oracle.pending()
        edges = sorted({0, self.now, self.now + 1, self.now + 60_000, self.now // 60_000 * 60_000, *(t.due for t in pending[:3]), 2**50})
        counts = self.store.pending(edges)
        assert counts.total == len(pending)
        assert list(counts.counts) == [sum(a <= t.due < b for t in pending) for a, b in zip(edges, edges[1:], strict=False)]
        assert counts.earliest_ms == min((t.due for t in pending), default=None)
        assert counts.latest_ms == max((t.due for t in pending), default=None)
        page = self.store.scan(limit=1000)
        assert [p.message.message_id for p in page.timers] == [t.message.message_id for t in pending]
        wake, waiting = self.store.next_wake_ms(), self.oracle.wake_ms()
        if waiting is not None:
            assert wake is not None, f"something happens in {waiting - self.now} ms, and the store would sleep for ever"
            assert wake <= max(waiting - self.now, 0)

    def _readiness_looks_right(self, topic: str, group: str) -> None:
        ready = self.store.pops.ready(topic, group, "*", self.now)
        assert (ready is True) == self.oracle.is_ready(topic, group)
        ends = [held.expiry for held in self.oracle.held_by(topic, group)]
        if ready is not True:
            assert ready == min(ends, default=None)

    def _queues_look_right(self) -> None:
        found = {topic.name: topic for topic in self.store.topics(system=True)}
        assert {name for name in found if not name.startswith(RESERVED_PREFIXES)} == set(self.oracle.queues)
        for name, queues in self.oracle.queues.items():
            assert found[name].min_offsets == tuple(queue.first for queue in queues)
            assert found[name].max_offsets == tuple(len(queue.entries) for queue in queues)
            for number, queue in enumerate(queues):
                lying = self.store.read(name, number, 0, 100_000).messages
                assert [m.message_id for m in lying] == [entry.message.message_id for entry in queue.entries[queue.first :]]
        for (name, group), at in self.oracle.standings.items():
            retry = found.get(retry_topic(group, name))
            assert (retry is None) == (not at.retry.entries)
            assert retry is None or (retry.min_offsets, retry.max_offsets) == ((at.retry.first,), (len(at.retry.entries),))
