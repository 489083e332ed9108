"""Sending for now and for later, in every form and with marks; cancelling; time that passes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rmqstore import CancelOutcome, Message, MessageBatch
from rmqstore.message import MAX_TIME_MS
from rmqstore_conformance.fidelity import differences, matching
from rmqstore_conformance.model.chance import FIFO_QUEUES, Chance
from rmqstore_conformance.model.machine import Machine, operation
from rmqstore_conformance.model.timer_oracle import MarkedCall, Timer
from rmqstore_conformance.stores import HOUR_MS, MINUTE_MS

LEVELS_MS: Final = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""RocketMQ's delay levels (T4), written down once more."""
REQUESTS: Final[tuple[Mapping[str, str], ...]] = (
    {"DELAY": "2"},
    {"DELAY": "99"},
    {"DELAY": "0"},
    {"DELAY": "0", "TIMER_DELAY_MS": "1500"},
    {"TIMER_DELIVER_MS": "5", "TIMER_DELAY_SEC": "3"},
    {"TIMER_DELIVER_MS": "5"},
)
_REQUEST_NAMES: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_UNKNOWN: Final = ("", "x", "AAAA", "ASqYmcgAAAABAAAAAAAAAAEAAAGLz-VoAKm-d7g")
"""Texts that are no handle of the store."""


_BETWEEN: Final = (
    *("send", "send_batch", "fill", "send_again", "cancel", "cancel", "cancel_key", "pop", "attempt_again", "ack", "release", "reject"),
    *("change_invisible", "reset_offset", "create_topic", "delete_topic", "delete_group", "set_group", "find", "refused_call"),
)
"""Operations that other threads may come with while a tick is under way; those that tick themselves wait for it."""


