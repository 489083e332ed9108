"""``SPEC.toml``: which cells are measured, and how long. It is checked as a whole before anything runs.

.. code-block:: toml

    seed = 1                # of the first repeat; the next one has 2
    repeats = 3
    seconds = 3.0           # of every timed phase

    [[variants]]            # an engine with its settings, under a name; "null" is Spark and the load alone, "raw-lmdb" LMDB alone
    name = "rocksdb-separated"
    engine = "rocksdb"
    settings = { "rocksdb.values" = "separated" }

    [[grid]]                # every combination of these is a cell; several tables add up
    variants = ["rocksdb-separated", "null"]
    workloads = ["order-timeout"]
    bodies = [256, 4096]            # bytes
    backlogs = [10_000, 1_000_000]  # timers pending, of all shards together
    durabilities = ["power_loss"]   # "process_crash", or "nothing"
    shards = [1]
    phases = ["fill", "schedule"]   # when left out, all that the workload has but those of ``tables.ON_REQUEST``
    repeats = 5                     # for these cells; so can ``seconds``

A cell that stands in two tables is measured once, with the phases of both and the larger of the numbers.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rmqstore.contract import Durability, EngineInfo, Flush
from rmqstore.errors import ConfigError, RmqstoreError
from rmqstore.message import MAX_BODY_BYTES
from rmqstore.plugins import EngineState, get_plugins
from rmqstore.settings import CORE_SETTINGS, Origin, Source, Value, checked
from rmqstore_benchmarks.grid.load import ID_BYTES, MAX_BATCH_BYTES
from rmqstore_benchmarks.grid.named import workload_named
from rmqstore_benchmarks.grid.stores import HOLLOW
from rmqstore_benchmarks.grid.tables import ON_REQUEST, PHASE_NAMES

DURABILITIES: Final = {"power_loss": Durability.POWER_LOSS, "process_crash": Durability.PROCESS_CRASH, "nothing": Durability.NONE}
_TOP: Final = {"seed", "repeats", "seconds", "variants", "grid"}
_VARIANT: Final = {"name", "engine", "settings"}
_GRID: Final = {"variants", "workloads", "bodies", "backlogs", "durabilities", "shards", "phases", "repeats", "seconds"}
_WANTED: Final = ("variants", "workloads", "bodies", "backlogs")
_RANGES: Final = {
    "seed": (0, 2**31),
    "repeats": (1, 1000),
    "bodies": (ID_BYTES, min(MAX_BODY_BYTES, MAX_BATCH_BYTES)),
    "backlogs": (1, 1_000_000_000),
    "shards": (1, 1024),
}
_MAX_SECONDS: Final = 3600.0


class Variant(msgspec.Struct, frozen=True):
    """An engine with its settings, under a name."""

    name: str
    engine: str
    settings: dict[str, Value]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the grid. ``flush`` is what its durability asks of the engine, ``backlog`` that of all shards together."""

    variant: Variant
    workload: str
    body_bytes: int
    backlog: int
    durability: str
    flush: str
    shards: int
    phases: tuple[str, ...]
    repeats: int
    seconds: float

    @property
    def cell_id(self) -> str:
        """The cell in one word, a good name for a directory."""
        return f"{self.variant.name}.{self.workload}.{self.body_bytes}.{self.backlog}.{self.durability}.{self.shards}"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A checked specification."""

    seed: int
    cells: tuple[Cell, ...]

    @property
    def digest(self) -> str:
        """What tells two specifications apart, whatever their files look like."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @property
    def runs(self) -> int:
        """How many runs there are: cells times their repeats."""
        return sum(cell.repeats for cell in self.cells)


