"""A survey as tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rmqstore.contract import Cell, Moment, Section
from rmqstore_wheel.formats import config_files
from rmqstore_wheel.formats.config_files import DataVersion
from rmqstore_wheel.inspecting import queues, timers
from rmqstore_wheel.inspecting.files import FileSet, length_of
from rmqstore_wheel.inspecting.log import QueueName, Tally
from rmqstore_wheel.inspecting.pending import LABELS
from rmqstore_wheel.inspecting.survey import COMMIT_LOG, Survey

_OWN: Final = "rmqstore"
_NOT_READ: Final = ("batchconsumequeue", "consumequeue_ext", "kvStore", "transaction", "consumequeue_r", "rocksdbstore", "compaction")

_Row = tuple[Cell, ...]


def sections(survey: Survey) -> Iterator[Section]:
    """Yield the tables that there is something for."""
    for section in (
        _file_sets(survey),
        _commit_log(survey),
        _topics(survey),
        _queues(survey),
        _check_points(survey),
        _pending(survey),
        _in_flight(survey),
        _runs(survey),
        _wheels(survey),
        _timer_log(survey),
        _metrics(survey),
        _offsets(survey),
        _index(survey),
        _other_files(survey.root),
    ):
        if section.rows or section.note:
            yield section


def _section(heading: str, columns: str, rows: list[_Row], note: str = "") -> Section:
    return Section(heading=heading, columns=tuple(columns.split(", ")), rows=tuple(rows), note=note)


def _moment(ms: int) -> Moment | None:
    return Moment(ms) if ms > 0 else None


# ---------------------------------------------------------------- files


def _file_sets(survey: Survey) -> Section:
    consume = [queue.files for queue in survey.queues.queues.values() if queue.files.files]
    rows = [
        _set_row(COMMIT_LOG, [survey.log.files]),
        _set_row(queues.DIRECTORY, consume),
        _set_row(timers.DIRECTORY, [survey.units.files]),
    ]
    strangers = [f"{files.name}/{name}" for files in (survey.log.files, survey.units.files, *consume) for name in files.strangers]
    note = f"Passed over, as their names are no offsets: {', '.join(strangers[:10])}" if strangers else ""
    return _section("File sets", "directory, chains, files, bytes, bytes a file, from, to", [row for row in rows if row], note)


def _set_row(name: str, sets: list[FileSet]) -> _Row:
    files = [file for each in sets for file in each.files]
    if not files:
        return ()
    sizes = {each.file_bytes for each in sets if each.files}
    one = len(sets) == 1
    starts: _Row = (sets[0].start, sets[0].end) if one else (None, None)
    return (name, len(sets), len(files), sum(file.length for file in files), min(sizes) if len(sizes) == 1 else None, *starts)


def _commit_log(survey: Survey) -> Section:
    rows: list[_Row] = [
        (report.file.path.name, report.file.length, report.count, report.first, report.last, report.valid_end, report.why)
        for report in survey.log.reports
    ]
    frames = survey.frames
    notes = []
    if frames.whole or frames.torn:
        notes.append(f"Calls of rmqstore's engine: {frames.whole} whole, {frames.torn} torn.")
        if frames.outside:
            notes.append(f"{frames.outside} records between them belong to no call: another program wrote them, or a call is torn.")
        if frames.open_records:
            notes.append(f"{frames.open_records} records behind the last whole call: of one that did not end, or another program's.")
    columns = "file, bytes, records, first record, last record, valid up to, where it ends"
    return _section("Commit log", columns, rows, " ".join(notes))


def _topics(survey: Survey) -> Section:
    by_topic: dict[str, list[Tally]] = {}
    for name, tally in survey.topics.tallies.items():
        by_topic.setdefault(name.topic, []).append(tally)
    rows: list[_Row] = [
        (
            topic,
            len(tallies),
            sum(each.messages for each in tallies),
            sum(each.bytes for each in tallies),
            _moment(min(each.first_ms for each in tallies)),
            _moment(max(each.last_ms for each in tallies)),
        )
        for topic, tallies in sorted(by_topic.items())
    ]
    return _section("Topics in the commit log", "topic, queues, messages, bytes, first stored, last stored", rows)


def _queues(survey: Survey) -> Section:
    rows: list[_Row] = []
    for name, queue in sorted(survey.queues.queues.items()):
        tally = survey.topics.tallies.get(name)
        messages = 0 if tally is None else tally.messages
        rows.append((name.topic, name.queue_id, queue.least, queue.end, queue.units, messages - queue.confirmed))
    note = (
        "Without a unit: not put in yet, which the next start does, or of an earlier topic of that name."
        if any(row[-1] for row in rows)
        else ""
    )
    return _section("Consume queues", "topic, queue, first offset, next offset, units, in the log without a unit", rows, note)


def _index(survey: Survey) -> Section:
    rows: list[_Row] = [
        (
            report.name,
            report.length,
            report.slots,
            report.header.used_slots,
            report.entries,
            _moment(report.header.first_ms),
            _moment(report.header.last_ms),
            report.header.first_offset,
            report.header.last_offset,
        )
        for report in survey.index
    ]
    return _section("Index files", "file, bytes, slots, slots in use, entries, from, to, first log offset, last log offset", rows)


def _other_files(root: Path) -> Section:
    own = sorted(path for path in (root / _OWN).rglob("*") if path.is_file()) if (root / _OWN).is_dir() else []
    rows: list[_Row] = [(str(path.relative_to(root)), length_of(path)) for path in own]
    unread = [name for name in _NOT_READ if (root / name).exists()]
    return _section("Files of rmqstore's own", "file, bytes", rows, f"Not looked at: {', '.join(unread)}." if unread else "")


# ---------------------------------------------------------------- check points and offsets


def _check_points(survey: Survey) -> Section:
    rows: list[_Row] = []
    timers, store = survey.small.timer_check, survey.small.check_point
    if timers is not None:
        rows += [
            ("timers", "slots before this time are delivered", _moment(timers.read_ms)),
            ("timers", "timer log is on disk up to", timers.timer_log_position),
            ("timers", "next offset of the wheel's topic", timers.queue_offset),
            ("timers", "the same, as a master told", timers.master_queue_offset),
            ("timers", "version", _version(timers.version)),
        ]
    if store is not None:
        rows += [
            ("store", "last message on disk", _moment(store.message_ms)),
            ("store", "last message in the consume queues", _moment(store.queue_ms)),
            ("store", "last message in the index", _moment(store.index_ms)),
            ("store", "log flushed by the master up to", store.master_flushed),
            ("store", "log confirmed up to", store.confirmed),
        ]
    notes = []
    if survey.small.abort is not None:
        who = f"process {survey.small.abort}" if survey.small.abort.isdigit() else "a process"
        notes.append(f"The file abort is there: {who} has the store open, or ended without closing it.")
    if survey.small.backups:
        notes.append(f"Read from their backups: {', '.join(survey.small.backups)}.")
    return _section("Check points", "of, what, value", rows, " ".join(notes))


def _version(version: DataVersion) -> str:
    return f"{version.counter} of state {version.state_version}"


def _offsets(survey: Survey) -> Section:
    rows: list[_Row] = []
    table = survey.small.offsets.table if survey.small.offsets is not None else {}
    for name, offsets in sorted(table.items()):
        topic, group = config_files.split_offsets_key(name) or (name, "")
        for queue_id, offset in sorted(offsets.items()):
            queue = survey.queues.of(QueueName(topic, queue_id))
            end = None if queue is None else queue.end
            rows.append((group, topic, queue_id, offset, end, None if end is None else end - offset))
    return _section("Consumer offsets", "group, topic, queue, offset, queue ends at, behind", rows)


def _runs(survey: Survey) -> Section:
    rows: list[_Row] = []
    for name, runs in sorted((survey.small.runs or {}).items()):
        topic, group = config_files.split_offsets_key(name) or (name, "")
        for queue_id, run in sorted(runs.items()):
            unacked = sum(not run.is_acked(place) for place in range(len(run.offsets)))
            first = run.offsets[0] if run.offsets else None
            end = None if run.invisible_ms is None else _moment(run.pop_ms + run.invisible_ms)
            rows.append((group, topic, queue_id, first, len(run.offsets), unacked, end))
    return _section("Ordered pops", "group, topic, queue, first offset, messages, not acked, invisible until", rows)


# ---------------------------------------------------------------- timers and pops


def _pending(survey: Survey) -> Section:
    pending, check = survey.pending, survey.small.timer_check
    timers, internal = pending.timers.tolist(), pending.internal.tolist()
    if check is None and not any(timers) and not any(internal):
        return Section(heading="Pending timers")
    rows: list[_Row] = [(label, *counts) for label, *counts in zip(LABELS, timers, internal, strict=True)]
    rows.append(("in all", sum(timers), sum(internal)))
    notes = ["Counted from the messages of the wheel's topic,"]
    if check is None:
        notes.append("without config/timercheck: those that are due may be delivered or not, and are left out.")
    else:
        notes.append("less those that config/timercheck says are delivered, those that were rolled on, and those that a cancel names.")
    if pending.cancels:
        notes.append(f"Cancels that wait: {pending.cancels}.")
    return _section("Pending timers, by due time", "due, timers, of pops", rows, " ".join(notes))


def _in_flight(survey: Survey) -> Section:
    rows: list[_Row] = [
        (each.group, each.topic, each.pops, each.messages, Moment(each.earliest_ms), Moment(each.latest_ms))
        for each in survey.popped.in_flight()
    ]
    note = "Check points that lack acks and, by consumerOffset.json, are not revived yet." if rows else ""
    return _section("Pops in flight", "group, topic, pops, messages, first ends, last ends", rows, note)


def _wheels(survey: Survey) -> Section:
    rows: list[_Row] = []
    for wheel in survey.wheels:
        used = int(wheel.used.sum()) if wheel.slots is not None else 0
        check = survey.wheel_check if survey.wheel_check is not None and survey.wheel_check.wheel is wheel else None
        waiting: _Row = (None, None) if check is None else (int(check.waiting.sum()), check.timers)
        rows.append((wheel.name, wheel.length, wheel.slot_count, used, *waiting))
    note = ""
    if rows:
        note = f"Precision {survey.precision[0]} ms, {survey.precision[1]}." if survey.precision else "Nothing tells the precision."
    return _section("Timer wheel", "file, bytes, slots, written, slots that wait, timers in them", rows, note)


def _timer_log(survey: Survey) -> Section:
    rows: list[_Row] = [
        (report.file.path.name, report.file.length, report.count, report.rolled, report.cancels, report.end, report.why)
        for report in survey.units.reports
    ]
    note = f"Units that wait and whose chain is broken: {survey.units.broken}." if survey.units.broken else ""
    return _section("Timer log", "file, bytes, units, to be rolled, cancels, units up to, where they end", rows, note)


def _metrics(survey: Survey) -> Section:
    metrics = survey.small.metrics
    counts = metrics.counts if metrics is not None else {}
    rows: list[_Row] = [(topic, each.count, _moment(each.changed_ms)) for topic, each in sorted(counts.items())]
    return _section("Timers by topic, as config/timermetrics estimates", "topic, timers, changed", rows)
