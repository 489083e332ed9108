"""What a disk may hold after a power loss: files and directories that know which of their changes are durable.

A :class:`Volume` is fed the calls of a trace one after the other. At any moment :meth:`Volume.image` gives the directory that is left when
every change that is not durable yet meets a fate of its own. What is legal:

- of a file, all changes of before its last sync are there; each later one is kept, dropped, or torn at sectors;
- of a directory, all names of before its last sync are there; each later change of names is kept or dropped, a rename as a whole; where
  the sync of a file makes the name that it was made with durable, as on ext4, XFS and Btrfs, that name is there too;
- a name that is not durable takes with it whatever it leads to, however durable that is by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from rmqstore_conformance.power.content import Content, Image

SECTOR: Final = 512


class Fate(enum.Enum):
    """What becomes of a change that was not synced; the last four tear it."""

    KEPT = "kept"
    DROPPED = "dropped"
    HEAD = "its first sectors"
    TAIL = "its last sectors"
    COMB = "every second sector"
    GAP = "all but its last sector but one"


TORN: Final = (Fate.HEAD, Fate.TAIL, Fate.COMB, Fate.GAP)


class Call(NamedTuple):
    """One call to the disk, as a trace has it.

    Attributes:
        kind: make, open, write, length, sync, settle (what the file's last call changed is durable, as with ``O_DSYNC``), rename, link,
            remove, directory, names (of a directory are durable), everything (is durable).
        file: tells open files apart.
    """

    kind: str
    path: str = ""
    file: int = 0
    offset: int = 0
    data: bytes = b""
    target: str = ""


class Change(NamedTuple):
    """A change of a file: ``data`` written at ``offset``; None: its length becomes ``offset``."""

    offset: int
    data: bytes | None = None


Names: TypeAlias = "dict[str, File | Directory | None]"
"""A change of the names in a directory: each leads elsewhere, or nowhere, at once."""

_Content = TypeVar("_Content", Content, "dict[str, File | Directory]")
_Change = TypeVar("_Change", Change, Names)


class _Node(Generic[_Content, _Change]):
    """What is durable of a file or a directory, what is there, and the changes between the two."""

    def __init__(self, durable: _Content) -> None:
        self.durable: _Content = durable
        self.live: _Content = durable.copy()
        self.pending: dict[int, _Change] = {}
        self._settled: set[int] = set()

    @staticmethod
    def _do(content: _Content, change: _Change, fate: Fate) -> None:
        raise NotImplementedError

    def change(self, number: int, change: _Change) -> None:
        self._do(self.live, change, Fate.KEPT)
        self.pending[number] = change

    def sync(self) -> None:
        self.durable = self.live.copy()
        self.pending.clear()
        self._settled.clear()

    def not_durable(self) -> dict[int, _Change]:
        return {number: change for number, change in self.pending.items() if number not in self._settled}

    def content(self, fates: Mapping[int, Fate]) -> _Content:
        """Return what is left."""
        met = [Fate.KEPT if number in self._settled else fates.get(number, Fate.KEPT) for number in self.pending]
        if all(fate is Fate.KEPT for fate in met):
            return self.live.copy()
        left = self.durable.copy()
        for change, fate in zip(self.pending.values(), met, strict=True):
            self._do(left, change, fate)
        return left


class File(_Node[Content, Change]):
    """A file."""

    def settle(self) -> None:
        """Make the last change durable, and no other."""
        if self.pending:
            self._settled.add(max(self.pending))

    @staticmethod
    def _do(content: Content, change: Change, fate: Fate) -> None:
        if fate is Fate.DROPPED:
            return
        if change.data is None:
            content.resize(change.offset)
            return
        data = memoryview(change.data)
        for begin, end in _kept(change.offset, len(data), fate):
            content.write(begin, data[begin - change.offset : end - change.offset])


def _kept(offset: int, size: int, fate: Fate) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of what is left of a write."""
    end = offset + size
    if fate is Fate.KEPT:
        yield offset, end
        return
    first, last = offset // SECTOR, (end - 1) // SECTOR
    middle = (first + last + 1) // 2
    kept = {
        Fate.HEAD: range(first, middle),
        Fate.TAIL: range(middle, last + 1),
        Fate.COMB: range(first + 1, last + 1, 2),
        Fate.GAP: (*range(first, last - 1), last),
    }
    for sector in kept[fate]:
        yield max(offset, sector * SECTOR), min(end, (sector + 1) * SECTOR)


def can_tear(change: Change | Names) -> bool:
    """Say whether a change is more than one sector."""
    if isinstance(change, dict) or not change.data:
        return False
    return change.offset // SECTOR != (change.offset + len(change.data) - 1) // SECTOR


class Directory(_Node["dict[str, File | Directory]", Names]):
    """A directory."""

    def settle(self, file: File) -> None:
        """Make the name durable that a file was made with, and no other."""
        self._settled.update(number for number, change in self.pending.items() if [*change.values()] == [file])

    @staticmethod
    def _do(content: dict[str, File | Directory], change: Names, fate: Fate) -> None:
        for name, node in change.items() if fate is not Fate.DROPPED else ():
            if node is None:
                content.pop(name, None)
            else:
                content[name] = node


class Volume:
    """A directory tree.

    Args:
        image: what is there, durably, to begin with.
        names_follow: whether the sync of a file makes the name durable that it was made with.

    Attributes:
        calls: how many calls were made.
        call_of: by the number of a change, that of the call that made it.
    """

    def __init__(self, image: Image | None = None, *, names_follow: bool = False) -> None:
        self.calls = 0
        self.call_of: list[int] = []
        self._names_follow = names_follow
        self._root = Directory({})
        self._nodes: list[File | Directory] = [self._root]
        self._open: dict[int, File] = {}
        for path, content in sorted((image or {}).items()):
            folder, name = self._place(path)
            made = Directory({}) if content is None else File(content.copy())
            self._nodes.append(made)
            folder.durable[name] = folder.live[name] = made

    def _find(self, path: str) -> File | Directory:
        node: File | Directory = self._root
        for name in path.split("/") if path else ():
            assert isinstance(node, Directory)
            node = node.live[name]
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        folder = self._find(above)
        assert isinstance(folder, Directory)
        return folder, name

    def _number(self) -> int:
        self.call_of.append(self.calls)
        return len(self.call_of) - 1

    # ------------------------------------------------------------ calls

    def do(self, call: Call) -> None:
        getattr(self, f"_do_{call.kind}")(call)
        self.calls += 1

    def _do_make(self, call: Call) -> None:
        folder, name = self._place(call.path)
        file = folder.live.get(name)
        if file is None:
            file = File(Content())
            self._nodes.append(file)
            folder.change(self._number(), {name: file})
        assert isinstance(file, File)
        if file.live.length:
            file.change(self._number(), Change(0))
        if call.offset:
            file.change(self._number(), Change(call.offset))
        self._open[call.file] = file

    def _do_open(self, call: Call) -> None:
        file = self._find(call.path)
        assert isinstance(file, File)
        self._open[call.file] = file

    def _do_write(self, call: Call) -> None:
        self._open[call.file].change(self._number(), Change(call.offset, call.data))

    def _do_length(self, call: Call) -> None:
        self._open[call.file].change(self._number(), Change(call.offset))

    def _do_sync(self, call: Call) -> None:
        file = self._open[call.file]
        file.sync()
        for node in self._nodes if self._names_follow else ():
            if isinstance(node, Directory):
                node.settle(file)

    def _do_settle(self, call: Call) -> None:
        self._open[call.file].settle()

    def _do_names(self, call: Call) -> None:
        self._find(call.path).sync()

    def _do_everything(self, call: Call) -> None:
        for node in self._nodes:
            node.sync()

    def _do_forgotten(self, call: Call) -> None:
        """A call that a disk does not do, which is broken on purpose."""

    def _do_rename(self, call: Call) -> None:
        folder, name = self._place(call.path)
        onto, new = self._place(call.target)
        node, number = folder.live[name], self._number()
        if onto is folder:
            folder.change(number, {name: None, new: node})
        else:
            # Both names change at once, by one entry of the file system's journal; either directory makes its own part durable.
            folder.change(number, {name: None})
            onto.change(number, {new: node})

    def _do_link(self, call: Call) -> None:
        onto, new = self._place(call.target)
        onto.change(self._number(), {new: self._find(call.path)})

    def _do_remove(self, call: Call) -> None:
        folder, name = self._place(call.path)
        folder.change(self._number(), {name: None})

    def _do_directory(self, call: Call) -> None:
        folder, name = self._place(call.path)
        made = Directory({})
        self._nodes.append(made)
        folder.change(self._number(), {name: made})

    # ------------------------------------------------------------ what is there

    def kind_of(self, path: str) -> str | None:
        """Say what is at a path now: file, directory, or None."""
        try:
            node = self._find(path)
        except KeyError:
            return None
        return "file" if isinstance(node, File) else "directory"

    def length_of(self, file: int) -> int:
        return self._open[file].live.length

    # ------------------------------------------------------------ what is left

    def pending(self) -> dict[int, Change | Names]:
        """Return the changes that are not durable, by their numbers."""
        found: dict[int, Change | Names] = {}
        for node in self._nodes:
            found.update(node.not_durable())
        return dict(sorted(found.items()))

    def image(self, fates: Mapping[int, Fate] | None = None) -> Image:
        """Return what is left when changes meet these fates; those not named are kept."""
        found: Image = {}
        fates = fates or {}
        self._collect(self._root, "", fates, found)
        return found

    def dropped(self) -> Image:
        """Return what is left when all goes that is not durable."""
        return self.image(dict.fromkeys(self.pending(), Fate.DROPPED))

    def _collect(self, folder: Directory, above: str, fates: Mapping[int, Fate], found: Image) -> None:
        for name, node in folder.content(fates).items():
            path = f"{above}/{name}" if above else name
            if isinstance(node, File):
                found[path] = node.content(fates)
            else:
                found[path] = None
                self._collect(node, path, fates, found)


class Mark(NamedTuple):
    """A moment behind so many calls to the disk: ``event`` is begin or end, ``number`` that of the step."""

    event: str
    number: int
    calls: int

    @classmethod
    def of(cls, text: str, calls: int) -> Mark:
        """Read a mark as a process leaves it."""
        event, _, number = text.partition("-")
        return cls(event, int(number), calls)


class Recording(NamedTuple):
    """The calls to the disk of one process below a directory, and the marks between them.

    Attributes:
        before: what was in the directory.
        made: what the calls make of it.
        seen: how often each system call was made by the process's first thread, as far as it can be made to fail.
        scratch: files that were mapped to be written, and never synced.
        unknown: system calls that are not understood, of which the recording is therefore wrong.
        names_follow: as :class:`Volume` has it.
    """

    calls: list[Call]
    marks: list[Mark]
    before: Image | None
    made: Image
    seen: dict[str, int]
    scratch: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    names_follow: bool = False

    def volume(self, cut: int = 0) -> Volume:
        """Return a volume that the calls can be fed to, behind so many of them."""
        volume = Volume(self.before, names_follow=self.names_follow)
        for call in self.calls[:cut]:
            volume.do(call)
        return volume

    def replayed(self) -> Iterator[tuple[int, Call, Volume]]:
        """Yield behind each call how many there were, the call, and the volume as it is then."""
        volume = self.volume()
        for cut, call in enumerate(self.calls, start=1):
            volume.do(call)
            yield cut, call, volume

    def unseen(self, left: Image) -> list[str]:
        """Return the files that changed otherwise than by these calls, given what the directory really holds."""
        return sorted(path for path in left.keys() | self.made.keys() if left.get(path) != self.made.get(path) and path not in self.scratch)
