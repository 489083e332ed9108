"""What holds for a call whose connection breaks: done once, or told that it may have been done."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rmqstore
from rmqstore import Flow, Message, PoppedMessage, Store, StoreClosedError, StoreUnavailableError
from rmqstore.errors import AccessDeniedError, FlowControlError, PollingFullError
from rmqstore.server import connection, requests
from rmqstore.server.clients import Limits
from rmqstore.server.connection import Connection
from rmqstore.server.serving import ServerThread
from rmqstore.transfer import migrate
from tests.pairs import DURABLE_PAIRS
from tests.server.served import ENGINE, NOW, SECOND, Lost, Served, soon, waiting


@pytest.mark.parametrize("later", [{}, {"delay_ms": 1000}, {"deliver_at_ms": 5}, {"marks": []}])
def test_a_send_whose_answer_is_lost_is_stored_once(served: Served, client: Store, lost: Lost, later: dict[str, int]) -> None:
    lost()
    sent = client.send(NOW, **later)  # type: ignore[arg-type]
    assert sent.repeated
    lost()
    assert len(client.send_batch([NOW, NOW], **later)) == 2  # type: ignore[arg-type]
    served.clock.advance(1000)
    served.store.tick()
    assert len(served.store.pop("t", "g")) == 3


@pytest.mark.parametrize(
    ("refuse", "refusal", "why"),
    [
        (lambda served: served.store.pauses.begin(Flow.SENDS), FlowControlError, "sends are paused since"),
        (lambda served: setattr(served.thread._server, "limits", Limits(held_bytes=0)), PollingFullError, "bytes are under way"),
    ],
)
def test_a_repeat_that_is_refused_says_that_the_send_may_have_been_done(
    served: Served, client: Store, lost: Lost, refuse: Callable[[Served], None], refusal: type[Exception], why: str
) -> None:
    sent = Message("t", bytes(20_000))
    lost(lambda: refuse(served))
    with pytest.raises(StoreUnavailableError, match=f"{why} .* it may have been done"):
        client.send(sent)
    with pytest.raises(refusal, match=why):
        client.send(sent)
    assert len(served.store.pop("t", "g")) == 1


@pytest.mark.parametrize(
    ("side", "call", "passed_ms", "due_ms"), [("_timers", "put", 2000, 1000), ("_pops", "append", -5000, -1000)], ids=["due", "later"]
)
def test_a_send_that_is_for_another_side_when_it_is_made_again_is_stored_once(
    served: Served, client: Store, lost: Lost, side: str, call: str, passed_ms: int, due_ms: int
) -> None:
    """K1: a timer whose time has passed when the repeat comes, which would go to the topic at once; or the clock is set back in between."""
    store = getattr(served.store, side)
    real = getattr(store, call)

    def made_then(*arguments: Any) -> Any:
        made = real(*arguments)
        setattr(store, call, real)
        served.clock.set(served.clock.now_ms() + passed_ms)
        return made

    setattr(store, call, made_then)
    lost()
    sent = client.send(NOW, deliver_at_ms=served.clock.now_ms() + due_ms)
    assert sent.repeated
    assert getattr(store, call) is real, "time has passed"
    assert (sent.handle is not None) is (side == "_timers")
    served.clock.advance(10_000)
    served.store.tick()
    assert len(served.store.pop("t", "g")) == 1


def test_a_wait_survives_outages_that_are_shorter_than_the_patience(served: Served) -> None:
    client = served.connect(patience=timedelta(milliseconds=300))
    found = served.threads.submit(client.pop, "t", "g", wait=60 * SECOND)
    for _ in range(2):
        soon(lambda: waiting(served) == 1)
        threading.Event().wait(0.4)  # real time, as the patience is
        served.thread.stop()
        served.start()
    soon(lambda: waiting(served) == 1)
    served.store.send(NOW)
    assert len(found.result(10)) == 1


def test_a_send_that_waits_goes_on_when_the_server_is_back(served: Served, client: Store) -> None:
    served.store.pauses.begin(Flow.SENDS)
    sent = [served.waits(client.send, NOW, **later, timeout=60 * SECOND) for later in ({"delay": SECOND}, {})]
    served.thread.stop()
    served.start()
    soon(lambda: waiting(served) == 2)
    served.store.pauses.end(Flow.SENDS)
    assert not any(each.result(10).repeated for each in sent)
    assert (served.store.pending().total, served.store.lag("t", "g").ready) == (1, 1)


def test_a_delay_counts_from_the_call_and_not_from_its_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the machine, which goes on by 30 s while there is no server."""
    ahead_s, all_lost, lost = [0.0], threading.Barrier(3), requests.Underway.lost

    def lost_for_long(self: requests.Underway, *arguments: Any, **named: Any) -> None:
        if not ahead_s[0]:
            all_lost.wait(10)
            ahead_s[0] = 30.0
        lost(self, *arguments, **named)

    monkeypatch.setattr(requests.Underway, "lost", lost_for_long)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0], time=time.time))
    later: dict[str, Any] = {"delay": 60 * SECOND}
    with rmqstore.open(tmp_path / "store", engine=ENGINE, services=False) as store, ThreadPoolExecutor(3) as threads:
        thread = ServerThread(store, lambda entrance: entrance.listen_unix(tmp_path / "socket"))
        client = rmqstore.connect(f"unix:{tmp_path / 'socket'}")
        thread.stop()
        begun_ms = time.time_ns() // 1_000_000
        sent = [
            threads.submit(client.send, NOW, **later),
            threads.submit(client.send, NOW, **later, timeout=60 * SECOND),
            threads.submit(client.send_batch, [Message("t", b"x", properties={"TIMER_DELAY_MS": "60000"})]),
        ]
        soon(lambda: ahead_s[0] > 0)
        thread = ServerThread(store, lambda entrance: entrance.listen_unix(tmp_path / "socket"))
        for each in sent:
            each.result(10)
        early_ms = [begun_ms + 60_000 - timer.deliver_at_ms for timer in store.scan().timers]
        client.close()
        thread.stop()
    assert len(early_ms) == 3
    assert 0 < min(early_ms) <= max(early_ms) <= 30_000, "the call was 30 s ago, less what the rest took"


