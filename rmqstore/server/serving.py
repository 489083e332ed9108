"""A store that serves other processes: one loop, which does what has come in by rounds (docs/server.md).

The loop reads what all clients have sent by now and does these calls one after the other; then it waits for the disk once, for all of them,
and only then answers. So clients that call at the same time share a sync, and none of them is told what a loss of power could take back.
Calls that take long, such as a snapshot, have threads of their own. A pop that waits takes neither a thread nor time: it stands in a line
with those that want the same, and whoever puts something there that the line may take wakes its first. So does a send that waits for room.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from rmqstore.clock import SystemClock
from rmqstore.contract import PopResult
from rmqstore.errors import (
    IllegalArgumentError,
    LostCallsError,
    PollingFullError,
    RmqstoreError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from rmqstore.server.calls import BULKY, GIVE_UP, LONG, METHODS, NO_PATHS, OF_PATHS, POPS, QUICK, SENDS, called_ms, is_quick
from rmqstore.server.clients import SMALL_BYTES, Call, Client, Limits
from rmqstore.server.connection import let_go_of
from rmqstore.server.lines import LINE_OF_SENDS, Key, Line, Pop, Send, Waiter
from rmqstore.server.listening import Entrance
from rmqstore.server.wire import HEAD, MAX_FRAME_BYTES, frame
from rmqstore.store import Store
from rmqstore.store.receipts import receipts_of
from rmqstore.store.rounds import Round, Unsettled, settle
from rmqstore.store.waits import Patience
from rmqstore.when import timedelta_ms

_log = logging.getLogger("rmqstore")

_DRAIN_S: Final = 5.0
"""So long a server that stops waits for clients to read their last answers."""


_ROUND_S: Final = 0.02
"""When a round has lasted for so long, what is left comes with the next one."""

_DUE: Final = 4
"""So many times what a client may have under way is kept until it is begun: beside a call come the end of its wait, and a release."""

_LATER_S: Final = 0.1
"""So much later waiting pops look again when the server holds too much."""


_Due = TypeVar("_Due")


class _Answer(NamedTuple):
    """What a client is to be told, as a frame; ``ends``: it ends the call of its number."""

    call: Call
    data: bytearray
    unsettled: Unsettled
    ends: bool


class Server:
    """Serves one open store; lives in an asyncio loop, which one thread runs.

    Args:
        is_server: that is what its process is for, and not beside what it does itself with the store.

    Attributes:
        behind: clients that may have answers to read.
        threads: its own, without which it cannot end.
    """

    def __init__(self, store: Store, *, token: str | None = None, limits: Limits | None = None, is_server: bool = False) -> None:
        self.limits = limits or Limits()
        self._is_server = is_server
        self.clients: set[Client] = set()
        self.is_stopping = False
        self.behind: set[Client] = set()
        self.threads: set[threading.Thread] = set()
        self._asked_bytes = 0
        self._told_bytes = 0
        self._store = store
        self._path = store.engine.directory.path  # one that is open in another process has no engine here, and cannot be served
        self.entrance = Entrance(self, token)
        self._pool = ThreadPoolExecutor(self.limits.threads, "rmqstore-server", lambda: self.threads.add(threading.current_thread()))
        self._calls: deque[Call] = deque()
        self._lines: dict[Key, Line] = {}
        self._woken: deque[Line] = deque()
        self._stepping: deque[Pop] = deque()
        self._holding: dict[Client, None] = {}  # those with long calls that have no thread yet, in their turn
        self._answers: list[_Answer] = []
        self._early: Unsettled = []
        self._is_round_due = False
        self._waiting = 0
        self._long: set[asyncio.Future[object]] = set()
        _servers.add(self)

    async def stop(self) -> None:
        """Take no more calls, answer those that are under way, and close; waiting pops go on at the next owner."""
        self.is_stopping = True
        self.entrance.close()
        for client in self.clients:
            if client.transport is not None:
                client.transport.pause_reading()
        while self._calls or self._woken or self._stepping or self._long:
            self._round()
            if self._long:
                await asyncio.wait(self._long)
        self._round()
        for line in list(self._lines.values()):
            self._dissolve(line)
        until_s = time.monotonic() + _DRAIN_S
        while (self.clients or self.entrance.is_busy) and time.monotonic() < until_s:  # what is written goes out first
            for client in [each for each in self.clients if each.is_served]:
                client.close()
            await asyncio.sleep(0.01)
        await self.cut_off()
        self._pool.shutdown()

    async def cut_off(self) -> None:
        """End the connections that are left."""
        for client in list(self.clients):
            if client.transport is not None:
                client.transport.abort()
        for _ in range(2):  # the loop closes a socket behind the one and the other
            await asyncio.sleep(0)

    def descriptors(self) -> list[int]:
        """Return the descriptors of its sockets."""
        sockets = [client.transport.get_extra_info("socket") for client in self.clients if client.transport is not None]
        own = [each.fileno() for each in sockets if each is not None]
        return [each for each in own + self.entrance.descriptors() if each >= 0]

    @property
    def greeting(self) -> Mapping[str, object]:
        """What a client that is let in is told."""
        manifest = self._store.engine.directory.manifest or {}
        lineage = [manifest.get("store_id"), manifest.get("min_epoch")]  # names of calls mean nothing to a store of another
        return {"path": str(self._path), "frame_bytes": self.limits.frame_bytes, "is_server": self._is_server, "lineage": lineage}

    # ------------------------------------------------------------ rounds

    def take(self, call: Call) -> None:
        """Do a call with one of the next rounds."""
        client = call.client
        if client.due >= _DUE * self.limits.client_calls:
            refusal = PollingFullError(f"{client.due} calls of this client are not begun yet; wait for answers before more are made")
            self._answer(call, _frame_of(call, refusal), ends=False)
            return
        client.due += 1
        self._calls.append(call)
        self._due()

    def _due(self) -> None:
        if not self._is_round_due:
            self._is_round_due = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        """Do what is there, wait for the disk, and answer. An error is the answer of the call that it came from, and of no other."""
        self._is_round_due = False
        with Round(self._store) as held:
            for call in self._taken(self._calls):
                self._begin(call, held)
            for line in self._taken(self._woken):
                self._serve(line, held)
            for pop in self._taken(self._stepping):
                if pop.call.client.transport is not None:
                    self._look(pop, held)
        self._go_on()
        answers, self._answers, self._told_bytes = self._answers, [], 0
        early, self._early = self._early, []
        errors = [self._settled(each.unsettled) for each in reversed(answers)]  # the last first: its sync is the others' too
        self._settled(early)  # acks of pops that go on waiting, whose answers come to this again
        for answer, error in zip(answers, reversed(errors), strict=True):
            self._answer(answer.call, answer.data if error is None else _frame_of(answer.call, error), ends=answer.ends)

    def _taken(self, due: deque[_Due]) -> Iterator[_Due]:
        """Take what a round does of what is due, the first at least."""
        until_s = time.monotonic() + _ROUND_S  # of each kind, so that none keeps out the others
        for _ in range(len(due)):
            yield due.popleft()
            if time.monotonic() > until_s:
                break
        if due:
            self._due()

    def _settled(self, unsettled: Unsettled) -> Exception | None:
        """Wait until what an answer rests on is durable; returns the error if that fails."""
        try:
            settle(self._store, unsettled)
        except Exception as error:
            return error
        return None

    def _tell(self, call: Call, value: object, unsettled: Unsettled, *, ends: bool = True) -> None:
        """Answer a call at the end of the round."""
        data = _frame_of(call, value)
        if len(data) > SMALL_BYTES and call.name in BULKY and (refusal := self.refusal()) is not None:
            data = _frame_of(call, refusal)
        answer = _Answer(call, data, unsettled, ends)
        self._told_bytes += len(answer.data)
        self._answers.append(answer)

    def _answer(self, call: Call, data: bytearray, *, ends: bool = True) -> None:
        client = call.client
        if ends:
            client.calls.pop(call.number, None)
        if call.held_bytes and client.transport is not None:
            self.hold(client, -call.held_bytes)
        client.answer(data)

    def hold(self, client: Client, size_bytes: int) -> None:
        """Count a request of a client that is coming in, or less one that is done."""
        client.held_bytes += size_bytes
        self._asked_bytes += size_bytes

    def refusal(self, more_bytes: int = 0) -> PollingFullError | None:
        """Return the error for a call that brings or fetches much, when the server holds so much already; None when it may be made."""
        unread_bytes = sum(client.unread_bytes for client in self.behind)
        held_bytes = self._asked_bytes + self._told_bytes + unread_bytes
        if held_bytes + more_bytes <= self.limits.held_bytes:
            return None
        return PollingFullError(
            f"calls and answers of {held_bytes} bytes are under way at this server, which takes {self.limits.held_bytes}; "
            "nothing was done, try again later"
        )

    def _begin(self, call: Call, held: Round) -> None:
        client, number, name = call.client, call.number, call.name
        client.due -= 1
        if client.transport is None:  # it is gone, and so is what was held of it
            return
        if name == GIVE_UP:
            self._give_up(call)
            return
        if len(client.calls) >= self.limits.client_calls or number in client.calls:
            refusal = PollingFullError(f"{len(client.calls)} calls of this client are under way, which is its limit, or have its number")
            self._tell(call, refusal, [], ends=False)
            return
        client.calls[number] = None
        try:
            if name in OF_PATHS and not client.is_local:
                raise UnsupportedOperationError(NO_PATHS)
            if name in SENDS:
                if len(call.arguments) == 2:
                    call.arguments[1] = called_ms(self._store, call.arguments[1])
                if call.named.get("timeout") is not None:
                    self._begin_send(call, held)
                    return
            if is_quick(name, call.arguments, call.named):
                value = METHODS[name](self._store)(*call.arguments, **call.named)
            elif name in POPS:
                self._begin_pop(call, held)
                return
            elif name in LONG or name in QUICK:
                self._put_behind(call)
                return
            else:
                raise IllegalArgumentError(f"this server knows no call {name!r}")
        except Exception as error:
            value = self._told(call, error)
        self._tell(call, value, held.take())

    def _give_up(self, call: Call) -> None:
        number = call.arguments[0] if call.arguments else None
        waiter = call.client.calls.get(number) if type(number) is int else None
        if waiter is not None:
            self._end(waiter)
        self._tell(call, None, [], ends=False)

    def _told(self, call: Call, error: Exception) -> Exception:
        if not isinstance(error, RmqstoreError | TypeError | ValueError):
            _log.exception("a call of a client failed with an error that nobody expected: %s", call.name)
        if isinstance(error, StoreClosedError):
            return StoreUnavailableError(f"the store is being closed: {error}")
        return error

    # ------------------------------------------------------------ long calls

    def _put_behind(self, call: Call) -> None:
        """Begin a long call behind the round, which is for calls that do not wait; one whose client is gone is not begun any more."""
        if call.client.transport is not None:
            call.client.held.append(call)
            self._holding[call.client] = None

    def resume(self, client: Client) -> None:
        """Go on with a client that has read its answers."""
        if client.held:
            self._holding[client] = None
        self._go_on()

    def _go_on(self) -> None:
        """Begin long calls while there are threads for them, of each client one in its turn, unless answers wait for it to read them.

        The others wait here, and not for a thread of the pool: so they go with their client, and what is counted is what is held.
        """
        while self._holding and len(self._long) < self.limits.threads:
            client = next(iter(self._holding))
            del self._holding[client]
            if client.held and not client.is_unread:
                self._begin_long(client.held.popleft())
                if client.held:
                    self._holding[client] = None

    def _begin_long(self, call: Call) -> None:
        if call.name in BULKY and (refusal := self.refusal()) is not None:
            self._finish(call, refusal)
            return
        try:
            future: asyncio.Future[object] = asyncio.get_running_loop().run_in_executor(self._pool, self._do, call)
        except RuntimeError:  # the program ends, and has no more threads; its other threads may still use the store
            self._finish(call, self._do(call))
            return
        call.client.held_bytes -= call.held_bytes  # they are held until it is done, whether its client is there or not
        self._long.add(future)
        future.add_done_callback(self._long.discard)
        future.add_done_callback(functools.partial(self._long_done, call))

    def _do(self, call: Call) -> object:
        try:
            value: object = METHODS[call.name](self._store)(*call.arguments, **call.named)
        except Exception as error:
            return self._told(call, error)
        return value

    def _long_done(self, call: Call, done: asyncio.Future[object]) -> None:
        if call.client.transport is None:
            self._asked_bytes -= call.held_bytes
        else:
            call.client.held_bytes += call.held_bytes
        self._finish(call, done.result())
        self._go_on()

    def _finish(self, call: Call, value: object) -> None:
        """Answer a long call, but for a send that goes on waiting."""
        send = call.client.calls.get(call.number)
        if isinstance(send, Send):
            send.is_underway = False
            if send.waits_on(value):
                if send.is_woken:
                    self._make_behind(send)
                return
            self._leave(send)
        self._answer(call, _frame_of(call, value))

    # ------------------------------------------------------------ sends that wait

    def _begin_send(self, call: Call, held: Round) -> None:
        """Make a send that waits when it is refused. It stands in line before it is made, so that no room is missed."""
        if len(call.arguments) == 1:
            call.arguments.append(called_ms(self._store, 0))  # each try is a call of the store, and this one its first
        timeout_ms = timedelta_ms("timeout", call.named.pop("timeout"))
        send = Send(call, Patience(self._store._clock, timeout_ms))
        if self._waiting < self.limits.waiting_calls:
            self._stand_in_line(send, LINE_OF_SENDS, for_acks=False)
        self._make(send, held)

    def _make(self, send: Send, held: Round) -> None:
        """Make a send, a batch behind the round."""
        if send.is_underway:
            send.is_woken = True
        elif send.call.name in LONG:
            self._make_behind(send)
        else:
            value = self._do(send.call)
            if send.waits_on(value):
                self._early += held.take()
            else:
                self._leave(send)
                self._tell(send.call, value, held.take())

    def _make_behind(self, send: Send) -> None:
        send.is_underway, send.is_woken = True, False
        self._put_behind(send.call)

    # ------------------------------------------------------------ pops

    def _begin_pop(self, call: Call, held: Round) -> None:
        topic, group, acks, is_fresh = call.arguments
        given = receipts_of(acks)
        if given.unknown:
            raise IllegalArgumentError("acks holds something that is no receipt")
        if (refusal := self.refusal()) is not None:
            raise refusal
        request, patience_ms = self._store._popping.asked(topic, group, **call.named, acks=given.names)
        pop = Pop(call, request, Patience(self._store._clock, patience_ms), is_fresh=bool(is_fresh))
        if not patience_ms:
            self._look(pop, held)
            return
        if self._waiting >= self.limits.waiting_calls:
            raise PollingFullError(f"{self._waiting} calls wait here already, which is the limit of this server")
        key = (request.topic, request.group, request.order, request.filter, request.queue)
        line = self._stand_in_line(pop, key, for_acks=self._store._popping.acks_help(request))
        others = [] if is_fresh else [each for each in line.waiters if isinstance(each, Pop) and each is not pop]
        for other in others:
            if other.request.attempt_id == request.attempt_id:
                self._end(other)  # its caller asks again here
        # It may have found something with an earlier attempt, which is no matter of the line. What comes next is the line's.
        left = self._look(pop, held)
        if line.waiters and (left is None or left.more):
            line.notify()

    def _look(self, pop: Pop, held: Round) -> PopResult | None:
        """Look once for a pop, and answer it when that ends it; else return what it has found, which is nothing.

        One that does not wait goes on later with what it has not looked at.
        """
        try:
            if pop.line is not None and pop is pop.line.waiters[0]:
                pop.line.ends = self._store._popping.ends_of(pop.line.topic)
            result = self._store._popping.step(pop.request)
            if pop.request.acks:
                pop.acked, pop.request = result.acks, msgspec.structs.replace(pop.request, acks=())
            if len(result.messages) or (pop.line is None and not result.more):
                self._give(pop, result, held)
                return None
        except Exception as error:
            self._leave(pop)
            self._tell_failed(pop, error, held)
            return None
        unsettled = held.take()
        pop.unsettled += unsettled
        if pop.line is None:
            self._stepping.append(pop)
            self._due()
        else:
            self._early += unsettled
        return result

    def _tell_failed(self, pop: Pop, error: Exception, held: Round) -> None:
        """Answer a pop that cannot look again; when its acks are done it is told what became of them, as in the process (P8)."""
        if pop.acked and isinstance(error, RmqstoreError) and not isinstance(error, LostCallsError):
            self._tell(pop.call, pop.nothing, [*pop.unsettled, *held.take()])
        else:
            self._tell(pop.call, self._told(pop.call, error), held.take())

    def _give(self, pop: Pop, result: PopResult, held: Round) -> None:
        """Answer a pop with what it has found."""
        found = pop.found(result)
        self._leave(pop)
        self._tell(pop.call, found, [*pop.unsettled, *held.take()])

    # ------------------------------------------------------------ lines

    def _stand_in_line(self, waiter: Waiter, key: Key, *, for_acks: bool) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key, for_acks=for_acks, wake=self._wake_up())
            self._store._waits.enter(line)
        waiter.line = line
        waiter.call.client.calls[waiter.call.number] = waiter
        self._waiting += 1
        line.waiters.append(waiter)
        waiter.timer = asyncio.get_running_loop().call_later(max(waiter.patience.left_s(), 0), self._expire, waiter)
        return line

    def _wake_up(self) -> Callable[[Line], None]:
        loop = asyncio.get_running_loop()

        def wake(line: Line) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._see, line)

        return wake

    def _see(self, line: Line) -> None:
        self._woken.append(line)
        self._due()

    def _serve(self, line: Line, held: Round) -> None:
        """Make the sends of a line again, or look for what its pops wait for."""
        line.is_woken = False  # what comes from here on wakes it again
        for waiter in list(line.waiters):
            if isinstance(waiter, Send):
                self._make(waiter, held)
            elif isinstance(waiter, Pop) and not self._serve_pop(waiter, line, held):
                break
        if not isinstance(self._store._clock, SystemClock):
            for waiter in [each for each in line.waiters if each.patience.left_s() <= 0]:
                self._end(waiter)

    def _serve_pop(self, pop: Pop, line: Line, held: Round) -> bool:
        """Look for one pop of a line; False when those behind it shall not look now, as they would find nothing."""
        if self.refusal() is not None:
            line.is_woken = True
            asyncio.get_running_loop().call_later(_LATER_S, self._see, line)
            return False
        left = self._look(pop, held)
        if left is not None and left.more:
            line.notify()
        # An attempt that is not fresh may find nothing where others do, but only where there is something.
        return left is None or bool(left.rest and not left.more and not pop.is_fresh)

    def _expire(self, waiter: Waiter) -> None:
        self._end(waiter)
        self._due()

    def _end(self, waiter: Waiter) -> None:
        """Answer a call that waits with nothing; a send that is under way has its outcome."""
        if isinstance(waiter, Send) and waiter.is_underway:
            waiter.is_over = True
        elif waiter.line is not None:
            self._leave(waiter)
            self._tell(waiter.call, waiter.nothing, waiter.unsettled)

    def _leave(self, waiter: Waiter) -> None:
        """Take a call out of its line, if it is in one."""
        line = waiter.line
        if line is not None:
            waiter.line = None
            self._waiting -= 1
            line.waiters.remove(waiter)
            if waiter.timer is not None:
                waiter.timer.cancel()
            if not line.waiters:
                self._dissolve(line)

    def _dissolve(self, line: Line) -> None:
        """End a line; one that was ended may be served once more, and is not the one that has its place now."""
        if self._lines.get(line.key) is line:
            del self._lines[line.key]
            self._store._waits.leave(line)

    def forget(self, client: Client) -> None:
        """End what a client waits for that is gone. What it was given stays leased to it: it may ask again, with the same attempt."""
        for waiter in list(client.calls.values()):
            if waiter is not None:
                self._leave(waiter)
        client.calls.clear()
        client.held.clear()
        self._holding.pop(client, None)
        self.behind.discard(client)
        self.hold(client, -client.held_bytes)


def _frame_of(call: Call, value: object) -> bytearray:
    try:
        made = frame([call.number, value])
        if len(made) <= HEAD.size + MAX_FRAME_BYTES:
            return made
        what = f"the answer to {call.name} has {len(made)} bytes, and one has {MAX_FRAME_BYTES} at most; ask for less at a time"
        return frame([call.number, IllegalArgumentError(what)])
    except Exception as error:  # a value that cannot travel is a fault of this program, and not the client's
        _log.exception("the answer to a call cannot be sent: %s", call.name)
        return frame([call.number, RmqstoreError(f"the answer to {call.name} cannot be sent: {error}")])


_servers: weakref.WeakSet[Server] = weakref.WeakSet()
_threads: weakref.WeakSet[ServerThread] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    for server in list(_servers):
        let_go_of(server.descriptors())
    _threads.clear()


@atexit.register
def _stop_all() -> None:
    """End the servers of stores that were not closed."""
    for thread in list(_threads):
        thread.stop()


os.register_at_fork(after_in_child=_close_in_forked_child)


class ServerThread:
    """Runs a server in a thread of its own, beside what the process does with the store.

    Args:
        listen: makes the server listen.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(
        self,
        store: Store,
        listen: Callable[[Entrance], Coroutine[None, None, object]],
        *,
        token: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._server = Server(store, token=token, limits=limits)
        self._loop = asyncio.SelectorEventLoop()  # the program's own kind may have other transports, as uvloop has
        self._stopping = threading.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="rmqstore-server", daemon=True)
        try:
            self._thread.start()
            _threads.add(self)
            self.listening = self._done(listen(self._server.entrance))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Answer what is under way, and end; idempotent.

        Raises:
            RuntimeError: as with :meth:`refuse_own_thread`.
        """
        self.refuse_own_thread()
        with self._stopping:
            _threads.discard(self)
            if self._thread.is_alive():
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._end)
                self._thread.join()  # and for no answer of the loop, which may be at its end

    def _end(self) -> None:
        if self._ending is None:
            self._ending = self._loop.create_task(self._server.stop())
            self._ending.add_done_callback(lambda _: self._loop.stop())

    def refuse_own_thread(self) -> None:
        """Refuse to stop in a thread of the server, as by a finalizer that the collector calls there: it would wait for itself.

        Raises:
            RuntimeError: nothing was done.
        """
        if threading.current_thread() in self._server.threads:
            raise RuntimeError(
                "a server was to be stopped, or its store closed, in a thread of its own, as by a finalizer; nothing was done: close the "
                "store in a thread of the program"
            )

    def _run(self) -> None:
        self._server.threads.add(self._thread)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # A connection may be half made: its other end came when the server had stopped to listen.
            unfinished = asyncio.all_tasks(self._loop)
            for task in unfinished:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
            self._loop.run_until_complete(self._server.cut_off())
            self._loop.close()

    def _done(self, work: Coroutine[None, None, object]) -> object:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
