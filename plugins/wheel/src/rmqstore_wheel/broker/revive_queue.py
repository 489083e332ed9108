"""``ReviveQueue``: one queue of the revive topic, where its check points lie and from where on it is needed.

Nobody reads the queue while the store is open, so its units wait for the engine's check point; an open makes those behind it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rmqstore.engine.pops.checkpoint import LEASED, Lease
from rmqstore.engine.schema import LEASES
from rmqstore_wheel.log.ledger import Ledger

_PAGE: Final = 4096


class ReviveQueue:
    """One queue; the caller serialises all calls.

    Args:
        older: the keys of leases whose check points lie somewhere in it, from an earlier open.

    Attributes:
        next: offset of the next message.
    """

    def __init__(self, ledger: Ledger, topic: str, number: int, older: Iterable[bytes]) -> None:
        self._ledger = ledger
        self._name = topic, number
        self.next = ledger.queues.of(*self._name).count if self._name in ledger.queues else 0
        if self.next:
            ledger.queues.trim(*self._name, self._first_there())
        self._units: list[tuple[tuple[int, int], int]] = []
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

    def take(self, places: Iterable[tuple[int, int]], codes: Sequence[int], begun: Iterable[tuple[int, bytes]]) -> None:
        """Take in what was written: its places and sizes, its codes, and keys of leases by the row of their first check point."""
        for row, key in begun:
            self._points.append((self.next + row, key))
        self._units += zip(places, codes, strict=True)
        self.next += len(codes)

    def settle(self) -> None:
        """Bring the consume queue to what was written, and let it begin at the check point of the oldest lease that runs."""
        if self._units:
            places, sizes, codes = np.array([(place, size, code) for (place, size), code in self._units], np.int64).T
            offsets = np.arange(self.next - len(places), self.next)
            self._ledger.queues.prepare(*self._name, offsets, places, sizes, codes)()
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
