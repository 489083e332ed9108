"""``dump``: a store, open or not, becomes a directory of Parquet files; and reading one.

::

    manifest.json            written last, in one step: without it there is no dump
    progress.jsonl           there while a dump is being written, or was interrupted
    <table>-00000.parquet    rows of one table, at most 65 536 and about 64 MiB a file, zstd; a table without rows has no file
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore import config
from rmqstore.contract import Support
from rmqstore.digests import TableDigest, digest_rows
from rmqstore.engine.kv.directory import sync_path
from rmqstore.errors import CorruptStoreError, FormatVersionError, StorePathError, TransferError, UnsupportedOperationError, system_error
from rmqstore.plugins import get_plugins
from rmqstore.store import Store, open as open_store
from rmqstore.store.directory import read_manifest, write_durably
from rmqstore.store.opening import broker_name, checked_path
from rmqstore.store.reader import Reader, ReadStore
from rmqstore.tables import HEADS, PAGE_ROWS, TABLES, State
from rmqstore.transfer.incoming import Incoming, Needs, Progress, joined_needs, silent

MANIFEST: Final = "manifest.json"
PROGRESS: Final = "progress.jsonl"
FORMAT_VERSION: Final = 1


class DumpFile(msgspec.Struct, frozen=True):
    """One Parquet file: its rows, size and SHA-256, and the token behind its last row, in hex, None at the end of the table."""

    name: str
    table: str
    rows: int
    bytes: int
    sha256: str
    digest: str
    token: str | None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a dump says of itself.

    Attributes:
        dump_id: tells this dump from every other.
        store_id, broker: of the store that was dumped, as its handles and receipts carry them.
        baked: the settings that its data depends on.
        given: the settings of its ``rmqstore.toml``.
        digests: of every table.
    """

    format_version: int
    rmqstore_version: str
    dump_id: str
    store_id: int
    broker: str
    timer_engine: str
    pop_engine: str
    baked: dict[str, Any]
    epoch: int
    last_seq: int
    precision_ms: int
    digests: dict[str, str]
    needs: Needs
    files: list[DumpFile]
    given: dict[str, Any] = msgspec.field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the content of the manifest file, with a checksum of its own."""
        fields = msgspec.to_builtins(self)
        return json.dumps({**fields, "check": _check(fields)}, indent=2, sort_keys=True).encode()


def _check(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class Dump(Incoming):
    """A complete dump, checked file by file; made by :func:`open_dump`."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.name = f"dump {path}"
        self.dump_id = manifest.dump_id
        self.store_id = manifest.store_id
        self.broker = manifest.broker
        self.epoch = manifest.epoch
        self.last_seq = manifest.last_seq
        self.precision_ms = manifest.precision_ms
        self.needs = manifest.needs

    def counts(self) -> dict[str, int]:
        found = dict.fromkeys(TABLES, 0)
        for file in self.manifest.files:
            found[file.table] += file.rows
        return found

    def chunks(self, table: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        for file in self.manifest.files:
            if file.table == table:
                for number, rows in enumerate(_batches(self.path / file.name, TABLES[table])):
                    yield f"{file.name}/{number}", rows


def _batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(PAGE_ROWS):
                if batch.schema.names != schema.names:
                    raise CorruptStoreError(f"{path} has columns {', '.join(batch.schema.names)}, not those of its table", file=str(path))
                yield from pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, CorruptStoreError):
            raise
        raise CorruptStoreError(f"{path} cannot be read: {error}", file=str(path)) from error


def open_dump(path: Path) -> Dump:
    """Open the dump in the directory ``path`` and check that every file is there and what it was.

    Raises:
        TransferError: there is no dump, or one that was interrupted.
        FormatVersionError: a newer rmqstore wrote it.
        CorruptStoreError: a file is missing or damaged; ``file`` names it.
    """
    file = path / MANIFEST
    try:
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if (path / PROGRESS).exists():
            raise TransferError(f"the dump {path} was interrupted; run the same dump again, and it goes on") from None
        raise TransferError(f"there is no dump at {path}: {MANIFEST} is missing") from None
    except (ValueError, OSError) as error:
        raise CorruptStoreError(f"{file} cannot be read: {error}", file=str(file)) from error
    if not isinstance(content, dict) or "format_version" not in content:
        raise CorruptStoreError(f"{file} is not the manifest of a dump", file=str(file))
    if content["format_version"] != FORMAT_VERSION:
        raise FormatVersionError(
            f"{file} has format version {content['format_version']!r}, this version of rmqstore reads {FORMAT_VERSION}"
        )
    check = content.pop("check", None)
    try:
        manifest = msgspec.convert(content, Manifest)
        unknown = {entry.table for entry in manifest.files} - TABLES.keys()
        unknown |= {entry.name for entry in manifest.files if Path(entry.name).name != entry.name}
        sound = check == _check(content) and not unknown and all(TableDigest.parse(text) for text in manifest.digests.values())
    except (msgspec.ValidationError, ValueError) as error:
        raise CorruptStoreError(f"{file} is damaged: {error}", file=str(file)) from error
    if not sound:
        raise CorruptStoreError(f"{file} is damaged: its checksum does not match", file=str(file))
    for entry in manifest.files:
        check_file(path / entry.name, entry)
    return Dump(path, manifest)


