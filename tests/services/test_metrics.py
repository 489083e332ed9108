"""Metrics: each moves when it should, and an observation leaves nothing behind."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, patch

import pytest

import rmqstore
from rmqstore import IllegalArgumentError, ManualClock, Message, Store, StoreFullError
from rmqstore.contract import Ticket
from rmqstore.server.serving import ServerThread
from rmqstore.services import metrics
from rmqstore.services.metrics import observe
from rmqstore.store.shared_writes import SharedWrites
from tests.server.served import Served

export = pytest.importorskip("opentelemetry.sdk.metrics.export", reason="the extra metrics is not installed")
sdk = pytest.importorskip("opentelemetry.sdk.metrics")

MINUTE = timedelta(minutes=1)


class Told:
    """What a reader collects."""

    def __init__(self) -> None:
        self._reader = export.InMemoryMetricReader()
        self.provider = sdk.MeterProvider([self._reader], shutdown_on_exit=False)

    def points(self) -> list[tuple[str, Mapping[str, Any], Any]]:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data is not None else []
        return [(metric.name, point.attributes, point) for scope in scopes for metric in scope.metrics for point in metric.data.data_points]

    def values(self, name: str, *labels: str) -> dict[Any, Any]:
        """Return the numbers of a metric by the values of some labels, of one as it is; of a histogram, how many there are."""
        return {
            (at[0] if len(at := tuple(attributes[label] for label in labels)) == 1 else at): getattr(
                point, "value", getattr(point, "count", None)
            )
            for found, attributes, point in self.points()
            if found == name
        }

    def value(self, name: str) -> Any:
        (number,) = self.values(name).values()
        return number

    def calls(self) -> dict[tuple[str, str], int]:
        return self.values("rocketmq_rpc_latency", "request_code", "response_code")


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "s", engine="memory", clock=clock, services=False) as opened:
        yield opened


def test_messages_are_counted_by_topic_and_kind(store: Store, told: Told) -> None:
    with observe(store, told.provider):
        store.send(Message("t", b"x"))
        store.send(Message("t", b"x"), delay=MINUTE, marks=[b"m"])
        store.send(Message("t", b"x"), delay=MINUTE, marks=[b"m"])
        store.send(Message("f", b"x", message_group="k"))
        store.send_batch([Message("u", b"x")] * 3 + [Message("t", b"x")])
        store.send_batch(rmqstore.MessageBatch.of([Message("v", b"x")] * 1000).columns)
        counted = told.values("rocketmq_messages_in_total", "topic", "message_type")
        assert counted == {("t", "normal"): 2, ("t", "delay"): 1, ("f", "fifo"): 1, ("u", "normal"): 3, ("v", "normal"): 1000}
        store.pop("t", "g")
        store.pop_batch("u", "g", max_messages=2)
        assert told.values("rocketmq_messages_out_total", "topic", "consumer_group") == {("t", "g"): 2, ("u", "g"): 2}


def test_timers_are_gauged_and_handed_over(store: Store, told: Told, clock: ManualClock) -> None:
    with observe(store, told.provider):
        store.send_batch([Message("t", b"x")] * 3, delay=MINUTE)
        store.schedules.put("s", MINUTE, Message("t", b"x"))
        assert told.value("rocketmq_timing_messages") == 3
        assert told.value("rocketmq_timer_dequeue_lag") == told.value("rocketmq_timer_dequeue_latency") == 0
        assert told.value("rmqstore_ready") == 1
        clock.advance(90_000)
        assert told.value("rocketmq_timer_dequeue_lag") == 3
        assert told.value("rocketmq_timer_dequeue_latency") == 30_000
        assert told.value("rmqstore_ready") == 0
        store.tick()
        assert told.value("rocketmq_timer_dequeue_total") == 3
        assert told.value("rmqstore_scheduled_messages_total") == 1
        assert told.value("rocketmq_timing_messages") == 0
        assert told.value("rmqstore_ready") == 1


def test_what_a_tick_did_before_it_failed_is_counted(store: Store, told: Told, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose schedule stands still, which each tick says."""

    def stands_still(now_ms: int) -> tuple[int, Ticket, IllegalArgumentError]:
        store._scheduler.sent = 2
        return 2, Ticket(0), IllegalArgumentError("schedule 's' stands still")

    monkeypatch.setattr(store._scheduler, "run", stands_still)
    with observe(store, told.provider):
        store.send_batch([Message("t", b"x")] * 3, delay=MINUTE)
        store.schedules.put("s", MINUTE, Message("t", b"x"))
        clock.advance(90_000)
        with pytest.raises(IllegalArgumentError, match="stands still"):
            store.tick()
        assert told.value("rocketmq_timer_dequeue_total") == 3
        assert told.value("rmqstore_scheduled_messages_total") == 2
        assert told.calls()["tick", "IllegalArgumentError"] == 1


