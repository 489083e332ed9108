"""``rmqstore peek``: read messages without a lease."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import JsonOption, StoreArgument, complete_topic, examples
from rmqstore.cli.times import clock_and_relative
from rmqstore.message import PoppedMessage
from rmqstore.store.reader import Reader

EXAMPLES: Final = examples(
    "rmqstore peek data orders",
    "rmqstore peek data orders --queue 1 --offset 100 --max 5 --json",
    "rmqstore peek data --id 7F000001000100000000000000000000AB",
    "rmqstore peek data '%PARKED%'",
)


def peek(
    store: StoreArgument,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Name of the topic; not with --id.", show_default=False, autocompletion=complete_topic),
    ] = None,
    queue: Annotated[int, typer.Option("--queue", metavar="N", min=0, help="Which queue.")] = 0,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="N", min=0, help="Where to start; the first kept message when left out.", show_default=False),
    ] = None,
    maximum: Annotated[int, typer.Option("--max", "-n", metavar="N", min=1, max=100_000, help="Messages at most.")] = 10,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Find the newest message with this id, in any topic.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read messages without taking them from anybody.

    --id reads all queues, which takes a while in a large store; a timer that is not due yet is found by `timers --list`.
    """
    if (topic is None) == (message_id is None):
        raise typer.BadParameter("give a topic, or --id", param_hint="TOPIC")
    with stores.reading(store) as opened:
        if message_id is not None:
            found = opened.get(message_id)
            messages = [] if found is None else [found]
            next_offset = None
        else:
            stores.require_topic(opened, topic or "")
            info = next(each for each in opened.topics.list(system=True) if each.name == topic)
            if queue >= info.queues:
                raise typer.BadParameter(f"topic {topic} has {show.count(info.queues, 'queue')}, counted from 0", param_hint="--queue")
            start = info.min_offsets[queue] if offset is None else offset
            messages = _from(opened, info.name, queue, start, maximum)
            next_offset = messages[-1].queue_offset + 1 if messages and messages[-1].queue_offset + 1 < info.max_offsets[queue] else None
    if as_json:
        show.document({"messages": [show.message_document(message) for message in messages], "next_offset": next_offset})
    else:
        for message in messages:
            _show(message)
        if next_offset is not None:
            show.note(f"More follow: `rmqstore peek {store} {topic} --queue {queue} --offset {next_offset}`.")
        elif not messages and message_id is None:
            show.note(f"Nothing lies there; `rmqstore topics {store}` shows the offsets.")
    if message_id is not None and not messages:
        show.note(f"No message with id {message_id} is in a topic; `rmqstore timers {store} --list` shows those whose time has not come.")
        raise typer.Exit(EXIT_NOT_DONE)


def _from(opened: Reader, topic: str, queue: int, offset: int, maximum: int) -> list[PoppedMessage]:
    messages: list[PoppedMessage] = []
    while len(messages) < maximum and (page := opened.read(topic, queue, offset, maximum - len(messages)).messages):
        messages += [each for each in page if isinstance(each, PoppedMessage)]
        offset = messages[-1].queue_offset + 1
    return messages


def _show(message: PoppedMessage) -> None:
    place = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
    parts = [show.plain(message.message_id), *show.words(message)]
    show.line(Text.assemble((place, "bold"), *(f"  {part}" for part in parts)))
    show.line(Text(f"  came {clock_and_relative(message.store_ms, stores.now_ms())}{_times(message.attempt)}", "dim"))
    for text in show.body_lines(message.body):
        show.line(f"  {text}")


def _times(number: int) -> str:
    return "" if not number else f", delivered {show.count(number, 'time')} before"
