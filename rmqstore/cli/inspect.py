"""``rmqstore inspect``: what is in the files of a directory, read without opening them as a store."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import JsonOption, examples
from rmqstore.cli.show import Column
from rmqstore.cli.times import clock_and_relative, iso, time_option
from rmqstore.contract import Cell, Inspection, Inspector, Moment, Section
from rmqstore.errors import EngineLookupError, StorePathError
from rmqstore.plugins import EngineState, get_plugins
from rmqstore.spark.dataset import is_dataset
from rmqstore.store.opening import checked_path

_DAMAGE: Final = (
    Column("file", lambda damage: damage.file),
    Column("offset", lambda damage: "-" if damage.offset is None else str(damage.offset), right=True),
    Column("what", lambda damage: damage.what),
)


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
            show.note(_sum(looks))
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
    if is_dataset(path):
        stores.require(path)
    if manifest is None:
        inspectors = _inspectors()
        looks = [look for engine, inspector in inspectors.items() if (look := _looked(engine, inspector, path, now_ms)) is not None]
        if not looks:
            raise StorePathError(_unknown(directory, inspectors))
        return looks, []
    looks, passed_over = [], []
    for engine in dict.fromkeys(manifest["baked"][side] for side in ("timer_engine", "pop_engine")):
        inspector = get_plugins().load_inspector(engine)
        found = None if inspector is None else _looked(engine, inspector, path / engine, now_ms)
        if found is None:
            passed_over.append(engine)
        else:
            looks.append(found)
    return looks, passed_over


def _looked(engine: str, inspector: Inspector, path: Path, now_ms: int) -> _Look | None:
    found = inspector(path, now_ms)
    return None if found is None else _Look(engine, path, found)


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
            show.table(_columns(section), [[_text(cell, now_ms) for cell in row] for row in section.rows])
        if section.note:
            show.line(show.plain(section.note))
    if look.inspection.damage:
        show.line()
        show.line(Text("Damage", "bold red"))
        show.table(_DAMAGE, look.inspection.damage)


def _columns(section: Section) -> list[Column]:
    """Numbers go to the right; texts of any length may move to lines of their own."""
    return [
        Column(heading, right=all(cell is None or isinstance(cell, int) for cell in cells))
        for heading, cells in zip(section.columns, zip(*section.rows, strict=True), strict=True)
    ]


def _text(cell: Cell, now_ms: int) -> str:
    if isinstance(cell, Moment):
        return clock_and_relative(cell.ms, now_ms)
    return "-" if cell is None else str(cell)


def _sum(looks: list[_Look]) -> str:
    found = sum(len(look.inspection.damage) for look in looks)
    return f"{show.count(found, 'place')} damaged or not as expected." if found else "No damage was found."


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
                "rows": [{column: _plain(cell) for column, cell in zip(section.columns, row, strict=True)} for row in section.rows],
            }
            for section in inspection.sections
        ],
        "damage": [{"file": each.file, "offset": each.offset, "what": each.what} for each in inspection.damage],
    }


def _plain(cell: Cell) -> Any:
    return {"ms": cell.ms, "iso": iso(cell.ms)} if isinstance(cell, Moment) else cell
