"""What a load takes in: a dump, or a store that stands still; both give the same chunks each time they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from rmqstore.contract.state import TIMER_TABLES
from rmqstore.store.opening import broker_name
from rmqstore.store.reader import ReadStore
from rmqstore.tables import State
from rmqstore.transfer.dumps import Needs, joined_needs


class Incoming(Protocol):
    """The state of one store on its way into another."""

    @property
    def name(self) -> str: ...

    @property
    def dump_id(self) -> str: ...

    @property
    def store_id(self) -> int: ...

    @property
    def broker(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def precision_ms(self) -> int: ...

    @property
    def needs(self) -> Needs: ...

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table; 0 where unknown yet."""

    def chunks(self, table: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (name of the chunk, rows) of a table."""

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table that is never large."""


class IncomingStore:
    """A store that is not changed, read directly; ``dump_id`` names its state by its number and epoch."""

    def __init__(self, view: ReadStore) -> None:
        self._state = State(view.engine.timers, view.engine.pops)
        self._stats = view.stats()
        self.name = f"store {view.path}"
        self.store_id = view.engine.store_id
        self.broker = broker_name(view.engine.store_id)
        self.epoch = self._state.epoch
        self.last_seq = self._state.last_seq
        self.precision_ms = self._state.precision_ms
        self.dump_id = f"{view.engine.store_id:08x}{self.epoch:08x}"
        self.needs = Needs()
        for table in ("timers", "messages", "subscriptions", "fifo"):
            for _, rows in self._state.pages(table):
                self.needs = joined_needs(self.needs, table, rows)

    def counts(self) -> dict[str, int]:
        return {"timers": self._stats.timers.pending, "messages": self._stats.pops.messages}

    def chunks(self, table: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        for number, (_, rows) in enumerate(self._state.pages(table)):
            if len(rows):
                yield f"{table}/{number}", rows

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self._state.rows(table)


def is_timer_table(table: str) -> bool:
    """Say which side takes a table."""
    return table in TIMER_TABLES
