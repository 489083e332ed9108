"""One mutating call of the pop store in the making: everything it reads and changes, until it is written in one atomic step.

Nothing of the store's memory changes before :meth:`Stage.commit`, which runs after the write; so a call that fails changes nothing (F3).
"""

from __future__ import annotations

from collections.abc import Sequence

from rmqstore.contract import EngineOptions, Ticket
from rmqstore.message import (
    PARKED_TOPIC,
    PROPERTY_DLQ_REASON,
    PROPERTY_ORIGIN_ID,
    PROPERTY_ORIGIN_TOPIC,
    RESERVED_PREFIXES,
    RETRY_PREFIX,
    Message,
    dlq_topic,
)
from rmqstore.ordered.kv import WriteBatch
from rmqstore.ordered.layout import (
    DEAD,
    EXPIRY,
    GAP,
    GROUP,
    LEASE,
    LEASE_KEY,
    LEASES,
    META,
    NEXT_ID_KEY,
    PURGE,
    QUEUE,
    QUEUE_PREFIX,
    QUEUES,
    REGISTERED,
    U64,
)
from rmqstore.ordered.leases import LEASED, Lease
from rmqstore.ordered.parked import parked_record
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queues import DamagedRun, Topic
from rmqstore.ordered.records import decode_message, encode_message, route_of
from rmqstore.ordered.runs import encode_run, run_lengths
from rmqstore.ordered.shared import Shared
from rmqstore.ordered.standings import Seat, Standing

_SYSTEM = tuple(prefix.encode() for prefix in RESERVED_PREFIXES)


