"""``rmqstore doctor`` and ``inspect``: a store and what it needs, one line a check; and what is in its files, read as they lie."""

from __future__ import annotations

import enum
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.engines import effective
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import JsonOption, StoreArgument, examples
from rmqstore.cli.times import MINUTE_MS, clock_and_relative, clock_time, iso, relative, span, time_option
from rmqstore.contract import Cell, Damage, Inspection, Inspector, Moment
from rmqstore.errors import EngineLookupError, RmqstoreError, StoreLockedError, StorePathError
from rmqstore.message import DLQ_PREFIX, PARKED_TOPIC
from rmqstore.plugins import EngineState, get_plugins
from rmqstore.store.directory import MANIFEST_NAME, engines_in, process_start, room_of
from rmqstore.store.opening import checked_path
from rmqstore.store.pauses import Flow
from rmqstore.store.reader import Reader

_LEAST_FREE_BYTES: Final = 64 * 1024 * 1024
_SANE_FROM_MS: Final = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 1000
_COUNTED: Final = 10_000
"""Dead letters are counted so far."""

_CLOCK_SLACK_MS: Final = MINUTE_MS
_TIMER_SLACK_MS: Final = MINUTE_MS
"""How late an owner may be before that is a warning: it delivers tick by tick, so some timer is nearly always a little late."""

_HOLDER: Final = re.compile(r"pid (\d+), started (\S+)")


