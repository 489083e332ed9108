"""A copy of the files of a store, in which holes stay holes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path


def copy_tree(source: Path, copy: Path, *, without: Collection[str] = ()) -> None:
    """Copy a directory to ``copy``, which is not there; names in it itself, not below, are left out that are ``without``."""
    root = str(source)
    shutil.copytree(source, copy, ignore=lambda path, _: without if path == root else (), copy_function=copy_file)


def copy_file(source: str | Path, copy: str | Path) -> str | Path:
    """Copy the content of a file, holes left out; returns ``copy``, as ``shutil`` wants it of such a function."""
    with open(source, "rb") as reader, open(copy, "wb") as writer:
        length = os.fstat(reader.fileno()).st_size
        offset = 0
        while offset < length:
            try:
                offset = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(reader.fileno(), offset, os.SEEK_HOLE)
            reader.seek(offset)
            writer.seek(offset)
            while offset < end:
                piece = reader.read(min(end - offset, 1024 * 1024))
                writer.write(piece)
                offset += len(piece)
        writer.truncate(length)
    return copy
