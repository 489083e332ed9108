"""What the two lower interfaces have in common: durability in two steps, upkeep, copies, the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from rmqstore.contract.state import Adopted, StatePage
from rmqstore.errors import UnsupportedOperationError
from rmqstore.late import pa


class Ticket(msgspec.Struct, frozen=True):
    """What a mutating call gives besides its result: pass it to ``sync`` to wait until the call is durable.

    ``position`` is an engine's log position; it grows with every mutating call of one open store. 0 means nothing to wait for.
    """

    position: int


class Expired(msgspec.Struct, frozen=True):
    """How many messages of a topic retention took before a group had popped them (Q1, Q3)."""

    group: str
    topic: str
    messages: int


class UpkeepReport(msgspec.Struct, frozen=True):
    """What one step of upkeep did.

    Attributes:
        done: units of work, of which the budget of the step speaks.
        more: the budget may have cut it short: another step finds the rest.
        expired: what retention took unconsumed.
    """

    done: int = 0
    more: bool = False
    expired: tuple[Expired, ...] = ()


class Side(ABC):
    """One side of a store, timers or pops.

    Mutating calls may come from any thread and are serialised by the side; pure reads run beside them. A call is all or nothing (F3). No
    method reads a clock, starts a thread or sleeps: time enters as ``now_ms``.
    """

    @abstractmethod
    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        """Do one step of upkeep, of up to ``budget`` units (drop what is remembered long enough), without a sync."""

    @abstractmethod
    def sync(self, ticket: Ticket | None = None) -> None:
        """Return when everything up to ``ticket`` (None: everything) is durable; concurrent calls share one disk sync.

        Raises:
            StoreFullError: no room; what was not durable is not stored (F1).
            StorePoisonedError: the disk failed (F2).
        """

    @property
    @abstractmethod
    def durable_position(self) -> int:
        """The position up to which everything would survive a power loss."""

    def export_state(self, table: str, after: bytes | None, limit: int) -> StatePage:
        """Return about ``limit`` rows of a table of ``rmqstore.contract.tables`` from behind ``after`` on, in a stable order; a pure read.

        Raises:
            UnsupportedOperationError: the engine does not declare ``import_state``, or has no such table.
            CorruptStoreError: something cannot be read; nothing is left out.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} cannot export its state")

    def import_state(self, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, marks: Sequence[bytes] = ()) -> Ticket:
        """Take rows in beside what is there, in one atomic step. A call of which a mark was given before does nothing.

        The caller ensures that rows do not collide with what is there. Marks are forgotten with the row of ``timer_adopted`` or
        ``pop_adopted`` that says that the load is complete.

        Raises:
            UnsupportedOperationError: the engine does not declare ``import_state``.
            StoreFullError: no room; nothing was taken in.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} cannot take in the state of another store")

    def adopted(self) -> dict[int, Adopted]:
        """Return the stores whose state was loaded into this one, by their tag."""
        return {}

    def held(self) -> AbstractContextManager[object]:
        """Keep the calls of other threads waiting until the end of a ``with`` block, so that pages are of one state."""
        raise UnsupportedOperationError(f"{type(self).__name__} cannot be held still")

    @abstractmethod
    def verify(self) -> list[str]:
        """Recount every counter and check every record; returns one sentence a difference, empty when all is well."""

    @abstractmethod
    def snapshot(self, path: Path) -> None:
        """Write a consistent copy to the new directory ``path``, openable as an engine directory."""

    @abstractmethod
    def close(self) -> None:
        """Make everything durable and let go of the files; idempotent."""
