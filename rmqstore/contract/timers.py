"""``TimerStore``: a log of future messages, sorted by tick, then by put (docs/handover.md).

The words: a *put* is one stored timer with a ``tick`` (its deliver time rounded up to the precision, ms) and a ``seq`` (64-bit,
only grows, never given twice within one open epoch). ``seal`` closes ticks, ``due`` reads what is closed, ``forget`` reclaims
what the receiver holds durably. The argument why no crash point loses or doubles a message is docs/handover.md.
"""

from __future__ import annotations

import binascii
import enum
import struct
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Self

import msgspec

from rmqstore.contract.side import Side, Ticket
from rmqstore.late import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmqstore.batch import MessageBatch
    from rmqstore.message import Message

_CORNER = struct.Struct(">qq")
_HANDLE = struct.Struct(">BIIQQ")
_SUMMED_HANDLE = struct.Struct(">BIIQQIB")
_HANDLE_VERSION = 1
_TEXT_CHARACTERS = 39
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_+/=", b"+/!!!")


class WriteStatus(enum.Enum):
    """Whether a call did its work: not if one of its marks is stored already (I1), or what it rests on has moved (P9)."""

    APPLIED = "applied"
    REPEATED = "repeated"
    MOVED = "moved"


class CancelOutcome(enum.Enum):
    """The true answer to a cancel (C1–C6)."""

    CANCELLED = "cancelled"
    ALREADY_DELIVERED = "already delivered"
    UNKNOWN = "unknown"


