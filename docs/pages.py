"""What the makers of pages share: tables of Markdown, and a page that is written, or with ``-`` as argument printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def table(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """Return a table; a pipe in a cell is escaped, unless it is already."""
    lines = [[re.sub(r"(?<!\\)\|", r"\\|", cell or "") for cell in row] for row in rows]
    head = "|".join(f" {cell} " if cell else " " for cell in header)
    return f"|{head}|\n|{'---|' * len(header)}\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def publish(name: str, page: str) -> None:
    """Write a page of this folder, or print it."""
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(page)
    else:
        Path(__file__).with_name(name).write_text(page, encoding="utf-8")