class Level(enum.Enum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


class Finding(msgspec.Struct, frozen=True):
    """What one check found, and what to do about it."""

    check: str
    level: Level
    text: str


@examples("rmqstore doctor data", "rmqstore doctor data --deep", "rmqstore doctor spark-data --finish")
def doctor(
    store: StoreArgument,
    deep: Annotated[bool, typer.Option("--deep", help="Also read every record and recount every counter; takes a while.")] = False,
    finish: Annotated[bool, typer.Option("--finish", help="Of a data set: first bring what is half done to its end.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Of a data set: first take back what is half done, as far as nothing was sent.")
    ] = False,
    drop_job: Annotated[str | None, typer.Option(metavar="ID", help="Of a data set: first give a job up that cannot be finished.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a store and what it needs.

    That is engines, lock, files, settings, disk room, clock, and what waits in the store. Each check is one line: ok, warning, or problem
    with what to do. A store that is in use is looked at beside its owner, where its engine can do that.

    Of a data set that Spark wrote every shard is checked. Jobs, migrations and reshardings that were interrupted are named, finished or
    undone, and jobs that cannot be finished given up. The consumers of streams are named, with what they popped last.
    """
    if finish or undo or drop_job is not None:
        _repair(store, finish=finish, undo=undo, drop_job=drop_job)
    findings: list[Finding] = []
    for finding in examine(store, deep=deep):
        findings.append(finding)
        if not as_json:
            level = Text(finding.level.value.ljust(7), _STYLES[finding.level])
            show.line(Text.assemble(level, "  ", (finding.check.ljust(9), "bold"), "  ", show.plain(finding.text)))
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if as_json:
        checks = [{"check": each.check, "level": each.level.value, "text": each.text} for each in findings]
        show.document({"path": str(store), "is_well": not counts[Level.PROBLEM], "checks": checks})
    else:
        parts = [show.count(counts[level], level.value) for level in (Level.PROBLEM, Level.WARNING) if counts[level]]
        show.note(f"{' and '.join(parts)}." if parts else "All is well.")
    if counts[Level.PROBLEM]:
        raise typer.Exit(EXIT_NOT_DONE)


def _repair(path: Path, *, finish: bool, undo: bool, drop_job: str | None) -> None:
    """Finish, undo or give up what is half done in a data set, and say on stderr what was done."""
    if finish + undo + (drop_job is not None) > 1:
        raise typer.BadParameter("choose one of --finish, --undo and --drop-job", param_hint="--finish")
    from rmqstore.spark import repair

    dataset = repair.opened(path)
    if drop_job is not None:
        sentences = repair.drop_job(dataset, drop_job)
    else:
        sentences = repair.finish(dataset) if finish else repair.undo(dataset)
    for sentence in sentences:
        show.note(f"{sentence[0].upper()}{sentence[1:]}.")


def examine(path: Path, *, deep: bool) -> Iterator[Finding]:
    """Do every check that makes sense for what ``path`` is."""
    if stores.is_dataset(path):
        yield from _dataset(path, deep=deep)
        return
    in_use = _engines_of(path)
    yield from _plugins(in_use)
    yield from _directory(path)
    yield from _beside(path)
    if not stores.is_store(path):
        return
    yield _lock(path)
    yield from _files(path, in_use)
    yield _settings(path)
    yield _disk(path)
    yield _clock(path)
    yield from _inside(path, deep=deep)


def _dataset(path: Path, *, deep: bool) -> Iterator[Finding]:
    """Check a data set as such, then each of its shards; of a shard that is well, only the sum is told."""
    from rmqstore.spark import repair
    from rmqstore.spark.dataset import Dataset

    try:
        dataset = Dataset.open(path)
    except (RmqstoreError, OSError) as error:
        yield Finding("data set", Level.PROBLEM, f"{error}; the shards below it are stores of their own")
        return
    manifest = dataset.manifest
    yield Finding("data set", Level.OK, f"{show.count(manifest.shards, 'shard')} of engine {manifest.engine}, id {manifest.id}")
    for trouble in repair.troubles(dataset):
        yield Finding(trouble.check, Level.PROBLEM if trouble.is_problem else Level.WARNING, trouble.text)
    for consumer in repair.consumers(dataset):
        is_bad, text = consumer.round > 0 and consumer.receipt is None, f"consumer {consumer.path.name} has popped nothing yet"
        if (first := consumer.receipt) is not None:
            when = relative(first.pop_time_ms, stores.now_ms())
            text = f"consumer {consumer.path.name} of group {first.group} popped round {consumer.round} of topic {first.topic} {when}"
        elif is_bad:
            text = f"round {consumer.round} of consumer {consumer.path.name} cannot be read"
        given_up = f"whether it goes on, its checkpoint alone tells; when that is given up, remove {consumer.path}"
        yield Finding("streams", Level.WARNING if is_bad else Level.OK, f"{text}; {given_up}")
    well = 0
    for shard in dataset.present():
        bad = [each for each in examine(dataset.shard_path(shard), deep=deep) if each.level is not Level.OK]
        well += not bad
        for each in bad:
            yield Finding(each.check, each.level, f"shard {shard}: {each.text}")
    yield Finding("shards", Level.OK, f"all is well in {well} of {manifest.shards}")


def _engines_of(path: Path) -> set[str]:
    """Return the engines that the store was made with; none when that cannot be told."""
    with suppress(RmqstoreError, OSError):
        manifest = stores.manifest(path)
        if manifest is not None:
            return set(engines_in(manifest))
    return set()


def _plugins(in_use: set[str]) -> Iterator[Finding]:
    entries = stores.plugins().engines()
    names = {entry.name for entry in entries}
    for name in sorted(in_use - names):
        yield Finding("plug-ins", Level.PROBLEM, f"the store needs engine {name}, which nothing here offers; install its distribution")
    for entry in entries:
        if entry.state is not EngineState.OK and (entry.name in in_use or entry.state is EngineState.BROKEN):
            level = Level.PROBLEM if entry.name in in_use else Level.WARNING
            yield Finding("plug-ins", level, f"engine {entry.name} of {entry.distribution} is {entry.state.value}: {entry.reason}")
    good = [f"{entry.name} {entry.version}" for entry in entries if entry.state is EngineState.OK]
    if good:
        yield Finding("plug-ins", Level.OK, f"engines that work: {', '.join(good)}")
    else:
        yield Finding("plug-ins", Level.PROBLEM, "no engine works here; install one, for example: pip install 'rmqstore[all]'")


def _directory(path: Path) -> Iterator[Finding]:
    try:
        manifest = stores.manifest(path)
    except (RmqstoreError, OSError) as error:
        yield Finding("store", Level.PROBLEM, f"{error}; restore the store from a snapshot or a dump")
        return
    if manifest is None:
        what = "is no store" if path.exists() else "does not exist"
        yield Finding("store", Level.PROBLEM, f"{path} {what}; `rmqstore send` and `rmqstore serve` make one with --create")
        return
    engines = " + ".join(engines_in(manifest))
    yield Finding("store", Level.OK, f"format {manifest['format']}, store id {manifest['store_id']:08x}, engine {engines}")


def _beside(path: Path) -> Iterator[Finding]:
    """Say what a load or a migration has left beside the place, as long as none came to its end."""
    from rmqstore.transfer.replacing import Replacement

    place = path.resolve()
    for doing, what in (("loading", "load"), ("migrating", "migration")) if place.name else ():
        replacement = Replacement(place, doing)
        if replacement.noted() is not None:
            beside, is_old = replacement.staging, replacement.is_in_place()
            text = f"{beside} is {'what was there before' if is_old else 'of'} a {what} that runs, or was interrupted"
            end = "comes to its end" if is_old else f"goes on; to give it up, remove it and {beside.name}.json"
            yield Finding(what, Level.WARNING, f"{text}; the same one, begun again, {end}")


def _lock(path: Path) -> Finding:
    holder = stores.holder(path)
    if holder is None:
        return Finding("lock", Level.OK, "nobody has the store open: timers and retries wait until somebody opens it")
    match = _HOLDER.fullmatch(holder)
    if match is None:
        return Finding("lock", Level.WARNING, "somebody has the store open, but the file LOCK does not say who")
    started = process_start(match[1])
    if started == match[2]:
        return Finding("lock", Level.OK, f"process {match[1]} has the store open, and is alive")
    why = "there is no such process here" if started is None else "that process id belongs to another process by now"
    return Finding(
        "lock", Level.WARNING, f"the store is locked by process {match[1]}, but {why}; a child of it or another container may hold it"
    )


def _files(path: Path, in_use: set[str]) -> Iterator[Finding]:
    for engine in sorted(in_use):
        files, taken = room_of(path / engine)
        if files:
            yield Finding("files", Level.OK, f"{engine}: {show.count(files, 'file')}, {size(taken)}")
        else:
            yield Finding("files", Level.PROBLEM, f"{path / engine} holds no files of engine {engine}; restore the store from a snapshot")


def _settings(path: Path) -> Finding:
    try:
        settings = effective(path)
    except RmqstoreError as error:
        return Finding("settings", Level.PROBLEM, str(error))
    given = [key for key in settings.values if settings.is_given(key)]
    what = f"given: {', '.join(given)}" if given else "all at their defaults or stored with the store"
    return Finding("settings", Level.OK, f"{what}; `rmqstore config {path}` shows them")


def _disk(path: Path) -> Finding:
    _, used = room_of(path)
    free = shutil.disk_usage(path).free
    text = f"{size(free)} free, the store takes {size(used)}"
    if not os.access(path, os.W_OK):
        what = "nothing can be written here: the file system is mounted read-only, or this user may not; readers work"
        return Finding("disk", Level.WARNING, f"{what}, timers and retries wait until somebody opens the store where it can be written")
    if free < _LEAST_FREE_BYTES:
        return Finding("disk", Level.PROBLEM, f"{text}; free some space, or calls will be refused with StoreFullError")
    if free < used:
        return Finding("disk", Level.WARNING, f"{text}: too little for a snapshot or a migration on this disk")
    return Finding("disk", Level.OK, text)


def _clock(path: Path) -> Finding:
    now_ms = stores.now_ms()
    if now_ms < _SANE_FROM_MS:
        return Finding("clock", Level.PROBLEM, f"the clock says {clock_time(now_ms)}; set it, or timers come at the wrong time")
    found = (_status(entry) for entry in (path / MANIFEST_NAME, *path.glob("*/*")))
    newest_ms = max((status.st_mtime_ns // 1_000_000 for status in found if status), default=0)
    if newest_ms > now_ms + _CLOCK_SLACK_MS:
        what = f"the clock says {clock_time(now_ms)}, but the store was written {relative(newest_ms, now_ms)}"
        return Finding("clock", Level.WARNING, f"{what}; it was set back, or was ahead then")
    return Finding("clock", Level.OK, clock_time(now_ms))


def _inside(path: Path, *, deep: bool) -> Iterator[Finding]:
    try:
        with stores.reading(path) as opened:
            yield from _contents(opened)
            if deep:
                differences = opened.verify()
                for difference in differences:
                    yield Finding("verify", Level.PROBLEM, difference)
                if not differences:
                    yield Finding("verify", Level.OK, "every record can be read, every counter is right")
    except StoreLockedError as error:
        yield Finding("contents", Level.WARNING, f"not looked at: {error}")
    except (RmqstoreError, OSError) as error:
        yield Finding("contents", Level.PROBLEM, f"the store cannot be read: {error}")


def _contents(store: Reader) -> Iterator[Finding]:
    now_ms = stores.now_ms()
    stats = store.stats()
    messages = f"{show.count(stats.pops.messages, 'message')} in {show.count(stats.pops.topics, 'topic')}"
    waiting = f"{show.count(stats.timers.pending, 'timer')}, {show.count(stats.pops.in_flight, 'lease')}"
    yield Finding("contents", Level.OK, f"{messages}, {waiting}")
    pauses = {each.flow: each for each in store.pauses.list()}
    for flow, pause in pauses.items():
        yield Finding("pause", Level.WARNING, f"{pause}; `rmqstore resume {store.path} {flow.value}` ends that")
    pending = store.pending((0, max(now_ms, 1)))
    if pending.counts[0] and pending.earliest_ms is not None:
        late_ms = now_ms - pending.earliest_ms
        late = f"{show.count(pending.counts[0], 'timer')} overdue, the first by {span(late_ms)}"
        if Flow.HAND_OVER in pauses:
            yield Finding("timers", Level.WARNING, f"{late}; they wait for the end of the pause")
        elif late_ms < _TIMER_SLACK_MS and stores.holder(store.path) is not None:
            yield Finding("timers", Level.OK, f"{late}; the program that has the store open is about to deliver them")
        else:
            yield Finding("timers", Level.WARNING, f"{late}; they are delivered when a program opens the store with its services")
    for info in store.topics.list(system=True):
        kept = sum(info.max_offsets) - sum(info.min_offsets)
        group = info.name.removeprefix(DLQ_PREFIX)
        if kept and info.name == PARKED_TOPIC and store.dead_letters.parked(limit=1):
            what = "entries were parked since they could not be read"
            yield Finding("parked", Level.WARNING, f"{what}; `rmqstore dlq list {store.path} --parked`")
        elif kept and group != info.name and (dead := len(store.dead_letters.list(group, limit=_COUNTED))):
            what = f"group {group} gave up {show.count(dead, 'message')}{' or more' if dead == _COUNTED else ''}"
            yield Finding("dead", Level.WARNING, f"{what}; `rmqstore dlq list {store.path} {group}` shows why")
    for each in store.groups.subscriptions():
        if expired := store.lag(each.topic, each.group).expired:
            took = f"retention took {show.count(expired, 'message')} of topic {each.topic} before group {each.group} had popped them"
            yield Finding("retention", Level.WARNING, f"{took}; `rmqstore config {store.path}` shows retention_ms, where 0 is no age limit")


def _status(path: Path) -> os.stat_result | None:
    """Return what the system says of a file; None when it was removed meanwhile."""
    try:
        return path.stat()
    except OSError:
        return None


def size(number: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


# ---------------------------------------------------------------- inspect


_MISSING: Final = Inspection(title="a store's directory without its files", damage=(Damage(".", None, "its files are missing"),))
"""What is found in a store where the inspector of its own engine knows nothing."""


class _Look(msgspec.Struct, frozen=True):
    """What the inspector of ``engine`` found in ``path``."""

    engine: str
    path: Path
    inspection: Inspection


@examples("rmqstore inspect data", "rmqstore inspect ~/store --at 2026-12-01T08:00", "rmqstore inspect ~/store --json")
def inspect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a store, or any whose files an engine knows.")],
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Count due times from then; now by default.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Look into files, and name what is damaged.

    The files are read as they lie, beside whoever owns them; nothing is written, locked or opened as a store. DIR may also be the store of
    another program that keeps files in the formats of an installed engine, such as a RocketMQ 5 broker.
    """
    now_ms = stores.now_ms() if at is None else time_option("--at", at)
    looks, passed_over = _look(directory, now_ms)
    is_well = not any(look.inspection.damage for look in looks)
    if as_json:
        inspections = [_document(look) for look in looks]
        head: dict[str, Any] = {"path": str(directory), **show.times_document(now=now_ms), "is_well": is_well}
        show.document({**head, "inspections": inspections, "passed_over": passed_over})
    else:
        for look in looks:
            _print(look, now_ms)
        for engine in passed_over:
            show.note(f"Engine {engine} keeps nothing that can be told file by file; `rmqstore doctor {directory} --deep` looks inside.")
        if looks:
            found = sum(len(look.inspection.damage) for look in looks)
            show.note(f"{show.count(found, 'place')} damaged or not as expected." if found else "No damage was found.")
    if not is_well:
        raise typer.Exit(EXIT_NOT_DONE)


def _look(directory: Path, now_ms: int) -> tuple[list[_Look], list[str]]:
    """Look at every engine's directory of a store, or at what is no store with every inspector; also return the engines passed over.

    Raises:
        StorePathError: there is no such directory, or its files are unknown.
    """
    path = checked_path(directory)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise StorePathError(f"{directory} {what}; name the directory of a store")
    manifest = stores.manifest(path)
    if manifest is None:
        if stores.is_dataset(path):
            stores.require(path)
        asked: dict[str, tuple[Inspector | None, Path]] = {engine: (inspector, path) for engine, inspector in _inspectors().items()}
    else:
        asked = {engine: (get_plugins().load_inspector(engine), path / engine) for engine in engines_in(manifest)}
    found = {engine: None if inspector is None else inspector(place, now_ms) for engine, (inspector, place) in asked.items()}
    if manifest is not None:
        found |= {engine: _MISSING for engine, (inspector, _) in asked.items() if inspector is not None and found[engine] is None}
    looks = [_Look(engine, asked[engine][1], inspection) for engine, inspection in found.items() if inspection is not None]
    if manifest is None and not looks:
        raise StorePathError(_unknown(directory, asked))
    return looks, [] if manifest is None else [engine for engine, inspection in found.items() if inspection is None]


def _inspectors() -> dict[str, Inspector]:
    """Return those that can be asked about any directory, by engine; one that is broken is left out with a remark."""
    found: dict[str, Inspector] = {}
    for entry in get_plugins().engines():
        if entry.state is EngineState.OK and entry.info is not None and entry.info.inspector:
            try:
                inspector = get_plugins().load_inspector(entry.name)
            except EngineLookupError as error:
                show.note(f"Not asked: {error}")
            else:
                found |= {entry.name: inspector} if inspector is not None else {}
    return found


def _unknown(directory: Path, asked: Collection[str]) -> str:
    if not any(directory.iterdir()):
        return f"{directory} is empty; name the directory of a store"
    who = f"none of the engines that could ({', '.join(asked)}) knows its files" if asked else "no engine here can look at other files"
    return f"{directory} is no store, and {who}; name the directory that holds the store's files, not one above or below it"


# ---------------------------------------------------------------- showing


def _print(look: _Look, now_ms: int) -> None:
    show.line(Text.assemble((show.plain(look.inspection.title), "bold"), f"  ({look.path}, by engine {look.engine})"))
    for section in look.inspection.sections:
        show.line()
        show.line(Text(show.plain(section.heading), "bold underline"))
        if section.rows:
            columns = zip(section.columns, zip(*section.rows, strict=True), strict=True)
            numbers = [heading for heading, cells in columns if all(isinstance(cell, int | None) for cell in cells)]
            texts = ([_text(cell, now_ms) for cell in row] for row in section.rows)
            show.table((dict(zip(section.columns, row, strict=True)) for row in texts), right=numbers)
        if section.note:
            show.line(show.plain(section.note))
    if damage := look.inspection.damage:
        show.line()
        show.line(Text("Damage", "bold red"))
        show.table(
            ({name: _text(cell, now_ms) for name, cell in msgspec.structs.asdict(each).items()} for each in damage), right=["offset"]
        )


def _text(cell: Cell, now_ms: int) -> str:
    if isinstance(cell, Moment):
        return clock_and_relative(cell.ms, now_ms)
    return "-" if cell is None else str(cell)


def _document(look: _Look) -> dict[str, Any]:
    inspection = look.inspection
    return {
        "engine": look.engine,
        "path": str(look.path),
        "title": inspection.title,
        "sections": [
            {
                "heading": section.heading,
                "note": section.note,
                "rows": [dict(zip(section.columns, map(_plain, row), strict=True)) for row in section.rows],
            }
            for section in inspection.sections
        ],
        "damage": [msgspec.structs.asdict(each) for each in inspection.damage],
    }


def _plain(cell: Cell) -> Any:
    return {"ms": cell.ms, "iso": iso(cell.ms)} if isinstance(cell, Moment) else cell
