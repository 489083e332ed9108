"""Dead letters and parked entries, as operators see them (P7, T12)."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from rmqstore.contract import PopStore, PopTxn, Removal
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.message import (
    DLQ_PREFIX,
    PARKED_TOPIC,
    PROPERTY_DLQ_ATTEMPTS,
    PROPERTY_DLQ_REASON,
    PROPERTY_ORIGIN_ID,
    PROPERTY_ORIGIN_TOPIC,
    PROPERTY_PARKED_REASON,
    PoppedMessage,
    check_count,
    check_group,
    dlq_topic,
    retry_topic,
)
from rmqstore.store.administration import Part
from rmqstore.store.sending import group_queue

if TYPE_CHECKING:
    from rmqstore.store.store import Store


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that a group did not ack in all its attempts, or an entry that could not be read.

    Attributes:
        message: as it is there; its properties hold the three below as well.
        group: the group; empty for a parked entry.
        reason: why it is there.
        attempts: how often it was delivered; 0 for a parked entry.
        origin_topic: the topic that it was popped from; empty when unknown.
        origin_message_id: its id there; for a parked entry, where it was.
        died_ms: when it came there.
    """

    message: PoppedMessage
    group: str
    reason: str
    attempts: int
    origin_topic: str
    origin_message_id: str
    died_ms: int


class DeadLetters(Part):
    """The dead letters of a store's groups, and the entries that could not be read."""

    def list(self, group: str, *, limit: int | None = None) -> builtins.list[DeadLetter]:
        """List the messages that ``group`` did not ack in all their attempts, oldest first, and why they are there; up to ``limit``."""
        self._store._check_open()
        check_group(group)
        return self._in(dlq_topic(group), limit)

    def parked(self, *, limit: int | None = None) -> builtins.list[DeadLetter]:
        """List the entries that could not be read, and why (T12); up to ``limit``."""
        self._store._check_open()
        return self._in(PARKED_TOPIC, limit)

    def _in(self, topic: str, limit: int | None) -> builtins.list[DeadLetter]:
        if limit is not None:
            check_count("limit", limit)
        return [*islice(letters_in(self._store.engine.pops, topic), limit)]

    def resend(self, letters: Sequence[DeadLetter]) -> int:
        """Give dead letters back to the group that did not ack them, as if never delivered; returns how many were still there.

        They go to the group's retry topic, so that no other group sees them; those of a group that pops in order go to the end of the
        topic itself. Each goes exactly once, also when two operators resend it at the same time.
        """
        store, letters = self._store._as_owner("dead_letters.resend"), _checked(letters)
        groups = {letter.group for letter in letters}
        ordered = {(each.group, each.topic): each.is_ordered for group in groups for each in store.groups.subscriptions(group)}
        queues = {topic.name: topic.group_queues or topic.queues for topic in store.topics.list()}
        return _remove(store, [_removal_of(each, ordered, queues) for each in letters])

    def drop(self, letters: Sequence[DeadLetter]) -> int:
        """Remove dead letters, or parked entries, for good; returns how many were still there."""
        return _remove(self._store._as_owner("dead_letters.drop"), [_removal_of(each) for each in _checked(letters)])


def _remove(store: Store, removals: Sequence[Removal]) -> int:
    result, ticket = store.engine.pops.apply(PopTxn(removals=removals), store._clock.now_ms())
    store._settle(store.engine.pops, ticket)
    store._waits.anything()
    return sum(result.removals)


def letters_in(pops: PopStore, topic: str) -> Iterator[DeadLetter]:
    """Yield what is in a dead letter queue or among the parked entries, in the order of arrival, queue by queue."""
    info = pops.topic(topic)
    for page in () if info is None else pops.pages(info):
        yield from (_letter(message, topic) for message in page.messages if isinstance(message, PoppedMessage))


def _letter(message: PoppedMessage, topic: str) -> DeadLetter:
    properties = message.properties
    return DeadLetter(
        message=message,
        group="" if topic == PARKED_TOPIC else topic.removeprefix(DLQ_PREFIX),
        reason=properties.get(PROPERTY_DLQ_REASON) or properties.get(PROPERTY_PARKED_REASON, ""),
        attempts=int(properties.get(PROPERTY_DLQ_ATTEMPTS, 0)),
        origin_topic=properties.get(PROPERTY_ORIGIN_TOPIC, ""),
        origin_message_id=properties.get(PROPERTY_ORIGIN_ID, ""),
        died_ms=message.store_ms,
    )


def _removal_of(
    letter: DeadLetter, ordered: Mapping[tuple[str, str], bool] | None = None, queues: Mapping[str, int] | None = None
) -> Removal:
    """Return the removal of a letter; with ``ordered`` (how each group pops each topic) the one that sends it back to its group."""
    at = letter.message
    place = (dlq_topic(letter.group) if letter.group else PARKED_TOPIC, at.queue_id, at.queue_offset, at.message_id)
    if ordered is None or not letter.group:
        return Removal(*place)
    topic = letter.origin_topic
    if not topic:
        raise IllegalArgumentError(
            f"dead letter {at.message_id} of group {letter.group!r} does not say where it came from; pop it, or drop it"
        )
    if topic.startswith(DLQ_PREFIX) or not ordered.get((letter.group, topic), False):
        return Removal(*place, resend_to=retry_topic(letter.group, topic), resend_queue=0)
    queue = None if at.message_group is None else group_queue(at.message_group, (queues or {}).get(topic, 1))
    return Removal(*place, resend_to=topic, resend_queue=queue)


def _checked(letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    expected = "expected a list of what dead_letters.list() or dead_letters.parked() gave"
    if not isinstance(letters, Sequence) or isinstance(letters, str | bytes):
        raise IllegalArgumentTypeError(f"{expected}, not {type(letters).__name__}")
    for row, each in enumerate(letters):
        if not isinstance(each, DeadLetter):
            raise IllegalArgumentTypeError(f"{expected}; row {row} is of type {type(each).__name__}")
    return letters
