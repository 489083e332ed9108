"""``rmqstore demo``: a day of orders through every installed engine, checked order by order; then some seconds on the real clock."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rmqstore.cli import stores
from rmqstore.cli.demo_orders import START_MS, Order, OrderDay, Tally, make_orders
from rmqstore.cli.demo_store import check_place, leave_store
from rmqstore.cli.options import complete_engine, examples
from rmqstore.clock import ManualClock, SystemClock
from rmqstore.message import Message
from rmqstore.plugins import EngineState, get_plugins
from rmqstore.store import open as open_store

_SEED = 7
_LIVE_TIMERS = 2000
_LIVE_SPREAD_MS = 3000
_LIVE_LEAD_MS = 400
_LIVE_PATIENCE_S = 15.0
_LIVE_PRECISION_MS = 100
_LIVE_TOPIC, _LIVE_GROUP = "alarms", "clock-watchers"
_EDGES_MS = (0, 25, 50, 75, 100, 150, 250, 500, 1000)
_BAR_WIDTH = 40
_EXIT_BROKEN_PROMISE = 1
_PROMISES = """Checked by order number, on every engine:
  - each paid order was cancelled, and never delivered;
  - each other one was handed over in the minute in which it was due, never early, and acked exactly once;
  - each message that the dead consumer held came again, and nothing else came twice;
  - nothing is pending, the lag is 0, verify() finds nothing.
