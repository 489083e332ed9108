"""Who waits for messages, or for room to send, is woken by whatever may end the wait, and by nothing that concerns another topic."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import structs

import rmqstore
from rmqstore import (
    AckOutcome,
    Flow,
    FlowControlError,
    IllegalArgumentError,
    IllegalArgumentTypeError,
    ManualClock,
    Message,
    MessageBatch,
    RmqstoreError,
    Store,
    StoreClosedError,
    StoreFullError,
)
from rmqstore.contract import PopRequest, PopResult
from rmqstore.store.opening import OwnedEngines
from rmqstore.store.popping import Popping
from rmqstore.store.receipts import PoppedMessages
from rmqstore.store.waits import ROOM, Signal, TopicWait, Waits
from rmqstore_conformance.faults.interrupting import Interrupted, interrupted

pytestmark = pytest.mark.timeout(90)
LONG = timedelta(minutes=10)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Store:
    return rmqstore.open(tmp_path / "store", engine="memory", clock=clock, services=False, default_queues=1, max_in_flight=2)


class Waiting:
    """A thread in a pop that found nothing, at rest when the constructor returns."""

    def __init__(self, pop: Callable[[], Any]) -> None:
        self.got: list[str] = []
        self.popped = PoppedMessages()
        self._thread = threading.Thread(target=self._run, args=(pop,), daemon=True)
        self._thread.start()
        until_s = time.monotonic() + 30
        while not self._is_at_rest():
            assert time.monotonic() < until_s, "the pop never came to wait"
            time.sleep(0.001)

    def _run(self, pop: Callable[[], Any]) -> None:
        try:
            self.popped = pop()
            self.got = [message.body.decode() for message in self.popped]
        except StoreClosedError:
            self.got = ["closed"]

    def _is_at_rest(self) -> bool:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return frame is not None and frame.f_code is threading.Condition.wait.__code__

    def result(self) -> list[str]:
        """Return what the pop gave; it must have been woken."""
        self._thread.join(30)
        assert not self._thread.is_alive(), "nothing woke the pop"
        return self.got


def test_what_a_pop_acks_frees_the_queue_for_itself_and_for_who_waits(store: Store) -> None:
    store.send_batch([Message("t", b"%d" % number) for number in range(3)])
    (held,) = store.pop("t", "g", order=True, max_messages=1)
    waiting = Waiting(lambda: store.pop("t", "g", order=True, wait=LONG))
    assert store.pop("u", "g", acks=held).acks == [AckOutcome.ACKED]
    assert waiting.result() == ["1", "2"]
    held, other = store.pop("t", "h", order=True, max_messages=2)
    assert [each.body for each in store.pop("t", "h", order=True, acks=[held, other], wait=LONG)] == [b"2"]


def test_what_a_pop_acks_is_acked_before_it_waits(store: Store) -> None:
    store.send(Message("t", b"first"))
    (held,) = store.pop("t", "g")
    waiting = Waiting(lambda: store.pop("t", "g", acks=held, wait=LONG))
    assert store.lag("t", "g").in_flight == 0
    assert store.ack(held) is AckOutcome.ALREADY_ACKED
    store.send(Message("t", b"second"))
    assert waiting.result() == ["second"]


def test_the_outcomes_of_a_pop_that_waited_are_those_of_its_first_look(store: Store, clock: ManualClock) -> None:
    store.send(Message("t", b"first"))
    held = store.pop("t", "g")
    assert held.acks == ()
    waiting = Waiting(lambda: store.pop("t", "g", acks=[*held, "no receipt"], wait=LONG))
    store.send(Message("t", b"second"))
    assert waiting.result() == ["second"]
    assert waiting.popped.acks == [AckOutcome.ACKED, AckOutcome.UNKNOWN]


@pytest.mark.parametrize("end", [lambda store: store.topics.delete("t"), Store.close], ids=["topic", "store"])
def test_the_outcomes_are_told_though_a_later_look_is_refused(store: Store, end: Callable[[Store], None]) -> None:
    store.send(Message("u", b"first"))
    held = store.pop("u", "g")
    store.topics.create("t", 4)
    waiting = Waiting(lambda: store.pop("t", "g", queue=3, acks=held, wait=LONG))
    end(store)
    assert waiting.result() == []
    assert waiting.popped.acks == [AckOutcome.ACKED]


@pytest.mark.parametrize("error", [IllegalArgumentError("the topic has one queue"), StoreFullError("no room")], ids=["argument", "full"])
def test_the_outcomes_are_told_though_a_later_step_of_a_look_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: RmqstoreError
) -> None:  # fmt: skip
    store.send(Message("u", b"first"))
    held = store.pop("u", "g")
    step = Popping.step

    def stepped(popping: Popping, request: PopRequest) -> PopResult:
        if not request.acks:
            raise error
        return structs.replace(step(popping, request), more=True)

    monkeypatch.setattr(Popping, "step", stepped)
    assert store.pop("t", "g", acks=held).acks == [AckOutcome.ACKED]
    with pytest.raises(type(error)):
        store.pop("t", "g")


def test_a_group_that_is_deleted_wakes_who_waits_under_its_limit(store: Store) -> None:
    store.send_batch([Message("t", b"%d" % number) for number in range(2)])
    store.pop("t", "g", max_messages=2)
    waiting = Waiting(lambda: store.pop("t", "g", wait=LONG))
    store.groups.delete("g")
    assert sorted(waiting.result()) == ["0", "1"]


def test_what_is_loaded_wakes_who_waits(store: Store, clock: ManualClock) -> None:
    waiting = Waiting(lambda: store.pop("t", "g", wait=LONG))
    store.engine.pops.append(MessageBatch.of([Message("t", b"loaded", message_id="m", born_ms=1)]), clock.now_ms())
    store.transfer.wake()
    assert waiting.result() == ["loaded"]


def test_who_waits_gets_the_first_of_a_large_hand_over_before_the_last_is_moved(tmp_path: Path, clock: ManualClock) -> None:
    with rmqstore.open(tmp_path / "limited", engine="memory", clock=clock, services=False, hand_over_limit=1) as store:
        store.send_batch([Message("t", b"%d" % number) for number in range(3)], delay=timedelta(seconds=1))
        clock.advance(2000)
        waiting = Waiting(lambda: store.pop("t", "g", wait=LONG))
        steps = store._hand_over.steps(clock.now_ms())
        next(step for step in steps if isinstance(step, tuple))
        assert waiting.result() == ["0"]
        assert list(steps)


def test_who_waits_gets_the_first_of_many_leases_that_ended_before_the_last_is_given_back(store: Store, clock: ManualClock) -> None:
    store.send_batch([Message("t", b"%d" % number) for number in range(2)])
    assert len(store.pop("t", "g", invisible=timedelta(seconds=1))) == 2
    clock.advance(2000)
    waiting = Waiting(lambda: store.pop("t", "g", wait=LONG))
    revive, given = store.engine.pops.revive, []

    def looked_at(*arguments: Any) -> Any:
        if given:
            assert waiting.result() == ["0"]
        given.append(revive(*arguments))
        return given[-1]

    with patch("rmqstore.store.tick._REVIVE_PAGE", 1), patch.object(store.engine.pops, "revive", looked_at):
        store.tick()
    assert len(given) >= 2


def test_the_end_of_a_lease_of_a_dropped_dead_letter_wakes_who_waits_behind_it(store: Store, clock: ManualClock) -> None:
    store.send_batch([Message("t", b"%d" % number) for number in range(2)])
    store.reject(store.pop("t", "g", max_messages=2))
    assert len(store.pop("%DLQ%g", "ops", order=True, max_messages=1, invisible=timedelta(seconds=5))) == 1
    store.dead_letters.drop([store.dead_letters.list("g")[0]])
    clock.advance(5000)
    waiting = Waiting(lambda: store.pop("%DLQ%g", "ops", order=True, wait=LONG))
    store.tick()
    assert waiting.result() == ["1"]


def test_what_a_change_of_a_schedule_sends_wakes_who_waits(store: Store, clock: ManualClock) -> None:
    store.schedules.put("s", timedelta(seconds=1), Message("t", b"due"))
    clock.advance(1000)
    waiting = Waiting(lambda: store.pop("t", "g", wait=LONG))
    store.schedules.put("s", timedelta(seconds=2), Message("t", b"later"))
    assert waiting.result() == ["due"]


def test_a_close_that_fails_ends_every_wait(store: Store) -> None:
    waiting = Waiting(lambda: store.pop("t", "g", wait=LONG))
    with patch.object(OwnedEngines, "close", side_effect=OSError("the disk is gone")), pytest.raises(OSError, match="the disk is gone"):
        store.close()
    assert waiting.result() == ["closed"]


def test_a_message_costs_nothing_to_those_who_wait_for_other_topics() -> None:
    waits = Waits()
    with waits.on(TopicWait("mine", for_acks=False)) as mine, waits.on(TopicWait("other", for_acks=True)) as other:
        mine.ends = other.ends = (0,)
        waits.arrived(["other", "nobody's"])
        waits.acked(["mine", "other"])
        waits.moved(lambda topic: (1,) if topic == "other" else (0,))
        assert (mine.count, other.count) == (0, 3)
        waits.anything()
        assert (mine.count, other.count) == (1, 4)
    waits.arrived(["mine"])
    assert mine.count == 1, "who stopped waiting is forgotten"
    with waits.on(TopicWait(ROOM, for_acks=False)) as room, waits.on(TopicWait("mine", for_acks=False)) as mine:
        waits.arrived(["mine"])
        waits.acked(["mine"])
        assert room.count == 0
        waits.made_room()
        assert (room.count, mine.count) == (1, 1)


def test_a_wait_that_ends_with_an_error_is_forgotten() -> None:
    waits = Waits()
    with pytest.raises(IllegalArgumentError), waits.on(TopicWait("mine", for_acks=False)) as mine:
        raise IllegalArgumentError("the filter is wrong")
    waits.anything()
    assert mine.count == 0


@pytest.mark.parametrize("call", [Signal.notify, lambda signal: signal.wait_beyond(0, 0.0)], ids=["notify", "wait"])
def test_an_interrupted_thread_leaves_the_signal_to_the_others(call: Callable[[Signal], None]) -> None:
    step, done = 1, False
    while not done:
        signal = Signal()
        try:
            interrupted(lambda signal=signal: call(signal), step)  # type: ignore[misc]
            done = True
        except (Interrupted, RuntimeError):
            step += 1
        other = threading.Thread(target=signal.notify, daemon=True)
        other.start()
        other.join(20)
        assert not other.is_alive(), f"interrupted at step {step}, it keeps the lock"
    assert step > 3


class WaitingSend(Waiting):
    """A thread in a send that was refused, at rest when the constructor returns."""

    def _run(self, send: Callable[[], Any]) -> None:
        try:
            send()
            self.got = ["sent"]
        except (FlowControlError, StoreClosedError) as error:
            self.got = [type(error).__name__]


class SilentClock:
    """A clock that tells nobody when it moves, as the machine's."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


