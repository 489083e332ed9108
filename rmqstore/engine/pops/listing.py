"""Looking over a pop store: running leases (who holds which message until when), how far groups are with a message, and the recount.

The recount is the one behind ``PopStore.verify``: progress against leases, offsets against runs, indexes against what they index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from rmqstore.contract import GroupProgress, LeaseInfo, MessageState
from rmqstore.engine.pops.checkpoint import LEASED, Lease
from rmqstore.engine.pops.queue_log import DamagedRun
from rmqstore.engine.pops.state import GroupQueue, PopState, Topic
from rmqstore.engine.pops.transaction import Part, origin_topic
from rmqstore.engine.schema import EXPIRY, LEASE, LEASES, U64, after_prefix
from rmqstore.message import RETRY_PREFIX


class Listing(Part):
    """Looks over the leases and the queues."""

    def leases(self, topic: str | None, group: str | None) -> list[LeaseInfo]:
        """Return the running leases of a topic and of a group, of all where None is given, by topic, group, queue and offset."""
        topics, groups = self._state.names_by_id(), self._state.group_names()
        found = []
        for reader, keys in self._state.running.items():
            holder = groups[reader.group_id]
            popped = origin_topic(holder, topics[reader.topic_id])
            if group not in (None, holder) or topic not in (None, popped):
                continue
            for lease in filter(None, map(self._lease, keys)):
                found += [self._info(lease, holder, popped, index) for index in lease.leased]
        return sorted(found, key=lambda info: (info.topic, info.group, info.queue_id, info.queue_offset, info.receipt))

    def progress(self, topic: Topic, queue: int, offset: int) -> list[GroupProgress]:
        """Return how far each group is with one message; see ``PopStore.progress``."""
        state, names = self._state, self._state.group_names()
        owner = state.groups.get(topic.name.removeprefix(RETRY_PREFIX).partition("+")[0]) if topic.name.startswith(RETRY_PREFIX) else None
        found = []
        for group_id in state.groups_of.get(topic.id, ()) if owner is None else (owner,):
            reader, group = GroupQueue(group_id, topic.id, queue), names[group_id]
            progress, waiting = state.all_progress.get(reader), state.fifo.get(reader, {}).get(offset)
            lease = self._lease_on(reader, offset)
            if lease is not None:
                info = self._info(lease, group, origin_topic(group, topic.name), lease.offsets.index(offset))
                answer = GroupProgress(group, MessageState.BACKING_OFF if info.is_backing_off else MessageState.LEASED, info)
            elif progress is None or offset >= progress.next_offset:
                answer = GroupProgress(group, MessageState.READY if owner is None else MessageState.RETRY)
            elif waiting is not None:
                answer = GroupProgress(group, MessageState.RETRY, delivered=waiting.delivered)
            else:
                answer = GroupProgress(group, MessageState.DONE)
            found.append(answer)
        return sorted(found, key=lambda each: each.group)

    def _lease(self, key: bytes) -> Lease | None:
        value = self._shared.kv.get(LEASES, LEASE + key)
        return None if value is None else Lease.decode(key, value)

    def _lease_on(self, reader: GroupQueue, offset: int) -> Lease | None:
        """Return the check point with the running lease of a reader on one message."""
        for key, start in self._state.running.get(reader, {}).items():
            lease = self._lease(key) if start <= offset else None
            if lease is not None and (offset, LEASED) in zip(lease.offsets, lease.states, strict=True):
                return lease
        return None

    def _info(self, lease: Lease, group: str, topic: str, index: int) -> LeaseInfo:
        reader, offset = lease.reader, lease.offsets[index]
        record = self._record_of(reader, offset)
        in_order = self._state.is_ordered(reader.group_id, reader.topic_id)
        receipt = lease.receipt(offset, topic, group, self._broker_of(lease), in_order=in_order)
        first_pop_ms = -1 if record is None else self._format.first_pop_of(record[0])
        return LeaseInfo(
            topic=topic,
            group=group,
            queue_id=reader.queue,
            queue_offset=offset,
            message_id="" if record is None else self._format.message_id_of(record[0]).decode(),
            attempt=1 if record is None else self._format.attempt_of(record[0]) + 1,
            pop_time_ms=lease.granted_ms,
            first_pop_ms=lease.popped_ms if first_pop_ms < 0 else first_pop_ms,
            expiry_ms=lease.expiry_ms,
            receipt=receipt.text(),
            is_backing_off=lease.is_backing_off,
            reason=lease.reason,
        )

    # ------------------------------------------------------------ the recount

    def verify(self) -> list[str]:
        """Read everything; return one sentence a difference."""
        return [*self._verify_leases(), *_verify_fifo(self._state), *self._verify_queues()]

    def _verify_leases(self) -> Iterator[str]:
        kv, held, running = self._shared.kv, Counter[GroupQueue](), set()
        for key, value in kv.scan_all(LEASES, LEASE, after_prefix(LEASE)):
            lease = Lease.decode(key[1:], value)
            held[lease.reader] += lease.live
            if lease.live:
                running.add((EXPIRY + U64.pack(lease.expiry_ms) + lease.key, lease.is_backing_off))
        for reader, progress in self._state.all_progress.items():
            if held[reader] != progress.in_flight:
                yield f"{held[reader]} messages are leased on {reader}, the counter says {progress.in_flight}"
        indexed = {(key, bool(wait)) for key, wait in kv.scan_all(LEASES, EXPIRY, after_prefix(EXPIRY))}
        if running != indexed:
            missing, void = len(running - indexed), len(indexed - running)
            yield f"{missing} running leases are missing from the expiry index, {void} of its entries are void"

    def _verify_queues(self) -> Iterator[str]:
        state = self._state
        for topic in state.topics.values():
            for queue, end in enumerate(topic.next_offsets):
                yield from _verify_gaps(state, topic, queue)
                where = f"topic {topic.name}, queue {queue}"
                kept = state.first_kept(topic.id, queue)
                behind = 0
                for run in self._log.runs_from(topic, queue, 0):
                    if isinstance(run, DamagedRun):
                        yield f"{where}, offset {run.first}: {run.reason}"
                        continue
                    if run.first < behind:
                        yield f"{where}: the run at offset {run.first} overlaps the one before it"
                    if behind < run.first and state.between(topic.id, queue, max(behind, kept), run.first):
                        yield f"{where}: nothing lies at offsets {behind} to {run.first - 1}, and no gap says so"
                    behind = run.first + len(run.records)
                if behind < end and state.between(topic.id, queue, max(behind, kept), end):
                    yield f"{where}: ends at offset {behind}, next offset says {end}"
                if behind > end:
                    yield f"{where}: holds offset {behind - 1}, next offset says {end}"


def _verify_fifo(state: PopState) -> Iterator[str]:
    """Compare FIFO runs with the counts of leases, which were compared with the leases themselves."""
    for reader, run in state.fifo.items():
        progress = state.progress(reader.group_id, reader.topic_id, reader.queue)
        leased = sum(not one.waits for one in run.values())
        if leased != progress.in_flight:
            yield f"{leased} messages of the FIFO run of {reader} are leased, the counter says {progress.in_flight}"
        if max(run) >= progress.next_offset:
            yield f"the FIFO run of {reader} holds offset {max(run)}, the group stands at {progress.next_offset}"
        if not state.is_ordered(reader.group_id, reader.topic_id):
            yield f"{reader} has a FIFO run, but its group does not pop in order"


def _verify_gaps(state: PopState, topic: Topic, queue: int) -> Iterator[str]:
    gaps = state.gaps.get((topic.id, queue), [])
    kept, end = state.first_kept(topic.id, queue), topic.next_offsets[queue]
    where = f"topic {topic.name}, queue {queue}"
    yield from (f"{where}: the gap {gap.first}-{gap.behind} lies outside of {kept}-{end}" for gap in gaps if not kept < gap.behind <= end)
    yield from (f"{where}: the gaps at {low.first} and {high.first} overlap" for low, high in pairwise(gaps) if low.behind > high.first)
