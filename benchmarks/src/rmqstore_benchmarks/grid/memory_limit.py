"""A limit on the memory of a child, page cache included, by a control group of its own: version 2, or 1 where the machine has that.

The group is made below the one that this process is in, and goes when it is empty. Nothing else is changed.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FLOOR_BYTES: Final = 384 * 1024 * 1024
"""What Python, Arrow and an engine with its caches need to run at all; a little less, and they wait for their own code to be read."""

_PATIENCE_S: Final = 5.0


class NoLimitError(OSError):
    """No control group for memory can be made here; the text says why."""


def limit_for(backlog_bytes: int) -> int:
    """Return a quarter of the backlog, or the least that a process runs in."""
    return max(backlog_bytes // 4, FLOOR_BYTES)


@contextmanager
def limited_group(name: str, limit_bytes: int) -> Iterator[Path]:
    """Give a control group; a process that writes its id into ``cgroup.procs`` there has no more memory than this.

    Args:
        name: tells the groups of this machine apart; one of this name that an owner left when it was killed is used again.

    Raises:
        NoLimitError: none can be made.
    """
    parent, limit_name = _parent()
    group = parent / f"rmqstore-bench-{zlib.crc32(name.encode()):08x}"
    try:
        group.mkdir(exist_ok=True)
    except OSError as error:
        raise NoLimitError(f"no control group can be made in {parent}: {error.strerror}") from error
    try:
        try:
            (group / limit_name).write_text(str(limit_bytes))
            if limit_name == "memory.max":
                with contextlib.suppress(OSError):
                    (group / "memory.swap.max").write_text("0")
        except OSError as error:
            raise NoLimitError(f"{group / limit_name} cannot be written: {error.strerror}") from error
        yield group
    finally:
        _remove(group)


def _parent() -> tuple[Path, str]:
    """Return the memory group that this process is in, and the name of its limit."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError as error:
        raise NoLimitError(f"the control groups of this process cannot be read: {error.strerror}") from error
    groups = {controllers: path for _, controllers, path in lines}
    for _, point, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            for controllers, path in groups.items():
                if "memory" in controllers.split(","):
                    return _below(Path(point), path), "memory.limit_in_bytes"
        if kind == "cgroup2" and "memory" in _controllers(_below(Path(point), groups.get("", "/"))):
            return _below(Path(point), groups.get("", "/")), "memory.max"
    raise NoLimitError("this machine has no control group for memory")


def _below(mount: Path, path: str) -> Path:
    """Return a group's folder; in a container its path may be that of the host, and the mount is the group itself."""
    named = mount / path.lstrip("/")
    return named if named.is_dir() else mount


def _controllers(group: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return (group / "cgroup.subtree_control").read_text().split()
    return []


def _remove(group: Path) -> None:
    """Remove the group; the kernel lets go of an ended process a moment later."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > until_s:
                return
            time.sleep(0.01)
