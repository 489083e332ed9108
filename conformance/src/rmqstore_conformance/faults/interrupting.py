"""Exceptions that come from outside, as a signal handler raises them, at a chosen step of a call: for deterministic tests of F4.

CPython runs signal handlers in the main thread only, and there only where an instruction looks for them: behind a call that came back and
at the begin of a function. Those are the *steps* here. A trace function raises in their place, at the n-th one. It does so only where the
instruction that looks and the next one are under the same handler, since the exception would come out of the former.
"""

from __future__ import annotations

import dis
import functools
import gc
import random
import sys
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from rmqstore import Store

T = TypeVar("T")

_LOOKS: Final = ("RESUME", "CALL", "CALL_FUNCTION_EX")
_NOT_OWN: Final = ("rmqstore_conformance",)
_LIBRARY: Final = ("contextlib", "threading")

_FIRST_STEPS: Final = 300
_LENGTHS: Final = 16
"""How many calls of a kind are remembered by their lengths."""


class Interrupted(BaseException):
    """What a handler raises: like KeyboardInterrupt, nothing that a program would catch by the way."""


class TimedOut(Exception):
    """Likewise, but what ``except Exception`` catches, as the handlers of timeouts raise it."""


@functools.cache
def steps_of(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which a signal handler may run."""
    handlers = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined] # typeshed does not know it

    def handler_at(offset: int) -> int:
        return max((entry.target for entry in handlers if entry.start <= offset < entry.end), default=-1)

    found = list(dis.get_instructions(code))
    return frozenset(
        behind.offset for look, behind in pairwise(found) if look.opname in _LOOKS and handler_at(look.offset) == handler_at(behind.offset)
    )


def belongs_to(store: Store) -> Callable[[str], bool]:
    """Return what tells by its name whether a module is the framework's, or that of an engine of this store."""
    modules = {kind.__module__ for side in (store.engine.timers, store.engine.pops) for kind in type(side).__mro__} - {"abc", "builtins"}
    packages = {name.partition(".")[0] for name in modules}.difference(_NOT_OWN)
    return functools.cache(lambda name: _is_framework(name) or name.partition(".")[0] in packages or name in modules)


def _is_framework(name: str) -> bool:
    package = name.partition(".")[0]
    return (package.startswith("rmqstore") and package not in _NOT_OWN) or name in _LIBRARY


def interrupted(act: Callable[[], T], step: int) -> tuple[T, int]:
    """Make a call of the framework or of one of its own engines, interrupted at a step; returns as :func:`stepped` does."""

    def interrupt() -> None:
        raise Interrupted

    return stepped(act, step, interrupt, _is_framework)


def stepped(act: Callable[[], T], step: int, come: Callable[[], None], is_own: Callable[[str], bool]) -> tuple[T, int]:
    """Make a call, and have something else ``come`` at a step of it, counted from 1.

    Returns what the call gave, and how many steps it took.
    """
    done = 0

    def look(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        if event == "opcode" and frame.f_lasti in steps_of(frame.f_code):
            done += 1
            if done == step:
                come()
        return look

    def begin(frame: FrameType, event: str, _: Any) -> Any:
        if not is_own(str(frame.f_globals.get("__name__", ""))):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return look

    before = sys.gettrace()
    gc.disable()  # what it finds of earlier stores would take steps in the middle of this call
    sys.settrace(begin)
    try:
        return act(), done
    finally:
        sys.settrace(before)
        gc.enable()


class Interrupts:
    """Interrupts calls at steps chosen by chance, of short calls of a kind as often as of long ones; every third call is left alone."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._lengths: dict[str, deque[int]] = {}

    def during(self, store: Store, name: str, act: Callable[[], T], come: Callable[[], None] | None = None) -> T:
        """Make a call of a kind ``name``, and most often raise in the middle of it, or have something else ``come`` there."""
        lengths = self._lengths.setdefault(name, deque([_FIRST_STEPS], _LENGTHS))
        step = self._chance.randint(1, self._chance.choice(lengths)) if self._chance.random() < 2 / 3 else 0
        result, length = stepped(act, step, come or self._raise, belongs_to(store))
        lengths.append(length + 1)
        return result

    def _raise(self) -> None:
        raise self._chance.choice((Interrupted, TimedOut))
