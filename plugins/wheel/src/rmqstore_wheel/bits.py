"""``Bits``: a yes or no for every timer by its number, an eighth of a byte each."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints

_GROWTH = 64 * 1024


class Bits:
    """Bits from ``base`` on, a multiple of 8; what was never set is 0."""

    def __init__(self, base: int = 0) -> None:
        self._base = base // 8 * 8
        self._bytes = np.zeros(0, np.uint8)
        self.any = False

    def set(self, number: int) -> None:
        """Set one."""
        at = number - self._base
        if at < 0:
            return
        self._grow(at // 8)
        self._bytes[at // 8] |= 1 << at % 8
        self.any = True

    def set_many(self, numbers: Ints, *, on: bool = True) -> None:
        """Set or clear many, in any order."""
        at = numbers[numbers >= self._base] - self._base
        if not len(at):
            return
        if on:
            self._grow(int(at.max()) // 8)
            np.bitwise_or.at(self._bytes, at // 8, (1 << at % 8).astype(np.uint8))
            self.any = True
        else:
            at = at[at < 8 * len(self._bytes)]
            np.bitwise_and.at(self._bytes, at // 8, ~(1 << at % 8).astype(np.uint8))

    def get(self, number: int) -> bool:
        """Return one."""
        at = number - self._base
        return 0 <= at < 8 * len(self._bytes) and bool(self._bytes[at // 8] >> at % 8 & 1)

    def get_many(self, numbers: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return many, as booleans."""
        if not self.any:
            return np.zeros(len(numbers), np.bool_)
        at = numbers - self._base
        inside = (at >= 0) & (at < 8 * len(self._bytes))
        at = np.where(inside, at, 0)
        found: np.ndarray[Any, np.dtype[np.bool_]] = inside & ((self._bytes[at // 8] >> (at % 8).astype(np.uint8)) & 1).astype(np.bool_)
        return found

    def _grow(self, last: int) -> None:
        if last >= len(self._bytes):
            size = max(last + 1, min(2 * len(self._bytes), len(self._bytes) + 64 * _GROWTH), _GROWTH)
            grown = np.zeros(size, np.uint8)
            grown[: len(self._bytes)] = self._bytes
            self._bytes = grown

    def drop_before(self, number: int) -> None:
        """Forget the bits before a number."""
        gone = max(number // 8 * 8 - self._base, 0) // 8
        if gone:
            self._bytes = self._bytes[gone:].copy()
            self._base += 8 * gone

    def dump(self) -> tuple[int, bytes]:
        """Return base and content, for a check point."""
        return self._base, zlib.compress(self._bytes.tobytes(), 1) if self.any else b""

    @classmethod
    def load(cls, dumped: tuple[int, bytes]) -> Bits:
        """Read what :meth:`dump` gave."""
        bits = cls(dumped[0])
        if dumped[1]:
            bits._bytes = np.frombuffer(zlib.decompress(dumped[1]), np.uint8).copy()
            bits.any = bool(bits._bytes.any())
        return bits
