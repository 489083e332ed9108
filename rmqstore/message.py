"""One message on its way in and out, and the limits that hold for every engine (docs/contract.md)."""

from __future__ import annotations

import enum
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from rmqstore.errors import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    IllegalMessageError,
    IllegalMessageTypeError,
    IllegalNameError,
)

MAX_NAME_BYTES: Final = 127
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_PROPERTIES_BYTES: Final = 32_767
MAX_ID_BYTES: Final = 255
MAX_GROUP_KEY_BYTES: Final = 255
MAX_TIME_MS: Final = 2**62
BEHIND_ALL_MS: Final = MAX_TIME_MS + 1
"""The end of a range of times that leaves none out."""
MAX_POP: Final = 1024
MAX_QUEUES: Final = 1024
MAX_MARK_BYTES: Final = 255
MAX_REASON_BYTES: Final = 1024
MAX_NOTE_BYTES: Final = 64 * 1024

NO_PLACE: Final = "message_group and a deliver time exclude each other: a FIFO group has no place for a later message"

CALL_NAME: Final = b"\x00RMQS"
LANE_BYTES: Final = len(CALL_NAME) + 10
CALL_NAME_BYTES: Final = LANE_BYTES + 6
"""A mark by which a connection names a call: the beginning, a lane drawn at random, and a number (``rmqstore.engine.marks``)."""


RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
PARKED_TOPIC: Final = "%PARKED%"
RESERVED_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, PARKED_TOPIC, "rmq_sys_", "SCHEDULE_TOPIC_XXXX")

PROPERTY_DLQ_REASON: Final = "DLQ_REASON"
PROPERTY_DLQ_ATTEMPTS: Final = "DLQ_ATTEMPTS"
PROPERTY_PARKED_REASON: Final = "PARKED_REASON"
PROPERTY_ORIGIN_TOPIC: Final = "ORIGIN_TOPIC"
PROPERTY_ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_SCHEDULE: Final = "SCHEDULE"
PROPERTY_SCHEDULED_MS: Final = "SCHEDULED_MS"

SYSTEM_PROPERTIES: Final = frozenset(
    (
        "KEYS TAGS UNIQ_KEY TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS "
        "TIMER_ROLL_TIMES TIMER_ROLL_LABEL TIMER_DEL_UNIQKEY REAL_TOPIC REAL_QID RETRY_TOPIC POP_CK 1ST_POP_TIME __SHARDINGKEY "
        "WAIT MIN_OFFSET MAX_OFFSET __CRC32#"
    ).split()
)
"""Names that RocketMQ or an engine keeps for itself (RocketMQ ``MessageConst``); a user sets them through the fields of a message."""

GRAVE_PROPERTIES: Final = (PROPERTY_DLQ_REASON, PROPERTY_DLQ_ATTEMPTS, PROPERTY_PARKED_REASON, PROPERTY_ORIGIN_TOPIC, PROPERTY_ORIGIN_ID)
"""By these a message that cannot be delivered tells where it came from and why."""

OWN_PROPERTY_PREFIX: Final = "RMQS_"
"""So begin the names of properties that engines add to records; they are refused like those of :data:`REFUSED_PROPERTIES`."""

REFUSED_PROPERTIES: Final = SYSTEM_PROPERTIES.union(GRAVE_PROPERTIES)
"""What a user's property may not be called."""

REQUEST_PROPERTIES: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""Names by which RocketMQ's producers ask for a delay; a send turns them into the deliver time (``rmqstore.delays``)."""

