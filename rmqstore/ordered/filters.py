"""Tag expressions: ``*``, or tags joined by ``||`` (P10, RocketMQ ``FilterAPI``)."""

from __future__ import annotations

import functools
import re

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, UnsupportedOperationError

_TAG = re.compile(r"[^\s|'\"<>=()]+")


@functools.lru_cache(maxsize=256)
def tags_of(expression: str) -> frozenset[bytes] | None:
    """Return the tags that pass, in UTF-8; None when all do.

    Raises:
        UnsupportedOperationError: the expression is no tag expression, but may be SQL92.
        IllegalArgumentError: the expression is empty.
    """
    if not isinstance(expression, str):
        raise IllegalArgumentTypeError(f"filter must be a str, not {type(expression).__name__}")
    text = expression.strip()
    if text == "*":
        return None
    if not text:
        raise IllegalArgumentError("filter is empty; write '*' for all messages, or tags like 'a || b'")
    tags = [tag.strip() for tag in text.split("||")]
    for tag in tags:
        if not tag:
            raise IllegalArgumentError(f"filter {expression!r} names an empty tag; write tags like 'a || b'")
        if not _TAG.fullmatch(tag):
            raise UnsupportedOperationError(
                f"filter {expression!r} is no tag expression like 'a || b', and this engine declares no SQL92 filter"
            )
    return frozenset(tag.encode() for tag in tags)
