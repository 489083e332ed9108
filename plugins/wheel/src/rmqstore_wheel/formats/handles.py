"""Texts that a broker hands to consumers with popped messages (``ExtraInfoUtil``).

``POP_CK``, the handle of one message, fields separated by a blank; the proxy appends the last one::

    ckStartOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgQueueOffset [commitLogOffset]

In the header of a reply, groups separated by ``;``, fields by a blank::

    startOffsetInfo    retryFlag queueId startOffset
    msgOffsetInfo      retryFlag queueId offset,offset,…
    orderCountInfo     retryFlag qo<queueId>%<offset> count       per message that was consumed before
                       retryFlag queueId count                    the least of the queue, for old clients

retryFlag: 0 the topic itself, 1 its retry topic of form V1, 2 of form V2.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from rmqstore.errors import IllegalArgumentError
from rmqstore.message import RETRY_PREFIX

NORMAL: Final = 0
RETRY_V1: Final = 1
RETRY_V2: Final = 2
FLAGS: Final = (NORMAL, RETRY_V1, RETRY_V2)

_INT = r"(-?\d{1,19})"
_HANDLE = re.compile(rf"{_INT} {_INT} {_INT} {_INT} ([012]) (\S+) {_INT} {_INT}(?: {_INT})?", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_MESSAGE = re.compile(r"qo(\d{1,10})%(\d{1,19})", re.ASCII)

V = TypeVar("V")
K = TypeVar("K")
Queue = tuple[int, int]
"""Retry flag and queue id."""


def retry_flag(topic: str) -> int:
    """Return the flag of a topic as it lies in the store."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def stored_topic(topic: str, group: str, flag: int) -> str:
    """Return the topic that messages with this flag lie in."""
    if flag == NORMAL:
        return topic
    return f"{RETRY_PREFIX}{group}{'+' if flag == RETRY_V2 else '_'}{topic}"


