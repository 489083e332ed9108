"""``rmqstore serve`` and ``worker`` as processes, and commands that go through the owner of a store."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest

import rmqstore
from rmqstore import Flow, Message
from rmqstore.server.sharing import SharedStore
from rmqstore.store.directory import SOCKET_NAME
from rmqstore_conformance.stores import directory
from tests.cli.conftest import ENGINE, Command
from tests.cli.test_processes import _PATIENCE_S, RMQSTORE, started
from tests.pairs import DURABLE_PAIRS
from tests.server.served import soon

HANDLER = """
from rmqstore import Reject

def handle(message):
    if message.body == b"bad":
        raise Reject("bad body")
    print("VERSION", message.body.decode(), flush=True)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    with directory() as made:
        yield made


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RMQSTORE, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)


def line(process: subprocess.Popen[bytes], holds: str) -> str:
    """Return the next line on stderr that holds this."""
    assert process.stderr is not None
    while read := process.stderr.readline().decode():
        if holds in read:
            return read.strip()
    raise AssertionError(f"the command ended without {holds!r}")


@contextmanager
def serving(path: Path, *options: object) -> Iterator[subprocess.Popen[bytes]]:
    with started("serve", path, *options) as process:
        line(process, "serving")
        yield process


def test_a_served_store_is_used_by_commands_and_programs(root: Path) -> None:
    data = root / "data"
    with serving(data, "--create", "--engine", ENGINE) as server:
        assert run("send", data, "t", "hello").returncode == 0
        with rmqstore.connect(data) as store:
            store.send(Message("t", b"world"))
        popped = run("pop", data, "t", "-g", "g", "--max", "5", "--json")
        assert {json.loads(each)["body"] for each in popped.stdout.splitlines()} == {"hello", "world"}
        assert run("snapshot", data, root / "copy").returncode == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(_PATIENCE_S) == 0
    with rmqstore.open(data, services=False) as store:
        assert store.lag("t", "g").in_flight == 0
        assert store.verify() == []
    with rmqstore.open(root / "copy", services=False) as store:
        assert store.topics.list()[0].name == "t"


@pytest.mark.parametrize("engine", [pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops])
def test_what_was_set_is_shown_before_it_is_durable(root: Path, engine: str) -> None:
    data = root / "data"
    with serving(data, "--create", "--engine", engine, "--set", "flush=async", "--set", "flush_interval_ms=3600000"):
        assert run("send", data, "t", "hello").returncode == 0
        shown = run("group", data, "g", "--max-retries", 3, "--backoff", "1s,5m", "--json")
    assert json.loads(shown.stdout) == {"group": "g", "max_retries": 3, "backoff_ms": [1000, 300000]}


def test_a_second_server_leaves_the_first_one_alone(root: Path) -> None:
    data = root / "data"
    with serving(data, "--create", "--engine", ENGINE):
        second = run("serve", data)
        assert second.returncode == 1
        assert "is open elsewhere" in second.stderr
        assert run("send", data, "t", "hello").returncode == 0
        given = run("send", data, "t", "hello", "--engine", ENGINE, "--create")
        assert given.returncode == 1
        assert "is for who opens it" in given.stderr


def test_a_server_leaves_the_socket_of_another_store_alone(root: Path) -> None:
    """X5: the store was moved while it was served, and another one has its name."""
    data = root / "data"
    with serving(data, "--create", "--engine", ENGINE) as server:
        data.rename(root / "moved")
        with serving(data, "--create", "--engine", ENGINE):
            server.terminate()
            assert server.wait(_PATIENCE_S) == 0
            rmqstore.connect(data).close()
    assert not (root / "moved" / SOCKET_NAME).exists()


def test_those_who_share_a_store_leave_it_to_its_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = root / "data"
    with (
        serving(data, "--create", "--engine", ENGINE) as server,
        rmqstore.open(data, share=True) as store,
        ThreadPoolExecutor(1) as threads,
    ):
        store.send(Message("t", b"1"))
        server.terminate()
        assert server.wait(_PATIENCE_S) == 0
        sent = threads.submit(store.send, Message("t", b"2"))
        with serving(data) as next_server:
            sent.result(_PATIENCE_S)
            assert not store.is_owner
            monkeypatch.setattr("rmqstore.server.sharing._SERVER_BACK_S", 0.1)
            next_server.kill()
            next_server.wait(_PATIENCE_S)
            store.send(Message("t", b"3"))
            assert store.is_owner
            assert [each.body for each in store.pop("t", "g")] == [b"1", b"2", b"3"]


def test_a_worker_makes_no_store(root: Path) -> None:
    result = run("worker", root / "nowhere", "t", "g", "json:loads")
    assert result.returncode == 1
    assert "there is no store" in result.stderr
    assert not (root / "nowhere").exists()


def test_a_service_manager_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(root / "notify"))
        manager.settimeout(_PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(root / "notify"))
        with serving(root / "data", "--create", "--engine", ENGINE) as server:
            assert manager.recv(100) == b"READY=1"
            server.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"


