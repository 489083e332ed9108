"""The content of a file, holes left out: files of a store may be set aside far beyond what is in them."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096
_HOLE: Final = bytes(PAGE_BYTES)


class Content:
    """Bytes by page; a page that is not there is zeros.

    Attributes:
        length: in bytes.
    """

    __slots__ = ("_pages", "length")

    def __init__(self, data: bytes = b"") -> None:
        self.length = 0
        self._pages: dict[int, bytes] = {}
        if data:
            self.write(0, data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.length == other.length and self._pages == other._pages

    __hash__ = None  # type: ignore[assignment]

    def __bytes__(self) -> bytes:
        found = bytearray(self.length)
        for number, page in self._pages.items():
            at = number * PAGE_BYTES
            found[at : at + PAGE_BYTES] = page[: self.length - at]
        return bytes(found)

    def __repr__(self) -> str:
        return f"Content({self.length} bytes, {len(self._pages)} pages)"

    @property
    def places(self) -> list[int]:
        """Where pages begin that are no holes."""
        return sorted(number * PAGE_BYTES for number in self._pages)

    def copy(self) -> Content:
        other = Content()
        other.length = self.length
        other._pages = dict(self._pages)
        return other

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Put bytes somewhere; what is between the end and there becomes a hole."""
        end = offset + len(data)
        self.length = max(self.length, end)
        for number in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)):
            begin = number * PAGE_BYTES
            first, last = max(offset, begin), min(end, begin + PAGE_BYTES)
            piece = bytes(data[first - offset : last - offset])
            if len(piece) < PAGE_BYTES:
                old = self._pages.get(number, _HOLE)
                piece = old[: first - begin] + piece + old[last - begin :]
            self._put(number, piece)

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.length)
        pieces = []
        for number in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)):
            begin = number * PAGE_BYTES
            pieces.append(self._pages.get(number, _HOLE)[max(offset - begin, 0) : end - begin])
        return b"".join(pieces)

    def resize(self, length: int) -> None:
        """Cut off the end, or add a hole to it."""
        if length < self.length:
            last = length // PAGE_BYTES
            for number in [number for number in self._pages if number > last or (number == last and length % PAGE_BYTES == 0)]:
                del self._pages[number]
            if length % PAGE_BYTES and last in self._pages:
                self._put(last, self._pages[last][: length % PAGE_BYTES].ljust(PAGE_BYTES, b"\0"))
        self.length = length

    def _put(self, number: int, page: bytes) -> None:
        if page == _HOLE:
            self._pages.pop(number, None)
        else:
            self._pages[number] = page

    def digest(self) -> bytes:
        hashed = blake2b(self.length.to_bytes(8), digest_size=16)
        for number, page in sorted(self._pages.items()):
            hashed.update(number.to_bytes(8) + page)
        return hashed.digest()

    # ------------------------------------------------------------ files

    @classmethod
    def of_file(cls, path: Path) -> Content:
        found = cls()
        with path.open("rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            at = 0
            while at < end:
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:
                    break  # Nothing but a hole up to the end.
                at -= at % PAGE_BYTES
                hole = min(os.lseek(file.fileno(), at, os.SEEK_HOLE), end)
                while at < hole and (data := os.pread(file.fileno(), min(hole - at, 1 << 20), at)):
                    found.write(at, data)
                    at += len(data)
            found.length = end
        return found

    def to_file(self, path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, self.length)
            for number, page in self._pages.items():
                at = number * PAGE_BYTES
                os.pwrite(fd, page[: self.length - at], at)
        finally:
            os.close(fd)


Image = dict[str, "Content | None"]
"""The content of every file of a directory, by its path in it; None for a directory."""


def read_image(root: Path) -> Image:
    """Read a directory."""
    found: Image = {}
    for folder, folders, files in os.walk(root):
        above = Path(folder).relative_to(root)
        found.update((str(above / name), None) for name in folders)
        found.update((str(above / name), Content.of_file(Path(folder, name))) for name in files)
    return found


def write_image(root: Path, image: Image) -> None:
    """Make a directory of an image."""
    root.mkdir()
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir()
        else:
            content.to_file(root / path)


def digest_of(image: Image) -> bytes:
    """Return what tells an image from others."""
    hashed = blake2b(digest_size=16)
    for path, content in sorted(image.items()):
        hashed.update(path.encode() + b"\0" + (b"" if content is None else content.digest()))
    return hashed.digest()
