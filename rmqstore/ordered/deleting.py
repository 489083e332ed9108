"""Deleting topics and groups: a topic's name and messages go in one write, what groups had of it in steps.

Thousands of groups may hold a topic, each with a standing and leases. To remove all of that at once would hold up every other call (X3). So
the call removes the name and the messages, and leaves a note, ``GONE``, with the id that the topic had. No id is used again, so nothing
finds what lies under it any more. Upkeep removes it, some groups a step, and the note with the last of them.

Why nothing of it comes back or stays for ever, wherever a crash falls: the note is written with the removal of the name, and removed with
the last of what it stands for. Whatever lies under an id with a note is kept out of every table in memory (``PopState.set_aside``), in the
session that deleted the topic and in each later one; so it gives, counts and lists nothing. A step is one write, of groups as a whole.

A new topic of the name removes what is left of the old one in the write that makes it. So a name has one note at most, and RocketMQ, which
knows leases by the names in them, never sees one that runs beside a topic that did not grant it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rmqstore.message import DLQ_PREFIX, RETRY_PREFIX, dlq_topic
from rmqstore.ordered.layout import DEAD, GAP, GONE, GROUP, KEPT, LEASE, LEASES, META, REGISTERED, TOPIC, U32
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queuelog import QueueLog
from rmqstore.ordered.queues import Topic
from rmqstore.ordered.stage import Stage
from rmqstore.ordered.standings import Seat

_UNITS = 4
"""So many units of a budget of upkeep a seat counts for: mostly there is a standing, a subscription, a lease and the entry of its end."""

_K = TypeVar("_K")


class Deleting:
    """Stages the removal of topics and groups."""

    def __init__(self, state: PopState, log: QueueLog) -> None:
        self._state = state
        self._log = log

    def delete_topic(self, stage: Stage, name: str) -> None:
        """Remove a topic and the retry topics that belong to it."""
        self._delete_topics(
            stage,
            [
                topic
                for other, topic in self._state.topics.items()
                if other == name or (other.startswith(RETRY_PREFIX) and other.partition("+")[2] == name)
            ],
        )
        if name.startswith(DLQ_PREFIX) and (group_id := self._state.groups.get(name.removeprefix(DLQ_PREFIX))) is not None:
            _delete_prefix(stage, META, DEAD + U32.pack(group_id))
            stage.afterwards(lambda state: _drop(state.dead, [place for place in state.dead if place[0] == group_id]))

    def _delete_topics(self, stage: Stage, topics: Sequence[Topic]) -> None:
        """Remove names and messages; what groups have of them is left, and noted."""
        names = {topic.id: topic.name for topic in topics}
        stage.raise_pop_floor(standing.last_pop_ms for seat, standing in self._state.standings.items() if seat.topic_id in names)
        for topic in topics:
            self._log.delete(stage.write, topic)
            _delete_prefix(stage, META, KEPT + U32.pack(topic.id))
            _delete_prefix(stage, META, GAP + U32.pack(topic.id))
            stage.write.delete(META, TOPIC + topic.name.encode())
            stage.write.put(META, GONE + topic.name.encode(), U32.pack(topic.id))
        queues = [(topic.id, queue) for topic in topics for queue in range(topic.queues)]

        def forget(state: PopState) -> None:
            _drop(state.topics, names.values())
            _drop(state.kept, queues)
            _drop(state.gaps, queues)
            state.set_aside(names)

        stage.afterwards(forget)

    def delete_group(self, stage: Stage, name: str) -> None:
        """Remove a group and its retry topics; while its dead letter queue has messages, its counts of them stay."""
        state = self._state
        group_id = state.groups.get(name)
        if group_id is None:
            return
        self._delete_topics(stage, [topic for other, topic in state.topics.items() if other.startswith(f"{RETRY_PREFIX}{name}+")])
        for gone, left in state.gone.items():
            if of_group := [seat for seat in left.seats if seat.group_id == group_id]:
                stage.remove_left(gone, of_group)
        seats = {seat for table in (state.standings, state.fifo, state.running) for seat in table if seat.group_id == group_id}
        stage.raise_pop_floor(state.standings[seat].last_pop_ms for seat in seats if seat in state.standings)
        stage.remove_seats(seats, [key for seat in seats for key in state.running.get(seat, ())])
        prefix = U32.pack(group_id)
        _delete_prefix(stage, LEASES, LEASE + prefix)
        _delete_prefix(stage, META, REGISTERED + prefix)
        letters = state.topics.get(dlq_topic(name))
        keeps_counts = letters is not None and state.messages(letters) > 0
        if not keeps_counts:
            _delete_prefix(stage, META, DEAD + prefix)
            stage.write.delete(META, GROUP + name.encode())

        def forget(state: PopState) -> None:
            state.forget_registered([pair for pair in state.registered if pair[0] == group_id])
            for table in (state.standings, state.fifo, state.running, state.backing_off):
                _drop(table, seats)
            if not keeps_counts:
                _drop(state.dead, [pair for pair in state.dead if pair[0] == group_id])
                state.groups.pop(name, None)

        stage.afterwards(forget)

    def remove_left(self, stage: Stage, budget: int) -> int:
        """Remove what some groups had of deleted topics; returns the units of work that it was."""
        done, limit = 0, max(budget // _UNITS, 1)
        for name, left in self._state.gone.items():
            if done >= limit:
                break
            seats: list[Seat] = []
            for seat in left.seats:
                if done + len(seats) >= limit and seat.group_id != seats[-1].group_id:
                    break
                seats.append(seat)
            stage.remove_left(name, seats)
            done += max(len(seats), 1)
        return done * _UNITS

    def remove_all(self, stage: Stage) -> None:
        """Remove all that is left of deleted topics."""
        for name, left in self._state.gone.items():
            stage.remove_left(name, list(left.seats))


def _delete_prefix(stage: Stage, space: int, prefix: bytes) -> None:
    """Remove every key that starts with ``prefix``; ids are far below 2**32, so it can be counted up."""
    behind = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
    stage.write.delete_range(space, prefix, behind)


def _drop(table: dict[_K, Any], keys: Iterable[_K]) -> None:
    for key in keys:
        table.pop(key, None)
