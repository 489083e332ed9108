"""What operators do to a store, beside what its users do: resets, dead letters, retries later, topics and groups that come and go."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import timedelta

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis.stateful import precondition, rule

from rmqstore import ChangeOutcome, IllegalArgumentError, InitMode, Message
from rmqstore_conformance.model.pop_oracle import Entry
from rmqstore_conformance.model.store_machine import GROUPS, TOPICS, StoreMachine

RARELY = st.sampled_from((False,) * 7 + (True,))
"""Whether a call that takes much away is made, so that most histories grow long."""
REASONS = ("", "no answer", "no answer: ¿por qué?")
BACKOFFS = ((1,), (500, 2000), (10_000, 30_000, 60_000))


class OperatedMachine(StoreMachine):
    """A store with an operator."""

    @rule(topic=st.sampled_from(sorted(TOPICS)), group=st.sampled_from(GROUPS), data=st.data())
    def reset_offset(self, topic: str, group: str, data: st.DataObject) -> None:
        if topic not in self.oracle.queues:
            with pytest.raises(IllegalArgumentError, match="there is no topic"):
                self.store.reset_offset(topic, group, InitMode.MIN)
            return
        number = data.draw(st.integers(0, self.queues_of(topic) - 1))
        queue = self.oracle.queues[topic][number]
        end = len(queue.entries)
        to = data.draw(st.sampled_from((InitMode.MIN, InitMode.MAX)) | st.integers(queue.first, end))
        if queue.first:
            with pytest.raises(IllegalArgumentError, match="lies outside"):
                self.store.reset_offset(topic, group, queue.first - 1, queue=number)
        self.store.reset_offset(topic, group, to, queue=number)
        at = {InitMode.MIN: queue.first, InitMode.MAX: end}[to] if isinstance(to, InitMode) else to
        self.oracle.reset(topic, group, number, at, self.now)

    @precondition(lambda self: self.popped)
    @rule(data=st.data(), backoff=st.sampled_from(BACKOFFS), reason=st.sampled_from(REASONS))
    def retry_later(self, data: st.DataObject, backoff: tuple[int, ...], reason: str) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.popped), min_size=1, max_size=4))
        table = [timedelta(milliseconds=each) for each in backoff]
        for popped, result in zip(chosen, self.store.retry_later(chosen, reason=reason, backoff=table), strict=True):
            wait_ms = backoff[min(popped.attempt, len(backoff)) - 1]
            new = None if result.receipt is None else result.receipt.text()
            assert (new is not None) == (result.outcome is ChangeOutcome.CHANGED)
            assert result.outcome in self.oracle.change(str(popped.receipt), new, self.now + wait_ms, is_backing_off=True, reason=reason)

    @precondition(lambda self: self.oracle.leases)
    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    def reject(self, data: st.DataObject, reason: str) -> None:
        receipts = self._receipts(data)
        for receipt, outcome in zip(receipts, self.store.reject(receipts, reason=reason), strict=True):
            assert outcome in self.oracle.reject(receipt, reason, self.now)
        self._take_over_retries()

    # ------------------------------------------------------------ dead letters

    @precondition(lambda self: any(self.oracle.letters.values()))
    @rule(data=st.data(), resend=st.booleans())
    def remove_dead(self, data: st.DataObject, resend: bool) -> None:
        """Resend or drop some letters; then the same call again, which finds none of them."""
        group = data.draw(st.sampled_from(sorted(group for group, letters in self.oracle.letters.items() if letters)))
        letters = self.store.dead_letters(group)
        numbers = data.draw(st.lists(st.integers(0, len(letters) - 1), min_size=1, max_size=6))
        self.remove_letters(group, numbers, resend=resend)

    def remove_letters(self, group: str, numbers: Sequence[int], *, resend: bool) -> None:
        """Remove the letters with these numbers in the list of a group."""
        letters = self.store.dead_letters(group)
        chosen = [letters[number] for number in numbers]
        remove = self.store.resend_dead if resend else self.store.drop_dead
        assert remove(chosen) == len(set(numbers))
        assert remove(chosen) == 0
        known = [self.oracle.letters[group][number] for number in sorted(set(numbers))]
        self._take_over_arrivals(self.oracle.remove_letters(group, known, self.now, resend=resend))
        self._take_over_retries()

    def _take_over_arrivals(self, messages: Sequence[Message]) -> None:
        """Take over in which queues messages without a queue of their own arrived, all of one call."""
        # An id may be there twice: a letter that was resent in place is seen by every group, and died again in this one.
        expected: dict[str, list[Message]] = {}
        for message in messages:
            expected.setdefault(str(message.message_id), []).append(message)
        for topic in {message.topic for message in messages}:
            self.oracle.create_topic(topic, 1)
            for number, queue in enumerate(self.oracle.queues[topic]):
                for each in self.store.read(topic, number, len(queue.entries), 1000).messages:
                    message = expected[str(each.message_id)].pop(0)
                    assert message.topic == topic
                    if message.message_group is not None:
                        assert number == zlib.crc32(message.message_group.encode()) % self.group_queues_of(topic)
                    queue.entries.append(Entry(msgspec.structs.replace(message, queue_id=number), self.now))
        assert not any(expected.values())

    # ------------------------------------------------------------ coming and going

    @rule(topic=st.sampled_from(sorted(TOPICS)))
    def create_topic(self, topic: str) -> None:
        assert self.store.create_topic(topic, TOPICS[topic]).queues == max(self.queues_of(topic), TOPICS[topic])
        self.oracle.create_topic(topic, TOPICS[topic])
        self.oracle.arranged.add(topic)

    @rule(topic=st.sampled_from(sorted(TOPICS)), really=RARELY)
    def delete_topic(self, topic: str, really: bool) -> None:
        if really:
            self.store.delete_topic(topic)
            self.oracle.delete_topic(topic)

    @rule(group=st.sampled_from(GROUPS), retries=st.none() | st.integers(0, 3))
    def set_group(self, group: str, retries: int | None) -> None:
        self.store.set_group(group, max_retries=retries)
        if retries is None:
            self.oracle.retries_of.pop(group, None)
        else:
            self.oracle.retries_of[group] = retries

    @rule(group=st.sampled_from(GROUPS), really=RARELY)
    def delete_group(self, group: str, really: bool) -> None:
        if really:
            self.store.delete_group(group)
            self.oracle.delete_group(group)
