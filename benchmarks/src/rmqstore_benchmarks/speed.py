"""``python -m rmqstore_benchmarks.speed``: every engine beside what lies under it, with the same keys, sizes, batches and syncs.

Each measurement runs in a process and a directory of its own (``measures``). What is compared runs in turns, in an order that rotates from
round to round; figures are medians over the rounds, ratios are medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rmqstore_benchmarks.baseline import RAW
from rmqstore_benchmarks.machine import default_directory, described, replace_part, sentence, table
from rmqstore_benchmarks.measures import Figures, Task
from rmqstore_benchmarks.runs import command_line, installed, keep_results, require_room
from rmqstore_benchmarks.workloads import BODY_BYTES, DISTRIBUTIONS

ENGINES: Final = ("wheel", "rocksdb", "lmdb", "memory")
PHASES: Final = ("hand_over", "pop", "ack", "read")
MIN_SCHEDULE_SHARE: Final = {"wheel": 0.30, "rocksdb": 0.60, "lmdb": 0.60}
MIN_DRAIN: Final = 60_000
MAX_SINGLE_FACTOR: Final = 1.5
MAX_MEMORY_GROWTH: Final = 1.10
_SETTLED_SHARE: Final = 0.2
"""The parts of a memory run that are compared: its second and its last fifth."""

Rounds = list[Figures]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    engines: tuple[str, ...]
    directory: Path
    rounds: int = 5
    timers: int = 100_000
    batch: int = 1000
    singles: int = 1000
    memory_timers: int = 5_000_000

    def rival(self, engine: str) -> bool:
        """Say whether there is a raw database to compare with."""
        return engine in RAW


def run(task: Task, directory: Path) -> Figures:
    """Run one measurement in a fresh process and a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=directory) as fresh:
        text = msgspec.json.encode(msgspec.structs.replace(task, directory=fresh)).decode()
        done = subprocess.run([sys.executable, "-m", "rmqstore_benchmarks.measures", text], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the measurement {text} ended with {done.returncode}")
    figures: Figures = json.loads(done.stdout)
    return figures


def in_turns(tasks: dict[str, Task], rounds: int, directory: Path) -> Rounds:
    """Run the tasks ``rounds`` times, A B C, B C A, …; returns, per round, what each gave."""
    names = list(tasks)
    measured = []
    for number in range(rounds):
        turned = names[number % len(names) :] + names[: number % len(names)]
        figures = {name: run(tasks[name], directory) for name in turned}
        measured.append({name: figures[name] for name in names})
        print(".", end="", file=sys.stderr, flush=True)
    return measured


def measure(plan: Plan) -> dict[str, Any]:
    """Measure rates and latencies; everything that was measured, round by round."""
    results: dict[str, Any] = {"batches": {}, "singles": {}}
    for engine in plan.engines:
        results["batches"][engine] = {}
        for distribution in DISTRIBUTIONS:
            print(f"{engine}, {distribution} ", end="", file=sys.stderr, flush=True)
            basis = Task(what="", engine=engine, directory="", distribution=distribution, timers=plan.timers, batch=plan.batch)
            whats = [*(["schedule_raw"] if plan.rival(engine) else []), "pipeline", "schedule_lists"]
            tasks = {what: msgspec.structs.replace(basis, what=what) for what in whats}
            results["batches"][engine][distribution] = in_turns(tasks, plan.rounds, plan.directory)
            print(file=sys.stderr)
        print(f"{engine}, one at a time ", end="", file=sys.stderr, flush=True)
        whats = [*(["single_raw"] if plan.rival(engine) else []), "single_send"]
        tasks = {what: Task(what=what, engine=engine, directory="", timers=plan.singles) for what in whats}
        results["singles"][engine] = in_turns(tasks, plan.rounds, plan.directory)
        print(file=sys.stderr)
    return results


def measure_memory(plan: Plan) -> dict[str, Any]:
    """Measure how anonymous memory moves while timers pile up."""
    results = {}
    for engine in plan.engines:
        if plan.rival(engine):
            sample_every = max(plan.memory_timers // 20, plan.batch)
            task = Task(
                what="memory", engine=engine, directory="", distribution="lognormal", timers=plan.memory_timers, sample_every=sample_every
            )
            results[engine] = run(task, plan.directory)
    return results


# ---------------------------------------------------------------- tables


def _median(rounds: Rounds, what: str, figure: str) -> float:
    return float(statistics.median(each[what][figure] for each in rounds))


def _share(rounds: Rounds, what: str, rival: str, figure: str) -> tuple[float, float, float]:
    """Return median, lowest and highest ratio within a round."""
    ratios = sorted(each[what][figure] / each[rival][figure] for each in rounds)
    return statistics.median(ratios), ratios[0], ratios[-1]


def _verdict(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _thousands(rate: float) -> str:
    return f"{rate / 1000:,.0f} k"


def speed_tables(results: dict[str, Any], plan: Plan) -> str:
    """Return the figures of :func:`measure` as Markdown."""
    schedule, drain, singles = [], [], []
    for engine, by_distribution in results["batches"].items():
        for distribution, rounds in by_distribution.items():
            arrow, lists = _median(rounds, "pipeline", "schedule"), _median(rounds, "schedule_lists", "schedule")
            if plan.rival(engine):
                share, low, high = _share(rounds, "pipeline", "schedule_raw", "schedule")
                raw = _thousands(_median(rounds, "schedule_raw", "schedule"))
                against = [
                    raw,
                    f"{share:.0%}",
                    f"{low:.0%}-{high:.0%}",
                    f"{MIN_SCHEDULE_SHARE[engine]:.0%}",
                    _verdict(share >= MIN_SCHEDULE_SHARE[engine]),
                ]
                raw_cpu = f" / {_median(rounds, 'schedule_raw', 'schedule_cpu_us'):.1f}"
            else:
                against, raw_cpu = ["", "", "", "", ""], ""
            cpu = f"{_median(rounds, 'pipeline', 'schedule_cpu_us'):.1f}{raw_cpu}"
            schedule.append([f"{engine}, {distribution}", _thousands(arrow), _thousands(lists), *against, cpu])
            phases = [_thousands(_median(rounds, "pipeline", phase)) for phase in PHASES]
            whole = _median(rounds, "pipeline", "drain")
            drain.append(
                [
                    f"{engine}, {distribution}",
                    _thousands(whole),
                    _verdict(whole >= MIN_DRAIN),
                    *phases,
                    f"{_median(rounds, 'pipeline', 'drain_cpu_us'):.1f}",
                ]
            )
    for engine, rounds in results["singles"].items():
        send = [f"{_median(rounds, 'single_send', figure):.3f}" for figure in ("p50_ms", "p99_ms")]
        if plan.rival(engine):
            raw_put = [f"{_median(rounds, 'single_raw', figure):.3f}" for figure in ("p50_ms", "p99_ms")]
            factor, _, _ = _share(rounds, "single_send", "single_raw", "p50_ms")
            singles.append([engine, *send, *raw_put, f"{factor:.2f}", _verdict(factor <= MAX_SINGLE_FACTOR)])
        else:
            singles.append([engine, *send, "", "", "", ""])
    about_schedule = (
        f"**Schedule**, timers/s: {plan.timers:,} timers of {BODY_BYTES} B, batches of {plan.batch:,}, each synced, {plan.rounds} rounds. "
        "*raw* is the database alone, for wheel a plain append of the same bytes; *share* is send_batch (Arrow) of it; *CPU* is µs a "
        "timer, ours / raw, which a busy machine disturbs least."
    )
    about_drain = (
        "**Hand over, pop, ack**, msgs/s: the same timers, all due at once; pops of 1024, each pop and each ack synced. *all* is the three "
        "phases together, *CPU* its µs a message; *read*, turning what was popped into columns, comes on top."
    )
    notes = (about_schedule, about_drain, f"**One at a time**, ms: {plan.singles:,} calls, each synced.")
    tables = (
        table(["", "send_batch (Arrow)", "(list)", "raw", "share", "spread", "target", "met", "CPU"], schedule),
        table(["", "all", f">= {MIN_DRAIN // 1000} k", "hand-over", "pop", "ack", "read", "CPU"], drain),
        table(["", "send p50", "p99", "raw put p50", "p99", "factor of p50", f"<= {MAX_SINGLE_FACTOR}"], singles),
    )
    parts = [part for pair in zip(notes, tables, strict=True) for part in pair]
    return "\n\n".join(parts)


def memory_table(results: dict[str, Any], plan: Plan) -> str:
    """Return the figures of :func:`measure_memory` as Markdown."""
    rows = []
    for engine, figures in results.items():
        samples = figures["samples"]
        growth, settled, last = memory_growth(samples)
        shown = [f"{samples[at][1]:.0f}" for at in (0, len(samples) // 4, len(samples) // 2, 3 * len(samples) // 4)]
        rows.append([engine, *shown, f"{last:.0f}", f"{settled:.0f}", f"{growth:.2f}", _verdict(growth <= MAX_MEMORY_GROWTH)])
    text = (
        f"**Anonymous memory** (RssAnon, MiB) while {plan.memory_timers:,} timers of {BODY_BYTES} B are stored, log-normal delays, none "
        "delivered. *settled* is the highest sample in the second fifth of the run, *last* the highest in its last fifth; flat means "
        f"last <= {MAX_MEMORY_GROWTH:.2f} x settled."
    )
    return f"{text}\n\n{table(['', 'first sample', '1/4', '1/2', '3/4', 'last', 'settled', 'last / settled', 'flat'], rows)}"


def memory_growth(samples: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return (last / settled, settled, last) of (timers, MiB) samples: the highest of the second fifth and of the last fifth."""
    step = max(int(len(samples) * _SETTLED_SHARE), 1)
    settled = max(mib for _, mib in samples[step : 2 * step] or samples)
    last = max(mib for _, mib in samples[-step:])
    return last / settled, settled, last


# ---------------------------------------------------------------- the command


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rmqstore_benchmarks.speed", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="1 round of 20 000 timers: to see that it runs, not how fast")
    parser.add_argument(
        "--engines", nargs="+", default=list(ENGINES), metavar="E", help="engines to measure, those installed of: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default %(default)s)")
    parser.add_argument("--timers", type=int, default=100_000, help="timers in one measurement (default %(default)s)")
    parser.add_argument("--memory", action="store_true", help="measure memory instead, over --memory-timers")
    parser.add_argument("--memory-timers", type=int, default=5_000_000, help="timers of the memory run (default %(default)s)")
    parser.add_argument(
        "--directory", type=Path, default=default_directory(), help="a directory on the disk to measure (default %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write every figure of every round to this file")
    parser.add_argument("--markdown", type=Path, help="put the tables into this page, between its markers")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; see ``--help``."""
    given = _parsed(arguments)
    engines = installed(given.engines)
    small = {"rounds": 1, "timers": 20_000, "singles": 200, "memory_timers": 200_000} if given.small else {}
    sizes = {"rounds": given.rounds, "timers": given.timers, "memory_timers": given.memory_timers} | small
    plan = Plan(engines=engines, directory=given.directory, **sizes)
    if given.memory:
        require_room(given.directory, plan.memory_timers, 4 * 1024)
    machine = described(given.directory)
    results = measure_memory(plan) if given.memory else measure(plan)
    tables = memory_table(results, plan) if given.memory else speed_tables(results, plan)
    command = command_line("rmqstore_benchmarks.speed", arguments)
    text = f"{tables}\n\n`{command}`: {sentence(machine)}"
    print(text)
    if given.json:
        keep_results(given.json, command, machine, plan, results)
    if given.markdown:
        replace_part(given.markdown, "memory" if given.memory else "speed", text)


if __name__ == "__main__":
    main()
