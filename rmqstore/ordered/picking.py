"""Which records of a run pass a filter (P10), decoding no more of them than the filter asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from rmqstore.filters import Filter, TagFilter
from rmqstore.ordered.recordformat import RecordFormat

_BY_ROW = 16
"""So few records are looked at one by one: Arrow's kernels cost more than that before they begin."""


class Picker(ABC):
    """Picks records by a filter."""

    @abstractmethod
    def pick(self, records: Sequence[bytes], skip: int, wanted: int) -> tuple[Sequence[int], int]:
        """Return the places of up to ``wanted`` records from ``skip`` on that pass, and the place behind the last one looked at."""


class TagPicker(Picker):
    """Compares tags as bytes."""

    def __init__(self, tags: frozenset[str], record_format: RecordFormat) -> None:
        self._tags = frozenset(tag.encode() for tag in tags)
        self._tag_of = record_format.tag_of

    def pick(self, records: Sequence[bytes], skip: int, wanted: int) -> tuple[Sequence[int], int]:
        taken: list[int] = []
        tag_of, tags = self._tag_of, self._tags
        for at in range(skip, len(records)):
            if tag_of(records[at]) in tags:
                taken.append(at)
                if len(taken) == wanted:
                    return taken, at + 1
        return taken, len(records)


class ColumnPicker(Picker):
    """Evaluates any filter on the columns of the properties that it names."""

    def __init__(self, filter: Filter, record_format: RecordFormat) -> None:
        self._filter = filter
        self._format = record_format

    def pick(self, records: Sequence[bytes], skip: int, wanted: int) -> tuple[Sequence[int], int]:
        names = self._filter.names
        if len(records) - skip <= _BY_ROW:
            texts = self._format.property_texts
            passing = [at for at in range(skip, len(records)) if self._filter.matches(texts(records[at], names))]
        else:
            mask = self._filter.mask(self._format.property_columns(records[skip:], names), len(records) - skip)
            passing = (np.flatnonzero(mask) + skip).tolist()
        if len(passing) < wanted:
            return passing, len(records)
        return passing[:wanted], passing[wanted - 1] + 1


def picker_of(filter: Filter, record_format: RecordFormat) -> Picker | None:
    """Return what picks records of a format by a filter; None when every record passes."""
    if isinstance(filter, TagFilter):
        return None if filter.tags is None else TagPicker(filter.tags, record_format)
    return ColumnPicker(filter, record_format)
