"""``rmqstore demo``: a day of orders through every installed engine, checked order by order; then some seconds on the real clock.

The day is that of a shop whose orders close after 30 minutes unless they are paid. With ``--store`` it also leaves a store for a look
inside: another shop, in the middle of its day, with all that an operator meets.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.progress import MofNCompleteColumn, Progress

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_ERROR
from rmqstore.cli.options import EnginesOption, examples
from rmqstore.cli.show import Cell
from rmqstore.clock import ManualClock, SystemClock
from rmqstore.contract import AckOutcome, CancelOutcome
from rmqstore.errors import StorePathError
from rmqstore.late import np
from rmqstore.message import Message, PoppedMessage
from rmqstore.plugins import EngineState, get_plugins
from rmqstore.store import Store, open as open_store
from rmqstore.store.sending import SendReceipt

_SEED = 7
_LIVE_TIMERS = 2000
_LIVE_SPREAD_MS = 3000
_LIVE_LEAD_MS = 400
_LIVE_PATIENCE_S = 15.0
_LIVE_PRECISION_MS = 100
_LIVE_TOPIC, _LIVE_GROUP = "alarms", "clock-watchers"
_COUNTED = ("in", "cancelled", "delivered", "redelivered", "acked")
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
    engine: EnginesOption = None,
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
        rows: list[dict[str, Cell]] = []
        with show.progress("{task.description:10}", MofNCompleteColumn(), "orders and payments") as progress:
            for name in names:
                counts, problems = _play(name, root / name, day, progress)
                rows.append({"engine": name, **counts})
                failed += [f"{name}: {problem}" for problem in problems]
        show.table(rows, right=["seconds", "msgs/s"])
        show.line("msgs/s counts every send, cancel, delivery and ack; one cancel in 100 is by key, the others by handle.\n")
        if not failed:
            show.line(_PROMISES)
        if live:
            show.line(f"On the real clock: {live:,} timers due within {_LIVE_SPREAD_MS} ms, ticks of {_LIVE_PRECISION_MS} ms, all synced;")
            show.line("lateness from the due time to the consumer, ms:")
            rows = []
            for name in names:
                late_ms, problems = _live(root / f"{name}-live", name, live)
                shares = {"p50": 50, "p99": 99, "max": 100}
                late = {share: f"{np.percentile(late_ms, at):.0f}" if late_ms else "-" for share, at in shares.items()}
                rows.append({"engine": name, **late, "early": sum(each < 0 for each in late_ms)})
                failed += [f"{name}, live: {problem}" for problem in problems]
            show.table(rows, right=["p50", "p99", "max"])
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


def _play(engine: str, path: Path, day: list[Order], progress: Progress) -> tuple[dict[str, Cell], list[str]]:
    """Play the day through an engine; returns a row of the table of counts, and what was wrong."""
    clock = ManualClock(START_MS)
    task = progress.add_task(engine, total=len(day) + sum(order.paid_ms is not None for order in day))
    with open_store(path, engine=engine, clock=clock, services=False, flush="async") as store:
        begun_s = time.perf_counter()
        played = OrderDay(store, clock, day)
        played.play(lambda done: progress.advance(task, done))
        seconds, counts = time.perf_counter() - begun_s, played.counts()
        rates = {"seconds": f"{seconds:.1f}", "msgs/s": f"{sum(counts) / seconds:,.0f}"}
        return {**dict(zip(_COUNTED, counts, strict=True)), **rates}, played.problems()


# ---------------------------------------------------------------- the real clock


def _live(path: Path, engine: str, timers: int) -> tuple[list[int], list[str]]:
    """Store timers that are due within seconds, and consume them as they come; returns how late each came, ms, and what was wrong.

    The store's own thread hands over.
    """
    rng = np.random.default_rng(_SEED)
    late_ms: list[int] = []
    seen: Counter[str] = Counter()
    clock = SystemClock()
    with open_store(path, engine=engine, precision_ms=_LIVE_PRECISION_MS) as store:
        start_ms = clock.now_ms() + _LIVE_LEAD_MS
        due_ms = (start_ms + rng.integers(0, _LIVE_SPREAD_MS, timers)).tolist()
        store.send_batch([Message(_LIVE_TOPIC, b"ring", keys=(str(row),), deliver_at_ms=at) for row, at in enumerate(due_ms)])
        until_s = time.monotonic() + _LIVE_PATIENCE_S
        while len(late_ms) < timers and time.monotonic() < until_s:
            popped = store.pop(_LIVE_TOPIC, _LIVE_GROUP, max_messages=128, wait_ms=500)
            now_ms = clock.now_ms()
            late_ms += [now_ms - (message.deliver_at_ms or 0) for message in popped]
            seen.update(message.keys[0] for message in popped)
            store.ack(popped)
    problems = [f"timer {key} came {times} times" for key, times in seen.items() if times > 1]
    if len(seen) < timers:
        problems.append(f"{timers - len(seen)} of {timers} timers did not come within {_LIVE_PATIENCE_S:.0f} s")
    if early := sum(late < 0 for late in late_ms):
        problems.append(f"{early} timers came early, by up to {-min(late_ms)} ms")
    return late_ms, problems


# ---------------------------------------------------------------- a day of orders


TOPIC: Final = "close-order"
GROUP: Final = "closers"
MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
START_MS: Final = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 1000
CLOSE_AFTER_MS: Final = 30 * MINUTE_MS
LAST_PAID_MS: Final = 28 * MINUTE_MS
PAID_SHARE: Final = 0.85
BY_KEY_EVERY: Final = 100
"""One payment in so many knows only the order's number, not the handle, so it cancels by key."""

