"""Single sends of many threads: those that find two others under way go together, as one call of the engine with one sync.

A call costs Python as much for one message as for some, and threads that write one by one take turns in many places, each of which wakes
up one thread more. While one send syncs, another may write: its sync is the next. Who comes then joins a group. Its first thread waits
until the call before is over, puts all messages of the group in one call and syncs; the others wait for this thread, and find their
answers. Who comes meanwhile joins the next group.

**Why each is answered as if it had been alone:**

1. A put is all or nothing (F3). One that is refused has done nothing, whosesoever message the reason was; then each thread of the group
   puts its own, and gets its own error, or none. Where alone and together are not the same, sends go alone: under ``congestion_limit``,
   which draws for each call, and beyond ``max_delay_ms`` (``Placing``).
2. What a put gave is noted before its sync. Who finds it waits for the disk as after a call of its own
   (:mod:`rmqstore.engine.kv.group_commit`): not at all if the first thread has synced, and else it hears what that has heard.
3. Only what is plain through and through is given to another thread, and copied before, so no code of one sender runs in the call of
   another. A thread that is deep in its stack takes no others along.
4. A signal handler raises in the main thread (F4), so that one puts nothing of others: it joins groups, and leaves one that it would have
   to put. A thread into which another one throws an exception leaves its group: one that was not begun goes on without its message. If it
   was putting the others' messages, or ran out of memory there, nobody knows whether they are stored, and their threads hear that.

**Why nobody waits for ever.** A send waits for others only in a group, and a thread joins one only when it is in no other call of a store:
a finalizer, a signal handler or a callback that sends within one holds what its thread holds, an engine's lock perhaps, and goes alone.
What a group waits for is a send that is past its own wait: it needs the engine and the disk, and no lock of this module or of a program
(what a meter records waits for the end of the call). All locks are taken by ``with``, so whoever is thrown out lets go of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import chain
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from msgspec import structs

from rmqstore.batch import MessageBatch
from rmqstore.contract import Side, Ticket
from rmqstore.errors import LostCallsError, RmqstoreError, StoreUnavailableError
from rmqstore.message import Message, PoppedMessage
from rmqstore.store.handlers import stack_of_caller

if TYPE_CHECKING:
    from rmqstore.store.store import Store

_T = TypeVar("_T")
_Put: TypeAlias = Callable[[MessageBatch, int], tuple[_T, Ticket]]

_MOST: Final = 64
"""So many go together; engines put as many without arrays."""

_SMALL_BYTES: Final = 64 * 1024
"""Longer bodies go alone: what they cost is the disk, and many of them together would be a large call."""


class _Sending:
    """One message of a group.

    Attributes:
        row: which row of the put it is.
        is_gone: its thread does not wait for it.
    """

    __slots__ = ("is_gone", "message", "row")

    def __init__(self, message: Message | PoppedMessage) -> None:
        self.message = message
        self.row = 0
        self.is_gone = False


class _Group(Generic[_T]):
    """Sends that go together.

    Attributes:
        turn: its first holder puts all of them; the others wait for it.
        is_begun: nobody joins any more.
        is_refused: the put was refused, so each goes alone.
        answer: what the put gave.
    """

    __slots__ = ("answer", "is_begun", "is_refused", "sendings", "turn")

    def __init__(self) -> None:
        self.turn = Lock()
        self.sendings: list[_Sending] = []
        self.is_begun = False
        self.is_refused = False
        self.answer: tuple[_T, Ticket] | None = None


class SharedWrites(Generic[_T]):
    """Puts single messages on one side of a store, and waits for the disk; see the module docstring."""

    def __init__(self, store: Store, side: Side) -> None:
        self._store = store
        self._side = side
        self._main = threading.main_thread().ident
        # Of the last two calls, held each from its put until it is durable. Threads that replace them at once do no harm but to speed.
        self._last = self._one_before = Lock()
        self._last_is_shared = False
        self._joining: _Group[_T] = _Group()
        self._join_lock = Lock()

    def put(self, call: _Put[_T], batch: MessageBatch, now_ms: int) -> tuple[_T, int]:
        """Put a batch of one message by this call of the side, durably; returns what that gave, and which row of it is this message.

        Raises:
            StoreUnavailableError: the thread that put it with others was interrupted; it may be stored.
        """
        meets_others = self._last.locked() and (self._last_is_shared or self._one_before.locked())
        if (meets_others or self._joining.sendings) and (sent := self._to_join(batch)) is not None:
            answer = self._put_with_others(call, _Sending(sent), now_ms)
            if answer is not None:
                return answer
        over = Lock()
        with over:
            self._one_before, self._last, self._last_is_shared = self._last, over, False
            given, ticket = call(batch, now_ms)
            self._store._settle(self._side, ticket)
        return given, 0

    def _to_join(self, batch: MessageBatch) -> Message | PoppedMessage | None:
        """Return the message as another thread may put it; None when it has to go alone."""
        if get_ident() == self._main and all(each.is_gone for each in list(self._joining.sendings)):
            return None
        return _plain(batch.messages[0]) if _may_wait() else None

    def _put_with_others(self, call: _Put[_T], sending: _Sending, now_ms: int) -> tuple[_T, int] | None:
        """Join a group; returns as :meth:`put`, None where each is to go alone."""
        try:
            with self._join_lock:
                if len(self._joining.sendings) >= _MOST:
                    self._joining = _Group()
                group = self._joining
                group.sendings.append(sending)
            with group.turn:
                if not group.is_begun:
                    if get_ident() == self._main:
                        return None
                    self._lead(group, call, now_ms)
        finally:
            sending.is_gone = True
        if group.is_refused:
            return None
        if group.answer is None:
            raise StoreUnavailableError(
                "the thread that stored this message together with its own was interrupted, so it may be stored; look for it, or send "
                "with marks, so that a send can be made again"
            )
        given, ticket = group.answer
        self._store._settle(self._side, ticket)
        return given, sending.row

    def _lead(self, group: _Group[_T], call: _Put[_T], now_ms: int) -> None:
        with self._last:
            pass
        over = Lock()
        with over:
            batch = self._begun(group)
            self._one_before, self._last, self._last_is_shared = self._last, over, len(batch) > 1
            try:
                group.answer = call(batch, now_ms)
            except RmqstoreError as error:
                group.is_refused = True
                if isinstance(error, LostCallsError):  # is told once
                    raise
            else:
                self._store._settle(self._side, group.answer[1])

    def _begun(self, group: _Group[_T]) -> MessageBatch:
        """Let nobody join any more; returns the messages whose threads are there."""
        with self._join_lock:
            if self._joining is group:
                self._joining = _Group()
            group.is_begun = True
            there = [each for each in group.sendings if not each.is_gone]
            group.sendings = []  # a traceback may keep the group
        for row, each in enumerate(there):
            each.row = row
        return MessageBatch(messages=[each.message for each in there])


def _may_wait() -> bool:
    """Say whether this thread is in no other call of a store, and has half of its stack left."""
    depth, is_free = stack_of_caller()
    return is_free and depth < sys.getrecursionlimit() // 2


def _plain(message: Message | PoppedMessage) -> Message | PoppedMessage | None:
    """Return a copy that nobody else changes; None for one that is large, or that runs code of its sender when it is read."""
    texts = (message.topic, message.message_id, message.tag or "")
    properties = message.properties
    if len(message.body) > _SMALL_BYTES or type(properties) is not dict or type(message.keys) is not tuple:
        return None
    copy = dict(properties)
    if {*map(type, chain(texts, message.keys, copy, copy.values()))} != {str}:
        return None
    return structs.replace(message, properties=copy)  # also of an empty one, which its sender may fill meanwhile
