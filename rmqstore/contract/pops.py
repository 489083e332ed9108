"""``PopStore``: topic queues whose messages are leased, acked, and come back (docs/contract.md).

A pop leases messages to a group for an invisible time; an ack ends the lease for good; an expired lease is *revived*: the message goes to
the group's retry topic, or to the dead letter queue when its attempts are used up.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

import msgspec

from rmqstore.contract.receipts import Receipt
from rmqstore.contract.side import Side, Ticket
from rmqstore.contract.timers import TimerCursor, WriteStatus
from rmqstore.errors import IllegalArgumentError

if TYPE_CHECKING:
    from rmqstore.batch import MessageBatch
    from rmqstore.message import PoppedMessage

_PAGE: Final = 1024


class AckOutcome(enum.Enum):
    """What an ack did (P4, P5)."""

    ACKED = "acked"
    ALREADY_ACKED = "already acked"
    STALE = "stale"
    UNKNOWN = "unknown"


class ChangeOutcome(enum.Enum):
    """What a change of the invisible time did (P6)."""

    CHANGED = "changed"
    ALREADY_ACKED = "already acked"
    STALE = "stale"
    UNKNOWN = "unknown"


class ReleaseOutcome(enum.Enum):
    """What giving a lease back did (P7: the attempt is not counted)."""

    RELEASED = "released"
    ALREADY_ACKED = "already acked"
    STALE = "stale"
    UNKNOWN = "unknown"


class RejectOutcome(enum.Enum):
    """What giving a message up did (P7)."""

    REJECTED = "rejected"
    ALREADY_ACKED = "already acked"
    STALE = "stale"
    UNKNOWN = "unknown"


class InitMode(enum.Enum):
    """Where a new group starts (P11): with the first kept message, or with the next one."""

    MIN = "min"
    MAX = "max"


class Change(msgspec.Struct, frozen=True):
    """Ask that the lease ``receipt`` ends ``invisible_ms`` after now.

    Attributes:
        is_backing_off: no consumer has the message until then: it waits for its next attempt.
        reason: why this attempt failed; a dead letter says it when the attempt was the last one.
    """

    receipt: Receipt
    invisible_ms: int
    is_backing_off: bool = False
    reason: str = ""


class Reject(msgspec.Struct, frozen=True):
    """Ask that the message of the lease ``receipt`` becomes a dead letter now, with ``reason``."""

    receipt: Receipt
    reason: str = ""


class ChangeResult(msgspec.Struct, frozen=True):
    """The outcome of a change.

    Attributes:
        receipt: what now holds the lease; None unless CHANGED.
        message: filled in by the store: the message that was given, under the receipt that now holds the lease; None when a receipt was.
    """

    outcome: ChangeOutcome
    receipt: Receipt | None = None
    message: PoppedMessage | None = None


class Removal(msgspec.Struct, frozen=True):
    """Take one message out of a dead letter queue or the parked entries: for good, or back to work.

    Attributes:
        topic, queue_id, queue_offset: where it is.
        message_id: its id: when another message is there by now, nothing is removed; None takes whatever is there.
        resend_to: the topic that it goes to in the same step, as a message that was never delivered; None to drop it.
        resend_queue: the queue there; None for any.
    """

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str | None = None
    resend_to: str | None = None
    resend_queue: int | None = None


class PopTxn(msgspec.Struct, frozen=True):
    """Everything that ``apply`` does in one atomic step, in this order: acks, changes, releases, rejects, removals, appends, then
    the notes, the timer cursor and the marks.

    ``removals`` takes messages out of dead letter queues and of the parked entries, and of no other topic. ``group_queues`` has, for each
    topic of ``appends`` with message groups, over how many queues the caller spread them: the first such call fixes that for the topic, and
    makes or widens it as needed (P9). ``notes`` are values that the caller keeps under names of its own, None lets go of one (I2).
    """

    appends: MessageBatch | None = None
    acks: Sequence[Receipt] = ()
    changes: Sequence[Change] = ()
    releases: Sequence[Receipt] = ()
    rejects: Sequence[Reject] = ()
    timer_cursor: TimerCursor | None = None
    marks: Sequence[bytes] = ()
    removals: Sequence[Removal] = ()
    group_queues: Mapping[str, int] = {}
    notes: Mapping[str, bytes | None] = {}

    @property
    def only_acks(self) -> bool:
        """Whether there is nothing but acks in it."""
        others = self.changes or self.releases or self.rejects or self.marks or self.removals or self.notes
        return self.appends is None and self.timer_cursor is None and not others


class PopTxnResult(msgspec.Struct, frozen=True):
    """One outcome per entry of the transaction, in its order; a removal is True when the message was there.

    REPEATED (a mark was stored already): nothing was done, ``position`` is that of the first call, the outcome lists are empty.
    MOVED: nothing was done either, since a topic spreads its message groups over another number of queues than ``group_queues`` says.
    """

    status: WriteStatus
    position: int
    acks: tuple[AckOutcome, ...] = ()
    changes: tuple[ChangeResult, ...] = ()
    releases: tuple[ReleaseOutcome, ...] = ()
    rejects: tuple[RejectOutcome, ...] = ()
    removals: tuple[bool, ...] = ()


class PopRequest(msgspec.Struct, frozen=True):
    """What a consumer asks for.

    Attributes:
        queue: one queue, or None for any.
        max_messages: 1–1024.
        invisible_ms: length of the lease, ms, at least 1.
        order: FIFO pop (P9), refused where not declared; the group's first pop of the topic fixes it.
        attempt_id: a repeat with the same id within the invisible time returns the same leases.
        filter: ``*``, a tag expression ``a || b``, or an SQL92 expression where that is declared (P10).
        init: where the group starts when it has not popped this topic before (P11).
        acks: receipts of whatever topics and groups; they are acked first, in the same atomic step as the pop (P8).
    """

    topic: str
    group: str
    max_messages: int = 32
    invisible_ms: int = 60_000
    queue: int | None = None
    order: bool = False
    attempt_id: str | None = None
    filter: str = "*"
    init: InitMode = InitMode.MIN
    acks: Sequence[Receipt] = ()


class PoppedBatch(ABC):
    """The messages of one pop, in both forms; each is made when asked for."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def messages(self) -> list[PoppedMessage]:
        """Return one struct a message, receipts included."""

    @abstractmethod
    def columns(self) -> MessageBatch:
        """Return the columns of :data:`~rmqstore.schemas.OUT_SCHEMA`, receipts as text."""

    @abstractmethod
    def receipts(self) -> Sequence[Receipt]:
        """Return the receipts, one a message; an engine may know its own sequence again in ``PopTxn.acks``."""


