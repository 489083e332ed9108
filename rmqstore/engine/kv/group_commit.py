"""Who may call an open database, and who syncs it for whom: the part of every ``OrderedKV`` that has nothing to do with keys.

A :class:`CommittedKV` counts positions, lets one thread do the disk sync that all waiting threads share, and refuses calls once the
database is full, poisoned, closed, or seen from a forked child. Refusal is one attribute, so an open one costs one look.

Threads wait for one another at locks, taken by ``with``, and at nothing else: a thread that a signal handler interrupts anywhere lets go
of them, so none of the others waits for ever.

**Who waits where.** One sync is under way at a time, whose thread holds ``leading``. It began with all that was written up to a position;
who wrote that waits at the gate of this sync, a lock that the leader holds, and is through when the sync is. Who wrote later, or wants
everything durable, waits at the next gate, whose first holder waits for ``leading`` and takes the others with it. With one lock for both,
who is through would wait behind the sync that its leader, or another, begins meanwhile: of 16 threads that send one a call, a sync served
four or five where it serves eight. Who comes through a gate and finds its write not durable, since the leader was interrupted,
leads itself. What is at stake is only who waits for how long: whether a write is durable is asked of ``durable_position`` alone, at
whatever gate.

**A close** is four steps: it makes durable what is not, refuses calls, lets go of everything, and notes that nothing is left to close. Why
one that is interrupted anywhere (F4) loses nothing, and is made whole by the next:

1. An interrupt before the refusal leaves an open database, as an interrupted sync does: nothing is let go of, so what was answered and is
   not durable is still in memory, or in the files. The next close begins anew.
2. From the refusal on, everything is durable, or the disk has said why not. The next close skips the first step, and lets go again. To let
   go twice is to let go once: each thing that is open says so itself, and between what closes it and what it then says CPython runs no
   signal handler.
3. The lock of the directory is let go of last. So who opens the directory meets no file of this database, and a close that is made again
   behind that finds nothing that is open.
4. The note is the end of it, so who finds it finds nothing open.

An error of the disk in the first step keeps nothing open: the other steps follow.
"""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from bisect import bisect_left
from operator import itemgetter
from threading import Lock
from typing import Final

from rmqstore.engine.kv.base import OrderedKV, Refusal
from rmqstore.errors import (
    CorruptStoreError,
    IllegalArgumentError,
    RmqstoreError,
    StoreClosedError,
    StoreForkedError,
    StoreFullError,
    StorePoisonedError,
)

_LOST: Final = 1024
"""So many reopens that dropped writes are known; who asks is a thread between its write and its sync, and meets one or two of them."""

_LAST: Final = itemgetter(1)


