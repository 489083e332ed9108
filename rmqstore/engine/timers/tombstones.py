"""What stays of a timer beside its record: tombstones that keep answers true (C1–C6), holes, and the index by key.

- A *hole* marks a cancelled record inside a kept run of several; it goes with the run.
- A *cancelled* tombstone answers CANCELLED, a *delivered* one ALREADY_DELIVERED, until ``cancel_memory_ms`` past the tick.
- The *key index* lists pending timers by (topic, key), only for messages that have keys.

Delivered tombstones are one entry a tick and ``forget``, not one a timer: within a tick, later ones hold greater seqs, so the one that
could hold a put is the last that starts at or below its seq.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.records import has_keys, keys_of, route_of
from rmqstore.engine.schema import CANCELLED, DELIVERED, HOLE, KEY_INDEX, TICK_SEQ, TRACES, U64, after_prefix

_EPOCH_BYTES = 4
_FIRST_ALONE = bytes(4)
_TICK_AND_EPOCH, _SEQ = itemgetter(0, 2), itemgetter(1)


def put_cancelled(batch: WriteBatch, puts: Iterable[tuple[int, int, int]]) -> None:
    """Remember that puts were cancelled, given as (tick, seq, epoch)."""
    pack = TICK_SEQ.pack
    batch.put_many(TRACES, [(CANCELLED + pack(tick, seq), epoch.to_bytes(_EPOCH_BYTES, "big")) for tick, seq, epoch in puts])


def was_cancelled(kv: OrderedKV, tick: int, seq: int, epoch: int) -> bool:
    """Say whether the put was cancelled, as far as it is remembered."""
    return which_cancelled(kv, [(tick, seq, epoch)])[0]


def which_cancelled(kv: OrderedKV, puts: Sequence[tuple[int, int, int]]) -> list[bool]:
    """Say of each put, given as (tick, seq, epoch), whether it was cancelled, as far as that is remembered."""
    pack = TICK_SEQ.pack
    found = kv.get_many(TRACES, [CANCELLED + pack(tick, seq) for tick, seq, _ in puts])
    return [value is not None and value == put[2].to_bytes(_EPOCH_BYTES, "big") for put, value in zip(puts, found, strict=True)]


def put_delivered(batch: WriteBatch, delivered: Iterable[tuple[int, int, int]]) -> None:
    """Remember delivered puts, given as (tick, seq, epoch) in (tick, seq) order."""
    entries = []
    for (tick, epoch), group in groupby(delivered, _TICK_AND_EPOCH):
        seqs = list(map(_SEQ, group))
        steps = _FIRST_ALONE
        if len(seqs) > 1:
            kind = "I" if seqs[-1] - seqs[0] < 2**32 else "Q"
            steps = struct.pack(f"{len(seqs)}{kind}", *map(seqs[0].__rsub__, seqs))
        entries.append(
            (DELIVERED + TICK_SEQ.pack(tick, seqs[0]), len(seqs).to_bytes(4, "big") + epoch.to_bytes(_EPOCH_BYTES, "big") + steps)
        )
    batch.put_many(TRACES, entries)


def was_delivered(kv: OrderedKV, tick: int, seq: int, epoch: int) -> bool:
    """Say whether the put was delivered, as far as it is remembered."""
    found = kv.floor(TRACES, DELIVERED + TICK_SEQ.pack(tick, seq))
    if found is None or found[0][: 1 + U64.size] != DELIVERED + U64.pack(tick):
        return False
    of_epoch, steps = delivered_of(found[1])
    step = seq - int.from_bytes(found[0][-U64.size :], "big")
    at = bisect_left(steps, step)
    return of_epoch == epoch and at < len(steps) and steps[at] == step


def delivered_of(value: bytes) -> tuple[int, Sequence[int]]:
    """Return (epoch, rising seqs less the first one) of a tombstone of delivered puts."""
    count = int.from_bytes(value[:4], "big")
    data = value[4 + _EPOCH_BYTES :]
    return int.from_bytes(value[4 : 4 + _EPOCH_BYTES], "big"), memoryview(data).cast("I" if len(data) == 4 * count else "Q")


def drop_tombstones(floors: Floors, batch: WriteBatch, before_tick: int) -> bool:
    """Forget the answers about every put of an earlier tick; says whether there are any."""
    is_any = False
    for table in (CANCELLED, DELIVERED):
        stop = table + U64.pack(max(before_tick, 0))
        if found := floors.before(TRACES, table, stop, 1):
            batch.delete_range(TRACES, found[0][0], stop)
            is_any = True
    return is_any


def hole_key(tick: int, seq: int) -> bytes:
    """Return the key that marks a cancelled record inside a kept run."""
    return HOLE + TICK_SEQ.pack(tick, seq)


def which_holes(kv: OrderedKV, puts: Iterable[tuple[int, int, int]]) -> list[bool]:
    """Say of each put, given as (tick, seq, epoch), whether its place is a hole."""
    return [value is not None for value in kv.get_many(TRACES, [hole_key(tick, seq) for tick, seq, _ in puts])]


def holes_between(kv: OrderedKV, floors: Floors, start: bytes, stop: bytes) -> set[tuple[int, int]]:
    """Return the holes as (tick, seq), from the place ``start`` to before ``stop``, both given as keys of runs begin."""
    if not floors.before(TRACES, HOLE, HOLE + stop, 1):
        return set()
    return {TICK_SEQ.unpack_from(key, 1) for key, _ in kv.scan_all(TRACES, HOLE + start, HOLE + stop)}


def index_keys(record: bytes, tick: int, seq: int) -> list[bytes]:
    """Return the index keys of one put; none for a message without keys."""
    keys = keys_of(record)
    if not keys:
        return []
    topic = route_of(record)[0]
    place = TICK_SEQ.pack(tick, seq)
    if len(keys) == 1:
        return [_prefix(topic, keys[0]) + place]
    return [_prefix(topic, key) + place for key in dict.fromkeys(keys)]


def index_entries(records: Sequence[bytes], ticks: Iterable[int], seqs: Iterable[int]) -> list[tuple[bytes, bytes]]:
    """Return the entries of the index for some puts, sorted."""
    return sorted(
        (key, b"")
        for record, tick, seq in zip(records, ticks, seqs, strict=True)
        if has_keys(record)
        for key in index_keys(record, tick, seq)
    )


def _prefix(topic: bytes, key: bytes) -> bytes:
    # The topic has no blank, so the first blank ends it: no two pairs are alike.
    return KEY_INDEX + hashlib.blake2b(b"%b %b" % (topic, key), digest_size=16).digest()


def places_of_key(kv: OrderedKV, topic: str, key: str) -> list[tuple[int, int]]:
    """Return (tick, seq) of every indexed put of (topic, key), by tick and seq."""
    prefix = _prefix(topic.encode(), key.encode())
    return [TICK_SEQ.unpack_from(entry, len(prefix)) for entry, _ in kv.scan_all(TRACES, prefix, after_prefix(prefix))]
