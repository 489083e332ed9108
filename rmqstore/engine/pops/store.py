"""``PopStore`` over an ``OrderedKV``: queue logs, progress and check points, every call one atomic write.

Why no crash point loses or doubles a message here: a pop writes its check points together with the group's next offset, an ack its state
together with the counters, a revive the copy in the retry topic together with the end of the lease, a hand-over the messages together
with the timer cursor. So after a crash each message is, for each group, in exactly one place: before the next offset's reach, under a
running lease, in a retry topic, in the dead letter queue, or acked. Memory is changed after the write (``transaction``).

The timers reclaim by the cursor that is called durable, so it is that of a write which a sync has reached, and nothing else makes it so:
the state may be read again while a thread is on its way from the write to the sync (``_load``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import structs

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    EMPTY_CURSOR,
    GroupOffset,
    GroupProgress,
    GroupSettings,
    InitMode,
    Lag,
    LeaseInfo,
    PopRequest,
    PopResult,
    PopStats,
    PopStore,
    PopTxn,
    PopTxnResult,
    ReviveReport,
    Subscription,
    Ticket,
    TimerCursor,
    TopicInfo,
    UpkeepReport,
    WriteStatus,
)
from rmqstore.contract.state import Adopted, StatePage
from rmqstore.engine.kv.base import PAGE_BYTES, IfLost
from rmqstore.engine.marks import POP_SIDE, drop_old_marks, find_mark, put_marks
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.lease import Popping, picker_of
from rmqstore.engine.pops.listing import Listing
from rmqstore.engine.pops.popped import PoppedRecords, QueueRecords
from rmqstore.engine.pops.queue_log import DamagedRun, QueueLog
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.state import Dead, PopState, Topic
from rmqstore.engine.pops.transaction import Beneath, Transaction
from rmqstore.engine.records import fitting
from rmqstore.engine.schema import ATTEMPT, CURSOR_KEY, EXPIRY, LEASES, META, PURGE, QUEUE_PREFIX, U64, after_prefix
from rmqstore.engine.shared import OrderedSide, Shared
from rmqstore.engine.state import is_taken_in, note_taken_in, stored_adopted
from rmqstore.errors import IllegalArgumentError
from rmqstore.filters import parse_filter
from rmqstore.late import pa
from rmqstore.message import (
    MAX_QUEUES,
    check_count,
    check_group,
    check_marks,
    check_notes,
    check_readable_topic,
    check_time_ms,
    retry_topic,
)

LogFactory: TypeAlias = Callable[[Shared], QueueLog]
"""Opens the log of the queues of a database, as it stands now."""


class OrderedPops(OrderedSide, PopStore):
    """The pop side of a session; see the module for its argument.

    Args:
        open_log: called once now, and again whenever the state has to be read again.
    """

    def __init__(self, shared: Shared, open_log: LogFactory) -> None:
        super().__init__(shared)
        self._open_log = open_log
        self._durable_cursor = EMPTY_CURSOR
        self._undurable_cursors: deque[tuple[int, TimerCursor]] = deque()
        self._load()
        shared.on_reload(self._load)

    def _load(self) -> None:
        kv = self._shared.kv
        # Also of a pop that failed: its leases may have been listed before, with their receipts.
        self._state = PopState(kv, getattr(self, "_state", None))
        self._log = self._open_log(self._shared)
        self._adopted = stored_adopted(kv, POP_SIDE)
        beneath = Beneath(self._shared, self._state, self._log, self._adopted)
        self._popping = Popping(beneath)
        self._leasing = Leasing(beneath)
        self._retention = Retention(beneath)
        self._administration = Administration(beneath)
        self._listing = Listing(beneath)
        self._cursor = TimerCursor.from_bytes(kv.get(META, CURSOR_KEY) or b"")
        if kv.durable_position >= kv.position:
            # As at an open, behind the sync of the epoch, and when a database was opened again, which may have lost some. A store in use,
            # into which rows are taken, or in which a write alone found no room, goes on to wait for the cursors that are not durable.
            self._durable_cursor = self._cursor
            self._undurable_cursors.clear()

    def _begin(self, now_ms: int, *, only_consumes: bool = False) -> Transaction:
        return Transaction(self._shared, self._state, self._log, now_ms, only_consumes=only_consumes)

    # ------------------------------------------------------------ the atomic primitive

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if txn.marks != ():
            check_marks(txn.marks)
        if txn.notes:
            check_notes(txn.notes)
        for change in txn.changes:
            check_time_ms("invisible_ms", change.invisible_ms, minimum=1)
        records = self._log.encode(txn.appends) if txn.appends is not None else ()
        with self._lock, self._call as kv:
            if txn.marks and (answer := find_mark(kv, POP_SIDE, txn.marks)) is not None:
                return PopTxnResult(WriteStatus.REPEATED, U64.unpack(answer)[0]), Ticket(kv.position)
            transaction, leasing = self._begin(now_ms, only_consumes=bool(txn.acks and txn.only_acks)), self._leasing
            for topic, queues in txn.group_queues.items():
                if not transaction.spread_groups(topic, queues):
                    return PopTxnResult(WriteStatus.MOVED, 0), Ticket(0)
            acks = leasing.ack(transaction, txn.acks) if txn.acks else ()
            changes = tuple([leasing.change(transaction, change) for change in txn.changes]) if txn.changes else ()
            releases = tuple([leasing.release(transaction, receipt) for receipt in txn.releases]) if txn.releases else ()
            rejects = tuple([leasing.reject(transaction, reject) for reject in txn.rejects]) if txn.rejects else ()
            removals = self._administration.remove(transaction, txn.removals) if txn.removals else ()
            if len(records):
                transaction.append(records)
            if txn.notes:
                transaction.note(txn.notes)
            if txn.timer_cursor is not None:
                transaction.write.put(META, CURSOR_KEY, txn.timer_cursor.to_bytes())
            if txn.marks:
                put_marks(kv, transaction.write, POP_SIDE, txn.marks, U64.pack(kv.position + 1), now_ms)
            ticket = transaction.commit()
            if txn.timer_cursor is not None:
                self._cursor = txn.timer_cursor
                self._undurable_cursors.append((ticket.position, txn.timer_cursor))
            if not ticket.position:
                ticket = self._resting(ticket)
            return PopTxnResult(WriteStatus.APPLIED, ticket.position, acks, changes, releases, rejects, removals), ticket

    def _resting(self, ticket: Ticket) -> Ticket:
        """Return what to wait for: an answer that changed nothing may still rest on a call that is not durable yet."""
        return ticket if ticket.position else Ticket(self._shared.kv.position)

    # ------------------------------------------------------------ pop and revive

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        picker = None if request.filter == "*" else picker_of(parse_filter(request.filter), self._log.format)
        with self._lock, self._call:
            transaction = self._begin(now_ms, only_consumes=True)
            if not request.acks:
                return self._popping.pop(transaction, request, picker)
            acks = self._leasing.ack(transaction, request.acks)
            result, ticket = self._popping.pop(transaction, request, picker)
            return structs.replace(result, acks=acks), self._resting(ticket)

    def ready(self, topic: str, group: str, filter: str, now_ms: int) -> bool | int | None:
        parse_filter(filter)
        with self._lock, self._call as kv:
            state = self._state
            group_id = state.groups.get(group)
            limit = self._options.max_in_flight
            holding: set[bytes] = set()
            for known in state.topics_of_group(topic, group):
                is_ordered = group_id is not None and state.is_ordered(group_id, known.id)
                for queue in range(known.queues):
                    in_flight = state.progress(group_id, known.id, queue).in_flight
                    if in_flight and group_id is not None:
                        holding.add(QUEUE_PREFIX.pack(group_id, known.id))
                    is_open = not in_flight if is_ordered else not limit or in_flight < limit
                    if is_open and (state.waiting(known, group_id, queue) or state.returned(known, group_id, queue)):
                        return True
            ends = kv.scan_all(LEASES, self._shared.floors.of(LEASES, EXPIRY), after_prefix(EXPIRY), 64) if holding else ()
            return next((U64.unpack_from(key, 1)[0] for key, _ in ends if key[9:17] in holding), None)

    def revive(self, now_ms: int, limit: int) -> tuple[ReviveReport, Ticket]:
        with self._lock, self._call:
            expired = self._shared.floors.before(LEASES, EXPIRY, EXPIRY + U64.pack(now_ms + 1), limit + 1)
            if not expired:
                return ReviveReport(0, 0, 0, more=False), Ticket(0)
            transaction = self._begin(now_ms)
            report = self._leasing.revive(transaction, [key for key, _ in expired], limit)
            return report, transaction.commit()

    # ------------------------------------------------------------ administration

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        check_group(group)
        with self._lock, self._call:
            known = self._known_topic(topic, queue)
            transaction = self._begin(now_ms)
            self._administration.reset(transaction, known, group, range(known.queues) if queue is None else (queue,), offset)
            return self._resting(transaction.commit())

    def delete_topic(self, name: str) -> Ticket:
        with self._lock, self._call:
            transaction = self._begin(0)
            self._administration.delete_topic(transaction, name)
            return self._resting(transaction.commit())

    def delete_group(self, name: str) -> Ticket:
        with self._lock, self._call:
            transaction = self._begin(0)
            self._administration.set_group(transaction, name, GroupSettings())
            self._administration.delete_group(transaction, name)
            return self._resting(transaction.commit())

    def set_group(self, name: str, settings: GroupSettings) -> Ticket:
        check_group(name)
        if settings.max_retries is not None:
            check_count("max_retries", settings.max_retries)
        for each in settings.backoff_ms:
            check_time_ms("a duration of backoff", each, minimum=1)
        with self._lock, self._call:
            transaction = self._begin(0)
            self._administration.set_group(transaction, name, settings)
            return self._resting(transaction.commit())

    def create_topic(self, name: str, queues: int) -> tuple[TopicInfo, Ticket]:
        if type(queues) is not int or not 1 <= queues <= MAX_QUEUES:
            raise IllegalArgumentError(f"queues must be an int of 1 to {MAX_QUEUES}, not {queues!r}")
        check_readable_topic(name)
        with self._lock, self._call:
            transaction = self._begin(0)
            topic = transaction.arranged_topic(name, queues)
            ticket = self._resting(transaction.commit())
            return self._state.info(topic), ticket

    # ------------------------------------------------------------ reads

    def timer_cursor(self) -> TimerCursor:
        with self._lock, self._call:
            return self._cursor

    def durable_cursor(self) -> TimerCursor:
        with self._lock, self._call as kv:
            durable = kv.durable_position
            while self._undurable_cursors and self._undurable_cursors[0][0] <= durable:
                self._durable_cursor = self._undurable_cursors.popleft()[1]
            return self._durable_cursor

    def topic(self, name: str) -> TopicInfo | None:
        known = self._state.topics.get(name)
        return None if known is None else self._state.info(known)

    def queues(self, topic: str) -> int:
        known = self._state.topics.get(topic)
        return 0 if known is None else len(known.next_offsets)

    def topics(self) -> list[TopicInfo]:
        with self._lock, self._call:
            return [self._state.info(self._state.topics[name]) for name in sorted(self._state.topics)]

    def groups(self) -> list[str]:
        with self._lock, self._call:
            known = {reader.group_id for reader in self._state.all_progress} | {group_id for group_id, _ in self._state.registered}
            return sorted(name for name, group_id in self._state.groups.items() if group_id in known)

    def group_settings(self) -> dict[str, GroupSettings]:
        with self._lock, self._call:
            return dict(self._state.group_settings)

    def notes(self) -> Mapping[str, bytes]:
        with self._lock, self._call:
            return self._state.notes

    def subscriptions(self, group: str | None = None) -> list[Subscription]:
        with self._lock, self._call:
            topics, groups = self._state.names_by_id(), self._state.group_names()
            found = [
                Subscription(groups[group_id], topics[topic_id], how.is_ordered, how.active_ms)
                for (group_id, topic_id), how in self._state.registered.items()
            ]
            return sorted((each for each in found if group is None or each.group == group), key=lambda each: (each.group, each.topic))

    def leases(self, topic: str | None = None, group: str | None = None) -> list[LeaseInfo]:
        with self._lock, self._call:
            return self._listing.leases(topic, group)

    def progress(self, topic: str, queue: int, offset: int) -> list[GroupProgress]:
        with self._lock, self._call:
            known = self._known_topic(topic, queue)
            return self._listing.progress(known, queue, offset)

    def offsets(self, group: str) -> list[GroupOffset]:
        with self._lock, self._call:
            group_id = self._state.groups.get(group)
            names = self._state.names_by_id()
            return sorted(
                (
                    GroupOffset(names[reader.topic_id], reader.queue, progress.next_offset, progress.in_flight)
                    for reader, progress in self._state.all_progress.items()
                    if reader.group_id == group_id
                ),
                key=lambda entry: (entry.topic, entry.queue_id),
            )

    def read(self, topic: str, queue: int, offset: int, limit: int) -> MessageBatch:
        if offset < 0 or limit < 1:
            raise IllegalArgumentError(f"offset must be at least 0 and limit at least 1, not {offset} and {limit}")
        with self._lock, self._call:
            known = self._known_topic(topic, queue)
            offset = max(offset, self._state.first_kept(known.id, queue))
            offsets: list[int] = []
            records: list[bytes] = []
            stores: list[int] = []
            room_bytes = PAGE_BYTES
            for run in self._log.runs_from(known, queue, offset):
                if isinstance(run, DamagedRun):
                    continue
                first = run.first
                skip = max(offset - first, 0)
                taken = fitting(run.records[skip : skip + limit - len(records)], room_bytes)
                records += taken
                offsets += range(first + skip, first + skip + len(taken))
                stores += [run.store_ms] * len(taken)
                room_bytes -= sum(map(len, taken))
                if len(records) == limit or room_bytes < 0:
                    break
            return PoppedRecords([QueueRecords(topic, queue, offsets, records, stores)], self._log.format).columns()

    def _known_topic(self, name: str, queue: int | None) -> Topic:
        known = self._state.topics.get(name)
        if known is None:
            raise IllegalArgumentError(f"there is no topic {name!r}; topics() lists those there are")
        if queue is not None and not (type(queue) is int and 0 <= queue < known.queues):
            raise IllegalArgumentError(f"topic {name!r} has queues 0 to {known.queues - 1}, not {queue!r}")
        return known

    def lag(self, topic: str, group: str) -> Lag:
        with self._lock, self._call:
            state = self._state
            group_id = state.groups.get(group)
            known, retry = state.topics.get(topic), state.topics.get(retry_topic(group, topic))
            registered = None if group_id is None or known is None else state.registered.get((group_id, known.id))
            both = [each for each in (known, retry) if each is not None]
            backing_off = 0 if group_id is None else sum(state.backs_off(each, group_id) for each in both)
            return Lag(
                ready=0 if known is None else state.waiting(known, group_id),
                in_flight=0 if group_id is None else sum(state.in_flight(each, group_id) for each in both) - backing_off,
                retry=(0 if retry is None else state.waiting(retry, group_id)) + (0 if known is None else state.returned(known, group_id)),
                dead=0 if group_id is None or known is None else state.dead.get((group_id, known.id), Dead(0)).letters,
                expired=0 if registered is None else registered.expired,
                backing_off=backing_off,
            )

    def next_expiry_ms(self) -> int | None:
        with self._lock, self._call:
            first = self._shared.floors.before(LEASES, EXPIRY, after_prefix(EXPIRY), 1)
            return U64.unpack_from(first[0][0], 1)[0] if first else None

    def stats(self) -> PopStats:
        with self._lock, self._call as kv:
            state = self._state
            return PopStats(
                topics=len(state.topics),
                groups=len(state.groups),
                messages=sum(map(state.messages, state.topics.values())),
                in_flight=sum(progress.in_flight for progress in state.all_progress.values()),
                epoch=self._shared.epoch,
                durable_position=kv.durable_position,
                position=kv.position,
            )

    def verify(self) -> list[str]:
        with self._lock, self._call:
            return self._listing.verify()

    # ------------------------------------------------------------ state

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        from rmqstore.engine.pops.transfer import export_pops  # it needs pyarrow, which a program that moves no state may not

        with self._lock, self._call as kv:
            return export_pops(kv, self._state, self._log, table, after, limit)

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        from rmqstore.engine.pops.transfer import PopImport

        with self._lock, self._call as kv:
            if is_taken_in(kv, POP_SIDE, marks):
                return Ticket(kv.position)
            if self._state.gone:
                # What is taken in may have their names.
                transaction = self._begin(now_ms)
                self._administration.remove_left(transaction)
                transaction.commit()
            transaction = self._begin(now_ms)
            taken = PopImport(kv, transaction, self._log)
            for table, rows in tables:
                taken.take(table, rows)
            note_taken_in(transaction.write, POP_SIDE, marks)
            ticket = self._resting(transaction.commit())
            if taken.has_cursor:
                # A cursor that comes this way is among no undurable ones: ``_load`` takes it for durable, as by then everything is.
                self.sync(ticket)
            if any(table != "messages" for table, _ in tables):
                self._load()
            return ticket

    def adopted(self) -> dict[int, Adopted]:
        with self._lock, self._call:
            return dict(self._adopted)

    # ------------------------------------------------------------ upkeep

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        with self._lock, self._call as kv:
            transaction, floors = self._begin(now_ms), self._shared.floors
            done = drop_old_marks(kv, floors, transaction.write, POP_SIDE, now_ms, self._options.mark_memory_ms, budget)
            if over := floors.before(LEASES, PURGE, PURGE + U64.pack(now_ms + 1), budget):
                gone = []
                for entry, _ in over:
                    key = entry[1 + U64.size :]
                    # An attempt id that was used again since has a later end.
                    stored = kv.get(LEASES, key) if key[:1] == ATTEMPT else None
                    if stored is None or U64.unpack_from(stored)[0] <= now_ms:
                        gone.append(key)
                transaction.write.delete_many(LEASES, [entry for entry, _ in over])
                transaction.write.delete_many(LEASES, sorted(gone))
                done += len(over)
            if self._state.gone:
                done += self._administration.remove_left(transaction, max(budget - done, budget // 16))
            # Where much is remembered too long, queues are looked at as well, but fewer of them a step.
            reclaimed = self._retention.reclaim(transaction, max(budget - done, budget // 16))
            transaction.write.if_lost = IfLost.NOTHING
            transaction.commit()
            return UpkeepReport(done + reclaimed.done, more=done >= budget, expired=reclaimed.expired)
