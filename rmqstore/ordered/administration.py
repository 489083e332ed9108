"""What operators do to a pop store: move a group, arrange it, take messages out of a dead letter queue; ``deleting`` has the rest.

Each is one atomic write like any other call, however much it removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from rmqstore.contract import GroupSettings, InitMode, Removal
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import (
    DLQ_PREFIX,
    GRAVE_PROPERTIES,
    PARKED_TOPIC,
    PROPERTY_ORIGIN_TOPIC,
    Message,
)
from rmqstore.ordered.layout import (
    META,
)
from rmqstore.ordered.leases import LEASED, MOVED, Lease
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queuelog import QueueLog
from rmqstore.ordered.queues import Topic
from rmqstore.ordered.stage import Stage
from rmqstore.ordered.standings import Gap, Seat, Standing, group_settings_entry

_K = TypeVar("_K")


class Administration:
    """Stages what operators ask for."""

    def __init__(self, state: PopState, log: QueueLog) -> None:
        self._state = state
        self._log = log

    # ------------------------------------------------------------ moving a group

    def reset(self, stage: Stage, topic: Topic, group: str, queues: Iterable[int], offset: int | InitMode) -> None:
        """Move a group on some queues; its leases there turn STALE, its retry topic stays (P11)."""
        group_id = stage.group_id(group)
        for number in queues:
            first, end = stage.first_kept(topic.id, number), topic.next_offsets[number]
            target = (first if offset is InitMode.MIN else end) if isinstance(offset, InitMode) else offset
            if type(target) is not int or not first <= target <= end:
                raise IllegalArgumentError(
                    f"offset {target!r} lies outside of queue {number} of topic {topic.name!r}, which holds {first} to {end}"
                )
            seat = Seat(group_id, topic.id, number)
            for lease in self._running(stage, seat):
                stage.end_many(lease, [index for index, state in enumerate(lease.states) if state == LEASED], MOVED)
            stage.fifo(seat).clear()
            standing = stage.standing_or_new(seat)
            stage.set_standing(seat, Standing(target, standing.last_pop_ms, standing.in_flight))
        registered = stage.registered(group_id, topic.id)
        if registered is not None:
            stage.register(group_id, topic.id, msgspec.structs.replace(registered, active_ms=max(stage.now_ms, registered.active_ms)))

    def _running(self, stage: Stage, seat: Seat) -> Iterator[Lease]:
        for key in sorted(self._state.running.get(seat, ())):
            lease = stage.lease(key)
            if lease is not None and lease.live:
                yield lease

    def set_group(self, stage: Stage, name: str, settings: GroupSettings) -> None:
        """Replace the settings of a group; those that say nothing are not kept."""
        key, value = group_settings_entry(name, settings)
        if settings != GroupSettings():
            stage.write.put(META, key, value)
            stage.afterwards(lambda state: state.group_settings.update({name: settings}))
        elif name in self._state.group_settings:
            stage.write.delete(META, key)
            stage.afterwards(lambda state: state.forget_settings(name))

    # ------------------------------------------------------------ taking messages out

    def remove(self, stage: Stage, removals: Sequence[Removal]) -> tuple[bool, ...]:
        """Take messages out of dead letter queues and the parked entries; says of each removal whether its message was there.

        Raises:
            IllegalArgumentError: a message lies in another kind of topic.
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
            topic = stage.topic(name)
            if topic is not None and 0 <= queue < topic.queues:
                gone.update((name, queue, at) for at in self._remove_from(stage, topic, queue, asked))
        places = [(removal.topic, removal.queue_id, removal.queue_offset) for removal in removals]
        return tuple(is_first and place in gone for is_first, place in zip(answers, places, strict=True))

    def _remove_from(self, stage: Stage, topic: Topic, queue: int, asked: Mapping[int, Removal]) -> list[int]:
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

        first_kept = stage.first_kept(topic.id, queue)
        removed = self._log.remove(stage.write, topic, queue, sorted(at for at in asked if at >= first_kept), take)
        if removed:
            gaps = [Gap(begin, end, is_removal=True) for begin, end in _stretches(removed)]
            stage.set_gaps(topic.id, queue, [*stage.gaps(topic.id, queue), *gaps])
            self._count_off(stage, topic.name, origins)
            for seat in [seat for seat in self._state.fifo if (seat.topic_id, seat.queue) == (topic.id, queue)]:
                unacked = stage.fifo(seat)
                for offset in removed:
                    if offset in unacked and unacked[offset].waits:
                        del unacked[offset]
            stage.append(resent)
        return removed

    def _count_off(self, stage: Stage, dlq: str, origins: Mapping[str, Sequence[int]]) -> None:
        group_id = self._state.groups.get(dlq.removeprefix(DLQ_PREFIX))
        for name, offsets in origins.items():
            topic = stage.topic(name)
            if group_id is not None and topic is not None and dlq != PARKED_TOPIC:
                stage.count_off_dead(group_id, topic.id, offsets)


def _as_new(dead: Message, topic: str, queue: int | None) -> Message:
    """Return a dead letter as the message that it was before it died."""
    properties = {name: value for name, value in dead.properties.items() if name not in GRAVE_PROPERTIES}
    return msgspec.structs.replace(dead, topic=topic, queue_id=queue, properties=properties, deliver_at_ms=None)


def _stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return consecutive numbers as (first, behind)."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found
