"""What a client asks for each call, and what it makes of the answer: the same for threads (``remote``) and for asyncio (``rmqstore.aio``).

Each call is a generator: it checks and turns what the caller gave, yields the :class:`Ask` for the server, is sent the answer, and returns
what the caller gets. So who drives it decides whether a thread waits for the answer or a loop.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
from msgspec import structs

from rmqstore.batch import MessageBatch
from rmqstore.contract import AckOutcome, CancelOutcome, ChangeOutcome, ChangeResult, RejectOutcome, ReleaseOutcome
from rmqstore.errors import IllegalArgumentError, RmqstoreError, StoreClosedError, StoreUnavailableError, UnsupportedOperationError
from rmqstore.message import CALL_NAME, CALL_NAME_BYTES, LANE_BYTES, PoppedMessage
from rmqstore.server.calls import METHODS, NO_PATHS, OF_PATHS, POPS, REPEATABLE, SENDS, called_ms
from rmqstore.server.connection import Address
from rmqstore.store import Store
from rmqstore.store.opening import absolute_path
from rmqstore.store.receipts import NO_RECEIPTS, handles_of, popped_in, receipts_of, renewed
from rmqstore.store.sending import CallName, new_batch
from rmqstore.when import duration_ms, timedelta_ms

_LONG_S: Final = 5.0
"""A call that had a server for so long begins its patience anew when it loses it."""

_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25

MAX_PATIENCE: Final = timedelta(minutes=5)
_NAME_S: Final = 9 * 60
"""So long a send is made again under its name; a store may forget a name that is older than ten minutes."""

_DOING: Final = SENDS | POPS | {"ack", "cancel", "tick", "flush"}
"""Calls that are made again and change something, so that it matters whether one that failed was done."""

_NOTHING_ASKED: Final = {"invisible": None, "invisible_ms": None, "order": False, "filter": "*", "queue": None}
"""What a pop asks for by default, but for what each kind of pop has of its own."""


class Ask(msgspec.Struct, frozen=True):
    """One call for a server.

    Attributes:
        wait_s: how long it waits at the server.
        is_named: it is a send that has no marks, and gets a name.
    """

    call: str
    arguments: Sequence[object] = ()
    named: Mapping[str, object] = {}
    wait_s: float = 0.0
    is_named: bool = False


Asking: TypeAlias = Generator[Ask, Any, Any]


def _send(message, *, marks=(), **times):  # type: ignore[no-untyped-def]
    return (yield _sent("send", message, marks, times))


def _send_batch(batch, *, marks=(), **times):  # type: ignore[no-untyped-def]
    if isinstance(batch, MessageBatch | Sequence):
        rows = new_batch(batch)
        batch = rows.columns if rows.has_columns else list(rows.messages)
    return (yield _sent("send_batch", batch, marks, times))  # Arrow is checked where it arrives


def _sent(call: str, sent: object, marks: Sequence[bytes], times: Mapping[str, object]) -> Ask:
    timeout = times.get("timeout")
    wait_s = timeout / timedelta(seconds=1) if isinstance(timeout, timedelta) else 0.0
    has_none = isinstance(marks, list | tuple) and not marks
    return Ask(call, (sent,), times if has_none else {**times, "marks": marks}, wait_s, is_named=has_none)


def _cancel(handle):  # type: ignore[no-untyped-def]
    given = handles_of(handle)
    return given.answer((yield Ask("cancel", (list(given.names),))), CancelOutcome.UNKNOWN)


def _pop(topic, group, *, max_messages=32, acks=(), **asked):  # type: ignore[no-untyped-def]
    given = receipts_of(acks) if acks != () else NO_RECEIPTS
    found = yield _popped("pop", topic, group, given.names, max_messages, **asked)
    if given is not NO_RECEIPTS:
        found.acks = given.spread(found.acks, AckOutcome.UNKNOWN)
    return found


def _pop_batch(topic, group, *, max_messages=1024, **asked):  # type: ignore[no-untyped-def]
    return (yield _popped("pop_batch", topic, group, (), max_messages, **asked))


def _popped(  # type: ignore[no-untyped-def]
    call, topic, group, acks, max_messages, *, attempt_id=None, wait=None, wait_ms=None, **asked
) -> Ask:
    try:
        wait_s = (duration_ms("wait", wait, wait_ms) or 0) / 1000
    except (IllegalArgumentError, TypeError):  # the server says so
        wait_s = 0.0
    attempt = secrets.token_hex(12) if attempt_id is None else attempt_id
    named = {**_NOTHING_ASKED, **asked, "max_messages": max_messages, "attempt_id": attempt, "wait": wait, "wait_ms": wait_ms}
    return Ask(call, (topic, group, list(acks), attempt_id is None), named, wait_s)


def _ack(leased):  # type: ignore[no-untyped-def]
    given = receipts_of(leased)
    return given.answer((yield Ask("ack", (list(given.names),))), AckOutcome.UNKNOWN)


def _change_invisible(leased, invisible=None, *, invisible_ms=None):  # type: ignore[no-untyped-def]
    given = receipts_of(leased)
    results = yield Ask("change_invisible", (list(given.names), invisible), {"invisible_ms": invisible_ms})
    answers = renewed(leased, given.spread(results, ChangeResult(ChangeOutcome.UNKNOWN)))
    return answers[0] if given.is_single else answers


def _release(leased):  # type: ignore[no-untyped-def]
    given = receipts_of(leased)
    return given.answer((yield Ask("release", (list(given.names),))), ReleaseOutcome.UNKNOWN)


def _retry_later(leased, delay=None, **asked):  # type: ignore[no-untyped-def]
    messages = popped_in(leased)
    # What a retry needs to know of a message is not its content.
    told = [structs.replace(each, body=b"", properties={}, keys=()) for each in messages]
    answers = renewed(messages, (yield Ask("retry_later", (told, delay), asked)))
    return answers[0] if isinstance(leased, PoppedMessage | ChangeResult) else answers


def _reject(leased, *, reason=""):  # type: ignore[no-untyped-def]
    given = receipts_of(leased)
    return given.answer((yield Ask("reject", (list(given.names),), {"reason": reason})), RejectOutcome.UNKNOWN)


def _snapshot(path):  # type: ignore[no-untyped-def]
    return Path((yield Ask("snapshot", (str(absolute_path(path)),))))


def _dump(path, *, progress=None):  # type: ignore[no-untyped-def]
    if progress is not None:
        raise UnsupportedOperationError("a dump over a connection shows no progress; leave progress out, or dump the directory")
    from rmqstore.transfer.dumps import DumpReport  # it brings Parquet along

    there, *counts = yield Ask("transfer.dump", (str(absolute_path(path)),))
    return DumpReport(Path(there), *counts)


_ASKING: Final[dict[str, Callable[..., Asking]]] = {
    "send": _send,
    "send_batch": _send_batch,
    "cancel": _cancel,
    "pop": _pop,
    "pop_batch": _pop_batch,
    "ack": _ack,
    "change_invisible": _change_invisible,
    "release": _release,
    "retry_later": _retry_later,
    "reject": _reject,
    "snapshot": _snapshot,
    "transfer.dump": _dump,
}


def asking(call: str) -> Callable[..., Asking]:
    """Return the generator function of a call; most go as they are given."""

    def as_it_is(*arguments: object, **named: object) -> Asking:
        return (yield Ask(call, arguments, named))

    return _ASKING.get(call, as_it_is)


def ended(steps: Asking, answer: object) -> Any:
    """Return what the caller gets, when the server has answered what the call asks."""
    try:
        steps.send(answer)
    except StopIteration as end:
        return end.value
    raise AssertionError("a call asks once")


def _lane() -> Iterator[bytes]:
    """Yield names for calls that are made one after the other (``rmqstore.engine.marks``)."""
    start = CALL_NAME + secrets.token_bytes(LANE_BYTES - len(CALL_NAME))
    for number in count(1):
        yield start + number.to_bytes(CALL_NAME_BYTES - LANE_BYTES, "big")


class Lanes:
    """The lanes of a client that no call uses."""

    def __init__(self) -> None:
        self._free: list[Iterator[bytes]] = []
        self._pid = os.getpid()

    def take(self) -> Iterator[bytes]:
        """Return a lane; a forked child has none of its parent's, which goes on with them."""
        if self._pid != os.getpid():
            self._free, self._pid = [], os.getpid()
        try:
            return self._free.pop()
        except IndexError:
            return _lane()

    def give_back(self, lane: Iterator[bytes]) -> None:
        """Keep a lane for a later call. Only when its last call was answered: what comes behind could not be told from a copy of it."""
        self._free.append(lane)


