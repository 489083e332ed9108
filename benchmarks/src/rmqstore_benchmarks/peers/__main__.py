"""``python -m rmqstore_benchmarks.peers``: the same timers through rmqstore's engines and through other systems, in turns."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd

from rmqstore.plugins import EngineState, get_plugins
from rmqstore_benchmarks.machine import default_directory, described, replace_part, sentence, table
from rmqstore_benchmarks.peers import PEERS, SYSTEMS, measure
from rmqstore_benchmarks.peers.peer import BODY_BYTES, DISTRIBUTIONS, Durability, PeerError, Task
from rmqstore_benchmarks.statistics import in_random_order

_BATCH: Final = 1000
_TIMER_BYTES: Final = 16 * 1024
"""Room for a timer in logs, tables and indexes of whatever system runs."""

COLUMNS: Final = ["durability", "distribution", "system", "round", "phase", "value", "error"]
"""The columns of the results: messages a second of a phase, or why a round gave no figure."""

SHOWN: Final = {
    **{("schedule", name): f"schedule by 1000, {name} delays" for name in DISTRIBUTIONS},
    ("schedule_list", "constant"): "schedule lists of 1000 `Message`",
    ("schedule_one", "constant"): "schedule, one a call",
    ("cancel", "constant"): "cancel 1000 handles a call",
    ("cancel_keys", "constant"): "cancel 1000 keys a call",
    ("cancel_one", "constant"): "cancel, one a call",
    **{("drain", name): f"hand over, {name} delays" for name in DISTRIBUTIONS},
    ("ack_one", "constant"): "pop 32, ack one by one",
    ("pop_32", "constant"): "pop 32 + ack 32",
    ("pop_32_acks", "constant"): "pop 32 that acks the last 32",
    ("pop_1024", "constant"): "pop 1024 + ack 1024",
    ("done", "constant"): "hand over, pop 1024, ack",
}
"""The rows of the table, by phase and distribution."""

INSTEAD: Final = {"schedule_list": "schedule", "cancel_keys": "cancel", "pop_32_acks": "pop_32"}
"""What the others do instead of what only a store of ours has."""

# ---------------------------------------------------------------- measuring


def rounds(given: argparse.Namespace, systems: Sequence[str]) -> pd.DataFrame:
    """Run every system with each distribution and durability, in an order that rotates from round to round; returns the results.

    Ctrl-C ends it with the rounds that are whole; in the first round it ends the command.
    """
    rows: list[tuple[Any, ...]] = []
    durabilities = list(Durability) if given.durability == "both" else [Durability(given.durability)]
    for number in range(given.rounds):
        before = len(rows)
        try:
            for durability, distribution in itertools.product(durabilities, DISTRIBUTIONS):
                rows += _measured(given, systems, number, durability, distribution)
        except KeyboardInterrupt:
            if not number:
                raise
            del rows[before:]
            break
    return pd.DataFrame(rows, columns=COLUMNS)


def _measured(
    given: argparse.Namespace, systems: Sequence[str], number: int, durability: Durability, distribution: str
) -> Iterator[tuple[Any, ...]]:
    names = [name for name in systems if durability in SYSTEMS[name].settings and distribution in SYSTEMS[name].distributions]
    found = {}
    for name in in_random_order(names, number):
        print(f"round {number + 1}, {durability}, {distribution}: {name}", file=sys.stderr, flush=True)
        task = Task(system=name, durability=durability, directory="", distribution=distribution, timers=given.timers, batch=_BATCH)
        found[name] = run(task, given.directory)
    for name in names:  # the table has them in the same order, whatever the turn
        error = found[name].pop("error", None)
        for phase, rate in ({"": None} if error else found[name]).items():
            yield (str(durability), distribution, name, number, phase, rate, error)


def run(task: Task, below: Path) -> dict[str, Any]:
    """Run one measurement in a fresh process and a fresh directory; returns its figures, or why there are none under ``error``.

    However it is left, the process has ended its servers before; Ctrl-C goes to it as well.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rmqstore-peers-", dir=below) as fresh,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        try:
            return dict(pool.submit(measure, msgspec.structs.replace(task, directory=fresh)).result())
        except Exception as error:  # whatever ends a system, the others go on
            reason = str(error) if isinstance(error, PeerError) else f"{type(error).__name__}: {error}"
            print(f"{task.system} gives no figure: {reason}", file=sys.stderr, flush=True)
            return {"error": reason}


# ---------------------------------------------------------------- the table


