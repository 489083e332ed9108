"""The calls that go over the wire, and how a server makes each (docs/server.md); and stores that let others make theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

from msgspec.structs import astuple

from rmqstore.batch import MessageBatch
from rmqstore.clock import SystemClock
from rmqstore.delays import batch_without_requests, without_requests
from rmqstore.errors import RmqstoreError
from rmqstore.store import Store
from rmqstore.store.administration import Groups, Part, Topics, Transfer
from rmqstore.store.dead_letters import DeadLetters
from rmqstore.store.pauses import Pauses
from rmqstore.store.schedules import Schedules
from rmqstore.store.sending import asked_ms, new_batch

QUICK: Final = frozenset(
    (
        "send cancel ack change_invisible release retry_later reject lag next_wake_ms "
        "topics.list topics.create groups.list groups.settings groups.offsets groups.set groups.subscriptions transfer.wake "
        "schedules.list pauses.list"
    ).split()
)
"""Calls that the server's loop makes itself, but for those of very many messages (:func:`is_quick`)."""

LONG: Final = frozenset(
    (
        "send_batch cancel_key cancel_keys tick confirm_clock_step health snapshot flush pending scan leases read get where stats verify "
        "topics.delete groups.delete groups.reset_offset dead_letters.list dead_letters.parked dead_letters.resend dead_letters.drop "
        "transfer.digest transfer.dump transfer.plant_witness transfer.has_witness schedules.put schedules.delete pauses.begin pauses.end"
    ).split()
)
"""Calls that have a thread of its pool."""

POPS: Final = frozenset(("pop", "pop_batch"))
"""Calls that may wait, which takes no thread. They are given topic, group, receipts to ack, and whether their attempt is the first one;
all else by name."""

SENDS: Final = frozenset(("send", "send_batch"))
"""Calls that wait, without a thread, as long as their ``timeout`` says and flow control refuses them. They are given what is sent, and
when they are made again how many ms ago they were called; all else by name."""

BULKY: Final = frozenset(
    (
        "read scan get where leases dead_letters.list dead_letters.parked "
        "topics.list groups.list groups.settings groups.offsets groups.subscriptions schedules.list"
    ).split()
)
"""Calls that change nothing, and whose answers may be large: when a server holds too much, long ones are refused before they are made, and
quick ones when their answer is large."""

PARTS: Final[dict[str, type[Part]]] = {
    "topics": Topics,
    "groups": Groups,
    "dead_letters": DeadLetters,
    "schedules": Schedules,
    "pauses": Pauses,
    "transfer": Transfer,
}
"""The parts of a store."""

CALLS: Final = sorted(name for name in QUICK | LONG | POPS if "." not in name)
"""The calls of a store itself; the others are those of its parts."""

REPEATABLE: Final = (POPS | QUICK | LONG).difference(
    (
        "cancel_key cancel_keys change_invisible release retry_later reject confirm_clock_step snapshot transfer.dump "
        "topics.create topics.delete groups.set groups.delete groups.reset_offset dead_letters.resend dead_letters.drop "
        "schedules.put schedules.delete pauses.begin pauses.end"
    ).split()
)
"""Calls that are made again when the connection breaks, since it does no harm when they were done already: they read, a send carries a
name, a pop an attempt id, and acks and cancels by handle say the same twice."""

OF_PATHS: Final = frozenset(("snapshot", "transfer.dump"))
"""Calls that are given a path of the server's machine, and so are for clients of a unix socket alone."""

NO_PATHS: Final = "the server would write on its own machine; run the command there, or connect by a unix socket"
"""What others are told."""

GIVE_UP: Final = "give_up"
"""Ends the wait of the call whose number it names: that one is answered at once, with nothing."""


_MANY: Final = 1000
"""A call of more messages than this takes so long that the other clients would notice."""


def is_quick(call: str, arguments: Sequence[object], named: Mapping[str, object]) -> bool:
    """Say whether the server's loop makes a call itself."""
    return call in QUICK and not any(isinstance(each, list | tuple) and len(each) > _MANY for each in (*arguments, *named.values()))


