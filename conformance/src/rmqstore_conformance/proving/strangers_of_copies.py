"""Strangers that lose or change one field of one copy of a message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    DueBatch,
    GroupProgress,
    LeaseInfo,
    MessageState,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerCursor,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.contract.state import StatePage
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.popped import PoppedRecords
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.message import PROPERTY_DLQ_ATTEMPTS, PROPERTY_DLQ_REASON, RETRY_PREFIX, Message, PoppedMessage
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, stranger
from rmqstore_conformance.proving.strangers_of_data import with_rows

# ---------------------------------------------------------------- timers


@stranger("H2", "fidelity")
class NullTimeBecomesNow(Timers):
    """In a call with timers, a message without a deliver time gets the time of the call as one."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        def timed(message: Message) -> Message:
            return msgspec.structs.replace(message, deliver_at_ms=now_ms) if message.deliver_at_ms is None else message

        return super().put(with_rows(batch, timed), now_ms, marks)


@stranger("H2", "fidelity")
class BornInSeconds(Timers):
    """The born time of a timer is kept in whole seconds."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        def whole(message: Message) -> Message:
            return msgspec.structs.replace(message, born_ms=(message.born_ms or 0) // 1000 * 1000)

        return super().put(with_rows(batch, whole), now_ms, marks)


@stranger("H2", "fidelity")
class LargeBodiesCutOnTheWay(Timers):
    """A hand-over reads a message through a buffer of 1 MiB, and what is longer arrives cut."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        return msgspec.structs.replace(
            found, messages=with_rows(found.messages, lambda each: msgspec.structs.replace(each, body=each.body[: 1 << 20]))
        )


