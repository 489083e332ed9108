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

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from rmqstore.contract import NO_RETRY, REVIVE_QUEUES, revive_qid_of
from rmqstore.engine.kv.base import DeleteMany, DeleteRange, PutMany
from rmqstore.engine.pops.checkpoint import LEASED, MOVED, Lease
from rmqstore.engine.pops.state import Registered
from rmqstore.engine.schema import GONE, GROUP, LEASE, LEASE_KEY, LEASES, META, PROGRESS, REGISTERED, TOPIC, U32, after_prefix
from rmqstore_wheel.formats import check_points as codec, commit_log as log, consume_queue, properties as texts
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint
from rmqstore_wheel.log.call import BrokerRecords
from rmqstore_wheel.log.journal import Change
from rmqstore_wheel.log.ledger import Ledger

TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
GROUP_NAME: Final = "CID_RMQ_SYS_REVIVE_GROUP"
NEXT: Final = f"{texts.OWN_PREFIX}NEXT"

_MOST: Final = codec.MAX_MESSAGES
_GROUP_QUEUE_BYTES: Final = 12
_LEASE_BYTE, _PROGRESS_BYTE, _REGISTERED_BYTE = LEASE[0], PROGRESS[0], REGISTERED[0]
_NAMES: Final = (TOPIC, GROUP, GONE)
_NAME_BYTES: Final = tuple(table[0] for table in _NAMES)
_END_OF_LEASES: Final = after_prefix(LEASE)
_CK, _ACK, _BATCH_ACK = (consume_queue.tags_code(tag) for tag in (codec.CK_TAG, codec.ACK_TAG, codec.BATCH_ACK_TAG))


_Queue = tuple[str, str, int]
"""Topic, group, and the number of a queue."""


class _Written(msgspec.Struct):
    """What one call writes into one queue: body and properties of each message, and what a consume queue has of its tag.

    ``begun`` has a lease's key by the row of its first check point.
    """

    messages: list[tuple[bytes, str, int]] = []
    begun: list[tuple[int, bytes]] = []
    latest_pop_ms: int = 0


class ReviveLog:
    """Makes the messages of a call; the caller serialises all calls."""

    def __init__(self, ledger: Ledger, broker: str) -> None:
        self._ledger = ledger
        self._broker = broker
        self.topic = f"{TOPIC_PREFIX}{broker}"
        self._form = log.Form(self.topic.encode())
        # No id is ever given to another one, unless the call failed that gave it first.
        entries = [entry for table in _NAMES for entry in ledger.scan_all(META, table, after_prefix(table))]
        self._names = {U32.unpack_from(value)[0]: key[1:].decode() for key, value in entries}
        # Where their check points are was not kept, only that it is behind the first offset of the queue.
        older = [key for key, value in ledger.scan_all(LEASES, LEASE, _END_OF_LEASES) if is_running(value)]
        self.queues = [
            ReviveQueue(ledger, self.topic, queue, [key for key in older if revive_qid_of(_pop_ms_of(key)) == queue])
            for queue in range(REVIVE_QUEUES)
        ]

    # ------------------------------------------------------------ a call

    def records(self, changes: Sequence[Change]) -> BrokerRecords | None:
        """Return what a call that makes these changes writes."""
        meta: dict[bytes, bytes] = {}
        leases: dict[bytes, bytes | None] = {}
        for change in changes:
            if isinstance(change, PutMany):
                if change.space == META:
                    for key, value in change.items:
                        if key[0] in _NAME_BYTES:
                            self._names[U32.unpack_from(value)[0]] = key[1:].decode()
                        elif key[0] == _PROGRESS_BYTE or key[0] == _REGISTERED_BYTE:
                            meta[key] = value
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
        written: dict[int, _Written] = defaultdict(_Written)
        for key, new in leases.items():
            self._compare(written, key, new, meta)
        return self._as_records(written) if written else None

    def _within(self, change: DeleteRange) -> list[bytes]:
        start, stop = max(change.start, LEASE), min(change.stop, _END_OF_LEASES)
        return [key for key, _ in self._ledger.scan_all(LEASES, start, stop)] if start < stop else []

    def _compare(self, written: dict[int, _Written], key: bytes, value: bytes | None, meta: dict[bytes, bytes]) -> None:
        """Add what became of one lease; ``meta`` are keys that change with it."""
        before = self._ledger.logged(LEASES, key)
        stored = value if before is None else before
        if stored is None:
            return
        lease = Lease.decode(key[1:], stored)
        group_id, topic_id, queue, _, pop_ms = lease.place
        topic, group = self._names.get(topic_id), self._names.get(group_id)
        if LEASED not in lease.states or topic is None or group is None:
            return
        if lease.retry_flag == NO_RETRY:
            registered = Registered.key(group_id, topic_id)
            how = self._ledger.state.get(META, registered) or meta.get(registered)
            if how is not None and how[0]:
                # It is one of a FIFO pop.
                return
        if before is None:
            self._add_points(written, lease, (topic, group, queue), pop_ms, meta)
            return
        states = bytes((MOVED,)) * len(lease.offsets) if value is None else Lease.states_of(value)
        if states != lease.states:
            self._add_acks(written, lease, (topic, group, queue), pop_ms, states)

    def _add_points(self, written: dict[int, _Written], lease: Lease, of: _Queue, pop_ms: int, meta: dict[bytes, bytes]) -> None:
        progress_key = PROGRESS + lease.key[:_GROUP_QUEUE_BYTES]
        progress = meta.get(progress_key) or self._ledger.state.get(META, progress_key)
        own = "" if progress is None else f"{NEXT}\x01{int.from_bytes(progress[:8])}\x02"
        mine = written[revive_qid_of(pop_ms)]
        mine.begun.append((len(mine.messages), LEASE + lease.key))
        mine.latest_pop_ms = max(mine.latest_pop_ms, pop_ms)
        for at in range(0, len(lease.offsets), _MOST):
            offsets, states = lease.offsets[at : at + _MOST], lease.states[at : at + _MOST]
            start, count = offsets[0], len(offsets)
            distances = [*range(count)] if offsets[-1] - start == count - 1 else [offset - start for offset in offsets]
            bits = sum(1 << index for index, state in enumerate(states) if state != LEASED) if any(states) else 0
            point = CheckPoint(*of, start, pop_ms, lease.expiry_ms - pop_ms, count, distances, bits, 0, self._broker)
            mine.messages.append((codec.encode_check_point(point), f"TAGS\x01ck\x02UNIQ_KEY\x01{point.unique_key()}\x02{own}", _CK))
            own = ""

    def _add_acks(self, written: dict[int, _Written], lease: Lease, of: _Queue, pop_ms: int, states: bytes) -> None:
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
            ack = Ack(*of, start, pop_ms, offsets[0] if len(offsets) == 1 else -1, self._broker)
            if len(offsets) == 1:
                body, tag, code = codec.encode_ack(ack), codec.ACK_TAG, _ACK
            else:
                body = codec.encode_batch_ack(BatchAck(*of, start, pop_ms, offsets, self._broker))
                tag, code = codec.BATCH_ACK_TAG, _BATCH_ACK
            written[revive_qid_of(pop_ms)].messages.append((body, f"TAGS\x01{tag}\x02UNIQ_KEY\x01{ack.unique_key()}\x02", code))

    def _as_records(self, written: dict[int, _Written]) -> BrokerRecords:
        store_ms = self._ledger.store_ms
        for mine in written.values():
            store_ms = max(store_ms, mine.latest_pop_ms)
        records = []
        for queue, mine in written.items():
            for offset, (body, text, _) in enumerate(mine.messages, self.queues[queue].next):
                records.append(self._form.encode(body, text.encode(), queue, offset, store_ms))
        return BrokerRecords(records, store_ms, partial(self._publish, written, list(map(len, records))))

    def _publish(self, written: dict[int, _Written], sizes: list[int], places: Sequence[int]) -> None:
        """Take in what was written, now that it has its places."""
        units = zip(places, sizes, strict=True)
        for queue, mine in written.items():
            self.queues[queue].take(units, mine.messages, mine.begun)

    def settle(self) -> None:
        """Bring the consume queues to what was written, and let each begin where it is needed."""
        for queue in self.queues:
            queue.settle()


