"""How many connections a server has at a time, and what becomes of one more."""

from __future__ import annotations

import asyncio
import errno
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import PollingFullError, StoreUnavailableError, aio
from rmqstore.server import listening
from rmqstore.server.clients import Limits
from rmqstore.server.connection import Address, Connection
from rmqstore.server.wire import HEAD, frame, unpack
from tests.server.served import ENGINE, NOW, SECOND, Served, soon


@pytest.mark.limits(connections=2)
@pytest.mark.parametrize("place", ["unix", "tcp"])
def test_connections_beyond_the_limit_are_told_so(served: Served, place: str) -> None:
    where = f"unix:{served.socket}"
    if place == "tcp":
        (port,) = served.thread._done(served.thread._server.entrance.listen("127.0.0.1", 0))  # type: ignore[misc]
        where = f"rmqstore://127.0.0.1:{port}"
    first, second = rmqstore.connect(where), rmqstore.connect(where)

    async def connect_async() -> None:
        await aio.connect(where)

    for _ in range(3):
        with pytest.raises(PollingFullError, match="2 connections are there, which is the limit"):
            rmqstore.connect(where)
        with pytest.raises(PollingFullError, match="2 connections are there, which is the limit"):
            asyncio.run(connect_async())
    soon(lambda: len(served.thread._server.clients) == 2)
    found = served.waits(first.pop, "t", "g", wait=60 * SECOND)
    with pytest.raises(PollingFullError, match="2 connections are there"):
        first.send(NOW)  # on one more, beside that of the pop
    second.send(NOW)
    assert len(found.result(10)) == 1
    first.close()
    soon(lambda: len(served.thread._server.clients) == 1)
    rmqstore.connect(where).close()
    second.close()


@pytest.mark.limits(connections=2)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_repeat_that_finds_too_many_connections_says_that_the_send_may_have_been_done(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    server = served.thread._server
    answer = server._answer

    def lose(call: Any, data: bytearray, *, ends: bool = True) -> None:
        if call.name != "send":
            answer(call, data, ends=ends)
            return
        call.client.transport.abort()
        monkeypatch.setattr(server, "_answer", answer)
        server.limits = Limits(connections=0)

    monkeypatch.setattr(server, "_answer", lose)

    async def send() -> None:
        async with aio.connect(f"unix:{served.socket}") as client:
            await client.send(NOW)

    with pytest.raises(StoreUnavailableError, match=r"0 connections are there.* so it may have been done"):
        asyncio.run(send()) if is_async else served.connect().send(NOW)
    assert served.store.lag("t", "g").ready == 1


@pytest.mark.limits(connections=2)
def test_silent_connections_take_no_place_of_a_client(served: Served) -> None:
    """Nor the descriptors that the store needs: those that have been silent for longest are closed."""
    server = served.thread._server
    client = served.connect()
    client.send(NOW)
    silent = []
    for _ in range(200):
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].connect(str(served.socket))
    other = served.connect()
    soon(lambda: len(server.clients) <= 2 + listening._SPARE)
    other.send(NOW)
    assert len(client.pop("t", "g")) == 2
    assert silent[0].recv(1) == b""
    with pytest.raises(PollingFullError, match="2 connections are there"):
        served.connect()
    for each in silent:
        each.close()


