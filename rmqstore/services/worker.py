"""``store.consume``: threads that pop messages, give each to a handler, and ack what it has done.

What is promised is what leases promise: a message that was popped is handled, and handled again when its worker dies or its handler raises,
until it is acked or its attempts are used up. So a handler may see a message twice, and must not mind.

A thread acks a batch with its next pop, in one atomic step and one sync (``pop(…, acks=…)``). Beside the threads there is a keeper. Once a
second it acks what was done meanwhile, and before leases end it extends those of what is not done, of all threads in one call. So
``invisible`` is how soon another worker gets what a dead one held, and says nothing of how long a handler may take.

Receipts change with each extension. So whoever uses one holds the lock of its batch until the answer is there, but for a pop, which waits:
it closes its batch first, which has nothing left to extend then.
"""

from __future__ import annotations

import enum
import functools
import inspect
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import msgspec

from rmqstore.contract import AckOutcome, ChangeOutcome, ChangeResult, RejectOutcome
from rmqstore.errors import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    LostCallsError,
    RmqstoreError,
    StoreClosedError,
    StoreForkedError,
    StorePoisonedError,
    UnsupportedOperationError,
)
from rmqstore.filters import parse_filter
from rmqstore.message import MAX_POP, PoppedMessage, check_group, check_readable_topic
from rmqstore.when import timedelta_ms

if TYPE_CHECKING:
    from rmqstore.store.store import Store

_log = logging.getLogger("rmqstore")

Handler: TypeAlias = Callable[[PoppedMessage], object]
Leased: TypeAlias = PoppedMessage | ChangeResult
_T = TypeVar("_T")

_WAIT: Final = timedelta(seconds=1)
"""How long a pop waits, and so how long a stop may take where nothing comes."""

_ACK_S: Final = 1.0
"""So often the keeper acks what is done."""

_LOCK_S: Final = 0.05
"""So long the keeper waits for a batch; what it misses, it sees with its next round."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0

_FINAL: Final = (
    StoreClosedError,
    StoreForkedError,
    StorePoisonedError,
    LostCallsError,  # calls of the application are gone, which it has to be told
    IllegalArgumentError,
    UnsupportedOperationError,
)
"""Errors behind which no later attempt would go better."""


class Retry(Exception):
    """Raised by a handler: the message shall come again ``after`` this time, and the attempt counts."""

    def __init__(self, after: timedelta, reason: str = "") -> None:
        timedelta_ms("after", after, minimum=1)
        super().__init__(reason or f"again after {after}")
        self.after = after


class Reject(Exception):
    """Raised by a handler: no further attempt can help, so the message goes to the dead letter queue, with ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class WorkerStats(msgspec.Struct):
    """What a worker has done since it began.

    Attributes:
        done: messages that were handled and acked.
        retried, rejected: messages that were given back for another attempt, and given up.
        lost: messages whose lease ended, or was taken, before it could be acked: somebody else has them, or had.
    """

    done: int = 0
    retried: int = 0
    rejected: int = 0
    lost: int = 0


class _State(enum.Enum):
    WAITS = enum.auto()
    RUNS = enum.auto()
    DONE = enum.auto()
    GONE = enum.auto()


class _Batch:
    """What one thread has popped: each message under the receipt that counts, and how far it is.

    Attributes:
        extend_s: when its leases are to be extended, by the clock that only goes forward.
        is_closed: nothing is left to do but to ack what is done, and a pop does that.
        runs_since_s: when the handler began that runs.
    """

    def __init__(self, messages: Sequence[PoppedMessage] = (), extend_s: float = 0.0) -> None:
        self.lock = threading.Lock()
        self.extend_s = extend_s
        self.leased: list[Leased] = list(messages)
        self.states = [_State.WAITS] * len(messages)
        self.is_closed = False
        self.runs_since_s = 0.0

    def places(self, *states: _State) -> list[int]:
        """Return the places of the messages that are so far."""
        return [place for place, state in enumerate(self.states) if state in states]

    def same_queue(self, place: int, state: _State) -> list[int]:
        """Return the places of those messages of the queue of one that are so far."""
        queue = self._queue(place)
        return [each for each in self.places(state) if self._queue(each) == queue]

    def _queue(self, place: int) -> tuple[str, int]:
        message = self.message(place)
        return message.topic, message.queue_id

    def set(self, places: Iterable[int], state: _State) -> None:
        """Note how far messages are."""
        for place in places:
            self.states[place] = state

    def message(self, place: int) -> PoppedMessage:
        """Return a message."""
        leased = self.leased[place]
        message = leased.message if isinstance(leased, ChangeResult) else leased
        assert message is not None
        return message


