"""The settings that a store was given by its own ``rmqstore.toml``: they go with it, since a retention decides what it keeps."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from rmqstore import config
from rmqstore.config import FILE_NAME
from rmqstore.plugins import get_plugins
from rmqstore.settings import Source, Value

_ENGINES = frozenset({"engine", "timer_engine", "pop_engine"})


def given_settings(store: Path) -> dict[str, Value]:
    """Return what ``rmqstore.toml`` in a store sets, by dotted key, without what is stored with the store anyway."""
    found = config.load(store, {}, get_plugins().engine_settings(), environ={})
    return {
        key: found.values[key]
        for key, origin in sorted(found.origins.items())
        if origin.source is Source.STORE_FILE and key not in _ENGINES and not found.known[key].baked
    }


def give_settings(store: Path, settings: Mapping[str, Value], engines: Collection[str]) -> None:
    """Write ``rmqstore.toml`` into a store that has none; settings of other engines than these are left out."""
    others = get_plugins().engine_settings().keys() - set(engines)
    kept = {key: value for key, value in settings.items() if key.partition(".")[0] not in others}
    file = store / FILE_NAME
    if kept and not file.exists():
        file.write_text(as_toml(kept), encoding="utf-8")


def as_toml(settings: Mapping[str, Value]) -> str:
    """Return settings by dotted key as a TOML file; a string of JSON is one of TOML, too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if "." not in key]
    for table in dict.fromkeys(key.rpartition(".")[0] for key in settings if "." in key):
        lines += ["", f"[{table}]"]
        lines += [f"{key.rpartition('.')[2]} = {json.dumps(value)}" for key, value in settings.items() if key.rpartition(".")[0] == table]
    return "\n".join([*lines, ""]).lstrip("\n")
