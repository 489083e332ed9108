"""How leases end: acks, changes, releases, expiry (P3–P9).

Every way goes through one check point of the caller's receipt, and through one :class:`Transaction`, so that it is one atomic write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from rmqstore.contract import (
    NO_RETRY,
    ORDERED_QID,
    AckOutcome,
    Change,
    ChangeOutcome,
    ChangeResult,
    Receipt,
    Reject,
    RejectOutcome,
    ReleaseOutcome,
    ReviveReport,
)
from rmqstore.engine.pops.checkpoint import ACKED, LEASED, MOVED, Lease
from rmqstore.engine.pops.popped import PoppedReceipts
from rmqstore.engine.pops.queue_log import DamagedRun
from rmqstore.engine.pops.state import GroupQueue, Unacked, as_delivered
from rmqstore.engine.pops.transaction import Part, Transaction, origin_topic
from rmqstore.engine.schema import LEASE, LEASE_KEY, LEASES, U64
from rmqstore.message import MAX_QUEUES, retry_topic

_REVIVE_BYTES = 8 * 1024 * 1024
_REVIVE_GROUPS = 64
"""Of so many groups and topics one call gives messages back: each has a retry queue, which may have to be made."""
_CHECK_POINT_OF = attrgetter("ck_start_offset", "pop_time_ms", "queue_id", "group", "topic", "retry_flag", "epoch", "broker")
_ACK = {LEASED: AckOutcome.ACKED, ACKED: AckOutcome.ALREADY_ACKED, MOVED: AckOutcome.STALE}


class Leasing(Part):
    """Ends leases."""

    def _check_point(self, transaction: Transaction, receipt: Receipt) -> Lease | AckOutcome:
        """Find the check point of a receipt, or why there is none: it had one once, or none that is known."""
        last_epoch, missing = self._shared.epoch, AckOutcome.STALE if receipt.epoch < self._shared.epoch else AckOutcome.UNKNOWN
        granter = self._options.store_tag
        if receipt.broker != self._options.broker:
            record = next((each for each in self._adopted.values() if each.broker == receipt.broker), None)
            if record is None:
                return AckOutcome.UNKNOWN
            # What another store gave is as old as a receipt of an earlier open.
            last_epoch, granter, missing = record.epoch, record.store_tag, AckOutcome.STALE
        if receipt.epoch > last_epoch:
            return AckOutcome.UNKNOWN
        if min(receipt.queue_id, receipt.ck_start_offset, receipt.pop_time_ms) < 0 or receipt.queue_id >= MAX_QUEUES:
            return AckOutcome.UNKNOWN
        group_id = self._state.groups.get(receipt.group)
        topic = self._state.topics.get(receipt.topic if receipt.retry_flag == NO_RETRY else retry_topic(receipt.group, receipt.topic))
        if group_id is None or topic is None:
            return missing
        key = LEASE_KEY.pack(group_id, topic.id, receipt.queue_id, receipt.ck_start_offset, receipt.pop_time_ms)
        lease = transaction.lease(key)
        # A loaded store may have had the same readers by name, so a lease is known by who gave it as well.
        return missing if lease is None or (lease.epoch, lease.granter) != (receipt.epoch, granter) else lease

    def _find(self, transaction: Transaction, receipt: Receipt) -> tuple[Lease, int] | AckOutcome:
        """Find the running lease of a receipt and its message in that, or why there is none."""
        lease = self._check_point(transaction, receipt)
        if isinstance(lease, AckOutcome):
            return lease
        index = lease.index_of(receipt.queue_offset)
        if index is None:
            return AckOutcome.UNKNOWN
        if lease.states[index] != LEASED:
            return AckOutcome.ALREADY_ACKED if lease.states[index] == ACKED else AckOutcome.STALE
        return lease, index

    def ack(self, transaction: Transaction, receipts: Sequence[Receipt]) -> tuple[AckOutcome, ...]:
        """End leases for good, one outcome a receipt (P4, P5, P8)."""
        if type(receipts) is PoppedReceipts:
            return tuple(
                each for part in receipts.parts if part.proof is not None for each in self._ack_run(transaction, part.proof, part.offsets)
            )
        if len(receipts) == 1:
            return tuple(self._ack_run(transaction, receipts[0], [receipts[0].queue_offset]))
        outcomes: list[AckOutcome] = []
        # Neighbours mostly share their check point.
        for _, sharing in groupby(receipts, _CHECK_POINT_OF):
            run = list(sharing)
            outcomes += self._ack_run(transaction, run[0], [receipt.queue_offset for receipt in run])
        return tuple(outcomes)

    def _ack_run(self, transaction: Transaction, receipt: Receipt, offsets: Sequence[int]) -> list[AckOutcome]:
        """Ack messages of one check point, that of a receipt."""
        lease = self._check_point(transaction, receipt)
        if isinstance(lease, AckOutcome):
            return [lease] * len(offsets)
        if lease.offsets == offsets and lease.states.count(LEASED) == len(offsets):
            transaction.end(lease, range(len(offsets)), ACKED)
            return [AckOutcome.ACKED] * len(offsets)
        outcomes = []
        ending: dict[int, None] = {}
        for index in map(lease.index_of, offsets):
            if index is None:
                outcomes.append(AckOutcome.UNKNOWN)
            elif index in ending:
                outcomes.append(AckOutcome.ALREADY_ACKED)
            else:
                outcomes.append(_ACK[lease.states[index]])
                if lease.states[index] == LEASED:
                    ending[index] = None
        if ending:
            transaction.end(lease, list(ending), ACKED)
        return outcomes

    def change(self, transaction: Transaction, change: Change) -> ChangeResult:
        """Put a new lease in the place of one (P6)."""
        receipt = change.receipt
        found = self._find(transaction, receipt)
        if isinstance(found, AckOutcome):
            return ChangeResult(ChangeOutcome[found.name])
        lease, index = found
        transaction.end(lease, [index], MOVED)
        reader = lease.reader
        new = transaction.grant(reader, [receipt.queue_offset], change.invisible_ms, lease.retry_flag, lease.popped_ms)
        new.is_backing_off, new.reason = change.is_backing_off, change.reason
        in_order = receipt.revive_qid == ORDERED_QID
        return ChangeResult(
            ChangeOutcome.CHANGED, new.receipt(receipt.queue_offset, receipt.topic, receipt.group, self._options.broker, in_order=in_order)
        )

    def release(self, transaction: Transaction, receipt: Receipt) -> ReleaseOutcome:
        """Give a lease back at once, the attempt not counted (P7)."""
        found = self._find(transaction, receipt)
        if isinstance(found, AckOutcome):
            return ReleaseOutcome[found.name]
        self._give_back(transaction, *found, receipt.group, receipt.topic, counted=False)
        return ReleaseOutcome.RELEASED

    def reject(self, transaction: Transaction, reject: Reject) -> RejectOutcome:
        """Make a leased message a dead letter at once (P7)."""
        receipt = reject.receipt
        found = self._find(transaction, receipt)
        if isinstance(found, AckOutcome):
            return RejectOutcome[found.name]
        self._give_back(transaction, *found, receipt.group, receipt.topic, counted=True, rejected=reject.reason or "rejected")
        return RejectOutcome.REJECTED

    def _give_back(
        self,
        transaction: Transaction,
        lease: Lease,
        index: int,
        group: str,
        topic: str,
        *,
        counted: bool,
        may_die: bool = True,
        rejected: str = "",
    ) -> str:
        """End a lease and put the message where it goes next; returns ``retried``, ``dead``, ``parked`` or ``gone``."""
        reader, offset = lease.reader, lease.offsets[index]
        topic_id, queue = reader.topic_id, reader.queue
        found = self._log.record_at(self._state.topic_of(topic_id), queue, offset)
        transaction.end(lease, [index], MOVED)
        run = transaction.fifo(reader) if transaction.is_ordered(reader) else None
        one = Unacked() if run is None else run.pop(offset, Unacked())
        if found is None or isinstance(found, DamagedRun):
            gap = next((each for each in transaction.gaps(topic_id, queue) if each.first <= offset < each.behind), None)
            if gap is not None:
                if gap.is_removal:
                    return "gone"
                # What was here is parked; a damaged run was found before the gap.
                found = None
            reason = f"leased by group {group}: " + ("nothing lies at its offset" if found is None else found.reason)
            transaction.park(b"" if found is None else found.raw, reason, f"{topic}/{queue}/{offset}", topic)
            return "parked"
        record = as_delivered(found[0], one, self._format)
        attempts = self._format.attempt_of(record) + counted
        own = self._state.group_settings.get(group)
        max_retries = self._options.max_retries if own is None or own.max_retries is None else own.max_retries
        if rejected or (counted and may_die and attempts > max_retries):
            transaction.bury(group, topic, record, attempts, rejected or _unacked(attempts, lease.reason))
            return "dead"
        first_pop_ms = self._format.first_pop_of(record)
        first_pop_ms = lease.popped_ms if first_pop_ms < 0 else first_pop_ms
        if run is not None:
            run[offset] = Unacked(one.delivered + counted, first_pop_ms, waits=True)
        else:
            transaction.append_to(retry_topic(group, topic), [self._format.with_delivery(record, attempts, first_pop_ms)])
        return "retried"

    # ------------------------------------------------------------ expiry

    def revive(self, transaction: Transaction, expired: Sequence[bytes], limit: int) -> ReviveReport:
        """Give back leases whose time has ended, in the order of their ends.

        A call is bounded by messages, bytes and :data:`_REVIVE_GROUPS`, since no other call can use the store meanwhile.

        Args:
            expired: the first entries by expiry that are over, one more than ``limit`` when there are.
        """
        groups = self._state.group_names()
        counts: Counter[str] = Counter()
        served: set[tuple[int, int]] = set()
        deleted = {left.topic_id for left in self._state.gone.values()}
        for entry in expired:
            key = entry[1 + U64.size :]
            lease = transaction.lease(key)
            if lease is None or lease.reader.topic_id in deleted:
                transaction.write.delete_many(LEASES, [entry, LEASE + key])
                continue
            reader = lease.reader
            if LEASED in lease.states:
                served.add((reader.group_id, reader.topic_id))
            if len(served) > _REVIVE_GROUPS:
                return _report(counts, more=True)
            group = groups[reader.group_id]
            topic = origin_topic(group, self._state.topic_of(reader.topic_id).name)
            is_ordered = transaction.is_ordered(reader)
            for index in lease.leased:
                if sum(counts.values()) >= limit or transaction.appended_bytes >= _REVIVE_BYTES:
                    return _report(counts, more=True)
                may_die = not is_ordered or self._may_die(transaction, reader, lease, index)
                what = self._give_back(transaction, lease, index, group, topic, counted=True, may_die=may_die)
                counts[what] += 1
                if is_ordered and what == "dead":
                    self._spare_rest(transaction, reader)
        return _report(counts, more=len(expired) > limit)

    def _may_die(self, transaction: Transaction, reader: GroupQueue, lease: Lease, index: int) -> bool:
        """Say whether what ends may be a dead letter under FIFO: only what blocks the others, since the consumer may not have come to them.

        So it is the first of its run, and was not spared; one that a consumer has put off, it had come to.
        """
        run, offset = transaction.fifo(reader), lease.offsets[index]
        return offset == min(run, default=-1) and (lease.is_backing_off or not run[offset].is_spared)

    def _spare_rest(self, transaction: Transaction, reader: GroupQueue) -> None:
        """Have what is leased behind a message that died given once more, whenever its leases end and in whichever call."""
        run = transaction.fifo(reader)
        run.update({offset: one._replace(is_spared=True) for offset, one in run.items() if not one.waits})


def _unacked(attempts: int, reason: str) -> str:
    """Return why a message is dead whose last attempt failed for ``reason``; empty when unknown."""
    return f"delivered {attempts} time{'' if attempts == 1 else 's'} without an ack" + (f": {reason}" if reason else "")


def _report(counts: Counter[str], *, more: bool) -> ReviveReport:
    return ReviveReport(counts["retried"], counts["dead"], counts["parked"], more, counts["gone"])
