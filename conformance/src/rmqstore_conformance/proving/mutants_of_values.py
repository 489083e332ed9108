"""Mutants that cut, fold, glue, round or hash what they are given."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    CancelOutcome,
    LeaseInfo,
    PendingCounts,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerCursor,
    TimerReceipts,
)
from rmqstore.contract.timers import EMPTY_CURSOR
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.checkpoint import Lease
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.timers.ticks import MINUTE_MS
from rmqstore.message import Message
from rmqstore_conformance.proving.kinds import ROWS_PUT, ROWS_SENT, SENT, answers, asks, but, with_column, with_rows
from rmqstore_conformance.proving.planting import Pops, Timers, mutant, with_options

_FAR: Final = 2**62


# ---------------------------------------------------------------- timers


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", kind="data", at=ROWS_PUT)
def strips_properties(message: Message) -> Message:
    """The values of a timer's properties lose blanks at their ends."""
    values = {name: value.strip() or value for name, value in message.properties.items()}
    return but(message, properties=values) if values != dict(message.properties) else message


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", kind="data")
class ZeroBornIsNone(Timers):
    """A timer that says it was born at 0 ms is taken for one that does not say."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        return super().put(with_rows(batch, lambda each: but(each, born_ms=each.born_ms or now_ms)), now_ms, marks)


class _CancelsAlike(Timers):
    def form(self, topic: str, key: str) -> tuple[str, object]:
        """Return what the index takes a key of a topic for."""
        raise NotImplementedError

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        if not batch.has_columns or batch.columns.column("keys").null_count < len(batch):
            for each in batch.messages:
                for key in each.keys:
                    self.noted.setdefault(self.form(each.topic, key), {})[each.topic, key] = None
        return super().put(batch, now_ms, marks)

    def cancel_key(self, topic: str, key: str, now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        with self._lock:
            outcomes, ticket = super().cancel_key(topic, key, now_ms)
            for other_topic, other_key in self.noted.get(self.form(topic, key), ()):
                if (other_topic, other_key) != (topic, key):
                    more, ticket = super().cancel_key(other_topic, other_key, now_ms)
                    outcomes = [*outcomes, *more]
            return outcomes, ticket


@mutant("C6", "C6.keys_that_are_alike_are_told_apart", kind="data")
class ComposesKeys(_CancelsAlike):
    """A cancel by key takes keys that are equal once composed (NFC) for one key."""

    def form(self, topic: str, key: str) -> tuple[str, object]:
        return topic, unicodedata.normalize("NFC", key)


@mutant("C6", "C6.keys_that_are_alike_are_told_apart", kind="data")
class CutsKeys(_CancelsAlike):
    """The index by key holds the first 64 bytes of a key."""

    def form(self, topic: str, key: str) -> tuple[str, object]:
        return topic, key.encode()[:64]


@mutant("C6", "C6.keys_that_are_alike_are_told_apart", kind="data")
class GluesTopicAndKey(_CancelsAlike):
    """The index by key joins topic and key with nothing between them."""

    def form(self, topic: str, key: str) -> tuple[str, object]:
        return topic + key, None


@mutant("C6", "C6.keys_that_are_alike_are_told_apart", kind="data")
class HashesKeysShort(_CancelsAlike):
    """The index by key trusts the CRC-32 of a key."""

    def form(self, topic: str, key: str) -> tuple[str, object]:
        return topic, zlib.crc32(key.encode())


@mutant("I1", "I1.marks_that_are_alike_are_told_apart", kind="data")
class MarksByChecksum(Timers):
    """Marks of timers are kept as their CRC-32, so two marks may be one."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        return super().put(batch, now_ms, [zlib.crc32(mark).to_bytes(4, "big") for mark in marks])


@mutant("T10", "T5.times_beyond_2_53_are_kept_to_the_ms", kind="data")
class MinutesWrap(Timers):
    """Pending timers are counted by minute in 32 bits, so those of some thousand years ahead are counted in the bucket of an early one."""

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        found = super().pending(edges_ms, handed)
        wrap_ms = MINUTE_MS * 2**32
        if found.latest_ms is None or found.latest_ms < wrap_ms or not found.counts:
            return found
        counts = [0] * len(found.counts)
        after: tuple[int, int] | None = None
        while True:
            page = self.scan(0, _FAR, after, 1000, handed)
            for each in page.timers:
                folded = each.deliver_at_ms % wrap_ms
                for at, (low, high) in enumerate(zip(edges_ms, edges_ms[1:], strict=False)):
                    counts[at] += low <= folded < high
            after = page.next_after
            if after is None:
                return but(found, counts=tuple(counts))


