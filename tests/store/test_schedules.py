"""``store.schedules``: when messages come, what is refused, and that other ways into a store have them too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest

import rmqstore
from rmqstore import (
    Flow,
    IllegalArgumentError,
    IllegalArgumentTypeError,
    IllegalMessageError,
    IllegalNameError,
    ManualClock,
    Message,
    Schedule,
    Store,
    StoreFullError,
    UnsupportedOperationError,
    aio,
)
from rmqstore.store import schedules
from rmqstore.transfer import dump, load_into
from rmqstore_conformance.stores import Pair
from tests.pairs import DURABLE_PAIRS, ENGINES
from tests.server.served import soon

BEGIN = datetime(2026, 3, 27, 12, 0, 0, 500_000, UTC)
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(BEGIN)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock, services=False) as opened:
        yield opened


def sent(store: Store) -> list[tuple[str, datetime]]:
    """Return of which schedule and of which time the messages are, in the order in which they came."""
    found = [each.properties for each in store.pop("t", "g", max_messages=1024)]
    return [(each["SCHEDULE"], datetime.fromtimestamp(int(each["SCHEDULED_MS"]) / 1000, UTC)) for each in found]


def taken(store: Store) -> list[str]:
    """Take what was sent; returns of which schedule it is."""
    popped = store.pop("t", "g", max_messages=1024)
    store.ack(popped)
    return [each.properties["SCHEDULE"] for each in popped]


def test_cron_times_are_those_of_their_zone(store: Store, clock: ManualClock) -> None:
    made = store.schedules.put("nightly", "30 2 * * *", Message("t", b"x"), zone="Europe/Berlin")
    assert datetime.fromtimestamp(made.next_ms / 1000, UTC) == datetime(2026, 3, 28, 1, 30, tzinfo=UTC)
    clock.advance(timedelta(days=4))
    assert store.tick().scheduled == 4
    berlin = [at.astimezone(ZoneInfo("Europe/Berlin")).strftime("%d %H:%M") for _, at in sent(store)]
    assert berlin == ["28 02:30", "29 03:00", "30 02:30", "31 02:30"], "in the night in which there is no half past two"


def test_a_copy_has_all_of_the_message_and_an_id_of_its_own(store: Store, clock: ManualClock) -> None:
    properties = MappingProxyType({"p": "1"})
    store.schedules.put("s", timedelta(minutes=1), Message("t", b"x", tag="a", keys=("k",), properties=properties))
    clock.advance(timedelta(minutes=2))
    store.tick()
    messages = store.pop("t", "g")
    assert [(each.body, each.tag, each.keys, each.properties["p"]) for each in messages] == [(b"x", "a", ("k",), "1")] * 2
    assert len({each.message_id for each in messages}) == 2
    assert [int(each.properties["SCHEDULED_MS"]) for each in messages] == [clock.now_ms() - 60_000, clock.now_ms()]


def test_put_again_goes_on_and_with_other_times_begins_anew(store: Store, clock: ManualClock) -> None:
    store.schedules.put("s", timedelta(hours=1), Message("t", b"1"))
    clock.advance(timedelta(minutes=50))
    store.schedules.put("s", timedelta(hours=1), Message("t", b"2"))
    clock.advance(timedelta(minutes=10))
    store.tick()
    assert [each.body for each in store.pop("t", "g")] == [b"2"]
    made = store.schedules.put("s", timedelta(hours=2), Message("t", b"3"))
    assert made.next_ms == clock.now_ms() + 7_200_000
    assert store.schedules.list() == [made]


def test_schedules_take_turns_by_time_whatever_a_step_holds(tmp_path: Path, clock: ManualClock) -> None:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock, services=False, hand_over_limit=3) as store:
        store.schedules.put("a", timedelta(seconds=1), Message("t", b"x", message_group="g"))
        store.schedules.put("b", timedelta(seconds=5), Message("t", b"x", message_group="g"))
        clock.advance(timedelta(seconds=20))
        assert store.tick().scheduled == 24
        assert len(set(found := sent(store))) == len(found) == 24


def test_a_pop_that_waits_gets_it(tmp_path: Path, clock: ManualClock) -> None:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock) as store:
        store.schedules.put("s", timedelta(hours=1), Message("t", b"x"))
        clock.advance(timedelta(hours=1))
        assert len(store.pop("t", "g", wait=timedelta(seconds=60))) == 1


def test_a_schedule_whose_times_cannot_be_told_here_stands_still_alone_and_can_be_replaced(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a take-over by a machine without time zones."""
    store.schedules.put("hourly", timedelta(hours=1), Message("t", b"x"))
    store.schedules.put("nightly", "30 2 * * *", Message("t", b"x"), zone="Europe/Berlin")
    clock.advance(timedelta(days=2))
    with monkeypatch.context() as patch:
        patch.setattr(schedules, "ZoneInfo", lambda name: {}[name])
        for times in (48, 1):
            with pytest.raises(IllegalArgumentError, match="schedule 'nightly' stands still: zone 'Europe/Berlin'"):
                store.tick()
            assert taken(store) == ["hourly"] * times
            clock.advance(timedelta(hours=1))
        store.schedules.put("nightly", "30 1 * * *", Message("t", b"x"))
    assert taken(store) == ["nightly"], "of the times that it had, the one that was known"
    clock.advance(DAY)
    assert store.tick().scheduled == 26
    assert taken(store).count("nightly") == 1


