"""What operators do to a pop store: move a group, arrange it, take messages out of a dead letter queue, delete.

Each is one atomic write like any other call, however much it removes.

Deleting topics and groups: a topic's name and messages go in one write, what groups had of it in steps.

Thousands of groups may hold a topic, each with progress and leases. To remove all of that at once would hold up every other call (X3). So
the call removes the name and the messages, and leaves a note, ``GONE``, with the id that the topic had. No id is used again, so nothing
finds what is under it any more. Upkeep removes it, some groups a step, and the note with the last of them.

Why nothing of it comes back or stays for ever, wherever a crash falls: the note is written with the removal of the name, and removed with
the last of what it stands for. Whatever is under an id with a note is kept out of every table in memory (``PopState.set_aside``), in the
session that deleted the topic and in each later one; so it gives, counts and lists nothing. A step is one write, of groups as a whole.

A new topic of the name removes what is left of the old one in the write that makes it. So a name has one note at most, and RocketMQ, which
knows leases by the names in them, never sees one that runs beside a topic that did not grant it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rmqstore.contract import GroupSettings, InitMode, Removal
from rmqstore.engine.pops.checkpoint import MOVED, Lease
from rmqstore.engine.pops.state import Gap, GroupQueue, PopState, Progress, Topic, group_settings_entry
from rmqstore.engine.pops.transaction import Part, Transaction
from rmqstore.engine.schema import DEAD, GAP, GONE, GROUP, KEPT, LEASE, LEASES, META, REGISTERED, TOPIC, U32, after_prefix
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import (
    DLQ_PREFIX,
    GRAVE_PROPERTIES,
    PARKED_TOPIC,
    PROPERTY_ORIGIN_TOPIC,
    RETRY_PREFIX,
    Message,
    dlq_topic,
)

_K = TypeVar("_K")


_UNITS = 4
"""So many units of a budget of upkeep a reader counts for: mostly there is progress, a subscription, a lease and the entry of its end."""


class Administration(Part):
    """Does what operators ask for."""

    # ------------------------------------------------------------ moving a group

    def reset(self, transaction: Transaction, topic: Topic, group: str, queues: Iterable[int], offset: int | InitMode) -> None:
        """Move a group on some queues; its leases there turn STALE, its retry topic stays (P11)."""
        group_id = transaction.group_id(group)
        for number in queues:
            first, end = transaction.first_kept(topic.id, number), topic.next_offsets[number]
            target = (first if offset is InitMode.MIN else end) if isinstance(offset, InitMode) else offset
            if type(target) is not int or not first <= target <= end:
                raise IllegalArgumentError(
                    f"offset {target!r} lies outside of queue {number} of topic {topic.name!r}, which holds {first} to {end}"
                )
            reader = GroupQueue(group_id, topic.id, number)
            for lease in self._running(transaction, reader):
                transaction.end(lease, lease.leased, MOVED)
            transaction.fifo(reader).clear()
            progress = transaction.progress_or_new(reader)
            transaction.set_progress(reader, Progress(target, progress.last_pop_ms, progress.in_flight))
        registered = transaction.registered(group_id, topic.id)
        if registered is not None:
            transaction.register(
                group_id, topic.id, msgspec.structs.replace(registered, active_ms=max(transaction.now_ms, registered.active_ms))
            )

    def _running(self, transaction: Transaction, reader: GroupQueue) -> Iterator[Lease]:
        for key in sorted(self._state.running.get(reader, ())):
            lease = transaction.lease(key)
            if lease is not None and lease.live:
                yield lease

    def set_group(self, transaction: Transaction, name: str, settings: GroupSettings) -> None:
        """Replace the settings of a group; those that say nothing are not kept."""
        key, value = group_settings_entry(name, settings)
        if settings != GroupSettings():
            transaction.write.put(META, key, value)
            transaction.afterwards(lambda state: state.group_settings.update({name: settings}))
        elif name in self._state.group_settings:
            transaction.write.delete(META, key)
            transaction.afterwards(lambda state: _drop(state.group_settings, [name]))

    # ------------------------------------------------------------ taking messages out

    def remove(self, transaction: Transaction, removals: Sequence[Removal]) -> tuple[bool, ...]:
        """Take messages out of dead letter queues and the parked entries; says of each removal whether its message was there.

        Raises:
            IllegalArgumentError: a message is in another kind of topic.
        """
        by_queue: dict[tuple[str, int], dict[int, Removal]] = {}
        answers = []
        for removal in removals:
            if removal.topic != PARKED_TOPIC and not removal.topic.startswith(DLQ_PREFIX):
                raise IllegalArgumentError(
                    f"messages are removed from dead letter queues and {PARKED_TOPIC} only, not from {removal.topic!r}"
                )
            asked = by_queue.setdefault((removal.topic, removal.queue_id), {})
            answers.append(removal.queue_offset not in asked)
            asked.setdefault(removal.queue_offset, removal)
        gone: set[tuple[str, int, int]] = set()
        for (name, queue), asked in by_queue.items():
            topic = transaction.topic(name)
            if topic is not None and 0 <= queue < topic.queues:
                gone.update((name, queue, at) for at in self._remove_from(transaction, topic, queue, asked))
        places = [(removal.topic, removal.queue_id, removal.queue_offset) for removal in removals]
        return tuple(is_first and place in gone for is_first, place in zip(answers, places, strict=True))

    def _remove_from(self, transaction: Transaction, topic: Topic, queue: int, asked: Mapping[int, Removal]) -> list[int]:
        resent: list[bytes] = []
        origins: dict[str, list[int]] = {}
        record_format = self._log.format

        def take(offset: int, record: bytes) -> bool:
            removal = asked[offset]
            if removal.message_id not in (None, record_format.message_id_of(record).decode()):
                return False
            message = record_format.decode_message(record)
            origins.setdefault(message.properties.get(PROPERTY_ORIGIN_TOPIC, ""), []).append(offset)
            if removal.resend_to is not None:
                resent.append(record_format.encode_message(_as_new(message, removal.resend_to, removal.resend_queue)))
            return True

        first_kept = transaction.first_kept(topic.id, queue)
        removed = self._log.remove(transaction.write, topic, queue, sorted(at for at in asked if at >= first_kept), take)
        if removed:
            gaps = [Gap(offset, offset + 1, is_removal=True) for offset in removed]
            transaction.set_gaps(topic.id, queue, [*transaction.gaps(topic.id, queue), *gaps])
            self._count_off(transaction, topic.name, origins)
            for reader in [reader for reader in self._state.fifo if (reader.topic_id, reader.queue) == (topic.id, queue)]:
                unacked = transaction.fifo(reader)
                for offset in removed:
                    if offset in unacked and unacked[offset].waits:
                        del unacked[offset]
            transaction.append(resent)
        return removed

    def _count_off(self, transaction: Transaction, dlq: str, origins: Mapping[str, Sequence[int]]) -> None:
        group_id = self._state.groups.get(dlq.removeprefix(DLQ_PREFIX))
        for name, offsets in origins.items():
            topic = transaction.topic(name)
            if group_id is not None and topic is not None and dlq != PARKED_TOPIC:
                transaction.count_off_dead(group_id, topic.id, offsets)

    # ------------------------------------------------------------ deleting

    def delete_topic(self, transaction: Transaction, name: str) -> None:
        """Remove a topic and the retry topics that belong to it."""
        self._delete_topics(
            transaction,
            [
                topic
                for other, topic in self._state.topics.items()
                if other == name or (other.startswith(RETRY_PREFIX) and other.partition("+")[2] == name)
            ],
        )
        if name.startswith(DLQ_PREFIX) and (group_id := self._state.groups.get(name.removeprefix(DLQ_PREFIX))) is not None:
            _delete_prefix(transaction, META, DEAD + U32.pack(group_id))
            transaction.afterwards(lambda state: _drop(state.dead, [place for place in state.dead if place[0] == group_id]))

    def _delete_topics(self, transaction: Transaction, topics: Sequence[Topic]) -> None:
        """Remove names and messages; what groups have of them is left, and noted."""
        names = {topic.id: topic.name for topic in topics}
        transaction.raise_pop_floor(
            progress.last_pop_ms for reader, progress in self._state.all_progress.items() if reader.topic_id in names
        )
        for topic in topics:
            self._log.delete(transaction.write, topic)
            _delete_prefix(transaction, META, KEPT + U32.pack(topic.id))
            _delete_prefix(transaction, META, GAP + U32.pack(topic.id))
            transaction.write.delete(META, TOPIC + topic.name.encode())
            transaction.write.put(META, GONE + topic.name.encode(), U32.pack(topic.id))
        queues = [(topic.id, queue) for topic in topics for queue in range(topic.queues)]

        def forget(state: PopState) -> None:
            _drop(state.topics, names.values())
            _drop(state.kept, queues)
            _drop(state.gaps, queues)
            state.set_aside(names)

        transaction.afterwards(forget)

    def delete_group(self, transaction: Transaction, name: str) -> None:
        """Remove a group and its retry topics; while its dead letter queue has messages, its counts of them stay."""
        state = self._state
        group_id = state.groups.get(name)
        if group_id is None:
            return
        self._delete_topics(transaction, [topic for other, topic in state.topics.items() if other.startswith(f"{RETRY_PREFIX}{name}+")])
        for gone, left in state.gone.items():
            if of_group := [reader for reader in left.readers if reader.group_id == group_id]:
                transaction.remove_left(gone, of_group)
        readers = {reader for table in (state.all_progress, state.fifo, state.running) for reader in table if reader.group_id == group_id}
        transaction.raise_pop_floor(state.all_progress[reader].last_pop_ms for reader in readers if reader in state.all_progress)
        transaction.remove_readers(readers, [key for reader in readers for key in state.running.get(reader, ())])
        prefix = U32.pack(group_id)
        _delete_prefix(transaction, LEASES, LEASE + prefix)
        _delete_prefix(transaction, META, REGISTERED + prefix)
        letters = state.topics.get(dlq_topic(name))
        keeps_counts = letters is not None and state.messages(letters) > 0
        if not keeps_counts:
            _delete_prefix(transaction, META, DEAD + prefix)
            transaction.write.delete(META, GROUP + name.encode())

        def forget(state: PopState) -> None:
            state.forget_registered([pair for pair in state.registered if pair[0] == group_id])
            for table in (state.all_progress, state.fifo, state.running, state.backing_off):
                _drop(table, readers)
            if not keeps_counts:
                _drop(state.dead, [pair for pair in state.dead if pair[0] == group_id])
                state.groups.pop(name, None)

        transaction.afterwards(forget)

    def remove_left(self, transaction: Transaction, budget: int = sys.maxsize) -> int:
        """Remove what some groups had of deleted topics; returns the units of work that it was."""
        done, limit = 0, max(budget // _UNITS, 1)
        for name, left in self._state.gone.items():
            if done >= limit:
                break
            readers: list[GroupQueue] = []
            for reader in left.readers:
                if done + len(readers) >= limit and reader.group_id != readers[-1].group_id:
                    break
                readers.append(reader)
            transaction.remove_left(name, readers)
            done += max(len(readers), 1)
        return done * _UNITS


def _as_new(dead: Message, topic: str, queue: int | None) -> Message:
    """Return a dead letter as the message that it was before it died."""
    properties = {name: value for name, value in dead.properties.items() if name not in GRAVE_PROPERTIES}
    return msgspec.structs.replace(dead, topic=topic, queue_id=queue, properties=properties, deliver_at_ms=None)


def _delete_prefix(transaction: Transaction, space: int, prefix: bytes) -> None:
    transaction.write.delete_range(space, prefix, after_prefix(prefix))


def _drop(table: dict[_K, Any], keys: Iterable[_K]) -> None:
    for key in keys:
        table.pop(key, None)
