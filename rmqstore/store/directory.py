"""The directory of a store: its lock, its manifest, and its creation, which is whole or not at all.

::

    LOCK                 held with flock while the store is open; names the holder for people
    rmqstore.json        the manifest: format, store id, baked settings; its being there says that creation came to its end
    rmqstore.creating    there while the store is being created; what is beside it without a manifest is removed at the next open
    rmqstore.toml        settings, optional, written by the user
    rmqstore.sock        where an owner listens that shares the store; left behind by one that was killed
    <engine>/            one directory an engine
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rmqstore.config import FILE_NAME as CONFIG_NAME
from rmqstore.engine.kv.directory import FileLock, sync_path, sync_tree
from rmqstore.errors import NO_ROOM, CorruptStoreError, FormatVersionError, StoreLockedError, StorePathError, named, system_error

LOCK_NAME = "LOCK"
MANIFEST_NAME = "rmqstore.json"
CREATING_NAME = "rmqstore.creating"
SOCKET_NAME = "rmqstore.sock"
MANIFEST_FORMAT = 1


class HeldDirectory:
    """A directory held by a descriptor: it stays the same one when it is moved, when the working directory changes, and when a symlink on
    the way to it is switched.

    Where the system cannot name a directory by its descriptor, it is held by its real path, which a change of its name breaks.

    Attributes:
        path: leads to the directory as long as it is held; for calls that open files in it, not for people.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held = Path(f"/proc/self/fd/{self._fd}")
        self.path = held if held.exists() else path.resolve()

    def close(self) -> None:
        """Let go of the directory; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@contextmanager
def flocked(directory: Path, operation: int) -> Iterator[int]:
    """Hold the lock of a directory itself, which no file in it has, and give its descriptor; ``operation`` is that of ``fcntl.flock``."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, operation)
        yield held
    finally:
        os.close(held)


class StoreDirectory:
    """A locked store directory, held by a descriptor (X5).

    Attributes:
        path: as it was given, for people; one that was given by its descriptor, by its name. held: the same directory for calls that open
            files in it, see :class:`HeldDirectory`.

    Raises:
        StorePathError: the path is a file, not writable, its parent is missing, or it holds something else.
        StoreLockedError: somebody has the store open, or put another one into its place meanwhile.
        FormatVersionError: a newer rmqstore made it.
        CorruptStoreError: the manifest cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._prepare()
            self._directory = HeldDirectory(self.path)
        except OSError as error:
            raise system_error(error, self.path) from error
        self.path = Path(named(str(self.path)))
        self.held = self._directory.path
        self.manifest: dict[str, Any] | None = None
        with ExitStack() as stack:
            stack.callback(self._directory.close)
            try:
                self._refuse_strangers()
                self._lock = self._locked()
            except OSError as error:
                raise system_error(error, self.path) from error
            stack.callback(self.release)
            self._refuse_moved()
            self.manifest = read_manifest(self.held)
            if self.manifest is None:
                self._clear()
            stack.pop_all()

    def _prepare(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise StorePathError(f"{self.path} is a file; a store is a directory")
        if not self.path.parent.is_dir():
            raise StorePathError(f"{self.path.parent} does not exist; make it first, then open {self.path}")
        self.path.mkdir(exist_ok=True)

    def _locked(self) -> FileLock:
        file = self.held / LOCK_NAME
        try:
            lock = FileLock(file)
        except BlockingIOError:
            try:
                holder = file.read_text(encoding="utf-8", errors="replace").strip()
            except OSError:  # its holder has just removed it
                holder = ""
            raise StoreLockedError(
                f"store {self.path} is open elsewhere, by {_named(holder)}; processes that all open it with share=True use it together; "
                "the commands that only read, and rmqstore.open(path, read_only=True), work beside it if its engine allows that"
            ) from None
        try:
            os.truncate(lock.fd, 0)
            os.pwrite(lock.fd, f"{_this_process()}\n".encode(), 0)
        except BaseException:
            lock.release()
            raise
        return lock

    def _refuse_moved(self) -> None:
        """Refuse a directory that another one took the place of before it was locked: a migration or a load had the lock until then."""
        try:
            is_there = self.path.samefile(self.held)
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        if not is_there:
            raise StoreLockedError(f"store {self.path} was moved or replaced while it was opened; open it again")

    def _refuse_strangers(self) -> set[str]:
        """Return what a creation left that did not come to its end; anything else that is no store is refused."""
        strangers = set() if read_manifest(self.held) else {entry.name for entry in self.held.iterdir()} - {LOCK_NAME, CONFIG_NAME}
        # Another open may have made the store meanwhile; its manifest is there before its marker goes.
        if strangers and CREATING_NAME not in strangers and read_manifest(self.held) is None:
            shown = ", ".join(sorted(strangers)[:3])
            raise StorePathError(f"{self.path} is no store and not empty (it holds {shown}); choose an empty or a new directory")
        return strangers

    def _clear(self) -> None:
        """Make way for a new store."""
        strangers = self._refuse_strangers()
        try:
            for name in sorted(strangers - {CREATING_NAME}):
                entry = self.held / name
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            (self.held / CREATING_NAME).touch()
            sync_path(self.held)
        except OSError as error:
            raise system_error(error, self.path) from error

    def engine_path(self, engine: str) -> Path:
        """Return the directory of one engine, made as needed."""
        path = self.held / engine
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise system_error(error, path) from error
        return path

    def new_manifest(self, baked: Mapping[str, object], store_id: int | None = None, min_epoch: int = 0) -> dict[str, Any]:
        """Return the manifest of a new store, by default with a random store id of 32 bits; :meth:`publish` writes it."""
        return {"format": MANIFEST_FORMAT, "store_id": store_id or secrets.randbits(31) + 1, "min_epoch": min_epoch, "baked": dict(baked)}

    def publish(self, manifest: Mapping[str, object]) -> None:
        """Write the manifest in one step, after the engines are there: from now on the store exists."""
        try:
            # The names of the engines must not be lost behind a manifest that speaks of them.
            sync_path(self.held)
            write_manifest(self.held, manifest)
            (self.held / CREATING_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise system_error(error, self.path) from error
        self.manifest = dict(manifest)

    def abandon(self) -> None:
        """Leave nothing of a creation that was not begun: an empty directory, or one with settings, is as it was."""
        if self.manifest is None:
            (self.held / CREATING_NAME).unlink(missing_ok=True)
            (self.held / LOCK_NAME).unlink(missing_ok=True)

    def release(self) -> None:
        """Let go of the lock; idempotent."""
        self._lock.release()
        self._directory.close()

    @property
    def is_removed(self) -> bool:
        """Whether the lock file was removed: with the store, or alone, so that another process could take the store as well."""
        try:
            return not os.fstat(self._lock.fd).st_nlink
        except OSError:  # closed by another thread in this moment
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def aside_prefix(target: Path, doing: str) -> str:
    """Return how the names of the directories begin in which ``target`` is made."""
    # Names may be as long as the file system takes, so the number tells apart those that begin alike.
    return f"{target.name[:40]}.{zlib.crc32(os.fsencode(target.name)):08x}.{doing}-"


@contextmanager
def made_aside(target: Path, doing: str) -> Iterator[Path]:
    """Give a directory to fill, which becomes ``target`` once it is durable; when that fails, nothing is left."""
    parent = target.absolute().parent
    aside = parent / f"{aside_prefix(target, doing)}{secrets.token_hex(4)}"
    try:
        aside.mkdir()
        yield aside
        sync_tree(aside)
        aside.rename(target)
        sync_path(parent)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError):
            raise system_error(error, target) from error
        raise


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of the store in ``directory``, None when there is no store.

    Raises:
        FormatVersionError: a newer rmqstore made it.
        CorruptStoreError: it cannot be read.
    """
    path = directory / MANIFEST_NAME
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise system_error(error, directory) from error
        # JSON says where it stopped as ``pos``, the decoding of text as ``start``.
        offset = getattr(error, "pos", getattr(error, "start", 0))
        raise CorruptStoreError(f"the manifest {path} cannot be read: {error}", file=str(path), offset=offset) from error
    looks_like_one = isinstance(manifest, dict) and not manifest.keys().isdisjoint({"format", "store_id"})
    if looks_like_one and (version := manifest.get("format")) != MANIFEST_FORMAT:
        raise FormatVersionError(f"store {directory} has format {version!r}, this version of rmqstore reads {MANIFEST_FORMAT}")
    if not _is_manifest(manifest):
        raise CorruptStoreError(f"the manifest {path} is not one of a store", file=str(path), offset=0)
    return dict(manifest)


