"""Rounds: calls of one thread that share one wait for the disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from rmqstore.contract import Side, Ticket

if TYPE_CHECKING:
    from rmqstore.store.store import Store

Unsettled: TypeAlias = list[tuple[Side, Ticket]]
"""What an answer rests on and is not durable yet."""


class Round:
    """Keeps the calls of one thread from waiting for the disk one by one; other threads wait as ever.

    Nobody is told what a call of a round gave before :meth:`settle` returned for it: the result is visible to other calls, as it is while
    a call waits in its own thread, but it is not acknowledged (docs/contract.md, two-phase durability). A round lasts as long as its
    ``with`` block; one thread of a store has one at a time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = threading.get_ident()
        self._unsettled: Unsettled = []

    def __enter__(self) -> Round:
        self._store._round = self
        return self

    def __exit__(self, *_: object) -> None:
        self._store._round = None

    def note(self, side: Side, ticket: Ticket) -> bool:
        """Keep what a call of this round has to wait for; False for the call of another thread."""
        if threading.get_ident() != self._thread:
            return False
        self._unsettled.append((side, ticket))
        return True

    def take(self) -> Unsettled:
        """Return what the calls since the last question have to wait for."""
        taken, self._unsettled = self._unsettled, []
        return taken


def settle(store: Store, unsettled: Unsettled) -> None:
    """Wait until what an answer rests on is durable; outside of the round. A later ticket first makes the others come for nothing."""
    for side, ticket in reversed(unsettled):
        store._settle(side, ticket)
