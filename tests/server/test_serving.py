"""A store over a connection: calls, waits, and who may connect."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import rmqstore
from rmqstore import (
    AccessDeniedError,
    Flow,
    FlowControlError,
    FormatVersionError,
    IllegalArgumentError,
    IllegalMessageError,
    Message,
    MessageBatch,
    PollingFullError,
    Store,
    StorePathError,
    UnsupportedOperationError,
    aio,
)
from rmqstore.server.calls import is_quick
from rmqstore.server.connection import Address, short_name
from rmqstore.server.listening import Entrance
from rmqstore.server.requests import Ask, Underway
from rmqstore.server.serving import ServerThread
from rmqstore.server.wire import HEAD, frame, unpack
from tests.pairs import DURABLE_PAIRS
from tests.server.served import ENGINE, NOW, SECOND, Raw, Served, answer, asked, let_turn, soon, waiting


def test_a_message_goes_in_and_comes_out(served: Served, client: Store) -> None:
    sent = client.send(Message("t", b"hello", tag="a", keys=("k",), properties={"p": "q"}), delay=SECOND)
    assert client.pending().total == 1
    served.clock.advance(1000)
    assert client.tick().handed_over == 1
    (popped,) = client.pop("t", "g")
    assert (popped.message_id, popped.body, popped.keys, popped.properties) == (sent.message_id, b"hello", ("k",), {"p": "q"})
    assert client.ack(popped) is rmqstore.AckOutcome.ACKED
    assert served.store.ack(popped) is rmqstore.AckOutcome.ALREADY_ACKED
    assert client.verify() == []


def test_what_is_due_now_is_in_its_topic_at_once(served: Served, client: Store) -> None:
    client.send(NOW, deliver_at_ms=served.clock.now_ms() - 5)
    assert len(client.pop("t", "g")) == 1


def test_a_pop_that_waits_gets_what_the_owner_sends_and_hands_over(served: Served, client: Store) -> None:
    served.store.send(NOW, delay_ms=1000)
    found = served.waits(client.pop, "t", "g", wait=60 * SECOND)
    served.clock.advance(1000)
    served.store.tick()
    assert len(found.result(10)) == 1


def test_waiting_pops_are_served_in_their_order(served: Served) -> None:
    found = [served.waits(served.connect().pop, "t", "g", max_messages=1, wait=60 * SECOND) for _ in range(8)]
    for number in range(8):
        served.store.send(Message("t", str(number).encode()))
        assert [each.body for each in found[number].result(10)] == [str(number).encode()]


def test_a_wait_ends_with_the_clock_and_with_real_time(served: Served, client: Store) -> None:
    found = served.waits(client.pop, "t", "g", wait=60 * SECOND)
    served.clock.advance(60_000)
    assert found.result(10) == client.pop("t", "g", wait_ms=20) == []
    assert waiting(served) == 0


@pytest.mark.parametrize("send", ["send", "send_batch"])
def test_a_send_waits_at_the_server_until_it_may_go_in(served: Served, client: Store, send: str) -> None:
    served.store.pauses.begin(Flow.SENDS)
    sent = NOW if send == "send" else [NOW]
    answer = served.waits(getattr(client, send), sent, timeout=60 * SECOND)
    served.connect().pauses.end(Flow.SENDS)
    answer.result(10)
    assert (waiting(served), served.thread._server._lines) == (0, {})
    assert len(client.pop("t", "g")) == 1
    served.store.pauses.begin(Flow.SENDS)
    answer = served.waits(getattr(client, send), sent, timeout=60 * SECOND)
    served.clock.advance(60_000)
    with pytest.raises(FlowControlError, match="sends are paused"):
        answer.result(10)
    with pytest.raises(FlowControlError, match="sends are paused"):
        getattr(client, send)(sent, timeout=timedelta(milliseconds=20))
    assert waiting(served) == 0
    assert served.store.lag("t", "g").ready == 0


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        (NOW, {"delay": 90 * SECOND}),
        (NOW, {"delay_level": 6}),  # 2 min
        (Message("t", b"x", properties={"TIMER_DELAY_SEC": "90"}), {}),
        (Message("t", b"x", properties={"DELAY": "6"}), {}),
    ],
)
@pytest.mark.parametrize("send", ["send", "send_batch"])
def test_a_delay_counts_from_the_call_over_a_connection_too(
    served: Served, client: Store, send: str, message: Message, asked: dict[str, Any]
) -> None:
    """T9: not from the try that was let in."""
    begun_ms = served.clock.now_ms()
    served.store.pauses.begin(Flow.SENDS)
    sent = served.waits(getattr(client, send), message if send == "send" else [message], **asked, timeout=600 * SECOND)
    served.clock.advance(60_000)
    served.store.pauses.end(Flow.SENDS)
    sent.result(10)
    (timer,) = served.store.scan().timers
    assert timer.deliver_at_ms == begun_ms + (120_000 if "DELAY" in message.properties or "delay_level" in asked else 90_000)


def test_a_send_whose_time_comes_while_it_waits_goes_to_its_topic(served: Served, client: Store) -> None:
    """T9."""
    served.store.pauses.begin(Flow.SENDS)
    sent = [served.waits(client.send, NOW, delay=30 * SECOND, timeout=600 * SECOND)]
    sent.append(served.waits(client.send_batch, [NOW], delay=30 * SECOND, timeout=600 * SECOND))
    served.clock.advance(60_000)
    served.store.pauses.end(Flow.SENDS)
    assert sent[0].result(10).handle is sent[1].result(10)[0].handle is None
    assert served.store.lag("t", "g").ready == 2


@pytest.mark.parametrize("send", ["send", "send_batch"])
def test_a_send_that_may_wait_is_refused_in_the_same_words(served: Served, send: str) -> None:
    message, client = Message("t", b"x", properties={"DELAY": "x"}), served.connect()
    for wrong, named in ((message, {}), (NOW, {"delay_level": 99}), (NOW, {"delay_ms": 5, "delay_level": 1}), (5, {"delay_ms": 5})):
        told = []
        for store in (served.store, client):
            with pytest.raises((ValueError, TypeError)) as error:
                getattr(store, send)(wrong if send == "send" else [wrong], **named, timeout=SECOND)
            told.append((error.type, str(error.value)))
        assert told[0] == told[1]


def test_room_that_is_made_while_a_batch_is_refused_is_not_missed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    put = served.store._placing.put

    def refuse_first(*arguments: Any) -> Any:
        monkeypatch.setattr(served.store._placing, "put", put)
        (line,) = served.thread._server._lines.values()
        (send,) = line.waiters
        served.store._waits.made_room()
        soon(lambda: send.is_woken)  # type: ignore[attr-defined]
        raise FlowControlError("there was no room")

    monkeypatch.setattr(served.store._placing, "put", refuse_first)
    assert len(served.connect().send_batch([NOW, NOW], timeout=60 * SECOND)) == 2
    assert len(served.store.pop("t", "g")) == 2


def test_a_client_that_goes_takes_its_send_along(served: Served, connection: Raw) -> None:
    served.store.pauses.begin(Flow.SENDS)
    connection.say([1, "send", [NOW], {"timeout": 60 * SECOND}], [2, "send", [NOW], {"timeout": 60 * SECOND}])
    soon(lambda: waiting(served) == 2)
    connection.say([3, "give_up", [1], {}])
    answers = dict(answer(connection) for _ in range(2))
    assert isinstance(answers[1], FlowControlError)
    connection.close()
    soon(lambda: waiting(served) == 0)
    served.store.pauses.end(Flow.SENDS)
    assert served.store.topics.list() == []


def test_acks_of_a_pop_that_waits_are_done_at_once(served: Served, client: Store) -> None:
    client.send(NOW)
    popped = client.pop("t", "g")
    found = served.waits(client.pop, "t", "g", wait=60 * SECOND, acks=[*popped, "no receipt"])
    assert served.store.lag("t", "g").in_flight == 0
    served.store.send(NOW)
    got = found.result(10)
    assert len(got) == 1
    assert list(got.acks) == [rmqstore.AckOutcome.ACKED, rmqstore.AckOutcome.UNKNOWN]


def test_a_client_that_goes_leaves_no_wait_behind(served: Served, connection: Raw) -> None:
    connection.say([1, "pop", *asked()])
    soon(lambda: waiting(served) == 1)
    connection.close()
    soon(lambda: waiting(served) == 0)
    served.store.send(NOW)
    assert len(served.store.pop("t", "g")) == 1


def test_a_wait_can_be_given_up(served: Served, connection: Raw) -> None:
    """What is no number of a wait harms nobody."""
    connection.say([1, "pop", *asked()], [2, "give_up", [[]], {}], [3, "give_up", [1], {}])
    assert dict(answer(connection) for _ in range(3)) == {1: [], 2: None, 3: None}


@pytest.mark.parametrize("seed", range(3))
def test_requests_arrive_whole_however_they_are_cut(served: Served, connection: Raw, seed: int) -> None:
    """Short and long ones side by side, several in a piece, and one in several."""
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice((3, 5_000, 16_300 + chance.randrange(100), 70_000, 400_000))) for _ in range(40)]
    data = b"".join(frame([1 + number, "send", [Message("t", body, queue_id=0)], {}]) for number, body in enumerate(bodies))
    answers = served.threads.submit(lambda: [answer(connection) for _ in bodies])
    at = 0
    while at < len(data):
        size = chance.choice((1, 2, 7, 100, 16_384, 65_536, 500_000))
        connection._socket.sendall(data[at : at + size])
        at += size
        if chance.randrange(2):
            let_turn(served.thread)
    assert [number for number, _ in answers.result(30)] == list(range(1, 1 + len(bodies)))
    connection.close()
    assert [each.body for each in served.store.read("t", limit=100).messages] == bodies


def test_a_call_with_a_used_number_is_refused(served: Served, connection: Raw) -> None:
    connection.say([1, "pop", *asked()], [1, "topics.list", [], {}])
    assert isinstance(answer(connection)[1], PollingFullError)
    assert waiting(served) == 1
    connection.close()
    soon(lambda: waiting(served) == 0)


def test_lines_end_with_their_last_pop(served: Served, client: Store) -> None:
    for number in range(5):
        assert client.pop(f"t{number}", "g", wait_ms=1) == []
    assert served.thread._server._lines == {}
    assert served.store._waits._waits == {}


def test_an_ack_is_durable_before_it_is_told(served: Served, client: Store) -> None:
    """R1: also where a pop that acks waits, or has to look several times."""
    client.send_batch([NOW, *[Message("t", b"x", tag="red")] * 3000])
    filtered = {"topic": "t", "filter": "blue"}
    for number, options in enumerate(({"wait_ms": 1, "topic": "elsewhere"}, filtered, {**filtered, "wait_ms": 1})):
        popped = client.pop("t", f"g{number}", max_messages=1)
        before = served.store.engine.pops.stats().position
        found = client.pop(group=f"g{number}", acks=popped, **options)
        assert list(found.acks) == [rmqstore.AckOutcome.ACKED]
        assert served.store.engine.pops.stats().durable_position > before, "the ack is the next step; those of looks need no sync"


def test_long_calls_are_synced_when_there_are_no_threads_for_them(served: Served, client: Store) -> None:
    """R1: as in a program whose main thread has ended, but for others."""
    served.thread._server._pool.shutdown()
    list(served.threads.map(lambda _: client.send_batch([NOW]), range(20)))
    stats = served.store.engine.pops.stats()
    assert stats.durable_position == stats.position
    assert len(client.pop("t", "g")) == 20


def test_a_stop_answers_what_has_come_in(served: Served, connection: Raw) -> None:
    server = served.thread._server
    stopping = threading.Event()

    def stop_first(call: Any) -> None:
        server._calls.append(call)  # it has come in, and the loop gets to it behind the stop
        stopping.set()

    server.take = stop_first  # type: ignore[method-assign]
    connection.say([1, "send_batch", [[NOW]], {}])
    assert stopping.wait(10)
    served.thread.stop()
    assert len(answer(connection)[1]) == 1  # type: ignore[arg-type]


def test_a_stop_closes_who_is_just_being_let_in(served: Served) -> None:
    """Taken from the listening socket before the stop, and no client yet: nobody else would close it."""
    server = served.thread._server
    stranger = socket.socket(socket.AF_UNIX)

    async def meet() -> None:
        with short_name(served.socket) as name:
            stranger.connect(name)
        await asyncio.sleep(0)  # this step is done before the loop takes the connection, in the same round of it
        await asyncio.create_task(server.stop())

    served.thread._done(meet())
    stranger.settimeout(10)
    assert stranger.recv(1) == b""
    stranger.close()
    gc.collect()  # a socket that was not closed warns here, which fails this test


def test_the_engine_is_elsewhere_so_that_a_connected_store_cannot_be_served(client: Store) -> None:
    with pytest.raises(UnsupportedOperationError, match="in the process that serves it"):
        _ = client.engine
    with pytest.raises(UnsupportedOperationError, match="in the process that serves it"):
        ServerThread(client, lambda entrance: entrance.listen("127.0.0.1", 0))


def test_a_server_is_not_stopped_by_a_thread_of_its_own(served: Served) -> None:
    """As where the collector runs there, and with it a finalizer that closes the store: it would wait for itself."""

    async def stop() -> None:
        served.thread.stop()

    with pytest.raises(RuntimeError, match="thread of its own"):
        served.thread._done(stop())
    with pytest.raises(RuntimeError, match="thread of its own"):
        served.thread._server._pool.submit(served.thread.stop).result(10)
    assert served.connect().topics.list() == []


def test_a_stop_waits_until_answers_are_read(served: Served, connection: Raw) -> None:
    served.store.send_batch([Message("t", bytes(1_000_000)) for _ in range(8)])
    connection.say([1, "read", ["t"], {}])
    soon(lambda: any(client.transport and client.transport.get_write_buffer_size() for client in served.thread._server.clients))
    stopped = served.threads.submit(served.thread.stop)
    assert len(answer(connection)[1]) == 8  # type: ignore[arg-type]
    stopped.result(10)
    assert connection._reader.read() == b""


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    store = rmqstore.open(tmp_path / "store", engine=ENGINE, services=False)
    ports: list[int] = []

    async def listen(entrance: Entrance) -> None:
        ports.extend(await entrance.listen("127.0.0.1", 0))
        await entrance.listen_unix(tmp_path / "socket")

    thread = ServerThread(store, listen, token="sesame sesame sesame")
    where = f"rmqstore://127.0.0.1:{ports[0]}"
    with pytest.raises(AccessDeniedError, match="wants a token; give"):
        rmqstore.connect(where)
    with pytest.raises(AccessDeniedError, match="this is not it"):
        rmqstore.connect(where, token="wrong")
    with rmqstore.connect(where, token="sesame sesame sesame") as client:
        assert client.topics.list() == []
    with rmqstore.connect(f"unix:{tmp_path / 'socket'}") as client:
        assert client.topics.list() == [], "who may open the socket is the user of the server"
    thread.stop()
    store.close()


def test_a_request_that_cannot_be_understood_is_answered_alone(served: Served, connection: Raw) -> None:
    """Those of other tasks go by the same connection; a client of a later version may say what this one does not know."""
    bad = [
        msgspec.msgpack.encode(request)
        for request in ([7, "send", [msgspec.msgpack.Ext(99, b"?")], {}], [300, "send", "?", {}], [70_000, "send", "?" * 1_000_000, {}])
    ]
    good = frame([8, "topics.list", [], {}])
    connection._socket.sendall(b"".join(HEAD.pack(len(each)) + each for each in bad) + good)
    answers = dict(answer(connection) for _ in range(4))
    assert answers.keys() == {7, 300, 70_000, 8}
    assert all(isinstance(answers[number], IllegalArgumentError) for number in (7, 300, 70_000))
    assert answers[8] == []
    assert served.thread._server._asked_bytes == 0, "what a client sent is held until it is answered"


def test_nothing_is_read_behind_what_cannot_be_understood(served: Served) -> None:
    """Over TLS more may come while the last answers go out; what had been understood was done once more then."""
    calls: list[int] = []
    served.raw()
    (client,) = served.thread._server.clients
    served.thread._server.take = lambda call: calls.append(call.number)  # type: ignore[method-assign]

    async def come() -> None:
        client.data_received(frame([7, "topics.list", [], {}]) + b"\xff\xff\xff\xff")
        client.data_received(frame([8, "topics.list", [], {}]))

    served.thread._done(come())
    assert calls == [7]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (frame([99, None]), FormatVersionError),
        *((each, IllegalArgumentError) for each in (b"\xff\xff\xff\xff", frame("GET / HTTP/1.1"), frame([1]), b"GET / HTTP/1.1\r\n\r\n")),
        (HEAD.pack(3) + b"\xc1\xc1\xc1", IllegalArgumentError),
    ],
)
def test_a_stranger_is_told_and_cut_off(served: Served, said: bytes, error: type[Exception]) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(served.socket))
        raw.sendall(said)
        answer = raw.makefile("rb").read()
    assert isinstance(unpack(answer[4:])[1], error)
    assert served.connect().topics.list() == []


def test_an_unknown_call_is_refused(served: Served) -> None:
    client: Any = served.connect()
    for name in ("close", "_settle", "engine", "topics.__init__", "nonsense"):
        with pytest.raises(IllegalArgumentError, match="knows no call"):
            client._ask(Ask(name))


def test_an_answer_that_is_too_long_is_refused_and_not_asked_for_again(
    served: Served, client: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore.server.serving.MAX_FRAME_BYTES", 1000)
    leases, calls = rmqstore.Store.leases, []

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(named)
        return leases(*given, **named)

    monkeypatch.setattr(rmqstore.Store, "leases", counted)
    served.store.send_batch([NOW] * 20)
    assert len(served.store.pop("t", "g", max_messages=20)) == 20
    with pytest.raises(IllegalArgumentError, match=r"the answer to leases has .* ask for less"):
        client.leases()
    assert len(calls) == 1


@pytest.mark.parametrize("wait", [{}, {"wait_ms": 1}])
def test_an_empty_batch_has_the_columns_that_it_has_in_the_process(served: Served, wait: dict[str, int]) -> None:
    here, there = (store.pop_batch("t", "g", **wait) for store in (served.store, served.connect()))  # type: ignore[arg-type]
    assert len(there) == 0
    assert there.columns.schema == here.columns.schema


def test_a_batch_that_a_client_calls_checked_is_checked(served: Served) -> None:
    client: Any = served.connect()
    columns = pa.RecordBatch.from_pylist([{"topic": "t", "body": b""}])
    with pytest.raises(IllegalMessageError, match="body"):
        client._ask(Ask("send_batch", (MessageBatch(columns=columns),)))
    client.send_batch(MessageBatch.of([NOW]))
    assert len(client.pop("t", "g")) == 1


def test_a_forked_child_has_connections_of_its_own(client: Store) -> None:
    client.send(NOW)
    child = os.fork()
    if not child:
        code = 1
        try:
            client.send(NOW)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    client.send(NOW)
    assert len(client.pop("t", "g")) == 3, "a child that went on with its parent's names would have repeated one"


def test_a_forked_child_keeps_no_connection_of_its_parent_open(served: Served) -> None:
    """The server sees the death of a client although its child lives on."""
    code = f"""
