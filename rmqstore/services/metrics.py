"""``observe(store)``: what a store does and how it does, as metrics of OpenTelemetry (docs/server.md has the table).

A metric that RocketMQ 5 has too is named, labelled and measured as there: https://rocketmq.apache.org/docs/observability/01metrics, and in
its source ``BrokerMetricsConstant``, ``DefaultStoreMetricsConstant``, ``PopMetricsConstant`` and ``RemotingMetricsConstant``. The others
begin with ``rmqstore_``. Each has the label ``store``, which is the directory.

A store that is observed has some of its methods wrapped, on the instance, so one that nobody observes pays nothing. Gauges are read when
they are collected. The calls of a server's clients come through the same methods, but for two things. A pop looks by ``step``, and again
while it waits, and to wait is no load, so each look counts as a pop. And the sync that calls share is in the histogram of syncs alone.

RocketMQ's ``rocketmq_consumer_queueing_latency``, the age of the first message that is ready, is left out: whenever somebody collects, a
message would have to be read whole for each queue of each group.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self

from rmqstore.contract import Lag, RejectOutcome
from rmqstore.errors import IllegalArgumentError, RmqstoreError, StoreClosedError
from rmqstore.store.directory import room_of
from rmqstore.store.health import Health

if TYPE_CHECKING:
    from opentelemetry import metrics

    from rmqstore.batch import MessageBatch
    from rmqstore.contract import PopRequest, PopResult, Side, Ticket
    from rmqstore.store.store import Store
    from rmqstore.store.tick import Ticking, TickReport

_CALLS: Final = (
    "send send_batch cancel cancel_key cancel_keys ack change_invisible release retry_later reject flush snapshot "
    "health lag pending scan leases read get where stats verify"
).split()
_ELSEWHERE: Final = ["pop", "pop_batch", "tick"]
"""Calls that are counted within a store that is open here, and as they are made where another process has it open."""

_BOUNDS_MS: Final = (0.1, 0.3, 1, 3, 5, 10, 100, 1000, 3000)
"""RocketMQ's, and two below, since a call needs no network."""

_SAME_S: Final = 1.0
"""What was read for one gauge serves the others so long; none gets it twice."""

_OF_STORES: Final[tuple[tuple[str, str, str, Callable[[Health], int]], ...]] = (
    ("rocketmq_timing_messages", "", "Timers that are pending.", attrgetter("pending")),
    ("rocketmq_timer_dequeue_lag", "", "Timers whose tick has come and that are not handed over.", attrgetter("overdue")),
    ("rocketmq_timer_dequeue_latency", "ms", "How long the first of those waits.", attrgetter("lateness_ms")),
)
_OF_GROUPS: Final[tuple[tuple[str, str, Callable[[Lag], int]], ...]] = (
    (
        "rocketmq_consumer_lag_messages",
        "Messages that the group has to do: ready, in flight, to be tried again.",
        lambda lag: lag.ready + lag.in_flight + lag.retry + lag.backing_off,
    ),
    ("rocketmq_consumer_ready_messages", "Messages that the group has not popped yet.", attrgetter("ready")),
    ("rocketmq_consumer_inflight_messages", "Messages that somebody works on.", attrgetter("in_flight")),
    ("rmqstore_consumer_retry_messages", "Messages that came back, to be given again.", attrgetter("retry")),
    (
        "rmqstore_consumer_backing_off_messages",
        "Messages that failed and wait for the time of their next attempt.",
        attrgetter("backing_off"),
    ),
    ("rmqstore_consumer_dead_messages", "Messages in the dead letter queue.", attrgetter("dead")),
    ("rmqstore_consumer_expired_messages", "Messages that retention took before the group had popped them.", attrgetter("expired")),
)


