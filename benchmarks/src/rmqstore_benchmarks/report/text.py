"""How figures are written for people: three digits, k and M, units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

NOT_TOLD: Final = "–"

_STEPS: Final = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))
_BYTE_STEPS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def digits(value: float, count: int = 3) -> str:
    """Return a number with ``count`` significant digits, and never with an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = max(count - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: float, count: int = 3) -> str:
    """Return ``1.2 k`` for 1200, ``3 M`` for 3,000,000."""
    for size, name in _STEPS:
        if abs(value) >= size * (1 - 0.5 * 10**-count):
            return digits(value / size, count) + name
    return digits(value, count)


def rate(per_s: float) -> str:
    """Return messages a second: ``1.2 k/s``."""
    return f"{short(per_s)}/s"


def size(count_bytes: float) -> str:
    """Return bytes in powers of two: ``256 B``, ``64 KiB``."""
    for unit, name in _BYTE_STEPS:
        if abs(count_bytes) >= unit:
            return f"{digits(count_bytes / unit)} {name}"
    return f"{digits(count_bytes)} B"


def time_ms(ms: float) -> str:
    """Return a duration: ``250 µs``, ``12 ms``, ``3.4 s``."""
    if abs(ms) >= 1000:
        return f"{digits(ms / 1000)} s"
    return f"{digits(ms)} ms" if abs(ms) >= 1 or ms == 0 else f"{digits(ms * 1000)} µs"


def factor(ratio: float) -> str:
    """Return ``2.5 ×``."""
    return f"{digits(ratio)} ×"


def joined(words: list[str]) -> str:
    """Return ``a``, ``a and b``, or ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


class TextTable(NamedTuple):
    """A table as text.

    Attributes:
        caption: what holds for all of it.
    """

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
