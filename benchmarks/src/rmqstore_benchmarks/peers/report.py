"""The table: rates of every system, and what each of our engines is of the best peer of the same durability."""

from __future__ import annotations

from typing import Final, NamedTuple

import pandas as pd

from rmqstore_benchmarks.machine import table
from rmqstore_benchmarks.peers import PEERS, system
from rmqstore_benchmarks.peers.ours import LIST
from rmqstore_benchmarks.peers.peer import DISTRIBUTIONS, Durability
from rmqstore_benchmarks.statistics import spreads

KEYS: Final = ["durability", "distribution", "system"]
COLUMNS: Final = [*KEYS, "round", "phase", "value", "error"]
"""The columns of the results: messages a second of a phase, or why a round gave no figure."""

SCHEDULE_TARGET, DRAIN_TARGET, POP_TARGET = 3.0, 2.0, 2.0


class Column(NamedTuple):
    """A figure of one distribution, with its target: at least so many times the best peer."""

    title: str
    phase: str
    distribution: str
    target: float | None = None
    engines: tuple[str, ...] = ("wheel", "rocksdb", "lmdb")


SHOWN: Final = (
    *(Column(f"schedule, {name}", "schedule", name, SCHEDULE_TARGET, ("wheel",)) for name in DISTRIBUTIONS),
    Column("cancel", "cancel", "constant"),
    *(Column(f"drain, {name}", "drain", name, DRAIN_TARGET) for name in DISTRIBUTIONS),
    Column("pop 32 + ack", "pop_32", "constant", POP_TARGET),
    Column("pop 1024 + ack", "pop_1024", "constant", POP_TARGET),
)


def tables(results: pd.DataFrame) -> str:
    """Return one table for each durability, and a line for each system that gave no figure."""
    parts = []
    for durability, rows in results.groupby("durability", sort=False):
        parts.append(f"**{durability.replace('-', ' ').capitalize()}**, msgs/s:\n\n{_table(Durability(durability), rows)}")
        errors = rows.dropna(subset="error")[["system", "error"]].drop_duplicates().sort_values(["system", "error"])
        parts += [f"No figure for {each.system}: {each.error}" for each in errors.itertuples()]
    return "\n\n".join(parts)


def _table(durability: Durability, rows: pd.DataFrame) -> str:
    # A system that failed in any round has no figure.
    failed = set(rows[rows.error.notna()][["distribution", "system"]].itertuples(index=False, name=None))
    whole = rows[[place not in failed for place in zip(rows.distribution, rows.system, strict=True)]]
    columns = [column for column in SHOWN if (rows.distribution == column.distribution).any()]
    found = [whole[(whole.distribution == column.distribution) & (whole.phase == column.phase)] for column in columns]
    medians = [spreads(each, ["system"]).set_index("system")["median"] for each in found]
    names = list(rows.system.unique())
    lines = []
    for name in names:
        kind = system(name)
        shown = [_shown(each.get(name), column.phase in kind.unwritten) for each, column in zip(medians, columns, strict=True)]
        lines.append([f"{name} ({kind.settings[durability]})", *shown])
    if any(name in PEERS for name in names):
        ours = [name for name in names if name not in PEERS and LIST not in name]
        lines += [[f"{name} / best peer", *(_against(name, *each) for each in zip(found, medians, columns, strict=True))] for name in ours]
    return table(["", *(column.title for column in columns)], lines)


def _against(name: str, rows: pd.DataFrame, medians: pd.Series, column: Column) -> str:
    """Return the median of the ratios within a round to the best peer, its name, and whether the target is met."""
    rivals = [rival for rival in medians.index if rival in PEERS and column.phase not in system(rival).unwritten]
    if not rivals or name not in medians:
        return ""
    best = medians[rivals].idxmax()
    rounds = rows.pivot_table(index="round", columns="system", values="value")
    ratio = (rounds[name] / rounds[best]).median()
    shown = f"{ratio:.2f} × {best}"
    if column.target is None or name not in column.engines:
        return shown
    return f"{shown}: {'yes' if ratio >= column.target else '**no**'}"


def _shown(rate: float | None, unwritten: bool) -> str:
    if rate is None:
        return ""
    text = f"{rate / 1000:,.1f} k" if rate < 10_000 else f"{rate / 1000:,.0f} k"
    return f"({text})" if unwritten else text
