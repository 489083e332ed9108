"""``TimerLayout``: how the timers of a store lie in their space; the seam between ``timers`` and the layouts.

``timers`` says what is sealed, covered and cancelled, and makes each call one write. A layout says which entries a put becomes, and finds
timers again: by place, in order, and what a ``forget`` takes away. ``rowlayout`` is one run a tick and call, ``packedlayout`` one pack a
minute and call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from rmqstore.contract import EMPTY_CURSOR, TimerCursor
from rmqstore.message import Message
from rmqstore.ordered.forgetting import Removal
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.parked import parked_message
from rmqstore.ordered.placing import Entries, Times
from rmqstore.ordered.records import decode_message, deliver_at_of, encode_message

FORGET_PAGE: Final = 4096
"""So many entries a ``forget`` takes away in one write."""


Place = tuple[int, int, int]
"""Tick, seq and epoch of a timer."""


class LivePut(msgspec.Struct, frozen=True):
    """A kept, uncancelled put."""

    tick: int
    seq: int
    epoch: int
    store_ms: int
    record: bytes

    @property
    def due_ms(self) -> int:
        """Its deliver time, or its tick when it was sent without one."""
        deliver = deliver_at_of(self.record)
        return self.tick if deliver < 0 else deliver

    def message(self) -> Message:
        """Its message, decoded."""
        return decode_message(self.record)


class Located(msgspec.Struct, frozen=True):
    """A kept put that was found by its place, cancelled or not: the key of the entry that holds it, and whether it is alone in that."""

    key: bytes
    put: LivePut
    is_alone: bool


class Seen(NamedTuple):
    """What a ``due`` may give: what is sealed and not after the last ``until_ms``, without what ``after`` covers."""

    sealed: TimerCursor
    after: TimerCursor
    until_ms: int


OnDamage = Callable[[str, str], None]
"""Is told of an entry that cannot be read: where it is, and what is wrong with it."""


class TimerLayout(ABC):
    """The timers of one open database.

    Attributes:
        met_damage: an entry that ``forget`` is to remove may be damaged.
    """

    def __init__(self, kv: OrderedKV) -> None:
        self._kv = kv
        # Until the first ``forget`` is done, nobody has checked the entries that it removes.
        self.met_damage = True

    # ------------------------------------------------------------ puts

    @abstractmethod
    def gather(self, records: list[bytes], ticks: Times, first_seq: int, now_ms: int, epoch: int) -> Entries:
        """Return the (key, value) entries of a put of several rows, in no order."""

    @abstractmethod
    def note_put(self, entries: Entries) -> None:
        """Take note of entries of a put that were written."""

    # ------------------------------------------------------------ finding

    @abstractmethod
    def locate(self, tick: int, seq: int) -> Located | None:
        """Find the kept put (tick, seq), cancelled or not; a damaged entry holds none."""

    @abstractmethod
    def in_search_order(self, places: Iterable[Place]) -> list[Place]:
        """Return places in the order in which :meth:`locate_each` wants them: what lies in one entry side by side."""

    @abstractmethod
    def locate_each(self, places: Sequence[Place]) -> Iterator[Located | None]:
        """Yield what :meth:`locate` gives for each place, one after the other: records may be large."""

    @abstractmethod
    def has_place(self, tick: int, seq: int) -> bool:
        """Say whether there is an entry that could hold (tick, seq)."""

    @abstractmethod
    def count_of_tick(self, tick: int) -> int:
        """Return how many live timers a tick has."""

    @abstractmethod
    def first_tick(self, from_tick: int) -> int | None:
        """Return the tick of the first kept put at or after ``from_tick``; None when there is none."""

    @abstractmethod
    def last_tick(self, before_tick: int | None) -> int | None:
        """Return the tick of the last kept put before ``before_tick``, None for the last of all; None when there is none."""

    # ------------------------------------------------------------ seal and due

    @abstractmethod
    def is_open(self, from_tick: int, until_ms: int, sealed: TimerCursor) -> bool:
        """Say whether a live put of ``from_tick`` <= tick <= ``until_ms`` is not sealed."""

    @abstractmethod
    def first_closed(self, from_tick: int, sealed: TimerCursor, after: TimerCursor) -> int | None:
        """Return the tick of the first kept put at or after ``from_tick`` that is sealed and not covered by ``after``."""

    @abstractmethod
    def live(self, start: tuple[int, int], seen: Seen, limit: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (tick, seq, record) of what ``seen`` lets out and is not cancelled, from the place ``start`` on, by tick and seq.

        A damaged entry yields one parked message. About ``limit`` are wanted.
        """

    # ------------------------------------------------------------ forget

    @abstractmethod
    def is_anything_under(self, low_tick: int, tick: int, seq: int) -> bool:
        """Say whether a kept put from ``low_tick`` on lies under the corner (tick, seq)."""

    @abstractmethod
    def removals(self, low_tick: int, upto: TimerCursor) -> Iterator[Removal]:
        """Yield, page by page, what ``upto`` covers from ``low_tick`` on; a page is written before the next one is asked for."""

    @abstractmethod
    def note_removal(self, removal: Removal) -> None:
        """Take note of a page of :meth:`removals` that was written."""

    # ------------------------------------------------------------ reading all

    @abstractmethod
    def live_puts(
        self, start: tuple[int, int], stop_tick: int | None, on_damage: OnDamage, handed: TimerCursor = EMPTY_CURSOR
    ) -> Iterator[LivePut]:
        """Yield the live puts from the place ``start`` on and before ``stop_tick``, by tick and seq, without those ``handed`` covers."""

    @abstractmethod
    def page_behind(self, after: bytes | None, limit: int) -> tuple[Sequence[LivePut], bytes | None]:
        """Return about ``limit`` live puts behind a token, and the token behind them; None when nothing is left.

        Raises:
            CorruptStoreError: an entry is damaged.
        """


def parked_record(raw: bytes, reason: str, origin: str) -> bytes:
    """Return the record of the one parked message that stands for a damaged entry."""
    return encode_message(parked_message(raw, reason, origin))


def pass_over(where: str, reason: str) -> None:
    """Leave out what cannot be read."""
