"""Calls that a signal handler, or a finalizer, makes in the middle of a call of its thread (F4).

Such a call would wait for the end of the one around it, or for another thread that does, so it is refused before it takes any lock. What it
is within stands on the stack of its thread, where an exception leaves nothing behind; what a thread notes elsewhere only says that a look
may be worth it.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Final

from rmqstore.store.administration import Transfer
from rmqstore.store.waits import Signal

if TYPE_CHECKING:
    from rmqstore.store.reader import Reader

_OF_STORE: Final = f"{__package__}."
_OF_A_CALL: Final = (_OF_STORE, "rmqstore.services.metrics")
"""Whose frames a call has before it asks; the metrics wrap calls."""

_OF_A_WORKER: Final = ("rmqstore.services.consuming", "rmqstore.services.worker")


def refuse_within(store: Reader) -> None:
    """Refuse a call of a store in the middle of another one of its thread, but for a pop or a send that waits for messages or for room.

    Raises:
        RuntimeError: nothing was done.
    """
    frame, is_own = sys._getframe(1), True  # the frames of the call itself come first
    while (around := frame.f_back) is not None:
        frame = around
        module = frame.f_globals.get("__name__", "")
        if is_own and module.startswith(_OF_A_CALL):
            continue
        is_own = False
        if frame.f_code is Signal.wait_beyond.__code__ or frame.f_code is Transfer.dump.__code__:
            return  # a dump holds nothing while it tells how far it is
        if module.startswith(_OF_STORE):
            owner = frame.f_locals.get("self")
            if owner is store or getattr(owner, "_store", None) is store:
                raise RuntimeError(
                    f"a signal handler or a finalizer called {store!r} within another call of the same thread; this call did nothing: note "
                    "in the handler what is to be done, and do it behind the call, or raise an exception in the handler"
                )


def stack_of_caller() -> tuple[int, bool]:
    """Return how deep the stack of this thread is, and whether it is free of calls around the one that asks.

    A worker's handler is in no call: its worker waits for it, and holds nothing.
    """
    frame: FrameType | None = sys._getframe(1)
    depth, is_own, is_free = 0, True, True
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        is_own = is_own and module.startswith(_OF_A_CALL)
        if not is_own and module.startswith("rmqstore.") and not module.startswith(_OF_A_WORKER):
            is_free = False
        frame = frame.f_back
        depth += 1
    return depth, is_free


def is_closed_around(closing: Reader, owned: Reader | None) -> bool:
    """Say whether the thread that closes a store is closing it already, which that close goes on with.

    In the middle of another call a close is refused, as above.

    Args:
        owned: what closes with it: itself, or the store that it shares with other processes, if this one has it open.

    Raises:
        RuntimeError: nothing was done.
    """
    frame: FrameType | None = sys._getframe(1)
    while (frame := frame and frame.f_back) is not None:
        is_close = frame.f_code.co_name == "close" and frame.f_globals.get("__name__", "").startswith("rmqstore.")  # not of a subclass
        if is_close and frame.f_locals.get("self") is closing:
            return True
    if owned is not None:
        refuse_within(owned)
    return False
