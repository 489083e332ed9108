"""What the timer side and the pop side of one database share: the lock, the epoch, and the way back after a full disk.

One lock serialises all calls of both sides; disk syncs run outside of it, so that concurrent ones share. When a write or a sync finds no
room, what was not durable may be gone, so the next call opens the database again and both sides read their state again: a failed call
leaves nothing behind (F1, F3).

**An exception may come from outside, anywhere** (F4): a signal handler raises it, KeyboardInterrupt for one, between any two steps of a
call: before the write, or between it and what memory takes over from it, or within either. Then memory is not what is stored. Why that does
no harm:

1. What is stored is always some number of whole calls, as a write is atomic; that is the argument against crashes, too.
2. All that is in memory beside it is worked out from it, by each ``on_reload``.
3. A call is ``with lock, call as kv``. It notes that it is under way, and takes the note back only when it comes to its end: with an
   answer, or with an error of rmqstore's own, before which it changed nothing (F3). So whatever exception goes through it leaves the note,
   also one on the way into or out of the block.
4. A call that finds the note drops what is in memory and has it worked out again, first the database (``OrderedKV.after_interrupt``), then
   both sides. No call can come in between, as the note is written and read under the lock alone. If this is cut short, the note stays.
5. The lock is taken and let go by ``with`` on a lock of C's, between whose steps and the block CPython runs no signal handler; a lock whose
   ``__enter__`` is written in Python (``Condition``, or a context manager around a lock) could stay held for ever.

So an interrupted call happened wholly or not at all, and the one behind it answers as after a crash, except that nothing was lost. A close
is such a call too: a database may write down what is in memory when it is closed.

**A snapshot** goes on beside other calls (R7), however much it copies: it holds the lock for the steps alone for which the database asks
(``OrderedKV.snapshot``). It is of one position of the log of both sides, so of some number of whole calls, and what was answered before it
is before that position, as it begins with a sync. Only its steps under the lock are calls in the sense above: what is interrupted in
between leaves nothing in memory that is not stored.

What both sides of a key-ordered session do alike: everything that concerns the database as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from rmqstore.contract import EngineOptions, Flush, Side, Ticket
from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import IfLost, OrderedKV, WriteBatch
from rmqstore.engine.schema import EPOCH_KEY, META
from rmqstore.errors import LostCallsError, RmqstoreError, StoreClosedError, StoreError, StoreFullError, StorePoisonedError


class Shared:
    """The database of one session, with a new open epoch that is durable before anything else is written.

    With ``read_only`` there is no new epoch, and nothing is ever written.
    """

    def __init__(self, kv: OrderedKV, options: EngineOptions, *, read_only: bool = False) -> None:
        self.kv = kv
        self.floors = Floors(kv)
        self.options = options
        self._read_only = read_only
        self.lock = threading.RLock()
        self.call = Call(self)
        self.is_fresh = True
        """Whether :meth:`fresh` need not be asked: the database is neither stale nor poisoned nor closed."""
        self._reloads: list[Callable[[], None]] = []
        self._stale = False
        self._poison: StorePoisonedError | None = None
        self._closed = False
        self.firm = 0
        """Position of the last write that answers rest on: leases are not among them with ``pop.flush = async``."""
        self._leased: list[tuple[int, int]] = []
        """Of leases that are not durable, by what they rest on (``firm``): that, and the position of the last of them."""
        self._untold = 0
        """Calls up to this position were answered and may be gone, and no call of the application has heard of it yet."""
        self.epoch = self._stored_epoch()
        if read_only:
            return
        self.epoch = max(self.epoch + 1, options.min_epoch)
        batch = WriteBatch()
        batch.put(META, EPOCH_KEY, self.epoch.to_bytes(4, "big"))
        kv.sync(kv.write(batch))

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Call ``reload`` whenever the database had to be opened again."""
        self._reloads.append(reload)

    def fresh(self) -> OrderedKV:
        """Return the database, opened again if it has to be; with the lock held."""
        if self._closed:
            raise StoreClosedError("the store is closed")
        if self._poison is not None:
            raise StorePoisonedError(*self._poison.args) from self._poison
        if self._stale:
            self._untold = max(self._untold, self._answered())
            self.kv.reopen()
            self.reload()
            self._stale = False
        if self._untold:
            self._tell_of_lost()
        # In this order, as a sync may go wrong in another thread meanwhile.
        self.is_fresh = True
        if self._stale or self._poison is not None:
            self.is_fresh = False
        return self.kv

    def _answered(self) -> int:
        """Return up to which position calls may have been answered that are not durable; 0 for none."""
        durable = self.kv.durable_position
        if self.options.flush is Flush.ASYNC:
            return self.kv.position if self.kv.position > durable else 0
        # A pop whose leases rest on more than is durable has heard itself of the disk.
        return max((last for rests_on, last in self._leased if rests_on <= durable < last), default=0)

    def _tell_of_lost(self) -> None:
        """Raise once when calls that were answered are gone, as no other call hears of it."""
        try:
            self.kv.sync(self._untold)
        except StoreFullError as error:
            what, setting = ("what was answered", "flush") if self.options.flush is Flush.ASYNC else ("leases that were given", "pop.flush")
            lost = f"{what} since the last flush is gone ({setting} = async); this call did nothing, the next one goes on"
            self._untold = 0
            raise LostCallsError(f"{error}; {lost}") from error
        except StoreError as error:
            self._note(error)
            raise
        self._untold = 0

    def after_interrupt(self) -> None:
        """Work everything in memory out again, after a call that was cut short."""
        self.kv.after_interrupt()
        # What the sides read is then durable, which they take for granted.
        self.sync(Ticket(self.kv.position))
        self.reload()

    def reload(self) -> None:
        """Let both sides read their state again."""
        self.floors.forget()
        self.firm = self.kv.position
        if self._read_only:
            self.epoch = self._stored_epoch()
        for reload in self._reloads:
            reload()

    def _stored_epoch(self) -> int:
        return int.from_bytes(self.kv.get(META, EPOCH_KEY) or b"", "big")

    def refresh(self) -> None:
        """Read everything again from what the database holds now; only for a session that writes nothing."""
        with self.lock:
            self._stale, self.is_fresh = True, False
            with self.call:
                pass

    def write(self, batch: WriteBatch) -> Ticket:
        """Apply a batch; the ticket waits for it."""
        self.floors.follow(batch)
        try:
            position = self.kv.write(batch)
        except StoreError as error:
            self._note(error)
            raise
        if batch.if_lost is IfLost.ANSWERS:
            self.firm = position
        elif batch.if_lost is IfLost.LEASES:
            self._note_leases(position)
        return Ticket(position)

    def _note_leases(self, position: int) -> None:
        leased, durable = self._leased, self.kv.durable_position
        while leased and leased[0][1] <= durable:
            del leased[0]
        if leased and leased[-1][0] == self.firm:
            del leased[-1]
        leased.append((self.firm, position))

    def sync(self, ticket: Ticket | None) -> None:
        """Wait until ``ticket`` is durable; call it without the lock. One that is durable is answered also after a close (F3)."""
        try:
            if ticket is None:
                with self.lock, self.call as kv:
                    kv.write_back()
            self.kv.sync(None if ticket is None else ticket.position)
        except StoreError as error:
            self._note(error)
            raise

    def snapshot(self, path: Path) -> None:
        """Write a copy of the database; call it without the lock."""
        self.sync(None)
        try:
            self.kv.snapshot(path, self._alone)
        except StoreError as error:
            self._note(error)
            raise

    def _alone(self, step: Callable[[], None]) -> None:
        with self.lock, self.call:
            step()

    def _note(self, error: StoreError) -> None:
        """Remember what went wrong with the disk."""
        if isinstance(error, StoreFullError):
            self._stale = True
            self.is_fresh = False
        elif isinstance(error, StorePoisonedError):
            self._poison = error
            self.is_fresh = False

    def close(self) -> None:
        """Close the database once.

        Raises:
            LostCallsError: calls that were answered are gone (``flush = async``, ``pop.flush = async``); it is closed all the same.
        """
        with self.lock:
            if self._closed:
                return
            try:
                if self._poison is None and (self.call.is_under_way or self._untold or (self._stale and self._answered())):
                    with self.call:
                        pass
            finally:
                self._closed = True
                self.is_fresh = False
                self.kv.close()


class Call:
    """One call of a session: ``with shared.lock, shared.call as kv``; the module says what for. Calls are not nested.

    Attributes:
        is_under_way: the note; with the lock held, and outside of a call, that one was cut short.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.is_under_way = False

    def __enter__(self) -> OrderedKV:
        shared = self._shared
        kv = shared.kv if shared.is_fresh else shared.fresh()
        if self.is_under_way:
            shared.after_interrupt()
        self.is_under_way = True
        return kv

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None or issubclass(kind, RmqstoreError):
            # The note is taken back: memory is what is stored.
            self.is_under_way = False


class OrderedSide(Side):
    """A side over the shared database."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._options = shared.options
        self._lock = shared.lock
        self._call = shared.call

    def sync(self, ticket: Ticket | None = None) -> None:
        self._shared.sync(ticket)

    @property
    def durable_position(self) -> int:
        return self._shared.kv.durable_position

    def held(self) -> AbstractContextManager[object]:
        return self._lock

    def snapshot(self, path: Path) -> None:
        self._shared.snapshot(path)

    def close(self) -> None:
        self._shared.close()