def test_batches_before_one_that_failed_are_counted(tmp_path: Path, told: Told, clock: ManualClock) -> None:
    with (
        rmqstore.open(tmp_path / "s", engine="memory", clock=clock, services=False, hand_over_limit=100) as store,
        observe(store, told.provider),
    ):
        store.send_batch([Message("t", b"x")] * 250, delay=MINUTE)
        clock.advance(90_000)
        third_fails = chain(repeat(DEFAULT, 2), [StoreFullError("no room")])
        with patch.object(store._pops, "apply", wraps=store._pops.apply, side_effect=third_fails), pytest.raises(StoreFullError):
            store.tick()
        assert told.value("rocketmq_timer_dequeue_total") == 200
        store.tick()
        assert told.value("rocketmq_timer_dequeue_total") == 250


def test_a_path_that_is_no_unicode_is_a_label(tmp_path: Path, told: Told) -> None:
    with (
        rmqstore.open(os.fsdecode(os.fsencode(tmp_path) + b"/s\xff"), engine="memory", services=False) as store,
        observe(store, told.provider),
    ):
        store.send(Message("t", b"x"))
        assert {labels["store"] for _, labels, _ in told.points()} == {f"{tmp_path}/s\\xff"}


def test_groups_are_gauged(store: Store, told: Told, clock: ManualClock) -> None:
    store.groups.set("g", max_retries=1)
    with observe(store, told.provider):
        store.send_batch([Message("t", b"x")] * 10)
        first, second, third, _, gone = store.pop("t", "g", max_messages=5)
        store.ack(gone)
        store.retry_later(first, delay=timedelta(hours=1))
        store.reject(second)
        store.reject([second])

        def gauges(*names: str) -> list[int]:
            found = [told.values(name, "topic", "consumer_group") for name in names]
            assert all(set(each) == {("t", "g")} for each in found)
            return [each["t", "g"] for each in found]

        states = [
            "rocketmq_consumer_ready_messages",
            "rocketmq_consumer_inflight_messages",
            "rmqstore_consumer_backing_off_messages",
            "rmqstore_consumer_retry_messages",
            "rmqstore_consumer_dead_messages",
            "rocketmq_consumer_lag_messages",
        ]
        assert gauges(*states) == [5, 2, 1, 0, 1, 8]
        assert told.value("rocketmq_send_to_dlq_messages_total") == 1
        clock.advance(120_000)
        store.tick()
        assert gauges(*states) == [5, 0, 1, 2, 1, 8]
        assert told.value("rocketmq_pop_revive_retry_messages_total") == 2
        assert third.message_id in {each.message_id for each in store.pop("t", "g", max_messages=32)}
        clock.advance(120_000)
        store.tick()
        assert told.value("rocketmq_send_to_dlq_messages_total") == 3


def test_calls_are_counted_once_with_their_outcome(store: Store, told: Told) -> None:
    with observe(store, told.provider):
        store.send(Message("t", b"x"), delay=MINUTE)
        store.cancel_key("t", "none")  # which calls cancel_keys
        store.pop("t", "g")
        store.tick()
        with pytest.raises(IllegalArgumentError):
            store.pop("t", "g", max_messages=0)
        with patch.object(store._timers, "put", side_effect=StoreFullError("no room")), pytest.raises(StoreFullError):
            store.send(Message("t", b"x"), delay=MINUTE)
        assert told.calls() == {
            ("send", "success"): 1,
            ("cancel_key", "success"): 1,
            ("pop", "success"): 1,
            ("tick", "success"): 1,
            ("pop", "IllegalArgumentError"): 1,
            ("send", "StoreFullError"): 1,
        }


def test_syncs_and_bytes(tmp_path: Path, told: Told) -> None:
    pytest.importorskip("rmqstore_rocksdb")
    with rmqstore.open(tmp_path / "store", engine="rocksdb", services=False) as store, observe(store, told.provider):
        store.send(Message("t", b"x"))
        assert told.values("rmqstore_sync_latency", "response_code") == {"success": 1}
        assert told.value("rocketmq_storage_size") > 0


