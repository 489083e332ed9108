"""What a dump is on disk, and reading one.

::

    manifest.json            written last, in one step: without it there is no dump
    progress.jsonl           there while a dump is being written, or was interrupted
    <table>-00000.parquet    rows of one table, at most 65 536 and about 64 MiB a file, zstd; a table without rows has no file
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore.digests import TableDigest
from rmqstore.errors import CorruptStoreError, FormatVersionError, TransferError
from rmqstore.tables import PAGE_ROWS, TABLES
from rmqstore.transfer.incoming import Incoming, Needs

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


def open_dump(path: Path, *, verify: bool = True) -> Dump:
    """Open the dump in the directory ``path`` and check that every file is there and what it was.

    Args:
        verify: read every file for its checksum; without it only the sizes are compared.

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
        check_file(path / entry.name, entry, verify=verify)
    return Dump(path, manifest)


def check_file(path: Path, entry: DumpFile, *, verify: bool) -> None:
    """Compare a file with what the manifest says.

    Raises:
        CorruptStoreError: naming the file.
    """
    try:
        size = path.stat().st_size
        wrong = size != entry.bytes or (verify and sha256_of(path) != entry.sha256)
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
