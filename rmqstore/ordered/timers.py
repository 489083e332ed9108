"""``TimerStore`` over an ``OrderedKV``: runs keyed by (tick, first seq), so that the order of hand-over is the order of the keys.

Why no crash point loses or doubles a timer here: every mutating call is one atomic write. A put is its runs, index entries, counters and
the last seq; a cancel its tombstone, the removed run or hole, and the counters; a seal its staircase; a forget the removed runs together
with the tombstones that answer for them. So the log of the database always holds a prefix of whole calls, and docs/handover.md argues
over such prefixes. The fields kept in memory are caches of what is stored, or bounds that are only ever too low.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

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
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import check_marks
from rmqstore.ordered import pending as counting
from rmqstore.ordered import traces
from rmqstore.ordered.adopting import stored_adopted
from rmqstore.ordered.counts import MINUTE_MS, MinuteCounts
from rmqstore.ordered.forgetting import Removal
from rmqstore.ordered.importing import is_taken_in, note_taken_in
from rmqstore.ordered.kv import PAGE_BYTES, OrderedKV, WriteBatch
from rmqstore.ordered.layout import META, PAIR, SEAL_KEY, SEQ_KEY, TIMERS, TRACES, U64
from rmqstore.ordered.marks import TIMER_SIDE, encode_ticks, find_mark, put_marks
from rmqstore.ordered.parked import parked_message
from rmqstore.ordered.placing import check_horizon, place
from rmqstore.ordered.records import Records, deliver_at_of, encode_batch, encode_message, keys_of, route_of
from rmqstore.ordered.runs import (
    DamagedRunError,
    Run,
    count_of,
    decode_run,
    is_single,
    single_of,
)
from rmqstore.ordered.shared import Shared
from rmqstore.ordered.staircase import reached
from rmqstore.ordered.timerexport import export_timers
from rmqstore.ordered.timerimport import TimerImport
from rmqstore.ordered.timerside import Place, TimerSide

_DUE_BYTES = 8 * PAGE_BYTES
_FORGET_PAGE = 4096


class _Located(msgspec.Struct, frozen=True):
    """A put found in its run: the run's key and content, and which of its records it is."""

    key: bytes
    first_seq: int
    run: Run
    at: int


