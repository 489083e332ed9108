"""What a transfer tells about how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the table, the rows done and the rows there are in all; 0 when unknown yet."""


def silent(table: str, rows_done: int, rows_total: int) -> None:
    """Do nothing."""
