"""What a server holds at most for its clients, and what it says beyond that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from rmqstore import Flow, FlowControlError, IllegalArgumentError, Message, PollingFullError, Store
from rmqstore.server import clients, serving
from rmqstore.server.clients import ROW_BYTES, Client, _number_in
from rmqstore.server.connection import Connection
from rmqstore.server.wire import frame
from tests.server.served import NOW, SECOND, Raw, Served, answer, asked, let_turn, soon, waiting


@pytest.mark.limits(waiting_calls=0)
def test_sends_beyond_the_limit_do_not_wait(served: Served, client: Store) -> None:
    assert len(client.send_batch([NOW], timeout=60 * SECOND)) == 1
    served.store.pauses.begin(Flow.SENDS)
    for send in (client.send, client.send_batch):
        with pytest.raises(FlowControlError, match="sends are paused"):
            send(NOW if send == client.send else [NOW], timeout=60 * SECOND)  # type: ignore[arg-type]


@pytest.mark.limits(waiting_calls=1)
def test_as_many_pops_wait_as_the_limit_says(served: Served) -> None:
    found = served.waits(served.connect().pop, "t", "g", wait=60 * SECOND)
    with pytest.raises(PollingFullError, match="1 calls wait here"):
        served.connect().pop("t", "g", wait=SECOND)
    served.store.send(NOW)
    assert len(found.result(10)) == 1


@pytest.mark.limits(frame_bytes=10_000)
def test_a_call_that_is_too_long_is_not_made(client: Store) -> None:
    with pytest.raises(IllegalArgumentError, match="more than the server takes"):
        client.send(Message("t", b"x" * 20_000))
    client.send(NOW)
    assert len(client.pop("t", "g")) == 1


@pytest.mark.limits(held_bytes=1_000_000)
def test_calls_beyond_what_a_server_holds_are_refused(served: Served) -> None:
    server, client = served.thread._server, served.connect()
    large = Message("t", bytes(900_000))
    request = frame([1, "send", [large], {}])
    slow = served.raw()
    slow._socket.sendall(request[:100])  # it says how much is to come, and keeps the server waiting
    soon(lambda: server.refusal(200_000) is not None)
    for _ in range(2):
        with pytest.raises(PollingFullError, match="nothing was done, try again later"):
            client.send(large)
    client.send(NOW)
    slow._socket.sendall(request[100:])
    assert not isinstance(answer(slow)[1], Exception)
    client.send(large)
    slow._socket.sendall(request[:100])
    soon(lambda: server.refusal(200_000) is not None)
    slow.close()
    soon(lambda: server.refusal(1_000_000) is None)
    assert sorted(len(each.body) for each in client.pop("t", "g")) == [1, 900_000, 900_000]


@pytest.mark.limits(client_calls=25)
def test_calls_of_a_client_that_are_not_begun_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_ROUND_S", -1.0)  # each round does one call
    client = served.raw()
    client.say(*([number, "topics.list", [], {}] for number in range(1, 501)))
    answers = dict(answer(client) for _ in range(500))
    refused = [each for each in answers.values() if isinstance(each, PollingFullError)]
    assert len(refused) > 300
    assert sum(each == [] for each in answers.values()) == 500 - len(refused) >= 100
    client.say([501, "topics.list", [], {}])
    assert answer(client) == (501, [])


@pytest.mark.limits(held_bytes=5_000_000, threads=1)
def test_calls_under_way_count_when_their_clients_are_gone(served: Served) -> None:
    """And those that have no thread yet are gone with them."""
    server, gate = served.thread._server, served.hold("send_batch")

    def send(body: bytes) -> Connection:
        made = served.raw()
        made._socket.settimeout(5)
        made.say([1, "send_batch", [[Message("t", body * 1_000_000)] * 2], {}])
        return made

    def is_alone() -> bool:
        return len(server.clients) == 1 and all(client.calls for client in server.clients)

    first = send(b"1")
    soon(is_alone)
    first.close()
    soon(lambda: not server.clients)
    second = send(b"2")
    soon(is_alone)
    third = send(b"3")
    assert isinstance(answer(third)[1], PollingFullError)
    third.close()
    second.close()
    soon(lambda: not server.clients)
    fourth = send(b"4")
    soon(is_alone)
    gate.set()
    assert not isinstance(answer(fourth)[1], Exception)
    assert {each.body[:1] for each in served.store.pop("t", "g")} == {b"1", b"4"}
    assert server.refusal(5_000_000) is None


@pytest.mark.limits(held_bytes=1_000_000)
def test_long_lists_are_bounded(served: Served) -> None:
    for number in range(40):
        served.store.schedules.put(f"s{number}", timedelta(days=1), Message("t", bytes(60_000)))
    slow = served.raw()
    slow._socket.sendall(b"".join(frame([number, "schedules.list", [], {}]) for number in range(1, 6)) + frame([6, "topics.list", [], {}]))
    answers = dict(answer(slow) for _ in range(6))
    assert len(answers[1]) == 40  # type: ignore[arg-type]
    assert [type(answers[number]) for number in range(2, 6)] == [PollingFullError] * 4
    assert answers[6] == []
    assert len(served.connect().schedules.list()) == 40


@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 65_536, 2**32])
def test_the_number_of_a_request_is_in_its_beginning(number: int) -> None:
    assert _number_in(b"head" + frame([number, "send", [], {}])[4:14], 4) == number


@pytest.mark.limits(held_bytes=2_500_000)
def test_answers_that_nobody_reads_keep_others_from_fetching_more(served: Served) -> None:
    served.store.send_batch([Message("t", bytes(1_000_000)) for _ in range(8)])
    server, client = served.thread._server, served.connect()
    slow = served.raw()
    slow._socket.sendall(b"".join(frame([number, "pop", *asked(wait_ms=0)]) for number in range(1, 8)))
    soon(lambda: server.refusal() is not None)
    for fetch in (lambda: client.pop("t", "h"), lambda: client.read("t")):
        with pytest.raises(PollingFullError, match="nothing was done, try again later"):
            fetch()
    client.send(Message("u", b"x"))
    answers = [answer(slow)[1] for _ in range(7)]
    assert [isinstance(each, PollingFullError) for each in answers] == [False] * 3 + [True] * 4
    assert served.store.lag("t", "g").in_flight == 3, "of those that were refused nothing is leased"
    found = served.threads.submit(client.pop, "v", "g", wait=60 * SECOND)
    soon(lambda: waiting(served) == 1)
    slow.say([8, "read", ["t"], {}])
    soon(lambda: server.refusal() is not None)
    served.store.send(Message("v", b"x"))
    assert [each.name for each in client.topics.list()] == ["t", "u", "v"]  # behind what has been woken
    assert waiting(served) == 1
    assert len(answer(slow)[1]) == 8  # type: ignore[arg-type]
    assert len(found.result(10)) == 1


@pytest.mark.limits(unread_bytes=1000, unread_s=0.05)
def test_a_client_that_reads_nothing_is_cut_off(served: Served, connection: Raw) -> None:
    served.store.send_batch([Message("t", bytes(1_000_000)) for _ in range(8)])
    for number in range(1, 20):
        connection.say([number, "read", ["t"], {}])
    soon(lambda: not served.thread._server.clients)
    connection.close()
    assert served.connect().lag("t", "g").ready == 8


def beginning(served: Served, data: bytes | bytearray) -> Connection:
    """Return a connection over which a request begins to come."""
    made = served.raw()
    made._socket.settimeout(10)
    made._socket.sendall(data[:100])
    return made


@pytest.mark.limits(waiting_calls=5, frame_bytes=1_000_000)
def test_calls_of_a_client_that_is_gone_are_not_begun(served: Served) -> None:
    """It had written a send that waits behind a call that was refused, and did not read the answer."""
    refused = frame([1, "send_batch", [[Message("t", b"x")] * 2000], {}])
    waits = frame([2, "send_batch", [[Message("t", b"x" * 5000)]], {"timeout": 60 * SECOND}])
    served.store.pauses.begin(Flow.SENDS)
    for _ in range(50):
        gone = served.raw()
        gone._socket.sendall(refused + waits)
        gone.close()
    soon(lambda: not served.thread._server.clients)
    soon(lambda: waiting(served) == 0)
    served.store.pauses.end(Flow.SENDS)
    served.connect().send(NOW)
    assert len(served.store.pop("t", "g")) == 1


@pytest.mark.limits(held_bytes=1_000_000, unread_s=0.05)
def test_a_request_that_comes_no_further_is_cut_off(served: Served) -> None:
    """It counts as a whole among what the server holds, and kept all others out."""
    large = Message("t", bytes(900_000))
    silent = beginning(served, frame([1, "send", [large], {}]))
    assert silent._reader.read() == b""
    soon(lambda: not served.thread._server.clients)
    served.connect().send(large)


def trickle(served: Served, slow: Connection, request: bytes | bytearray, pieces: int) -> Client:
    """Let so many pieces of a request come that has begun, each of them when ``unread_s`` is over; returns the client at the server."""
    soon(lambda: any(client._cut for client in served.thread._server.clients))
    (client,) = served.thread._server.clients
    for sent in range(100, 100 * (1 + pieces), 100):
        slow._socket.sendall(request[sent : sent + 100])
        soon(lambda come=sent + 100: len(client._unparsed) == come)  # type: ignore[misc]
        served.thread._loop.call_soon_threadsafe(client._cut_unless_sent, sent)
        let_turn(served.thread)
    return client


def test_a_request_that_comes_slowly_is_taken(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_LOOK_BYTES", 300_000, raising=False)
    request = frame([1, "send", [Message("t", bytes(900_000))], {}])
    slow = beginning(served, request)
    client = trickle(served, slow, request, 4)
    slow._socket.sendall(request[500:])
    assert not isinstance(answer(slow)[1], Exception)
    assert client._cut is None, "a connection may be silent between its requests"


def test_a_request_that_does_not_come_to_its_end_is_cut_off(served: Served) -> None:
    """Though some of it comes every half a minute: all of it is counted as long as it may come."""
    request = frame([1, "send", [Message("t", bytes(900_000))], {}])
    slow = beginning(served, request)
    trickle(served, slow, request, 2)
    assert slow._reader.read() == b""
    soon(lambda: not served.thread._server.clients)
    assert served.thread._server._asked_bytes == 0


BATCHES = {"messages": lambda rows: [NOW] * rows, "Arrow": lambda rows: pa.record_batch({"topic": ["t"] * rows, "body": [b"x"] * rows})}


@pytest.mark.limits(frame_bytes=100 * ROW_BYTES)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_rows_count_as_what_they_take_in_memory(served: Served, client: Store, batch: Callable[[int], Any]) -> None:
    """One byte each, they took 75 times that."""
    assert len(client.send_batch(batch(100))) == 100
    with pytest.raises(IllegalArgumentError, match=r"101 rows take 60600 bytes .* at most 60000; send fewer rows a call"):
        client.send_batch(batch(101))
    assert served.store.lag("t", "g").ready == 100


@pytest.mark.limits(held_bytes=100 * ROW_BYTES)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_rows_under_way_are_held(served: Served, batch: Callable[[int], Any]) -> None:
    server, gate = served.thread._server, served.hold("send_batch")
    first, second = served.connect(), served.connect()
    sent = served.threads.submit(first.send_batch, batch(60))
    soon(lambda: bool(server._long))
    with pytest.raises(PollingFullError, match="nothing was done, try again later"):
        second.send_batch(batch(60))
    gate.set()
    assert len(sent.result(10)) == 60
    assert len(second.send_batch(batch(60))) == 60
    assert server._asked_bytes == 0


class Stranger:
    def __repr__(self) -> str:
        return "?"


TINY = {"dicts": {}, "lists": [], "dicts of one": {0: 0}, "strangers": Stranger()}


@pytest.mark.limits(frame_bytes=1_000_000)
@pytest.mark.parametrize("value", TINY.values(), ids=TINY)
def test_many_tiny_values_are_refused_before_they_are_made(served: Served, value: object) -> None:
    """16 MiB of them took more than a gigabyte."""
    client = served.raw()
    client.say([1, "ack", [[value] * 30_000], {}], [2, "topics.list", [], {}])
    answers = dict(answer(client) for _ in range(2))
    assert isinstance(answers[1], IllegalArgumentError)
    assert str(answers[1]) == "the values of this call take more than 2000000 bytes at this server; send fewer a call"
    assert answers[2] == []
    assert served.thread._server._asked_bytes == 0


@pytest.mark.limits(held_bytes=2_000_000)
@pytest.mark.parametrize("count", [20_000, 15_000])
def test_tiny_values_under_way_are_held(served: Served, count: int) -> None:
    """Also those of a request that is short."""
    server, gate = served.thread._server, served.hold("ack")
    first, second = served.raw(), served.raw()
    request: list[Any] = [1, "ack", [[[]] * count], {}]
    first.say(request)
    soon(lambda: bool(server._long))
    second.say(request)
    assert isinstance(answer(second)[1], PollingFullError)
    gate.set()
    assert isinstance(answer(first)[1], IllegalArgumentError)  # it was made
    assert server._asked_bytes == 0
