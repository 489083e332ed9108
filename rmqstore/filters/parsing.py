"""From the text of a filter to the filter: which language it is in, and its bounds."""

from __future__ import annotations

import functools

from rmqstore.errors import IllegalArgumentTypeError
from rmqstore.filters.faults import Fault
from rmqstore.filters.filter import Filter
from rmqstore.filters.sql92 import Sql92Filter
from rmqstore.filters.tags import parse_tags

MAX_EXPRESSION = 8192
"""Characters of the longest expression."""


def parse_filter(expression: str) -> Filter:
    """Return the filter that an expression describes.

    ``*`` and words joined by ``||`` are tag expressions; everything else is SQL92. Parsed filters are kept for the next call.

    Raises:
        IllegalFilterError: the expression is longer than 8192 characters, nested too deep, or is neither; says where and why.
        IllegalArgumentTypeError: the expression is no text.
    """
    if not isinstance(expression, str):
        raise IllegalArgumentTypeError(f"filter must be a str, not {type(expression).__name__}")
    return _parsed(expression)


@functools.lru_cache(maxsize=256)
def _parsed(expression: str) -> Filter:
    try:
        if len(expression) > MAX_EXPRESSION:
            raise Fault(MAX_EXPRESSION, f"expected at most {MAX_EXPRESSION} characters, found {len(expression)}")
        _check_unicode(expression)
        return parse_tags(expression) or Sql92Filter(expression)
    except Fault as fault:
        raise fault.told(expression) from None


def _check_unicode(expression: str) -> None:
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise Fault(error.start, "expected Unicode text, found half of a surrogate pair") from None
