"""``rmqstore schedules``: messages that come again and again."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import JsonOption, StoreArgument, TopicArgument, examples
from rmqstore.cli.show import Column
from rmqstore.cli.times import clock_and_relative, duration_option, duration_text
from rmqstore.message import Message
from rmqstore.store.schedules import Schedule

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]

_COLUMNS: Final = (
    Column("schedule", lambda each: each.name, long=True),
    Column("when", lambda each: _when(each)),
    Column("next", lambda each: clock_and_relative(each.next_ms, stores.now_ms())),
    Column("topic", lambda each: each.message.topic, long=True),
    Column("body", lambda each: show.body_start(each.message.body), long=True),
)


@examples("rmqstore schedules list data", "rmqstore schedules list data --json")
def list_schedules(store: StoreArgument, as_json: JsonOption = False) -> None:
    """List what is sent again and again, and when it comes next."""
    with stores.reading(store) as opened:
        found = opened.schedules.list()
    if as_json:
        show.document({"schedules": [_document(each) for each in found]})
    elif found:
        show.table(_COLUMNS, found)
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
        show.document(_document(made))
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


def _document(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "every_ms": schedule.every_ms,
        "catch_up": schedule.catch_up,
        **show.times_document(next=schedule.next_ms),
        "message": show.message_document(schedule.message),
    }
