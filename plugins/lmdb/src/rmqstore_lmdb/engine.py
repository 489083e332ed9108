"""The ``lmdb`` engine: ``rmqstore.engine`` over LMDB, one durable transaction per group of calls."""

from __future__ import annotations

from pathlib import Path

from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session
from rmqstore_lmdb.kv import AUTO, FORMAT_VERSION, MAP_BYTES, open_lmdb
from rmqstore_lmdb.reading import view_lmdb


class LmdbEngine(Engine):
    """Opens directories with LMDB; the settings ``lmdb.*`` are in ``EngineOptions.engine``."""

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        given = options.engine
        kv = open_lmdb(directory, SPACES, map_bytes=int(given.get("map_bytes", MAP_BYTES)), readahead=str(given.get("readahead", AUTO)))
        return open_session(kv, options)

    def open_for_reading(self, directory: Path, options: EngineOptions) -> EngineSession:
        return open_session(view_lmdb(directory, FORMAT_VERSION, SPACES), options, read_only=True)
