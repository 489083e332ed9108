"""Names of the files of a log: the byte offset at which the file starts, as 20 decimal digits (``UtilAll.offset2FileName``)."""

from __future__ import annotations

import re

from rmqstore.errors import CorruptStoreError, IllegalArgumentError

_NAME = re.compile(r"\d{20}", re.ASCII)
_MAX_OFFSET = 2**63 - 1


def file_name(start_offset: int) -> str:
    """Return the name of the file that starts at ``start_offset`` of the log, bytes."""
    if not 0 <= start_offset <= _MAX_OFFSET:
        raise IllegalArgumentError(f"a file of a log starts at 0 to 2**63-1, not at {start_offset}")
    return f"{start_offset:020d}"


def start_offset(name: str) -> int:
    """Return the offset at which a file starts, from its name.

    Raises:
        CorruptStoreError: the name is not 20 digits; whoever lists a directory decides what else may lie there.
    """
    if not _NAME.fullmatch(name) or int(name) > _MAX_OFFSET:
        raise CorruptStoreError(f"{name!r} is no name of a log file: 20 digits of a start offset are expected", file=name)
    return int(name)
