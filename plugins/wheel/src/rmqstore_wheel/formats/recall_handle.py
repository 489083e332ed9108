"""The handle by which a producer recalls a timer (``RecallMessageHandle``, form V1).

URL-safe base64, with padding, of UTF-8 text, fields separated by a blank::

    v1 topic brokerName timestamp UNIQ_KEY

The timestamp is a deliver time whose rounding gives the timer's slot again: ``TIMER_OUT_MS`` + 1, ms. A handle is not signed.
"""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

from rmqstore.errors import IllegalArgumentError

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
