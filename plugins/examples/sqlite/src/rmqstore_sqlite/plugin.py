"""What the distribution announces. It is imported whenever engines are listed, so it imports neither the adapter nor SQLite."""

from __future__ import annotations

from rmqstore.contract.engine import Capabilities, Durability, EngineInfo, Support, same_durability
from rmqstore.hookspecs import hookimpl

INFO = EngineInfo(
    name="sqlite",
    capabilities=Capabilities(
        # Without a sync, calls are kept in memory alone: see kv.py.
        durability=same_durability(sync=Durability.POWER_LOSS, asynchronous=Durability.NONE),
        # These four come with rmqstore.engine, whatever database is below.
        fifo=Support.FULL,
        sql92_filter=Support.FULL,
        retention=Support.FULL,
        import_state=Support.FULL,
        # The owner locks the file, so nothing can read beside it.
        read_only_open=Support.NOT_YET,
    ),
    factory="rmqstore_sqlite.engine:SqliteEngine",
    requires=("sqlite3",),
    install_hint="pip install rmqstore-example-sqlite",
)


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engine."""
    return [INFO]