HANG_MS: Final = START_MS + 20 * 60 * MINUTE_MS
DEATH_MS: Final = HANG_MS + 5 * MINUTE_MS
"""In the evening peak the third consumer hangs: it pops and acks nothing any more, until it dies."""

FLUSH_EVERY_MS: Final = 5 * MINUTE_MS
INVISIBLE_MS: Final = 2 * MINUTE_MS
POP: Final = 32
HUNG_POP: Final = 256
_SETTLE_MINUTES: Final = 10
_SHOWN_IDS: Final = 3


class Order(msgspec.Struct, frozen=True):
    """One order; ``paid_ms`` is None when it is not paid."""

    number: str
    created_ms: int
    paid_ms: int | None
    body: bytes

    @property
    def closes_ms(self) -> int:
        """When it is closed unless it was paid."""
        return self.created_ms + CLOSE_AFTER_MS


def make_orders(count: int, seed: int) -> list[Order]:
    """Return a day of ``count`` orders by time of arrival: quiet nights, a peak at noon, a higher one in the evening."""
    rng = np.random.default_rng(seed)
    hour = (np.arange(1440) + 0.5) / 60
    rate = 0.15 + 1.1 * np.exp(-(((hour - 12.5) / 1.8) ** 2)) + 1.6 * np.exp(-(((hour - 20.0) / 2.2) ** 2)) + 0.4 * (hour > 8)
    minutes = rng.choice(1440, count, p=rate / rate.sum())
    created = np.sort(minutes * MINUTE_MS + rng.integers(0, MINUTE_MS, count)) + START_MS
    waited = np.minimum(rng.lognormal(np.log(4 * MINUTE_MS), 0.9, count), LAST_PAID_MS).astype(np.int64)
    is_paid = rng.random(count) < PAID_SHARE
    customers = rng.zipf(1.3, count) % 40_000
    cents = (100 * rng.lognormal(3.4, 0.8, count)).astype(np.int64) + 99
    orders = []
    for row, (at, wait, paid, customer, amount) in enumerate(
        zip(created.tolist(), waited.tolist(), is_paid.tolist(), customers.tolist(), cents.tolist(), strict=True)
    ):
        number = f"A{row:07d}"
        body = {"order": number, "customer": f"C{customer:05d}", "amount": f"{amount / 100:.2f}", "currency": "EUR", "created_ms": at}
        orders.append(Order(number, at, at + wait if paid else None, json.dumps(body).encode()))
    return orders


def _end_of_minute(ms: int) -> int:
    return ms - ms % MINUTE_MS + MINUTE_MS


