"""PostgreSQL: a table of timers with an index by due time, a table of ready messages from which pops skip what others have locked."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import struct
import subprocess
from pathlib import Path
from signal import SIGINT
from typing import Any, ClassVar, Final

from rmqstore_benchmarks.peers.peer import HAND_OVER_BATCH, LEASE_MS, Durability, PeerError, Timer, TimerPeer
from rmqstore_benchmarks.peers.servers import program, running, said, unprivileged

_TABLES: Final = """
CREATE TABLE timers (id bigint PRIMARY KEY, due_ms bigint NOT NULL, body bytea NOT NULL);
CREATE INDEX timers_by_due ON timers (due_ms, id);
CREATE TABLE ready (id bigint PRIMARY KEY, visible_ms bigint NOT NULL, body bytea NOT NULL);
CREATE INDEX ready_by_time ON ready (visible_ms, id);
"""

_HAND_OVER: Final = """
WITH due AS (
  DELETE FROM timers WHERE id IN (SELECT id FROM timers WHERE due_ms <= %s ORDER BY due_ms, id LIMIT %s FOR UPDATE SKIP LOCKED)
  RETURNING id, due_ms, body
)
INSERT INTO ready SELECT id, due_ms, body FROM due
"""

_POP: Final = """
WITH next AS (SELECT id FROM ready WHERE visible_ms <= %s ORDER BY visible_ms, id LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE ready SET visible_ms = %s FROM next WHERE ready.id = next.id RETURNING ready.id, ready.body
"""

_COPY: Final = "COPY timers (id, due_ms, body) FROM STDIN (FORMAT BINARY)"
_COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END: Final = struct.pack(">h", -1)
_COPY_ROW: Final = struct.Struct(">hiqiqi")
_SETTINGS: Final = {"listen_addresses": "", "shared_buffers": "256MB", "max_wal_size": "4GB"}


class PostgreSQL(TimerPeer):
    """One server behind a unix socket, one connection, prepared statements; each call is one transaction.

    A batch comes by binary COPY; a hand-over moves 1000 rows in one statement.
    """

    name = "postgresql"
    settings: ClassVar[dict[Durability, str]] = {
        Durability.POWER_LOSS: "synchronous_commit = on",
        Durability.PROCESS_CRASH: "synchronous_commit = off",
    }
    how_to_get = "apt-get install postgresql; pip install 'rmqstore-benchmarks[peers]'"

    @classmethod
    def version(cls) -> str | None:
        server = program("postgres", "postgresql/*/bin/postgres")
        if server is None or not importlib.util.find_spec("psycopg"):
            return None
        return next((word for word in said(server, "--version").split() if word[0].isdigit()), "?")

    def start(self, stack: contextlib.ExitStack) -> None:
        psycopg: Any = importlib.import_module("psycopg")
        server = program("postgres", "postgresql/*/bin/postgres") or "postgres"
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
        settings = _SETTINGS | {"unix_socket_directories": str(home), "synchronous_commit": self.setting}
        command = [server, "-D", "data", *(word for key, value in settings.items() for word in ("-c", f"{key}={value}"))]

        def connect() -> Any:
            return psycopg.connect(host=str(home), user="postgres", dbname="postgres", autocommit=True)

        stack.enter_context(running(command, home, lambda: connect().close(), SIGINT, **who))
        self._db = stack.enter_context(contextlib.closing(connect()))
        self._db.execute(_TABLES)
        self._cursor = self._db.cursor(binary=True)

    def schedule(self, batch: list[Timer]) -> None:
        parts = [_COPY_HEAD]
        for number, due_ms, body in batch:
            parts += (_COPY_ROW.pack(3, 8, number, 8, due_ms, len(body)), body)
        with self._cursor.copy(_COPY) as copy:
            copy.write(b"".join([*parts, _COPY_END]))

    def cancel(self, handles: list[Any]) -> int:
        return int(self._cursor.execute("DELETE FROM timers WHERE id = ANY(%s)", (handles,), prepare=True).rowcount)

    def drain(self, now_ms: int) -> int:
        moved = 0
        while found := self._cursor.execute(_HAND_OVER, (now_ms, HAND_OVER_BATCH), prepare=True).rowcount:
            moved += found
        return moved

    def pop_ack(self, count: int) -> list[bytes]:
        found = self._cursor.execute(_POP, (self.now_ms, count, self.now_ms + LEASE_MS), prepare=True).fetchall()
        if found:
            self._cursor.execute("DELETE FROM ready WHERE id = ANY(%s)", ([row[0] for row in found],), prepare=True)
        return [bytes(row[1]) for row in found]