class CommittedKV(OrderedKV):
    """State, positions and group commit of one open database.

    Args:
        name: what the messages call the database, its path for example.
        keeps_written: a write that finds no room leaves the finished ones in place, and they can still be synced.

    Attributes:
        lock: guards the positions and whatever the database adds.
        leading: its holder syncs, or keeps others from it.
    """

    position: int = 0
    durable_position: int = 0
    _is_let_go = False

    def __init__(self, name: str, *, keeps_written: bool = False) -> None:
        self.name = name
        self._keeps_written = keeps_written
        self.lock = Lock()
        self.leading = Lock()
        # Up to which position the sync under way reaches, where threads wait for it, and where they wait for the one behind it.
        self._gates: tuple[int, Lock, Lock] = (0, Lock(), Lock())
        # (kept, last): writes behind the first position up to the second are gone. Rising, and only replaced as a whole.
        self._lost: list[tuple[int, int]] = []
        _open_databases.add(self)

    @abstractmethod
    def _sync_to_disk(self) -> int:
        """Make at least every write durable that was finished when this was called, and return the position reached.

        Called by one thread at a time, without the lock. Raises ``StoreFullError`` for lack of room; any other error poisons.
        """

    # ------------------------------------------------------------ calls let in or refused

    @property
    def closed(self) -> bool:
        """Whether there is nothing left to close."""
        return self._is_let_go or (self.refusal is not None and self.refusal.error is StoreForkedError)

    def refuse_full(self, cause: BaseException) -> StoreFullError:
        """Refuse calls until :meth:`readmit`, for lack of room; return the error to raise."""
        message = f"{self.name}: no room on the disk ({cause}); make room, then reopen"
        self._refuse(Refusal(StoreFullError, message, cause))
        return StoreFullError(message)

    def refuse_poisoned(self, cause: BaseException, what: str) -> StorePoisonedError:
        """Refuse calls for good; return the error to raise."""
        message = f"{self.name}: {what} failed ({cause}), so what is durable is unknown; close the store and open it again"
        self._refuse(Refusal(StorePoisonedError, message, cause))
        return StorePoisonedError(message)

    def _refuse(self, refusal: Refusal) -> None:
        with self.lock:
            # The first reason stays, except that a full database may turn out to be worse than full.
            if self.refusal is None or self.refusal.error is StoreFullError:
                self.refusal = refusal

    def refuse_closed(self) -> None:
        """Refuse calls from now on, because the database is closed, and wait for a sync under way."""
        with self.lock:
            self.refusal = Refusal(StoreClosedError, f"{self.name} is closed; open it again")
        with self.leading:
            pass

    def reopen(self) -> None:
        if self.refusal is None:
            self.sync()
        elif self.closed:
            # Before the lock, which in a forked child a thread of the parent may hold for ever.
            self.check()
        # What the last sync said is known then, and none meets a database that is closed.
        with self.leading:
            with self.lock:
                if self.refusal is None:
                    self.refusal = Refusal(StoreFullError, f"{self.name} is being reopened")
                if self.refusal.error is not StoreFullError:
                    self.check()
            self.readmit(self._reopen_files())

    def _reopen_files(self) -> int:
        """Open the files again, if there are any, with calls refused; returns up to which position the writes are there, durably."""
        return self.position

    def readmit(self, kept: int) -> None:
        """Let calls in again after the database was reopened; of the writes so far, those up to position ``kept`` are there, durably.

        Positions go on: the ones after ``kept`` name writes that are gone, and a sync of one of them says so. The next one is that of the
        database as it is now.
        """
        with self.lock:
            if kept < self.position:
                self._lost = [*self._lost[1 - _LOST :], (kept, self.position)]
            self.position += 1
            self.durable_position = self.position
            self._readmitted()
            self.refusal = None

    def _readmitted(self) -> None:
        """Take over, with the lock held, by what the next :meth:`reopen` tells ``kept``: an interrupt before has it told anew."""

    # ------------------------------------------------------------ group commit

    def sync(self, position: int | None = None) -> None:
        if position is not None and position <= self.durable_position:
            # Not refused, whatever happened since: the caller would repeat a call that was done.
            if self._lost:
                self._check_kept(position)
            return
        if self.refusal is not None:
            # Before the lock, which in a forked child a thread of the parent may hold for ever.
            self._check_sync(position)
        target = self.position if position is None else position
        if target > self.position:
            raise IllegalArgumentError(f"no write has position {target} yet, the last one has {self.position}")
        reached = -1
        while reached < target:
            covered, gate, later = self._gates
            mine = gate if position is not None and target <= covered else later
            with mine:
                # Asked before the next sync is waited for, which this write does not need.
                if position is not None and position <= self.durable_position:
                    if self._lost:
                        self._check_kept(position)
                    return
                with self.leading:
                    with self.lock:
                        if self._lost and position is not None:
                            self._check_kept(position)
                        if self.refusal is not None and (target > self.durable_position or position is None):
                            self._check_sync(position)
                        if target <= self.durable_position:
                            return
                        self._gates = (self.position, mine, Lock())
                    try:
                        reached = self._sync_to_disk()
                    except Exception as error:
                        if (refused := self._refused_by(error)) is None:
                            raise
                        raise refused from error
                    with self.lock:
                        self.durable_position = max(self.durable_position, reached)

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Make everything durable, unless calls are refused, and let go of the files; idempotent. See the module docstring."""
        if self.closed:
            return
        try:
            if self.refusal is None:
                self._make_durable()
        except Exception as error:
            if not is_from_outside(error):
                self._end()
            raise
        self._end()

    def _end(self) -> None:
        self.refuse_closed()
        self._let_go()
        self._is_let_go = True

    def _make_durable(self) -> None:
        """Make everything durable before a close."""
        self.sync()

    @abstractmethod
    def _let_go(self) -> None:
        """Close what is open, the lock of the directory last; where it was interrupted, it is done again from the start."""

    # ------------------------------------------------------------ who syncs

    def _check_kept(self, position: int) -> None:
        """Raise when the write at ``position`` was dropped by a reopen."""
        lost = self._lost
        at = bisect_left(lost, position, key=_LAST)
        if at < len(lost) and lost[at][0] < position:
            raise StoreFullError(f"{self.name}: the write at position {position} was dropped when the disk was full")

    def _check_sync(self, position: int | None) -> None:
        """Raise when calls are refused, unless a write that is there can be synced all the same."""
        is_full = self.refusal is not None and self.refusal.error is StoreFullError
        if not (is_full and self._keeps_written and position is not None):
            self.check()

    def _refused_by(self, error: Exception) -> Exception | None:
        """Refuse calls because of what a sync raised; return the error to raise in its place, None for itself."""
        if isinstance(error, StoreFullError):
            return self.refuse_full(error)
        if is_from_outside(error):
            # The disk said nothing, so the next thread may ask it.
            return None
        refused = self.refuse_poisoned(error, "a disk sync")
        return None if isinstance(error, CorruptStoreError) else refused


def is_from_outside(error: Exception) -> bool:
    """Say whether a signal handler raised an error: what an engine raises is of rmqstore, or numbered by the system (F4)."""
    return not isinstance(error, RmqstoreError) and getattr(error, "errno", None) is None


_open_databases: weakref.WeakSet[CommittedKV] = weakref.WeakSet()


def _refuse_in_forked_child() -> None:
    for each in list(_open_databases):
        if not each.closed:
            each.refusal = Refusal(StoreForkedError, f"{each.name} was opened before the fork; a forked child must open a store of its own")


os.register_at_fork(after_in_child=_refuse_in_forked_child)
