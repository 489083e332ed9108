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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rmqstore.cli import show, stores
from rmqstore.cli.demo_orders import START_MS, Order, OrderDay, Tally, make_orders
from rmqstore.cli.demo_store import check_place, leave_store
from rmqstore.cli.exits import EXIT_ERROR
from rmqstore.cli.options import complete_engine, examples
from rmqstore.cli.show import Cell
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
_COUNTED = ("in", "cancelled", "delivered", "redelivered", "acked", "seconds", "msgs/s")
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
    if store is not None:
        check_place(store)
    names = _engine_names(engine)
    day = make_orders(orders, _SEED)
    paid = sum(order.paid_ms is not None for order in day)
    show.line(f"A day of {orders:,} orders; each closes after 30 minutes unless it is paid, as {paid:,} are.")
    show.line("One flush makes five simulated minutes durable. One of three consumers hangs at 20:00 and dies.\n")
    failed: list[str] = []
    with _directory(keep, names) as root:
        tallies: list[tuple[str, Tally]] = []
        columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TextColumn("orders and payments"))
        with show.progress(*columns, TimeElapsedColumn()) as progress:
            for name in names:
                tally, problems = _play(name, root / name, day, progress)
                tallies.append((name, tally))
                failed += [f"{name}: {problem}" for problem in problems]
        show.table(show.columns(["engine"], _COUNTED), [_counts(name, tally) for name, tally in tallies])
        show.line("msgs/s counts every send, cancel, delivery and ack; one cancel in 100 is by key, the others by handle.\n")
        if not failed:
            show.line(_PROMISES)
        if live:
            show.line(f"On the real clock: {live:,} timers due within {_LIVE_SPREAD_MS} ms, ticks of {_LIVE_PRECISION_MS} ms, all synced;")
            show.line("lateness from the due time to the consumer, ms:")
            late = [(name, _live(root / f"{name}-live", name, live)) for name in names]
            failed += [f"{name}, live: {problem}" for name, found in late for problem in found.problems]
            show.table(show.columns(["engine"], ["p50", "p99", "max", "early"]), [[name, *found.figures()] for name, found in late])
    if keep is not None:
        show.line(f"\nThe stores are in {keep}.")
    if store is not None:
        default = get_plugins().default_engine()
        leave_store(store, default if default in names else names[0], SystemClock().now_ms())
        show.line(_LOOK_INSIDE.format(store=store))
    if failed:
        shown = [*failed[:10], *([f"… and {len(failed) - 10} more"] if len(failed) > 10 else [])]
        show.note("rmqstore: a promise was broken\n" + "\n".join(f"  {line}" for line in shown))
        raise typer.Exit(EXIT_ERROR)


def _engine_names(wanted: list[str] | None) -> list[str]:
    """Return the engines to show: those asked for, which must work, or all that work."""
    plugins = stores.plugins()
    if wanted:
        for name in wanted:
            plugins.load_engine(name)
        return list(dict.fromkeys(wanted))
    entries = plugins.engines()
    for entry in entries:
        if entry.state is not EngineState.OK:
            show.line(f"{entry.name} is left out, it is {entry.state.value}: {entry.reason}")
    names = [entry.name for entry in entries if entry.state is EngineState.OK]
    if not names:
        show.note("rmqstore: no engine is installed. For example: pip install 'rmqstore[all]'")
        raise typer.Exit(EXIT_ERROR)
    return names


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


def _play(engine: str, path: Path, day: list[Order], progress: Progress) -> tuple[Tally, list[str]]:
    clock = ManualClock(START_MS)
    task = progress.add_task(engine, total=len(day) + sum(order.paid_ms is not None for order in day))
    with open_store(path, engine=engine, clock=clock, services=False, flush="async") as store:
        played = OrderDay(store, clock, day)
        tally = played.play(lambda done: progress.advance(task, done))
        return tally, played.problems()


def _counts(engine: str, tally: Tally) -> list[Cell]:
    rate = tally.operations / max(tally.seconds, 1e-9)
    counts = (tally.orders, tally.cancelled, tally.delivered, tally.redelivered, tally.acked)
    return [engine, *counts, f"{tally.seconds:.1f}", f"{rate:,.0f}"]


# ---------------------------------------------------------------- the real clock


class Lateness(msgspec.Struct, frozen=True):
    """How late each live timer reached its consumer, ms, and what was wrong."""

    late_ms: list[int]
    problems: list[str]

    def figures(self) -> list[Cell]:
        """Return the lateness of half of the timers, of 99 % and of all, ms, and how many came early."""
        late = [f"{np.percentile(self.late_ms, share):.0f}" if self.late_ms else "-" for share in (50, 99, 100)]
        return [*late, sum(each < 0 for each in self.late_ms)]


def _live(path: Path, engine: str, timers: int) -> Lateness:
    """Store timers that are due within seconds, and consume them as they come, with the store's own thread handing over."""
    rng = np.random.default_rng(_SEED)
    late_ms: list[int] = []
    seen: set[str] = set()
    problems: list[str] = []
    clock = SystemClock()
    with open_store(path, engine=engine, precision_ms=_LIVE_PRECISION_MS) as store:
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
