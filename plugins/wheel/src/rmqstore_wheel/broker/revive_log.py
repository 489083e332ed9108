"""``ReviveLog``: leases once more as RocketMQ writes them: check points and acks in the topic ``rmq_sys_REVIVE_LOG_<broker>``.

They are for programs that read the log as RocketMQ does (``PopReviveService``); the engine itself never reads them, since the journal
record of the same frame says all of it. What a call did to leases is taken from the keys that it changes, compared with the state before:

- a new lease: check points (tag ``ck``) of up to 32 messages each, the first with ``RMQS_NEXT``, the next offset of the group on the queue;
- messages whose leases end, by whatever call: one ack (``ack``, of several ``bAck``) for each of their check points. A change is a new
  check point and the ack of the old one, as in RocketMQ; a release or a revive is an ack, as the copy in the retry topic is there already;
- a lease of a FIFO pop: nothing. RocketMQ has no check points for these either (their receipts say revive queue 999);
  ``config/consumerOrderInfo.json`` tells of them.

What differs from a broker:

- Which of its queues a check point is in follows from its pop time (``revive_qid_of``), and receipts say it: a broker that is given one
  of ours acks into that queue, and an ack counts only beside its check point.
- It comes here at once, not by way of the wheel, so it has no deliver time: a broker takes the latest one that it reads here for the
  present.
- ``it`` is what makes ``reviveTime`` the end of the lease: less than the invisible time where the pop time runs ahead of the clock.
- Of a lease of more than 32 messages, each check point starts (``so``) with its own first message, as two may not have one key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np

from rmqstore.contract import NO_RETRY, REVIVE_QUEUES, revive_qid_of
from rmqstore.engine.kv.base import DeleteMany, DeleteRange, PutMany
from rmqstore.engine.pops.checkpoint import LEASED, MOVED, Lease
from rmqstore.engine.schema import GONE, GROUP, LEASE, LEASE_KEY, LEASES, META, PROGRESS, REGISTERED, TOPIC, U32, after_prefix
from rmqstore_wheel.formats import check_points as codec, commit_log as log, consume_queue, properties as texts
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint
from rmqstore_wheel.log.call import BrokerRecords
from rmqstore_wheel.log.journal import Change
from rmqstore_wheel.log.ledger import Ledger

NEXT: Final = f"{texts.OWN_PREFIX}NEXT"

_MOST: Final = codec.MAX_MESSAGES
_GROUP_TOPIC: Final = slice(1, 9)
_GROUP_QUEUE: Final = slice(1, 13)
"""Which bytes of the key of a lease name its group and topic, and the queue as well."""

_LEASE_BYTE, _PROGRESS_BYTE, _REGISTERED_BYTE = LEASE[0], PROGRESS[0], REGISTERED[0]
_NAMES: Final = (TOPIC, GROUP, GONE)
_NAME_BYTES: Final = tuple(table[0] for table in _NAMES)
_END_OF_LEASES: Final = after_prefix(LEASE)
_CK, _ACK, _BATCH_ACK = (consume_queue.tags_code(tag) for tag in (codec.CK_TAG, codec.ACK_TAG, codec.BATCH_ACK_TAG))

_Queue = tuple[str, str, int]
"""Topic, group, and the number of a queue."""

_Message = tuple[bytes, str, int, bytes | None]
"""Body and properties of a message, what a consume queue has of its tag, and the key of the lease whose first check point it is."""


class ReviveLog:
    """Makes the messages of a call; the caller serialises all calls."""

    def __init__(self, ledger: Ledger, broker: str) -> None:
        self._ledger = ledger
        self._broker = broker
        self.topic = f"{codec.REVIVE_PREFIX}{broker}"
        self._form = log.Form(self.topic.encode())
        # No id is ever given to another one, unless the call failed that gave it first. So neither names nor ways to pop are forgotten.
        entries = [entry for table in _NAMES for entry in ledger.scan_all(META, table, after_prefix(table))]
        self._names = {U32.unpack_from(value)[0]: key[1:].decode() for key, value in entries}
        self._in_order: set[bytes] = set()
        for key, value in ledger.scan_all(META, REGISTERED, after_prefix(REGISTERED)):
            self._note_registered(key, value)
        # Where their check points are was not kept, only that it is behind the first offset of the queue.
        older = [key for key, value in ledger.scan_all(LEASES, LEASE, _END_OF_LEASES) if is_running(value)]
        self.queues = [
            ReviveQueue(ledger, self.topic, queue, [key for key in older if revive_qid_of(_pop_ms_of(key)) == queue])
            for queue in range(REVIVE_QUEUES)
        ]

    def _note_registered(self, key: bytes, value: bytes) -> None:
        """Note whether a group pops a topic in order, of which the first byte tells."""
        (self._in_order.add if value[0] else self._in_order.discard)(key[_GROUP_TOPIC])

    # ------------------------------------------------------------ a call

    def records(self, changes: Sequence[Change]) -> BrokerRecords | None:
        """Return what a call that makes these changes writes."""
        progress: dict[bytes, bytes] = {}
        leases: dict[bytes, bytes | None] = {}
        for change in changes:
            if isinstance(change, PutMany):
                if change.space == META:
                    for key, value in change.items:
                        if key[0] == _PROGRESS_BYTE:
                            progress[key[1:]] = value
                        elif key[0] in _NAME_BYTES:
                            self._names[U32.unpack_from(value)[0]] = key[1:].decode()
                        elif key[0] == _REGISTERED_BYTE:
                            self._note_registered(key, value)
                elif change.space == LEASES:
                    for key, value in change.items:
                        if key[0] == _LEASE_BYTE:
                            leases[key] = value
            elif isinstance(change, DeleteMany):
                if change.space == LEASES:
                    for key in change.keys:
                        if key[0] == _LEASE_BYTE:
                            leases[key] = None
            elif isinstance(change, DeleteRange) and change.space == LEASES:
                leases |= dict.fromkeys(self._within(change))
        if not leases:
            return None
        written: dict[int, list[_Message]] = {}
        store_ms = self._ledger.store_ms
        for key, new in leases.items():
            store_ms = max(store_ms, self._compare(written, key, new, progress))
        if not written:
            return None
        records = []
        for queue, messages in written.items():
            for offset, (body, text, _, _) in enumerate(messages, self.queues[queue].next):
                records.append(self._form.encode(body, text.encode(), queue, offset, store_ms))
        return BrokerRecords(records, store_ms, partial(self._publish, written, list(map(len, records))))

    def _within(self, change: DeleteRange) -> list[bytes]:
        start, stop = max(change.start, LEASE), min(change.stop, _END_OF_LEASES)
        return [key for key, _ in self._ledger.scan_all(LEASES, start, stop)] if start < stop else []

    def _compare(self, written: dict[int, list[_Message]], key: bytes, value: bytes | None, progress: dict[bytes, bytes]) -> int:
        """Add what became of one lease; returns its pop time when it is a new one, else 0. ``progress`` is where groups stand then."""
        before = self._ledger.logged_lease(key)
        stored = value if before is None else before
        if stored is None:
            return 0
        group_id, topic_id, queue, _, pop_ms = LEASE_KEY.unpack_from(key, 1)
        topic, group = self._names.get(topic_id), self._names.get(group_id)
        lease = Lease.decode(key[1:], stored)
        if topic is None or group is None or LEASED not in lease.states:
            return 0
        if lease.retry_flag == NO_RETRY and key[_GROUP_TOPIC] in self._in_order:
            return 0
        mine = written.get(revive_queue := revive_qid_of(pop_ms), [])
        of = (topic, group, queue)
        if before is None:
            self._add_points(mine, lease, of, pop_ms, progress.get(key[_GROUP_QUEUE]))
        else:
            self._add_acks(mine, lease, of, pop_ms, bytes((MOVED,)) * len(lease.offsets) if value is None else Lease.states_of(value))
        if mine:
            written[revive_queue] = mine
        return pop_ms if before is None else 0

    def _add_points(self, mine: list[_Message], lease: Lease, of: _Queue, pop_ms: int, progress: bytes | None) -> None:
        if progress is None:
            progress = self._ledger.state.get(META, PROGRESS + lease.key[: _GROUP_QUEUE.stop - 1])
        own = "" if progress is None else f"{NEXT}\x01{int.from_bytes(progress[:8])}\x02"
        begun: bytes | None = LEASE + lease.key
        for at in range(0, len(lease.offsets), _MOST):
            offsets, states = lease.offsets[at : at + _MOST], lease.states[at : at + _MOST]
            start, count = offsets[0], len(offsets)
            distances = [*range(count)] if offsets[-1] - start == count - 1 else [offset - start for offset in offsets]
            bits = sum(1 << index for index, state in enumerate(states) if state != LEASED) if any(states) else 0
            point = CheckPoint(*of, start, pop_ms, lease.expiry_ms - pop_ms, count, distances, bits, 0, self._broker)
            text = f"TAGS\x01{codec.CK_TAG}\x02UNIQ_KEY\x01{point.unique_key()}\x02{own}"
            mine.append((codec.encode_check_point(point), text, _CK, begun))
            own, begun = "", None

    def _add_acks(self, mine: list[_Message], lease: Lease, of: _Queue, pop_ms: int, states: bytes) -> None:
        if states == lease.states:
            return
        for at in range(0, len(states), _MOST):
            offsets = lease.offsets[at : at + _MOST]
            start = offsets[0]
            old, new = lease.states[at : at + _MOST], states[at : at + _MOST]
            # Mostly, all of them end together.
            if any(old) or LEASED in new:
                offsets = [offset for offset, was, now in zip(offsets, old, new, strict=True) if was == LEASED != now]
                if not offsets:
                    continue
            # AckMessageProcessor writes the key of a batch ack over by that of an ack of offset -1.
            ack: Ack | BatchAck
            ack = named = Ack(*of, start, pop_ms, offsets[0] if len(offsets) == 1 else -1, self._broker)
            tag, code = codec.ACK_TAG, _ACK
            if len(offsets) > 1:
                ack, tag, code = BatchAck(*of, start, pop_ms, offsets, self._broker), codec.BATCH_ACK_TAG, _BATCH_ACK
            mine.append((codec.encode_ack(ack), f"TAGS\x01{tag}\x02UNIQ_KEY\x01{named.unique_key()}\x02", code, None))

    def _publish(self, written: dict[int, list[_Message]], sizes: list[int], places: Sequence[int]) -> None:
        """Take in what was written, now that it has its places."""
        units = zip(places, sizes, strict=True)
        for number, messages in written.items():
            queue = self.queues[number]
            for at, (_, _, code, begun) in enumerate(messages, queue.next):
                queue.units.append((*next(units), code))
                if begun is not None:
                    queue.points.append((at, begun))
            queue.next += len(messages)

    def settle(self) -> None:
        """Bring the consume queues to what was written, and let each begin where it is needed."""
        for queue in self.queues:
            queue.settle()


def _pop_ms_of(key: bytes) -> int:
    pop_ms: int = LEASE_KEY.unpack(key[1:])[4]
    return pop_ms


_PAGE: Final = 4096


class ReviveQueue:
    """One queue of the revive topic: where its check points are, and from where on it is needed. The caller serialises all calls.

    Nothing reads the queue while the store is open, so its units wait for the engine's check point; an open rebuilds those behind it.

    Args:
        older: the keys of leases whose check points are somewhere in it, from an earlier open.

    Attributes:
        next: offset of the next message.
        units: of the last messages before it, which the consume queue does not have yet: place and size of each, and the code of its tag.
        points: check points of leases that may run: the offset of the first one of each, and the key of the lease.
    """

    def __init__(self, ledger: Ledger, topic: str, number: int, older: Iterable[bytes]) -> None:
        self._ledger = ledger
        self._name = topic, number
        self.next = ledger.queues.of(*self._name).count if self._name in ledger.queues else 0
        if self.next:
            ledger.queues.trim(*self._name, self._first_there())
        self.units: list[tuple[int, int, int]] = []
        self.points: list[tuple[int, bytes]] = []
        self._older = set(older)

    def _first_there(self) -> int:
        """Return the offset of the first unit that leads into the log; those before it were not needed when their files went."""
        queues, begin = self._ledger.queues, self._ledger.log.chain.first
        offset, units = queues.read(*self._name, 0, _PAGE)
        while len(units):
            there = np.flatnonzero(units["log_offset"] >= begin)
            if len(there):
                return offset + int(there[0])
            offset, units = queues.read(*self._name, offset + len(units), _PAGE)
        return self.next

    def settle(self) -> None:
        """Bring the consume queue to what was written, and let it begin at the check point of the oldest lease that runs."""
        if self.units:
            places, sizes, codes = np.array(self.units, np.int64).T
            offsets = np.arange(self.next - len(places), self.next)
            self._ledger.queues.reserve(*self._name, offsets, places, sizes, codes)()
            self.units.clear()
        if self.next:
            self._ledger.queues.trim(*self._name, self.first_needed())

    def first_needed(self) -> int:
        """Return the offset of the oldest check point, as far as it is known, whose lease runs; the end of the queue when none does."""
        self._older = {key for key in self._older if self._is_running(key)}
        self.points = [(at, key) for at, key in self.points if self._is_running(key)]
        if self._older:
            return self._ledger.queues.first(*self._name) if self.next else 0
        return self.points[0][0] if self.points else self.next

    def _is_running(self, key: bytes) -> bool:
        # What the log does not say yet, a crash takes back.
        value = self._ledger.logged_lease(key)
        return value is not None and is_running(value)


def is_running(lease: bytes) -> bool:
    """Say whether some message of a stored lease is leased."""
    return LEASED in Lease.states_of(lease)
