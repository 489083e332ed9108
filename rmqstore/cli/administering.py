"""``rmqstore topics``, ``groups`` and ``schedules``: what there is, and how it is made, moved and removed; ``pause`` and ``resume``."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Any

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import GroupArgument, JsonOption, StoreArgument, TopicArgument, examples
from rmqstore.cli.show import Cell
from rmqstore.cli.times import clock_and_relative, clock_time, duration_option, duration_text
from rmqstore.contract import InitMode, TopicInfo
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import DLQ_PREFIX, MAX_QUEUES, PARKED_TOPIC, Message
from rmqstore.store.pauses import Flow
from rmqstore.store.reader import Reader
from rmqstore.store.schedules import Schedule

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@examples("rmqstore topics list data", "rmqstore topics list data --system --json")
def list_topics(
    store: StoreArgument,
    system: Annotated[bool, typer.Option("--system", help="Also retry topics, dead letter queues and parked entries.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the topics, with queues, messages and offsets."""
    with stores.reading(store) as opened:
        infos = opened.topics.list(system=system)
        counts = {} if as_json else {info.name: _kept(opened, info) for info in infos}
        parts = [(shard, {info.name: info for info in part.topics.list(system=system)}) for shard, part in stores.parts(opened)]
    if as_json:
        queues = {
            info.name: [each for shard, own in parts if info.name in own for each in _queues(own[info.name], shard)] for info in infos
        }
        show.document({"topics": [{"name": name, "queues": each} for name, each in queues.items()]})
        return
    if not infos:
        show.line("There is no topic yet; the first message of a topic makes it.")
        return
    rows: list[dict[str, Cell]] = [
        {
            "topic": info.name,
            "queues": info.queues,
            "messages": counts[info.name],
            "first kept": _range(info.min_offsets),
            "next offset": _range(info.max_offsets),
        }
        for info in infos
    ]
    show.table(rows, long=["topic"], right=["first kept", "next offset"])
    show.note(f"{show.count(len(infos), 'topic')}; messages whose time has not come are in `rmqstore timers {store}`.")


