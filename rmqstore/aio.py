"""The calls of a store for asyncio: the same names, awaited.

::

    async with rmqstore.aio.open("data") as store:
        await store.send(rmqstore.Message("mail", b"welcome"))
        for message in await store.pop("mail", "senders", wait=timedelta(seconds=20)):
            await store.ack(message)

All goes over one connection to whoever owns the store (docs/server.md), so a call takes no thread, and a hundred pops that wait take none
either. A pop that is cancelled ends at the server, and what it had leased is released. With :func:`open` this process owns the store, or
follows its owner, as with ``share=True``; :func:`connect` reaches a server.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from rmqstore.batch import MessageBatch
from rmqstore.clock import Clock
from rmqstore.errors import IllegalArgumentError, RmqstoreError, StoreClosedError, StoreForkedError, StoreUnavailableError
from rmqstore.server import PATIENCE
from rmqstore.server.calls import CALLS, GIVE_UP, PARTS, POPS, calls_of
from rmqstore.server.connection import Address, agreeing_on_tls, keep_alive, short_name, sockets
from rmqstore.server.requests import Ask, Lanes, Underway, asking, ended, patience_s_of, unavailable
from rmqstore.server.sharing import SharedStore
from rmqstore.server.wire import HEAD, MAX_FRAME_BYTES, PROTOCOL, frame, unpack
from rmqstore.store import Store
from rmqstore.store.opening import absolute_path, checked_clock
from rmqstore.store.receipts import PoppedMessages, receipts_of

if TYPE_CHECKING:
    from rmqstore.services.async_worker import AsyncHandler, AsyncWorker

__all__ = ["AsyncStore", "connect", "open"]

_CONNECT_S: Final = 5.0

_RELEASE_S: Final = 5.0
"""So long a close waits until what pops have leased for nobody is released; behind that leases end by themselves."""

_WAITING_CALLS: Final = 900
_OTHER_CALLS: Final = 100
_EXTENSIONS: Final = 8
"""So many calls are under way on a connection, those that may wait at the server, the others, and those that change leases. So no pop that
waits holds up a send, and no lease ends while its extension waits behind what a program asks.

