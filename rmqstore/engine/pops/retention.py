"""Which messages of a queue may go, and taking them away (Q1–Q3).

Each queue has a *first kept* offset. It only rises, and stops at what is *pinned*: the first message under a running lease, or un-acked
under FIFO. Below it nothing is read any more; a run goes from the disk when all of it is below.

- **Age**: the runs at the head whose store time is more than ``retention_ms`` ago. A run is one call's, so all of it has one age.
- **Consumed**: where every group that counts stands, whatever the age. A group counts from its first pop on until it was idle for
  ``group_expiry_ms``. Without one, nothing goes.
- A **retry topic** belongs to one group and goes as that group consumes it, never by age: what waits there is pinned.
- **Dead letters and parked entries** go when somebody removes them; here only what was removed at the head is passed.

Why no crash point loses a message: the first kept offset, the removed runs and the removed gaps are one write, and the offset rises only
over what was chosen from the state that the same write would leave. What goes before a group has popped it is counted in the same write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from msgspec import structs

from rmqstore.contract import Expired, Reclaim, UpkeepReport
from rmqstore.engine.pops.state import GroupQueue, Topic, count_between
from rmqstore.engine.pops.transaction import Beneath, Part, Transaction
from rmqstore.message import DLQ_PREFIX, PARKED_TOPIC, RETRY_PREFIX

_LOOKED_AT = 256
"""So many queues a step of upkeep looks at, so that it takes a few ms however many there are; each has its turn."""

_GROUPS = 16
"""So many groups that pop a topic are as much work as another queue."""

ACTIVITY_PARTS = 8
"""A group's last activity is written once in this part of ``group_expiry_ms``, so that an empty pop costs no write."""

_OFFSETS_OF = attrgetter("next_offsets")

_AGED_BYTES = 64 * 1024 * 1024
"""So much of a queue is looked at for its age in one call."""


class _Looked(NamedTuple):
    """How far a queue was looked at for its age: all below ``offset`` was stored before ``before_ms``, what is there at ``store_ms``."""

    offset: int
    store_ms: int | None
    before_ms: int


