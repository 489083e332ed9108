"""``Owning``: what the calls of an owner share: the clock, the disk, and waking those who wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rmqstore.clock import Clock
from rmqstore.contract import (
    Flush,
    Side,
    Support,
    Ticket,
)
from rmqstore.errors import LostCallsError, StorePoisonedError, UnsupportedOperationError
from rmqstore.opening import Opened
from rmqstore.reading import Reading
from rmqstore.sending import Completer
from rmqstore.services.signals import Waits

_STAND_BACK_S = 0.0002
"""So long each call waits first while some call goes on in steps: the lock of an engine is not fair, nor is the interpreter's, so that a
thread that calls in a loop would keep the steps out for seconds, and steps that follow at once would keep it out."""


class Owning(Reading):
    """The base of what sends and what consumes."""

    def __init__(self, opened: Opened, clock: Clock) -> None:
        super().__init__(opened.directory.path, opened.config, opened.store_tag, opened.timers, opened.pops)
        self._opened = opened
        self._clock = clock
        self._sync_calls = opened.config.flush is Flush.SYNC
        self._waits = Waits()
        self._completer = Completer(self._queues_of)
        self._untold: LostCallsError | None = None
        self._in_steps: set[int] = set()

    def _check_open(self) -> None:
        if self._in_steps:
            time.sleep(_STAND_BACK_S)
        super()._check_open()
        if self._untold is not None:
            untold, self._untold = self._untold, None
            raise untold
        if self._opened.directory.is_removed:
            self._poison = StorePoisonedError(
                f"the files of store {self._path}, or its lock file, were removed while it was open; close it, and if nothing is left, "
                "restore it from a snapshot"
            )
            raise self._poison

    def _queues_of(self, topic: str) -> int:
        # An unknown one is made when its first message arrives, so that a refused send leaves nothing behind.
        return self._pops.queues(topic) or self._opened.config.default_queues

    def _group_queues_of(self, topic: str) -> int:
        """Return over how many queues the message groups of a topic are spread; its first message with a group fixes it (P9)."""
        known, config = self._pops.topic(topic), self._opened.config
        if known is None or (known.is_on_demand and not known.group_queues and not any(known.max_offsets)):
            return max(config.fifo_queues, config.default_queues if known is None else known.queues)
        return known.group_queues or known.queues

    def _ends_of(self, topic: str) -> tuple[int, ...]:
        """Return the next offset of each queue of a topic; none when there is no such topic."""
        known = self._pops.topic(topic)
        return () if known is None else known.max_offsets

    def _require(self, capability: str, what: str) -> None:
        """Refuse a call that needs what the pop engine does not declare (S1)."""
        engine = self._opened.config.pop_engine
        if getattr(self._opened.infos[engine].capabilities, capability) is not Support.FULL:
            raise UnsupportedOperationError(f"engine {engine!r} does not {what}; `rmqstore engines` lists what each engine can do")

    def _settle(self, side: Side, ticket: Ticket) -> None:
        """Wait for the disk where the setting asks for it."""
        if self._sync_calls and ticket.position:
            try:
                side.sync(ticket)
            except StorePoisonedError as error:
                self._poison = error
                raise

    @contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Refuse all later calls once a sync has failed, also those that the engine of the other side would answer (F2)."""
        try:
            yield
        except StorePoisonedError as error:
            self._poison = error
            raise
