"""What waits at a server without a thread: pops, for messages of a topic; and sends, for flow control to let them in."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from rmqstore.batch import MessageBatch
from rmqstore.contract import AckOutcome, PopRequest, PopResult
from rmqstore.errors import FlowControlError
from rmqstore.late import pa, schemas
from rmqstore.server.clients import Call
from rmqstore.store.receipts import PoppedMessages
from rmqstore.store.rounds import Unsettled
from rmqstore.store.waits import ROOM, Patience, TopicWait

Key: TypeAlias = tuple[str, str, bool, str, int | None]
"""What a line waits for: topic, group, order, filter, queue."""

LINE_OF_SENDS: Final[Key] = (ROOM, "", False, "", None)
"""The line of the sends."""


class Waiter(ABC):
    """A call that may wait.

    Attributes:
        unsettled: what its answer rests on so far.
        line: where it waits; None when it does not, or no longer.
        timer: ends its wait.
    """

    def __init__(self, call: Call, patience: Patience) -> None:
        self.call = call
        self.patience = patience
        self.unsettled: Unsettled = []
        self.line: Line | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def nothing(self) -> object:
        """Its answer when nothing has come."""


class Pop(Waiter):
    """One pop that looks again: as what it wants has not come yet, or as it did not look at all there is.

    Attributes:
        is_fresh: its attempt is its first. Another one may be remembered by the store, and then finds what it has found, or nothing.
        acked: what became of its acks, which are done with its first look.
    """

    def __init__(self, call: Call, request: PopRequest, patience: Patience, *, is_fresh: bool) -> None:
        super().__init__(call, patience)
        self.request = request
        self.is_fresh = is_fresh
        self.acked: tuple[AckOutcome, ...] = ()

    @property
    def nothing(self) -> object:
        return self.found(None)

    def found(self, result: PopResult | None) -> object:
        """Return its answer when something has come."""
        if self.call.name == "pop_batch":
            return result.messages.columns() if result else MessageBatch(columns=pa.RecordBatch.from_pylist([], schema=schemas.OUT_SCHEMA))
        found = PoppedMessages(result.messages.messages() if result else ())
        found.acks = self.acked
        return found


class Send(Waiter):
    """One send, which is made again whenever there may be room for it.

    Attributes:
        is_underway: a thread makes it, so that nobody else may, and its outcome comes later.
        is_woken: there may be room that what is under way has missed.
        is_over: its time is, so that the outcome of what is under way is its answer.
    """

    def __init__(self, call: Call, patience: Patience) -> None:
        super().__init__(call, patience)
        self.is_underway = False
        self.is_woken = False
        self.is_over = False
        self._refusal: FlowControlError | None = None

    @property
    def nothing(self) -> object:
        return self._refusal

    def waits_on(self, outcome: object) -> bool:
        """Say whether it goes on waiting after being made once more, as flow control has refused it."""
        if self.line is None or self.is_over or not isinstance(outcome, FlowControlError):
            return False
        self._refusal = outcome
        return True


class Line(TopicWait):
    """Calls that wait for the same: what one pop does not find, those behind it do not find either."""

    def __init__(self, key: Key, *, for_acks: bool, wake: Callable[[Line], None]) -> None:
        super().__init__(key[0], for_acks=for_acks)
        self.key = key
        self.waiters: deque[Waiter] = deque()
        self.is_woken = False
        self._wake = wake

    def notify(self) -> None:
        """Let the loop look again; called by any thread. One call of the loop answers all that come before it looks."""
        if not self.is_woken:
            self.is_woken = True
            self._wake(self)
