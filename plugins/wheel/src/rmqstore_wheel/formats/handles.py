"""Texts that clients hold: the handle of a popped message (``ExtraInfoUtil``), and that by which a timer is recalled.

``POP_CK``, the handle of one message, fields separated by a blank; the proxy appends the last one::

    ckStartOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgQueueOffset [commitLogOffset]

retryFlag: 0 the topic itself, 1 its retry topic of form V1, 2 of form V2.
"""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

from rmqstore.errors import IllegalArgumentError

_INT = r"(-?\d{1,19})"
_HANDLE = re.compile(rf"{_INT} {_INT} {_INT} {_INT} ([012]) (\S+) {_INT} {_INT}(?: {_INT})?", re.ASCII)
_VERSION = "v1"
_TIMESTAMP = re.compile(r"-?\d{1,19}", re.ASCII)
_ALPHABET = re.compile(r"[A-Za-z0-9_-]+={0,2}", re.ASCII)


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


class RecallHandle(msgspec.Struct, frozen=True):
    """What a recall handle says (``RecallMessageHandle``, form V1): URL-safe base64, with padding, of UTF-8 text, fields separated by a
    blank::

        v1 topic brokerName timestamp UNIQ_KEY

    The timestamp is a deliver time whose rounding gives the timer's slot again: ``TIMER_OUT_MS`` + 1, ms. A handle is not signed.
    """

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
