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
    phases = ["schedule"]           # those of them that the workload has are run, and always "fill"
    repeats = 5                     # for these cells; so can ``seconds``

A cell that stands in two tables is measured once, with the phases of both and the larger of the numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from rmqstore.contract import Durability, EngineInfo, Flush
from rmqstore.errors import ConfigError, RmqstoreError
from rmqstore.message import MAX_BODY_BYTES
from rmqstore.plugins import EngineState, get_plugins
from rmqstore.settings import Origin, Source, checked, known_settings
from rmqstore_benchmarks.grid.load import ID_BYTES, MAX_BATCH_BYTES
from rmqstore_benchmarks.grid.named import nearest, workload_named
from rmqstore_benchmarks.grid.stores import HOLLOW, Cell, Variant
from rmqstore_benchmarks.grid.tables import PHASE_NAMES

DURABILITIES: Final = {"power_loss": Durability.POWER_LOSS, "process_crash": Durability.PROCESS_CRASH, "nothing": Durability.NONE}
_Seed = Annotated[int, Meta(ge=0, le=2**31)]
_Repeats = Annotated[int, Meta(ge=1, le=1000)]
_Seconds = Annotated[float, Meta(gt=0, le=3600)]
_Body = Annotated[int, Meta(ge=ID_BYTES, le=min(MAX_BODY_BYTES, MAX_BATCH_BYTES))]
_Backlog = Annotated[int, Meta(ge=1, le=1_000_000_000)]
_Shards = Annotated[int, Meta(ge=1, le=1024)]
_Item = TypeVar("_Item")
_Some = Annotated[tuple[_Item, ...], Meta(min_length=1)]


class _Grid(msgspec.Struct, forbid_unknown_fields=True):
    """``[[grid]]`` as it is written."""

    variants: _Some[str]
    workloads: _Some[str]
    bodies: _Some[_Body]
    backlogs: _Some[_Backlog]
    phases: _Some[str]
    durabilities: _Some[str] = ("power_loss",)
    shards: _Some[_Shards] = (1,)
    repeats: _Repeats | None = None
    seconds: _Seconds | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The file as it is written."""

    variants: _Some[Variant]
    grid: _Some[_Grid]
    seed: _Seed = 1
    repeats: _Repeats = 1
    seconds: _Seconds = 3.0


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
    try:
        given = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        fields = [name for part in (_Document, Variant, _Grid) for name in part.__struct_fields__]
        unknown = re.search(r"unknown field `(.*?)`", str(error))
        raise ConfigError(f"{error}{nearest(unknown[1], fields) if unknown else ''}") from error
    variants: dict[str, Variant] = {}
    for number, each in enumerate(given.variants, 1):
        if each.name in variants:
            raise ConfigError(f"[[variants]] number {number}: the name {each.name!r} is taken")
        variants[each.name] = _variant(f"[[variants]] number {number}", each)
    cells: dict[str, Cell] = {}
    for number, grid in enumerate(given.grid, 1):
        for cell in _cells(f"[[grid]] number {number}", grid, variants, given):
            cells[cell.cell_id] = _joined(cells[cell.cell_id], cell) if cell.cell_id in cells else cell
    return Spec(seed=given.seed, cells=tuple(cells.values()))


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


def _variant(place: str, written: Variant) -> Variant:
    """Return a variant with its settings checked and converted."""
    engine = written.engine
    if engine in HOLLOW:
        if written.settings:
            raise ConfigError(f"{place}: the engine {engine!r} has no settings")
        return written
    _installed(engine)
    known = known_settings({engine: get_plugins().engine_settings()[engine]})
    for key in written.settings:
        if key not in known:
            raise ConfigError(f"{place}: engine '{engine}' has no setting {key!r}{nearest(key, known)}")
    settings = {key: checked(known[key], value, Origin(Source.KEYWORD, f"{place}, {key}")) for key, value in written.settings.items()}
    return msgspec.structs.replace(written, settings=settings)


def _installed(engine: str) -> EngineInfo:
    entries = {entry.name: entry for entry in get_plugins().engines()}
    if engine not in entries:
        raise ConfigError(f"no engine is called {engine!r}{nearest(engine, entries)}")
    entry = entries[engine]
    if entry.state is not EngineState.OK or entry.info is None:
        raise ConfigError(f"engine '{engine}' cannot be opened: {entry.reason}")
    return entry.info


def _cells(place: str, grid: _Grid, variants: dict[str, Variant], document: _Document) -> Iterator[Cell]:
    for what, names, known in (
        ("variants", grid.variants, variants),
        ("durabilities", grid.durabilities, DURABILITIES),
        ("phases", grid.phases, PHASE_NAMES),
    ):
        if wrong := [name for name in names if name not in known]:
            raise ConfigError(f"{place}: {what}: {wrong[0]!r} is unknown{nearest(wrong[0], known)}")
    for backlog, count in itertools.product(grid.backlogs, grid.shards):
        if backlog % count:
            raise ConfigError(f"{place}: a backlog of {backlog} cannot be divided among {count} shards")
    workloads = [workload_named(name) for name in grid.workloads]
    chosen = [variants[name] for name in grid.variants]
    wanted = {"fill", *grid.phases, *(["warm_up"] if "mixed" in grid.phases else [])}
    points = itertools.product(workloads, grid.bodies, grid.backlogs, grid.shards, grid.durabilities, chosen)
    for workload, body, backlog, shards, durability, variant in points:
        yield Cell(
            variant=variant,
            workload=workload.name,
            body_bytes=body,
            backlog=backlog,
            durability=durability,
            flush="sync" if variant.engine in HOLLOW else flush_for(_installed(variant.engine), durability),
            shards=shards,
            phases=tuple(name for name in workload.phases if name in wanted),
            repeats=grid.repeats or document.repeats,
            seconds=grid.seconds or document.seconds,
        )


def _joined(one: Cell, other: Cell) -> Cell:
    phases = tuple(name for name in PHASE_NAMES if name in one.phases or name in other.phases)
    return msgspec.structs.replace(one, phases=phases, repeats=max(one.repeats, other.repeats), seconds=max(one.seconds, other.seconds))
