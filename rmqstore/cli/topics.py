"""``rmqstore topics`` and ``rmqstore lag``: what topics there are, and how far each group is behind."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer

from rmqstore.cli import show, stores
from rmqstore.cli.options import GroupOption, JsonOption, StoreArgument, TopicOption, examples
from rmqstore.cli.show import Column
from rmqstore.contract import GroupOffset, Lag
from rmqstore.message import RETRY_PREFIX
from rmqstore.store.reader import Reader

TOPICS_EXAMPLES: Final = examples("rmqstore topics data", "rmqstore topics data --system --json")
LAG_EXAMPLES: Final = examples("rmqstore lag data", "rmqstore lag data --group billing --queues", "rmqstore lag data --json")


def topics(
    store: StoreArgument,
    system: Annotated[bool, typer.Option("--system", help="Also retry topics, dead letter queues and parked entries.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the topics, with queues, messages and offsets."""
    with stores.reading(store) as opened:
        infos = opened.topics.list(system=system)
    if as_json:
        found = [
            {
                "name": info.name,
                "queues": [
                    {"queue_id": queue, "min_offset": low, "next_offset": high}
                    for queue, (low, high) in enumerate(zip(info.min_offsets, info.max_offsets, strict=True))
                ],
            }
            for info in infos
        ]
        show.document({"topics": found})
        return
    if not infos:
        show.line("There is no topic yet; the first message of a topic makes it.")
        return
    rows = [
        [
            info.name,
            f"{info.queues:,}",
            f"{sum(info.max_offsets) - sum(info.min_offsets):,}",
            _range(info.min_offsets),
            _range(info.max_offsets),
        ]
        for info in infos
    ]
    columns = (Column("topic"), *(Column(heading, right=True) for heading in ("queues", "messages", "first kept", "next offset")))
    show.table(columns, rows)
    show.note(f"{show.count(len(infos), 'topic')}; messages whose time has not come are in `rmqstore timers {store}`.")


def _range(offsets: tuple[int, ...]) -> str:
    low, high = min(offsets, default=0), max(offsets, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


class Standing(msgspec.Struct, frozen=True):
    """Where a group stands on a topic; ``offsets`` by queue, empty when it never popped."""

    group: str
    topic: str
    lag: Lag
    offsets: tuple[GroupOffset, ...]
    ends: tuple[int, ...]


def lag(
    store: StoreArgument,
    group: GroupOption = None,
    topic: TopicOption = None,
    queues: Annotated[bool, typer.Option("--queues", help="A line per queue, with the group's next offset.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how far the groups are behind.

    Ready: not popped yet. In flight: leased. Retry: came back, to be delivered again. Dead: given up, in the dead letter queue.
    Expired: taken by retention before the group had popped them. Backing off: failed, and waiting for the time of the next attempt.
    Columns of these two are there when there are any.
    A group that popped other topics, but never the one that is asked about, has everything of it ready.
    """
    with stores.reading(store) as opened:
        if topic is not None:
            stores.require_topic(opened, topic)
        if group is not None:
            stores.require_group(opened, group)
        standings = _standings(opened, group, topic)
    if as_json:
        show.document({"lags": [_document(standing) for standing in standings]})
        return
    if not standings:
        show.line("No group has popped yet." if group is None else f"Group {group} has not popped yet; --topic shows what it would get.")
        return
    if queues:
        _show_queues(standings)
    else:
        seldom = ("expired", "backing_off")
        counts = [name for name in Lag.__struct_fields__ if name not in seldom or any(getattr(each.lag, name) for each in standings)]
        columns = (Column("group"), Column("topic"), *(Column(name.replace("_", " "), right=True) for name in counts))
        show.table(columns, [[each.group, each.topic, *(f"{getattr(each.lag, name):,}" for name in counts)] for each in standings])
    if any(standing.lag.in_flight or standing.lag.backing_off for standing in standings):
        show.note(f"`rmqstore leases {store}` shows who holds what is in flight.")
    if dead := next((standing for standing in standings if standing.lag.dead), None):
        show.note(f"`rmqstore dlq list {store} {dead.group}` shows what is dead.")


def _standings(store: Reader, group: str | None, topic: str | None) -> list[Standing]:
    ends = {info.name: info.max_offsets for info in store.topics.list(system=True)}
    found = []
    for name in store.groups.list() if group is None else [group]:
        offsets = store.groups.offsets(name)
        popped = {each.topic for each in offsets if not each.topic.startswith(RETRY_PREFIX)}
        for wanted in sorted(popped) if topic is None else [topic]:
            if topic is not None and group is None and topic not in popped:
                continue
            own = tuple(each for each in offsets if each.topic == wanted)
            found.append(Standing(name, wanted, store.lag(wanted, name), own, ends.get(wanted, ())))
    return found


def _show_queues(standings: list[Standing]) -> None:
    headings = ("queue", "next offset", "end", "behind", "in flight")
    rows = []
    for standing in standings:
        held = {each.queue_id: each for each in standing.offsets}
        for queue, end in enumerate(standing.ends):
            own = held.get(queue)
            numbers = ("-", f"{end:,}", "-", "-") if own is None else (own.next_offset, end, max(end - own.next_offset, 0), own.in_flight)
            rows.append([standing.group, standing.topic, str(queue), *(each if isinstance(each, str) else f"{each:,}" for each in numbers)])
    show.table((Column("group"), Column("topic"), *(Column(heading, right=True) for heading in headings)), rows)


def _document(standing: Standing) -> dict[str, Any]:
    return {
        "group": standing.group,
        "topic": standing.topic,
        **{name: getattr(standing.lag, name) for name in Lag.__struct_fields__},
        "queues": [
            {
                "queue_id": each.queue_id,
                "next_offset": each.next_offset,
                "end_offset": standing.ends[each.queue_id],
                "in_flight": each.in_flight,
            }
            for each in standing.offsets
        ],
    }
