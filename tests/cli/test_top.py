"""``rmqstore top``: the screen, what it is made of, and the ways to a store."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from rich.console import Console

import rmqstore
from rmqstore import Message, Store
from rmqstore.cli import top
from rmqstore.server.serving import ServerThread
from rmqstore.store.directory import SOCKET_NAME
from tests.cli.conftest import ENGINE, PATIENCE_S, RMQSTORE, Command

HOUR = timedelta(hours=1)


@pytest.fixture
def busy(cli: Command) -> Command:
    """A store with timers that are overdue and that are not, and with groups in all states."""
    with rmqstore.open(cli.data, engine=ENGINE, services=False, clock=cli.clock) as store:
        for delay in (timedelta(seconds=1), timedelta(seconds=90), HOUR / 2, 3 * HOUR, timedelta(days=9)):
            store.send_batch([Message("later", b"x")] * 1500, delay=delay)
        store.send_batch([Message("orders", b"x")] * 9)
        first, second, *_ = store.pop("orders", "billing", max_messages=5)
        store.retry_later(first, HOUR)
        store.reject(second)
    cli.clock.advance(61_000)
    return cli


@contextmanager
def served(cli: Command, **options: Any) -> Iterator[tuple[Store, int]]:
    """Own the store and serve it, on its socket and on a port."""

    async def listen(entrance: Any) -> int:
        await entrance.listen_unix(cli.data / SOCKET_NAME)
        (port,) = await entrance.listen("127.0.0.1", 0)
        return int(port)

    with cli.owner() as store:
        server = ServerThread(store, listen, **options)
        try:
            assert isinstance(server.listening, int)
            yield store, server.listening
        finally:
            server.stop()


def test_one_screen(busy: Command) -> None:
    lines = busy.good("top", "data", "--once").lines
    assert lines[0].startswith(" not ready ")
    assert ENGINE in lines[0]
    assert str(busy.data) in lines[0]
    assert lines[1].startswith("! 1,500 timers are overdue, the first one by 60 s")
    assert "7,500 pending, 1,500 overdue by 60 s" in lines[2]
    bars = [(label, line.split()[-2]) for line, label in zip(lines[3:8], ("now", "in 1 min", "in 1 h", "in 1 d", "later"), strict=True)]
    assert all(f"│ {label}" in line for line, (label, _) in zip(lines[3:8], bars, strict=True))
    assert [number for _, number in bars] == ["1,500"] * 5
    assert lines[-2].split()[1:-1] == ["billing", "orders", "4", "3", "0", "1", "1"]


def test_the_same_as_a_document(busy: Command) -> None:
    told = busy.good("top", "data", "--json").json
    assert (told["pending"], told["overdue"], told["is_ready"]) == (7500, 1500, False)
    assert told["due"] == dict.fromkeys(("now", "in 1 min", "in 1 h", "in 1 d", "later"), 1500)
    (group,) = told["groups"]
    assert (group["ready"], group["in_flight"], group["backing_off"], group["dead"]) == (4, 3, 1, 1)
    assert told["disk_bytes"] > 0


def test_an_empty_store(cli: Command) -> None:
    cli.send()
    out = cli.good("top", "data", "--once").out
    assert " ready " in out
    assert "no group has popped yet" in out


def test_through_the_owner_by_an_address_and_beside_it(busy: Command) -> None:
    token = busy.file("token", "a token that is long enough\n")
    with served(busy) as (_, port):
        for where in ("data", f"rmqstore://127.0.0.1:{port}", f"unix:{busy.data / SOCKET_NAME}"):
            out = busy.good("top", where, "--once").out
            assert "7,500 pending" in out
            assert "read from its files" not in out
    with served(busy, token="a token that is long enough") as (_, port):
        assert "7,500 pending" in busy.good("top", f"rmqstore://127.0.0.1:{port}", "--once", "--token-file", token).out
        assert "wants a token" in busy.bad(1, "top", f"rmqstore://127.0.0.1:{port}", "--once")
    with busy.owner():
        assert "read from its files" in busy.good("top", "data", "--once").out


def test_rates_are_what_changed(cli: Command) -> None:
    cli.send()
    with served(cli) as (store, _):
        store.pop("orders", "billing")

        def shot(after_s: float) -> top.Shot:
            return msgspec.structs.replace(top._look(str(cli.data), None), taken_s=after_s)

        before = shot(0)
        assert set(top._rates(before, None).values()) == {None}
        store.send_batch([Message("orders", b"x")] * 10)
        store.send_batch([Message("orders", b"x")] * 6, delay_ms=1000)
        cli.clock.advance(2000)
        store.tick()
        store.send_batch([Message("new", b"x")] * 4, delay_ms=3_600_000)
        popped = store.pop("orders", "billing", max_messages=8)
        store.ack(popped[:2])
        store.reject(popped[2:4])
        store.pop("orders", "another")  # of which nobody knows where it began
        assert top._rates(shot(2), before) == {"sent": 10, "sent for later": 5, "handed over": 3, "popped": 4, "acked": 1}
        assert set(top._rates(shot(4), shot(3)).values()) == {0}


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_a_terminal(busy: Command, terminal: Callable[[int], None], columns: int) -> None:
    with busy.owner() as store:
        for number in range(40):
            store.pop("orders", f"a-group-with-a-rather-long-name-of-its-own-{number:02}", max_messages=number % 9 + 1)
    terminal(columns)
    lines = busy.good("top", "data", "--once").lines
    assert {len(line) for line in lines if line.startswith("│")} == {columns}
    assert sum("orders" in line for line in lines) == 41
    out = Console(width=columns, force_terminal=True)
    screen = out.render_lines(top._screen(out, top._look(str(busy.data), None), height=24))
    texts = ["".join(part.text for part in line) for line in screen]
    assert len(texts) == 24
    assert sum("orders" in line for line in texts) == 12
    assert "12 of 41" in "".join(texts)


def test_it_goes_on_until_it_is_ended(busy: Command) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs this in the background may ignore it, and a child does then
    with served(busy) as (store, _):
        main, other = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        command = [*RMQSTORE, "top", str(busy.data), "--every", "100ms"]
        with subprocess.Popen(command, stdin=other, stdout=other, stderr=subprocess.PIPE, env=environ) as process:
            os.close(other)
            try:
                seen(main, b"7,500")
                store.send_batch([Message("later", b"x")] * 27, delay=HOUR)
                seen(main, b"7,527")
                process.send_signal(signal.SIGINT)
                assert process.stderr is not None
                assert (process.wait(PATIENCE_S), process.stderr.read()) == (0, b"")
            finally:
                process.kill()
                os.close(main)


def seen(terminal: int, text: bytes) -> None:
    """Read what a terminal shows until it shows this."""
    shown = b""
    until_s = time.monotonic() + PATIENCE_S
    while text not in shown:
        assert select.select([terminal], [], [], max(until_s - time.monotonic(), 0))[0], shown
        shown += os.read(terminal, 65_536)
