"""Message ids as RocketMQ 5 clients make them: 17 bytes in 34 hex digits (rocketmq-clients ``MessageIdCodec``)."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import uuid

from rmqstore.late import np, pa

_VERSION = 1
_START_OF_2021_S = 1_609_459_200
_COUNTER_DIGITS = 8
_MARK_BYTES = 12


class MessageIds:
    """Makes ids: version, machine, process, second, and a counter that starts at random; unique in this process.

    A fork copies the counter, so the process id is read again with every call.
    """

    def __init__(self) -> None:
        self._node = f"{_VERSION:02X}{uuid.getnode() & (2**48 - 1):012X}"
        self.lock = threading.Lock()
        self._counter = secrets.randbits(31)

    def one(self, now_ms: int) -> str:
        """Return a new id."""
        with self.lock:
            counter = self._counter
            self._counter += 1
        return f"{self._prefix(now_ms)}{counter & 0xFFFFFFFF:08X}"

    def many(self, now_ms: int, count: int) -> list[str]:
        """Return ``count`` new ids."""
        prefix, first = self._prefix(now_ms), self._next(count)
        return [f"{prefix}{counter & 0xFFFFFFFF:08X}" for counter in range(first, first + count)]

    def column(self, now_ms: int, count: int) -> pa.Array:
        """Return ``count`` new ids as an Arrow column."""
        return _counted(self._prefix(now_ms), self._next(count), count)

    def _next(self, count: int) -> int:
        with self.lock:
            first = self._counter
            self._counter += count
        return first

    def _prefix(self, now_ms: int) -> str:
        return f"{self._node}{os.getpid() & 0xFFFF:04X}{(now_ms // 1000 - _START_OF_2021_S) & 0xFFFFFFFF:08X}"


message_ids = MessageIds()
"""The one maker of this process: two stores never give the same id."""


def _renew_lock_in_forked_child() -> None:
    # A thread of the parent may have held it.
    message_ids.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock_in_forked_child)


def id_of_mark(mark: bytes, row: int) -> str:
    """Return the id of row ``row`` of a call that carries ``mark``: the same whenever the call is repeated (I1).

    A digest of the mark, BLAKE2b of 12 bytes, stands where other ids have machine, process and second; the row is the counter.
    """
    return f"{_prefix_of_mark(mark)}{row:08X}"


def ids_of_mark(mark: bytes, count: int) -> pa.Array:
    """Return the ids of the first ``count`` rows as an Arrow column."""
    return _counted(_prefix_of_mark(mark), 0, count)


def _prefix_of_mark(mark: bytes) -> str:
    return f"{_VERSION:02X}{hashlib.blake2b(mark, digest_size=_MARK_BYTES).hexdigest().upper()}"


def _counted(prefix: str, first: int, count: int) -> pa.Array:
    """Return ids that differ by their counter, which wraps around."""
    start = np.frombuffer(prefix.encode(), np.uint8)
    numbers = (first + np.arange(count, dtype=np.int64)) & 0xFFFFFFFF
    ids = np.empty((count, len(start) + _COUNTER_DIGITS), np.uint8)
    ids[:, : len(start)] = start
    digits = numbers.astype(">u4").tobytes().hex().upper().encode()
    ids[:, len(start) :] = np.frombuffer(digits, np.uint8).reshape(count, _COUNTER_DIGITS)
    ends = np.arange(0, ids.size + 1, ids.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(ids)])
