"""``RecordFormat``: how a message lies in a record, as far as the pop side has to know; ``records`` is the one of key-ordered engines.

A record is ``bytes`` that only its format reads. It holds a message with where it goes, how often it was delivered, and since when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore.message import Message, PoppedMessage, Proof

NONE: Final = -1


class Delivery(NamedTuple):
    """What messages that are handed out together share, whatever their records say of where they were before.

    Attributes:
        counted: deliveries, to be added to those that a record counts.
        first_pop_ms: when they were popped first, unless their records say so.
    """

    topic: str
    queue_id: int
    counted: int
    first_pop_ms: int | None


class RecordFormat(Protocol):
    """Makes and reads records; a module of functions will do."""

    def encode_batch(self, batch: MessageBatch) -> list[bytes]:
        """Return one record per message; the messages have an id and a born time."""

    def encode_columns(self, columns: pa.RecordBatch) -> list[bytes]:
        """Return one record per row of a batch of ``IN_SCHEMA``."""

    def encode_message(self, message: Message | PoppedMessage, attempt: int = 0, first_pop_ms: int = NONE) -> bytes:
        """Return the record of one message that was counted as delivered ``attempt`` times."""

    def with_delivery(self, record: bytes, attempt: int, first_pop_ms: int) -> bytes:
        """Return a copy of ``record`` that counts ``attempt`` deliveries and was first popped at ``first_pop_ms``."""

    def route_of(self, record: bytes) -> tuple[bytes, int]:
        """Return (topic, queue id) of a record; queue id -1 when the store has not chosen one."""

    def attempt_of(self, record: bytes) -> int:
        """Return how many deliveries were counted."""

    def first_pop_of(self, record: bytes) -> int:
        """Return when the message was first popped, ms, or -1."""

    def tag_of(self, record: bytes) -> bytes:
        """Return the tag, empty when there is none."""

    def message_id_of(self, record: bytes) -> bytes:
        """Return the message id."""

    def decode_message(self, record: bytes) -> Message:
        """Return the record as a message on its way in."""

    def popped_message(self, record: bytes, delivery: Delivery, queue_offset: int, store_ms: int, proof: Proof | None) -> PoppedMessage:
        """Return the record as a message on its way out."""

    def decode_columns(self, records: Sequence[bytes]) -> dict[str, pa.Array]:
        """Return every column of the records, ``attempt`` and ``first_pop_ms`` included."""

    def property_columns(self, records: Sequence[bytes], names: Iterable[str]) -> dict[str, pa.Array]:
        """Return the named properties of the records, fields that RocketMQ keeps as properties included, as columns of texts or nulls."""

    def property_texts(self, record: bytes, names: Iterable[str]) -> dict[str, str]:
        """Return the named properties of one record, as :meth:`property_columns` gives them for many."""
