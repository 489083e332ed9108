"""How figures are written for people: three digits, k and M, units; and tables of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

NOT_TOLD: Final = "–"

_Steps = tuple[tuple[float, str], ...]
_THOUSANDS: Final[_Steps] = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))
_BYTES: Final[_Steps] = ((2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B"))
_TIMES_MS: Final[_Steps] = ((1e3, " s"), (1.0, " ms"), (1e-3, " µs"))


def digits(value: float, count: int = 3) -> str:
    """Return a number with ``count`` significant digits, and never with an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = max(count - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: float) -> str:
    """Return ``1.2 k`` for 1200, ``3 M`` for 3,000,000."""
    return _in_steps(value, _THOUSANDS)


def rate(per_s: float) -> str:
    """Return messages a second: ``1.2 k/s``."""
    return f"{short(per_s)}/s"


def size(count_bytes: float) -> str:
    """Return bytes in powers of two: ``256 B``, ``64 KiB``."""
    return _in_steps(count_bytes, _BYTES)


def time_ms(ms: float) -> str:
    """Return a duration: ``250 µs``, ``12 ms``, ``3.4 s``."""
    return _in_steps(ms, _TIMES_MS)


def factor(ratio: float) -> str:
    """Return ``2.5 ×``."""
    return f"{digits(ratio)} ×"


def _in_steps(value: float, steps: _Steps) -> str:
    """Return a value in the largest unit of which it has one, when it is rounded; in the last one if it has none of any."""
    step, name = next(((step, name) for step, name in steps if abs(value) >= step * 0.9995), steps[-1])
    return digits(value / step) + name


def joined(words: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, or ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), *words[-1:]]) if len(words) > 1 else "".join(words)


class TextTable(NamedTuple):
    """A table as text.

    Attributes:
        caption: what holds for all of it.
    """

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