_FULL = """
import logging, os, resource, sys, threading
import rmqstore
from rmqstore.server.serving import ServerThread
from rmqstore.server.watching import Watch

told = threading.Semaphore(0)
handler = logging.StreamHandler(sys.stdout)
handler.addFilter(lambda record: told.release() or True)
logging.getLogger().addHandler(handler)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
store = rmqstore.open(sys.argv[1], engine=sys.argv[2], services=False)
thread = ServerThread(store, lambda entrance: entrance.listen_unix(__import__("pathlib").Path(sys.argv[3])))
watch = Watch(store)
print(thread._done(watch.listen("127.0.0.1", 0)), flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "take":
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    if command == "free":
        for _ in range(2):
            told.acquire(timeout=30)  # somebody has come, and could not be taken
        for each in taken:
            os.close(each)
    if command == "send":
        for number in range(20):
            store.send(rmqstore.Message(f"t{number}", b"x"))
    if command == "end":
        break
    print("done", flush=True)
thread._done(watch.stop())
thread.stop()
store.close()
"""


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Path, int, Callable[[str], list[str]]]]:
    """A server, and the port for who watches it, in a process that may open 200 files; what tells it to do something returns what it said
    meanwhile."""
    place = tmp_path / "socket"
    with subprocess.Popen(
        [sys.executable, "-c", _FULL, tmp_path / "store", ENGINE, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def tell(command: str) -> list[str]:
            process.stdin.write(command + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            said = []
            while (line := process.stdout.readline().strip()) not in ("", "done"):  # type: ignore[union-attr]
                said.append(line)
            return said

        yield place, int(process.stdout.readline()), tell
        assert [each for each in tell("end") if "tries again" not in each] == []
        assert process.wait(30) == 0


def test_a_thousand_connections_leave_the_store_its_files(full: tuple[Path, int, Callable[[str], list[str]]]) -> None:
    place, _, tell = full
    silent = []
    for _ in range(1000):
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].connect(str(place))
    clients = [Connection(Address(place), None, None) for _ in range(100)]
    with pytest.raises(PollingFullError, match="100 connections are there"):
        Connection(Address(place), None, None)
    assert tell("send") == []
    assert clients[0].ask("lag", ["t19", "g"], {}).ready == 1  # type: ignore[attr-defined]
    for each in (*silent, *clients):
        each.close()


def test_who_comes_while_no_descriptor_is_left_is_let_in_later(full: tuple[Path, int, Callable[[str], list[str]]]) -> None:
    """Also who watches; the log tells of it once a second."""
    place, port, tell = full
    tell("take")
    watcher = socket.create_connection(("127.0.0.1", port), 10)
    watcher.sendall(b"GET /health HTTP/1.1\r\n\r\n")
    coming = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    for each in coming:
        each.connect(str(place))
        each.sendall(frame([1, None]))
        each.settimeout(10)
    said = tell("free")
    assert all(unpack(_frame_from(each))[0] == 0 for each in coming[-30:])
    assert watcher.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
    assert 2 <= len([*said, *tell("send")]) < 10
    for each in (*coming, watcher):
        each.close()


def _frame_from(connection: socket.socket) -> bytes:
    size = HEAD.unpack(connection.recv(HEAD.size, socket.MSG_WAITALL))[0]
    return connection.recv(size, socket.MSG_WAITALL)


def test_both_ends_of_a_connection_see_when_the_other_machine_is_gone(served: Served) -> None:
    """Also while something is on its way to it, when the system sends no probes."""
    (port,) = served.thread._done(served.thread._server.entrance.listen("127.0.0.1", 0))  # type: ignore[misc]
    client = Connection(Address(host="127.0.0.1", port=port), None, None)
    (here,) = served.thread._server.clients
    assert here.transport is not None
    for end in (client._socket, here.transport.get_extra_info("socket")):
        assert_told_of(end)
    client.close()

    async def connect_async() -> None:
        async with aio.connect(f"rmqstore://127.0.0.1:{port}") as store:
            assert store._connection is not None
            assert_told_of(store._connection._writer.get_extra_info("socket"))

    asyncio.run(connect_async())
    pytest.importorskip("uvloop").run(connect_async())


def assert_told_of(end: socket.socket) -> None:
    """The system tells when the machine at the other end is gone."""
    idle_s, every_s, count = (
        end.getsockopt(socket.IPPROTO_TCP, each) for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == (idle_s + every_s * count) * 1000 == 25_000


_GONE = """
import fcntl, socket, struct
from rmqstore.server import connection

def switch(flags):  # the only network that there is, on (IFF_UP) or off
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, 0x8914, struct.pack("16sH14x", b"lo", flags))

connection._KEEPALIVE["TCP_USER_TIMEOUT"] //= 80
switch(1)
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname(), 20)
server, _ = listener.accept()
connection.keep_alive(client)
switch(0)
client.sendall(b"on its way")
try:
    client.recv(1)
except OSError as error:
    print(error.errno)
"""


def test_a_machine_that_goes_with_data_on_its_way_is_missed() -> None:
    try:
        ended = subprocess.run(["unshare", "-rn", sys.executable, "-c", _GONE], capture_output=True, check=False, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if ended.stderr.startswith("unshare"):
        pytest.skip(ended.stderr)
    assert (ended.stdout, ended.stderr) == (f"{errno.ETIMEDOUT}\n", "")
