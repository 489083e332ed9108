"""Where the oracle says that messages are, for ``where`` and ``get`` of a store (P14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rmqstore import Message, PoppedMessage
from rmqstore.contract import MessageState
from rmqstore.message import dlq_topic, retry_topic
from rmqstore.store.lookup import Whereabouts
from rmqstore_conformance.fidelity import differences
from rmqstore_conformance.model.pop_oracle import RETRY, Entry, Held
from rmqstore_conformance.model.timer_oracle import Oracle


class Place(NamedTuple):
    """One place of a message for one group, with the fields of :class:`Whereabouts`; ``lying`` is what is known of the message there."""

    state: MessageState
    message: Message
    lying: dict[str, Any]
    group: str = ""
    until_ms: int | None = None
    handle: str = ""
    receipt: str = ""
    attempt: int = 0
    reason: str = ""

    def differences(self, found: Whereabouts) -> list[str]:
        told = [(name, getattr(self, name), getattr(found, name)) for name in self._fields if name not in ("message", "lying")]
        lines = [f"{name}: expected {expected!r}, seen {seen!r}" for name, expected, seen in told if expected != seen]
        return lines + differences(self.message, found.message, **self.lying)


def places_of(oracle: Oracle, *, message_id: str | None = None, key: str | None = None, topic: str | None = None) -> list[Place]:
    """Return all places of the messages with an id or a key, of one topic or of all.

    Of the places where a group is done with a message, those are left out beside which it has it at another place.
    """
    found = [each for each in _all_places(oracle, topic) if message_id == each.message.message_id or key in each.message.keys]
    # A store looks from topic to topic by name, and of two places where a group is done with a message tells the first.
    found.sort(key=lambda place: str(place.lying.get("topic", place.message.topic)))
    has_it = {(each.group, each.message.message_id) for each in found if each.state is not MessageState.DONE}
    kept = []
    for each in found:
        place = (each.group, each.message.message_id)
        if each.state is not MessageState.DONE or place not in has_it:
            kept.append(each)
            has_it.add(place)
    return kept


def copies_of(oracle: Oracle, message_id: str) -> list[tuple[Message, dict[str, Any]]]:
    """Return every copy of a message that is in a queue, with what is known of it there, the newest ones only."""
    # Of all places those of pending timers alone are in no queue.
    copies = [(each.message, each.lying) for each in _all_places(oracle, None) if each.lying and each.message.message_id == message_id]
    newest = max((lying["store_ms"] for _, lying in copies), default=0)
    return [(message, lying) for message, lying in copies if lying["store_ms"] == newest]


def _in_topics(oracle: Oracle) -> Iterator[tuple[str, int, int, Entry]]:
    for name, queues in sorted(oracle.queues.items()):
        for number, queue in enumerate(queues):
            for offset, entry in list(enumerate(queue.entries))[queue.first :]:
                yield name, number, offset, entry


def _all_places(oracle: Oracle, topic: str | None) -> Iterator[Place]:
    for timer in oracle.pending():
        if topic in (None, timer.message.topic):
            yield Place(MessageState.PENDING, timer.message, {}, until_ms=timer.due, handle=timer.handle)
    for group, letters in sorted(oracle.letters.items()):
        for letter in letters:
            if topic in (None, letter.origin):
                lying = Entry(letter.entry.message, letter.died_ms).lying(dlq_topic(group), 0, letter.offset or 0)
                lying["properties"] = letter.properties
                sent = letter.entry.message
                yield Place(MessageState.DEAD, sent, lying, group, attempt=letter.entry.counted, reason=letter.reason)
    held = {(each.topic, each.group, each.source, each.offset): each for each in oracle.live.values()}
    for (name, group), at in sorted(oracle.standings.items()):
        if topic in (None, name):
            for offset, entry in list(enumerate(at.retry.entries))[at.retry.first :]:
                lying = entry.lying(retry_topic(group, name), 0, offset)
                yield _for_group(entry, lying, group, held.get((name, group, RETRY, offset)), at.retry_offset, MessageState.RETRY)
    readers = {name: sorted((group, at) for (of, group), at in oracle.standings.items() if of == name and at.ordered is not None)
               for name in oracle.queues}  # fmt: skip
    for name, number, offset, entry in _in_topics(oracle):
        if topic not in (None, name):
            continue
        lying = entry.lying(name, number, offset)
        if not readers[name]:
            yield Place(MessageState.READY, entry.message, lying)
        for group, at in readers[name]:
            waiting = at.unacked.get(number, {}).get(offset)
            lease = held.get((name, group, number, offset))
            if waiting is not None and lease is None:
                yield Place(MessageState.RETRY, entry.message, lying, group, attempt=waiting.counted)
            else:
                yield _for_group(entry, lying, group, lease, at.offsets.get(number, 0), MessageState.READY)


def _for_group(entry: Entry, lying: dict[str, Any], group: str, lease: Held | None, next_offset: int, waits: MessageState) -> Place:
    if lease is not None:
        state = MessageState.BACKING_OFF if lease.is_backing_off else MessageState.LEASED
        return Place(state, entry.message, lying, group, lease.expiry, "", lease.receipt, lease.entry.counted + 1, lease.reason)
    if lying["queue_offset"] >= next_offset:
        return Place(waits, entry.message, lying, group, attempt=entry.counted)
    return Place(MessageState.DONE, entry.message, lying, group)


def is_one_of(found: PoppedMessage | None, copies: list[tuple[Message, dict[str, Any]]]) -> bool:
    """Say whether what ``get`` found is one of the newest copies, whole; None when there is none."""
    if found is None:
        return not copies
    return any(not differences(message, found, **lying) for message, lying in copies)
