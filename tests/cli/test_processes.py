"""The command in processes of its own: pipes that close, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import Message
from tests.cli.conftest import ENGINE, PATIENCE_S, RMQSTORE, printed, started


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
