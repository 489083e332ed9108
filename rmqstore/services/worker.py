"""``store.consume``: threads that pop messages, give each to a handler, and ack what it has done.

What is promised is what leases promise: a message that was popped is handled, and handled again when its worker dies or its handler raises,
until it is acked or its attempts are used up. So a handler may see a message twice, and must not mind.

A thread acks a batch with its next pop, in one atomic step and one sync (``pop(…, acks=…)``). Beside the threads there is a keeper. Once a
second it acks what was done meanwhile, and before leases end it extends those of what is not done, of all threads in one call. So
``invisible`` is how soon another worker gets what a dead one held, and says nothing of how long a handler may take.

Receipts change with each extension. So who uses one of a batch holds the lock of its hand until the answer is there, but for a pop, which
waits: what that acks is in the store's hands, and nothing is left to extend then.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar, Unpack

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, RmqstoreError
from rmqstore.message import PoppedMessage
from rmqstore.services.consuming import ACK_S, FINAL, Asked, Batch, Call, Consumer, Kind, State, Steps, check_ended, held, kind_of

if TYPE_CHECKING:
    from rmqstore.store.store import Store

Handler: TypeAlias = Callable[[PoppedMessage], object]
_T = TypeVar("_T")

_LOCK_S: Final = 0.05
"""So long the keeper waits for a hand; what it misses, it sees with its next round."""


class _Hand:
    """What one thread holds: the batch that it has popped last, and since when the handler runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.batch = Batch()
        self.runs_since_s = 0.0


class Worker(Consumer):
    """Threads that consume; made by ``store.consume``. :meth:`stop`, or the end of a ``with`` block, ends it."""

    def __init__(
        self,
        store: Store,
        topics: str | Sequence[str],
        group: str,
        handler: Handler,
        *,
        threads: int,
        **asked: Unpack[Asked],
    ) -> None:
        """``Store.consume`` has the arguments, and their defaults."""
        super().__init__(topics, group, threads=threads, **asked)
        if kind_of(handler) is not Kind.PLAIN:
            raise IllegalArgumentTypeError(
                f"handler {handler!r} is async or a generator, whose call does nothing; give a plain function, or an async one to the "
                "consume of a store of rmqstore.aio"
            )
        self._store = store
        self._handler = handler
        self._hands = [_Hand() for _ in self._topics * threads]
        self._ended, self._over = threading.Event(), threading.Event()
        self._running = len(self._hands)
        self._keeper = threading.Thread(target=self._keep, name="rmqstore-worker-leases", daemon=True)
        self._threads = [
            threading.Thread(target=self._run, args=each, name=f"rmqstore-worker-{each[0]}", daemon=True)
            for each in zip(self._topics * threads, self._hands, strict=True)
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
        self._raise_failure()

    def _end(self) -> None:
        """As :meth:`stop`, whatever ended the worker before."""
        self._ended.set()
        if threading.current_thread() not in self._threads:
            self.join()

    def _begin_no_more(self) -> None:
        self._ended.set()

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

    def _run(self, topic: str, hand: _Hand) -> None:
        try:
            self._consume(topic, hand)
        except BaseException as error:  # of whatever kind: a worker that has lost a thread says so
            self._fail(error)
        finally:
            hand.batch = Batch()
            self._one_less()

    def _one_less(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._over.set()

    def _consume(self, topic: str, hand: _Hand) -> None:
        pause_s = 0.0
        try:
            while not self._ended.is_set():
                try:
                    steps = self._pop(topic, [hand.batch])
                    with hand.lock:
                        pop = next(steps)
                    hand.batch = self._do(steps, pop)
                except FINAL as error:
                    self._fail(error)
                except RmqstoreError as error:
                    pause_s = self._pause_s(error, pause_s)
                    self._ended.wait(pause_s)
                else:
                    pause_s = 0.0
                    self._handle_all(hand)
        finally:
            with hand.lock:
                self._do(self._give_back([hand.batch]))

    def _do(self, steps: Steps[_T], first: Call | None = None) -> _T:
        """Make the calls of steps; ``first`` is one that they have given already."""
        try:
            call = first or next(steps)
            while True:
                try:
                    answer = call(self._store)
                except BaseException as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as end:
            made: _T = end.value
            return made

    def _handle_all(self, hand: _Hand) -> None:
        batch = hand.batch
        for place in range(len(batch.leased)):
            with hand.lock:
                if self._ended.is_set():
                    return
                if batch.may_have_ended:
                    self._do(self._make_sure(batch))
                if batch.states[place] is not State.WAITS:
                    continue
                message = batch.begin(place)
                hand.runs_since_s = time.monotonic()
            try:
                handled = self._handler(message)
                self._end_child(SystemExit())
                check_ended(handled)
            except BaseException as error:
                self._end_child(error)
                with hand.lock:
                    self._do(self._give_up(batch, place, error))
                if not isinstance(error, Exception):
                    raise
            else:
                with hand.lock:
                    batch.end(place)

    # ------------------------------------------------------------ the keeper

    def _keep(self) -> None:
        while not self._over.wait(min(ACK_S, self._every_s)):  # also for handlers that run behind a stop
            try:
                self.keep()
            except Exception as error:
                self._keep_failed(error)

    def keep(self, *, ahead_s: float = 0.0) -> None:
        """Ack what is done, and extend leases that are due for it within ``ahead_s`` seconds; the worker does it by itself, in time."""
        with ExitStack() as locks:
            hands = []
            for hand in self._hands:
                # A thread that tells the store something, which may take long, holds up its own batch alone.
                if hand.lock.acquire(timeout=_LOCK_S):
                    locks.callback(hand.lock.release)
                    hands.append(hand)
            overrun = [hand.batch for hand in hands if self._is_overrun(hand)]
            batches = [hand.batch for hand in hands]
            # Each also when another one fails; the leases first, which do not wait.
            steps = [
                self._extend([batch for batch in batches if batch not in overrun], ahead_s),
                self._ack(held(batches, State.DONE)),
                self._release(held(overrun, State.WAITS)),  # others handle what a handler that runs too long keeps waiting
            ]
            failed: RmqstoreError | None = None
            for each in steps:
                try:
                    self._do(each)
                except RmqstoreError as error:
                    failed = error
            if failed is not None:
                raise failed

    def _is_overrun(self, hand: _Hand) -> bool:
        runs = bool(hand.batch.places(State.RUNS))
        return runs and self._timeout_s is not None and time.monotonic() - hand.runs_since_s > self._timeout_s


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