A server takes 1024. What is left is for releases that have no place of their own.
"""

_CLOSED: Final = "this program has closed the connection"


class _NotAskedError(ConnectionResetError):
    """A connection ended before a call was written to it."""


class _Asked(NamedTuple):
    """What the server has not answered: a call, or the release of what it had leased.

    Attributes:
        answer: who waits for it; cancelled when nobody does any more, None of a release.
        place: of the call; who takes this out of those under way frees it, or hands it on.
    """

    call: Underway
    answer: asyncio.Future[Any] | None
    place: asyncio.Semaphore


class _Connection:
    """One connection, which carries as many calls at a time as a server takes; the others wait here.

    What a pop has leased when nobody waits for its answer any more is released, also when that comes just behind the answer, or the close
    just behind that. A call that is given up keeps its place until the server has ended it, and what it had leased is released.

    Attributes:
        lost: told of each pop that was given up, when the connection breaks before what it had leased is released.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._waiting = asyncio.Semaphore(_WAITING_CALLS)
        self._others = asyncio.Semaphore(_OTHER_CALLS)
        self._extensions = asyncio.Semaphore(_EXTENSIONS)
        self.lost: Callable[[Underway], None] | None = None
        self._is_closing = False
        self._reading: asyncio.Task[None] | None = None
        self.greeting: dict[str, Any] = {}
        sockets.add(self)

    def fileno(self) -> int:
        """The descriptor of its socket; -1 when it is closed."""
        connected = self._writer.get_extra_info("socket")
        number: int = -1 if connected is None else connected.fileno()
        return number

    @classmethod
    async def to(cls, address: Address, token: str | None, tls: ssl.SSLContext | None) -> Self:
        """Connect.

        Raises:
            OSError: the server cannot be reached.
            AccessDeniedError, FormatVersionError: it does not want this client.
        """
        with agreeing_on_tls(address):
            if (file := address.file) is not None:
                with short_name(file) as name:
                    streams = await asyncio.open_unix_connection(name)
            else:
                context = (tls or ssl.create_default_context()) if address.is_tls else None
                streams = await asyncio.open_connection(address.host, address.port, ssl=context)
            made = cls(*streams)
            keep_alive(made._writer.get_extra_info("socket"))
            try:
                made._writer.write(frame([PROTOCOL, token]))
                _, greeting = await made._read()
                if isinstance(greeting, Exception):
                    raise greeting
            except BaseException:
                made._writer.close()
                raise
        made.greeting = greeting
        made._reading = asyncio.create_task(made._read_all())
        return made

    @property
    def is_broken(self) -> bool:
        """Whether no answer can come any more."""
        return self._reading is None or self._reading.done()

    async def ask(self, call: Underway) -> object:
        """Make a call and return its answer, which may be an error.

        Raises:
            _NotAskedError: the connection broke before.
            OSError: the connection broke; whether the call was done is unknown.
        """
        place = await self._place_for(call)
        try:
            self._number += 1
            number = self._number
            request = frame([number, call.call, list(call.arguments), call.named])
            if len(request) > self.greeting["frame_bytes"]:
                raise IllegalArgumentError(f"{call.call} of {len(request)} bytes is more than the server takes at a time; send less a call")
        except BaseException:
            place.release()
            raise
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(call, answer, place)
        self._writer.write(request)
        try:
            await self._writer.drain()
            value = await answer
        except asyncio.CancelledError:
            self._give_up(number, answer, call, place)
            raise
        except OSError:
            if number not in self._asked:  # it was answered, or the connection has ended, where a place too many harms nobody
                place.release()
            raise
        place.release()
        return value

    async def _place_for(self, call: Underway) -> asyncio.Semaphore:
        """Wait until the server takes one call more. One that may wait there waits so long in all, and then is made once."""
        left_s = call.left_s or None
        place = self._extensions if call.call == "change_invisible" else self._waiting if left_s else self._others
        if not place.locked():
            await place.acquire()
            return place
        try:
            async with asyncio.timeout(left_s):
                await place.acquire()
        except TimeoutError:
            place = self._others
            await place.acquire()
        try:
            if self._is_closing or self.is_broken:
                raise _NotAskedError(_CLOSED if self._is_closing else "the server closed the connection")
            call.come_late()
            call.check_age()
        except BaseException:
            place.release()
            raise
        return place

    def _give_up(self, number: int, answer: asyncio.Future[Any], call: Underway, place: asyncio.Semaphore) -> None:
        """End a call that nobody waits for any more; it keeps its place as long as the server is at it."""
        call.may_have_leased = False  # what it finds now is released, also that of a copy before it
        if number in self._asked:
            answer.cancel()  # what comes is nobody's
            self._tell(GIVE_UP, number)
        elif answer.cancelled():  # what came, or that nothing came, was seen to before its task was
            return
        elif answer.exception() is not None:
            call.answer_lost()
        elif self.is_broken:
            call.answer_lost()
            place.release()
        else:  # it was answered before its task was cancelled
            self._release(answer.result(), call, place)

    def _release(self, answer: object, call: Underway, place: asyncio.Semaphore) -> None:
        """Release what a pop has leased that nobody gets; its place is free behind that.

        Who named the attempt may ask for it again, and has these messages then.
        """
        if call.call in POPS and not call.has_named_attempt and isinstance(answer, MessageBatch | PoppedMessages) and len(answer):
            self._asked[self._tell("release", list(receipts_of(answer).names))] = _Asked(call, None, place)
        else:
            place.release()

    def _tell(self, call: str, argument: object) -> int:
        """Make a call whose answer says nothing; returns its number."""
        self._number += 1
        self._writer.write(frame([self._number, call, [argument], {}]))
        return self._number

    async def _read(self) -> tuple[int, Any]:
        (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
        if size > MAX_FRAME_BYTES:
            raise ConnectionError(f"an answer of {size} bytes came, which no server gives")
        number, value = unpack(await self._reader.readexactly(size))
        return number, value

    async def _read_all(self) -> None:
        error: BaseException = ConnectionResetError("the server closed the connection")
        try:
            while not self._is_closing or self._is_leasing:
                number, value = await self._read()
                if not number:
                    raise value if isinstance(value, OSError) else ConnectionError(str(value))
                if (asked := self._asked.pop(number, None)) is None:  # what the server says of a call that was given up
                    continue
                call, answer, place = asked
                if answer is not None and not answer.done():
                    answer.set_result(value)
                else:
                    self._release(value, call, place)
        except (OSError, EOFError, RmqstoreError) as broken:
            if not isinstance(broken, EOFError):
                error = broken if isinstance(broken, OSError) else ConnectionError(str(broken))
            for each in self._asked.values():
                if each.answer is None or each.answer.cancelled():
                    each.call.answer_lost()
                    if each.call.may_have_leased and self.lost is not None:
                        self.lost(each.call)
        finally:
            self._end(error)

    @property
    def _is_leasing(self) -> bool:
        """Whether a pop, or a release of what one had leased, is not answered."""
        return any(asked.call.call in POPS for asked in self._asked.values())

    def _end(self, error: BaseException) -> None:
        """Close the connection; whoever waits for an answer is told why."""
        self._writer.close()
        asked, self._asked = self._asked, {}
        for _, answer, place in asked.values():
            if answer is not None and not answer.done():
                _fail(answer, error)
            place.release()

    async def close(self) -> None:
        """Close it, when what pops have leased that were given up, or are under way, is released."""
        try:
            await asyncio.sleep(0)  # tasks that have an answer, or were cancelled, see that first
            self._is_closing = True
            for number, (call, answer, _) in self._asked.items():
                if call.call in POPS and answer is not None and not answer.done():
                    _fail(answer, ConnectionResetError(_CLOSED))
                    self._tell(GIVE_UP, number)
            if self._is_leasing and self._reading is not None:
                await asyncio.wait([self._reading], timeout=_RELEASE_S)
        finally:  # also when nobody waits for that any more
            self._end(ConnectionResetError(_CLOSED))  # a task that is cancelled before its first step does not
            if self._reading is not None:
                self._reading.cancel()
        if self._reading is not None:
            await asyncio.wait([self._reading])
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._writer.wait_closed()
        except TimeoutError:  # a server that reads nothing keeps what is on its way to it
            self._writer.transport.abort()
        except OSError:
            pass


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    answer.set_exception(error)
    answer.exception()  # it may be one that nobody waits for


def _see_error(done: asyncio.Task[None]) -> None:
    """Let the error of a task that nobody waits for pass in silence."""
    if not done.cancelled():
        done.exception()


class _Parts:
    """The calls of a part of a store, such as ``store.topics``."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


class AsyncStore:
    """The calls of :class:`rmqstore.Store`, each of which is awaited, but for :meth:`consume`; made by :func:`open` and :func:`connect`.

    A call whose connection breaks is made again as with :func:`rmqstore.connect`. One that is cancelled may have been done, but for a pop:
    what that had leased is released, unless it has an ``attempt_id``, by which it may be asked for again. When its connection broke, that
    is done as soon as there is a server, within ``patience``.
    """

    topics: _Parts
    groups: _Parts
    dead_letters: _Parts
    schedules: _Parts
    pauses: _Parts
    transfer: _Parts

    def __init__(
        self,
        address: Address,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        patience: timedelta,
        opener: Callable[[], SharedStore] | None,
    ) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._patience_s = patience_s_of(patience)
        self._opener = opener
        self._own: SharedStore | None = None
        self._owning = threading.Lock()
        self._taking: asyncio.Task[Store | None] | None = None
        self._lanes = Lanes()
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._taking_back: set[asyncio.Task[None]] = set()
        self._workers: weakref.WeakSet[AsyncWorker] = weakref.WeakSet()
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __await__(self) -> Any:
        return self.__aenter__().__await__()

    async def _begin(self) -> None:
        if self._opener is not None and self._own is None:
            await asyncio.to_thread(self._open_own, self._opener)
            await self._ask(Ask("next_wake_ms"))
            return
        try:
            await self._connected()
        except (OSError, EOFError) as error:
            if isinstance(error, RmqstoreError):
                raise
            raise StoreUnavailableError(unavailable(self._address, error)) from error

    def _open_own(self, opener: Callable[[], SharedStore]) -> None:
        """Open the store in a thread, which goes on when the task that waits for it is cancelled; then the store is closed again."""
        own = opener()
        with self._owning:
            if not self._is_closed:
                self._own, self._address = own, own._address
                return
        own.close()

    async def _connected(self) -> _Connection:
        """Return the connection. Calls that miss one share an attempt, which goes on for the others when one of them is cancelled."""
        self._check_open()
        if self._connection is None or self._connection.is_broken:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.create_task(self._connect())
                self._connecting.add_done_callback(_see_error)
            attempt = self._connecting
            await asyncio.wait([attempt])
            self._check_open()
            if not attempt.cancelled():
                attempt.result()
            if self._connection is None or self._connection.is_broken:  # again, or somebody has cancelled all tasks but this
                raise ConnectionResetError("the server closed the connection")
        return self._connection

    async def _connect(self) -> None:
        async with asyncio.timeout(_CONNECT_S):
            made = await _Connection.to(self._address, self._token, self._tls)
        made.lost = self._take_back
        self._connection = made
        if self._own is not None:
            self._own._met(made.greeting)

    async def _ask(self, ask: Ask) -> Any:
        call = Underway(ask, self._lanes, self._address, self._patience_s)
        try:
            return await self._make(call)
        except asyncio.CancelledError:
            if call.may_have_leased:
                self._take_back(call)
            raise

    def _take_back(self, call: Underway) -> None:
        """Release behind its back what a pop has leased whose answer was lost, and that nobody waits for."""
        if not self._is_closed:
            task = asyncio.create_task(self._taken_back(call))
            self._taking_back.add(task)
            task.add_done_callback(self._taking_back.discard)

    async def _taken_back(self, call: Underway) -> None:
        topic, group, *_ = call.arguments
        again = Ask(call.call, (topic, group, [], False), {**call.named, "wait": None, "wait_ms": None})  # it is told what it had
        with suppress(Exception):  # then leases end by themselves
            found = await self._make(Underway(again, self._lanes, self._address, self._patience_s))
            if len(found):
                release = Ask("release", (list(receipts_of(found).names),))
                await self._make(Underway(release, self._lanes, self._address, self._patience_s))

    async def _make(self, call: Underway) -> Any:
        """Make a call, again when the connection breaks and a repeat does no harm."""
        while True:
            call.check_age()
            begun_s = time.monotonic()
            try:
                connection = await self._connected()
            except RmqstoreError as error:
                call.refuse(error)
            except (OSError, EOFError) as error:
                call.lost(error, may_be_done=False, since_s=begun_s)
            else:
                if call.is_forgotten(connection.greeting):
                    raise call.given_up()
                try:
                    answer = await connection.ask(call)
                except OSError as error:
                    was_asked = not isinstance(error, _NotAskedError)
                    call.lost(error, may_be_done=was_asked, had_connection=not was_asked)
                else:
                    if self._own is not None:
                        self._own._met(connection.greeting)
                    if not isinstance(answer, StoreUnavailableError):
                        return call.answered(answer)
                    call.lost(answer, may_be_done=False)
            if self._own is not None:
                try:
                    await self._own_it()
                except StoreForkedError as error:  # of this process only
                    call.lost(error, may_be_done=False)
                except RmqstoreError as error:
                    call.refuse(error)
            await asyncio.sleep(call.pause_s())

    async def _own_it(self) -> None:
        """Let this process become the owner when there is none: once, for all calls that miss one."""
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(asyncio.to_thread(self._own._take_over))  # type: ignore[union-attr]
        await asyncio.shield(self._taking)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(f"the connection to the store at {self._address} is closed; connect again")

    def consume(
        self,
        topics: str | Sequence[str],
        group: str,
        handler: AsyncHandler,
        *,
        at_once: int = 1,
        batch: int = 32,
        invisible: timedelta = timedelta(seconds=60),
        timeout: timedelta | None = None,
        order: bool = False,
        filter: str = "*",
    ) -> AsyncWorker:
        """Start tasks that await ``handler``, an ``async def``, for each message of ``topics``; returns the worker, which goes on until its
        ``stop``. It is for the loop that runs, and not awaited.

        What becomes of a message is as with :meth:`rmqstore.Store.consume`.

        Args:
            at_once: so many handlers run at a time, for each topic.
            batch: how many messages are popped at a time; what does not run yet is leased meanwhile.
            invisible: at least 1 s; so soon another worker gets what a dead one held. Leases are extended as long as a handler runs.
            timeout: so long; then the handler is cancelled, which is a failed attempt: the message comes again after the back-off of its
                group. A handler that suppresses its cancellation goes on.
            order: as with :meth:`rmqstore.Store.pop`; messages of different queues are handled side by side.
            filter: as with :meth:`rmqstore.Store.pop`.
        """
        from rmqstore.services.async_worker import AsyncWorker  # few programs need it

        self._check_open()
        made = AsyncWorker(
            self, topics, group, handler, at_once=at_once, batch=batch, invisible=invisible, timeout=timeout, order=order, filter=filter
        )
        self._workers.add(made)
        return made

    async def close(self) -> None:
        """Stop the workers, then close the connection, and the store if this process has it open; idempotent.

        One that is cancelled waits for no handler any more, and goes on to its end by itself.
        """
        try:
            if self._workers:
                from rmqstore.services.async_worker import end_all

                await end_all(list(self._workers))
            await asyncio.sleep(0)  # pops that were cancelled see that first
            if self._taking_back:
                await asyncio.wait(self._taking_back, timeout=_RELEASE_S)
        finally:  # also when nobody waits for that any more
            with self._owning:
                self._is_closed = True
            if self._closing is None:
                ending = [each for each in (self._connecting, *self._taking_back) if each is not None and not each.done()]
                for each in ending:
                    each.cancel()
                self._closing = asyncio.create_task(self._let_go(self._connection, self._own, ending))
                self._connection = self._own = None
                await asyncio.shield(self._closing)  # it goes on when this close is cancelled
            elif not self._closing.done():
                await asyncio.wait([self._closing])

    async def _let_go(self, connection: _Connection | None, own: SharedStore | None, ending: Sequence[asyncio.Task[None]]) -> None:
        try:
            if ending:
                await asyncio.wait(ending)
            if connection is not None:
                await connection.close()
        finally:
            if own is not None:  # also when all tasks of the loop are cancelled
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, own.close))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


def _method(call: str, like: Callable[..., Any]) -> Callable[..., Any]:
    """Return the coroutine function of a call."""
    begin = asking(call)

    @functools.wraps(like)
    async def method(self: AsyncStore | _Parts, *arguments: object, **named: object) -> Any:
        store = self._store if isinstance(self, _Parts) else self
        steps = begin(*arguments, **named)
        return ended(steps, await store._ask(next(steps)))

    return method


for _name in CALLS:
    setattr(AsyncStore, _name, _method(_name, getattr(Store, _name)))
for _part, _base in PARTS.items():
    _methods = {name: _method(call, getattr(_base, name)) for name, call in calls_of(_part).items()}
    setattr(AsyncStore, _part, property(type(f"Async{_base.__name__}", (_Parts,), _methods)))


def connect(
    where: str | os.PathLike[str], *, token: str | None = None, tls: ssl.SSLContext | None = None, patience: timedelta = PATIENCE
) -> AsyncStore:
    """Use a store that another process has open; to be awaited, or entered with ``async with``. As :func:`rmqstore.connect`."""
    return AsyncStore(Address.parse(where, tls), token=token, tls=tls, patience=patience, opener=None)


def open(  # noqa: A001 - as rmqstore.open
    path: str | os.PathLike[str], *, engine: str | None = None, clock: Clock | None = None, services: bool = True, **settings: Any
) -> AsyncStore:
    """Open a store, shared; to be awaited, or entered with ``async with``. As :func:`rmqstore.open` with ``share=True``."""
    settings |= {"engine": engine}
    opener = functools.partial(SharedStore, absolute_path(path), settings, checked_clock(clock), services=services, patience=PATIENCE)
    return AsyncStore(Address.parse(absolute_path(path)), token=None, tls=None, patience=PATIENCE, opener=opener)
