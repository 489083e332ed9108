"""Commands in processes of their own: pipes that close, Ctrl-C, ``rmqstore serve`` and ``worker``; and those that go through an owner."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import trustme

import rmqstore
from rmqstore import AccessDeniedError, Flow, Message, Store, StoreUnavailableError, aio
from rmqstore.server.sharing import SharedStore
from rmqstore.store.directory import SOCKET_NAME
from tests.cli.conftest import ENGINE, PATIENCE_S, RMQSTORE, Command, ended, line, printed, started
from tests.pairs import DURABLE_PAIRS
from tests.server.served import soon


@pytest.fixture
def data(root: Path) -> Path:
    """A store with 200 messages in topic ``t``."""
    path = root / "data"
    with rmqstore.open(path, engine=ENGINE, services=False) as store:
        store.send_batch([Message("t", f"body {number}".encode(), message_id=f"m{number}") for number in range(200)])
    return path


def lag_of(data: Path) -> Any:
    with rmqstore.open(data, services=False) as store:
        return store.lag("t", "g")


@pytest.mark.parametrize("command", ["peek {} t --max 200", "timers {} --list --json", "config {} --explain", "pop {} t -g g --max 200"])
def test_a_reader_that_goes_away_is_no_error(data: Path, command: str) -> None:
    with rmqstore.open(data, services=False) as store:
        store.send_batch([Message("t", b"x" * 200) for _ in range(2000)], delay_ms=3_600_000)
    script = f"{sys.executable} -m rmqstore {command.format(data)} | head -n 1"
    result = subprocess.run(["bash", "-c", script], capture_output=True, check=False, timeout=PATIENCE_S)
    assert len(result.stdout.splitlines()) == 1
    assert b"Traceback" not in result.stderr
    assert b"rmqstore:" not in result.stderr
    assert b"Exception ignored" not in result.stderr


def test_what_the_reader_did_not_take_is_not_acked(data: Path) -> None:
    # The reader takes one line and closes; the pipe's buffer may hold more, but not all 200 messages of 40 KiB.
    with rmqstore.open(data, services=False) as store:
        store.send_batch([Message("large", b"x" * 40_000, message_id=f"m{number}") for number in range(50)])
    script = f"{sys.executable} -m rmqstore pop {data} large -g g --max 50 --json | head -n 1"
    subprocess.run(["bash", "-c", script], capture_output=True, check=False, timeout=PATIENCE_S)
    with rmqstore.open(data, services=False) as store:
        lag = store.lag("large", "g")
        assert lag.in_flight == 0, "what was not printed was given back"
        assert 40 <= lag.ready + lag.retry < 50


def test_follow_goes_on_until_ctrl_c_and_acks_what_it_printed(data: Path) -> None:
    with rmqstore.open(data, services=False) as store:
        store.send(Message("t", b"later", message_id="later"), delay_ms=1500)
    with started("pop", data, "t", "-g", "g", "--follow", "--json") as process:
        found = [json.loads(printed(process))["message_id"] for _ in range(201)]
        assert found == [*(f"m{number}" for number in range(200)), "later"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert errors.endswith(b"\n201 messages, acked.\n")
    lag = lag_of(data)
    assert (lag.ready, lag.in_flight, lag.retry) == (0, 0, 0)


def test_ctrl_c_while_waiting(data: Path) -> None:
    with started("--debug", "pop", data, "other", "-g", "g", "--wait", "1h", "--create") as process:
        until_s = time.monotonic() + PATIENCE_S
        while b"pid %d" % process.pid not in (data / "LOCK").read_bytes() and time.monotonic() < until_s:
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (130, b"")
    assert errors.startswith(b"Topic other is not there yet")
    assert b"Traceback" not in errors
    assert lag_of(data).ready == 200


def test_ctrl_c_between_two_batches_of_a_file(data: Path) -> None:
    read, write = os.pipe()
    row = b'{"body": "x"}\n'
    command = [*RMQSTORE, "send", str(data), "many", "-f", "-", "--batch", "1000"]
    with subprocess.Popen(command, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(read)
        os.write(write, row * 1500)
        with rmqstore.open(data, read_only=True) as store:
            until_s = time.monotonic() + PATIENCE_S
            while "many" not in [topic.name for topic in store.topics.list()] and time.monotonic() < until_s:
                store.refresh()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        os.close(write)
    assert (process.returncode, output) == (130, b"")
    assert errors == b"Interrupted: the first 1,000 rows are stored; run the same command again to go on, it stores nothing twice.\n"
    with rmqstore.open(data, services=False) as store:
        assert [topic.max_offsets for topic in store.topics.list() if topic.name == "many"] == [(1000,)]


# ---------------------------------------------------------------- serving


TOKEN = "a token that is long enough"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RMQSTORE, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@contextmanager
def serving(path: Path, *options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a store, which is made where there is none."""
    with started("serve", path, "--create", *([] if path.exists() else ["--engine", ENGINE]), *options) as process:
        line(process, "serving")
        yield process


