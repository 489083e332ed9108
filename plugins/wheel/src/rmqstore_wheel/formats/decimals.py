"""Whole numbers as decimal text, a column at a time: what Arrow's cast does, in a quarter of the time for the times of one call.

Times that a call brings begin alike, so what they share is written once for all rows, and only the digits behind it number by number.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints, Piece, block_cells

_GROUP: Final = 4
_TEN_THOUSAND: Final = 10**_GROUP
_WORDS: Final = np.frombuffer(b"".join(b"%04d" % number for number in range(_TEN_THOUSAND)), "u4")
_DIGITS: Final = _WORDS.view(np.uint8).reshape(-1, _GROUP)


def decimal_parts(values: Ints) -> list[Piece] | None:
    """Return the texts of some numbers, one at least, as pieces to be joined; None when one is negative, or not as long as the others."""
    low, high = int(values.min()), int(values.max())
    text = str(low)
    if low < 0 or len(str(high)) != len(text):
        return None
    own_digits = next(count for count in range(0, len(text) + _GROUP, _GROUP) if low // 10**count == high // 10**count)
    own_digits = min(own_digits, len(text))
    shared = text[: len(text) - own_digits].encode()
    if not own_digits:
        return [shared]
    own = _last_digits(values - (low - low % 10**own_digits), own_digits)
    return [shared, own] if shared else [own]


def _last_digits(values: Ints, count: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return numbers of up to ``count`` digits with zeros before them."""
    found = np.empty(len(values), f"V{count}")
    at = count
    while at > _GROUP:
        values, whole = values // _TEN_THOUSAND, values
        at -= _GROUP
        block_cells(found, at, "u4")[:] = _WORDS[whole - values * _TEN_THOUSAND]
    found.view(np.uint8).reshape(-1, count)[:, :at] = _DIGITS[values, _GROUP - at :]
    return found