class Handle(msgspec.Struct, frozen=True):
    """``POP_CK``. ``revive_qid`` is 999 for a FIFO pop, which has no check point."""

    ck_start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_qid: int
    retry_flag: int
    broker: str
    queue_id: int
    queue_offset: int
    log_offset: int | None = None

    def text(self) -> str:
        """Return the text form."""
        text = (
            f"{self.ck_start_offset} {self.pop_ms} {self.invisible_ms} {self.revive_qid} {self.retry_flag} {self.broker} "
            f"{self.queue_id} {self.queue_offset}"
        )
        return text if self.log_offset is None else f"{text} {self.log_offset}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Read a text form.

        Raises:
            IllegalArgumentError: it is none.
        """
        match = _HANDLE.fullmatch(text)
        if match is None:
            raise IllegalArgumentError(f"{text[:80]!r} is no POP_CK handle: eight or nine fields separated by a blank are expected")
        start, pop, invisible, revive, flag = (int(match[number]) for number in range(1, 6))
        return cls(start, pop, invisible, revive, flag, match[6], int(match[7]), int(match[8]), None if match[9] is None else int(match[9]))


# ---------------------------------------------------------------- the header of a reply


def start_offset_info(offsets: Mapping[Queue, int]) -> str:
    """Return ``startOffsetInfo``: where the read of each queue began."""
    return ";".join(f"{flag} {queue} {offset}" for (flag, queue), offset in offsets.items())


def parse_start_offset_info(text: str) -> dict[Queue, int]:
    """Read ``startOffsetInfo``.

    Raises:
        IllegalArgumentError: it is none, or names a queue twice.
    """
    return _parse(text, "startOffsetInfo", _queue, _number)


def message_offset_info(offsets: Mapping[Queue, Sequence[int]]) -> str:
    """Return ``msgOffsetInfo``: the offsets of the messages of each queue; a queue without messages is left out."""
    return ";".join(f"{flag} {queue} {','.join(map(str, each))}" for (flag, queue), each in offsets.items() if each)


def parse_message_offset_info(text: str) -> dict[Queue, list[int]]:
    """Read ``msgOffsetInfo``.

    Raises:
        IllegalArgumentError: it is none, or names a queue twice.
    """
    return _parse(text, "msgOffsetInfo", _queue, lambda value: [_number(each) for each in value.split(",")])


def order_count_info(queues: Iterable[tuple[Queue, Mapping[int, int], int]]) -> str:
    """Return ``orderCountInfo`` of (queue, times consumed before by offset, least count of its messages)."""
    groups = []
    for (flag, queue), counts, least in queues:
        groups += [f"{flag} qo{queue}%{offset} {count}" for offset, count in counts.items()]
        groups.append(f"{flag} {queue} {least}")
    return ";".join(groups)


def parse_order_count_info(text: str) -> tuple[dict[Queue, int], dict[tuple[int, int, int], int]]:
    """Read ``orderCountInfo``: the least count by queue, and the counts by (retry flag, queue id, offset).

    Raises:
        IllegalArgumentError: it is none, or names something twice.
    """
    found = _parse(text, "orderCountInfo", _queue_or_message, _number)
    queues = {(key[0], key[1]): count for key, count in found.items() if len(key) == 2}
    return queues, {(key[0], key[1], key[2]): count for key, count in found.items() if len(key) == 3}


def _parse(text: str, what: str, key_of: Callable[[str, str], K], value_of: Callable[[str], V]) -> dict[K, V]:
    found: dict[K, V] = {}
    for group in text.split(";") if text else ():
        try:
            flag, place, value = group.split(" ")
            key = key_of(flag, place)
            if key in found:
                raise ValueError("a place that was named before")
            found[key] = value_of(value)
        except ValueError as error:
            raise IllegalArgumentError(f"{text[:80]!r} is no {what}: {group[:40]!r}: {error}") from None
    return found


def _queue(flag: str, place: str) -> Queue:
    return _flag(flag), _number(place)


def _queue_or_message(flag: str, place: str) -> tuple[int, ...]:
    match = _MESSAGE.fullmatch(place)
    return _queue(flag, place) if match is None else (_flag(flag), int(match[1]), int(match[2]))


def _flag(text: str) -> int:
    if text not in ("0", "1", "2"):
        raise ValueError(f"a retry flag of {text!r}")
    return int(text)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} where a number is expected")
    return int(text)


_VERSION = "v1"
_TIMESTAMP = re.compile(r"-?\d{1,19}", re.ASCII)
_ALPHABET = re.compile(r"[A-Za-z0-9_-]+={0,2}", re.ASCII)


class RecallHandle(msgspec.Struct, frozen=True):
    """What a recall handle says."""

    topic: str
    broker: str
    deliver_ms: int
    message_id: str

    def text(self) -> str:
        """Return the text form.

        Raises:
            IllegalArgumentError: a field is empty or holds a blank.
        """
        fields = (self.topic, self.broker, str(self.deliver_ms), self.message_id)
        for field in fields:
            if not field or " " in field:
                raise IllegalArgumentError(f"{field!r} cannot stand in a recall handle: its fields are not empty and hold no blank")
        return base64.urlsafe_b64encode(" ".join((_VERSION, *fields)).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """Read a text form; padding may be missing, fields behind the fifth are passed over.

        Raises:
            IllegalArgumentError: it is none.
        """
        try:
            if not _ALPHABET.fullmatch(text):
                raise ValueError("not URL-safe base64")
            bare = text.rstrip("=")
            fields = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True).decode().split(" ")
        except (ValueError, binascii.Error) as error:
            raise IllegalArgumentError(f"{text[:80]!r} is no recall handle: {error}") from None
        if len(fields) < 5 or fields[0] != _VERSION or not all(fields[1:5]) or not _TIMESTAMP.fullmatch(fields[3]):
            raise IllegalArgumentError(f"{text[:80]!r} is no recall handle of form {_VERSION}")
        return cls(fields[1], fields[2], int(fields[3]), fields[4])
