"""What the timer side and the pop side of one database share: the lock, the epoch, and the way back after a full disk.

One lock serialises all calls of both sides; disk syncs run outside of it, so that concurrent ones share. A database that found no room and
may have lost what was not durable refuses calls (``OrderedKV.refusal``), so the next call opens it again and both sides read their state
again: a failed call leaves nothing behind (F1, F3).

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
6. A handler that calls the store itself finds the frame of a call that is not over on its own stack, and is refused.

So an interrupted call happened wholly or not at all, and the one behind it answers as after a crash, except that nothing was lost. A close
is such a call too: a database may write down what is in memory when it is closed.

**A snapshot** goes on beside other calls (R7), however much it copies: it holds the lock for the steps alone for which the database asks
(``OrderedKV.snapshot``). It is of one position of the log of both sides, so of some number of whole calls, and what was answered before it
is before that position, as it begins with a sync. Only its steps under the lock are calls in the sense above: what is interrupted in
between leaves nothing in memory that is not stored.

What both sides of a key-ordered session do alike: everything that concerns the database as a whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType

from rmqstore.contract import EngineOptions, Flush, Side, Ticket
from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import IfLost, OrderedKV, WriteBatch
from rmqstore.engine.schema import EPOCH_KEY, META
from rmqstore.errors import LostCallsError, RmqstoreError, StoreFullError


def epoch_of(kv: OrderedKV) -> int:
    """Return the epoch that the database has stored."""
    return int.from_bytes(kv.get(META, EPOCH_KEY) or b"", "big")


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
        self._reloads: list[Callable[[], None]] = []
        self.is_stale = False
        """Whether the database is to be opened again, and both sides are to read their state."""
        self.firm = 0
        """Position of the last write that answers rest on: leases are not among them with ``pop.flush = async``."""
        self._leased: list[tuple[int, int]] = []
        """Of leases that are not durable, by what they rest on (``firm``): that, and the position of the last of them."""
        self.untold = 0
        """Calls up to this position were answered and may be gone, and no call of the application has heard of it yet."""
        self.epoch = epoch_of(kv)
        if read_only:
            return
        self.epoch = max(self.epoch + 1, options.min_epoch)
        batch = WriteBatch()
        batch.put(META, EPOCH_KEY, self.epoch.to_bytes(4, "big"))
        kv.sync(kv.write(batch))

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Call ``reload`` whenever the database had to be opened again."""
        self._reloads.append(reload)

    def refresh_if_needed(self) -> None:
        """Open the database again if it found no room, have its state read again, and tell of what is lost; with the lock held."""
        if self.kv.refusal is not None:
            if not self._is_full:
                self.kv.check()
            self.is_stale = True
        if self.is_stale:
            self.untold = max(self.untold, self._answered())
            self.kv.reopen()
            self.reload()
            self.is_stale = False
        if self.untold:
            self._tell_of_lost()

    @property
    def _is_full(self) -> bool:
        """Whether calls are refused until the database is opened again."""
        return self.kv.refusal is not None and self.kv.refusal.error is StoreFullError

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
            self.kv.sync(self.untold)
        except StoreFullError as error:
            what, setting = ("what was answered", "flush") if self.options.flush is Flush.ASYNC else ("leases that were given", "pop.flush")
            lost = f"{what} since the last flush is gone ({setting} = async); this call did nothing, the next one goes on"
            self.untold = 0
            raise LostCallsError(f"{error}; {lost}") from error
        self.untold = 0

    def after_interrupt(self) -> None:
        """Work everything in memory out again, after a call that was cut short."""
        self.kv.after_interrupt()
        # What the sides read is then durable, which they take for granted.
        self.kv.sync(self.kv.position)
        self.reload()

    def reload(self) -> None:
        """Let both sides read their state again."""
        self.floors.forget()
        self.firm = self.kv.position
        if self._read_only:
            self.epoch = epoch_of(self.kv)
        for reload in self._reloads:
            reload()

    def refresh(self) -> None:
        """Read everything again from what the database holds now; only for a session that writes nothing."""
        with self.lock:
            self.is_stale = True
            with self.call:
                pass

    def write(self, batch: WriteBatch) -> Ticket:
        """Apply a batch; the ticket waits for it."""
        self.floors.follow(batch)
        position = self.kv.write(batch)
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

    def flush(self) -> None:
        """Make everything durable; call it without the lock."""
        with self.lock, self.call as kv:
            kv.write_back()
        self.kv.sync()

    def snapshot(self, path: Path) -> None:
        """Write a copy of the database; call it without the lock."""
        self.flush()
        self.kv.snapshot(path, self._alone)

    def _alone(self, step: Callable[[], None]) -> None:
        with self.lock, self.call:
            step()

    def close(self) -> None:
        """Close the database once.

        Raises:
            LostCallsError: calls that were answered are gone (``flush = async``, ``pop.flush = async``); it is closed all the same.
        """
        with self.lock:
            is_full = self._is_full
            try:
                if (is_full or self.kv.refusal is None) and (self.call.is_under_way or self.untold or (is_full and self._answered())):
                    # By no call of its own: a signal handler may close the store within one, which ends as an interrupted one does.
                    self.refresh_if_needed()
                    if self.call.is_under_way:
                        self.after_interrupt()
            finally:
                self.kv.close()


class Call:
    """One call of a session: ``with shared.lock, shared.call as kv``; the module says what for. Calls are not nested.

    Attributes:
        is_under_way: the note; with the lock held, and outside of a call, that one was cut short.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.is_under_way = False
        self._frame: FrameType | None = None

    def __enter__(self) -> OrderedKV:
        shared = self._shared
        kv = shared.kv
        if self._frame is not None:
            self._refuse_within()
        self._frame = sys._getframe(1)
        if kv.refusal is not None or shared.is_stale or shared.untold:
            shared.refresh_if_needed()
        if self.is_under_way:
            shared.after_interrupt()
        self.is_under_way = True
        return kv

    def _refuse_within(self) -> None:
        """Refuse a call that a signal handler, or a finalizer, makes within one of its thread: it would see, and leave, half of that.

        Raises:
            RuntimeError: none of rmqstore's own, before which a call is known to have changed nothing: this may go through the outer one.
        """
        frame: FrameType | None = sys._getframe(2)
        while (frame := frame and frame.f_back) is not None:
            if frame is self._frame:
                raise RuntimeError(
                    "a signal handler or a finalizer called the store within another call of the same thread; this call did nothing: "
                    "note in the handler what is to be done, and do it behind the call"
                )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None or issubclass(kind, RmqstoreError):
            # The note is taken back: memory is what is stored.
            self.is_under_way = False
            self._frame = None


class OrderedSide(Side):
    """A side over the shared database."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._options = shared.options
        self._lock = shared.lock
        self._call = shared.call

    def sync(self, ticket: Ticket | None = None) -> None:
        if ticket is None:
            self._shared.flush()
        else:
            self._shared.kv.sync(ticket.position)

    @property
    def durable_position(self) -> int:
        return self._shared.kv.durable_position

    def held(self) -> AbstractContextManager[object]:
        return self._lock

    def snapshot(self, path: Path) -> None:
        self._shared.snapshot(path)

    def close(self) -> None:
        self._shared.close()