@pytest.mark.parametrize(
    ("when", "message", "named", "error", "match"),
    [
        ("0 3 * *", Message("t", b"x"), {}, IllegalArgumentError, "five fields"),
        ("0 25 * * *", Message("t", b"x"), {}, IllegalArgumentError, "five fields"),
        ("0 0 31 2 *", Message("t", b"x"), {}, IllegalArgumentError, "31 2"),
        ("0 3 * * *", Message("t", b"x"), {"zone": "Europe/Atlantis"}, IllegalArgumentError, "tzdata"),
        (60, Message("t", b"x"), {}, IllegalArgumentTypeError, "a timedelta, not 60"),
        (timedelta(milliseconds=999), Message("t", b"x"), {}, IllegalArgumentError, "when"),
        (DAY, "x", {}, IllegalMessageError, "sends a Message, not str"),
        (DAY, Message("t", b""), {}, IllegalMessageError, "body"),
        (DAY, Message("t", b"x", message_id="i"), {}, IllegalMessageError, "nor an id"),
        (DAY, Message("t", b"x", deliver_at_ms=1), {}, IllegalMessageError, "deliver time"),
        (DAY, Message("t", b"x", properties={"DELAY": "3"}), {}, IllegalMessageError, "deliver time"),
        (DAY, Message("t", b"x", properties=None), {}, IllegalMessageError, "properties must be a mapping"),  # type: ignore[arg-type]
        (DAY, Message("t", bytes(64 * 1024)), {}, IllegalMessageError, "65"),
        (DAY, Message("t", b"x"), {"catch_up": 1}, IllegalArgumentTypeError, "catch_up"),
        (DAY, Message("%DLQ%g", b"x"), {}, IllegalNameError, "topic"),
    ],
)
def test_what_is_refused(store: Store, when: object, message: object, named: dict[str, object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        store.schedules.put("s", when, message, **named)  # type: ignore[arg-type]
    assert store.schedules.list() == []


def test_names_are_checked(store: Store) -> None:
    with pytest.raises(IllegalNameError, match="schedule name"):
        store.schedules.put("a b", DAY, Message("t", b"x"))
    assert store.schedules.delete("a-b") is False


def test_other_ways_into_a_store_have_them(tmp_path: Path, clock: ManualClock) -> None:
    async def work() -> list[Schedule]:
        async with aio.connect(tmp_path / "s") as store:
            await store.schedules.put("b", DAY, Message("t", b"x"))
            found: list[Schedule] = await store.schedules.list()
            return found

    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock, share=True) as store:
        with rmqstore.connect(tmp_path / "s") as client:
            made = client.schedules.put("a", "0 3 * * *", Message("t", b"x", tag="a"), zone="UTC")
            assert client.schedules.list() == [made] == store.schedules.list()
        assert [each.name for each in asyncio.run(work())] == ["a", "b"]
        clock.advance(DAY)
        assert len(store.pop("t", "g", wait=timedelta(seconds=60))) > 0


@pytest.mark.parametrize("pair", DURABLE_PAIRS, ids=str)
def test_a_dump_and_a_reader_have_them(tmp_path: Path, clock: ManualClock, pair: Pair) -> None:
    engines = {"timer_engine": pair.timers, "pop_engine": pair.pops}
    with rmqstore.open(tmp_path / "s", clock=clock, services=False, **engines) as store:
        made = store.schedules.put("s", DAY, Message("t", b"x"))
        dump(store, tmp_path / "d")
    with rmqstore.open(tmp_path / "s", read_only=True) as reader:
        assert reader.schedules.list() == [made]
        with pytest.raises(UnsupportedOperationError, match="owner"):
            reader.schedules.delete("s")
    with rmqstore.open(tmp_path / "copy", engine=ENGINES[0], clock=clock, services=False) as copy:
        load_into(tmp_path / "d", copy)
        clock.advance(DAY)
        assert copy.tick().scheduled == 1


@pytest.mark.parametrize("catch_up", [True, False])
def test_an_hour_that_comes_twice_sends_once(store: Store, clock: ManualClock, catch_up: bool) -> None:
    """Late, in the second pass of the hour, the time of the first pass is not the next one again."""
    clock.set(datetime(2026, 10, 24, 12, tzinfo=UTC))
    store.schedules.put("s", "30 2 * * *", Message("t", b"x"), zone="Europe/Berlin", catch_up=catch_up)
    clock.set(datetime(2026, 10, 25, 1, 5, tzinfo=UTC))
    assert store.tick().scheduled == 1
    made = store.schedules.put("other", "30 2 * * *", Message("t", b"x"), zone="Europe/Berlin")
    assert [each.next_ms for each in store.schedules.list()] == [made.next_ms] * 2
    assert made.next_ms == int(datetime(2026, 10, 26, 1, 30, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreFullError])
def test_a_step_that_is_interrupted_was_done_or_was_not(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, engine: str, error: type[BaseException], is_done: bool
) -> None:
    """What is in memory follows what is stored, also behind a step that told nobody how it ended."""
    with rmqstore.open(tmp_path / "s", engine=engine, clock=clock, services=False) as store:
        store.schedules.put("s", timedelta(seconds=10), Message("t", b"x"))
        apply = store.engine.pops.apply

        def interrupted(*arguments: Any) -> Any:
            if is_done:
                apply(*arguments)
            raise error("no room")

        clock.advance(timedelta(seconds=10))
        with monkeypatch.context() as patch:
            patch.setattr(store.engine.pops, "apply", interrupted)
            with pytest.raises(error):
                store.tick()
        assert is_done or store.next_wake_ms() == 0
        assert store.tick().scheduled == (0 if is_done else 1)
        clock.advance(timedelta(seconds=10))
        store.tick()
        assert [at for _, at in sent(store)] == [BEGIN + timedelta(seconds=10), BEGIN + timedelta(seconds=20)]


def test_what_was_refused_is_not_known(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """A disk that is full when a call is made durable may take back what the call had written."""
    with rmqstore.open(tmp_path / "s", engine=engine, clock=clock, services=False) as store:
        store.schedules.put("s", timedelta(hours=1), Message("t", b"x"))
        state, notes = store.engine.pops._state, store.engine.pops.notes()  # type: ignore[attr-defined]

        def taken_back(*arguments: Any) -> None:
            monkeypatch.undo()
            state.notes = notes
            raise StoreFullError("no room")

        for call in (
            lambda: store.schedules.put("other", timedelta(hours=1), Message("t", b"x")),
            lambda: store.schedules.delete("s"),
            lambda: store.pauses.begin(Flow.HAND_OVER),
        ):
            monkeypatch.setattr(store, "_settle", taken_back)
            with pytest.raises(StoreFullError):
                call()
        clock.advance(timedelta(hours=1))
        assert store.tick().scheduled == 1


def test_other_times_begin_behind_what_is_due(store: Store, clock: ManualClock) -> None:
    store.schedules.put("s", timedelta(seconds=10), Message("t", b"x"))
    clock.advance(timedelta(seconds=25))
    store.schedules.put("s", timedelta(seconds=20), Message("t", b"x"))
    clock.advance(timedelta(seconds=20))
    store.tick()
    assert [(at - BEGIN).seconds for _, at in sent(store)] == [10, 20, 45]


def test_a_step_is_bounded_by_its_bytes(store: Store, clock: ManualClock) -> None:
    store.schedules.put("s", timedelta(seconds=1), Message("t", bytes(60_000)))
    clock.advance(timedelta(seconds=300))
    with patch.object(store.engine.pops, "apply", wraps=store.engine.pops.apply) as apply:
        assert store.tick().scheduled == 300
    assert max(len(call.args[0].appends) for call in apply.call_args_list) == 8 * 1024 * 1024 // 60_000


def test_a_schedule_that_fails_keeps_no_pop_waiting_for_what_was_handed_over(tmp_path: Path, clock: ManualClock) -> None:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock, services=False) as store, ThreadPoolExecutor(1) as threads:
        store.send(Message("t", b"handed over"), delay_ms=1000)
        store.schedules.put("s", timedelta(seconds=1), Message("other", b"x"))
        popped = threads.submit(store.pop, "t", "g", wait=timedelta(seconds=100))
        soon(lambda: bool(store._waits._waits))
        clock._now_ms += 2000  # without telling those who wait that it moved
        with patch.object(store._scheduler, "run", side_effect=StoreFullError("no room")), pytest.raises(StoreFullError):
            store.tick()
        assert [each.body for each in popped.result(10)] == [b"handed over"]


def test_a_tick_that_looks_while_a_schedule_is_deleted_does_not_bring_it_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delete looks behind the tick, or before it, but not between what the tick has read and what it then knows."""
    store.schedules.put("s", DAY, Message("t", b"x"))
    store.pauses.begin(Flow.SENDS)  # another note, for which the tick looks
    main, found = threading.current_thread(), schedules._schedules_in
    has_read, is_deleted, has_looked = (threading.Event() for _ in range(3))

    def read(notes: Mapping[str, bytes]) -> list[Schedule]:
        known = found(notes)
        if threading.current_thread() is not main:
            has_read.set()
            is_deleted.wait(0.5)
        return known

    def first(times: Iterable[int], default: int | None) -> int | None:
        known = list(times)
        if threading.current_thread() is main and not known:
            is_deleted.set()
            has_looked.wait(5)
        return min(known, default=default)

    def tick() -> None:
        store.tick()
        has_looked.set()

    monkeypatch.setattr(schedules, "_schedules_in", read)
    monkeypatch.setattr(schedules, "min", first, raising=False)
    with ThreadPoolExecutor(1) as threads:
        ticking = threads.submit(tick)
        assert has_read.wait(10)
        assert store.schedules.delete("s") is True
        ticking.result(10)
    monkeypatch.undo()
    assert store.schedules.list() == []
    assert store.schedules.delete("s") is False
