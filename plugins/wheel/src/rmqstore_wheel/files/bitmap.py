"""``Bits``: a yes or no for every timer by its number, an eighth of a byte each, in pages of which only those are there that say yes."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from rmqstore_wheel.formats.binary_columns import Flags, Ints, Octets

_PAGE_BITS: Final = 64 * 1024
_PAGE_BYTES: Final = _PAGE_BITS // 8
_NONE: Final = 0
"""The page that says no everywhere."""


class Bits:
    """What was never set is 0.

    Attributes:
        any: whether one was ever set.
    """

    def __init__(self, first_page: int = 0) -> None:
        self._first = first_page
        self._places = np.zeros(0, np.int64)
        self._pages = np.zeros((1, _PAGE_BYTES), np.uint8)
        self._count = 1
        self.any = False

    def set_many(self, numbers: Ints, *, on: bool = True) -> None:
        """Set or clear many, in any order."""
        numbers = numbers[numbers >= self._first * _PAGE_BITS]
        if not on:
            places = self._places_of(numbers)
            numbers, places = numbers[places != _NONE], places[places != _NONE]
            np.bitwise_and.at(self._pages, (places, numbers % _PAGE_BITS // 8), ~(1 << numbers % 8).astype(np.uint8))
        elif len(numbers):
            self._make(np.unique(numbers // _PAGE_BITS))
            np.bitwise_or.at(self._pages, (self._places_of(numbers), numbers % _PAGE_BITS // 8), (1 << numbers % 8).astype(np.uint8))
            self.any = True

    def set(self, number: int) -> None:
        page, bit = divmod(number, _PAGE_BITS)
        at = page - self._first
        if at < 0:
            return
        if at >= len(self._places) or self._places[at] == _NONE:
            self._make(np.array([page]))
        self._pages[self._places[at], bit // 8] |= 1 << bit % 8
        self.any = True

    def get(self, number: int) -> bool:
        page, bit = divmod(number, _PAGE_BITS)
        at = page - self._first
        return self.any and 0 <= at < len(self._places) and bool(self._pages[self._places[at], bit // 8] >> bit % 8 & 1)

    def get_many(self, numbers: Ints) -> Flags:
        if not self.any:
            return np.zeros(len(numbers), np.bool_)
        found = self._pages[self._places_of(numbers), numbers % _PAGE_BITS // 8]
        bits: Flags = ((found >> (numbers % 8).astype(np.uint8)) & 1).astype(np.bool_)
        return bits

    def _places_of(self, numbers: Ints) -> Ints:
        """Return in which pages numbers are."""
        at = numbers // _PAGE_BITS - self._first
        inside = (at >= 0) & (at < len(self._places))
        if inside.all():
            found: Ints = self._places[at]
            return found
        found = np.full(len(numbers), _NONE)
        found[inside] = self._places[at[inside]]
        return found

    def _make(self, pages: Ints) -> None:
        """See to it that pages are there, given by their numbers, rising."""
        more = int(pages[-1]) + 1 - self._first - len(self._places)
        if more > 0:
            self._places = np.append(self._places, np.zeros(max(more, len(self._places) // 8), np.int64))
        new = pages[self._places[pages - self._first] == _NONE]
        if self._count + len(new) > len(self._pages):
            grown = np.zeros((max(self._count + len(new), len(self._pages) * 3 // 2), _PAGE_BYTES), np.uint8)
            grown[: self._count] = self._pages[: self._count]
            self._pages = grown
        self._places[new - self._first] = np.arange(self._count, self._count + len(new))
        self._count += len(new)

    def _load(self, pages: Ints, data: Octets) -> None:
        self._make(pages)
        self._pages[self._places[pages - self._first]] = data

    def drop_before(self, number: int) -> None:
        """Forget the pages that end before a number."""
        first = number // _PAGE_BITS
        if first <= self._first:
            return
        pages, data = self._kept()
        kept = pages >= first
        self._first = first
        self._places, self._pages, self._count = self._places[:0], self._pages[:1], 1
        if kept.any():
            self._load(pages[kept], data[kept])

    def _kept(self) -> tuple[Ints, Octets]:
        """Return the pages that are there: their numbers and what they hold."""
        at = np.flatnonzero(self._places)
        return at + self._first, self._pages[self._places[at]]

    def dump(self) -> tuple[int, bytes]:
        """Return where they begin, and their content, for a check point."""
        pages, data = self._kept()
        return self._first, zlib.compress(pages.astype("<i8").tobytes() + data.tobytes(), 1) if len(pages) else b""

    @classmethod
    def load(cls, dumped: tuple[int, bytes]) -> Bits:
        """Read what :meth:`dump` gave."""
        bits = cls(dumped[0])
        if dumped[1]:
            content = zlib.decompress(dumped[1])
            count = len(content) // (_PAGE_BYTES + 8)
            bits._load(np.frombuffer(content, "<i8", count), np.frombuffer(content, np.uint8, offset=8 * count).reshape(count, _PAGE_BYTES))
            bits.any = True
        return bits
