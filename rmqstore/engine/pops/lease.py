"""How a pop picks messages: queues in their turn, what passes the filter, FIFO runs, what a repeated attempt gets (P1, P9–P13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from rmqstore.contract import NO_RETRY, RETRY_V2, InitMode, PopRequest, PopResult, Ticket
from rmqstore.engine.pops.checkpoint import Lease
from rmqstore.engine.pops.popped import PoppedRecords, QueueRecords
from rmqstore.engine.pops.queue_log import DamagedRun
from rmqstore.engine.pops.retention import ACTIVITY_PARTS
from rmqstore.engine.pops.state import FifoRun, GroupQueue, Progress, Registered, Topic, Unacked, as_delivered, waiting_in
from rmqstore.engine.pops.transaction import Beneath, Part, Transaction
from rmqstore.engine.records import RecordFormat, fitting
from rmqstore.engine.schema import ATTEMPT, LEASE_KEY, LEASES, PURGE, U64, digest
from rmqstore.errors import IllegalArgumentError
from rmqstore.filters import Sql92Filter, TagFilter
from rmqstore.message import retry_topic


class Picker:
    """Picks the records that pass a filter. A pop has so many looks at them, and a record takes one, or more where much of it is read.

    Args:
        look: says whether a record passes, and how many looks that took.
    """

    def __init__(self, look: Callable[[bytes], tuple[bool, int]]) -> None:
        self._look = look

    def pick(self, records: Sequence[bytes], skip: int, wanted: int, looks: int) -> tuple[Sequence[int], int, int]:
        """Return the places of up to ``wanted`` records from ``skip`` on that pass, the place behind the last one looked at, and how many
        looks are left.
        """
        taken: list[int] = []
        at, look = skip, self._look
        while at < len(records) and looks > 0 and len(taken) < wanted:
            passes, took = look(records[at])
            if passes:
                taken.append(at)
            at += 1
            looks -= took
        return taken, at, max(looks, 0)


def picker_of(filter: TagFilter | Sql92Filter, record_format: RecordFormat) -> Picker | None:
    """Return what picks records of a format by a filter; None when every record passes.

    Of a record no more is decoded than the filter asks for: tags are compared as bytes.
    """
    if isinstance(filter, Sql92Filter):
        names, matches, texts_of, readings = filter.names, filter.matches, record_format.property_texts, 1 + filter.like_length

        def look(record: bytes) -> tuple[bool, int]:
            texts = texts_of(record, names)
            return matches(texts), 1 + sum(map(len, texts.values())) * readings // _READ_BY_A_LOOK

        return Picker(look)
    if filter.tags is None:
        return None
    tags, tag_of = frozenset(tag.encode() for tag in filter.tags), record_format.tag_of
    return Picker(lambda record: (tag_of(record) in tags, 1))


_LOOK_LIMIT = 1024
"""One pop looks at so many messages with its filter, and what is behind them has to wait for the next one (P10)."""

_READ_BY_A_LOOK = 4096
"""Characters of properties that a look reads, about as long as the rest of it takes; LIKE reads them as often as its pattern is long."""

_POP_BYTES = 64 * 1024 * 1024
"""One pop ends early once it holds more bytes, so that memory stays bounded."""

_TURNS = 65_536
"""Turns of so many groups on topics are remembered."""


class _Taken(msgspec.Struct):
    """What was read of one queue, and the offset behind all that was looked at with the filter."""

    offsets: list[int]
    records: list[bytes]
    store_ms: list[int]
    next_offset: int

    def add(self, offset: int, record: bytes, store_ms: int) -> None:
        """Add a message."""
        self.offsets.append(offset)
        self.records.append(record)
        self.store_ms.append(store_ms)


class _Turn(msgspec.Struct, gc=False):
    """Whose turn it is for one (group, topic): the retry topic by its share, the queues one after the other (P13)."""

    credit: float = 0.0
    queue: int = 0


class _Want(msgspec.Struct):
    """What one pop may still take: messages, bytes of them, and looks with its filter, for lack of which it may be cut short."""

    request: PopRequest
    picker: Picker | None
    messages: int
    room: int = _POP_BYTES
    looks: int = _LOOK_LIMIT
    is_cut: bool = False


class Popping(Part):
    """Picks and leases; the turns live in memory, since losing one is harmless."""

    def __init__(self, beneath: Beneath) -> None:
        super().__init__(beneath)
        self._turns: dict[tuple[int, int], _Turn] = {}

    def pop(self, transaction: Transaction, request: PopRequest, picker: Picker | None) -> tuple[PopResult, Ticket]:
        """Answer one request."""
        topic = transaction.topic(request.topic) or transaction.topic_with(request.topic, self._options.default_queues)
        if request.queue is not None and not (type(request.queue) is int and 0 <= request.queue < topic.queues):
            raise IllegalArgumentError(f"topic {topic.name!r} has queues 0 to {topic.queues - 1}, not {request.queue!r}")
        group_id = transaction.group_id(request.group)
        registered = self._register(transaction, topic, group_id, request)
        if request.attempt_id is not None:
            again = self._repeated(transaction, request, request.attempt_id)
            if again is not None:
                # The leases may not be durable yet: their first call may still be waiting for the disk.
                transaction.commit()
                return self._result(topic, group_id, request, again), Ticket(self._shared.firm)
        parts: list[QueueRecords] = []
        want = _Want(request, picker, request.max_messages)
        for source, queue, retry_flag in self._sources(transaction, topic, group_id, request):
            take = self._take_run if request.order and retry_flag == NO_RETRY else self._take
            part = take(transaction, want, source, GroupQueue(group_id, source.id, queue), retry_flag)
            if part is not None:
                parts.append(part)
                want.messages -= len(part.records)
                want.room -= sum(map(len, part.records))
            if want.messages <= 0 or want.room < 0:
                break
        if request.attempt_id is not None and parts:
            self._remember(transaction, request, request.attempt_id)
        must_wait = bool(parts) or registered
        transaction.commit()
        result = self._result(topic, group_id, request, parts, more=want.is_cut and not parts)
        return result, Ticket(self._shared.firm if must_wait else 0)

    def _register(self, transaction: Transaction, topic: Topic, group_id: int, request: PopRequest) -> bool:
        """Fix how the group pops the topic, and where it starts on every queue at once; later queues are read from the beginning (P9, P11).

        Returns whether the caller must wait for it to be durable.
        """
        registered = transaction.registered(group_id, topic.id)
        if registered is not None and registered.is_ordered != request.order:
            mode, other = ("in order", "order=True") if registered.is_ordered else ("out of order", "order=False")
            raise IllegalArgumentError(
                f"group {request.group!r} pops topic {topic.name!r} {mode}, as its first pop fixed; pop with {other}, or use another group"
            )
        starts_at_end = registered is None and request.init is InitMode.MAX
        is_missing = False
        for queue, end in enumerate(topic.next_offsets):
            reader = GroupQueue(group_id, topic.id, queue)
            if transaction.progress(reader) is None:
                is_missing = True
                transaction.set_progress(reader, transaction.progress_or_new(reader, end if starts_at_end else 0))
        expiry_ms = self._options.group_expiry_ms
        if registered is None or (expiry_ms and transaction.now_ms - registered.active_ms >= max(expiry_ms // ACTIVITY_PARTS, 1)):
            transaction.register(
                group_id, topic.id, Registered(request.order, transaction.now_ms, registered.expired if registered is not None else 0)
            )
        return is_missing or registered is None

    def _new_turn(self, place: tuple[int, int]) -> _Turn:
        if len(self._turns) >= _TURNS:
            del self._turns[next(iter(self._turns))]
        turn = self._turns[place] = _Turn()
        return turn

    def _sources(self, transaction: Transaction, topic: Topic, group_id: int, request: PopRequest) -> Iterator[tuple[Topic, int, int]]:
        """Yield (topic, queue, retry flag) in the order of this pop."""
        turn = self._turns.get((group_id, topic.id)) or self._new_turn((group_id, topic.id))
        # A group that pops in order has one too when dead letters were sent back to it before its first pop.
        retry = transaction.topic(retry_topic(request.group, request.topic))
        retries: list[tuple[Topic, int, int]] = []
        retry_first = False
        if retry is not None:
            turn.credit += self._options.retry_share
            retry_first = turn.credit >= 1.0
            retries = [(retry, 0, RETRY_V2)]
        if retry_first:
            turn.credit -= 1.0
            yield from retries
        if request.queue is not None:
            yield topic, request.queue, NO_RETRY
        else:
            start, queues = turn.queue, len(topic.next_offsets)
            turn.queue = (start + 1) % queues
            for step in range(queues):
                yield topic, (start + step) % queues, NO_RETRY
        if not retry_first:
            yield from retries

    def _take(self, transaction: Transaction, want: _Want, source: Topic, reader: GroupQueue, retry_flag: int) -> QueueRecords | None:
        """Lease what is ready on one queue, and move the group's offset behind what was looked at."""
        progress, wanted = transaction.progress_or_new(reader), want.messages
        if self._options.max_in_flight:
            wanted = min(wanted, self._options.max_in_flight - progress.in_flight)
        if wanted <= 0 or progress.next_offset >= source.next_offsets[reader.queue]:
            return None
        # What was given to the group once is never dropped by a later filter.
        picker = None if retry_flag else want.picker
        taken = self._read_on(transaction, want, source, reader.queue, progress.next_offset, wanted, want.room, picker)
        if not taken.records:
            transaction.set_progress(reader, Progress(taken.next_offset, progress.last_pop_ms, progress.in_flight))
            return None
        lease = transaction.grant(reader, taken.offsets, want.request.invisible_ms, retry_flag, next_offset=taken.next_offset)
        return self._part(lease, want.request, taken)

    def _take_run(self, transaction: Transaction, want: _Want, source: Topic, reader: GroupQueue, retry_flag: int) -> QueueRecords | None:
        """Lease the next run of one queue (P9): nothing while the last one is leased, else what of it is not acked, then new messages."""
        progress = transaction.progress_or_new(reader)
        if progress.in_flight:
            return None
        wanted = min(want.messages, self._options.max_in_flight or want.messages)
        run = transaction.fifo(reader)
        taken = self._read_back(transaction, source, reader, run, wanted, want.room)
        wanted -= len(taken.records)
        room = want.room - sum(map(len, taken.records))
        if not waiting_in(run) and wanted and room >= 0:
            new = self._read_on(transaction, want, source, reader.queue, progress.next_offset, wanted, room, want.picker)
            for offset in new.offsets:
                run[offset] = Unacked()
            transaction.set_progress(reader, Progress(new.next_offset, progress.last_pop_ms, progress.in_flight))
            taken = _Taken(taken.offsets + new.offsets, taken.records + new.records, taken.store_ms + new.store_ms, new.next_offset)
        if not taken.records:
            return None
        lease = transaction.grant(reader, taken.offsets, want.request.invisible_ms, retry_flag)
        return self._part(lease, want.request, taken)

    def _read_back(self, transaction: Transaction, source: Topic, reader: GroupQueue, run: FifoRun, wanted: int, room: int) -> _Taken:
        """Read the un-acked messages of a run again; what cannot be read any more leaves it."""
        taken = _Taken([], [], [], 0)
        for offset in waiting_in(run):
            if len(taken.records) == wanted or room < 0:
                break
            found = self._log.record_at(source, reader.queue, offset)
            if found is None or isinstance(found, DamagedRun):
                if found is not None:
                    transaction.park_run(source, reader.queue, found)
                del run[offset]
                continue
            record = as_delivered(found[0], run[offset], self._log.format)
            run[offset] = run[offset]._replace(waits=False)
            taken.add(offset, record, found[1])
            room -= len(record)
        return taken

    def _read_on(
        self, transaction: Transaction, want: _Want, source: Topic, queue: int, start: int, wanted: int, room: int, picker: Picker | None
    ) -> _Taken:
        """Read messages that pass from ``start`` on; damaged runs on the way are parked."""
        offsets: list[int] = []
        records: list[bytes] = []
        stores: list[int] = []
        offset = max(start, transaction.first_kept(source.id, queue))
        for run in self._log.runs_from(source, queue, offset):
            if isinstance(run, DamagedRun):
                transaction.park_run(source, queue, run)
                continue
            first = run.first
            skip = max(offset - first, 0)
            taken: Sequence[int]
            if picker is None:
                taken = range(skip, skip + min(len(run.records) - skip, wanted - len(records)))
                offset = first + taken.stop
            else:
                if not want.looks:
                    want.is_cut = True
                    break
                taken, behind, want.looks = picker.pick(run.records, skip, wanted - len(records), want.looks)
                offset = first + behind
                want.is_cut |= behind < len(run.records) and not want.looks
            passed = run.records[skip : taken.stop] if isinstance(taken, range) else [run.records[at] for at in taken]
            if sum(map(len, passed)) > room:
                passed = fitting(passed, room)
                taken = taken[: len(passed)]
                offset = first + taken[-1] + 1
            room -= sum(map(len, passed))
            offsets += map(first.__add__, taken)
            records += passed
            stores += [run.store_ms] * len(taken)
            if len(records) >= wanted or want.is_cut or room < 0:
                break
        else:
            offset = source.next_offsets[queue]
        return _Taken(offsets, records, stores, offset)

    def _part(self, lease: Lease, request: PopRequest, taken: _Taken) -> QueueRecords:
        proof = lease.receipt(taken.offsets[0], request.topic, request.group, self._broker_of(lease), in_order=request.order)
        return QueueRecords(request.topic, proof.queue_id, taken.offsets, taken.records, taken.store_ms, proof, lease.popped_ms)

    def _result(self, topic: Topic, group_id: int, request: PopRequest, parts: Sequence[QueueRecords], *, more: bool = False) -> PopResult:
        return PopResult(PoppedRecords(parts, self._log.format), self._rest(topic, group_id, request), more)

    def _rest(self, topic: Topic, group_id: int, request: PopRequest) -> int:
        state = self._state
        topic = state.topics.get(topic.name, topic)
        retry = state.topics.get(retry_topic(request.group, request.topic))
        retries = state.waiting(retry, group_id) if retry is not None else 0
        if not request.order:
            return state.waiting(topic, group_id, request.queue) + retries
        # A queue whose run is leased gives nothing until that ends, so it must not wake anybody.
        queues = range(topic.queues) if request.queue is None else (request.queue,)
        free = [queue for queue in queues if not state.progress(group_id, topic.id, queue).in_flight]
        return sum(state.waiting(topic, group_id, queue) + state.returned(topic, group_id, queue) for queue in free) + retries

    # ------------------------------------------------------------ attempts

    def _remember(self, transaction: Transaction, request: PopRequest, attempt_id: str) -> None:
        """Note which check points this attempt got, until they expire."""
        key = ATTEMPT + digest(request.group, request.topic, attempt_id)
        expiry = U64.pack(transaction.now_ms + request.invisible_ms)
        transaction.write.put(LEASES, key, expiry + b"".join(transaction.granted()))
        transaction.write.put(LEASES, PURGE + expiry + key, b"")

    def _repeated(self, transaction: Transaction, request: PopRequest, attempt_id: str) -> list[QueueRecords] | None:
        """Return what an earlier pop of the same attempt still holds, maybe nothing; None when there was none within the invisible time."""
        stored = self._shared.kv.get(LEASES, ATTEMPT + digest(request.group, request.topic, attempt_id))
        if stored is None or U64.unpack_from(stored)[0] <= transaction.now_ms:
            return None
        parts: list[QueueRecords] = []
        topics = self._state.names_by_id()
        for at in range(U64.size, len(stored), LEASE_KEY.size):
            lease = transaction.lease(stored[at : at + LEASE_KEY.size])
            if lease is None or lease.expiry_ms <= transaction.now_ms or lease.reader.topic_id not in topics:
                continue
            taken = _Taken([], [], [], 0)
            for offset in [lease.offsets[index] for index in lease.leased]:
                if (found := self._record_of(lease.reader, offset)) is not None:
                    taken.add(offset, *found)
            if taken.records:
                parts.append(self._part(lease, request, taken))
        return parts
