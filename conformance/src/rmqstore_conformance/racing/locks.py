"""Locks that give the turn on: what an engine gets for ``threading.Lock`` and ``RLock`` while a race is played.

For threads that take no turns they are the locks that they stand for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import ModuleType
from typing import Any, Final

from rmqstore_conformance.racing.turns import SEATS

_LOCK: Final[Any] = threading.Lock
_RLOCK: Final[Any] = threading.RLock


class TurnLock:
    """A ``Lock``."""

    counts = True
    """Whether its holder keeps others out; else it is only a signal."""

    def __init__(self) -> None:
        self._real: Any = _LOCK()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; where it is taken, let others have their turn."""
        seat = SEATS.get(get_ident())
        if seat is None:
            return bool(self._real.acquire(blocking, timeout))
        if not self._take() and not (blocking and seat.turns.wait_for(seat, self, self._take, has_patience=timeout < 0)):
            return False
        if self.counts:
            seat.locks += 1
        return True

    def _take(self) -> bool:
        return bool(self._real.acquire(False))

    def release(self) -> None:
        """Let go of it, and let those that come first and waited for it go on."""
        self._real.release()
        self._let_go()

    def _let_go(self) -> None:
        seat = SEATS.get(get_ident())
        if seat is not None:
            if self.counts:
                seat.locks = max(seat.locks - 1, 0)
            seat.turns.let_go(self)
            return
        for turns in {each.turns for each in list(SEATS.values())}:
            turns.let_go(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        return bool(self._real.locked())

    def _at_fork_reinit(self) -> None:
        self._real._at_fork_reinit()


class TurnSignal(TurnLock):
    """A lock that a ``Condition`` makes for each that waits."""

    counts = False


class TurnRLock(TurnLock):
    """An ``RLock``, with what a ``Condition`` asks of it."""

    def __init__(self) -> None:
        self._real = _RLOCK()

    def _is_owned(self) -> bool:
        return bool(self._real._is_owned())

    def _release_save(self) -> Any:
        state = self._real._release_save()
        self._let_go()
        return state

    def _acquire_restore(self, state: Any) -> None:
        self.acquire()
        self._real.release()
        self._real._acquire_restore(state)


_INSTEAD: Final[dict[Any, Callable[[], TurnLock]]] = {_LOCK: TurnLock, _RLOCK: TurnRLock}


@contextmanager
def turn_locks(is_concerned: Callable[[str], bool]) -> Iterator[None]:
    """Have ``threading``, and the modules that are concerned, make locks of this kind within a ``with`` block."""
    changed: list[tuple[ModuleType, str, Any]] = [(threading, "Lock", _LOCK), (threading, "RLock", _RLOCK)]
    changed.append((threading, "_allocate_lock", _LOCK))
    for name, module in list(sys.modules.items()):
        if is_concerned(name):
            changed += [(module, each, value) for each, value in list(vars(module).items()) if value is _LOCK or value is _RLOCK]
    for module, name, real in changed:
        setattr(module, name, TurnSignal if name == "_allocate_lock" else _INSTEAD[real])
    try:
        yield
    finally:
        for module, name, real in changed:
            setattr(module, name, real)