class Retention(Part):
    """Reclaims queues in turn; it remembers how far it has looked in each, so one that is idle, or pinned at its head, costs no read."""

    def __init__(self, beneath: Beneath) -> None:
        super().__init__(beneath)
        self._round: Iterator[tuple[Topic, int]] | None = None
        # In this round, and in the one before: what no round comes to any more is forgotten.
        self._looked: dict[tuple[int, int], _Looked] = {}
        self._looked_before: dict[tuple[int, int], _Looked] = {}

    def reclaim(self, transaction: Transaction, budget: int) -> UpkeepReport:
        """Add the removal of what may go, in up to ``budget`` queues, and count in how many something went."""
        done = 0
        expired: dict[tuple[int, int], int] = {}
        found: list[tuple[Topic, int, int, int]] = []
        for topic, queue in self._next_queues(budget):
            first = transaction.first_kept(topic.id, queue)
            wanted = self._wanted(transaction, topic, queue, first)
            if wanted > first:
                found.append((topic, queue, first, wanted))
        holders = self._holders({(topic.id, queue) for topic, queue, _, _ in found})
        for topic, queue, first, wanted in found:
            holding = holders.get((topic.id, queue))
            target = self._pinned(transaction, holding, first, wanted) if holding else wanted
            if target > first:
                for place, messages in self._count_expired(transaction, topic, queue, first, target).items():
                    expired[place] = expired.get(place, 0) + messages
                self._raise(transaction, topic, queue, first, target)
                done += 1
        return UpkeepReport(done, expired=self._note_expired(transaction, expired) if expired else ())

    def _next_queues(self, count: int) -> Iterator[tuple[Topic, int]]:
        """Yield up to ``count`` queues, none of them twice, that go on where the last ones ended; fewer where many groups pop them."""
        left, topics, groups_of = min(count, _LOOKED_AT), self._state.topics, self._state.groups_of
        work = left
        if len(topics) < left:
            left = min(left, sum(map(len, map(_OFFSETS_OF, topics.values()))))
        while left > 0:
            if self._round is None:
                self._round = self._all_queues()
            for found in self._round:
                yield found
                left -= 1
                work -= 1 + len(groups_of.get(found[0].id, ())) // _GROUPS
                if not left or work <= 0:
                    return
            self._round = None

    def _all_queues(self) -> Iterator[tuple[Topic, int]]:
        """Yield every queue of the topics that there are now, as far as it is there when its turn comes."""
        self._looked_before, self._looked = self._looked, {}
        for name in list(self._state.topics):
            topic = self._state.topics.get(name)
            for queue in range(0 if topic is None else len(topic.next_offsets)):
                if (topic := self._state.topics.get(name)) is None:
                    break
                yield topic, queue

    def _count_expired(self, transaction: Transaction, topic: Topic, queue: int, first: int, target: int) -> dict[tuple[int, int], int]:
        """Return how many of the messages that go each group has not popped yet, by group and topic."""
        expired: dict[tuple[int, int], int] = {}
        for group_id in self._state.groups_of.get(topic.id, ()):
            progress = self._state.all_progress.get(GroupQueue(group_id, topic.id, queue))
            start = first if progress is None else max(progress.next_offset, first)
            if start < target and (messages := count_between(transaction.gaps(topic.id, queue), start, target)):
                expired[group_id, topic.id] = messages
        return expired

    def _note_expired(self, transaction: Transaction, expired: Mapping[tuple[int, int], int]) -> tuple[Expired, ...]:
        groups = self._state.group_names()
        for place, messages in expired.items():
            registered = self._state.registered[place]
            transaction.register(*place, structs.replace(registered, expired=registered.expired + messages))
        return tuple(Expired(groups[group], self._state.topic_of(topic).name, count) for (group, topic), count in expired.items())

    def _wanted(self, transaction: Transaction, topic: Topic, queue: int, first: int) -> int:
        """Return where the queue should begin, pins aside."""
        end = topic.next_offsets[queue]
        if first >= end:
            return first
        if topic.name.startswith(RETRY_PREFIX):
            owner = self._state.groups.get(topic.name.removeprefix(RETRY_PREFIX).partition("+")[0])
            wanted = first if owner is None else self._state.progress(owner, topic.id, queue).next_offset
        elif topic.name == PARKED_TOPIC or topic.name.startswith(DLQ_PREFIX):
            wanted = first
        else:
            wanted = self._consumed(topic, queue, transaction.now_ms) if self._options.reclaim is Reclaim.CONSUMED else first
            if self._options.retention_ms:
                wanted = max(wanted, self._aged(transaction, topic, queue, first))
        wanted = max(wanted, first)
        for gap in transaction.gaps(topic.id, queue):
            if gap.first <= wanted < gap.behind:
                wanted = gap.behind
        return wanted

    def _consumed(self, topic: Topic, queue: int, now_ms: int) -> int:
        """Return up to where every group that counts has popped."""
        state, expiry_ms = self._state, self._options.group_expiry_ms
        offsets = []
        for group_id in state.groups_of.get(topic.id, ()):
            if not expiry_ms or now_ms - state.registered[group_id, topic.id].active_ms <= expiry_ms + expiry_ms // ACTIVITY_PARTS:
                progress = state.all_progress.get(GroupQueue(group_id, topic.id, queue))
                offsets.append(0 if progress is None else progress.next_offset)
        return min(offsets, default=0)

    def _aged(self, transaction: Transaction, topic: Topic, queue: int, first: int) -> int:
        """Return the offset behind the runs at the head that are too old."""
        before_ms = transaction.now_ms - self._options.retention_ms
        if before_ms <= 0:
            return first
        place = (topic.id, queue)
        looked = self._looked.get(place) or self._looked_before.get(place)
        if looked is not None and looked.offset >= first and looked.before_ms <= before_ms:
            first = looked.offset
            if looked.store_ms is not None and looked.store_ms >= before_ms:
                self._looked[place] = looked
                return first
        aged = self._log.aged(topic, queue, first, before_ms, _AGED_BYTES)
        for run in aged.damaged:
            # It is older than what is behind it, and must not go unseen (T12).
            transaction.park_run(topic, queue, run)
        offset = max(aged.behind, first)
        if not aged.damaged:  # else it is looked at again, should this write fail
            self._looked[place] = _Looked(offset, aged.store_ms, before_ms)
        return offset

    def _holders(self, queues: Collection[tuple[int, int]]) -> dict[tuple[int, int], set[GroupQueue]]:
        """Return who holds messages of some queues, under a lease or un-acked under FIFO."""
        holders: dict[tuple[int, int], set[GroupQueue]] = {}
        for readers in (self._state.running, self._state.fifo) if queues else ():
            for reader in readers:
                # Kept for these alone: thousands of objects a tick would set off Python's garbage collector.
                if (place := (reader.topic_id, reader.queue)) in queues:
                    holders.setdefault(place, set()).add(reader)
        return holders

    def _pinned(self, transaction: Transaction, holders: Iterable[GroupQueue], first: int, wanted: int) -> int:
        """Return the first offset that any of the holders pins, or ``wanted`` when that is lower; none pins less than ``first``."""
        running = self._state.running
        bounds: list[tuple[int, bytes, GroupQueue]] = []
        for reader in holders:
            if run := self._state.fifo.get(reader):
                wanted = min(wanted, min(run))
            if leases := running.get(reader):
                bounds += [(bound, key, reader) for key, bound in leases.items() if bound < wanted]
        # The lowest first: mostly it is the pin itself, so that one lease is read, however many groups hold the queue.
        for bound, key, reader in sorted(bounds):
            if bound >= wanted or wanted <= first:
                break
            lease = transaction.lease(key)
            leased = None if lease is None else lease.first_leased
            if leased is not None:
                running[reader][key] = leased
                wanted = min(wanted, leased)
        return wanted

    def _raise(self, transaction: Transaction, topic: Topic, queue: int, first: int, target: int) -> None:
        """Let a queue begin at ``target``, and remove the runs and gaps that are below."""
        transaction.set_first_kept(topic.id, queue, target)
        if gaps := transaction.gaps(topic.id, queue):
            transaction.set_gaps(topic.id, queue, [gap for gap in gaps if gap.behind > target])
        self._log.cut(transaction.write, topic, queue, first, target)
        transaction.afterwards(lambda _: self._log.was_cut(topic, queue, target))