@pytest.mark.parametrize("histogram", ["sync", "latency"])
def test_nobody_waits_for_a_thread_in_a_meter(store: Store, told: Told, monkeypatch: pytest.MonkeyPatch, histogram: str) -> None:
    """A meter takes locks of its own, which a thread that waits for the same disk sync may hold; and a finalizer in it may send."""
    stacks: list[list[Any]] = []
    shared = store._placing._later

    class Meter:
        def record(self, *_: object) -> None:
            stacks.append([frame.f_code for frame, _ in traceback.walk_stack(None)])
            if len(stacks) == 1:
                shared._last = shared._one_before = under_way = threading.Lock()
                with under_way:
                    store.send(Message("t", b"x"), delay=MINUTE)

    with observe(store, told.provider) as seen, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(seen._instruments, histogram, Meter())
        pool.submit(store.send, Message("t", b"x"), delay=MINUTE).result(20)
    assert len(stacks) == 2
    assert not any(SharedWrites.put.__code__ in stack for stack in stacks)


def test_calls_of_clients_are_counted(store: Store, told: Told, tmp_path: Path) -> None:
    with observe(store, told.provider):
        server = ServerThread(store, lambda entrance: entrance.listen_unix(tmp_path / "sock"))
        try:
            with rmqstore.connect(f"unix:{tmp_path / 'sock'}") as client:
                client.send(Message("t", b"x"))
                client.send_batch([Message("t", b"x")] * 2)
                client.ack(client.pop("t", "g", wait=MINUTE))
                client.pop_batch("t", "g")
                client.cancel_key("t", "none")
        finally:
            server.stop()
        assert told.values("rocketmq_messages_in_total", "topic") == {"t": 3}
        assert told.values("rocketmq_messages_out_total", "topic", "consumer_group") == {("t", "g"): 3}
        calls = told.calls()
        assert calls.pop(("pop", "success")) >= 2
        assert calls == {(name, "success"): 1 for name in ("send", "send_batch", "ack", "cancel_key")}


def test_a_store_of_another_process_is_observed_by_its_calls(served: Served, told: Told) -> None:
    client = served.connect()
    with observe(client, told.provider):
        client.send(Message("t", b"x"), delay=MINUTE)
        client.pop("t", "g")
        assert told.calls() == {("send", "success"): 1, ("pop", "success"): 1}
        assert told.value("rocketmq_timing_messages") == 1
        assert told.values("rocketmq_storage_size") == {}


def test_an_observation_ends(store: Store, told: Told) -> None:
    before = dict(vars(store))
    with observe(store, told.provider), observe(store, Told().provider):
        store.send(Message("t", b"x"))
    assert vars(store) == before
    store.send(Message("t", b"x"))
    assert told.values("rocketmq_messages_in_total", "topic") == {"t": 1}
    assert told.values("rocketmq_timing_messages") == {}
    with observe(store, told.provider):
        assert told.value("rocketmq_timing_messages") == 0
        store.send(Message("t", b"x"))
        assert told.values("rocketmq_messages_in_total", "topic") == {"t": 2}


def test_an_observation_may_end_before_a_later_one(store: Store, told: Told) -> None:
    first, second = observe(store, Told().provider), observe(store, told.provider)
    first.stop()
    store.send(Message("t", b"x"))
    second.stop()
    second.stop()
    store.send(Message("t", b"x"))
    assert told.values("rocketmq_messages_in_total", "topic") == {"t": 1}


def test_stores_that_share_a_provider_are_told_apart(store: Store, told: Told, tmp_path: Path) -> None:
    with (
        rmqstore.open(tmp_path / "second", engine="memory", services=False) as second,
        observe(store, told.provider),
        observe(second, told.provider),
    ):
        second.send(Message("t", b"x"), delay=MINUTE)
        assert told.values("rocketmq_timing_messages", "store") == {str(store.path): 0, str(second.path): 1}


def test_a_closed_store_does_no_harm(tmp_path: Path, told: Told, caplog: pytest.LogCaptureFixture) -> None:
    store = rmqstore.open(tmp_path / "store", engine="memory", services=False)
    seen = observe(store, told.provider)
    store.send(Message("t", b"x"))
    store.close()
    assert told.values("rocketmq_messages_in_total", "topic") == {"t": 1}
    assert told.values("rocketmq_timing_messages") == {}
    assert told.values("rmqstore_ready") == {}
    assert caplog.messages == []
    seen.stop()


def test_without_opentelemetry_it_says_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(IllegalArgumentError, match=r"pip install 'rmqstore\[metrics\]'"):
        metrics.observe(store)
