"""Handlers that fork: the child is no second worker, and tells the store nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pairs import DURABLE_PAIRS

pytestmark = pytest.mark.skipif(not DURABLE_PAIRS, reason="needs a durable engine")

FORKING = """
import asyncio, os, sys, threading, warnings
import rmqstore
from rmqstore import Message

warnings.simplefilter("ignore")
path, engine, way, end = sys.argv[1:]
parent, handled = os.getpid(), []

def handle(message):
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
    if message.body == b"2":
        finished.set()

def check(stats, lag):
    assert handled == [(b"0", 1), (b"1", 1), (b"2", 1)], handled
    assert (stats.done, stats.lost) == (3, 0), stats
    assert (lag.ready, lag.in_flight, lag.retry, lag.dead) == (0, 0, 0, 0), lag
    print("well")

messages = [Message("t", b"%d" % number, queue_id=0) for number in range(3)]
"""

THREADS = """
finished = threading.Event()
with rmqstore.open(path, engine=engine, share=way == "shared") as store:
    store.send_batch(messages)
    with store.consume("t", "g", handle) as worker:
        finished.wait(20)
    check(worker.stats, store.lag("t", "g"))
"""

TASKS = """
finished = asyncio.Event()

async def handler(message):
    await asyncio.sleep(0)
    handle(message)

async def main():
    async with rmqstore.aio.open(path, engine=engine) as store:
        await store.send_batch(messages)
        async with asyncio.timeout(30), store.consume("t", "g", handler) as worker:
            await finished.wait()
        check(worker.stats, await store.lag("t", "g"))

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["exit", "error", "return"])
@pytest.mark.parametrize("way", ["owned", "shared", "tasks"])
def test_a_child_of_a_handler_leaves_the_worker_alone(tmp_path: Path, way: str, end: str) -> None:
    program = FORKING + (TASKS if way == "tasks" else THREADS)
    command = [sys.executable, "-c", program, str(tmp_path / "s"), DURABLE_PAIRS[0].timers, way, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "well\n", done
    assert ("ValueError: of the child" in done.stderr) == (end == "error")
