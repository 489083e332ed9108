"""Mutants in which one call is two transactions, so that a crash between them leaves half of it."""

from __future__ import annotations

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Ticket,
)
from rmqstore.engine.kv.base import PutMany, WriteBatch
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
    TRACES,
    U32,
    U64,
)
from rmqstore.message import DLQ_PREFIX
from rmqstore_conformance.proving.kinds import but, two_writes
from rmqstore_conformance.proving.planting import LMDB, Behind, Pops, Timers, in_two, mutant, parted, written_by

_MANY = 1000
_ACKS = 256


# ---------------------------------------------------------------- timers


@mutant("I1", kind="two-writes", base=LMDB, at=two_writes(Timers, "put"))
def marks_before_puts(space: int, key: bytes) -> bool:
    """The marks of a put are a transaction of their own before its timers."""
    return not (space == META and key[:1] in (MARK, MARK_AGE))


@mutant("T10", kind="two-writes", base=LMDB, at=two_writes(Timers, "put"))
def counters_behind_puts(space: int, key: bytes) -> bool:
    """The counters of pending timers are a transaction of their own behind the timers."""
    return space == META and (key == SEQ_KEY or key[:1] == COUNT)


@mutant("C4", kind="two-writes", base=LMDB, at=two_writes(Timers, "_cancel"))
def traces_behind_cancels(space: int, key: bytes) -> bool:
    """What is remembered of a cancelled timer is a transaction of its own behind the cancel."""
    return space == TRACES and key[:1] == CANCELLED


# ---------------------------------------------------------------- pops


class _InTwo(Pops):
    def applied(self, txn: PopTxn, now_ms: int, is_behind: Behind) -> tuple[PopTxnResult, Ticket]:
        """Do a transaction in two; call it with the lock held."""
        with in_two(self._shared, is_behind):
            return super().apply(txn, now_ms)


@mutant("R2", kind="two-writes", base=LMDB)
class LargeSendsInParts(Pops):
    """A send of more than a thousand messages for now is made of several transactions."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if txn.appends is None or len(txn.appends) <= _MANY or txn.marks or txn.timer_cursor is not None or txn.acks or txn.group_queues:
            return super().apply(txn, now_ms)
        with self._lock:
            columns = txn.appends.columns
            found: tuple[PopTxnResult, Ticket] | None = None
            for at in range(0, len(txn.appends), _MANY):
                found = super().apply(PopTxn(appends=MessageBatch(columns=columns.slice(at, _MANY))), now_ms)
                self._shared.sync(found[1])
            assert found is not None
            return found


@mutant("P6", kind="two-writes", base=LMDB)
class ChangesInTwo(_InTwo):
    """A change ends the old lease in one transaction, and gives the new one in the next."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not txn.changes:
            return super().apply(txn, now_ms)
        kv = self._shared.kv

        def is_new(space: int, key: bytes) -> bool:
            named = {LEASE: key[1:], EXPIRY: key[1 + U64.size :]}.get(key[:1])
            return space == LEASES and named is not None and kv.get(LEASES, LEASE + named) is None

        with self._lock:
            return self.applied(txn, now_ms, is_new)


@mutant("P8", kind="two-writes", base=LMDB)
class LargeAcksInParts(Pops):
    """A batch of more than 256 acks is made of several transactions."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not txn.only_acks or len(txn.acks) <= _ACKS:
            return super().apply(txn, now_ms)
        with self._lock:
            receipts = list(txn.acks)
            result, ticket = super().apply(PopTxn(acks=receipts[:_ACKS]), now_ms)
            outcomes = list(result.acks)
            for at in range(_ACKS, len(receipts), _ACKS):
                self._shared.sync(ticket)
                result, ticket = super().apply(PopTxn(acks=receipts[at : at + _ACKS]), now_ms)
                outcomes += result.acks
            return but(result, acks=tuple(outcomes)), ticket


@mutant("P7", kind="two-writes", base=LMDB)
class ResentBeforeRemoved(_InTwo):
    """A dead letter that is sent back is appended in one transaction, and leaves its queue in the next."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not any(each.resend_to for each in txn.removals):
            return super().apply(txn, now_ms)
        with self._lock:
            ids = {U32.pack(each.id) for name, each in self._state.topics.items() if name.startswith(DLQ_PREFIX)}

            def is_removal(space: int, key: bytes) -> bool:
                return (space == QUEUES and key[:4] in ids) or (space == META and key[:1] in (GAP, DEAD))

            return self.applied(txn, now_ms, is_removal)


@mutant("P3", kind="two-writes", base=LMDB, at=two_writes(Pops, "revive"))
def retries_before_leases_end(space: int, key: bytes) -> bool:
    """A revive appends the copies in one transaction, and ends the leases in the next."""
    return space == LEASES or key[:1] == PROGRESS


@mutant("P14", kind="two-writes", base=LMDB, at=two_writes(Pops, "apply"))
def dead_counted_behind(space: int, key: bytes) -> bool:
    """The number of a topic's dead letters is a transaction of its own behind a rejection."""
    return space == META and key[:1] == DEAD


@mutant("P1", kind="two-writes", base=LMDB)
class OffsetsBehindLeases(Pops):
    """A pop gives its leases in one transaction, and moves the group in the next."""

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        whole, kv = self._shared.write, self._shared.kv

        def write(batch: WriteBatch) -> Ticket:
            first, moves = parted(batch, lambda space, key: space == META and key[:1] == PROGRESS)
            if any(op.space == LEASES for op in first.ops):
                for op in moves.ops:
                    if isinstance(op, PutMany):
                        first.put_many(META, [(key, (kv.get(META, key) or bytes(8))[:8] + value[8:]) for key, value in op.items])
                self._shared.sync(whole(first))
                return whole(moves)
            return whole(batch)

        with self._lock, written_by(self._shared, write):
            return super().pop(request, now_ms)


@mutant("P9", kind="two-writes", base=LMDB, at=two_writes(Pops, "pop"))
def runs_behind_leases(space: int, key: bytes) -> bool:
    """A pop in order gives its leases in one transaction, and notes its run in the next."""
    return space == LEASES and key[:1] == FIFO


@mutant("R2", kind="two-writes", base=LMDB, at=two_writes(Pops, "delete_topic"))
def names_behind_messages(space: int, key: bytes) -> bool:
    """To delete a topic takes its messages in one transaction, and its name in the next."""
    return space == META


@mutant("Q1", kind="two-writes", base=LMDB, at=two_writes(Pops, "maintain"))
def expired_counted_behind(space: int, key: bytes) -> bool:
    """What retention takes unconsumed is counted in a transaction behind the one that takes it."""
    return space == META and key[:1] == REGISTERED