def test_a_send_whose_time_comes_while_it_waits_goes_to_its_topic(tmp_path: Path) -> None:
    clock = SilentClock()
    with rmqstore.open(tmp_path / "store", engine="memory", clock=clock, services=False, congestion_limit=1) as store:
        store.send(Message("t", b"first"), delay_ms=1000)
        waiting = WaitingSend(lambda: store.send(Message("t", b"second"), delay_ms=1000, timeout=LONG))
        clock.time_ms = 1000
        assert store.tick().handed_over == 1
        assert waiting.result() == ["sent"]
        assert store._waits._waits == {}
        assert store.pending().total == 0
        assert [each.body for each in store.pop("t", "g")] == [b"first", b"second"]


@contextmanager
def waiting_for_a_flush(path: Path) -> Iterator[tuple[Store, WaitingSend]]:
    """A send that waits for the slot of what is handed over and not durable yet."""
    clock = SilentClock()
    batch = [Message("t", b"x", deliver_at_ms=due_ms) for due_ms in (1000, 5000)]
    with rmqstore.open(path, engine="memory", clock=clock, services=False, congestion_limit=1, flush="async") as store:
        store.send(Message("t", b"first"), delay_ms=1000)
        clock.time_ms = 1000
        assert store.tick().handed_over == 1
        yield store, WaitingSend(lambda: store.send_batch(batch, timeout=LONG))


