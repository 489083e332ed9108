"""litequeue: a queue on SQLite without delays, so it is popped and acked only."""

from __future__ import annotations

import contextlib
import importlib.util
from collections import Counter
from importlib import metadata
from typing import Any, ClassVar, Final

from rmqstore_benchmarks.peers.peer import Durability, Figures, Peer, Task, rows
from rmqstore_benchmarks.peers.phases import popped

MOST: Final = 5000
"""A pop of release 0.9 sorts all that is ready, so a large queue takes minutes: it is measured with so many messages at most."""


class LiteQueue(Peer):
    """As it comes: WAL with synchronous = NORMAL, one message a pop. Data are text, so a body is stored as one character a byte."""

    name = "litequeue"
    settings: ClassVar[dict[Durability, str]] = {Durability.PROCESS_CRASH: "its defaults: WAL, synchronous = NORMAL"}
    how_to_get = "pip install 'rmqstore-benchmarks[peers]'"
    distributions = ("constant",)

    @classmethod
    def version(cls) -> str | None:
        return metadata.version("litequeue") if importlib.util.find_spec("litequeue") else None

    def start(self, stack: contextlib.ExitStack) -> None:
        litequeue: Any = importlib.import_module("litequeue")
        self._queue = litequeue.LiteQueue(str(self.directory / "queue.db"))
        stack.callback(getattr(self._queue, "close", self._queue.conn.close))

    def put(self, bodies: list[bytes]) -> None:
        """Put messages in one transaction."""
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body.decode("latin-1"))

    def pop_ack(self, count: int) -> list[bytes]:
        """Lock messages one by one; then mark them as done in one transaction."""
        found: list[Any] = []
        while len(found) < count and (message := self._queue.pop()) is not None:
            found.append(message)
        with self._queue.transaction():
            for message in found:
                # Releases behind 0.9, which want Python 3.12, ask which claim is done.
                claim = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}
                self._queue.done(message.message_id, **claim)
        return [message.data.encode("latin-1") for message in found]

    def measure(self, task: Task) -> Figures:
        numbers = range(min(task.batches, max(MOST // task.batch, 1)))
        batches = [[timer.body for timer in rows(task.work, number)] for number in numbers]
        for batch in batches:
            self.put(batch)
        return popped(self.pop_ack, Counter(body for batch in batches for body in batch))
