"""What the distribution announces; importing this does not load LMDB."""

from __future__ import annotations

from rmqstore.contract.engine import Capabilities, Durability, EngineInfo, Setting, Support, same_durability
from rmqstore.hookspecs import hookimpl

INFO = EngineInfo(
    name="lmdb",
    capabilities=Capabilities(
        durability=same_durability(sync=Durability.POWER_LOSS, asynchronous=Durability.NONE),
        fifo=Support.FULL,
        sql92_filter=Support.FULL,
        retention=Support.FULL,
        read_only_open=Support.FULL,
        import_state=Support.FULL,
    ),
    factory="rmqstore_lmdb.engine:LmdbEngine",
    requires=("lmdb",),
    install_hint="pip install rmqstore-lmdb",
    preference=20,
    settings=(
        Setting(
            key="lmdb.map_bytes",
            type=int,
            default=1 << 30,
            doc="address space that the file is mapped into at first; it doubles when it is full",
            minimum=1 << 20,
            maximum=1 << 46,
        ),
        Setting(
            key="lmdb.readahead",
            type=str,
            default="auto",
            doc="whether the system reads around the pages that are wanted; auto: as long as the file is small beside the memory",
            choices=("auto", "on", "off"),
        ),
    ),
)


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engine."""
    return [INFO]
