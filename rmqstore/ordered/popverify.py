"""The recount behind ``PopStore.verify``: standings against leases, offsets against runs, indexes against what they index."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import EXPIRY, LEASE, LEASES, U64, after_prefix
from rmqstore.ordered.leases import Lease
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queuelog import DamagedRun, QueueLog
from rmqstore.ordered.queues import Topic
from rmqstore.ordered.standings import Seat


def verify_pops(kv: OrderedKV, state: PopState, log: QueueLog) -> list[str]:
    """Read everything; return one sentence a difference."""
    differences: list[str] = []
    held: Counter[Seat] = Counter()
    running = set()
    for key, value in kv.scan_all(LEASES, LEASE, after_prefix(LEASE)):
        lease = Lease.decode(key[1:], value)
        held[Seat(*lease.place[:3])] += lease.live
        if lease.live:
            running.add((EXPIRY + U64.pack(lease.expiry_ms) + lease.key, lease.is_backing_off))
    for seat, standing in state.standings.items():
        if held[seat] != standing.in_flight:
            differences.append(f"{held[seat]} messages are leased on {seat}, the counter says {standing.in_flight}")
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
    for seat, run in state.fifo.items():
        standing = state.standing(*seat)
        leased = sum(not one.waits for one in run.values())
        if leased != standing.in_flight:
            differences.append(f"{leased} messages of the FIFO run of {seat} are leased, the counter says {standing.in_flight}")
        if max(run) >= standing.next_offset:
            differences.append(f"the FIFO run of {seat} holds offset {max(run)}, the group stands at {standing.next_offset}")
        if not state.is_ordered(seat.group_id, seat.topic_id):
            differences.append(f"{seat} has a FIFO run, but its group does not pop in order")
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
