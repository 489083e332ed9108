"""``TimerStore`` over an ``OrderedKV``: what is sealed, covered and cancelled; ``rows`` finds the timers.

Why no crash point loses or doubles a timer here: every mutating call is one atomic write. A put is its runs, index entries, counters
and the last seq; a cancel its tombstone, the removed run or hole, and the counters; a seal its staircase; a page of a forget what it
removes together with the tombstones that answer for it. So the log of the database always holds a prefix of whole calls, and
docs/handover.md argues over such prefixes. The fields kept in memory are caches of what is stored, or bounds that are only ever too low.

What is sealed is the exception: a full disk may take the record of a seal by which timers went into the log of another engine. So what was
sealed stays so for this session, and the first ALREADY_DELIVERED for which the record does not speak has it written again, in the write of
its call, which its ticket covers. A crash before that leaves what a crash behind a seal without a sync leaves, and nobody was told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter

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
    WriteStatus,
)
from rmqstore.contract.state import StatePage
from rmqstore.engine.kv.base import PAGE_BYTES, IfLost, WriteBatch
from rmqstore.engine.marks import TIMER_SIDE, encode_ticks, find_mark, put_marks
from rmqstore.engine.records import Records, deliver_at_of, encode_batch, has_keys, keys_of, route_of
from rmqstore.engine.schema import META, PAIR, SEAL_KEY, SEQ_KEY, TIMERS, TRACES
from rmqstore.engine.shared import Shared
from rmqstore.engine.state import is_taken_in, note_taken_in, stored_adopted
from rmqstore.engine.timers import counts as counting, tombstones
from rmqstore.engine.timers.cancel import Cancelling
from rmqstore.engine.timers.counts import MinuteCounts
from rmqstore.engine.timers.rows import LivePut, Removal, TimerRuns
from rmqstore.engine.timers.side import TimerSide
from rmqstore.engine.timers.ticks import Place, check_horizon, place, reached
from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore.late import pa, pc
from rmqstore.message import check_marks

_DUE_BYTES = 8 * PAGE_BYTES
_NO_TICK = 2**63 - 1


class OrderedTimers(TimerSide):
    """The timer side of a session; see the module for its argument."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._last_seq = 0
        self._sealed = EMPTY_CURSOR
        self._load()
        shared.on_reload(self._load)

    def _load(self) -> None:
        self._start_anew()
        kv = self._shared.kv
        self._counts = MinuteCounts(kv)
        head = kv.get(META, SEQ_KEY)
        last_seq, self._pending = PAIR.unpack(head) if head else (0, 0)
        # After a reload the seqs and seals given before stay given, though their records may be gone.
        self._last_seq = max(self._last_seq, last_seq)
        recorded = TimerCursor.from_bytes(kv.get(META, SEAL_KEY) or b"")
        self._sealed = self._sealed.join(recorded.corners)
        self._lacks_seals = self._sealed != recorded
        if kv.durable_position >= kv.position:
            # Nothing is left to wait for; of what was, the database may have lost some when it was opened again.
            self._change_position = self._seal_position = self._forget_position = 0
        self._runs = TimerRuns(kv, self._shared.floors)
        first = self._runs.first_tick(0)
        self._low_tick = _NO_TICK if first is None else first
        self._unsealed_tick = first
        self._adopted = stored_adopted(kv, TIMER_SIDE)
        # A cursor, and the place before which it covers all that is sealed, however much of that is still kept.
        self._resume: tuple[TimerCursor, tuple[int, int]] | None = None
        # The cursor of a batch behind which nothing was due.
        self._final: TimerCursor | None = None

    def recover(self, cursor: TimerCursor) -> None:
        with self._lock, self._call:
            self._sealed = self._sealed.join(cursor.corners)
            self._last_seq = max(self._last_seq, self._sealed.highest_seq)
            self._look_again_upto(cursor.highest_tick)
        self.forget(cursor)
        self._runs.met_damage = False

    # ------------------------------------------------------------ put

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        if marks != ():
            check_marks(marks)
        records = encode_batch(batch)
        delivers = [deliver_at_of(records[0])] if len(records) == 1 else _deliver_times(batch, records)
        with self._lock, self._call as kv:
            if marks and (answer := find_mark(kv, TIMER_SIDE, marks)) is not None:
                return self._repeated(answer), Ticket(kv.position)
            if self._options.max_delay_ms:
                check_horizon(delivers, now_ms, self._options.max_delay_ms)
            first_seq = self._last_seq + 1
            placed = place(records, delivers, first_seq, now_ms, self.precision_ms, self._shared.epoch)
            ticks = placed.ticks
            if self._options.congestion_limit:
                self._congestion.check(ticks)
            write = WriteBatch()
            write.put_many(TIMERS, placed.entries)
            if _is_any_keyed(batch, records):
                write.put_many(TRACES, tombstones.index_entries(records, ticks, range(first_seq, first_seq + len(records))))
            receipts = TimerReceipts(WriteStatus.APPLIED, self._options.store_tag, self._shared.epoch, first_seq, ticks)
            if marks:
                put_marks(kv, write, TIMER_SIDE, marks, encode_ticks(receipts.epoch, first_seq, ticks), now_ms)
            ticket = self._write(write, placed.by_minute, self._pending + len(records), self._last_seq + len(records))
            self._change_position = ticket.position
            self._note_ticks(ticks)
            return receipts, ticket

    def _write(self, write: WriteBatch, by_minute: Mapping[int, int], pending: int, last_seq: int) -> Ticket:
        """Write a call together with the counters: by how much each minute changes, and what the others are now."""
        counts = self._counts.add_to(write, by_minute)
        write.put(META, SEQ_KEY, PAIR.pack(last_seq, pending))
        ticket = self._shared.write(write)
        self._counts.known.update(counts)
        self._pending, self._last_seq = pending, last_seq
        return ticket

    def _count_of_tick(self, tick: int) -> int:
        return self._runs.count_of_tick(tick)

    # ------------------------------------------------------------ cancel

    def _is_known(self, tick: int, seq: int, epoch: int) -> bool:
        kv = self._shared.kv
        found = self._runs.locate(tick, seq)
        if found is not None and found.put.epoch == epoch:
            return True
        return tombstones.was_cancelled(kv, tick, seq, epoch) or tombstones.was_delivered(kv, tick, seq, epoch)

    def _is_damaged(self, tick: int, seq: int) -> bool:
        try:
            self._runs.check_place(tick, seq)
        except CorruptStoreError:
            return True
        return False

    def _places_of_keys(self, topic: str, keys: Sequence[str]) -> list[list[Place]]:
        indexed = [tombstones.places_of_key(self._shared.kv, topic, key) for key in keys]
        wanted = sorted(set(chain.from_iterable(indexed)))
        known: dict[tuple[int, int], tuple[int, list[bytes]]] = {}
        for at, found in zip(wanted, self._runs.locate_each(wanted), strict=True):
            if found is None:
                # What is gone and could not be read has left its keys.
                self._runs.check_place(*at)
            elif route_of(found.put.record)[0] == topic.encode():
                known[at] = found.put.epoch, keys_of(found.put.record)
        # The index is by hash, so the record has the last word.
        return [
            [(*at, known[at][0]) for at in sorted(places, key=itemgetter(1)) if at in known and key.encode() in known[at][1]]
            for key, places in zip(keys, indexed, strict=True)
        ]

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        done = Cancelling(self._shared.kv, self._runs, self._sealed, self._last_seq)
        outcomes = done.cancel_all(places)
        position = max(self._change_position, self._seal_position)
        seals_again = self._lacks_seals and CancelOutcome.ALREADY_DELIVERED in outcomes
        if done.ticks or seals_again:
            write = done.changes()
            if seals_again:
                write.put(META, SEAL_KEY, self._sealed.to_bytes())
            position = self._write(write, done.minutes, self._pending - len(done.ticks), self._last_seq).position
            self._change_position = position
            if seals_again:
                self._lacks_seals = False
            self._congestion.note(done.ticks, -1)
        return outcomes, Ticket(position)

    # ------------------------------------------------------------ seal, due, forget

    def seal(self, until_ms: int) -> None:
        with self._lock, self._call:
            if self._unsealed_tick is not None and self._unsealed_tick <= until_ms:
                self._closed_tick = self._unsealed_tick if self._closed_tick is None else min(self._closed_tick, self._unsealed_tick)
                if self._runs.is_open(self._unsealed_tick, until_ms, self._sealed):
                    sealed = self._sealed.join([(until_ms, self._last_seq)])
                    if len(sealed.corners) > MAX_CORNERS:
                        sealed = self._trimmed(sealed)
                    write = WriteBatch()
                    write.put(META, SEAL_KEY, sealed.to_bytes())
                    self._seal_position = self._shared.write(write).position
                    self._sealed = sealed
                    self._look_again_upto(until_ms)
                    self._lacks_seals = False
                    self._final = None
                    if self._resume is not None:
                        self._resume = (self._resume[0], min(self._resume[1], (self._unsealed_tick, 0)))
                self._unsealed_tick = self._runs.first_tick(until_ms + 1)
            self._until_ms = until_ms

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        if limit < 1:
            raise IllegalArgumentError(f"limit must be at least 1, not {limit}")
        with self._lock, self._call as kv:
            start = self._resume[1] if self._resume is not None and self._resume[0] == after else (self._low_tick, 0)
            records: list[bytes] = []
            last: tuple[int, int] | None = None
            more = False
            size = 0
            for tick, seq, record in self._runs.live(start, self._until_ms, self._sealed, after, limit):
                if len(records) == limit or size >= _DUE_BYTES:
                    more = True
                    break
                records.append(record)
                size += len(record)
                last = (tick, seq)
            reached_to = after.join(reached(self._sealed, self._until_ms, last if more else None))
            cursor = self._trimmed(reached_to, is_receivers=True) if len(reached_to.corners) > MAX_CORNERS else reached_to
            if last is None:
                self._closed_tick = self._first_closed_beyond(after)
            all_until = (self._until_ms + 1, 0)
            self._resume = (after, all_until) if last is None else (cursor, last if more else all_until)
            if not more:
                self._final = cursor
            soft = self._change_position > kv.durable_position
            return DueBatch(MessageBatch(source=Records(records)), cursor, soft, more)

    def _find_closed(self, from_tick: int, after: TimerCursor) -> int | None:
        return self._runs.first_closed(from_tick, self._sealed, after)

    def _trimmed(self, cursor: TimerCursor, *, is_receivers: bool = False) -> TimerCursor:
        """Drop corners under which nothing is left, largest tick first, until there are 15.

        ``is_receivers``: only if the removal of what was there is durable, since the receiver may outlive this log.
        """
        if is_receivers and self._forget_position > self._shared.kv.durable_position:
            return cursor
        corners = list(cursor.corners)
        while len(corners) > MAX_CORNERS and not self._runs.is_anything_under(self._low_tick, *corners[0]):
            corners.pop(0)
        return TimerCursor(tuple(corners))

    def forget(self, upto: TimerCursor) -> None:
        if upto == self._forgotten or not upto.corners:
            return
        with self._lock, self._call:
            corners = upto.corners
            # No put is ever inserted under a corner that was handed out, so there is something new under a new one alone.
            known = self._forgotten.corners
            at = 0
            while at < len(corners) and corners[at] in known:
                at += 1
            if at < len(corners):
                tick = corners[at][0]
                ends_within = corners[at + 1 : at + 2] != () and corners[at + 1][0] == tick - 1  # as of a batch that leaves something
                kept_ticks: list[int] = []
                for removal in self._runs.removals(self._low_tick, upto, corners[at], ends_within=ends_within):
                    if removal.ticks:
                        self._write_removal(removal)
                    if removal.kept_tick is not None:
                        kept_ticks.append(removal.kept_tick)
                if self._low_tick <= tick:
                    self._low_tick = min(kept_ticks, default=tick if ends_within else tick + 1)
            self._forgotten = upto
            if upto == self._final:
                self._closed_tick = self._first_closed_beyond(upto)

    def _write_removal(self, removal: Removal) -> None:
        """Remove one page of what is forgotten, in one write."""
        write = WriteBatch()
        write.if_lost = IfLost.NOTHING
        removal.add_to(write)
        deltas, pending_left = removal.deltas, self._pending - len(removal.delivered)
        if removal.damaged:
            deltas, pending_left = self._recount(removal)
        self._forget_position = self._write(write, deltas, pending_left, self._last_seq).position
        if self._options.congestion_limit:
            self._congestion.lose(removal.ticks)
        if (tick := removal.put_off_tick) is not None:
            self._unsealed_tick = tick if self._unsealed_tick is None else min(self._unsealed_tick, tick)
            self._resume = None

    def _recount(self, removal: Removal) -> tuple[Counter[int], int]:
        """Return what sets the counters to what a removal leaves, and how much that is: a damaged run held an unknown number."""
        gone = {(tick, seq) for tick, seq, _ in removal.delivered}
        left, total = counting.count_all(self._runs, without=gone)
        left.subtract(self._counts.all_minutes())
        return left, total

    # ------------------------------------------------------------ reads

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        with self._lock, self._call:
            handed = self._unforgotten(handed)
            return counting.Pending(self._runs, self._counts, self._pending, handed, self.precision_ms).count(edges_ms)

    def _unforgotten(self, handed: TimerCursor) -> TimerCursor:
        """Return what of ``handed`` may still be kept here: nothing, once just that was forgotten."""
        return EMPTY_CURSOR if handed == self._forgotten else handed

    def scan(
        self, from_ms: int, to_ms: int, after: tuple[int, int] | None = None, limit: int = 1000, handed: TimerCursor = EMPTY_CURSOR
    ) -> ScanPage:
        with self._lock, self._call:
            found, is_more = counting.scan_live(self._runs, from_ms, to_ms, after, limit, self.precision_ms, self._unforgotten(handed))
            timers = tuple(self._pending_timer(put) for put in found)
            return ScanPage(timers, (found[-1].tick, found[-1].seq) if is_more else None)

    def get(self, handle: TimerHandle) -> PendingTimer | None:
        with self._lock, self._call as kv:
            place = self._place_of(handle)
            if place is None:
                return None
            tick, seq, epoch = place
            found = self._runs.locate(tick, seq)
            if found is None or found.put.epoch != epoch or kv.get(TRACES, tombstones.hole_key(tick, seq)) is not None:
                return None
            return self._pending_timer(found.put)

    def _pending_timer(self, put: LivePut) -> PendingTimer:
        handle = TimerHandle(self._giver_of(put.seq), put.epoch, put.seq, put.tick)
        return PendingTimer(handle, put.due_ms, put.message())

    def verify(self) -> list[str]:
        with self._lock, self._call as kv:
            return counting.verify(kv, self._runs, self._counts, self._pending)

    def stats(self) -> TimerStats:
        with self._lock, self._call as kv:
            return TimerStats(self._pending, self._sealed, self._shared.epoch, self._last_seq, kv.durable_position, kv.position)

    # ------------------------------------------------------------ state

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        from rmqstore.engine.timers.transfer import export_timers  # it needs pyarrow, which a program that moves no state may not

        with self._lock, self._call as kv:
            return export_timers(kv, table, after, limit, self.precision_ms)

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        from rmqstore.engine.timers.transfer import TimerImport

        with self._lock, self._call as kv:
            if is_taken_in(kv, TIMER_SIDE, marks):
                return Ticket(kv.position)
            write = WriteBatch()
            taken = TimerImport(kv, write, self._sealed)
            for table, rows in tables:
                taken.take(table, rows)
            note_taken_in(write, TIMER_SIDE, marks)
            ticket = self._write(write, taken.by_minute, self._pending + taken.added, max(self._last_seq, taken.last_seq))
            self._change_position = ticket.position
            self._load()
            return ticket


def _deliver_times(batch: MessageBatch, records: Sequence[bytes]) -> list[int]:
    """Return the deliver time of each row, -1 for none."""
    if batch.has_columns:
        times: list[int] = pc.fill_null(batch.columns.column("deliver_at_ms"), -1).to_pylist()
        return times
    return [deliver_at_of(record) for record in records]


def _is_any_keyed(batch: MessageBatch, records: Sequence[bytes]) -> bool:
    """Say whether a message of a batch may have keys."""
    if len(records) > 1 and batch.has_columns:
        return int(batch.columns.column("keys").null_count) < len(batch)
    return any(map(has_keys, records))
