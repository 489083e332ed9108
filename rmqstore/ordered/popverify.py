"""The recount behind ``PopStore.verify``: standings against leases, offsets against runs, indexes against what they index."""

from __future__ import annotations

from collections import Counter

from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import EXPIRY, LEASE, LEASES, U64, after_prefix
from rmqstore.ordered.leases import Lease
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queues import DamagedRun, QueueLog
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
            running.add(EXPIRY + U64.pack(lease.expiry_ms) + lease.key)
    for seat, standing in state.standings.items():
        if held[seat] != standing.in_flight:
            differences.append(f"{held[seat]} messages are leased on {seat}, the counter says {standing.in_flight}")
    indexed = {key for key, _ in kv.scan_all(LEASES, EXPIRY, after_prefix(EXPIRY))}
    if running != indexed:
        differences.append(
            f"{len(running - indexed)} running leases are missing from the expiry index, {len(indexed - running)} of its entries are void"
        )
    for topic in state.topics.values():
        for queue in range(topic.queues):
            behind = 0
            for first, run in log.runs_from(topic.id, queue, 0):
                if isinstance(run, DamagedRun):
                    differences.append(f"topic {topic.name}, queue {queue}, offset {first}: {run.reason}")
                    continue
                if first < behind:
                    differences.append(f"topic {topic.name}, queue {queue}: the run at offset {first} overlaps the one before it")
                behind = first + len(run.records)
            if behind > topic.next_offsets[queue]:
                differences.append(
                    f"topic {topic.name}, queue {queue}: holds offset {behind - 1}, next offset says {topic.next_offsets[queue]}"
                )
    return differences
