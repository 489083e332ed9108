"""The systems that are programs of their own: servers, each found, started without a fixed port, waited for, and ended by its process id.

And RocketMQ's own TimerMessageStore, without a broker: a Java driver over its published jars, built by Maven when it is first needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import msgspec

from rmqstore_benchmarks.peers.peer import (
    HAND_OVER_BATCH,
    LEASE_MS,
    Batch,
    Durability,
    Figures,
    Peer,
    PeerError,
    Taken,
    Task,
    drained,
    expect,
    scheduled,
)

_START_S: Final = 30
_STOP_S: Final = 30


def program(name: str, places: str = "") -> str | None:
    """Return the path of a program on ``PATH``, or the last one that the pattern ``places`` finds under /usr/lib."""
    there = sorted(Path("/usr/lib").glob(places), key=lambda path: [int(part) for part in path.parts if part.isdigit()]) if places else []
    return shutil.which(name) or (str(there[-1]) if there else None)


def said(*command: str) -> str:
    """Return what a program prints on stdout; empty when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def unprivileged() -> dict[str, Any]:
    """Return arguments for ``subprocess`` that run a program as nobody when this process is root."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def running(
    command: Sequence[str], directory: Path, ready: Callable[[], object], stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[int]:
    """Run a server for the length of a block; gives its process id once ``ready`` no longer raises.

    Raises:
        PeerError: it ended at once or was not ready in time; with the end of its log.
    """
    log = directory / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options)
    try:
        until_s = time.monotonic() + _START_S
        while True:
            try:
                ready()
                break
            except Exception as error:
                ended = server.poll()
                if ended is not None or time.monotonic() > until_s:
                    tail = log.read_text(errors="replace")[-500:]
                    raise PeerError(f"{command[0]} did not start (exit status {ended}): {tail}") from error
            time.sleep(0.02)
        yield server.pid
    finally:
        server.send_signal(stop)
        # One that was stopped must go on to end.
        server.send_signal(signal.SIGCONT)
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


class Server(Peer, ABC):
    """A system that runs beside the process that measures it.

    Attributes:
        program: its name on ``PATH``, or else below /usr/lib, where ``places`` is a pattern.
        version_option: makes it tell its version.
        client: the module that speaks with it; empty where that is done here.
    """

    program: ClassVar[str]
    places: ClassVar[str] = ""
    version_option: ClassVar[str] = "--version"
    client: ClassVar[str] = ""

    @classmethod
    def found(cls) -> str:
        """Return the path of the program; empty when it is not there."""
        return program(cls.program, cls.places) or ""

    @classmethod
    def version(cls) -> str | None:
        if not cls.found() or (cls.client and not importlib.util.find_spec(cls.client)):
            return None
        number = re.search(r"\d[\d.]*", said(cls.found(), cls.version_option))
        return number[0] if number else "?"


# ---------------------------------------------------------------- Redis

_REDIS_CANCEL: Final = """
local cancelled = 0
for _, id in ipairs(ARGV) do
  if redis.call('ZREM', 'timers', id) == 1 then
    redis.call('HDEL', 'bodies', id)
    cancelled = cancelled + 1
  end
