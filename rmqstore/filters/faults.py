"""What is wrong with a filter expression, and how it is told."""

from __future__ import annotations

from rmqstore.errors import IllegalFilterError

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
    shown = "".join(char if char.isprintable() else _unprintable(char) for char in text[: 2 * _REACH])
    return f"{shown}…" if len(text) > 2 * _REACH else shown


def _unprintable(char: str) -> str:
    return " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"


def _excerpt(expression: str, position: int) -> str:
    start, end = max(0, position - _REACH), position + _REACH
    before, after = quoted(expression[start:position]), quoted(expression[position:end])
    return f"«{'…' if start else ''}{before}^{after}{'…' if end < len(expression) else ''}»"
