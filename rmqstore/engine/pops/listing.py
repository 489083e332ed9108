"""Looking over a pop store: running leases (who holds which message until when), how far groups are with a message, and the recount.

The recount is the one behind ``PopStore.verify``: progress against leases, offsets against runs, indexes against what they index.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from rmqstore.contract import NO_RETRY, ORDERED_QID, GroupProgress, LeaseInfo, MessageState, revive_qid_of
from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.pops.checkpoint import LEASED, Lease
from rmqstore.engine.pops.fifo import as_delivered
from rmqstore.engine.pops.offsets import GroupQueue, Topic
from rmqstore.engine.pops.popped import QueueRecords
from rmqstore.engine.pops.queue_log import DamagedRun, QueueLog
from rmqstore.engine.pops.state import PopState
from rmqstore.engine.pops.transaction import origin_topic
from rmqstore.engine.schema import EXPIRY, LEASE, LEASES, U64, after_prefix
from rmqstore.engine.shared import Shared
from rmqstore.engine.state.adopted import Adoptions
from rmqstore.message import RETRY_PREFIX


def list_leases(
    shared: Shared, state: PopState, log: QueueLog, adoptions: Adoptions, topic: str | None, group: str | None
) -> list[LeaseInfo]:
    """Return the running leases of a topic and of a group, of all where None is given, by topic, group, queue and offset."""
    topics, groups = state.names_by_id(), state.group_names()
    found = []
    for reader, keys in state.running.items():
        holder = groups[reader.group_id]
        source = topics[reader.topic_id]
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
    for group_id in state.groups_of.get(topic.id, ()) if owner is None else (owner,):
        reader, group = GroupQueue(group_id, topic.id, queue), names[group_id]
        progress, waiting = state.all_progress.get(reader), state.fifo.get(reader, {}).get(offset)
        lease = _lease_on(shared, state, reader, offset)
        if lease is not None:
            broker = adoptions.broker_of(lease.granter)
            info = _lease_info(state, log, lease, group, origin_topic(group, topic.name), lease.offsets.index(offset), broker)
            answer = GroupProgress(group, MessageState.BACKING_OFF if info.is_backing_off else MessageState.LEASED, info)
        elif progress is None or offset >= progress.next_offset:
            answer = GroupProgress(group, MessageState.READY if owner is None else MessageState.RETRY)
        elif waiting is not None:
            answer = GroupProgress(group, MessageState.RETRY, delivered=waiting.delivered)
        else:
            answer = GroupProgress(group, MessageState.DONE)
        found.append(answer)
    return sorted(found, key=lambda each: each.group)


def _lease_on(shared: Shared, state: PopState, reader: GroupQueue, offset: int) -> Lease | None:
    """Return the check point with the running lease of a reader on one message."""
    for key, start in state.running.get(reader, {}).items():
        value = shared.kv.get(LEASES, LEASE + key) if start <= offset else None
        if value is not None:
            lease = Lease.decode(key, value)
            if (offset, LEASED) in zip(lease.offsets, lease.states, strict=True):
                return lease
    return None


def _lease_info(state: PopState, log: QueueLog, lease: Lease, group: str, topic: str, index: int, broker: str) -> LeaseInfo:
    group_id, topic_id, queue, ck_start, pop_ms = lease.place
    offset = lease.offsets[index]
    found = log.record_at(state.topic_of(topic_id), queue, offset)
    record_format = log.format
    record = None
    if found is not None and not isinstance(found, DamagedRun):
        run = state.fifo.get(GroupQueue(group_id, topic_id, queue), {})
        record = as_delivered(found[0], run.get(offset), record_format)
    is_ordered = state.is_ordered(group_id, topic_id) and lease.retry_flag == NO_RETRY
    revive_qid = ORDERED_QID if is_ordered else revive_qid_of(pop_ms)
    part = QueueRecords(
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


def verify_pops(kv: OrderedKV, state: PopState, log: QueueLog) -> list[str]:
    """Read everything; return one sentence a difference."""
    differences: list[str] = []
    held: Counter[GroupQueue] = Counter()
    running = set()
    for key, value in kv.scan_all(LEASES, LEASE, after_prefix(LEASE)):
        lease = Lease.decode(key[1:], value)
        held[GroupQueue(*lease.place[:3])] += lease.live
        if lease.live:
            running.add((EXPIRY + U64.pack(lease.expiry_ms) + lease.key, lease.is_backing_off))
    for reader, progress in state.all_progress.items():
        if held[reader] != progress.in_flight:
            differences.append(f"{held[reader]} messages are leased on {reader}, the counter says {progress.in_flight}")
    indexed = {(key, bool(wait)) for key, wait in kv.scan_all(LEASES, EXPIRY, after_prefix(EXPIRY))}
    if running != indexed:
        differences.append(
            f"{len(running - indexed)} running leases are missing from the expiry index, {len(indexed - running)} of its entries are void"
        )
    differences += _verify_fifo(state)
    for topic in state.topics.values():
        for queue in range(topic.queues):
            differences += _verify_gaps(state, topic, queue)
            behind = 0
            for run in log.runs_from(topic, queue, 0):
                first = run.first
                if isinstance(run, DamagedRun):
                    differences.append(f"topic {topic.name}, queue {queue}, offset {first}: {run.reason}")
                    continue
                if first < behind:
                    differences.append(f"topic {topic.name}, queue {queue}: the run at offset {first} overlaps the one before it")
                if behind < first and state.between(topic.id, queue, max(behind, state.first_kept(topic.id, queue)), first) > 0:
                    differences.append(
                        f"topic {topic.name}, queue {queue}: nothing lies at offsets {behind} to {first - 1}, and no gap says so"
                    )
                behind = first + len(run.records)
            if behind < topic.next_offsets[queue] and state.between(
                topic.id, queue, max(behind, state.first_kept(topic.id, queue)), topic.next_offsets[queue]
            ):
                differences.append(
                    f"topic {topic.name}, queue {queue}: ends at offset {behind}, next offset says {topic.next_offsets[queue]}"
                )
            if behind > topic.next_offsets[queue]:
                differences.append(
                    f"topic {topic.name}, queue {queue}: holds offset {behind - 1}, next offset says {topic.next_offsets[queue]}"
                )
    return differences


def _verify_fifo(state: PopState) -> list[str]:
    """Compare FIFO runs with the counts of leases, which were compared with the leases themselves."""
    differences = []
    for reader, run in state.fifo.items():
        progress = state.progress(reader.group_id, reader.topic_id, reader.queue)
        leased = sum(not one.waits for one in run.values())
        if leased != progress.in_flight:
            differences.append(f"{leased} messages of the FIFO run of {reader} are leased, the counter says {progress.in_flight}")
        if max(run) >= progress.next_offset:
            differences.append(f"the FIFO run of {reader} holds offset {max(run)}, the group stands at {progress.next_offset}")
        if not state.is_ordered(reader.group_id, reader.topic_id):
            differences.append(f"{reader} has a FIFO run, but its group does not pop in order")
    return differences


def _verify_gaps(state: PopState, topic: Topic, queue: int) -> list[str]:
    gaps = state.gaps.get((topic.id, queue), [])
    kept, end = state.first_kept(topic.id, queue), topic.next_offsets[queue]
    where = f"topic {topic.name}, queue {queue}"
    differences = [
        f"{where}: the gap {gap.first}-{gap.behind} lies outside of {kept}-{end}" for gap in gaps if not kept < gap.behind <= end
    ]
    differences += [f"{where}: the gaps at {low.first} and {high.first} overlap" for low, high in pairwise(gaps) if low.behind > high.first]
    return differences
