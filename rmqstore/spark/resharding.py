"""All shards of a data set on their way to another number of shards: each message and timer goes to the shard that its name has there.

::

    DIR                      the data set; its manifest says ``resharding_to`` from the first step on
    DIR.resharding           the new one while it is being built, a store a shard
    DIR.resharding.json      what it is built of: the number and epoch of each old shard, and the numbers of the new stores
    DIR.before-2-shards-…    the old one, kept when all is done

Why no crash loses or doubles anything: The old shards are read and never written, and the driver holds the lock of each until the end. So a
crash before the exchange leaves the old data set as it was, but for a word in its manifest; the new one counts for nothing until it is
complete. The exchange of both directories is one step (``rmqstore.transfer.replacing``), so DIR is the old data set or the new one at every
moment, and never a mixture; behind it only the name of the old one is missing. Each new shard is built by what also loads dumps: its rows
come in chunks that carry marks, and their digest is compared in the end. Its rows are those of all old shards that :func:`shard_column`
gives its number, which is one number for each row, so no row is in two new shards, and none in no shard; the sums of all are compared
besides. A run that goes on continues these builds when the old shards are still those of the note; when a program has opened one since, its
epoch is another, and everything is built anew. A task that a dead driver left checks the same, so it builds what the next one would, or
gives up.

A job that is half done is refused, and none is committed meanwhile: the commit takes the lock under which the word in the manifest was
written, and reads it (``rmqstore.spark.jobs``). The finished ones are known to the new data set. A write that was opened before and is
committed behind the exchange has split its rows by the old number of shards, which the commit refuses; what it had set aside stays behind
with the old data set. The exchange is made under that lock, too, so nobody who has it, such as a copy that is being made
(``rmqstore.spark.copies``), sees the shards change under its hands. Whoever opens a shard for anything else by the old number is refused as
well (``Dataset.open_shard``).

**What a group has consumed** is one offset a queue. A queue of a new shard holds what the old ones had in that queue, so one offset
tells a group's place in it only if what is consumed comes first. So it comes first, and that is possible when each message is consumed by
all groups of its topic, or by none; anything else is refused. A group that never popped a topic in one shard, and did in another one, has
consumed nothing of it there.

What is not split, and refused as long as it is there, is in docs/spark.md. Handles, receipts and marks of sends are forgotten: they speak
of a store that is no more. A cancel that came too late for a timer that was sealed and not handed over can come again.
"""

from __future__ import annotations

import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore.clock import SystemClock
from rmqstore.config import FILE_NAME as CONFIG_NAME
from rmqstore.contract.tables import MESSAGES, TIMERS
from rmqstore.engine.kv.directory import sync_path
from rmqstore.errors import ConfigError, CorruptStoreError, TransferError
from rmqstore.message import DLQ_PREFIX, PROPERTY_ORIGIN_TOPIC
from rmqstore.spark.columns import shard_column
from rmqstore.spark.dataset import MANIFEST, RESHARDING, Dataset, RunShards, check_shards, write_json
from rmqstore.spark.jobs import at_rest, copy_finished, unchanged
from rmqstore.store import Store
from rmqstore.store.opening import OwnedEngines, broker_name
from rmqstore.store.reader import ReadStore
from rmqstore.store.snapshots import parted_epoch
from rmqstore.tables import TABLES, State
from rmqstore.transfer.dumps import check_transferable
from rmqstore.transfer.incoming import Incoming, Needs, silent
from rmqstore.transfer.loading import new_store_settings
from rmqstore.transfer.replacing import Published, Replacement
from rmqstore.transfer.taking import Taking

_LEASED: Final = 0
_Name = TypeVar("_Name")
_Value = TypeVar("_Value")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is built of what.

    Attributes:
        id: tells this undertaking from every other.
        sources: store number and epoch of each old shard.
        store_ids: of each new shard.
    """

    id: str
    sources: tuple[tuple[int, int], ...]
    store_ids: tuple[int, ...]


class ShardShare(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What one new shard has: pending timers, and messages in topics, system topics included."""

    shard: int
    timers: int
    messages: int