class Worker:
    """Threads that consume; made by ``store.consume``. :meth:`stop`, or the end of a ``with`` block, ends it.

    Attributes:
        stats: what it has done.
        failure: the error that ended it, such as that the store was closed; None while it runs, and after a stop.
    """

    def __init__(
        self,
        store: Store,
        topics: str | Sequence[str],
        group: str,
        handler: Handler,
        *,
        threads: int,
        batch: int,
        invisible: timedelta,
        timeout: timedelta | None,
        order: bool,
        filter: str,
    ) -> None:
        """``Store.consume`` has the arguments, and their defaults."""
        if not isinstance(topics, Sequence) or not topics:
            raise IllegalArgumentTypeError(f"topics must be a topic or a list of them, not {topics!r}")
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            check_readable_topic(name)
        check_group(group)
        parse_filter(filter)
        _check_handler(handler)
        for what, number, most in (("threads", threads, 1024), ("batch", batch, MAX_POP)):
            if type(number) is not int or not 1 <= number <= most:
                raise IllegalArgumentError(f"{what} must be an int of 1 to {most}, not {number!r}")
        self._invisible = timedelta(milliseconds=timedelta_ms("invisible", invisible, minimum=1000))
        self._every_s = self._invisible / timedelta(seconds=3)
        self._timeout_s = None if timeout is None else timedelta_ms("timeout", timeout, minimum=1) / 1000
        self._store = store
        self._group = group
        self._handler = handler
        self._order = order
        self._asked: dict[str, Any] = {"max_messages": batch, "invisible": self._invisible, "order": order, "filter": filter}
        self._lock = threading.Lock()
        self._batches: dict[int, _Batch] = {}
        self._ended, self._over = threading.Event(), threading.Event()
        self.stats = WorkerStats()
        self.failure: BaseException | None = None
        self._running = len(names) * threads
        self._pid = os.getpid()
        self._keeper = threading.Thread(target=self._keep, name="rmqstore-worker-leases", daemon=True)
        self._threads = [
            threading.Thread(target=self._run, args=(topic,), name=f"rmqstore-worker-{topic}-{number}", daemon=True)
            for topic in names
            for number in range(threads)
        ]
        try:
            for thread in (self._keeper, *self._threads):
                thread.start()
        except BaseException:  # no room for one more; those that run must not go on without anybody who could stop them
            self._ended.set()
            for thread in self._threads:
                if thread.ident is None:
                    self._one_less()
            raise

    # ------------------------------------------------------------ from outside

    def stop(self) -> None:
        """Begin no message more, wait for the handlers that run, ack what is done, and give back what was not begun. Idempotent.

        Called by a handler it waits for nobody.

        Raises:
            RmqstoreError: the one that ended the worker before, if one did.
        """
        self._end()
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            raise RmqstoreError(f"a handler ended its worker by {_told(self.failure)}") from self.failure

    def _end(self) -> None:
        """As :meth:`stop`, whatever ended the worker before."""
        self._ended.set()
        if threading.current_thread() not in self._threads:
            self.join()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end, which comes with :meth:`stop` or a :attr:`failure`; says whether it has come."""
        if threading.current_thread() in self._threads:
            raise IllegalArgumentError("a handler cannot wait for the end of its own worker")
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            return True
        is_over = self._over.wait(timeout_s)
        if is_over:
            self._keeper.join()
        return is_over

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # ------------------------------------------------------------ one thread

    def _run(self, topic: str) -> None:
        try:
            self._consume(topic)
        except BaseException as error:  # of whatever kind: a worker that has lost a thread says so
            self._fail(error)
        finally:
            self._batches.pop(threading.get_ident(), None)
            self._one_less()

    def _one_less(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._over.set()

    def _consume(self, topic: str) -> None:
        batch = _Batch()
        pause_s = _FIRST_PAUSE_S
        try:
            while not self._ended.is_set():
                try:
                    popped = self._pop(topic, batch)
                except _FINAL as error:
                    self._fail(error)
                except RmqstoreError as error:
                    _log.warning("a worker of group %s waits %.1f s: %s", self._group, pause_s, error)
                    self._ended.wait(pause_s)
                    pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                else:
                    pause_s = _FIRST_PAUSE_S
                    self._batches[threading.get_ident()] = batch = _Batch(popped, time.monotonic() + self._every_s)
                    self._handle_all(batch)
        finally:
            self._give_back(batch)

    def _pop(self, topic: str, before: _Batch) -> Sequence[PoppedMessage]:
        """Pop, and ack what is done of the batch before."""
        with before.lock:
            done = before.places(_State.DONE)
            before.is_closed = True
        try:
            popped = self._store.pop(topic, self._group, wait=_WAIT, acks=[before.leased[place] for place in done], **self._asked)
        except BaseException:
            before.is_closed = False
            raise
        before.set(done, _State.GONE)
        self._note_acks(popped.acks)
        return popped

    def _handle_all(self, batch: _Batch) -> None:
        for place in range(len(batch.leased)):
            with batch.lock:
                if self._ended.is_set():
                    return
                if batch.states[place] is not _State.WAITS:
                    continue
                batch.states[place] = _State.RUNS
                batch.runs_since_s = time.monotonic()
            try:
                # The lease is the worker's: a receipt would be out of date with the next extension.
                result = self._handler(msgspec.structs.replace(batch.message(place), proof=None))
                if inspect.isawaitable(result):
                    _drop(result)
                    raise TypeError("the handler gave something to be awaited, which nobody does; it must be a plain function")
            except BaseException as error:
                self._give_up(batch, place, error)
                if not isinstance(error, Exception):
                    raise
            else:
                with batch.lock:
                    if batch.states[place] is _State.RUNS:
                        batch.states[place] = _State.DONE

    def _give_up(self, batch: _Batch, place: int, error: BaseException) -> None:
        """Do with a message what its handler's error asks for; where order is kept, what is behind it in its queue is not handled."""
        with batch.lock:
            if batch.states[place] is not _State.RUNS:
                return  # somebody else has it
            batch.states[place] = _State.GONE  # not extended any more, so that it comes again even if the store cannot be told why
            behind = batch.same_queue(place, _State.WAITS) if self._order else []
            try:
                if self._order:
                    # Only the head of a queue can die, so what is done must not stay in front of it.
                    _twice(self._ack, batch, batch.same_queue(place, _State.DONE))
                if not _twice(self._tell, batch.leased[place], error):
                    _twice(self._release, batch, behind)
            except _FINAL as final:
                self._fail(final)
            except RmqstoreError as failed:
                _log.warning("a worker of group %s could not give a message back, which comes again later: %s", self._group, failed)
                batch.set(behind, _State.GONE)

    def _tell(self, leased: Leased, error: BaseException) -> bool:
        """Reject a message, or give it back for another attempt; says whether it is gone for good."""
        if isinstance(error, Reject):
            is_rejected = self._store.reject(leased, reason=_text(error)) is RejectOutcome.REJECTED
            self._count("rejected" if is_rejected else "lost")
            return is_rejected
        after = getattr(error, "after", None) if isinstance(error, Retry) else None
        reason = _told(error) if after is None else _text(error)
        is_changed = self._store.retry_later(leased, after, reason=reason).outcome is ChangeOutcome.CHANGED
        self._count("retried" if is_changed else "lost")
        return False

    def _give_back(self, batch: _Batch) -> None:
        """Ack what is done, and release what was not begun."""
        with batch.lock:
            for step, state in ((self._ack, _State.DONE), (self._release, _State.WAITS)):
                try:
                    step(batch, batch.places(state))
                except RmqstoreError as error:
                    if not isinstance(error, StoreClosedError):
                        _log.warning("a worker of group %s could not finish; its last messages come again: %s", self._group, error)
                    if self.failure is None:
                        self.failure = error

    def _ack(self, batch: _Batch, places: Sequence[int]) -> None:
        if places:
            self._note_acks(self._store.ack([batch.leased[place] for place in places]))
            batch.set(places, _State.GONE)

    def _release(self, batch: _Batch, places: Sequence[int]) -> None:
        if places:
            self._store.release([batch.leased[place] for place in places])
            batch.set(places, _State.GONE)

    def _note_acks(self, outcomes: Sequence[AckOutcome]) -> None:
        if outcomes:
            lost = sum(outcome not in (AckOutcome.ACKED, AckOutcome.ALREADY_ACKED) for outcome in outcomes)
            self._count("done", len(outcomes) - lost)
            self._count("lost", lost)

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            setattr(self.stats, what, getattr(self.stats, what) + number)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error
        self._ended.set()
        _log.error("a worker of group %s ends: %s", self._group, _text(error))

    # ------------------------------------------------------------ the keeper

    def _keep(self) -> None:
        while not self._over.wait(min(_ACK_S, self._every_s)):  # also for handlers that run behind a stop
            try:
                self.keep()
            except _FINAL as error:
                self._fail(error)
            except Exception as error:
                _log.warning("a worker of group %s could not extend its leases: %s", self._group, error)

    def keep(self, *, ahead_s: float = 0.0) -> None:
        """Ack what is done, and extend leases that are due for it within ``ahead_s`` seconds; the worker does it by itself, in time."""
        with ExitStack() as locks:
            batches = []
            for batch in list(self._batches.values()):
                # A thread that tells the store something, which may take long, holds up its own batch alone.
                if batch.lock.acquire(timeout=_LOCK_S):
                    locks.callback(batch.lock.release)
                    if not batch.is_closed:
                        batches.append(batch)
            overrun = [batch for batch in batches if self._is_overrun(batch)]
            due_s = time.monotonic() + ahead_s + self._every_s / 4
            due = [batch for batch in batches if batch not in overrun and batch.extend_s <= due_s]
            # Each also when another one fails; the leases first, which do not wait.
            steps: list[Callable[[], None]] = [lambda: self._extend_all(due), lambda: self._ack_all(batches)]
            # Others handle what a handler that runs too long keeps waiting.
            steps += [functools.partial(self._release, batch, batch.places(_State.WAITS)) for batch in overrun]
            failed: RmqstoreError | None = None
            for step in steps:
                try:
                    step()
                except RmqstoreError as error:
                    failed = error
            if failed is not None:
                raise failed

    def _is_overrun(self, batch: _Batch) -> bool:
        runs = bool(batch.places(_State.RUNS))
        return runs and self._timeout_s is not None and time.monotonic() - batch.runs_since_s > self._timeout_s

    def _ack_all(self, batches: Sequence[_Batch]) -> None:
        done = [(batch, place) for batch in batches for place in batch.places(_State.DONE)]
        if done:
            self._note_acks(self._store.ack([batch.leased[place] for batch, place in done]))
            for batch, place in done:
                batch.states[place] = _State.GONE

    def _extend_all(self, batches: Sequence[_Batch]) -> None:
        held = [(batch, place) for batch in batches for place in batch.places(_State.WAITS, _State.RUNS)]
        if not held:
            return
        begun_s = time.monotonic()
        results = self._store.change_invisible([batch.leased[place] for batch, place in held], self._invisible)
        for (batch, place), result in zip(held, results, strict=True):
            batch.extend_s = begun_s + self._every_s
            if result.outcome is ChangeOutcome.CHANGED:
                batch.leased[place] = result
            else:
                batch.states[place] = _State.GONE
                self._count("lost")


