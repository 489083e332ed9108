"""Settings of a store: where they come from, and what they are.

Sources, a later one wins: defaults, ``rmqstore.toml`` in the store directory, the TOML file that ``RMQSTORE_CONFIG`` names, environment
variables ``RMQSTORE_*``, keyword arguments. The key ``clock.max_step_ms`` is ``max_step_ms`` in the TOML table ``[clock]``,
``RMQSTORE_CLOCK__MAX_STEP_MS`` in the environment, and ``clock__max_step_ms`` as a keyword. Engine settings work alike, the engine's
name being the table. *Baked* settings are stored with the store when it is made; later they may be left out, but not changed.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from rmqstore.contract import Setting
from rmqstore.errors import NO_ROOM, ConfigError, system_error
from rmqstore.settings import CORE_SETTINGS, DEFAULT, RESERVED_NAMES, CoreSettings, Origin, Source, Value, checked, known_settings, parsed

FILE_NAME = "rmqstore.toml"
VARIABLE_PREFIX = "RMQSTORE_"
CONFIG_VARIABLE = "RMQSTORE_CONFIG"
CONTROL_VARIABLES = frozenset({CONFIG_VARIABLE, "RMQSTORE_STRICT_PLUGINS"})
"""Variables of the prefix that are no settings."""

ENGINE_KEYS = frozenset({"engine", "timer_engine", "pop_engine"})
"""The settings that name engines."""

_Found = Mapping[str, tuple[Value, Origin]]


class Config(CoreSettings, frozen=True, kw_only=True):
    """The settings of one store; docs/configuration.md describes them.

    Attributes:
        values: every setting, engines' included, by dotted key.
        origins: where each of them came from.
        known: their declarations.
    """

    values: Mapping[str, Value]
    origins: Mapping[str, Origin]
    known: Mapping[str, Setting]

    def engine_options(self, name: str) -> dict[str, Value]:
        """Return the settings of engine ``name``, without its prefix; empty when it has none."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}

    def is_given(self, key: str) -> bool:
        """Say whether ``key`` was set by somebody, rather than left at its default or taken from the store."""
        return self.origins[key].source not in (Source.DEFAULT, Source.STORED)

    def with_default_engine(self, choose: Callable[[], str]) -> Config:
        """Return a config in which both engines are named; ``choose`` is called when one is not."""
        unnamed = [key for key in ("timer_engine", "pop_engine") if not self.values[key]]
        if not unnamed:
            return self
        return _built({**self.values, **dict.fromkeys(unnamed, choose())}, self.origins, self.known)

    def baked(self) -> dict[str, Value]:
        """Return what must be stored with a new store: the baked settings of the framework and of the two engines."""
        in_use = {self.timer_engine, self.pop_engine}
        core = {setting.key for setting in CORE_SETTINGS}
        return {
            key: self.values[key] for key, setting in self.known.items() if setting.baked and (key in core or key.split(".")[0] in in_use)
        }

    def with_stored(self, stored: Mapping[str, object], store: str) -> Config:
        """Return a config that takes the baked settings from ``stored``, what :meth:`baked` gave when ``store`` was made.

        Keys of ``stored`` that are unknown by now are left alone.

        Raises:
            ConfigError: a setting was given and differs, or the stored value is not one that the setting takes.
        """
        values, origins = dict(self.values), dict(self.origins)
        for key, setting in self.known.items():
            if not setting.baked or key not in stored:
                continue
            origin = Origin(Source.STORED, store)
            kept = checked(setting, stored[key], origin)
            if self.is_given(key) and values[key] != kept:
                raise ConfigError(
                    f"store {store} was made with {key} = {kept!r}, which cannot change, and {origins[key]} gives {values[key]!r}; "
                    "leave it out, or use another directory"
                )
            values[key], origins[key] = kept, origin
        return _built(values, origins, self.known)


