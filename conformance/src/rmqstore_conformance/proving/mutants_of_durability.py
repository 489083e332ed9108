"""Mutants whose answers rest on what is not durable yet or what a crash or a reopen takes away, or in which one call is two writes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    AckOutcome,
    Engine,
    EngineOptions,
    EngineSession,
    Flush,
    PopRequest,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerHandle,
    WriteStatus,
)
from rmqstore.engine.kv.base import PutMany, WriteBatch
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.schema import (
    CANCELLED,
    COUNT,
    DEAD,
    EXPIRY,
    FIFO,
    GAP,
    LEASE,
    LEASES,
    MARK,
    MARK_AGE,
    META,
    PROGRESS,
    QUEUES,
    REGISTERED,
    SEQ_KEY,
    SPACES,
    TRACES,
    U32,
    U64,
)
from rmqstore.engine.session import open_session
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.message import DLQ_PREFIX
from rmqstore_conformance.proving.kinds import answers, at_once, but, edit, instead, two_writes
from rmqstore_conformance.proving.planting import LMDB, Applied, Apply, Pop, Popped, Pops, Timers, Whole, in_two, mutant, parted, written_by

durability_mutant = functools.partial(mutant, kind="durability", base=LMDB)
two_writes_mutant = functools.partial(mutant, kind="two-writes", base=LMDB)


# ---------------------------------------------------------------- timers

repeated_cancels_at_once = durability_mutant("C4", "R1.an_answer_waits_for_what_it_rests_on")(
    "The ticket of a repeated cancel does not cover the first one.",
    edit(OrderedTimers._cancel, "max(self._change_position, self._seal_position)", "self._seal_position"),
)
repeated_puts_at_once = durability_mutant("I1", "R1.an_answer_waits_for_what_it_rests_on")(
    "The ticket of a repeated put does not cover the first one.",
    at_once(Timers, "put")(lambda batch, receipts: receipts.status is WriteStatus.REPEATED),
)
never_soft = durability_mutant("H3", "H3.a_batch_says_that_it_rests_on_what_is_not_durable")(
    "A batch of due timers never says that it rests on a put or a cancel that is not durable.",
    answers(Timers, "due")(lambda found: but(found, soft=False)),
)


@durability_mutant("C6", "C6.what_a_crash_took_is_named_by_nothing_that_came_later", at=instead(Timers, "_place_of"))
def handles_by_place(self: Timers, place_of: Any, handle: TimerHandle) -> Any:
    """A handle is looked up by tick and seq, without its epoch, so after a crash it may name another put."""
    place = place_of(handle)
    found = None if place is None else self._runs.locate(place[0], place[1])
    return place if found is None else (found.put.tick, found.put.seq, found.put.epoch)


marks_of_this_open = durability_mutant("I1", "I1.marks_by_the_thousand_survive_a_reopen")(
    "The marks of puts are looked up among those of this open, so a repeat after a reopen stores its timers again.",
    edit(
        OrderedTimers.put,
        "(answer := find_mark(kv, TIMER_SIDE, marks)) is not None",
        "BEFORE and PAIR.unpack_from(answer)[0] == self._shared.epoch",
    ),
)
large_puts_wait_for_less = durability_mutant("R1")(
    "The ticket of a put of more than a thousand timers is that of the call before it.",
    edit(OrderedTimers.put, "return receipts, ticket", "return receipts, Ticket(ticket.position - (len(records) > 1000))"),
)


# ---------------------------------------------------------------- pops

stale_at_once = durability_mutant("P5", "R1.an_answer_waits_for_what_it_rests_on")(
    "The ticket of an ack that says STALE does not cover what ended the lease.",
    at_once(Pops, "apply")(lambda txn, result: txn.only_acks and set(result.acks) == {AckOutcome.STALE}),
)


@durability_mutant("R1", "R1.an_answer_waits_for_what_it_rests_on", at=at_once(Pops, "apply"))
def waits_at_once(txn: PopTxn, result: PopTxnResult) -> bool:
    """A lease that is made a wait for the next attempt is answered before it is durable."""
    return bool(txn.changes) and all(each.is_backing_off for each in txn.changes) and txn.appends is None


letters_gone_at_once = durability_mutant("P7", "R1.an_answer_waits_for_what_it_rests_on")(
    "The answer that a dead letter is gone already does not wait for the removal.",
    at_once(Pops, "apply")(lambda txn, result: bool(txn.removals) and not any(result.removals)),
)
empty_pops_register_at_once = durability_mutant("P11", "R1.each_answer_is_durable")(
    "A first pop that gives nothing is answered before the group's start is durable.",
    at_once(Pops, "pop")(lambda request, result: not len(result.messages)),
)
repeated_attempts_at_once = durability_mutant("P1", "R1.an_answer_waits_for_what_it_rests_on")(
    "A pop that repeats an attempt is answered before the leases of the first one are durable.",
    edit(Popping.pop, "Ticket(self._shared.firm)", "Ticket(0)"),
)
lazy_pops_at_once = durability_mutant("R1", "R1.leases_wait_for_what_they_rest_on")(
    "A pop that need not wait for its leases does not wait for what it gives either.",
    edit(Popping.pop, "self._shared.firm if must_wait else 0", "self._shared.firm if self._options.pop_flush.value == 'sync' else 0"),
)


@durability_mutant("R1", at=instead(Pops, "pop"))
def large_pops_wait_for_less(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """The ticket of a pop of more than 32 messages is that of the call before it."""
    result, ticket = pop(request, now_ms)
    return result, Ticket(max(ticket.position - 1, 0)) if len(result.messages) > 32 else ticket


cursor_durable_too_early = durability_mutant("H3", "H1.the_durable_cursor_is_what_is_durable")(
    "The cursor that would survive is said to be the one that was stored last.",
    edit(OrderedPops.durable_cursor, "return self._durable_cursor", "return self._cursor"),
)
cursors_are_durable_once_they_are_read = durability_mutant("H3", "H1.what_a_store_in_use_takes_in_makes_no_cursor_durable")(
    "When the state is read again, the cursor that is stored is taken for durable.",
    edit(OrderedPops._load, "kv.durable_position >= kv.position", "True"),
)


_RESTING = "self._resting(transaction.commit())"
_NONE_TO_WAIT_FOR = "(transaction.commit(), Ticket(0))[1]"
resets_at_once = durability_mutant("P11")(
    "A reset of a group is answered before it is durable.", edit(OrderedPops.reset_offset, _RESTING, _NONE_TO_WAIT_FOR)
)
settings_at_once = durability_mutant("P7")(
    "The settings of a group are answered for before they are durable.", edit(OrderedPops.set_group, _RESTING, _NONE_TO_WAIT_FOR)
)
receipts_by_place = durability_mutant("P5", "C6.what_a_crash_took_is_named_by_nothing_that_came_later")(
    "A receipt is looked up without its epoch, so one of a lease that a crash took may end another one.",
    edit(Leasing._check_point, "(lease.epoch, lease.granter) != (receipt.epoch, granter)", "lease.granter != granter"),
)


# ---------------------------------------------------------------- sessions


@durability_mutant("C6", "C6.what_the_power_took_names_nothing_that_comes_later")
class EpochsNotSynced(Whole):
    """The epoch of an open becomes durable with the first call, so after a crash before that it is given again."""

    def open(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        from rmqstore_lmdb.kv import open_lmdb  # announcing an engine does not load LMDB

        kv = open_lmdb(directory, SPACES)
        vars(kv)["sync"] = lambda position=None: None
        try:
            session = open_session(kv, options)
        except BaseException:
            kv.close()
            raise
        del vars(kv)["sync"]
        return session


@durability_mutant("R1")
class ClosesWithoutSync(Whole):
    """Under flush = async a close lets go of the files without a last sync."""

    def open(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        session: Any = engine.open(directory, options)
        kv = session._shared.kv

        def close() -> None:
            if not kv.closed:
                kv.refuse_closed()
                kv._base.close()

        if options.flush is Flush.ASYNC:
            vars(kv)["close"] = close
        return session  # type: ignore[no-any-return]


@durability_mutant("F1", "F1.no_room_at_a_call")
class FullDisksLeaveCounts(Timers):
    """After a full disk the numbers of timers are those from before it, with what was refused."""

    def planted(self) -> None:
        reloads: list[Any] = self._shared._reloads
        reloads[:] = [each for each in reloads if each.__self__ is not self]


@durability_mutant("X1", "X1.a_reader_sees_one_state_beside_its_owner")
class RefreshesHalf(Whole):
    """A reader that is refreshed sees the queues as they are, and the numbers of timers as they were."""

    def open_for_reading(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        session: Any = engine.open_for_reading(directory, options)
        timers = session.timers()
        session._shared._reloads[:] = [each for each in session._shared._reloads if each.__self__ is not timers]
        return session  # type: ignore[no-any-return]


_MANY = 1000
_ACKS = 256


# ---------------------------------------------------------------- timers

marks_before_puts = two_writes_mutant("I1")(
    "The marks of a put are a transaction of their own before its timers.",
    two_writes(Timers, "put")(lambda space, key: not (space == META and key[:1] in (MARK, MARK_AGE))),
)
counters_behind_puts = two_writes_mutant("T10")(
    "The counters of pending timers are a transaction of their own behind the timers.",
    two_writes(Timers, "put")(lambda space, key: space == META and (key == SEQ_KEY or key[:1] == COUNT)),
)
traces_behind_cancels = two_writes_mutant("C4")(
    "What is remembered of a cancelled timer is a transaction of its own behind the cancel.",
    two_writes(Timers, "_cancel")(lambda space, key: space == TRACES and key[:1] == CANCELLED),
)


# ---------------------------------------------------------------- pops


@two_writes_mutant("R2", at=instead(Pops, "apply"))
def large_sends_in_parts(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A send of more than a thousand messages for now is made of several transactions."""
    answer = None
    if txn.appends is not None and len(txn.appends) > _MANY and not (txn.marks or txn.timer_cursor or txn.acks or txn.group_queues):
        for at in range(0, len(txn.appends), _MANY):
            answer = apply(PopTxn(appends=MessageBatch(columns=txn.appends.columns.slice(at, _MANY))), now_ms)
            self.sync(answer[1])
    return answer or apply(txn, now_ms)


