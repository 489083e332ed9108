"""The wire: frames, and values in them (docs/server.md).

A frame is its length (four bytes, little-endian) and one MessagePack array. A client begins with ``[protocol, token]``; what follows are
requests ``[number, call, positional arguments, named arguments]``, and an answer to each, ``[number, value]``, in any order.

MessagePack has no tuples, times, enums or structs, and a call over the wire must see what a call in the process would see: the same values
of the same types, so that the same checks give the same errors in the same words. So these travel as extensions, whose codes are below.
What can be no value of a call at all (a file, an object of the application) travels as a :func:`stranger`, which has its type's name and
its ``repr``, all that an error says of it.
"""

from __future__ import annotations

import enum
import functools
import struct
import types
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.msgpack import Decoder, Encoder, Ext
from msgspec.structs import astuple

from rmqstore import contract, errors
from rmqstore.batch import MessageBatch, ProofText
from rmqstore.contract import WriteStatus
from rmqstore.contract.timers import TimerReceipts
from rmqstore.digests import TableDigest
from rmqstore.errors import IllegalArgumentError, RmqstoreError
from rmqstore.late import np, pa
from rmqstore.message import Message, PoppedMessage
from rmqstore.server.arrow_frames import stream_of, table_in
from rmqstore.store.dead_letters import DeadLetter
from rmqstore.store.health import GroupHealth, Health
from rmqstore.store.lookup import Whereabouts
from rmqstore.store.pauses import Flow, Pause
from rmqstore.store.reader import StoreStats
from rmqstore.store.receipts import PoppedMessages
from rmqstore.store.schedules import Schedule
from rmqstore.store.sending import CallName, SendReceipt, SendReceipts
from rmqstore.store.tick import TickReport

PROTOCOL: Final = 2

HEAD: Final = struct.Struct("<I")
"""The length of what follows, bytes."""

MAX_FRAME_BYTES: Final = 256 << 20
"""Longer frames are refused: by the server the client's, by the client the server's."""

_TUPLE, _INT, _TEXT, _DATETIME, _TIMEDELTA, _ERROR, _BATCH, _ARROW, _STRANGER, _SENT, _SENT_MANY, _POPPED, _NAME, _PROOF, _DICT = range(
    1, 16
)
_NAME_CHARACTERS: Final = 200
_FIRST_STRUCT: Final = 16
_FIRST_ENUM: Final = 64

_STRUCTS: Final[tuple[type[msgspec.Struct], ...]] = (
    Message,
    PoppedMessage,
    contract.Receipt,
    contract.TimerHandle,
    contract.ChangeResult,
    contract.TopicInfo,
    contract.GroupSettings,
    contract.GroupOffset,
    contract.Subscription,
    contract.Lag,
    contract.LeaseInfo,
    contract.PendingCounts,
    contract.PendingTimer,
    contract.ScanPage,
    contract.TimerCursor,
    contract.TimerStats,
    contract.PopStats,
    StoreStats,
    TickReport,
    Whereabouts,
    DeadLetter,
    TableDigest,
    GroupHealth,
    Health,
    Schedule,
    Pause,
)
"""A struct's code is its place here; a new one goes to the end."""

_BY_KEYWORD: Final = (contract.GroupSettings, Whereabouts, Schedule)

_ENUMS: Final[tuple[type[enum.Enum], ...]] = (
    contract.CancelOutcome,
    contract.AckOutcome,
    contract.ChangeOutcome,
    contract.RejectOutcome,
    contract.ReleaseOutcome,
    contract.MessageState,
    contract.InitMode,
    Flow,
)
"""As with structs."""

_ERRORS: Final = {name: getattr(errors, name) for name in errors.__all__} | {
    kind.__name__: kind for kind in (TypeError, ValueError, LookupError, IndexError, AttributeError, MemoryError, OSError, RuntimeError)
}

_EXTENSIONS: Final = frozenset((0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8))
_FIXED: Final = 0xD4
_BLOBS: Final = frozenset((0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB))
_DICTS: Final = frozenset((*range(0x81, 0x90), 0xDE, 0xDF))
_LIGHT: Final = frozenset((*range(0x80), 0xC0, 0xC2, 0xC3))
"""First bytes in MessagePack: of extensions, those from ``_FIXED`` on of 1, 2, 4 … bytes; of bytes and texts with their lengths; of dicts;
and of what Python has ready, so that it takes but its place."""

_NO_VALUES: Final = frozenset((_INT, _TEXT, _DATETIME, _BATCH, _ARROW, 0xFF))
"""Extensions whose data are no MessagePack; the last one is a time of MessagePack's own."""

_HEAVY: Final = bytes(n not in _LIGHT for n in range(256))
"""By its first byte, whether a value takes more than that."""

