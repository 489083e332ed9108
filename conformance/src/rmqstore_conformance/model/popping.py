"""Popping in every form, and what becomes of leases: acked, changed, given back, put off, given up, or left to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from datetime import timedelta
from functools import partial
from typing import Any

from rmqstore import AckOutcome, ChangeOutcome, ChangeResult, MessageBatch, PoppedMessage
from rmqstore.contract import Lag, PopRequest, Receipt
from rmqstore.delays import RETRY_BACKOFF_MS
from rmqstore_conformance.fidelity import came_out
from rmqstore_conformance.model.chance import BACKOFFS_MS, INVISIBLE_MS, REASONS, Chance
from rmqstore_conformance.model.machine import operation
from rmqstore_conformance.model.pop_oracle import RETRY, Held
from rmqstore_conformance.model.sending import SendingMachine

_NO_RECEIPTS = ("", "x", "0 1700000001000 10 0 0 rmqs-2a9899c8 0 0 0 t g 1 28b7865d")
"""Texts that are no receipt of the store."""


class PoppingMachine(SendingMachine):
    # ------------------------------------------------------------ pops

    @operation(9)
    def pop(self, chance: Chance) -> None:
        topic, group = chance.pick(self.topics), chance.pick(self.groups)
        at = self.oracle.standings.get((topic, group))
        if self.has_fifo and at is not None and at.ordered is not None and chance.one_in(12):
            other, acks = not at.ordered, list(self.oracle.live)
            self.refused(lambda: self.store.pop(topic, group, order=other, acks=acks), "as its first pop fixed")
            self.saw("pop", "refused", "other mode")
            return
        self.popped_by(
            topic,
            group,
            chance.pick((1, 2, 5, 1024)),
            chance.pick(INVISIBLE_MS),
            filter=chance.pick(("*", *self.plan.filters)),
            attempt_id=chance.pick(self.plan.attempts) if chance.one_in(3) else None,
            queue=chance.number(0, self.queues_of(topic) - 1) if chance.one_in(3) else None,
            form=chance.pick(("messages", "columns", "request")),
            acks=self._chosen(chance) if self.oracle.leases and chance.one_in(4) else (),
        )

    def popped_by(
        self,
        topic: str,
        group: str,
        most: int,
        invisible_ms: int,
        *,
        filter: str = "*",
        attempt_id: str | None = None,
        queue: int | None = None,
        form: str = "messages",
        acks: Sequence[str] = (),
    ) -> list[PoppedMessage]:
        """Pop, acking some leases in the same call, and take over. Columns come without acks."""
        order = self.mode_of(topic, group)
        state = self._state_before(topic, group, order)
        options: dict[str, Any] = {"max_messages": most, "order": order, "filter": filter, "attempt_id": attempt_id, "queue": queue}
        rest: int | None = None
        got: list[PoppedMessage]
        outcomes: list[AckOutcome] = []
        if acks and form != "request":
            form = "messages"
            found = self.store.pop(topic, group, invisible_ms=invisible_ms, acks=[*acks, _NO_RECEIPTS[len(acks) % 3]], **options)
            got, (*outcomes, of_none) = found, found.acks
            assert of_none.name == "UNKNOWN"
        elif form == "columns":
            batch = self.store.pop_batch(topic, group, invisible_ms=invisible_ms, **options)
            got = came_out(batch)
        elif form == "request":
            receipts = [receipt for receipt in map(Receipt.parse, acks) if receipt is not None]
            request = PopRequest(topic, group, invisible_ms=invisible_ms, init=self.store.engine.config.init, acks=receipts, **options)
            result, ticket = self.store.engine.pops.pop(request, self.now)
            self.store.engine.pops.sync(ticket)
            got, rest, outcomes = result.messages.messages(), result.rest, list(result.acks)
        else:
            got = self.store.pop(topic, group, invisible_ms=invisible_ms, **options)
        for receipt, acked in zip(acks, outcomes, strict=True):
            self._answered("ack", receipt, acked, partial(self.oracle.ack, receipt))
        if acks:
            self.saw("pop", "some" if got else "none", f"with acks, {'fifo' if order else 'plain'}")
        repeats = attempt_id is not None and self.oracle.repeated(topic, group, attempt_id, self.now) is not None
        offsets = {each.queue_id: each.next_offset for each in self.store.groups.offsets(group) if each.topic == topic}
        self.oracle.popped(
            topic, group, got, self.now, invisible_ms, max_messages=most, passes=self.plan.filters[filter], offsets=offsets, order=order,
            queue=queue, attempt_id=attempt_id,
        )  # fmt: skip
        assert rest in (None, self.oracle.rest(topic, group, queue)), f"rest {rest}, not {self.oracle.rest(topic, group, queue)}"
        self.popped = [*self.popped, *got][-20:]
        # A pop that gives nothing new waits for no disk, but what it notes of the group's activity may be lost.
        self.is_unsettled = not acks and (repeats or not got)
        for each in got:
            self.born.setdefault(id(self.oracle.leases[str(each.receipt)]), len(self.lives) - 1)
        outcome = f"repeat of {'some' if got else 'none'}" if repeats else "some" if got else "none"
        kind = "fifo" if order else "plain"
        self.saw("pop", outcome, f"{kind}, {state}")
        self.saw("pop", outcome, f"{kind}, {form}")
        if filter != "*":
            self.saw("pop", outcome, f"filter {'of tags' if filter == self._tag_filter(filter) else 'SQL92'}")
        for held in (self.oracle.leases[str(each.receipt)] for each in got):
            if held.source == RETRY:
                self.saw("pop", "from the retry topic")
            elif held.entry.counted:
                self.saw("pop", "in place again", kind)
        return got

    def _tag_filter(self, filter: str) -> str | None:
        return filter if "=" not in filter and ">" not in filter else None

    def _state_before(self, topic: str, group: str, order: bool) -> str:
        at = self.oracle.standings.get((topic, group))
        if at is None or at.ordered is None:
            return "made anew" if topic in self.deleted or group in self.deleted else "new"
        held = self.oracle.held_by(topic, group)
        if any(each.is_backing_off for each in held):
            return "with leases that back off"
        return "with leases" if held else "with none"

    @operation(6)
    def work(self, chance: Chance) -> None:
        """Pop, pop again, ack a part, wait until a lease ends, and tick; some times over, so that runs go on and attempts are used up."""
        topic, group = chance.pick(self.topics), chance.pick(self.groups)
        if not self.oracle.is_ready(topic, group):
            self.filled(chance, topic, 4)
        for _ in chance.some((0,), 3):
            for most in chance.pick(((5,), (2, 2), (1, 5))):
                self.popped_by(topic, group, most, chance.pick(INVISIBLE_MS))
            held = sorted(each.receipt for each in self.oracle.held_by(topic, group))
            self._acked(chance.some(held, min(3, len(held)), least=0) if held else [])
            ends = [each.expiry for each in self.oracle.held_by(topic, group)]
            self.clock.set(max(self.now, min(ends, default=self.now)))
            if chance.one_in(3):
                self.settle_some(chance, [each.receipt for each in self.oracle.held_by(topic, group) if each.expiry <= self.now])
            self.ticked()

    @operation(2)
    def pop_in_turns(self, chance: Chance) -> None:
        """Let all groups pop one message each in turn, round after round, so that it shows to whom a turn belongs."""
        topic = chance.pick(self.topics)
        rounds = 2 * self.queues_of(topic) + 2
        self.filled(chance, topic, 2 * self.queues_of(topic) + rounds)
        for _ in range(rounds):
            for group in self.groups:
                self.popped_by(topic, group, 1, 60_000)

    @operation(3)
    def attempt_again(self, chance: Chance) -> None:
        """Pop with an attempt id that was used already, perhaps with other wishes, and perhaps after all that it gave was acked."""
        known = sorted(self.oracle.attempts)
        topic, group, attempt = place = chance.pick(known or [(self.topics[0], self.groups[0], self.plan.attempts[0])])
        if not known or chance.one_in(2):
            self.filled(chance, topic, 4)
            self.popped_by(topic, group, 2, 60_000, attempt_id=attempt)
            self._acked([receipt for receipt in self.oracle.attempts.get(place, (0, []))[1] if receipt in self.oracle.live])
        self.popped_by(
            topic, group, chance.pick((1, 5)), chance.pick(INVISIBLE_MS), attempt_id=attempt, form=chance.pick(("messages", "columns"))
        )

    # ------------------------------------------------------------ the ends of leases

    def _chosen(self, chance: Chance) -> list[str]:
        """Return receipts: of leases that run, of the latest ones, or of any."""
        running, known = list(self.oracle.live), list(self.oracle.leases)
        among = chance.pick((running or known, running or known, known[-20:], known))
        return chance.some(among, 6)

    def _noted(self, name: str, outcome: str, state: str, held: Held) -> None:
        # A ticket covers what an answer rests on: the end of the lease, whatever made it, and all before it.
        self.is_unsettled = self.is_unsettled and outcome == "UNKNOWN"
        self.saw(name, outcome, state)
        self.saw(name, outcome, self.life_since(self.born.get(id(held), 0)))
        if held.source == RETRY:
            self.saw(name, outcome, "from the retry topic")

    def lease_some(self, chance: Chance) -> None:
        """See to it that leases run, where there is something to pop."""
        for topic in self.topics if not self.oracle.live else ():
            self.popped_by(topic, chance.pick(self.groups), 5, 600_000)

    def settle_some(self, chance: Chance, receipts: Sequence[str]) -> None:
        """End some of these leases in one of the ways, or try to."""
        if receipts:
            act = chance.pick((self._ack_some, self._change_some, self._release_some, self._reject_some, self._put_off_some))
            act(chance, chance.some(receipts, 3))

    def _answered(self, name: str, receipt: str, outcome: Any, take_over: Callable[[], Set[Any]]) -> None:
        """Check what a call said of a lease against what the oracle allows as it takes the call over."""
        held = self.oracle.leases[receipt]
        state = self.state_of(held)
        allowed = take_over()
        assert outcome in allowed, f"{name} of a {state} lease: {outcome}, {allowed} would be true; {receipt}"
        self._noted(name, outcome.name, state, held)

    def _acked(self, receipts: Sequence[str]) -> None:
        outcomes = self.store.ack([*receipts, _NO_RECEIPTS[len(receipts) % 3]])
        assert outcomes.pop().name == "UNKNOWN"
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            self._answered("ack", receipt, outcome, partial(self.oracle.ack, receipt))

    @operation(7, when=lambda machine: machine.oracle.leases)
    def ack(self, chance: Chance) -> None:
        self._acked(self._chosen(chance))

    def _ack_some(self, chance: Chance, receipts: Sequence[str]) -> None:
        self._acked(receipts)

    @operation(3)
    def pop_and_ack_columns(self, chance: Chance) -> None:
        """Pop columns and give the batch to an ack as it is."""
        topic, group = chance.pick(self.topics), chance.pick(self.groups)
        order = self.mode_of(topic, group)
        batch: MessageBatch = self.store.pop_batch(topic, group, max_messages=3, invisible_ms=1000, order=order)
        got = came_out(batch)
        offsets = {each.queue_id: each.next_offset for each in self.store.groups.offsets(group) if each.topic == topic}
        self.oracle.popped(topic, group, got, self.now, 1000, max_messages=3, passes=self.plan.filters["*"], offsets=offsets, order=order)
        for each, outcome in zip(got, self.store.ack(batch) if got else [], strict=True):
            assert outcome in self.oracle.ack(str(each.receipt))
            self.saw("ack", outcome.name, f"columns, {'fifo' if order else 'plain'}")

    @operation(4, when=lambda machine: machine.oracle.leases)
    def change_invisible(self, chance: Chance) -> None:
        receipts = self._chosen(chance)
        self._change_some(chance, receipts)
        self.settle_some(chance, receipts)

    def _change_some(self, chance: Chance, receipts: Sequence[str]) -> None:
        invisible_ms = chance.pick(INVISIBLE_MS)
        for receipt, result in zip(receipts, self.store.change_invisible(receipts, invisible_ms=invisible_ms), strict=True):
            self._changed("change", receipt, result, self.now + invisible_ms)

    def _changed(self, name: str, receipt: str, result: ChangeResult, expiry: int, *, backs_off: bool = False, reason: str = "") -> None:
        new = None if result.receipt is None else result.receipt.text()
        assert (new is not None) == (result.outcome is ChangeOutcome.CHANGED)
        take_over = partial(self.oracle.change, receipt, new, expiry, is_backing_off=backs_off, reason=reason)
        self._answered(name, receipt, result.outcome, take_over)
        if new is not None:
            self.born[id(self.oracle.leases[new])] = len(self.lives) - 1

    @operation(4, when=lambda machine: machine.popped)
    def retry_later(self, chance: Chance) -> None:
        """Put attempts off that failed: to a delay, by a table, or by that of the group."""
        chosen = chance.some(self.popped, 4)
        self._put_off(chance, chosen)
        held = self.oracle.leases[str(chosen[0].receipt)]
        self.popped_by(held.topic, held.group, 1024, 60_000)
        if running := [each.receipt for each in self.oracle.held_by(held.topic, held.group) if each.is_backing_off]:
            self.settle_some(chance, running)

    def _put_off_some(self, chance: Chance, receipts: Sequence[str]) -> None:
        self._put_off(chance, [each for each in self.popped if each.receipt in receipts])

    def _put_off(self, chance: Chance, chosen: Sequence[PoppedMessage]) -> None:
        reason = chance.pick(REASONS)
        how = chance.pick(("delay", "table", "group"))
        table = chance.pick(BACKOFFS_MS[1:])
        options: dict[str, Any] = {}
        if how == "delay":
            options = {"delay_ms": table[-1]}
        elif how == "table":
            options = {"backoff": [timedelta(milliseconds=each) for each in table]}
        results = self.store.retry_later(chosen, reason=reason, **options)
        for popped, result in zip(chosen, results, strict=True):
            held = self.oracle.leases[str(popped.receipt)]
            waits = {"delay": table[-1:], "table": table}.get(how) or self.oracle.backoffs_of.get(held.group) or RETRY_BACKOFF_MS
            wait_ms = waits[min(popped.attempt, len(waits)) - 1]
            self._changed("retry later", str(popped.receipt), result, self.now + wait_ms, backs_off=True, reason=reason)
            if result.outcome is ChangeOutcome.CHANGED and how == "group":
                self.saw(
                    "retry later", "CHANGED", "by the group's table" if self.oracle.backoffs_of.get(held.group) else "by RocketMQ's table"
                )

    @operation(4, when=lambda machine: machine.oracle.leases)
    def release(self, chance: Chance) -> None:
        receipts = self._chosen(chance)
        self._release_some(chance, receipts)
        self.settle_some(chance, receipts)

    def _release_some(self, chance: Chance, receipts: Sequence[str]) -> None:
        for receipt, outcome in zip(receipts, self.store.release(receipts), strict=True):
            self._answered("release", receipt, outcome, partial(self.oracle.release, receipt, self.now))
        self.take_over_retries()

    @operation(3, when=lambda machine: machine.oracle.leases)
    def reject(self, chance: Chance) -> None:
        receipts = self._chosen(chance)
        self._reject_some(chance, receipts)
        self.settle_some(chance, receipts)

    def _reject_some(self, chance: Chance, receipts: Sequence[str]) -> None:
        reason = chance.pick(REASONS)
        for receipt, outcome in zip(receipts, self.store.reject(receipts, reason=reason), strict=True):
            self._answered("reject", receipt, outcome, partial(self.oracle.reject, receipt, reason, self.now))

    def drained_lag(self, lag: Lag) -> int:
        return lag.ready + lag.retry + lag.in_flight + lag.backing_off