class Resharding(msgspec.Struct, frozen=True, kw_only=True):
    """What went where; ``previous`` is where the old data set is. Nothing is said of shards when an earlier call had built them."""

    shards: tuple[ShardShare, ...]
    previous: str


# ---------------------------------------------------------------- the steps


def take_up(path: Path) -> Published | None:
    """Give the old data set its name when a crash came behind the exchange; None when there is nothing of that."""
    replacement = Replacement(path, RESHARDING)
    return replacement.publish() if replacement.is_in_place() or (not path.exists() and replacement.is_built()) else None


def what_is_left(dataset: Dataset) -> str:
    """Say what a resharding has left that has not come to its end; nothing when there is none, or it has."""
    if (shards := dataset.manifest.resharding_to) is not None:
        return (
            f"the resharding to {shards} shards has not come to its end; `rmqstore doctor {dataset.path} --finish` ends it, --undo removes "
            "what is not in its place"
        )
    replacement = Replacement(dataset.path, RESHARDING)
    if replacement.noted() is None:
        return ""
    what = "the old one has not got its name" if replacement.is_in_place() else "of shards that are not in the place of these"
    return f"{replacement.staging} is left of a resharding, {what}; `rmqstore doctor {dataset.path} --undo` ends that"


@contextmanager
def begun(dataset: Dataset, shards: int) -> Iterator[Plan]:
    """Hold all shards, and note that they become so many others; again the first step of a call that goes on.

    Raises:
        TransferError: there are so many already, a job is half done, another resharding is, or there is what cannot be split.
        StoreLockedError, StorePathError, ConfigError: as :meth:`Dataset.check_ready`; also when the shards have different settings.
        CorruptStoreError: a shard cannot be read.
    """
    manifest = dataset.manifest
    check_shards(shards)
    if manifest.resharding_to is None:
        dataset.check_whole()
        if manifest.shards == shards:
            raise TransferError(f"data set {dataset.path} has {shards} shards already")
    elif manifest.resharding_to != shards:
        raise TransferError(
            f"data set {dataset.path} is on its way to {manifest.resharding_to} shards; finish that first, or undo it: "
            f"`rmqstore doctor {dataset.path} --undo`"
        )
    with dataset.locked(dataset.shards):
        with at_rest(dataset), _Old.opened(dataset) as old:
            sources = old.sources
            Replacement(dataset.path, RESHARDING).check_free()
            dataset.rewrite(msgspec.structs.replace(manifest, resharding_to=shards))
        yield _planned(dataset, shards, sources)


def _planned(dataset: Dataset, shards: int, sources: tuple[tuple[int, int], ...]) -> Plan:
    """Return the plan of an earlier run, if it is still one for these shards, else a new one."""
    replacement = Replacement(dataset.path, RESHARDING)
    noted = (replacement.noted() or {}).get("plan")
    plan = None if noted is None else msgspec.convert(noted, Plan)
    if plan is None or (plan.sources, len(plan.store_ids)) != (sources, shards):
        store_ids = tuple(secrets.randbits(31) + 1 for _ in range(shards))
        plan = Plan(id=secrets.token_hex(6), sources=sources, store_ids=store_ids)
        replacement.claim()
        replacement.begin({"plan": msgspec.to_builtins(plan)})
    replacement.staging.mkdir(exist_ok=True)
    return plan