_PLACE_BYTES, _VALUE_BYTES, _DICT_BYTES, _TYPE_BYTES = 8, 80, 240, 3000
"""What a value takes in memory at most: its place, most values, a small dict, and the type that each stranger has besides (measured)."""

_HEADS: Final = bytes(
    [*[1] * 0xA0, *range(1, 33), *[1] * 4, 2, 3, 5, 3, 4, 6, 5, 9, *[2, 3, 5, 9] * 2, *[2] * 5, 2, 3, 5, 3, 5, 3, 5, *[1] * 32]
)
_TAKEN_BYTES: Final = tuple(_PLACE_BYTES if n in _LIGHT else _DICT_BYTES if n in _DICTS else _VALUE_BYTES for n in range(256))
"""By its first byte, how long a value is, without what comes behind a length; and what it takes."""

_STEPS, _SMALL_BYTES = 64, 512
"""A frame has many values when there are more than so many, and one for each so many bytes of it."""

_Packable: TypeAlias = object
_Pack: TypeAlias = Callable[["_Packer", Any], _Packable]

_encoder: Final = Encoder()
_encode: Final = _encoder.encode


class _Packer:
    """Turns values into what MessagePack has; ``plain``: types that go as they are."""

    def __init__(self, plain: frozenset[type], handlers: Mapping[type, _Pack]) -> None:
        self._plain = plain
        self._handlers = dict(handlers)

    def __call__(self, value: object) -> _Packable:
        kind = type(value)
        if kind in self._plain:
            return value
        handler = self._handlers.get(kind) or _handler_of_base(kind)
        return handler(self, value)

    def each(self, values: Any) -> list[_Packable]:
        """Turn each of some values."""
        plain = self._plain
        return [value if type(value) in plain else self(value) for value in values]


def _pack_dict(packer: _Packer, value: Mapping[object, object]) -> _Packable:
    keys, values = packer.each(value), packer.each(value.values())
    try:
        return dict(zip(keys, values, strict=True))
    except TypeError:  # a name that is none
        return Ext(_DICT, _encode([keys, values]))


def _pack_int(_: _Packer, value: int) -> _Packable:
    return value if -(1 << 63) <= value < 1 << 63 else Ext(_INT, str(value).encode())


def _pack_text(_: _Packer, value: str) -> _Packable:
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(_TEXT, value.encode(errors="surrogatepass"))
    return value


def _pack_error(packer: _Packer, error: BaseException) -> _Packable:
    kind = next(kind for kind in type(error).__mro__ if kind in _ERRORS.values() or kind is BaseException)
    if kind is BaseException or (kind is OSError and not isinstance(error, RmqstoreError)):
        return Ext(_ERROR, _encode(["RmqstoreError", [f"{type(error).__name__}: {error}"], {}]))
    facts = {name: fact for name, fact in vars(error).items() if type(fact) in (str, int)}
    return Ext(_ERROR, _encode([kind.__name__, packer.each(error.args), packer(facts)]))


def _pack_sent_many(_: _Packer, sent: SendReceipts) -> _Packable:
    ids: Sequence[str] = sent.ids.to_pylist() if hasattr(sent.ids, "to_pylist") else sent.ids
    timers = sent.timers
    first = None if timers is None else (timers.store_tag, timers.epoch, timers.first_seq)
    ticks = b"" if timers is None else _int64s(timers.ticks)
    return Ext(_SENT_MANY, _encode([" ".join(ids), sent.repeated, first, ticks]))  # an id has no blank


def _int64s(values: Sequence[int]) -> bytes:
    """Return numbers as eight bytes each; a column of numpy has them already, and ``array`` would take them one by one."""
    return (np.asarray(values, np.int64) if hasattr(values, "dtype") else array("q", values)).tobytes()


def _pack_stranger(_: _Packer, value: object) -> _Packable:
    try:
        shown = repr(value)
    except Exception:  # an object whose repr fails; its name is what is left to say
        shown = f"<{type(value).__name__}>"
    return Ext(_STRANGER, _encode([type(value).__name__, shown, isinstance(value, enum.Enum)]))


def _pack_member(packer: _Packer, value: str) -> _Packable:
    """Pack a member of an enum of texts: as its text if that is what it is written as, which those of ``StrEnum`` are."""
    return packer(str.__str__(value)) if f"{value}" == value else _pack_stranger(packer, value)


def _struct_packer(code: int) -> _Pack:
    return lambda packer, value: Ext(code, _encode(packer.each(astuple(value))))


def _message_packer(kind: type[msgspec.Struct]) -> _Pack:
    """Return what packs a type that derives from a struct, as that struct."""
    return lambda packer, value: packer(kind(*(getattr(value, name) for name in kind.__struct_fields__)))


def _enum_packer(code: int) -> _Pack:
    return lambda packer, value: Ext(code, _encode(value.value))


