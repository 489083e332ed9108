"""Calls that a signal handler, or a finalizer, makes in the middle of a call of its thread (F4).

Such a call would wait for the end of the one around it, or for another thread that does, so it is refused before it takes any lock. What it
is within stands on the stack of its thread, where an exception leaves nothing behind; what a thread notes elsewhere only says that a look
may be worth it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from rmqstore.store.waits import Signal

if TYPE_CHECKING:
    from rmqstore.store.reader import Reader


def refuse_within(store: Reader, waiting: Collection[CodeType]) -> None:
    """Refuse a call of a store whose thread waits for the disk in it.

    Args:
        waiting: the methods of the store in which that is done.

    Raises:
        RuntimeError: nothing was done.
    """
    frame: FrameType | None = sys._getframe(1)
    while (frame := frame and frame.f_back) is not None:
        if frame.f_code in waiting and frame.f_locals["self"] is store:
            raise RuntimeError(
                "a signal handler or a finalizer called the store while the same thread waits for the disk; this call did nothing: note in "
                "the handler what is to be done, and do it behind the call"
            )


def is_closed_around(store: Reader) -> bool:
    """Say whether the thread that closes a store is closing it already, which that close goes on with.

    In the middle of another call a close is refused, but for one that waits for messages or for room, which ends then.

    Raises:
        RuntimeError: nothing was done.
    """
    is_within: bool | None = None  # by the innermost frame that tells
    frame: FrameType | None = sys._getframe(1)
    while (frame := frame and frame.f_back) is not None:
        module = frame.f_globals.get("__name__", "")
        if frame.f_code is Signal.wait_beyond.__code__ and is_within is None:
            is_within = False
        elif module.startswith(f"{__package__}."):
            owner, name = frame.f_locals.get("self"), frame.f_code.co_name
            if owner is store and name == "close":
                return True
            if is_within is None and name != "__exit__" and (owner is store or getattr(owner, "_store", None) is store):
                is_within = True
    if is_within:
        raise RuntimeError(
            f"a signal handler or a finalizer closes {store!r} within another call of the same thread; nothing was done: raise an "
            "exception in the handler, or note there that the program is to end, and close the store behind the call"
        )
    return False
