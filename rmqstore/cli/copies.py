"""``rmqstore verify``, ``snapshot``, ``restore``, ``dump``, ``load`` and ``migrate``: whether a store is sound, and copies of all of it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
import typer
from rich.progress import TaskID

from rmqstore.cli import show, stores
from rmqstore.cli.doctor import size
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import EngineOption, JsonOption, SettingsOption, StoreArgument, examples
from rmqstore.cli.times import duration_option
from rmqstore.errors import TransferError
from rmqstore.settings import CORE_SETTINGS, allowed
from rmqstore.store.directory import engines_in
from rmqstore.store.snapshots import restore as restore_snapshot

if TYPE_CHECKING:
    from rmqstore.transfer import DumpReport, LoadReport

PrecisionOption = Annotated[str | None, typer.Option("--precision", metavar="DURATION", help="Width of a tick in the new store, as 100ms.")]

_Report = TypeVar("_Report")
_Told: TypeAlias = Callable[[str, int, int], None]


@examples("rmqstore snapshot data backup-2026-12-01")
def snapshot(
    store: StoreArgument,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Directory of the copy, which must not exist yet.")],
) -> None:
    """Write a consistent copy of a store.

    The copy opens like any store. Where the store is shared or served, its owner writes it, and goes on meanwhile. That of a data set is
    one as well: each shard is as of its own moment, and no job is half done in it.
    """
    path, _ = _copied(store, dest, "copying", _take_snapshot)
    show.line(str(path))
    show.note(f"`rmqstore restore {path} DEST` makes a store of it.")


def _take_snapshot(store: Path, dest: Path) -> Path:
    with stores.owning(store) as opened:
        return opened.snapshot(dest)


def _copied(source: Path, dest: Path, doing: str, copy: Callable[[Path, Path], _Report], **changes: object) -> tuple[Path, list[_Report]]:
    """Copy a store, or a data set shard by shard, or make one of a copy; returns where it is, and the report on each store.

    Args:
        changes: of the manifest of a data set.
    """
    reports = []

    def copy_one(one: Path, to: Path) -> None:
        reports.append(copy(one, to))

    if stores.is_dataset(source):
        from rmqstore.spark.copies import copied
        from rmqstore.spark.dataset import Dataset

        dataset = Dataset.open(source)
        dest = copied(dataset, dest, doing, copy_one, msgspec.structs.replace(dataset.manifest, **changes))
    else:
        copy_one(source, dest)
    return dest, reports


@examples("rmqstore restore backup-2026-12-01 data")
def restore(
    snapshot: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="Directory of the snapshot; it stays as it is.")],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Directory of the store, which must not exist yet.")],
) -> None:
    """Make a store, or a data set, from a snapshot.

    It is the store that the snapshot was taken from, as of then: its receipts and handles count. Do not use both at the same time: each
    would deliver the same messages. An interrupted restore leaves no store, and is simply run again.
    """
    path, _ = _copied(snapshot, dest, "restoring", restore_snapshot)
    show.line(str(path))
    show.note(f"`rmqstore doctor {path} --deep` looks it over.")


@examples("rmqstore verify data", "rmqstore verify data --json")
def verify(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Read every record and recount every counter.

    Prints one line a difference; none when all is well. `rmqstore doctor` looks at what is around the store, too.
    """
    with stores.reading(store) as opened:
        differences = opened.verify()
    if as_json:
        show.document({"path": str(store), "is_well": not differences, "differences": differences})
    else:
        for difference in differences:
            show.line(show.plain(difference))
        show.note(f"{show.count(len(differences), 'difference')}." if differences else "Every record can be read, every counter is right.")
    if differences:
        raise typer.Exit(EXIT_NOT_DONE)


# ---------------------------------------------------------------- dumps


