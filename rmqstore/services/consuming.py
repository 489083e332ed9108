"""What a worker does with the messages that it pops: the same for threads (``worker``) and for asyncio (``async_worker``).

Each piece of it is a generator: it yields one call of the store after the other, and is sent what came of it. So who drives it decides
whether a thread waits for the store or a task.

Receipts change with each extension. So messages of which the store is told are out of the keeper's hands first, and whoever tells it waits
for an extension that is under way.
"""

from __future__ import annotations

import enum
import functools
import inspect
import logging
import operator
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, TypedDict, TypeVar

import msgspec

from rmqstore.contract import AckOutcome, ChangeOutcome, ChangeResult, LeaseInfo, Receipt, RejectOutcome
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

_log = logging.getLogger("rmqstore")

_T = TypeVar("_T")
Call: TypeAlias = Callable[[Any], Any]
"""Makes one call of the store that it is given, a ``Store`` or an ``AsyncStore``."""
Steps: TypeAlias = Generator[Call, Any, _T]

WAIT: Final = timedelta(seconds=1)
"""How long a pop waits, and so how long the stop of a thread may take where nothing comes."""

ACK_S: Final = 1.0
"""So often the keeper acks what is done."""

MOST_AT_ONCE: Final = 1024

_EXTENDED_AT_ONCE: Final = 500
"""Leases in one call: one of many more is a long one at a server, and may wait there behind those of others until the leases have ended."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0

FINAL: Final = (
    StoreClosedError,
    StoreForkedError,
    StorePoisonedError,
    LostCallsError,  # calls of the application are gone, which it has to be told
    IllegalArgumentError,
    UnsupportedOperationError,
)
"""Errors behind which no later attempt would go better."""


_AWAKE_OR_NOT: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
"""The clock of Linux that counts the time for which the machine sleeps; macOS has none of this name."""


def now_s() -> float:
    """Return the time of a clock that only goes forward, and does so while the machine sleeps, where the system has one."""
    return time.monotonic() if _AWAKE_OR_NOT is None else time.clock_gettime(_AWAKE_OR_NOT)


class Retry(Exception):
    """Raised by a handler: the message shall come again ``after`` this time, and the attempt counts."""

    def __init__(self, after: timedelta, reason: str = "") -> None:
        timedelta_ms("after", after, minimum=1)
        super().__init__(reason or f"again after {after}")
        self.after = after

    def __reduce__(self) -> tuple[type[Self], tuple[timedelta, str]]:
        """Be pickled with both arguments, as a pool of processes does with what its tasks raise."""
        return type(self), (self.after, str(self))


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


class State(enum.Enum):
    """How far a message is. ``TELLS``: the store is being told of it. ``GONE``: nothing is left to do."""

    WAITS = enum.auto()
    RUNS = enum.auto()
    DONE = enum.auto()
    TELLS = enum.auto()
    GONE = enum.auto()


class Batch:
    """What one pop gave: each message under the receipt that counts, and how far it is.

    Attributes:
        extend_s: when its leases are to be extended (:func:`now_s`).
        until_s: so long they hold for certain, whatever happens to this process or its machine.
        unsure: places of messages whose leases an extension without an answer (yet) may have changed: then other receipts count.
    """

    def __init__(self, messages: Sequence[PoppedMessage] = ()) -> None:
        self.extend_s = self.until_s = 0.0
        self.unsure: set[int] = set()
        self.messages = messages
        self.leased: list[PoppedMessage | ChangeResult] = list(messages)
        self.states = [State.WAITS] * len(messages)

    def note_leases(self, given_s: float, invisible_s: float) -> None:
        """Note that its leases were given, or extended, at this time or later."""
        self.extend_s, self.until_s = given_s + invisible_s / 3, given_s + invisible_s

    @property
    def may_have_ended(self) -> bool:
        """Whether its leases may be over, as when this process or its machine stood still."""
        return now_s() >= self.until_s

    def places(self, *states: State) -> list[int]:
        """Return the places of the messages that are so far."""
        return [place for place, state in enumerate(self.states) if state in states]

    def same_queue(self, place: int, state: State) -> list[int]:
        """Return the places of those messages of the queue of one that are so far."""
        return [each for each in self.places(state) if self.queue(each) == self.queue(place)]

    def queue(self, place: int) -> tuple[str, int]:
        """Return of which topic and queue a message is."""
        message = self.messages[place]
        return message.topic, message.queue_id

    def begin(self, place: int) -> PoppedMessage:
        """Note that the handler of a message begins; returns what it gets."""
        self.states[place] = State.RUNS
        # The lease is the worker's: a receipt would be out of date with the next extension.
        return msgspec.structs.replace(self.messages[place], proof=None)

    def end(self, place: int) -> None:
        """Note that the handler of a message has returned, unless somebody else has the message by now."""
        if self.states[place] is State.RUNS:
            self.states[place] = State.DONE


Held: TypeAlias = tuple[Batch, int]
"""A message: its batch, and its place in it."""


def held(batches: Iterable[Batch], *states: State) -> list[Held]:
    """Return the messages of batches that are so far."""
    return [(batch, place) for batch in batches for place in batch.places(*states)]


def _receipts(messages: Sequence[Held]) -> list[PoppedMessage | ChangeResult]:
    return [batch.leased[place] for batch, place in messages]


@contextmanager
def _telling(messages: Sequence[Held], before: State) -> Iterator[None]:
    """While the store is told of messages, nobody else tells it of them; when it cannot be told, they are as they were."""
    after = before
    try:
        for batch, place in messages:
            batch.states[place] = State.TELLS
        yield
        after = State.GONE
    finally:
        for batch, place in messages:
            batch.states[place] = after


class Asked(TypedDict):
    """What both kinds of workers are asked for; ``Store.consume`` says what it means."""

    batch: int
    invisible: timedelta
    timeout: timedelta | None
    order: bool
    filter: str


class Consumer:
    """What workers of threads and of tasks have in common.

    Attributes:
        stats: what it has done.
        failure: the error that ended it, such as that the store was closed; None while it runs, and after a stop.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        batch: int,
        invisible: timedelta,
        timeout: timedelta | None,
        order: bool,
        filter: str,
        **at_once: int,
    ) -> None:
        """``at_once`` is how many handlers run at a time for each topic, under its name in this kind of worker."""
        if not isinstance(topics, Sequence) or not topics:
            raise IllegalArgumentTypeError(f"topics must be a topic or a list of them, not {topics!r}")
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        for name in self._topics:
            check_readable_topic(name)
        check_group(group)
        parse_filter(filter)
        for what, number, most in (*((what, number, MOST_AT_ONCE) for what, number in at_once.items()), ("batch", batch, MAX_POP)):
            if type(number) is not int or not 1 <= number <= most:
                raise IllegalArgumentError(f"{what} must be an int of 1 to {most}, not {number!r}")
        self._invisible = timedelta(milliseconds=timedelta_ms("invisible", invisible, minimum=1000))
        self._invisible_s = self._invisible / timedelta(seconds=1)
        self._every_s = self._invisible_s / 3
        self._timeout_s = None if timeout is None else timedelta_ms("timeout", timeout, minimum=1) / 1000
        self._group = group
        self._order = order
        self._asked: dict[str, Any] = {"max_messages": batch, "invisible": self._invisible, "order": order, "filter": filter}
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.stats = WorkerStats()
        self.failure: BaseException | None = None

    def _end_child(self, error: BaseException) -> None:
        """End this process where it is a child that a handler forked: the leases are its parent's, whose threads may have held the locks.

        That thread, or loop, is all that it has, and Python would forget by which error, or :class:`SystemExit`, it ends.
        """
        if os.getpid() == self._pid:
            return
        code = (error.code or 0) if isinstance(error, SystemExit) else None
        try:
            if not isinstance(code, int):
                traceback.print_exception(error)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except Exception:  # nobody reads what it says
            code = code or 1
        finally:
            os._exit(code & 0xFF if isinstance(code, int) else 1)

    def _begin_no_more(self) -> None:
        """Let no handler begin any more; also called by handlers."""
        raise NotImplementedError

    def _raise_failure(self) -> None:
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            raise RmqstoreError(f"a handler ended its worker by {_told(self.failure)}") from self.failure

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error
        self._begin_no_more()
        _log.error("a worker of group %s ends: %s", self._group, _text(error))

    # ------------------------------------------------------------ pops

    def _pop(self, topic: str, before: Iterable[Batch]) -> Steps[Batch]:
        """Pop, and ack what is done of the batches before; that is in the store's hands with the first step."""
        begun_s = now_s()
        done = held(before, State.DONE)
        with _telling(done, State.DONE):
            yield from self._find(done)
            popped = yield lambda store: store.pop(topic, self._group, wait=WAIT, acks=_receipts(done), **self._asked)
        self._note_acks(popped.acks)
        batch = Batch(popped)
        batch.note_leases(begun_s, self._invisible_s)
        return batch

    def _pause_s(self, error: RmqstoreError, before_s: float) -> float:
        """Return how long to wait before the next pop when one has failed, and those before it for so long; 0 for the first one."""
        pause_s = min(before_s * 2, _LONGEST_PAUSE_S) or _FIRST_PAUSE_S
        _log.warning("a worker of group %s waits %.1f s: %s", self._group, pause_s, error)
        return pause_s

    # ------------------------------------------------------------ what becomes of a message

    def _give_up(self, batch: Batch, place: int, error: BaseException) -> Steps[None]:
        """Do with a message what its handler's error asks for; where order is kept, what is behind it in its queue is not handled."""
        if batch.states[place] is not State.RUNS:
            return  # somebody else has it
        batch.states[place] = State.GONE  # not extended any more, so that it comes again even if the store cannot be told why
        behind = [(batch, each) for each in batch.same_queue(place, State.WAITS)] if self._order else []
        try:
            if self._order:
                # Only the head of a queue can die, so what is done must not stay in front of it.
                yield from _twice(self._ack, [(batch, each) for each in batch.same_queue(place, State.DONE)])
            if not (yield from _twice(self._tell, batch, place, error)):
                yield from _twice(self._release, behind)
        except FINAL as final:
            self._fail(final)
        except RmqstoreError as failed:
            _log.warning("a worker of group %s could not give a message back, which comes again later: %s", self._group, failed)
            for _, each in behind:
                batch.states[each] = State.GONE

    def _tell(self, batch: Batch, place: int, error: BaseException) -> Steps[bool]:
        """Reject a message, or give it back for another attempt; says whether it is gone for good."""
        yield from self._find([(batch, place)])
        if isinstance(error, Reject):
            is_rejected = (yield lambda store: store.reject(batch.leased[place], reason=_text(error))) is RejectOutcome.REJECTED
            self._count("rejected" if is_rejected else "lost")
            return is_rejected
        after = getattr(error, "after", None) if isinstance(error, Retry) else None
        reason = _told(error) if after is None else _text(error)
        result = yield lambda store: store.retry_later(batch.leased[place], after, reason=reason)
        self._count("retried" if result.outcome is ChangeOutcome.CHANGED else "lost")
        return False

    def _give_back(self, batches: Sequence[Batch]) -> Steps[None]:
        """Ack what is done, and release what was not begun."""
        for step, state in ((self._ack, State.DONE), (self._release, State.WAITS)):
            try:
                yield from step(held(batches, state))
            except RmqstoreError as error:
                if not isinstance(error, StoreClosedError):
                    _log.warning("a worker of group %s could not finish; its last messages come again: %s", self._group, error)
                if self.failure is None:
                    self.failure = error

    def _ack(self, done: Sequence[Held]) -> Steps[None]:
        if done:
            with _telling(done, State.DONE):
                yield from self._find(done)
                outcomes = yield lambda store: store.ack(_receipts(done))
            self._note_acks(outcomes)

    def _release(self, waiting: Sequence[Held]) -> Steps[None]:
        if waiting:
            with _telling(waiting, State.WAITS):
                yield from self._find(waiting)
                yield lambda store: store.release(_receipts(waiting))

    def _note_acks(self, outcomes: Sequence[AckOutcome]) -> None:
        if outcomes:
            lost = sum(outcome not in (AckOutcome.ACKED, AckOutcome.ALREADY_ACKED) for outcome in outcomes)
            self._count("done", len(outcomes) - lost)
            self._count("lost", lost)

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            setattr(self.stats, what, getattr(self.stats, what) + number)

    # ------------------------------------------------------------ leases

    def _extend(self, batches: Iterable[Batch], ahead_s: float) -> Steps[None]:
        """Extend leases that are due for it within ``ahead_s`` seconds."""
        due_s = now_s() + ahead_s + self._every_s / 4
        due = held([batch for batch in batches if batch.extend_s <= due_s], State.WAITS, State.RUNS)
        if not due:
            return
        begun_s = now_s()
        results = yield from _twice(self._change, due)
        for (batch, place), result in zip(due, results, strict=True):
            batch.note_leases(begun_s, self._invisible_s)
            if result.outcome is ChangeOutcome.CHANGED:
                batch.leased[place] = result
            elif batch.states[place] in (State.WAITS, State.RUNS, State.DONE):
                batch.states[place] = State.GONE
                self._count("lost")

    def _make_sure(self, batch: Batch) -> Steps[None]:
        """Before a handler begins, extend leases that may have ended. What others have by now is theirs; all is, when nobody can say."""
        try:
            yield from self._extend([batch], 0.0)
        except FINAL:
            raise
        except RmqstoreError as error:
            _log.warning("a worker of group %s leaves messages whose leases may have ended: %s", self._group, error)
            for place in batch.places(State.WAITS):
                batch.states[place] = State.GONE

    def _change(self, due: Sequence[Held]) -> Steps[Sequence[ChangeResult]]:
        """Extend leases, under the receipts that count."""
        yield from self._find(due)
        for batch, place in due:
            batch.unsure.add(place)
        results: list[ChangeResult] = []
        for begin in range(0, len(due), _EXTENDED_AT_ONCE):
            receipts = _receipts(due[begin : begin + _EXTENDED_AT_ONCE])
            changed: Sequence[ChangeResult] = yield operator.methodcaller("change_invisible", receipts, self._invisible)
            results += changed
        for batch, place in due:  # all of them behind the last part: where one fails, nobody has the results of those before
            batch.unsure.discard(place)
        return results

    def _find(self, messages: Sequence[Held]) -> Steps[None]:
        """Find under which receipts messages are leased by now, of those of which that is unsure.

        Where the store has their lease no more, they stay under receipts that it does not take.
        """
        unsure = [(batch, place) for batch, place in messages if place in batch.unsure]
        found: dict[tuple[object, ...], Receipt] = {}
        for topic in dict.fromkeys(batch.messages[place].topic for batch, place in unsure):
            leases: Sequence[LeaseInfo] = yield operator.methodcaller("leases", topic, self._group)
            for lease in leases:
                if (receipt := Receipt.parse(lease.receipt)) is not None and not lease.is_backing_off:
                    found[_of_lease(receipt, lease.attempt, lease.first_pop_ms)] = receipt
        for batch, place in unsure:
            message = batch.messages[place]
            given = Receipt.parse(message.receipt or "")
            if given is not None and (receipt := found.get(_of_lease(given, message.attempt, message.first_pop_ms))) is not None:
                batch.leased[place] = msgspec.structs.replace(message, proof=receipt)
            batch.unsure.discard(place)

    def _keep_failed(self, error: Exception) -> None:
        """Note that a round of the keeper failed; the next one may do better, or nothing can."""
        if isinstance(error, FINAL):
            self._fail(error)
        else:
            _log.warning("a worker of group %s could not extend its leases: %s", self._group, error)