end
return cancelled
"""

_REDIS_HAND_OVER: Final = """
local due = redis.call('ZRANGEBYSCORE', 'timers', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due > 0 then
  redis.call('ZREMRANGEBYRANK', 'timers', 0, #due - 1)
  redis.call('RPUSH', 'ready', unpack(due))
end
return #due
"""

_REDIS_POP: Final = """
local ids = redis.call('LPOP', 'ready', ARGV[2])
if not ids then
  return {{}, {}}
end
local leases = {}
for at, id in ipairs(ids) do
  leases[2 * at - 1] = ARGV[1]
  leases[2 * at] = id
end
redis.call('ZADD', 'leases', unpack(leases))
return {ids, redis.call('HMGET', 'bodies', unpack(ids))}
"""


class Redis(Server):
    """One server behind a unix socket; a batch is one MULTI, a hand-over of 1000, a pop and a cancel are one script each."""

    name = "redis"
    settings: ClassVar[dict[Durability, str]] = {
        Durability.POWER_LOSS: "appendfsync always",
        Durability.PROCESS_CRASH: "appendfsync everysec",
    }
    how_to_get = "apt-get install redis-server; pip install 'rmqstore-benchmarks[peers]'"

    program = "redis-server"
    client = "redis"

    def start(self, stack: ExitStack) -> None:
        redis: Any = importlib.import_module("redis")
        socket = self.directory / "redis.sock"
        options = {
            "port": "0",
            "unixsocket": str(socket),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": self.setting,
        }
        command = [self.found(), *(word for key, value in options.items() for word in (f"--{key}", value))]
        self._client = redis.Redis(unix_socket_path=str(socket))
        stack.enter_context(running(command, self.directory, self._client.ping))
        stack.callback(self._client.close)
        self._cancel, self._move, self._pop = (self._client.register_script(text) for text in (_REDIS_CANCEL, _REDIS_HAND_OVER, _REDIS_POP))

    def schedule(self, batch: Batch) -> None:
        pipe = self._client.pipeline(transaction=True)
        pipe.hset("bodies", mapping={timer.number: timer.body for timer in batch.timers})
        pipe.zadd("timers", {timer.number: timer.due_ms for timer in batch.timers})
        pipe.execute()

    def cancel(self, handles: list[Any]) -> int:
        return int(self._cancel(args=handles))

    def hand_over(self, now_ms: int) -> int:
        return int(self._move(args=[now_ms, HAND_OVER_BATCH]))

    def pop(self, count: int) -> Taken:
        ids, bodies = self._pop(args=[self.now_ms + LEASE_MS, count])
        return Taken(bodies, ids)

    def ack(self, leases: Sequence[Any]) -> None:
        pipe = self._client.pipeline(transaction=True)
        pipe.zrem("leases", *leases)
        pipe.hdel("bodies", *leases)
        pipe.execute()


# ---------------------------------------------------------------- PostgreSQL

_PG_TABLES: Final = """
CREATE TABLE timers (id bigint PRIMARY KEY, due_ms bigint NOT NULL, body bytea NOT NULL);
CREATE INDEX timers_by_due ON timers (due_ms, id);
CREATE TABLE ready (id bigint PRIMARY KEY, visible_ms bigint NOT NULL, body bytea NOT NULL);
CREATE INDEX ready_by_time ON ready (visible_ms, id);
"""

_PG_HAND_OVER: Final = """
WITH due AS (
  DELETE FROM timers WHERE id IN (SELECT id FROM timers WHERE due_ms <= %s ORDER BY due_ms, id LIMIT %s FOR UPDATE SKIP LOCKED)
  RETURNING id, due_ms, body
)
INSERT INTO ready SELECT id, due_ms, body FROM due
"""

_PG_POP: Final = """
WITH next AS (SELECT id FROM ready WHERE visible_ms <= %s ORDER BY visible_ms, id LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE ready SET visible_ms = %s FROM next WHERE ready.id = next.id RETURNING ready.id, ready.body
"""

_COPY: Final = "COPY timers (id, due_ms, body) FROM STDIN (FORMAT BINARY)"
_COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END: Final = struct.pack(">h", -1)
_COPY_ROW: Final = struct.Struct(">hiqiqi")
_PG_SETTINGS: Final = {"listen_addresses": "", "shared_buffers": "256MB", "max_wal_size": "4GB"}


class PostgreSQL(Server):
    """One server behind a unix socket, one connection, prepared statements; each call is one transaction.

    A batch comes by binary COPY, a single timer by INSERT; a hand-over moves 1000 rows in one statement.
    """

    name = "postgresql"
    settings: ClassVar[dict[Durability, str]] = {
        Durability.POWER_LOSS: "synchronous_commit = on",
        Durability.PROCESS_CRASH: "synchronous_commit = off",
    }
    how_to_get = "apt-get install postgresql; pip install 'rmqstore-benchmarks[peers]'"

    program = "postgres"
    places = "postgresql/*/bin/postgres"
    client = "psycopg"

    def start(self, stack: ExitStack) -> None:
        psycopg: Any = importlib.import_module("psycopg")
        server = self.found()
        who = unprivileged()
        home = self.directory / "home"
        home.mkdir(mode=0o700)
        if who:
            self.directory.chmod(0o711)
            os.chown(home, who["user"], who["group"])
        initdb = [str(Path(server).with_name("initdb")), "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        made = subprocess.run(initdb, cwd=home, capture_output=True, text=True, check=False, timeout=120, **who)
        if made.returncode:
            raise PeerError(f"initdb failed: {made.stderr[-500:]}")
        settings = _PG_SETTINGS | {"unix_socket_directories": str(home), "synchronous_commit": self.setting}
        command = [server, "-D", "data", *(word for key, value in settings.items() for word in ("-c", f"{key}={value}"))]

        def connect() -> Any:
            return psycopg.connect(host=str(home), user="postgres", dbname="postgres", autocommit=True)

        stack.enter_context(running(command, home, lambda: connect().close(), signal.SIGINT, **who))
        self._db = stack.enter_context(closing(connect()))
        self._db.execute(_PG_TABLES)
        self._cursor = self._db.cursor(binary=True)

    def schedule(self, batch: Batch) -> None:
        if len(batch.timers) == 1:
            self._cursor.execute("INSERT INTO timers VALUES (%s, %s, %s)", batch.timers[0], prepare=True)
            return
        parts = [_COPY_HEAD]
        for number, due_ms, body in batch.timers:
            parts += (_COPY_ROW.pack(3, 8, number, 8, due_ms, len(body)), body)
        with self._cursor.copy(_COPY) as copy:
            copy.write(b"".join([*parts, _COPY_END]))

    def cancel(self, handles: list[Any]) -> int:
        return int(self._cursor.execute("DELETE FROM timers WHERE id = ANY(%s)", (handles,), prepare=True).rowcount)

    def hand_over(self, now_ms: int) -> int:
        return int(self._cursor.execute(_PG_HAND_OVER, (now_ms, HAND_OVER_BATCH), prepare=True).rowcount)

    def pop(self, count: int) -> Taken:
        found = self._cursor.execute(_PG_POP, (self.now_ms, count, self.now_ms + LEASE_MS), prepare=True).fetchall()
        return Taken([bytes(row[1]) for row in found], [row[0] for row in found])

    def ack(self, leases: Sequence[Any]) -> None:
        self._cursor.execute("DELETE FROM ready WHERE id = ANY(%s)", (list(leases),), prepare=True)


# ---------------------------------------------------------------- beanstalkd

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


class Beanstalkd(Server):
    """One server on a port of the loopback, one connection; a batch is 1000 commands sent at once. A cancel is a delete of the job.

    Its clock cannot be set. So timers with the drawn delays are scheduled and cancelled; then others, which become due while the server is
    stopped by a signal, are what it hands over when it goes on, and what is popped.
    """

    name = "beanstalkd"
    settings: ClassVar[dict[Durability, str]] = {Durability.POWER_LOSS: "-f0", Durability.PROCESS_CRASH: "-f50"}
    how_to_get = "apt-get install beanstalkd"
    unwritten = frozenset({"drain", "done"})

    program = "beanstalkd"
    version_option = "-v"

    def start(self, stack: ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        log = self.directory / "log"
        log.mkdir()
        command = [self.found(), "-l", "127.0.0.1", "-p", str(port), "-b", str(log), self.setting]
        user = [] if os.getuid() else ["-u", "root"]
        self._pid = stack.enter_context(running([*command, *user], self.directory, lambda: Client(port).close()))
        self._client = stack.enter_context(closing(Client(port)))
        self._jobs: dict[int, bytes] = {}

    def schedule(self, batch: Batch) -> None:
        ids = self._put([(timer.body, math.ceil((timer.due_ms - batch.now_ms) / 1000)) for timer in batch.timers])
        self._jobs.update(zip((timer.number for timer in batch.timers), ids, strict=True))

    def _put(self, jobs: Sequence[tuple[bytes, int]]) -> list[bytes]:
        self._client.send([b"put 0 %d %d %d\r\n%b\r\n" % (delay_s, _LEASE_S, len(body), body) for body, delay_s in jobs])
        ids = [self._client.answer(b"INSERTED ") for _ in jobs]
        if None in ids:
            raise PeerError("beanstalkd refused a job")
        return [each for each in ids if each]

    def handles(self, batch: Batch) -> list[Any]:
        return [self._jobs[timer.number] for timer in batch.timers]

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

    def pop(self, count: int) -> Taken:
        self._client.send([b"reserve-with-timeout 0\r\n"] * count)
        jobs, bodies = [], []
        for _ in range(count):
            if (reserved := self._client.answer(b"RESERVED ")) is not None:
                job, size = reserved.split()
                jobs.append(job)
                bodies.append(self._client.data(int(size)))
        return Taken(bodies, jobs)

    def ack(self, leases: Sequence[Any]) -> None:
        if self.cancel(list(leases)) != len(leases):
            raise PeerError("beanstalkd did not delete what was reserved")

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
        bodies = [timer.body for batch in task.batches() for timer in batch.timers]
        delay_s = math.ceil(3 * task.timers / rate) + _SPARE_S
        batches = [[(body, delay_s) for body in bodies[at : at + task.batch]] for at in range(0, len(bodies), task.batch)]
        for batch in batches:
            self._put(batch)
        expect(self._counts()["delayed"], len(bodies), "delayed")
        os.kill(self._pid, signal.SIGSTOP)
        time.sleep(delay_s + 1)
        return drained(self, Counter(bodies))


# ---------------------------------------------------------------- RocketMQ

DRIVER: Final = Path(__file__).parents[3] / "peers" / "rocketmq"
_JAVA: Final = 17
_WARM_UP: Final = 30_000
_PUTS_PER_S: Final = 8_000
"""Far below what is measured: how long after the start of the puts the timers of a drain become due."""
_DRIVER_LIMIT_S: Final = 600
_OPENED: Final = ("java.nio", "jdk.internal.ref", "sun.nio.ch")
_HEAD: Final = struct.Struct(">qi")


class RocketMQ(Peer):
    """A DefaultMessageStore with its file wheel. Pop and ack are the broker's, and a cancel is one more timer without an answer: left out.

    Its clock cannot be set: timers with the drawn delays are scheduled; others become due while its dequeue threads are held, and are
    handed over when these are let go.
    """

    name = "rocketmq"
    settings: ClassVar[dict[Durability, str]] = {Durability.POWER_LOSS: "SYNC_FLUSH", Durability.PROCESS_CRASH: "ASYNC_FLUSH"}
    how_to_get = "apt-get install maven openjdk-17-jdk-headless, in a checkout of this repository"

    @classmethod
    def version(cls) -> str | None:
        if not (program("mvn") and program("javac") and (DRIVER / "pom.xml").exists() and _java_version() >= _JAVA):
            return None
        found = re.search(r"<rocketmq.version>(.*)</", (DRIVER / "pom.xml").read_text(encoding="utf-8"))
        return found[1] if found else "?"

    def start(self, stack: ExitStack) -> None:
        _build()

    def measure(self, task: Task) -> Figures:
        spent = self._run(task, "schedule")
        figures = {"schedule": task.timers / spent["schedule"], "placed": task.timers / spent["placed"]}
        if task.distribution == "constant":
            figures["drain"] = task.timers / self._run(task, "drain")["drain"]
        return figures

    def _run(self, task: Task, phase: str) -> dict[str, float]:
        place = self.directory / phase
        place.mkdir()
        timers = [(timer.due_ms - batch.now_ms, timer.body) for batch in task.batches() for timer in batch.timers]
        if phase == "drain":
            delay_ms = 5000 + 1000 * task.timers // _PUTS_PER_S
            timers = [(delay_ms, body) for _, body in timers]
        warm = timers[:_WARM_UP]
        with (file := place / "timers").open("wb") as out:
            out.write(struct.pack(">i", len(warm) + len(timers)))
            out.writelines(_HEAD.pack(delay_ms, len(body)) + body for delay_ms, body in [*warm, *timers])
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        jars = f"{DRIVER / 'target' / 'classes'}:{DRIVER / 'target' / 'lib'}/*"
        # RocketMQ writes logs below the home directory.
        command = ["java", "-Xms2g", "-Xmx2g", f"-Duser.home={place}", *opened, "-cp", jars, "rmqstore.peers.TimerStoreDriver"]
        given = [str(place / "store"), self.settings[self.durability], str(task.batch), phase, str(file), str(len(warm))]
        with (place / "errors").open("w+") as errors:
            done = subprocess.run(
                [*command, *given], stdout=subprocess.PIPE, stderr=errors, text=True, check=False, timeout=_DRIVER_LIMIT_S
            )
            if done.returncode:
                errors.seek(0)
                raise PeerError(f"the driver of RocketMQ ended with {done.returncode}: {errors.read()[-500:]}")
        spent: dict[str, float] = json.loads(done.stdout)
        return spent


@cache
def _java_version() -> int:
    found = re.match(r"javac (\d+)", said("javac", "-version"))
    return int(found[1]) if found else 0


def _build() -> None:
    """Build the driver, unless it was built since its last change."""
    sources = [*DRIVER.glob("src/**/*.*"), DRIVER / "pom.xml"]
    stamp = DRIVER / "target" / "built"
    if stamp.exists() and all(source.stat().st_mtime <= stamp.stat().st_mtime for source in sources):
        return
    done = subprocess.run(
        ["mvn", "-q", "-B", "process-classes"], cwd=DRIVER, capture_output=True, text=True, check=False, timeout=_DRIVER_LIMIT_S
    )
    if done.returncode:
        raise PeerError(f"mvn could not build {DRIVER}: {done.stdout[-500:]}")
    stamp.touch()
