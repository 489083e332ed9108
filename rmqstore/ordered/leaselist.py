"""Listing running leases: who holds which message until when, and how far groups are with one message."""

from __future__ import annotations

from rmqstore.contract import NO_RETRY, ORDERED_QID, GroupProgress, LeaseInfo, MessageState, revive_qid_of
from rmqstore.message import RETRY_PREFIX
from rmqstore.ordered.adopting import Adoptions
from rmqstore.ordered.fifo import as_delivered
from rmqstore.ordered.layout import LEASE, LEASES
from rmqstore.ordered.leases import LEASED, Lease
from rmqstore.ordered.popped import Slice
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queuelog import DamagedRun, QueueLog
from rmqstore.ordered.queues import Topic
from rmqstore.ordered.shared import Shared
from rmqstore.ordered.stage import origin_topic
from rmqstore.ordered.standings import Seat


def list_leases(
    shared: Shared, state: PopState, log: QueueLog, adoptions: Adoptions, topic: str | None, group: str | None
) -> list[LeaseInfo]:
    """Return the running leases of a topic and of a group, of all where None is given, by topic, group, queue and offset."""
    topics, groups = state.names_by_id(), state.group_names()
    found = []
    for seat, keys in state.running.items():
        holder = groups[seat.group_id]
        source = topics[seat.topic_id]
        popped = origin_topic(holder, source)
        if group not in (None, holder) or topic not in (None, popped):
            continue
        for key in keys:
            value = shared.kv.get(LEASES, LEASE + key)
            if value is not None:
                lease = Lease.decode(key, value)
                broker = adoptions.broker_of(lease.granter)
                found += [
                    _lease_info(state, log, lease, holder, popped, index, broker) for index, s in enumerate(lease.states) if s == LEASED
                ]
    return sorted(found, key=lambda info: (info.topic, info.group, info.queue_id, info.queue_offset, info.receipt))


def progress_of(
    shared: Shared, state: PopState, log: QueueLog, adoptions: Adoptions, topic: Topic, queue: int, offset: int
) -> list[GroupProgress]:
    """Return how far each group is with one message; see ``PopStore.progress``."""
    names = state.group_names()
    owner = state.groups.get(topic.name.removeprefix(RETRY_PREFIX).partition("+")[0]) if topic.name.startswith(RETRY_PREFIX) else None
    found = []
    for group_id in [group_id for group_id, _ in state.readers(topic.id)] if owner is None else [owner]:
        seat, group = Seat(group_id, topic.id, queue), names[group_id]
        standing, waiting = state.standings.get(seat), state.fifo.get(seat, {}).get(offset)
        lease = _lease_on(shared, state, seat, offset)
        if lease is not None:
            broker = adoptions.broker_of(lease.granter)
            info = _lease_info(state, log, lease, group, origin_topic(group, topic.name), lease.offsets.index(offset), broker)
            progress = GroupProgress(group, MessageState.BACKING_OFF if info.is_backing_off else MessageState.LEASED, info)
        elif standing is None or offset >= standing.next_offset:
            progress = GroupProgress(group, MessageState.READY if owner is None else MessageState.RETRY)
        elif waiting is not None:
            progress = GroupProgress(group, MessageState.RETRY, delivered=waiting.delivered)
        else:
            progress = GroupProgress(group, MessageState.DONE)
        found.append(progress)
    return sorted(found, key=lambda each: each.group)


def _lease_on(shared: Shared, state: PopState, seat: Seat, offset: int) -> Lease | None:
    """Return the check point with the running lease of a seat on one message."""
    for key, start in state.running.get(seat, {}).items():
        value = shared.kv.get(LEASES, LEASE + key) if start <= offset else None
        if value is not None:
            lease = Lease.decode(key, value)
            if (offset, LEASED) in zip(lease.offsets, lease.states, strict=True):
                return lease
    return None


def _lease_info(state: PopState, log: QueueLog, lease: Lease, group: str, topic: str, index: int, broker: str) -> LeaseInfo:
    seat_group, topic_id, queue, ck_start, pop_ms = lease.place
    offset = lease.offsets[index]
    found = log.record_at(state.topic_of(topic_id), queue, offset)
    record_format = log.format
    record = None
    if found is not None and not isinstance(found, DamagedRun):
        run = state.fifo.get(Seat(seat_group, topic_id, queue), {})
        record = as_delivered(found[0], run.get(offset), record_format)
    is_ordered = state.is_ordered(seat_group, topic_id) and lease.retry_flag == NO_RETRY
    revive_qid = ORDERED_QID if is_ordered else revive_qid_of(pop_ms)
    part = Slice(
        topic,
        queue,
        [offset],
        [],
        [],
        group,
        pop_ms,
        lease.invisible_ms,
        lease.retry_flag,
        broker,
        lease.epoch,
        ck_start,
        lease.first_pop_ms,
        revive_qid,
    )
    firsts = [at for at in (-1 if record is None else record_format.first_pop_of(record), lease.first_pop_ms, pop_ms) if at >= 0]
    return LeaseInfo(
        topic=topic,
        group=group,
        queue_id=queue,
        queue_offset=offset,
        message_id="" if record is None else record_format.message_id_of(record).decode(),
        attempt=1 if record is None else record_format.attempt_of(record) + 1,
        pop_time_ms=pop_ms,
        first_pop_ms=firsts[0],
        expiry_ms=lease.expiry_ms,
        receipt=part.receipt(offset).text(),
        is_backing_off=lease.is_backing_off,
        reason=lease.reason,
    )