class OrderDay:
    """Plays the day against one store, minute by minute, and keeps what it saw by order number."""

    def __init__(self, store: Store, clock: ManualClock, orders: Sequence[Order]) -> None:
        self._store = store
        self._clock = clock
        self._orders = orders
        self._receipts: dict[str, SendReceipt] = {}
        self._arrivals: dict[int, list[Order]] = defaultdict(list)
        self._payments: dict[int, list[str]] = defaultdict(list)
        for order in orders:
            self._arrivals[_end_of_minute(order.created_ms)].append(order)
        payments = sorted((order.paid_ms, order.number) for order in orders if order.paid_ms is not None)
        for paid_ms, number in payments:
            self._payments[_end_of_minute(paid_ms)].append(number)
        self._by_key = {number for _, number in payments[::BY_KEY_EVERY]}
        self._deliveries: Counter[str] = Counter()
        self._acks: Counter[str] = Counter()
        self._cancelled: set[str] = set()
        self._problems: list[str] = []
        self._lost_leases = 0  # held by the consumer that hangs and dies

    def play(self, progress: Callable[[int], None]) -> None:
        """Play it minute by minute until all is closed and expired leases are back; ``progress`` is told what came in each."""
        for now_ms in range(START_MS + MINUTE_MS, START_MS + DAY_MS + CLOSE_AFTER_MS + _SETTLE_MINUTES * MINUTE_MS, MINUTE_MS):
            self._clock.set(now_ms)
            self._schedule(self._arrivals[now_ms])
            self._cancel_paid(now_ms)
            self._store.tick()
            self._consume(now_ms)
            if (now_ms - START_MS) % FLUSH_EVERY_MS == 0:
                self._store.flush()
            progress(len(self._arrivals[now_ms]) + len(self._payments[now_ms]))

    def counts(self) -> tuple[int, int, int, int, int]:
        """Return how many messages were sent, cancelled, delivered, delivered again and acked."""
        delivered = len(self._deliveries)
        return len(self._orders), len(self._cancelled), delivered, self._deliveries.total() - delivered, self._acks.total()

    def _schedule(self, orders: list[Order]) -> None:
        if orders:
            sent = self._store.send_batch(
                [Message(TOPIC, order.body, keys=(order.number,), deliver_at_ms=order.closes_ms) for order in orders]
            )
            self._receipts.update(zip((order.number for order in orders), sent, strict=True))

    def _cancel_paid(self, now_ms: int) -> None:
        paid = self._payments[now_ms]
        for number in self._by_key.intersection(paid):
            self._note_cancel(number, self._store.cancel_key(TOPIC, number))
        by_handle = {number: str(self._receipts[number].handle) for number in paid if number not in self._by_key}
        for number, outcome in zip(by_handle, self._store.cancel(list(by_handle.values())), strict=True):
            self._note_cancel(number, [outcome])

    def _note_cancel(self, number: str, outcomes: list[CancelOutcome]) -> None:
        if outcomes == [CancelOutcome.CANCELLED]:
            self._cancelled.add(number)
        else:
            self._problems.append(f"cancelling order {number} before its time gave {outcomes}")

    def _consume(self, now_ms: int) -> None:
        """Three consumers take turns until nothing is left; the third hangs, then dies, holding what it popped."""
        healthy = 3 if now_ms < HANG_MS else 2
        if HANG_MS <= now_ms < DEATH_MS:
            held = self._store.pop(TOPIC, GROUP, max_messages=HUNG_POP, invisible_ms=INVISIBLE_MS)
            self._note_deliveries(held)
            self._lost_leases += len(held)
        busy = True
        while busy:
            busy = False
            for _ in range(healthy):
                popped = self._store.pop(TOPIC, GROUP, max_messages=POP, invisible_ms=INVISIBLE_MS)
                if popped:
                    busy = True
                    self._note_deliveries(popped)
                    self._note_acks(popped, self._store.ack(popped))

    def _note_deliveries(self, popped: Sequence[PoppedMessage]) -> None:
        for message in popped:
            number = message.keys[0]
            late_ms = message.store_ms - (message.deliver_at_ms or 0)
            if message.attempt == 1 and not 0 <= late_ms <= MINUTE_MS:
                when = f"{-late_ms} ms early" if late_ms < 0 else f"{late_ms} ms late, a tick is {MINUTE_MS} ms"
                self._problems.append(f"order {number} was handed over {when}")
            self._deliveries[number] += 1
            if json.loads(message.body)["order"] != number:
                self._problems.append(f"order {number} came with the body of another one")

    def _note_acks(self, popped: Sequence[PoppedMessage], outcomes: Sequence[AckOutcome]) -> None:
        for message, outcome in zip(popped, outcomes, strict=True):
            if outcome is AckOutcome.ACKED:
                self._acks[message.keys[0]] += 1
            else:
                self._problems.append(f"the ack of order {message.keys[0]} gave {outcome.value}")

    def problems(self) -> list[str]:
        """Check the day by order number; returns one sentence for each broken promise."""
        problems = self._problems
        paid = {order.number for order in self._orders if order.paid_ms is not None}
        unpaid = {order.number for order in self._orders} - paid
        wrong = {
            "orders were paid but not cancelled": paid ^ self._cancelled,
            "paid orders were delivered": paid & self._deliveries.keys(),
            "unpaid orders were never delivered": unpaid - self._deliveries.keys(),
            "unpaid orders were never acked": unpaid - self._acks.keys(),
            "orders were acked more than once": {number for number, count in self._acks.items() if count > 1},
        }
        for what, numbers in wrong.items():
            if numbers:
                problems.append(f"{len(numbers)} {what}, for example {', '.join(sorted(numbers)[:_SHOWN_IDS])}")
        again = self.counts()[3]
        if again != self._lost_leases:
            problems.append(f"{self._lost_leases} leases were held by the consumer that died, but {again} messages came again")
        lag = self._store.lag(TOPIC, GROUP)
        if (lag.ready, lag.in_flight, lag.retry, lag.dead) != (0, 0, 0, 0):
            problems.append(f"the group is not done: {lag}")
        if pending := self._store.pending().total:
            problems.append(f"{pending} timers are still pending")
        problems += [f"verify: {difference}" for difference in self._store.verify()]
        return problems