def build(dataset: Dataset, plan: Plan, shard: int) -> ShardShare:
    """Build one new shard, or what is missing of it; the driver holds the old ones.

    Raises:
        TransferError: an old shard is not what it was when this began.
        StoreLockedError: another task is building it.
        StoreFullError: no room; the same call goes on.
        CorruptStoreError: the new shard does not hold what it should.
    """
    made = Dataset(Replacement(dataset.path, RESHARDING).staging, dataset.manifest)
    path = made.shard_path(shard)
    path.mkdir(exist_ok=True)
    given = dataset.shard_path(0) / CONFIG_NAME
    if given.is_file() and not (path / CONFIG_NAME).exists():
        shutil.copyfile(given, path / CONFIG_NAME)
        sync_path(path / CONFIG_NAME)
    with _Old.opened(dataset) as old:
        if old.sources != plan.sources:
            raise TransferError(f"a shard of data set {dataset.path} was opened while they were split; run it again, and it begins anew")
        engines = OwnedEngines(path, new_store_settings(old.baked, {}), plan.store_ids[shard], parted_epoch(old.epoch))
        with Store(engines, SystemClock(), services=False) as target:
            share = _Share(old, plan, shard, path.with_name(f"{path.name}.rows"))
            Taking(target, share, silent).run(resuming=True)
            shutil.rmtree(share.spool)
            stats = target.stats()
    return ShardShare(shard=shard, timers=stats.timers.pending, messages=stats.pops.messages)


def end(dataset: Dataset, plan: Plan, found: tuple[ShardShare, ...]) -> Resharding:
    """Let the new shards take the place of the old ones, whose locks the caller holds, when together they hold as much as these."""
    with _Old.opened(dataset) as old:
        sums = (sum(each.timers for each in found), sum(each.messages for each in found))
        if sums != (old.timers, old.messages):
            raise CorruptStoreError(
                f"the new shards of {dataset.path} have {sums[0]} timers and {sums[1]} messages, the old ones {old.timers} and "
                f"{old.messages}",
                file=str(dataset.path),
            )
    replacement = Replacement(dataset.path, RESHARDING)
    manifest = msgspec.structs.replace(dataset.manifest, shards=len(plan.store_ids), resharding_to=None, resharded=int(plan.id, 16))
    made = Dataset(replacement.staging, manifest)
    with at_rest(dataset):
        shutil.rmtree(made.path / "jobs", ignore_errors=True)
        copy_finished(dataset, made)
        sync_path(made.path / "jobs")
        write_json(made.path / MANIFEST, made.manifest)
        sync_path(made.path)
        replacement.ready({}, (0, 0), f"before-{dataset.manifest.shards}-shards")
        return Resharding(shards=found, previous=str(replacement.publish().previous))


def reshard_all(dataset: Dataset, shards: int, run: RunShards[ShardShare] = map) -> Resharding:
    """Build every new shard, as :func:`rmqstore.spark.reshard`; ``run`` calls a function with each, by default here, without Spark."""
    with begun(dataset, shards) as plan:
        return end(dataset, plan, tuple(run(partial(build, dataset, plan), range(shards))))


def undo_here(dataset: Dataset) -> None:
    """Remove what is built of new shards, when nobody builds them or has a shard open; the old ones are as they were."""
    with dataset.locked(dataset.shards), unchanged(dataset):
        Replacement(dataset.path, RESHARDING).abandon()
        dataset.rewrite(msgspec.structs.replace(dataset.manifest, resharding_to=None))


# ---------------------------------------------------------------- the old shards