class PopResult(msgspec.Struct, frozen=True):
    """What a pop found.

    Attributes:
        rest: the exact number of messages of the queues asked for that were ready and are not in ``messages`` (P14).
        more: with no messages: the filter passed over as many as one call looks at, and what is behind them was not looked at; the next
            pop goes on there.
        acks: one outcome for each receipt of the request, in its order.
    """

    messages: PoppedBatch
    rest: int
    more: bool = False
    acks: tuple[AckOutcome, ...] = ()


class Lag(msgspec.Struct, frozen=True):
    """Exact state of a group on a topic (P14).

    Attributes:
        ready: messages of the topic that the group has not popped yet.
        in_flight: leased messages that somebody works on, from the topic and its retry topic.
        retry: messages that wait to be given again: in the group's retry topic, or in their place under FIFO.
        dead: messages of this topic that are in the group's dead letter queue.
        expired: messages that retention has taken since the group's first pop before the group had popped them (Q1, Q3).
        backing_off: messages whose attempt failed and whose next one waits for its time (``retry_later``).
    """

    ready: int
    in_flight: int
    retry: int
    dead: int
    expired: int = 0
    backing_off: int = 0


class ReviveReport(msgspec.Struct, frozen=True):
    """What a revive did: leases back to a retry topic, to a dead letter queue, or parked; ``more`` when the limit cut it short.

    ``gone`` are leases of messages that were removed meanwhile, as a dead letter that was dropped.
    """

    retried: int
    dead: int
    parked: int
    more: bool
    gone: int = 0


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic: its queues and, per queue, the first kept and the next offset.

    ``group_queues`` is over how many of them, the first ones, message groups are spread (P9); 0 before the first message with a group.
    ``is_on_demand`` says that a pop or a message made the topic, and that no number of queues was asked for.
    """

    name: str
    queues: int
    min_offsets: tuple[int, ...]
    max_offsets: tuple[int, ...]
    group_queues: int = 0
    is_on_demand: bool = False


class GroupOffset(msgspec.Struct, frozen=True):
    """Where a group stands on one queue: the next offset to pop, and how many leases it has (P12)."""

    topic: str
    queue_id: int
    next_offset: int
    in_flight: int


class LeaseInfo(msgspec.Struct, frozen=True):
    """One running lease: who holds which message until when.

    Attributes:
        topic: the topic that was popped, also when the message came from its retry topic.
        queue_id, queue_offset: where the message is, in the retry topic if it came from there.
        message_id: empty when the message cannot be read.
        attempt: number of this delivery.
        pop_time_ms, first_pop_ms: when this lease, and the first one of the message, were given.
        expiry_ms: when it ends.
        receipt: its proof as text.
        is_backing_off: no consumer has the message: it waits for its next attempt until ``expiry_ms``.
        reason: why its last attempt failed, when the consumer said so.
    """

    topic: str
    group: str
    queue_id: int
    queue_offset: int
    message_id: str
    attempt: int
    pop_time_ms: int
    first_pop_ms: int
    expiry_ms: int
    receipt: str
    is_backing_off: bool = False
    reason: str = ""


class MessageState(enum.Enum):
    """Where a message is on its way.

    Attributes:
        PENDING: it is a timer that is not due, or not handed over yet.
        READY: it is in its topic, and the group has not popped it; of no group when none pops the topic.
        LEASED: somebody of the group works on it.
        BACKING_OFF: its last attempt failed, and its next one waits for its time.
        RETRY: its last attempt failed, and it waits to be popped again.
        DONE: the group is through with it at this place: acked, or gone on to a place that is listed as well.
        DEAD: it is in the dead letter queue of the group.
        PARKED: it could not be read (T12).
    """

    PENDING = "pending"
    READY = "ready"
    LEASED = "leased"
    BACKING_OFF = "backing off"
    RETRY = "retry"
    DONE = "done"
    DEAD = "dead"
    PARKED = "parked"


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a group is with one message of a queue.

    Attributes:
        state: READY, LEASED, BACKING_OFF, RETRY or DONE.
        lease: the lease that runs.
        delivered: how often it was delivered in its place, in order (P9); other groups have another copy for each retry.
    """

    group: str
    state: MessageState
    lease: LeaseInfo | None = None
    delivered: int = 0


