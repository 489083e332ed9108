"""``store.pauses``: what is held up, until when, and what is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import Flow, FlowControlError, IllegalArgumentTypeError, ManualClock, Message, Pause, Store
from rmqstore.transfer import dump, load_into
from rmqstore_conformance.stores import Pair
from tests.pairs import DURABLE_PAIRS, ENGINES
from tests.server.served import soon

START_MS = 1_800_000_000_000


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock, services=False) as opened:
        yield opened


def test_what_waits_for_the_end_of_a_pause_wakes_nobody_and_is_told(store: Store, clock: ManualClock) -> None:
    store.send(Message("t", b"x"), delay_ms=1000)
    store.schedules.put("s", timedelta(seconds=1), Message("t", b"again"))
    store.pauses.begin(Flow.HAND_OVER, reason="the bank is down")
    clock.advance(15_000)
    assert store.next_wake_ms() is None
    health = store.health()
    assert not health.is_ready
    assert "the hand-over is paused since 2027-01-15T08:00:00.000+00:00, the bank is down" in health.problems
    store.pauses.end(Flow.HAND_OVER)
    assert store.next_wake_ms() is not None


@pytest.mark.parametrize("pair", DURABLE_PAIRS, ids=str)
def test_it_holds_for_later_owners_and_in_a_copy(tmp_path: Path, clock: ManualClock, pair: Pair) -> None:
    engines = {"timer_engine": pair.timers, "pop_engine": pair.pops}
    with rmqstore.open(tmp_path / "s", clock=clock, services=False, **engines) as store:
        store.send(Message("t", b"x"), delay_ms=1000)
        store.pauses.begin(Flow.HAND_OVER)
    clock.advance(1000)
    with rmqstore.open(tmp_path / "s", clock=clock, services=False) as store:
        assert store.tick().handed_over == 0
        dump(store, tmp_path / "d")
        with rmqstore.open(tmp_path / "copy", engine=ENGINES[0], clock=clock, services=False) as copy:
            load_into(tmp_path / "d", copy)
            assert copy.tick().handed_over == 0
            copy.pauses.end(Flow.HAND_OVER)
            assert copy.tick().handed_over == 1
    with rmqstore.open(tmp_path / "s", read_only=True) as reader:
        assert reader.pauses.list() == [Pause(Flow.HAND_OVER, START_MS)]


def test_the_owner_of_a_connection_is_paused(tmp_path: Path, clock: ManualClock) -> None:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock, share=True) as store, rmqstore.connect(tmp_path / "s") as client:
        client.pauses.begin(Flow.SENDS, reason="r")
        assert client.pauses.list() == [Pause(Flow.SENDS, START_MS, "r")] == store.pauses.list()
        with pytest.raises(FlowControlError, match="paused"):
            client.send(Message("t", b"x"))
        client.pauses.end(Flow.SENDS)
        client.send(Message("t", b"x"))


def test_what_is_no_flow_is_refused(store: Store) -> None:
    with pytest.raises(IllegalArgumentTypeError, match=r"Flow\.HAND_OVER"):
        store.pauses.begin("sends")  # type: ignore[arg-type]
    store.pauses.end(Flow.SENDS)
    assert store.pauses.list() == []


def test_a_pause_stops_a_hand_over_between_two_steps(
    tmp_path: Path, clock: ManualClock, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rmqstore.open(tmp_path / "s", engine=engine, clock=clock, services=False, hand_over_limit=10) as store:
        store.send_batch([Message("t", b"x")] * 30, delay_ms=1000)
        store.schedules.put("s", timedelta(seconds=1), Message("t", b"x"))
        clock.advance(1000)
        forget = store.engine.timers.forget

        def paused(*arguments: Any) -> None:
            monkeypatch.undo()
            forget(*arguments)
            operator.start()
            soon(lambda: not store._held.is_moving)

        operator = threading.Thread(target=store.pauses.begin, args=(Flow.HAND_OVER,))
        monkeypatch.setattr(store.engine.timers, "forget", paused)
        assert store.tick().moved == 10
        operator.join(60)
        assert store.pending().total == 20
        store.pauses.end(Flow.HAND_OVER)
        assert store.tick().moved == 21
