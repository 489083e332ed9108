"""Pages of a range within a transaction, and what LMDB's errors mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from rmqstore.engine.kv.base import Entry, take_page
from rmqstore.errors import NO_ROOM, CorruptStoreError, FormatVersionError, StoreError, StoreFullError, StoreLockedError, StorePathError

if TYPE_CHECKING:
    from lmdb import _Database

_KEY: Final = itemgetter(0)
PAGE_BYTES: Final = 4096


def size_of(file: Path) -> int:
    """Return the length of an environment's file, bytes.

    Raises:
        CorruptStoreError: LMDB would take it for a new one, as it is empty or not there.
    """
    size = file.stat().st_size if file.exists() else 0
    if size < 2 * PAGE_BYTES:
        raise CorruptStoreError(f"{file} is missing or cut short", file=str(file), offset=size)
    return size


def page_of(
    txn: lmdb.Transaction[bytes],
    db: _Database,
    start: bytes,
    stop: bytes | None,
    limit: int,
    *,
    reverse: bool,
    page_bytes: int,
) -> list[Entry]:
    """Return a page; see ``OrderedKV.scan``.

    Raises:
        lmdb.CorruptedError: a key is empty, which none is: LMDB has no sums over its pages, and reads a zeroed one as such.
    """
    cursor = txn.cursor(db)
    if reverse:
        page = take_page(_backward(cursor, stop), limit, page_bytes, start.__gt__ if start else None)
    else:
        forward = cursor.iternext() if cursor.set_range(start or b"\x00") else iter(())
        page = take_page(forward, limit, page_bytes, stop.__le__ if stop is not None else None)
    if b"" in map(_KEY, page):
        raise lmdb.CorruptedError("an empty key")
    return page


def _backward(cursor: lmdb.Cursor[bytes], stop: bytes | None) -> Iterator[Entry]:
    """Iterate from the last key below ``stop`` towards the first."""
    if stop is not None and cursor.set_range(stop):
        found = cursor.prev()
    else:
        found = cursor.last()
    return cursor.iterprev() if found else iter(())


def translated(error: lmdb.Error, directory: Path) -> Exception:
    """Return an error of the environment in ``directory`` in the store's terms."""
    text = str(error)
    file = directory / "data.mdb"
    if isinstance(error, lmdb.DiskError) or any(os.strerror(number) in text for number in NO_ROOM):
        return StoreFullError(f"{file}: {text}")
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)):
        return CorruptStoreError(f"{file} is damaged: {text}", file=str(file), offset=0)
    if isinstance(error, lmdb.VersionMismatchError) or "data format" in text:
        return FormatVersionError(f"{file}: {text}")
    if isinstance(error, lmdb.LockError) or "already open" in text:
        return StoreLockedError(f"{directory} is open elsewhere: {text}")
    if isinstance(error, lmdb.ReadonlyError):
        return StorePathError(f"{file}: {text}")
    return StoreError(f"{file}: {text}")
