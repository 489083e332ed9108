"""``store.topics``, ``store.groups`` and ``store.transfer``: what operators ask and arrange, beside sending and consuming."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from rmqstore.contract import GroupOffset, GroupSettings, InitMode, Subscription, TopicInfo
from rmqstore.delays import backoff_table
from rmqstore.errors import IllegalArgumentTypeError
from rmqstore.message import RESERVED_PREFIXES, check_count, check_group, check_marks, check_readable_topic, check_time_ms, check_topic

if TYPE_CHECKING:
    from rmqstore.digests import TableDigest
    from rmqstore.store.reader import Reader
    from rmqstore.transfer.dumps import DumpReport
    from rmqstore.transfer.incoming import Progress


class Part:
    """Some calls of a store, under a name of their own."""

    def __init__(self, store: Reader) -> None:
        self._store = store


class Topics(Part):
    """The topics of a store."""

    def list(self, *, system: bool = False) -> builtins.list[TopicInfo]:
        """List the topics by name; with ``system`` also retry topics, dead letter queues and parked entries."""
        self._store._check_open()
        if not isinstance(system, bool):
            raise IllegalArgumentTypeError(f"system must be True or False, not {system!r}")
        return [topic for topic in self._store.engine.pops.topics() if system or not topic.name.startswith(RESERVED_PREFIXES)]

    def create(self, name: str, queues: int = 1) -> TopicInfo:
        """Make a topic with ``queues`` queues, or widen it; sends make topics by themselves, with ``default_queues``."""
        store = self._store._as_owner("topics.create")
        check_topic(name)
        info, ticket = store.engine.pops.create_topic(name, queues)
        store._settle(store.engine.pops, ticket)
        return info

    def delete(self, name: str) -> None:
        """Remove a topic with its messages, leases, positions and retry topics. Pending timers stay, and make it again when due."""
        store = self._store._as_owner("topics.delete")
        check_readable_topic(name)
        store._settle(store.engine.pops, store.engine.pops.delete_topic(name))
        store._waits.anything()


class Groups(Part):
    """The groups of a store: where each stands, and how it tries again."""

    def list(self) -> builtins.list[str]:
        """List the groups that have popped."""
        self._store._check_open()
        return self._store.engine.pops.groups()

    def settings(self, group: str) -> GroupSettings:
        """Return what is :meth:`set` for a group; where nothing is, what holds for the store does."""
        self._store._check_open()
        check_group(group)
        return self._store.engine.pops.group_settings().get(group) or GroupSettings()

    def offsets(self, group: str) -> builtins.list[GroupOffset]:
        """List where a group stands."""
        self._store._check_open()
        check_group(group)
        return self._store.engine.pops.offsets(group)

    def subscriptions(self, group: str | None = None) -> builtins.list[Subscription]:
        """List which groups have popped which topics, and how."""
        self._store._check_open()
        if group is not None:
            check_group(group)
        return self._store.engine.pops.subscriptions(group)

    def set(self, name: str, *, max_retries: int | None = None, backoff: Sequence[timedelta] = ()) -> None:
        """Set how often and when a group tries again; the settings are kept in the store and replace those that the group had.

        Args:
            max_retries: redeliveries before the dead letter queue; None: as the store has it. It counts from the next lease that ends.
            backoff: what ``retry_later`` waits after the 1st, 2nd … failed attempt; empty: RocketMQ's table.
        """
        store = self._store._as_owner("groups.set")
        if max_retries is not None:
            check_count("max_retries", max_retries)
        table = () if backoff in ((), []) else tuple(backoff_table(backoff))
        check_group(name)
        store._settle(store.engine.pops, store.engine.pops.set_group(name, GroupSettings(max_retries=max_retries, backoff_ms=table)))

    def delete(self, name: str) -> None:
        """Remove a group with its leases, positions and retry topics; its dead letter queue stays."""
        store = self._store._as_owner("groups.delete")
        check_group(name)
        store._settle(store.engine.pops, store.engine.pops.delete_group(name))
        store._waits.anything()

    def reset_offset(self, topic: str, group: str, to: int | InitMode, *, queue: int | None = None) -> None:
        """Move a group to an offset, to the first kept message or to the next one; its leases there turn STALE (P11)."""
        store = self._store._as_owner("groups.reset_offset")
        check_readable_topic(topic)
        if isinstance(to, str):
            raise IllegalArgumentTypeError(f"to must be an offset, InitMode.MIN or InitMode.MAX, not {to!r}")
        if not isinstance(to, InitMode):
            check_count("offset", to)
        if queue is not None:
            check_count("queue", queue)
        store._settle(store.engine.pops, store.engine.pops.reset_offset(topic, group, queue, to, store._clock.now_ms()))
        store._waits.arrived((topic,))


class Transfer(Part):
    """The state of a store as a whole; :mod:`rmqstore.transfer` moves it (docs/transfer.md)."""

    def digest(self) -> dict[str, TableDigest]:
        """Return what the store holds as one number a table, whatever the engine and the order; other calls wait meanwhile.

        Raises:
            UnsupportedOperationError: the engine does not declare ``import_state``.
        """
        from rmqstore.tables import State  # as with dump

        self._store._check_open()
        timers, pops = self._store.engine.timers, self._store.engine.pops
        with timers.held(), pops.held():
            return State(timers, pops).digest()

    def dump(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> DumpReport:
        """Write all that the store holds into the new directory ``path``; ``rmqstore.transfer.dump`` says more."""
        from rmqstore.transfer.dumps import dump  # a dump reads Parquet, which few programs need at their start

        self._store._check_open()
        return dump(self._store, path, progress=progress)

    def plant_witness(self, prefix: bytes) -> int:
        """Note that calls begin whose marks begin with ``prefix``; returns since when, by the store's clock, ms.

        As long as :meth:`has_witness` says so, no such mark was forgotten, whoever owns the store and whatever its clock: then a call that
        is not there was never made. Done again, it counts from then on.
        """
        from rmqstore.store import witness  # as with dump

        store = self._store._as_owner("transfer.plant_witness")
        check_marks([prefix])
        begun_ms = store._clock.now_ms()
        store._synced(witness.plant, store.engine.timers, store.engine.pops, prefix, begun_ms)
        return begun_ms

    def has_witness(self, prefix: bytes, begun_ms: int) -> bool:
        """Say whether every mark of a call is kept that was made since :meth:`plant_witness` gave this time."""
        from rmqstore.store import witness

        self._store._check_open()
        check_marks([prefix])
        check_time_ms("begun_ms", begun_ms)
        return witness.stands(self._store.engine.timers, self._store.engine.pops, prefix, begun_ms)

    def wake(self) -> None:
        """Let everything that waits look again, after messages came in by another way than a call of the store."""
        self._store._as_owner("transfer.wake")._clock_moved()