def calls_of(part: str) -> dict[str, str]:
    """Return the calls of a part of a store, by what they are called there."""
    return {call.removeprefix(f"{part}."): call for call in sorted(QUICK | LONG) if call.startswith(f"{part}.")}


def called_ms(store: Store, ago_ms: int) -> int:
    """Return when a send was called, by the clock of the store, which was ``ago_ms`` of real time ago.

    A clock that is moved by hand has not moved by that, and what it delivers would be early.
    """
    now_ms = store._clock.now_ms()
    return now_ms - ago_ms if isinstance(store._clock, SystemClock) else now_ms


def _timed(named: dict[str, Any], begun_ms: int) -> dict[str, Any]:
    """Return the named arguments of a send with the time that it asked for when it was called."""
    others = dict(named)
    deliver_at, deliver_at_ms, delay, delay_ms = (others.pop(name, None) for name in ("deliver_at", "deliver_at_ms", "delay", "delay_ms"))
    others["deliver_at_ms"] = asked_ms(deliver_at, deliver_at_ms, delay, delay_ms, others.pop("delay_level", None), begun_ms)
    return others


_WRONG: Final = (RmqstoreError, AttributeError, TypeError)
"""What an argument of the wrong type or value meets before the store has it, which then says what is wrong with it."""


def _send(store: Store) -> Callable[..., Any]:
    def send(message: Any, begun_ms: int | None = None, /, **named: Any) -> Any:
        if begun_ms is not None:
            with suppress(*_WRONG):
                message, named = without_requests(message, begun_ms), _timed(named, begun_ms)
        return store.send(message, **named)

    return send


def _send_batch(store: Store) -> Callable[..., Any]:
    def send_batch(batch: Any, begun_ms: int | None = None, /, **named: Any) -> Any:
        if isinstance(batch, MessageBatch):
            batch = batch.columns  # which the store checks; as a batch it would count as checked
        if begun_ms is not None:
            with suppress(*_WRONG):
                batch, named = batch_without_requests(new_batch(batch), begun_ms), _timed(named, begun_ms)
        return store.send_batch(batch, **named)

    return send_batch


METHODS: Final[dict[str, Callable[[Store], Callable[..., Any]]]] = {
    **{name: attrgetter(name) for name in QUICK | LONG},
    "send": _send,
    "send_batch": _send_batch,
    "transfer.dump": lambda store: lambda path: astuple(store.transfer.dump(path)),  # its struct brings Parquet along
}
"""The method of a store that makes a call. That of a send may be given when it was called, in ms, from which its delay counts."""


# ---------------------------------------------------------------- stores that let others make their calls


_Part = TypeVar("_Part", bound=Part)


class Passing(Store):
    """A store whose calls, and those of its parts, are made elsewhere: by :meth:`_pass`."""

    _is_gone = False  # closed

    @property
    def _is_closed(self) -> bool:
        return self._is_gone

    def _pass(self, call: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Make a call, which has the name that it has on the wire."""
        raise NotImplementedError

    def _part(self, kind: type[_Part]) -> _Part:
        return cast("_Part", _PASSING_PARTS[kind](self))


def _passed(call: str, like: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(like)
    def method(self: Passing | Part, *arguments: Any, **named: Any) -> Any:
        store = cast("Passing", self._store if isinstance(self, Part) else self)
        return store._pass(call, arguments, named)

    return method


for _name in CALLS:
    setattr(Passing, _name, _passed(_name, getattr(Store, _name)))
_PASSING_PARTS: Final[dict[type[Part], type[Part]]] = {
    kind: type(f"Passing{kind.__name__}", (kind,), {name: _passed(call, getattr(kind, name)) for name, call in calls_of(part).items()})
    for part, kind in PARTS.items()
}
"""The parts of a store whose calls are passed on, by those that they stand for."""