def _of_lease(receipt: Receipt, attempt: int, first_pop_ms: int | None) -> tuple[object, ...]:
    """Return what stays the same when a lease is extended, and is another one's when somebody else has the message.

    But for a group that was reset and popped again within the same ms.
    """
    return receipt.topic, receipt.queue_id, receipt.queue_offset, receipt.retry_flag, attempt, first_pop_ms


def _twice(step: Callable[..., Steps[_T]], *arguments: Any) -> Steps[_T]:
    """Do a step, and once more if it fails for a reason that may have passed."""
    try:
        return (yield from step(*arguments))
    except FINAL:
        raise
    except RmqstoreError:
        return (yield from step(*arguments))


class Kind(enum.Enum):
    """What the call of a handler does. ``COROUTINE``: it gives one, to be awaited. ``GENERATOR``: nothing, by itself."""

    PLAIN = enum.auto()
    COROUTINE = enum.auto()
    GENERATOR = enum.auto()


def kind_of(handler: object) -> Kind:
    """Return what the call of a handler does, as far as it can be seen.

    Raises:
        IllegalArgumentTypeError: it cannot be called.
    """
    plain: Any = handler
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not callable(plain):
        raise IllegalArgumentTypeError(f"handler must be a function that takes a message, not {handler!r}")
    for each in (plain, inspect.getattr_static(type(plain), "__call__", None)):
        if inspect.iscoroutinefunction(each):
            return Kind.COROUTINE
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            return Kind.GENERATOR
    return Kind.PLAIN


def check_ended(result: object) -> None:
    """Refuse what a handler gave when it is work that is still to be done: its message would be acked, and nobody might do it.

    Raises:
        TypeError: it is.
    """
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result) or isinstance(result, Future):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()  # without a warning that nobody awaited it
        raise TypeError(f"the handler gave a {type(result).__name__}, and its message would be acked before that is done; wait for it")


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