class TimerCursor(msgspec.Struct, frozen=True):
    """A staircase: what has been handed over, as corners ``(tick, seq)`` with tick falling and seq rising.

    A put is *covered* when some corner is >= it in **both** coordinates. Normally there is one corner; each step back of the
    clock may add one, up to :data:`MAX_CORNERS` (docs/handover.md). 16 bytes a corner in :meth:`to_bytes`.
    """

    corners: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, corners: Iterable[tuple[int, int]]) -> Self:
        """Build the staircase of any set of corners: dominated ones fall away, as do those that can cover nothing."""
        kept: list[tuple[int, int]] = []
        highest_seq = 0
        for tick, seq in sorted(set(corners), reverse=True):
            if tick >= 0 and seq > highest_seq:
                kept.append((tick, seq))
                highest_seq = seq
        return cls(tuple(kept))

    def join(self, other: Iterable[tuple[int, int]]) -> TimerCursor:
        """Return the staircase that covers what either covers."""
        return TimerCursor.of((*self.corners, *other))

    def covers(self, tick: int, seq: int) -> bool:
        """Say whether the put ``(tick, seq)`` is under a corner."""
        return any(corner_tick >= tick and corner_seq >= seq for corner_tick, corner_seq in self.corners)

    def bound(self, tick: int) -> int:
        """Return the largest seq that is covered at ``tick``; 0 when none is."""
        bound = 0
        for corner_tick, seq in self.corners:
            if corner_tick < tick:
                break
            bound = seq
        return bound

    def covers_each(self, ticks: NDArray[np.int64], seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Column-wise :meth:`covers`."""
        covered = np.zeros(len(ticks), dtype=np.bool_)
        for tick, seq in self.corners:
            covered |= (ticks <= tick) & (seqs <= seq)
        return covered

    @property
    def highest_tick(self) -> int:
        """The largest tick under which anything is covered; -1 for the empty cursor."""
        return self.corners[0][0] if self.corners else -1

    @property
    def highest_seq(self) -> int:
        """The largest seq in any corner; 0 for the empty cursor."""
        return self.corners[-1][1] if self.corners else 0

    def to_bytes(self) -> bytes:
        """Return 16 bytes a corner: tick and seq, big-endian i64."""
        return b"".join(starmap(_CORNER.pack, self.corners))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what :meth:`to_bytes` gave; ``ValueError`` when the length is no multiple of 16."""
        if len(data) % _CORNER.size:
            raise ValueError(f"a timer cursor is {_CORNER.size} bytes a corner, not {len(data)} bytes")
        return cls(tuple(_CORNER.iter_unpack(data)))


MAX_CORNERS = 15
"""A cursor is made shorter before it would hold more corners than this (docs/handover.md)."""

EMPTY_CURSOR = TimerCursor()


class TimerHandle(msgspec.Struct, frozen=True, gc=False):
    """Names one put, for ever (C6): the open epoch and seq it got, with its tick and the store's tag as look-up aids.

    The text form is URL-safe base64 with a CRC-32, so a truncated or forged text reads as no handle at all; what the put became
    is always read from the store, never from the handle.
    """

    store_tag: int
    epoch: int
    seq: int
    tick: int

    @property
    def is_sound(self) -> bool:
        """Whether every field has its type and is in its range; one that a caller put together may not."""
        return all(
            type(number) is int and 0 <= number < limit
            for number, limit in ((self.store_tag, 2**32), (self.epoch, 2**32), (self.seq, 2**63), (self.tick, 2**63))
        )

    def text(self) -> str:
        """Return the handle as users pass it around."""
        data = _HANDLE.pack(_HANDLE_VERSION, self.store_tag, self.epoch, self.seq, self.tick)
        return binascii.b2a_base64(data + zlib.crc32(data).to_bytes(4, "big") + b"\0")[:_TEXT_CHARACTERS].translate(_URL_SAFE).decode()

    @staticmethod
    def texts(store_tags: NDArray[np.int64], epochs: NDArray[np.int64], seqs: NDArray[np.int64], ticks: NDArray[np.int64]) -> bytes:
        """Return what :meth:`text` gives of many handles, one behind the other; all are equally long."""
        rows = np.zeros(
            len(seqs), [("version", "u1"), ("tag", ">u4"), ("epoch", ">u4"), ("seq", ">u8"), ("tick", ">u8"), ("crc", ">u4"), ("0", "u1")]
        )
        rows["version"] = _HANDLE_VERSION
        for name, column in (("tag", store_tags), ("epoch", epochs), ("seq", seqs), ("tick", ticks)):
            rows[name] = column
        data = rows.tobytes()
        rows["crc"] = [zlib.crc32(data[at : at + _HANDLE.size]) for at in range(0, len(data), _SUMMED_HANDLE.size)]
        texts = binascii.b2a_base64(rows.tobytes(), newline=False).translate(_URL_SAFE)
        return np.frombuffer(texts, "u1").reshape(len(rows), _TEXT_CHARACTERS + 1)[:, :_TEXT_CHARACTERS].tobytes()

    @classmethod
    def parse(cls, text: str) -> TimerHandle | None:
        """Read a text form; None when it is not one (garbage, truncated, tampered with)."""
        return cls.parse_each([text])[0]

    @classmethod
    def parse_each(cls, texts: Sequence[str]) -> list[TimerHandle | None]:
        """Read many text forms; see :meth:`parse`."""
        try:
            if {*map(len, texts)} - {_TEXT_CHARACTERS}:
                raise ValueError("a text of another length")
            # One character more makes each text whole bytes. The last byte is 0: base64 leaves some bits of a last character unused, and a
            # handle has one text.
            data = binascii.a2b_base64("A".join([*texts, ""]).encode("ascii").translate(_STANDARD), strict_mode=True)
        except ValueError:
            return [None] if len(texts) == 1 else [handle for text in texts for handle in cls.parse_each([text])]
        size = _HANDLE.size
        return [
            cls(store_tag, epoch, seq, tick)
            if version == _HANDLE_VERSION and not unused and crc == zlib.crc32(data[at : at + size])
            else None
            for at, (version, store_tag, epoch, seq, tick, crc, unused) in zip(
                range(0, len(data), _SUMMED_HANDLE.size), _SUMMED_HANDLE.iter_unpack(data), strict=True
            )
        ]


class TimerReceipts(msgspec.Struct, frozen=True):
    """The answer to a put: row ``i`` of the batch became the put ``(ticks[i], first_seq + i)`` of ``epoch``.

    ``status`` is REPEATED when a mark was stored already; then the receipts are those of the first call (I1).
    """

    status: WriteStatus
    store_tag: int
    epoch: int
    first_seq: int
    ticks: Sequence[int]

    def __len__(self) -> int:
        return len(self.ticks)

    def handle(self, row: int) -> TimerHandle:
        """Return the handle of row ``row``; made when asked for, since most are never used."""
        return TimerHandle(self.store_tag, self.epoch, self.first_seq + row, int(self.ticks[row]))

    def of_row(self, row: int) -> TimerReceipts:
        """Return the answer to row ``row`` alone."""
        return TimerReceipts(self.status, self.store_tag, self.epoch, self.first_seq + row, self.ticks[row : row + 1])


class DueBatch(msgspec.Struct, frozen=True):
    """What ``due`` read: messages in (tick, seq) order, and the cursor that covers exactly them and all before them.

    Every message has its real topic and queue id. ``soft`` is True when a put or a cancel that this batch rests on was not durable
    when it was read: then ``timers.sync`` must come before ``pops.apply`` (docs/handover.md), unless both share one atomic log. ``more``
    is False when the engine knows that nothing else of what is sealed is due; True makes the caller ask.
    """

    messages: MessageBatch
    cursor: TimerCursor
    soft: bool = False
    more: bool = True


class PendingCounts(msgspec.Struct, frozen=True):
    """Exact number of pending timers per bucket: ``counts[i]`` have ``edges_ms[i] <= deliver time < edges_ms[i + 1]``.

    Pending = put, not cancelled, not handed over. ``earliest_ms`` / ``latest_ms`` are over all pending timers; None when there is none.
    """

    counts: tuple[int, ...]
    total: int
    earliest_ms: int | None
    latest_ms: int | None


class PendingTimer(msgspec.Struct, frozen=True):
    """One pending timer, as ``scan`` and ``get`` show it."""

    handle: TimerHandle
    deliver_at_ms: int
    message: Message

    def __repr__(self) -> str:
        return f"PendingTimer(handle={self.handle.text()!r}, deliver_at_ms={self.deliver_at_ms}, message={self.message!r})"


class ScanPage(msgspec.Struct, frozen=True):
    """One page of ``scan``; pass ``next_after`` to read on, None at the end."""

    timers: tuple[PendingTimer, ...]
    next_after: tuple[int, int] | None


class TimerStats(msgspec.Struct, frozen=True):
    """Counters and gauges of a timer store; ``pending`` counts what is neither cancelled nor forgotten."""

    pending: int
    sealed: TimerCursor
    epoch: int
    last_seq: int
    durable_position: int
    position: int


class TimerStore(Side):
    """What an engine must be to hold timers (docs/contract.md, clauses T, C, and with a PopStore H)."""

    precision_ms: int
    """The width of a tick, ms; fixed when the store is made (R4)."""

    @abstractmethod
    def recover(self, cursor: TimerCursor) -> None:
        """Join what the receiver holds durably; called once at open, before any other call (docs/handover.md).

        The sealed set becomes the seal records joined with ``cursor``, the next seq goes above every seq in both, and what
        ``cursor`` covers is forgotten.
        """

    @abstractmethod
    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        """Store every row as a timer, in row order, all or nothing.

        A row's tick is ``ceil(deliver_at_ms / precision) * precision``; a row whose deliver time is null or past gets a tick of at
        most ``now_ms``, so that the next tick hands it over (T2, T4). A stored mark makes the call a no-op that gives the first
        answer (I1). A put of no messages stores its marks as well: no later call with one of them stores anything.

        Raises:
            IllegalMessageError: a row breaks the data contract.
            DelayTooLongError: a row is beyond the horizon (T5).
            FlowControlError: the batch's fullest slot is congested (T9).
        """

    @abstractmethod
    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        """Cancel puts by handle (C1–C6), one outcome each, in one atomic step.

        CANCELLED wins until the put is sealed, and stays the answer within ``cancel_memory_ms`` past its tick; from the seal on
        ALREADY_DELIVERED, read from the kept put or its tombstone; a put that was never made, or was lost, is UNKNOWN. The ticket
        of ALREADY_DELIVERED covers the seal record.

        Raises:
            CorruptStoreError: a put that one may name cannot be read (T12); nothing is cancelled.
        """

    @abstractmethod
    def cancel_keys(self, topic: str, keys: Sequence[str], now_ms: int) -> tuple[list[list[CancelOutcome]], Ticket]:
        """Cancel every pending timer of ``topic`` that carries one of ``keys`` (C6), in one atomic step.

        A list for each key: one outcome for each timer that is found, in put order. A timer that carries two of the keys is in both lists,
        with the same outcome.

        Raises:
            CorruptStoreError: a put that a key may name cannot be read (T12); nothing is cancelled.
        """

    @abstractmethod
    def seal(self, until_ms: int) -> None:
        """Close every put with tick <= ``until_ms`` that was made before this call.

        When that closes anything live, a seal record goes to the timer log, durable with the next sync; else nothing is written.
        """

    @abstractmethod
    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        """Read, in (tick, seq) order, the first ``limit`` puts that are sealed, not covered by ``after``, not cancelled, of tick <= the
        last ``until_ms``. A pure read: the same call gives the same answer.

        The cursor is ``after`` joined, for every sealed corner (S, x) with S cut to the last ``until_ms``: nothing left → (S, x); the batch
        ends at (t, s) → (S, x) where S < t, else (t, min(s, x)) and (t - 1, x). A row that cannot be read comes as a message of the topic
        ``%PARKED%`` with its reason (T12).
        """

    @abstractmethod
    def forget(self, upto: TimerCursor) -> None:
        """Reclaim what ``upto``, a *durable* cursor of the receiver, covers, and nothing else; lazy, without a sync of its own."""

    @abstractmethod
    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        """Count the pending timers by deliver time, exactly (T10). ``edges_ms`` rises; n edges make n - 1 buckets.

        ``handed`` is the receiver's cursor: what it covers is not pending, though it may not be forgotten yet.
        """

    @abstractmethod
    def scan(
        self, from_ms: int, to_ms: int, after: tuple[int, int] | None = None, limit: int = 1000, handed: TimerCursor = EMPTY_CURSOR
    ) -> ScanPage:
        """List pending timers with ``from_ms <= deliver time < to_ms`` in (tick, seq) order, starting behind ``after`` (T10).

        A page ends at ``limit`` timers, or with the one that makes it larger than 8 MiB (X3). ``handed`` as in :meth:`pending`.
        """

    @abstractmethod
    def get(self, handle: TimerHandle) -> PendingTimer | None:
        """Return the pending timer that ``handle`` names, or None."""

    @abstractmethod
    def next_tick_ms(self) -> int | None:
        """Return a lower bound of the earliest tick that is not handed over, for the caller's sleep; None when there is none."""

    @abstractmethod
    def stats(self) -> TimerStats:
        """Return counters and gauges."""