@mutant("T10", kind="data")
class CountsBySeconds(Timers):
    """The edges of pending counts are rounded down to whole seconds."""

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        whole = [edge // 1000 * 1000 for edge in edges_ms]
        if whole == list(edges_ms) or len(set(whole)) < len(whole):
            return super().pending(edges_ms, handed)
        return super().pending(whole, handed)


@mutant("T5", "T5.above_the_set_horizon_nothing_is_stored", kind="data")
class HorizonOfFirstRow(Timers):
    """Of a batch only the first row is held against the longest delay."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        limit = self._options.max_delay_ms
        first = batch.messages[0].deliver_at_ms if limit and len(batch) else None
        if not limit or (first is not None and first - now_ms > limit):
            return super().put(batch, now_ms, marks)
        with self._lock, with_options(self, max_delay_ms=0):
            return super().put(batch, now_ms, marks)


# ---------------------------------------------------------------- pops


@mutant("I1", "I1.marks_that_are_alike_are_told_apart", kind="data", at=asks(Pops, "apply"))
def marks_as_text(txn: PopTxn) -> PopTxn:
    """Marks of sends for now are decoded as UTF-8 with replacement, so two that are no text may be one."""
    marks = [mark.decode(errors="replace").encode()[:255] for mark in txn.marks]
    return but(txn, marks=marks) if marks else txn


@mutant("R1", "H2.every_family_of_values_comes_as_it_was_sent", kind="data", at=ROWS_SENT)
def trailing_zeros_lost(message: Message) -> Message:
    """The body of a message that is sent for now is kept as a C string: zeros at its end are lost."""
    return but(message, body=message.body.rstrip(b"\0") or message.body[:1])


@mutant("R1", "H2.every_family_of_values_comes_as_it_was_sent", kind="data", at=ROWS_SENT)
def strips_tags(message: Message) -> Message:
    """Ids and tags of messages that are sent for now lose blanks that only Unicode knows."""
    tag = message.tag and (message.tag.strip() or message.tag)
    message_id = message.message_id and (message.message_id.strip() or message.message_id)
    return but(message, tag=tag, message_id=message_id)


@mutant("R1", kind="data", at=ROWS_SENT)
def page_borders_eat_bytes(message: Message) -> Message:
    """A body of which a multiple of 4096 bytes is stored loses its last byte."""
    at_border = len(message.body) % 4096 == 0
    return but(message, body=message.body[:-1]) if at_border else message


@mutant("R1", kind="data", at=SENT)
def sliced_columns_unmoved(batch: MessageBatch) -> MessageBatch:
    """Of a slice of Arrow columns the bodies are read from the beginning of the buffer."""
    if not batch.has_columns or not (body := batch.columns.column("body")).offset:
        return batch
    whole = pa.Array.from_buffers(body.type, len(body), [None, *body.buffers()[1:]])
    return with_column(batch, "body", whole)


@mutant("P2", "P2.topics_that_are_alike_are_told_apart", kind="data")
class FoldsTopics(Pops):
    """Topics that differ in case alone are one topic."""

    def known(self, name: str) -> str:
        """Return the name of the topic that a topic is taken for."""
        return next((each.name for each in self.topics() if each.name.casefold() == name.casefold()), name)

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if txn.appends is not None and len(txn.appends):
            txn = but(txn, appends=with_rows(txn.appends, lambda each: but(each, topic=self.known(each.topic))))
        return super().apply(txn, now_ms)

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        return super().pop(but(request, topic=self.known(request.topic)), now_ms)


@mutant("P10", "P10.tags_that_are_alike_are_told_apart", kind="data", at=asks(Pops, "pop"))
def tags_by_hash(request: PopRequest) -> PopRequest:
    """Tags are compared by their Java hash, as a consume queue keeps it, and by nothing more."""
    if not re.fullmatch(r"[\w-]+( *\|\| *[\w-]+)*", request.filter):
        return request
    # In a Java hash Aa and BB are the same.
    return but(request, filter=" || ".join((request.filter, request.filter.replace("Aa", "BB"), request.filter.replace("BB", "Aa"))))


@mutant("P10", "P10.properties_that_are_alike_are_told_apart", kind="data", at=asks(Pops, "pop"))
def filter_numbers_as_floats(request: PopRequest) -> PopRequest:
    """An SQL92 filter reads integers as doubles, so ids beyond 2^53 are not told apart."""
    return but(request, filter=re.sub(r"\b[0-9]{16,18}\b", lambda number: str(int(float(number[0]))), request.filter))


@mutant("P8", "P8.any_of_a_large_pop_can_be_acked_alone", kind="data")
class AcksByByte(Leasing):
    """The place of a message in its check point is kept in one byte, so an ack of the 257th message of a pop is one of the first."""

    def _ack_run(self, stage: Any, receipt: Any, offsets: Sequence[int]) -> Any:
        lease = self._check_point(stage, receipt)
        if isinstance(lease, Lease) and len(lease.offsets) > 256 and list(offsets) != lease.offsets:
            offsets = [offset if (at := lease.index_of(offset)) is None else lease.offsets[at % 256] for offset in offsets]
        return super()._ack_run(stage, receipt, offsets)


@mutant("P8", "P8.leases_that_are_alike_are_told_apart", kind="data")
class AcksMixGroups(Leasing):
    """A batch of acks joins receipts whose check points have equal numbers, whatever their groups."""

    def ack(self, stage: Any, receipts: Sequence[Any]) -> Any:
        outcomes: list[Any] = []
        of = attrgetter("ck_start_offset", "pop_time_ms", "queue_id", "topic", "retry_flag", "epoch", "broker")
        for _, sharing in groupby(receipts, of):
            run = list(sharing)
            outcomes += self._ack_run(stage, run[0], [each.queue_offset for each in run])
        return tuple(outcomes)


@mutant("P11", "P2.topics_that_are_alike_are_told_apart", kind="data")
class DeletesBySuffix(Administration):
    """To delete a topic takes every retry topic away whose name ends like the topic's."""

    def delete_topic(self, stage: Any, name: str) -> None:
        others = [each for each in self._state.topics.values() if each.name.startswith("%RETRY%") and each.name.endswith(name)]
        own = self._state.topics.get(name)
        self._delete_topics(stage, others if own is None else [own, *others])


@mutant("P14", "P2.topics_that_are_alike_are_told_apart", kind="data")
class LeasesByPrefix(Pops):
    """The leases of a topic are listed with those of every topic whose name begins with its own."""

    def leases(self, topic: str | None = None, group: str | None = None) -> list[LeaseInfo]:
        return [each for each in super().leases(None, group) if topic is None or each.topic.startswith(topic)]


@mutant("P14", "P12.a_topic_of_the_most_queues", kind="data", at=answers(Pops, "offsets"))
def offsets_sort_as_text(found: Any) -> Any:
    """Where a group stands is listed with the numbers of queues sorted as text."""
    return sorted(found, key=lambda each: (each.topic, str(each.queue_id)))


@mutant("P13", "P12.a_topic_of_the_most_queues", kind="data", at=asks(Pops, "pop"))
def queue_zero_is_any(request: PopRequest) -> PopRequest:
    """A pop of queue 0 is taken for one of any queue."""
    return request if request.queue else but(request, queue=None)


@mutant("P7", "P7.no_reason_is_refused", kind="data", at=asks(Pops, "apply"))
def short_reasons(txn: PopTxn) -> PopTxn:
    """Of a reason 255 bytes are kept."""

    def cut(each: Any) -> Any:
        return but(each, reason=each.reason.encode()[:255].decode(errors="ignore"))

    return but(txn, changes=[cut(each) for each in txn.changes], rejects=[cut(each) for each in txn.rejects])


@mutant("P13", "P12.a_topic_of_the_most_queues", kind="data")
class LooksAtSixteenQueues(Popping):
    """A pop looks at sixteen queues of a topic, however many it has."""

    def _sources(self, stage: Any, topic: Any, group_id: int, request: PopRequest) -> Any:
        seen = 0
        for source, queue, flag in super()._sources(stage, topic, group_id, request):
            if not flag:
                seen += 1
                if seen > 16:
                    continue
            yield source, queue, flag


@mutant("P14", kind="data")
class DeadOfLongTopics(Administration):
    """Dead letters that are dropped are not counted off when the name of their topic has 64 bytes or more."""

    def _count_off(self, stage: Any, dlq: str, origins: Any) -> None:
        super()._count_off(stage, dlq, {topic: offsets for topic, offsets in origins.items() if len(topic) < 64})
