"""Ways to break a store of the ``wheel`` engine: killed owners, power cuts, full and failing disks, small files.

All of it works on the seam ``rmqstore_wheel.files.disk``, through which the engine reaches its files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rmqstore import Store
from rmqstore.engine.kv.directory import copy_tree
from rmqstore_conformance.stores import Pair, Stores, read_ids
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.log.ledger import Sizes


class WheelStores(Stores):
    """Opens stores of the wheel engine, and what a crash left of one."""

    def __init__(self, root: Path) -> None:
        super().__init__(Pair("wheel", "wheel"), root)
        self._copies = 0

    def path(self, store: Store) -> Path:
        """Return RocketMQ's store directory."""
        return store.path / "wheel" / "db"

    def killed(self, store: Store, change: Callable[[Path], object] = lambda db: None, **settings: Any) -> Store:
        """Open what a ``kill -9`` of the owner would leave at this moment, after ``change`` was done to it."""
        name = self._name()
        copy_tree(store.path, self.root / name)
        change(self.root / name / "wheel" / "db")
        return self.open(name, **settings)

    def cut_off(self, image: Path, **settings: Any) -> Store:
        """Open a copy of what a power cut left."""
        name = self._name()
        copy_tree(image, self.root / name)
        return self.open(name, **settings)

    def _name(self) -> str:
        self._copies += 1
        return f"copy{self._copies}"


def rolls(store: Store) -> int:
    """Return how many times timers were put into a slot that is not their first, since the timer log was made."""
    index = store.engine.timers._index  # type: ignore[attr-defined]
    puts = sum(int((facts["kind"] == 1).sum()) for facts in [index.facts.read(index.facts.first, index.facts.count - index.facts.first)])
    units = index.wheel.units
    cancels = int(((units.read(units.first, units.count - units.first)["flags"] & timer_log.DELETE) != 0).sum())
    return int(units.count) - puts - cancels


def everywhere(store: Store, topic: str = "t") -> list[str]:
    """Return the ids of the pending timers and of what lies in queue 0 of a topic, sorted: each timer must be in one of them, once."""
    pending = [each.message.message_id or "" for each in store.scan().timers]
    return sorted(pending + read_ids(store, topic))


def parked_reasons(store: Store) -> dict[str, str]:
    """Return the reason of each parked entry by where it lay."""
    return {each.origin_message_id: each.reason for each in store.dead_letters.parked()}


# ---------------------------------------------------------------- disks that refuse


class Refusals:
    """How often files were written to, and how many of these calls were refused."""

    calls = 0
    refused = 0


@contextmanager
def refusing_writes(after: int = 0, times: int | None = None, code: int = errno.ENOSPC) -> Iterator[Refusals]:
    """Refuse the writes to files from the ``after``-th one on, ``times`` of them; only half of the first one is written."""
    count = Refusals()
    write_at = DiskFile.write_at

    def refuse(file: DiskFile, offset: int, data: Any) -> None:
        count.calls += 1
        if count.calls <= after or (times is not None and count.refused >= times):
            write_at(file, offset, data)
            return
        count.refused += 1
        view = memoryview(data).cast("B")
        write_at(file, offset, view[: len(view) // 2])
        raise OSError(code, os.strerror(code))

    with patch.object(DiskFile, "write_at", refuse):
        yield count


@contextmanager
def failing_syncs(after: int = 0) -> Iterator[Refusals]:
    """Let disk syncs fail from the ``after``-th one on."""
    count = Refusals()
    sync = DiskFile.sync

    def fail(file: DiskFile) -> None:
        count.calls += 1
        if count.calls > after:
            count.refused += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(file)

    with patch.object(DiskFile, "sync", fail):
        yield count


@contextmanager
def small_files(log_file_bytes: int = 64 * 1024) -> Iterator[None]:
    """Open stores with files so small that many of them are made."""
    sizes = Sizes(log_file_bytes, 100, 50, check_point_bytes=2 * log_file_bytes, check_point_calls=100, index_slots=512, index_entries=64)
    with patch("rmqstore_wheel.engine.sizes_of", lambda options: sizes):
        yield


# ---------------------------------------------------------------- power cuts


class Power:
    """Keeps what was synced of every file, so that an image can be made of what a power cut leaves when nothing else reached the disk.

    Names are taken to be durable at once; the suite's cases of power losses look at those. Begin it before a store is opened.
    """

    def __init__(self, root: Path) -> None:
        self._kept = root / "synced"
        self._kept.mkdir()
        self._made: set[int] = set()
        self.on_sync: Callable[[], object] = lambda: None

    @contextmanager
    def watched(self) -> Iterator[Power]:
        """Watch all files that are made and synced meanwhile."""
        sync, create = DiskFile.sync, Disk.create

        def watching_sync(file: DiskFile) -> None:
            self.on_sync()
            sync(file)
            number = file.path.stat().st_ino
            _copy_file(file.path, self._kept / str(number))
            self.on_sync()

        def watching_create(disk: Disk, path: Path, length: int = 0) -> DiskFile:
            file = create(disk, path, length)
            number = path.stat().st_ino
            self._made.add(number)
            (self._kept / str(number)).unlink(missing_ok=True)
            return file

        with patch.object(DiskFile, "sync", watching_sync), patch.object(Disk, "create", watching_create):
            yield self

    def image(self, source: Path, target: Path, survives: Callable[[Path], bool] = lambda path: False) -> Path:
        """Make in ``target`` what a power cut at this moment leaves of ``source``; what ``survives`` names is there with all its writes."""
        for path in sorted(source.rglob("*")):
            copy = target / path.relative_to(source)
            if path.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            number = path.stat().st_ino
            kept = self._kept / str(number)
            if number not in self._made or survives(path):
                _copy_file(path, copy)
            elif kept.exists():
                _copy_file(kept, copy)
            else:
                copy.touch()
        return target


def _copy_file(source: Path, copy: Path) -> None:
    """Copy a file; what is a hole in it stays one."""
    with source.open("rb") as reader, copy.open("wb") as writer:
        length, at = os.fstat(reader.fileno()).st_size, 0
        writer.truncate(length)
        while at < length:
            try:
                at = os.lseek(reader.fileno(), at, os.SEEK_DATA)
            except OSError:  # behind the last data
                break
            end = os.lseek(reader.fileno(), at, os.SEEK_HOLE)
            writer.seek(at)
            reader.seek(at)
            writer.write(reader.read(end - at))
            at = end
