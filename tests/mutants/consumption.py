"""Mutants of what came after plain pops: FIFO runs, retention, dead letters, requested delays, deletes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import rmqstore.delays as delays_module
from rmqstore.contract import PopRequest, Reclaim
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.checkpoint import ACKED, Lease
from rmqstore.engine.pops.fifo import Unacked
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.offsets import GroupQueue, Progress, Registered, Topic
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.state import PopState
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.schema import QUEUES
from rmqstore.message import REQUEST_PROPERTIES, RETRY_PREFIX

# ---------------------------------------------------------------- FIFO (P9)


@contextmanager
def acked_messages_of_a_run_come_back() -> Iterator[None]:
    """Until all of a run is acked, what is acked waits to be given again, as in RocketMQ."""
    end_many = Transaction.end_many

    def mutated(self: Transaction, lease: Lease, indexes: Sequence[int], state: int) -> None:
        end_many(self, lease, indexes, state)
        reader = GroupQueue(*lease.place[:3])
        if state == ACKED and self.is_ordered(reader) and self.fifo(reader):
            self.fifo(reader).update((lease.offsets[index], Unacked(waits=True)) for index in indexes)

    with patch.object(Transaction, "end_many", mutated):
        yield


@contextmanager
def a_second_run_while_one_is_leased() -> Iterator[None]:
    """A queue gives new messages although some of the last run are leased."""
    take_run = Popping._take_run

    def mutated(self: Popping, transaction: Transaction, request: PopRequest, source: Topic, reader: GroupQueue, *args: Any) -> Any:
        held = transaction.progress_or_new(reader)
        transaction.set_progress(reader, Progress(held.next_offset, held.last_pop_ms))
        found = take_run(self, transaction, request, source, reader, *args)
        after = transaction.progress_or_new(reader)
        transaction.set_progress(reader, Progress(after.next_offset, after.last_pop_ms, after.in_flight + held.in_flight))
        return found

    with patch.object(Popping, "_take_run", mutated):
        yield


@contextmanager
def the_mode_is_not_fixed() -> Iterator[None]:
    """Every pop says anew whether the group pops in order."""
    register = Popping._register

    def mutated(self: Popping, transaction: Transaction, topic: Topic, group_id: int, request: PopRequest) -> bool:
        if (known := transaction.registered(group_id, topic.id)) is not None:
            transaction.register(group_id, topic.id, Registered(request.order, known.active_ms))
        return register(self, transaction, topic, group_id, request)

    with patch.object(Popping, "_register", mutated):
        yield


@contextmanager
def the_whole_run_dies_with_its_head() -> Iterator[None]:
    """Each message of a run goes to the dead letters when its own attempts are used up."""
    give_back = Leasing._give_back

    def mutated(self: Leasing, *args: Any, **kwargs: Any) -> str:
        return give_back(self, *args, **{**kwargs, "is_head": True})

    with patch.object(Leasing, "_give_back", mutated):
        yield


# ---------------------------------------------------------------- retention (Q1–Q3, P11, P14)


@contextmanager
def _pins_without(table: str, applies: Callable[[Retention], bool] = lambda retention: True) -> Iterator[None]:
    holders, pinned = Retention._holders, Retention._pinned

    def blind(method: Callable[..., Any]) -> Callable[..., Any]:
        def mutated(self: Retention, *args: Any) -> Any:
            if not applies(self):
                return method(self, *args)
            with patch.object(self._state, table, {}):
                return method(self, *args)

        return mutated

    with patch.object(Retention, "_holders", blind(holders)), patch.object(Retention, "_pinned", blind(pinned)):
        yield


@contextmanager
def leases_do_not_pin() -> Iterator[None]:
    """What is leased goes when it is old."""
    with _pins_without("running"):
        yield


@contextmanager
def runs_do_not_pin() -> Iterator[None]:
    """What is un-acked under FIFO goes when it is old and not leased at the moment."""
    with _pins_without("fifo"):
        yield


@contextmanager
def one_old_message_takes_all() -> Iterator[None]:
    """When the head of a queue is too old, all of the queue goes."""
    aged = Retention._aged

    def mutated(self: Retention, transaction: Transaction, topic: Topic, queue: int, first: int) -> int:
        return topic.next_offsets[queue] if aged(self, transaction, topic, queue, first) > first else first

    with patch.object(Retention, "_aged", mutated):
        yield


@contextmanager
def no_retention_keeps_nothing() -> Iterator[None]:
    """A retention of 0 is taken for a time of 0 ms."""
    aged = Retention._aged

    def mutated(self: Retention, transaction: Transaction, topic: Topic, queue: int, first: int) -> int:
        return aged(self, transaction, topic, queue, first) if self._options.retention_ms else topic.next_offsets[queue]

    with patch.object(Retention, "_aged", mutated):
        yield


@contextmanager
def retry_topics_go_by_age() -> Iterator[None]:
    """What waits to be given again goes when it is old."""
    wanted = Retention._wanted

    def mutated(self: Retention, transaction: Transaction, topic: Topic, queue: int, first: int) -> int:
        found = wanted(self, transaction, topic, queue, first)
        return max(found, self._aged(transaction, topic, queue, first)) if topic.name.startswith(RETRY_PREFIX) else found

    with patch.object(Retention, "_wanted", mutated):
        yield


@contextmanager
def leased_counts_as_consumed() -> Iterator[None]:
    """With ``reclaim = consumed``, what every group has popped goes, acked or not."""
    with _pins_without("running", lambda retention: retention._options.reclaim is Reclaim.CONSUMED):
        yield


@contextmanager
def without_a_group_all_is_consumed() -> Iterator[None]:
    """Where no group counts, nobody is waited for."""
    consumed = Retention._consumed

    def mutated(self: Retention, topic: Topic, queue: int, now_ms: int) -> int:
        if any(topic_id == topic.id and self._counts(how, now_ms) for (_, topic_id), how in self._state.registered.items()):
            return consumed(self, topic, queue, now_ms)
        return topic.next_offsets[queue]

    with patch.object(Retention, "_consumed", mutated):
        yield


@contextmanager
def one_group_is_enough() -> Iterator[None]:
    """What one group has consumed goes."""

    def mutated(self: Retention, topic: Topic, queue: int, now_ms: int) -> int:
        groups = [group_id for group_id, topic_id in self._state.registered if topic_id == topic.id]
        return max((self._state.progress(group_id, topic.id, queue).next_offset for group_id in groups), default=0)

    with patch.object(Retention, "_consumed", mutated):
        yield


@contextmanager
def idle_groups_count() -> Iterator[None]:
    """A group that was registered once holds messages back for ever."""
    with patch.object(Retention, "_counts", lambda self, registered, now_ms: True):
        yield


@contextmanager
def idle_groups_forget_their_position() -> Iterator[None]:
    """A group that comes back after its expiry starts like a new one."""
    register = Popping._register

    def mutated(self: Popping, transaction: Transaction, topic: Topic, group_id: int, request: PopRequest) -> bool:
        known, expiry_ms = transaction.registered(group_id, topic.id), self._options.group_expiry_ms
        if known is not None and expiry_ms and transaction.now_ms - known.active_ms > expiry_ms:
            for queue in range(topic.queues):
                transaction.set_progress(GroupQueue(group_id, topic.id, queue), Progress(0, transaction.now_ms))
        return register(self, transaction, topic, group_id, request)

    with patch.object(Popping, "_register", mutated):
        yield


@contextmanager
def late_groups_start_at_0() -> Iterator[None]:
    """A pop begins at offset 0, and finds what of a run was reclaimed but lies there still."""
    read_on = Popping._read_on

    def mutated(self: Popping, *args: Any) -> Any:
        with patch.object(Transaction, "first_kept", lambda *place: 0):
            return read_on(self, *args)

    with patch.object(Popping, "_read_on", mutated):
        yield


@contextmanager
def resets_go_back_to_0() -> Iterator[None]:
    """A reset takes offset 0 for the first kept one."""
    reset = Administration.reset

    def mutated(self: Administration, *args: Any) -> None:
        with patch.object(Transaction, "first_kept", lambda *place: 0):
            reset(self, *args)

    with patch.object(Administration, "reset", mutated):
        yield


@contextmanager
def lag_counts_what_was_reclaimed() -> Iterator[None]:
    """A group's lag goes by its position alone."""
    waiting = PopState.waiting

    def mutated(self: PopState, *args: Any) -> int:
        with patch.object(PopState, "first_kept", lambda *place: 0):
            return waiting(self, *args)

    with patch.object(PopState, "waiting", mutated):
        yield


