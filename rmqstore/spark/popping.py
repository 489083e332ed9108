"""A stream that consumes as a group: a micro-batch is popped, set aside, given to Spark from there, and acked when Spark has committed it.

::

    streams/<consumer>/7.json     round 7 of a query: which shards are popped for one micro-batch, in their order, and how many messages
    streams/<consumer>/7.arrow    what was popped, with shard and receipt of each message

**Offsets.** An offset is ``{"consumer": name, "round": number}``: every round up to that number belongs to micro-batches up to here. Spark
keeps it in its offset log. The first micro-batch of a query is empty: it brings the name, which is random, into the checkpoint, so that
nothing is ever leased under a name that a crash takes away.

**What Spark does.** ``latestOffset(start)``; the answer goes to the offset log; ``partitions(start, end)``; tasks; the sink; the commit
log; then ``latestOffset`` again, whose ``start`` is that ``end``. A query that begins again takes the last entry of the offset log. When
the commit log has it, too, ``latestOffset`` comes next, with it as ``start``; else the micro-batch is planned again, from the same two
offsets and without a ``latestOffset`` before. So whatever ``start`` says is committed, and is not asked for again. Spark's own
``commit(end)`` tells the same later, when the next micro-batch is planned: a query that waits or stops would keep its last one for ever.

**What happens here**, all on the driver: ``latestOffset`` acks the rounds up to ``start``, then notes what the next one is to pop, pops it,
with attempt ids made of name, round and turn, and answers when its file is in place, durable and in one step. Tasks read files alone, and
no shard is open meanwhile.

- Killed before the file is in place: nobody has seen it. The same call comes again, follows the note with the same attempt ids, and gets
  the same messages while their leases run, and else what is there then.
- Killed later, up to the commit log: the micro-batch is planned again and read from the file. So it has the same rows, whatever
  became of the leases, which is what a sink must rely on that takes each micro-batch once.
- Killed before or within the ack: the query begins with it. An ack that is made again changes nothing (P5).
- A checkpoint that lost its last entries, with the power, say: the file of the last round stays until the next one is acked, and a round
  that has a file is not popped again, since the sink may have it, and passes over what else comes under its number. One that lost more
  than that is refused.

**A group of the topic.** A look only reads, and only a pop makes the group one of the topic (P11) and keeps it from counting as gone
(``group_expiry_ms``); until then nothing is held back for it. So a shard where such a pop is due is popped, also when nothing waits there.

**Another number of shards** (``rmqstore.spark.resharding``). Where the group stands goes along, so a query goes on in the new shards: each
look reads the manifest, and who opens a shard by the old one gets an error. The rounds stay behind, and nothing was leased by then. So the
last one, if it was not acked, comes again by the group, in a later micro-batch; a micro-batch that was not committed cannot be planned
again.

**What holds.** A message is acked only when Spark has committed it, and nobody else in the group gets it while its lease runs (P1); what
that means for a sink is in docs/spark.md.
"""

from __future__ import annotations

import enum
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rmqstore.clock import SystemClock
from rmqstore.engine.kv.directory import sync_path
from rmqstore.engine.pops.retention import ACTIVITY_PARTS
from rmqstore.errors import TransferError, system_error
from rmqstore.message import MAX_POP
from rmqstore.schemas import OUT_SCHEMA
from rmqstore.spark.dataset import STREAMS, Dataset, read_json, write_json
from rmqstore.spark.jobs import job_under_way
from rmqstore.spark.readout import SCHEMAS, Part, View
from rmqstore.spark.staging import damage_told
from rmqstore.store.reader import ReadStore

if TYPE_CHECKING:
    from rmqstore.store import Store

ROUND_ROWS: Final = 100_000
"""A micro-batch has at most so many messages when nothing else is asked for."""

INVISIBLE_MS: Final = 600_000
"""Length of a lease when nothing else is asked for: a micro-batch, and a restart within it, should take less."""

_SCHEMA: Final = SCHEMAS[View.MESSAGES]

Offset = dict[str, Any]


class _Reason(enum.Enum):
    """Why a shard is popped: not at all; something may wait there; the group is not one of the topic there, or is soon not any more."""

    NONE = enum.auto()
    READY = enum.auto()
    DUE = enum.auto()