def read_spec(file: Path) -> Spec:
    """Read and check a file.

    Raises:
        ConfigError: it cannot be read, or something in it is unknown or out of range; the message names the place.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no TOML: {error}") from error
    try:
        return parse_spec(document)
    except RmqstoreError as error:
        raise ConfigError(f"{file}: {error}") from error


def parse_spec(document: dict[str, Any]) -> Spec:
    """Check a document.

    Raises:
        RmqstoreError: something in it is unknown or out of range; the message names the place.
    """
    _refuse_unknown("the specification", document, _TOP)
    seed = _number("seed", document.get("seed", 1))
    repeats = _number("repeats", document.get("repeats", 1))
    seconds = _seconds("seconds", document.get("seconds", 3.0))
    variants: dict[str, Variant] = {}
    for place, table in _tables("variants", document):
        variant = _variant(place, table)
        if variant.name in variants:
            raise ConfigError(f"{place}: the name {variant.name!r} is taken")
        variants[variant.name] = variant
    cells: dict[str, Cell] = {}
    for place, table in _tables("grid", document):
        for cell in _cells(place, table, variants, repeats, seconds):
            cells[cell.cell_id] = _joined(cells[cell.cell_id], cell) if cell.cell_id in cells else cell
    return Spec(seed=seed, cells=tuple(cells.values()))


def flush_for(info: EngineInfo, durability: str) -> str:
    """Return the cheapest ``flush`` under which the engine declares every operation to be so durable.

    Raises:
        ConfigError: there is none.
    """
    wanted = DURABILITIES[durability]
    for flush in (Flush.ASYNC, Flush.SYNC):
        if min(info.capabilities.durability[flush].values()) >= wanted:
            return str(flush.value)
    raise ConfigError(f"engine '{info.name}' declares {durability} under no flush")


# ---------------------------------------------------------------- parts


def _variant(place: str, table: dict[str, Any]) -> Variant:
    _refuse_unknown(place, table, _VARIANT)
    name, engine = (_text(f"{place}: {key}", table.get(key)) for key in ("name", "engine"))
    if not all(each.isalnum() or each in "-_" for each in name):
        raise ConfigError(f"{place}: the name {name!r} is not made of letters, digits, - and _")
    given = table.get("settings", {})
    if not isinstance(given, dict):
        raise ConfigError(f"{place}: settings must be a table, not {given!r}")
    if engine in HOLLOW:
        if given:
            raise ConfigError(f"{place}: the engine {engine!r} has no settings")
        return Variant(name, engine, {})
    _installed(engine)
    known = {setting.key: setting for setting in (*CORE_SETTINGS, *get_plugins().engine_settings()[engine])}
    for key in given:
        if key not in known:
            raise ConfigError(f"{place}: engine '{engine}' has no setting {key!r}{_nearest(key, known)}")
    settings = {key: checked(known[key], value, Origin(Source.KEYWORD, f"{place}, {key}")) for key, value in given.items()}
    return Variant(name, engine, settings)


def _installed(engine: str) -> EngineInfo:
    entries = {entry.name: entry for entry in get_plugins().engines()}
    if engine not in entries:
        raise ConfigError(f"no engine is called {engine!r}{_nearest(engine, entries)}")
    entry = entries[engine]
    if entry.state is not EngineState.OK or entry.info is None:
        raise ConfigError(f"engine '{engine}' cannot be opened: {entry.reason}")
    return entry.info


def _cells(place: str, table: dict[str, Any], variants: dict[str, Variant], repeats: int, seconds: float) -> Iterable[Cell]:
    _refuse_unknown(place, table, _GRID)
    if missing := [key for key in _WANTED if key not in table]:
        raise ConfigError(f"{place}: {missing[0]} is missing")
    chosen = [_known(f"{place}: variants", name, variants) for name in _list(place, table, "variants")]
    workloads = [workload_named(name) for name in _list(place, table, "workloads")]
    sizes = {key: [_number(key, each, place) for each in _list(place, table, key)] for key in ("bodies", "backlogs")}
    sizes["shards"] = [_number("shards", each, place) for each in _list(place, {"shards": [1]} | table, "shards")]
    durabilities = _list(place, {"durabilities": ["power_loss"]} | table, "durabilities")
    for name in durabilities:
        _known(f"{place}: durabilities", name, DURABILITIES)
    phases = _list(place, table, "phases") if "phases" in table else None
    for name in phases or ():
        _known(f"{place}: phases", name, dict.fromkeys(PHASE_NAMES))
    repeats = _number("repeats", table.get("repeats", repeats), place)
    seconds = _seconds(f"{place}: seconds", table.get("seconds", seconds))
    for backlog, count in itertools.product(sizes["backlogs"], sizes["shards"]):
        if backlog % count:
            raise ConfigError(f"{place}: a backlog of {backlog} cannot be divided among {count} shards")
    points = itertools.product(workloads, sizes["bodies"], sizes["backlogs"], sizes["shards"], durabilities, chosen)
    for workload, body, backlog, shards, durability, variant in points:
        yield Cell(
            variant=variant,
            workload=workload.name,
            body_bytes=body,
            backlog=backlog,
            durability=durability,
            flush="sync" if variant.engine in HOLLOW else flush_for(_installed(variant.engine), durability),
            shards=shards,
            phases=tuple(name for name in workload.phases if name == "fill" or _is_wanted(name, phases)),
            repeats=repeats,
            seconds=seconds,
        )


def _is_wanted(phase: str, phases: Sequence[str] | None) -> bool:
    return phase not in ON_REQUEST if phases is None else phase in phases


def _joined(one: Cell, other: Cell) -> Cell:
    phases = tuple(name for name in PHASE_NAMES if name in one.phases or name in other.phases)
    return msgspec.structs.replace(one, phases=phases, repeats=max(one.repeats, other.repeats), seconds=max(one.seconds, other.seconds))


# ---------------------------------------------------------------- checks


def _tables(key: str, document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    tables = document.get(key)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"there is no table [[{key}]]")
    return [(f"[[{key}]] number {number}", table) for number, table in enumerate(tables, 1)]


def _refuse_unknown(place: str, table: dict[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{place} has an unknown key {key!r}{_nearest(key, known)}")


def _nearest(word: object, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(str(word), names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(names)}" if names else ""


def _known(place: str, name: object, known: dict[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"{place}: {name!r} is unknown{_nearest(name, known)}")
    return known[name]


def _list(place: str, table: dict[str, Any], key: str) -> Sequence[Any]:
    values = table[key]
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{place}: {key} must be a list of at least one, not {values!r}")
    return values


def _text(place: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{place} must be a text, not {value!r}")
    return value


def _number(key: str, value: object, place: str = "") -> int:
    low, high = _RANGES[key]
    where = f"{place}: {key}" if place else key
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{where} must be a whole number from {low:,} to {high:,}, not {value!r}")
    return value


def _seconds(place: str, value: object) -> float:
    if type(value) not in (int, float) or not 0 < float(value) <= _MAX_SECONDS:  # type: ignore[arg-type]
        raise ConfigError(f"{place} must be a number of seconds up to {_MAX_SECONDS:,.0f}, not {value!r}")
    return float(value)  # type: ignore[arg-type]
