"""Running the command line in this process, under a clock that stands still, in UTC; or in a process of its own."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

import rmqstore
from rmqstore import ManualClock, Store
from rmqstore.cli import main, stores
from rmqstore_conformance.stores import START_MS, directory
from tests.pairs import DURABLE_PAIRS

RMQSTORE = [sys.executable, "-m", "rmqstore"]
PATIENCE_S = 60

_STYLE = re.compile(r"\x1b\[[0-9;]*m")

ENGINE = DURABLE_PAIRS[0].timers if DURABLE_PAIRS else ""


class Result(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        return self.out.splitlines()


class Command:
    """Runs ``rmqstore`` commands on a store named ``data``; the name ``data`` in the arguments becomes its path."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        self.root = root
        self.data = root / "data"
        self.clock = clock

    def __call__(self, *arguments: str, stdin: str | bytes = b"", closed: str = "") -> Result:
        """Run a command to its end, without the stream that is closed."""
        out, err = io.BytesIO(), io.BytesIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin), "utf-8"))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", write_through=True))
            if closed:
                patch.setattr(sys, closed, None)
            with pytest.raises(SystemExit) as stopped:
                main([str(self.data) if each == "data" else each for each in arguments])
            texts = [stream.getvalue().decode() for stream in (out, err)]
        if "TTY_COMPATIBLE" in os.environ:
            texts = [_STYLE.sub("", text) for text in texts]
        code = stopped.value.code
        assert code is None or isinstance(code, int)
        assert "Traceback" not in texts[1]
        return Result(code or 0, *texts)

    def good(self, *arguments: str, stdin: str | bytes = b"") -> Result:
        """Run a command that must end well."""
        result = self(*arguments, stdin=stdin)
        assert result.code == 0, result
        return result

    def bad(self, code: int, *arguments: str, stdin: str | bytes = b"", closed: str = "") -> str:
        """Run a command that must end with ``code`` and without data; returns what it said, on one line."""
        result = self(*arguments, stdin=stdin, closed=closed)
        assert result.code == code, result
        assert result.out == ""
        return " ".join(result.err.split())

    def send(self, *arguments: str, body: str = "body") -> Any:
        """Send one message; returns the document about it."""
        return self.good("send", "data", "orders", body, "--create", "--engine", ENGINE, "--json", *arguments).json

    def file(self, name: str, content: str | bytes) -> str:
        """Write a file beside the store and return its path."""
        path = self.root / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def owner(self, **settings: Any) -> Store:
        """Open the store as its owner, in the program's own words."""
        return rmqstore.open(self.data, services=False, clock=self.clock, **settings)


_built_once = functools.cache(typer.main.get_command)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the local time zone; UTC to begin with."""

    def choose(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    choose("UTC")
    yield choose
    monkeypatch.undo()
    time.tzset()


@contextmanager
def command_line() -> Iterator[Command]:
    """Give the command line, for a store that is not there yet."""
    clock = ManualClock(START_MS)
    with pytest.MonkeyPatch.context() as patch, directory() as root:
        patch.setattr(typer.main, "get_command", _built_once)  # it takes longer than most commands
        patch.setattr(stores, "clock_factory", lambda: clock)
        patch.setenv("TZ", "UTC")
        time.tzset()
        for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        yield Command(root, clock)
    time.tzset()


@pytest.fixture
def cli() -> Iterator[Command]:
    """The command line, for a store that is not there yet."""
    with command_line() as command:
        yield command


@pytest.fixture
def now(cli: Command) -> None:
    """Let the command line have the time of this machine, with which doctors compare that of files."""
    cli.clock.set(time.time_ns() // 1_000_000)


# ---------------------------------------------------------------- processes


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory, which is that of this process."""
    with directory() as made, monkeypatch.context() as patch:
        patch.chdir(made)
        yield made


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command beside the test; it is gone afterwards."""
    command = [*RMQSTORE, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[bytes], holds: str) -> str:
    """Return the next line on stderr that holds this."""
    assert process.stderr is not None
    while read := process.stderr.readline().decode():
        if holds in read:
            return read.strip()
    raise AssertionError(f"the command ended without {holds!r}")


def printed(process: subprocess.Popen[bytes]) -> str:
    """Return the next line on stdout."""
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def ended(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> int:
    """End a command; returns its exit code."""
    process.send_signal(number)
    return process.wait(PATIENCE_S)


# ---------------------------------------------------------------- terminals


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make stdout count as a terminal of so many columns, without colours."""

    def become(columns: int) -> None:
        for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm"}.items():
            monkeypatch.setenv(name, value)

    return become


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Most commands need a store that outlives them, so an engine that keeps something."""
    if not ENGINE:
        here = Path(__file__).parent
        for item in items:
            if item.path.is_relative_to(here):
                item.add_marker(pytest.mark.skip(reason="no durable engine is installed"))
