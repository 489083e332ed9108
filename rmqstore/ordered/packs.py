"""Packs: how the timers of one call that are due within one minute share one value (all integers of the value little-endian).

::

    key    0   u64  2^63 + start of the bucket, ms (big-endian, as all keys)
           8   u64  largest seq in the pack
          16   u32  tick of its first timer, ms behind the start of the bucket

    value  0   u32  CRC-32 of everything behind it
           4   u32  open epoch of the call that wrote the pack
           8   u32  number of records n
          12   i64  store time, ms
          20   n × u32 bytes of each record, n × u32 tick of each less the start of the bucket,
               n × u32 largest seq less the seq of each
               then the records (``records``), all by tick and seq

The top bit keeps packs behind every run of the space. A call's timers are cut into packs of :data:`RUN_BYTES` by seq, so the packs of a
bucket do not overlap in their seqs: the one that may hold a seq is the first whose largest seq is not below it. A key alone tells when a
pack is covered as a whole, and when a damaged one is due. A pack is never changed, only removed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from rmqstore.ordered.layout import U64
from rmqstore.ordered.placing import Times, runs_of
from rmqstore.ordered.runs import HEAD, HEAD_BYTES, RUN_BYTES, DamagedRunError, damage_of, run_lengths

BUCKET_MS: Final = 60_000
"""Width of a bucket. A wider one means fewer, larger packs: quicker puts, and more to read for each cancel and each open bucket."""

PACKS: Final = 2**63
"""What the first number of a pack's key is more than the start of its bucket."""

_KEY: Final = struct.Struct(">QQI")
_CRC: Final = struct.Struct("<I")
_PER_RECORD: Final = 12
_LAST_TICK: Final = 2**63 - 1

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Pack(NamedTuple):
    """A decoded pack: ``records[i]`` has the tick ``bucket + steps[i]`` and the seq ``last_seq - backs[i]``."""

    bucket: int
    last_seq: int
    epoch: int
    store_ms: int
    steps: Sequence[int]
    backs: Sequence[int]
    records: list[bytes]


def bucket_of(tick: int) -> int:
    """Return the start of the bucket of a tick, ms."""
    return tick - tick % BUCKET_MS


def end_of_bucket(tick: int) -> int:
    """Return the last tick of the bucket of a tick, ms."""
    return bucket_of(tick) + BUCKET_MS - 1


def pack_key(bucket: int, last_seq: int, first_step: int = 0) -> bytes:
    """Return the key of a pack; without ``first_step`` it sorts before those of the same seq."""
    return _KEY.pack(PACKS + bucket, last_seq, first_step)


def parts_of(key: bytes) -> tuple[int, int, int]:
    """Return (bucket, largest seq, tick of the first timer) of the key of a pack."""
    first, last_seq, step = _KEY.unpack(key)
    return first - PACKS, last_seq, first - PACKS + step


def from_bucket(tick: int) -> bytes:
    """Return where in the space the packs of the bucket of ``tick``, and of later ones, begin."""
    return U64.pack(PACKS + bucket_of(tick))


def behind_bucket(tick: int) -> bytes:
    """Return where they end."""
    return U64.pack(PACKS + min(bucket_of(tick) + BUCKET_MS, _LAST_TICK))


def is_pack(key: bytes) -> bool:
    """Say whether an entry of the space of timers is a pack."""
    return key[0] >= 0x80


def packs_of(records: list[bytes], ticks: Times, first_seq: int, now_ms: int, epoch: int) -> list[tuple[bytes, bytes]]:
    """Group the records of a call into (key, value) entries: a pack a bucket, and runs where a bucket has timers of one tick only."""
    order = np.argsort(ticks, kind="stable")
    in_order = ticks[order]
    buckets = in_order - in_order % BUCKET_MS
    starts = np.flatnonzero(np.diff(buckets, prepend=-1))
    stops = np.append(starts[1:], len(order))
    spread = in_order[starts] != in_order[stops - 1]
    if not spread.any():
        return runs_of(records, ticks, first_seq, now_ms, epoch)
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    group_bytes = np.add.reduceat(lengths[order], starts)
    entries = [] if spread.all() else runs_of(records, ticks, first_seq, now_ms, epoch, order[np.repeat(~spread, stops - starts)])
    for start, stop, size in zip(starts[spread].tolist(), stops[spread].tolist(), group_bytes[spread].tolist(), strict=True):
        rows = order[start:stop]
        bucket = int(buckets[start])
        for part in [rows] if size < RUN_BYTES else _parts(rows, ticks, lengths):
            last = int(part.max())
            steps = ticks[part] - bucket
            value = encode_pack(epoch, now_ms, [records[row] for row in part.tolist()], lengths[part], steps, last - part)
            entries.append((pack_key(bucket, first_seq + last, int(steps[0])), value))
    return entries


def _parts(rows: Numbers, ticks: Times, lengths: Numbers) -> list[Numbers]:
    """Cut the rows of a bucket by seq into what one pack holds, each by tick and seq."""
    by_seq = np.sort(rows)
    parts = (by_seq[begin:end] for begin, end in run_lengths(lengths[by_seq].tolist()))
    return [part[np.argsort(ticks[part], kind="stable")] for part in parts]


def encode_pack(epoch: int, store_ms: int, records: Sequence[bytes], lengths: Numbers, steps: Numbers, backs: Numbers) -> bytes:
    """Return the value of a pack; see the module for what the numbers are."""
    table = np.concatenate((lengths, steps, backs)).astype("<u4").tobytes()
    payload = b"".join((HEAD.pack(epoch, len(records), store_ms), table, *records))
    return _CRC.pack(zlib.crc32(payload)) + payload


def decode_pack(key: bytes, value: bytes) -> Pack:
    """Check and decode a pack.

    Raises:
        DamagedRunError: the checksum or a length is wrong.
    """
    if (reason := damage_of(value)) is not None:
        raise DamagedRunError(reason.replace("run", "pack"))
    bucket, last_seq, _ = parts_of(key)
    epoch, count, store_ms = HEAD.unpack_from(value, 4)
    start = HEAD_BYTES + _PER_RECORD * count
    if count == 0 or len(value) < start:
        raise DamagedRunError("the lengths in the pack do not match")
    table = struct.unpack_from(f"<{3 * count}I", value, HEAD_BYTES)
    records = []
    for size in table[:count]:
        records.append(value[start : start + size])
        start += size
    if len(value) != start:
        raise DamagedRunError("the lengths in the pack do not match")
    return Pack(bucket, last_seq, epoch, store_ms, table[count : 2 * count], table[2 * count :], records)
