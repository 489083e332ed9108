"""What a data set holds, as Arrow batches: planned on the driver, read by tasks. Plain functions; needs no Spark.

A part is read from one state of its shard: what was there when the task opened it, beside an owner too. Parts of one shard that are read
by different tasks may be of different states while somebody writes; a snapshot, or a data set that is not written to, gives one state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.batch import columns_of
from rmqstore.contract import TimerHandle
from rmqstore.contract.state import Adopted, timers_from
from rmqstore.engine.state import giver_of
from rmqstore.errors import IllegalArgumentError, StorePathError, TransferError
from rmqstore.message import DLQ_PREFIX, MAX_TIME_MS, PARKED_TOPIC, RESERVED_PREFIXES
from rmqstore.schemas import IN_SCHEMA, OUT_SCHEMA
from rmqstore.spark.dataset import Dataset, is_dataset, place_of, what_is
from rmqstore.spark.jobs import Job, jobs_of
from rmqstore.spark.staging import REJECTED_SCHEMA, StagedFile, read_rejected
from rmqstore.store.dead_letters import letters_in
from rmqstore.store.directory import read_manifest
from rmqstore.store.reader import ReadStore
from rmqstore.tables import State

PAGE_ROWS: Final = 8192
PART_ROWS: Final = 1_000_000
"""About so many messages or timers make one part."""

_KINDS: Final = {"s": pa.string(), "i": pa.int32(), "l": pa.int64()}


def _fields(columns: str) -> list[pa.Field]:
    """Return the fields of some columns, given as name:type."""
    return [pa.field(name, _KINDS[kind]) for name, _, kind in (each.partition(":") for each in columns.split())]


_SHARD: Final = _fields("shard:i")
_LETTER: Final = _fields("group:s reason:s attempts:i origin_topic:s origin_message_id:s died_ms:l")


class View(enum.Enum):
    """What can be read: pending timers, messages in their topics, running leases, how far groups are behind, what they gave up or nobody
    can read; and of a data set its jobs, and the rows that these rejected.
    """

    TIMERS = "timers"
    MESSAGES = "messages"
    LEASES = "leases"
    LAG = "lag"
    DEAD_LETTERS = "dead_letters"
    JOBS = "jobs"
    REJECTED = "rejected"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise IllegalArgumentError(f"view {value!r} is unknown; there are {', '.join(view.value for view in cls)}")


SCHEMAS: Final[dict[View, pa.Schema]] = {
    View.TIMERS: pa.schema([*_SHARD, *IN_SCHEMA, *_fields("store_ms:l handle:s")]),
    View.MESSAGES: pa.schema([*_SHARD, *OUT_SCHEMA]),
    View.LEASES: pa.schema(
        _fields(
            "shard:i topic:s group:s queue_id:i queue_offset:l message_id:s attempt:i pop_time_ms:l first_pop_ms:l expiry_ms:l receipt:s"
        )
    ),
    View.LAG: pa.schema(_fields("shard:i topic:s group:s ready:l in_flight:l retry:l dead:l expired:l backing_off:l")),
    View.DEAD_LETTERS: pa.schema([*_SHARD, *OUT_SCHEMA, *_LETTER]),
    View.JOBS: pa.schema(_fields("job_id:s state:s rows:l rejected:l changed_ms:l")),
    View.REJECTED: pa.schema([*_fields("job_id:s"), *REJECTED_SCHEMA]),
}
"""The columns of each view; all may be null as far as Spark knows."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader asks for.

    Attributes:
        columns: names in their order; empty = all of the view.
        shard: only this one; the others are not opened.
        topic: only this one.
        from_ms, to_ms: only what is due in ``from_ms <= deliver_at_ms < to_ms``; None = also what has no deliver time.
        system: messages of retry topics, dead letter queues and parked entries as well.
        job_id: only this job, or what it rejected.
    """

    view: View
    columns: tuple[str, ...] = ()
    shard: int | None = None
    topic: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    system: bool = False
    job_id: str | None = None

    def schema(self) -> pa.Schema:
        """Return the columns of the answer."""
        whole = SCHEMAS[self.view]
        unknown = set(self.columns) - set(whole.names)
        if unknown:
            raise IllegalArgumentError(f"the view {self.view.value} has no column {min(unknown)!r}; it has {', '.join(whole.names)}")
        return pa.schema([whole.field(name) for name in self.columns]) if self.columns else whole


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one task reads of one store, or of what one task of a job rejected.

    Attributes:
        path: of the store, or the file.
        file: what is known of the file of rejected rows.
        store_id: of the store when this was planned.
        first, behind: ticks of timers, or offsets of the queue, ``first <= … < behind``.
    """

    shard: int
    path: str
    file: StagedFile | None = None
    store_id: int = 0
    topic: str | None = None
    queue_id: int = 0
    first: int = 0
    behind: int = 2**63 - 1