def _pop_ms_of(key: bytes) -> int:
    """Return the pop time of the lease at a key of the state."""
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
    """

    def __init__(self, ledger: Ledger, topic: str, number: int, older: Iterable[bytes]) -> None:
        self._ledger = ledger
        self._name = topic, number
        self.next = ledger.queues.of(*self._name).count if self._name in ledger.queues else 0
        if self.next:
            ledger.queues.trim(*self._name, self._first_there())
        self._units: list[tuple[int, int, int]] = []
        self._points: list[tuple[int, bytes]] = []
        self._older = set(older)

    def _first_there(self) -> int:
        """Return the offset of the first unit that leads into the log; those before it were not needed when their files went."""
        queues, begin = self._ledger.queues, self._ledger.log.chain.first
        offset = queues.first(*self._name)
        while len(units := queues.read(*self._name, offset, _PAGE)):
            there = np.flatnonzero(units["log_offset"] >= begin)
            if len(there):
                return offset + int(there[0])
            offset += len(units)
        return self.next

    def take(
        self, places: Iterator[tuple[int, int]], messages: Sequence[tuple[bytes, str, int]], begun: Iterable[tuple[int, bytes]]
    ) -> None:
        """Take in what was written, at the next ``places``; ``begun`` has keys of leases by the row of their first check point."""
        for row, key in begun:
            self._points.append((self.next + row, key))
        for _, _, code in messages:
            self._units.append((*next(places), code))
        self.next += len(messages)

    def settle(self) -> None:
        """Bring the consume queue to what was written, and let it begin at the check point of the oldest lease that runs."""
        if self._units:
            places, sizes, codes = np.array(self._units, np.int64).T
            offsets = np.arange(self.next - len(places), self.next)
            self._ledger.queues.reserve(*self._name, offsets, places, sizes, codes)()
            self._units.clear()
        if self.next:
            self._ledger.queues.trim(*self._name, self.first_needed())

    def first_needed(self) -> int:
        """Return the offset of the oldest check point, as far as it is known, whose lease runs; the end of the queue when none does."""
        self._older = {key for key in self._older if self._is_running(key)}
        self._points = [(at, key) for at, key in self._points if self._is_running(key)]
        if self._older:
            return self._ledger.queues.first(*self._name) if self.next else 0
        return self._points[0][0] if self._points else self.next

    def _is_running(self, key: bytes) -> bool:
        # What the log does not say yet, a crash takes back.
        value = self._ledger.logged(LEASES, key)
        return value is not None and is_running(value)


def is_running(lease: bytes) -> bool:
    """Say whether some message of a stored lease is leased."""
    return LEASED in Lease.states_of(lease)
