"""Log-linear histograms of latencies: 64 buckets a power of two, so a bucket is at most 1/64 of its values wide.

A bucket is an int that sorts like its values, so histograms of shards and tasks merge by adding the counts of equal buckets. This module
stands on numpy alone, since it is imported by the processes whose memory is measured.
"""

from __future__ import annotations

from typing import Final

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
