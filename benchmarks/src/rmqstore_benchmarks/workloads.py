"""What is stored and when it is due: seeded generators of due times, bodies, Arrow batches and lists of messages.

Bodies are random bytes, so that no engine gains by compression. Batch ``k`` is the same for the same seed, whatever was made before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from rmqstore import Message

START_MS: Final = 1_700_000_000_000
"""The first time of every simulated clock, ms."""

HALF_HOUR_MS: Final = 1_800_000
HOUR_MS: Final = 3_600_000
LONGEST_DELAY_MS: Final = 100 * HOUR_MS
"""Log-normal delays are cut here, so that a drain knows when everything is due."""

BODY_BYTES: Final = 256
BATCH_GAP_MS: Final = 10
"""How far the simulated clock moves between two batches."""

TOPIC: Final = "orders"
PRECISION_MS: Final = 1000

Delays: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

DISTRIBUTIONS: Final[dict[str, Callable[[np.random.Generator, int], Any]]] = {
    "constant": lambda rng, count: np.full(count, HALF_HOUR_MS),
    "lognormal": lambda rng, count: np.minimum(HALF_HOUR_MS * rng.lognormal(0.0, 1.0, count), LONGEST_DELAY_MS),
    "uniform": lambda rng, count: rng.uniform(1, HOUR_MS, count),
}
"""Delays in ms: always 30 minutes; log-normal with a median of 30 minutes and sigma 1; uniform over one hour."""


def delays_ms(distribution: str, count: int, rng: np.random.Generator) -> Delays:
    """Return ``count`` delays of at least 1 ms."""
    drawn: Delays = np.maximum(np.asarray(DISTRIBUTIONS[distribution](rng, count)), 1).astype(np.int64)
    return drawn


def bodies(count: int, rng: np.random.Generator, body_bytes: int = BODY_BYTES) -> pa.Array:
    """Return ``count`` random bodies as one Arrow array."""
    offsets = (np.arange(count + 1) * body_bytes).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rng.bytes(count * body_bytes))])


class Workload:
    """Batches of timers: batch ``k`` is sent at ``now_ms(k)``."""

    def __init__(self, distribution: str, batch: int, seed: int = 1, body_bytes: int = BODY_BYTES) -> None:
        self.distribution = distribution
        self.batch = batch
        self.seed = seed
        self.body_bytes = body_bytes

    @staticmethod
    def now_ms(number: int) -> int:
        """Return the simulated time at which batch ``number`` is sent."""
        return START_MS + number * BATCH_GAP_MS

    def _columns(self, number: int) -> tuple[pa.Array, Delays]:
        rng = np.random.default_rng((self.seed, number))
        due = delays_ms(self.distribution, self.batch, rng) + self.now_ms(number)
        return bodies(self.batch, rng, self.body_bytes), due

    def arrow(self, number: int) -> pa.RecordBatch:
        """Return batch ``number`` as columns topic, body, deliver_at_ms."""
        body, due = self._columns(number)
        return pa.record_batch({"topic": pa.array([TOPIC] * self.batch), "body": body, "deliver_at_ms": pa.array(due)})

    def messages(self, number: int) -> list[Message]:
        """Return batch ``number`` as structs."""
        body, due = self._columns(number)
        return [Message(TOPIC, data, deliver_at_ms=at) for data, at in zip(body.to_pylist(), due.tolist(), strict=True)]
