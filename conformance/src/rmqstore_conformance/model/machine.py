"""One store and its oracle, side by side: how both are opened, and how all that can be seen of the store is compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple, TypeVar

from rmqstore import IllegalArgumentError, PoppedMessage, ReadStore, Store
from rmqstore.contract import Durability, Flush, GroupSettings, Operation as Does, TimerHandle
from rmqstore.message import MAX_TIME_MS, RESERVED_PREFIXES, retry_topic
from rmqstore.store.opening import pop_buffer_of
from rmqstore_conformance.fidelity import check
from rmqstore_conformance.model.chance import Chance, Plan
from rmqstore_conformance.model.coverage import Coverage
from rmqstore_conformance.model.pop_oracle import Held
from rmqstore_conformance.model.timer_oracle import Oracle, Timer
from rmqstore_conformance.model.transcript import Transcript
from rmqstore_conformance.stores import MINUTE_MS, Pair, stores_of
from rmqstore_conformance.targets import capabilities_of

M = TypeVar("M", bound="Machine")
_ALL = 100_000
_READS_AGAIN = 8
"""One look in so many reads again what was read before."""

_LOOKED_UP = 8
"""So many of the latest timers are looked up by their handles."""


class Operation(NamedTuple):
    """Something that a history does to its store.

    Attributes:
        weight: how often, beside the others.
        needs: optional capabilities that it cannot do without.
        when: whether there is anything to do it with.
    """

    name: str
    weight: int
    needs: tuple[str, ...]
    when: Callable[[Any], object]
    act: Callable[[Any, Chance], None]


def operation(weight: int, *needs: str, when: Callable[[Any], object] = lambda machine: True) -> Callable[[Any], Any]:
    """Make a method an operation of its class; see :class:`Operation`."""

    def marked(act: Callable[[M, Chance], None]) -> Callable[[M, Chance], None]:
        act.operation = Operation(act.__name__, weight, needs, when, act)  # type: ignore[attr-defined]
        return act

    return marked


class Machine:
    operations: ClassVar[Mapping[str, Operation]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: each.operation for name, each in vars(cls).items() if hasattr(each, "operation")}
        cls.operations = {**cls.operations, **own}

    def __init__(self, pair: Pair, plan: Plan, coverage: Coverage, **settings: Any) -> None:
        self.pair = pair
        self.plan = plan
        self.saw = coverage.note
        self.settings = {**plan.settings, **settings}
        self.stack = ExitStack()
        self.stores = self.stack.enter_context(stores_of(pair))
        self.clock = self.stores.clock
        self.transcript = Transcript(pair, self.stores, self.settings)
        self.store: Store = self.transcript.watched("store", self.settings)
        self.oracle = Oracle(self.settings)
        self.sent = 0
        self.copies = 0
        self.lives: list[str] = ["open"]
        self.born: dict[int, int] = {}
        self.deleted: set[str] = set()
        self.in_order = set(plan.in_order)
        self.popped: list[PoppedMessage] = []
        self._looks = itertools.count()
        self.read_to: dict[tuple[str, int], int] = {}
        """By topic and queue: up to which offset messages were read and compared since the store was opened."""
        self.is_broken_off = False
        self.is_unsettled = False
        """Whether the last tick did something since which no answer was given that makes it durable."""
        for topic, queues in plan.topics.items():
            self.store.topics.create(topic, queues)
            self.oracle.create_topic(topic, queues)
            self.oracle.arranged.add(topic)

    def close(self) -> None:
        self.stack.close()

    # ------------------------------------------------------------ what there is

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.plan.topics)

    @property
    def groups(self) -> tuple[str, ...]:
        return self.plan.groups

    @property
    def has_fifo(self) -> bool:
        return "fifo" in self.plan.support

    @property
    def survives_crashes(self) -> bool:
        """Whether what was answered outlives a kill, by the declaration of both engines for the settings in use."""
        flush, buffer = Flush(self.settings["flush"]), pop_buffer_of(self.store.engine.config)
        declared = [each.durability_of(does, flush, buffer) for each in capabilities_of(self.pair) for does in Does]
        return min(declared) >= Durability.PROCESS_CRASH

    def queues_of(self, topic: str) -> int:
        """Return how many queues a topic has; a new one has one."""
        return len(self.oracle.queues.get(topic, [])) or 1

    def mode_of(self, topic: str, group: str) -> bool:
        """Return whether a group pops a topic in order; before its first pop, what it is going to be."""
        at = self.oracle.standings.get((topic, group))
        return (topic, group) in self.in_order if at is None or at.ordered is None else at.ordered

    def life_since(self, life: int) -> str:
        """Return what happened to the store since: the last of reopened, crashed, copied, loaded; or open when it was never closed."""
        return "same open" if life == len(self.lives) - 1 else self.lives[-1]

    def state_of(self, held: Held) -> str:
        """Return where a lease is, coarsely."""
        kind = "fifo" if self.mode_of(held.topic, held.group) else "plain"
        if held.ended is None:
            ends = "expired" if held.expiry <= self.now else "running"
            return f"{kind} {'backing off ' * held.is_backing_off}{ends}"
        return f"{kind} {held.moved_by or held.ended}"

    @staticmethod
    def refused(act: Callable[[], object], why: str) -> None:
        """Check that a call is refused for a reason that begins or goes on like this."""
        try:
            act()
        except IllegalArgumentError as error:
            assert why in str(error), f"refused for another reason: {error}"
            return
        raise AssertionError(f"not refused, though {why}")

    # ------------------------------------------------------------ looking

    def look(self, view: Store | ReadStore | None = None, *, whole: bool) -> None:
        """Compare what can be seen with the oracle; ``whole`` also every message anywhere, and the store with itself.

        What was read and compared since the store was opened is read again by one look in some only.
        """
        if view is not None or next(self._looks) % _READS_AGAIN == 0:
            self.read_to.clear()
        view = view or self.store
        self._look_at_timers(view, whole=whole)
        for group in self.groups:
            if whole:
                self.oracle.take_over_letters(group, view.dead_letters.list(group))
            for topic in self.topics:
                assert view.lag(topic, group) == self.oracle.lag(topic, group), f"lag of {group!r} on {topic!r}"
                self._look_at_readiness(view, topic, group)
            expected = GroupSettings(max_retries=self.oracle.retries_of.get(group), backoff_ms=self.oracle.backoffs_of.get(group, ()))
            assert view.groups.settings(group) == expected
        self.oracle.check_subscriptions(view.groups.subscriptions())
        found = [
            (each.topic, each.group, each.queue_id, each.queue_offset, each.message_id, each.attempt, each.first_pop_ms, each.expiry_ms,
             each.is_backing_off, each.reason, each.receipt)
            for each in view.leases()
        ]  # fmt: skip
        assert found == self.oracle.running_leases()
        self._look_at_queues(view, whole=whole)
        if whole:
            assert view.dead_letters.parked() == []
            assert view.verify() == []

    def _look_at_timers(self, view: Store | ReadStore, *, whole: bool) -> None:
        pending = self.oracle.pending()
        dues = [timer.due for timer in pending[:3]]
        minutes = [each // MINUTE_MS * MINUTE_MS for each in (self.now, *dues)]
        edges = sorted(
            {
                0,
                self.now,
                self.now + 1,
                self.now + MINUTE_MS,
                *dues,
                *minutes,
                *(min(each + MINUTE_MS, MAX_TIME_MS) for each in minutes),
                2**50,
            }
        )
        counts = view.pending(edges)
        assert counts.total == len(pending)
        assert list(counts.counts) == [sum(a <= t.due < b for t in pending) for a, b in zip(edges, edges[1:], strict=False)]
        assert counts.earliest_ms == min((t.due for t in pending), default=None)
        assert counts.latest_ms == max((t.due for t in pending), default=None)
        found = [each for page in self._pages(view) for each in page.timers]
        assert [(each.handle.text(), each.deliver_at_ms) for each in found] == [(t.handle, t.due) for t in pending]
        if whole:
            for each, timer in zip(found, pending, strict=True):
                check(timer.message, each.message, "pending")
        for timer in self.oracle.timers[-_LOOKED_UP:]:
            handle = TimerHandle.parse(timer.handle)
            looked_up = None if handle is None else view.engine.timers.get(handle)
            if timer.pending:
                assert looked_up is not None, f"{timer} is pending, and not found by its handle"
                check(timer.message, looked_up.message, "found by its handle")
            elif timer.cancelled:
                assert looked_up is None, f"{timer} is cancelled, and found by its handle"
        if view is not self.store:
            return
        wake, waiting = self.store.next_wake_ms(), self.oracle.wake_ms()
        if waiting is not None:
            assert wake is not None, f"something happens in {waiting - self.now} ms, and the store would sleep for ever"
            assert wake <= max(waiting - self.now, 0)

    @staticmethod
    def _pages(view: Store | ReadStore) -> Iterator[Any]:
        page = view.scan(limit=1000)
        yield page
        while page.next_after is not None:
            page = view.scan(limit=1000, after=page.next_after)
            yield page

    def _look_at_readiness(self, view: Store | ReadStore, topic: str, group: str) -> None:
        ready = view.engine.pops.ready(topic, group, "*", self.now)
        assert (ready is True) == self.oracle.is_ready(topic, group), f"whether {topic!r} is ready for {group!r}"
        if ready is not True:
            assert ready == min((held.expiry for held in self.oracle.held_by(topic, group)), default=None)

    def _look_at_queues(self, view: Store | ReadStore, *, whole: bool) -> None:
        found = {topic.name: topic for topic in view.topics.list(system=True)}
        assert {name for name in found if not name.startswith(RESERVED_PREFIXES)} == set(self.oracle.queues)
        for name, queues in self.oracle.queues.items():
            assert found[name].min_offsets == tuple(queue.first for queue in queues), f"first offsets of {name!r}"
            assert found[name].max_offsets == tuple(len(queue.entries) for queue in queues), f"next offsets of {name!r}"
            for number, queue in enumerate(queues) if whole else ():
                begin = max(queue.first, min(self.read_to.get((name, number), 0), len(queue.entries)))
                self.read_to[name, number] = len(queue.entries)
                lying = self._read(view, name, number, begin)
                assert len(lying) == len(queue.entries) - begin
                for offset, seen in enumerate(lying, begin):
                    entry = queue.entries[offset]
                    check(entry.message, seen, "read", **entry.lying(name, number, offset))
        for (name, group), at in self.oracle.standings.items():
            retry = found.get(retry_topic(group, name))
            assert (retry is None) == (not at.retry.entries)
            assert retry is None or (retry.min_offsets, retry.max_offsets) == ((at.retry.first,), (len(at.retry.entries),))
            if whole and retry is not None:
                self.oracle.reorder(name, group, self._read(view, retry.name, 0))

    @staticmethod
    def _read(view: Store | ReadStore, topic: str, queue: int, offset: int = 0) -> list[PoppedMessage]:
        found: list[PoppedMessage] = []
        while page := [each for each in view.engine.pops.read(topic, queue, offset, _ALL).messages if isinstance(each, PoppedMessage)]:
            found += page
            offset = page[-1].queue_offset + 1
        return found

    def take_over_retries(self) -> None:
        """Take over in which order messages are in the retry topics that got some."""
        for (topic, group), at in self.oracle.standings.items():
            if at.is_loose:
                self.oracle.reorder(topic, group, self._read(self.store, retry_topic(group, topic), 0))

    def distant(self, timer: Timer) -> bool:
        """Say whether a timer is due later than any history waits."""
        return timer.due > self.now + 500 * 86_400_000 and timer.due <= MAX_TIME_MS