def stores_at(path: str, shard: int | None = None) -> list[tuple[int, Path]]:
    """Return number and directory of every shard of a data set, or of one; a single store, or a snapshot of one, counts as shard 0."""
    place = place_of(path)
    if is_dataset(place):
        dataset = Dataset.open(place)
        for each in dataset.shards:
            dataset.engines(each)
        stores = [(each, dataset.shard_path(each)) for each in dataset.shards]
    elif read_manifest(place) is None:
        raise StorePathError(f"there is neither a data set nor a store at {place}: {what_is(place)}")
    else:
        stores = [(0, place)]
    if shard is None:
        return stores
    if shard not in range(len(stores)):
        raise IllegalArgumentError(f"there is no shard {shard} at {path}; there are 0 to {len(stores) - 1}")
    return [stores[shard]]


def plan(path: str, wanted: Wanted, part_rows: int = PART_ROWS) -> list[Part]:
    """Return the parts that make up a view, each of about ``part_rows`` rows; what cannot hold a wanted row is left out."""
    wanted.schema()
    parts: list[Part] = []
    if wanted.view in _OF_JOBS:
        jobs = _jobs_at(path, wanted)
        whole = Part(shard=0, path=str(place_of(path)))
        return [whole] if wanted.view is View.JOBS else [part for job in jobs for part in _rejected_parts(job)]
    for shard, store in stores_at(path, wanted.shard):
        with ReadStore(store, {}) as view:
            whole = Part(shard=shard, path=str(store), store_id=view.engine.store_id)
            if wanted.view is View.TIMERS:
                parts += _timer_parts(view, whole, wanted, part_rows)
            elif wanted.view is View.MESSAGES:
                parts += _message_parts(view, whole, wanted, part_rows)
            else:
                parts.append(whole)
    return parts


