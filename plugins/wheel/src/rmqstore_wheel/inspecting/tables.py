"""A survey as tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rmqstore.contract import Cell, Moment, Section
from rmqstore_wheel.formats import config_files
from rmqstore_wheel.inspecting.files import length_of
from rmqstore_wheel.inspecting.log import QueueName, Tally
from rmqstore_wheel.inspecting.pending import LABELS
from rmqstore_wheel.inspecting.survey import Survey

_NOT_READ: Final = ("batchconsumequeue", "consumequeue_ext", "kvStore", "transaction", "consumequeue_r", "rocksdbstore", "compaction")

_Row = tuple[Cell, ...]
_Table = Iterator[_Row | str]
"""Rows, and sentences about them."""


def sections(survey: Survey) -> Iterator[Section]:
    """Yield the tables that there is something for."""
    for heading, columns, table in _TABLES:
        found = list(table(survey))
        if found:
            rows, notes = tuple(each for each in found if isinstance(each, tuple)), (each for each in found if isinstance(each, str))
            yield Section(heading=heading, columns=tuple(columns.split(", ")), rows=rows, note=" ".join(notes))


def _moment(ms: int) -> Moment | None:
    return Moment(ms) if ms > 0 else None


# ---------------------------------------------------------------- files


def _files(survey: Survey) -> _Table:
    for path in sorted(survey.root.iterdir()):
        files = [path] if path.is_file() else [Path(base, name) for base, _, names in os.walk(path) for name in names]
        yield path.name, len(files), sum(map(length_of, files))
    chains = (survey.log.files, survey.units.files, *(queue.files for queue in survey.queues.queues.values()))
    if strangers := [f"{files.name}/{name}" for files in chains for name in files.strangers]:
        yield f"Passed over, as their names are no offsets: {', '.join(strangers[:10])}."
    if unread := [name for name in _NOT_READ if (survey.root / name).exists()]:
        yield f"Not looked at: {', '.join(unread)}."


def _commit_log(survey: Survey) -> _Table:
    for report in survey.log.reports:
        yield report.file.path.name, report.file.length, report.count, report.first, report.last, report.valid_end, report.why
    frames = survey.frames
    if frames.whole or frames.torn:
        yield f"Calls of rmqstore's engine: {frames.whole} whole, {frames.torn} torn."
        if frames.outside:
            yield f"{frames.outside} records between them belong to no call: another program wrote them, or a call is torn."
        if frames.open_records:
            yield f"{frames.open_records} records behind the last whole call: of one that did not end, or another program's."


def _topics(survey: Survey) -> _Table:
    by_topic: dict[str, list[Tally]] = {}
    for name, tally in survey.tallies.items():
        by_topic.setdefault(name.topic, []).append(tally)
    for topic, tallies in sorted(by_topic.items()):
        first, last = min(each.first_ms for each in tallies), max(each.last_ms for each in tallies)
        messages, size = sum(each.messages for each in tallies), sum(each.bytes for each in tallies)
        yield topic, len(tallies), messages, size, _moment(first), _moment(last)


def _queues(survey: Survey) -> _Table:
    lack_units = False
    for name, queue in sorted(survey.queues.queues.items()):
        tally = survey.tallies.get(name)
        without_unit = (0 if tally is None else tally.messages) - queue.confirmed
        lack_units |= bool(without_unit)
        yield name.topic, name.queue_id, queue.least, queue.end, queue.units, without_unit
    if lack_units:
        yield "Without a unit: not put in yet, which the next start does, or of an earlier topic of that name."


def _index(survey: Survey) -> _Table:
    for report in survey.index:
        header = report.header
        times = _moment(header.first_ms), _moment(header.last_ms)
        yield report.name, report.length, report.slots, header.used_slots, report.entries, *times, header.first_offset, header.last_offset


# ---------------------------------------------------------------- check points and offsets


def _check_points(survey: Survey) -> _Table:
    timers, store = survey.small.timer_check, survey.small.check_point
    if timers is not None:
        yield "timers", "slots before this time are delivered", _moment(timers.read_ms)
        yield "timers", "timer log is on disk up to", timers.timer_log_position
        yield "timers", "next offset of the wheel's topic", timers.queue_offset
        yield "timers", "the same, as a master told", timers.master_queue_offset
        yield "timers", "version", f"{timers.version.counter} of state {timers.version.state_version}"
    if store is not None:
        yield "store", "last message on disk", _moment(store.message_ms)
        yield "store", "last message in the consume queues", _moment(store.queue_ms)
        yield "store", "last message in the index", _moment(store.index_ms)
        yield "store", "log flushed by the master up to", store.master_flushed
        yield "store", "log confirmed up to", store.confirmed
    if survey.small.abort is not None:
        who = f"process {survey.small.abort}" if survey.small.abort.isdigit() else "a process"
        yield f"The file abort is there: {who} has the store open, or ended without closing it."
    if survey.small.backups:
        yield f"Read from their backups: {', '.join(survey.small.backups)}."


def _offsets(survey: Survey) -> _Table:
    table = survey.small.offsets.table if survey.small.offsets is not None else {}
    for name, offsets in sorted(table.items()):
        topic, group = config_files.split_offsets_key(name) or (name, "")
        for queue_id, offset in sorted(offsets.items()):
            queue = survey.queues.of(QueueName(topic, queue_id))
            end = None if queue is None else queue.end
            yield group, topic, queue_id, offset, end, None if end is None else end - offset


def _runs(survey: Survey) -> _Table:
    for name, runs in sorted((survey.small.runs or {}).items()):
        topic, group = config_files.split_offsets_key(name) or (name, "")
        for queue_id, run in sorted(runs.items()):
            unacked = sum(not run.is_acked(place) for place in range(len(run.offsets)))
            first = run.offsets[0] if run.offsets else None
            end = None if run.invisible_ms is None else _moment(run.pop_ms + run.invisible_ms)
            yield group, topic, queue_id, first, len(run.offsets), unacked, end


# ---------------------------------------------------------------- timers and pops


def _pending(survey: Survey) -> _Table:
    pending, check = survey.pending, survey.small.timer_check
    timers, internal = pending.timers.tolist(), pending.internal.tolist()
    if check is None and not any(timers) and not any(internal):
        return
    yield from zip(LABELS, timers, internal, strict=True)
    yield "in all", sum(timers), sum(internal)
    yield "Counted from the messages of the wheel's topic,"
    if check is None:
        yield "without config/timercheck: those that are due may be delivered or not, and are left out."
    else:
        yield "less those that config/timercheck says are delivered, those that were rolled on, and those that a cancel names."
    if pending.cancels:
        yield f"Cancels that wait: {pending.cancels}."


def _in_flight(survey: Survey) -> _Table:
    found = survey.popped.in_flight()
    for group, topic, pops, messages, first_ms, last_ms in found:
        yield group, topic, pops, messages, Moment(first_ms), Moment(last_ms)
    if found:
        yield "Check points that lack acks and, by consumerOffset.json, are not revived yet."


def _wheels(survey: Survey) -> _Table:
    for wheel in survey.wheels:
        check = survey.wheel_check if survey.wheel_check is not None and survey.wheel_check.wheel is wheel else None
        waiting: _Row = (None, None) if check is None else (int(check.waiting.sum()), check.timers)
        yield wheel.name, wheel.length, len(wheel.slots), int(wheel.used.sum()), *waiting
    if survey.wheels:
        yield f"Precision {survey.precision[0]} ms, {survey.precision[1]}." if survey.precision else "Nothing tells the precision."


def _timer_log(survey: Survey) -> _Table:
    for report in survey.units.reports:
        yield report.file.path.name, report.file.length, report.count, report.rolled, report.cancels, report.end, report.why
    if survey.units.broken:
        yield f"Units that wait and whose chain is broken: {survey.units.broken}."


def _metrics(survey: Survey) -> _Table:
    counts = survey.small.metrics.counts if survey.small.metrics is not None else {}
    for topic, each in sorted(counts.items()):
        yield topic, each.count, _moment(each.changed_ms)


_TABLES: Final[tuple[tuple[str, str, Callable[[Survey], _Table]], ...]] = (
    ("Files", "name, files, bytes", _files),
    ("Commit log", "file, bytes, records, first record, last record, valid up to, where it ends", _commit_log),
    ("Topics in the commit log", "topic, queues, messages, bytes, first stored, last stored", _topics),
    ("Consume queues", "topic, queue, first offset, next offset, units, in the log without a unit", _queues),
    ("Check points", "of, what, value", _check_points),
    ("Pending timers, by due time", "due, timers, of pops", _pending),
    ("Pops in flight", "group, topic, pops, messages, first ends, last ends", _in_flight),
    ("Ordered pops", "group, topic, queue, first offset, messages, not acked, invisible until", _runs),
    ("Timer wheel", "file, bytes, slots, written, slots that wait, timers in them", _wheels),
    ("Timer log", "file, bytes, units, to be rolled, cancels, units up to, where they end", _timer_log),
    ("Timers by topic, as config/timermetrics estimates", "topic, timers, changed", _metrics),
    ("Consumer offsets", "group, topic, queue, offset, queue ends at, behind", _offsets),
    ("Index files", "file, bytes, slots, slots in use, entries, from, to, first log offset, last log offset", _index),
)
