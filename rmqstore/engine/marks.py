"""Marks: the caller's names for calls, stored with their first answer in the same atomic step (I1).

A connection to a server names every send, so that it can be made again when its answer is lost (docs/server.md). Its names are a lane, on
which one call is under way at a time, and a number that rises with each: whoever makes call ``n`` on a lane has the answers to all before.
So a side keeps the last name of each lane only, and refuses an earlier one: that is a copy of a call that comes late.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import MARK, MARK_AGE, META, PAIR, U64
from rmqstore.errors import IllegalArgumentError
from rmqstore.late import np
from rmqstore.message import CALL_NAME, CALL_NAME_BYTES, LANE_BYTES

TIMER_SIDE, POP_SIDE = b"t", b"p"

_TICK: Final = struct.Struct("<q")

_LANE_MEMORY_MS: Final = 600_000
"""A lane that was not used for so long, or up to twice as long, is forgotten; no client makes a call again so late."""

_NUMBER: Final = CALL_NAME_BYTES - LANE_BYTES


def find_mark(kv: OrderedKV, side: bytes, marks: Sequence[bytes]) -> bytes | None:
    """Return the first answer of the call that stored one of ``marks``, or None.

    Raises:
        IllegalArgumentError: the name of a later call of its lane is there; nobody waits for the answer to this one.
    """
    for mark in marks:
        if not _is_name(mark):
            answer = kv.get(META, MARK + side + mark)
            if answer is not None:
                return answer
        elif (held := kv.get(META, MARK + side + mark[:LANE_BYTES])) is not None and held[:_NUMBER] >= mark[LANE_BYTES:]:
            if held[:_NUMBER] != mark[LANE_BYTES:]:
                raise IllegalArgumentError("this call is a copy that comes late: its client has gone on; nothing was stored")
            return held[_NUMBER + U64.size :]
    return None


def put_marks(kv: OrderedKV, batch: WriteBatch, side: bytes, marks: Sequence[bytes], answer: bytes, now_ms: int) -> None:
    """Add the marks of a call to its write."""
    if len(marks) == 1 and _is_name(marks[0]):
        lane, number = marks[0][:LANE_BYTES], marks[0][LANE_BYTES:]
        held = kv.get(META, MARK + side + lane)
        batch.put_many(META, [(MARK + side + lane, number + U64.pack(now_ms) + answer)])
        if held is None or _age_ms(_used_ms(held)) != _age_ms(now_ms):
            batch.put_many(META, [(MARK_AGE + _lanes(side) + U64.pack(_age_ms(now_ms)) + lane, b"")])
        return
    batch.put_many(META, [(MARK + side + mark, answer) for mark in marks])
    batch.put_many(META, [(MARK_AGE + side + U64.pack(now_ms) + mark, b"") for mark in marks])


def _is_name(mark: bytes) -> bool:
    return len(mark) == CALL_NAME_BYTES and mark.startswith(CALL_NAME)


def _used_ms(held: bytes) -> int:
    """Return when a lane was used last."""
    used_ms: int = U64.unpack_from(held, _NUMBER)[0]
    return used_ms


def _age_ms(now_ms: int) -> int:
    """Return the age of a lane that is used now: the same for some time, so that it is not written again with every call."""
    return now_ms - now_ms % _LANE_MEMORY_MS


def _lanes(side: bytes) -> bytes:
    """Return what stands for a side in the ages of its lanes, which dumps leave out: they mean nothing to another store."""
    return side.upper()


def encode_ticks(epoch: int, first_seq: int, ticks: Sequence[int]) -> bytes:
    """Return the stored answer to a put; up to one tick stands as it is, which no compressed ticks are as short as."""
    if len(ticks) <= 1:
        return PAIR.pack(epoch, first_seq) + b"".join(map(_TICK.pack, ticks))
    return PAIR.pack(epoch, first_seq) + zlib.compress(np.asarray(ticks, "<i8").tobytes(), 1)


def decode_ticks(answer: bytes) -> list[int]:
    """Return the ticks of the stored answer to a put, behind its epoch and first seq."""
    if len(answer) <= PAIR.size + _TICK.size:
        return [tick for (tick,) in _TICK.iter_unpack(answer[PAIR.size :])]
    ticks: list[int] = np.frombuffer(zlib.decompress(answer[PAIR.size :]), "<i8").tolist()
    return ticks


def drop_old_marks(kv: OrderedKV, floors: Floors, batch: WriteBatch, side: bytes, now_ms: int, memory_ms: int, budget: int) -> int:
    """Add the removal of up to ``budget`` marks of one side that are older than ``memory_ms``, the oldest first; returns how many.

    The order is relied on: a mark that is there says that no younger one of its side is gone (``rmqstore.store.witness``).
    """
    old = floors.before(META, MARK_AGE + side, MARK_AGE + side + U64.pack(max(now_ms - memory_ms, 0)), budget)
    if old:
        batch.delete_many(META, [key for key, _ in old])
        batch.delete_many(META, [MARK + side + key[10:] for key, _ in old])
    if len(old) == budget:
        return budget
    before_ms = max(_age_ms(now_ms) - _LANE_MEMORY_MS, 0)
    ages = MARK_AGE + _lanes(side)
    idle = floors.before(META, ages, ages + U64.pack(before_ms), budget - len(old))
    if idle:
        batch.delete_many(META, [key for key, _ in idle])
        for key, _ in idle:
            lane = MARK + side + key[10:]
            held = kv.get(META, lane)
            if held is not None and _age_ms(_used_ms(held)) <= U64.unpack_from(key, 2)[0]:  # not used since, which gave it a younger age
                batch.delete_many(META, [lane])
    return len(old) + len(idle)
