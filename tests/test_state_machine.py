"""Random histories of every engine and mixed pair against the oracle, checked after every step.

``RMQS_TEST_PROFILE=slow`` searches long, from a new seed each time (``RMQS_TEST_EXAMPLES`` histories); ``RMQS_TEST_SHRINK=1`` takes the
time to make a failing history short.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import ExitStack
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from rmqstore import CancelOutcome, ChangeOutcome, InitMode, Message, MessageBatch, Store
from rmqstore.message import retry_topic
from tests.oracle import Oracle, Timer
from tests.stores import DAY_MS, HOUR_MS, PAIRS, Pair, stores_of

TOPICS = {"a": 1, "b": 2}
GROUPS = ("g", "h")
TAGS = (None, "red", "blue")
KEYS = ((), ("k1",), ("k1", "k2"))
FILTERS = ("*", "red", "red || blue")
DELAYS = (-100_000, -1500, -1, 0, 1, 499, 500, 1000, 1001, 2500, 59_999, 60_000, HOUR_MS, 25 * HOUR_MS)
MOVES = (1, 100, 999, 1000, 1001, 5000, 60_000, HOUR_MS, DAY_MS, -1, -1000, -5000, -HOUR_MS, -DAY_MS)
INVISIBLE = (1, 1000, 5000, 60_000)

SLOW = os.environ.get("RMQS_TEST_PROFILE") == "slow"
PROFILE = settings(
    max_examples=int(os.environ.get("RMQS_TEST_EXAMPLES", "2000")) if SLOW else 40,
    stateful_step_count=60 if SLOW else 40,
    deadline=None,
    derandomize=not SLOW,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink) if os.environ.get("RMQS_TEST_SHRINK") else (Phase.generate,),
)

rows = st.tuples(
    st.sampled_from(sorted(TOPICS)), st.integers(0, 1), st.sampled_from(TAGS), st.sampled_from(KEYS), st.none() | st.sampled_from(DELAYS)
)


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
        self.marked_rows: dict[bytes, list[Message]] = {}
        self.settled = True

    def teardown(self) -> None:
        self.stack.close()

    @initialize(
        precision=st.sampled_from((1000, 100)), retries=st.sampled_from((16, 2, 0)), limit=st.sampled_from((1, 2, 4096)),
        in_flight=st.sampled_from((0, 0, 3)), share=st.sampled_from((0.2, 0.0, 1.0)), flush=st.sampled_from(("sync", "async")),
        memory=st.sampled_from((DAY_MS, 60_000)),
    )  # fmt: skip
    def start(self, precision: int, retries: int, limit: int, in_flight: int, share: float, flush: str, memory: int) -> None:
        self.settings: dict[str, Any] = {
            "precision_ms": precision, "max_retries": retries, "hand_over_limit": limit, "max_in_flight": in_flight, "retry_share": share,
            "flush": flush, "cancel_memory_ms": memory,
        }  # fmt: skip
        self.store: Store = self.stores.open(**self.settings)
        self.oracle = Oracle(precision_ms=precision, max_retries=retries, max_in_flight=in_flight, limit=limit, cancel_memory_ms=memory)
        for topic, queues in TOPICS.items():
            self.store.create_topic(topic, queues)
            self.oracle.create_topic(topic, queues)

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    # ------------------------------------------------------------ sending and cancelling

    def _message(self, row: tuple[str, int, str | None, tuple[str, ...], int | None]) -> Message:
        topic, queue, tag, keys, delay = row
        self.sent += 1
        return Message(
            topic, f"body {self.sent}".encode(), tag, keys, {"n": str(self.sent)}, message_id=f"m{self.sent}",
            deliver_at_ms=None if delay is None else self.now + delay, queue_id=queue % TOPICS[topic],
        )  # fmt: skip

    @rule(row=rows)
    def send(self, row: Any) -> None:
        message = self._message(row)
        receipt = self.store.send(message)
        timers = self.oracle.send([message], self.now)
        assert (receipt.handle is None) == (timers is None)
        if receipt.handle is not None and timers is not None:
            self.handles.append((receipt.handle, timers[0]))

    @rule(batch=st.lists(rows, max_size=8), mark=st.none() | st.sampled_from((b"w1", b"w2")), arrow=st.booleans())
    def send_batch(self, batch: Any, mark: bytes | None, arrow: bool) -> None:
        messages = [self._message(row) for row in batch]
        future = any(each.deliver_at_ms is not None and each.deliver_at_ms > self.now for each in messages)
        if mark is not None and (mark in self.marked or not future):
            return
        given: Any = messages
        if arrow:
            given = MessageBatch.of(messages).columns
        receipts = self.store.send_batch(given, marks=[] if mark is None else [mark])
        timers = self.oracle.send(messages, self.now) if messages else None
        assert [each.message_id for each in receipts] == [each.message_id for each in messages]
        assert [each.handle is None for each in receipts] == [timers is None] * len(messages)
        for each, timer in zip(receipts, timers or [], strict=False):
            assert each.handle is not None
            self.handles.append((each.handle, timer))
        if mark is not None:
            self.marked[mark] = (self.now, [each.handle for each in receipts])
            self.marked_rows[mark] = messages

    @precondition(lambda self: self.marked)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """The same call with the same mark, while its rows are in the future, stores nothing and gives the first handles (I1)."""
        mark = data.draw(st.sampled_from(sorted(self.marked)))
        at, handles = self.marked[mark]
        messages = self.marked_rows[mark]
        if max(m.deliver_at_ms or 0 for m in messages) <= self.now or self.oracle.latest_ms > at + 6 * DAY_MS:
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
        assert report.handed_over == self.oracle.hand_over(2**40)
        revived = self.oracle.revive(self.now)
        assert (report.retried, report.dead, report.parked) == (revived["retried"], revived["dead"], 0)
        self._take_over_retries()
        self.settled = self.settings["flush"] == "sync"
        wake = self.store.next_wake_ms()
        assert wake is None or wake > 0, "nothing is left to do, and yet the store wants to be woken"

    @rule(steps=st.integers(1, 8))
    def tick_that_breaks_off(self, steps: int) -> None:
        """A tick that ends in the middle, as by an error, between any two steps of the hand-over."""
        moved = 0
        for number, step in enumerate(self.store._hand_over.steps(self.now)):
            if step == "seal":
                self.oracle.seal(self.now)
            elif isinstance(step, tuple):
                self.settled = False
                moved += self.oracle.hand_over(self.oracle.limit)
                assert step[0] == moved
            if number + 1 == steps:
                return

    def _take_over_retries(self) -> None:
        for (topic, group), at in self.oracle.standings.items():
            if at.retry:
                lying = self.store.pops.read(retry_topic(group, topic), 0, 0, 100_000).messages
                self.oracle.reorder(topic, group, [(m.message_id, m.attempt, m.first_pop_ms) for m in lying])

    # ------------------------------------------------------------ popping

    @rule(
        topic=st.sampled_from(sorted(TOPICS)), group=st.sampled_from(GROUPS), most=st.sampled_from((1, 2, 5, 1024)),
        invisible=st.sampled_from(INVISIBLE), filter=st.sampled_from(FILTERS), attempt=st.none() | st.sampled_from(("x", "y")),
        queue=st.none() | st.integers(0, 1), columns=st.booleans(),
    )  # fmt: skip
    def pop(
        self, topic: str, group: str, most: int, invisible: int, filter: str, attempt: str | None, queue: int | None, columns: bool
    ) -> None:
        if queue is not None:
            queue %= TOPICS[topic]
        options = {"max_messages": most, "invisible": invisible, "filter": filter, "attempt_id": attempt, "queue": queue}
        if columns:
            batch = self.store.pop_batch(topic, group, **options)
            got = list(batch.messages)
            assert [m.receipt for m in got] == (batch.columns.column("receipt").to_pylist() if got else [])
            assert [m.attempt for m in got] == batch.columns.column("attempt").to_pylist()
        else:
            got = self.store.pop(topic, group, **options)
        tags = None if filter == "*" else frozenset(tag.strip() for tag in filter.split("||"))
        offsets = {each.queue_id: each.next_offset for each in self.store.offsets(group) if each.topic == topic}
        self.oracle.popped(
            topic, group, got, self.now, invisible, max_messages=most, tags=tags, offsets=offsets, queue=queue, attempt_id=attempt
        )

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
        for receipt, result in zip(receipts, self.store.change_invisible(receipts, invisible), strict=True):
            assert (result.receipt is not None) == (result.outcome is ChangeOutcome.CHANGED)
            allowed = self.oracle.change(receipt, result.receipt.text() if result.receipt else None, self.now + invisible)
            assert result.outcome in allowed, f"change of {receipt}: {result.outcome}, {allowed} would be true"

    @precondition(lambda self: self.oracle.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        receipts = self._receipts(data)
        for receipt, outcome in zip(receipts, self.store.release(receipts), strict=True):
            allowed = self.oracle.release(receipt)
            assert outcome in allowed, f"release of {receipt}: {outcome}, {allowed} would be true"
        self._take_over_retries()

    @rule(topic=st.sampled_from(sorted(TOPICS)), group=st.sampled_from(GROUPS), data=st.data())
    def reset_offset(self, topic: str, group: str, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, TOPICS[topic] - 1))
        end = len(self.oracle.queues[topic][number])
        to = data.draw(st.sampled_from((InitMode.MIN, InitMode.MAX)) | st.integers(0, end))
        self.store.reset_offset(topic, group, to, queue=number)
        self.oracle.reset(topic, group, number, {InitMode.MIN: 0, InitMode.MAX: end}[to] if isinstance(to, InitMode) else to)

    # ------------------------------------------------------------ closing, copying

    @precondition(lambda self: self.pair.durable)
    @rule()
    def reopen(self) -> None:
        self.store = self.stores.reopen(self.store, **self.settings)
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
        for topic in TOPICS:
            for group in GROUPS:
                assert self.store.lag(topic, group) == self.oracle.lag(topic, group)
        for number, queue in enumerate(self.oracle.queues["b"]):
            lying = self.store.read("b", number, 0, 100_000).messages
            assert [m.message_id for m in lying] == [entry.message.message_id for entry in queue]
        assert self.store.verify() == []


class DrainingMachine(StoreMachine):
    """Ends every history by letting all time pass and popping all there is."""

    def teardown(self) -> None:
        try:
            if hasattr(self, "store") and sys.exc_info()[0] is None:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        self.clock.set(max([self.now, *(timer.tick for timer in self.oracle.pending())]))
        for _ in range(40):
            self.clock.advance(120_000)
            self.tick()
            left = 0
            for topic in TOPICS:
                for group in GROUPS:
                    self.pop(topic, group, 1024, 60_000, "*", None, None, False)
                    lag = self.oracle.lag(topic, group)
                    left += lag.ready + lag.retry
            receipts = list(self.oracle.running())
            for receipt, outcome in zip(receipts, self.store.ack(receipts), strict=True):
                assert outcome in self.oracle.ack(receipt)
            if not left and not list(self.oracle.running()):
                break
        self.looks_like_the_oracle()
        assert not self.oracle.pending()
        sent = {str(timer.message.message_id): timer for timer in self.oracle.timers}
        for (_, message_id), times in self.oracle.deliveries.items():
            assert message_id not in sent or not sent[message_id].cancelled, "a cancelled timer was delivered"
            assert times >= 1
        for topic in TOPICS:
            for group in GROUPS:
                lag = self.store.lag(topic, group)
                assert (lag.ready, lag.in_flight, lag.retry) == (0, 0, 0)


@pytest.mark.timeout(0 if SLOW else 300)
@pytest.mark.clause("T1", "T2", "T3", "T10", "C1", "H1", "P1", "P5", "P14", "K1")
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_any_history_agrees_with_the_oracle(pair: Pair) -> None:
    machine = type("Machine", (DrainingMachine,), {"pair": pair})
    run_state_machine_as_test(machine, settings=PROFILE)
