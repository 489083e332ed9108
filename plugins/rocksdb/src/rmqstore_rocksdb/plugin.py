"""What the distribution announces; importing this does not load RocksDB."""

from __future__ import annotations

from rmqstore.contract.engine import Capabilities, Durability, EngineInfo, NewNames, Setting, Support, same_durability
from rmqstore.hookspecs import hookimpl

INFO = EngineInfo(
    name="rocksdb",
    capabilities=Capabilities(
        durability=same_durability(sync=Durability.POWER_LOSS, asynchronous=Durability.PROCESS_CRASH),
        fifo=Support.FULL,
        sql92_filter=Support.FULL,
        retention=Support.FULL,
        read_only_open=Support.FULL,
        import_state=Support.FULL,
        # A recovery names a table in its MANIFEST, and a MANIFEST in CURRENT, before it syncs their directory.
        new_names=NewNames.FILE_SYNC,
    ),
    factory="rmqstore_rocksdb.engine:RocksDBEngine",
    requires=("rocksdict",),
    install_hint="pip install rmqstore-rocksdb",
    preference=30,
    settings=(
        Setting(
            key="rocksdb.values",
            type=str,
            default="inline",
            doc="where large values lie: in the table files, or in blob files that compaction does not copy",
            choices=("inline", "separated"),
            baked=True,
        ),
        Setting(
            key="rocksdb.separate_bytes",
            type=int,
            default=1024,
            doc="with separated values: size of a value from which on it goes to a blob file",
            minimum=64,
            maximum=4 * 1024 * 1024,
        ),
        Setting(
            key="rocksdb.write_buffer_mib",
            type=int,
            default=64,
            doc="memory for writes that are not in table files yet",
            minimum=4,
            maximum=4096,
        ),
        Setting(
            key="rocksdb.block_cache_mib",
            type=int,
            default=64,
            doc="memory for blocks, indexes and filters of table files",
            minimum=4,
            maximum=65_536,
        ),
        Setting(
            key="rocksdb.compression",
            type=str,
            default="lz4",
            doc="compression of table and blob files written from now on",
            choices=("lz4", "zstd", "none"),
        ),
    ),
)


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engine."""
    return [INFO]
