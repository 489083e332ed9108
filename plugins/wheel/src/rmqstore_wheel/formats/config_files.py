"""The JSON files of ``config/``: which of a file and its backup counts, and their version (``ConfigManager``, ``DataVersion``).

A file X is written in four steps, so that at each moment X or X.bak is whole:

1. X is renamed to X.bak (when there is an X);
2. the directory is synced;
3. X is written and synced;
4. the directory is synced.

So a missing, empty or torn X means that X.bak is the latest: one generation older at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.fastjson import Fields

BACKUP_SUFFIX: Final = ".bak"

T = TypeVar("T")


class DataVersion(msgspec.Struct, frozen=True):
    """How often and when a file changed. ``state_version`` is that of the broker's replication."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the object that stands in the file."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    @classmethod
    def from_fields(cls, owner: Fields, name: str = "dataVersion") -> DataVersion:
        """Read the object, all 0 when there is none."""
        fields = owner.object(name)
        if fields is None:
            return cls()
        return cls(fields.integer("counter"), fields.integer("stateVersion"), fields.integer("timestamp"))


def choose(file: bytes | None, backup: bytes | None, decode: Callable[[bytes], T]) -> T | None:
    """Return what the file says, or its backup where the file is missing, empty or not readable; None when there is neither.

    Raises:
        CorruptStoreError: there is a backup to be read and it is damaged too, or the file is and there is no backup.
    """
    fault: CorruptStoreError | None = None
    if file and file.strip():
        try:
            return decode(file)
        except CorruptStoreError as error:
            fault = error
    if backup and backup.strip():
        return decode(backup)
    if fault is not None:
        raise fault
    return None
