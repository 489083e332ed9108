"""Calls that several threads make at once, made by one of them: they go to the engine one behind the other, and to the disk together.

Threads that come one by one to an engine's lock, and then to a sync, wake each other up for each step of each call; with CPython's lock
around them that costs more than the calls. So calls gather while one thread, the leader, makes those that had gathered before, and waits
for the disk once. Then the first of the next group leads. Each thread wakes up once, and finds its call made.

**Why that is the same as calls made by their own threads.** Each call is made once, as its thread would make it, and nobody makes it
beside the engine's lock; it was not answered before, so any order of the calls of a group is one that their threads may have had. Its
answer or its error goes to its own thread, which asks the disk for its own ticket, however the leader fared there. A call that came when
the leader had gone through its group is made by its own thread, which finds it open.

**An exception from outside** (F4) comes from a signal handler, which runs in the main thread alone; that one makes its own calls, and
nobody else's. Where another thread planted one, it ends the leader: the call that was under way raises it in its own thread too, and those
that are open have the next of the group for a leader. Every lock is taken by ``with``. A finalizer that calls the store within a call of
its thread is refused, as the thread stands in ``Store._waiting`` meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from rmqstore.contract import Side, Ticket
from rmqstore.errors import RmqstoreError

if TYPE_CHECKING:
    from rmqstore.store.store import Store

_T = TypeVar("_T")


class _Call(Generic[_T]):
    """A call of an engine, and what became of it."""

    __slots__ = ("call", "error", "is_open", "made", "side")

    def __init__(self, side: Side, call: Callable[[], tuple[_T, Ticket]]) -> None:
        self.side = side
        self.call = call
        self.is_open = True
        self.made: tuple[_T, Ticket] | None = None
        self.error: BaseException | None = None


class _Group:
    """Calls that are made together; the holder of ``lock`` makes those that are open."""

    __slots__ = ("calls", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[_Call[object]] = []


class JointCalls:
    """Makes the calls of threads other than the main one, where each call waits for the disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gathering = _Group()
        self._leading = threading.Lock()

    def make(self, side: Side, call: Callable[[], tuple[_T, Ticket]]) -> tuple[_T, Ticket]:
        """Make a call, with those of other threads; returns what it gave, and raises what it raised.

        The disk was asked for it, and the caller asks again for its ticket, which says how that went.
        """
        store = self._store
        if not store._sync_calls or store._round is not None:
            return call()
        mine = _Call(side, call)
        waiting, me = store._waiting, threading.get_ident()
        try:
            waiting.add(me)
            group = self._gathering
            group.calls.append(mine)  # type: ignore[arg-type] # a group does not look at what calls give
            with group.lock:
                if mine.is_open:
                    with self._leading:
                        self._lead(group, mine)
        finally:
            waiting.discard(me)
        try:
            if mine.error is not None:
                raise mine.error
            if mine.made is None:
                raise RuntimeError("the thread that made this call with its own was ended in between, so whether it happened is unknown")
            return mine.made
        finally:
            del mine  # whose error holds this frame

    def _lead(self, group: _Group, own: _Call[_T]) -> None:
        """Make the open calls of a group, and let the disk follow."""
        if self._gathering is group:
            self._gathering = _Group()
        last: dict[Side, Ticket] = {}
        for each in group.calls:
            if not each.is_open:
                continue
            each.is_open = False
            try:
                each.made = each.call()
            except BaseException as error:
                each.error = error
                if each is not own and not isinstance(error, Exception):
                    raise
            else:
                if each.made[1].position:
                    last[each.side] = each.made[1]
        for side, ticket in last.items():
            with suppress(RmqstoreError):  # each call hears by itself whether it is durable
                self._store._settle(side, ticket)
