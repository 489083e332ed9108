"""LIKE patterns: ``%`` stands for any characters, ``_`` for exactly one (SQL92, JMS selectors; RocketMQ has no LIKE)."""

from __future__ import annotations

import functools
import re
from enum import Enum

MANY, ONE = "%", "_"
_LONG = 256
"""Characters of a regular expression from which on the library behind Arrow's kernels may try each state at each place of a text."""


class Shape(Enum):
    """What a pattern amounts to; all but the last are cheaper than a regular expression."""

    WHOLE = "equal"
    PREFIX = "starts_with"
    SUFFIX = "ends_with"
    INFIX = "match_substring"
    OTHER = "match_substring_regex"


class PatternEscapeError(ValueError):
    """An escape character stands before something that needs no escape; ``offset`` counts characters of the pattern from 0."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"bad escape at character {offset}")
        self.offset = offset


class LikePattern:
    """A pattern, cut at each ``%``.

    A segment is a list of characters, in which None stands for any one. A text matches when it starts with the first segment, ends with
    the last, and holds the others in between, in order and without overlap. One that ``is_long`` is matched text by text: Arrow takes
    seconds for 30 KB under a pattern of 4000 characters, :meth:`matches` some ms.

    Raises:
        PatternEscapeError: the escape character is the last, or is not followed by ``%``, ``_`` or itself.
    """

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        segments: list[list[str | None]] = [[]]
        chars = iter(enumerate(pattern))
        for offset, char in chars:
            if char == escape:
                _, escaped = next(chars, (offset, ""))
                if not escaped or escaped not in (MANY, ONE, escape):
                    raise PatternEscapeError(offset)
                segments[-1].append(escaped)
            elif char == MANY:
                segments.append([])
            else:
                segments[-1].append(None if char == ONE else char)
        self._segments = segments
        self.shape, self.argument = self._reduced()
        self.is_long = self.shape is Shape.OTHER and len(self.argument) > _LONG

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches; the time is bounded by the product of both lengths."""
        first, *middle = self._compiled
        if not middle:
            return first.fullmatch(text) is not None
        last = middle.pop()
        found = first.match(text)
        for segment in middle:
            if found is None:
                return False
            found = segment.search(text, found.end())  # the leftmost place leaves most room for the rest
        start = len(text) - len(self._segments[-1])
        return found is not None and start >= found.end() and last.fullmatch(text, start) is not None

    @functools.cached_property
    def _compiled(self) -> list[re.Pattern[str]]:
        return [re.compile("".join("." if char is None else re.escape(char) for char in part), re.DOTALL) for part in self._segments]

    def _reduced(self) -> tuple[Shape, str]:
        """Return the shape, and what the Arrow kernel of that shape is to look for."""
        texts = ["".join(char for char in part if char is not None) for part in self._segments]
        if all(None not in part for part in self._segments):
            match texts:
                case [text]:
                    return Shape.WHOLE, text
                case [text, ""]:
                    return Shape.PREFIX, text
                case ["", text]:
                    return Shape.SUFFIX, text
                case ["", text, ""]:
                    return Shape.INFIX, text
        return Shape.OTHER, rf"\A(?s:{'.*'.join(''.join(map(_in_re2, part)) for part in self._segments)})\z"


def _in_re2(char: str | None) -> str:
    """Return a character as RE2 reads it, which is the library behind Arrow's kernels."""
    if char is None:
        return "."
    return char if char.isalnum() or not char.isascii() else rf"\x{{{ord(char):x}}}"
