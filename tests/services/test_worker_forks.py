"""Handlers that fork: the child is no second worker, and tells the store nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pairs import DURABLE_PAIRS

pytestmark = pytest.mark.skipif(not DURABLE_PAIRS, reason="needs a durable engine")

PROGRAM = """
import os, sys, time, warnings
import rmqstore
from rmqstore import Message

warnings.simplefilter("ignore")
path, engine, is_shared, end = sys.argv[1], sys.argv[2], sys.argv[3] == "True", sys.argv[4]
store = rmqstore.open(path, engine=engine, share=is_shared)
store.send_batch([Message("t", b"%d" % number, queue_id=0) for number in range(3)])
parent, handled = os.getpid(), []

def handler(message):
    if os.getpid() != parent:
        os.write(1, b"the child handles " + message.body)
    handled.append((message.body, message.attempt))
    if message.body == b"1":
        child = os.fork()
        if not child:
            if end == "exit":
                sys.exit(3)
            if end == "error":
                raise ValueError("of the child")
            return
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == {"exit": 3, "error": 1, "return": 0}[end], status

with store.consume("t", "g", handler) as worker:
    until_s = time.monotonic() + 20
    while worker.stats.done < 3 and time.monotonic() < until_s:
        time.sleep(0.01)
assert handled == [(b"0", 1), (b"1", 1), (b"2", 1)], handled
assert (worker.stats.done, worker.stats.lost) == (3, 0), worker.stats
lag = store.lag("t", "g")
assert (lag.ready, lag.in_flight, lag.retry, lag.dead) == (0, 0, 0, 0), lag
store.close()
print("well")
"""


@pytest.mark.parametrize("end", ["exit", "error", "return"])
@pytest.mark.parametrize("is_shared", [False, True], ids=["owned", "shared"])
def test_a_child_of_a_handler_leaves_the_worker_alone(tmp_path: Path, is_shared: bool, end: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s"), DURABLE_PAIRS[0].timers, str(is_shared), end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "well\n", done
    assert ("ValueError: of the child" in done.stderr) == (end == "error")


ASYNC_PROGRAM = """
import asyncio, os, sys, warnings
import rmqstore
from rmqstore import Message

warnings.simplefilter("ignore")
path, engine, end = sys.argv[1:4]
parent, handled = os.getpid(), []

async def handler(message):
    handled.append((message.body, message.attempt))
    await asyncio.sleep(0)
    if message.body == b"1":
        child = os.fork()
        if not child:
            if end == "exit":
                sys.exit(3)
            if end == "error":
                raise ValueError("of the child")
            return
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == {"exit": 3, "error": 1, "return": 0}[end], status

async def main():
    async with rmqstore.aio.open(path, engine=engine) as store:
        await store.send_batch([Message("t", b"%d" % number, queue_id=0) for number in range(3)])
        async with asyncio.timeout(30), store.consume("t", "g", handler) as worker:
            while worker.stats.done < 3:
                await asyncio.sleep(0.01)
        assert handled == [(b"0", 1), (b"1", 1), (b"2", 1)], handled
        lag = await store.lag("t", "g")
        assert (lag.ready, lag.in_flight, lag.retry, lag.dead) == (0, 0, 0, 0), lag
    print("well")

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["exit", "error", "return"])
def test_a_child_of_an_async_handler_leaves_the_worker_alone(tmp_path: Path, end: str) -> None:
    command = [sys.executable, "-c", ASYNC_PROGRAM, str(tmp_path / "s"), DURABLE_PAIRS[0].timers, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "well\n", done
    assert ("ValueError: of the child" in done.stderr) == (end == "error")
