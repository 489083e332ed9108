"""What a run of the suite is aimed at: pairs of engines, their settings, and how far it goes."""

from __future__ import annotations

import enum
import functools
import importlib.util
import secrets
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import msgspec

from rmqstore.contract import Capabilities, NewNames
from rmqstore.errors import IllegalArgumentError
from rmqstore.plugins import get_plugins
from rmqstore_conformance import SUITE_VERSION
from rmqstore_conformance.stores import Pair, installed

ALL = "all"
"""Given as an engine: every installed one, and pairs of them."""

FRESH = "fresh"
"""Given as a seed: a new one."""

MOST_EFFORT = 1000


@functools.total_ordering
class Level(enum.Enum):
    """How far a run goes: each level has all cases of those before it.

    CORE: what every engine must do, without anything optional. EXTENDED: optional capabilities where they are declared, random histories
    against a model, every interleaving. FULL: kills, power losses, failing system calls and damage.
    """

    CORE = "core"
    EXTENDED = "extended"
    FULL = "full"

    def __lt__(self, other: Level) -> bool:
        order = list(Level)
        return order.index(self) < order.index(other)

    def __str__(self) -> str:
        return self.value


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be refuted.

    Attributes:
        pairs: the engines of the two sides of each store.
        engines: of them, those that stand for one engine each; cases that do not depend on the pairing run on them alone.
        mixed: pairs of two engines, for what two engines do together.
        settings: given to every store that is opened.
        suite_version: newer cases are left out.
        effort: so many times the kills, disk states and failing calls of a run with effort 1.
        recorder: what sees what a store writes, strace or fuse.
    """

    pairs: tuple[Pair, ...]
    engines: tuple[Pair, ...]
    mixed: tuple[Pair, ...]
    level: Level = Level.CORE
    settings: dict[str, Any] = {}
    suite_version: str = SUITE_VERSION
    effort: float = 1.0
    recorder: str = "strace"

    def times(self, count: int) -> int:
        """Return how many of something there are to be, of which a run with effort 1 has ``count``."""
        return max(1, round(count * self.effort))


def target_of(
    engines: Sequence[str],
    pop_engine: str | None = None,
    *,
    level: str = "core",
    settings: Sequence[str] = (),
    suite_version: str = SUITE_VERSION,
    effort: float = 1.0,
    recorder: str = "strace",
) -> Target:
    """Return the target of a command line.

    Args:
        engines: names of engines, or ``all``.
        pop_engine: the engine of the other side, when it is another one; there must be one engine then.
        settings: ``key=value``, as ``rmqstore`` takes them.

    Raises:
        EngineLookupError: an engine is unknown, not installed, or does not import.
        IllegalArgumentError: the arguments do not go together.
    """
    from rmqstore.cli.stores import parsed_settings  # children of a run need none of the command line

    if version_of(suite_version) > version_of(SUITE_VERSION):
        raise IllegalArgumentError(f"this suite has version {SUITE_VERSION}; upgrade rmqstore-conformance for {suite_version}")
    if not 0 < effort <= MOST_EFFORT:
        raise IllegalArgumentError(f"--rmq-effort is a number above 0 and up to {MOST_EFFORT}, not {effort}")
    if pop_engine is not None and (len(engines) != 1 or ALL in engines):
        raise IllegalArgumentError("--rmq-pop-engine goes with exactly one --rmq-engine, the engine of the timers")
    names = installed() if ALL in engines else list(dict.fromkeys(engines))
    for name in [*names, *([] if pop_engine is None else [pop_engine])]:
        get_plugins().load_engine(name)
    if pop_engine is not None:
        singles = [Pair(names[0], pop_engine)]
    else:
        singles = [Pair(name, name) for name in names]
    mixed = _mixed(names, pop_engine, every=ALL not in engines)
    return Target(
        pairs=tuple([*singles, *mixed] if ALL in engines else singles),
        engines=tuple(singles),
        mixed=tuple(mixed),
        level=Level(level),
        settings=parsed_settings(settings),
        suite_version=suite_version,
        effort=effort,
        recorder=recorder,
    )


def seed_of(text: str | int) -> int:
    """Return the seed that a command line names; ``fresh`` makes one.

    Raises:
        IllegalArgumentError: it is no number.
    """
    if text == FRESH:
        return secrets.randbelow(1 << 31)
    try:
        return int(text)
    except ValueError as error:
        raise IllegalArgumentError(f"--rmq-seed is a whole number, or {FRESH} for a new one, not {text!r}") from error


def announce(modules: Sequence[str]) -> None:
    """Take in modules that announce engines which no installed distribution names.

    Raises:
        IllegalArgumentError: one cannot be imported.
    """
    for name in modules:
        try:
            get_plugins().add(importlib.import_module(name))
        except ImportError as error:
            raise IllegalArgumentError(f"--rmq-plugin {name} cannot be imported: {error}") from error


def offered_modules() -> list[str]:
    """Return the modules with further cases that plug-ins offer by ``rmqstore_conformance_cases``.

    Raises:
        IllegalArgumentError: what one offers is no module's name, or there is no such module; names the distribution.
    """
    found = []
    for offer in get_plugins().conformance_cases():
        if not isinstance(offer.item, str) or importlib.util.find_spec(offer.item) is None:
            raise IllegalArgumentError(
                f"{offer.distribution} offers {offer.item!r} as conformance cases; a case module is offered by its import name"
            )
        found.append(offer.item)
    return found


def version_of(text: str) -> tuple[int, ...]:
    """Return a version as numbers.

    Raises:
        IllegalArgumentError: it is no version.
    """
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError as error:
        raise IllegalArgumentError(f"a suite version is two numbers with a dot, such as {SUITE_VERSION}, not {text!r}") from error


def _mixed(names: Sequence[str], pop_engine: str | None, *, every: bool) -> list[Pair]:
    """Return the pairs of durable engines that have one of ``names``; without ``every``, two pairs of neighbours."""
    if pop_engine is not None:
        return [Pair(names[0], pop_engine)] if names[0] != pop_engine else []
    durable = [name for name in installed() if Pair(name, name).durable]
    if every:
        return [Pair(*pair) for pair in permutations(durable, 2) if set(pair) & set(names)]
    ring = [name for name in names if name in durable]
    return [Pair(name, ring[at - 1]) for at, name in enumerate(ring) if len(ring) > 1][:2]


def capabilities_of(pair: Pair) -> tuple[Capabilities, Capabilities]:
    """Return what the engines of a pair declare, that of the timers first."""
    first, second = (get_plugins().load_engine(name)[0].capabilities for name in pair)
    return first, second


def new_names_of(pair: Pair) -> NewNames:
    """Return what makes the name of a new file durable on the disks that a pair keeps its word on."""
    declared = [each.new_names for each in capabilities_of(pair)]
    return NewNames.FILE_SYNC if NewNames.FILE_SYNC in declared else NewNames.DIRECTORY_SYNC
