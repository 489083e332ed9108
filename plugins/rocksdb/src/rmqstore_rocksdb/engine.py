"""The ``rocksdb`` engine: ``rmqstore.engine`` over :class:`~rmqstore_rocksdb.kv.RocksDBKV`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.reading import view_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning


class RocksDBEngine(Engine):
    """Opens directories with RocksDB; the settings ``rocksdb.*`` are in ``EngineOptions.engine``."""

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        return open_session(open_rocksdb(directory, SPACES, _tuning_of(options)), options)

    def open_for_reading(self, directory: Path, options: EngineOptions) -> EngineSession:
        return open_session(view_rocksdb(directory, SPACES, _tuning_of(options)), options, read_only=True)


def _tuning_of(options: EngineOptions) -> RocksDBTuning:
    return msgspec.convert(dict(options.engine), RocksDBTuning)