def test_a_served_store_is_used_by_commands_and_programs(root: Path) -> None:
    data = root / "data"
    with serving(data) as server:
        assert run("send", data, "t", "hello").returncode == 0
        with rmqstore.connect(data) as store:
            store.send(Message("t", b"world"))
        popped = run("pop", data, "t", "-g", "g", "--max", "5", "--json")
        assert {json.loads(each)["body"] for each in popped.stdout.splitlines()} == {"hello", "world"}
        assert run("snapshot", data, root / "copy").returncode == 0
        assert ended(server) == 0
    with rmqstore.open(data, services=False) as store:
        assert store.lag("t", "g").in_flight == 0
        assert store.verify() == []
    with rmqstore.open(root / "copy", services=False) as store:
        assert store.topics.list()[0].name == "t"


@pytest.mark.parametrize("engine", [pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops])
def test_what_was_set_is_shown_before_it_is_durable(cli: Command, engine: str) -> None:
    with rmqstore.open(cli.data, share=True, engine=engine, flush="async", flush_interval_ms=3_600_000):
        shown = cli.good("group", "data", "g", "--max-retries", "3", "--backoff", "1s,5m", "--json").json
    assert shown == {"group": "g", "max_retries": 3, "backoff_ms": [1000, 300_000]}


def test_a_second_server_leaves_the_first_one_alone(cli: Command) -> None:
    with serving(cli.data):
        second = run("serve", cli.data)
        told = " ".join(second.stderr.split())
        assert second.returncode == 1
        assert "is open elsewhere" in told
        assert "one process serves a store: end that one first" in told
        assert "share=True" not in told
        cli.good("send", "data", "t", "hello")
        assert "is for who opens it" in cli.bad(1, "send", "data", "t", "hello", "--engine", ENGINE, "--create")


def test_a_server_leaves_the_socket_of_another_store_alone(root: Path) -> None:
    """X5: the store was moved while it was served, and another one has its name."""
    data = root / "data"
    with serving(data) as server:
        data.rename(root / "moved")
        with serving(data):
            assert ended(server) == 0
            rmqstore.connect(data).close()
    assert not (root / "moved" / SOCKET_NAME).exists()


def test_those_who_share_a_store_leave_it_to_its_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = root / "data"
    with serving(data) as server, rmqstore.open(data, share=True) as store, ThreadPoolExecutor(1) as threads:
        store.send(Message("t", b"1"))
        assert ended(server) == 0
        sent = threads.submit(store.send, Message("t", b"2"))
        with serving(data) as next_server:
            sent.result(PATIENCE_S)
            assert not store.is_owner
            monkeypatch.setattr("rmqstore.server.sharing._SERVER_BACK_S", 0.1)
            ended(next_server, signal.SIGKILL)
            store.send(Message("t", b"3"))
            assert store.is_owner
            assert [each.body for each in store.pop("t", "g")] == [b"1", b"2", b"3"]


def test_a_send_waits_for_the_end_of_a_pause(root: Path) -> None:
    data = root / "data"
    (root / "rows.jsonl").write_text('{"topic": "t", "body": "2"}\n{"topic": "t", "body": "3"}\n')
    with SharedStore(data, {"engine": ENGINE}, None, services=True, patience=timedelta(0)) as store:
        server = store._server
        assert server is not None
        store.pauses.begin(Flow.SENDS)
        assert "sends are paused" in run("send", data, "t", "1", "--timeout", "10ms").stderr
        with (
            started("send", data, "t", "1", "--timeout", "1m") as one,
            started("send", data, "--from-file", root / "rows.jsonl", "--timeout", "1m") as many,
        ):
            soon(lambda: server._server._waiting == 2)
            store.pauses.end(Flow.SENDS)
            assert (one.wait(PATIENCE_S), many.wait(PATIENCE_S)) == (0, 0)
        assert sorted(message.body for message in store.pop("t", "g")) == [b"1", b"2", b"3"]