class Underway:
    """One call until it is answered: under what name it goes, and whether it may be made again.

    Attributes:
        call, arguments, named: what goes to the server.
        has_named_attempt: it is a pop whose attempt the caller has named.
        may_have_leased: it is a pop whose answer was lost; what that had leased, only its attempt is told, whose name nobody else has.
    """

    def __init__(self, ask: Ask, lanes: Lanes, address: Address, patience_s: float) -> None:
        if ask.call in OF_PATHS and address.path is None:
            raise UnsupportedOperationError(NO_PATHS)
        self.call = ask.call
        self.arguments = ask.arguments
        self.named = dict(ask.named)
        self.may_have_leased = False
        self._has_own_attempt = ask.call in POPS and bool(ask.arguments[3])
        self.has_named_attempt = ask.call in POPS and not self._has_own_attempt
        self._lanes = lanes
        self._lane = lanes.take() if ask.is_named else None
        if self._lane is not None:
            self.named["marks"] = CallName((next(self._lane),))
        self._address = address
        self._patience_s = patience_s
        self._wait_until_s = time.monotonic() + ask.wait_s if ask.wait_s else None
        self._begun_s = time.time()  # a machine that sleeps goes on with it
        self._called_s = self._tried_s = time.monotonic()
        self._lost: Exception | None = None
        self._may_be_done = False
        self._lineage: object = None  # of the store that was asked last
        self._lost_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def lost(self, error: Exception, *, may_be_done: bool, had_connection: bool = False, since_s: float | None = None) -> None:
        """Note that no answer came; what goes to the server from now on is a repeat.

        Args:
            had_connection: it waited here while there was a server, and was not sent.
            since_s: when, by the monotonic clock, the attempt to reach a server began that failed; its patience counts from then.

        Raises:
            StoreUnavailableError: the call may have been done, and does harm when it is made again.
        """
        self._lost = error
        self._may_be_done |= may_be_done
        if may_be_done:
            self.answer_lost()
        now_s = time.monotonic()
        if may_be_done and self.call not in REPEATABLE:
            raise self.given_up() from error
        self.check_age()
        if (may_be_done or had_connection) and now_s - self._tried_s > min(
            self._patience_s, _LONG_S
        ):  # it had a server: this is another outage
            self._lost_s, self._pause_s = None, _FIRST_PAUSE_S
        if self._lost_s is None:
            self._lost_s = now_s if since_s is None else since_s
        self.come_late()
        if self.call in POPS:
            self.arguments = (*self.arguments[:3], False)

    def answer_lost(self) -> None:
        """Note that the server may have given it an answer that nobody has."""
        self.may_have_leased = self._has_own_attempt

    @property
    def left_s(self) -> float:
        """How long it may wait at the server."""
        return 0.0 if self._wait_until_s is None else max(self._wait_until_s - time.monotonic(), 0.0)

    def come_late(self) -> None:
        """Tell the server of the time that has passed since it was called: it waits so much shorter, and its delay counts from then."""
        if self._wait_until_s is not None:
            left_ms = min(int(self.left_s * 1000), timedelta.max // timedelta(milliseconds=1))  # a float may be more than there was
            self.named |= {"wait": None, "wait_ms": left_ms} if self.call in POPS else {"timeout": timedelta(milliseconds=left_ms)}
        if self.call in SENDS:
            self.arguments = (self.arguments[0], self._ago_ms(time.monotonic()))

    def check_age(self) -> None:
        """Refuse to ask again for a send whose name the store may have forgotten by now, as when this process stood still.

        Raises:
            StoreUnavailableError: it may have been done.
        """
        if self._lost is not None and self._lane is not None and time.time() - self._begun_s >= _NAME_S:
            raise self.given_up() from self._lost

    def given_up(self) -> StoreUnavailableError:
        """Return the error of a call that may have been done, and is not made again."""
        return StoreUnavailableError(
            f"the connection to the store at {self._address} broke while {self.call} was under way ({self._lost}); it may have been done"
        )

    def is_forgotten(self, greeting: Mapping[str, Any]) -> bool:
        """Say whether a send meets a store that does not know its name, as one that a migration made of the first, or a load.

        It would be stored once more there.
        """
        lineage, self._lineage = self._lineage, greeting.get("lineage")
        return self._may_be_done and self._lane is not None and lineage != self._lineage

    def _ago_ms(self, now_s: float) -> int:
        return int((now_s - self._called_s) * 1000)

    def pause_s(self) -> float:
        """Return how long to wait before it is made again.

        Raises:
            StoreUnavailableError: no server was there for so long that nobody waits longer.
        """
        now_s = time.monotonic()
        assert self._lost_s is not None
        if now_s - self._lost_s >= self._patience_s:
            raise self.refused(StoreUnavailableError(unavailable(self._address, self._lost))) from self._lost
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._tried_s = now_s + pause_s
        return pause_s

    def answered(self, answer: object) -> Any:
        """Return the answer, or raise the error that it is.

        Raises:
            StoreUnavailableError: a repeat failed, as sends are paused or there is no room by now; a copy before it may have been done.
        """
        if self._lane is not None:
            self._lanes.give_back(self._lane)
            self._lane = None
        if isinstance(answer, Exception):
            raise self.refused(answer)
        return answer

    def refused(self, error: Exception) -> Exception:
        """Return the error of a call that was refused, with which nothing was done; a copy before it may have been."""
        if not self._may_be_done or self.call not in _DOING:
            return error
        kind = StoreClosedError if isinstance(error, StoreClosedError) else StoreUnavailableError
        made = kind(f"{error}; the connection broke before while {self.call} was under way, so it may have been done")
        made.__cause__ = error
        return made

    def refuse(self, error: Exception) -> NoReturn:
        """Raise the error of a call that was refused."""
        raise self.refused(error)

    def make_on(self, store: Store) -> Any:
        """Make the call on a store of this process."""
        answer: object
        try:
            if self.call not in POPS:
                arguments = self.arguments
                if self.call in SENDS:
                    arguments = (arguments[0], called_ms(store, self._ago_ms(time.monotonic())))
                answer = METHODS[self.call](store)(*arguments, **self.named)
            else:
                topic, group, acks, _ = self.arguments
                if self.call == "pop":
                    answer = store.pop(topic, group, acks=acks, **self.named)  # type: ignore[arg-type]
                else:
                    answer = store.pop_batch(topic, group, **self.named)  # type: ignore[arg-type]
        except RmqstoreError as error:
            answer = error
        return self.answered(answer)


def patience_s_of(patience: timedelta) -> float:
    """Return in seconds how long a call is tried anew.

    Raises:
        IllegalArgumentError: longer than a store keeps the names of calls, or no time.
    """
    timedelta_ms("patience", patience)
    if patience > MAX_PATIENCE:
        raise IllegalArgumentError(f"patience must be at most {MAX_PATIENCE}, since stores forget the names of calls; it is {patience}")
    return patience / timedelta(seconds=1)


def unavailable(address: Address, error: BaseException | None) -> str:
    """Return the words for a server that is not there."""
    if isinstance(error, TimeoutError):
        return f"the server at {address} does not answer; look after its process"
    hint = "start `rmqstore serve`, or open the directory with share=True"
    if address.path is None:
        other = "connect with the client certificate that it may want, in tls=…" if address.is_tls else "write rmqstores:// if it wants TLS"
        hint = f"start `rmqstore serve` there, or {other}"
    return f"nobody serves a store at {address} ({error}); {hint}"