def check_file(path: Path, entry: DumpFile) -> None:
    """Compare a file with what the manifest says.

    Raises:
        CorruptStoreError: naming the file.
    """
    try:
        wrong = path.stat().st_size != entry.bytes or sha256_of(path) != entry.sha256
    except FileNotFoundError as error:
        raise CorruptStoreError(f"{path} is missing from the dump", file=str(path)) from error
    except OSError as error:
        raise CorruptStoreError(f"{path} cannot be read: {error.strerror or error}", file=str(path)) from error
    if wrong:
        raise CorruptStoreError(f"{path} is damaged: it is not the file that was written", file=str(path))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------- writing one


FILE_ROWS: Final = 65_536
FILE_BYTES: Final = 64 * 1024 * 1024
_LARGE: Final = ("timers", "timer_traces", "timer_marks", "messages", "pop_marks")


class DumpReport(msgspec.Struct, frozen=True):
    """What a dump wrote: rows by table, bytes in all, and how many files an interrupted run had left that were used again."""

    path: Path
    tables: dict[str, int]
    bytes: int
    reused_files: int


def dump(source: Reader | str | os.PathLike[str], path: str | os.PathLike[str], *, progress: Progress | None = None) -> DumpReport:
    """Write all that a store holds into the new directory ``path``: one consistent state of it.

    Args:
        source: a store's path, or an open one. An open store is used on beside the dump when its engines can be opened for reading;
            otherwise its calls wait until the dump is done. A ``ReadStore`` is dumped as it stands.
        path: made as needed; with what an interrupted dump left, it goes on when the store has not changed, and starts over otherwise.
        progress: told after every file.

    Raises:
        TransferError: ``path`` holds something else.
        CorruptStoreError: something in the store cannot be read; nothing is left out.
        StorePathError, StoreLockedError, UnsupportedOperationError: the store cannot be read.
        StoreFullError: no room for the dump.
    """
    target = checked_path(path)
    with _standing_still(source) as (store, state):
        try:
            return _Writer(target, store, state, progress or silent).run()
        except OSError as error:
            raise system_error(error, target) from error


@contextmanager
def _standing_still(source: Reader | str | os.PathLike[str]) -> Iterator[tuple[Reader, State]]:
    """Give a store that does not change, and its state."""
    with ExitStack() as stack:
        if not isinstance(source, Reader):
            place = checked_path(source)
            if read_manifest(place) is None:
                raise StorePathError(f"there is no store at {place} to dump")
            source = stack.enter_context(_opened(place))
        if isinstance(source, Store):
            check_transferable(source)
            if all(info.capabilities.read_only_open is Support.FULL for info in source.engine.infos.values()):
                source.flush()
                # The path that it was opened by may lead to another store by now.
                source = stack.enter_context(ReadStore(source.engine.held, {}))
            else:
                stack.enter_context(source.engine.timers.held())
                stack.enter_context(source.engine.pops.held())
        yield source, State(source.engine.timers, source.engine.pops)


def _opened(place: Path) -> Store | ReadStore:
    try:
        return ReadStore(place, {})
    except UnsupportedOperationError:
        return open_store(place, services=False)


def check_transferable(store: Reader) -> None:
    """Refuse engines that cannot give or take their state.

    Raises:
        UnsupportedOperationError: naming the engine.
    """
    for name, info in sorted(store.engine.infos.items()):
        if (support := info.capabilities.import_state) is not Support.FULL:
            raise UnsupportedOperationError(f"engine {name!r} cannot give or take the state of a store ({support.value})")


