"""The steps of a thread: each line of the Python of the engines under test, and each call that comes back within a line.

CPython lets another thread go on behind a call that came back, at the begin of a function and at a jump back; and a build without a global
lock does so anywhere. So a step is a line, the begin or the end of a function, and, where the thread holds no lock, the place behind each
call within a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

from rmqstore import Store
from rmqstore.contract import Side, Ticket, TimerStore
from rmqstore_conformance.faults.interrupting import steps_of
from rmqstore_conformance.racing.turns import Seat

_KIT: Final = "rmqstore"
_SUITE: Final = "rmqstore_conformance"

_NOTHING_SHARED: Final = (
    "rmqstore.batch",
    "rmqstore.columns",
    "rmqstore.contract",
    "rmqstore.errors",
    "rmqstore.filters",
    "rmqstore.ids",
    "rmqstore.store.receipts",
    "rmqstore.message",
    "rmqstore.when",
)
"""Modules that know nothing that threads share, so that a switch there is as good as one behind their calls."""


_DURABLE: Final = frozenset(("fsync", "fdatasync", "sync", "msync", "flush_wal"))
_COMMITS: Final = frozenset(("commit", "__exit__"))


def _makes_durable(called: Any) -> bool:
    """Whether a call into C asks a disk, or a library that keeps a database, to make things durable."""
    name = getattr(called, "__name__", "")
    owner = type(getattr(called, "__self__", None)).__name__
    return name in _DURABLE or (name in _COMMITS and owner in ("Transaction", "Connection"))


class Scope:
    """What is looked at: the modules of a store and of its engines, and the calls of its sides."""

    def __init__(self, store: Store) -> None:
        sides = (store.engine.timers, store.engine.pops)
        kinds = {kind for side in sides for kind in type(side).__mro__}
        own = {kind.__module__ for kind in kinds}
        self._packages = {_KIT} | {name.partition(".")[0] for name in own} - {_SUITE, "builtins", "abc"}
        self._modules = {name for name in own if name.startswith(_SUITE)}
        self.calls: set[CodeType] = {
            value.__code__
            for kind in kinds
            for name, value in vars(kind).items()
            if isinstance(value, FunctionType) and not name.startswith("_")
        }
        self._known: dict[CodeType, bool] = {}

    def has_module(self, name: str) -> bool:
        if name in self._modules:
            return True
        return name.partition(".")[0] in self._packages and not name.startswith(_NOTHING_SHARED)

    def has(self, frame: FrameType) -> bool:
        found = self._known.get(frame.f_code)
        if found is None:
            found = self._known[frame.f_code] = self.has_module(str(frame.f_globals.get("__name__", "")))
        return found


class Stepping:
    """Takes the steps of one thread.

    Attributes:
        tickets: by side, the highest position of the tickets that its calls of that side gave.
        wrote: the moment before the last call of a side that gave a ticket of what was not durable yet; -1 without one.
        syncs: the moments before calls of the system or of a library that made something durable, and came back.
    """

    def __init__(self, seat: Seat, scope: Scope) -> None:
        self.tickets: dict[str, int] = {}
        self.wrote = -1
        self.syncs: list[int] = []
        self._began = -1
        self._seat = seat
        self._turns = seat.turns
        self._scope = scope
        self._inside: FrameType | None = None
        self._called = -1
        self._around = 0
        """Locks that were held when the call of a side began: those of the store, not of the engine."""

    def run(self, work: Callable[[], None], *, watches_disk: bool = False) -> None:
        """Do something step by step; what syncs is two steps more, where it is watched."""
        sys.settrace(self._begin)
        if watches_disk:
            sys.setprofile(self._look_at_c)
        try:
            work()
        finally:
            sys.setprofile(None)
            sys.settrace(None)

    def _look_at_c(self, frame: FrameType, event: str, called: Any) -> None:
        if self._inside is None or event not in ("c_call", "c_return") or not _makes_durable(called):
            return
        if event == "c_return":
            self.syncs.append(self._began)
        self._turns.step(self._seat, frame.f_code, frame.f_lineno, self._seat.locks - self._around)
        self._began = self._turns.moment()

    def _begin(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self._scope.has(frame):
            return None
        is_begin = self._inside is None and frame.f_code in self._scope.calls
        if is_begin:
            self._inside, self._around = frame, self._seat.locks
            self._called = self._turns.moment()
            self._turns.begin(self._seat, frame.f_code)
        return self._stepped(frame)

    def _look(self, frame: FrameType, event: str, result: Any) -> Any:
        if event == "opcode":
            if self._seat.locks > self._around or frame.f_lasti not in steps_of(frame.f_code):
                return self._look
        elif event == "exception":
            return self._look
        self._stepped(frame)
        if event == "return" and frame is self._inside:
            self._inside, self._around = None, 0
            self._turns.end(self._seat)
            self._note(frame, result)
        return self._look

    def _note(self, frame: FrameType, result: object) -> None:
        """Take down the ticket that a call of a side gives."""
        given = result[-1] if isinstance(result, tuple) and result else result
        if isinstance(given, Ticket):
            side = frame.f_locals.get("self")
            name = "timers" if isinstance(side, TimerStore) else "pops"
            self.tickets[name] = max(self.tickets.get(name, 0), given.position)
            if isinstance(side, Side) and given.position > side.durable_position:
                self.wrote = self._called

    def _stepped(self, frame: FrameType) -> Any:
        self._turns.step(self._seat, frame.f_code, frame.f_lineno, self._seat.locks - self._around)
        frame.f_trace_opcodes = self._inside is not None and self._seat.locks == self._around
        return self._look
