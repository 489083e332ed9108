"""What the distribution announces (step 1 of ``engine.py``)."""

from __future__ import annotations

from rmqstore.contract.engine import Capabilities, Durability, EngineInfo, Support, same_durability
from rmqstore.hookspecs import hookimpl

INFO = EngineInfo(
    name="memory",
    capabilities=Capabilities(
        durability=same_durability(sync=Durability.NONE, asynchronous=Durability.NONE),
        fifo=Support.FULL,
        sql92_filter=Support.FULL,
        retention=Support.FULL,
        snapshot=Support.IMPOSSIBLE,
        read_only_open=Support.IMPOSSIBLE,
        import_state=Support.FULL,
    ),
    factory="rmqstore_memory.engine:MemoryEngine",
    install_hint="pip install rmqstore-memory",
)


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engine."""
    return [INFO]
