"""The data source ``rmqstore``: thin adapters between Spark's Python data source API and the functions of this package.

A plain write goes through the same two phases as :func:`rmqstore.spark.schedule`: tasks set rows aside, and the commit, which runs once on
the driver's machine, sends them, a process a shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmqstore.config import keyword_of
from rmqstore.errors import ConfigError, IllegalArgumentError
from rmqstore.message import check_group, check_readable_topic, check_time_ms
from rmqstore.plugins import get_plugins
from rmqstore.settings import Value, known_settings
from rmqstore.spark.catalog import check_written, options_of, options_of_creation, with_options, without_handles
from rmqstore.spark.columns import check_columns, ddl
from rmqstore.spark.dataset import LOCK_WAIT_MS, Dataset, place_of
from rmqstore.spark.ingest import complete_here
from rmqstore.spark.jobs import Job, job_of_write
from rmqstore.spark.popping import INVISIBLE_MS, ROUND_ROWS, GroupReader
from rmqstore.spark.readout import PART_ROWS, View, Wanted, plan, read
from rmqstore.spark.running import staged_here
from rmqstore.spark.staging import OnBadRow, Rules, rules_of
from rmqstore.spark.streams import MicroBatchWriter, QueueReader, Staged, staged_files
from rmqstore.store.directory import read_manifest

NAME: Final = "rmqstore"
_MOST: Final = 2**63 - 1
_READ_OPTIONS: Final = ("path", "view", "columns", "shard", "topic", "from_ms", "to_ms", "system", "part_rows", "job_id")
_STREAM_OPTIONS: Final = ("startingOffsets", "maxRowsPerBatch")
_GROUP_OPTIONS: Final = ("path", "view", "topic", "columns", "group", "maxRowsPerBatch", "invisible_ms", "lock_wait_ms")
_WRITE_OPTIONS: Final = ("path", "shards", "engine", "now_ms", "lock_wait_ms", "on_bad_row")
_QUERY_OPTIONS: Final = ("checkpointLocation", "queryName")
"""What Spark has for itself, and hands on."""

_SETTING: Final = "set."
_NOT_OF_TABLES: Final = ("columns", "job_id")
_Default = TypeVar("_Default", int, None)


class RmqstoreSource(DataSource):
    """Data sets, and single stores for reading; docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        given = options_of_creation(self.options)
        if given is None:
            return ddl(self._wanted().schema())
        known = [name for name in dict.fromkeys(_READ_OPTIONS + _WRITE_OPTIONS) if name not in _NOT_OF_TABLES]
        _refuse_unknown(given, known, "tables")
        self.options = {name: text for name, text in given.items() if name in _READ_OPTIONS}
        columns, place = self._wanted().schema(), place_of(_path(given))
        if read_manifest(place) is None:  # a single store is only read
            _dataset(given)
        return with_options(columns, given | {"path": str(place)})

    def _take_up(self, schema: StructType, known: Sequence[str], what: str) -> dict[str, str]:
        """Take the options of a table, which came with its schema, where the call names no path; what it names wins. Returns the former.

        Those that are not ``known`` are refused as such of ``what``.
        """
        noted = options_of(schema)
        if "path" not in self.options:
            own = {name: text for name, text in noted.items() if name in known or (name.startswith(_SETTING) and "shards" in known)}
            # The names that Spark gives are in whatever case their user wrote.
            self.options = CaseInsensitiveDict({**own, **self.options})
        _refuse_unknown(self.options, known, what)
        return noted

    def reader(self, schema: StructType) -> ViewReader:
        self._take_up(schema, _READ_OPTIONS, "reads")
        return ViewReader(*self._reading(schema))

    def streamReader(self, schema: StructType) -> QueueReader | GroupReader:
        is_group = "group" in self.options
        known = _GROUP_OPTIONS if is_group else (*_READ_OPTIONS, *_STREAM_OPTIONS)
        self._take_up(schema, known, "streams of a group" if is_group else "streams")
        options = self.options
        if self._wanted().view is not View.MESSAGES:
            raise IllegalArgumentError(
                'a stream reads the messages of topics: name that view with option("view", "messages"). Timers become messages when they '
                "are due, by the ticks of a stream with a group, of rmqstore.spark.hand_over, or of a program that owns the shard"
            )
        path, wanted, part_rows = self._reading(schema)
        if is_group:
            group, topic = options["group"], wanted.topic
            if topic is None:
                raise IllegalArgumentError("option topic is missing: a stream of a group pops one topic")
            check_group(group)
            check_readable_topic(topic)
            dataset = Dataset.open(path)
            dataset.check_whole()
            return GroupReader(
                dataset=dataset,
                schema=wanted.schema(),
                topic=topic,
                group=group,
                max_rows=_number(options, "maxRowsPerBatch", ROUND_ROWS, minimum=1),
                invisible_ms=_number(options, "invisible_ms", INVISIBLE_MS, minimum=1),
                lock_wait_ms=_number(options, "lock_wait_ms", LOCK_WAIT_MS),
            )
        start = options.get("startingOffsets", "earliest")
        if start not in ("earliest", "latest"):
            raise IllegalArgumentError(f"option startingOffsets must be earliest or latest, not {start!r}")
        max_rows = _number(options, "maxRowsPerBatch", None, minimum=1)
        return QueueReader(path, wanted, part_rows, is_from_latest=start == "latest", max_rows=max_rows)

    def writer(self, schema: StructType, overwrite: bool) -> JobWriter:
        path = self.options.get("path")
        dataset, rules, lock_wait_ms = self._target(schema, overwrite, (*_WRITE_OPTIONS, "job_id"))
        dataset.check_ready(is_served_too=rules.now_ms is None)
        return JobWriter(job_of_write(dataset, self.options.get("job_id")), rules, lock_wait_ms, is_table=path is None)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MicroBatchWriter:
        dataset, rules, lock_wait_ms = self._target(schema, overwrite, (*_WRITE_OPTIONS, *_QUERY_OPTIONS))
        # Another query, or what a killed driver left, may have a shard for a while; the commit waits for it.
        dataset.check_whole()
        return MicroBatchWriter(dataset, rules, lock_wait_ms)

    def _target(self, schema: StructType, overwrite: bool, allowed: Sequence[str]) -> tuple[Dataset, Rules, int]:
        """Return the data set of a write, how its rows are checked, and how long a shard is waited for."""
        path = self.options.get("path")
        check_written(self._take_up(schema, allowed, "writes"), path)
        options = self.options
        if overwrite:
            raise IllegalArgumentError('a data set is only added to: write with mode("append"), or outputMode("append") of a stream')
        check_columns((field.name, field.dataType.simpleString()) for field in schema.fields)
        now_ms = _number(options, "now_ms", None)
        if now_ms is not None:
            check_time_ms("option now_ms", now_ms)
        lock_wait_ms = _number(options, "lock_wait_ms", LOCK_WAIT_MS)
        way = OnBadRow(options.get("on_bad_row", OnBadRow.FAIL.value))
        dataset = _dataset(options)
        return dataset, rules_of(dataset, now_ms, way), lock_wait_ms

    def _wanted(self) -> Wanted:
        options = self.options
        _refuse_unknown(options, tuple(dict.fromkeys(_READ_OPTIONS + _STREAM_OPTIONS + _GROUP_OPTIONS)), "reads")
        system = options.get("system", "false").lower()
        if system not in ("true", "false"):
            raise IllegalArgumentError(f"option system must be true or false, not {system!r}")
        return Wanted(
            view=View(options.get("view", View.TIMERS.value)),
            columns=tuple(name.strip() for name in options.get("columns", "").split(",") if name.strip()),
            shard=_number(options, "shard", None),
            topic=options.get("topic"),
            from_ms=_number(options, "from_ms", None),
            to_ms=_number(options, "to_ms", None),
            system=system == "true",
            job_id=options.get("job_id"),
        )

    def _reading(self, schema: StructType) -> tuple[str, Wanted, int]:
        wanted = msgspec.structs.replace(self._wanted(), columns=tuple(schema.names))
        wanted.schema()
        return _path(self.options), wanted, _number(self.options, "part_rows", PART_ROWS, minimum=1)