class SendingMachine(Machine):
    # ------------------------------------------------------------ what is sent

    def group_queues_of(self, topic: str) -> int:
        """Return over how many queues message groups are spread: fixed by the first message with one, which may make some (P9)."""
        is_empty = not any(queue.entries for queue in self.oracle.queues.get(topic, ()))
        least = FIFO_QUEUES if is_empty and topic not in self.oracle.arranged else 1
        return self.oracle.group_queues.get(topic) or max(self.queues_of(topic), least)

    def drawn(self, chance: Chance, *, topic: str | None = None, may_wait: bool = True, may_group: bool = True) -> Message:
        """Return a new message, drawn from the families of the plan."""
        self.sent += 1
        label, data = str(self.sent), self.plan.data
        topic = topic or chance.pick(self.topics)
        asks = chance.weighted({"now": 4, "later": 4, "request": 1} if may_wait else {"now": 1})
        group = data.message_group(chance.pick("abc")) if may_group and self.has_fifo and asks == "now" and chance.one_in(4) else None
        request = chance.pick(REQUESTS) if asks == "request" else {}
        deliver_at_ms = None
        if asks == "later":
            deliver_at_ms = min(max(self.now + chance.pick(self.plan.delays_ms), 0), MAX_TIME_MS)
            if chance.one_in(4) and (pending := self.oracle.pending()):
                # Another call puts into a tick that has timers, maybe of an earlier open.
                deliver_at_ms = chance.pick(pending).due
            elif chance.one_in(4):
                # Its tick is in the next minute, by which timers may be counted.
                deliver_at_ms = min(deliver_at_ms // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1, MAX_TIME_MS)
        one, two, three = self.plan.keys
        return Message(
            topic,
            data.body(label),
            chance.pick(self.plan.tags),
            chance.pick(((), (one,), (one, two), (three, two), (two, two))),
            {**data.properties(label), **request, "n": label},
            group,
            deliver_at_ms,
            None if chance.one_in(8) else data.id(label),
            None if chance.one_in(3) else data.born_ms(label),
            None if group is not None or chance.one_in(4) else chance.number(0, self.plan.topics[topic] - 1),
        )

    def understood(self, message: Message, deliver_ms: int | None) -> Message:
        """Return a message as it has to be stored now: its time, its properties without requests, its queue if it is fixed."""
        kept = {name: value for name, value in message.properties.items() if name not in _REQUEST_NAMES}
        due = deliver_ms if deliver_ms is not None else message.deliver_at_ms
        if due is None:
            due = self._requested_ms(message.properties)
        queue = message.queue_id
        if message.message_group is not None:
            queue = zlib.crc32(message.message_group.encode()) % self.group_queues_of(message.topic)
        born_ms = self.now if message.born_ms is None else message.born_ms
        return msgspec.structs.replace(message, properties=kept, deliver_at_ms=due, queue_id=queue, born_ms=born_ms)

    def _requested_ms(self, properties: Mapping[str, str]) -> int | None:
        for name in _REQUEST_NAMES:
            number = int(properties.get(name, 0))
            if name == "DELAY" and number >= 1:
                return self.now + LEVELS_MS[min(number, 18) - 1]
            if name in properties and name != "DELAY":
                return {"TIMER_DELAY_SEC": self.now + 1000 * number, "TIMER_DELAY_MS": self.now + number}.get(name, number)
        return None

    # ------------------------------------------------------------ calls that send

    def _call(self, sent: Sequence[Message], marks: Sequence[bytes], form: Mapping[str, Any]) -> list[Any]:
        """Make the call; form: one message alone, columns, rows, and the time of the whole call."""
        options = {name: value for name, value in form.items() if name in ("deliver_at_ms", "delay_level")}
        if form.get("single"):
            return [self.store.send(sent[0], marks=marks, **options)]
        given: Any = MessageBatch.of(sent).columns if form.get("columns") else list(sent)
        return list(self.store.send_batch(given, marks=marks, **options))

    def transmit(self, sent: Sequence[Message], marks: Sequence[bytes], form: Mapping[str, Any]) -> str:
        """Send and take over; returns what happened: now, timers or repeated."""
        level = form.get("delay_level")
        deliver_ms = form.get("deliver_at_ms") if level is None else self.now + LEVELS_MS[level - 1]
        meant = [self.understood(each, deliver_ms) for each in sent]
        receipts = self._call(sent, marks, form)
        assert len(receipts) == len(sent)
        answers = self.oracle.answers_to(marks, is_timers=self.oracle.are_timers(meant, self.now, marked=bool(marks)))
        if any(each.repeated for each in receipts):
            first = ([each.message_id for each in receipts], [each.handle for each in receipts])
            told = [None if each is None else ([row.message_id for row in each.messages], list(each.handles)) for each in answers]
            assert first in told, f"the answer to {list(marks)} is not that of the first call: {first}, {told}"
            return "repeated"
        assert None in answers, f"one of {list(marks)} is the mark of an earlier call"
        self._spread(meant)
        for each, receipt in zip(sent, receipts, strict=True):
            assert each.message_id in (None, receipt.message_id)
            # Those made with marks follow from mark and row, so they come again with them.
            assert receipt.message_id not in self.oracle.made_ids or marks or each.message_id is not None, "an id was made twice"
            self.oracle.made_ids.add(receipt.message_id)
        meant = [msgspec.structs.replace(each, message_id=receipt.message_id) for each, receipt in zip(meant, receipts, strict=True)]
        is_timers = self.oracle.are_timers(meant, self.now, marked=bool(marks))
        handles = [each.handle for each in receipts]
        assert [each is None for each in handles] == [not is_timers] * len(handles)
        if is_timers:
            meant = self._queues_of_timers(meant, handles)
            for timer, handle in zip(self.oracle.send(meant, self.now, marked=bool(marks)) or (), handles, strict=True):
                timer.handle, timer.since = str(handle), len(self.lives) - 1
        else:
            self.arrived(meant)
            self.is_unsettled = False
        if marks:
            self.oracle.mark(MarkedCall(tuple(marks), is_timers, meant, handles, self.now, {**form}, list(sent), len(self.lives) - 1))
        return "timers" if is_timers else "now"

    def _spread(self, meant: Sequence[Message]) -> None:
        for topic in {each.topic for each in meant if each.message_group is not None}:
            self.oracle.group_queues[topic] = self.group_queues_of(topic)
            self.oracle.create_topic(topic, self.oracle.group_queues[topic])

    def _queues_of_timers(self, meant: Sequence[Message], handles: Sequence[str | None]) -> list[Message]:
        """Take over which queues the store chose for timers: when they are sent (H2)."""
        chosen: dict[str, int | None] = {}
        if any(each.queue_id is None for each in meant):
            chosen = {each.handle.text(): each.message.queue_id for page in self._pages(self.store) for each in page.timers}
        placed = []
        for message, handle in zip(meant, handles, strict=True):
            queue = message.queue_id if message.queue_id is not None else chosen[str(handle)]
            assert queue is not None
            assert message.queue_id is not None or queue < self.queues_of(message.topic)
            placed.append(msgspec.structs.replace(message, queue_id=queue))
        return placed

    def arrived(self, messages: Sequence[Message], *, in_order: bool = True) -> None:
        """Check that messages of one call came to the ends of their queues, whole and in order; take over queues that the store chose."""
        for topic in dict.fromkeys(each.topic for each in messages):
            rows = [each for each in messages if each.topic == topic]
            self.oracle.create_topic(topic, max([1, *(1 + each.queue_id for each in rows if each.queue_id is not None)]))
            for number, queue in enumerate(self.oracle.queues[topic]):
                at = 0
                for seen in self._read(self.store, topic, number, len(queue.entries)):
                    place = {"queue_offset": len(queue.entries), "store_ms": self.now, "attempt": 0, "first_pop_ms": None}
                    what = f"{seen.message_id!r} did not come as it was sent"
                    found = matching(what, rows, lambda each: differences(each, seen, **place))  # noqa: B023 - called at once
                    row = next(number for number, each in enumerate(rows) if each is found)
                    assert row >= at or not in_order, f"{seen.message_id!r} is out of its order in queue {number} of {topic!r}"
                    at = row
                    self.oracle.enqueue(msgspec.structs.replace(rows.pop(row), queue_id=number), self.now)
            assert not rows, f"did not come to {topic!r}: {rows}"

    @operation(5)
    def send(self, chance: Chance) -> None:
        message = self.drawn(chance)
        form: dict[str, Any] = {"single": True}
        if message.message_group is None and self.understood(message, None).deliver_at_ms is None and chance.one_in(4):
            form |= chance.pick(({"delay_level": 1}, {"delay_level": 3}, {"deliver_at_ms": self.now + 2500}))
        self._noted_send("send", [message], self._new_marks(chance), form)

    @operation(6)
    def send_batch(self, chance: Chance) -> None:
        """Send some messages in one call, as rows or columns."""
        topic = chance.pick(self.topics) if chance.one_in(2) else None
        is_fifo = chance.one_in(3)
        messages = [self.drawn(chance, topic=topic, may_wait=not is_fifo, may_group=is_fifo) for _ in chance.some((0,), 8)]
        form: dict[str, Any] = {"columns": chance.one_in(2)}
        if not any(each.message_group for each in messages) and chance.one_in(4):
            form |= chance.pick(({"delay_level": 1}, {"deliver_at_ms": self.now + HOUR_MS}, {"deliver_at_ms": self.now}))
        self._noted_send("send_batch", messages, self._new_marks(chance), form)

    @operation(4)
    def fill(self, chance: Chance) -> None:
        """Send messages for now in one call, so that there is something to consume."""
        self.filled(chance, chance.pick(self.topics), chance.number(2, 8))

    def filled(self, chance: Chance, topic: str, count: int) -> None:
        self.transmit([self.drawn(chance, topic=topic, may_wait=False) for _ in range(count)], (), {"columns": chance.one_in(2)})

    def _new_marks(self, chance: Chance) -> list[bytes]:
        """Return marks that no call of either side has, mostly none."""
        if not chance.one_in(3):
            return []
        self.sent += 1
        return [self.plan.data.mark(f"{self.sent} {number}") for number in range(chance.number(1, 3))]

    def _noted_send(self, name: str, sent: Sequence[Message], marks: Sequence[bytes], form: Mapping[str, Any]) -> None:
        what = self.transmit(sent, marks, form)
        shape = "columns" if form.get("columns") else "rows"
        self.saw(name, what, "marked" if marks else shape)
        for each in sent:
            if each.topic in self.deleted:
                self.saw(name, what, "topic made anew")
                self.deleted.discard(each.topic)

    # ------------------------------------------------------------ marks again

    @operation(4, when=lambda machine: machine.oracle.marked)
    def send_again(self, chance: Chance) -> None:
        """Make a call with marks again: all its marks, one of them, others in front; it does nothing and gives the first answer (I1)."""
        calls = list(self.oracle.marked.values())
        # Few are of timers that are due late, and a mark has to outlive these too.
        late = [each for each in calls if any(timer and self.distant(timer) for timer in map(self._timer_of, each.handles))]
        call = chance.pick(late if late and not chance.one_in(3) else calls)
        sent = call.sent
        marks = list(call.marks)
        own_ids = all(each.message_id is not None for each in sent)
        forms = ["all marks", *(["one mark", "others in front"] if own_ids else []), *(["fewer rows"] if len(sent) > 1 else [])]
        how = chance.pick(forms)
        if how == "one mark":
            marks = [chance.pick(marks)]
        elif how == "others in front":
            self.sent += 1
            marks = [self.plan.data.mark(f"{self.sent} in front"), chance.pick(marks)]
        forgettable = self.oracle.may_be_forgotten(call)
        if how == "fewer rows":
            names_a_time = "deliver_at_ms" in call.form or "delay_level" in call.form
            names_a_time |= any(self.understood(each, None).deliver_at_ms is not None for each in sent[:-1])
            if call.is_timers and names_a_time and self.oracle.answers_to(marks, is_timers=True) == [call]:
                self.refused(lambda: self._call(sent[:-1], marks, call.form), "a repeat carries the same messages")
                self.saw("send again", "refused", how)
            return
        what = self.transmit(sent, marks, call.form)
        side = "later" if call.is_timers else "now"
        self.saw("send again", what, f"{side}, {how}")
        self.saw("send again", what, f"{side}, {self.life_since(call.life)}")
        self.saw("send again", what, f"{side}, {'past' if forgettable else 'within'} the memory")
        for message, handle in zip(call.messages, call.handles, strict=True) if what == "repeated" else ():
            timer = self._timer_of(handle)
            self.saw("send again", what, f"{side}, {self._stage_of(timer) if timer else 'sent'}")
            if message.topic in self.deleted:
                self.saw("send again", what, f"{side}, topic deleted")

    @operation(2, when=lambda machine: machine.oracle.marked)
    def mark_on_the_other_side(self, chance: Chance) -> None:
        """Send with the mark of a call of the other side: the two are kept apart (I1)."""
        call = chance.pick(list(self.oracle.marked.values()))
        mark = chance.pick(call.marks)
        if (not call.is_timers, mark) in self.oracle.marked:
            return
        message = self.drawn(chance, may_wait=False)
        if message.message_group is not None:
            message = msgspec.structs.replace(message, message_group=None)
        form = {"single": True} if call.is_timers else {"single": True, "deliver_at_ms": self.now + 5000}
        self.saw("mark on the other side", self.transmit([message], [mark], form))

    # ------------------------------------------------------------ cancelling

    def _timer_of(self, handle: str | None) -> Timer | None:
        return next((timer for timer in self.oracle.timers if timer.handle == handle), None)

    def _stage_of(self, timer: Timer) -> str:
        if timer.cancelled:
            return "cancelled"
        if timer.delivered:
            return "delivered"
        return "sealed" if timer.sealed else "far" if self.distant(timer) else "pending"

    @operation(4, when=lambda machine: machine.oracle.timers)
    def cancel(self, chance: Chance) -> None:
        among = self.oracle.timers if chance.one_in(2) else self.oracle.timers[-10:]
        self.cancelled(chance.some(among, 4), chance.pick(_UNKNOWN))

    def cancelled(self, chosen: Sequence[Timer], garbage: str = "") -> None:
        stages = [self._stage_of(timer) for timer in chosen]
        outcomes = self.store.cancel([*(timer.handle for timer in chosen), garbage])
        assert outcomes.pop() is CancelOutcome.UNKNOWN
        for timer, stage, outcome in zip(chosen, stages, outcomes, strict=True):
            allowed = self.oracle.cancel(timer)
            assert outcome in allowed, f"cancel of a {stage} timer {timer}: {outcome}, {allowed} would be true"
            self.saw("cancel", outcome.name, stage)
            self.saw("cancel", outcome.name, self.life_since(timer.since))

    @operation(2, "cancel_by_key")
    def cancel_key(self, chance: Chance) -> None:
        self.cancelled_by_keys(chance.pick(self.topics), [chance.pick(self.plan.keys) for _ in range(chance.pick((1, 1, 2, 3)))])

    def cancelled_by_keys(self, topic: str, keys: Sequence[str]) -> None:
        """Cancel what is pending of a topic and some keys."""
        found = self.store.cancel_keys(topic, keys) if len(keys) > 1 else [self.store.cancel_key(topic, keys[0])]
        for outcomes, wanted in zip(found, self.oracle.cancel_keys(topic, keys), strict=True):
            for outcome in {each.name for each in outcomes} or ("none",):
                self.saw("cancel key", outcome)
            assert wanted.fullmatch("".join(each.name[0] for each in outcomes)), f"{outcomes} are not {wanted.pattern}"

    # ------------------------------------------------------------ time

    @operation(6)
    def move_clock(self, chance: Chance) -> None:
        self.clock.set(max(self.now + chance.pick(self.plan.moves_ms), 0))

    @operation(5)
    def wait_for_something(self, chance: Chance) -> None:
        """Set the clock to where something falls due, or a ms beside it, and tick."""
        ends = [held.expiry for held in self.oracle.live.values()]
        due = [each.tick for each in self.oracle.pending() if not self.distant(each)]
        times = sorted(each for each in {*ends, *due} if each >= self.now)[:3]
        if times:
            self.clock.set(chance.pick(times) + chance.pick((0, 0, -1, 1)))
        self.ticked()

    @operation(5)
    def tick(self, chance: Chance) -> None:
        self.ticked()

    def ticked(self) -> None:
        """Tick, and compare what it says that it did."""
        self.oracle.check_subscriptions(self.store.groups.subscriptions())
        report = self.store.tick()
        self.is_broken_off = False
        self.oracle.seal(self.now)
        moved = self.oracle.hand_over(2**40, self.now)
        assert report.handed_over == moved, f"{report.handed_over} handed over, not {moved}"
        revived = self.oracle.revive(self.now)
        assert (report.retried, report.dead, report.parked) == (revived["retried"], revived["dead"], 0)
        self.take_over_retries()
        begins = {(topic.name, queue): first for topic in self.store.topics.list() for queue, first in enumerate(topic.min_offsets)}
        expired = self.oracle.reclaimed(begins, self.now)
        assert report.expired == expired
        for outcome, count in (("handed over", moved), ("expired", expired), *revived.items()):
            if count:
                self.saw("tick", outcome)
        if not (moved or expired or revived):
            self.saw("tick", "nothing")
        self.is_unsettled = True
        wake = self.store.next_wake_ms()
        assert wake is None or wake > 0, "nothing is left to do, and yet the store wants to be woken"

    @operation(3, when=lambda machine: machine.oracle.pending())
    def tick_that_breaks_off(self, chance: Chance) -> None:
        """A tick that ends in the middle, as by an error, between any two steps of the hand-over."""
        self.tick_in_steps(chance.number(1, 8))

    @operation(3, when=lambda machine: machine.oracle.pending())
    def tick_with_calls_between(self, chance: Chance) -> None:
        """A tick that others call into, between any two steps of the hand-over; it may break off too."""
        self.tick_in_steps(chance.pick((2, 4, 6, 1000)), lambda number: self._call_between(chance) if chance.one_in(2) else None)

    def tick_in_steps(self, most: int, between: Callable[[int], None] = lambda number: None) -> None:
        """Make so many steps of a hand-over at most, and something behind each of them but the last."""
        self.transcript.note("steps = store._hand_over.steps(clock.now_ms())  # a tick, step by step")
        moved = 0
        self.is_broken_off = True
        for number, step in enumerate(self.store._hand_over.steps(self.now), start=1):
            self.transcript.note("next(steps)")
            if step == "seal":
                self.oracle.seal(self.now)
            elif isinstance(step, tuple):
                moved += self.oracle.hand_over(self.settings["hand_over_limit"], self.now)
                assert step[0] == moved
            if number == most:
                self.saw("tick that breaks off", "in the middle", f"{min(moved, 1)} moved")
                return
            between(number)

    def _call_between(self, chance: Chance) -> None:
        known = [self.operations[name] for name in _BETWEEN]
        possible = [each for each in known if set(each.needs) <= self.plan.support and each.when(self)]
        called, now_ms = chance.pick(possible), self.now
        # Another thread may have read its clock before the tick did.
        self.clock.set(max(now_ms - chance.pick((0, 0, 1, 1000)), 0))
        called.act(self, Chance(str(chance.seed())))
        self.saw("tick with calls between", called.name)
        self.look(whole=False)
        self.clock.set(now_ms)
