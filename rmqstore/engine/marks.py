"""Marks: the caller's names for calls, stored with their first answer in the same atomic step (I1)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import MARK, MARK_AGE, META, PAIR, U64
from rmqstore.late import np

TIMER_SIDE, POP_SIDE = b"t", b"p"


def find_mark(kv: OrderedKV, side: bytes, marks: Sequence[bytes]) -> bytes | None:
    """Return the first answer of the call that stored one of ``marks``, or None."""
    for mark in marks:
        answer = kv.get(META, MARK + side + mark)
        if answer is not None:
            return answer
    return None


def put_marks(batch: WriteBatch, side: bytes, marks: Sequence[bytes], answer: bytes, now_ms: int) -> None:
    """Add the marks of a call to its write."""
    batch.put_many(META, [(MARK + side + mark, answer) for mark in marks])
    batch.put_many(META, [(MARK_AGE + side + U64.pack(now_ms) + mark, b"") for mark in marks])


def encode_ticks(epoch: int, first_seq: int, ticks: Sequence[int]) -> bytes:
    """Return the stored answer to a put."""
    return PAIR.pack(epoch, first_seq) + zlib.compress(np.asarray(ticks, "<i8").tobytes(), 1)


def decode_ticks(answer: bytes) -> list[int]:
    """Return the ticks of the stored answer to a put, behind its epoch and first seq."""
    ticks: list[int] = np.frombuffer(zlib.decompress(answer[PAIR.size :]), "<i8").tolist()
    return ticks


def drop_old_marks(floors: Floors, batch: WriteBatch, side: bytes, before_ms: int, budget: int) -> int:
    """Add the removal of up to ``budget`` marks of one side that are older than ``before_ms``, the oldest first; returns how many.

    The order is relied on: a mark that is there says that no younger one of its side is gone (``rmqstore.spark.witness``).
    """
    old = floors.before(META, MARK_AGE + side, MARK_AGE + side + U64.pack(max(before_ms, 0)), budget)
    if old:
        batch.delete_many(META, [key for key, _ in old])
        batch.delete_many(META, [MARK + side + key[10:] for key, _ in old])
    return len(old)