_HANDLERS: Final[dict[type, _Pack]] = {
    list: lambda packer, value: packer.each(value),
    dict: _pack_dict,
    tuple: lambda packer, value: Ext(_TUPLE, _encode(packer.each(value))),
    datetime: lambda packer, value: Ext(_DATETIME, value.isoformat().encode()),
    timedelta: lambda packer, value: Ext(_TIMEDELTA, _encode([value.days, value.seconds, value.microseconds])),
    CallName: lambda packer, name: Ext(_NAME, _encode(name[0])),
    ProofText: lambda packer, proof: Ext(_PROOF, _encode(proof.receipt)),
    SendReceipt: lambda _, sent: Ext(_SENT, _encode([sent.message_id, sent.repeated, sent.timer and astuple(sent.timer)])),
    SendReceipts: _pack_sent_many,
    PoppedMessages: lambda packer, popped: Ext(_POPPED, _encode([packer.each(popped), [each.value for each in popped.acks]])),
    MessageBatch: lambda packer, batch: Ext(_BATCH, stream_of(batch.columns)),
    **{kind: _struct_packer(_FIRST_STRUCT + place) for place, kind in enumerate(_STRUCTS)},
    **{kind: _enum_packer(_FIRST_ENUM + place) for place, kind in enumerate(_ENUMS)},
}


def _handler_of_base(kind: type) -> _Pack:
    """Return what packs a type that has no handler of its own: as what it derives from, or as a stranger."""
    for plain in (str, int, bytes, float):
        if issubclass(kind, plain) and not issubclass(kind, enum.Enum):
            return lambda packer, value: packer(plain(value))
    if issubclass(kind, str) and issubclass(kind, enum.Enum):
        return _pack_member
    for message in (Message, PoppedMessage):
        if issubclass(kind, message):
            return _message_packer(message)
    known: tuple[type, ...] = (datetime, timedelta, PoppedMessages, list, tuple, dict)
    for base in known:
        if issubclass(kind, base):
            return _HANDLERS[base]
    if issubclass(kind, BaseException):
        return _pack_error
    if issubclass(kind, PurePath):
        return lambda packer, value: str(value)
    if kind.__module__.startswith("pyarrow") and kind.__name__ in ("RecordBatch", "Table"):
        return lambda packer, value: Ext(_ARROW, stream_of(value))
    return _pack_dict if issubclass(kind, Mapping) else _pack_stranger


_PLAIN: Final[frozenset[type]] = frozenset((str, bytes, int, float, bool, type(None)))
_quick = _Packer(_PLAIN, _HANDLERS)
_careful = _Packer(_PLAIN - {int, str}, _HANDLERS | {int: _pack_int, str: _pack_text})


def frame(value: object) -> bytearray:
    """Return a value as a frame.

    Raises:
        IllegalArgumentError: it holds itself.
    """
    made = bytearray()
    try:
        _encoder.encode_into(_quick(value), made, HEAD.size)
    except (OverflowError, UnicodeEncodeError):  # an int beyond 64 bits, a text that is no Unicode: only an error's cause
        _encoder.encode_into(_careful(value), made, HEAD.size)
    except RecursionError:
        raise IllegalArgumentError("what is given holds itself, or is nested too deep to be sent") from None
    HEAD.pack_into(made, 0, len(made) - HEAD.size)
    return made


def unpack(data: bytes | memoryview) -> Any:
    """Return the value of a frame without its head.

    Raises:
        IllegalArgumentError: it is none.
    """
    try:
        return _decode(data)
    except Exception as error:  # of whatever kind: it may be what a stranger made
        raise IllegalArgumentError(f"what came over the wire is no value of it: {error}") from error


def decoded_bytes(data: bytes, most_bytes: int) -> int:
    """Return about how many bytes the values of a frame take when they are decoded, beside those that came; it stops beyond ``most_bytes``.

    One byte can be a dict. Where values are so many that it would take longer to look at each than to decode it, what is left goes by how
    many of its bytes may begin one, if that cannot be too much. Of what is no frame it says nothing: decoding ends where it is none.
    """
    at = found = steps = 0
    with suppress(IndexError):  # the end
        while found <= most_bytes:
            kind = data[at]
            steps += 1
            if steps == _STEPS + len(data) // _SMALL_BYTES:
                left = np.frombuffer(data, np.uint8, offset=at)
                heavy, strangers = (int(np.count_nonzero(each)) for each in (np.frombuffer(_HEAVY, np.bool_)[left], left == _STRANGER))
                if found + heavy * _DICT_BYTES + strangers * _TYPE_BYTES + len(left) * _PLACE_BYTES <= most_bytes:
                    return found + heavy * _VALUE_BYTES
            found += _TAKEN_BYTES[kind]
            head, at = at + 1, at + _HEADS[kind]
            if kind in _BLOBS:
                at += int.from_bytes(data[head:at], "big")
            elif kind in _EXTENSIONS:
                code = data[at - 1]
                if code in _NO_VALUES:
                    at += int.from_bytes(data[head : at - 1], "big") if kind < _FIXED else 1 << kind - _FIXED
                elif code == _STRANGER:
                    found += _TYPE_BYTES
    return found


