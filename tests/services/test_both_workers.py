"""What becomes of a message, by what its handler does: the same with workers of threads and of tasks."""

from __future__ import annotations

import threading
from datetime import timedelta
from itertools import chain, repeat
from unittest.mock import DEFAULT, Mock, patch

import pytest

from rmqstore import AckOutcome, Message, PoppedMessage, Reject, Retry, RmqstoreError, StoreFullError, StoreUnavailableError
from tests.server.served import Served, soon
from tests.services.consumers import Consumers, Gate, Handled, bodies, lose_answer, nothing_left

MINUTE = timedelta(minutes=1)


@pytest.fixture(params=["threads", "tasks"])
def consume(request: pytest.FixtureRequest, served: Served, monkeypatch: pytest.MonkeyPatch) -> Consumers:
    monkeypatch.setattr("rmqstore.services.consuming._EXTENDED_AT_ONCE", 2)  # so that those of three take two calls
    return Consumers(served, request.param)


def test_each_message_is_handled_and_acked(served: Served, consume: Consumers) -> None:
    """Its handler gets no receipt, which would be out of date with the next extension."""
    served.store.send_batch(bodies(100))
    handled = Handled()
    with consume(handled, at_once=3, batch=8) as worker:
        soon(lambda: nothing_left(served.store))
        served.store.send_batch(bodies(20))
        soon(handled.seen(120))
    assert nothing_left(served.store)
    assert worker.stats.done == 120
    assert sorted(int(each.body) for each in handled.messages) == sorted([*range(100), *range(20)])
    assert {each.receipt for each in handled.messages} == {None}


def test_what_a_handler_raises_says_what_becomes_of_its_message(served: Served, consume: Consumers) -> None:
    def fail(message: PoppedMessage) -> None:
        if message.attempt == 1:
            again = Retry(timedelta(seconds=3), "the bank is closed")
            raise {b"0": ValueError("no such order"), b"1": again, b"2": Reject("no such customer")}[message.body]

    served.store.send_batch(bodies(3))
    with consume(fail) as worker:
        soon(lambda: (worker.stats.retried, worker.stats.rejected) == (2, 1))
        later, failed = sorted(served.store.leases("t", "g"), key=lambda each: each.expiry_ms)
        assert later.is_backing_off
        assert (later.reason, later.expiry_ms) == ("the bank is closed", served.clock.now_ms() + 3000)
        assert failed.reason.startswith("ValueError: no such order (test_both_workers.py:")
        assert failed.reason.endswith("in fail)")
        served.clock.advance(10_000)  # the first back-off of RocketMQ's table
        served.store.tick()
        soon(lambda: worker.stats.done == 2)
    assert [each.reason for each in served.store.dead_letters.list("g")] == ["no such customer"]
    assert nothing_left(served.store)


def test_leases_are_extended_while_a_handler_runs(served: Served, consume: Consumers) -> None:
    gate = Gate()
    served.store.send_batch(bodies(3))
    with consume(gate, invisible=MINUTE) as worker:
        gate.wait_for_begin()
        with patch.object(served.store, "change_invisible", wraps=served.store.change_invisible) as extend:
            for _ in range(5):
                served.clock.advance(40_000)
                worker.keep(ahead_s=1000)
                served.store.tick()
        assert [len(each.args[0]) for each in extend.call_args_list] == [2, 1] * 5
        assert served.store.lag("t", "g").in_flight == 3
        gate.go_on.set()
        soon(lambda: nothing_left(served.store))
    assert (worker.stats.done, worker.stats.lost) == (3, 0)


def test_what_is_done_is_acked_while_another_handler_runs(served: Served, consume: Consumers) -> None:
    gate = Gate()
    served.store.send_batch(bodies(5))
    with consume(lambda message: gate(message) if message.body == b"4" else None) as worker:
        gate.wait_for_begin()
        worker.keep()
        assert served.store.lag("t", "g").in_flight == 1
        gate.go_on.set()
    assert worker.stats.done == 5


