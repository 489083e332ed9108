"""Log-linear histograms of latencies: 64 buckets a power of two, so a bucket is at most 1/64 of its values wide.

A bucket is an int that sorts like its values, so histograms of many tasks merge by adding the counts of equal buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SUB_BITS: Final = 6
_SUB_BUCKETS: Final = 1 << _SUB_BITS


def bucket_of(value: int) -> int:
    """Return the bucket of a value of at least 0; values below 128 have a bucket each."""
    shift = max(value.bit_length() - 1 - _SUB_BITS, 0)
    return shift * _SUB_BUCKETS + (value >> shift)


def buckets_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return :func:`bucket_of` of each value; values are 0 to 2**53."""
    _, lengths = np.frexp(values.astype(np.float64))
    shifts = np.maximum(lengths.astype(np.int64) - 1 - _SUB_BITS, 0)
    buckets: NDArray[np.int64] = shifts * _SUB_BUCKETS + (values >> shifts)
    return buckets


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return (lowest value, first value behind) of a bucket."""
    shift = max(bucket // _SUB_BUCKETS - 1, 0)
    low = (bucket - shift * _SUB_BUCKETS) << shift
    return low, low + (1 << shift)


def percentile(counts: Mapping[int, int], share: float) -> float:
    """Return the middle of the bucket below which ``share`` (0 to 1) of the values lie; 0.0 for none."""
    total = sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= share * total:
            low, behind = bounds_of(bucket)
            return (low + behind - 1) / 2
    return 0.0
