"""``python -m rmqstore_benchmarks.backlog``: what a large backlog costs, engine by engine.

One process and one directory per measurement, as in ``speed``: a slot of many timers that are all due at once, and an hour of random ones,
handed over; cancels inside a full slot; pops and acks one after the other; scheduling into a store that holds many timers beside an empty
one, and the memory it takes; the time to open after ``kill -9``, over the number of pending timers. For ``wheel`` also its index alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rmqstore_benchmarks.machine import default_directory, described, replace_part, sentence, table
from rmqstore_benchmarks.runs import command_line, installed, keep_results, require_room

ENGINES: Final = ("wheel", "rocksdb", "lmdb")
PARTS: Final = ("index", "hand-over", "cancel", "pop", "backlog", "reopen")

_TIMER_BYTES: Final = 1024
"""Room that a timer may take, with all that is kept of it."""

Figures = dict[str, Any]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured.

    Attributes:
        slot: timers of one slot, and of the random hour.
        cancels: of them that are cancelled.
        messages: that are popped and acked.
        backlog: timers that are pending when scheduling is measured again.
        reopen: pending timers of the stores that are killed; tail: those stored behind the last check point.
    """

    directory: Path
    rounds: int = 3
    slot: int = 1_000_000
    cancels: int = 100_000
    messages: int = 200_000
    backlog: int = 20_000_000
    reopen: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    tail: int = 50_000


SMALL: Final = {
    "rounds": 1, "slot": 20_000, "cancels": 2000, "messages": 5000, "backlog": 60_000, "reopen": (5000, 20_000), "tail": 5000,
}  # fmt: skip


def run(what: str, directory: Path, **given: int | str) -> Figures:
    """Run one measure of ``backlog_measures`` in a process and a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=directory) as fresh:
        return in_process(what, fresh, given)


def in_process(what: str, directory: str, given: Figures, *, killed: bool = False) -> Figures:
    """Run one measure in a process of its own, which with ``killed`` ends by killing itself."""
    text = json.dumps({"what": what, "directory": directory, **given})
    command = [sys.executable, "-m", "rmqstore_benchmarks.backlog_measures", text]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != (-signal.SIGKILL if killed else 0):
        raise SystemExit(f"the measurement {text} ended with {done.returncode}")
    figures: Figures = {} if killed else json.loads(done.stdout)
    return figures


def median(runs: Sequence[Figures], figure: str) -> float:
    """Return the median of one figure."""
    return float(statistics.median(each[figure] for each in runs))


def _rate(runs: Sequence[Figures], figure: str = "rate") -> str:
    values = sorted(each[figure] / 1000 for each in runs)
    return f"{statistics.median(values):,.0f} k ({values[0]:,.0f}-{values[-1]:,.0f})"


# ---------------------------------------------------------------- parts


def index(plan: Plan, engines: Sequence[str]) -> tuple[str, Figures]:
    """The wheel's own index: units written and slots changed, without log or messages."""
    if "wheel" not in engines:
        return "", {}
    results = {}
    rows = []
    for batch in (1, 100, 1000, 10_000):
        results[str(batch)] = runs = [
            run("index", plan.directory, engine="wheel", batch=batch, timers=min(plan.slot, 2000 * batch)) for _ in range(plan.rounds)
        ]
        rows.append([f"{batch:,}", _rate(runs), f"{median(runs, 'cpu_us'):.2f}"])
    text = "**The wheel's index alone**, timers/s (lowest and highest round): due times uniform over one hour, nothing synced."
    return f"{text}\n\n{table(['batch', 'timers/s', 'CPU, µs'], rows)}", results


def hand_over(plan: Plan, engines: Sequence[str]) -> tuple[str, Figures]:
    """Everything of one slot, and of one hour, handed over."""
    results: Figures = {}
    rows = []
    for engine in engines:
        row = [engine]
        for spread in ("slot", "hour"):
            runs = [run("hand_over", plan.directory, engine=engine, spread=spread, timers=plan.slot) for _ in range(plan.rounds)]
            results[f"{engine} {spread}"] = runs
            row += [_rate(runs), f"{median(runs, 'cpu_us'):.1f}"]
        rows.append(row)
    text = f"**Hand-over** of {plan.slot:,} timers of 256 B, msgs/s: all in one slot, or at random times of one hour."
    return f"{text}\n\n{table(['', 'one slot', 'CPU, µs', 'one hour', 'CPU, µs'], rows)}", results


def cancel(plan: Plan, engines: Sequence[str]) -> tuple[str, Figures]:
    """Cancels inside one slot."""
    results: Figures = {}
    rows = []
    for engine in engines:
        row = [engine]
        for by in ("handle", "key"):
            count = plan.cancels if by == "handle" else min(plan.cancels, 10_000)
            runs = [run("cancel", plan.directory, engine=engine, by=by, timers=plan.slot, count=count) for _ in range(plan.rounds)]
            results[f"{engine} {by}"] = runs
            row += [_rate(runs)]
        rows.append(row)
    text = (
        f"**Cancels** inside a slot of {plan.slot:,}, timers/s, synced: {plan.cancels:,} picked at random, by handle in calls "
        "of 1000; by key one in a call."
    )
    return f"{text}\n\n{table(['', 'by handle', 'by key'], rows)}", results


