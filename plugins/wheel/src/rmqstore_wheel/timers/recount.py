"""What the counters of a :class:`~rmqstore_wheel.timers.index.TimerIndex` say, beside what a look at every timer says."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rmqstore_wheel.timers.index import TimerIndex


def differences_in(index: TimerIndex) -> list[str]:
    """Recount the pending timers; one sentence a difference."""
    total = 0
    in_slots: Counter[int] = Counter()
    for piece in index.live():
        total += len(piece)
        own = ~index.rolled.get_many(piece.seqs)
        slots, counts = np.unique(index.wheel.slots_of(piece.ticks[own]), return_counts=True)
        in_slots.update(dict(zip(slots.tolist(), counts.tolist(), strict=True)))
    differences = [] if total == index.pending else [f"{total} timers are pending, the counter says {index.pending}"]
    for slot, count in sorted(in_slots.items()):
        if index.wheel.count_in(slot) < count:
            differences.append(
                f"slot {slot * index.precision_ms} ms: {count} timers are pending, the wheel says {index.wheel.count_in(slot)}"
            )
    return differences