import os, threading, rmqstore
client = rmqstore.connect("unix:{served.socket}")
threading.Thread(target=client.pop, args=("t", "g"), kwargs=dict(wait_ms=60_000), daemon=True).start()
client.pop("u", "g")
os.read(0, 1)
ready = os.pipe()
if not os.fork():
    os.write(ready[1], b"x")
    os.read(0, 1)
    os._exit(0)
os.read(ready[0], 1)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        soon(lambda: waiting(served) == 1)
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        process.wait(30)
        soon(lambda: not served.thread._server.clients)
        assert waiting(served) == 0
        process.stdin.close()


def test_many_threads_use_one_client(served: Served, client: Store) -> None:
    list(served.threads.map(lambda n: client.send(Message("t", str(n).encode())), range(200)))
    popped = client.pop("t", "g", max_messages=1024)
    assert sorted(int(each.body) for each in popped) == list(range(200))


def test_over_tcp(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = ServerThread(served.store, lambda entrance: entrance.listen("127.0.0.1", 0))
    (port,) = listening.listening  # type: ignore[misc]
    client = rmqstore.connect(f"rmqstore://127.0.0.1:{port}")
    client.send(NOW)
    assert len(client.pop_batch("t", "g")) == 1
    for _ in range(2):
        with pytest.raises(UnsupportedOperationError, match="its own machine"):
            client.snapshot(tmp_path / "copy")
        monkeypatch.setattr("rmqstore.server.requests.OF_PATHS", ())  # a client that does not refuse by itself
    assert not (tmp_path / "copy").exists()
    client.close()
    listening.stop()


@pytest.mark.parametrize(
    ("where", "named", "why"),
    [
        (".", {"patience": timedelta(hours=1)}, "at most 0:05:00"),
        (".", {"tls": ssl.create_default_context()}, "rmqstores://host:port"),
        *((where, {}, "could be a directory or a port") for where in ("127.0.0.1:7450", "example.org:1", "[::1]:7450")),
        *(
            (where, {}, "is no address of a server")
            for where in ("http://x:1", "rmqstore://x", "rmqstore://:5", "rmqstore://x:99999", "rmqstore://a..b:1", "rmqstore://[x:1")
        ),
    ],
)
@pytest.mark.parametrize("connect", [rmqstore.connect, aio.connect])
def test_what_no_connection_can_be_made_with(connect: Callable[..., object], where: str, named: dict[str, Any], why: str) -> None:
    with pytest.raises(IllegalArgumentError, match=why):
        connect(where, **named)


def test_a_client_keeps_its_store_wherever_its_process_goes(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: a new connection, as a second thread needs one, leads to the same store."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(served.socket.parent)
    with rmqstore.connect(f"unix:{served.socket.name}") as client:
        waiting_pop = served.waits(client.pop, "t", "g", wait=10 * SECOND)
        monkeypatch.chdir(tmp_path / "elsewhere")
        client.send(NOW)
        assert len(waiting_pop.result(20)) == 1
    assert Address.parse("data").path == tmp_path / "elsewhere" / "data" / "rmqstore.sock"


def test_a_relative_name_in_a_directory_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    shared = partial(rmqstore.open, engine=ENGINE, share=True)
    for leads_to in (rmqstore.connect, aio.connect, shared, partial(aio.open, engine=ENGINE)):
        with pytest.raises(StorePathError, match="'data' is relative, and the working directory was removed"):
            leads_to("data")


def test_a_send_that_may_wait_for_ever_goes_on_when_the_server_is_back(
    served: Served, client: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a float, what is left of the longest ``timedelta`` is more than one can hold."""
    late, come_late = threading.Event(), Underway.come_late
    monkeypatch.setattr(Underway, "come_late", lambda call: (come_late(call), late.set()))
    served.thread.stop()
    sent = served.threads.submit(client.send, NOW, timeout=timedelta.max)
    soon(lambda: late.is_set() or sent.done())
    served.start()
    assert sent.result(20).timer is None
    assert late.is_set()
    assert served.store.lag("t", "g").ready == 1


@pytest.mark.parametrize("where", [5, None, b"abc", "", "\ud800", "rmqstore://\ud800"])
@pytest.mark.parametrize("connect", [rmqstore.connect, aio.connect])
def test_what_is_no_address_is_named(connect: Callable[..., object], where: Any) -> None:
    with pytest.raises(IllegalArgumentError):
        connect(where)


def test_what_holds_itself_is_not_sent(client: Store) -> None:
    properties: dict[str, Any] = {}
    properties["p"] = properties
    with pytest.raises(IllegalArgumentError, match="holds itself"):
        client.send(Message("t", b"x", properties=properties))
    client.send(NOW)


def test_an_address_of_the_sixth_version() -> None:
    assert str(Address.parse("rmqstore://[::1]:7450")) == "rmqstore://[::1]:7450"


def test_a_socket_with_a_long_name(served: Served, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    listening = ServerThread(served.store, lambda entrance: entrance.listen_unix(deep / "rmqstore.sock"))
    client = rmqstore.connect(deep)
    assert client.topics.list() == []
    client.close()
    listening.stop()


@pytest.mark.skipif(not DURABLE_PAIRS, reason="no engine that keeps anything is installed")
def test_a_snapshot_goes_where_the_client_means(client: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert client.snapshot("copy") == tmp_path / "copy"


def test_a_server_that_cannot_listen_leaves_no_thread(served: Served, tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(OSError, match=r"."):
        ServerThread(served.store, lambda entrance: entrance.listen_unix(tmp_path / "nowhere" / "socket"))
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("cancel_key", ["t", "k"]),
        ("cancel_keys", ["t", ["k"]]),
        *((call, [["name"] * 1001]) for call in ("cancel", "ack", "change_invisible", "release", "retry_later", "reject")),
    ],
)
def test_a_call_of_very_many_messages_holds_nobody_up(
    served: Served, monkeypatch: pytest.MonkeyPatch, call: str, arguments: list[object]
) -> None:
    gate, was_open = threading.Event(), []

    def slow(*_: object) -> str:
        was_open.append(gate.wait(5))
        return "done"

    monkeypatch.setattr(served.store, call, slow)
    other, connection = served.connect(), served.raw()
    connection.say([1, call, arguments, {}])
    soon(lambda: any(client.calls for client in served.thread._server.clients) or bool(was_open))
    assert other.topics.list() == []
    gate.set()
    assert answer(connection) == (1, "done")
    assert was_open == [True]


def test_calls_of_few_messages_need_no_thread() -> None:
    assert is_quick("ack", [["name"] * 1000], {})
    assert not is_quick("ack", [], {"leased": ["name"] * 1001})
    assert not is_quick("cancel_key", ["t", "k"], {})


def test_a_pop_that_cannot_wait_on_tells_what_became_of_its_acks(served: Served, client: Store) -> None:
    """P8: they were done with its first look."""
    client.topics.create("t", 4)
    client.send(Message("work", b"x"))
    popped = client.pop("work", "g")
    found = served.waits(client.pop, "t", "g", queue=3, wait=60 * SECOND, acks=popped)
    served.store.topics.delete("t")
    served.store.send(NOW)  # the topic is made anew, with one queue
    got = found.result(10)
    assert (list(got), list(got.acks)) == ([], [rmqstore.AckOutcome.ACKED])
    assert waiting(served) == 0
    with pytest.raises(IllegalArgumentError, match="not 3"):
        client.pop("t", "g", queue=3, wait=SECOND)
