"""Mutants of what is kept and what a call costs: right answers, got by too much work, too many bytes or too long a memory (P5, X3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product

from rmqstore import MessageBatch, PoppedMessage
from rmqstore.contract import Lag, PoppedBatch, PopRequest, PopResult, Receipt, Ticket, UpkeepReport
from rmqstore_conformance.proving.kinds import but
from rmqstore_conformance.proving.planting import Pops, mutant

_Popped = tuple[PopResult, Ticket]


@mutant("P5", "P5.what_is_remembered_does_not_grow_with_the_load")
class UpkeepIsSlowerThanTheLoad(Pops):
    """A step of upkeep removes ten things, and says that there is nothing more."""

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        return but(super().maintain(now_ms, min(budget, 10)), more=False)


@mutant("X3", "X3.a_call_does_no_work_for_pairs_of_other_topics_and_groups")
class EachCountLooksAtEachPair(Pops):
    """A count of what waits for one group in one topic looks through every topic for every group."""

    def lag(self, topic: str, group: str) -> Lag:
        for each, other in product(self.topics(), self.groups()):
            self.noted[each.name] = other
        return super().lag(topic, group)


class _Joined(PoppedBatch):
    def __init__(self, parts: Sequence[PoppedBatch]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def messages(self) -> list[PoppedMessage]:
        return list(chain.from_iterable(each.messages() for each in self._parts))

    def columns(self) -> MessageBatch:
        return MessageBatch(messages=self.messages())

    def receipts(self) -> Sequence[Receipt]:
        return list(chain.from_iterable(each.receipts() for each in self._parts))


@mutant("X3", "X3.a_pop_holds_a_bounded_number_of_bytes")
class PopsOfAnySize(Pops):
    """A pop gives as many messages as were asked for, however large they are."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        result, ticket = super().pop(request, now_ms)
        parts = [result.messages]
        while parts[-1] and result.rest and not request.order and (wanted := request.max_messages - sum(map(len, parts))):
            result, ticket = super().pop(but(request, max_messages=wanted), now_ms)
            parts.append(result.messages)
        return but(result, messages=_Joined(parts) if len(parts) > 1 else parts[0]), ticket


@mutant("X3", "X3.a_page_holds_a_bounded_number_of_bytes")
class PagesOfAnySize(Pops):
    """A page of a queue has as many messages as were asked for, however large they are."""

    def read(self, topic: str, queue: int, offset: int, limit: int) -> MessageBatch:
        messages = list(super().read(topic, queue, offset, limit).messages)
        while messages and len(messages) < limit:
            last = messages[-1]
            assert isinstance(last, PoppedMessage)
            if not (more := super().read(topic, queue, last.queue_offset + 1, limit - len(messages)).messages):
                break
            messages += more
        return MessageBatch(messages=messages)


@mutant("X3", "X3.a_pop_that_passes_over_everything_lets_others_in_between")
class FiltersGoOnToTheEnd(Pops):
    """A pop whose filter passes over everything looks at all of a topic in one call."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        result, ticket = super().pop(request, now_ms)
        while result.more:
            result, ticket = super().pop(request, now_ms)
        return result, ticket
