"""What RocksDB is told, and what its errors mean."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec
import rocksdict
from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options

from rmqstore.errors import NO_ROOM, CorruptStoreError, FormatVersionError, StoreClosedError, StoreError, StoreFullError, StoreLockedError

_MIB: Final = 1024 * 1024
_WAL_BYTES: Final = 128 * _MIB
"""Bound of the WAL, so of what an open replays: beyond it the families that pin its oldest file are flushed."""


class RocksDBTuning(msgspec.Struct, frozen=True):
    """The settings ``rocksdb.*``.

    Attributes:
        values: "inline", or "separated": values of ``separate_bytes`` and more go to blob files, where compaction does not move them.
        separate_bytes: see ``values``.
        write_buffer_mib: memory for writes not yet in table files, of all spaces together.
        block_cache_mib: memory for blocks of table files, their indexes and filters.
        compression: of table and blob files: "lz4", "zstd", "none".
    """

    values: str = "inline"
    separate_bytes: int = 1024
    write_buffer_mib: int = 64
    block_cache_mib: int = 64
    compression: str = "lz4"


def options(tuning: RocksDBTuning, *, strict: bool) -> tuple[Options, Options]:
    """Return the options of the database and of every column family."""
    database = Options(raw_mode=True)
    database.create_if_missing(True)
    database.create_missing_column_families(True)
    database.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records() if strict else DBRecoveryMode.point_in_time())
    database.set_max_total_wal_size(_WAL_BYTES)
    database.set_db_write_buffer_size(tuning.write_buffer_mib * _MIB)
    database.set_max_background_jobs(4)
    database.set_avoid_unnecessary_blocking_io(True)
    database.set_keep_log_file_num(4)
    database.set_max_log_file_size(4 * _MIB)
    database.set_max_manifest_file_size(16 * _MIB)
    database.set_stats_dump_period_sec(0)
    database.set_stats_persist_period_sec(0)

    family = Options(raw_mode=True)
    family.set_write_buffer_size(tuning.write_buffer_mib * _MIB // 2)
    family.set_max_write_buffer_number(4)
    family.set_compression_type(_compression(tuning))
    table = BlockBasedOptions()
    table.set_block_cache(Cache(tuning.block_cache_mib * _MIB))
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(10, False)
    # In parts of some KiB: the cache does not keep what is larger than one of its shards, 1 MiB, which the filter of a table of a million
    # keys is, so that each lookup would read all of it.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    table.set_block_size(16 * 1024)
    family.set_block_based_table_factory(table)
    if tuning.values == "separated":
        family.set_enable_blob_files(True)
        family.set_min_blob_size(tuning.separate_bytes)
        family.set_blob_file_size(64 * _MIB)
        family.set_blob_compression_type(_compression(tuning))
        family.set_enable_blob_gc(True)
        family.set_blob_gc_age_cutoff(0.25)
        family.set_blob_gc_force_threshold(0.5)
    return database, family


def _compression(tuning: RocksDBTuning) -> DBCompressionType:
    return {"lz4": DBCompressionType.lz4, "zstd": DBCompressionType.zstd, "none": DBCompressionType.none}[tuning.compression]()


_FILE = re.compile(r"\S+\.(?:log|sst|blob)\b|\S*MANIFEST-\d+|\S*CURRENT\b")
_OFFSET = re.compile(r"(?:offset[ =:]+|Footer at )(\d+)")


def translated(error: Exception, path: Path) -> Exception:
    """Return ``error``, which rocksdict raises as text, in the store's terms; one that is not rocksdict's comes back as it is."""
    text = str(error)
    if isinstance(error, rocksdict.DbClosedError):
        return StoreClosedError(f"{path} is closed; open it again")
    if type(error) is not Exception:
        return error
    if text.startswith("IO error: NoSpace") or any(os.strerror(number) in text for number in NO_ROOM):
        return StoreFullError(f"{path}: {text}")
    if "lock hold by current process" in text or "While lock file" in text:
        return StoreLockedError(f"{path} is open elsewhere: {text}")
    if text.startswith("Corruption") or "does not exist in file system" in text:
        file, offset = _FILE.search(text), _OFFSET.search(text)
        return CorruptStoreError(
            f"{path} is damaged: {text}", file=str(path / file.group() if file else path), offset=int(offset.group(1)) if offset else 0
        )
    if text.startswith("Not implemented") or "unsupported" in text.lower():
        return FormatVersionError(f"{path}: {text}")
    return StoreError(f"{path}: {text}")
