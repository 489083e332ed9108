"""How a pop goes: what it asks for, its looks for messages, and the wait for the first one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec import structs

from rmqstore.contract import PopRequest, PopResult, Receipt, Support
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, LostCallsError, RmqstoreError, UnsupportedOperationError
from rmqstore.filters import TagFilter, parse_filter
from rmqstore.message import MAX_ID_BYTES, MAX_POP, check_count, check_group, check_readable_topic, check_word
from rmqstore.store.waits import Patience, TopicWait
from rmqstore.when import duration_ms

if TYPE_CHECKING:
    from rmqstore.store.store import Store

_topic_of = attrgetter("topic")  # of a receipt; no function of Python, which would be one call more each time

_INVISIBLE_MS: Final = 60_000
"""Length of a lease when the pop names none."""


class Popping:
    """Pops from the queues of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = store._clock
        self._config = store.engine.config
        self._pops = store.engine.pops
        self._waits = store._waits
        self._in_steps = store._in_steps

    def asked(
        self,
        topic: str,
        group: str,
        max_messages: int,
        invisible: timedelta | None,
        invisible_ms: int | None,
        wait: timedelta | None,
        wait_ms: int | None,
        order: bool,
        filter: str,
        attempt_id: str | None,
        queue: int | None,
        acks: Sequence[Receipt] = (),
    ) -> tuple[PopRequest, int]:
        """Check what a pop asks for; returns its request, and how long it waits, ms."""
        leased_ms = _INVISIBLE_MS
        if invisible is not None or invisible_ms is not None:
            leased_ms = duration_ms("invisible", invisible, invisible_ms, minimum=1) or leased_ms
        patience_ms = 0 if wait is None and wait_ms is None else duration_ms("wait", wait, wait_ms) or 0
        self._store._check_open()
        check_readable_topic(topic)
        check_group(group)
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_POP:
            raise IllegalArgumentError(f"max_messages must be an int of 1 to {MAX_POP}, not {max_messages!r}")
        if attempt_id is not None:
            check_word("attempt_id", attempt_id, MAX_ID_BYTES)
        if queue is not None:
            check_count("queue", queue)
        if not isinstance(order, bool):
            raise IllegalArgumentTypeError(f"order must be True or False, not {order!r}")
        if order:
            self._require("fifo", "pop in order (order=True)")
        if filter != "*" and not isinstance(parse_filter(filter), TagFilter):
            self._require("sql92_filter", "take SQL92 filters")
        request = PopRequest(topic, group, max_messages, leased_ms, queue, order, attempt_id, filter, self._config.init, acks)
        return request, patience_ms

    def wait(self, request: PopRequest, patience_ms: int) -> PopResult:
        """Pop, and wait up to ``patience_ms`` for the first message."""
        patience = Patience(self._clock, patience_ms)
        with self._waits.on(TopicWait(request.topic, for_acks=self.acks_help(request))) as waiting:
            # Count first, then look: what arrives in between moves the count, so the wait ends at once.
            seen, waiting.ends = waiting.count, self.ends_of(request.topic)
            result = self.look(request)
            acked, request = result.acks, structs.replace(request, acks=())
            try:
                while not len(result.messages) and (left_s := patience.left_s()) > 0:
                    waiting.wait_beyond(seen, min(left_s, threading.TIMEOUT_MAX))
                    self._store._check_open()
                    seen, waiting.ends = waiting.count, self.ends_of(request.topic)
                    result = self.look(request)
            except RmqstoreError as error:
                # The topic was made anew, the disk is full, or the store closed; the outcomes are told, as the acks are done.
                if not acked or isinstance(error, LostCallsError):
                    raise
        return structs.replace(result, acks=acked)

    def acks_help(self, request: PopRequest) -> bool:
        """Say whether an ack may be what a pop waits for: it pops in order, or under ``max_in_flight``."""
        return request.order or bool(self._config.max_in_flight)

    def look(self, request: PopRequest) -> PopResult:
        """Pop until something passes the filter or nothing is left, so that in between other calls have their turn (X3)."""
        result = self.step(request)
        if len(result.messages) or not result.more:
            return result
        acked, request = result.acks, structs.replace(request, acks=())
        me = threading.get_ident()
        try:
            self._in_steps.add(me)
            while result.more and not len(result.messages):
                self._store._check_open()
                result = self.step(request)
        except RmqstoreError as error:  # as in a wait
            if not acked or isinstance(error, LostCallsError):
                raise
        finally:
            self._in_steps.discard(me)
        return structs.replace(result, acks=acked)

    def step(self, request: PopRequest) -> PopResult:
        """Pop once."""
        result, ticket = self._pops.pop(request, self._clock.now_ms())
        self._store._settle(self._pops, ticket)
        if request.acks:
            self._waits.acked(map(_topic_of, request.acks))
        return result

    def ends_of(self, topic: str) -> tuple[int, ...]:
        """Return the next offset of each queue of a topic; none when there is no such topic."""
        known = self._pops.topic(topic)
        return () if known is None else known.max_offsets

    def _require(self, capability: str, what: str) -> None:
        """Refuse a call that needs what the pop engine does not declare (S1)."""
        name = self._config.pop_engine
        if getattr(self._store.engine.infos[name].capabilities, capability) is not Support.FULL:
            raise UnsupportedOperationError(f"engine {name!r} does not {what}; `rmqstore engines` lists what each engine can do")
