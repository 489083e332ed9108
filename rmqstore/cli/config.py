"""``rmqstore config``: the settings in effect, where each came from and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.options import JsonOption, StoreArgument, examples
from rmqstore.cli.show import Column
from rmqstore.cli.times import SECOND_MS, duration_text
from rmqstore.config import Config, load
from rmqstore.settings import CORE_SETTINGS, Source, allowed

_ORIGINS: Final = {Source.DEFAULT: "default", Source.STORED: "stored with the store"}


@examples("rmqstore config data", "rmqstore config data --explain", "RMQSTORE_FLUSH=async rmqstore config data --json")
def config(
    store: StoreArgument,
    explain: Annotated[bool, typer.Option("--explain", help="Also say what each setting means and takes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the settings of a store and where each came from.

    They are those that an open would use now. The command opens nothing, so it works on a store that is in use, on one whose engine is
    missing, and on a directory that is no store yet: then these are the settings of a store that would be made there. What the process that
    has a store open was started with is not seen.
    """
    settings = effective(store)
    is_new = not stores.is_store(store)
    if as_json:
        show.document({"path": str(store), "is_store": not is_new, "settings": [_document(settings, key) for key in shown_keys(settings)]})
        return
    if explain:
        for key in shown_keys(settings):
            setting = settings.known[key]
            show.line(Text.assemble((key, "bold"), f" = {_text(settings, key)}    ({_origin(settings, key)})"))
            show.line(f"    {setting.doc}")
            show.line(f"    Takes {allowed(setting)}." + (" Fixed when the store is made." if setting.baked else ""))
    else:
        rows = [[key, _text(settings, key), _origin(settings, key)] for key in shown_keys(settings)]
        show.table((Column("setting"), Column("value"), Column("from", long=True)), rows)
    show.note(
        f"There is no store in {store}; one that is made there has these settings."
        if is_new
        else "docs/configuration.md tells how to set them."
    )


def effective(path: Path) -> Config:
    """Return the settings that an open of ``path`` would use.

    Raises:
        ConfigError: a setting is wrong, or differs from what the store was made with.
        CorruptStoreError, FormatVersionError: the manifest cannot be read.
    """
    plugins = stores.plugins()
    settings = load(path, engine_settings=plugins.engine_settings())
    manifest = stores.manifest(path)
    return settings.with_default_engine(plugins.default_engine) if manifest is None else settings.with_stored(manifest["baked"], str(path))


def shown_keys(settings: Config) -> list[str]:
    """Return the keys of the framework's settings and of those of the engines in use."""
    core = {setting.key for setting in CORE_SETTINGS}
    in_use = {settings.timer_engine, settings.pop_engine}
    return [key for key in settings.known if key in core or key.partition(".")[0] in in_use]


def _text(settings: Config, key: str) -> str:
    """Return a value for people; a length of time also in the unit that suits it."""
    value = settings.values[key]
    if isinstance(value, bool):
        return str(value).lower()
    if key.endswith("_ms") and isinstance(value, int) and value >= SECOND_MS:
        return f"{value} ({duration_text(value)})"
    return str(value) if value != "" else "(empty)"


def _origin(settings: Config, key: str) -> str:
    origin = settings.origins[key]
    if key in ("timer_engine", "pop_engine") and origin.source is Source.DEFAULT:
        return "preferred one of the installed engines"
    return _ORIGINS.get(origin.source) or str(origin)


def _document(settings: Config, key: str) -> dict[str, Any]:
    setting, origin = settings.known[key], settings.origins[key]
    return {
        "key": key,
        "value": settings.values[key],
        "source": origin.source.name.lower(),
        "place": origin.place,
        "default": setting.default,
        "stored": setting.baked,
        "takes": allowed(setting),
        "meaning": setting.doc,
    }