def test_the_commands_start_without_the_server() -> None:
    code = "import sys, rmqstore.cli.app; print([name for name in ('asyncio', 'ssl', 'rmqstore.server.serving') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_server_opens_as_many_files_as_it_may(root: Path) -> None:
    """Else it would take 512 connections in most shells."""
    limits = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 3000)); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", limits, *RMQSTORE, "serve", root / "data", "--create", "--engine", ENGINE]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        line(server, "serving")
        assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (3000, 3000)
        ended(server)


# ---------------------------------------------------------------- who manages and watches a server


def page(url: str) -> str:
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read(), "utf-8")


def test_a_server_is_watched(root: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra metrics is not installed")
    with serving(root / "data", "--metrics", "127.0.0.1:0", "--health", "127.0.0.1:0", "--log", "json") as server:
        metrics, health = (json.loads(line(server, f"{name} of"))["message"].rpartition(" ")[2] for name in ("metrics", "health"))
        with rmqstore.connect(root / "data") as store:
            store.send(Message("t", b"x"))
            store.pop("t", "g")
        text = page(metrics)
        for name, label in {
            "rocketmq_messages_in_total": 'topic="t"',
            "rocketmq_messages_out_total": 'consumer_group="g"',
            "rocketmq_rpc_latency_milliseconds_count": 'request_code="pop"',
            "rocketmq_consumer_inflight_messages": 'topic="t"',
            "rmqstore_ready": "store=",
        }.items():
            (found,) = [each for each in text.splitlines() if each.startswith(f"{name}{{") and label in each]
            assert found.endswith(" 1.0"), found
        assert json.loads(page(health)) == json.loads(page(metrics.replace("/metrics", "/health")))
        assert ended(server) == 0
        assert server.stderr is not None
        assert [json.loads(each)["level"] for each in server.stderr.read().splitlines()] == ["info"]


def test_an_error_that_ends_a_server_is_a_line_of_json_too(root: Path) -> None:
    told = run("serve", root / "nowhere", "--log", "json")
    assert told.returncode == 1
    (said,) = map(json.loads, told.stderr.splitlines())
    assert (said["level"], said.keys()) == ("error", {"time", "level", "message"})
    assert "there is no store in" in said["message"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        said = json.loads(run("serve", root / "data", "--create", "--log", "json", "--listen", place).stderr.splitlines()[-1])
    assert f"--listen {place} cannot be had" in said["message"]
    said = json.loads(run("--debug", "serve", root / "nowhere", "--log", "json").stderr)
    assert said["error"].startswith("Traceback")


def test_metrics_need_what_is_to_be_installed(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    assert "pip install 'rmqstore[metrics]'" in cli.bad(1, "serve", "data", "--metrics", "127.0.0.1:0")


def managed(root: Path, given: socket.socket) -> subprocess.Popen[str]:
    """Serve a store as a service manager does that listens on a socket for it, and wants to be told in ``notify``."""
    serve = shlex.join([*RMQSTORE, "serve", str(root / "data")])
    script = f"exec 3<&{given.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ NOTIFY_SOCKET={root}/notify exec {serve}"
    return subprocess.Popen(["bash", "-c", script], pass_fds=[given.fileno()], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("name", ["shop.sock", "data/rmqstore.sock", ""])
def test_a_service_manager_listens_for_it_and_is_told(root: Path, name: str) -> None:
    rmqstore.open(root / "data", engine=ENGINE, services=False).close()
    with (
        socket.socket(socket.AF_UNIX if name else socket.AF_INET) as given,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        given.bind(str(root / name) if name else ("127.0.0.1", 0))
        given.listen()
        where = f"unix:{root / name}" if name else f"rmqstore://127.0.0.1:{given.getsockname()[1]}"
        manager.bind(str(root / "notify"))
        manager.settimeout(PATIENCE_S)
        for number in range(2):
            with managed(root, given) as server:
                try:
                    assert manager.recv(100) == b"READY=1"
                    with rmqstore.connect(where) as store:
                        store.send(Message("t", b"x"))
                        assert store.lag("t", "g").ready == number + 1
                    server.terminate()
                    assert server.wait(PATIENCE_S) == 0
                    assert manager.recv(100) == b"STOPPING=1"
                finally:
                    server.kill()


def test_a_socket_of_the_service_manager_that_lets_everybody_in_is_refused(root: Path) -> None:
    rmqstore.open(root / "data", engine=ENGINE, services=False).close()
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(root / "shop.sock"))
        given.listen()
        (root / "shop.sock").chmod(0o666)
        with managed(root, given) as server:
            assert "SocketMode=0600" in server.communicate(timeout=PATIENCE_S)[1]
    assert server.returncode != 0


# ---------------------------------------------------------------- who gets in over TCP


class Certificates:
    """An authority, with a certificate of the server and one of a client, as files."""

    def __init__(self, root: Path) -> None:
        authority = trustme.CA()
        self.authority, self.server = root / "authority.pem", root / "server.pem"
        self.client, self.client_key = root / "client.pem", root / "client.key"
        authority.cert_pem.write_to_path(self.authority)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(self.server)
        shown = authority.issue_cert("client@example.org")
        shown.cert_chain_pems[0].write_to_path(self.client)
        shown.private_key_pem.write_to_path(self.client_key)

    def trusting(self) -> ssl.SSLContext:
        """Return a client's context that knows the authority."""
        return ssl.create_default_context(cafile=self.authority)

    def known(self) -> ssl.SSLContext:
        """Return a client's context that also has a certificate by it."""
        context = self.trusting()
        context.load_cert_chain(self.client, self.client_key)
        return context


@pytest.fixture
def certificates(root: Path) -> Certificates:
    return Certificates(root)


@contextmanager
def listening(root: Path, *options: object) -> Iterator[str]:
    """Serve a store on a port; gives its address."""
    with serving(root / "data", "--listen", "127.0.0.1:0", *options) as server:
        yield line(server, "rmqstore").rpartition(" ")[2]


def refused(where: str, tls: ssl.SSLContext | None, error: type[Exception] | tuple[type[Exception], ...], match: str) -> None:
    """Neither a thread nor a coroutine gets in, and both are told at once."""

    async def work() -> None:
        await aio.connect(where, tls=tls)

    with pytest.raises(error, match=match):
        rmqstore.connect(where, tls=tls)
    with pytest.raises(error, match=match):
        asyncio.run(work())


def test_a_server_with_a_token_and_without_tls(root: Path, certificates: Certificates) -> None:
    (root / "token").write_text(f"{TOKEN}\n")
    with listening(root, "--token-file", root / "token") as where:
        with pytest.raises(AccessDeniedError):
            rmqstore.connect(where)
        with rmqstore.connect(where, token=TOKEN) as store:
            store.send(Message("t", b"x"))
            assert len(store.pop("t", "g")) == 1
        refused(where.replace("rmqstore:", "rmqstores:"), certificates.trusting(), AccessDeniedError, "do not agree on TLS")


def test_messages_go_through_tls(root: Path, certificates: Certificates) -> None:
    with listening(root, "--tls-cert", certificates.server) as where:
        with rmqstore.connect(where, tls=certificates.trusting()) as store:
            store.send_batch([Message("t", bytes([number]) * 100_000) for number in range(20)])
            (first, *_) = store.pop("t", "g", max_messages=1)

        async def work() -> None:
            async with aio.connect(where, tls=certificates.trusting()) as store:
                assert len(await store.pop("t", "g")) == 19
                await store.ack(first)

        asyncio.run(work())
        refused(where, None, AccessDeniedError, "do not agree on TLS")
        refused(where.replace("rmqstores", "rmqstore"), None, StoreUnavailableError, "write rmqstores:// if it wants TLS")


def test_a_client_shows_its_certificate(root: Path, certificates: Certificates) -> None:
    with listening(root, "--tls-cert", certificates.server, "--tls-ca", certificates.authority) as where:
        with rmqstore.connect(where, tls=certificates.known(), patience=timedelta(0)) as store:
            assert store.topics.list() == []
        # of a server that says no without an alert, as asyncio's does, a client sees only that it closes
        refused(where, certificates.trusting(), (AccessDeniedError, StoreUnavailableError), "tls=…")


# ---------------------------------------------------------------- workers

HANDLER = """
from rmqstore import Reject

def handle(message):
    if message.body == b"bad":
        raise Reject("bad body")
    print("VERSION", message.body.decode(), flush=True)
"""


@contextmanager
def working(root: Path, code: str, *options: object) -> Iterator[tuple[Store, subprocess.Popen[bytes]]]:
    """Share a store with a worker whose handler is in ``jobs.py``."""
    (root / "jobs.py").write_text(code)
    with (
        rmqstore.open(root / "data", share=True, engine=ENGINE) as store,
        started("worker", root / "data", "t", "g", "jobs:handle", *options) as worker,
    ):
        line(worker, "consumes t as g")
        yield store, worker


@pytest.fixture(params=["def", "async def"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """A kind of handler; children take SIGHUP, which a program that was started under nohup, as these tests may be, leaves alone."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield request.param
    signal.signal(signal.SIGHUP, before)


def test_a_worker_handles_and_begins_anew_with_the_code_as_it_is(root: Path, kind: str) -> None:
    handler = HANDLER.replace("def", kind)
    with working(root, handler.replace("VERSION", "first"), "--invisible", "10s") as (store, worker):
        store.send(Message("t", b"one"))
        assert printed(worker) == "first one"
        (root / "jobs.py").write_text(handler.replace("VERSION", "another"))
        worker.send_signal(signal.SIGHUP)
        line(worker, "1 done")
        line(worker, "consumes t as g")
        store.send_batch([Message("t", b"bad"), Message("t", b"two")])
        assert printed(worker) == "another two"
        assert ended(worker) == 0
        assert "1 done, 0 to be tried again, 1 rejected, 0 lost" in line(worker, "done")
        assert [each.reason for each in store.dead_letters.list("g")] == ["bad body"]
        assert store.pop("t", "g", wait=timedelta(0)) == []


def test_hangups_that_meet_a_worker_which_begins_anew_do_not_end_it(root: Path, kind: str) -> None:
    with working(root, HANDLER.replace("def", kind)) as (store, worker):
        for awaited in ("0 done", "consumes t as g") * 2:
            worker.send_signal(signal.SIGHUP)
            line(worker, awaited)
            worker.send_signal(signal.SIGHUP)
        store.send(Message("t", b"one"))
        assert printed(worker) == "VERSION one"
        assert ended(worker) == 0


def test_a_worker_shows_its_certificate_and_token(root: Path, certificates: Certificates, kind: str) -> None:
    (root / "jobs.py").write_text(f"{kind} handle(message):\n    print(message.body, flush=True)\n")
    (root / "token").write_text(f"{TOKEN}\n")
    both = ("--tls-ca", certificates.authority, "--token-file", root / "token")
    shown = ("--tls-cert", certificates.client, "--tls-key", certificates.client_key)
    with (
        listening(root, "--tls-cert", certificates.server, *both) as where,
        started("worker", where, "t", "g", "jobs:handle", *both, *shown) as worker,
        rmqstore.connect(root / "data", token=TOKEN) as store,
    ):
        line(worker, "consumes t as g")
        store.send(Message("t", b"hello"))
        assert printed(worker) == "b'hello'"
        assert ended(worker) == 0
        assert "1 done" in line(worker, "done")


WAITING = """
import asyncio
from pathlib import Path

async def handle(message):
    gate = Path(message.body.decode())
    print(gate, flush=True)
    await asyncio.to_thread(gate.read_text)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_ends_behind_the_async_handlers_that_run(root: Path, number: signal.Signals) -> None:
    gates = [root / f"gate-{number}" for number in range(5)]
    for gate in gates:
        os.mkfifo(gate)
    with working(root, WAITING, "--threads", "2") as (store, worker):
        store.send_batch([Message("t", gate.name.encode()) for gate in gates])
        begun = [printed(worker) for _ in range(2)]
        worker.send_signal(number)
        soon(lambda: store.lag("t", "g").in_flight == 2)  # what was not begun is given back
        for name in begun:
            (root / name).write_text("")
        assert "2 done, 0 to be tried again" in line(worker, "done")
        assert worker.wait(PATIENCE_S) == 0
        assert len(store.pop("t", "g")) == 3


def test_an_async_handler_that_ends_its_worker(root: Path) -> None:
    with working(root, "async def handle(message):\n    raise SystemExit('no more')\n") as (store, worker):
        store.send(Message("t", b"x"))
        assert "a handler ended its worker by SystemExit: no more" in line(worker, "rmqstore:")
        assert worker.wait(PATIENCE_S) == 1
