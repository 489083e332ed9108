"""A disk that writes down every call, with the moments at which somebody was told that something is done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqstore.ordered import home
from rmqstore_conformance.power.volume import Call
from rmqstore_wheel import session
from rmqstore_wheel.disk import Disk, DiskFile
from rmqstore_wheel.formats.binary_columns import Bytes


class Killed(BaseException):
    """The process is killed."""


class Trace:
    """The calls to a disk, in their order; paths are relative to ``root``.

    Attributes:
        kill_at: behind so many calls the process is killed; what it tries then does not reach the disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[Call] = []
        self.kill_at: int | None = None
        self._files = 0

    def alive(self) -> None:
        """Raise when the process was killed."""
        if self.kill_at is not None and len(self.calls) >= self.kill_at:
            raise Killed

    def __len__(self) -> int:
        return len(self.calls)

    def add(self, kind: str, path: Path | None = None, **fields: Any) -> None:
        """Write a call down."""
        self.calls.append(Call(kind, "" if path is None else self.name_of(path), **fields))
        self.alive()

    def name_of(self, path: Path) -> str:
        """Return a path as the trace has it."""
        found = str(Path(path).relative_to(self.root))
        return "" if found == "." else found

    def next_file(self) -> int:
        """Return the number of one more open file."""
        self._files += 1
        return self._files


class RecordingFile(DiskFile):
    """An open file of a :class:`RecordingDisk`."""

    def __init__(self, plain: DiskFile, trace: Trace, number: int) -> None:
        super().__init__(plain.path, plain._fd)
        self._trace = trace
        self.number = number

    def write_at(self, offset: int, data: Bytes) -> None:
        self._trace.alive()
        super().write_at(offset, data)
        self._trace.add("write", file=self.number, offset=offset, data=bytes(data))

    def truncate(self, length: int) -> None:
        self._trace.alive()
        super().truncate(length)
        self._trace.add("length", file=self.number, offset=length)

    def sync(self) -> None:
        self._trace.alive()
        self._trace.add("sync", file=self.number)


class RecordingDisk(Disk):
    """The operating system's files, syncs left out: whether they are durable is for the :class:`Volume` to say."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def create(self, path: Path, length: int = 0) -> DiskFile:
        self.trace.alive()
        file = RecordingFile(super().create(path, length), self.trace, self.trace.next_file())
        self.trace.add("make", path, file=file.number, offset=length)
        return file

    def open(self, path: Path) -> DiskFile:
        self.trace.alive()
        file = RecordingFile(super().open(path), self.trace, self.trace.next_file())
        self.trace.add("open", path, file=file.number)
        return file

    def rename(self, old: Path, new: Path) -> None:
        self.trace.alive()
        super().rename(old, new)
        self.trace.add("rename", old, target=self.trace.name_of(new))

    def remove(self, path: Path) -> None:
        self.trace.alive()
        super().remove(path)
        self.trace.add("remove", path)

    def remove_tree(self, path: Path) -> None:
        self.trace.alive()
        if path.is_dir():
            super().remove_tree(path)
            self.trace.add("tree", path)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self.trace.alive()
            super().make_directory(path)
            self.trace.add("directory", path)

    def sync_directory(self, path: Path) -> None:
        self.trace.alive()
        self.trace.add("names", path)


class _WatchedPath(type(Path())):  # type: ignore[misc]
    """A path whose owner changes files by itself, as the creation of an engine directory does."""

    trace: Trace

    def mkdir(self, *args: Any, **kwargs: Any) -> None:
        super().mkdir(*args, **kwargs)
        self.trace.add("directory", self)

    def rename(self, target: Any) -> Any:
        found = super().rename(target)
        self.trace.add("rename", self, target=self.trace.name_of(target))
        return found

    def write_text(self, data: str, *args: Any, **kwargs: Any) -> int:
        count: int = super().write_text(data, *args, **kwargs)
        number = self.trace.next_file()
        self.trace.add("make", self, file=number)
        self.trace.add("write", file=number, data=data.encode())
        return count


class _Rmtree:
    """``shutil`` as the creation uses it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def rmtree(self, path: Path, *, ignore_errors: bool = False) -> None:
        if path.is_dir():
            shutil.rmtree(path)
            self._trace.add("tree", path)


@contextmanager
def recorded(trace: Trace) -> Iterator[RecordingDisk]:
    """Record what happens to a directory, its creation included, within a ``with`` block; gives the disk to open the engine with."""

    class Watched(_WatchedPath):
        pass

    Watched.trace = trace

    class Home(home.EngineHome):
        def open(self, create: Callable[[Path], None]) -> Path:
            self.directory, self.database = Watched(self.directory), Watched(self.database)
            return Path(super().open(create))

    def sync_path(path: Path) -> None:
        if path.is_dir():
            trace.add("names", path)
        else:
            number = trace.next_file()
            trace.add("open", path, file=number)
            trace.add("sync", file=number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "EngineHome", Home)
        patch.setattr(home, "sync_path", sync_path)
        patch.setattr(home, "shutil", _Rmtree(trace))
        yield RecordingDisk(trace)