def pop(plan: Plan, engines: Sequence[str]) -> tuple[str, Figures]:
    """Pops and acks."""
    results: Figures = {}
    rows = []
    buffered = [("wheel, `pop.buffer`", "wheel", True)] if "wheel" in engines else []
    for name, engine, buffer in [*((each, each, False) for each in engines), *buffered]:
        row = [name]
        for batch in (1, 32, 1024):
            count = plan.messages if batch > 1 else max(plan.messages // 20, 1000)
            runs = [run("pop", plan.directory, engine=engine, batch=batch, timers=count, buffer=buffer) for _ in range(plan.rounds)]
            results[f"{name} {batch}"] = runs
            row += [_rate(runs), f"{median(runs, 'cpu_us'):.0f}"]
        rows.append(row)
    text = "**Pop + ack**, msgs/s: pops of so many messages of 256 B, then their ack, each call synced, save with the buffer."
    head = [name for batch in ("1", "32", "1024") for name in (batch, "CPU, µs")]
    return f"{text}\n\n{table(['', *head], rows)}", results


def backlog(plan: Plan, engines: Sequence[str]) -> tuple[str, Figures]:
    """Scheduling into a full store, and what it keeps in memory."""
    results: Figures = {}
    rows = []
    for engine in engines:
        results[engine] = figures = run("backlog", plan.directory, engine=engine, timers=plan.backlog)
        share = figures["full_cpu_us"] / figures["empty_cpu_us"]
        rates = [f"{figures[name] / 1000:,.0f} k" for name in ("empty", "full")]
        rows.append([engine, *rates, f"{figures['full'] / figures['empty']:.0%}", f"{share:.2f}", f"{figures['anonymous_mib']:.0f}"])
    text = (
        f"**{plan.backlog:,} pending timers** of 256 B, uniform over one day, batches of 1000, synced: the rate in the first and in the "
        "last twentieth, the CPU time of the one over the other, and anonymous memory at the end, MiB."
    )
    return f"{text}\n\n{table(['', 'first', 'last', 'last / first', 'CPU', 'MiB'], rows)}", results


def reopen(plan: Plan, engines: Sequence[str]) -> tuple[str, Figures]:
    """The first open after ``kill -9``."""
    results: Figures = {}
    rows = []
    for engine in engines:
        medians = []
        for count in plan.reopen:
            runs = []
            for _ in range(plan.rounds if count < 5_000_000 else 1):
                with tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=plan.directory) as fresh:
                    in_process("fill_and_die", fresh, {"engine": engine, "timers": count, "tail": plan.tail}, killed=True)
                    runs.append(in_process("open", fresh, {"engine": engine, "timers": count + plan.tail}))
            results[f"{engine} {count}"] = runs
            medians.append(median(runs, "ms"))
        rows.append([engine, *(f"{each:,.0f}" for each in medians), f"{max(medians) / min(medians):.2f}"])
    text = f"**Open after `kill -9`**, ms: so many pending timers, of which the last {plan.tail:,} came behind the last orderly close."
    return f"{text}\n\n{table(['', *(f'{count:,}' for count in plan.reopen), 'highest / lowest'], rows)}", results


_PARTS: Final[dict[str, Callable[[Plan, Sequence[str]], tuple[str, Figures]]]] = {
    "index": index, "hand-over": hand_over, "cancel": cancel, "pop": pop, "backlog": backlog, "reopen": reopen,
}  # fmt: skip


# ---------------------------------------------------------------- the command


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rmqstore_benchmarks.backlog", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="little of everything: to see that it runs, not how fast")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), metavar="E", help="engines to measure (default %(default)s)")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, metavar="P", help="of %(choices)s; all of them")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default %(default)s)")
    parser.add_argument("--backlog", type=int, default=20_000_000, help="timers of the full store (default %(default)s)")
    parser.add_argument("--directory", type=Path, default=default_directory(), help="on the disk to measure (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write every figure of every round to this file")
    parser.add_argument("--markdown", type=Path, help="put each table into this page, between the markers of its part")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; see ``--help``."""
    given = _parsed(arguments)
    engines = installed(given.engines)
    sizes: dict[str, Any] = {"rounds": given.rounds, "backlog": given.backlog} | (SMALL if given.small else {})
    plan = Plan(directory=given.directory, **sizes)
    most = max([plan.backlog] * ("backlog" in given.parts) + [*plan.reopen] * ("reopen" in given.parts) + [plan.slot])
    require_room(given.directory, most, _TIMER_BYTES)
    machine = described(given.directory)
    results: Figures = {}
    command = command_line("rmqstore_benchmarks.backlog", arguments)
    note = f"`{command}`: {sentence(machine)}"
    for part in given.parts:
        print(f"{part} …", file=sys.stderr, flush=True)
        text, results[part] = _PARTS[part](plan, engines)
        print(text, end="\n\n", flush=True)
        if given.markdown and text:
            replace_part(given.markdown, part, f"{text}\n\n{note}")
    print(note)
    if given.json:
        keep_results(given.json, command, machine, plan, results)


if __name__ == "__main__":
    main()