class _Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a round is to pop: up to ``most`` messages from these shards, in this order."""

    shards: list[int]
    most: int


@dataclass(kw_only=True, eq=False)
class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pops one topic of every shard for a group, a round a micro-batch."""

    dataset: Dataset
    schema: pa.Schema
    topic: str
    group: str
    max_rows: int
    invisible_ms: int
    lock_wait_ms: int
    _acked: int | None = None  # the last round that this process acked
    _popped_ms: dict[int, int] = field(default_factory=dict)  # when this process popped a shard last
    _left: int | None = sys.maxsize  # of a query that stops behind what waited when it began; None: not counted yet

    def initialOffset(self) -> Offset:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        # Counted behind the first ack: the tick before it would give what is acked there to the group again.
        self._left = None

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        if not start:
            return {"consumer": secrets.token_hex(8), "round": 0}
        # A query goes on and on, and meanwhile the data set may get other shards.
        self.dataset = Dataset.open(self.dataset.path)
        consumer, number = start["consumer"], start["round"]
        end = {"consumer": consumer, "round": number + 1}
        self._ack(consumer, number)
        path = self._path(consumer, number + 1)
        if max(self._rounds(consumer), default=0) > number:
            next(_batches(path))  # it is there, or this raises
            return end
        left = self._waiting() if self._left is None else self._left
        wish = path.with_suffix(".json")
        way_out = "; when it is removed, the query goes on, and what was popped by it comes again when its lease ends"
        noted = read_json(wish, _Wish, f"the note {wish} of what a micro-batch is to pop", way_out)
        rows = 0 if noted is None else self._pop(consumer, number + 1, noted)
        if not rows:
            reasons = {shard: self._reason_to_pop(shard) for shard in self.dataset.shards}
            most = min(left, limit.max_rows if isinstance(limit, ReadMaxRows) else sys.maxsize)
            # Those that are due come first: empty ones take no share, so each look pops all of them, or at least the first that has some.
            shards: list[int] = []
            for reason in (_Reason.DUE, _Reason.READY) if most > 0 else (_Reason.DUE,):
                # A query that stops has had its messages: it pops once more only where it has not popped at all.
                alike = [shard for shard, why in reasons.items() if why is reason and (most > 0 or shard not in self._popped_ms)]
                turn = number % max(len(alike), 1)
                shards += [*alike[turn:], *alike[:turn]]
            if shards:
                wanted = _Wish(shards=shards, most=max(most, 1))
                wish.parent.mkdir(parents=True, exist_ok=True)
                write_json(wish, wanted)
                rows = self._pop(consumer, number + 1, wanted)
                left -= rows
        self._left = left
        if not rows:
            wish.unlink(missing_ok=True)
        return end if rows else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        parts: list[Part] = []
        for number in range(start.get("round", 0) + 1, end["round"] + 1):
            path = self._path(end["consumer"], number)
            parts += [Part(path=str(path), shard=shard) for shard, _ in groupby(_batches(path), _shard)]
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = partition.value
        for batch in _batches(Path(part.path)):
            if _shard(batch) == part.shard:
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in self.schema.names], schema=self.schema)

    # ------------------------------------------------------------ on the driver

    def _path(self, consumer: str, number: int) -> Path:
        return self.dataset.path / STREAMS / consumer / f"{number}.arrow"

    def _rounds(self, consumer: str) -> list[int]:
        """Return the rounds that have a file."""
        return sorted(int(path.stem) for path in self._path(consumer, 0).parent.glob("*.arrow") if path.stem.isdecimal())

    @contextmanager
    def _ticked(self, shard: int) -> Iterator[Store]:
        """Own a shard in which leases that ended are revived, and timers that are due handed over, unless a job is half done there.

        In the end all is durable, also with ``flush = "async"`` of who serves it: an owner that is killed takes no leases along, and who
        reads the shard sees what waits.
        """
        with self.dataset.open_shard(shard, wait_ms=self.lock_wait_ms) as store:
            if job_under_way(self.dataset, shard) is None:
                store.tick()
            yield store
            store.flush()

    def _waiting(self) -> int:
        """Return how many messages wait for the group."""
        waiting = 0
        for shard in self.dataset.shards:
            with self._ticked(shard) as store:
                lag = store.lag(self.topic, self.group)
                waiting += lag.ready + lag.retry
        return waiting

    def _reason_to_pop(self, shard: int) -> _Reason:
        """Say whether a shard is to be popped, without owning it."""
        with ReadStore(self.dataset.shard_path(shard), {}) as view:
            lag, now_ms = view.lag(self.topic, self.group), SystemClock().now_ms()
            popped_ms = [each.active_ms for each in view.groups.subscriptions(self.group) if each.topic == self.topic]
            if not popped_ms:
                return _Reason.DUE
            expiry_ms = view.engine.config.group_expiry_ms
            # Also by this clock: the owner may have another one, or other settings, by which a pop refreshes nothing.
            age_ms = now_ms - max(*popped_ms, self._popped_ms.get(shard, 0))
            if expiry_ms and age_ms >= max(expiry_ms // ACTIVITY_PARTS, 1):
                return _Reason.DUE
            times = (view.pending().earliest_ms, view.engine.pops.next_expiry_ms())
            is_ready = lag.ready + lag.retry > 0 or any(time_ms is not None and time_ms <= now_ms for time_ms in times)
            return _Reason.READY if is_ready else _Reason.NONE

    def _ack(self, consumer: str, number: int) -> None:
        """Ack the rounds up to this one, and remove those before it."""
        if self._acked == number:
            return
        if self._acked is None:
            for left in self._path(consumer, number).parent.glob("*.new"):  # by a kill
                left.unlink(missing_ok=True)
        for each in (each for each in self._rounds(consumer) if each <= number):
            for shard, batches in groupby(_batches(self._path(consumer, each)), _shard):
                with self.dataset.open_shard(shard, wait_ms=self.lock_wait_ms) as store:
                    for batch in batches:
                        store.ack(batch.column("receipt").to_pylist())
                    store.flush()
            if each < number:
                for left in self._path(consumer, each).parent.glob(f"{each}.*"):
                    left.unlink(missing_ok=True)
        self._acked = number

    def _pop(self, consumer: str, number: int, wish: _Wish) -> int:
        """Pop what is wished, and put the file of the round into place, if there are any messages; returns how many."""
        path = self._path(consumer, number)
        new = path.with_suffix(f".{secrets.token_hex(4)}.new")
        rows = 0
        try:
            with pa.OSFile(str(new), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
                for place, shard in enumerate(wish.shards):
                    for batch in self._popped(shard, f"{consumer}-{number}", -(-(wish.most - rows) // (len(wish.shards) - place))):
                        writer.write_batch(batch)
                        rows += batch.num_rows
            if rows:
                sync_path(new)
                new.replace(path)
                sync_path(path.parent)
        except OSError as error:
            raise system_error(error, new) from error
        finally:
            new.unlink(missing_ok=True)
        return rows

    def _popped(self, shard: int, attempt: str, most: int) -> Iterator[pa.RecordBatch]:
        with self._ticked(shard) as store:
            for number in count():
                if most <= 0:
                    return
                popped = store.pop_batch(
                    self.topic,
                    self.group,
                    max_messages=min(most, MAX_POP),
                    invisible_ms=self.invisible_ms,
                    attempt_id=f"{attempt}-{number}",
                ).columns
                self._popped_ms[shard] = SystemClock().now_ms()
                if not len(popped):
                    return
                most -= len(popped)
                own = pa.repeat(pa.scalar(shard, pa.int32()), len(popped))
                yield pa.RecordBatch.from_arrays([own, *(popped.column(name) for name in OUT_SCHEMA.names)], schema=_SCHEMA)


def _shard(batch: pa.RecordBatch) -> int:
    """Return the shard of which a batch of a round is."""
    shard: int = batch.column("shard")[0].as_py()
    return shard


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a round, each of one shard, and those of a shard one behind the other."""
    try:
        what = "what was popped for a micro-batch, in"
        with damage_told(path, what), pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            if missing := set(_SCHEMA.names).difference(file.schema.names):
                raise pa.ArrowInvalid(f"it has no column {min(missing)}")
            for place in range(file.num_record_batches):
                batch = file.get_batch(place)
                batch.validate(full=True)
                yield batch
    except FileNotFoundError as error:
        raise TransferError(
            f"what was popped for a micro-batch is gone: {path}; its checkpoint was set back, or is a copy of another one, or the data "
            "set has got another number of shards. A new checkpoint goes on with what the group was not given yet, and with what comes "
            "back when its lease ends"
        ) from error