@pytest.mark.parametrize("patience", [30 * SECOND, timedelta(0)])
@pytest.mark.parametrize(
    "call", [lambda client: client.pop("t", "g", wait=60 * SECOND), lambda client: client.send(NOW, timeout=60 * SECOND)]
)
def test_a_call_that_waits_ends_with_its_client(served: Served, call: Callable[[Store], object], patience: timedelta) -> None:
    """As in the process, but nobody knows whether it was done."""
    served.store.pauses.begin(Flow.SENDS)
    client = served.connect(patience=patience)
    found = served.waits(call, client)
    client.close()
    with pytest.raises(StoreClosedError, match="it may have been done"):
        found.result(10)
    soon(lambda: waiting(served) == 0)
    assert client._pool._idle == []  # type: ignore[attr-defined]


def test_a_call_that_does_not_wait_has_its_answer_although_its_client_is_closed(served: Served, client: Store) -> None:
    gate = served.hold("flush")
    done = served.threads.submit(client.flush)
    soon(lambda: bool(served.thread._server._long))
    client.close()
    gate.set()
    assert done.result(10) is None
    soon(lambda: not served.thread._server.clients)


def test_a_client_that_was_closed_since_begins_no_wait(served: Served, client: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = client._pool.take  # type: ignore[attr-defined]

    def take(**named: Any) -> Connection:
        client.close()  # another thread does
        made: Connection = taken(**named)
        return made

    monkeypatch.setattr(client._pool, "take", take)  # type: ignore[attr-defined]
    with pytest.raises(StoreClosedError):
        client.pop("t", "g", wait=60 * SECOND)
    soon(lambda: not served.thread._server.clients)


@pytest.mark.parametrize("step", ["append", "pop"])
def test_a_handler_may_call_in_the_middle_of_a_call(served: Served, step: str) -> None:
    """Where its thread takes a connection, or gives it back."""
    client, handled = served.connect(), []

    class Idle(list[Connection]):
        def handle(self, name: str) -> None:
            if step == name and not handled:
                handled.append(step)
                client.topics.list()

        def append(self, connection: Connection) -> None:
            self.handle("append")
            super().append(connection)

        def pop(self, *at: Any) -> Connection:
            self.handle("pop")
            return super().pop(*at)

    client._pool._idle = Idle(client._pool._idle)  # type: ignore[attr-defined]
    assert client.topics.list() == []
    assert handled == [step]


def test_a_pop_whose_answer_is_lost_gives_the_same_messages(served: Served, client: Store, lost: Lost) -> None:
    served.store.send_batch([NOW] * 5)
    lost()
    popped = client.pop("t", "g", max_messages=2)
    assert [each.attempt for each in popped] == [1, 1]
    assert served.store.lag("t", "g").in_flight == 2
    lost()
    assert client.ack(popped) == [rmqstore.AckOutcome.ALREADY_ACKED] * 2
    assert served.store.lag("t", "g").in_flight == 0


def test_a_client_goes_on_when_the_server_is_back(served: Served, client: Store) -> None:
    client.send(NOW)
    served.thread.stop()
    found = served.threads.submit(client.pop, "t", "g")
    served.start()
    assert len(found.result(10)) == 1


def test_a_send_is_not_repeated_by_a_process_that_stood_still_for_longer_than_its_name_is_known(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is stopped, or its machine is, between two tries: by then the store may take the repeat for another send."""
    client, ahead_s = served.connect(), [0.0]
    clocks = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + ahead_s[0])
    monkeypatch.setattr(requests, "time", clocks)

    def standing_still(call: requests.Underway) -> float:
        ahead_s[0] = 20 * 60.0
        served.start()  # it would be taken
        return 0.0

    monkeypatch.setattr(requests.Underway, "pause_s", standing_still)
    served.thread.stop()
    with pytest.raises(StoreUnavailableError, match="it may have been done"):
        client.send(NOW)
    assert served.store.pop("t", "g") == []


def test_a_server_that_stays_away_is_told(served: Served, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="nobody serves a store at"):
        rmqstore.connect(tmp_path / "nowhere")
    client = served.connect(patience=timedelta(0))
    served.thread.stop()
    with pytest.raises(StoreUnavailableError, match="nobody serves a store at"):
        client.topics.list()


def test_a_closed_client_says_so(client: Store) -> None:
    client.close()
    client.close()
    with pytest.raises(StoreClosedError, match="connect again") as closed:
        client.pending()
    assert closed.value.__cause__ is None
    assert "closed" in repr(client)


def test_a_store_that_is_closed_while_it_is_served(served: Served) -> None:
    client = served.connect(patience=timedelta(0))
    served.store.close()
    with pytest.raises(StoreUnavailableError):
        client.pending()
    with pytest.raises(StoreUnavailableError):
        client.send(NOW)


@pytest.mark.parametrize(
    "call",
    [
        lambda client, popped: client.release(popped),
        lambda client, _: client.pauses.begin(Flow.SENDS),
        lambda client, _: client.pauses.end(Flow.SENDS),
        lambda client, _: client.schedules.put("s", SECOND, NOW),
        lambda client, _: client.topics.create("u"),
    ],
)
def test_what_others_may_have_changed_since_is_not_made_again(
    served: Served, client: Store, lost: Lost, call: Callable[[Store, PoppedMessage], object]
) -> None:
    served.store.send(NOW)
    (popped,) = client.pop("t", "g")
    lost()
    with pytest.raises(StoreUnavailableError, match=r"\w was under way .*it may have been done"):
        call(client, popped)


@pytest.mark.skipif(not DURABLE_PAIRS, reason="needs a durable engine")
def test_a_send_is_not_made_again_at_a_store_made_of_the_first(served: Served, client: Store, lost: Lost) -> None:
    """As by a migration, which does not take the names of calls along."""

    def migrated() -> None:
        served.thread.stop()
        served.store.close()
        migrate(served.store.path, engine=ENGINE, precision_ms=100)
        served.store = rmqstore.open(served.store.path, clock=served.clock, services=False)
        served.start()

    lost(migrated)
    with pytest.raises(StoreUnavailableError, match="it may have been done"):
        client.send(NOW)
    assert client.send(Message("u", b"x")).repeated is False
    assert served.store.lag("t", "g").ready == 1


def test_a_send_in_doubt_says_so_when_the_server_comes_back_and_refuses_its_client(served: Served, lost: Lost) -> None:
    (port,) = served.thread._done(served.thread._server.entrance.listen("127.0.0.1", 0))  # type: ignore[misc]
    with rmqstore.connect(f"rmqstore://127.0.0.1:{port}") as client:

        def refuses() -> None:
            served.thread.stop()
            served.thread = ServerThread(served.store, lambda entrance: entrance.listen("127.0.0.1", port), token="another")

        lost(refuses)
        with pytest.raises(StoreUnavailableError, match=r"the server wants a token.* it may have been done"):
            client.send(NOW)
        with pytest.raises(AccessDeniedError) as refusal:
            client.send(NOW)
        assert refusal.value.__cause__ is None
    assert served.store.lag("t", "g").ready == 1


def test_a_send_in_doubt_says_so_when_its_client_is_closed(client: Store, lost: Lost) -> None:
    lost(client.close)
    with pytest.raises(StoreClosedError, match=r"is closed.* it may have been done"):
        client.send(NOW)


def test_a_connect_waits_for_a_server_that_is_busy(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gave up with the first greeting that did not come in five seconds."""
    gate, tries, connected = threading.Event(), [], connection._connected

    def counted(*arguments: Any) -> Any:
        tries.append(arguments)
        return connected(*arguments)

    monkeypatch.setattr(connection, "_CONNECT_S", 0.01)
    monkeypatch.setattr(connection, "_connected", counted)
    served.thread._loop.call_soon_threadsafe(gate.wait, 30)
    with pytest.raises(StoreUnavailableError, match="does not answer; look after its process"):
        served.connect(patience=timedelta(0))
    made = served.threads.submit(served.connect)
    soon(lambda: len(tries) > 2)
    monkeypatch.setattr(connection, "_CONNECT_S", 5.0)
    gate.set()
    assert made.result(10).topics.list() == []


def test_a_connect_does_not_wait_for_a_machine_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def reaches_nothing(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", reaches_nothing)
    with pytest.raises(StoreUnavailableError, match=r"nothing at 127.0.0.1 answers.* start `rmqstore serve` there"):
        rmqstore.connect("rmqstore://127.0.0.1:7450", patience=timedelta(seconds=60))
