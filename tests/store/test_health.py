"""``store.health()``: what is overdue, who is behind, and why ticks fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import ManualClock, Message, Store, StoreClosedError, StoreFullError
from tests.pairs import ENGINES
from tests.server.served import soon


@pytest.fixture
def store(engine: str, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "s", engine=engine, clock=clock, services=False) as opened:
        yield opened


def test_nothing_is_wrong_with_an_empty_store(store: Store) -> None:
    health = store.health()
    assert (health.is_ready, health.problems, health.pending, health.overdue, health.lateness_ms) == (True, (), 0, 0, 0)
    assert health.groups == ()


def test_what_is_overdue_is_counted_and_becomes_a_problem(store: Store, clock: ManualClock) -> None:
    store.send_batch([Message("t", b"x")] * 3, delay_ms=1000)
    store.send(Message("t", b"x"), delay_ms=100_000)
    assert (store.health().pending, store.health().overdue) == (4, 0)
    clock.advance(1000)
    assert store.health().overdue == 0, "its tick may be up to one precision behind its time"
    clock.advance(4000)
    health = store.health()
    assert (health.is_ready, health.overdue, health.lateness_ms) == (True, 3, 4000)
    clock.advance(10_000)
    health = store.health()
    assert (health.is_ready, health.problems) == (False, ("3 timers are overdue, the first one by 14 s",))
    store.tick()
    assert store.health().is_ready


def test_groups_are_told_by_topic(store: Store) -> None:
    store.send_batch([Message("t", b"x")] * 3)
    store.pop("t", "g", max_messages=1)
    (group,) = store.health().groups
    assert (group.group, group.topic, group.lag) == ("g", "t", store.lag("t", "g"))


def test_a_tick_that_fails_is_told_until_one_goes_well(tmp_path: Path, clock: ManualClock) -> None:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock) as store:
        with patch.object(store._ticking, "run", side_effect=StoreFullError("no room")):
            soon(lambda: not store.health().is_ready)
            assert store.health().problems == ("the last tick failed, and is tried again: no room",)
        soon(lambda: store.health().is_ready)
    with pytest.raises(StoreClosedError):
        store.health()