@two_writes_mutant("P6", at=instead(Pops, "apply"))
def changes_in_two(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A change ends the old lease in one transaction, and gives the new one in the next."""

    def is_new(space: int, key: bytes) -> bool:
        named = {LEASE: key[1:], EXPIRY: key[1 + U64.size :]}.get(key[:1])
        return bool(txn.changes) and space == LEASES and named is not None and self._shared.kv.get(LEASES, LEASE + named) is None

    with self._lock, in_two(self._shared, is_new):
        return apply(txn, now_ms)


@two_writes_mutant("P8", at=instead(Pops, "apply"))
def large_acks_in_parts(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A batch of more than 256 acks is made of several transactions."""
    if not txn.only_acks or len(txn.acks) <= _ACKS:
        return apply(txn, now_ms)
    outcomes: list[AckOutcome] = []
    for at in range(0, len(txn.acks), _ACKS):
        result, ticket = apply(PopTxn(acks=list(txn.acks)[at : at + _ACKS]), now_ms)
        self.sync(ticket)
        outcomes += result.acks
    return but(result, acks=tuple(outcomes)), ticket


@two_writes_mutant("P7", at=instead(Pops, "apply"))
def resent_before_removed(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A dead letter that is sent back is appended in one transaction, and leaves its queue in the next."""
    ids = {U32.pack(each.id) for name, each in self._state.topics.items() if name.startswith(DLQ_PREFIX)}

    def is_removal(space: int, key: bytes) -> bool:
        return bool(txn.removals) and ((space == QUEUES and key[:4] in ids) or (space == META and key[:1] in (GAP, DEAD)))

    with self._lock, in_two(self._shared, is_removal):
        return apply(txn, now_ms)


retries_before_leases_end = two_writes_mutant("P3")(
    "A revive appends the copies in one transaction, and ends the leases in the next.",
    two_writes(Pops, "revive")(lambda space, key: space == LEASES or key[:1] == PROGRESS),
)
dead_counted_behind = two_writes_mutant("P14")(
    "The number of a topic's dead letters is a transaction of its own behind a rejection.",
    two_writes(Pops, "apply")(lambda space, key: space == META and key[:1] == DEAD),
)


@two_writes_mutant("P1", at=instead(Pops, "pop"))
def offsets_behind_leases(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """A pop gives its leases in one transaction, and moves the group in the next."""
    whole, kv = self._shared.write, self._shared.kv

    def write(batch: WriteBatch) -> Ticket:
        first, moves = parted(batch, lambda space, key: space == META and key[:1] == PROGRESS)
        if any(op.space == LEASES for op in first.ops):
            for op in moves.ops:
                if isinstance(op, PutMany):
                    first.put_many(META, [(key, (kv.get(META, key) or bytes(8))[:8] + value[8:]) for key, value in op.items])
            kv.sync(whole(first).position)
            batch = moves
        return whole(batch)

    with self._lock, written_by(self._shared, write):
        return pop(request, now_ms)


runs_behind_leases = two_writes_mutant("P9")(
    "A pop in order gives its leases in one transaction, and notes its run in the next.",
    two_writes(Pops, "pop")(lambda space, key: space == LEASES and key[:1] == FIFO),
)
names_behind_messages = two_writes_mutant("R2")(
    "To delete a topic takes its messages in one transaction, and its name in the next.",
    two_writes(Pops, "delete_topic")(lambda space, key: space == META),
)
expired_counted_behind = two_writes_mutant("Q1")(
    "What retention takes unconsumed is counted in a transaction behind the one that takes it.",
    two_writes(Pops, "maintain")(lambda space, key: space == META and key[:1] == REGISTERED),
)
