"""What a phase cost, read from the machine: bytes written, device sectors, CPU, anonymous memory, blocks on disk, compaction.

``write_bytes`` of ``/proc/self/io`` is wrong where the page cache uses large folios, so the device's own sectors and ``wchar`` are read.
Those of the device are everybody's on it. What cannot be read is None.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Final

import msgspec

_SECTOR_BYTES: Final = 512
_BLOCK_BYTES: Final = 512
_COMPACTED: Final = '"event": "compaction_finished"'


class Reading(msgspec.Struct, frozen=True):
    """One look at everything."""

    at_s: float
    cpu_s: float
    wchar_bytes: int | None
    device_write_bytes: int | None
    device_read_bytes: int | None
    compaction_bytes: int | None


class Probes:
    """Looks at this process, at the device under ``directory``, and at the store in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        device = directory.stat().st_dev
        self._device = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")

    def read(self) -> Reading:
        """Return where everything stands."""
        written, read = self.device_bytes()
        return Reading(
            time.perf_counter(),
            time.process_time(),
            _proc_number("/proc/self/io", "wchar:"),
            written,
            read,
            compaction_bytes(self._directory),
        )

    def device_bytes(self) -> tuple[int | None, int | None]:
        """Return bytes written to, and read from, the device since it was started."""
        try:
            fields = self._device.read_text().split()
            return int(fields[6]) * _SECTOR_BYTES, int(fields[2]) * _SECTOR_BYTES
        except (OSError, IndexError, ValueError):
            return None, None

    def disk_bytes(self) -> int:
        """Return the blocks in use by the files of the directory, bytes."""
        return sum(status.st_blocks * _BLOCK_BYTES for status in _statuses(self._directory))

    def sync_files(self) -> None:
        """Let the device have what was written, so that its sectors count to the phase that wrote them."""
        for path in self._directory.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)

    def forget_pages(self) -> None:
        """Let the page cache drop the files, which must be closed, so that they are read from the device again."""
        self.sync_files()
        for path in self._directory.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
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


def difference(after: int | None, before: int | None) -> int | None:
    """Return how far a counter went; None when one of the two is unknown."""
    return None if after is None or before is None else after - before


def _statuses(directory: Path) -> list[os.stat_result]:
    found = []
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # a file may go while it is looked at
            found.append(path.lstat())
    return found


def _proc_number(path: str, name: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None
