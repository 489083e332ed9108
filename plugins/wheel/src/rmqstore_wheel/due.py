"""``Due``: timers by column, in the order of their hand-over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints


class Due(NamedTuple):
    """Timers in the order of their hand-over: by tick, then by seq."""

    ticks: Ints
    seqs: Ints
    dues: Ints

    def __len__(self) -> int:
        return len(self.seqs)

    def select(self, rows: Any) -> Due:
        """Return some of them."""
        return Due(self.ticks[rows], self.seqs[rows], self.dues[rows])


def joined(pieces: Sequence[Due]) -> Due:
    """Return timers of several pieces, one behind the other."""
    if len(pieces) == 1:
        return pieces[0]
    none = np.zeros(0, np.int64)
    return Due(*(np.concatenate(columns) for columns in zip(*pieces, strict=True))) if pieces else Due(none, none, none)
