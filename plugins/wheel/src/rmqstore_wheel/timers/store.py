"""``TimerStore`` over the wheel: puts are one frame of the log, then an entry in the wheel; due timers are read from the wheel.

Why no crash point loses or doubles a timer here: a put is its messages, a cancel its message, a seal and a mark are keys in the journal,
each one frame of the log. So the log always holds a prefix of whole calls, and docs/handover.md argues over such prefixes. The wheel, the
facts, the counts follow from the log (``ledger``). What is forgotten is not written down, because the receiver's durable cursor says it
again at the next open (``recover``); only a staircase of many corners is, before ``due`` drops any of them.

Why ``due`` need not look again at what it handed over and nobody forgot yet: the cursor of a batch behind which nothing was due covers all
that is sealed up to ``until``. What is sealed later is in no slot before that of the first timer which was not sealed then; each seal notes
that slot. So a ``due`` behind this cursor begins there, and one behind any other cursor at what was not forgotten. This is in memory alone:
an open begins with nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    EMPTY_CURSOR,
    MAX_CORNERS,
    CancelOutcome,
    DueBatch,
    PendingCounts,
    PendingTimer,
    ScanPage,
    Ticket,
    TimerCursor,
    TimerHandle,
    TimerReceipts,
    TimerStats,
    UpkeepReport,
    WriteStatus,
)
from rmqstore.contract.state import StatePage
from rmqstore.engine.kv.base import IfLost, WriteBatch
from rmqstore.engine.marks import TIMER_SIDE, encode_ticks, find_mark, put_marks
from rmqstore.engine.schema import META, SEAL_KEY
from rmqstore.engine.shared import Shared
from rmqstore.engine.state import is_taken_in, note_taken_in, stored_adopted
from rmqstore.engine.timers.side import TimerSide
from rmqstore.engine.timers.ticks import Place, check_horizon, reached
from rmqstore.errors import IllegalArgumentError, LostCallsError, StoreFullError
from rmqstore.late import pa
from rmqstore.message import check_marks
from rmqstore_wheel.formats import index_file
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log.call import FEW, Few, LogBatch, Messages
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.timers.answers import Ending, PendingTimers, TimerAnswers, differences_in
from rmqstore_wheel.timers.copies import copy_timers
from rmqstore_wheel.timers.fetching import Fetcher
from rmqstore_wheel.timers.index import FORGOTTEN_KEY, TimerIndex, noted_last_seq
from rmqstore_wheel.timers.records import deliver_times, encode_cancel, encode_cancels, encode_timer, encode_timers
from rmqstore_wheel.timers.table import TIMER, Due, joined

if TYPE_CHECKING:
    from rmqstore_wheel.timers.transfer import TimerExport

_BY_COLUMN: Final = 8
"""So many keys are looked up together."""

_OF_ONE_KEY: Final = 64
"""So many messages of one key, pending or not, are looked at by the column, too."""

_DUE_BYTES: Final = 64 * 1024 * 1024
_WRITTEN_CORNERS: Final = 4
"""A cursor of more corners is written down when it is forgotten: soon ``due`` will drop some."""


class Window(msgspec.Struct, frozen=True, gc=False):
    """What ``TimerIndex.window`` gave of ticks from ``low`` to ``high``."""

    low: int
    high: int
    due: Due
    bound: int | None


class WheelTimers(TimerSide):
    """The timer side of a session; see the module for its argument. A reader has no ``upkeep``."""

    def __init__(
        self, shared: Shared, ledger: Ledger, index: TimerIndex, upkeep: Callable[[int, UpkeepReport], UpkeepReport] | None = None
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._upkeep = upkeep
        super().__init__(shared)
        self._fetcher = Fetcher(ledger)
        self._answers = TimerAnswers(ledger, index)
        self._pending = PendingTimers(index, self._fetcher, self._giver_of)
        self._export: TimerExport | None = None
        self._copies_rolled = self._options.engine.get("roll") == "copy"
        self._sealed = self._received = EMPTY_CURSOR
        self._begin()
        ledger.reopened.append(self._begin)

    def _begin(self) -> None:
        """Begin with what ledger and index say; also once they were opened again, within the session."""
        forgotten = self._forgotten
        self._start_anew()
        ledger, index = self._ledger, self._index
        # After a reopen, seals and what the receiver has stay what they were.
        self._forgotten = forgotten
        self._sealed = self._sealed.join(TimerCursor.from_bytes(ledger.get(META, SEAL_KEY) or b"").corners)
        self._adopted = stored_adopted(ledger, TIMER_SIDE)
        self._noted_seq = noted_last_seq(ledger)
        self._low_tick = 0
        # A cursor, and a tick before which it covers all that is sealed; see the module docstring.
        self._covering: TimerCursor | None = None
        self._due_from = 0
        self._window: Window | None = None
        self._unsealed_tick = index.first_tick(-1)
        self._handed: deque[tuple[TimerCursor, Due]] = deque()
        self._resume: TimerCursor | None = None
        # The cursor of a batch behind which nothing was due.
        self._final: TimerCursor | None = None
        self._rest: Iterator[Due] = iter(())
        self._waiting: Due | None = None
        noted = index.forgotten.join(TimerCursor.from_bytes(ledger.get(META, FORGOTTEN_KEY) or b"").corners).join(self._received.corners)
        if noted != index.forgotten:
            # It was rebuilt from the log, from a check point at least, so what was forgotten is in the wheel again.
            self._forget_all(noted)

    def recover(self, cursor: TimerCursor) -> None:
        with self._lock, self._call:
            self._sealed = self._sealed.join(cursor.corners)
            self._look_again_upto(cursor.highest_tick)
            self._covering = None
            self._restart()
        self.forget(cursor)

    # ------------------------------------------------------------ put

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        if marks != ():
            check_marks(marks)
        count = len(batch)
        if count > FEW:
            batch.columns  # noqa: B018 - without the lock: it takes long, and the first time it imports pandas, where that is installed
        with self._lock, self._call:
            if marks and (answer := find_mark(self._ledger, TIMER_SIDE, marks)) is not None:
                return self._repeated(answer), Ticket(self._ledger.position)
            if self._options.max_delay_ms:
                check_horizon(deliver_times(batch), now_ms, self._options.max_delay_ms)
            first_seq = self._first_free_seq()
            if not count:
                receipts = TimerReceipts(WriteStatus.APPLIED, self._options.store_tag, self._shared.epoch, first_seq, [])
                return receipts, self._mark_nothing(receipts, now_ms, marks) if marks else Ticket(0)
            part, ticks = self._timers_of(batch, count, first_seq, now_ms)
            if self._options.congestion_limit:
                self._congestion.check(ticks)
            receipts = TimerReceipts(WriteStatus.APPLIED, self._options.store_tag, self._shared.epoch, first_seq, ticks)
            changes = LogBatch(parts=[part])
            if marks:
                put_marks(self._ledger, changes, TIMER_SIDE, marks, encode_ticks(receipts.epoch, first_seq, ticks), now_ms)
            position = self._change_position = self._shared.write(changes).position
            self._note_ticks(ticks)
            if (first_roll := self._index.wheel.first_roll) is not None:
                self._note_roll(first_roll)
            return receipts, Ticket(position)

    def _mark_nothing(self, receipts: TimerReceipts, now_ms: int, marks: Sequence[bytes]) -> Ticket:
        changes = WriteBatch()
        put_marks(self._ledger, changes, TIMER_SIDE, marks, encode_ticks(receipts.epoch, receipts.first_seq, ()), now_ms)
        return Ticket(self._shared.write(changes).position)

    def _timers_of(self, batch: MessageBatch, count: int, first_seq: int, now_ms: int) -> tuple[Messages | Few, list[int]]:
        """Return what a put of ``count`` messages appends, and the ticks of its timers, ms; of a few it goes without arrays."""
        index, epoch = self._index, self._shared.epoch
        if count <= FEW:
            few, records, ticks = [], [], []
            for offset, message in enumerate(batch.messages, first_seq - 1):
                one = encode_timer(message, now_ms, index.precision_ms, offset)
                few.append(one)
                records.append(one.record)
                ticks.append(one.tick)
            put = partial(index.put_few, few, first_seq, epoch, now_ms)
            return Few(WHEEL_TOPIC, 0, first_seq - 1, records, now_ms, [0] * count, put, few[-1].text_at), ticks
        found = encode_timers(batch, now_ms, index.precision_ms)
        puts = partial(index.put_many, found, np.arange(first_seq, first_seq + len(found.ticks)), epoch, now_ms)
        return Messages(WHEEL_TOPIC, 0, first_seq - 1, found.records, now_ms, 0, puts), found.ticks.tolist()

    def _first_free_seq(self) -> int:
        return max(self._index.facts.count, self._noted_seq, self._sealed.highest_seq) + 1

    def _note_ticks(self, ticks: Sequence[int]) -> None:
        super()._note_ticks(ticks)
        if self._window is not None and min(ticks, default=self._until_ms + 1) <= self._window.high:
            # The seal did not see these, and ``_low_tick`` must not pass them over.
            self._window = None

    def _note_roll(self, first_roll: int) -> None:
        """Note that a slot has timers to roll, which a seal does before it has any to close."""
        if self._unsealed_tick is not None:
            self._unsealed_tick = min(self._unsealed_tick, (first_roll + 1) * self.precision_ms)

    def _count_of_tick(self, tick: int) -> int:
        return self._index.count_of_tick(tick)

    # ------------------------------------------------------------ cancel

    def _is_known(self, tick: int, seq: int, epoch: int) -> bool:
        return self._answers.is_known((tick, seq, epoch))

    def _places_of_keys(self, topic: str, keys: Sequence[str]) -> list[list[Place]]:
        if len(keys) < _BY_COLUMN:
            return [self._places_of_key(topic, key) for key in keys]
        return self._places_by_column(topic, keys)

    def _places_by_column(self, topic: str, keys: Sequence[str]) -> list[list[Place]]:
        hashes = index_file.key_hashes(pa.array([index_file.index_key(topic, key) for key in keys]))
        rows, offsets = self._index.keys.lookup_many(hashes)
        seqs = self._fetcher.seqs_at_many(offsets)
        pending, facts = self._pending_of(seqs)
        if len(pending) < len(rows):
            self._settle(hashes, rows, offsets, pending)
            rows, seqs = rows[pending], seqs[pending]
        is_it = self._fetcher.with_keys(seqs, topic, [keys[row] for row in rows.tolist()])
        found: list[set[Place]] = [set() for _ in keys]
        columns = (rows, facts["tick"], seqs, facts["epoch"])
        for row, *place in zip(*(column[is_it].tolist() for column in columns), strict=True):
            found[row].add(tuple(place))
        return [sorted(each, key=itemgetter(1)) for each in found]

    def _settle(self, hashes: Ints, rows: Ints, offsets: Ints, pending: Ints) -> None:
        """Note of each hash the last offset before those that are ``pending``, which rise."""
        first_pending = dict(zip(rows[pending[::-1]].tolist(), pending[::-1].tolist(), strict=True))
        for row in np.unique(rows).tolist():
            first, behind = np.searchsorted(rows, (row, row + 1)).tolist()
            if (gone := first_pending.get(row, behind)) > first:
                self._index.keys.settle(int(hashes[row]), int(offsets[gone - 1]))

    def _places_of_key(self, topic: str, key: str) -> list[Place]:
        hashed = index_file.key_hash(index_file.index_key(topic, key))
        offsets = self._index.keys.lookup(hashed)
        if len(offsets) >= _OF_ONE_KEY:
            return self._places_by_column(topic, [key])[0]
        seqs = self._fetcher.seqs_at(offsets)
        pending = [seq for seq in seqs if self._is_pending(seq)]
        if gone := seqs.index(pending[0]) if pending else len(seqs):
            self._index.keys.settle(hashed, offsets[gone - 1])
        places = []
        for seq in self._fetcher.with_key(sorted(set(pending)), topic, key):
            tick, epoch, *_ = self._index.facts.read_one(seq - 1)
            places.append((tick, seq, epoch))
        return places

    def _is_pending(self, seq: int) -> bool:
        """Say whether a seq is that of a timer which is neither cancelled nor forgotten; it may be long gone."""
        facts = self._index.facts
        if not facts.first < seq <= facts.count:
            return False
        tick, _, _, kind, _ = facts.read_one(seq - 1)
        return kind == TIMER and not self._index.cancelled.get(seq) and not self._index.forgotten.covers(tick, seq)

    def _pending_of(self, seqs: Ints) -> tuple[Ints, Rows]:
        """Return which seqs are those of timers that are neither cancelled nor forgotten, and what is known of these."""
        facts = self._index.facts
        rows = np.flatnonzero((seqs > facts.first) & (seqs <= facts.count))
        found = facts.gather(seqs[rows] - 1)
        is_it = (found["kind"] == TIMER) & ~self._index.is_gone(seqs[rows], found["tick"])
        return rows[is_it], found[is_it]

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        message: Messages | Few | None
        store_ms = max(now_ms, 0)
        if len(places) == 1:
            outcome, ended = self._answers.cancel_one(places[0], self._sealed)
            outcomes, ticks = [outcome], [] if ended is None else [ended[0]]
            message = None if ended is None else self._cancel_of(*ended, store_ms)
        else:
            outcomes, ending = self._answers.cancel(places, self._sealed)
            ticks = ending.ticks.tolist()
            message = self._cancels_of(ending, store_ms) if ticks else None
        position = max(self._change_position, self._seal_position)
        if message is not None:
            position = self._change_position = self._shared.write(LogBatch(parts=[message])).position
            self._congestion.note(ticks, -1)
        return outcomes, Ticket(position)

    def _cancel_of(self, tick: int, seq: int, store_ms: int) -> Few:
        index, free_seq = self._index, self._first_free_seq()
        record = encode_cancel(self._fetcher.properties(seq), seq, tick, store_ms, index.precision_ms, free_seq - 1)
        put = partial(index.put_cancel, free_seq, seq, tick, self._shared.epoch)
        return Few(WHEEL_TOPIC, 0, free_seq - 1, [record], store_ms, [0], put)

    def _cancels_of(self, ending: Ending, store_ms: int) -> Messages:
        """Return what a cancel of pending timers appends, one at least."""
        index, first_seq = self._index, self._first_free_seq()
        put = partial(index.put_cancels, first_seq, ending.seqs, self._shared.epoch)
        found = encode_cancels(self._fetcher.property_column(ending.seqs), ending.seqs, ending.ticks, store_ms, index.precision_ms)
        return Messages(WHEEL_TOPIC, 0, first_seq - 1, found, store_ms, 0, put)

    # ------------------------------------------------------------ seal, due, forget

    def seal(self, until_ms: int) -> None:
        with self._lock, self._call:
            if until_ms != self._until_ms:
                self._restart()
            if self._unsealed_tick is not None and self._unsealed_tick <= until_ms:
                self._closed_tick = self._unsealed_tick if self._closed_tick is None else min(self._closed_tick, self._unsealed_tick)
                self._roll(until_ms)
                if self._closes_anything(until_ms):
                    self._due_from = min(self._due_from, self._slot_begin(self._unsealed_tick))
                    sealed = self._trimmed(self._sealed.join([(until_ms, self._index.facts.count)]))
                    write = WriteBatch()
                    write.put(META, SEAL_KEY, sealed.to_bytes())
                    self._seal_position = self._shared.write(write).position
                    self._sealed = sealed
                    self._look_again_upto(until_ms)
                    self._resume = self._final = None
                self._unsealed_tick = self._index.first_tick(until_ms)
            self._until_ms = until_ms

    def _roll(self, until_ms: int) -> None:
        if self._index.wheel.first_roll is None and not self._index.aside:
            # All of them are in slots of their own.
            self._index.write_ms = until_ms
            return
        if self._copies_rolled:
            # Without room they roll by reference.
            with suppress(StoreFullError):
                for seqs in self._index.to_roll(until_ms):
                    copy_timers(self._ledger, self._index, seqs)
        with self._ledger.translated():
            self._index.roll(until_ms)

    def _restart(self) -> None:
        """Let the next ``due`` look from the beginning."""
        self._resume = self._window = None

    def _closes_anything(self, until_ms: int) -> bool:
        """Say whether a live put of tick <= ``until_ms`` is not sealed yet."""
        # From the beginning of a slot on, as a ``due`` that has nothing before it needs the same.
        low: int | None = max(self._slot_begin(self._unsealed_tick or 0), 0)
        window = None
        while low is not None and low <= until_ms:
            slot = self._index.crowded_slot(low, until_ms)
            if slot is None:
                due, bound = self._index.window(low, until_ms)
                window = Window(low, until_ms, due, bound) if window is None else window
                pieces: Iterable[Due] = (due,)
            else:
                pieces, bound = self._index.in_crowded(slot), self._index.end_of(slot)
            for due in pieces:
                left = ~(self._sealed.covers_each(due.ticks, due.seqs) | self._index.forgotten.covers_each(due.ticks, due.seqs))
                if True in left:
                    self._window = window
                    return True
            low = None if bound is None else bound + 1
        return False

    def _slot_begin(self, tick: int) -> int:
        return (tick - 1) // self.precision_ms * self.precision_ms + 1

    def _windows(self, low: int | None, high: int) -> Iterator[Due]:
        """Yield what was not forgotten of ticks from ``low`` to ``high``, in order."""
        while low is not None and low <= high:
            slot = self._index.crowded_slot(low, high)
            pieces: Iterable[Due]
            if slot is None:
                due, bound = self._window_from(low, high)
                pieces = (due,)
            else:
                pieces, bound = self._index.in_crowded(slot), self._index.end_of(slot)
            # What is before was looked at; beyond the last seal, timers may still come into their slots.
            may_pass = low == self._low_tick and high <= self._until_ms
            for due in pieces:
                left = ~self._index.forgotten.covers_each(due.ticks, due.seqs)
                due = due.select(left) if False in left else due
                if len(due.ticks):
                    if may_pass:
                        self._low_tick = int(due.ticks[0])
                        may_pass = False
                    yield due
            if may_pass:
                self._low_tick = (high if bound is None else bound) + 1
            low = None if bound is None else bound + 1

    def _window_from(self, low: int, high: int) -> tuple[Due, int | None]:
        """Return ``TimerIndex.window``, or what the seal saw, if nothing is before it: what was put or cancelled since is not sealed."""
        seen = self._window
        if seen is None or high != seen.high or low > seen.low or self._index.aside:
            return self._index.window(low, high)
        wheel = self._index.wheel
        if len(wheel.live_slots(wheel.slot_of(low), wheel.slot_of(seen.low) - 1)):
            return self._index.window(low, high)
        return seen.due, seen.bound

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        if limit < 1:
            raise IllegalArgumentError(f"limit must be at least 1, not {limit}")
        with self._lock, self._call:
            resume, self._resume = self._resume, None  # one that fails on its way begins anew
            if resume is None or resume != after:
                low = self._low_tick if self._covering != after else max(self._low_tick, self._due_from)
                self._rest = self._windows(low, self._until_ms)
                self._waiting = None
            pieces: list[Due] = []
            places: list[Rows] = []
            taken = size = 0
            more = False
            while (waiting := self._next_waiting(after)) is not None:
                if taken >= limit or size >= _DUE_BYTES:
                    more = True
                    break
                units = self._fetcher.units(waiting.seqs[: limit - taken])
                sizes = units["size"].cumsum(dtype=np.int64)
                count = max(int(sizes.searchsorted(_DUE_BYTES - size, side="right")), 1)
                pieces.append(waiting.select(slice(0, count)))
                places.append(units[:count])
                taken, size = taken + count, size + int(sizes[count - 1])
                self._waiting = waiting.select(slice(count, None))
            given = joined(pieces)
            last = (int(given.ticks[-1]), int(given.seqs[-1])) if more else None
            cursor = self._trimmed(after.join(reached(self._sealed, self._until_ms, last)), durable=True)
            messages = self._fetcher.messages(given.seqs, np.concatenate(places) if len(places) > 1 else places[0] if places else None)
            if pieces:
                resume = cursor
                self._handed.append((cursor, given))
            else:
                self._closed_tick = self._first_closed_beyond(after)
            if not more:
                self._final = self._covering = cursor
                self._due_from = self._slot_begin(self._until_ms + 1)
            self._resume = resume
            return DueBatch(messages, cursor, self._change_position > self._ledger.durable_position, more)

    def _next_waiting(self, after: TimerCursor) -> Due | None:
        """Return what was read and not handed out yet, read on as needed; None when nothing is due any more."""
        while self._waiting is None or not len(self._waiting.seqs):
            due = next(self._rest, None)
            if due is None:
                return None
            self._waiting = due.select(self._is_due(due, after))
        return self._waiting

    def _is_due(self, due: Due, after: TimerCursor) -> Flags:
        return self._sealed.covers_each(due.ticks, due.seqs) & ~after.covers_each(due.ticks, due.seqs)

    def _find_closed(self, from_tick: int, after: TimerCursor) -> int | None:
        for due in self._windows(from_tick, self._sealed.highest_tick):
            keep = self._is_due(due, after)
            if keep.any():
                return int(due.ticks[keep.argmax()])
        return None

    def _trimmed(self, cursor: TimerCursor, *, durable: bool = False) -> TimerCursor:
        """Drop corners under which nothing is left, largest tick first, when there are more than 15.

        ``durable``: only if what was forgotten is written down durably, since the receiver may outlive this log.
        """
        if len(cursor.corners) <= MAX_CORNERS or (durable and self._forget_position > self._ledger.durable_position):
            return cursor
        corners = list(cursor.corners)
        while len(corners) > MAX_CORNERS:
            tick, seq = corners[0]
            if any(((piece.ticks <= tick) & (piece.seqs <= seq)).any() for piece in self._index.live()):
                break
            corners.pop(0)
        return TimerCursor(tuple(corners))

    def forget(self, upto: TimerCursor) -> None:
        if upto == self._forgotten:
            return
        with self._lock, self._call:
            self._received = self._received.join(upto.corners)
            if upto in dict(self._handed):
                self._forget_handed(upto)
            else:
                self._forget_all(upto)
            if len(upto.corners) > _WRITTEN_CORNERS:
                write = WriteBatch()
                write.if_lost = IfLost.NOTHING
                write.put(META, FORGOTTEN_KEY, self._index.forgotten.to_bytes())
                self._forget_position = self._shared.write(write).position
            # No put is ever inserted under a corner that was handed out, so the same cursor has nothing to forget again.
            self._forgotten = upto
            if upto == self._final:
                self._closed_tick = self._first_closed_beyond(upto)

    def _forget_handed(self, upto: TimerCursor) -> None:
        """Forget what was handed out, up to a cursor that ``due`` gave."""
        cursor = None
        pieces = []
        while cursor != upto:
            cursor, given = self._handed.popleft()
            pieces.append(given)
        handed = joined(pieces)
        gone = upto.covers_each(handed.ticks, handed.seqs) & ~self._index.forgotten.covers_each(handed.ticks, handed.seqs)
        handed = handed.select(gone) if False in gone else handed
        if len(pieces) > 1:
            # A batch that was not taken was given again.
            handed = handed.select(np.unique(handed.seqs, return_index=True)[1])
        self._forget(handed)
        self._index.forgotten = self._index.forgotten.join(upto.corners)

    def _forget_all(self, upto: TimerCursor) -> None:
        """Forget what a cursor covers, wherever it is; what was handed out beyond it is still to be counted off."""
        # All of them before one is forgotten: a page that cannot be read ends this with nothing changed.
        pieces = [piece.select(covered) for piece in self._index.live() if (covered := upto.covers_each(piece.ticks, piece.seqs)).any()]
        self._handed = deque(each for each in self._handed if upto.join(each[0].corners) != upto)
        for piece in pieces:
            self._forget(piece)
        self._index.forgotten = self._index.forgotten.join(upto.corners)
        self._restart()

    def _forget(self, gone: Due) -> None:
        self._index.leave(gone.seqs, gone.ticks)
        if self._options.congestion_limit:
            self._congestion.lose(gone.ticks.tolist())

    # ------------------------------------------------------------ reads

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        with self._lock, self._call:
            return self._pending.count(edges_ms, handed)

    def scan(
        self, from_ms: int, to_ms: int, after: tuple[int, int] | None = None, limit: int = 1000, handed: TimerCursor = EMPTY_CURSOR
    ) -> ScanPage:
        with self._lock, self._call:
            return self._pending.page(from_ms, to_ms, after, limit, handed)

    def get(self, handle: TimerHandle) -> PendingTimer | None:
        with self._lock, self._call:
            place = self._place_of(handle)
            if place is None or not self._answers.is_here(place):
                return None
            tick, seq, _ = place
            if self._index.cancelled.get(seq) or self._index.forgotten.covers(tick, seq):
                return None
            _, _, early_ms, *_ = self._index.facts.read_one(seq - 1)
            return self._pending.timers(Due(*np.array([[tick], [seq], [tick - early_ms]])))[0]

    def verify(self) -> list[str]:
        with self._lock, self._call:
            return differences_in(self._index)

    def stats(self) -> TimerStats:
        with self._lock, self._call:
            ledger = self._ledger
            return TimerStats(
                self._index.pending, self._sealed, self._shared.epoch, self._first_free_seq() - 1, ledger.durable_position, ledger.position
            )

    # ------------------------------------------------------------ state

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        from rmqstore_wheel.timers.transfer import TimerExport  # it needs pyarrow, which a program that moves no state may not

        with self._lock, self._call:
            if self._export is None:
                self._export = TimerExport(self._ledger, self._index, self._fetcher)
            return self._export.page(table, after, limit, self._first_free_seq() - 1)

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        from rmqstore_wheel.timers.transfer import WheelTimerImport

        with self._lock, self._call as kv:
            if is_taken_in(kv, TIMER_SIDE, marks):
                return Ticket(kv.position)
            taken = WheelTimerImport(kv, LogBatch(), self._sealed, self._index)
            for table, rows in tables:
                taken.take(table, rows)
            ticks = taken.stage()
            note_taken_in(taken.write, TIMER_SIDE, marks)
            ticket = self._shared.write(taken.write)
            self._change_position = ticket.position
            self._sealed = taken.sealed
            self._look_again_upto(self._sealed.highest_tick)
            self._noted_seq = noted_last_seq(kv)
            self._adopted = stored_adopted(kv, TIMER_SIDE)
            self._forgotten, self._covering = EMPTY_CURSOR, None
            self._restart()
            self._note_ticks(ticks)
            if (first_roll := self._index.wheel.first_roll) is not None:
                self._note_roll(first_roll)
            return ticket

    # ------------------------------------------------------------ upkeep

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        with self._lock:
            try:
                report = super().maintain(now_ms, budget)
            except LostCallsError:
                raise
            except StoreFullError:  # not at once by way of the spare: each tick comes here
                report = self._ledger.in_spare(partial(super().maintain, now_ms, budget))
            with self._call:
                done = report.done
                if all(record.is_complete for record in self._adopted.values()):
                    # A load that goes on may bring timers of any seq.
                    done += self._index.drop_answers(now_ms - self._options.cancel_memory_ms)
                report = msgspec.structs.replace(report, done=done)
                return report if self._upkeep is None else self._upkeep(now_ms, report)
