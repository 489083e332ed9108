"""A witness of every store that a case opens: what goes in is remembered, and whatever comes out is held against it, field by field (H2).

It stands between a store and its engine, at the two interfaces of the contract: so no call of a case goes past it, rows and columns of one
answer are compared with each other, and a case need not look at more of a message than it is about. What was put there by others (a load of
a dump, another process, damage that became a parked entry) is unknown to it and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec

from rmqstore import Message, MessageBatch, PoppedMessage
from rmqstore.contract import PopRequest, PopStore, PopTxn, TimerStore
from rmqstore.message import DLQ_PREFIX, GRAVE_PROPERTIES, PARKED_TOPIC, RETRY_PREFIX
from rmqstore_conformance.fidelity import came_out, differences

CLAUSE: Final = "H2"
_MOST_ROWS: Final = 2000
"""Of one batch: those behind them are like them."""
_BY_COLUMN: Final = 25
"""Of so many pops and reads of a case, and of each 25th behind them, the columns are compared, which takes longer than the call."""


class UnfaithfulError(AssertionError):
    """A message came out otherwise than it went in; the fault is one of :data:`CLAUSE`, whatever the case is about."""


class Witness:
    """Remembers the messages of the stores of one case, by id."""

    def __init__(self) -> None:
        self._sent: dict[str, list[Message]] = {}
        self._gave_back = False
        self._of_store: dict[str, set[str]] = {}
        self._pops, self._reads = count(1), count(1)

    def watch(self, name: str, timers: TimerStore, pops: PopStore) -> None:
        """Stand between the store of this name and the two sides of its engine from now on."""
        own = self._of_store.setdefault(name, set())
        compared: dict[tuple[str, int, int], list[PoppedMessage]] = {}
        _around(timers, "put", partial(self._put, own))
        _around(timers, "scan", self._scanned)
        _around(timers, "get", self._got)
        _around(pops, "apply", partial(self._applied, own))
        _around(pops, "append", partial(self._put, own))
        _around(pops, "pop", self._popped)
        _around(pops, "read", partial(self._read, own, compared))

    # ------------------------------------------------------------ what goes in

    def _put(self, own: set[str], call: Callable[..., Any], batch: MessageBatch, *rest: Any, **options: Any) -> Any:
        self._note(own, batch)
        return call(batch, *rest, **options)

    def _applied(self, own: set[str], call: Callable[..., Any], txn: PopTxn, now_ms: int) -> Any:
        if txn.appends is not None:
            self._note(own, txn.appends)
        self._gave_back = self._gave_back or bool(txn.removals)
        return call(txn, now_ms)

    def _note(self, own: set[str], batch: MessageBatch) -> None:
        # What has the engine's own form went in before. Of columns a copy is read, so that the engine still finds no more than columns.
        if batch.source is not None:
            return
        rows = MessageBatch(columns=batch.columns.slice(0, _MOST_ROWS)).messages if batch.has_columns else batch.messages
        for row in rows[:_MOST_ROWS]:
            if isinstance(row, Message) and row.message_id is not None:
                self._sent.setdefault(row.message_id, []).append(row)
                own.add(row.message_id)

    # ------------------------------------------------------------ what comes out

    def _popped(self, call: Callable[..., Any], request: PopRequest, now_ms: int) -> Any:
        answer = call(request, now_ms)
        batch = answer[0].messages
        if 0 < len(batch) <= _MOST_ROWS:
            messages = batch.messages()
            if _has_its_turn(self._pops):
                self._compared(MessageBatch(messages=messages, columns=batch.columns().columns), request.topic)
            self.check(messages, f"popped from {request.topic!r}")
        return answer

    def _read(
        self,
        own: set[str],
        compared: dict[tuple[str, int, int], list[PoppedMessage]],
        call: Callable[..., Any],
        topic: str,
        queue: int,
        *rest: Any,
        **options: Any,
    ) -> Any:
        batch: MessageBatch = call(topic, queue, *rest, **options)
        if 0 < len(batch) <= _MOST_ROWS:
            found = [each for each in batch.messages if isinstance(each, PoppedMessage)]
            place = (topic, queue, found[0].queue_offset if found else -1)
            # A queue that is read again and again is compared with its columns when something of it is new.
            if (not found or compared.get(place) != found) and _has_its_turn(self._reads):
                compared[place] = self._compared(batch, topic)
            for each in found:
                # What was loaded from another store, or given back from the dead letters, may be in another queue than it was sent to.
                stays = each.message_id in own and not self._gave_back
                self.check([each], f"read from {topic!r}", topic=topic, **({"queue_id": queue} if stays else {}))
        return batch

    def _scanned(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        page = call(*arguments, **options)
        self.check([timer.message for timer in page.timers[:_MOST_ROWS]], "listed as a timer")
        return page

    def _got(self, call: Callable[..., Any], *arguments: Any) -> Any:
        found = call(*arguments)
        if found is not None:
            self.check([found.message], "found by its handle")
        return found

    def _compared(self, batch: MessageBatch, topic: str) -> list[PoppedMessage]:
        try:
            return came_out(batch)
        except AssertionError as error:
            raise UnfaithfulError(f"{CLAUSE}: rows and columns of {topic!r} differ: {error}") from None

    def check(self, found: Iterable[Message | PoppedMessage], where: str, **known: Any) -> None:
        """Hold messages against those that were sent with their ids.

        Raises:
            UnfaithfulError: one differs from all of them.
        """
        for each in found:
            candidates = self._sent.get(each.message_id or "")
            if not candidates or each.topic == PARKED_TOPIC or known.get("topic") == PARKED_TOPIC:
                continue
            # A dead letter that is given back has its deliver time behind it (P7).
            back = {"deliver_at_ms": None} if self._gave_back and each.deliver_at_ms is None else {}
            fewest = min((_differing(sent, each, {**known, **back}) for sent in reversed(candidates)), key=len)
            if fewest:
                raise UnfaithfulError(
                    f"{CLAUSE}: message {each.message_id!r}, {where}, came otherwise than it was sent: {'; '.join(fewest)}"
                )


def _has_its_turn(numbers: Iterator[int]) -> bool:
    number = next(numbers)
    return number <= _BY_COLUMN or number % _BY_COLUMN == 0


def _differing(sent: Message, seen: Message | PoppedMessage, known: dict[str, Any]) -> list[str]:
    """Return how a message differs from one that was sent, apart from what its place adds: a queue, a topic, a grave's properties."""
    place = {"queue_id": seen.queue_id, **known}
    topic = known.get("topic", seen.topic)
    if topic.startswith(DLQ_PREFIX):
        place["topic"] = seen.topic
        seen = msgspec.structs.replace(seen, properties={k: v for k, v in seen.properties.items() if k not in GRAVE_PROPERTIES})
    elif not topic.startswith(RETRY_PREFIX) and sent.queue_id is not None and "queue_id" in known:
        place["queue_id"] = sent.queue_id
    return differences(sent, seen, **place)


def _around(side: Any, name: str, step: Callable[..., Any]) -> None:
    """Let ``step`` make the calls of one method of one object."""
    call = getattr(side, name)

    def made(*arguments: Any, **options: Any) -> Any:
        return step(call, *arguments, **options)

    setattr(side, name, made)
