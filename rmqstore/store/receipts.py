"""What callers give to ``ack``, ``change_invisible``, ``release``, ``retry_later`` and ``reject``, turned into receipts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.contract import AckOutcome, ChangeResult, Receipt
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.message import PoppedMessage

_T = TypeVar("_T")

Leased: TypeAlias = PoppedMessage | ChangeResult | Receipt | str
LeasedMany: TypeAlias = Sequence[PoppedMessage | ChangeResult | Receipt | str] | MessageBatch


Popped: TypeAlias = PoppedMessage | ChangeResult
"""A popped message, or what ``change_invisible`` made of it."""


class PoppedMessages(list[PoppedMessage]):
    """What a pop leased, a list. ``acks`` has one outcome for each message that the pop was given to ack, in its order."""

    acks: Sequence[AckOutcome] = ()


class Given(msgspec.Struct, frozen=True):
    """What was given: the receipts, the places of the texts that were none, and whether it was a single one."""

    receipts: Sequence[Receipt]
    unknown: Sequence[int]
    is_single: bool

    def spread(self, outcomes: Sequence[_T], unknown: _T) -> list[_T]:
        """Return one outcome per thing given, ``unknown`` for the texts that were no receipts."""
        answers = list(outcomes)
        for place in self.unknown:
            answers.insert(place, unknown)
        return answers

    def answer(self, outcomes: Sequence[_T], unknown: _T) -> _T | list[_T]:
        """Return the outcome of a single thing, or the outcomes of what was a list."""
        if self.is_single:
            return unknown if self.unknown else outcomes[0]
        return self.spread(outcomes, unknown)


NOTHING_GIVEN: Final = Given((), (), is_single=False)


def receipts_of(leased: Leased | LeasedMany) -> Given:
    """Return what was given as receipts.

    Raises:
        IllegalArgumentTypeError: something else was given.
        IllegalArgumentError: a message or a batch was read without a lease.
    """
    if isinstance(leased, PoppedMessage | ChangeResult | Receipt | str):
        receipt = _receipt_of(leased)
        return Given(() if receipt is None else (receipt,), (0,) if receipt is None else (), is_single=True)
    if isinstance(leased, MessageBatch):
        return _receipts_of_batch(leased)
    if not isinstance(leased, Sequence) or isinstance(leased, bytes | bytearray):
        raise IllegalArgumentTypeError(f"expected a popped message, a receipt or a list of them, not {type(leased).__name__}")
    return _given([_receipt_of(each) for each in leased])


def popped_in(leased: Popped | Sequence[Popped]) -> list[PoppedMessage]:
    """Return the popped messages that a caller gives to ``retry_later``.

    Raises:
        IllegalArgumentTypeError: something else was given.
    """
    if isinstance(leased, PoppedMessage | ChangeResult):
        leased = [leased]
    if not isinstance(leased, Sequence) or isinstance(leased, str | bytes):
        raise IllegalArgumentTypeError(f"retry_later takes a popped message or a list of them, not {type(leased).__name__}")
    given = [each.message if isinstance(each, ChangeResult) else each for each in leased]
    messages = [each for each in given if isinstance(each, PoppedMessage)]
    if len(messages) < len(given):
        raise IllegalArgumentTypeError("retry_later takes popped messages, or what change_invisible gave for them")
    return messages


def _given(parsed: Sequence[Receipt | None]) -> Given:
    unknown = [place for place, receipt in enumerate(parsed) if receipt is None]
    return Given([receipt for receipt in parsed if receipt is not None], unknown, is_single=False)


def _receipt_of(leased: Leased) -> Receipt | None:
    if isinstance(leased, ChangeResult):
        held = leased.receipt or leased.message
        return None if held is None else _receipt_of(held)
    if isinstance(leased, Receipt):
        return leased if leased.is_sound else None
    if isinstance(leased, str):
        return Receipt.parse(leased)
    if isinstance(leased, PoppedMessage):
        if leased.proof is None:
            raise IllegalArgumentError(f"message {leased.message_id} was read without a lease; pop it first")
        return leased.proof if isinstance(leased.proof, Receipt) else Receipt.parse(leased.proof.text())
    raise IllegalArgumentTypeError(f"expected a popped message, a receipt or its text, not {type(leased).__name__}")


def renewed(leased: Leased | LeasedMany, results: Sequence[ChangeResult]) -> list[ChangeResult]:
    """Return results with the messages that were given, each under the receipt that its result holds."""
    if isinstance(leased, MessageBatch):
        return list(results)
    given = [leased] if isinstance(leased, PoppedMessage | ChangeResult | Receipt | str) else leased
    return [_renewed(each, result) for each, result in zip(given, results, strict=True)]


def _renewed(leased: Leased, result: ChangeResult) -> ChangeResult:
    message = leased.message if isinstance(leased, ChangeResult) else leased
    if not isinstance(message, PoppedMessage):
        return result
    if result.receipt is not None:
        message = msgspec.structs.replace(message, proof=result.receipt)
    return msgspec.structs.replace(result, message=message)


def _receipts_of_batch(batch: MessageBatch) -> Given:
    make = getattr(batch.source, "receipts", None)
    if make is not None:
        receipts: Sequence[Receipt] = make()
        if len(receipts) == len(batch):
            return Given(receipts, (), is_single=False)
    if "receipt" not in batch.columns.schema.names or batch.columns.column("receipt").null_count:
        raise IllegalArgumentError("this batch holds messages without a lease; give what pop_batch returned")
    return _given([Receipt.parse(text) for text in batch.columns.column("receipt").to_pylist()])
