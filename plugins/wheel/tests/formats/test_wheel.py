"""The timer wheel: the bytes of a slot, and how large the file is."""

from __future__ import annotations

import numpy as np

from rmqstore_wheel.formats import wheel
from rmqstore_wheel.formats.wheel import Ring

SLOT_BYTES = bytes.fromhex(
    "00000000 6553f100"  # tick 1 700 000 000
    "0000000000000034"  # first unit at 52
    "00000000000000d0"  # newest unit at 208
    "00000004"  # four timers
    "00000000"  # magic
)


def test_bytes() -> None:
    assert np.array([(1_700_000_000, 52, 208, 4, 0)], wheel.SLOT).tobytes() == SLOT_BYTES


def test_sizes_of_rocketmq() -> None:
    assert (Ring().length, Ring().file_bytes) == (1_209_600, 38_707_200)