class Stage:
    """Reads through to :class:`PopState`, keeps changes to itself."""

    def __init__(self, shared: Shared, state: PopState, now_ms: int) -> None:
        self._shared = shared
        self._state = state
        self.options: EngineOptions = shared.options
        self.now_ms = now_ms
        self.write = WriteBatch()
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, int] = {}
        self._standings: dict[Seat, Standing] = {}
        self._dead: dict[tuple[int, int], int] = {}
        self._registered: set[tuple[int, int]] = set()
        self._gaps: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self._leases: dict[bytes, Lease | None] = {}
        self._touched: dict[bytes, tuple[Lease, int, bool]] = {}
        self._next_id = state.next_id
        self.appended_bytes = 0

    # ------------------------------------------------------------ topics and groups

    def topic(self, name: str) -> Topic | None:
        """Return a topic as this call sees it."""
        return self._topics.get(name) or self._state.topics.get(name)

    def topic_with(self, name: str, queues: int) -> Topic:
        """Return a topic with at least ``queues`` queues, made or widened as needed."""
        topic = self.topic(name)
        if topic is None:
            topic = Topic(self._new_id(), name, (0,) * max(queues, 1))
            self._topics[name] = topic
        elif topic.queues < queues:
            self._topics[name] = topic = topic.widened(queues)
        return topic

    def group_id(self, name: str) -> int:
        """Return the id of a group, made as needed."""
        known = self._groups.get(name) or self._state.groups.get(name)
        if known is None:
            known = self._groups[name] = self._new_id()
        return known

    def is_registered(self, group_id: int, topic_id: int) -> bool:
        """Say whether the group has popped the topic before."""
        return (group_id, topic_id) in self._state.registered

    def register(self, group_id: int, topic_id: int) -> None:
        """Note that the group has popped the topic."""
        self._registered.add((group_id, topic_id))
        self.write.put(META, REGISTERED + QUEUE_PREFIX.pack(group_id, topic_id), b"")

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def standing(self, seat: Seat) -> Standing | None:
        """Return where a group stands; None when it has not popped the queue."""
        return self._standings.get(seat) or self._state.standings.get(seat)

    def set_standing(self, seat: Seat, standing: Standing) -> None:
        """Change where a group stands."""
        self._standings[seat] = standing

    # ------------------------------------------------------------ appends

    def append(self, records: Sequence[bytes]) -> None:
        """Append records to the topics and queues that they name, in order; a record without a queue goes where the topic's turn is."""
        routes: dict[tuple[bytes, int], list[bytes]] = {}
        for record in records:
            routes.setdefault(route_of(record), []).append(record)
        for (name, queue), group in routes.items():
            topic = self.topic_with(name.decode(), max(queue + 1, 1 if name.startswith(_SYSTEM) else self.options.default_queues))
            if queue >= 0:
                self.append_to(topic.name, queue, group)
                continue
            for turn in range(topic.queues):
                self.append_to(topic.name, (self._state.turn + turn) % topic.queues, group[turn :: topic.queues])

    def append_to(self, name: str, queue: int, records: Sequence[bytes]) -> None:
        """Append records to one queue, in order, as runs."""
        if not records:
            return
        topic = self.topic_with(name, queue + 1)
        offset = topic.next_offsets[queue]
        entries = []
        for start, stop in run_lengths([len(record) for record in records]):
            key = QUEUE.pack(topic.id, queue, offset + start)
            entries.append((key, encode_run(self._shared.epoch, self.now_ms, records[start:stop])))
        self.write.put_many(QUEUES, entries)
        self.appended_bytes += sum(len(value) for _, value in entries)
        self._topics[name] = topic.moved(queue, offset + len(records))

    def park(self, raw: bytes, reason: str, origin: str, origin_topic: str) -> None:
        """Append what cannot be read to the topic of parked entries (T12)."""
        self.append_to(PARKED_TOPIC, 0, [parked_record(raw, reason, origin, origin_topic)])

    def park_run(self, damaged: DamagedRun, topic: str) -> None:
        """Move a damaged run of a queue to the parked entries; its offsets become a gap."""
        topic_id, queue, first = QUEUE.unpack(damaged.key)
        self.park(damaged.raw, damaged.reason, f"{topic}/{queue}/{first}", topic)
        self.write.delete(QUEUES, damaged.key)
        later = self._shared.kv.scan(QUEUES, damaged.key + b"\x00", QUEUE.pack(topic_id, queue, 2**64 - 1), 1)
        behind = QUEUE.unpack(later[0][0])[2] if later else self.topic_with(topic, 1).next_offsets[queue]
        self.write.put(META, GAP + damaged.key, U64.pack(behind))
        self._gaps.append(((topic_id, queue), (first, behind)))

    def bury(self, group: str, topic: str, record: bytes, reason: str) -> None:
        """Append a message to the group's dead letter queue, with where it came from and why (P7)."""
        message = decode_message(record)
        properties = dict(message.properties)
        properties[PROPERTY_DLQ_REASON] = reason
        properties[PROPERTY_ORIGIN_TOPIC] = topic
        properties[PROPERTY_ORIGIN_ID] = message.message_id or ""
        dead = Message(
            dlq_topic(group),
            message.body,
            message.tag,
            message.keys,
            {name: value for name, value in properties.items() if value},
            message.message_group,
            message.deliver_at_ms,
            message.message_id,
            message.born_ms,
            0,
        )
        self.append_to(dead.topic, 0, [encode_message(dead)])
        place = (self.group_id(group), self.topic_with(topic, 1).id)
        self._dead[place] = self._dead.get(place, self._state.dead.get(place, 0)) + 1

    # ------------------------------------------------------------ leases

    def lease(self, key: bytes) -> Lease | None:
        """Return a lease as this call sees it."""
        if key not in self._leases:
            value = self._shared.kv.get(LEASES, LEASE + key)
            self._leases[key] = None if value is None else Lease.decode(key, value)
        return self._leases[key]

    def grant(self, seat: Seat, offsets: list[int], invisible_ms: int, retry_flag: int, first_pop_ms: int = -1) -> Lease:
        """Lease messages of one queue; the pop time strictly rises per seat, so no other lease has this key (P2)."""
        standing = self.standing(seat) or Standing(0)
        pop_ms = max(self.now_ms, standing.last_pop_ms + 1)
        key = LEASE_KEY.pack(*seat, offsets[0], pop_ms)
        lease = Lease(key, self.now_ms + invisible_ms, invisible_ms, self._shared.epoch, retry_flag, offsets, first_pop_ms=first_pop_ms)
        self._leases[key] = lease
        self._touched[key] = (lease, 0, True)
        self.set_standing(seat, Standing(standing.next_offset, pop_ms, standing.in_flight + len(offsets)))
        return lease

    def end(self, lease: Lease, index: int, state: int) -> None:
        """End the lease of one message."""
        self.end_many(lease, (index,), state)

    def end_many(self, lease: Lease, indexes: Sequence[int], state: int) -> None:
        """End the leases of several messages of one check point."""
        if lease.key not in self._touched:
            self._touched[lease.key] = (lease, lease.live, False)
        for index in indexes:
            lease.states[index] = state
        seat = Seat(*lease.place[:3])
        standing = self.standing(seat) or Standing(0)
        self.set_standing(seat, Standing(standing.next_offset, standing.last_pop_ms, standing.in_flight - len(indexes)))

    def _write_leases(self) -> None:
        puts: list[tuple[bytes, bytes]] = []
        deletes = []
        for key, (lease, live_before, is_new) in self._touched.items():
            puts.append((LEASE + key, lease.encode()))
            live = LEASED in lease.states
            expiry = EXPIRY + U64.pack(lease.expiry_ms) + key
            if live and is_new:
                puts.append((expiry, b""))
            elif not live and (live_before or is_new):
                if not is_new:
                    deletes.append(expiry)
                keep_until = max(lease.expiry_ms, self.now_ms) + self.options.outcome_memory_ms
                puts.append((PURGE + U64.pack(keep_until) + LEASE + key, b""))
        puts.sort()
        self.write.put_many(LEASES, puts)
        self.write.delete_many(LEASES, deletes)

    # ------------------------------------------------------------ the end

    def granted(self) -> list[bytes]:
        """Return the keys of the leases that this call gave."""
        return [key for key, (_, _, is_new) in self._touched.items() if is_new]

    def commit(self) -> Ticket:
        """Write everything in one step, then take it over into memory; a ticket of 0 when there was nothing to do."""
        self._write_leases()
        for topic in self._topics.values():
            self.write.put(META, *topic.entry())
        for name, group_id in self._groups.items():
            self.write.put(META, GROUP + name.encode(), group_id.to_bytes(4, "big"))
        self.write.put_many(META, [(seat.key(), standing.encode()) for seat, standing in self._standings.items()])
        for place, count in self._dead.items():
            self.write.put(META, DEAD + QUEUE_PREFIX.pack(*place), count.to_bytes(8, "big"))
        if self._next_id != self._state.next_id:
            self.write.put(META, NEXT_ID_KEY, self._next_id.to_bytes(4, "big"))
        if not self.write:
            return Ticket(0)
        ticket = self._shared.write(self.write)
        self._state.topics.update(self._topics)
        self._state.groups.update(self._groups)
        self._state.standings.update(self._standings)
        self._state.dead.update(self._dead)
        self._state.registered |= self._registered
        for place, gap in self._gaps:
            self._state.gaps.setdefault(place, []).append(gap)
        self._state.next_id = self._next_id
        self._state.turn += 1
        return ticket


def origin_topic(group: str, topic: str) -> str:
    """Return the topic that a retry topic of ``group`` belongs to, or ``topic`` itself."""
    return topic.removeprefix(f"{RETRY_PREFIX}{group}+")
