"""Recording a process by a file system of its own, which hands every call on to a directory: for engines that write through mappings.

What is written through a mapping is no system call, but the kernel hands it to the file system at ``msync``, ``fsync`` and ``munmap``.
Run as a program it mounts a directory until somebody unmounts it, and then writes the calls to a file. Needs ``mfusepy``, the tools of
FUSE 3, and the right to mount.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from rmqstore_conformance.power.content import Image
from rmqstore_conformance.power.volume import Call, Mark, Recording, Volume

MARK: Final = "rmqs-mark-"
STORE: Final = "store"
_WAIT_S: Final = 20.0


def unusable() -> str | None:
    """Say why nothing can be mounted here; None when it can, as far as that is known before it is tried."""
    if importlib.util.find_spec("mfusepy") is None:
        return "install rmqstore-conformance[fuse]"
    if shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "install fuse3, and run where /dev/fuse may be used"
    return None


@contextmanager
def mounted(backing: Path, mount: Path, trace: Path) -> Iterator[None]:
    """Mount ``backing`` at ``mount`` within a ``with`` block; ``trace`` then holds what happened below ``mount / STORE``.

    Raises:
        OSError: it cannot be mounted.
    """
    mount.mkdir()
    command = [sys.executable, "-m", __name__, str(backing), str(mount), str(trace)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until_s = time.monotonic() + _WAIT_S
        while not os.path.ismount(mount):
            if process.poll() is not None or time.monotonic() > until_s:
                said = b"" if process.stderr is None or process.poll() is None else process.stderr.read()
                raise OSError(errno.EIO, f"cannot mount at {mount}: {said.decode(errors='replace')[-300:]}")
            time.sleep(0.01)
        yield
    finally:
        subprocess.run(["fusermount3", "-u", str(mount)], check=False, capture_output=True)
        try:
            process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def read_recording(trace: Path, before: Image | None, *, lying: bool = False) -> Recording:
    """Read what :func:`mounted` left; with ``lying`` as of a disk whose syncs do nothing."""
    calls: list[Call] = []
    marks: list[Mark] = []
    volume = Volume(before)
    for kind, path, file, offset, data, target in msgspec.msgpack.decode(trace.read_bytes()):
        if kind == "mark":
            marks.append(Mark.of(path, len(calls)))
        else:
            calls.append(Call("forgotten" if lying and kind in ("sync", "names") else kind, path, file, offset, data, target))
            volume.do(calls[-1])
    return Recording(calls, marks, before, volume.image(), {})


# ---------------------------------------------------------------- the file system


def _operations(backing: str, events: list[tuple[Any, ...]]) -> Any:
    import mfusepy

    class PassThrough(mfusepy.Operations):  # type: ignore[misc]
        """Hands every call on, and writes down those that change something below the store."""

        use_ns = True

        def __init__(self) -> None:
            self._files: dict[int, int] = {}
            self._opened = 0

        def _real(self, path: str) -> Path:
            return Path(backing + path)

        def _note(self, kind: str, path: str, file: int = 0, offset: int = 0, data: bytes = b"", target: str = "") -> None:
            below = [each.removeprefix(f"/{STORE}").removeprefix("/") for each in (path, target)]
            if path == f"/{STORE}" or path.startswith(f"/{STORE}/"):
                events.append((kind, below[0], file, offset, data, below[1]))

        def _open(self, kind: str, path: str, fh: int) -> int:
            self._opened += 1
            self._files[fh] = self._opened
            self._note(kind, path, self._opened)
            return fh

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path.startswith(f"/{MARK}"):
                events.append(("mark", path.removeprefix(f"/{MARK}"), 0, 0, b"", ""))
                raise mfusepy.FuseOSError(errno.ENOENT)
            found = self._real(path).lstat()
            names = ("mode", "size", "nlink", "uid", "gid", "blocks")
            return {**{f"st_{name}": getattr(found, f"st_{name}") for name in names}, "st_mtime": found.st_mtime_ns, "st_ino": found.st_ino}

        def readdir(self, path: str, fh: int) -> Any:
            return [".", "..", *(each.name for each in self._real(path).iterdir())]

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            fh = os.open(self._real(path), os.O_RDWR | os.O_CREAT, mode)
            return self._open("make", path, fh)

        def open(self, path: str, flags: int) -> int:
            fh = os.open(self._real(path), (flags & ~(os.O_CREAT | os.O_APPEND | os.O_ACCMODE)) | os.O_RDWR)
            return self._open("make" if flags & os.O_TRUNC else "open", path, fh)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            written = os.pwrite(fh, data, offset)
            self._note("write", path, self._files[fh], offset, bytes(data[:written]))
            return written

        def truncate(self, path: str, length: int, fh: int | None = None) -> None:
            os.truncate(self._real(path), length)
            if fh is None:
                self._opened += 1
                self._note("open", path, self._opened)
            self._note("length", path, self._opened if fh is None else self._files[fh], length)

        def fsync(self, path: str, datasync: int, fh: int) -> None:
            self._note("sync", path, self._files[fh])

        def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
            self._note("names", path)

        def flush(self, path: str, fh: int) -> None:
            return None

        def release(self, path: str, fh: int) -> None:
            self._files.pop(fh, None)
            os.close(fh)

        def rename(self, old: str, new: str) -> None:
            self._real(old).rename(self._real(new))
            self._note("rename", old, target=new)

        def unlink(self, path: str) -> None:
            self._real(path).unlink()
            self._note("remove", path)

        def mkdir(self, path: str, mode: int) -> None:
            self._real(path).mkdir(mode)
            if path != f"/{STORE}":
                self._note("directory", path)

        def rmdir(self, path: str) -> None:
            self._real(path).rmdir()
            self._note("remove", path)

        def chmod(self, path: str, mode: int) -> None:
            self._real(path).chmod(mode)

        def utimens(self, path: str, times: Any = None) -> None:
            os.utime(self._real(path), ns=times)

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(self._real(path))
            return {name: getattr(found, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_files", "f_ffree", "f_frsize")}

    return PassThrough()


def main() -> None:
    """Mount, in the foreground, until somebody unmounts."""
    import mfusepy

    backing, mount, trace = sys.argv[1:]
    events: list[tuple[Any, ...]] = []
    mfusepy.FUSE(_operations(backing, events), mount, foreground=True, nothreads=True, default_permissions=False)
    Path(trace).write_bytes(msgspec.msgpack.encode(events))


if __name__ == "__main__":
    main()
