"""A RocksDB with numbered writes."""

from __future__ import annotations

from pathlib import Path

from rmqstore.engine.kv.base import WriteBatch
from rmqstore_rocksdb.kv import RocksDBKV, open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning

SPACES = ("meta", "timers")


def open_kv(path: Path) -> RocksDBKV:
    return open_rocksdb(path, SPACES, RocksDBTuning())


def put(kv: RocksDBKV, number: int, value: bytes) -> int:
    batch = WriteBatch()
    batch.put(1, number.to_bytes(4, "big"), value)
    return kv.write(batch)


def numbers(kv: RocksDBKV) -> list[int]:
    return [int.from_bytes(key, "big") for key, _ in kv.scan_all(1)]
