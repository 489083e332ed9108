"""The calls that go over the wire, and how a server makes each (docs/server.md)."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import astuple

from rmqstore.batch import MessageBatch
from rmqstore.store import Store
from rmqstore.store.administration import Groups, Part, Topics, Transfer
from rmqstore.store.dead_letters import DeadLetters
from rmqstore.store.pauses import Pauses
from rmqstore.store.schedules import Schedules

QUICK: Final = frozenset(
    (
        "send cancel cancel_key cancel_keys ack change_invisible release retry_later reject lag next_wake_ms confirm_clock_step "
        "topics.list topics.create groups.list groups.settings groups.offsets groups.set groups.subscriptions transfer.wake "
        "schedules.list pauses.list"
    ).split()
)
"""Calls that the server's loop makes itself."""

LONG: Final = frozenset(
    (
        "send_batch tick health snapshot flush pending scan leases read get where stats verify "
        "topics.delete groups.delete groups.reset_offset dead_letters.list dead_letters.parked dead_letters.resend dead_letters.drop "
        "transfer.digest transfer.dump transfer.plant_witness transfer.has_witness schedules.put schedules.delete pauses.begin pauses.end"
    ).split()
)
"""Calls that have a thread of its pool."""

POPS: Final = frozenset(("pop", "pop_batch"))
"""Calls that may wait, which takes no thread. They are given topic, group, receipts to ack, and whether their attempt is the first one;
all else by name."""

SENDS: Final = frozenset(("send", "send_batch"))
"""Calls that wait, without a thread, as long as their ``timeout`` says and flow control refuses them."""

BULKY: Final = frozenset("read scan get where leases dead_letters.list dead_letters.parked".split())
"""Long calls whose answers may be large."""

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
        "topics.delete groups.set groups.delete groups.reset_offset dead_letters.resend dead_letters.drop schedules.delete"
    ).split()
)
"""Calls that are made again when the connection breaks, since it does no harm when they were done already: they read, a send carries a
name, a pop an attempt id, and acks and cancels by handle say the same twice."""

GIVE_UP: Final = "give_up"
"""Ends the wait of the call whose number it names: that one is answered at once, with nothing."""


def _unchecked(batch: Any) -> Any:
    """Return what a client gives to ``send_batch`` so that the store checks it: as a batch it would count as checked."""
    return batch.columns if isinstance(batch, MessageBatch) else batch


def calls_of(part: str) -> dict[str, str]:
    """Return the calls of a part of a store, by what they are called there."""
    return {call.removeprefix(f"{part}."): call for call in sorted(QUICK | LONG) if call.startswith(f"{part}.")}


METHODS: Final[dict[str, Callable[[Store], Callable[..., Any]]]] = {
    **{name: attrgetter(name) for name in QUICK | LONG},
    "send_batch": lambda store: lambda batch, **named: store.send_batch(_unchecked(batch), **named),
    "transfer.dump": lambda store: lambda path: astuple(store.transfer.dump(path)),  # its struct brings Parquet along
}
"""The method of a store that makes a call."""