def test_order_is_kept_and_queues_go_side_by_side(served: Served, consume: Consumers) -> None:
    side_by_side, seen = threading.Barrier(2), threading.Semaphore(2)

    def meet(message: PoppedMessage) -> None:
        if seen.acquire(blocking=False):
            side_by_side.wait(20)

    served.store.send_batch([Message("t", str(number).encode(), message_group=f"group-{number % 8}") for number in range(80)])
    handled = Handled(meet)
    with consume(handled, at_once=4, batch=3, order=True):
        soon(handled.seen(80))
    for group in range(8):
        mine = [int(each.body) for each in handled.messages if each.message_group == f"group-{group}"]
        assert mine == list(range(group, 80, 8))


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_is_behind_a_failed_message_waits_for_it(served: Served, consume: Consumers, at_once: int) -> None:
    """P9: the rest of the run goes back, with its attempt not counted, and comes behind the message that failed."""

    def fail_once(message: PoppedMessage) -> None:
        if message.body == b"1" and message.attempt == 1:
            raise ValueError("not yet")

    served.store.send_batch(bodies(5, fifo="m"))
    handled = Handled(fail_once)
    with consume(handled, order=True, at_once=at_once) as worker:
        soon(lambda: worker.stats.retried == 1)
        assert [each.body for each in handled.messages] == [b"0", b"1"]
        served.clock.advance(10_000)
        served.store.tick()
        soon(handled.seen(6))
    assert [(int(each.body), each.attempt) for each in handled.messages] == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]


def test_what_is_behind_a_rejected_message_goes_on(served: Served, consume: Consumers) -> None:
    def refuse(message: PoppedMessage) -> None:
        if message.body == b"1":
            raise Reject("no")

    served.store.send_batch(bodies(3, fifo="m"))
    handled = Handled(refuse)
    with consume(handled, order=True):
        soon(handled.seen(3))
    assert [each.body for each in handled.messages] == [b"0", b"1", b"2"]
    assert len(served.store.dead_letters.list("g")) == 1


def test_what_others_have_is_not_handled(served: Served, consume: Consumers) -> None:
    gate = Gate()
    served.store.send_batch(bodies(3))
    handled = Handled(gate)
    with consume(handled, invisible=MINUTE) as worker:
        gate.wait_for_begin()
        served.clock.advance(61_000)
        assert served.store.tick().retried == 3
        assert len(served.store.pop("t", "g", invisible=MINUTE)) == 3
        worker.keep(ahead_s=1000)
        gate.go_on.set()
    assert len(handled.messages) == 1
    assert (worker.stats.done, worker.stats.lost) == (0, 3)


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("order", [False, True])
def test_leases_whose_extension_was_not_answered_are_kept(served: Served, consume: Consumers, order: bool, is_again: bool) -> None:
    """The server has extended them, and the receipts that count were in the answer that was lost."""
    gate = Gate()
    served.store.send_batch(bodies(3, fifo="m"))
    if is_again:
        served.store.pop("t", "g", order=order)
        served.clock.advance(61_000)
        assert served.store.tick().retried == 3
    handled = Handled(gate)
    with consume(handled, invisible=MINUTE, order=order) as worker:
        gate.wait_for_begin()
        for _ in range(3):
            lost = lose_answer(served, "change_invisible")
            worker.keep(ahead_s=1000)
            assert lost.is_set()
            served.clock.advance(40_000)
        gate.go_on.set()
        soon(lambda: worker.stats.done == 3)
    assert [(each.body, each.attempt) for each in handled.messages] == [(b"%d" % number, 1 + is_again) for number in range(3)]
    assert worker.stats.lost == 0
    assert nothing_left(served.store)


@pytest.mark.parametrize("does", ["acks", "pops", "retries", "releases"])
def test_leases_are_kept_when_an_extension_and_its_repeat_were_not_answered(served: Served, consume: Consumers, does: str) -> None:
    """What comes next may be anything that needs the receipts that count."""
    gate = Gate()

    def wait(message: PoppedMessage) -> None:
        gate(message)
        if does == "retries" and message.attempt == 1:
            raise Retry(timedelta(seconds=1))

    served.store.send_batch(bodies(3))
    with consume(wait, invisible=MINUTE, batch=1 if does == "pops" else 3) as worker:
        gate.wait_for_begin()
        lose_answer(served, "change_invisible", lambda: lose_answer(served, "change_invisible"))
        with pytest.raises(StoreUnavailableError):
            worker.keep(ahead_s=1000)
        if does == "releases":
            worker._begin_no_more()
        gate.go_on.set()
        soon(lambda: worker.stats.done + worker.stats.retried + worker.stats.lost == (1 if does == "releases" else 3))
    assert worker.stats.lost == 0
    lag = served.store.lag("t", "g")
    assert lag.in_flight == 0
    assert (lag.ready + lag.retry, lag.backing_off) == {"retries": (0, 3), "releases": (2, 0)}.get(does, (0, 0))