def _timer_parts(view: ReadStore, whole: Part, wanted: Wanted, part_rows: int) -> Iterator[Part]:
    """Yield ranges of ticks with about equal numbers of timers, found by halving where the store counts them."""
    counts = view.pending()
    if counts.earliest_ms is None or counts.latest_ms is None:
        return
    is_timed = wanted.from_ms is not None or wanted.to_ms is not None
    low = max(counts.earliest_ms, wanted.from_ms or 0)
    high = counts.latest_ms + 1 if wanted.to_ms is None else min(counts.latest_ms + 1, wanted.to_ms)
    if low >= high:
        return
    # A store counts up to the last time that there is; what is due in that very ms belongs to the last part in any case.
    high = min(high, MAX_TIME_MS)
    number = -(-view.pending((low, high)).counts[0] // part_rows) if low < high else 1
    edges = _even_edges(view, low, high, max(number, 1))
    precision_ms = view.engine.timers.precision_ms
    ticks = [-(-edge // precision_ms) * precision_ms for edge in edges]
    # The ends are open: late timers have a tick of their own, behind that of their deliver time.
    first = (-(-low // precision_ms) * precision_ms) if is_timed else 0
    starts = [first, *(tick for tick in ticks if tick > first)]
    for start, behind in zip(starts, [*starts[1:], whole.behind], strict=True):
        yield msgspec.structs.replace(whole, first=start, behind=behind)


def _jobs_at(path: str, wanted: Wanted) -> list[Job]:
    dataset = Dataset.open(path)
    return jobs_of(dataset) if wanted.job_id is None else [Job(dataset, wanted.job_id)]


def _rejected_parts(job: Job) -> Iterator[Part]:
    if (record := job.record()) is not None:
        for file in (each for each in record.files if each.rejected):
            yield Part(shard=0, path=str(job.rejected / file.name), file=msgspec.structs.replace(file, batches=[]))


def _even_edges(view: ReadStore, low: int, high: int, number: int) -> list[int]:
    """Return ``number - 1`` times between which about equally many timers are due."""
    if number == 1:
        return []
    steps = max(min(high - low, 64 * number), 1)
    grid = sorted({low + (high - low) * step // steps for step in range(steps + 1)})
    filled = np.cumsum(view.pending(grid).counts)
    places = np.searchsorted(filled, filled[-1] * np.arange(1, number) / number)
    return sorted({grid[1 + place] for place in places.tolist()})


def _message_parts(view: ReadStore, whole: Part, wanted: Wanted, part_rows: int) -> Iterator[Part]:
    for topic in view.topics.list(system=True):
        if wanted.topic not in (None, topic.name):
            continue
        if wanted.topic is None and not wanted.system and topic.name.startswith(RESERVED_PREFIXES):
            continue
        for queue_id, (low, high) in enumerate(zip(topic.min_offsets, topic.max_offsets, strict=True)):
            queue = msgspec.structs.replace(whole, topic=topic.name, queue_id=queue_id, first=low, behind=high)
            yield from split(queue, part_rows)


def split(queue: Part, part_rows: int) -> Iterator[Part]:
    """Yield the offsets of a queue in ranges of at most ``part_rows``, about equally long; none where there is nothing."""
    number = -(-(queue.behind - queue.first) // part_rows)
    edges = [queue.first + (queue.behind - queue.first) * step // number for step in range(number + 1)] if number > 0 else []
    for first, behind in pairwise(edges):
        yield msgspec.structs.replace(queue, first=first, behind=behind)


def read(part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, on the schema of ``wanted``, in the order of ticks or offsets."""
    schema = wanted.schema()
    if wanted.view in _OF_JOBS:
        yield from (rows.select(schema.names) for rows in _OF_JOBS[wanted.view](part, wanted))
        return
    again = "the data set has got other shards; read it again"
    if read_manifest(Path(part.path)) is None:
        raise TransferError(f"{part.path} is no store any more: {again}")
    with ReadStore(Path(part.path), {}) as view:
        if view.engine.store_id != part.store_id:
            raise TransferError(f"{part.path} is another store than when this was planned: {again}")
        made: dict[str, Callable[[pa.RecordBatch], pa.Array]] = {
            "shard": lambda rows: pa.repeat(pa.scalar(part.shard, pa.int32()), len(rows)),
            "handle": lambda rows: _handles(view, rows),
        }
        for rows in _READERS[wanted.view](view, part, wanted):
            if len(rows):
                columns = [made[name](rows) if name in made else rows.column(name) for name in schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _timers(view: ReadStore, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    for _, page in State(view.engine.timers, view.engine.pops).pages("timers", timers_from(part.first)):
        if not len(page):
            continue
        last = page.column("tick")[len(page) - 1].as_py()
        if last >= part.behind:
            page = page.filter(pc.less(page.column("tick"), part.behind))
        yield _chosen(page, wanted)
        if last >= part.behind:
            return


def _handles(view: ReadStore, rows: pa.RecordBatch) -> pa.Array:
    """Return the handles of timers, as a send gave them."""
    pages = State(view.engine.timers, view.engine.pops).rows("timer_adopted")
    adopted = {row["store_tag"]: Adopted.from_bytes(row["record"]) for row in pages}
    epochs, seqs, ticks = (rows.column(name).to_numpy() for name in ("epoch", "seq", "tick"))
    tags = np.array([giver_of(seq, view.engine.store_id, adopted) for seq in seqs.tolist()] if adopted else view.engine.store_id)
    texts = TimerHandle.texts(tags, epochs, seqs, ticks)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * (len(texts) // len(rows))
    return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


def _messages(view: ReadStore, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    offset = part.first
    while offset < part.behind:
        page = view.engine.pops.read(str(part.topic), part.queue_id, offset, min(PAGE_ROWS, part.behind - offset)).columns
        if not len(page):
            return
        offset = page.column("queue_offset")[len(page) - 1].as_py() + 1
        if offset > part.behind:
            page = page.filter(pc.less(page.column("queue_offset"), part.behind))
        yield _chosen(page, wanted)


def _chosen(rows: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    if wanted.topic is not None and wanted.view is View.TIMERS:
        rows = rows.filter(pc.equal(rows.column("topic"), wanted.topic))
    if wanted.from_ms is not None:
        rows = rows.filter(pc.greater_equal(rows.column("deliver_at_ms"), wanted.from_ms))
    if wanted.to_ms is not None:
        rows = rows.filter(pc.less(rows.column("deliver_at_ms"), wanted.to_ms))
    return rows


def _leases(view: ReadStore, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    rows = [msgspec.structs.asdict(lease) for lease in view.leases(wanted.topic)]
    yield pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[View.LEASES])


def _lag(view: ReadStore, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    rows = []
    for each in view.groups.subscriptions():
        if wanted.topic in (None, each.topic):
            rows.append({"topic": each.topic, "group": each.group, **msgspec.structs.asdict(view.lag(each.topic, each.group))})
    yield pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[View.LAG])


def _dead_letters(view: ReadStore, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    topics = [topic.name for topic in view.topics.list(system=True) if topic.name.startswith((DLQ_PREFIX, PARKED_TOPIC))]
    letters = chain.from_iterable(letters_in(view.engine.pops, topic) for topic in topics)
    wished = (letter for letter in letters if wanted.topic in (None, letter.origin_topic))
    while page := [*islice(wished, PAGE_ROWS)]:
        messages = columns_of([letter.message for letter in page])
        own = [pa.array([getattr(letter, field.name) for letter in page], field.type) for field in _LETTER]
        yield pa.RecordBatch.from_arrays([*messages.columns, *own], schema=pa.schema([*messages.schema, *_LETTER]))


def _jobs(part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    rows = []
    for job in _jobs_at(part.path, wanted):
        with suppress(FileNotFoundError):  # there is none, or it was forgotten meanwhile
            rows.append(job.summary())
    yield pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[View.JOBS])


def _rejected(part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    path = Path(part.path)
    assert part.file is not None
    for batch in read_rejected(path, part.file):
        job_id = pa.repeat(pa.scalar(path.parent.parent.name), len(batch))
        yield pa.RecordBatch.from_arrays([job_id, *batch.columns], schema=SCHEMAS[View.REJECTED])


_READERS: Final[dict[View, Callable[[ReadStore, Part, Wanted], Iterator[pa.RecordBatch]]]] = {
    View.TIMERS: _timers,
    View.MESSAGES: _messages,
    View.LEASES: _leases,
    View.LAG: _lag,
    View.DEAD_LETTERS: _dead_letters,
}
_OF_JOBS: Final[dict[View, Callable[[Part, Wanted], Iterator[pa.RecordBatch]]]] = {View.JOBS: _jobs, View.REJECTED: _rejected}
"""These are of a data set, not of its shards."""
