"""``Reader``: what an open store tells of itself without changing anything; and ``ReadStore``, which does nothing else (X1)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    Lag,
    LeaseInfo,
    PendingCounts,
    PopStats,
    ScanPage,
    TimerStats,
)
from rmqstore.errors import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    RmqstoreError,
    StoreClosedError,
    StoreForkedError,
    UnsupportedOperationError,
    named,
)
from rmqstore.message import (
    BEHIND_ALL_MS,
    MAX_ID_BYTES,
    MAX_PROPERTIES_BYTES,
    PoppedMessage,
    check_count,
    check_group,
    check_readable_topic,
    check_time_ms,
    check_word,
)
from rmqstore.store.administration import Groups, Part, Topics, Transfer
from rmqstore.store.dead_letters import DeadLetters
from rmqstore.store.handlers import is_closed_around
from rmqstore.store.lookup import Wanted, Whereabouts, look_up
from rmqstore.store.opening import Engines, ReadEngines
from rmqstore.store.pauses import Pauses
from rmqstore.store.schedules import Schedules
from rmqstore.when import time_ms

if TYPE_CHECKING:
    from rmqstore.store.store import Store


_Part = TypeVar("_Part", bound=Part)


class StoreStats(msgspec.Struct, frozen=True):
    """Counters and gauges of a store."""

    path: str
    timer_engine: str
    pop_engine: str
    timers: TimerStats
    pops: PopStats


class Reader:
    """The calls of a store that change nothing; each answers for one moment.

    Attributes:
        engine: what is beneath, for tools: the two sides, the settings, the store's number.
    """

    def __init__(self, path: Path, engine: Engines) -> None:
        self._path = path
        self.engine = engine
        self._timers = engine.timers
        self._pops = engine.pops
        self._pid = os.getpid()
        self._refusal: RmqstoreError | None = None  # what every call raises from now on
        self._is_let_go = False

    @property
    def path(self) -> Path:
        """The directory of the store."""
        return self._path

    def _part(self, kind: type[_Part]) -> _Part:
        """Return some of the calls, under a name of their own."""
        return kind(self)

    @property
    def topics(self) -> Topics:
        """The topics: list, create, delete."""
        return self._part(Topics)

    @property
    def groups(self) -> Groups:
        """The groups: list, settings, positions, subscriptions."""
        return self._part(Groups)

    @property
    def dead_letters(self) -> DeadLetters:
        """What groups gave up, and what cannot be read: list, resend, drop."""
        return self._part(DeadLetters)

    @property
    def schedules(self) -> Schedules:
        """What sends messages again and again: list, put, delete."""
        return self._part(Schedules)

    @property
    def pauses(self) -> Pauses:
        """What is held up for a while, sends or the hand-over: list, begin, end."""
        return self._part(Pauses)

    @property
    def transfer(self) -> Transfer:
        """The state of the store as a whole: digest, dump."""
        return self._part(Transfer)

    def pending(self, edges_ms: Sequence[int] = ()) -> PendingCounts:
        """Count pending timers by due time, exactly: n rising edges (ms) make n - 1 buckets, plus total, earliest and latest."""
        self._check_open()
        if not isinstance(edges_ms, Sequence) or isinstance(edges_ms, str | bytes):
            raise IllegalArgumentTypeError(f"edges_ms must be a list of times, not {edges_ms!r}")
        for edge in edges_ms:
            check_time_ms("each of edges_ms", edge)
        return self._timers.pending(list(edges_ms), self._pops.timer_cursor())

    def scan(
        self,
        from_: datetime | None = None,
        to: datetime | None = None,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        after: tuple[int, int] | None = None,
        limit: int = 1000,
    ) -> ScanPage:
        """List pending timers due in ``from_ <= due < to``, by tick and order of sending; read on with ``after=page.next_after``.

        A page ends at ``limit`` timers, or with the one that makes it larger than 8 MiB.
        The bounds are aware ``datetime`` objects, or ``from_ms`` and ``to_ms`` in ms since the epoch; one that is left out is no bound.
        """
        self._check_open()
        if type(limit) is not int or limit < 1:
            raise IllegalArgumentError(f"limit must be an int of at least 1, not {limit!r}")
        if after is not None and not (isinstance(after, tuple) and len(after) == 2):
            raise IllegalArgumentTypeError(f"after must be what page.next_after gave, not {after!r}")
        for number in after or ():
            check_time_ms("a number of after", number)
        lower_ms, upper_ms = time_ms("from_", from_, from_ms), time_ms("to", to, to_ms)
        return self._timers.scan(lower_ms or 0, BEHIND_ALL_MS if upper_ms is None else upper_ms, after, limit, self._pops.timer_cursor())

    def lag(self, topic: str, group: str) -> Lag:
        """Return how far a group is behind on a topic, exactly."""
        self._check_open()
        check_readable_topic(topic)
        check_group(group)
        return self._pops.lag(topic, group)

    def leases(self, topic: str | None = None, group: str | None = None) -> list[LeaseInfo]:
        """List the running leases: who holds which message until when."""
        self._check_open()
        if topic is not None:
            check_readable_topic(topic)
        if group is not None:
            check_group(group)
        return self._pops.leases(topic, group)

    def read(self, topic: str, queue: int = 0, offset: int = 0, limit: int = 32) -> MessageBatch:
        """Read messages of a queue without a lease: ``limit``, or fewer when they exceed 8 MiB; none at the end of the queue."""
        self._check_open()
        check_readable_topic(topic)
        for name, number in (("queue", queue), ("offset", offset), ("limit", limit)):
            check_count(name, number, minimum=name == "limit")
        return self._pops.read(topic, queue, offset, limit)

    def get(self, message_id: str) -> PoppedMessage | None:
        """Find the newest message with this id that arrived in a topic, by reading all queues; None when there is none."""
        self._check_open()
        check_word("message_id", message_id, MAX_ID_BYTES)
        return self._pops.get(message_id)

    def where(
        self,
        *,
        id: str | None = None,  # noqa: A002 - what a caller writes: where(id=…)
        key: str | None = None,
        topic: str | None = None,
    ) -> list[Whereabouts]:
        """Say where the messages with an id or a key are: timers, queues, leases, waits, dead letters; of one topic, or of all.

        A message that several groups pop is listed once for each. The list is empty when nothing is known of it: it was never here, or was
        cancelled, or all groups were done with it and it was taken away; of a timer, ``cancel`` with its handle tells which. There is no
        index: this reads what there is, in small steps.

        Raises:
            IllegalArgumentError: neither an id nor a key was given, or both, or one of them is none.
        """
        self._check_open()
        if (id is None) == (key is None):
            raise IllegalArgumentError("give an id or a key to look for, such as where(id=receipt.message_id), and not both")
        for name, text in (("id", id), ("key", key)):
            if text is not None:
                check_word(name, text, MAX_PROPERTIES_BYTES)
        if topic is not None:
            check_readable_topic(topic)
        return look_up(self._timers, self._pops, Wanted(id, key, topic))

    def stats(self) -> StoreStats:
        """Return counters and gauges."""
        self._check_open()
        timers = msgspec.structs.replace(self._timers.stats(), pending=self.pending().total)
        return StoreStats(str(self._path), self.engine.config.timer_engine, self.engine.config.pop_engine, timers, self._pops.stats())

    def verify(self) -> list[str]:
        """Recount every counter and read every record; one sentence a difference, empty when all is well."""
        self._check_open()
        return list(dict.fromkeys(map(named, self._timers.verify() + self._pops.verify())))  # what both sides share is told once

    @property
    def _is_closed(self) -> bool:
        return isinstance(self._refusal, StoreClosedError)

    def _check_open(self) -> None:
        """Refuse the call of a store that is closed, poisoned or another process's; asked once a call."""
        if self._refusal is not None or os.getpid() != self._pid:
            self._refuse()

    def _refuse(self) -> None:
        if os.getpid() != self._pid:
            raise StoreForkedError("this store was opened by the parent process; open a store of your own in the child")
        if (refusal := self._refusal) is not None:
            raise type(refusal)(*refusal.args) from (None if self._is_closed else refusal)

    def _as_owner(self, call: str) -> Store:
        """Return the store for a call that changes something, which only its owner makes."""
        raise UnsupportedOperationError(f"{call} is for the owner of a store; {self!r} is open for reading")

    def close(self) -> None:
        """Let go of the store; idempotent.

        Raises:
            RuntimeError: a signal handler, or a finalizer, closes it within another call of the same thread (F4), unless that is a pop or a
                send that waits for messages or for room, which ends then.
        """
        if self._is_let_go:
            return
        if os.getpid() != self._pid:
            self._refuse()
        if is_closed_around(self, self):
            return
        try:
            self._end()
        except BaseException:
            if not self._is_let_go:  # by a signal handler, which may have asked for a close itself
                self._end()
            raise

    def _end(self) -> None:
        self._refusal = StoreClosedError(f"store {self._path} is closed; open it again")
        self.engine.close()
        self._is_let_go = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rmqstore.{type(self).__name__} {self._path} ({'closed' if self._is_closed else 'open'})>"


class ReadStore(Reader):
    """A store opened with ``read_only=True``: the state as of the open, or of the last :meth:`refresh`.

    It takes no lock and changes no file of the store, so it works beside a running owner, and also when nobody has the store open. What
    it shows is a prefix of the owner's calls that holds everything durable. docs/engine.md says what each engine does to keep that state,
    and what it costs the owner.
    """

    engine: ReadEngines

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        super().__init__(path, ReadEngines(path, settings))

    def refresh(self) -> None:
        """Move on to the newest state; no other thread may be reading meanwhile. When it fails, refresh again or close."""
        self._check_open()
        self.engine.refresh()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Answer for the calls of an owner, which a reader has not."""
            from rmqstore.store.store import Store  # it is made of this module

            if name.startswith("_") or not hasattr(Store, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return lambda *_, **__: self._as_owner(name)
