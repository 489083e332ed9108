"""What a load test sends and what becomes of each message, decided from the id alone, so that every attempt decides alike; what fails when.

Ids go from 0 to ``messages - 1``; id ``i`` belongs to shard ``i % shards``. A shard's ids, in order, are cut into chunks; a chunk is one
``send_batch`` with one mark.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore_benchmarks.grid.load import Ids, Mask
from rmqstore_benchmarks.grid.named import HOUR_MS, START_MS

VERSION: Final = 4
"""What a plan means. It rises whenever the same plan would send, mark, note or judge otherwise: such a plan cannot be resumed."""

TOPIC: Final = "orders"
KEPT_TOPIC: Final = "archive"
"""A topic that nobody pops, so its messages stay ready."""

GROUP: Final = "billing"
LEASE_MS: Final = 60_000
LONGER_MS: Final = 2 * LEASE_MS
"""The lease that a consumer asks for when it needs more time."""

HELD_MS: Final = 30 * 24 * HOUR_MS
"""The lease of a consumer that holds a message beyond the end of the test."""

GAP_MS: Final = 2000
"""Simulated time between two chunks of a shard: much less than a lease, so that leases seldom end while their consumer works."""

FAR_MS: Final = 20 * 24 * HOUR_MS
HORIZON_MS: Final = 24 * HOUR_MS
"""What is due later than this from now stays pending at the end."""

ROUNDS: Final = 3
MAX_RETRIES: Final = 16
NO_TIME: Final = -1
"""In arrays of deliver times: none was asked for."""

_WORDS: Final = 32
BODY_BYTES: Final = 8 * _WORDS
_MARK_MEMORY_MS: Final = 30 * 24 * HOUR_MS
"""Longer than the test's simulated time, so that no mark is forgotten."""

SETTINGS: Final[dict[str, Any]] = {
    "default_queues": 4,
    "max_retries": MAX_RETRIES,
    "retention_ms": 0,
    "reclaim": "age",
    "mark_memory_ms": _MARK_MEMORY_MS,
    "cancel_memory_ms": _MARK_MEMORY_MS,
}
"""How every store is opened. Nothing that was delivered is removed, so that the audit can find it."""


class _Share(NamedTuple):
    """The ids whose number, drawn for ``drawn``, is at least ``least`` and less than ``below``."""

    drawn: str
    least: float
    below: float


class Fate(enum.Enum):
    """What becomes of a message; only timers are cancelled."""

    CANCELLED_BY_HANDLE = _Share("cancel", 0.0, 0.12)
    CANCELLED_BY_KEY = _Share("cancel", 0.12, 0.13)
    """They alone have a key."""
    KEPT = _Share("topic", 0.0, 0.01)
    """It goes to the topic that nobody pops."""
    POISON = _Share("fate", 0.0, 0.005)
    """No consumer ever acks it."""
    HELD = _Share("fate", 0.005, 0.007)
    """Its consumer holds it beyond the end of the test."""


# ---------------------------------------------------------------- what fails


class Failure(enum.Enum):
    """What can be made to fail."""

    TASK = "task"
    """A task raises an exception in the middle of its work."""
    WORKER = "worker"
    """The Python worker of a task kills itself with SIGKILL while a call of the store runs."""
    TWIN = "twin"
    """Two tasks of one job have the same shard and the same work, as with speculation."""
    CONSUMER = "consumer"
    """A consumer ends while it holds leases."""
    EXECUTOR = "executor"
    """The executors are killed while their tasks run."""
    OWNER = "owner"
    """The process that serves a store is killed with SIGKILL while a call runs, and another one takes its place."""


def of_round(failures: tuple[Failure, ...], round_: int, rounds: int) -> tuple[Failure, ...]:
    """Return the failures of one round; the round behind the last is the drain.

    Tasks fail in the first and the third round, workers die in the second and in the drain, twins run in the second, executors die in
    the third; with fewer rounds the later ones fall together. Consumers and owners die in all.
    """
    second, third = min(1, rounds - 1), min(2, rounds - 1)
    due = {Failure.TASK: (0, 2), Failure.WORKER: (second, rounds), Failure.TWIN: (second,), Failure.EXECUTOR: (third,)}
    return tuple(failure for failure in failures if round_ in due.get(failure, (round_,)))


