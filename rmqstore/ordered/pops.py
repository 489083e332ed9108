"""``PopStore`` over an ``OrderedKV``: queue logs, standings and check points, every call one atomic write.

Why no crash point loses or doubles a message here: a pop writes its check points together with the group's next offset, an ack its state
together with the counters, a revive the copy in the retry topic together with the end of the lease, a hand-over the messages together
with the timer cursor. So after a crash each message is, for each group, in exactly one place: before the next offset's reach, under a
running lease, in a retry topic, in the dead letter queue, or acked. Memory is changed after the write (``stage``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    NO_RETRY,
    AckOutcome,
    Change,
    ChangeOutcome,
    ChangeResult,
    GroupOffset,
    InitMode,
    Lag,
    PopRequest,
    PopResult,
    PopStats,
    PopStore,
    PopTxn,
    PopTxnResult,
    Receipt,
    ReleaseOutcome,
    ReviveReport,
    Ticket,
    TimerCursor,
    TopicInfo,
    WriteStatus,
)
from rmqstore.errors import IllegalArgumentError, UnsupportedOperationError
from rmqstore.message import MAX_POP, MAX_QUEUES, PoppedMessage, check_group, check_marks, check_readable_topic, check_time_ms, retry_topic
from rmqstore.ordered.filters import tags_of
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import ATTEMPT, CURSOR_KEY, EXPIRY, LEASE, LEASE_KEY, LEASES, META, PURGE, U64
from rmqstore.ordered.leases import ACKED, LEASED, MOVED, Lease
from rmqstore.ordered.marks import POP_SIDE, drop_old_marks, find_mark, put_marks
from rmqstore.ordered.popped import PoppedRecords, Slice, SliceReceipts
from rmqstore.ordered.popping import Popping, attempt_is_over
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.popverify import verify_pops
from rmqstore.ordered.queues import DamagedRun, QueueLog, Topic
from rmqstore.ordered.records import attempt_of, encode_batch, first_pop_of, message_id_of, with_delivery
from rmqstore.ordered.shared import Shared
from rmqstore.ordered.side import OrderedSide
from rmqstore.ordered.stage import Stage, origin_topic
from rmqstore.ordered.standings import Seat, Standing

_REVIVE_BYTES = 8 * 1024 * 1024
_ACK = {LEASED: AckOutcome.ACKED, ACKED: AckOutcome.ALREADY_ACKED, MOVED: AckOutcome.STALE}
_RELEASE = {LEASED: ReleaseOutcome.RELEASED, ACKED: ReleaseOutcome.ALREADY_ACKED, MOVED: ReleaseOutcome.STALE}
_CHANGE = {LEASED: ChangeOutcome.CHANGED, ACKED: ChangeOutcome.ALREADY_ACKED, MOVED: ChangeOutcome.STALE}


class OrderedPops(OrderedSide, PopStore):
    """The pop side of a session; see the module for its argument."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._load()
        shared.on_reload(self._load)

    def _load(self) -> None:
        kv = self._shared.kv
        self._state = PopState(kv)
        self._log = QueueLog(kv)
        self._popping = Popping(self._shared, self._state, self._log)
        self._cursor = TimerCursor.from_bytes(kv.get(META, CURSOR_KEY) or b"")
        # What was read at open is durable: the epoch was synced behind it.
        self._durable_cursor = self._cursor
        self._undurable_cursors: deque[tuple[int, TimerCursor]] = deque()

    # ------------------------------------------------------------ the atomic primitive

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        check_marks(txn.marks)
        for change in txn.changes:
            check_time_ms("invisible_ms", change.invisible_ms, minimum=1)
        records = encode_batch(txn.appends) if txn.appends is not None else []
        with self._lock:
            kv = self._shared.fresh()
            if txn.marks and (answer := find_mark(kv, POP_SIDE, txn.marks)) is not None:
                return PopTxnResult(WriteStatus.REPEATED, U64.unpack(answer)[0]), Ticket(kv.position)
            stage = Stage(self._shared, self._state, now_ms)
            acks = self._ack(stage, txn.acks)
            changes = tuple(self._change(stage, change) for change in txn.changes)
            releases = tuple(self._release(stage, receipt) for receipt in txn.releases)
            stage.append(records)
            if txn.timer_cursor is not None:
                stage.write.put(META, CURSOR_KEY, txn.timer_cursor.to_bytes())
            position = kv.position + 1
            put_marks(stage.write, POP_SIDE, txn.marks, U64.pack(position), now_ms)
            ticket = stage.commit()
            if txn.timer_cursor is not None:
                self._cursor = txn.timer_cursor
                self._undurable_cursors.append((ticket.position, txn.timer_cursor))
            # An answer that changed nothing may still rest on a call that is not durable yet.
            ticket = ticket if ticket.position else Ticket(kv.position)
            return PopTxnResult(WriteStatus.APPLIED, ticket.position, acks, changes, releases), ticket

    def _check_point(self, stage: Stage, receipt: Receipt) -> Lease | bool:
        """Find the check point of a receipt; True when it is one of ours that is gone (STALE), False when it is unknown."""
        if receipt.broker != self._options.broker or receipt.epoch > self._shared.epoch:
            return False
        if min(receipt.queue_id, receipt.ck_start_offset, receipt.pop_time_ms) < 0 or receipt.queue_id >= MAX_QUEUES:
            return False
        older = receipt.epoch < self._shared.epoch
        group_id = self._state.groups.get(receipt.group)
        topic = self._state.topics.get(receipt.topic if receipt.retry_flag == NO_RETRY else retry_topic(receipt.group, receipt.topic))
        if group_id is None or topic is None:
            return older
        key = LEASE_KEY.pack(group_id, topic.id, receipt.queue_id, receipt.ck_start_offset, receipt.pop_time_ms)
        lease = stage.lease(key)
        return older if lease is None or lease.epoch != receipt.epoch else lease

    def _find(self, stage: Stage, receipt: Receipt) -> tuple[Lease, int] | bool:
        """Find the leased message of a receipt; a bool as in :meth:`_check_point`."""
        lease = self._check_point(stage, receipt)
        if isinstance(lease, bool):
            return lease
        index = lease.index_of(receipt.queue_offset)
        return (lease, index) if index is not None else False

    def _ack(self, stage: Stage, receipts: Sequence[Receipt]) -> tuple[AckOutcome, ...]:
        if isinstance(receipts, SliceReceipts):
            return tuple(outcome for part in receipts.slices for outcome in self._ack_slice(stage, part))
        outcomes = []
        for receipt in receipts:
            found = self._find(stage, receipt)
            if isinstance(found, bool):
                outcomes.append(AckOutcome.STALE if found else AckOutcome.UNKNOWN)
                continue
            lease, index = found
            outcomes.append(_ACK[lease.states[index]])
            if lease.states[index] == LEASED:
                stage.end(lease, index, ACKED)
        return tuple(outcomes)

    def _ack_slice(self, stage: Stage, part: Slice) -> list[AckOutcome]:
        """Ack a whole slice of one check point."""
        lease = self._check_point(stage, part.receipt(part.offsets[0]))
        if isinstance(lease, bool):
            return [AckOutcome.STALE if lease else AckOutcome.UNKNOWN] * len(part.offsets)
        indexes = range(len(lease.offsets)) if lease.offsets == part.offsets else [lease.index_of(offset) for offset in part.offsets]
        outcomes = [AckOutcome.UNKNOWN if index is None else _ACK[lease.states[index]] for index in indexes]
        stage.end_many(
            lease, [i for i, outcome in zip(indexes, outcomes, strict=True) if i is not None and outcome is AckOutcome.ACKED], ACKED
        )
        return outcomes

    def _change(self, stage: Stage, change: Change) -> ChangeResult:
        receipt = change.receipt
        found = self._find(stage, receipt)
        if isinstance(found, bool):
            return ChangeResult(ChangeOutcome.STALE if found else ChangeOutcome.UNKNOWN)
        lease, index = found
        outcome = _CHANGE[lease.states[index]]
        if outcome is not ChangeOutcome.CHANGED:
            return ChangeResult(outcome)
        stage.end(lease, index, MOVED)
        group_id, topic_id, queue, _, pop_ms = lease.place
        first_pop_ms = pop_ms if lease.first_pop_ms < 0 else lease.first_pop_ms
        seat = Seat(group_id, topic_id, queue)
        new = stage.grant(seat, [receipt.queue_offset], change.invisible_ms, lease.retry_flag, first_pop_ms)
        return ChangeResult(
            outcome,
            Receipt(
                receipt.topic,
                receipt.group,
                queue,
                receipt.queue_offset,
                receipt.queue_offset,
                new.place[4],
                change.invisible_ms,
                lease.retry_flag,
                self._options.broker,
                self._shared.epoch,
            ),
        )

    def _release(self, stage: Stage, receipt: Receipt) -> ReleaseOutcome:
        found = self._find(stage, receipt)
        if isinstance(found, bool):
            return ReleaseOutcome.STALE if found else ReleaseOutcome.UNKNOWN
        lease, index = found
        outcome = _RELEASE[lease.states[index]]
        if outcome is ReleaseOutcome.RELEASED:
            self._give_back(stage, lease, index, receipt.group, receipt.topic, counted=False)
        return outcome

    def _give_back(self, stage: Stage, lease: Lease, index: int, group: str, topic: str, *, counted: bool) -> str:
        """End a lease and put the message where it goes next; returns ``retried``, ``dead`` or ``parked``."""
        _, topic_id, queue, _, pop_ms = lease.place
        offset = lease.offsets[index]
        found = self._log.record_at(topic_id, queue, offset)
        stage.end(lease, index, MOVED)
        if found is None or isinstance(found, DamagedRun):
            reason = f"leased by group {group}: " + ("nothing lies at its offset" if found is None else found.reason)
            stage.park(b"" if found is None else found.raw, reason, f"{topic}/{queue}/{offset}", topic)
            return "parked"
        record = found[0]
        attempts = attempt_of(record) + counted
        if attempts > self._options.max_retries:
            stage.bury(group, topic, record, f"delivered {attempts} times without an ack")
            return "dead"
        first_pop_ms = next(at for at in (first_pop_of(record), lease.first_pop_ms, pop_ms) if at >= 0)
        stage.append_to(retry_topic(group, topic), 0, [with_delivery(record, attempts, first_pop_ms)])
        return "retried"

    # ------------------------------------------------------------ pop and revive

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        check_readable_topic(request.topic)
        check_group(request.group)
        check_time_ms("invisible_ms", request.invisible_ms, minimum=1)
        if type(request.max_messages) is not int or not 1 <= request.max_messages <= MAX_POP:
            raise IllegalArgumentError(f"max_messages must be an int of 1 to {MAX_POP}, not {request.max_messages!r}")
        if request.order:
            raise UnsupportedOperationError("this engine declares no FIFO pop (order=True)")
        tags = tags_of(request.filter)
        with self._lock:
            self._shared.fresh()
            return self._popping.pop(Stage(self._shared, self._state, now_ms), request, tags)

    def ready(self, topic: str, group: str, filter: str, now_ms: int) -> bool | int | None:
        tags_of(filter)
        with self._lock:
            self._shared.fresh()
            group_id = self._state.groups.get(group)
            limit = self._options.max_in_flight
            held = 0
            for known in self._state.topics_of_group(topic, group):
                for queue in range(known.queues):
                    standing = None if group_id is None else self._state.standings.get(Seat(group_id, known.id, queue))
                    standing = standing or Standing(0)
                    held += standing.in_flight
                    if standing.next_offset < known.next_offsets[queue] and (not limit or standing.in_flight < limit):
                        return True
            return self.next_expiry_ms() if held else None

    def revive(self, now_ms: int, limit: int) -> tuple[ReviveReport, Ticket]:
        with self._lock:
            kv = self._shared.fresh()
            expired = kv.scan(LEASES, EXPIRY, EXPIRY + U64.pack(now_ms + 1), limit + 1)
            if not expired:
                return ReviveReport(0, 0, 0, False), Ticket(0)
            stage = Stage(self._shared, self._state, now_ms)
            topics, groups = self._state.names_by_id(), self._state.group_names()
            counts = {"retried": 0, "dead": 0, "parked": 0}
            more = False
            for key, _ in expired:
                lease = stage.lease(key[1 + U64.size :])
                if lease is None:
                    stage.write.delete(LEASES, key)
                    continue
                group_id, topic_id, _, _, _ = lease.place
                group = groups[group_id]
                topic = origin_topic(group, topics[topic_id])
                for index in [index for index, state in enumerate(lease.states) if state == LEASED]:
                    if sum(counts.values()) >= limit or stage.appended_bytes >= _REVIVE_BYTES:
                        more = True
                        break
                    counts[self._give_back(stage, lease, index, group, topic, counted=True)] += 1
                if more:
                    break
            return ReviveReport(counts["retried"], counts["dead"], counts["parked"], more), stage.commit()

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        check_group(group)
        with self._lock:
            kv = self._shared.fresh()
            known = self._known_topic(topic, queue)
            stage = Stage(self._shared, self._state, now_ms)
            group_id = stage.group_id(group)
            for number in range(known.queues) if queue is None else (queue,):
                end = known.next_offsets[number]
                target = (0 if offset is InitMode.MIN else end) if isinstance(offset, InitMode) else offset
                if type(target) is not int or not 0 <= target <= end:
                    raise IllegalArgumentError(
                        f"offset {target!r} lies outside of queue {number} of topic {topic!r}, which holds 0 to {end}"
                    )
                seat = Seat(group_id, known.id, number)
                prefix = LEASE + LEASE_KEY.pack(*seat, 0, 0)
                behind = LEASE + LEASE_KEY.pack(*seat, 2**64 - 1, 2**64 - 1)
                for key, _ in kv.scan_all(LEASES, prefix, behind):
                    lease = stage.lease(key[1:])
                    if lease is not None and lease.live:
                        stage.end_many(lease, [index for index, state in enumerate(lease.states) if state == LEASED], MOVED)
                standing = stage.standing(seat) or Standing(0)
                stage.set_standing(seat, Standing(target, standing.last_pop_ms, standing.in_flight))
            return stage.commit()

    # ------------------------------------------------------------ reads

    def timer_cursor(self) -> TimerCursor:
        with self._lock:
            self._shared.fresh()
            return self._cursor

    def durable_cursor(self) -> TimerCursor:
        with self._lock:
            durable = self._shared.fresh().durable_position
            while self._undurable_cursors and self._undurable_cursors[0][0] <= durable:
                self._durable_cursor = self._undurable_cursors.popleft()[1]
            return self._durable_cursor

    def create_topic(self, name: str, queues: int) -> tuple[TopicInfo, Ticket]:
        if type(queues) is not int or not 1 <= queues <= MAX_QUEUES:
            raise IllegalArgumentError(f"queues must be an int of 1 to {MAX_QUEUES}, not {queues!r}")
        check_readable_topic(name)
        with self._lock:
            self._shared.fresh()
            stage = Stage(self._shared, self._state, 0)
            info = stage.topic_with(name, queues).info()
            return info, stage.commit()

    def topic(self, name: str) -> TopicInfo | None:
        known = self._state.topics.get(name)
        return None if known is None else known.info()

    def topics(self) -> list[TopicInfo]:
        with self._lock:
            self._shared.fresh()
            return [self._state.topics[name].info() for name in sorted(self._state.topics)]

    def groups(self) -> list[str]:
        with self._lock:
            self._shared.fresh()
            return sorted(self._state.groups)

    def offsets(self, group: str) -> list[GroupOffset]:
        with self._lock:
            self._shared.fresh()
            group_id = self._state.groups.get(group)
            names = self._state.names_by_id()
            return sorted(
                (
                    GroupOffset(names[seat.topic_id], seat.queue, standing.next_offset, standing.in_flight)
                    for seat, standing in self._state.standings.items()
                    if seat.group_id == group_id
                ),
                key=lambda entry: (entry.topic, entry.queue_id),
            )

    def read(self, topic: str, queue: int, offset: int, limit: int) -> MessageBatch:
        if offset < 0 or limit < 1:
            raise IllegalArgumentError(f"offset must be at least 0 and limit at least 1, not {offset} and {limit}")
        with self._lock:
            self._shared.fresh()
            known = self._known_topic(topic, queue)
            offsets: list[int] = []
            records: list[bytes] = []
            stores: list[int] = []
            for first, run in self._log.runs_from(known.id, queue, offset):
                if isinstance(run, DamagedRun):
                    continue
                skip = max(offset - first, 0)
                taken = run.records[skip : skip + limit - len(records)]
                records += taken
                offsets += range(first + skip, first + skip + len(taken))
                stores += [run.store_ms] * len(taken)
                if len(records) == limit:
                    break
            return PoppedRecords([Slice(topic, queue, offsets, records, stores)]).columns()

    def _known_topic(self, name: str, queue: int | None) -> Topic:
        known = self._state.topics.get(name)
        if known is None:
            raise IllegalArgumentError(f"there is no topic {name!r}; topics() lists those there are")
        if queue is not None and not (type(queue) is int and 0 <= queue < known.queues):
            raise IllegalArgumentError(f"topic {name!r} has queues 0 to {known.queues - 1}, not {queue!r}")
        return known

    def get(self, message_id: str) -> PoppedMessage | None:
        wanted = message_id.encode()
        with self._lock:
            self._shared.fresh()
            newest: tuple[int, Slice] | None = None
            for topic in self._state.topics.values():
                for queue in range(topic.queues):
                    for first, run in self._log.runs_from(topic.id, queue, 0):
                        if isinstance(run, DamagedRun):
                            continue
                        for at, record in enumerate(run.records):
                            if message_id_of(record) == wanted and (newest is None or run.store_ms >= newest[0]):
                                newest = run.store_ms, Slice(topic.name, queue, [first + at], [record], [run.store_ms])
            return None if newest is None else PoppedRecords([newest[1]]).messages()[0]

    def lag(self, topic: str, group: str) -> Lag:
        with self._lock:
            self._shared.fresh()
            state = self._state
            group_id = state.groups.get(group)
            known, retry = state.topics.get(topic), state.topics.get(retry_topic(group, topic))
            both = [each for each in (known, retry) if each is not None]
            return Lag(
                ready=0 if known is None else state.waiting(known, group_id),
                in_flight=0 if group_id is None else sum(state.in_flight(each, group_id) for each in both),
                retry=0 if retry is None else state.waiting(retry, group_id),
                dead=0 if group_id is None or known is None else state.dead.get((group_id, known.id), 0),
            )

    def next_expiry_ms(self) -> int | None:
        with self._lock:
            first = self._shared.fresh().scan(LEASES, EXPIRY, EXPIRY + b"\xff", 1)
            return U64.unpack_from(first[0][0], 1)[0] if first else None

    def stats(self) -> PopStats:
        with self._lock:
            kv = self._shared.fresh()
            state = self._state
            return PopStats(
                topics=len(state.topics),
                groups=len(state.groups),
                messages=sum(sum(topic.next_offsets) for topic in state.topics.values()),
                in_flight=sum(standing.in_flight for standing in state.standings.values()),
                epoch=self._shared.epoch,
                durable_position=kv.durable_position,
                position=kv.position,
            )

    def verify(self) -> list[str]:
        with self._lock:
            return verify_pops(self._shared.fresh(), self._state, self._log)

    # ------------------------------------------------------------ upkeep

    def maintain(self, now_ms: int, budget: int) -> int:
        with self._lock:
            kv = self._shared.fresh()
            stage = Stage(self._shared, self._state, now_ms)
            done = drop_old_marks(kv, stage.write, POP_SIDE, now_ms - self._options.mark_memory_ms, budget)
            over = [key for key, _ in kv.scan(LEASES, PURGE, PURGE + U64.pack(now_ms + 1), budget)]
            stage.write.delete_many(LEASES, over)
            stage.write.delete_many(LEASES, sorted(self._purged(kv, [key[1 + U64.size :] for key in over], now_ms)))
            stage.commit()
            return done + len(over)

    @staticmethod
    def _purged(kv: OrderedKV, keys: Sequence[bytes], now_ms: int) -> Iterator[bytes]:
        """Yield what may really go: an attempt id that was used again since has a later end."""
        for key in keys:
            stored = kv.get(LEASES, key) if key[:1] == ATTEMPT else None
            if stored is None or attempt_is_over(stored, now_ms):
                yield key
