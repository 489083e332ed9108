"""Mutants that lose or change one field of one copy of a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    GroupProgress,
    MessageState,
    PoppedBatch,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Receipt,
    Ticket,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.contract.state import StatePage
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.message import PROPERTY_DLQ_ATTEMPTS, PROPERTY_DLQ_REASON, RETRY_PREFIX, Message, PoppedMessage
from rmqstore_conformance.proving.kinds import ROWS_DUE, ROWS_PUT, SENT, answers, but, column_set, edited, times_put, values_of, with_column
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, mutant

# ---------------------------------------------------------------- timers


@mutant("H2", kind="fidelity", at=times_put)
def null_time_becomes_now(at: int | None, now_ms: int) -> int | None:
    """In a call with timers, a message without a deliver time gets the time of the call as one."""
    return now_ms if at is None else at


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", kind="fidelity", at=ROWS_PUT)
def born_in_seconds(message: Message) -> Message:
    """The born time of a timer is kept in whole seconds."""
    return but(message, born_ms=(message.born_ms or 0) // 1000 * 1000)


@mutant("H2", "H2.the_largest_message_comes_as_it_was_sent", kind="fidelity", at=ROWS_DUE)
def large_bodies_cut_on_the_way(message: Message) -> Message:
    """A hand-over reads a message through a buffer of 1 MiB, and what is longer arrives cut."""
    return but(message, body=message.body[: 1 << 20])


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", kind="fidelity", at=ROWS_DUE)
def keys_twice_on_the_way(message: Message) -> Message:
    """A hand-over gives the keys of a message without those that are there twice."""
    return but(message, keys=tuple(dict.fromkeys(message.keys)))


@mutant("I1", kind="fidelity")
class RepeatsTickAnew(Timers):
    """The answer to a repeated put names the ticks of the repeat, so handles of a call with a delay find nothing."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        receipts, ticket = super().put(batch, now_ms, marks)
        if receipts.status is WriteStatus.REPEATED and len(receipts) == len(batch):
            width = self.precision_ms
            asked = [each.deliver_at_ms for each in batch.messages]
            ticks = [min(-(-(at or now_ms) // width) * width, 2**62) for at in asked]
            receipts = but(receipts, ticks=ticks)
        return receipts, ticket


@mutant("C4", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", kind="fidelity")
class DumpsNoDelivered(Timers):
    """The exported state of timers leaves out what is remembered of delivered ones."""

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        page = super().export_state(table, after, limit)
        if table != "timer_traces" or not page.rows.num_rows:
            return page
        kept = np.asarray(page.rows.column("kind").to_pylist()) == 0
        return but(page, rows=page.rows.filter(pa.array(kept)))


# ---------------------------------------------------------------- retries and dead letters


@mutant("P7", "P3.every_copy_is_whole", kind="fidelity")
class DeadKeysSorted(Transaction):
    """A dead letter has its keys in the order of the alphabet."""

    def bury(self, group: str, topic: str, record: bytes, attempts: int, reason: str) -> None:
        message = self._format.decode_message(record)
        kept = but(message, keys=tuple(sorted(message.keys)))
        super().bury(group, topic, self._format.encode_message(kept), attempts, reason)


@mutant("P7", kind="fidelity")
class DeadGetTags(Transaction):
    """A message without a tag gets one when it becomes a dead letter."""

    def bury(self, group: str, topic: str, record: bytes, attempts: int, reason: str) -> None:
        message = self._format.decode_message(record)
        super().bury(group, topic, self._format.encode_message(but(message, tag=message.tag or "DLQ")), attempts, reason)


class _Noting(Pops):
    """Notes something of messages by their ids, and changes those when they are popped next."""

    def note(self, txn: PopTxn) -> None:
        """Note what is in a call."""
        for each in txn.removals:
            if each.resend_to:
                letters = self.read(each.topic, each.queue_id, each.queue_offset, 1).messages
                self.noted.update((letter.message_id, letter.properties) for letter in letters)

    def changed(self, message: PoppedMessage, noted: Any) -> PoppedMessage:
        """Return a message as it is given."""
        raise NotImplementedError

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        self.note(txn)
        return super().apply(txn, now_ms)

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        result, ticket = super().pop(request, now_ms)
        known = self.noted
        return edited(result, lambda each: self.changed(each, known[each.message_id]) if each.message_id in known else each), ticket


@mutant("P7", "P3.every_copy_is_whole", kind="fidelity")
class ResentRemembers(_Noting):
    """A dead letter that is sent back keeps its reason in a property of its own."""

    def changed(self, message: PoppedMessage, noted: Any) -> PoppedMessage:
        return but(message, properties={**message.properties, "LAST_REASON": noted[PROPERTY_DLQ_REASON]})


@mutant("P7", "P3.every_copy_is_whole", kind="fidelity")
class ResentCountsOn(_Noting):
    """A dead letter that is sent back goes on with the attempts that it had."""

    def changed(self, message: PoppedMessage, noted: Any) -> PoppedMessage:
        return but(message, attempt=message.attempt + int(noted[PROPERTY_DLQ_ATTEMPTS]))


@mutant("P7", kind="fidelity")
class ReleaseForgetsAttempts(_Noting):
    """A release of a retried message starts its attempts anew."""

    def note(self, txn: PopTxn) -> None:
        released = {each.text() for each in txn.releases}
        self.noted.update((each.message_id, True) for each in self.leases() if each.receipt in released)

    def changed(self, message: PoppedMessage, noted: Any) -> PoppedMessage:
        return but(message, attempt=1)


@mutant("P7", kind="fidelity")
class ReasonsStick(Leasing):
    """A dead letter whose last attempt failed without a word has the reason of an earlier one."""

    def _reasons(self) -> dict[str, str]:
        found: dict[str, str] = self.__dict__.setdefault("_sticky", {})
        return found

    def _give_back(self, transaction: Any, lease: Any, index: int, group: str, topic: str, **how: Any) -> str:
        found = self._log.record_at(self._state.topic_of(lease.place[1]), lease.place[2], lease.offsets[index])
        if found is not None and not hasattr(found, "raw"):
            name = f"{group}+{topic}+{self._format.message_id_of(found[0]).decode()}"
            if lease.reason:
                self._reasons()[name] = lease.reason
            elif name in self._reasons():
                lease.reason = self._reasons()[name]
        return super()._give_back(transaction, lease, index, group, topic, **how)


# ---------------------------------------------------------------- columns, reads, listings


class _Columns(PoppedBatch):
    """Popped messages that are right one by one, and have other values in a column."""

    def __init__(self, popped: PoppedBatch, name: str, change: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._popped = popped
        self._change = name, change

    def __len__(self) -> int:
        return len(self._popped)

    def messages(self) -> list[PoppedMessage]:
        return self._popped.messages()

    def columns(self) -> MessageBatch:
        name, change = self._change
        batch = self._popped.columns()
        return with_column(batch, name, change(values_of(batch, name)))

    def receipts(self) -> Sequence[Receipt]:
        return self._popped.receipts()


@mutant("P13", "P12.a_topic_of_the_most_queues", kind="fidelity", at=answers(Pops, "pop"))
def columns_of_one_queue(result: PopResult) -> PopResult:
    """The columns of a pop over several queues say of all messages that they lie in the first one's."""
    return but(result, messages=_Columns(result.messages, "queue_id", lambda queues: queues[:1] * len(queues)))


@mutant("P7", "P3.every_copy_is_whole", kind="fidelity", at=answers(Pops, "pop"))
def columns_of_first_attempts(result: PopResult) -> PopResult:
    """The columns of a pop say of every message that this is its first attempt."""
    return but(result, messages=_Columns(result.messages, "attempt", lambda attempts: [min(each, 1) for each in attempts]))


@mutant("P3", "P3.every_copy_is_whole", kind="fidelity", at=answers(Pops, "pop"))
def columns_of_last_pop(result: PopResult) -> PopResult:
    """The columns of a pop give the time of this pop as that of the first one."""
    times = [each.pop_time_ms for each in result.messages.receipts()]
    return but(result, messages=_Columns(result.messages, "first_pop_ms", lambda first: times))


@mutant("R1", kind="fidelity", at=SENT)
def columns_keep_one_key(batch: MessageBatch) -> MessageBatch:
    """Of the keys of a message that was sent for now by columns, the first one is kept."""
    return with_column(batch, "keys", [each and each[:1] for each in values_of(batch, "keys")]) if batch.has_columns else batch


@mutant("R1", kind="fidelity", at=SENT)
def columns_fill_tags(batch: MessageBatch) -> MessageBatch:
    """A message without a tag that was sent by columns gets the tag of the row before it."""
    if not batch.has_columns:
        return batch
    return with_column(batch, "tag", list(accumulate(values_of(batch, "tag"), lambda before, tag: tag or before)))


@mutant("P14", kind="fidelity", at=answers(Pops, "read"))
def reads_one_store_time(batch: MessageBatch) -> MessageBatch:
    """A read of messages of several calls says that all of them came with the first."""
    found = [each for each in batch.messages if isinstance(each, PoppedMessage)]
    return MessageBatch(messages=[but(each, store_ms=found[0].store_ms) for each in found])


@mutant("P14", kind="fidelity")
class WhereOverlooksWaits(Pops):
    """A message that waits in its place under FIFO is said to be done with."""

    def progress(self, topic: str, queue: int, offset: int) -> list[GroupProgress]:
        return [
            but(each, state=MessageState.DONE, delivered=0)
            if each.state is MessageState.RETRY and not topic.startswith(RETRY_PREFIX)
            else each
            for each in super().progress(topic, queue, offset)
        ]


@mutant("P14", "P14.of_one_id_the_newest_is_found", kind="fidelity")
class GetFindsTheFirst(Pops):
    """Of several messages of one id that came in one millisecond, a look-up by id gives the first."""

    def get(self, message_id: str) -> PoppedMessage | None:
        newest: PoppedMessage | None = None
        for page in chain.from_iterable(map(self.pages, self.topics())):
            for message in page.messages:
                if isinstance(message, PoppedMessage) and message.message_id == message_id:
                    newest = message if newest is None or message.store_ms > newest.store_ms else newest
        return newest


@mutant("P7", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", kind="fidelity")
class DumpsNoReasons(Pops):
    """The exported leases leave out why the last attempt failed."""

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        page = super().export_state(table, after, limit)
        return but(page, rows=column_set(page.rows, "reason", [""] * page.rows.num_rows)) if table == "leases" else page


@mutant("P1", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", kind="fidelity")
class DumpsNoAttempts(Pops):
    """The exported state leaves out which leases an attempt was given."""

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        page = super().export_state(table, after, limit)
        return but(page, rows=page.rows.slice(0, 0)) if table == "attempts" else page


@mutant("P7", kind="fidelity")
class RejectsCountLess(Transaction):
    """A message that was rejected has one attempt fewer in its dead letter than it was delivered."""

    def bury(self, group: str, topic: str, record: bytes, attempts: int, reason: str) -> None:
        super().bury(group, topic, record, attempts if reason.startswith("delivered ") else attempts - 1, reason)


@mutant("Q1", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", kind="fidelity")
class LoadsArriveNow(Pops):
    """Messages that are taken in from another store arrived when they were taken in."""

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        given = []
        for table, rows in tables:
            if table == "messages":
                rows = column_set(rows, "store_ms", [now_ms] * rows.num_rows)
            given.append((table, rows))
        return super().import_state(given, now_ms, marks)


@mutant("I1", "I1.a_part_of_a_load_is_taken_in_once", kind="pairs")
class LoadsTakenInTwice(Timers):
    """A part of a load whose mark was given before is counted once more."""

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        return super().import_state(tables, now_ms)


# ---------------------------------------------------------------- after a reopen


@mutant("P14", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", kind="fidelity", base=LMDB)
class ReopenForgetsWaits(Pops):
    """After a reopen a message that backs off counts as one that somebody works on."""

    def planted(self) -> None:
        self._state.backing_off.clear()


@mutant("P9", "P9.un_acked_messages_come_back_in_place_and_acked_ones_do_not", kind="fidelity", base=LMDB)
class ReopenForgetsDeliveries(Pops):
    """After a reopen the messages of a FIFO run that wait count as never delivered."""

    def planted(self) -> None:
        for run in self._state.fifo.values():
            run.update({at: one._replace(delivered=0) for at, one in run.items()})


@mutant("P9", "P9.a_topic_that_begins_with_a_message_group_has_queues_for_many", kind="fidelity", base=LMDB)
class ReopenSpreadsAnew(Pops):
    """After a reopen the number of queues over which message groups are spread is fixed anew."""

    def planted(self) -> None:
        topics = self._state.topics
        topics.update({name: but(each, group_queues=0) for name, each in topics.items()})


@mutant("P7", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", kind="fidelity", base=LMDB)
class ReopenForgetsBackoff(Pops):
    """After a reopen a group has its number of retries, and no table of waits."""

    def planted(self) -> None:
        settings = self._state.group_settings
        settings.update({name: but(each, backoff_ms=()) for name, each in settings.items()})


@mutant("T12", kind="fidelity", base=LMDB)
class ParksShort(Transaction):
    """Of an entry that cannot be read the first 1024 bytes are parked."""

    def park(self, raw: bytes, reason: str, origin: str, origin_topic: str) -> None:
        super().park(raw[:1024], reason, origin, origin_topic)


@mutant("P6", "P6.change_longer_and_shorter", kind="pairs")
class ChangePopsFirst(Leasing):
    """A message whose lease was changed was popped first when it was changed."""

    def change(self, transaction: Any, change: Any) -> Any:
        result = super().change(transaction, change)
        if result.receipt is not None:
            for lease, _, is_new in transaction._touched.values():
                if is_new and lease.place[4] == result.receipt.pop_time_ms and lease.offsets == [result.receipt.queue_offset]:
                    lease.first_pop_ms = -1
        return result
