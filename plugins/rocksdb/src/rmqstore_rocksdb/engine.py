"""The ``rocksdb`` engine: ``rmqstore.ordered`` over :class:`~rmqstore_rocksdb.kv.RocksDBKV`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore.ordered.layout import SPACES
from rmqstore.ordered.session import open_session
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning


class RocksDBEngine(Engine):
    """Opens directories with RocksDB; the settings ``rocksdb.*`` are in ``EngineOptions.engine``."""

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open ``directory``; see ``Engine.open``."""
        tuning = msgspec.convert(dict(options.engine), RocksDBTuning)
        kv = open_rocksdb(directory, SPACES, tuning)
        try:
            return open_session(kv, options)
        except BaseException:
            kv.close()
            raise
