"""``rmqstore engines``: which engines there are, whether they work, and what they can do."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.options import examples
from rmqstore.cli.show import Cell, Column
from rmqstore.contract import UNLIMITED_MS, Capabilities, Flush, Setting, Support
from rmqstore.plugins import EngineEntry, EngineState

_STYLES = {EngineState.OK: "green", EngineState.NOT_INSTALLED: "yellow", EngineState.BROKEN: "red"}
_COLUMNS: Final = (
    Column("engine"),
    Column("distribution"),
    Column("version"),
    Column("state"),
    Column("survives (sync / async)", long=True),
    Column("horizon"),
    Column("not there", long=True),
)


@examples("rmqstore engines", "rmqstore engines --json")
def engines(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that is known, as one JSON document.")] = False,
) -> None:
    """List the storage engines and what each declares.

    It tells where each comes from and whether it can be opened. Works also when plug-ins are broken, and says what to do about them.
    """
    entries = stores.plugins().engines()
    if as_json:
        typer.echo(json.dumps([_document(entry) for entry in entries], indent=2))
        return
    if not entries:
        show.line("No engine is installed. For example: pip install 'rmqstore[all]'")
        return
    show.table(_COLUMNS, [_row(entry) for entry in entries])
    for entry in entries:
        if entry.reason:
            show.line()
            show.line(Text.assemble((f"{entry.name} ", "bold"), (entry.state.value, _STYLES[entry.state]), f": {entry.reason}"))


def _row(entry: EngineEntry) -> list[Cell]:
    declared = _declared(entry.info.capabilities) if entry.info else ("", "", "")
    return [entry.name, entry.distribution, entry.version, Text(entry.state.value, _STYLES[entry.state]), *declared]


def _declared(capabilities: Capabilities) -> tuple[str, str, str]:
    """Return the weakest durability under each flush setting, the horizon, and the absent capabilities."""
    survives = " / ".join(min(capabilities.durability[flush].values()).name.lower().replace("_", " ") for flush in Flush)
    horizon = "unlimited" if capabilities.horizon_ms >= UNLIMITED_MS else f"{capabilities.horizon_ms} ms"
    absent = [name.replace("_", " ") for name, value in _fields(capabilities) if isinstance(value, Support) and value is not Support.FULL]
    return survives, horizon, ", ".join(absent) or "-"


def _document(entry: EngineEntry) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "state": entry.state.value,
        "reason": entry.reason,
    }
    if entry.info:
        info = entry.info
        document |= {
            "api_version": info.api_version,
            "preference": info.preference,
            "requires": list(info.requires),
            "install_hint": info.install_hint,
            "capabilities": {name: _plain(value) for name, value in _fields(info.capabilities)},
            "settings": [_setting(setting) for setting in info.settings],
        }
    return document


def _setting(setting: Setting) -> dict[str, Any]:
    return {name: value.__name__ if isinstance(value, type) else value for name, value in _fields(setting)}


def _fields(struct: msgspec.Struct) -> list[tuple[str, Any]]:
    return [(name, getattr(struct, name)) for name in struct.__struct_fields__]


def _plain(value: Any) -> Any:
    """Return ``value`` in JSON's terms: a durability by its name, other enum members by their value."""
    if isinstance(value, dict):
        return {key.value: {operation.value: level.name for operation, level in table.items()} for key, table in value.items()}
    return value.value if isinstance(value, Enum) else value
