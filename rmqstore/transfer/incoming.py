"""What a load takes in: a dump, or a store that stands still; both give the same chunks each time they are asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.batch import map_parts
from rmqstore.store.opening import broker_name
from rmqstore.store.reader import ReadStore
from rmqstore.tables import State

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the table, the rows done and the rows there are in all; 0 when unknown yet."""


def silent(table: str, rows_done: int, rows_total: int) -> None:
    """Tell nobody how far it is."""


class Needs(msgspec.Struct, frozen=True):
    """What a store must be able to hold to take the state of another one in."""

    body_bytes: int = 0
    properties_bytes: int = 0
    key_bytes: int = 0
    fifo: bool = False


def joined_needs(needs: Needs, table: str, page: pa.RecordBatch) -> Needs:
    """Return what the rows of a page need on top of ``needs``."""
    if table == "fifo" and len(page):
        return msgspec.structs.replace(needs, fifo=True)
    if table == "subscriptions" and pc.any(page.column("is_ordered")).as_py():
        return msgspec.structs.replace(needs, fifo=True)
    if table not in ("timers", "messages") or not len(page):
        return needs
    names, values, offsets = map_parts(page.column("properties"))
    sizes = pc.add(pc.binary_length(names), pc.binary_length(values)).to_pylist()
    bounds = offsets.to_pylist()
    return Needs(
        max(needs.body_bytes, pc.max(pc.binary_length(page.column("body"))).as_py()),
        max(needs.properties_bytes, *(sum(sizes[first:behind]) for first, behind in zip(bounds, bounds[1:], strict=False))),
        max(needs.key_bytes, pc.max(pc.binary_length(pc.list_flatten(page.column("keys")))).as_py() or 0),
        needs.fifo,
    )


class Incoming(ABC):
    """The state of one store on its way into another.

    Attributes:
        name: what messages call it.
        dump_id: tells this state from every other.
        store_id, broker: of the store, as its handles and receipts carry them.
        epoch, last_seq, precision_ms: as :class:`rmqstore.tables.State` has them.
    """

    name: str
    dump_id: str
    store_id: int
    broker: str
    epoch: int
    last_seq: int
    precision_ms: int
    needs: Needs

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table; 0 where unknown yet."""

    @abstractmethod
    def chunks(self, table: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (name of the chunk, rows) of a table."""

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table that is never large."""
        return [row for _, rows in self.chunks(table) for row in rows.to_pylist()]


class IncomingStore(Incoming):
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
