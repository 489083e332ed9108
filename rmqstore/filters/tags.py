"""Tag expressions: ``*``, or tags joined by ``||`` (P10, RocketMQ ``FilterAPI``)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.filters.columns import ColumnReader
from rmqstore.filters.faults import Fault
from rmqstore.filters.filter import Filter, Mask, PropertyColumns

TAGS = "TAGS"
"""The property that holds the tag of a message."""

_ALL = "*"
_TAG = re.compile(r"[^\s|'\"<>=()]+")


class TagFilter(Filter):
    """Passes messages with one of some tags.

    Attributes:
        tags: the tags that pass; None when every message does, also one without a tag.
    """

    def __init__(self, expression: str, tags: frozenset[str] | None) -> None:
        self.expression = expression
        self.tags = tags
        self.names = frozenset() if tags is None else frozenset({TAGS})

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self.tags is None or properties.get(TAGS) in self.tags

    def mask(self, columns: PropertyColumns, count: int) -> Mask:
        if self.tags is None:
            return np.ones(count, dtype=bool)
        found = ColumnReader(columns, count).texts(TAGS)
        mask: Mask = pc.is_in(found, value_set=pa.array(sorted(self.tags), found.type)).to_numpy(zero_copy_only=False)
        return mask


def parse_tags(expression: str) -> TagFilter | None:
    """Return the filter of a tag expression; None when the expression is no tag expression, and so may be SQL92.

    Raises:
        Fault: the expression is empty, or names an empty tag.
    """
    text = expression.strip()
    if text == _ALL:
        return TagFilter(expression, None)
    if not text:
        raise Fault(0, "expected a filter, found nothing", "write * for all messages, or tags like a || b")
    parts = expression.split("||")
    tags = [part.strip() for part in parts]
    if not all(_TAG.fullmatch(tag) for tag in tags if tag):
        return None
    if "" in tags:
        empty = tags.index("")
        raise Fault(sum(len(part) + len("||") for part in parts[:empty]), "expected a tag, found none", "write tags like a || b")
    return TagFilter(expression, frozenset(tags))
