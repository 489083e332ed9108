"""Where a message is: found by its id or by one of its keys, among the timers, in the queues, and under the leases of the groups.

Ids and keys have no index here, so a look-up reads what there is, a page a call: it takes as long as the store is full, but keeps no call
from using it. A message that moves meanwhile may be shown at both places, or at neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from rmqstore.contract import GroupProgress, MessageState, PopStore, TimerStore, TopicInfo
from rmqstore.errors import IllegalArgumentError
from rmqstore.late import pa, pc
from rmqstore.message import BEHIND_ALL_MS, DLQ_PREFIX, PARKED_TOPIC, RETRY_PREFIX, Message, PoppedMessage
from rmqstore.store.dead_letters import letters_in

_PAGE = 1024


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One place where a message is, for one group.

    Attributes:
        state: what it waits for there.
        message: the message as it is there; for a timer, as it will come.
        group: whose copy or whose progress it is; empty for a timer, a parked entry, and what no group pops.
        until_ms: when it is due, or when its lease or wait ends, ms; None where nothing ends by itself.
        handle: cancels the timer.
        receipt: proves the lease.
        attempt: number of the delivery that runs or was the last one; 0 when there was none, and where a group is done with the message.
        reason: why its last attempt failed, or why it is dead or parked, as far as somebody said.
    """

    state: MessageState
    message: Message | PoppedMessage
    group: str = ""
    until_ms: int | None = None
    handle: str = ""
    receipt: str = ""
    attempt: int = 0
    reason: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """What is looked for: an id or a key, in one topic or in all."""

    message_id: str | None
    key: str | None
    topic: str | None

    def is_it(self, message: Message | PoppedMessage, origin_id: str = "") -> bool:
        """Say whether a message is one that is looked for, whatever its topic."""
        return self.key in message.keys if self.message_id is None else self.message_id in (message.message_id, origin_id)

    def rows_of(self, columns: pa.RecordBatch) -> list[int]:
        """Return the rows of the messages that are looked for."""
        if self.message_id is not None:
            found = pc.indices_nonzero(pc.equal(columns.column("message_id"), self.message_id))
        else:
            keys = columns.column("keys")
            found = pc.unique(pc.list_parent_indices(keys).filter(pc.equal(pc.list_flatten(keys), self.key)))
        rows: list[int] = found.to_pylist()
        return rows

    def is_of(self, topic: str) -> bool:
        """Say whether messages of a topic, or of a retry topic of it, are looked for."""
        return self.topic in (None, topic) or (topic.startswith(RETRY_PREFIX) and topic.partition("+")[2] == self.topic)


def look_up(timers: TimerStore, pops: PopStore, wanted: Wanted) -> list[Whereabouts]:
    """Return all places of the messages that are looked for, timers first."""
    found = [*_pending(timers, pops, wanted)]
    for topic in pops.topics():
        with suppress(IllegalArgumentError):  # it was deleted meanwhile
            if topic.name == PARKED_TOPIC or topic.name.startswith(DLQ_PREFIX):
                found += _letters(pops, topic.name, wanted)
            elif wanted.is_of(topic.name):
                found += _in_queues(pops, topic, wanted)
    return _without_traces(found)


def _pending(timers: TimerStore, pops: PopStore, wanted: Wanted) -> Iterator[Whereabouts]:
    after: tuple[int, int] | None = None
    while True:
        page = timers.scan(0, BEHIND_ALL_MS, after, _PAGE, pops.timer_cursor())
        for timer in page.timers:
            message = timer.message
            if wanted.topic in (None, message.topic) and wanted.is_it(message):
                yield Whereabouts(state=MessageState.PENDING, message=message, until_ms=timer.deliver_at_ms, handle=timer.handle.text())
        if (after := page.next_after) is None:
            return


def _letters(pops: PopStore, topic: str, wanted: Wanted) -> Iterator[Whereabouts]:
    state = MessageState.PARKED if topic == PARKED_TOPIC else MessageState.DEAD
    for letter in letters_in(pops, topic):
        if wanted.topic in (None, topic, letter.origin_topic) and wanted.is_it(letter.message, letter.origin_message_id):
            yield Whereabouts(state=state, message=letter.message, group=letter.group, attempt=letter.attempts, reason=letter.reason)


def _in_queues(pops: PopStore, topic: TopicInfo, wanted: Wanted) -> Iterator[Whereabouts]:
    for page in pops.pages(topic):
        for row in wanted.rows_of(page.columns):
            message = page.messages[row]
            progress = pops.progress(topic.name, *(page.columns.column(name)[row].as_py() for name in ("queue_id", "queue_offset")))
            yield from (_of_group(message, each) for each in progress)
            if not progress:
                yield Whereabouts(state=MessageState.READY, message=message)


def _of_group(message: Message | PoppedMessage, progress: GroupProgress) -> Whereabouts:
    lease = progress.lease
    if lease is None:
        attempt = 0
        if isinstance(message, PoppedMessage) and progress.state is not MessageState.DONE:
            attempt = message.attempt + progress.delivered
        return Whereabouts(state=progress.state, message=message, group=progress.group, attempt=attempt)
    return Whereabouts(
        state=progress.state,
        message=message,
        group=progress.group,
        until_ms=lease.expiry_ms,
        receipt=lease.receipt,
        attempt=lease.attempt,
        reason=lease.reason,
    )


def _without_traces(found: list[Whereabouts]) -> list[Whereabouts]:
    """Leave out where a group is done with a message that it has at another place too, or was done with already."""
    kept: list[Whereabouts] = []
    elsewhere = {(each.group, each.message.message_id) for each in found if each.state is not MessageState.DONE}
    for each in found:
        place = (each.group, each.message.message_id)
        if each.state is not MessageState.DONE or place not in elsewhere:
            kept.append(each)
            elsewhere.add(place)
    return kept
