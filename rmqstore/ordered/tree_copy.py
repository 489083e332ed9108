"""A copy of the files of a store, in which holes stay holes."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

_PIECE_BYTES: Final = 8 * 1024 * 1024
"""Between two pieces other threads take the interpreter for some ms, so many small ones would take far longer than the disk."""


def copy_tree(source: Path, copy: Path, *, without: Collection[str] = ()) -> None:
    """Copy a directory into ``copy``, made as needed; names in it itself, not below, are left out that are ``without``.

    Unlike ``shutil.copytree`` it ends at the first error, and that error says what went wrong.
    """
    copy.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name in without:
                continue
            if entry.is_dir():
                copy_tree(source / entry.name, copy / entry.name)
            else:
                copy_file(entry.path, copy / entry.name)


def copy_file(source: str | Path, copy: str | Path, begin: int = 0, stop: int | None = None) -> str | Path:
    """Copy the content of a file, holes left out; returns ``copy``.

    Args:
        begin, stop: what of it is copied, None for as far as it goes. What of the copy lies before stays, and it ends there.
    """
    with open(source, "rb", buffering=0) as reader, open(copy, "r+b" if begin else "wb", buffering=0) as writer:
        length = os.fstat(reader.fileno()).st_size
        if stop is not None:
            length = min(length, stop)
        offset = begin
        while offset < length:
            try:
                offset = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break
            end = min(os.lseek(reader.fileno(), offset, os.SEEK_HOLE), length)
            while offset < end and (piece := os.pread(reader.fileno(), min(end - offset, _PIECE_BYTES), offset)):
                offset += os.pwrite(writer.fileno(), piece, offset)
        os.ftruncate(writer.fileno(), length)
    return copy