@dataclass(frozen=True)
class ViewReader(DataSourceReader):
    """Reads a view, a part a task."""

    path: str
    wanted: Wanted
    part_rows: int

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in plan(self.path, self.wanted, self.part_rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is no part at all, Spark asks for one of its own.
        return iter(()) if partition.value is None else read(partition.value, self.wanted)


@dataclass(frozen=True)
class JobWriter(DataSourceArrowWriter):
    """Writes a job: tasks stage, the commit sends."""

    job: Job
    rules: Rules
    lock_wait_ms: int
    is_table: bool = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self.is_table:
            iterator = map(without_handles, iterator)
        return Staged(staged_here(self.job, iterator, self.rules))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        complete_here(self.job, staged_files(messages), self.rules.now_ms, self.lock_wait_ms)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # A task may still be writing: what it leaves is swept by the next commit of this job, or by the doctor.
        self.job.discard()


def _dataset(options: Mapping[str, str]) -> Dataset:
    """Open the data set that the options of a write name, or make it."""
    known = known_settings(get_plugins().engine_settings())
    settings: dict[str, Value] = {}
    for name, text in options.items():
        if name.startswith(_SETTING):
            settings |= keyword_of(name.removeprefix(_SETTING), text, name, known)
    return Dataset.open_or_create(_path(options), shards=_number(options, "shards", None), engine=options.get("engine"), settings=settings)


def _path(options: Mapping[str, str]) -> str:
    path = options.get("path")
    if not path:
        raise IllegalArgumentError(
            "option path is missing: name the directory of the data set, as in .save(path) or .load(path); a table has it when it was made "
            f"by CREATE TABLE name USING {NAME} OPTIONS (path '…'), without columns and without AS SELECT"
        )
    return path


def _number(options: Mapping[str, str], name: str, default: _Default, *, minimum: int | None = None) -> int | _Default:
    text = options.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise IllegalArgumentError(f"option {name} must be a whole number, not {text!r}") from None
    if abs(number) > _MOST:
        raise IllegalArgumentError(f"option {name} must be {_MOST} at most, not {number}")
    if minimum is not None and number < minimum:
        raise IllegalArgumentError(f"option {name} must be {minimum} or more, not {number}")
    return number


def _refuse_unknown(names: Iterable[str], known: Sequence[str], what: str) -> None:
    """Refuse options that have another name; settings are for those who may make a data set."""
    for name in names:
        if name.lower() not in map(str.lower, known) and not (name.startswith(_SETTING) and "shards" in known):
            raise ConfigError(f"option {name} is unknown to {what}; there are {', '.join(known)}")