_NAME = re.compile(r"[A-Za-z0-9_%|-]+")
_BLANK = re.compile(r"[\s\x00-\x1f]", re.ASCII)
_CONTROL = re.compile(r"[\s\x00-\x1f\x7f]", re.ASCII)
_SEPARATORS = re.compile("[\x01\x02]")
_TAG_ILLEGAL = re.compile(r"[\s|\x00-\x1f]", re.ASCII)
MADE_ID_BYTES = 34
_TIMER_NUMBERS = ("TIMER_OUT_MS", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_ROLL_TIMES", "REAL_QID")
_known_names: dict[str, None] = {}
_KNOWN_NAMES_LIMIT = 4096


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    Attributes:
        topic: where it goes, ``[A-Za-z0-9_%|-]+``, at most 127 bytes, no reserved prefix.
        body: 1 byte to 4 MiB.
        tag: one word to filter by.
        keys: words to find or cancel it by; no blank in a key.
        properties: texts of the application; with the system's own at most 32 767 bytes encoded.
        message_group: FIFO key; not together with a deliver time (P9).
        deliver_at_ms: when it is due, ms since the epoch; None or past = now.
        message_id: made when None; need not be unique.
        born_ms: when the application made it; the time of the send when None.
        queue_id: queue of the topic; chosen by the store when None.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    message_group: str | None = None
    deliver_at_ms: int | None = None
    message_id: str | None = None
    born_ms: int | None = None
    queue_id: int | None = None


class Proof(Protocol):
    """What stands behind ``PoppedMessage.receipt``: an engine's receipt, whose text is made only when asked for."""

    def text(self) -> str:
        """Return the receipt as text."""


class PoppedMessage(msgspec.Struct, frozen=True):
    """A message on its way out; the fields of :class:`Message`, where it was, and the receipt of the lease.

    Attributes:
        queue_offset: its place in the queue.
        store_ms: when it came into the queue, ms.
        attempt: 1 with the first delivery; releases do not count.
        first_pop_ms: when it was popped for the first time; None when it never was.
        proof: the lease; None when the message was read without one.
    """

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_group: str | None
    deliver_at_ms: int | None
    message_id: str
    born_ms: int
    queue_id: int
    queue_offset: int
    store_ms: int
    attempt: int
    first_pop_ms: int | None
    proof: Proof | None = None

    @property
    def receipt(self) -> str | None:
        """The proof of the lease as text: give it to ``ack``, from this process or another."""
        return None if self.proof is None else self.proof.text()

    def __repr__(self) -> str:
        fields = [f"{name}={reprlib.repr(getattr(self, name))}" for name in self.__struct_fields__ if name not in ("message_id", "proof")]
        return f"PoppedMessage(message_id={self.message_id!r}, {', '.join(fields)}, receipt={self.receipt!r})"


def retry_topic(group: str, topic: str) -> str:
    """Return the name of the group's retry topic, RocketMQ's V2 form: ``+`` is legal in no name, so it cannot be ambiguous."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def dlq_topic(group: str) -> str:
    """Return the name of the group's dead letter queue."""
    return f"{DLQ_PREFIX}{group}"


def check_topic(name: str) -> None:
    """Raise :class:`IllegalNameError` unless a user may send to a topic of this name."""
    if not (type(name) is str and name in _known_names):
        _check_own_name("topic", name)


def check_readable_topic(name: str) -> None:
    """Raise :class:`IllegalNameError` unless a topic of this name may be popped or read; dead letters and parked ones may."""
    if type(name) is str and name in _known_names:
        return
    if isinstance(name, str) and (name == PARKED_TOPIC or name.startswith(DLQ_PREFIX)):
        check_name("topic", name.removeprefix(DLQ_PREFIX) if name != PARKED_TOPIC else name)
        return
    check_topic(name)


def check_group(name: str) -> None:
    """Raise :class:`IllegalNameError` unless this is a legal group name."""
    if not (type(name) is str and name in _known_names):
        _check_own_name("group", name)


def _check_own_name(what: str, name: str) -> None:
    """Check a name that a user chose; what is legal for a topic is for a group, so those that are known to be are kept together."""
    check_name(what, name)
    if name.startswith(RESERVED_PREFIXES):
        raise IllegalNameError(f"{what} {name!r} starts with a reserved prefix ({', '.join(RESERVED_PREFIXES)}); choose another name")
    if len(_known_names) < _KNOWN_NAMES_LIMIT:
        _known_names[name] = None


def check_name(what: str, name: str) -> None:
    """Raise :class:`IllegalNameError` unless this is a legal name of a ``what``."""
    if type(name) is not str and not _is_text(name):
        raise IllegalArgumentTypeError(f"a {what} name must be a str, not {_type_of(name)}")
    if len(name) > MAX_NAME_BYTES:
        raise IllegalNameError(f"{what} name {name[:40]!r}… has {len(name)} characters; at most {MAX_NAME_BYTES} are allowed")
    if not _NAME.fullmatch(name):
        raise IllegalNameError(f"{what} name {name!r} is not made of letters, digits and _ % | - only (at least one of them)")


def check_marks(marks: Sequence[bytes]) -> None:
    """Raise unless every mark is 1 to 255 bytes."""
    if marks == ():
        return
    if isinstance(marks, bytes | str) or not isinstance(marks, Sequence):
        raise IllegalArgumentTypeError(f"marks must be a list of bytes, not {type(marks).__name__}; one mark is written [b'…']")
    for mark in marks:
        if not isinstance(mark, bytes):
            raise IllegalArgumentTypeError(f"a mark must be bytes, not {type(mark).__name__}")
        if not 0 < len(mark) <= MAX_MARK_BYTES:
            raise IllegalArgumentError(f"a mark has {len(mark)} bytes; 1 to {MAX_MARK_BYTES} are allowed")


def check_notes(notes: Mapping[str, bytes | None]) -> None:
    """Raise unless every note has a name of 1 to 255 bytes and at most 64 KiB."""
    for name, value in notes.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise IllegalArgumentTypeError(f"a note is bytes under a text, or None, not {reprlib.repr(value)} under {reprlib.repr(name)}")
        if not 0 < len(name.encode()) <= MAX_MARK_BYTES or len(value or b"") > MAX_NOTE_BYTES:
            raise IllegalArgumentError(
                f"note {reprlib.repr(name)} has {len(value or b'')} bytes; {MAX_NOTE_BYTES} are allowed, and {MAX_MARK_BYTES} for its name"
            )


def check_count(what: str, value: int, minimum: int = 0) -> None:
    """Raise unless ``value`` is an int of ``minimum`` … 2**62."""
    if type(value) is not int:
        raise IllegalArgumentTypeError(f"{what} must be an int, not {value!r}")
    if not minimum <= value <= MAX_TIME_MS:
        raise IllegalArgumentError(f"{what} must be {int(minimum)}–2**62, not {value}")


def check_time_ms(what: str, value: int, minimum: int = 0) -> None:
    """Raise unless ``value`` is an int of milliseconds in ``minimum`` … 2**62."""
    if type(value) is not int:
        raise IllegalArgumentTypeError(f"{what} must be an int of milliseconds, not {type(value).__name__}")
    if not minimum <= value <= MAX_TIME_MS:
        raise IllegalArgumentError(f"{what} must be {minimum}–2**62 ms, not {value}")


def check_message(message: Message) -> None:
    """Check every field of one message against the limits of docs/contract.md.

    Raises:
        IllegalMessageError: naming the field (:class:`IllegalMessageTypeError` when its type is wrong).
        IllegalNameError: the topic's name is not legal.
    """
    check_topic(message.topic)
    body = message.body
    if type(body) is not bytes:
        raise IllegalMessageTypeError(f"body must be bytes, not {type(body).__name__}; encode it first")
    if not 0 < len(body) <= MAX_BODY_BYTES:
        raise IllegalMessageError(f"body has {len(body)} bytes; 1 to {MAX_BODY_BYTES} are allowed")
    for field in ("deliver_at_ms", "born_ms"):
        value = getattr(message, field)
        if value is not None:
            _check_int(field, value, MAX_TIME_MS)
    if message.queue_id is not None:
        _check_int("queue_id", message.queue_id, MAX_QUEUES - 1)
    if message.message_id is not None:
        check_word("message_id", message.message_id, MAX_ID_BYTES)
    if message.message_group is not None:
        check_word("message_group", message.message_group, MAX_GROUP_KEY_BYTES)
        if message.deliver_at_ms is not None:
            raise IllegalMessageError(NO_PLACE)
    size = property_overhead_bytes(len(message.topic))
    size += _property_bytes("UNIQ_KEY", MADE_ID_BYTES if message.message_id is None else len(message.message_id.encode()))
    if message.message_group is not None:
        size += _property_bytes("__SHARDINGKEY", len(message.message_group.encode()))
    if message.tag is not None:
        size += _property_bytes("TAGS", check_word("tag", message.tag, MAX_PROPERTIES_BYTES))
        if _TAG_ILLEGAL.search(message.tag):
            raise IllegalMessageError(f"tag {message.tag!r} holds a blank, a control character or '|', which filters use")
    size += _check_keys(message.keys)
    if message.properties or type(message.properties) is not dict:
        size += _check_properties(message.properties)
    if size > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(f"properties, tag and keys take {size} bytes encoded; at most {MAX_PROPERTIES_BYTES} are allowed")


_NAMES_OF_FIELDS: Final = ("TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY")
"""What tag, keys, id and message group are called among the properties."""


def property_overhead_bytes(topic_bytes: int) -> int:
    """Return what the properties of a timer take in RocketMQ's text form, at their longest, for a topic of this length, and their sum."""
    return _OVERHEAD_BYTES + topic_bytes


def _property_bytes(name: str, value_bytes: int) -> int:
    return len(name) + value_bytes + 2


_OVERHEAD_BYTES = (
    sum(_property_bytes(name, 19) for name in _TIMER_NUMBERS)
    + _property_bytes("REAL_TOPIC", 0)
    + _property_bytes(f"{OWN_PROPERTY_PREFIX}CRC", 8)
)


def check_word(field: str, value: str, max_bytes: int) -> int:
    """Check a text without blanks and control characters; returns its length in UTF-8, bytes."""
    size = _utf8_bytes(field, value)
    if not size:
        raise IllegalMessageError(f"{field} is empty; leave it out instead")
    if size > max_bytes:
        raise IllegalMessageError(f"{field} has {size} bytes; at most {max_bytes} are allowed")
    if _BLANK.search(value):
        raise IllegalMessageError(f"{field} {value!r} holds a blank or a control character")
    return size


def reason_text(reason: str) -> str:
    """Return why something failed as it is kept: control characters and what is no Unicode text replaced, the end beyond the limit cut off.

    Nothing is refused, since a reason is given where something went wrong already.
    """
    if not isinstance(reason, str):
        raise IllegalArgumentTypeError(f"reason must be a str, not {type(reason).__name__}; for an exception give str(error)")
    plain = _CONTROL.sub(" ", reason[:MAX_REASON_BYTES]).encode(errors="replace")[:MAX_REASON_BYTES]
    return plain.decode(errors="ignore").strip()


def _is_text(value: object) -> bool:
    """Say whether a value is the same text wherever it is written: a member of an enum that is a ``str`` is its name in an f-string."""
    return isinstance(value, str) and f"{value}" == value


def _type_of(value: object) -> str:
    return f"{type(value).__name__}; give its .value" if isinstance(value, enum.Enum) else type(value).__name__


def fitting_reason(reason: str, message: Message) -> str:
    """Return as much of a reason as every engine has room for among the tag, keys, ids and properties of a message."""
    texts = [message.tag, *message.keys, message.message_id, message.message_group, *message.properties, *message.properties.values()]
    taken = sum(len(text.encode()) + 2 for text in texts if text) + sum(map(len, _NAMES_OF_FIELDS))
    room = MAX_PROPERTIES_BYTES - property_overhead_bytes(len(message.topic)) - taken - _property_bytes(PROPERTY_DLQ_REASON, 0)
    return reason.encode()[: max(room, 0)].decode(errors="ignore")


def _utf8_bytes(field: str, value: str) -> int:
    if type(value) is not str and not _is_text(value):
        raise IllegalMessageTypeError(f"{field} must be a str, not {_type_of(value)}")
    try:
        return len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise IllegalMessageError(f"{field} {value!r} is not valid Unicode text: {error.reason}") from None


def _check_int(field: str, value: int, maximum: int) -> None:
    if type(value) is not int:
        raise IllegalMessageTypeError(f"{field} must be an int, not {type(value).__name__}")
    if not 0 <= value <= maximum:
        raise IllegalMessageError(f"{field} must be 0–{maximum}, not {value}")


def _check_keys(keys: tuple[str, ...]) -> int:
    if not keys:
        if keys != () and not isinstance(keys, list):
            raise IllegalMessageTypeError(f"keys must be a tuple of str, not {type(keys).__name__}")
        return 0
    if not isinstance(keys, tuple | list):
        raise IllegalMessageTypeError(f"keys must be a tuple of str, not {type(keys).__name__}; one key is written ({keys!r},)")
    return _property_bytes("KEYS", sum(check_word("a key", key, MAX_PROPERTIES_BYTES) + 1 for key in keys) - 1)


def _check_properties(properties: Mapping[str, str]) -> int:
    if not isinstance(properties, Mapping):
        raise IllegalMessageTypeError(f"properties must be a mapping of str to str, not {type(properties).__name__}")
    size = 0
    for name, value in properties.items():
        size += _utf8_bytes("a property name", name) + _utf8_bytes(f"property {name!r}", value) + 2
        if not name or not value:
            raise IllegalMessageError(f"property {name!r} has an empty {'name' if not name else 'value'}; leave it out instead")
        if _SEPARATORS.search(name) or _SEPARATORS.search(value):
            raise IllegalMessageError(f"property {name!r} holds U+0001 or U+0002, which separate properties on disk")
        if name in REFUSED_PROPERTIES or name.startswith(OWN_PROPERTY_PREFIX):
            raise IllegalMessageError(
                f"property {name!r} belongs to the system; use the message's fields (tag, keys, deliver_at_ms …), or another name"
            )
    return size