def page(url: str) -> str:
    with urlopen(url, timeout=_PATIENCE_S) as answer:
        return str(answer.read(), "utf-8")


def test_a_server_is_watched(root: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra metrics is not installed")
    options = ("--metrics", "127.0.0.1:0", "--health", "127.0.0.1:0", "--log", "json")
    with serving(root / "data", "--create", "--engine", ENGINE, *options) as server:
        metrics = json.loads(line(server, "metrics of"))["message"].rpartition(" ")[2]
        health = json.loads(line(server, "health of"))["message"].rpartition(" ")[2]
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
        server.send_signal(signal.SIGTERM)
        assert server.wait(_PATIENCE_S) == 0
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
    assert "HOST:PORT" in cli.bad(2, "serve", "data", "--health", "9464")


@pytest.mark.parametrize("name", ["shop.sock", "data/rmqstore.sock", ""])
def test_a_service_manager_listens_for_it(root: Path, name: str) -> None:
    rmqstore.open(root / "data", engine=ENGINE, services=False).close()
    family = socket.AF_UNIX if name else socket.AF_INET
    with socket.socket(family) as made, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        made.bind(str(root / name) if name else ("127.0.0.1", 0))
        made.listen()
        where = f"unix:{root / name}" if name else f"rmqstore://127.0.0.1:{made.getsockname()[1]}"
        manager.bind(str(root / "notify"))
        manager.settimeout(_PATIENCE_S)
        serve = shlex.join([*RMQSTORE, "serve", str(root / "data")])
        for number in range(2):
            command = ["bash", "-c", f"exec 3<&{made.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ NOTIFY_SOCKET={root}/notify exec {serve}"]
            with subprocess.Popen(command, pass_fds=[made.fileno()]) as server:
                try:
                    assert manager.recv(100) == b"READY=1"
                    with rmqstore.connect(where) as store:
                        store.send(Message("t", b"x"))
                        assert store.lag("t", "g").ready == number + 1
                    server.terminate()
                    assert server.wait(_PATIENCE_S) == 0
                    assert manager.recv(100) == b"STOPPING=1"
                finally:
                    server.kill()


def test_a_socket_of_the_service_manager_that_lets_everybody_in_is_refused(root: Path) -> None:
    rmqstore.open(root / "data", engine=ENGINE, services=False).close()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(root / "shop.sock"))
        made.listen()
        (root / "shop.sock").chmod(0o666)
        serve = shlex.join([*RMQSTORE, "serve", str(root / "data")])
        command = ["bash", "-c", f"exec 3<&{made.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec {serve}"]
        ended = subprocess.run(command, pass_fds=[made.fileno()], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert ended.returncode != 0
    assert "SocketMode=0600" in ended.stderr


def test_over_tcp_with_a_token(root: Path) -> None:
    (root / "token").write_text("a token that is long enough\n")
    with serving(root / "data", "--create", "--engine", ENGINE, "--listen", "127.0.0.1:0", "--token-file", root / "token") as server:
        where = line(server, "rmqstore://").rpartition(" ")[2]
        with pytest.raises(rmqstore.AccessDeniedError):
            rmqstore.connect(where)
        with rmqstore.connect(where, token="a token that is long enough") as store:
            store.send(Message("t", b"x"))
            assert len(store.pop("t", "g")) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--listen", "0.0.0.0:0"), "give --token-file"),
        (("--listen", "nonsense"), "neither unix nor HOST:PORT"),
        (("--tls-key", "FILE"), "give --tls-cert"),
        (("--token-file", "FILE"), "can be guessed"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "FILE"), "--tls-cert FILE cannot be used"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "FILE", "--tls-ca", "FILE"), "--tls-ca FILE cannot be used"),
    ],
)
def test_what_cannot_be_served_is_refused(cli: Command, options: tuple[str, ...], told: str) -> None:
    file = cli.file("file", "short")
    result = cli("serve", "data", "--create", *(file if each == "FILE" else each for each in options))
    assert result.code != 0
    assert told.replace("FILE", file) in " ".join(result.err.split())
    assert not cli.data.exists()


def test_a_store_that_is_open_elsewhere_and_not_served(root: Path) -> None:
    with rmqstore.open(root / "data", engine=ENGINE):
        result = run("send", root / "data", "t", "x")
        served = run("serve", root / "data")
    assert result.returncode == 1
    assert "is open elsewhere" in result.stderr
    assert served.returncode == 1
    assert "one process serves a store: end that one first" in " ".join(served.stderr.split())
    assert "share=True" not in served.stderr


