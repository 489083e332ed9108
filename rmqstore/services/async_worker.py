"""``AsyncStore.consume``: tasks that pop messages, await a handler for each, and ack what it has done.

It promises what the worker of threads does (``worker``). For each topic one task pops, and begins a task for each message, or with order
for those of each queue, while fewer than ``at_once`` run. It pops again when the last of a batch has begun and another may begin, and with
that pop acks what is done by then. What is done while a pop waits is acked by the keeper, which also extends leases.

All is one thread, so no lock is held while the store is told what became of a message: that takes the message out of the keeper's hands at
once, and then waits for an extension that is under way, behind which its receipt counts.

A stop cancels the pops, which release what they had leased, but no handler. When its tasks are cancelled from outside, as at the end of
``asyncio.run`` by a program that has not stopped its worker, nothing is told any more, and leases end by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, RmqstoreError
from rmqstore.message import PoppedMessage
from rmqstore.services.consuming import ACK_S, FINAL, Asked, Batch, Call, Consumer, Kind, State, Steps, check_ended, held, kind_of

if TYPE_CHECKING:
    from rmqstore.aio import AsyncStore

AsyncHandler: TypeAlias = Callable[[PoppedMessage], Awaitable[object]]
_T = TypeVar("_T")


class AsyncWorker(Consumer):
    """Tasks that consume; made by ``AsyncStore.consume``. :meth:`stop`, or the end of an ``async with`` block, ends it."""

    def __init__(
        self,
        store: AsyncStore,
        topics: str | Sequence[str],
        group: str,
        handler: AsyncHandler,
        *,
        at_once: int,
        **asked: Unpack[Asked],
    ) -> None:
        """``AsyncStore.consume`` has the arguments, and their defaults."""
        super().__init__(topics, group, at_once=at_once, **asked)
        if kind_of(handler) is not Kind.COROUTINE:
            raise IllegalArgumentTypeError(
                f"handler {handler!r} is no async function, and would hold up all that its loop does; write it with `async def`, or give "
                "it to the consume of rmqstore.open or rmqstore.connect, which has threads"
            )
        self._store = store
        self._handler = handler
        self._at_once = at_once
        self._batches: list[Batch] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self._is_ended = self._is_over = False
        self._has_done = asyncio.Event()
        self._extending = asyncio.Lock()
        self._keeper = self._task(self._keep(), "leases")
        self._pops = [self._task(self._consume(topic), topic) for topic in self._topics]
        self._main = self._task(self._run(), "end")

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=f"rmqstore-worker-{name}")

    # ------------------------------------------------------------ from outside

    async def stop(self) -> None:
        """Begin no message more, wait for the handlers that run, ack what is done, and give back what was not begun. Idempotent.

        Called by a handler it waits for nobody; a task that a handler awaits must not call it. When it is cancelled, the worker goes on to
        its end by itself.

        Raises:
            RmqstoreError: the one that ended the worker before, if one did.
        """
        self._begin_no_more()
        if asyncio.current_task() not in self._handlers:
            await self.join()
        self._raise_failure()

    def _begin_no_more(self) -> None:
        self._is_ended = True
        for pop in self._pops:
            pop.cancel()

    async def join(self) -> None:
        """Wait for its end, which comes with :meth:`stop` or a :attr:`failure`."""
        if asyncio.current_task() in self._handlers:
            raise IllegalArgumentError("a handler cannot wait for the end of its own worker")
        await asyncio.wait([self._main])  # which is not cancelled with who waits

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    # ------------------------------------------------------------ its tasks

    async def _run(self) -> None:
        try:
            await asyncio.wait(self._pops)
            await self._do(self._give_back(self._batches))  # before handlers end, which may take long
            while self._handlers:
                await asyncio.wait(self._handlers)
            self._is_over = True
            self._has_done.set()
            await asyncio.wait([self._keeper])  # it may be acking
            await self._do(self._give_back(self._batches))
        except Exception as error:
            self._fail(error)
        finally:
            self._begin_no_more()
            self._keeper.cancel()

    async def _consume(self, topic: str) -> None:
        free = asyncio.Semaphore(self._at_once)
        pause_s = 0.0
        try:
            while True:
                async with free:
                    await asyncio.sleep(0)  # handlers that wait for nothing have ended then
                try:
                    batch = await self._do(self._pop(topic, self._batches))
                except FINAL:
                    raise
                except RmqstoreError as error:
                    pause_s = self._pause_s(error, pause_s)
                    await asyncio.sleep(pause_s)
                else:
                    pause_s = 0.0
                    self._batches = [each for each in (*self._batches, batch) if len(each.places(State.GONE)) < len(each.states)]
                    for run in self._runs(batch):
                        await free.acquire()
                        handling = self._task(self._handle(batch, run, free), f"{topic}-handler")
                        self._handlers.add(handling)
                        handling.add_done_callback(self._handlers.discard)
        except (Exception, asyncio.CancelledError) as error:  # the latter by a stop, or as somebody cancels all tasks
            if not self._is_ended:
                self._fail(error)

    def _runs(self, batch: Batch) -> Iterable[list[int]]:
        """Return the places of messages that are handled one after the other."""
        if not self._order:
            return ([place] for place in range(len(batch.states)))
        queues: dict[tuple[str, int], list[int]] = {}
        for place in range(len(batch.states)):
            queues.setdefault(batch.queue(place), []).append(place)
        return queues.values()

    async def _handle(self, batch: Batch, run: Sequence[int], free: asyncio.Semaphore) -> None:
        try:
            for place in run:
                if batch.may_have_ended and not self._is_ended:
                    async with self._extending:
                        if batch.may_have_ended:  # and no other task has extended them meanwhile
                            await _do(self._make_sure(batch), lambda call: call(self._store))
                if not self._is_ended and batch.states[place] is State.WAITS:
                    await self._handle_one(batch, place)
        except Exception as error:  # the store could not be told; what is behind it must not wait under leases that are extended
            self._fail(error)
        finally:
            if not free.locked():  # else the topic's task waits for this end, and acks with its pop
                self._has_done.set()
            free.release()

    async def _handle_one(self, batch: Batch, place: int) -> None:
        limit = asyncio.timeout(self._timeout_s)
        failure: BaseException
        try:
            async with limit:
                handled = await self._handler(batch.begin(place))
                self._end_child(SystemExit())
                check_ended(handled)
        except TimeoutError as error:
            failure = error
            if limit.expired():
                where = error.__cause__ or error  # the cancellation tells where the handler was
                failure = TimeoutError(f"cancelled after {self._timeout_s:g} s").with_traceback(where.__traceback__)
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as error:
            self._end_child(error)
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                batch.states[place] = State.GONE
                self._fail(error)
                raise
            failure = error  # also the cancellation of something that the handler has awaited
        else:
            batch.end(place)
            return
        await self._do(self._give_up(batch, place, failure))
        if not isinstance(failure, Exception | asyncio.CancelledError):
            self._fail(failure)

    async def _do(self, steps: Steps[_T]) -> _T:
        """Make the calls of steps, each under receipts that count."""
        return await _do(steps, self._ask)

    async def _ask(self, call: Call) -> Any:
        async with self._extending:
            pass
        return await call(self._store)

    # ------------------------------------------------------------ the keeper

    async def _keep(self) -> None:
        while not self._is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(ACK_S, self._every_s)):
                    await self._has_done.wait()
            self._has_done.clear()
            try:
                await self.keep()
            except Exception as error:
                self._keep_failed(error)

    async def keep(self, *, ahead_s: float = 0.0) -> None:
        """Ack what is done, and extend leases that are due for it within ``ahead_s`` seconds; the worker does it by itself, in time."""
        failed: RmqstoreError | None = None
        try:
            async with self._extending:
                await _do(self._extend(self._batches, ahead_s), lambda call: call(self._store))
        except RmqstoreError as error:
            failed = error
        await self._do(self._ack(held(self._batches, State.DONE)))
        if failed is not None:
            raise failed


async def _do(steps: Steps[_T], ask: Callable[[Call], Awaitable[Any]]) -> _T:
    try:
        call = next(steps)
        while True:
            try:
                answer = await ask(call)
            except BaseException as error:
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as end:
        made: _T = end.value
        return made


async def end_all(workers: Sequence[AsyncWorker]) -> None:
    """End the workers of a store that closes, as long as there is a store to ack in; what failed in them, they tell themselves.

    A handler that closes the store waits for none of them.
    """
    for worker in workers:
        worker._begin_no_more()
    if not any(asyncio.current_task() in worker._handlers for worker in workers):
        for worker in workers:
            await worker.join()
