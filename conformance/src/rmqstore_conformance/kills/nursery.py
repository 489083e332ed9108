"""Children that are started ahead of time, so that their imports run beside the tests, and are killed by them."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from typing import Any

from rmqstore_conformance.stores import ANNOUNCED, own_environment

_WAIT_S = 60.0


class Child:
    """One worker process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rmqstore_conformance.kills.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=own_environment(),
        )
        self._rest = b""

    def give(self, job: dict[str, Any]) -> None:
        """Hand the job over, once the child has started."""
        assert self.next_event() == {"event": "warm"}
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps({**job, "plugins": ANNOUNCED}) + "\n").encode())

    def next_event(self) -> dict[str, Any] | None:
        """Return the next whole line, None at the end."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], _WAIT_S)
            assert ready, "the worker hangs"
            if not (more := os.read(self.process.stdout.fileno(), 1 << 16)):
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def kill(self, after_s: float = 0.0) -> list[dict[str, Any]]:
        """Kill it ``after_s`` from now, and return what it said until then."""
        until = time.perf_counter() + after_s
        if after_s > 0.002:
            time.sleep(after_s - 0.001)
        while time.perf_counter() < until:
            pass
        self.process.send_signal(signal.SIGKILL)
        said = []
        while (event := self.next_event()) is not None:
            said.append(event)
        self.reap()
        return said

    def reap(self) -> tuple[int, str]:
        """Wait for the end; returns the exit status and what the child complained of."""
        assert self.process.stderr is not None
        complaint = self.process.stderr.read().decode(errors="replace")
        status = self.process.wait(_WAIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return status, complaint


class Nursery:
    """Keeps a few children warm."""

    def __init__(self, warm: int = 2) -> None:
        self._warm = [Child() for _ in range(warm)]

    def child(self, job: dict[str, Any]) -> Child:
        """Return a child that has begun with ``job``."""
        self._warm.append(Child())
        child = self._warm.pop(0)
        child.give(job)
        return child

    def close(self) -> None:
        """End those that had nothing to do."""
        for child in self._warm:
            child.process.kill()
            child.reap()


class Typical:
    """How long the calls of each kind take, so that a kill can fall inside of one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seconds: dict[str, float] = {}

    def saw(self, op: str, seconds: float) -> None:
        """Take note of one call."""
        self._seconds[op] = 0.7 * self._seconds.get(op, seconds) + 0.3 * seconds

    def moment(self, op: str) -> float:
        """Return a random moment within a call of this kind, in seconds from its begin."""
        return self._random.random() * self._seconds.get(op, 0.002)
