"""One mutating call of the pop store in the making: everything it reads and changes, until it is written in one atomic step.

Nothing of the store's memory changes before the end of :meth:`Transaction.commit`, behind the write; so a call that fails changes
nothing (F3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from rmqstore.contract import EngineOptions, Flush, Ticket
from rmqstore.contract.state import Adopted
from rmqstore.engine.kv.base import IfLost
from rmqstore.engine.pops.checkpoint import ACKED, LEASED, Lease
from rmqstore.engine.pops.queue_log import DamagedRun, QueueLog
from rmqstore.engine.pops.state import Dead, FifoRun, Gap, GroupQueue, PopState, Progress, Registered, Topic, as_delivered, encode_fifo
from rmqstore.engine.runs import origins_in, parked_message
from rmqstore.engine.schema import (
    DEAD,
    EXPIRY,
    GONE,
    GROUP,
    KEPT,
    LEASE,
    LEASE_KEY,
    LEASES,
    META,
    NEXT_ID_KEY,
    NOTE,
    POP_FLOOR_KEY,
    PURGE,
    QUEUE_PREFIX,
    REGISTERED,
    U64,
)
from rmqstore.engine.shared import Shared
from rmqstore.message import (
    DLQ_PREFIX,
    PARKED_TOPIC,
    PROPERTY_DLQ_ATTEMPTS,
    PROPERTY_DLQ_REASON,
    PROPERTY_ORIGIN_ID,
    PROPERTY_ORIGIN_TOPIC,
    RESERVED_PREFIXES,
    RETRY_PREFIX,
    dlq_topic,
    fitting_reason,
)

_SYSTEM = tuple(prefix.encode() for prefix in RESERVED_PREFIXES)

_LAST_MS: Final = 2**63 - 1
"""No lease ends later, which is when the latest one that may be asked for is granted at the latest time that there is."""


class Beneath(NamedTuple):
    """What the parts of a pop side work on."""

    shared: Shared
    state: PopState
    log: QueueLog
    adopted: Mapping[int, Adopted]


class Part:
    """A part of the pop side: it reads what is beneath, and changes it by the transaction of a call."""

    def __init__(self, beneath: Beneath) -> None:
        self._shared, self._state, self._log, self._adopted = beneath
        self._options = self._shared.options
        self._format = self._log.format

    def _broker_of(self, lease: Lease) -> str:
        """Return the name in the receipts of a lease, which is that of the store that gave it."""
        record = self._adopted.get(lease.granter)
        return self._options.broker if record is None else record.broker

    def _record_of(self, reader: GroupQueue, offset: int) -> tuple[bytes, int] | None:
        """Return the record of a message as it was delivered to a group, and its store time, ms; None when it cannot be read."""
        found = self._log.record_at(self._state.topic_of(reader.topic_id), reader.queue, offset)
        if found is None or isinstance(found, DamagedRun):
            return None
        return as_delivered(found[0], self._state.fifo.get(reader, {}).get(offset), self._format), found[1]


class Transaction:
    """Reads through to :class:`PopState`, keeps changes to itself.

    Args:
        only_consumes: it gives leases, or acks them, and does nothing else.
    """

    def __init__(self, shared: Shared, state: PopState, log: QueueLog, now_ms: int, *, only_consumes: bool = False) -> None:
        self._shared = shared
        self._state = state
        self._log = log
        self._format = log.format
        self.options: EngineOptions = shared.options
        self.now_ms = now_ms
        self._only_consumes = only_consumes
        self.write = log.new_batch(now_ms if only_consumes else None)
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, int] = {}
        self._progress: dict[GroupQueue, Progress] = {}
        self._dead: dict[tuple[int, int], Dead] = {}
        self._registered: dict[tuple[int, int], Registered] = {}
        self._kept: dict[tuple[int, int], int] = {}
        self._gaps: dict[tuple[int, int], list[Gap]] = {}
        self._fifo: dict[GroupQueue, FifoRun] = {}
        self._parked: set[tuple[int, int, int]] = set()
        self._leases: dict[bytes, Lease | None] = {}
        # Check points of which leases are given or end, and whether this call gave them.
        self._touched: dict[bytes, tuple[Lease, bool]] = {}
        self._next_id = state.next_id
        self._pop_floor_ms = 0
        self._afterwards: list[Callable[[PopState], None]] = []
        self.appended_bytes = 0

    # ------------------------------------------------------------ topics and groups

    def topic(self, name: str) -> Topic | None:
        """Return a topic as this call sees it."""
        return self._topics.get(name) or self._state.topics.get(name)

    def topic_with(self, name: str, queues: int, new_queues: int = 1) -> Topic:
        """Return a topic with at least ``queues`` queues, made or widened as needed; a new one has at least ``new_queues``."""
        topic = self.topic(name)
        if topic is None:
            if name in self._state.gone:
                self.remove_left(name, list(self._state.gone[name].readers))
            topic = Topic(self._new_id(), name, (0,) * max(queues, new_queues), is_on_demand=True)
            self._topics[name] = topic
        elif (missing := queues - len(topic.next_offsets)) > 0:
            self._topics[name] = topic = structs.replace(topic, next_offsets=topic.next_offsets + (0,) * missing)
        return topic

    def set_topic(self, topic: Topic) -> None:
        """Change a topic."""
        self._topics[topic.name] = topic

    def arranged_topic(self, name: str, queues: int) -> Topic:
        """Return a topic with at least as many queues as somebody asked for."""
        self._topics[name] = topic = structs.replace(self.topic_with(name, queues), is_on_demand=False)
        return topic

    def spread_groups(self, name: str, queues: int) -> bool:
        """Spread the message groups of a topic over ``queues`` queues, or say that another number is fixed already."""
        topic = self.topic(name)
        if topic is None or not topic.group_queues:
            self._topics[name] = structs.replace(self.topic_with(name, queues), group_queues=queues)
            return True
        return topic.group_queues == queues

    def group_id(self, name: str) -> int:
        """Return the id of a group, made as needed."""
        known = self._groups.get(name) or self._state.groups.get(name)
        if known is None:
            known = self._groups[name] = self._new_id()
        return known

    def registered(self, group_id: int, topic_id: int) -> Registered | None:
        """Return how the group pops the topic; None when it never has."""
        return self._registered.get((group_id, topic_id)) or self._state.registered.get((group_id, topic_id))

    def register(self, group_id: int, topic_id: int, how: Registered) -> None:
        """Note how the group pops the topic, and that it does now."""
        self._registered[group_id, topic_id] = how

    def is_ordered(self, reader: GroupQueue) -> bool:
        """Say whether the group pops the topic in order."""
        registered = self.registered(reader.group_id, reader.topic_id)
        return registered is not None and registered.is_ordered

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def progress(self, reader: GroupQueue) -> Progress | None:
        """Return where a group stands; None when it has not popped the queue."""
        return self._progress.get(reader) or self._state.all_progress.get(reader)

    def progress_or_new(self, reader: GroupQueue, next_offset: int = 0) -> Progress:
        """Return where a group stands, or is to stand when it begins; its pop times are above those of all that was deleted (P2)."""
        state = self._state
        return self._progress.get(reader) or state.all_progress.get(reader) or Progress(next_offset, state.pop_floor_ms)

    def raise_pop_floor(self, last_pops_ms: Iterable[int]) -> None:
        """Note the last pop times of progress that is deleted: no later lease has a receipt of its leases, as names may come again (P2)."""
        self._pop_floor_ms = max(self._pop_floor_ms, self._state.pop_floor_ms, max(last_pops_ms, default=0))

    def set_progress(self, reader: GroupQueue, progress: Progress) -> None:
        """Change where a group stands."""
        self._progress[reader] = progress

    def fifo(self, reader: GroupQueue) -> FifoRun:
        """Return the un-acked messages of a queue under FIFO; what is changed in it is part of this call."""
        if reader not in self._fifo:
            self._fifo[reader] = dict(self._state.fifo.get(reader, {}))
        return self._fifo[reader]

    def first_kept(self, topic_id: int, queue: int) -> int:
        """Return the first offset of a queue that retention has left."""
        place = (topic_id, queue)
        return self._kept.get(place) or self._state.kept.get(place, 0)

    def set_first_kept(self, topic_id: int, queue: int, offset: int) -> None:
        """Move the beginning of a queue."""
        self._kept[topic_id, queue] = offset

    def gaps(self, topic_id: int, queue: int) -> list[Gap]:
        """Return the gaps of a queue, by first offset."""
        return self._gaps.get((topic_id, queue), self._state.gaps.get((topic_id, queue), []))

    def set_gaps(self, topic_id: int, queue: int, gaps: Sequence[Gap]) -> None:
        """Replace the gaps of a queue; those that touch and are alike become one."""
        joined: list[Gap] = []
        for gap in sorted(gaps):
            if joined and joined[-1].behind == gap.first and joined[-1].is_removal == gap.is_removal:
                joined[-1] = Gap(joined[-1].first, gap.behind, gap.is_removal)
            else:
                joined.append(gap)
        before, after = set(self.gaps(topic_id, queue)), set(joined)
        self.write.delete_many(META, [gap.entry(topic_id, queue)[0] for gap in sorted(before - after)])
        self.write.put_many(META, [gap.entry(topic_id, queue) for gap in sorted(after - before)])
        self._gaps[topic_id, queue] = joined

    # ------------------------------------------------------------ appends

    def append(self, records: Sequence[bytes]) -> None:
        """Append records to the topics and queues that they name, in order; a record without a queue goes where the topic's turn is."""
        for name, queue, group in self._log.routed(records):
            topic = self.topic_with(name.decode(), queue + 1, 1 if name.startswith(_SYSTEM) else self.options.default_queues)
            if queue >= 0:
                self._append(topic, queue, group)
                continue
            for turn in range(min(topic.queues, len(group))):
                topic = self._append(topic, (self._state.turn + turn) % topic.queues, group[turn :: topic.queues])

    def append_to(self, name: str, records: Sequence[bytes]) -> None:
        """Append records to the first queue of a topic, in order."""
        self._append(self.topic_with(name, 1), 0, records)

    def _append(self, topic: Topic, queue: int, records: Sequence[bytes]) -> Topic:
        offset = topic.next_offsets[queue]
        self.appended_bytes += self._log.append(self.write, topic, queue, offset, records, self.now_ms)
        self._topics[topic.name] = moved = topic.moved(queue, offset + len(records))
        return moved

    def park(self, raw: bytes, reason: str, origin: str, origin_topic: str) -> None:
        """Append what cannot be read to the topic of parked entries (T12)."""
        self.append_to(PARKED_TOPIC, [self._format.encode_message(parked_message(raw, reason, origin, origin_topic))])

    def park_run(self, topic: Topic, queue: int, damaged: DamagedRun) -> None:
        """Move a damaged run of a queue to the parked entries, once; its offsets become a gap."""
        place = (topic.id, queue, damaged.first)
        if place in self._parked:
            return
        self._parked.add(place)
        # Up to the end of the queue before this call: its entries may go behind the run in the same queue.
        behind = self._log.take_out(self.write, self._state.topics.get(topic.name, topic), queue, damaged)
        self.park(damaged.raw, damaged.reason, f"{topic.name}/{queue}/{damaged.first}", topic.name)
        gaps = self.gaps(topic.id, queue)
        # What was removed behind the run is in no run, and has a gap already.
        behind = min([behind, *(gap.first for gap in gaps if gap.first > damaged.first)])
        if topic.name.startswith(DLQ_PREFIX):
            self._count_off_unread(topic, damaged, range(damaged.first, behind))
        self.set_gaps(topic.id, queue, [*gaps, Gap(damaged.first, behind)])

    def bury(self, group: str, topic: str, record: bytes, attempts: int, reason: str) -> None:
        """Append a message that was delivered ``attempts`` times to the group's dead letter queue, with where it came from and why (P7)."""
        message = self._format.decode_message(record)
        told = {PROPERTY_DLQ_ATTEMPTS: str(attempts), PROPERTY_ORIGIN_TOPIC: topic, PROPERTY_ORIGIN_ID: message.message_id or ""}
        own = {name: value for name, value in message.properties.items() if name != PROPERTY_DLQ_REASON and name not in told}
        told = {name: value for name, value in told.items() if value}
        dead = structs.replace(message, topic=dlq_topic(group), properties=own | told, queue_id=0)
        # An engine that took more of it than another one would have letters that cannot be moved there.
        if kept := fitting_reason(reason, dead):
            dead = structs.replace(dead, properties={**own, PROPERTY_DLQ_REASON: kept, **told})
        place = (self.group_id(group), self.topic_with(topic, 1).id)
        known = self._dead_of(place) or Dead(0, self.topic_with(dead.topic, 1).next_offsets[0])
        self._dead[place] = Dead(known.letters + 1, known.since)
        self.append_to(dead.topic, [self._format.encode_message(dead)])

    def _dead_of(self, place: tuple[int, int]) -> Dead | None:
        return self._dead.get(place) or self._state.dead.get(place)

    def count_off_dead(self, group_id: int, topic_id: int, offsets: Sequence[int]) -> None:
        """Count off letters of a topic's name that leave the group's dead letter queue; those of a deleted topic were never counted."""
        known = self._dead_of((group_id, topic_id))
        if known is not None:
            self._dead[group_id, topic_id] = Dead(max(known.letters - sum(at >= known.since for at in offsets), 0), known.since)

    def _count_off_unread(self, letters: Topic, damaged: DamagedRun, offsets: Sequence[int]) -> None:
        """Count off letters that cannot be read: for the topics that their bytes still name, else for those that miss some."""
        group_id = self._state.groups.get(letters.name.removeprefix(DLQ_PREFIX))
        if group_id is None:
            return
        told = origins_in(damaged.raw)
        if len(told) == len(offsets):
            for offset, name in zip(offsets, told, strict=True):
                topic = self.topic(name)
                if topic is not None:
                    self.count_off_dead(group_id, topic.id, [offset])
            return
        there = self._letters_there(letters, group_id)
        left = len(offsets)
        for (of_group, topic_id), before in self._state.dead.items():
            if of_group == group_id:
                known = self._dead_of((of_group, topic_id)) or before
                missing = min(left, max(min(known.letters, before.letters) - there[topic_id], 0))
                self._dead[of_group, topic_id] = Dead(known.letters - missing, known.since)
                left -= missing

    def _letters_there(self, letters: Topic, group_id: int) -> Counter[int]:
        """Count the letters of each topic in a dead letter queue that can be read, or whose bytes tell at least what they are of."""
        there: Counter[int] = Counter()
        for run in self._log.runs_from(letters, 0, self.first_kept(letters.id, 0)):
            if not isinstance(run, DamagedRun):
                names = [self._format.decode_message(each).properties.get(PROPERTY_ORIGIN_TOPIC, "") for each in run.records]
            else:
                names = [] if (letters.id, 0, run.first) in self._parked else origins_in(run.raw)
            for offset, name in enumerate(names, run.first):
                topic = self.topic(name)
                known = None if topic is None else self._dead_of((group_id, topic.id))
                there[topic.id if topic is not None and known is not None and offset >= known.since else 0] += 1
        return there

    # ------------------------------------------------------------ leases

    def lease(self, key: bytes) -> Lease | None:
        """Return a lease as this call sees it."""
        if key not in self._leases:
            value = self._shared.kv.get(LEASES, LEASE + key)
            self._leases[key] = None if value is None else Lease.decode(key, value)
        return self._leases[key]

    def remove_readers(self, readers: Iterable[GroupQueue], leases: Iterable[bytes]) -> None:
        """Remove where groups stand, their FIFO runs, and running leases by key; upkeep drops those that ended, as it would have done."""
        there, keys = sorted(readers), sorted(leases)
        self.write.delete_many(META, [reader.key() for reader in there])
        self.write.delete_many(LEASES, [reader.fifo_key() for reader in there])
        found = self._shared.kv.get_many(LEASES, [LEASE + key for key in keys])
        ends_ms = {key: Lease.expiry_of(value) for key, value in zip(keys, found, strict=True) if value is not None}
        self.write.delete_many(LEASES, [LEASE + key for key in ends_ms])
        self.write.delete_many(LEASES, sorted(EXPIRY + U64.pack(end_ms) + key for key, end_ms in ends_ms.items()))

    def remove_left(self, name: str, readers: Sequence[GroupQueue]) -> None:
        """Remove what is left of a deleted topic under some readers, all those of a group (``administration``); the last takes its note."""
        left = self._state.gone[name]
        self.remove_readers(readers, [key for reader in readers for key in left.readers[reader]])
        pairs = [QUEUE_PREFIX.pack(group_id, left.topic_id) for group_id in sorted({reader.group_id for reader in readers})]
        self.write.delete_many(META, [REGISTERED + pair for pair in pairs])
        self.write.delete_many(META, [DEAD + pair for pair in pairs])
        if len(readers) == len(left.readers):
            self.write.delete(META, GONE + name.encode())
        self.afterwards(lambda state: state.forget_left(name, readers))

    def grant(
        self,
        reader: GroupQueue,
        offsets: list[int],
        invisible_ms: int,
        retry_flag: int,
        first_pop_ms: int = -1,
        next_offset: int | None = None,
    ) -> Lease:
        """Lease messages of one queue; the pop time strictly rises per reader, so no other lease has this key (P2).

        ``next_offset``: where the group goes on then; None leaves it where it stands.
        """
        progress = self.progress_or_new(reader)
        count = len(offsets)
        # The progress of a loaded store knows nothing of what was deleted here before.
        pop_ms = max(self.now_ms, progress.last_pop_ms + 1, self._state.pop_floor_ms + 1)
        key = LEASE_KEY.pack(reader.group_id, reader.topic_id, reader.queue, offsets[0], pop_ms)
        ends_ms, states, granter = min(self.now_ms + invisible_ms, _LAST_MS), bytearray(count), self.options.store_tag
        lease = Lease(key, ends_ms, invisible_ms, self._shared.epoch, retry_flag, offsets, states, first_pop_ms, granter)
        self._leases[key] = lease
        self._touched[key] = (lease, True)
        self._progress[reader] = Progress(progress.next_offset if next_offset is None else next_offset, pop_ms, progress.in_flight + count)
        return lease

    def end(self, lease: Lease, indexes: Sequence[int], state: int) -> None:
        """End the running leases of some messages of one check point."""
        self._touched.setdefault(lease.key, (lease, False))
        for index in indexes:
            lease.states[index] = state
        group_id, topic_id, queue, _, _ = LEASE_KEY.unpack(lease.key)
        reader = GroupQueue(group_id, topic_id, queue)
        if state == ACKED and (reader in self._fifo or reader in self._state.fifo):
            run = self.fifo(reader)
            for index in indexes:
                run.pop(lease.offsets[index], None)
        progress = self.progress_or_new(reader)
        self._progress[reader] = Progress(progress.next_offset, progress.last_pop_ms, progress.in_flight - len(indexes))

    def _write_leases(self) -> None:
        puts: list[tuple[bytes, bytes]] = []
        deletes = []
        for key, (lease, is_new) in self._touched.items():
            expiry = EXPIRY + U64.pack(lease.expiry_ms) + key
            if LEASED not in lease.states:
                # By now the message says it, where it matters.
                lease.reason = ""
                if not is_new:
                    deletes.append(expiry)
                keep_until = max(lease.expiry_ms, self.now_ms) + self.options.outcome_memory_ms
                puts.append((PURGE + U64.pack(keep_until) + LEASE + key, b""))
            elif is_new:
                puts.append((expiry, b"\1" if lease.is_backing_off else b""))
            puts.append((LEASE + key, lease.encode()))
        puts.sort()
        self.write.put_many(LEASES, puts)
        if deletes:
            self.write.delete_many(LEASES, deletes)

    # ------------------------------------------------------------ the end

    def note(self, notes: Mapping[str, bytes | None]) -> None:
        """Keep notes, and let go of others (I2)."""
        for name, value in notes.items():
            if value is not None:
                self.write.put(META, NOTE + name.encode(), value)
            elif name in self._state.notes:
                self.write.delete(META, NOTE + name.encode())
        self.afterwards(lambda state: state.take_notes(notes))

    def afterwards(self, change: Callable[[PopState], None]) -> None:
        """Have ``change`` done to the memory of the store once everything is written."""
        self._afterwards.append(change)

    def granted(self) -> list[bytes]:
        """Return the keys of the leases that this call gave."""
        return [key for key, (_, is_new) in self._touched.items() if is_new]

    def _only_leases(self) -> bool:
        """Whether this gives leases and moves offsets of groups, and nothing else: so that all other answers are true without it."""
        others = (self._topics, self._groups, self._registered, self._dead, self._kept, self._gaps)
        return (
            not any(others)
            and all(is_new for _, is_new in self._touched.values())
            and self._progress.keys() <= self._state.all_progress.keys()
        )

    def commit(self) -> Ticket:
        """Write everything in one step, then take it over into memory; a ticket of 0 when there was nothing to do."""
        if self._touched:
            self._write_leases()
        for topic in self._topics.values():
            self.write.put(META, *topic.entry())
        for name, group_id in self._groups.items():
            self.write.put(META, GROUP + name.encode(), group_id.to_bytes(4, "big"))
        if self._progress:
            entries = []
            for reader, progress in self._progress.items():
                entries.append(progress.entry(reader))
            self.write.put_many(META, entries)
        for place, dead in self._dead.items():
            self.write.put(META, DEAD + QUEUE_PREFIX.pack(*place), dead.encode())
        for place, how in self._registered.items():
            self.write.put(META, Registered.key(*place), how.encode())
        for place, offset in self._kept.items():
            self.write.put(META, KEPT + QUEUE_PREFIX.pack(*place), U64.pack(offset))
        runs: dict[GroupQueue, FifoRun] = {}
        for reader, run in self._fifo.items():
            if run != self._state.fifo.get(reader, {}):
                runs[reader] = run
                if run:
                    self.write.put(LEASES, reader.fifo_key(), encode_fifo(run))
                else:
                    self.write.delete(LEASES, reader.fifo_key())
        if self._next_id != self._state.next_id:
            self.write.put(META, NEXT_ID_KEY, self._next_id.to_bytes(4, "big"))
        if self._pop_floor_ms:
            self.write.put(META, POP_FLOOR_KEY, U64.pack(self._pop_floor_ms))
        if not self.write:
            return Ticket(0)
        if self._only_consumes and self.options.pop_flush is Flush.ASYNC and self._only_leases():
            self.write.if_lost = IfLost.LEASES if self._touched else IfLost.NOTHING
        ticket = self._shared.write(self.write)
        self._state.topics.update(self._topics)
        self._state.groups.update(self._groups)
        self._state.all_progress.update(self._progress)
        self._state.dead.update(self._dead)
        for place, how in self._registered.items():
            self._state.register(*place, how)
        self._state.kept.update(self._kept)
        self._state.gaps.update(self._gaps)
        if runs or self._touched:
            self._take_over_runs(runs)
        self._state.next_id = self._next_id
        self._state.pop_floor_ms = max(self._state.pop_floor_ms, self._pop_floor_ms)
        self._state.turn += 1
        for change in self._afterwards:
            change(self._state)
        return ticket

    def _take_over_runs(self, runs: dict[GroupQueue, FifoRun]) -> None:
        for reader, run in runs.items():
            if run:
                self._state.fifo[reader] = run
            else:
                self._state.fifo.pop(reader, None)
        for key, (lease, _) in self._touched.items():
            at = lease.states.find(LEASED)
            self._state.note_running(key, lease.offsets[at] if at >= 0 else None, waits=lease.is_backing_off)


def origin_topic(group: str, topic: str) -> str:
    """Return the topic that a retry topic of ``group`` belongs to, or ``topic`` itself."""
    return topic.removeprefix(f"{RETRY_PREFIX}{group}+")