class _Writer:
    """Writes one dump."""

    def __init__(self, path: Path, store: Reader, state: State, progress: Progress) -> None:
        self._path = path
        self._store = store
        self._state = state
        self._progress = progress
        self._files: list[DumpFile] = []
        self._needs = Needs()
        self._dump_id = ""
        self._reused = 0

    def run(self) -> DumpReport:
        """Write what is missing."""
        signature = self._signature()
        self._prepare(signature)
        stats = self._store.stats()
        totals = {"timers": stats.timers.pending, "messages": stats.pops.messages}
        for table in TABLES:
            self._table(table, totals.get(table, 0))
        digests = dict.fromkeys(TABLES, TableDigest())
        for file in self._files:
            digests[file.table] += TableDigest.parse(file.digest)
        settings = self._store.engine.config
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            rmqstore_version=importlib.metadata.version("rmqstore"),
            dump_id=self._dump_id,
            store_id=self._store.engine.store_id,
            broker=broker_name(self._store.engine.store_id),
            timer_engine=settings.timer_engine,
            pop_engine=settings.pop_engine,
            baked=settings.baked(),
            epoch=self._state.epoch,
            last_seq=self._state.last_seq,
            precision_ms=self._state.precision_ms,
            digests={table: digest.text() for table, digest in digests.items() if table not in HEADS},
            needs=self._needs,
            given=config.given_settings(self._store.engine.held, get_plugins().engine_settings()),
            files=self._files,
        )
        write_durably(self._path / MANIFEST, manifest.to_bytes())
        (self._path / PROGRESS).unlink()
        sync_path(self._path)
        tables = {table: digest.rows for table, digest in digests.items()}
        return DumpReport(self._path, tables, sum(file.bytes for file in self._files), self._reused)

    def _signature(self) -> str:
        """Return what tells whether the store is as it was: the small tables, and how far the large ones go."""
        hashed = hashlib.blake2b(digest_size=16)
        for table in TABLES:
            if table not in _LARGE:
                digest = sum((digest_rows(page) for _, page in self._state.pages(table)), TableDigest())
                hashed.update(f"{table} {digest.text()} ".encode())
        stats = self._store.stats()
        hashed.update(f"{self._store.engine.store_id} {stats.timers.pending} {stats.timers.last_seq} {stats.pops.messages}".encode())
        return hashed.hexdigest()

    # ------------------------------------------------------------ the directory

    def _prepare(self, signature: str) -> None:
        """Make the directory, or take over what an interrupted dump of the same state left."""
        if not self._path.parent.is_dir():
            raise StorePathError(f"{self._path.parent} does not exist; make it first")
        if self._path.exists() and not self._path.is_dir():
            raise TransferError(f"{self._path} is a file; a dump goes into a new directory")
        if (self._path / MANIFEST).exists():
            raise TransferError(f"{self._path} holds a dump already; choose a new directory")
        self._path.mkdir(exist_ok=True)
        found = {entry.name for entry in self._path.iterdir()}
        if found and PROGRESS not in found:
            raise TransferError(f"{self._path} is not empty and holds no dump; choose a new directory")
        if self._resume(signature):
            for name in found - {PROGRESS, *(file.name for file in self._files)}:
                (self._path / name).unlink()
        else:
            for name in found:
                (self._path / name).unlink()
            self._dump_id = secrets.token_hex(8)
            self._needs = Needs()
            self._files = []
            self._note({"signature": signature, "dump_id": self._dump_id})

    def _resume(self, signature: str) -> bool:
        """Read the progress file; False when nothing of it can be used."""
        try:
            whole = [line for line in (self._path / PROGRESS).read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            lines = [json.loads(line) for line in whole]
            if not lines or lines[0].get("signature") != signature:
                return False
            self._dump_id = lines[0]["dump_id"]
            for line in lines[1:]:
                self._needs = msgspec.convert(line.pop("needs"), Needs)
                file = msgspec.convert(line, DumpFile)
                check_file(self._path / file.name, file)
                self._files.append(file)
        except (OSError, ValueError, KeyError, AttributeError):
            return False
        self._reused = len(self._files)
        write_durably(self._path / PROGRESS, b"".join(whole))
        return True

    def _note(self, line: Mapping[str, Any]) -> None:
        with open(self._path / PROGRESS, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    # ------------------------------------------------------------ the tables

    def _table(self, table: str, total: int) -> None:
        done = [file for file in self._files if file.table == table]
        rows_done = sum(file.rows for file in done)
        if done and done[-1].token is None:
            return
        number = len(done)
        pages: list[pa.RecordBatch] = []
        rows = size = 0
        for token, page in self._state.pages(table, bytes.fromhex(done[-1].token or "") if done else None):
            pages.append(page)
            rows += len(page)
            size += page.nbytes
            if rows and (token is None or rows >= FILE_ROWS - len(page) or size >= FILE_BYTES):
                self._file(f"{table}-{number:05}.parquet", table, pages, token)
                rows_done += rows
                self._progress(table, rows_done, max(total, rows_done))
                pages, rows, size, number = [], 0, 0, number + 1

    def _file(self, name: str, table: str, pages: list[pa.RecordBatch], token: bytes | None) -> None:
        rows = pa.Table.from_batches(pages, schema=TABLES[table])
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, compression="zstd")
        content = buffer.getvalue()
        write_durably(self._path / name, content)
        digest = sum((digest_rows(page) for page in pages), TableDigest())
        for page in pages:
            self._needs = joined_needs(self._needs, table, page)
        file = DumpFile(
            name,
            table,
            len(rows),
            len(content),
            hashlib.sha256(content).hexdigest(),
            digest.text(),
            None if token is None else token.hex(),
        )
        self._files.append(file)
        self._note({**msgspec.to_builtins(file), "needs": msgspec.to_builtins(self._needs)})
