"""From system calls to the calls of a :class:`~rmqstore_conformance.power.volume.Volume`: which file each of them is about.

What is written through a mapping is no system call. Such files are named by :meth:`.Recording.unseen`; what is made durable that way cannot
be judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rmqstore_conformance.power.content import Image
from rmqstore_conformance.power.tracing import COPIES, DESCRIPTORS, LENGTHS, MARKS, NAMES, OPENS, SYNCS, WRITES, SystemCall, strings_of
from rmqstore_conformance.power.volume import Call, Mark, Recording, Volume

MARK: Final = "/rmqs-mark-"

_HELD: Final = re.compile(r"/proc/self/fd/(\d+)")
"""How a path begins that leads through a directory that is held by a descriptor."""


class _Open:
    """An open file or directory: its path under the root, where the next write goes, and how it was opened."""

    def __init__(self, number: int, path: str, flags: str) -> None:
        self.number = number
        self.path = path
        self.at = 0
        self.appends = "O_APPEND" in flags
        self.settles = "O_DSYNC" in flags or "O_SYNC" in flags


def replayed(root: Path, before: Image | None, calls: Iterable[SystemCall], *, lying: bool = False) -> Recording:
    """Return the calls of a trace to the disk below ``root``, which need not be there yet.

    Args:
        before: what was in it.
        lying: the syncs did nothing, so nothing that was written through is durable either.
    """
    replay = _Replay(root, before, lying=lying)
    for call in calls:
        if call.result >= 0 or call.name in MARKS:
            replay.take(call)
    scratch = frozenset(replay.mapped - replay.synced)
    return Recording(replay.calls, replay.marks, before, replay.volume.image(), replay.seen, scratch, frozenset(replay.unknown))


class _Replay:
    """Takes in the calls of a process.

    Attributes:
        mapped: files that were mapped to be written.
        synced: files of which a sync was asked for; with ``msync`` it may have been any of the mapped ones.
    """

    def __init__(self, root: Path, before: Image | None, *, lying: bool) -> None:
        self.calls: list[Call] = []
        self.marks: list[Mark] = []
        self.seen: dict[str, int] = {}
        self.mapped: set[str] = set()
        self.synced: set[str] = set()
        self.unknown: set[str] = set()
        self.volume = Volume(before)
        self._root = root
        self._lying = lying
        self._open: dict[int, _Open] = {}
        self._folders: dict[int, str] = {}
        self._files = 0

    def take(self, call: SystemCall) -> None:
        _TAKEN_BY[call.name](self, call)

    def _do(self, kind: str, path: str = "", **fields: object) -> None:
        call = Call(kind, path, **fields)  # type: ignore[arg-type]
        self.volume.do(call)
        self.calls.append(call)

    def _count(self, call: SystemCall) -> None:
        self.seen[call.name] = self.seen.get(call.name, 0) + 1

    def _mark(self, call: SystemCall) -> None:
        for text in strings_of(call.arguments):
            if text.startswith(MARK.encode()):
                self.marks.append(Mark.of(text[len(MARK) :].decode(), len(self.calls)))

    def _paths(self, call: SystemCall) -> list[str | None]:
        """Return the paths among the arguments of a call, below the root; None for one that is elsewhere."""
        found = []
        pieces = call.arguments.split(", ")
        for at, piece in enumerate(pieces):
            for text in strings_of(piece):
                path = os.fsdecode(text)
                if (held := _HELD.match(path)) is not None:
                    path = f"{self._folders.get(int(held[1]), '/?')}{path[held.end() :]}"
                if not path.startswith("/"):
                    above = self._folders.get(int(pieces[at - 1])) if at and pieces[at - 1].isdigit() else None
                    path = os.path.normpath(f"{above}/{path}") if above is not None else f"/?/{path}"
                found.append(self._below(path))
        return found

    def _below(self, path: str) -> str | None:
        path = os.path.normpath(path)
        root = str(self._root)
        return "" if path == root else path[len(root) + 1 :] if path.startswith(root + "/") else None

    # ------------------------------------------------------------ one kind each

    def _opened(self, call: SystemCall) -> None:
        (path,) = self._paths(call)[:1]
        flags = "O_CREAT|O_TRUNC" if call.name == "creat" else call.arguments
        self._open.pop(call.result, None)
        self._folders.pop(call.result, None)
        if path is None:
            return
        node = self.volume.kind_of(path)
        if node == "directory":
            self._folders[call.result] = f"{self._root}/{path}" if path else str(self._root)
            return
        self._files += 1
        opened = self._open[call.result] = _Open(self._files, path, flags)
        if node is None or "O_TRUNC" in flags:
            self._do("make", path, file=opened.number)
        else:
            self._do("open", path, file=opened.number)

    def _descriptor(self, call: SystemCall) -> None:
        pieces = call.arguments.split(", ")
        number = int(pieces[0], 0)
        opened = self._open.get(number)
        if call.name == "close":
            self._open.pop(number, None)
            self._folders.pop(number, None)
        elif call.name == "fcntl" and not pieces[1].startswith("F_DUPFD"):
            return
        elif call.name in ("dup", "dup2", "dup3", "fcntl"):
            if opened is not None:
                self._open[call.result] = opened
            if number in self._folders:
                self._folders[call.result] = self._folders[number]
        elif opened is not None:
            # A seek says where it came to, a read how far it went.
            opened.at = call.result if call.name == "lseek" else opened.at + call.result

    def _written(self, call: SystemCall) -> None:
        head, _, rest = call.arguments.partition(", ")
        if not head.isdigit() or (opened := self._open.get(int(head))) is None:
            return
        data = b"".join(strings_of(rest))[: call.result]
        if len(data) != call.result or "..." in rest:
            self.unknown.add(f"{call.name} of {call.result} bytes to {opened.path}, of which the trace shows {len(data)}")
            return
        self._count(call)
        at = opened.at
        if call.name == "pwrite64":
            at = int(rest.rsplit(", ", 1)[1])
        elif call.name in ("pwritev", "pwritev2"):
            at = int(rest.rsplit("], ", 1)[1].split(", ")[1])
        elif opened.appends:
            at = self.volume.length_of(opened.number)
        if call.name in ("write", "writev"):
            opened.at = at + len(data)
        if data:
            self._do("write", file=opened.number, offset=at, data=data)
            if opened.settles and not self._lying:
                self._do("settle", file=opened.number)

    def _synced(self, call: SystemCall) -> None:
        if call.name in ("sync", "syncfs"):
            self._count(call)
            if not call.injected:
                self._do("everything")
            return
        if call.name == "msync":
            self.synced |= self.mapped
            return
        head = call.arguments.split(", ")[0]
        if call.name == "sync_file_range" or not head.isdigit():
            # A range that is on its way to the disk need not have got there.
            return
        number = int(head)
        if number not in self._open and number not in self._folders:
            return
        self._count(call)
        if call.injected:
            return
        if number in self._folders:
            self._do("names", self._below(self._folders[number]) or "")
            return
        opened = self._open[number]
        self.synced.add(opened.path)
        self._do("sync", file=opened.number)

    def _resized(self, call: SystemCall) -> None:
        pieces = call.arguments.split(", ")
        if call.name == "truncate":
            self.unknown.add("truncate")
            return
        if (opened := self._open.get(int(pieces[0]))) is None:
            return
        self._count(call)
        length = self.volume.length_of(opened.number)
        if call.name == "ftruncate":
            if int(pieces[1]) != length:
                self._do("length", file=opened.number, offset=int(pieces[1]))
            return
        mode, at, size = pieces[1], int(pieces[2]), int(pieces[3])
        if "PUNCH_HOLE" in mode or "ZERO_RANGE" in mode:
            end = min(at + size, length)
            if end > at:
                self._do("write", file=opened.number, offset=at, data=bytes(end - at))
        elif "COLLAPSE" in mode or "INSERT" in mode:
            self.unknown.add(f"fallocate {mode}")
        if "KEEP_SIZE" not in mode and at + size > length:
            self._do("length", file=opened.number, offset=at + size)

    def _renamed(self, call: SystemCall) -> None:
        paths = self._paths(call)
        if all(path is None for path in paths):
            return
        self._count(call)
        first = paths[0]
        if call.name.startswith(("rename", "link")):
            second = paths[1]
            if first is None or second is None or "EXCHANGE" in call.arguments:
                self.unknown.add(f"{call.name} out of the directory, into it, or in exchange")
                return
            self._do("rename" if call.name.startswith("rename") else "link", first, target=second)
        elif first and call.name.startswith("mkdir"):
            self._do("directory", first)
        elif first:
            self._do("remove", first)
        elif first == "" and call.name.startswith("mkdir"):
            # The root itself: what it is in is not watched, so it is taken to be durable.
            return

    def _is_mapped(self, call: SystemCall) -> None:
        pieces = call.arguments.split(", ")
        if len(pieces) > 4 and "PROT_WRITE" in pieces[2] and "MAP_SHARED" in pieces[3] and pieces[4].isdigit():
            opened = self._open.get(int(pieces[4]))
            if opened is not None:
                self.mapped.add(opened.path)

    def _copied(self, call: SystemCall) -> None:
        pieces = call.arguments.split(", ")
        number = int(pieces[2 if call.name == "copy_file_range" else 0])
        if number in self._open:
            self.unknown.add(f"{call.name} to {self._open[number].path}")


_TAKEN_BY: Final[dict[str, Callable[[_Replay, SystemCall], None]]] = {
    **dict.fromkeys(MARKS, _Replay._mark),
    **dict.fromkeys(OPENS, _Replay._opened),
    **dict.fromkeys(WRITES, _Replay._written),
    **dict.fromkeys(SYNCS, _Replay._synced),
    **dict.fromkeys(LENGTHS, _Replay._resized),
    **dict.fromkeys(NAMES, _Replay._renamed),
    **dict.fromkeys(COPIES, _Replay._copied),
    **dict.fromkeys(DESCRIPTORS, _Replay._descriptor),
    "mmap": _Replay._is_mapped,
}