def tables(results: pd.DataFrame) -> str:
    """Return one table for each durability, and a line for each system that gave no figure."""
    parts = []
    for durability, rows in results.groupby("durability", sort=False):
        parts.append(f"**{durability.replace('-', ' ').capitalize()}**, msgs/s: {_table(Durability(durability), rows)}")
        errors = rows.dropna(subset="error")[["system", "error"]].drop_duplicates().sort_values(["system", "error"])
        parts += [f"No figure for {each.system}: {each.error}" for each in errors.itertuples()]
    return "\n\n".join(parts)


def _table(durability: Durability, rows: pd.DataFrame) -> str:
    """Return the rate of every system, and the median of the ratios within a round of each of our engines to the best peer."""
    # A system that failed in any round has no figure.
    good = rows[rows.groupby(["distribution", "system"]).error.transform("count") == 0]
    rates = good.pivot_table(index=["phase", "distribution", "round"], columns="system", values="value")
    medians = rates.groupby(level=["phase", "distribution"]).median()
    systems = list(rows.system.unique())
    ours = [name for name in systems if name not in PEERS] if PEERS.keys() & set(systems) else []

    def rate(name: str, place: tuple[str, str]) -> str:
        value = medians[name].get(place) if name in medians else None
        if value is None or pd.isna(value):
            return ""
        text = f"{value / 1000:,.1f} k" if value < 10_000 else f"{value / 1000:,.0f} k"
        return f"({text})" if place[0] in SYSTEMS[name].unwritten else text

    def share(name: str, place: tuple[str, str]) -> str:
        phase, distribution = place
        theirs = INSTEAD.get(phase, phase), distribution
        rivals = [rival for rival in systems if rival in PEERS and rate(rival, theirs) and theirs[0] not in SYSTEMS[rival].unwritten]
        if not rivals or not rate(name, place):
            return ""
        best = medians.loc[theirs, rivals].idxmax()
        return f"{(rates.loc[place, name] / rates.loc[theirs, best]).median():.2f} × {best}"

    shown = {place: title for place, title in SHOWN.items() if any(rate(name, place) for name in systems)}
    lines = [[title, *(rate(name, place) for name in systems), *(share(name, place) for name in ours)] for place, title in shown.items()]
    settings = ", ".join(f"{name} ({SYSTEMS[name].settings[durability]})" for name in systems)
    return f"{settings}\n\n{table(['', *systems, *(f'{name} / best peer' for name in ours)], lines)}"


# ---------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m rmqstore_benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--timers", type=int, default=100_000, help=f"timers in one measurement, in batches of {_BATCH} (default %(default)s)"
    )
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), metavar="P", help="those of: %(choices)s")
    parser.add_argument("--engines", nargs="*", default=["wheel", "rocksdb", "lmdb"], metavar="E", help="our engines (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default %(default)s)")
    survive = [*map(str, Durability), "both"]
    parser.add_argument("--durability", choices=survive, default="both", help="what acknowledged calls survive (default %(default)s)")
    place = default_directory()
    parser.add_argument("--directory", type=Path, default=place, help="a directory on the disk to measure (default %(default)s)")
    parser.add_argument("--markdown", type=Path, help="put the table into this page, between its markers")
    given = parser.parse_args(arguments)
    if given.timers < _BATCH or given.timers % _BATCH:
        raise SystemExit(f"--timers {given.timers} is not a multiple of {_BATCH}")
    if shutil.disk_usage(given.directory).free < given.timers * _TIMER_BYTES:
        raise SystemExit(f"{given.directory} has not the room for {given.timers:,} timers; give --directory")
    works = {entry.name for entry in get_plugins().engines() if entry.state is EngineState.OK}
    engines = [engine for engine in given.engines if engine in works]
    if missing := [engine for engine in given.engines if engine not in works]:
        print(f"left out, not installed: {', '.join(missing)}", file=sys.stderr)
    versions = {name: PEERS[name].version() for name in given.peers}
    absent = [f"{name} was not there: {PEERS[name].how_to_get}." for name, version in versions.items() if version is None]
    print(*absent, sep="\n", end="\n" if absent else "", file=sys.stderr)
    machine = described(given.directory)
    results = rounds(given, [*engines, *(name for name, version in versions.items() if version is not None)])
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    words = [word for word in (sys.argv[1:] if arguments is None else arguments) if word not in ("--markdown", str(given.markdown))]
    about = f"{given.timers:,} timers of {BODY_BYTES} B, batches of {_BATCH:,}, rounds in turns: {results['round'].nunique()}."
    command = shlex.join(["python", "-m", "rmqstore_benchmarks.peers", *words])
    parts = [" ".join([about, f"Peers: {listed or 'none'}.", *absent]), tables(results), f"`{command}`: {sentence(machine)}"]
    print(text := "\n\n".join(parts))
    if given.markdown:
        replace_part(given.markdown, "peers", text)


if __name__ == "__main__":
    main()