def load(
    directory: str | os.PathLike[str],
    keywords: Mapping[str, object] | None = None,
    engine_settings: Mapping[str, Sequence[Setting]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read and check all sources.

    Args:
        directory: the store directory; it and its ``rmqstore.toml`` need not exist.
        keywords: keyword arguments of ``rmqstore.open``; one that is None counts as not given.
        engine_settings: the settings of every known engine, by its name, whether in use or not.
        environ: the environment; by default that of the process. An empty variable counts as not set.

    Raises:
        ConfigError: something is unknown, of the wrong type or out of range, or a file cannot be read; the message says where it stands.
        StoreFullError: a file cannot be opened, since the process has no descriptor left (F1).
    """
    environ = os.environ if environ is None else environ
    engine_settings = engine_settings or {}
    known = known_settings(engine_settings)
    tables = {key.rpartition(".")[0] for key in known if "." in key} | set(engine_settings)

    values = {key: setting.default for key, setting in known.items()}
    origins = dict.fromkeys(known, DEFAULT)
    layers = [
        _from_file(Path(directory, FILE_NAME), Source.STORE_FILE, known, tables),
        _from_named_file(environ.get(CONFIG_VARIABLE, ""), known, tables),
        _from_environment(environ, known),
        _from_keywords(keywords or {}, known),
    ]
    for layer in layers:
        for key, (value, origin) in layer.items():
            values[key], origins[key] = value, origin
    for key in ("timer_engine", "pop_engine"):
        if not values[key]:
            values[key], origins[key] = values["engine"], origins["engine"]
    return _built(values, origins, known)


_DECLARED: Final = {
    setting.key: (field.name, type(field.default)) for field, setting in zip(structs.fields(CoreSettings), CORE_SETTINGS, strict=True)
}
"""By key: the attribute that holds a setting of the framework, and its type."""


def _built(values: Mapping[str, Value], origins: Mapping[str, Origin], known: Mapping[str, Setting]) -> Config:
    fields: dict[str, Any] = {name: kind(values[key]) for key, (name, kind) in _DECLARED.items()}
    return Config(
        **fields,
        values=MappingProxyType(dict(values)),
        origins=MappingProxyType(dict(origins)),
        known=MappingProxyType(dict(known)),
    )


# ---------------------------------------------------------------- the sources


def _from_named_file(path: str, known: Mapping[str, Setting], tables: set[str]) -> _Found:
    if not path:
        return {}
    if not Path(path).exists():
        raise ConfigError(f"environment variable {CONFIG_VARIABLE} names {path}, which does not exist")
    return _from_file(Path(path), Source.CONFIG_FILE, known, tables)


def _from_file(path: Path, source: Source, known: Mapping[str, Setting], tables: set[str]) -> _Found:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if error.errno in NO_ROOM:
            raise system_error(error, path) from error
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    origin = Origin(source, str(path))
    return {key: (checked(known[key], value, origin), origin) for key, value in _flattened(content, "", known, tables, origin)}


def _flattened(
    table: Mapping[str, object], prefix: str, known: Mapping[str, Setting], tables: set[str], origin: Origin
) -> Iterator[tuple[str, object]]:
    """Yield dotted key and value of all that a TOML table holds; ConfigError at the first unknown name."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        if "." in name:
            raise ConfigError(f"{origin}: the name {name!r} holds a dot; write a table, without quotes")
        if isinstance(value, dict) and key not in known:
            if not any(other == key or other.startswith(f"{key}.") for other in tables):
                listed = ", ".join(f"[{each}]" for each in sorted(tables))
                raise ConfigError(f"{origin}: {_unknown(f'table [{key}]', key, tables)}; known tables: {listed or 'none'}")
            yield from _flattened(value, f"{key}.", known, tables, origin)
        elif key in known:
            yield key, value
        elif key in tables:
            raise ConfigError(f"{origin}: {key} is a table; write [{key}] and its settings below")
        else:
            raise ConfigError(f"{origin}: {_unknown(f'setting {key}', key, known)}")


def _from_environment(environ: Mapping[str, str], known: Mapping[str, Setting]) -> _Found:
    variables = {VARIABLE_PREFIX + key.upper().replace(".", "__"): key for key in known}
    found: dict[str, tuple[Value, Origin]] = {}
    for variable, text in environ.items():
        if not variable.startswith(VARIABLE_PREFIX) or variable in CONTROL_VARIABLES or not text:
            continue
        origin = Origin(Source.ENVIRONMENT, variable)
        if variable not in variables:
            raise ConfigError(_unknown(str(origin), variable, variables))
        key = variables[variable]
        found[key] = (parsed(known[key], text, origin), origin)
    return found


def _from_keywords(keywords: Mapping[str, object], known: Mapping[str, Setting]) -> _Found:
    names = {key.replace(".", "__"): key for key in known}
    found: dict[str, tuple[Value, Origin]] = {}
    for name, value in keywords.items():
        origin = Origin(Source.KEYWORD, name)
        if name not in names:
            raise ConfigError(_unknown(str(origin), name, names))
        if value is not None:
            found[names[name]] = (checked(known[names[name]], value, origin), origin)
    return found


def keyword_of(key: str, text: str, place: str, known: Mapping[str, Setting]) -> dict[str, Value]:
    """Return a setting that was given as a text at ``place``, such as an option, as a keyword of ``rmqstore.open``.

    Raises:
        ConfigError: its key is unknown, or its value is none of what the setting takes.
    """
    if key not in known:
        raise ConfigError(f"{place}: {_unknown(f'setting {key}', key, known)}")
    return {key.replace(".", "__"): parsed(known[key], text, Origin(Source.KEYWORD, place))}


# ---------------------------------------------------------------- the file in a store


def given_settings(store: Path, engine_settings: Mapping[str, Sequence[Setting]]) -> dict[str, Value]:
    """Return what ``rmqstore.toml`` in a store sets, by dotted key, without what is stored with the store anyway.

    It goes with a store that is copied or moved, since a retention decides what it keeps.
    """
    found = load(store, {}, engine_settings, environ={})
    return {
        key: found.values[key]
        for key, origin in sorted(found.origins.items())
        if origin.source is Source.STORE_FILE and key not in ENGINE_KEYS and not found.known[key].baked
    }


def as_given(settings: Mapping[str, Value], engines: Collection[str]) -> str:
    """Return the ``rmqstore.toml`` of a store of some engines that gets these settings; those of others, installed or not, are left out."""
    return as_toml({key: value for key, value in settings.items() if key.partition(".")[0] in RESERVED_NAMES.union(engines)})


def give_settings(store: Path, settings: Mapping[str, Value], engines: Collection[str]) -> None:
    """Write ``rmqstore.toml`` into a store that has none, as :func:`as_given` says."""
    text, file = as_given(settings, engines), store / FILE_NAME
    if text and not file.exists():
        file.write_text(text, encoding="utf-8")


def as_toml(settings: Mapping[str, Value]) -> str:
    """Return settings by dotted key as a TOML file; a string of JSON is one of TOML, too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if "." not in key]
    for table in dict.fromkeys(key.rpartition(".")[0] for key in settings if "." in key):
        lines += ["", f"[{table}]"]
        lines += [f"{key.rpartition('.')[2]} = {json.dumps(value)}" for key, value in settings.items() if key.rpartition(".")[0] == table]
    return "\n".join([*lines, ""]).lstrip("\n")


# ---------------------------------------------------------------- what is told


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence about an unknown name, with the nearest known one; without one, where to look."""
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"{what} is unknown; did you mean {nearest[0]}?" if nearest else f"{what} is unknown; docs/configuration.md lists the settings"
