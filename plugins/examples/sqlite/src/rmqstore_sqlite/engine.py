"""The ``sqlite`` engine: ``rmqstore.engine`` over one SQLite file.

Everything that a user sees comes from ``open_session``: timers, cancels, pops, leases, retries, dead letters, marks. An engine gives it a
key-ordered database, which is the session's from then on.
"""

from __future__ import annotations

from pathlib import Path

from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session
from rmqstore_sqlite.kv import open_sqlite


class SqliteEngine(Engine):
    """Opens directories with SQLite."""

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open ``directory``; see ``Engine.open``."""
        return open_session(open_sqlite(directory, len(SPACES)), options)
