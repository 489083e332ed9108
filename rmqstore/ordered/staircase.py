"""Where a batch of ``due`` ends, as the contract has it (docs/handover.md)."""

from __future__ import annotations

from rmqstore.contract import TimerCursor


def reached(sealed: TimerCursor, until_ms: int, last: tuple[int, int] | None) -> list[tuple[int, int]]:
    """Return the corners of a batch that ends at ``last`` (None: nothing is left), for what is sealed and a last ``until_ms``."""
    corners = []
    for sealed_tick, seq in sealed.corners:
        tick = min(sealed_tick, until_ms)
        if last is None or tick < last[0]:
            corners.append((tick, seq))
        else:
            corners += [(last[0], min(last[1], seq)), (last[0] - 1, seq)]
    return corners
