"""A seam of engines that keep writes in memory until somebody syncs: each write goes to the disk at once, as if another thread had synced.

Two writes of one call then are two states of the disk, between which a cut shows what the call left half done. Seen from outside, by system
calls alone, both are in one transaction as long as no other thread comes in between.
"""

from __future__ import annotations

from rmqstore import Store
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.kv.buffered import BufferedKV


def _buffers_of(store: Store) -> list[BufferedKV]:
    shared = [getattr(side, "_shared", None) for side in (store.engine.timers, store.engine.pops)]
    found = [kv for each in shared if isinstance(kv := getattr(each, "kv", None), BufferedKV)]
    return list(dict.fromkeys(found))


def keeps_back(store: Store) -> bool:
    """Say whether a side of a store has the seam."""
    return bool(_buffers_of(store))


def make_eager(store: Store) -> None:
    """Let each write of a store be durable at once."""
    for kv in _buffers_of(store):

        def write(batch: WriteBatch, kv: BufferedKV = kv, sound: object = kv.write) -> int:
            position: int = sound(batch)  # type: ignore[operator]
            kv.sync()
            return position

        kv.write = write  # type: ignore[method-assign]
