"""``python -m rmqstore_benchmarks.peers``: the same timers through rmqstore's engines and through other systems, in turns."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd

from rmqstore.plugins import EngineState, get_plugins
from rmqstore_benchmarks.machine import default_directory, described, replace_part, sentence
from rmqstore_benchmarks.peers import PEERS, measure_alone, system
from rmqstore_benchmarks.peers.ours import LIST
from rmqstore_benchmarks.peers.peer import BODY_BYTES, DISTRIBUTIONS, Durability, PeerError, Task
from rmqstore_benchmarks.peers.report import COLUMNS, tables
from rmqstore_benchmarks.statistics import in_turn

ENGINES: Final = ("wheel", "rocksdb", "lmdb")
_TIMER_BYTES: Final = 16 * 1024
"""Room for a timer in logs, tables and indexes of whatever system runs."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    engines: tuple[str, ...]
    peers: tuple[str, ...]
    durabilities: tuple[Durability, ...]
    directory: Path
    rounds: int
    timers: int
    batch: int = 1000

    def names(self, durability: Durability, distribution: str) -> list[str]:
        """Return the systems to run in turns."""
        names = [name for engine in self.engines for name in (engine, engine + LIST)] + list(self.peers)
        return [name for name in names if durability in system(name).settings and distribution in system(name).distributions]


def measure(plan: Plan) -> pd.DataFrame:
    """Run every system with each distribution and durability, in an order that rotates from round to round; returns the results.

    Ctrl-C ends it with the rounds that are whole; in the first round it ends the command.
    """
    rows: list[tuple[Any, ...]] = []
    for number in range(plan.rounds):
        try:
            rows += _round(plan, number)
        except KeyboardInterrupt:
            if not rows:
                raise
            break
    return pd.DataFrame(rows, columns=COLUMNS)


def _round(plan: Plan, number: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for durability in plan.durabilities:
        for distribution in DISTRIBUTIONS:
            names = plan.names(durability, distribution)
            found = {}
            for name in in_turn(names, number):
                print(f"round {number + 1}, {durability}, {distribution}: {name}", file=sys.stderr, flush=True)
                found[name] = run(plan, name, durability, distribution)
            for name in names:
                place, error = (str(durability), distribution, name, number), found[name].pop("error", None)
                rows += [(*place, None, None, error)] if error else [(*place, phase, rate, None) for phase, rate in found[name].items()]
    return rows


def run(plan: Plan, name: str, durability: Durability, distribution: str) -> dict[str, Any]:
    """Run one measurement in a fresh process and a fresh directory; returns its figures, or why there are none under ``error``.

    However it is left, the process has ended its servers before; Ctrl-C goes to it as well.
    """
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="rmqstore-peers-", dir=plan.directory) as fresh,
        ProcessPoolExecutor(1, spawn) as pool,
    ):
        task = Task(system=name, durability=durability, directory=fresh, distribution=distribution, timers=plan.timers, batch=plan.batch)
        try:
            return dict(pool.submit(measure_alone, task).result())
        except Exception as error:  # whatever ends a system, the others go on
            reason = str(error) if isinstance(error, PeerError) else f"{type(error).__name__}: {error}"
            print(f"{name} gives no figure: {reason}", file=sys.stderr, flush=True)
            return {"error": reason}


def installed(engines: Sequence[str]) -> tuple[str, ...]:
    """Return those engines that can be opened; the others are named on stderr.

    Raises:
        SystemExit: none is left.
    """
    works = {entry.name for entry in get_plugins().engines() if entry.state is EngineState.OK}
    if missing := [engine for engine in engines if engine not in works]:
        print(f"left out, not installed: {', '.join(missing)}", file=sys.stderr)
    if not works.intersection(engines):
        raise SystemExit("none of the engines is installed; for example: pip install 'rmqstore[all]'")
    return tuple(engine for engine in engines if engine in works)


def present(names: Sequence[str]) -> tuple[str, ...]:
    """Return the peers that are installed; how to get each other one goes to stderr."""
    there = []
    for name in names:
        if PEERS[name].version() is None:
            print(f"{name} is not here: {PEERS[name].how_to_get}", file=sys.stderr)
        else:
            there.append(name)
    return tuple(there)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rmqstore_benchmarks.peers", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--timers", type=int, default=100_000, help="timers in one measurement (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1000, help="timers in one call (default %(default)s)")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), metavar="P", help="those of: %(choices)s")
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), metavar="E", help="our engines (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default %(default)s)")
    parser.add_argument(
        "--durability",
        choices=[*map(str, Durability), "both"],
        default="both",
        help="what acknowledged calls survive (default %(default)s)",
    )
    parser.add_argument(
        "--directory", type=Path, default=default_directory(), help="a directory on the disk to measure (default %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write every figure of every round to this file")
    parser.add_argument("--markdown", type=Path, help="put the table into this page, between its markers")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; see ``--help``."""
    given = _parsed(arguments)
    if given.timers < given.batch or given.timers % given.batch:
        raise SystemExit(f"--timers {given.timers} is not a multiple of --batch {given.batch}")
    plan = Plan(
        engines=installed(given.engines) if given.engines else (),
        peers=present(given.peers),
        durabilities=tuple(Durability) if given.durability == "both" else (Durability(given.durability),),
        directory=given.directory,
        rounds=given.rounds,
        timers=given.timers,
        batch=given.batch,
    )
    if shutil.disk_usage(plan.directory).free < plan.timers * _TIMER_BYTES:
        raise SystemExit(f"{plan.directory} has not the room for {plan.timers:,} timers; give --directory")
    machine = described(plan.directory)
    results = measure(plan)
    rounds = results["round"].nunique()
    versions = ", ".join(f"{name} {PEERS[name].version()}" for name in plan.peers)
    absent = [f"{name} was not there: {PEERS[name].how_to_get}." for name in given.peers if name not in plan.peers]
    # Where the results go does not change them.
    outputs = {"--json", "--markdown", str(given.json), str(given.markdown)}
    words = [word for word in (sys.argv[1:] if arguments is None else arguments) if word.partition("=")[0] not in outputs]
    command = shlex.join(["python", "-m", "rmqstore_benchmarks.peers", *words])
    about = f"{plan.timers:,} timers of {BODY_BYTES} B, batches of {plan.batch:,}, rounds in turns: {rounds}. Peers: {versions or 'none'}."
    text = "\n\n".join([" ".join([about, *absent]), tables(results), f"`{command}`: {sentence(machine)}"])
    print(text)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"command": command, "machine": machine, "results": results.to_dict("records")}
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if given.markdown:
        replace_part(given.markdown, "peers", text)


if __name__ == "__main__":
    main()
