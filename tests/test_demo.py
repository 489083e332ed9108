"""The demo at a small size: what it prints, how it fails, and that its checks see what is wrong."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import typer

import rmqstore
from rmqstore.cli import demo as command
from rmqstore.cli.demo import CLOSE_AFTER_MS, DAY_MS, GROUP, START_MS, TOPIC, OrderDay, make_orders
from rmqstore.plugins import BrokenPluginWarning, EngineState, Plugins

with warnings.catch_warnings():
    warnings.simplefilter("ignore", BrokenPluginWarning)
    ENGINES = [entry.name for entry in Plugins().engines() if entry.state is EngineState.OK]

ORDERS = 1000


def test_all_engines_keep_every_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "deep" / "kept"
    command.demo(engine=None, orders=ORDERS, live=0, keep=kept)
    shown = capsys.readouterr().out
    assert "acked exactly once" in shown
    assert str(kept) in shown
    for name in ENGINES:
        assert f"\n{name} " in shown
    assert sorted(path.name for path in kept.iterdir()) == sorted(ENGINES)
    durable = [name for name in ENGINES if name != "memory"]
    for name in durable:
        with rmqstore.open(kept / name, engine=name, clock=rmqstore.ManualClock(START_MS + 2 * DAY_MS), services=False) as store:
            assert store.verify() == []
            assert store.pending().total == 0
            assert store.lag(TOPIC, GROUP) == rmqstore.Lag(0, 0, 0, 0)
            assert store.topics.list()[0].max_offsets == (sum(order.paid_ms is None for order in make_orders(ORDERS, 7)),)


def test_the_real_clock_part_shows_lateness(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LIVE_SPREAD_MS", 600)
    command.demo(engine=[ENGINES[0]], orders=50, live=100, keep=None)
    shown = capsys.readouterr().out
    assert "p99" in shown
    assert "early" in shown


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ENGINES[0]).mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        command.demo(engine=[ENGINES[0]], orders=50, live=0, keep=tmp_path)


def test_an_engine_that_nobody_offers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rmqstore.UnknownEngineError):
        command.demo(engine=["no-such"], orders=50, live=0, keep=tmp_path)


def test_a_broken_promise_ends_with_1_and_says_which(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderDay, "_cancel_paid", lambda self, now_ms: None)
    with pytest.raises(typer.Exit) as stopped:
        command.demo(engine=[ENGINES[0]], orders=200, live=0, keep=None)
    assert stopped.value.exit_code == 1
    captured = capsys.readouterr()
    assert "a promise was broken" in captured.err
    assert "orders were paid but not cancelled" in captured.err
    assert "paid orders were delivered" in captured.err
    assert "exactly once" not in captured.out


def test_the_checks_see_lost_doubled_and_early_messages(tmp_path: Path) -> None:
    orders = make_orders(300, 1)
    clock = rmqstore.ManualClock(START_MS)
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock, services=False, reclaim="age") as store:
        day = OrderDay(store, clock, orders)
        day.play(lambda done: None)
        assert day.problems() == []
        closed = next(order for order in orders if order.paid_ms is None)
        message = next(each for each in store.read(TOPIC, limit=1000).messages if each.keys == (closed.number,))
        assert isinstance(message, rmqstore.PoppedMessage)

        early = rmqstore.PoppedMessage(
            **{name: getattr(message, name) for name in message.__struct_fields__} | {"store_ms": START_MS, "attempt": 1}
        )
        day._note_deliveries([early])
        assert "early" in day._problems.pop()
        assert any("came again" in problem for problem in day.problems())
        day._problems.clear()

        day._acks[closed.number] += 1
        assert any("more than once" in problem for problem in day.problems())
        day._problems.clear()

        del day._deliveries[closed.number]
        assert any("never delivered" in problem for problem in day.problems())
        day._problems.clear()

        store.send(rmqstore.Message(TOPIC, b"{}", keys=("extra",)))
        assert any("not done" in problem for problem in day.problems())
        assert store.lag(TOPIC, GROUP).ready == 1


def test_the_day_has_the_shape_of_a_day() -> None:
    orders = make_orders(20_000, 5)
    assert orders == make_orders(20_000, 5)
    assert [order.created_ms for order in orders] == sorted(order.created_ms for order in orders)
    assert len({order.number for order in orders}) == len(orders)
    assert all(START_MS <= order.created_ms < START_MS + DAY_MS for order in orders)
    paid = [order for order in orders if order.paid_ms is not None]
    assert 0.83 < len(paid) / len(orders) < 0.87
    assert all(order.created_ms <= (order.paid_ms or 0) < order.created_ms + CLOSE_AFTER_MS for order in paid)
    by_hour = [sum((order.created_ms - START_MS) // 3_600_000 == hour for order in orders) for hour in range(24)]
    assert by_hour[20] > by_hour[16] > by_hour[3]