def observe(store: Store, meter_provider: metrics.MeterProvider | None = None) -> Observation:
    """Count what ``store`` does, and measure how it does, until the :meth:`~Observation.stop` of what this returns, or the store's close.

    Of a store that is connected to, or shared, the calls that are made here are counted, and its gauges read; what happens at its owner,
    such as ticks and syncs, is counted there, also where that is this process.

    Args:
        meter_provider: where the metrics go; by default the global one of OpenTelemetry.

    Raises:
        IllegalArgumentError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise IllegalArgumentError(f"metrics need OpenTelemetry ({error}): pip install 'rmqstore[metrics]'") from error
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _lock:
        if (instruments := _instruments.get(provider)) is None:
            instruments = _instruments[provider] = _Instruments(provider)
    return Observation(store, instruments)


class Observation:
    """A store that is observed; made by :func:`observe`. :meth:`stop`, or the end of a ``with`` block, ends it."""

    def __init__(self, store: Store, instruments: _Instruments) -> None:
        self.labels = {"store": os.fsencode(store.path).decode(errors="backslashreplace")}
        self._store = store
        self._instruments = instruments
        self._is_over = False
        self._inside = threading.local()
        self._wrapped: list[tuple[object, str, Callable[..., Any], Callable[..., Any] | None]] = []
        self._read: tuple[Health | None, int | None] = (None, None)
        self._read_s = 0.0
        self._given: set[str] = set()
        self._is_here = hasattr(store, "_ticking")
        for name in _CALLS if self._is_here else [*_CALLS, *_ELSEWHERE]:
            self._wrap(store, name, self._timed(name, getattr(store, name), self._rejected if name == "reject" else None))
        if self._is_here:
            placing, popping = store._placing, store._popping
            self._wrap(store, "_tick", self._timed("tick", store._tick))
            self._wrap(store._ticking, "run", self._counted_tick(store._ticking))
            self._wrap(popping, "step", self._timed("pop", popping.step, self._popped))
            self._wrap(popping, "asked", self._timed("pop", popping.asked, errors_only=True))
            self._wrap(placing, "put", self._counted_put(placing.put))
            self._wrap(store, "_settle", self._timed_settle(store._settle))
        instruments.observations.append(self)

    def stop(self) -> None:
        """Leave the store as it was; its gauges go, and its counters stay where they are. Idempotent."""
        with _lock:
            if self._is_over:
                return
            self._is_over = True  # for a wrapper that another observation has wrapped
            self._instruments.observations.remove(self)
        for owner, name, wrapper, before in self._wrapped:
            if vars(owner).get(name) is not wrapper:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ calls

    def _wrap(self, owner: object, name: str, wrapper: Callable[..., Any]) -> None:
        self._wrapped.append((owner, name, wrapper, vars(owner).get(name)))
        setattr(owner, name, wrapper)

    @contextmanager
    def _measured(self, histogram: metrics.Histogram, *, errors_only: bool = False, **labels: str) -> Iterator[None]:
        begun_s, outcome = time.perf_counter(), "success"
        try:
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            if not errors_only or outcome != "success":
                took = histogram, (time.perf_counter() - begun_s) * 1000, {**self.labels, **labels, "response_code": outcome}
                if getattr(self._inside, "call", False):
                    self._inside.later.append(took)
                else:
                    _record(took)

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Do not count the calls of this thread: they are part of another one, or of the observation itself.

        What is measured meanwhile is recorded at the end, since others may wait for this thread within, and a meter takes locks of its own.
        """
        self._inside.call, self._inside.later = True, []
        try:
            yield
        finally:
            self._inside.call = False
            for each in self._inside.later:
                _record(each)

    def _timed(
        self, code: str, method: Callable[..., Any], then: Callable[..., None] | None = None, *, errors_only: bool = False
    ) -> Callable[..., Any]:
        """Return a method that is counted and timed, unless it is part of a call that is; ``then`` gets its result and its arguments."""

        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_over or getattr(self._inside, "call", False):
                return method(*arguments, **named)
            with self._measured(self._instruments.latency, errors_only=errors_only, request_code=code), self._unseen():
                result = method(*arguments, **named)
            if then is not None:
                then(result, *arguments)
            return result

        return call

    def _timed_settle(self, method: Callable[[Side, Ticket], None]) -> Callable[[Side, Ticket], None]:
        store = self._store

        @functools.wraps(method)
        def settle(side: Side, ticket: Ticket) -> None:
            held = store._round
            is_noted = held is not None and held._thread == threading.get_ident()  # and synced behind the round
            syncs = store._sync_calls and ticket.position and not is_noted and not self._is_over
            with self._measured(self._instruments.sync) if syncs else nullcontext():
                method(side, ticket)

        return settle

    def _counted_put(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def put(given: object, groups: Iterable[str], *rest: Any) -> Any:
            if self._is_over or getattr(self._inside, "put", False):  # it may begin anew, by a call of itself
                return method(given, groups, *rest)
            self._inside.put = True
            try:
                rows, timers, is_repeated = result = method(given, groups, *rest)
            finally:
                self._inside.put = False
            for topic, number in _by_topic(rows) if not is_repeated else ():
                kind = "fifo" if topic in groups else "normal" if timers is None else "delay"
                self._instruments.messages_in.add(number, {**self.labels, "topic": topic, "message_type": kind})
            return result

        return put

    def _popped(self, result: PopResult, request: PopRequest) -> None:
        if number := len(result.messages):
            self._instruments.messages_out.add(number, {**self.labels, "topic": request.topic, "consumer_group": request.group})

    def _rejected(self, result: Any, *_: object) -> None:
        outcomes = result if isinstance(result, list) else [result]
        self._instruments.dead.add(outcomes.count(RejectOutcome.REJECTED), self.labels)

    def _counted_tick(self, ticking: Ticking) -> Callable[..., TickReport]:
        """Return the ticks of a store, counted also when they end by an error: what was done before it stays."""
        run = ticking.run

        def counted(*arguments: Any, **named: Any) -> TickReport:
            try:
                return run(*arguments, **named)
            finally:
                if not self._is_over:
                    self._ticked(ticking.done)

        return counted

    def _ticked(self, report: TickReport) -> None:
        self._instruments.handed_over.add(report.handed_over, self.labels)
        self._instruments.scheduled.add(report.scheduled, self.labels)
        self._instruments.retried.add(report.retried, self.labels)
        self._instruments.dead.add(report.dead, self.labels)
        self._instruments.parked.add(report.parked, self.labels)

    # ------------------------------------------------------------ gauges

    def told(self, gauge: str) -> tuple[Health | None, int | None]:
        """Return how the store does, None when it cannot tell, and its bytes on disk: read once for all gauges of a collection."""
        if gauge in self._given or time.monotonic() - self._read_s > _SAME_S:
            self._given.clear()
            self._read = (None, None)
            try:
                with self._unseen():
                    size_bytes = room_of(self._store.path)[1] if self._is_here else None
                    self._read = (None, size_bytes)
                    self._read = (self._store.health(), size_bytes)
            except StoreClosedError:
                self.stop()
            except (RmqstoreError, OSError):
                pass  # a poisoned store, a server that is gone: what there is no number of has none
            self._read_s = time.monotonic()
        self._given.add(gauge)
        return self._read


class _Instruments:
    """The instruments of a provider. OpenTelemetry has them made once, so they are those of all stores that are observed by it.

    Attributes:
        observations: of what gauges tell.
    """

    def __init__(self, provider: metrics.MeterProvider) -> None:
        from opentelemetry.metrics import Observation as Point

        meter = provider.get_meter("rmqstore")
        self.observations: list[Observation] = []
        self.latency = meter.create_histogram(
            "rocketmq_rpc_latency", "ms", "Calls: how long they took.", explicit_bucket_boundaries_advisory=_BOUNDS_MS
        )
        self.sync = meter.create_histogram(
            "rmqstore_sync_latency", "ms", "How long calls waited for the disk.", explicit_bucket_boundaries_advisory=_BOUNDS_MS
        )
        counter = meter.create_counter
        self.messages_in = counter("rocketmq_messages_in_total", description="Messages that were sent.")
        self.messages_out = counter("rocketmq_messages_out_total", description="Messages that were popped.")
        self.handed_over = counter("rocketmq_timer_dequeue_total", description="Timers that were handed over.")
        self.scheduled = counter("rmqstore_scheduled_messages_total", description="Messages that schedules have sent.")
        self.retried = counter("rocketmq_pop_revive_retry_messages_total", description="Leases that ended, whose messages come again.")
        self.dead = counter("rocketmq_send_to_dlq_messages_total", description="Messages that went to a dead letter queue.")
        self.parked = counter("rmqstore_parked_messages_total", description="Entries that could not be read, and were put aside.")

        def gauge(
            name: str, unit: str, text: str, read: Callable[[Health | None, int | None], Iterable[tuple[int, Mapping[str, str]]]]
        ) -> None:
            def points(_: object) -> list[Point]:
                told = [(each, each.told(name)) for each in list(self.observations)]
                return [Point(number, {**each.labels, **labels}) for each, known in told for number, labels in read(*known)]

            meter.create_observable_gauge(name, [points], unit, text)

        for name, unit, text, of_store in _OF_STORES:
            gauge(name, unit, text, functools.partial(_store_points, of_store))
        for name, text, of_group in _OF_GROUPS:
            gauge(name, "", text, functools.partial(_group_points, of_group))
        ready = "1 when the store takes calls and hands over in time, else 0."
        gauge("rmqstore_ready", "", ready, lambda health, _: [(int(health is not None and health.is_ready), {})])
        gauge("rocketmq_storage_size", "bytes", "Room that the directory takes.", lambda _, size: [] if size is None else [(size, {})])


def _record(took: tuple[metrics.Histogram, float, Mapping[str, str]]) -> None:
    histogram, took_ms, labels = took
    histogram.record(took_ms, labels)


def _store_points(read: Callable[[Health], int], health: Health | None, _: int | None) -> Iterator[tuple[int, Mapping[str, str]]]:
    if health is not None:
        yield read(health), {}


def _group_points(read: Callable[[Lag], int], health: Health | None, _: int | None) -> Iterator[tuple[int, Mapping[str, str]]]:
    for each in () if health is None else health.groups:
        yield read(each.lag), {"topic": each.topic, "consumer_group": each.group}


def _by_topic(rows: MessageBatch) -> Iterable[tuple[str, int]]:
    if rows.has_columns:
        return [(each["values"], each["counts"]) for each in rows.columns.column("topic").value_counts().to_pylist()]
    return Counter(message.topic for message in rows.messages).items()


_lock = threading.Lock()
_instruments: weakref.WeakKeyDictionary[metrics.MeterProvider, _Instruments] = weakref.WeakKeyDictionary()
