"""Due timers that are alike, which most of one hand-over are: each part lies where it does in the first of them.

They are cut as the columns of a matrix, which takes a third of the time of ``addressing``'s way, and gives the same bytes. Whatever is not
alike goes that way.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints, counted

Flags = np.ndarray[Any, np.dtype[np.bool_]]

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


def common_bytes(sizes: Ints) -> int | None:
    """Return the length that nearly all records have; None when too few have the same."""
    lengths, counts = counted(sizes)
    most = int(counts.argmax())
    return int(lengths[most]) if counts[most] >= _SHARE * len(sizes) else None


def same_columns(matrix: Any) -> Flags:
    """Say in which columns all rows have the same byte."""
    same: Flags = np.logical_and.reduce(matrix == matrix[0], axis=0)
    return same


def telling_rows(matrix: Any, same: Flags, begin: int, end: int) -> Any:
    """Return the rows that show what there is between two columns: one where all have the same."""
    return matrix[:1] if same[begin:end].all() else matrix


def are_alike(matrix: Any, same: Flags, layout: Layout) -> bool:
    """Say whether all records have the parts that the first one has, where that has them.

    Compared is all that says so: magic, hosts, the length of the body, the wheel's topic, the length of the properties, and the names of
    the properties behind those that are kept, with what ends their values.
    """
    fixed = (
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
    return all(same[begin:end].all() for begin, end in fixed) and all(
        (telling_rows(matrix, same, begin, end)[:, begin:end] != _END).all() for begin, end in values
    )


def side_by_side(matrix: Any, bounds: tuple[tuple[int, int], ...]) -> Any:
    """Return some columns of a matrix, those between each pair of bounds behind those before."""
    made = np.empty((len(matrix), sum(end - begin for begin, end in bounds)), np.uint8)
    at = 0
    for begin, end in bounds:
        made[:, at : at + end - begin] = matrix[:, begin:end]
        at += end - begin
    return made
