"""Tag expressions: ``*``, or tags joined by ``||`` (P10, RocketMQ ``FilterAPI``)."""

from __future__ import annotations

import functools
import re

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, UnsupportedOperationError

_TAG = re.compile(r"[^\s|'\"<>=()]+")


def tags_of(expression: str) -> frozenset[bytes] | None:
    """Return the tags that pass, in UTF-8; None when all do.

    Raises:
        UnsupportedOperationError: the expression is no tag expression, but may be SQL92.
        IllegalArgumentError: the expression is empty.
    """
    if not isinstance(expression, str):
        raise IllegalArgumentTypeError(f"filter must be a str, not {type(expression).__name__}")
    return _parsed(expression)


@functools.lru_cache(maxsize=256)
def _parsed(expression: str) -> frozenset[bytes] | None:
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
    try:
        return frozenset(tag.encode() for tag in tags)
    except UnicodeEncodeError:
        raise IllegalArgumentError(f"filter {expression!r} is not valid Unicode text") from None