# ---------------------------------------------------------------- the store that is left


HOUR_MS: Final = 60 * MINUTE_MS
_HISTORY_MS: Final = 3 * HOUR_MS
_FILE: Final = "rmqstore.toml"
_FIRST_LINE: Final = "# Made by `rmqstore demo`, which replaces this store when it is run again."
_SETTINGS: Final = f"""{_FIRST_LINE}
max_retries = 3           # the shop gives up early
retention_ms = 172800000  # two days
"""
_LEFT_SEED: Final = 11
_TIMERS: Final = 2400
_PAID_EVERY: Final = 7


def check_place(path: Path) -> None:
    """Refuse a path at which :func:`leave_store` would make no store; changes nothing.

    Raises:
        StorePathError: something else is there, or its parent is missing.
    """
    if path.exists():
        file = path / _FILE
        if not (file.is_file() and file.read_text(encoding="utf-8", errors="replace").startswith(_FIRST_LINE)):
            raise StorePathError(f"{path} exists and was not made by the demo; name another directory with --store")
    elif not path.parent.is_dir():
        raise StorePathError(f"{path.parent} does not exist; make it first, or name another directory with --store")


def leave_store(path: Path, engine: str, now_ms: int) -> None:
    """Make the store ``path``, in place of one that an earlier run left.

    Raises:
        StorePathError: as :func:`check_place` says.
    """
    check_place(path)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    (path / _FILE).write_text(_SETTINGS, encoding="utf-8")
    clock = ManualClock(now_ms - _HISTORY_MS)
    with open_store(path, engine=engine, clock=clock, services=False, flush="async") as store:
        store.topics.create("parcels", 2)
        _order_timeouts(store, clock)
        _invoices(store, clock)
        _parcels(store)
        while clock.now_ms() < now_ms:
            clock.set(min(clock.now_ms() + 10 * MINUTE_MS, now_ms))
            store.tick()
            store.ack(store.pop("orders", "closers", max_messages=1024))
        # What is under way at this moment.
        store.pop("invoices", "archive", max_messages=8, invisible_ms=30 * MINUTE_MS)
        store.pop("parcels", "shipping", max_messages=6, invisible_ms=15 * MINUTE_MS, order=True)
        store.retry_later(store.pop("invoices", "printing", max_messages=3, invisible_ms=1000))


def _order_timeouts(store: Store, clock: ManualClock) -> None:
    """Timers from now on, most of them soon; one in seven is cancelled again, as if paid."""
    delays = np.random.default_rng(_LEFT_SEED).gamma(1.4, 2.2 * HOUR_MS, _TIMERS).astype(np.int64)
    rows = [
        Message(
            "orders",
            f'{{"order": {row}, "action": "close"}}'.encode(),
            tag="close",
            keys=(f"order-{row}",),
            properties={"amount": str(10 + row % 490), "region": ("eu", "us", "asia")[row % 3]},
            message_id=f"close-{row}",
            deliver_at_ms=clock.now_ms() + delay + MINUTE_MS,
        )
        for row, delay in enumerate(delays.tolist())
    ]
    store.cancel([str(each.handle) for each in store.send_batch(rows)[::_PAID_EVERY]])


def _invoices(store: Store, clock: ManualClock) -> None:
    """Invoices for two groups; one of them fails on what it cannot read, until its attempts are used up."""
    rows = [
        Message("invoices", f"invoice {row}".encode(), "pdf" if row % 5 else "scan", (f"invoice-{row}",), message_id=f"inv-{row}")
        for row in range(500)
    ]
    store.send_batch(rows)
    bad = {"inv-40", "inv-121", "inv-305"}
    for _ in range(4):
        while popped := store.pop("invoices", "billing", max_messages=64, invisible_ms=MINUTE_MS):
            store.ack([each for each in popped if each.message_id not in bad])
        clock.advance(MINUTE_MS)
        store.tick()
    store.ack(store.pop("invoices", "archive", max_messages=160))


def _parcels(store: Store) -> None:
    """Parcels in the order of their customers."""
    steps = [(f"parcel-{number}", step) for number in range(12) for step in ("packed", "labelled", "shipped")]
    store.send_batch(
        [
            Message("parcels", f"step {step} of {name.replace('-', ' ')}".encode(), message_group=name, message_id=f"{name}-{step}")
            for name, step in steps
        ]
    )
