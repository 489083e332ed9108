"""Handlers of asyncio for tests of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rmqstore import PoppedMessage
from tests.server.served import Served


async def nothing(message: PoppedMessage) -> None:
    pass


class Handled:
    """A handler that remembers what it got, and does what it is told to."""

    def __init__(self, does: Callable[[PoppedMessage], Awaitable[object]] = nothing) -> None:
        self.messages: list[PoppedMessage] = []
        self.running = 0
        self.most = 0
        self._does = does

    async def __call__(self, message: PoppedMessage) -> None:
        self.messages.append(message)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._does(message)
        finally:
            self.running -= 1

    def seen(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.messages) >= count


class Gate:
    """A handler that waits until it may go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, message: PoppedMessage) -> None:
        self.begun.set()
        await self.go_on.wait()


def raising(error: BaseException) -> Callable[..., Awaitable[None]]:
    async def fail(*arguments: object, **named: object) -> None:
        raise error

    return fail


def reason(served: Served) -> str:
    (lease,) = served.store.leases("t", "g")
    assert lease.is_backing_off
    return lease.reason
