"""From what a caller sends to what is stored: the time asked for, id, born time, queue (docs/handover.md); and the answers to it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import cast, overload

import msgspec

from rmqstore.batch import MessageBatch, distinct_topics
from rmqstore.config import Config
from rmqstore.contract import PopStore, TimerHandle, TimerReceipts
from rmqstore.delays import batch_without_requests, level_ms
from rmqstore.errors import IllegalArgumentError
from rmqstore.ids import id_of_mark, ids_of_mark, message_ids
from rmqstore.late import np, pa, pc, schemas
from rmqstore.message import Message, check_time_ms
from rmqstore.when import duration_ms, moment, time_ms

ONE_TIME = "deliver_at, delay, delay_level and the message's own deliver time exclude each other; give one"


class CallName(tuple[bytes]):
    """The mark by which a connection names a call, so that it can be made again (``rmqstore.engine.marks``).

    Unlike with other marks, the call goes where it would go without one: what is due now is in its topic at once. Made again it may go to
    the other side, since time has passed; ``Store._put`` sees to that.
    """


class SendReceipt(msgspec.Struct, frozen=True):
    """The answer to a send.

    Attributes:
        message_id: the message's id, made when it had none.
        repeated: a mark of the call was stored already, so this is the first call's answer (I1).
    """

    message_id: str
    repeated: bool = False
    _timers: TimerReceipts | None = None
    _row: int = 0

    @property
    def handle(self) -> str | None:
        """What cancels the timer, as text; None when the message went to its topic at once."""
        return None if self._timers is None else self._timers.handle(self._row).text()

    @property
    def timer(self) -> TimerHandle | None:
        """The handle as an object; None when the message went to its topic at once."""
        return None if self._timers is None else self._timers.handle(self._row)

    def __repr__(self) -> str:
        timer = self.timer
        later = "" if timer is None else f", handle={timer.text()!r}, due={moment(timer.tick)}"
        return f"SendReceipt(message_id={self.message_id!r}{later}{', repeated=True' if self.repeated else ''})"


class SendReceipts(Sequence[SendReceipt]):
    """The answers to a batch, in its order; each is made when it is looked at.

    Attributes:
        ids: the ids of the messages.
        timers: what cancels them; None when they went to their topics at once.
        repeated: a mark of the call was stored already, so these are the first call's answers (I1).
    """

    def __init__(self, ids: Sequence[str] | pa.Array, timers: TimerReceipts | None, repeated: bool) -> None:
        self.ids = ids
        self.timers = timers
        self.repeated = repeated

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, row: int) -> SendReceipt: ...
    @overload
    def __getitem__(self, row: slice) -> list[SendReceipt]: ...
    def __getitem__(self, row: int | slice) -> SendReceipt | list[SendReceipt]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"the batch has {len(self)} messages, there is no number {row}")
        row %= len(self)
        message_id = self.ids[row]
        return SendReceipt(message_id if isinstance(message_id, str) else message_id.as_py(), self.repeated, self.timers, row)

    def __repr__(self) -> str:
        return f"SendReceipts({len(self)} messages)"


def asked_ms(
    deliver_at: datetime | None,
    deliver_at_ms: int | None,
    delay: timedelta | None,
    delay_ms: int | None,
    delay_level: int | None,
    now_ms: int,
) -> int | None:
    """Return the deliver time that the arguments of a send ask for, in ms; None when they ask for none."""
    due_ms = None if deliver_at is None and deliver_at_ms is None else time_ms("deliver_at", deliver_at, deliver_at_ms)
    later_ms = None if delay is None and delay_ms is None else duration_ms("delay", delay, delay_ms)
    if (due_ms, later_ms, delay_level).count(None) < 2:
        raise IllegalArgumentError(ONE_TIME)
    if delay_level is not None:
        later_ms = level_ms(delay_level)
    if later_ms is not None:
        due_ms = now_ms + later_ms
        check_time_ms("now + delay", due_ms)
    return due_ms


def new_batch(batch: MessageBatch | pa.RecordBatch | pa.Table | Sequence[Message]) -> MessageBatch:
    """Return what a caller gives to ``send_batch`` as new messages: the receipts and offsets of popped or read ones stay behind."""
    if isinstance(batch, MessageBatch):
        return batch if batch.source is None else MessageBatch.from_arrow(batch.columns)
    if isinstance(batch, list):  # asked first: it needs no pyarrow
        return MessageBatch.of(batch)
    return MessageBatch.from_arrow(batch) if isinstance(batch, pa.RecordBatch | pa.Table) else MessageBatch.of(batch)


class Completer:
    """Fills in what callers leave out."""

    def __init__(self, pops: PopStore, config: Config) -> None:
        self._pops = pops
        self._default_queues = config.default_queues
        self._fifo_queues = config.fifo_queues
        self._turns: dict[str, int] = {}

    def group_queues(self, topic: str) -> int:
        """Return over how many queues the message groups of a topic are spread; its first message with a group fixes it (P9)."""
        known = self._pops.topic(topic)
        if known is None or (known.is_on_demand and not known.group_queues and not any(known.max_offsets)):
            return max(self._fifo_queues, self._default_queues if known is None else known.queues)
        return known.group_queues or known.queues

    def batch(
        self,
        given: Message | MessageBatch,
        deliver_at_ms: int | None,
        now_ms: int,
        marks: Sequence[bytes],
        group_queues: Mapping[str, int],
    ) -> MessageBatch:
        """Complete a message, or a batch in the form it has.

        Args:
            deliver_at_ms: the deliver time of all, in place of their own.
            group_queues: over how many queues of a topic message groups are spread, for each topic that has any in the batch.
        """
        if isinstance(given, Message):
            made = id_of_mark(marks[0], 0) if marks else message_ids.one(now_ms)
            return MessageBatch(messages=(self._message(given, deliver_at_ms, now_ms, made, group_queues),))
        if given.has_columns:
            return MessageBatch(columns=self._columns(given.columns, deliver_at_ms, now_ms, marks, group_queues))
        rows = cast("Sequence[Message]", given.messages)
        ids = [id_of_mark(marks[0], row) for row in range(len(rows))] if marks else message_ids.many(now_ms, len(rows))
        return MessageBatch(
            messages=[self._message(each, deliver_at_ms, now_ms, made, group_queues) for each, made in zip(rows, ids, strict=True)]
        )

    def _message(self, message: Message, deliver_at_ms: int | None, now_ms: int, made_id: str, group_queues: Mapping[str, int]) -> Message:
        queue = message.queue_id
        if queue is None and message.message_group is not None:
            queue = group_queue(message.message_group, group_queues[message.topic])
        elif queue is None:
            # An unknown topic is made when its first message arrives, so that a refused send leaves nothing behind.
            queues = self._pops.queues(message.topic) or self._default_queues
            queue = 0 if queues == 1 else self._take_turns(message.topic, 1) % queues
        return Message(
            message.topic,
            message.body,
            message.tag,
            message.keys,
            message.properties,
            message.message_group,
            message.deliver_at_ms if deliver_at_ms is None else deliver_at_ms,
            message.message_id or made_id,
            now_ms if message.born_ms is None else message.born_ms,
            queue,
        )

    def _columns(
        self, columns: pa.RecordBatch, deliver_at_ms: int | None, now_ms: int, marks: Sequence[bytes], group_queues: Mapping[str, int]
    ) -> pa.RecordBatch:
        arrays = dict(zip(columns.schema.names, columns.columns, strict=True))
        count = columns.num_rows
        if deliver_at_ms is not None:
            arrays["deliver_at_ms"] = pa.array(np.full(count, deliver_at_ms), pa.int64())
        missing = arrays["message_id"].null_count
        if missing:
            ids = ids_of_mark(marks[0], count) if marks else message_ids.column(now_ms, missing)
            if marks and missing < count:
                ids = ids.filter(arrays["message_id"].is_null())
            arrays["message_id"] = (
                ids if missing == count else pc.replace_with_mask(arrays["message_id"], arrays["message_id"].is_null(), ids)
            )
        if arrays["born_ms"].null_count == count:
            arrays["born_ms"] = pa.array(np.full(count, now_ms))
        elif arrays["born_ms"].null_count:
            arrays["born_ms"] = pc.fill_null(arrays["born_ms"], pa.scalar(now_ms, pa.int64()))
        if arrays["queue_id"].null_count:
            given = arrays["queue_id"]
            chosen = self._queue_column(arrays["topic"], arrays["message_group"], given.is_null(), group_queues)
            arrays["queue_id"] = chosen if given.null_count == count else pc.coalesce(given, chosen)
        return pa.RecordBatch.from_arrays([arrays[name] for name in schemas.IN_SCHEMA.names], schema=schemas.IN_SCHEMA)

    def _queue_column(self, topics: pa.Array, groups: pa.Array, is_open: pa.Array, group_queues: Mapping[str, int]) -> pa.Array:
        """Return the queue of each row, as far as that ``is_open``: in turn, or the one of its message group."""
        queues = np.zeros(len(topics), np.int32)
        distinct = distinct_topics(topics) if len(topics) else []
        for topic in distinct:
            count = self._pops.queues(topic) or self._default_queues
            spread = group_queues.get(topic)
            if count > 1 or spread is not None:
                here = is_open if len(distinct) == 1 else pc.and_(is_open, pc.equal(topics, topic))
                in_turn = here if spread is None else pc.and_(here, groups.is_null())
                rows = np.flatnonzero(in_turn.to_numpy(zero_copy_only=False))
                queues[rows] = (self._take_turns(topic, len(rows)) + np.arange(len(rows))) % count
                if spread is not None:
                    for row in np.flatnonzero(pc.and_(here, groups.is_valid()).to_numpy(zero_copy_only=False)).tolist():
                        queues[row] = group_queue(groups[row].as_py(), spread)
        return pa.array(queues)

    def _take_turns(self, topic: str, count: int) -> int:
        """Return the first of so many turns of a topic. Two threads may get the same ones, which does no harm."""
        first = self._turns.get(topic, 0)
        self._turns[topic] = first + count
        return first


def group_queue(message_group: str, queues: int) -> int:
    """Return the queue that keeps the order of a message group."""
    return zlib.crc32(message_group.encode()) % queues


def latest_deliver_ms(batch: MessageBatch) -> int | None:
    """Return the latest deliver time of a batch, ms; None when no message has one."""
    if batch.has_columns:
        latest: int | None = pc.max(batch.columns.column("deliver_at_ms")).as_py()
        return latest
    return max((message.deliver_at_ms for message in batch.messages if message.deliver_at_ms is not None), default=None)


def grouped_topics(batch: MessageBatch) -> Iterable[str]:
    """Return the topics of those messages of a batch that belong to a FIFO group."""
    if batch.has_columns:
        groups = batch.columns.column("message_group")
        if groups.null_count == len(groups):
            return ()
        return distinct_topics(batch.columns.column("topic").filter(groups.is_valid()))
    return {message.topic for message in batch.messages if message.message_group is not None}


def calls_of(rows: pa.RecordBatch, mark: bytes) -> list[tuple[bytes, pa.RecordBatch]]:
    """Return rows in calls that a store takes, each with its mark: messages with a message group apart when others have a time (P9)."""
    is_grouped = rows.column("message_group").is_valid()
    if not is_grouped.true_count or latest_deliver_ms(batch_without_requests(MessageBatch(columns=rows), 0)) is None:
        return [(mark, rows)]
    return [(mark, rows.filter(is_grouped)), (mark + b"/others", rows.filter(pc.invert(is_grouped)))]


def ids_of(batch: MessageBatch) -> Sequence[str] | pa.Array:
    """Return the message ids of a completed batch."""
    if batch.has_columns:
        return batch.columns.column("message_id")
    return [message.message_id or "" for message in batch.messages]
