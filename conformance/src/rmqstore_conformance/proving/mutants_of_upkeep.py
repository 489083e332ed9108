"""Mutants of what is kept, for whom and how long, and of what ends: leases, runs, dead letters (Q, P1, P5, P7, P9, P11, P14).

Those made from ``lmdb`` show when the store is opened again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from rmqstore.contract import EngineOptions, PopRequest, PopTxn, PopTxnResult, Ticket
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.checkpoint import MOVED, Lease
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.state import GroupQueue, PopState, Progress, Registered, Topic
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.schema import META, SEAL_KEY
from rmqstore.engine.timers.rows import TimerRuns
from rmqstore.message import RETRY_PREFIX
from rmqstore_conformance.proving.kinds import but
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, mutant, parted, written_by

# ---------------------------------------------------------------- what is closed or cancelled (C1, C5, H1)


@mutant("C1", "C1.cancelled_before_its_tick_is_sealed_never_comes")
class CancelledRowsOfAKeptCallGoOut(TimerRuns):
    """The hand-over does not look which rows of a call were cancelled."""

    def _live_of(self, page: Any, seen: Any) -> Any:
        with patch.object(self, "_holes_of", lambda page: set()):
            return iter(list(super()._live_of(page, seen)))


@mutant("C5", "C5.a_sealed_tick_is_too_late_also_after_a_reopen", base=LMDB)
class SealsInMemoryOnly(Timers):
    """What was closed is not written down."""

    def seal(self, until_ms: int) -> None:
        whole = self._shared.write
        unsealed = lambda batch: whole(parted(batch, lambda space, key: (space, key) == (META, SEAL_KEY))[0])  # noqa: E731
        with self._lock, written_by(self._shared, unsealed):
            super().seal(until_ms)


@mutant("H1", "H1.closing_after_any_step", base=LMDB)
class CursorsInMemoryOnly(Pops):
    """What a tick hands over is written down without the cursor that says so."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        answer = super().apply(but(txn, timer_cursor=None), now_ms)
        if txn.timer_cursor is not None:
            self._cursor = txn.timer_cursor
        return answer


# ---------------------------------------------------------------- leases and runs (P1, P5, P9)


@mutant("P1", "P1.leased_messages_are_not_given_again")
class OffsetsWithoutLeases(Popping):
    """A pop moves the group's offset behind one message more than it leases."""

    def _take(self, transaction: Transaction, want: Any, source: Topic, reader: GroupQueue, *rest: Any) -> Any:
        found = super()._take(transaction, want, source, reader, *rest)
        at = transaction.progress(reader)
        if found is not None and at is not None and at.next_offset < source.next_offsets[reader.queue]:
            transaction.set_progress(reader, Progress(at.next_offset + 1, at.last_pop_ms, at.in_flight))
        return found


@mutant("P5", "P5.outcomes_are_true")
class RevivedReceiptsGoOn(Transaction):
    """An expired message goes to the retry topic, and its old receipt goes on working."""

    def end(self, lease: Lease, index: int, state: int) -> None:
        if state != MOVED or lease.expiry_ms > self.now_ms:
            super().end(lease, index, state)


@mutant("P9", "P9.the_first_pop_fixes_the_mode", base=LMDB)
class TheModeIsNotFixed(Popping):
    """Every pop says anew whether the group pops in order."""

    def _register(self, transaction: Transaction, topic: Topic, group_id: int, request: PopRequest) -> bool:
        if (known := transaction.registered(group_id, topic.id)) is not None:
            transaction.register(group_id, topic.id, Registered(request.order, known.active_ms))
        return super()._register(transaction, topic, group_id, request)


@mutant("P9", "P9.at_the_last_attempt_the_head_goes_to_the_dead_letters_and_the_rest_moves_up")
class TheWholeRunDiesWithItsHead(Leasing):
    """Each message of a run goes to the dead letters when its own attempts are used up."""

    def _give_back(self, *args: Any, **how: Any) -> str:
        return super()._give_back(*args, **{**how, "is_head": True})


# ---------------------------------------------------------------- retention (Q1-Q3)


@mutant("Q1", "Q1.leased_messages_are_pinned", "Q2.consumed_messages_go_once_every_group_has_them", base=LMDB)
class LeasesDoNotPin(Retention):
    """What is leased goes when it is old, or when every group has popped it, acked or not."""

    def _holders(self, *args: Any) -> Any:
        with patch.object(self._state, "running", {}):
            return super()._holders(*args)

    def _pinned(self, *args: Any) -> int:
        with patch.object(self._state, "running", {}):
            return super()._pinned(*args)


@mutant("Q1", "Q1.kept_until_older_than_the_retention")
class OneOldMessageTakesAll(Retention):
    """When the head of a queue is too old, all of the queue goes."""

    def _aged(self, transaction: Transaction, topic: Topic, queue: int, first: int) -> int:
        return topic.next_offsets[queue] if super()._aged(transaction, topic, queue, first) > first else first


