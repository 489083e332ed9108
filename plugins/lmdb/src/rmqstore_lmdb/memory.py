"""How much memory this process may use: what the machine has, or what its control group allows, page cache included."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_SHARE: Final = 2
"""A file that is larger than one part in so many of the memory does not stay there."""


def stays_in_memory(file_bytes: int) -> bool:
    """Say whether a file is small enough to be read ahead: of a larger one, what is read around a page goes before it is wanted."""
    return file_bytes <= memory_bytes() // _SHARE


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the least of what the machine has and what the control groups of this process allow.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    limits = [_number(place) for place in _limit_files(root)]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *(limit for limit in limits if limit is not None)])


def _limit_files(root: Path) -> list[Path]:
    """Return the files that may hold a limit, of both versions of control groups, from the group of this process up."""
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers == "" or "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
            # In a container the path may be that of the host, and the mount is the group itself.
            groups = [mount / path.lstrip("/"), *(mount / path.lstrip("/")).parents]
            found += [group / ("memory.limit_in_bytes" if controllers else "memory.max") for group in groups if group.is_relative_to(mount)]
    return found


def _number(place: Path) -> int | None:
    """Return the limit in a file; None when there is no such file, or no limit."""
    try:
        return int(place.read_text())
    except (OSError, ValueError):
        return None