def test_the_lease_of_another_is_not_taken_for_one_whose_extension_was_not_answered(served: Served, consume: Consumers) -> None:
    """In a FIFO queue its message is at the same place."""
    gate = Gate()
    others: list[PoppedMessage] = []

    def take() -> None:
        served.clock.advance(61_000)
        assert served.store.tick().retried == 3
        others.extend(served.store.pop("t", "g", order=True, invisible=MINUTE))

    served.store.send_batch(bodies(3, fifo="m"))
    handled = Handled(gate)
    with consume(handled, invisible=MINUTE, order=True) as worker:
        gate.wait_for_begin()
        lost = lose_answer(served, "change_invisible", take)
        worker.keep(ahead_s=1000)
        assert lost.is_set()
        gate.go_on.set()
        soon(lambda: worker.stats.lost == 3)
    assert len(handled.messages) == 1
    assert served.store.ack(others) == [AckOutcome.ACKED] * 3


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_worker_that_stood_still_begins_on_nothing_that_others_have(
    served: Served, consume: Consumers, asleep_s: list[float], is_taken: bool
) -> None:
    gate = Gate()
    served.store.send_batch(bodies(5))
    handled = Handled(gate)
    at_once = 2 if consume.has_tasks else 1  # as one thread has all of a batch
    with consume(handled, invisible=MINUTE, at_once=at_once) as worker:
        soon(handled.seen(at_once))
        asleep_s[0] = 61
        served.clock.advance(61_000)
        if is_taken:
            assert served.store.tick().retried == 5
            assert len(served.store.pop("t", "g", invisible=MINUTE)) == 5
        gate.go_on.set()
        soon(lambda: worker.stats.lost + worker.stats.done == 5)
    assert (worker.stats.done, worker.stats.lost, len(handled.messages)) == ((0, 5, at_once) if is_taken else (5, 0, 5))


def test_a_worker_that_cannot_ask_whether_it_still_has_messages_leaves_them(
    served: Served, consume: Consumers, asleep_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    served.store.send_batch(bodies(3))
    handled = Handled(gate)
    no_room = patch.object(served.store._pops, "change_invisible", side_effect=StoreFullError("no room"))
    with no_room, consume(handled, invisible=MINUTE) as worker:
        gate.wait_for_begin()
        asleep_s[0] = 61
        gate.go_on.set()
        soon(lambda: worker.stats.done == 1)
        served.store.send(Message("t", b"3"))
        soon(handled.seen(2))
    assert [each.body for each in handled.messages] == [b"0", b"3"]
    assert "leaves messages whose leases may have ended: no room" in caplog.text
    served.clock.advance(61_000)
    assert served.store.tick().retried == 2


def test_a_full_disk_is_waited_for(served: Served, consume: Consumers, caplog: pytest.LogCaptureFixture) -> None:
    served.store.send_batch(bodies(1))
    pops, handled = served.store._pops, Handled()
    at_last = chain(repeat(StoreFullError("no room"), 2), repeat(DEFAULT))
    with patch.object(pops, "pop", wraps=pops.pop, side_effect=at_last), consume(handled) as worker:
        soon(handled.seen(1))
        assert worker.failure is None
    for pause in ("0.1 s", "0.2 s"):
        assert f"a worker of group g waits {pause}: no room" in caplog.text


class Stopped(BaseException):
    """As test frameworks and task groups raise."""


@pytest.mark.parametrize("error", [SystemExit(3), Stopped(3)])
def test_a_handler_that_exits_ends_the_worker_and_says_so(served: Served, consume: Consumers, error: BaseException) -> None:
    served.store.send_batch(bodies(3))
    worker = consume(Mock(side_effect=error))
    soon(lambda: worker.failure is not None)
    with pytest.raises(RmqstoreError, match=f"ended its worker by {type(error).__name__}: 3"):
        worker.stop()
    assert worker.failure is error
    lag = served.store.lag("t", "g")
    assert (lag.backing_off, lag.ready + lag.retry) == (1, 2)
    assert served.store.leases("t", "g")[0].reason.startswith(f"{type(error).__name__}: 3")