def note_once(directory: Path, failure: Failure, round_: int, shard: int | None = None) -> bool:
    """Note a failure of a shard, or of several; returns False, and does nothing, when it has been noted before."""
    try:
        note_of(directory, failure, round_, shard).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def noted(directory: Path, failure: Failure) -> int:
    """Return how often a failure was noted."""
    return len(list(directory.glob(f"*-{failure.value}")))


def note_of(directory: Path, failure: Failure, round_: int, shard: int | None) -> Path:
    """Return the file that notes a failure."""
    return directory / f"{round_}-{'all' if shard is None else shard}-{failure.value}"


# ---------------------------------------------------------------- the plan


class Plan(msgspec.Struct, frozen=True):
    """One engine's load test.

    Attributes:
        directory: where its stores, its ledger and its tables are; every executor must reach it under this path.
        seed: decides, with the id, what becomes of a message, and where failures are injected.
        rounds: jobs that send; in each of them every shard is opened by another task. One more job drains.
        chunk: messages of one ``send_batch``.
        consumers: threads that consume a shard.
        patience_s: how long a task waits for a store that another attempt still holds.
        is_served: clients reach the store of a shard over a connection to a process that serves it.
    """

    engine: str
    directory: str
    messages: int
    shards: int
    seed: int = 0
    failures: tuple[Failure, ...] = ()
    rounds: int = ROUNDS
    chunk: int = 1000
    consumers: int = 2
    patience_s: float = 900.0
    is_served: bool = False

    def store_path(self, shard: int) -> Path:
        """Return the directory of the store of a shard."""
        return Path(self.directory, "stores", f"shard-{shard:04d}")

    def ledger_path(self, shard: int) -> Path:
        """Return the directory of what the clients of a shard were told."""
        return Path(self.directory, "ledger", f"shard-{shard:04d}")

    def injected_path(self) -> Path:
        """Return the directory in which every failure is noted before it happens."""
        return Path(self.directory, "injected")

    def done_path(self) -> Path:
        """Return the directory with a mark for each job that is done."""
        return Path(self.directory, "done")

    def table_path(self, name: str) -> str:
        """Return where a table for Spark lies."""
        return str(Path(self.directory, "tables", name))

    def make_directories(self) -> None:
        """Make what the jobs write into, where it is not there."""
        ledgers = (self.ledger_path(shard) for shard in range(self.shards))
        for directory in (self.done_path(), self.injected_path(), *ledgers, self.store_path(0).parent):
            directory.mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------ which messages

    def ids_of_shard(self, shard: int) -> int:
        """Return how many ids a shard has."""
        return (self.messages - shard + self.shards - 1) // self.shards

    def chunks_of_shard(self, shard: int) -> int:
        """Return how many chunks a shard has."""
        return -(-self.ids_of_shard(shard) // self.chunk)

    def chunks_of_round(self, shard: int, round_: int) -> range:
        """Return the numbers of the chunks that a round sends; none in the drain."""
        chunks = self.chunks_of_shard(shard)
        if round_ >= self.rounds:
            return range(0)
        return range(chunks * round_ // self.rounds, chunks * (round_ + 1) // self.rounds)

    def ids(self, shard: int, chunk: int) -> Ids:
        """Return the ids of a chunk, in order."""
        first, behind = chunk * self.chunk, min((chunk + 1) * self.chunk, self.ids_of_shard(shard))
        return shard + self.shards * np.arange(first, behind, dtype=np.int64)

    def chunk_of(self, ids: Ids) -> Ids:
        """Return the number of each id's chunk in its shard."""
        return np.asarray(ids // self.shards // self.chunk, np.int64)

    def mark(self, shard: int, chunk: int) -> bytes:
        """Return the mark of a chunk: the same on every attempt."""
        return f"load/{shard}/{chunk}".encode()

    def sent_ms(self, chunks: Ids) -> Ids:
        """Return the simulated time at which each chunk is sent, at the earliest."""
        return np.asarray(START_MS + chunks * GAP_MS, np.int64)

    def longest_delay_ms(self) -> int:
        """Return the longest delay but for the far ones: half as much again as all sending takes."""
        return max(self.chunks_of_shard(0) * GAP_MS * 3 // 2, 90_000)

    def drain_ms(self) -> int:
        """Return how much simulated time the drain takes at most: all delays, and all attempts of what nobody acks."""
        return self.longest_delay_ms() + 2 * (MAX_RETRIES + 2) * LEASE_MS

    # ------------------------------------------------------------ what becomes of them

    def draw(self, ids: Ids, what: str) -> NDArray[np.float64]:
        """Return a number from 0 to 1 for each id: always the same for the same seed, id and ``what``."""
        salt = np.uint64(int.from_bytes(what.encode()[:8].ljust(8), "big") ^ (self.seed * 0x9E3779B97F4A7C15 & 2**64 - 1))
        return np.asarray((_mixed(_mixed(ids.astype(np.uint64)) ^ salt) >> np.uint64(11)) / 2**53, np.float64)

    def due_ms(self, ids: Ids) -> Ids:
        """Return each id's deliver time, ms; NO_TIME for those that go at once."""
        chunks = self.chunk_of(ids)
        kind, length = self.draw(ids, "kind"), self.draw(ids, "delay")
        delays = 1 + (length * length * self.longest_delay_ms()).astype(np.int64)
        delays = np.where(kind < 0.02, FAR_MS + delays, delays)
        is_now = (chunks % 5 == 4) | (kind > 0.9)
        return np.where(is_now, NO_TIME, self.sent_ms(chunks) + delays)

    def has(self, ids: Ids, fate: Fate) -> Mask:
        """Say which ids have a fate."""
        drawn = self.draw(ids, fate.value.drawn)
        is_drawn = (drawn >= fate.value.least) & (drawn < fate.value.below)
        return np.asarray(is_drawn & (self.due_ms(ids) != NO_TIME) if fate.value.drawn == "cancel" else is_drawn)

    # ------------------------------------------------------------ as messages

    def bodies(self, ids: Ids) -> pa.Array:
        """Return the body of each id."""
        words = _mixed(np.asarray(ids[:, None] * _WORDS + np.arange(_WORDS), np.uint64) ^ np.uint64(self.seed))
        offsets = (np.arange(len(ids) + 1) * BODY_BYTES).astype(np.int32)
        return pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(words.tobytes())])

    def is_damaged(self, ids: Ids, bodies: pa.Array, deliver_at_ms: pa.Array) -> Mask:
        """Say which of these messages have another body or another deliver time than they were sent with."""
        is_other = pc.not_equal(self.bodies(ids), bodies).fill_null(True).to_numpy(zero_copy_only=False)
        return np.asarray(is_other | (deliver_at_ms.fill_null(NO_TIME).to_numpy() != self.due_ms(ids)))

    def batch(self, ids: Ids) -> pa.RecordBatch:
        """Return the messages of ``ids`` as columns."""
        due = self.due_ms(ids)
        keyed = self.has(ids, Fate.CANCELLED_BY_KEY)
        keys = [[key_of(number)] if has_key else [] for number, has_key in zip(ids.tolist(), keyed.tolist(), strict=True)]
        return pa.record_batch(
            {
                "topic": pa.array(np.where(self.has(ids, Fate.KEPT), KEPT_TOPIC, TOPIC)),
                "body": self.bodies(ids),
                "keys": pa.array(keys, pa.list_(pa.string())),
                "deliver_at_ms": pa.array(due, mask=due == NO_TIME),
                "message_id": pa.array([f"{number:020d}" for number in ids.tolist()]),
            }
        )


def key_of(number: int) -> str:
    """Return the key of an id."""
    return f"order-{number}"


def ids_in(texts: pa.Array) -> Ids:
    """Return message ids as ids; -1 for those that are none of a load test."""
    sound = pc.match_substring_regex(texts, r"^0[0-9]{19}$")
    return np.asarray(pc.cast(pc.if_else(sound, texts, "-1"), pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def chunk_for(messages: int, shards: int) -> int:
    """Return a size of chunks with which every round of a shard has some of them."""
    return int(np.clip(messages // (shards * ROUNDS * 8), 1, 1000))


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's step of each word (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = words + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
