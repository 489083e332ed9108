"""Workers of both kinds with one face, and handlers for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from rmqstore import Message, PoppedMessage, Store, Worker, aio
from rmqstore.services.async_worker import AsyncWorker
from rmqstore.services.consuming import WorkerStats
from tests.server.served import Served

T = TypeVar("T")
Handler = Callable[[PoppedMessage], object]


class Tasks:
    """A worker of tasks that does as one of threads: its loop has a thread of its own, and its handlers are functions."""

    def __init__(self, served: Served, handler: Handler, **asked: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._worker = self._do(self._begun(served, handler, asked))

    async def _begun(self, served: Served, handler: Handler, asked: dict[str, Any]) -> AsyncWorker:
        async def handle(message: PoppedMessage) -> object:
            return await asyncio.to_thread(handler, message)

        self._store = await aio.connect(f"unix:{served.socket}")
        return self._store.consume("t", "g", handle, **asked)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def stats(self) -> WorkerStats:
        return self._worker.stats

    @property
    def failure(self) -> BaseException | None:
        return self._worker.failure

    def keep(self, *, ahead_s: float = 0.0) -> None:
        self._do(self._worker.keep(ahead_s=ahead_s))

    def _begin_no_more(self) -> None:
        self._loop.call_soon_threadsafe(self._worker._begin_no_more)

    def stop(self) -> None:
        try:
            self._do(self._worker.stop())
        finally:
            self._do(self._store.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Consumers:
    """Begins workers of one kind, which consume topic t of what is served for group g."""

    def __init__(self, served: Served, kind: str) -> None:
        self._served = served
        self.has_tasks = kind == "tasks"

    def __call__(self, handler: Handler, *, at_once: int = 1, **asked: Any) -> Tasks | Worker:
        """Begin a worker; ``at_once`` handlers run at a time."""
        if self.has_tasks:
            return Tasks(self._served, handler, at_once=at_once, **asked)
        return self._served.connect().consume("t", "g", handler, threads=at_once, **asked)


def bodies(count: int, topic: str = "t", fifo: str | None = None) -> list[Message]:
    return [Message(topic, str(number).encode(), message_group=fifo) for number in range(count)]


class Handled:
    """A handler that remembers what it got, and does what it is told to."""

    def __init__(self, does: Callable[[PoppedMessage], object] = lambda message: None) -> None:
        self.messages: list[PoppedMessage] = []
        self._does = does
        self._lock = threading.Lock()

    def __call__(self, message: PoppedMessage) -> None:
        with self._lock:
            self.messages.append(message)
        self._does(message)

    def seen(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.messages) >= count


class Gate:
    """A handler that waits until it may go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, message: PoppedMessage) -> None:
        self.begun.set()
        self.go_on.wait(10)

    def wait_for_begin(self) -> None:
        assert self.begun.wait(10)


def nothing_left(store: Store, topic: str = "t", group: str = "g") -> bool:
    lag = store.lag(topic, group)
    return lag.ready + lag.in_flight + lag.retry == 0


def lose_answer(served: Served, call: str, meanwhile: Callable[[], object] = lambda: None) -> threading.Event:
    """Let a connection break when the next call of this name is done; what this returns is set then."""
    server, lost = served.thread._server, threading.Event()
    answer = server._answer

    def lose(answered: Any, data: bytearray, *, ends: bool = True) -> None:
        if lost.is_set() or answered.name != call:
            answer(answered, data, ends=ends)
            return
        meanwhile()
        answered.client.transport.abort()
        lost.set()

    server._answer = lose  # type: ignore[method-assign]
    return lost
