"""Floors: the key below which a table holds nothing, for tables whose keys begin with a time and that are worked off from their beginning.

Upkeep asks each of them at every tick for what is old, and mostly nothing is. So the first key that a table was found with is remembered,
and the database is not asked before that one is old. What was removed leaves a tombstone of each key in some databases, so a scan begins
at the floor and not at the beginning of the table: otherwise half the time of a store goes into upkeep that walks what it removed (5,000
pops and 2,000 marks a second, each remembered for a minute).

Why no key is ever below its floor: a floor rises to what a scan found first, with the lock of the session held, and not by a removal; each
write of the session passes :meth:`Floors.follow` before it is done. One that fails leaves the floors too low at the worst. When the state
is read again, where what was removed may be back, all of them are forgotten.
"""

from __future__ import annotations

from typing import Final

from rmqstore.engine.kv.base import OrderedKV, PutMany, WriteBatch
from rmqstore.engine.schema import LEASES, META, TRACES, after_prefix

_PREFIX_BYTES: Final = {META: 2, TRACES: 1, LEASES: 1}
"""How long the names of tables with a floor are, by their space; in ``meta`` the side is a part of them."""


class Floors:
    """The floors of one session; those of tables that nobody asked for are not known."""

    def __init__(self, kv: OrderedKV) -> None:
        self._kv = kv
        self._floors: dict[int, dict[bytes, bytes]] = {space: {} for space in _PREFIX_BYTES}

    def before(self, space: int, table: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries of a table whose keys are before ``stop``, the first ones; see ``OrderedKV.scan``."""
        floors = self._floors[space]
        floor = floors.get(table, table)
        if floor >= stop:
            return []
        page = self._kv.scan(space, floor, stop, limit)
        first = page or self._kv.scan(space, stop, after_prefix(table), 1)
        floors[table] = first[0][0] if first else after_prefix(table)
        return page

    def of(self, space: int, table: bytes) -> bytes:
        """Return the floor of a table."""
        return self._floors[space].get(table, table)

    def follow(self, batch: WriteBatch) -> None:
        """Lower the floors to what is about to be written."""
        for op in batch.ops:
            if type(op) is PutMany and (floors := self._floors.get(op.space)):
                size = _PREFIX_BYTES[op.space]
                for key, _ in op.items:
                    if key < floors.get(key[:size], b""):
                        floors[key[:size]] = key

    def forget(self) -> None:
        """Forget all floors."""
        for floors in self._floors.values():
            floors.clear()
