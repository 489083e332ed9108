"""``rmqstore engines``, ``config`` and ``new-engine``: the engines here, the settings in effect, and how an engine of your own begins."""

from __future__ import annotations

import enum
import importlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import asdict
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.options import JsonOption, StoreArgument, examples
from rmqstore.cli.show import Cell
from rmqstore.cli.times import SECOND_MS, duration_text
from rmqstore.config import Config, load
from rmqstore.contract import UNLIMITED_MS, Capabilities, Flush, Support
from rmqstore.errors import IllegalArgumentError, StorePathError
from rmqstore.plugins import EngineEntry, EngineState, get_plugins
from rmqstore.settings import CORE_SETTINGS, Source, allowed

_STYLES = {EngineState.OK: "green", EngineState.NOT_INSTALLED: "yellow", EngineState.BROKEN: "red"}


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
    show.table(map(_row, entries), long=["survives (sync / async)", "not there"])
    for entry in entries:
        if entry.reason:
            show.line()
            show.line(Text.assemble((f"{entry.name} ", "bold"), (entry.state.value, _STYLES[entry.state]), f": {entry.reason}"))


def _row(entry: EngineEntry) -> dict[str, Cell]:
    survives, horizon, absent = _declared(entry.info.capabilities) if entry.info else ("", "", "")
    state = Text(entry.state.value, _STYLES[entry.state])
    found: dict[str, Cell] = {"engine": entry.name, "distribution": entry.distribution, "version": entry.version, "state": state}
    return found | {"survives (sync / async)": survives, "horizon": horizon, "not there": absent}


def _declared(capabilities: Capabilities) -> tuple[str, str, str]:
    """Return the weakest durability under each flush setting, the horizon, and the absent capabilities."""
    survives = " / ".join(min(capabilities.durability[flush].values()).name.lower().replace("_", " ") for flush in Flush)
    horizon = "unlimited" if capabilities.horizon_ms >= UNLIMITED_MS else f"{capabilities.horizon_ms} ms"
    support = {name.replace("_", " "): value for name, value in asdict(capabilities).items() if isinstance(value, Support)}
    absent = [name for name, value in support.items() if value is not Support.FULL]
    return survives, horizon, ", ".join(absent) or "-"


def _document(entry: EngineEntry) -> dict[str, Any]:
    document = {name: _plain(value) for name, value in asdict(entry).items() if name != "info"}
    if entry.info:
        info = entry.info
        document |= {
            "api_version": info.api_version,
            "preference": info.preference,
            "requires": list(info.requires),
            "install_hint": info.install_hint,
            "capabilities": {name: _plain(value) for name, value in asdict(info.capabilities).items()},
            "settings": [{name: _plain(value) for name, value in asdict(setting).items()} for setting in info.settings],
        }
    return document


def _plain(value: Any) -> Any:
    """Return ``value`` in JSON's terms: a durability and a type by their names, other enum members by their value."""
    if isinstance(value, dict):
        return {key.value: {operation.value: level.name for operation, level in table.items()} for key, table in value.items()}
    return value.__name__ if isinstance(value, type) else value.value if isinstance(value, enum.Enum) else value


# ---------------------------------------------------------------- settings


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
        documents = [_setting_document(settings, key) for key in shown_keys(settings)]
        show.document({"path": str(store), "is_store": not is_new, "settings": documents})
        return
    if explain:
        for key in shown_keys(settings):
            setting = settings.known[key]
            show.line(Text.assemble((key, "bold"), f" = {_value_text(settings, key)}    ({_origin(settings, key)})"))
            show.line(f"    {setting.doc}")
            show.line(f"    Takes {allowed(setting)}." + (" Fixed when the store is made." if setting.baked else ""))
    else:
        keys = shown_keys(settings)
        rows = ({"setting": key, "value": _value_text(settings, key), "from": _origin(settings, key)} for key in keys)
        show.table(rows, long=["from"])
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


def _value_text(settings: Config, key: str) -> str:
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