"""
_LOOK_INSIDE = """
{store} is a store in the middle of its day. Ask it, as docs/guide.md does:
  rmqstore timers {store} --within 1h        what is due in the next hour
  rmqstore leases {store}                    who holds which message until when
  rmqstore dlq list {store} billing          which messages nobody could handle, and why
  rmqstore lag {store}                       how far each group is behind
  rmqstore config {store} --explain          its settings, and where they come from"""


class Lateness(msgspec.Struct, frozen=True):
    """How late each live timer reached its consumer, ms, and what was wrong."""

    late_ms: list[int]
    problems: list[str]


@examples("rmqstore demo", "rmqstore demo --orders 10000 --live 0", "rmqstore demo --keep stores")
def demo(
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", "-e", metavar="NAME", help="Only this engine; may be given again.", autocompletion=complete_engine),
    ] = None,
    orders: Annotated[int, typer.Option(metavar="N", min=1, help="Orders in the simulated day.")] = 100_000,
    live: Annotated[int, typer.Option(metavar="N", min=0, help="Timers on the real clock; 0 leaves that part out.")] = _LIVE_TIMERS,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Leave the stores in this directory, for a look inside.")] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave a store there to try the other commands on; an earlier one is replaced.")
    ] = None,
) -> None:
    """Play a day of orders that close unless they are paid.

    A day of simulated time on every installed engine: a timer per order, 85 % of them cancelled in time, the others delivered to three
    consumers, one of which dies. Every order is checked at the end. Then timers on the real clock, and how late they are.
    """
    console = Console(highlight=False)
    if store is not None:
        check_place(store)
    names = _engine_names(engine, console)
    day = make_orders(orders, _SEED)
    paid = sum(order.paid_ms is not None for order in day)
    console.print(f"A day of {orders:,} orders; each closes after 30 minutes unless it is paid, as {paid:,} are.", soft_wrap=True)
    console.print("One flush makes five simulated minutes durable. One of three consumers hangs at 20:00 and dies.\n", soft_wrap=True)
    failed: list[str] = []
    tallies: dict[str, Tally] = {}
    late: dict[str, Lateness] = {}
    with _directory(keep, names) as root:
        with _progress(console) as progress:
            for name in names:
                tallies[name], problems = _play(name, root / name, day, progress)
                failed += [f"{name}: {problem}" for problem in problems]
        console.print("", _table(tallies), sep="\n")
        console.print(
            "msgs/s counts every send, cancel, delivery and ack; one cancel in 100 is by key, the others by handle.\n", soft_wrap=True
        )
        if not failed:
            console.print(_PROMISES, soft_wrap=True)
        for name in names if live else ():
            late[name] = _live(name, root / f"{name}-live", live, console)
            failed += [f"{name}, live: {problem}" for problem in late[name].problems]
        if live:
            _show_lateness(late, live, console)
    if keep is not None:
        console.print(f"\nThe stores are in {keep}.", soft_wrap=True)
    if store is not None:
        leave_store(store, _durable(names), SystemClock().now_ms())
        console.print(_LOOK_INSIDE.format(store=store), soft_wrap=True, markup=False)
    if failed:
        shown = [*failed[:10], *([f"… and {len(failed) - 10} more"] if len(failed) > 10 else [])]
        typer.echo("rmqstore: a promise was broken\n" + "\n".join(f"  {line}" for line in shown), err=True)
        raise typer.Exit(_EXIT_BROKEN_PROMISE)


def _engine_names(wanted: list[str] | None, console: Console) -> list[str]:
    """Return the engines to show: those asked for, which must work, or all that work."""
    plugins = stores.plugins()
    if wanted:
        for name in wanted:
            plugins.load_engine(name)
        return list(dict.fromkeys(wanted))
    entries = plugins.engines()
    for entry in entries:
        if entry.state is not EngineState.OK:
            console.print(f"{entry.name} is left out, it is {entry.state.value}: {entry.reason}", markup=False)
    names = [entry.name for entry in entries if entry.state is EngineState.OK]
    if not names:
        typer.echo("rmqstore: no engine is installed. For example: pip install 'rmqstore[all]'", err=True)
        raise typer.Exit(1)
    return names


def _durable(names: list[str]) -> str:
    """Return the engine for the store that stays: the default one if it takes part, else one that keeps what it stores."""
    default = get_plugins().default_engine()
    return default if default in names else names[0]


@contextmanager
def _directory(keep: Path | None, names: list[str]) -> Iterator[Path]:
    """Give the directory for the stores; a temporary one when nothing is kept."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="rmqstore-demo-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    for path in (keep / f"{name}{suffix}" for name in names for suffix in ("", "-live")):
        if path.exists():
            raise FileExistsError(f"{path} exists already; give --keep another directory, or remove it")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description:10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("orders and payments"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def _play(engine: str, path: Path, day: list[Order], progress: Progress) -> tuple[Tally, list[str]]:
    clock = ManualClock(START_MS)
    task = progress.add_task(engine, total=len(day) + sum(order.paid_ms is not None for order in day))
    with open_store(path, engine=engine, clock=clock, services=False, flush="async") as store:
        played = OrderDay(store, clock, day)
        tally = played.play(lambda done: progress.advance(task, done))
        return tally, played.problems()


def _table(tallies: dict[str, Tally]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("engine")
    for heading in ("in", "cancelled", "delivered", "redelivered", "acked", "seconds", "msgs/s"):
        table.add_column(heading, justify="right")
    for name, tally in tallies.items():
        numbers = (tally.orders, tally.cancelled, tally.delivered, tally.redelivered, tally.acked)
        rate = tally.operations / max(tally.seconds, 1e-9)
        table.add_row(name, *(f"{number:,}" for number in numbers), f"{tally.seconds:.1f}", f"{rate:,.0f}")
    return table


# ---------------------------------------------------------------- the real clock


def _live(engine: str, path: Path, timers: int, console: Console) -> Lateness:
    """Store timers that are due within seconds, and consume them as they come, with the store's own thread handing over."""
    rng = np.random.default_rng(_SEED)
    late_ms: list[int] = []
    seen: set[str] = set()
    problems: list[str] = []
    clock = SystemClock()
    with (
        console.status(f"{engine}: {timers:,} timers on the real clock"),
        open_store(path, engine=engine, precision_ms=_LIVE_PRECISION_MS) as store,
    ):
        start_ms = clock.now_ms() + _LIVE_LEAD_MS
        due_ms = (start_ms + rng.integers(0, _LIVE_SPREAD_MS, timers)).tolist()
        store.send_batch([Message(_LIVE_TOPIC, b"ring", keys=(str(row),), deliver_at_ms=at) for row, at in enumerate(due_ms)])
        until_s = time.monotonic() + _LIVE_PATIENCE_S
        while len(late_ms) < timers and time.monotonic() < until_s:
            popped = store.pop(_LIVE_TOPIC, _LIVE_GROUP, max_messages=128, wait_ms=500)
            now_ms = clock.now_ms()
            for message in popped:
                late_ms.append(now_ms - (message.deliver_at_ms or 0))
                if message.keys[0] in seen:
                    problems.append(f"timer {message.keys[0]} came twice")
                seen.add(message.keys[0])
            store.ack(popped)
        if len(seen) < timers:
            problems.append(f"{timers - len(seen)} of {timers} timers did not come within {_LIVE_PATIENCE_S:.0f} s")
        if any(late < 0 for late in late_ms):
            problems.append(f"{sum(late < 0 for late in late_ms)} timers came early, by up to {-min(late_ms)} ms")
    return Lateness(late_ms, problems)


def _show_lateness(late: dict[str, Lateness], timers: int, console: Console) -> None:
    console.print(
        f"On the real clock: {timers:,} timers due within {_LIVE_SPREAD_MS / 1000:g} s, ticks of {_LIVE_PRECISION_MS} ms, all synced;\n"
        "lateness from the due time to the consumer:",
        soft_wrap=True,
    )
    table = Table(header_style="bold")
    table.add_column("ms late")
    for name in late:
        table.add_column(name, min_width=_BAR_WIDTH // max(len(late), 1))
    counts = {name: np.histogram(each.late_ms, (*_EDGES_MS, np.inf))[0].tolist() for name, each in late.items()}
    labels = [f"{low}-{high}" for low, high in zip(_EDGES_MS, _EDGES_MS[1:], strict=False)] + [f"{_EDGES_MS[-1]} and more"]
    width = max(_BAR_WIDTH // max(len(late), 1), 10)
    for row, label in enumerate(labels):
        if any(counts[name][row] for name in late):
            most = max(max(each) for each in counts.values())
            table.add_row(label, *("█" * round(width * counts[name][row] / most) + f" {counts[name][row]:,}" for name in late))
    table.add_section()
    for label, share in (("p50", 50), ("p99", 99), ("max", 100)):
        table.add_row(label, *(f"{np.percentile(each.late_ms, share):.0f} ms" if each.late_ms else "-" for each in late.values()))
    table.add_row("early", *(str(sum(ms < 0 for ms in each.late_ms)) for each in late.values()))
    console.print(table)
