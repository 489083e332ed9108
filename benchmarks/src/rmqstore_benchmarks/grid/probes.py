"""What a phase cost, read from the machine: bytes written, device sectors, CPU, anonymous memory, blocks on disk, compaction.

``write_bytes`` of ``/proc/self/io`` is wrong where the page cache uses large folios, so the device's own sectors and ``wchar`` are read.
Those of the device are everybody's on it. What cannot be read is None.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_SECTOR_BYTES: Final = 512
_BLOCK_BYTES: Final = 512
_COMPACTED: Final = '"event": "compaction_finished"'


class Probes:
    """Looks at this process, at the device under ``directory``, and at the store in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        device = directory.stat().st_dev
        self._device = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")

    def read(self) -> dict[str, int | None]:
        """Return where every counter is, by its column of ``phases``."""
        written, read = self.device_bytes()
        return {
            "wchar_bytes": _proc_number("/proc/self/io", "wchar:"),
            "device_write_bytes": written,
            "device_read_bytes": read,
            "compaction_bytes": compaction_bytes(self._directory),
        }

    def device_bytes(self) -> tuple[int | None, int | None]:
        """Return bytes written to, and read from, the device since it was started."""
        try:
            fields = self._device.read_text().split()
            return int(fields[6]) * _SECTOR_BYTES, int(fields[2]) * _SECTOR_BYTES
        except (OSError, IndexError, ValueError):
            return None, None

    def disk_bytes(self) -> int:
        """Return the blocks in use by the files of the directory, bytes."""
        blocks = 0
        for path in self._directory.rglob("*"):
            with contextlib.suppress(OSError):  # a file may go while it is looked at
                blocks += path.lstat().st_blocks
        return blocks * _BLOCK_BYTES

    def sync_files(self) -> None:
        """Let the device have what was written, so that its sectors count to the phase that wrote them."""
        self._each_file(os.fsync)

    def forget_pages(self) -> None:
        """Let the page cache drop the files, which must be closed, so that they are read from the device again."""
        self.sync_files()
        self._each_file(lambda descriptor: os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED))

    def _each_file(self, act: Callable[[int], None]) -> None:
        for path in self._directory.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        act(descriptor)
                    finally:
                        os.close(descriptor)


def anon_bytes() -> int | None:
    """Return this process's RssAnon: memory of its own, without mapped files."""
    kib = _proc_number("/proc/self/status", "RssAnon:")
    return None if kib is None else kib * 1024


def compaction_bytes(directory: Path) -> int | None:
    """Return what RocksDB's compactions wrote, by its own log; None where no RocksDB logs."""
    logs = [*directory.rglob("LOG"), *directory.rglob("LOG.old.*")]
    total = 0
    for log in logs:
        with contextlib.suppress(OSError):
            for line in log.read_text(errors="replace").splitlines():
                if _COMPACTED in line:
                    event = json.loads(line[line.index("{") :])
                    total += int(event.get("total_output_size", 0)) + int(event.get("total_blob_output_size", 0))
    return total if logs else None


def _proc_number(path: str, name: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None
