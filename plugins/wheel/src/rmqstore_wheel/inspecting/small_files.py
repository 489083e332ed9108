"""The small files of a store: check points, the mark of an unclean end, and the JSON files of ``config/``.

``checkpoint`` (``StoreCheckpoint``) is 4096 bytes, of which the first 40 count::

    0    i64  store time of the last message on disk, ms     8   i64  of the last one in the consume queues    16  i64  in the index
    24   i64  offset up to which a master has flushed        32  i64  offset up to which messages are confirmed
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import config_files
from rmqstore_wheel.formats.check_points import REVIVE_GROUP, REVIVE_PREFIX
from rmqstore_wheel.formats.config_files import ConsumerOffsets, OrderInfo, TimerCheck, TimerMetrics
from rmqstore_wheel.inspecting import files
from rmqstore_wheel.inspecting.files import Findings
from rmqstore_wheel.inspecting.log import QueueName

CONFIG: Final = "config"
_MOST_BYTES: Final = 64 * 1024**2
_CHECK_POINT = struct.Struct(">5q")

T = TypeVar("T")


class CheckPointFile(msgspec.Struct, frozen=True):
    """The file ``checkpoint``, in the order of its fields."""

    message_ms: int
    queue_ms: int
    index_ms: int
    master_flushed: int
    confirmed: int


class SmallFiles(msgspec.Struct, kw_only=True):
    """What the small files say; None where there is no such file."""

    timer_check: TimerCheck | None
    check_point: CheckPointFile | None
    abort: str | None
    metrics: TimerMetrics | None
    offsets: ConsumerOffsets | None
    runs: dict[str, dict[int, OrderInfo]] | None
    backups: list[str]
    """Files of which the backup counts."""

    def revived(self) -> dict[QueueName, int]:
        """Return the last revived offset of each queue of the revive topics."""
        found: dict[QueueName, int] = {}
        for name, queues in self.offsets.table.items() if self.offsets else ():
            parts = config_files.split_offsets_key(name)
            if parts is not None and parts[1] == REVIVE_GROUP and parts[0].startswith(REVIVE_PREFIX):
                found |= {QueueName(parts[0], queue): offset for queue, offset in queues.items()}
        return found


def read(root: Path, findings: Findings) -> SmallFiles:
    """Read them all; what is damaged is noted, and missing in the result."""
    backups: list[str] = []

    def chosen(name: str, decode: Callable[[bytes], T]) -> T | None:
        """Return what a file says, or its backup where the file is missing, empty or not readable; None when neither says anything."""
        path = root / CONFIG / name
        file, backup = (_whole(each) for each in (path, path.with_name(name + config_files.BACKUP_SUFFIX)))
        fault: CorruptStoreError | None = None
        for data in (file, backup):
            if not data or not data.strip():
                continue
            try:
                found = decode(data)
            except CorruptStoreError as error:
                fault = error
                continue
            if data is backup:
                backups.append(name)
                if file is not None:
                    what = f"the file is {'not readable' if file.strip() else 'empty'}; its backup, one generation older, counts"
                    findings.add(f"{CONFIG}/{name}", 0, what)
            return found
        if fault is not None:
            findings.add(f"{CONFIG}/{name}", None, str(fault))
        return None

    return SmallFiles(
        timer_check=_timer_check(root, findings),
        check_point=_check_point(root, findings),
        abort=_abort(root),
        metrics=chosen(config_files.METRICS_FILE, config_files.decode_metrics),
        offsets=chosen(config_files.OFFSETS_FILE, config_files.decode_offsets),
        runs=chosen(config_files.ORDERS_FILE, config_files.decode_orders),
        backups=backups,
    )


def _timer_check(root: Path, findings: Findings) -> TimerCheck | None:
    name = f"{CONFIG}/{config_files.TIMER_CHECK_FILE}"
    data = _whole(root / name, config_files.TIMER_CHECK_BYTES)
    if data is None:
        return None
    if len(data) < config_files.TIMER_CHECK_BYTES:
        findings.add(name, len(data), f"the file has {len(data)} bytes where {config_files.TIMER_CHECK_BYTES} are expected")
    if len(data) < config_files.TIMER_CHECK_USED_BYTES:
        return None
    check = config_files.decode_timer_check(data)
    if min(check.read_ms, check.timer_log_position, check.queue_offset) < 0:
        findings.add(name, 0, f"a time, position or offset is negative: {check.read_ms}, {check.timer_log_position}, {check.queue_offset}")
        return None
    return check


def _check_point(root: Path, findings: Findings) -> CheckPointFile | None:
    data = _whole(root / "checkpoint", config_files.TIMER_CHECK_BYTES)
    if data is None:
        return None
    if len(data) < _CHECK_POINT.size:
        findings.add("checkpoint", len(data), f"the file has {len(data)} bytes where {config_files.TIMER_CHECK_BYTES} are expected")
        return None
    return CheckPointFile(*_CHECK_POINT.unpack_from(data))


def _abort(root: Path) -> str | None:
    data = _whole(root / "abort", 64)
    return None if data is None else data.decode("ascii", "replace").strip("\0 \n")


def _whole(path: Path, most_bytes: int = _MOST_BYTES) -> bytes | None:
    return files.read(path, 0, most_bytes) if path.is_file() else None