@stranger("H2", "fidelity")
class KeysTwiceOnTheWay(Timers):
    """A hand-over gives the keys of a message without those that are there twice."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        return msgspec.structs.replace(
            found, messages=with_rows(found.messages, lambda each: msgspec.structs.replace(each, keys=tuple(dict.fromkeys(each.keys))))
        )


@stranger("I1", "fidelity")
class RepeatsTickAnew(Timers):
    """The answer to a repeated put names the ticks of the repeat, so handles of a call with a delay find nothing."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        receipts, ticket = super().put(batch, now_ms, marks)
        if receipts.status is WriteStatus.REPEATED and len(receipts) == len(batch):
            width = self.precision_ms
            asked = [each.deliver_at_ms for each in batch.messages]
            ticks = [min(-(-(at or now_ms) // width) * width, 2**62) for at in asked]
            receipts = msgspec.structs.replace(receipts, ticks=ticks)
        return receipts, ticket


@stranger("C4", "fidelity")
class DumpsNoDelivered(Timers):
    """The exported state of timers leaves out what is remembered of delivered ones."""

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        page = super().export_state(table, after, limit)
        if table != "timer_traces" or not page.rows.num_rows:
            return page
        kept = np.asarray(page.rows.column("kind").to_pylist()) == 0
        return msgspec.structs.replace(page, rows=page.rows.filter(pa.array(kept)))


# ---------------------------------------------------------------- retries and dead letters


class _FormatWith:
    """Records in the format of the store, but for the copies that are made of them."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


@stranger("P7", "fidelity")
class DeadKeysSorted(Transaction):
    """A dead letter has its keys in the order of the alphabet."""

    def bury(self, group: str, topic: str, record: bytes, attempts: int, reason: str) -> None:
        message = self._format.decode_message(record)
        kept = msgspec.structs.replace(message, keys=tuple(sorted(message.keys)))
        super().bury(group, topic, self._format.encode_message(kept), attempts, reason)


@stranger("P7", "fidelity")
class DeadGetTags(Transaction):
    """A message without a tag gets one when it becomes a dead letter."""

    def bury(self, group: str, topic: str, record: bytes, attempts: int, reason: str) -> None:
        message = self._format.decode_message(record)
        super().bury(
            group, topic, self._format.encode_message(msgspec.structs.replace(message, tag=message.tag or "DLQ")), attempts, reason
        )


class _NotesReasons(_FormatWith):
    def decode_message(self, record: bytes) -> Message:
        message: Message = self._plain.decode_message(record)
        if PROPERTY_DLQ_REASON in message.properties:
            self.__dict__.setdefault("reasons", {})[message.message_id] = message.properties[PROPERTY_DLQ_REASON]
        return message

    def encode_message(self, message: Message, attempt: int = 0, first_pop_ms: int = -1) -> bytes:
        reason = self.__dict__.get("reasons", {}).pop(message.message_id, None)
        if reason is not None:
            message = msgspec.structs.replace(message, properties={**message.properties, "LAST_REASON": reason})
        done: bytes = self._plain.encode_message(message, attempt, first_pop_ms)
        return done


class _ReformingAdministration(Administration):
    form: type[_FormatWith] = _FormatWith

    def _remove_from(self, transaction: Any, topic: Any, queue: int, asked: Any) -> list[int]:
        record_format: Any = self._log.format
        self._log.format = self.form(record_format)
        try:
            return super()._remove_from(transaction, topic, queue, asked)
        finally:
            self._log.format = record_format


@stranger("P7", "fidelity")
class ResentRemembers(_ReformingAdministration):
    """A dead letter that is sent back keeps its reason in a property of its own."""

    form = _NotesReasons


class _CountsOn(_FormatWith):
    def encode_message(self, message: Message, attempt: int = 0, first_pop_ms: int = -1) -> bytes:
        count = self.__dict__.get("attempts", {}).pop(message.message_id, 0)
        done: bytes = self._plain.encode_message(message, attempt or count, first_pop_ms)
        return done

    def decode_message(self, record: bytes) -> Message:
        message: Message = self._plain.decode_message(record)
        if PROPERTY_DLQ_ATTEMPTS in message.properties:
            self.__dict__.setdefault("attempts", {})[message.message_id] = int(message.properties[PROPERTY_DLQ_ATTEMPTS])
        return message


@stranger("P7", "fidelity")
class ResentCountsOn(_ReformingAdministration):
    """A dead letter that is sent back goes on with the attempts that it had."""

    form = _CountsOn


@stranger("P7", "fidelity")
class ReleaseForgetsAttempts(Leasing):
    """A release of a retried message starts its attempts anew."""

    def release(self, transaction: Any, receipt: Any) -> Any:
        plain = self._format

        class Format(_FormatWith):
            def with_delivery(self, record: bytes, attempt: int, first_pop_ms: int) -> bytes:
                done: bytes = self._plain.with_delivery(record, 0, first_pop_ms)
                return done

        self._format = Format(plain)
        try:
            return super().release(transaction, receipt)
        finally:
            self._format = plain


@stranger("P7", "fidelity")
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


class _WrongColumns:
    def __init__(self, popped: Any) -> None:
        self._popped = popped

    def __len__(self) -> int:
        return len(self._popped)

    def messages(self) -> list[PoppedMessage]:
        found: list[PoppedMessage] = self._popped.messages()
        return found

    def receipts(self) -> Any:
        return self._popped.receipts()

    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        raise NotImplementedError

    def columns(self) -> pa.RecordBatch:
        plain = PoppedRecords.columns(self._popped).columns
        arrays = {name: plain.column(name) for name in plain.schema.names} | self.changed(plain)
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=plain.schema)


class _FirstQueue(_WrongColumns):
    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        queues = columns.column("queue_id").to_pylist()
        return {"queue_id": pa.array(queues[:1] * len(queues), pa.int32())}


class _FreshPops(_WrongColumns):
    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        attempts = columns.column("attempt").to_pylist()
        return {"attempt": pa.array([min(each, 1) for each in attempts], pa.int32())}


class _LatestPops(_WrongColumns):
    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        times = [receipt.pop_time_ms for receipt in self._popped.receipts()]
        return {"first_pop_ms": pa.array(times, pa.int64())} if len(times) == columns.num_rows else {}


class _PoppedWrongly(PoppedRecords):
    kind: type[_WrongColumns] = _WrongColumns

    def columns(self) -> MessageBatch:
        return MessageBatch(source=self.kind(self))


class _PoppedFirstQueue(_PoppedWrongly):
    kind = _FirstQueue


class _PoppedFresh(_PoppedWrongly):
    kind = _FreshPops


class _PoppedLatest(_PoppedWrongly):
    kind = _LatestPops


class _ColumnFault(Pops):
    popped_class: type[PoppedRecords] = PoppedRecords

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        result, ticket = super().pop(request, now_ms)
        result.messages.__class__ = self.popped_class
        return result, ticket


@stranger("P13", "fidelity")
class ColumnsOfOneQueue(_ColumnFault):
    """The columns of a pop over several queues say of all messages that they lie in the first one's."""

    popped_class = _PoppedFirstQueue


@stranger("P7", "fidelity")
class ColumnsOfFirstAttempts(_ColumnFault):
    """The columns of a pop say of every message that this is its first attempt."""

    popped_class = _PoppedFresh


@stranger("P3", "fidelity")
class ColumnsOfLastPop(_ColumnFault):
    """The columns of a pop give the time of this pop as that of the first one."""

    popped_class = _PoppedLatest


class _AppendedColumns(Pops):
    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        raise NotImplementedError

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if txn.appends is not None and txn.timer_cursor is None and txn.appends.has_columns:
            plain = txn.appends.columns
            arrays = {name: plain.column(name) for name in plain.schema.names} | self.changed(plain)
            txn = msgspec.structs.replace(
                txn, appends=MessageBatch(columns=pa.RecordBatch.from_arrays(list(arrays.values()), schema=plain.schema))
            )
        return super().apply(txn, now_ms)


@stranger("R1", "fidelity")
class ColumnsKeepOneKey(_AppendedColumns):
    """Of the keys of a message that was sent for now by columns, the first one is kept."""

    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        keys = columns.column("keys").to_pylist()
        return {"keys": pa.array([each and each[:1] for each in keys], columns.column("keys").type)}


@stranger("R1", "fidelity")
class ColumnsFillTags(_AppendedColumns):
    """A message without a tag that was sent by columns gets the tag of the row before it."""

    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        filled: list[str | None] = []
        for tag in columns.column("tag").to_pylist():
            filled.append(filled[-1] if tag is None and filled else tag)
        return {"tag": pa.array(filled, pa.string())}


class _OneStoreTime(_WrongColumns):
    def messages(self) -> list[PoppedMessage]:
        found = super().messages()
        return [msgspec.structs.replace(each, store_ms=found[0].store_ms) for each in found]

    def changed(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        times = columns.column("store_ms").to_pylist()
        return {"store_ms": pa.array(times[:1] * len(times), pa.int64())}


@stranger("P14", "fidelity")
class ReadsOneStoreTime(Pops):
    """A read of messages of several calls says that all of them came with the first."""

    def read(self, topic: str, queue: int, offset: int, limit: int) -> MessageBatch:
        source: Any = super().read(topic, queue, offset, limit).source
        return MessageBatch(source=_OneStoreTime(source.popped))


@stranger("P14", "fidelity")
class LeasesForgetRuns(Pops):
    """The leases of messages in order are listed as first attempts, as the count lies with the run and not with the message."""

    def leases(self, topic: str | None = None, group: str | None = None) -> list[LeaseInfo]:
        ordered = {(each.group, each.topic) for each in self.subscriptions() if each.is_ordered}
        return [
            msgspec.structs.replace(each, attempt=1) if (each.group, each.topic) in ordered else each
            for each in super().leases(topic, group)
        ]


@stranger("P14", "fidelity")
class WhereOverlooksWaits(Pops):
    """A message that waits in its place under FIFO is said to be done with."""

    def progress(self, topic: str, queue: int, offset: int) -> list[GroupProgress]:
        return [
            msgspec.structs.replace(each, state=MessageState.DONE, delivered=0)
            if each.state is MessageState.RETRY and not topic.startswith(RETRY_PREFIX)
            else each
            for each in super().progress(topic, queue, offset)
        ]


@stranger("P14", "fidelity")
class GetFindsTheFirst(Pops):
    """Of several messages of one id that came in one millisecond, a look-up by id gives the first."""

    def get(self, message_id: str) -> PoppedMessage | None:
        newest: PoppedMessage | None = None
        for page in chain.from_iterable(map(self.pages, self.topics())):
            for message in page.messages:
                if isinstance(message, PoppedMessage) and message.message_id == message_id:
                    newest = message if newest is None or message.store_ms > newest.store_ms else newest
        return newest


@stranger("P7", "fidelity")
class DumpsNoReasons(Pops):
    """The exported leases leave out why the last attempt failed."""

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        page = super().export_state(table, after, limit)
        if table != "leases":
            return page
        rows = page.rows
        at = rows.schema.get_field_index("reason")
        return msgspec.structs.replace(page, rows=rows.set_column(at, rows.schema.field(at), pa.array([""] * rows.num_rows, pa.string())))


@stranger("P1", "fidelity")
class DumpsNoAttempts(Pops):
    """The exported state leaves out which leases an attempt was given."""

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        page = super().export_state(table, after, limit)
        return msgspec.structs.replace(page, rows=page.rows.slice(0, 0)) if table == "attempts" else page


@stranger("P7", "fidelity")
class RejectsCountLess(Transaction):
    """A message that was rejected has one attempt fewer in its dead letter than it was delivered."""

    def bury(self, group: str, topic: str, record: bytes, attempts: int, reason: str) -> None:
        super().bury(group, topic, record, attempts if reason.startswith("delivered ") else attempts - 1, reason)


@stranger("Q1", "fidelity")
class LoadsArriveNow(Pops):
    """Messages that are taken in from another store arrived when they were taken in."""

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        given = []
        for table, rows in tables:
            if table == "messages":
                at = rows.schema.get_field_index("store_ms")
                rows = rows.set_column(at, rows.schema.field(at), pa.array([now_ms] * rows.num_rows, pa.int64()))
            given.append((table, rows))
        return super().import_state(given, now_ms, marks)


@stranger("I1", "pairs")
class LoadsTakenInTwice(Timers):
    """A part of a load whose mark was given before is counted once more."""

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        return super().import_state(tables, now_ms)


# ---------------------------------------------------------------- after a reopen


@stranger("P14", "fidelity", LMDB)
class ReopenForgetsWaits(Pops):
    """After a reopen a message that backs off counts as one that somebody works on."""

    def planted(self) -> None:
        self._state.backing_off.clear()


@stranger("P9", "fidelity", LMDB)
class ReopenForgetsDeliveries(Pops):
    """After a reopen the messages of a FIFO run that wait count as never delivered."""

    def planted(self) -> None:
        for run in self._state.fifo.values():
            run.update({at: one._replace(delivered=0) for at, one in run.items()})


@stranger("P9", "fidelity", LMDB)
class ReopenSpreadsAnew(Pops):
    """After a reopen the number of queues over which message groups are spread is fixed anew."""

    def planted(self) -> None:
        topics = self._state.topics
        topics.update({name: msgspec.structs.replace(each, group_queues=0) for name, each in topics.items()})


@stranger("P7", "fidelity", LMDB)
class ReopenForgetsBackoff(Pops):
    """After a reopen a group has its number of retries, and no table of waits."""

    def planted(self) -> None:
        settings = self._state.group_settings
        settings.update({name: msgspec.structs.replace(each, backoff_ms=()) for name, each in settings.items()})


@stranger("T12", "fidelity", LMDB)
class ParksShort(Transaction):
    """Of an entry that cannot be read the first 1024 bytes are parked."""

    def park(self, raw: bytes, reason: str, origin: str, origin_topic: str) -> None:
        super().park(raw[:1024], reason, origin, origin_topic)


@stranger("P3", "pairs")
class ChangePopsFirst(Leasing):
    """A message whose lease was changed was popped first when it was changed."""

    def change(self, transaction: Any, change: Any) -> Any:
        result = super().change(transaction, change)
        if result.receipt is not None:
            for lease, _, is_new in transaction._touched.values():
                if is_new and lease.place[4] == result.receipt.pop_time_ms and lease.offsets == [result.receipt.queue_offset]:
                    lease.first_pop_ms = -1
        return result
