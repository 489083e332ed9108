"""The databases themselves, without rmqstore: each ``put`` is one atomic batch, durable when it returns, of 16-byte keys (tick, seq)."""

from collections.abc import Sequence
from pathlib import Path

Items = Sequence[tuple[bytes, bytes]]


class RawRocksDB:
    """RocksDB: a write batch, then a sync of the WAL."""

    def __init__(self, path: Path) -> None:
        from rocksdict import Options, Rdict, WriteBatch

        self._db, self._batch = Rdict(str(path), Options(raw_mode=True)), WriteBatch

    def put(self, items: Items) -> None:
        batch = self._batch(raw_mode=True)
        for key, value in items:
            batch[key] = value
        self._db.write(batch)
        self._db.flush_wal(True)


class RawLMDB:
    """LMDB: a transaction, committed with a sync."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(path), map_size=1 << 36)

    def put(self, items: Items) -> None:
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(items)


RAW: dict[str, type[RawRocksDB] | type[RawLMDB]] = {"rocksdb": RawRocksDB, "lmdb": RawLMDB}