@examples("rmqstore dump data data.dump", "rmqstore dump data data.dump --resume")
def dump(
    store: StoreArgument,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Directory of the dump.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what an interrupted dump left in DEST.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write all that a store holds to Parquet files.

    The dump is one consistent state, made beside a program that has the store open where its engine can be opened for reading. That of a
    data set has a dump of each shard, and is made whole or not at all. docs/transfer.md tells what is in it.
    """
    from rmqstore import transfer  # it brings Parquet along
    from rmqstore.transfer.dumps import MANIFEST, PROGRESS

    if not stores.is_dataset(store):
        stores.require(store)
    elif resume:
        raise typer.BadParameter("an interrupted dump of a data set leaves nothing to go on with", param_hint="--resume")
    if not resume and (dest / PROGRESS).exists() and not (dest / MANIFEST).exists():
        raise TransferError(f"{dest} holds an interrupted dump; --resume goes on with it, or choose another directory")
    with _progress("dumping") as told:
        path, reports = _copied(store, dest, "dumping", functools.partial(transfer.dump, progress=told))
    tables, written, reused = _summed(reports), sum(each.bytes for each in reports), sum(each.reused_files for each in reports)
    if as_json:
        show.document({"path": str(path), "tables": tables, "bytes": written, "reused_files": reused})
        return
    _show_tables(tables)
    again = f", {show.count(reused, 'file')} of an earlier run used again" if reused else ""
    show.note(f"{path} has {size(written)}{again}; `rmqstore load {path} STORE` takes it in.")


def _summed(reports: Sequence[DumpReport | LoadReport]) -> dict[str, int]:
    """Return the rows by table that these reports tell of."""
    found: Counter[str] = Counter()
    for report in reports:
        found.update(report.tables)
    return dict(found)


@examples("rmqstore load data.dump copy", "rmqstore load data.dump copy --engine NAME")
def load(
    dump: Annotated[Path, typer.Argument(metavar="DUMP", help="Directory of the dump.")],
    store: StoreArgument,
    engine: EngineOption = None,
    precision: PrecisionOption = None,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a dump into an empty directory or store.

    All handles and receipts are still good in it; use only one of the two stores from then on. A store that holds anything is left as it
    is. The same command goes on after an interruption; of the dump of a data set, which becomes a new one, it begins again.
    """
    from rmqstore import transfer

    given = stores.parsed_settings(settings or ())
    if precision is not None:
        given["precision_ms"] = _precision_ms(precision)
    changes = _changes(dump, engine, given) if stores.is_dataset(dump) else {}
    with _progress("loading") as told:
        take = functools.partial(transfer.load, engine=engine, clock=stores.clock_factory(), progress=told, **given)
        path, reports = _copied(dump, store, "loading", take, **changes)
    _report(path, _summed(reports), None, as_json)


def _changes(dump: Path, engine: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is another in the manifest of a data set that is made of a dump with these settings."""
    from rmqstore.spark.dataset import Dataset, check_names_no_engine
    from rmqstore.spark.migrating import check_settings

    manifest = Dataset.open(dump).manifest
    check_names_no_engine(given)
    if engine is not None:
        check_settings(manifest, engine)
    return {"engine": engine or manifest.engine, "settings": {**manifest.settings, **given}}


@examples("rmqstore migrate data --engine NAME", "rmqstore migrate data --precision 100ms")
def migrate(store: StoreArgument, engine: EngineOption = None, precision: PrecisionOption = None, as_json: JsonOption = False) -> None:
    """Move a store to another engine or precision.

    The new store takes the place of the old one, which is kept beside it; handles, receipts and marks stay good. After an interruption the
    old or the new store is there, and the same command goes on.
    """
    from rmqstore import transfer

    if engine is None and precision is None:
        raise typer.BadParameter("say what to change: --engine, --precision, or both", param_hint="--engine")
    precision_ms = None if precision is None else _precision_ms(precision)
    with _progress("migrating") as told:
        report = transfer.migrate(store, engine=engine or _engine_of(store), precision_ms=precision_ms, progress=told)
    _report(report.path, report.tables, report.previous, as_json)


def _precision_ms(text: str) -> int:
    """Return the precision that was asked for, ms; one that no store has is a bad command line."""
    milliseconds = duration_option("--precision", text)
    setting = next(each for each in CORE_SETTINGS if each.key == "precision_ms")
    if milliseconds not in setting.choices:
        raise typer.BadParameter(f"{text!r} is no width of a tick; it may be {allowed(setting)} ms", param_hint="--precision")
    return milliseconds


def _engine_of(store: Path) -> str:
    """Return the one engine of a store, for a migration that changes the precision only."""
    stores.require(store)
    engine, *others = engines_in(stores.manifest(store) or {})
    if others:
        raise typer.BadParameter(f"{store} has two engines, {engine} and {others[0]}; name the one it shall have", param_hint="--engine")
    return engine


def _report(path: Path, tables: Mapping[str, int], previous: Path | None, as_json: bool) -> None:
    if as_json:
        show.document({"path": str(path), "tables": dict(tables), "previous": None if previous is None else str(previous)})
        return
    _show_tables(tables)
    if previous is not None:
        show.note(f"The store that was there before is now {previous}; remove it when all is well.")
    show.note(f"`rmqstore doctor {path} --deep` looks the new one over.")


def _show_tables(tables: Mapping[str, int]) -> None:
    show.table({"table": name, "rows": number} for name, number in tables.items() if number)


@contextmanager
def _progress(what: str) -> Iterator[_Told]:
    """Show a bar for each table; gives what the transfer tells the table, its rows done and in all."""
    tasks: dict[str, TaskID] = {}
    with show.progress(f"{what} {{task.description}}", "{task.completed:,} rows") as progress:

        def tell(table: str, done: int, total: int) -> None:
            if table not in tasks:
                tasks[table] = progress.add_task(table, total=total or None)
            progress.update(tasks[table], completed=done, total=total or None)

        yield tell
