"""What becomes of a message, a mark and a queue under the calls of many threads: the states of :mod:`.histories`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Self

from rmqstore_conformance.histories import FOR_EVER_MS, Event

_LIKE: Final = {"release": "ack", "reject": "ack", "change": "ack", "later": "ack"}
"""Calls that end a lease in the same way, but for what becomes of its message."""

_LEFT: Final = {
    "ready": ("ready",),
    "leased": ("leased",),
    "gone": ("done", "cancelled"),
    "pending": ("pending",),
    "dead": ("dead",),
    "dropped": ("dropped",),
}
_SEEN: Final = {
    "PENDING": ("pending", "sealed"),
    "LEASED": ("leased",),
    "BACKING_OFF": ("leased",),
    "READY": ("ready",),
    "RETRY": ("ready",),
}
"""What ``where`` may say of a message; of what it went on from it says DONE."""


class MessageState(NamedTuple):
    """Where a message stands for its one group.

    Attributes:
        place: absent, pending, sealed, cancelled, ready, leased, done, dead, dropped.
        receipt: of the lease that holds it.
        attempt: how often it was delivered, as the next attempt counts it.
        due_ms: of a timer, when it is due.
        low_ms, high_ms: between which times its lease ends.
        max_retries: redeliveries before it is dead.
    """

    place: str = "absent"
    receipt: str = ""
    attempt: int = 0
    due_ms: int = 0
    low_ms: int = FOR_EVER_MS
    high_ms: int = FOR_EVER_MS
    max_retries: int = 16

    def after(self, event: Event) -> Iterator[Self]:
        yield from getattr(self, f"_after_{_LIKE.get(event.call, event.call)}")(event)

    def _at(self, place: str, **more: Any) -> Self:
        return self._replace(place=place, receipt="", low_ms=FOR_EVER_MS, high_ms=FOR_EVER_MS)._replace(**more)

    def _after_send(self, event: Event) -> Iterator[Self]:
        if self.place == "absent":
            yield self._at("ready")

    def _after_schedule(self, event: Event) -> Iterator[Self]:
        if self.place == "absent":
            yield self._at("pending", due_ms=event.high_ms)

    def _after_cancel(self, event: Event) -> Iterator[Self]:
        if event.answer == "CANCELLED" and self.place in ("pending", "cancelled"):
            yield self._at("cancelled")
        elif (event.answer == "ALREADY_DELIVERED" and self.place not in ("absent", "pending", "cancelled")) or (
            event.answer == "UNKNOWN" and self.place == "absent"
        ):
            yield self

    def _after_seal(self, event: Event) -> Iterator[Self]:
        yield self._at("sealed") if self.place == "pending" and self.due_ms <= event.low_ms else self

    def _after_deliver(self, event: Event) -> Iterator[Self]:
        yield self._at("ready") if self.place == "sealed" else self

    def _after_revive(self, event: Event) -> Iterator[Self]:
        ends = self.place == "leased" and self.low_ms <= event.low_ms
        if ends:
            yield self._at("ready") if self.attempt <= self.max_retries else self._at("dead")
        if not ends or event.low_ms < self.high_ms:
            yield self

    def _after_pop(self, event: Event) -> Iterator[Self]:
        if self.place == "ready" and event.attempt == self.attempt + 1:
            yield self._held(event)

    def _held(self, event: Event) -> Self:
        receipt = event.new or event.receipt
        return self._at("leased", receipt=receipt, attempt=event.attempt or self.attempt, low_ms=event.low_ms, high_ms=event.high_ms)

    def _after_pop_again(self, event: Event) -> Iterator[Self]:
        """A repeated attempt: it gives what is held, or what is ready if no pop had taken it so."""
        if self.place == "leased" and self.receipt == event.receipt:
            yield self
        else:
            yield from self._after_pop(event)

    def _after_ack(self, event: Event) -> Iterator[Self]:
        holds = self.place == "leased" and self.receipt == event.receipt
        if event.answer == "ALREADY_ACKED":
            if self.place == "done":
                yield self
        elif event.answer == "STALE":
            if not holds:
                yield self
        elif holds:
            yield self._ended(event)

    def _ended(self, event: Event) -> Self:
        if event.answer == "CHANGED":
            return self._held(event)
        if event.answer == "RELEASED":
            return self._at("ready", attempt=self.attempt - 1)
        return self._at({"ACKED": "done", "REJECTED": "dead"}[event.answer])

    def _after_resend(self, event: Event) -> Iterator[Self]:
        if (event.answer == "True") == (self.place == "dead"):
            yield self._at("ready", attempt=0) if self.place == "dead" else self

    def _after_drop(self, event: Event) -> Iterator[Self]:
        if (event.answer == "True") == (self.place == "dead"):
            yield self._at("dropped") if self.place == "dead" else self

    def _after_seen(self, event: Event) -> Iterator[Self]:
        if self.place in _SEEN[event.answer]:
            yield self

    def _after_left(self, event: Event) -> Iterator[Self]:
        if self.place in _LEFT[event.answer]:
            yield self


class MarkState(NamedTuple):
    """What a mark names: the answer of the first call that carried it, once there was one."""

    first: str = ""

    def after(self, event: Event) -> Iterator[Self]:
        if event.answer == "APPLIED" and not self.first:
            yield self._replace(first=event.receipt)
        elif event.answer == "REPEATED" and self.first == event.receipt:
            yield self


class QueueState(NamedTuple):
    """Where a group stands on one queue, whole: what it may hold at once is bounded, or it pops in order.

    Attributes:
        end: the next offset.
        next: the next offset to pop.
        held: offsets and receipts of its leases.
        waiting: offsets that wait in their place, in order.
        limit: how many leases it may have; 0 in order: as many as one pop gives.
    """

    end: int = 0
    next: int = 0
    held: frozenset[tuple[int, str]] = frozenset()
    waiting: tuple[int, ...] = ()
    limit: int = 0

    def after(self, event: Event) -> Iterator[Self]:
        yield from getattr(self, f"_after_{_LIKE.get(event.call, event.call)}")(event)

    def _after_append(self, event: Event) -> Iterator[Self]:
        offsets = [at for at, _ in event.found]
        if offsets == list(range(self.end, self.end + len(offsets))):
            yield self._replace(end=self.end + len(offsets))

    def _after_pop(self, event: Event) -> Iterator[Self]:
        """A pop that asked for ``attempt`` messages gives the first that there are."""
        room = self.limit - len(self.held) if self.limit else 0 if self.held else event.attempt
        expected = [*self.waiting, *range(self.next, self.end)][: min(event.attempt, max(room, 0))]
        if [at for at, _ in event.found] == expected:
            taken = len(set(expected) & set(self.waiting))
            behind = self.next + len(expected) - taken
            yield self._replace(next=behind, held=self.held | frozenset(event.found), waiting=self.waiting[taken:])

    def _after_ack(self, event: Event) -> Iterator[Self]:
        (lease,) = event.found
        if (event.answer in ("ACKED", "RELEASED")) == (lease in self.held):
            waiting = tuple(sorted((*self.waiting, lease[0]))) if event.answer == "RELEASED" else self.waiting
            yield self._replace(held=self.held - {lease}, waiting=waiting)

    def _after_lag(self, event: Event) -> Iterator[Self]:
        if event.found == ((self.end - self.next, "ready"), (len(self.held), "in flight"), (len(self.waiting), "retry")):
            yield self
