"""What both sides of a key-ordered session do alike: everything that concerns the database as a whole."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from rmqstore.contract import Side, Ticket
from rmqstore.ordered.shared import Shared


class OrderedSide(Side):
    """A side over the shared database."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._options = shared.options
        self._lock = shared.lock
        self._call = shared.call

    def sync(self, ticket: Ticket | None = None) -> None:
        self._shared.sync(ticket)

    @property
    def durable_position(self) -> int:
        return self._shared.kv.durable_position

    def held(self) -> AbstractContextManager[object]:
        return self._lock

    def snapshot(self, path: Path) -> None:
        self._shared.snapshot(path)

    def close(self) -> None:
        self._shared.close()
