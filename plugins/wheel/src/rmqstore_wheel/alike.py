"""Due timers that are alike, which most of one hand-over are: each part lies where it does in the first of them.

They are cut as the columns of a matrix, which takes a third of the time of ``addressing``'s way, and gives the same bytes. Whatever is not
alike goes that way.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints, counted

_SHARE: Final = 0.9
"""Of the records, which have to be as long as each other."""

_END: Final = 2


class Layout(NamedTuple):
    """Where the parts of a timer lie, counted from its first byte; see ``addressing.Waiting``.

    ``queue`` and ``out_value`` are where the values of ``REAL_QID`` and ``TIMER_OUT_MS`` start.
    """

    topic_field: int
    kept: int
    kept_end: int
    topic: int
    topic_end: int
    queue: int
    out: int
    out_value: int
    sum: int
    end: int


def main_rows(sizes: Ints) -> Ints | None:
    """Return which records have the length that most have; None when too few do."""
    lengths, counts = counted(sizes)
    most = int(counts.argmax())
    return np.flatnonzero(sizes == lengths[most]) if counts[most] >= _SHARE * len(sizes) else None


def are_alike(matrix: Any, layout: Layout) -> bool:
    """Say whether all records have the parts that the first one has, where that has them.

    Compared is all that says so: magic, hosts, the length of the body, the wheel's topic, the length of the properties, and the names of
    the properties behind those that are kept, with what ends their values.
    """
    first = matrix[0]
    same = (
        (4, 8),
        (36, 40),
        (84, 88),
        (layout.topic_field, layout.kept),
        (layout.kept_end - 1, layout.topic),
        (layout.topic_end, layout.queue),
        (layout.out - 1, layout.out_value),
        (layout.sum - 1, layout.end - 9),
        (layout.end - 1, layout.end),
    )
    values = ((layout.topic, layout.topic_end), (layout.queue, layout.out - 1), (layout.out_value, layout.sum - 1))
    return all((matrix[:, begin:end] == first[begin:end]).all() for begin, end in same) and all(
        (matrix[:, begin:end] != _END).all() for begin, end in values
    )


def side_by_side(matrix: Any, bounds: tuple[tuple[int, int], ...]) -> Any:
    """Return some columns of a matrix, those between each pair of bounds behind those before."""
    made = np.empty((len(matrix), sum(end - begin for begin, end in bounds)), np.uint8)
    at = 0
    for begin, end in bounds:
        made[:, at : at + end - begin] = matrix[:, begin:end]
        at += end - begin
    return made


def merged(matrix: Any, rows: Ints, others: Any, other_rows: Ints) -> Any:
    """Return a matrix that has the rows of two, each at the places that are said."""
    made = np.empty((len(rows) + len(other_rows), matrix.shape[1]), matrix.dtype)
    made[rows], made[other_rows] = matrix, others
    return made