# ---------------------------------------------------------------- dead letters and deletes (P7, P14, P2)


@contextmanager
def resend_without_removing() -> Iterator[None]:
    """What was sent back lies among the dead letters still."""
    remove_from = Administration._remove_from

    def mutated(self: Administration, transaction: Transaction, *args: Any) -> list[int]:
        def put(batch: WriteBatch, space: int, key: bytes, value: bytes) -> None:
            assert space == QUEUES

        def delete(batch: WriteBatch, space: int, key: bytes) -> None:
            assert space == QUEUES

        with (
            patch.object(WriteBatch, "put", put),
            patch.object(WriteBatch, "delete", delete),
            patch.object(Transaction, "set_gaps", nothing),
        ):
            return remove_from(self, transaction, *args)

    with patch.object(Administration, "_remove_from", mutated):
        yield


@contextmanager
def drop_without_counting() -> Iterator[None]:
    """What leaves the dead letters stays in the count of them."""
    with patch.object(Transaction, "count_off_dead", nothing):
        yield


@contextmanager
def letters_of_a_deleted_topic_count() -> Iterator[None]:
    """Every letter that goes is taken off the count of the topic that has its topic's name now."""
    count_off_dead = Transaction.count_off_dead

    def mutated(self: Transaction, group_id: int, topic_id: int, offsets: Sequence[int]) -> None:
        count_off_dead(self, group_id, topic_id, [2**62] * len(offsets))

    with patch.object(Transaction, "count_off_dead", mutated):
        yield


@contextmanager
def pop_times_start_anew() -> Iterator[None]:
    """A group that is made anew may get the receipts of the one that was deleted."""
    with patch.object(Transaction, "raise_pop_floor", nothing):
        yield


@contextmanager
def requests_in_the_wrong_order() -> Iterator[None]:
    """Of several properties that ask for a time the last one wins (T4)."""
    with patch.object(delays_module, "REQUEST_PROPERTIES", tuple(reversed(REQUEST_PROPERTIES))):
        yield


def nothing(*_: object) -> None:
    """Stand in for a step that a mutant leaves out."""
