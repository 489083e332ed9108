"""Log-linear histograms of latencies: 64 buckets a power of two, so a bucket is at most 1/64 of its values wide.

A bucket is an int that sorts like its values, so histograms of shards and tasks merge by adding the counts of equal buckets. This module
stands on numpy alone, since it is imported by the processes whose memory is measured.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_SUB_BITS: Final = 6
_SUB_BUCKETS: Final = 1 << _SUB_BITS


def buckets_of(values: Ints) -> Ints:
    """Return the bucket of each value; values are 0 to 2**53, and those below 128 have a bucket each."""
    _, lengths = np.frexp(values.astype(np.float64))
    shifts = np.maximum(lengths.astype(np.int64) - 1 - _SUB_BITS, 0)
    buckets: Ints = shifts * _SUB_BUCKETS + (values >> shifts)
    return buckets


def bounds_of(buckets: Ints) -> tuple[Ints, Ints]:
    """Return the lowest value of each bucket, and the first value behind it."""
    shifts = np.maximum(buckets // _SUB_BUCKETS - 1, 0)
    lows = (buckets - shifts * _SUB_BUCKETS) << shifts
    return lows, lows + (1 << shifts)


class CallSums(NamedTuple):
    """Calls of one kind whose latency fell into one bucket of ns; ``messages`` and ``ns`` are sums over them."""

    op: str
    bucket: int
    calls: int
    messages: int
    ns: int


class CallCounter:
    """Counts calls by kind and latency; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def add(self, op: str, ns: int, messages: int) -> None:
        """Note one call."""
        with self._lock:
            self._calls[op].append((ns, messages))

    def sums(self) -> list[CallSums]:
        """Return everything noted."""
        found = []
        for op, calls in self._calls.items():
            ns, messages = np.asarray(calls, np.int64).T
            buckets, rows, counts = np.unique(buckets_of(ns), return_inverse=True, return_counts=True)
            sums = (np.bincount(rows, column).astype(np.int64).tolist() for column in (messages, ns))
            found += [CallSums(op, *numbers) for numbers in zip(buckets.tolist(), counts.tolist(), *sums, strict=True)]
        return found
