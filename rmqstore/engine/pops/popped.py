"""The messages of one pop or read, decoded only when somebody looks inside."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import overload

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.columns import spread
from rmqstore.contract import PoppedBatch, Receipt
from rmqstore.engine.records import Delivery, RecordFormat
from rmqstore.late import pa, pc, schemas
from rmqstore.message import PoppedMessage


class QueueRecords(msgspec.Struct, frozen=True):
    """Messages of one queue.

    Attributes:
        topic: as the consumer sees it.
        proof: the receipt of the first message, which those of the others are like; None when they are not leased.
        first_pop_ms: when they were popped first, this pop included, unless their records say so; None when they never were.
    """

    topic: str
    queue_id: int
    offsets: Sequence[int]
    records: Sequence[bytes]
    store_ms: Sequence[int]
    proof: Receipt | None = None
    first_pop_ms: int | None = None

    def receipts(self) -> list[Receipt]:
        """Return one receipt a message; none when they are not leased."""
        if self.proof is None or len(self.offsets) == 1:
            return [] if self.proof is None else [self.proof]
        return [msgspec.structs.replace(self.proof, queue_offset=offset) for offset in self.offsets]


_records_of = attrgetter("records")


class PoppedReceipts(Sequence[Receipt]):
    """The receipts of all records of a pop; an ack of all of them looks up each check point once."""

    def __init__(self, parts: Sequence[QueueRecords]) -> None:
        self.parts = [part for part in parts if part.proof is not None]
        self._receipts: list[Receipt] | None = None

    def __len__(self) -> int:
        return sum(len(part.offsets) for part in self.parts)

    @overload
    def __getitem__(self, at: int) -> Receipt: ...
    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...
    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        if self._receipts is None:
            self._receipts = [receipt for part in self.parts for receipt in part.receipts()]
        return self._receipts[at]


class PoppedRecords(PoppedBatch):
    """Records of several queues, one behind the other; all records have one format."""

    def __init__(self, parts: Sequence[QueueRecords], record_format: RecordFormat) -> None:
        self.parts = parts
        self.format = record_format
        self._count = sum(map(len, map(_records_of, parts)))

    def __len__(self) -> int:
        return self._count

    def receipts(self) -> Sequence[Receipt]:
        return PoppedReceipts(self.parts)

    def messages(self) -> list[PoppedMessage]:
        make = self.format.popped_message
        messages: list[PoppedMessage] = []
        for part in self.parts:
            proofs: Sequence[Receipt | None] = part.receipts() or [None] * len(part.records)
            delivery = Delivery(part.topic, part.queue_id, int(part.proof is not None), part.first_pop_ms)
            messages += map(make, part.records, repeat(delivery), part.offsets, part.store_ms, proofs)
        return messages

    def columns(self) -> MessageBatch:
        return MessageBatch(source=_Columns(self))


class _Columns:
    """The same messages as a batch source."""

    def __init__(self, popped: PoppedRecords) -> None:
        self.popped = popped

    def __len__(self) -> int:
        return len(self.popped)

    def messages(self) -> list[PoppedMessage]:
        return self.popped.messages()

    def receipts(self) -> Sequence[Receipt]:
        return self.popped.receipts()

    def columns(self) -> pa.RecordBatch:
        parts = self.popped.parts
        counts = [len(part.records) for part in parts]
        columns = self.popped.format.decode_columns([record for part in parts for record in part.records])
        columns["topic"] = spread([part.topic for part in parts], counts, pa.string())
        columns["queue_id"] = spread([part.queue_id for part in parts], counts, pa.int32())
        columns["queue_offset"] = pa.array([offset for part in parts for offset in part.offsets], pa.int64())
        columns["store_ms"] = pa.array([store_ms for part in parts for store_ms in part.store_ms], pa.int64())
        columns["attempt"] = pc.add(columns["attempt"], spread([int(part.proof is not None) for part in parts], counts, pa.int32()))
        columns["first_pop_ms"] = pc.coalesce(columns["first_pop_ms"], spread([part.first_pop_ms for part in parts], counts, pa.int64()))
        receipts: list[str | None] = []
        for part in parts:
            receipts += [None] * len(part.records) if part.proof is None else part.proof.texts(part.offsets)
        columns["receipt"] = pa.array(receipts, pa.string())
        return pa.RecordBatch.from_arrays([columns[name] for name in schemas.OUT_SCHEMA.names], schema=schemas.OUT_SCHEMA)