def test_a_send_waits_until_what_was_handed_over_is_durable_and_forgotten(tmp_path: Path) -> None:
    with waiting_for_a_flush(tmp_path / "store") as (store, waiting):
        store.flush()
        store.tick()
        assert waiting.result() == ["sent"]


class Overtaking:
    """A lock behind which somebody else does something before its holder goes on, once."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._lock = threading.RLock()
        self._acts = [act]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._acts:
            other = threading.Thread(target=self._acts.pop(), daemon=True)
            other.start()
            other.join(20)
            assert not other.is_alive()


def test_a_send_hears_of_room_though_another_tick_overtakes_the_one_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting_for_a_flush(tmp_path / "store") as (store, waiting):
        store.flush()
        monkeypatch.setattr(store, "_tick_lock", Overtaking(store.tick))
        store.tick()
        assert waiting.result() == ["sent"]


def test_a_send_waits_for_the_end_of_a_pause_and_its_delay_counts_from_the_call(tmp_path: Path) -> None:
    clock = SilentClock()
    with rmqstore.open(tmp_path / "store", engine="memory", clock=clock, services=False) as store:
        store.pauses.begin(Flow.SENDS)
        waiting = WaitingSend(lambda: store.send(Message("t", b"later"), delay_ms=90_000, timeout=LONG))
        batch = WaitingSend(lambda: store.send_batch([Message("t", b"now")] * 3, timeout=LONG))
        clock.time_ms = 60_000
        store.pauses.end(Flow.SENDS)
        assert (waiting.result(), batch.result()) == (["sent"], ["sent"])
        (timer,) = store.scan().timers
        assert timer.deliver_at_ms == 90_000
        assert len(store.pop("t", "g")) == 3


def test_a_send_waits_no_longer_than_its_timeout_by_the_clock(store: Store, clock: ManualClock) -> None:
    store.pauses.begin(Flow.SENDS)
    waiting = WaitingSend(lambda: store.send(Message("t", b"x"), timeout=LONG))
    clock.advance(LONG)
    assert waiting.result() == ["FlowControlError"]
    with pytest.raises(FlowControlError, match="sends are paused"):
        store.send_batch([Message("t", b"x")], timeout=timedelta(0))
    with pytest.raises(IllegalArgumentTypeError, match="timeout must be a timedelta"):
        store.send(Message("t", b"x"), timeout=5)  # type: ignore[arg-type]
    assert store.topics.list() == []


def test_a_close_ends_the_wait_of_a_send(store: Store) -> None:
    store.pauses.begin(Flow.SENDS)
    waiting = WaitingSend(lambda: store.send(Message("t", b"x"), timeout=LONG))
    store.close()
    assert waiting.result() == ["StoreClosedError"]