class Subscription(msgspec.Struct, frozen=True):
    """A group on a topic: whether it pops in order (P9), and when it popped last, ms, to an eighth of ``group_expiry_ms`` (Q3)."""

    group: str
    topic: str
    is_ordered: bool
    active_ms: int


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one group in the place of what holds for the store.

    Attributes:
        max_retries: redeliveries before the dead letter queue (P7); None = as the store has it.
        backoff_ms: how long a message waits after its 1st, 2nd … failed attempt; the last one repeats; empty = RocketMQ's table.
    """

    max_retries: int | None = None
    backoff_ms: tuple[int, ...] = ()


class PopStats(msgspec.Struct, frozen=True):
    """Counters and gauges of a pop store."""

    topics: int
    groups: int
    messages: int
    in_flight: int
    epoch: int
    durable_position: int
    position: int


class PopStore(Side):
    """What an engine must be to hold queues and leases (docs/contract.md, clauses P, and with a TimerStore H)."""

    @abstractmethod
    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        """Do all of ``txn`` in one atomic step; the one primitive that the hand-over rests on (H1).

        An unknown topic of an append is made. A row without a queue id goes to a queue of the store's choice.
        """

    @abstractmethod
    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        """Lease up to ``max_messages`` ready messages to the group (P1, P2, P10–P13).

        A call looks at a bounded number of messages that the filter passes over, not to hold up all others (X3); ``more`` says so. The
        ticket of a call with acks covers them, and what their answers rest on, also when nothing is leased.

        Raises:
            UnsupportedOperationError: ``order`` or an SQL92 filter where the engine declares none (S1).
        """

    @abstractmethod
    def ready(self, topic: str, group: str, filter: str, now_ms: int) -> bool | int | None:
        """Say whether a pop could return something now: True; else the time in ms at which a lease of the group ends; None when none runs.

        A pure read, for notification: it may answer True for messages that the filter passes over.
        """

    @abstractmethod
    def revive(self, now_ms: int, limit: int) -> tuple[ReviveReport, Ticket]:
        """Give back up to ``limit`` messages whose lease ended by ``now_ms``, in one atomic step (P3, P7, P9).

        They go to the retry topic, or to the DLQ when their attempts are used up; under FIFO they come back in their place, a run of one
        queue as a whole, whatever the limit.
        """

    @abstractmethod
    def timer_cursor(self) -> TimerCursor:
        """Return the cursor that the last ``apply`` stored."""

    @abstractmethod
    def durable_cursor(self) -> TimerCursor:
        """Return the cursor that would survive a power loss now."""

    @abstractmethod
    def create_topic(self, name: str, queues: int) -> tuple[TopicInfo, Ticket]:
        """Make a topic with ``queues`` queues, or widen an existing one; it never shrinks."""

    @abstractmethod
    def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, system topics included, or None."""

    def queues(self, topic: str) -> int:
        """Return how many queues a topic has; 0 when there is no such topic."""
        known = self.topic(topic)
        return 0 if known is None else known.queues

    @abstractmethod
    def topics(self) -> list[TopicInfo]:
        """List every topic, system topics included, by name."""

    @abstractmethod
    def groups(self) -> list[str]:
        """List every group that has popped, by name."""

    @abstractmethod
    def offsets(self, group: str) -> list[GroupOffset]:
        """List where ``group`` stands, by topic and queue; empty for an unknown group."""

    @abstractmethod
    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        """Move the group to ``offset`` on one queue or all; its leases there turn STALE, its retry topic stays (P11)."""

    @abstractmethod
    def delete_topic(self, name: str) -> Ticket:
        """Remove a topic with all its messages, leases and positions, and the retry topics that belong to it; a no-op when there is none.

        Pending timers stay, and make the topic again when they are due.
        """

    @abstractmethod
    def delete_group(self, name: str) -> Ticket:
        """Remove a group with its leases, positions and retry topics; its dead letter queue stays. A no-op when there is none."""

    @abstractmethod
    def set_group(self, name: str, settings: GroupSettings) -> Ticket:
        """Replace the settings of a group, which need not have popped yet; they go with the group when it is deleted."""

    @abstractmethod
    def group_settings(self) -> dict[str, GroupSettings]:
        """Return the settings of every group that has any of its own, by name."""

    @abstractmethod
    def notes(self) -> Mapping[str, bytes]:
        """Return every note that ``apply`` has kept, by name (I2); the same object as long as no note has changed, which is not changed."""

    @abstractmethod
    def subscriptions(self, group: str | None = None) -> list[Subscription]:
        """List which groups have popped which topics, by group and topic."""

    @abstractmethod
    def leases(self, topic: str | None = None, group: str | None = None) -> list[LeaseInfo]:
        """List the running leases, by topic, group, queue and offset (reads each message: for people, not for hot paths)."""

    @abstractmethod
    def progress(self, topic: str, queue: int, offset: int) -> list[GroupProgress]:
        """Say how far each group that pops the topic is with one kept message, by group; of a retry topic, the group that it belongs to."""

    @abstractmethod
    def read(self, topic: str, queue: int, offset: int, limit: int) -> MessageBatch:
        """Read kept messages from ``offset`` on without a lease: ``limit``, or fewer when they exceed 8 MiB (X3); empty at the end."""

    def pages(self, topic: TopicInfo) -> Iterator[MessageBatch]:
        """Yield what is in the queues of a topic, queue by queue, with one :meth:`read` a page, so that others have their turn (X3).

        What comes meanwhile is left out; of a topic that was deleted, what is read already is all.
        """
        for queue, (offset, behind) in enumerate(zip(topic.min_offsets, topic.max_offsets, strict=True)):
            while offset < behind:
                try:
                    page = self.read(topic.name, queue, offset, min(_PAGE, behind - offset))
                except IllegalArgumentError:  # it was deleted, or made again with fewer queues
                    return
                if not len(page):
                    break
                yield page
                if len(page) == behind - offset:
                    break  # no columns are made for the end
                offset = page.columns.column("queue_offset")[-1].as_py() + 1

    def get(self, message_id: str) -> PoppedMessage | None:
        """Find the newest message with this id by reading the queues (no index: for people, not for hot paths)."""
        newest: PoppedMessage | None = None
        for page in chain.from_iterable(map(self.pages, self.topics())):
            for row, found_id in enumerate(page.columns.column("message_id").to_pylist()):
                if found_id == message_id:
                    found = cast("PoppedMessage", page.messages[row])
                    newest = found if newest is None or found.store_ms >= newest.store_ms else newest
        return newest

    @abstractmethod
    def lag(self, topic: str, group: str) -> Lag:
        """Return the exact lag of a group on a topic (P14)."""

    @abstractmethod
    def next_expiry_ms(self) -> int | None:
        """Return when the first running lease ends; None when there is none."""

    @abstractmethod
    def stats(self) -> PopStats:
        """Return counters and gauges."""

    # ------------------------------------------------------------ sugar over apply

    def append(
        self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = (), group_queues: Mapping[str, int] | None = None
    ) -> tuple[PopTxnResult, Ticket]:
        """Append messages to their topics now; ``group_queues`` as in :class:`PopTxn`."""
        return self.apply(PopTxn(appends=batch, marks=marks, group_queues=group_queues or {}), now_ms)

    def ack(self, receipts: Sequence[Receipt], now_ms: int) -> tuple[list[AckOutcome], Ticket]:
        """Ack leases, one outcome each (P4, P5, P8)."""
        result, ticket = self.apply(PopTxn(acks=receipts), now_ms)
        return list(result.acks), ticket

    def change_invisible(self, changes: Sequence[Change], now_ms: int) -> tuple[list[ChangeResult], Ticket]:
        """Make leases longer or shorter, one result each (P6)."""
        result, ticket = self.apply(PopTxn(changes=changes), now_ms)
        return list(result.changes), ticket

    def release(self, receipts: Sequence[Receipt], now_ms: int) -> tuple[list[ReleaseOutcome], Ticket]:
        """Give leases back at once, the attempt not counted (P7)."""
        result, ticket = self.apply(PopTxn(releases=receipts), now_ms)
        return list(result.releases), ticket