class OrderedTimers(TimerSide):
    """The timer side of a session; see the module for its layout and argument."""

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
        self._sealed = self._sealed.join(TimerCursor.from_bytes(kv.get(META, SEAL_KEY) or b"").corners)
        first = kv.scan(TIMERS, b"", None, 1)
        self._low_tick = U64.unpack_from(first[0][0])[0] if first else 2**63
        self._unsealed_tick = self._low_tick if first else None
        self._adopted = stored_adopted(kv, TIMER_SIDE)
        # Until ``recover`` is done, nobody has checked the runs that ``forget`` removes.
        self._met_damage = True
        self._resume: tuple[TimerCursor, bytes] | None = None

    def recover(self, cursor: TimerCursor) -> None:
        with self._lock:
            self._shared.fresh()
            self._sealed = self._sealed.join(cursor.corners)
            self._last_seq = max(self._last_seq, self._sealed.highest_seq)
        self.forget(cursor)
        self._met_damage = False

    # ------------------------------------------------------------ put

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        check_marks(marks)
        records = encode_batch(batch)
        delivers = _deliver_times(batch, records)
        with self._lock:
            kv = self._shared.fresh()
            if marks and (answer := find_mark(kv, TIMER_SIDE, marks)) is not None:
                return self._repeated(answer), Ticket(kv.position)
            check_horizon(delivers, now_ms, self._options.max_delay_ms)
            first_seq = self._last_seq + 1
            placed = place(records, delivers, first_seq, now_ms, self.precision_ms, self._shared.epoch)
            ticks = placed.ticks
            self._congestion.check(ticks)
            write = WriteBatch()
            write.put_many(TIMERS, placed.runs)
            staged = self._counts.stage(write, placed.by_minute)
            write.put_many(TRACES, _index_entries(batch, records, ticks, first_seq))
            last_seq = self._last_seq + len(records)
            write.put(META, SEQ_KEY, PAIR.pack(last_seq, self._pending + len(records)))
            receipts = TimerReceipts(WriteStatus.APPLIED, self._options.store_tag, self._shared.epoch, first_seq, ticks)
            put_marks(write, TIMER_SIDE, marks, encode_ticks(receipts.epoch, first_seq, ticks) if marks else b"", now_ms)
            ticket = self._shared.write(write)
            self._counts.commit(staged)
            self._last_seq = last_seq
            self._pending += len(records)
            self._change_position = ticket.position
            self._note_ticks(ticks)
            return receipts, ticket

    def _count_of_tick(self, tick: int) -> int:
        kv, prefix = self._shared.kv, U64.pack(tick)
        kept = sum(count_of(value) for _, value in kv.scan_all(TIMERS, prefix, U64.pack(tick + 1)))
        return kept - len(traces.holes_between(kv, prefix, tick))

    # ------------------------------------------------------------ cancel

    def _is_known(self, tick: int, seq: int, epoch: int) -> bool:
        kv = self._shared.kv
        found = self._locate(kv, tick, seq)
        if found is not None and found.run.epoch == epoch:
            return True
        return traces.was_cancelled(kv, tick, seq, epoch) or traces.was_delivered(kv, tick, seq, epoch)

    def cancel_key(self, topic: str, key: str, now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        with self._lock:
            kv = self._shared.fresh()
            places: list[Place | None] = []
            for tick, seq in sorted(traces.places_of_key(kv, topic, key), key=lambda place: place[1]):
                found = self._locate(kv, tick, seq)
                if found is None:
                    continue
                record = found.run.records[found.at]
                # The index is by hash, so the record has the last word.
                if route_of(record)[0] == topic.encode() and key in keys_of(record):
                    places.append((tick, seq, found.run.epoch))
            return self._cancel(places, now_ms)

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        kv = self._shared.kv
        write = WriteBatch()
        deltas: Counter[int] = Counter()
        cancelled: dict[Place, int] = {}
        outcomes = [CancelOutcome.UNKNOWN if place is None else self._cancel_one(kv, write, place, deltas, cancelled) for place in places]
        position = max(self._change_position, self._seal_position)
        if cancelled:
            staged = self._counts.stage(write, deltas)
            pending_left = self._pending - len(cancelled)
            write.put(META, SEQ_KEY, PAIR.pack(self._last_seq, pending_left))
            position = self._shared.write(write).position
            self._counts.commit(staged)
            self._pending = pending_left
            self._change_position = position
            self._congestion.note((tick for tick, _, _ in cancelled), -1)
        return outcomes, Ticket(position)

    def _cancel_one(
        self,
        kv: OrderedKV,
        write: WriteBatch,
        place: Place,
        deltas: Counter[int],
        cancelled: dict[Place, int],
    ) -> CancelOutcome:
        tick, seq, epoch = place
        if place in cancelled or traces.was_cancelled(kv, tick, seq, epoch):
            return CancelOutcome.CANCELLED
        found = self._locate(kv, tick, seq)
        if found is None or found.run.epoch != epoch:
            return CancelOutcome.ALREADY_DELIVERED if traces.was_delivered(kv, tick, seq, epoch) else CancelOutcome.UNKNOWN
        if kv.get(TRACES, traces.hole_key(tick, seq)) is not None:
            return CancelOutcome.CANCELLED
        if self._sealed.covers(tick, seq):
            return CancelOutcome.ALREADY_DELIVERED
        record = found.run.records[found.at]
        if len(found.run.records) == 1:
            write.delete(TIMERS, found.key)
        else:
            write.put(TRACES, traces.hole_key(tick, seq), b"")
        traces.put_cancelled(write, tick, seq, epoch)
        write.delete_many(TRACES, traces.index_keys(record, tick, seq))
        due = deliver_at_of(record)
        cancelled[place] = seq
        deltas[(tick if due < 0 else due) // MINUTE_MS] -= 1
        return CancelOutcome.CANCELLED

    def _locate(self, kv: OrderedKV, tick: int, seq: int) -> _Located | None:
        """Find the kept put (tick, seq); a damaged run holds none."""
        if tick >= 2**63 or seq >= 2**63:
            return None
        entry = kv.floor(TIMERS, PAIR.pack(tick, seq))
        if entry is None:
            return None
        found_tick, first_seq = PAIR.unpack(entry[0])
        if found_tick != tick:
            return None
        try:
            run = decode_run(entry[1])
        except DamagedRunError:
            return None
        at = bisect_right(run.deltas, seq - first_seq) - 1
        return _Located(entry[0], first_seq, run, at) if run.deltas[at] == seq - first_seq else None

    # ------------------------------------------------------------ seal, due, forget

    def seal(self, until_ms: int) -> None:
        with self._lock:
            kv = self._shared.fresh()
            if until_ms != self._until_ms:
                self._resume = None
            if self._unsealed_tick is not None and self._unsealed_tick <= until_ms:
                if self._closes_anything(kv, until_ms):
                    self._closed_tick = self._unsealed_tick if self._closed_tick is None else min(self._closed_tick, self._unsealed_tick)
                    sealed = self._trimmed(kv, self._sealed.join([(until_ms, self._last_seq)]))
                    write = WriteBatch()
                    write.put(META, SEAL_KEY, sealed.to_bytes())
                    self._seal_position = self._shared.write(write).position
                    self._sealed = sealed
                    self._resume = None
                later = kv.scan(TIMERS, U64.pack(until_ms + 1), None, 1)
                self._unsealed_tick = U64.unpack_from(later[0][0])[0] if later else None
            self._until_ms = until_ms

    def _closes_anything(self, kv: OrderedKV, until_ms: int) -> bool:
        """Say whether a live put of tick <= ``until_ms`` is not sealed yet."""
        start = U64.pack(self._unsealed_tick or 0)
        for key, value in kv.scan_all(TIMERS, start, U64.pack(until_ms + 1), page=64):
            tick, first_seq = PAIR.unpack(key)
            bound = self._sealed.bound(tick)
            # One call's runs are sealed together, so the first record speaks for all of them.
            if first_seq <= bound:
                continue
            if count_of(value) == 1:
                return True
            try:
                run = decode_run(value)
            except DamagedRunError:
                return True
            holes = traces.holes_between(kv, key, tick)
            if any((tick, first_seq + step) not in holes for step in run.deltas):
                return True
        return False

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        if limit < 1:
            raise IllegalArgumentError(f"limit must be at least 1, not {limit}")
        with self._lock:
            kv = self._shared.fresh()
            records: list[bytes] = []
            last: tuple[int, int] | None = None
            more = False
            size = 0
            start = self._resume[1] if self._resume is not None and self._resume[0] == after else U64.pack(min(self._low_tick, 2**63))
            stop = U64.pack(self._until_ms + 1)
            resume_at = start
            while not more and start < stop and limit > 0:
                page = kv.scan(TIMERS, start, stop, max(limit - len(records), 0) + 1)
                if not page:
                    break
                start = page[-1][0] + b"\x00"
                holes = traces.holes_between(kv, page[0][0], U64.unpack_from(page[-1][0])[0])
                for key, tick, seq, record in self._live(page, after, holes):
                    if len(records) == limit or size >= _DUE_BYTES:
                        more = True
                        break
                    records.append(record)
                    size += len(record)
                    last = (tick, seq)
                    resume_at = key
            cursor = self._trimmed(kv, after.join(reached(self._sealed, self._until_ms, last if more else None)), durable=True)
            if records:
                self._resume = (cursor, resume_at)
            else:
                self._closed_tick = self._first_closed_beyond(kv, after)
            soft = self._change_position > kv.durable_position
            return DueBatch(MessageBatch(source=Records(records)), cursor, soft)

    def _first_closed_beyond(self, kv: OrderedKV, after: TimerCursor) -> int | None:
        """Return the first tick beyond the last ``until_ms`` that an earlier seal closed, before the clock was set back, and nobody got."""
        if self._sealed.highest_tick <= self._until_ms:
            return None
        for key, _ in kv.scan_all(TIMERS, U64.pack(self._until_ms + 1), U64.pack(self._sealed.highest_tick + 1), page=64):
            tick, first_seq = PAIR.unpack(key)
            if after.bound(tick) < first_seq <= self._sealed.bound(tick):
                return int(tick)
        return None

    def _live(
        self, page: Sequence[tuple[bytes, bytes]], after: TimerCursor, holes: set[tuple[int, int]]
    ) -> Iterable[tuple[bytes, int, int, bytes]]:
        """Yield (key, tick, seq, record) of what is sealed, uncovered and not cancelled; a damaged run yields one parked message."""
        last_tick = -1
        sealed_bound = done_bound = 0
        for key, value in page:
            tick, first_seq = PAIR.unpack(key)
            if tick != last_tick:
                last_tick, sealed_bound, done_bound = tick, self._sealed.bound(tick), after.bound(tick)
            if first_seq > sealed_bound:
                continue
            try:
                if is_single(value):
                    if first_seq > done_bound:
                        yield key, tick, first_seq, single_of(value)
                    continue
                run = decode_run(value)
            except DamagedRunError as error:
                self._met_damage = True
                run = _parked_run(value, str(error), f"timer run {tick}/{first_seq}")
            for step, record in zip(run.deltas, run.records):  # noqa: B905 - a checked run has both; this is the hottest loop
                if done_bound < first_seq + step <= sealed_bound and (not holes or (tick, first_seq + step) not in holes):
                    yield key, tick, first_seq + step, record

    def _trimmed(self, kv: OrderedKV, cursor: TimerCursor, *, durable: bool = False) -> TimerCursor:
        """Drop corners under which nothing is left, largest tick first, when there are more than 15.

        ``durable``: only if the removal of what was there is durable, since the receiver may outlive this log.
        """
        if len(cursor.corners) <= MAX_CORNERS or (durable and self._forget_position > kv.durable_position):
            return cursor
        corners = list(cursor.corners)
        while len(corners) > MAX_CORNERS:
            tick, seq = corners[0]
            kept = kv.scan_all(TIMERS, U64.pack(self._low_tick), U64.pack(tick + 1))
            if any(PAIR.unpack(key)[1] <= seq for key, _ in kept):
                break
            corners.pop(0)
        return TimerCursor(tuple(corners))

    def forget(self, upto: TimerCursor) -> None:
        if upto == self._forgotten:
            return
        with self._lock:
            kv = self._shared.fresh()
            start = U64.pack(min(self._low_tick, 2**63))
            stop = U64.pack(upto.highest_tick + 1)
            lowest_kept: int | None = None
            while start < stop and (page := kv.scan(TIMERS, start, stop, _FORGET_PAGE)):
                start = page[-1][0] + b"\x00"
                kept_tick = self._forget_page(kv, page, upto)
                lowest_kept = kept_tick if lowest_kept is None else lowest_kept
            if U64.pack(min(self._low_tick, 2**63)) < stop:
                self._low_tick = upto.highest_tick + 1 if lowest_kept is None else lowest_kept
            # No put is ever inserted under a corner that was handed out, so the same cursor has nothing to forget again.
            self._forgotten = upto

    def _forget_page(self, kv: OrderedKV, page: Sequence[tuple[bytes, bytes]], upto: TimerCursor) -> int | None:
        """Remove what ``upto`` covers of one page, in one write; returns the tick of the first run that stays."""
        write = WriteBatch()
        holes = traces.holes_between(kv, page[0][0], U64.unpack_from(page[-1][0])[0])
        removal = Removal(upto, holes, checked=not self._met_damage)
        for key, value in page:
            removal.add(key, value)
        if not removal.removed:
            return removal.kept_tick
        for first, behind in removal.stretches:
            write.delete_range(TIMERS, first, behind)
        write.put_many(TIMERS, removal.rest)
        traces.put_delivered(write, removal.delivered)
        write.delete_many(TRACES, removal.index)
        write.delete_many(TRACES, [traces.hole_key(*hole) for hole in sorted(removal.holes_gone)])
        staged = self._counts.stage(write, removal.deltas)
        pending_left = self._pending - len(removal.delivered)
        write.put(META, SEQ_KEY, PAIR.pack(self._last_seq, pending_left))
        self._forget_position = self._shared.write(write).position
        self._counts.commit(staged)
        self._pending = pending_left
        self._congestion.lose(PAIR.unpack(key)[0] for key, _ in page)
        if removal.damaged:
            self._recount(kv)
            self._met_damage = False
        return removal.kept_tick

    def _recount(self, kv: OrderedKV) -> None:
        """Set the counters to what is there, after a damaged run took an unknown number of timers with it."""
        actual, total = counting.count_all(kv)
        write = WriteBatch()
        stored = self._counts.all_minutes()
        staged = self._counts.stage(write, {m: actual.get(m, 0) - stored.get(m, 0) for m in actual.keys() | stored.keys()})
        write.put(META, SEQ_KEY, PAIR.pack(self._last_seq, total))
        self._shared.write(write)
        self._counts.commit(staged)
        self._pending = total

    # ------------------------------------------------------------ reads

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        with self._lock:
            kv = self._shared.fresh()
            return counting.Pending(kv, self._counts, self._pending, self._unforgotten(handed), self.precision_ms).count(edges_ms)

    def _unforgotten(self, handed: TimerCursor) -> TimerCursor:
        """Return what of ``handed`` may still be kept here: nothing, once just that was forgotten."""
        return EMPTY_CURSOR if handed == self._forgotten else handed

    def scan(
        self, from_ms: int, to_ms: int, after: tuple[int, int] | None = None, limit: int = 1000, handed: TimerCursor = EMPTY_CURSOR
    ) -> ScanPage:
        with self._lock:
            kv = self._shared.fresh()
            found = counting.scan_live(kv, from_ms, to_ms, after, limit + 1, self.precision_ms, self._unforgotten(handed))
            timers = tuple(self._pending_timer(put) for put in found[:limit])
            last = found[limit - 1] if len(found) > limit else None
            return ScanPage(timers, None if last is None else (last.tick, last.seq))

    def get(self, handle: TimerHandle) -> PendingTimer | None:
        with self._lock:
            kv = self._shared.fresh()
            place = self._place_of(handle)
            if place is None:
                return None
            tick, seq, epoch = place
            found = self._locate(kv, tick, seq)
            if found is None or found.run.epoch != epoch or kv.get(TRACES, traces.hole_key(tick, seq)) is not None:
                return None
            return self._pending_timer(counting.LivePut(tick, seq, epoch, found.run.records[found.at]))

    def _pending_timer(self, put: counting.LivePut) -> PendingTimer:
        handle = TimerHandle(self._options.store_tag, put.epoch, put.seq, put.tick)
        return PendingTimer(handle, put.due_ms, put.message())

    def verify(self) -> list[str]:
        with self._lock:
            kv = self._shared.fresh()
            return counting.verify(kv, self._counts, self._pending)

    def stats(self) -> TimerStats:
        with self._lock:
            kv = self._shared.fresh()
            return TimerStats(self._pending, self._sealed, self._shared.epoch, self._last_seq, kv.durable_position, kv.position)

    # ------------------------------------------------------------ state

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        with self._lock:
            return export_timers(self._shared.fresh(), table, after, limit, self.precision_ms)

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        with self._lock:
            kv = self._shared.fresh()
            if is_taken_in(kv, TIMER_SIDE, marks):
                return Ticket(kv.position)
            write = WriteBatch()
            taken = TimerImport(kv, write, self._sealed)
            for table, rows in tables:
                taken.take(table, rows)
            self._counts.stage(write, taken.by_minute)
            write.put(META, SEQ_KEY, PAIR.pack(max(self._last_seq, taken.last_seq), self._pending + taken.added))
            note_taken_in(write, TIMER_SIDE, marks)
            ticket = self._shared.write(write)
            self._change_position = ticket.position
            self._load()
            return ticket

    # ------------------------------------------------------------ upkeep


def _parked_run(raw: bytes, reason: str, origin: str) -> Run:
    """Return a run of the one parked message that stands for a damaged run."""
    return Run(0, 0, [encode_message(parked_message(raw, reason, origin))], (0,))


def _deliver_times(batch: MessageBatch, records: Sequence[bytes]) -> list[int]:
    """Return the deliver time of each row, -1 for none."""
    if batch.has_columns:
        times: list[int] = pc.fill_null(batch.columns.column("deliver_at_ms"), -1).to_pylist()
        return times
    return [deliver_at_of(record) for record in records]


def _index_entries(batch: MessageBatch, records: Sequence[bytes], ticks: Sequence[int], first_seq: int) -> list[tuple[bytes, bytes]]:
    if batch.has_columns and batch.columns.column("keys").null_count == len(batch):
        return []
    entries = [(key, b"") for row, record in enumerate(records) for key in traces.index_keys(record, ticks[row], first_seq + row)]
    entries.sort()
    return entries
