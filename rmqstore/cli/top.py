"""``rmqstore top``: how a store does, on a screen that goes on until the command is ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import rmqstore
from rmqstore.cli import show, stores
from rmqstore.cli.doctor import size
from rmqstore.cli.options import AddressArgument, JsonOption, TokenOption, examples
from rmqstore.cli.times import DAY_MS, HOUR_MS, MINUTE_MS, clock_time, duration_option, span
from rmqstore.errors import RmqstoreError, StoreUnavailableError
from rmqstore.message import RETRY_PREFIX
from rmqstore.store import Store
from rmqstore.store.directory import room_of
from rmqstore.store.health import GroupHealth, Health, health_of
from rmqstore.store.reader import Reader

_DUE: Final = {"now": 1, "in 1 min": MINUTE_MS, "in 1 h": HOUR_MS, "in 1 d": DAY_MS}
_LATER: Final = "later"
_COUNTS: Final = ("ready", "in_flight", "retry", "backing_off", "dead", "expired")
_LEFT_WIDTH: Final = 26
_FRAME_WIDTH: Final = 4
_GAP: Final = 2
_LEAST_NAMES: Final = 16


class Shot(msgspec.Struct, frozen=True):
    """What a store told at one moment.

    Attributes:
        due: pending timers by when they are due.
        arrived, popped: offsets that only grow: the next one of each topic, and of each queue of a topic for each group.
        put: timers that were ever sent.
        taken_s: when, by the clock that only goes forward.
    """

    path: str
    engines: str
    is_owned: bool
    now_ms: int
    health: Health
    due: dict[str, int]
    disk_bytes: int | None
    arrived: dict[str, int]
    popped: dict[tuple[str, str, int], int]
    put: int
    taken_s: float


@examples(
    "rmqstore top data",
    "rmqstore top rmqstore://127.0.0.1:7450 --token-file token --every 5s",
    "rmqstore top data --once --json",
)
def top(
    store: AddressArgument,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="How often to look.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Show one screen, and end; so it is where stdout is no terminal, too.")] = False,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch a store: rates, timers by due time, groups.

    It asks the owner of the store, or the server at an address; where no owner serves the directory, it reads the files. Rates are what
    changed since the last look; a timer that was cancelled counts as handed over, and not as sent. Acked are messages that left a group
    without becoming dead letters. Ctrl-C ends it.
    """
    every_s = duration_option("--every", every, minimum=100) / 1000
    token = stores.token_for(store, token_file)
    shot = _look(store, token)
    out = show.console()
    if as_json:
        show.document(_document(shot))
    elif once or not out.is_terminal:
        if not out.is_terminal:  # where nothing is cut
            whole, parts = out.options.update(max_width=10_000), (_head(shot, is_ready=False), _groups(shot.health.groups))
            out.width = max(80, *(Measurement.get(out, whole, part).maximum + _FRAME_WIDTH for part in parts))
        out.print(_screen(out, shot))
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is to be as it was
        with Live(console=out, screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
            _go_on(live, store, token, shot, every_s)


def _go_on(live: Live, store: str, token: str | None, shot: Shot, every_s: float) -> None:
    before: Shot | None = None
    trouble: str | None = None
    while True:
        live.update(_screen(live.console, shot, before, trouble, live.console.height), refresh=True)
        time.sleep(max(shot.taken_s + every_s - time.monotonic(), 0.1))
        try:
            before, shot, trouble = shot, _look(store, token), None
        except RmqstoreError as error:  # an owner goes, and another one comes
            trouble = str(error)


@contextmanager
def _opened(store: str, token: str | None) -> Iterator[Reader]:
    """Give the store for one look, by whatever way there is now."""
    if not stores.is_address(store):
        stores.require(Path(store))
    try:
        reached = rmqstore.connect(store, token=token, patience=timedelta(0))
    except StoreUnavailableError:
        if stores.is_address(store):
            raise
        with stores.reading(Path(store)) as reader:
            yield reader
    else:
        with reached:
            yield reached


def _look(store: str, token: str | None) -> Shot:
    with _opened(store, token) as opened:
        now_ms = stores.now_ms()
        health = opened.health() if isinstance(opened, Store) else health_of(opened, now_ms, None)
        pending = opened.pending([0, *(now_ms + width_ms for width_ms in _DUE.values())])
        due = dict(zip(_DUE, pending.counts, strict=True))
        stats = opened.stats()
        offsets = [(group, each) for group in opened.groups.list() for each in opened.groups.offsets(group)]
        return Shot(
            path=stats.path,
            engines=" + ".join(dict.fromkeys((stats.timer_engine, stats.pop_engine))),
            is_owned=isinstance(opened, Store),
            now_ms=now_ms,
            health=health,
            due={**due, _LATER: pending.total - sum(due.values())},
            disk_bytes=None if stores.is_address(store) else room_of(Path(store))[1],
            arrived={topic.name: sum(topic.max_offsets) for topic in opened.topics.list()},
            popped={(group, at.topic, at.queue_id): at.next_offset for group, at in offsets if not at.topic.startswith(RETRY_PREFIX)},
            put=stats.timers.last_seq,
            taken_s=time.monotonic(),
        )


def _rates(shot: Shot, before: Shot | None) -> dict[str, float | None]:
    """Return what happened in a second since the shot before."""
    names = ("sent", "sent for later", "handed over", "popped", "acked")
    if before is None:
        return dict.fromkeys(names)
    put, pending = shot.put - before.put, shot.health.pending - before.health.pending
    popped = _grown(shot.popped, before.popped)
    held, held_before = ({(at.group, at.topic): _held(at) for at in each.health.groups} for each in (shot, before))
    arrived = _grown(shot.arrived, before.arrived, starts_at_0=True)
    changes = (arrived + pending, put, put - pending, popped, popped - _grown(held, held_before))
    return {name: max(change, 0) / (shot.taken_s - before.taken_s) for name, change in zip(names, changes, strict=True)}


def _grown(now: Mapping[Any, int], before: Mapping[Any, int], *, starts_at_0: bool = False) -> int:
    """Return by how much numbers have grown; what is new began at 0, or nobody knows where."""
    return sum(number - before.get(key, 0 if starts_at_0 else number) for key, number in now.items())


def _held(at: GroupHealth) -> int:
    """Return how many messages a group has popped and not acked."""
    return at.lag.in_flight + at.lag.retry + at.lag.backing_off + at.lag.dead


# ---------------------------------------------------------------- the screen


def _screen(out: Console, shot: Shot, before: Shot | None = None, trouble: str | None = None, height: int | None = None) -> RenderableType:
    """Return the screen, with so many lines at most."""
    problems = [*([] if trouble is None else [trouble]), *shot.health.problems]
    warnings = [Text(f"! {each}", "bold red") for each in problems]
    middle = Table.grid(expand=True)
    middle.add_column(width=_LEFT_WIDTH)
    middle.add_column(ratio=1)
    middle.add_row(_panel(Text("per second", "bold"), _rate_table(_rates(shot, before))), _panel(_timer_title(shot), _bars(out, shot)))
    groups: Sequence[GroupHealth] = shot.health.groups
    title = Text("groups", "bold")
    if height is not None:
        taken = 1 + sum(len(each.wrap(out, out.width)) for each in warnings) + len(shot.due) + 2
        groups = _most_behind(groups, max(height - taken - 3, 1))
    if len(groups) < len(shot.health.groups):
        title.append(f"  {len(groups):,} of {len(shot.health.groups):,}, those that are behind the most", "not bold")
    table = _groups(groups, out.width - _FRAME_WIDTH if out.is_terminal else None) if groups else Text("no group has popped yet", "dim")
    return Group(_head(shot, is_ready=not problems), *warnings, middle, _panel(title, table))


def _panel(title: Text, content: RenderableType) -> Panel:
    title.stylize_before("not dim")  # as the frame is
    return Panel(content, title=title, title_align="left", border_style="dim", box=box.ROUNDED, padding=(0, 1))


def _head(shot: Shot, *, is_ready: bool) -> Table:
    state = Text("ready", "bold green") if is_ready else Text("not ready", "bold red")
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    head.add_column(no_wrap=True, justify="right")
    room = "" if shot.disk_bytes is None else f"  {size(shot.disk_bytes)}"
    way = "" if shot.is_owned else "  read from its files"
    about = Text.assemble(" ", state, f"  {shot.engines}{room}{way}  ", (show.plain(shot.path), "bold"))
    head.add_row(about, Text(clock_time(shot.now_ms)[11:19], "dim"))
    return head


def _timer_title(shot: Shot) -> Text:
    health = shot.health
    title = Text.assemble(("timers", "bold"), f"  {health.pending:,} pending")
    if health.overdue:
        title.append(f", {health.overdue:,} overdue by {span(health.lateness_ms)}", "bold red")
    return title


def _rate_table(rates: Mapping[str, float | None]) -> Table:
    table = Table.grid(expand=True)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for name, rate in rates.items():
        table.add_row(name, Text("-", "dim") if rate is None else Text(f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}", "bold"))
    return table


def _bars(out: Console, shot: Shot) -> Group:
    late = shot.health.overdue
    rows = [(label, number, "red" if label == "now" and late else "cyan") for label, number in shot.due.items()]
    return Group(*show.bars(out, rows, out.width - _LEFT_WIDTH - _FRAME_WIDTH))


def _most_behind(groups: Sequence[GroupHealth], rows: int) -> Sequence[GroupHealth]:
    shown = sorted(groups, key=lambda each: -(each.lag.ready + _held(each)))[:rows]
    return sorted(shown, key=lambda each: (each.group, each.topic))


def _groups(groups: Sequence[GroupHealth], width: int | None = None) -> Table:
    """Return a line for each group; without a width nothing is cut."""
    names = [name for name in _COUNTS if name != "expired" or any(each.lag.expired for each in groups)]
    counts = [[_count(name, getattr(each.lag, name)) for name in names] for each in groups]
    group_width = topic_width = None
    if width is not None:
        numbers_width = sum(_GAP + max(len(name), *(row[at].cell_len for row in counts)) for at, name in enumerate(names))
        left = max(width - numbers_width - _GAP, _LEAST_NAMES)
        group_width = min(max(5, *(len(each.group) for each in groups)), max(left // 2, left - max(len(each.topic) for each in groups)))
        topic_width = left - group_width
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("group", no_wrap=True, overflow="ellipsis", width=group_width)
    table.add_column("topic", no_wrap=True, overflow="ellipsis", width=topic_width)
    for name in names:
        table.add_column(name.replace("_", " "), no_wrap=True, justify="right")
    for each, row in zip(groups, counts, strict=True):
        table.add_row(each.group, each.topic, *row)
    return table


def _count(name: str, number: int) -> Text:
    style = "dim" if not number else "bold red" if name in ("dead", "expired") else "yellow" if name == "backing_off" else ""
    return Text(f"{number:,}", style)


def _document(shot: Shot) -> dict[str, Any]:
    health = shot.health
    return {
        "store": shot.path,
        "engines": shot.engines,
        **show.times_document(now=shot.now_ms),
        "is_ready": health.is_ready,
        "problems": list(health.problems),
        "pending": health.pending,
        "overdue": health.overdue,
        "lateness_ms": health.lateness_ms,
        "due": shot.due,
        "groups": [{"group": each.group, "topic": each.topic, **msgspec.structs.asdict(each.lag)} for each in health.groups],
        "disk_bytes": shot.disk_bytes,
    }