def _setting_document(settings: Config, key: str) -> dict[str, Any]:
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


# ---------------------------------------------------------------- a project for a new engine


_TEMPLATE: Final = "memory"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")

_PROJECT: Final = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "rmqstore-{dashed}"
version = "0.1.0"
description = "The {name} engine of rmqstore"
requires-python = ">=3.11"
dependencies = ["rmqstore>=0.1.0,<0.2"]

[project.optional-dependencies]
test = ["rmqstore-conformance"]

[project.entry-points.rmqstore]
{name} = "rmqstore_{name}.plugin"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
rmqstore_{name} = ["py.typed"]
"""

_README: Final = """\
# rmqstore-{dashed}

The `{name}` engine of rmqstore. It starts as the engine `memory` under another name: it works, and keeps nothing on the disk.

```
pip install -e '.[test]'
rmqstore conformance {name}
```

1. `src/rmqstore_{name}/kv.py`: put your database in place of the sorted map.
2. `src/rmqstore_{name}/engine.py`: open it in the directory that you are given.
3. `src/rmqstore_{name}/plugin.py`: declare what it survives and what it can do.
4. `rmqstore conformance {name} --level extended --report report.html` until every clause holds.
"""

_TEST: Final = '''\
"""The engine keeps what it declares, by the conformance suite."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def test_every_core_clause_holds(tmp_path: Path) -> None:
    run = subprocess.run(["rmqstore", "conformance", "{name}", "--report", "report.json"], cwd=tmp_path, check=False)
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    assert (run.returncode, report["reached"]) == (0, "core"), report["headline"]
'''


@examples("rmqstore new-engine acme", "rmqstore new-engine work/acme --name acme")
def new_engine(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the project; it must not be there yet.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the engine (default: that of the directory).")] = None,
) -> None:
    """Write a plug-in project for an engine of your own.

    The engine is a copy of the template engine, wired to the conformance suite.
    """
    engine = name or directory.name
    if not _NAME.fullmatch(engine):
        raise IllegalArgumentError(
            f"an engine's name has small letters, digits and _, and begins with a letter; not {engine!r}: give --name"
        )
    if any(entry.name == engine for entry in get_plugins().engines()):
        raise IllegalArgumentError(f"there is an engine {engine!r} already; choose another --name")
    if directory.exists():
        raise StorePathError(f"{directory} is there already; name a directory that is not")
    for path, text in _files(engine).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
        show.line(str(directory / path))
    show.note(f"next: pip install -e '{directory}[test]' && rmqstore conformance {engine}")


def _files(engine: str) -> dict[str, str]:
    names = {"name": engine, "dashed": engine.replace("_", "-")}
    texts = {"pyproject.toml": _PROJECT, "README.md": _README, "tests/test_conformance.py": _TEST}
    files = {path: text.format(**names) for path, text in texts.items()}
    package = Path(importlib.import_module(type(get_plugins().load_engine(_TEMPLATE)[1]).__module__).__file__ or "").parent
    for path in sorted([*package.glob("*.py"), package / "py.typed"]):
        files[f"src/rmqstore_{engine}/{path.name}"] = _renamed(path.read_text(encoding="utf-8"), engine)
    return files


def _renamed(text: str, engine: str) -> str:
    """Return a module of the template with names of the new engine; the word in prose stays."""
    title = engine.title().replace("_", "")
    text = re.sub(rf"\brmqstore_{_TEMPLATE}\b", f"rmqstore_{engine}", text)
    text = re.sub(rf"\brmqstore-{_TEMPLATE}\b", f"rmqstore-{engine.replace('_', '-')}", text)
    text = re.sub(rf"{_TEMPLATE.title()}(Engine|KV)\b", rf"{title}\1", text)
    text = re.sub(rf'"{_TEMPLATE}"', f'"{engine}"', text)
    text = re.sub(rf"'{_TEMPLATE}'", f"'{engine}'", text)
    return re.sub(rf"^(\s*){_TEMPLATE} =", rf"\1{engine} =", text, flags=re.MULTILINE)
