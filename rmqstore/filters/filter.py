"""From the text of a filter to the filter. ``*`` and words joined by ``||`` are tag expressions (P10, RocketMQ ``FilterAPI``).

All else is SQL92: RocketMQ's subset of it (``org.apache.rocketmq.filter``) and LIKE; docs/filters.md has the language, example by example,
and each difference from RocketMQ.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping

from rmqstore.errors import IllegalArgumentTypeError, IllegalFilterError

MAX_EXPRESSION = 8192
"""Characters of the longest expression."""

TAGS = "TAGS"
"""The property that holds the tag of a message."""

_ALL = "*"
_TAG = re.compile(r"[^\s|'\"<>=()]+")


class Filter(ABC):
    """A parsed filter expression; immutable, so threads may share it.

    Attributes:
        expression: the text it was parsed from.
        names: the properties that the outcome depends on; no other needs to be decoded. The tag is ``TAGS``, the keys are
            ``KEYS``, the message id is ``UNIQ_KEY`` and the message group is ``__SHARDINGKEY``.
    """

    expression: str
    names: frozenset[str]

    @abstractmethod
    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties passes."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


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


class Sql92Filter(Filter):
    """An SQL92 expression; the parser and its library are imported with the first one, since most programs never use any.

    Attributes:
        like_length: the characters of all patterns of LIKE, each of which may be compared with each place of a property.

    Raises:
        Fault: the expression is none.
    """

    def __init__(self, expression: str) -> None:
        from rmqstore.filters.grammar import parse

        self.expression = expression
        self._condition, self.names, self.like_length = parse(expression)

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self._condition(properties) is True


def parse_filter(expression: str) -> TagFilter | Sql92Filter:
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
def _parsed(expression: str) -> TagFilter | Sql92Filter:
    try:
        if len(expression) > MAX_EXPRESSION:
            raise Fault(MAX_EXPRESSION, f"expected at most {MAX_EXPRESSION} characters, found {len(expression)}")
        expression.encode()
        return _parse_tags(expression) or Sql92Filter(expression)
    except UnicodeEncodeError as error:
        raise Fault(error.start, "expected Unicode text, found half of a surrogate pair").told(expression) from None
    except Fault as fault:
        raise fault.told(expression) from None


def _parse_tags(expression: str) -> TagFilter | None:
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


# ---------------------------------------------------------------- what is wrong with an expression


_REACH = 24
"""Characters that an excerpt shows on each side of the caret."""


class Fault(Exception):
    """Something is wrong at one place of an expression; raised where the expression itself is not at hand.

    Attributes:
        position: characters before the place, from 0.
        problem: what was expected and what was found, without a full stop.
        fix: what to write instead; empty where nothing is obvious.
    """

    def __init__(self, position: int, problem: str, fix: str = "") -> None:
        super().__init__(problem)
        self.position = position
        self.problem = problem
        self.fix = fix

    def told(self, expression: str) -> IllegalFilterError:
        """Return the error for the user: one paragraph that names the place, the problem and the fix."""
        fix = f"; {self.fix}" if self.fix else ""
        message = f"filter, character {self.position} (from 0): {self.problem}, at the caret in {_excerpt(expression, self.position)}{fix}"
        return IllegalFilterError(message, expression=expression, position=self.position)


def quoted(text: str) -> str:
    """Return a piece of an expression as a message shows it: on one line, and short."""
    shown = "".join(char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text[: 2 * _REACH])
    return f"{shown}…" if len(text) > 2 * _REACH else shown


def _excerpt(expression: str, position: int) -> str:
    start, end = max(0, position - _REACH), position + _REACH
    before, after = quoted(expression[start:position]), quoted(expression[position:end])
    return f"«{'…' if start else ''}{before}^{after}{'…' if end < len(expression) else ''}»"
