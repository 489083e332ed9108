"""beanstalkd: jobs with a delay, in memory beside a log; it moves what is due by its own clock, and then writes nothing.

The protocol is spoken here, because its clients wait for each answer before they send the next command.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, BinaryIO, ClassVar, Final

import msgspec

from rmqstore_benchmarks.peers.peer import (
    LEASE_MS,
    Batch,
    Durability,
    Figures,
    PeerError,
    Task,
    Timer,
    TimerPeer,
    expect,
    popped,
    scheduled,
    timed,
)
from rmqstore_benchmarks.peers.servers import program, running, said

_LEASE_S: Final = LEASE_MS // 1000
_SPARE_S: Final = 3

MOST_SYNCED: Final = 5000
"""With -f0 each job is synced by itself, however many commands are sent at once: it is measured with so many at most."""


class Client:
    """A connection that sends many commands at once and then reads their answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._answers: BinaryIO = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()

    def send(self, commands: Sequence[bytes]) -> None:
        """Send commands; their answers are read one by one."""
        self._socket.sendall(b"".join(commands))

    def answer(self, expected: bytes) -> bytes | None:
        """Return the rest of an answer that begins as expected, None for another one."""
        line = self._answers.readline()
        if not line:
            raise PeerError("beanstalkd closed the connection")
        return line[len(expected) :].strip() if line.startswith(expected) else None

    def data(self, size: int) -> bytes:
        """Return the data behind an answer."""
        return self._answers.read(size + 2)[:size]


class Beanstalkd(TimerPeer):
    """One server on a port of the loopback, one connection; a batch is 1000 commands sent at once. A cancel is a delete of the job.

    Its clock cannot be set. So timers with the drawn delays are scheduled and cancelled; then others, which become due while the server is
    stopped by a signal, are what it hands over when it goes on, and what is popped.
    """

    name = "beanstalkd"
    settings: ClassVar[dict[Durability, str]] = {Durability.POWER_LOSS: "-f0", Durability.PROCESS_CRASH: "-f50"}
    how_to_get = "apt-get install beanstalkd"
    unwritten = frozenset({"drain"})

    @classmethod
    def version(cls) -> str | None:
        server = program("beanstalkd")
        return said(server, "-v").removeprefix("beanstalkd ") or "?" if server else None

    def start(self, stack: contextlib.ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        log = self.directory / "log"
        log.mkdir()
        command = [program("beanstalkd") or "beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(log), self.setting]
        user = [] if os.getuid() else ["-u", "root"]
        self._pid = stack.enter_context(running([*command, *user], self.directory, lambda: Client(port).close()))
        self._client = stack.enter_context(contextlib.closing(Client(port)))
        self._jobs: dict[int, bytes] = {}

    def prepare(self, batch: Batch) -> tuple[int, list[Timer]]:
        return batch.now_ms, batch.rows()

    def schedule(self, batch: tuple[int, list[Timer]]) -> None:
        now_ms, timers = batch
        ids = self._put([(timer.body, math.ceil((timer.due_ms - now_ms) / 1000)) for timer in timers])
        self._jobs.update(zip((timer.number for timer in timers), ids, strict=True))

    def _put(self, jobs: Sequence[tuple[bytes, int]]) -> list[bytes]:
        self._client.send([b"put 0 %d %d %d\r\n%b\r\n" % (delay_s, _LEASE_S, len(body), body) for body, delay_s in jobs])
        ids = [self._client.answer(b"INSERTED ") for _ in jobs]
        if None in ids:
            raise PeerError("beanstalkd refused a job")
        return [each for each in ids if each]

    def handles(self, batch: tuple[int, list[Timer]]) -> list[Any]:
        return [self._jobs[timer.number] for timer in batch[1]]

    def cancel(self, handles: list[Any]) -> int:
        self._client.send([b"delete %b\r\n" % job for job in handles])
        return sum(self._client.answer(b"DELETED") is not None for _ in handles)

    def drain(self, now_ms: int) -> int:
        """Let the server go on, and wait until all that became due is ready; ``now_ms`` is its own time."""
        os.kill(self._pid, signal.SIGCONT)
        while (counts := self._counts())["delayed"]:
            time.sleep(0.0005)
        return counts["ready"]

    def _counts(self) -> dict[str, int]:
        self._client.send([b"stats-tube default\r\n"])
        size = self._client.answer(b"OK ")
        lines = self._client.data(int(size or 0)).decode().splitlines()
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        return {state: int(fields[f"current-jobs-{state}"]) for state in ("delayed", "ready")}

    def pop_ack(self, count: int) -> list[bytes]:
        self._client.send([b"reserve-with-timeout 0\r\n"] * count)
        jobs, bodies = [], []
        for _ in range(count):
            if (reserved := self._client.answer(b"RESERVED ")) is not None:
                job, size = reserved.split()
                jobs.append(job)
                bodies.append(self._client.data(int(size)))
        if self.cancel(jobs) != len(jobs):
            raise PeerError("beanstalkd did not delete what was reserved")
        return bodies

    def measure(self, task: Task) -> Figures:
        if self.durability is Durability.POWER_LOSS:
            task = msgspec.structs.replace(task, timers=min(task.timers, MOST_SYNCED))
        figures, kept = scheduled(self, task)
        # The shortest delays may have passed by its clock.
        expect(sum(self._counts().values()), kept.total(), "delayed or ready")
        if task.distribution != "constant":
            return figures
        self.cancel(list(self._jobs.values()))
        return figures | self._own_clock(task, figures["schedule"])

    def _own_clock(self, task: Task, rate: float) -> Figures:
        """Hand over, pop and ack as many timers as the other systems do, due while the server is stopped."""
        bodies = [timer.body for batch in task.batches() for timer in batch.rows()]
        delay_s = math.ceil(3 * task.timers / rate) + _SPARE_S
        batches = [[(body, delay_s) for body in bodies[at : at + task.batch]] for at in range(0, len(bodies), task.batch)]
        timed(self._put, batches)
        expect(self._counts()["delayed"], len(bodies), "delayed")
        os.kill(self._pid, signal.SIGSTOP)
        time.sleep(delay_s + 1)
        moved: list[int] = []
        spent_s = timed(lambda now_ms: moved.append(self.drain(now_ms)), [0])
        expect(moved[0], len(bodies), "ready")
        return {"drain": len(bodies) / spent_s} | popped(self.pop_ack, Counter(bodies))