_decode: Final = Decoder(ext_hook=lambda code, data: _UNPACKERS[code](data)).decode


def _unpack_struct(kind: type[msgspec.Struct]) -> Callable[[memoryview], object]:
    if kind in _BY_KEYWORD:
        return lambda data: kind(**dict(zip(kind.__struct_fields__, _decode(data), strict=True)))
    return lambda data: kind(*_decode(data))


def _unpack_enum(kind: type[enum.Enum]) -> Callable[[memoryview], object]:
    return lambda data: kind(_decode(data))


def _unpack_error(data: memoryview) -> BaseException:
    name, arguments, facts = _decode(data)
    error: BaseException = _ERRORS[name](*arguments)
    for fact, value in facts.items() if isinstance(error, RmqstoreError) else ():
        setattr(error, fact, value)
    return error


def _unpack_sent(data: memoryview) -> SendReceipt:
    message_id, repeated, timer = _decode(data)
    if timer is None:
        return SendReceipt(message_id, repeated)
    store_tag, epoch, seq, tick = timer
    return SendReceipt(message_id, repeated, TimerReceipts(_status(repeated), store_tag, epoch, seq, (tick,)))


def _unpack_sent_many(data: memoryview) -> SendReceipts:
    ids, repeated, first, ticks = _decode(data)
    timers = None
    if first is not None:
        store_tag, epoch, first_seq = first
        timers = TimerReceipts(_status(repeated), store_tag, epoch, first_seq, array("q", ticks))
    return SendReceipts(ids.split(" ") if ids else [], timers, repeated)


def _status(repeated: bool) -> WriteStatus:
    return WriteStatus.REPEATED if repeated else WriteStatus.APPLIED


def _unpack_popped(data: memoryview) -> PoppedMessages:
    messages, acks = _decode(data)
    popped = PoppedMessages(messages)
    if acks:
        popped.acks = [contract.AckOutcome(each) for each in acks]
    return popped


def _unpack_arrow(data: memoryview) -> pa.Table:
    return table_in(data, MAX_FRAME_BYTES)


def _unpack_batch(data: memoryview) -> MessageBatch:
    table = _unpack_arrow(data)
    batches = table.combine_chunks().to_batches()  # none of an empty table
    return MessageBatch(columns=batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema))


class _Stranger:
    """A value of a type that this process has not."""

    def __repr__(self) -> str:
        return str(vars(self)["shown"])

    __str__ = __repr__
    __hash__ = object.__hash__  # that of an enum goes by a name


class _Member(_Stranger, enum.Enum):
    """A member of an enum that this process has not."""


@functools.lru_cache(64)
def _kind_of_strangers(name: str, base: type) -> type:
    """Return a type of this name; to make one takes long, and a batch may have one and the same in each row."""
    return types.new_class(name, (base,))


def stranger(name: str, shown: str, is_member: bool = False) -> object:
    """Return an object of a type of this name whose ``repr`` is ``shown``; ``is_member``: one of an enum, of which errors say more."""
    made: object = object.__new__(_kind_of_strangers(name[:_NAME_CHARACTERS], _Member if is_member else _Stranger))
    vars(made)["shown"] = shown
    return made


_UNPACKERS: Final[dict[int, Callable[[memoryview], object]]] = {
    _TUPLE: lambda data: tuple(_decode(data)),
    _INT: lambda data: int(bytes(data)),
    _TEXT: lambda data: bytes(data).decode(errors="surrogatepass"),
    _DATETIME: lambda data: datetime.fromisoformat(bytes(data).decode()),
    _TIMEDELTA: lambda data: timedelta(*_decode(data)),
    _ERROR: _unpack_error,
    _BATCH: _unpack_batch,
    _ARROW: _unpack_arrow,
    _STRANGER: lambda data: stranger(*_decode(data)),
    _NAME: lambda data: CallName((_decode(data),)),
    _PROOF: lambda data: ProofText(_decode(data)),
    _DICT: lambda data: dict(zip(*_decode(data), strict=True)),
    _SENT: _unpack_sent,
    _SENT_MANY: _unpack_sent_many,
    _POPPED: _unpack_popped,
    **{_FIRST_STRUCT + place: _unpack_struct(kind) for place, kind in enumerate(_STRUCTS)},
    **{_FIRST_ENUM + place: _unpack_enum(kind) for place, kind in enumerate(_ENUMS)},
}