@mutant("Q1", "Q1.leased_messages_are_pinned", base=LMDB)
class RetryTopicsGoByAge(Retention):
    """What waits to be given again goes when it is old."""

    def _wanted(self, transaction: Transaction, topic: Topic, queue: int, first: int) -> int:
        found = super()._wanted(transaction, topic, queue, first)
        return max(found, self._aged(transaction, topic, queue, first)) if topic.name.startswith(RETRY_PREFIX) else found


@mutant("Q2", "Q2.consumed_messages_go_once_every_group_has_them", base=LMDB)
class WithoutAGroupAllIsConsumed(Retention):
    """Where no group counts, nobody is waited for."""

    def _consumed(self, topic: Topic, queue: int, now_ms: int) -> int:
        expiry_ms = self._options.group_expiry_ms or now_ms
        known = [how for (_, topic_id), how in self._state.registered.items() if topic_id == topic.id]
        if any(now_ms - how.active_ms <= expiry_ms for how in known):
            return super()._consumed(topic, queue, now_ms)
        return topic.next_offsets[queue]


@mutant("Q2", "Q2.consumed_messages_go_once_every_group_has_them", base=LMDB)
class OneGroupIsEnough(Retention):
    """What one group has consumed goes."""

    def _consumed(self, topic: Topic, queue: int, now_ms: int) -> int:
        groups = [group_id for group_id, topic_id in self._state.registered if topic_id == topic.id]
        return max((self._state.progress(group_id, topic.id, queue).next_offset for group_id in groups), default=0)


@mutant("Q3", "Q3.idle_groups_stop_counting_and_keep_their_position", base=LMDB)
def idle_groups_count(options: EngineOptions) -> EngineOptions:
    """A group that was registered once holds messages back for ever."""
    return but(options, group_expiry_ms=0)


@mutant("Q3", "Q3.an_idle_group_goes_on_where_it_stood")
class IdleGroupsForgetTheirPosition(Popping):
    """A group that comes back after its expiry starts like a new one."""

    def _register(self, transaction: Transaction, topic: Topic, group_id: int, request: PopRequest) -> bool:
        known, expiry_ms = transaction.registered(group_id, topic.id), self._options.group_expiry_ms
        if known is not None and expiry_ms and transaction.now_ms - known.active_ms > expiry_ms:
            for queue in range(topic.queues):
                transaction.set_progress(GroupQueue(group_id, topic.id, queue), Progress(0, transaction.now_ms))
        return super()._register(transaction, topic, group_id, request)


# ---------------------------------------------------------------- what is there still (P11, P14, P7)


@mutant("P11", "P11.a_late_group_starts_within_a_call_that_was_half_consumed")
class LateGroupsStartAt0(Popping):
    """A pop begins at offset 0, and finds what of a run was reclaimed but lies there still."""

    def _read_on(self, *args: Any) -> Any:
        with patch.object(Transaction, "first_kept", lambda *place: 0):
            return super()._read_on(*args)


@mutant("P11", "P11.late_groups_start_with_the_first_kept_message")
class ResetsGoBackTo0(Administration):
    """A reset takes offset 0 for the first kept one."""

    def reset(self, *args: Any) -> None:
        with patch.object(Transaction, "first_kept", lambda *place: 0):
            super().reset(*args)


@mutant("Q1", "Q1.kept_until_older_than_the_retention")
class LagCountsWhatWasReclaimed(PopState):
    """A group's lag goes by its position alone."""

    def waiting(self, *args: Any) -> int:
        with patch.object(self, "kept", {}):
            return super().waiting(*args)


@mutant("P7", "P7.resent_letters_go_to_their_group_alone_exactly_once", base=LMDB)
class ResentLettersStay(Administration):
    """What was sent back lies among the dead letters still."""

    def _remove_from(self, *args: Any) -> list[int]:
        with (
            patch.object(WriteBatch, "put", _nothing),
            patch.object(WriteBatch, "delete", _nothing),
            patch.object(Transaction, "set_gaps", _nothing),
        ):
            return super()._remove_from(*args)


def _nothing(*_: object) -> None:
    """Stand in for a step that is left out."""


@mutant("P7", "P7.dropped_letters_are_gone")
class DroppedLettersAreCounted(Transaction):
    """What leaves the dead letters stays in the count of them."""

    def count_off_dead(self, group_id: int, topic_id: int, offsets: Sequence[int]) -> None:
        """Count nothing off."""


@mutant("P14", "P14.dead_letters_of_a_topic_that_was_made_anew_are_counted_right")
class LettersOfADeletedTopicCount(Transaction):
    """Every letter that goes is taken off the count of the topic that has its topic's name now."""

    def count_off_dead(self, group_id: int, topic_id: int, offsets: Sequence[int]) -> None:
        super().count_off_dead(group_id, topic_id, [2**62] * len(offsets))