class _Old:
    """The shards of a data set, which stand still, read together.

    Attributes:
        states: of each.
        sources: store number and epoch of each.
        epoch: the largest of them.
        baked: the settings that all of them were made with.
        timers, messages: how many there are of all.
        groups: the groups of each topic, by what any shard knows of them.
        subscriptions: of every shard, those of groups that pop; how they pop a topic is the same everywhere.
        queues: how many each topic has, in the shard where it has the most.
        alike: the rows of tables in which shards may not differ, by table and name.
        places: of each shard, before which offset of a queue everything is consumed.
    """

    def __init__(self, dataset: Dataset, views: list[ReadStore]) -> None:
        self._dataset = dataset
        self.states = [State(view.engine.timers, view.engine.pops) for view in views]
        stats = [view.stats() for view in views]
        epochs = [max(each.timers.epoch, each.pops.epoch) for each in stats]
        self.sources = tuple((view.engine.store_id, epoch) for view, epoch in zip(views, epochs, strict=True))
        self.epoch = max(epochs)
        self.timers = sum(each.timers.pending for each in stats)
        self.messages = sum(each.pops.messages for each in stats)
        check_transferable(views[0])
        self.baked: dict[str, Any] = self._alike("settings", [view.engine.manifest["baked"] for view in views])
        configs = [dataset.shard_path(shard) / CONFIG_NAME for shard in dataset.shards]
        self._alike(f"files {CONFIG_NAME}", [path.read_bytes() if path.is_file() else b"" for path in configs])
        self._refuse_what_is_not_split()
        self.topics = self.rows("topics")
        self.standings = self.rows("standings")
        self.groups: defaultdict[str, set[str]] = defaultdict(set)
        self.subscriptions = [row for row in self.all_rows("subscriptions") if row["active_ms"] is not None]
        for row in chain(*self.standings, self.subscriptions):
            self.groups[row["topic"]].add(row["group"])
        ways = (((row["group"], row["topic"]), row["is_ordered"]) for row in self.subscriptions)
        self._one_each("how group {0[0]!r} pops topic {0[1]!r}", ways)
        self.alike = {
            table: self._one_each(words, ((row[name], row) for row in self.all_rows(table)))
            for table, name, words in (
                ("group_queues", "topic", "the queues for message groups of topic {0!r}"),
                ("group_settings", "group", "the settings of group {0!r}"),
            )
        }
        self.queues: Counter[str] = Counter()
        for row in chain(*self.topics):
            self.queues[row["topic"]] = max(self.queues[row["topic"]], row["queue_id"] + 1)
        self.places = [self._places(shard) for shard in dataset.shards]

    @classmethod
    @contextmanager
    def opened(cls, dataset: Dataset) -> Iterator[_Old]:
        """Open the shards for reading; what cannot be split is refused."""
        with ExitStack() as stack:
            yield cls(dataset, [stack.enter_context(ReadStore(dataset.shard_path(shard), {})) for shard in dataset.shards])

    def rows(self, table: str) -> list[list[dict[str, Any]]]:
        """Return the rows of a table that is never large, shard by shard."""
        return [state.rows(table) for state in self.states]

    def all_rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table that is never large, of all shards."""
        return list(chain(*self.rows(table)))

    def _alike(self, what: str, found: list[_Value]) -> _Value:
        for shard, each in enumerate(found):
            if each != found[0]:
                raise ConfigError(f"shards 0 and {shard} of data set {self._dataset.path} have different {what}; make them alike first")
        return found[0]

    def _one_each(self, words: str, pairs: Iterable[tuple[_Name, _Value]]) -> dict[_Name, _Value]:
        """Return the value of each name, which is the same wherever there is one; ``words`` say what it is."""
        found: dict[_Name, _Value] = {}
        for name, value in pairs:
            if found.setdefault(name, value) != value:
                raise TransferError(
                    f"shards of data set {self._dataset.path} differ in {words.format(name)}; make them alike, then reshard"
                )
        return found

    def _refuse_what_is_not_split(self) -> None:
        for shard in self._dataset.shards:
            path = self._dataset.shard_path(shard)
            for page in (page for _, page in self.states[shard].pages("leases")):
                for row in page.to_pylist():
                    if _LEASED in row["states"]:
                        raise TransferError(
                            f"group {row['group']!r} has leased messages of {row['topic']!r} in {path}, or they wait for their next "
                            "attempt; let them be acked, or end them with a hand-over, then reshard"
                        )
            for table, way in (
                ("fifo", "a group that pops in order has messages that came back; let it ack them"),
                ("notes", "it has schedules or pauses; delete or resume them"),
            ):
                if self.states[shard].rows(table):
                    raise TransferError(f"{path} cannot be split: {way}, then reshard")

    def _places(self, shard: int) -> dict[tuple[str, int], int]:
        own = {(row["group"], row["topic"], row["queue_id"]): row["next_offset"] for row in self.standings[shard]}
        found: dict[tuple[str, int], int] = {}
        for row in self.topics[shard]:
            topic, queue = row["topic"], row["queue_id"]
            groups = sorted(self.groups[topic])
            places = [min(max(own.get((group, topic, queue), 0), row["min_offset"]), row["next_offset"]) for group in groups]
            if len(set(places)) > 1:
                stands = ", ".join(f"{group} at offset {place}" for group, place in zip(groups, places, strict=True))
                raise TransferError(
                    f"the groups of topic {topic!r} are not equally far in {self._dataset.shard_path(shard)}, queue {queue} ({stands}); "
                    "let those that are behind catch up, or remove them (`rmqstore groups delete`), then reshard"
                )
            found[topic, queue] = places[0] if places else 0
        return found


# ---------------------------------------------------------------- a new shard


class _Share(Incoming):
    """What of the old shards belongs to one new one. Messages are set aside first, consumed ones apart: tables before them tell sums.

    Attributes:
        spool: where they are.
    """

    def __init__(self, old: _Old, plan: Plan, shard: int, spool: Path) -> None:
        self._old = old
        self._shard = shard
        self._shards = len(plan.store_ids)
        self.spool = spool
        self.name = f"shard {shard} of {self._shards}"
        self.dump_id = f"{plan.id}{shard:04x}"
        self.store_id = plan.store_ids[shard]
        self.broker = broker_name(self.store_id)
        self.epoch = old.epoch
        self.last_seq = old.timers
        self.precision_ms = old.states[0].precision_ms
        self.needs = Needs()  # the engine is the same
        self._ends: Counter[tuple[str, int]] = Counter()
        self._consumed: Counter[tuple[str, int]] = Counter()
        self._dead: Counter[tuple[str, str]] = Counter()
        self._files = [spool / "consumed.arrow", spool / "waiting.arrow"]
        self._set_aside()

    def counts(self) -> dict[str, int]:
        return {"messages": self._ends.total()}

    def chunks(self, table: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        if table == "timers":
            pages = self._timers()
        elif table == "messages":
            pages = self._messages()
        else:
            pages = iter([pa.RecordBatch.from_pylist(self._small(table), schema=TABLES[table])])
        for number, rows in enumerate(pages):
            if len(rows):
                yield f"{table}/{number}", rows

    def _own(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.array(shard_column(rows, self._shards) == self._shard))

    def _timers(self) -> Iterator[pa.RecordBatch]:
        last = 0
        for state in self._old.states:
            for _, page in state.pages("timers"):
                rows = self._own(page)
                # They come by tick and put order, and only the order within a tick counts; each name has all its timers in one old shard.
                yield _with(rows, TIMERS, seq=last + 1 + np.arange(len(rows)), epoch=np.full(len(rows), self.epoch))
                last += len(rows)

    # ------------------------------------------------------------ messages

    def _set_aside(self) -> None:
        self.spool.mkdir(exist_ok=True)
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(file), MESSAGES)) for file in self._files]
            for state, places in zip(self._old.states, self._old.places, strict=True):
                for _, page in state.pages("messages"):
                    rows = self._own(page)
                    if not len(rows):
                        continue
                    offsets = rows.column("queue_offset").to_numpy()
                    is_consumed = np.zeros(len(rows), bool)
                    for topic, queue, at in _by_queue(rows):
                        is_consumed[at] = offsets[at] < places[topic, queue]
                        self._ends[topic, queue] += len(at)
                        self._consumed[topic, queue] += int(is_consumed[at].sum())
                        if topic.startswith(DLQ_PREFIX):
                            self._count_dead(topic.removeprefix(DLQ_PREFIX), rows.column("properties").take(pa.array(at)))
                    for writer, wanted in zip(writers, (is_consumed, ~is_consumed), strict=True):
                        writer.write_batch(rows.filter(pa.array(wanted)))

    def _count_dead(self, group: str, properties: pa.Array) -> None:
        for each in properties.to_pylist():
            self._dead[group, dict(each or ()).get(PROPERTY_ORIGIN_TOPIC, "")] += 1

    def _messages(self) -> Iterator[pa.RecordBatch]:
        behind: Counter[tuple[str, int]] = Counter()
        for file in self._files:
            with pa.ipc.open_stream(str(file)) as reader:
                for rows in reader:
                    offsets = np.zeros(len(rows), np.int64)
                    for topic, queue, at in _by_queue(rows):
                        offsets[at] = behind[topic, queue] + np.arange(len(at))
                        behind[topic, queue] += len(at)
                    yield _with(rows, MESSAGES, queue_offset=offsets)

    # ------------------------------------------------------------ all else

    def _small(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table that is never large."""
        old = self._old
        if table == "timer_head":
            return [{"last_seq": self.last_seq, "epoch": self.epoch, "precision_ms": self.precision_ms, "sealed": b""}]
        if table == "pop_head":
            floor_ms = max(row["pop_floor_ms"] for row in old.all_rows("pop_head"))
            return [{"cursor": b"", "epoch": self.epoch, "pop_floor_ms": floor_ms}]
        if table == "topics":
            asked_for = {row["topic"] for row in chain(*old.topics) if not row["is_on_demand"]}
            return [
                {
                    "topic": topic,
                    "queue_id": queue,
                    "min_offset": 0,
                    "next_offset": self._ends[topic, queue],
                    "is_on_demand": topic not in asked_for,
                }
                for topic, queues in sorted(old.queues.items())
                for queue in range(queues)
            ]
        if table in old.alike:
            return list(old.alike[table].values())
        if table == "standings":
            return self._standings()
        return self._subscriptions() if table == "subscriptions" else []

    def _standings(self) -> list[dict[str, Any]]:
        rows = sorted(chain(*self._old.standings), key=itemgetter("last_pop_ms"))
        popped = {(row["group"], row["topic"]): row["last_pop_ms"] for row in rows}  # the largest of each
        return [
            {"group": group, "topic": topic, "queue_id": queue, "next_offset": self._consumed[topic, queue], "last_pop_ms": last_ms}
            for (group, topic), last_ms in popped.items()
            for queue in range(self._old.queues[topic])
        ]

    def _subscriptions(self) -> list[dict[str, Any]]:
        rows = sorted(self._old.subscriptions, key=itemgetter("active_ms"))
        last = {(row["group"], row["topic"]): row for row in rows}
        expired: Counter[tuple[str, str]] = Counter()
        for row in rows:
            expired[row["group"], row["topic"]] += row["expired"]
        # Letters of a topic that was deleted and made again are not told apart from those of the new one here.
        dead = {place: number for place, number in self._dead.items() if place[1] in self._old.queues}
        return [
            {
                "group": place[0],
                "topic": place[1],
                "is_ordered": place in last and last[place]["is_ordered"],
                "dead": dead.get(place, 0),
                "dead_since": 0,
                "expired": expired[place] if self._shard == 0 else 0,
                "active_ms": last[place]["active_ms"] if place in last else None,
            }
            for place in sorted(last.keys() | dead.keys())
        ]


def _by_queue(rows: pa.RecordBatch) -> Iterator[tuple[str, int, npt.NDArray[np.int64]]]:
    """Yield (topic, queue, places of its rows) of each queue that has some."""
    topics = rows.column("topic").dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64) << 32 | rows.column("queue_id").to_numpy().astype(np.int64)
    for code in np.unique(codes).tolist():
        yield topics.dictionary[code >> 32].as_py(), code & 0xFFFFFFFF, np.flatnonzero(codes == code)


def _with(rows: pa.RecordBatch, schema: pa.Schema, **numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows with other numbers in some columns."""
    columns = [pa.array(numbers[name], pa.int64()) if name in numbers else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
