"""The table: rates of every system, and what each of our engines is of the best peer of the same durability."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rmqstore_benchmarks.machine import table
from rmqstore_benchmarks.peers.ours import LIST
from rmqstore_benchmarks.peers.peer import Durability
from rmqstore_benchmarks.peers.systems import PEERS, system
from rmqstore_benchmarks.workloads import DISTRIBUTIONS

Results = dict[Durability, dict[str, dict[str, list[dict[str, Any]]]]]
"""By durability, distribution and system: what each round gave, with a key ``error`` when it gave no figure."""

SCHEDULE_TARGET, DRAIN_TARGET, POP_TARGET = 3.0, 2.0, 2.0


class Column(NamedTuple):
    """A figure of one distribution, with its target: at least so many times the best peer."""

    title: str
    phase: str
    distribution: str
    target: float | None = None
    engines: tuple[str, ...] = ("wheel", "rocksdb", "lmdb")


COLUMNS: Final = (
    *(Column(f"schedule, {name}", "schedule", name, SCHEDULE_TARGET, ("wheel",)) for name in DISTRIBUTIONS),
    Column("cancel", "cancel", "constant"),
    *(Column(f"drain, {name}", "drain", name, DRAIN_TARGET) for name in DISTRIBUTIONS),
    Column("pop 32 + ack", "pop_32", "constant", POP_TARGET),
    Column("pop 1024 + ack", "pop_1024", "constant", POP_TARGET),
)


def tables(results: Results) -> str:
    """Return one table for each durability, and a line for each system that gave no figure."""
    parts = []
    for durability, by_distribution in results.items():
        parts.append(f"**{durability.replace('-', ' ').capitalize()}**, msgs/s:\n\n{_table(durability, by_distribution)}")
        parts += [f"No figure for {name}: {error}" for name, error in _errors(by_distribution)]
    return "\n\n".join(parts)


def _table(durability: Durability, by_distribution: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    names = list(dict.fromkeys(name for systems in by_distribution.values() for name in systems))
    columns = [column for column in COLUMNS if column.distribution in by_distribution]
    rows = []
    for name in names:
        rates = [_rate(by_distribution[column.distribution].get(name, []), column.phase) for column in columns]
        kind = system(name)
        shown = [_shown(rate, column.phase in kind.unwritten) for rate, column in zip(rates, columns, strict=True)]
        rows.append([f"{name} ({kind.settings[durability]})", *shown])
    rivals = [name for name in names if name in PEERS]
    for name in names:
        if name not in PEERS and LIST not in name and rivals:
            cells = [_against(name, rivals, by_distribution[column.distribution], column) for column in columns]
            rows.append([f"{name} / best peer", *cells])
    return table(["", *(column.title for column in columns)], rows)


def _against(name: str, rivals: Sequence[str], systems: dict[str, list[dict[str, Any]]], column: Column) -> str:
    """Return the median of the ratios within a round to the best peer, its name, and whether the target is met."""
    ours = systems.get(name, [])
    rates = {
        rival: rate
        for rival in rivals
        if column.phase not in system(rival).unwritten and (rate := _rate(systems.get(rival, []), column.phase)) is not None
    }
    if not rates or _rate(ours, column.phase) is None:
        return ""
    best = max(rates, key=lambda rival: rates[rival])
    ratio = statistics.median(mine[column.phase] / theirs[column.phase] for mine, theirs in zip(ours, systems[best], strict=True))
    shown = f"{ratio:.2f} × {best}"
    if column.target is None or name not in column.engines:
        return shown
    return f"{shown}: {'yes' if ratio >= column.target else '**no**'}"


def _rate(rounds: Iterable[dict[str, Any]], phase: str) -> float | None:
    """Return the median; None when any round failed or has no such phase."""
    found = [figures.get(phase) for figures in rounds]
    known = [rate for rate in found if rate is not None]
    return statistics.median(known) if known and len(known) == len(found) else None


def _shown(rate: float | None, unwritten: bool) -> str:
    if rate is None:
        return ""
    text = f"{rate / 1000:,.1f} k" if rate < 10_000 else f"{rate / 1000:,.0f} k"
    return f"({text})" if unwritten else text


def _errors(by_distribution: dict[str, dict[str, list[dict[str, Any]]]]) -> list[tuple[str, str]]:
    found = {
        (name, figures["error"])
        for systems in by_distribution.values()
        for name, rounds in systems.items()
        for figures in rounds
        if "error" in figures
    }
    return sorted(found)