@examples("rmqstore topics create data orders --queues 8")
def create_topic(
    store: StoreArgument,
    topic: TopicArgument,
    queues: Annotated[int, typer.Option("--queues", "-q", metavar="N", min=1, max=MAX_QUEUES, help="How many queues it has.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Make a topic, or widen one that is there.

    A topic never gets fewer queues. Sends make topics by themselves, with `default_queues` of the configuration; more queues let more
    consumers of a group pop in order side by side.
    """
    with stores.owning(store) as opened:
        info = opened.topics.create(topic, queues)
    if as_json:
        show.document({"name": info.name, "queues": _queues(info, {})})
    else:
        show.line(f"topic {info.name} has {show.count(info.queues, 'queue')}.")


@examples("rmqstore topics delete data orders", "rmqstore topics delete data orders --yes")
def delete_topic(store: StoreArgument, topic: TopicArgument, yes: YesOption = False) -> None:
    """Remove a topic with its messages, leases and positions.

    Its dead letters stay. Timers that are pending for it stay as well, and make it again when they are due.
    """
    with stores.owning(store) as opened:
        stores.require_topic(opened, topic)
        kept = next(info for info in opened.topics.list(system=True) if info.name == topic)
        _ask(yes, f"Remove topic {topic} with {show.count(_kept(opened, kept), 'message')}, acked ones included?")
        opened.topics.delete(topic)
    show.line(f"topic {topic} is removed.")


@examples("rmqstore groups list data", "rmqstore groups list data --json")
def list_groups(store: StoreArgument, as_json: JsonOption = False) -> None:
    """List the groups, with the topics that each has popped.

    `rmqstore lag` tells how far they are behind, `rmqstore group` how they try again.
    """
    with stores.reading(store) as opened:
        found = opened.groups.subscriptions()
    if as_json:
        show.document({"groups": [show.struct_document(each) for each in found]})
        return
    if not found:
        show.line("No group has popped yet; the first pop of a group makes it.")
        return
    rows = [
        {
            "group": each.group,
            "topic": each.topic,
            "order": "in order" if each.is_ordered else "",
            "popped last": clock_time(each.active_ms),
        }
        for each in sorted(found, key=lambda each: (each.group, each.topic))
    ]
    show.table(rows, long=["group", "topic"])
    show.note(f"{show.count(len({each.group for each in found}), 'group')}.")


@examples("rmqstore groups delete data billing", "rmqstore groups delete data billing --yes")
def delete_group(store: StoreArgument, group: GroupArgument, yes: YesOption = False) -> None:
    """Remove a group with its leases, positions and retries.

    Its dead letters stay. A pop makes it again, and it begins where `init` of the configuration says.
    """
    with stores.owning(store) as opened:
        stores.require_group(opened, group)
        topics = show.count(len(opened.groups.subscriptions(group)), "topic")
        _ask(yes, f"Remove group {group}, which has popped {topics}, with its leases and retries?")
        opened.groups.delete(group)
    show.line(f"group {group} is removed.")


@examples(
    "rmqstore groups reset-offset data orders billing --to min",
    "rmqstore groups reset-offset data orders billing --to 1200 --queue 0",
)
def reset_offset(
    store: StoreArgument,
    topic: TopicArgument,
    group: GroupArgument,
    to: Annotated[str, typer.Option("--to", metavar="min|max|OFFSET", help="The first kept message, the next one to come, or an offset.")],
    queue: Annotated[int | None, typer.Option("--queue", metavar="N", min=0, help="Only this queue.")] = None,
    yes: YesOption = False,
) -> None:
    """Move a group to another place of a topic.

    With `min` it gets again what the topic still has, also what it has acked; with `max` it passes over all that is there. Its leases there
    end, and their receipts are stale.
    """
    place = _place(to)
    with stores.owning(store) as opened:
        stores.require_topic(opened, topic)
        stores.require_group(opened, group)
        where = "all queues" if queue is None else f"queue {queue}"
        lag = opened.lag(topic, group)
        _ask(yes, f"Move group {group} in {where} of {topic} to {to}? It has {lag.ready:,} ready and {lag.in_flight:,} in flight there.")
        opened.groups.reset_offset(topic, group, place, queue=queue)
        lag = opened.lag(topic, group)
    show.line(f"group {group} has {show.count(lag.ready, 'message')} ready in {topic}.")


FlowArgument = Annotated[Flow, typer.Argument(metavar="sends|hand-over", help="What to hold up.")]


@examples('rmqstore pause data hand-over --reason "the bank is down"', "rmqstore pause data sends")
def pause(
    store: StoreArgument,
    flow: FlowArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who looks at it later.")] = "",
) -> None:
    """Hold up sends, or the hand-over of what is due.

    Sends are refused then; what is due waits, and can still be cancelled. Pops and acks go on. It holds until `rmqstore resume`, also when
    the store is closed meanwhile.
    """
    with stores.owning(store) as opened:
        opened.pauses.begin(flow, reason=reason)
        (found,) = [each for each in opened.pauses.list() if each.flow is flow]
    show.line(f"{found}.")


@examples("rmqstore resume data hand-over")
def resume(store: StoreArgument, flow: FlowArgument) -> None:
    """Let go on what `rmqstore pause` has held up.

    What is due by then is handed over.
    """
    with stores.owning(store) as opened:
        found = [each for each in opened.pauses.list() if each.flow is flow]
        opened.pauses.end(flow)
    is_now, was, goes_on = ("are", "were", "they go on") if flow is Flow.SENDS else ("is", "was", "it goes on")
    for each in found:
        show.line(f"{str(each).replace(f' {is_now} ', f' {was} ', 1)}; {goes_on}.")
    if not found:
        show.line(f"{flow.value} {was} not paused.")


def _place(text: str) -> int | InitMode:
    if text in ("min", "max"):
        return InitMode(text)
    if not text.isdecimal():
        raise typer.BadParameter(f"{text} is none of min, max and an offset", param_hint="--to")
    return int(text)


def _ask(yes: bool, question: str) -> None:
    """Ask before something is removed or moved; where nobody can be asked, `--yes` has to say it."""
    if yes:
        return
    if not show.stdin().isatty():
        raise IllegalArgumentError(f"{question} Say --yes, as there is no terminal to ask at; nothing was changed")
    if not typer.confirm(question, err=True):
        show.note("Nothing was changed.")
        raise typer.Exit(EXIT_NOT_DONE)


def _queues(info: TopicInfo, shard: dict[str, int]) -> list[dict[str, int]]:
    """Return a topic's queues as documents; ``shard`` says in which shard they are, of a data set."""
    return [
        {**shard, "queue_id": queue, "min_offset": low, "next_offset": high}
        for queue, (low, high) in enumerate(zip(info.min_offsets, info.max_offsets, strict=True))
    ]


def _kept(store: Reader, info: TopicInfo) -> int:
    """Return how many messages a topic has; letters that were dropped leave gaps between its offsets."""
    if info.name == PARKED_TOPIC:
        return len(store.dead_letters.parked())
    if info.name.startswith(DLQ_PREFIX):
        return len(store.dead_letters.list(info.name.removeprefix(DLQ_PREFIX)))
    return sum(info.max_offsets) - sum(info.min_offsets)


def _range(offsets: tuple[int, ...]) -> str:
    low, high = min(offsets, default=0), max(offsets, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# ---------------------------------------------------------------- schedules


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]


@examples("rmqstore schedules list data", "rmqstore schedules list data --json")
def list_schedules(store: StoreArgument, as_json: JsonOption = False) -> None:
    """List what is sent again and again, and when it comes next."""
    with stores.reading(store) as opened:
        found = opened.schedules.list()
    if as_json:
        show.document({"schedules": [_schedule_document(each) for each in found]})
    elif found:
        rows: list[dict[str, Cell]] = [
            {
                "schedule": each.name,
                "when": _when(each),
                "next": clock_and_relative(each.next_ms, stores.now_ms()),
                "topic": each.message.topic,
                "body": show.body_start(each.message.body),
            }
            for each in found
        ]
        show.table(rows, long=["schedule", "topic", "body"])
    else:
        show.line("There is no schedule; `rmqstore schedules put`, or store.schedules.put in a program, makes one.")


@examples(
    'rmqstore schedules put data nightly reports "run all" --cron "30 2 * * *" --zone Europe/Berlin',
    "rmqstore schedules put data heartbeat health ping --every 30s --no-catch-up",
)
def put_schedule(
    store: StoreArgument,
    name: NameArgument,
    topic: TopicArgument,
    body: Annotated[str, typer.Argument(metavar="BODY", help="The text to send.")],
    cron: Annotated[
        str | None, typer.Option("--cron", "-c", metavar="EXPRESSION", help="Five fields: minute, hour, day, month, day of week.")
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", "-e", metavar="DURATION", help="So often, the first time so long from now.")
    ] = None,
    zone: Annotated[str, typer.Option("--zone", "-z", metavar="ZONE", help="Time zone of the expression.")] = "UTC",
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="One word to filter by.")] = None,
    catch_up: Annotated[
        bool, typer.Option("--catch-up/--no-catch-up", help="Whether each time that passed while nobody had the store open has a message.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Send a message at cron times, or every so often.

    Each time has one message, whoever has the store open then. One of this name is replaced; if its times are the same, it goes on with
    them. The message says in its properties SCHEDULE and SCHEDULED_MS what it is of.
    """
    if (cron is None) == (every is None):
        raise typer.BadParameter("give --cron or --every, and not both", param_hint="--cron")
    when = cron if every is None else timedelta(milliseconds=duration_option("--every", every, minimum=1000))
    with stores.owning(store) as opened:
        made = opened.schedules.put(name, when or "", Message(topic, os.fsencode(body), tag=tag), zone=zone, catch_up=catch_up)
    if as_json:
        show.document(_schedule_document(made))
    else:
        show.line(f"schedule {made.name} sends to {topic} {_when(made)}; next {clock_and_relative(made.next_ms, stores.now_ms())}.")


@examples("rmqstore schedules delete data nightly")
def delete_schedule(store: StoreArgument, name: NameArgument) -> None:
    """End a schedule.

    What it has sent stays.
    """
    with stores.owning(store) as opened:
        was_there = opened.schedules.delete(name)
    if not was_there:
        show.note(f"There is no schedule {show.plain(name)}; `rmqstore schedules list {store}` shows those there are.")
        raise typer.Exit(EXIT_NOT_DONE)
    show.line(f"schedule {name} is ended.")


def _when(schedule: Schedule) -> str:
    if schedule.every_ms is not None:
        return f"every {duration_text(schedule.every_ms)}"
    return f"at {schedule.cron} {schedule.zone}"


def _schedule_document(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "every_ms": schedule.every_ms,
        "catch_up": schedule.catch_up,
        **show.times_document(next=schedule.next_ms),
        "message": show.message_document(schedule.message),
    }