def _is_manifest(manifest: object) -> bool:
    if not isinstance(manifest, dict):
        return False
    store_id, baked = manifest.get("store_id"), manifest.get("baked")
    engines = [baked.get(key) for key in ("timer_engine", "pop_engine")] if isinstance(baked, dict) else []
    return type(store_id) is int and 0 < store_id < 2**32 and len(engines) == 2 and all(isinstance(name, str) and name for name in engines)


def engines_in(manifest: Mapping[str, Any]) -> list[str]:
    """Return the engines of a store's sides, one or two, by its manifest."""
    return list(dict.fromkeys((manifest["baked"]["timer_engine"], manifest["baked"]["pop_engine"])))


def write_manifest(directory: Path, manifest: Mapping[str, object]) -> None:
    """Write a manifest durably."""
    write_durably(directory / MANIFEST_NAME, json_bytes(manifest))


def json_bytes(content: object) -> bytes:
    """Return the content of a small file that people may read."""
    return json.dumps(content, indent=2, sort_keys=True).encode()


def write_durably(file: Path, content: bytes, suffix: str = ".new") -> None:
    """Write a file durably and in one step: beside its place, under its name and ``suffix``, then renamed."""
    new = file.with_name(f"{file.name}{suffix}")
    try:
        new.write_bytes(content)
        sync_path(new)
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_path(file.parent)


def room_of(directory: Path) -> tuple[int, int]:
    """Return how many files there are in a directory, and the bytes that they take on the disk."""
    statuses = []
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # it was removed meanwhile
                statuses.append(Path(folder, name).lstat())
    taken = [status.st_blocks * 512 for status in statuses if stat.S_ISREG(status.st_mode)]
    return len(taken), sum(taken)


def _this_process() -> str:
    """Return what the lock file says of its holder."""
    return f"pid {os.getpid()}, started {process_start() or '?'}"


def _named(holder: str) -> str:
    """Return the holder in a lock file for people, who can do nothing with the time it was started."""
    if holder == _this_process():  # the pid alone could be that of a process in another container
        return f"this process (pid {os.getpid()})"
    pid = holder.partition(",")[0]
    return pid if re.fullmatch(r"pid \d+", pid) else "a process that did not say who it is"


def process_start(pid: str = "self") -> str | None:
    """Return when a process was started, in clock ticks since boot, so that a reused pid can be told apart; None where that is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    except OSError:
        return None