@pytest.fixture
def hangups() -> Iterator[None]:
    """Let children take SIGHUP, which a program that was started under nohup, as these tests may be, leaves alone."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_worker_handles_and_begins_anew_with_the_code_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    handler = HANDLER.replace("def", kind)
    monkeypatch.chdir(root)
    (root / "jobs.py").write_text(handler.replace("VERSION", "first"))
    with (
        rmqstore.open(root / "data", share=True, engine=ENGINE) as store,
        started("worker", root / "data", "t", "g", "jobs:handle", "--invisible", "10s") as process,
    ):
        assert process.stdout is not None
        line(process, "consumes t as g")
        store.send(Message("t", b"one"))
        assert process.stdout.readline() == b"first one\n"
        (root / "jobs.py").write_text(handler.replace("VERSION", "another"))
        process.send_signal(signal.SIGHUP)
        line(process, "1 done")
        line(process, "consumes t as g")
        store.send_batch([Message("t", b"bad"), Message("t", b"two")])
        assert process.stdout.readline() == b"another two\n"
        process.send_signal(signal.SIGTERM)
        assert "1 done, 0 to be tried again, 1 rejected, 0 lost" in line(process, "done")
        assert process.wait(_PATIENCE_S) == 0
        assert [each.reason for each in store.dead_letters.list("g")] == ["bad body"]
        assert store.pop("t", "g", wait=timedelta(0)) == []


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_hangups_that_meet_a_worker_which_begins_anew_do_not_end_it(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(root)
    (root / "jobs.py").write_text(HANDLER.replace("def", kind).replace("VERSION", "first"))
    with (
        rmqstore.open(root / "data", share=True, engine=ENGINE) as store,
        started("worker", root / "data", "t", "g", "jobs:handle") as process,
    ):
        assert process.stdout is not None
        line(process, "consumes t as g")
        for awaited in ("0 done", "consumes t as g") * 2:
            process.send_signal(signal.SIGHUP)
            line(process, awaited)
            process.send_signal(signal.SIGHUP)
        store.send(Message("t", b"one"))
        assert process.stdout.readline() == b"first one\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_S) == 0


WAITING = """
import asyncio
from pathlib import Path

async def handle(message):
    gate = Path(message.body.decode())
    print(gate, flush=True)
    await asyncio.to_thread(gate.read_text)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_ends_behind_the_async_handlers_that_run(root: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.chdir(root)
    (root / "jobs.py").write_text(WAITING)
    gates = [root / f"gate-{number}" for number in range(5)]
    for gate in gates:
        os.mkfifo(gate)
    with (
        rmqstore.open(root / "data", share=True, engine=ENGINE) as store,
        started("worker", root / "data", "t", "g", "jobs:handle", "--threads", "2") as process,
    ):
        assert process.stdout is not None
        line(process, "consumes t as g, 2 at a time")
        store.send_batch([Message("t", gate.name.encode()) for gate in gates])
        begun = [process.stdout.readline().decode().strip() for _ in range(2)]
        process.send_signal(number)
        soon(lambda: store.lag("t", "g").in_flight == 2)  # what was not begun is given back
        for name in begun:
            (root / name).write_text("")
        assert "2 done, 0 to be tried again" in line(process, "done")
        assert process.wait(_PATIENCE_S) == 0
        assert len(store.pop("t", "g")) == 3


def test_an_async_handler_that_ends_its_worker(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root / "jobs.py").write_text("async def handle(message):\n    raise SystemExit('no more')\n")
    with (
        rmqstore.open(root / "data", share=True, engine=ENGINE) as store,
        started("worker", root / "data", "t", "g", "jobs:handle") as process,
    ):
        store.send(Message("t", b"x"))
        assert "a handler ended its worker by SystemExit: no more" in line(process, "rmqstore:")
        assert process.wait(_PATIENCE_S) == 1


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
            assert (one.wait(_PATIENCE_S), many.wait(_PATIENCE_S)) == (0, 0)
        assert sorted(message.body for message in store.pop("t", "g")) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("store", "option", "told"),
    [
        ("data", "--tls-ca", "a directory is shared without"),
        ("data", "--token-file", "a directory is shared without"),
        ("rmqstore://127.0.0.1:1", "--tls-cert", "TLS is for an address of the form rmqstores://HOST:PORT"),
        ("rmqstores://127.0.0.1:1", "--tls-key", "give --tls-cert"),
        ("rmqstores://127.0.0.1:1", "--tls-cert", "--tls-cert FILE cannot be used"),
        ("rmqstores://127.0.0.1:1", "--tls-ca", "--tls-ca FILE cannot be used"),
    ],
)
def test_options_of_a_worker_that_contradict_each_other(cli: Command, store: str, option: str, told: str) -> None:
    file = cli.file("file", "short")
    result = cli("worker", store, "t", "g", "json:loads", option, file)
    assert result.code != 0
    assert told.replace("FILE", file) in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        ("jobs", "is not MODULE:FUNCTION"),
        ("nojobs:x", "cannot be found"),
        ("json:nothing", "cannot be found"),
        ("sys:path", "is no function"),
    ],
)
def test_a_handler_that_is_none(cli: Command, handler: str, told: str) -> None:
    result = cli("worker", "data", "t", "g", handler)
    assert result.code != 0
    assert told in " ".join(result.err.split())


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
        server.send_signal(signal.SIGTERM)
        line(server, "ended")