def end_all(workers: Iterable[Worker]) -> None:
    """End the workers of a store that closes, as long as there is a store to ack in; what failed in them, they tell themselves.

    A handler that closes the store waits for none of them: another one of them may do so, too.
    """
    mine = [worker for worker in workers if worker._pid == os.getpid()]
    for worker in mine:
        worker._ended.set()
    if not any(threading.current_thread() in worker._threads for worker in mine):
        for worker in mine:
            worker._end()


def _twice(step: Callable[..., _T], *arguments: Any) -> _T:
    """Do a step, and once more if it fails for a reason that may have passed."""
    try:
        return step(*arguments)
    except _FINAL:
        raise
    except RmqstoreError:
        return step(*arguments)


def _check_handler(handler: Handler) -> None:
    """Refuse what is no function, or one whose call does nothing by itself."""
    plain: Any = handler
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not callable(plain):
        raise IllegalArgumentTypeError(f"handler must be a function that takes a message, not {handler!r}")
    for each in (plain, inspect.getattr_static(type(plain), "__call__", None)):
        if inspect.iscoroutinefunction(each) or inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise IllegalArgumentTypeError(f"handler {handler!r} is async or a generator, whose call does nothing; give a plain function")


def _drop(awaitable: Any) -> None:
    """Let go of a coroutine that nobody will await, without a warning."""
    close = getattr(awaitable, "close", None)
    if close is not None:
        with suppress(Exception):
            close()


def _text(error: BaseException) -> str:
    """Return the text of an error, whatever it is."""
    try:
        return str(error)
    except Exception:
        return "an error that has no text"


def _told(error: BaseException) -> str:
    """Return an error as the reason of a failed attempt: its type and text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {_text(error)}{where}"
