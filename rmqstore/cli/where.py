"""``rmqstore where``: where a message is, by its id or one of its keys."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import JsonOption, StoreArgument, TopicOption, examples
from rmqstore.cli.show import Column
from rmqstore.cli.times import clock_time, relative
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import PoppedMessage
from rmqstore.store.lookup import Whereabouts

EXAMPLES: Final = examples(
    "rmqstore where data --id 7F000001000100000000000000000000AB",
    "rmqstore where data --key order-42 --topic orders",
)

_COLUMNS: Final = (
    Column("state"),
    Column("topic"),
    Column("queue", right=True),
    Column("offset", right=True),
    Column("group"),
    Column("attempt", right=True),
    Column("until"),
    Column("in"),
    Column("id", long=True),
    Column("reason", long=True),
    Column("handle or receipt", long=True),
)


def where(
    store: StoreArgument,
    message_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Messages with this id.", show_default=False)] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Messages with this key.", show_default=False)] = None,
    topic: TopicOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find messages by id or key, wherever they are.

    They are looked for among timers, in queues, under leases, in waits and in dead letters. A message is listed once for each group that
    pops its topic. "done" says that the group acked it. Of a message that was cancelled,
    or that every group acked and that was taken away, nothing is known any more. This reads all that the store holds.
    """
    if (message_id is None) == (key is None):
        raise IllegalArgumentError("give --id or --key, and not both")
    now_ms = stores.now_ms()
    with stores.reading(store) as opened:
        found = opened.where(id=message_id, key=key, topic=topic)
    if as_json:
        show.document({**show.times_document(now=now_ms), "places": [_document(each) for each in found]})
    elif found:
        show.table(_COLUMNS, [_row(each, now_ms) for each in found])
    else:
        what = f"with id {message_id}" if message_id is not None else f"with key {key}"
        show.note(f"No message {show.plain(what)} is here: it never was, it was cancelled, or every group is done with it.")
    if not found:
        raise typer.Exit(EXIT_NOT_DONE)


def _row(place: Whereabouts, now_ms: int) -> list[str]:
    message = place.message
    lies = isinstance(message, PoppedMessage)
    return [
        place.state.value,
        message.topic,
        str(message.queue_id) if lies else "",
        f"{message.queue_offset:,}" if isinstance(message, PoppedMessage) else "",
        place.group,
        str(place.attempt) if place.attempt else "",
        "" if place.until_ms is None else clock_time(place.until_ms),
        "" if place.until_ms is None else relative(place.until_ms, now_ms),
        show.plain(message.message_id or ""),
        show.plain(place.reason),
        place.handle or place.receipt,
    ]


def _document(place: Whereabouts) -> dict[str, Any]:
    message = place.message
    lies = isinstance(message, PoppedMessage)
    return {
        "state": place.state.value,
        "topic": message.topic,
        "queue_id": message.queue_id if lies else None,
        "queue_offset": message.queue_offset if isinstance(message, PoppedMessage) else None,
        "group": place.group or None,
        "attempt": place.attempt or None,
        "message_id": message.message_id,
        "reason": place.reason or None,
        **({} if place.until_ms is None else show.times_document(until=place.until_ms)),
        "handle": place.handle or None,
        "receipt": place.receipt or None,
    }
