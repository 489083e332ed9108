"""What callers give to ``cancel``, turned into handles, and to ``ack``, ``change_invisible``, ``release``, ``retry_later`` and ``reject``,
turned into receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.contract import AckOutcome, ChangeResult, Receipt, TimerHandle
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.message import PoppedMessage
from rmqstore.store.sending import SendReceipt

_T = TypeVar("_T")
_Name = TypeVar("_Name", Receipt, TimerHandle)

Leased: TypeAlias = PoppedMessage | ChangeResult | Receipt | str
LeasedMany: TypeAlias = Sequence[PoppedMessage | ChangeResult | Receipt | str] | MessageBatch


Sent: TypeAlias = SendReceipt | str | TimerHandle
"""What a send returned, or its handle."""

Popped: TypeAlias = PoppedMessage | ChangeResult
"""A popped message, or what ``change_invisible`` made of it."""


class PoppedMessages(list[PoppedMessage]):
    """What a pop leased, a list. ``acks`` has one outcome for each message that the pop was given to ack, in its order."""

    acks: Sequence[AckOutcome] = ()


class Parsed(msgspec.Struct, Generic[_Name], frozen=True):
    """What was given: the receipts or handles, the places of what was none, and whether it was a single one."""

    names: Sequence[_Name]
    unknown: Sequence[int]
    is_single: bool

    def spread(self, outcomes: Sequence[_T], unknown: _T) -> list[_T]:
        """Return one outcome per thing given, ``unknown`` for what was no name."""
        answers = list(outcomes)
        for place in self.unknown:
            answers.insert(place, unknown)
        return answers

    def answer(self, outcomes: Sequence[_T], unknown: _T) -> _T | list[_T]:
        """Return the outcome of a single thing, or the outcomes of what was a list."""
        if self.is_single:
            return unknown if self.unknown else outcomes[0]
        return self.spread(outcomes, unknown)


def handles_of(given: Sent | Sequence[Sent]) -> Parsed[TimerHandle]:
    """Return what was given to ``cancel`` as handles.

    Raises:
        IllegalArgumentTypeError: something else was given.
    """
    if isinstance(given, SendReceipt | str | TimerHandle):
        return _single(_handle_of(given))
    if not isinstance(given, Sequence):
        raise IllegalArgumentTypeError(f"cancel takes a receipt of a send, a handle (str) or a list of them, not {type(given).__name__}")
    names = list(given)
    texts = [each for each in names if type(each) is str]
    return _several(TimerHandle.parse_each(texts) if len(texts) == len(names) else [_handle_of(each) for each in names])


def _handle_of(given: Sent) -> TimerHandle | None:
    """Return the handle; None when it names no timer."""
    if isinstance(given, SendReceipt):
        return given.timer
    if isinstance(given, TimerHandle):
        return given if given.is_sound else None
    if not isinstance(given, str):
        raise IllegalArgumentTypeError(
            f"a handle is a str, not {type(given).__name__}; SendReceipt.handle is None for what was sent for now"
        )
    return TimerHandle.parse(given)


NO_RECEIPTS: Final[Parsed[Receipt]] = Parsed((), (), is_single=False)


def receipts_of(leased: Leased | LeasedMany) -> Parsed[Receipt]:
    """Return what was given as receipts.

    Raises:
        IllegalArgumentTypeError: something else was given.
        IllegalArgumentError: a message or a batch was read without a lease.
    """
    if isinstance(leased, PoppedMessage | ChangeResult | Receipt | str):
        return _single(_receipt_of(leased))
    if isinstance(leased, MessageBatch):
        return _receipts_of_batch(leased)
    if not isinstance(leased, Sequence) or isinstance(leased, bytes | bytearray):
        raise IllegalArgumentTypeError(f"expected a popped message, a receipt or a list of them, not {type(leased).__name__}")
    return _several([_receipt_of(each) for each in leased])


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


def _single(name: _Name | None) -> Parsed[_Name]:
    return Parsed((), (0,), is_single=True) if name is None else Parsed((name,), (), is_single=True)


def _several(parsed: Sequence[_Name | None]) -> Parsed[_Name]:
    unknown = [place for place, name in enumerate(parsed) if name is None]
    return Parsed([name for name in parsed if name is not None], unknown, is_single=False)


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


def _receipts_of_batch(batch: MessageBatch) -> Parsed[Receipt]:
    make = getattr(batch.source, "receipts", None)
    if make is not None:
        receipts: Sequence[Receipt] = make()
        if len(receipts) == len(batch):
            return Parsed(receipts, (), is_single=False)
    if "receipt" not in batch.columns.schema.names or batch.columns.column("receipt").null_count:
        raise IllegalArgumentError("this batch holds messages without a lease; give what pop_batch returned")
    return _several([Receipt.parse(text) for text in batch.columns.column("receipt").to_pylist()])
