"""``rmqstore leases``: who holds which message until when."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import GroupOption, JsonOption, StoreArgument, TopicOption, examples
from rmqstore.cli.show import Column
from rmqstore.cli.times import clock_time, relative
from rmqstore.contract import LeaseInfo

EXAMPLES: Final = examples(
    "rmqstore leases data",
    "rmqstore leases data --group billing --topic orders",
    "rmqstore leases data --id 7F000001000100000000000000000000AB",
)

_COLUMNS: Final = (
    Column("group"),
    Column("topic"),
    Column("queue", right=True),
    Column("offset", right=True),
    Column("attempt", right=True),
    Column("popped at", long=True),
    Column("lease ends"),
    Column("in"),
    Column("id", long=True),
    Column("backing off", long=True),
    Column("receipt", long=True),
)


def leases(
    store: StoreArgument,
    group: GroupOption = None,
    topic: TopicOption = None,
    message_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Only leases of messages with this id.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who holds which messages until when.

    Of a message that is backing off, the attempt failed for this reason, and the next one waits for its time. A lease that ended and is
    not yet given back says how long ago; that happens while nobody has the store open. The receipt acks the message:
    `rmqstore ack STORE 'RECEIPT'`. Queue and offset are those of the retry topic when the message came from there.
    """
    now_ms = stores.now_ms()
    with stores.reading(store) as opened:
        if topic is not None:
            stores.require_topic(opened, topic)
        if group is not None:
            stores.require_group(opened, group)
        found = opened.leases(topic, group)
    if message_id is not None:
        found = [lease for lease in found if lease.message_id == message_id]
    if as_json:
        show.document({**show.times_document(now=now_ms), "leases": [_document(lease) for lease in found]})
    elif found:
        show.table(_COLUMNS, [_row(lease, now_ms) for lease in found])
        show.note(f"{show.count(len(found), 'lease')}, of {show.count(len({lease.group for lease in found}), 'group')}.")
    else:
        show.note("No message is leased." if message_id is None else f"No message with id {message_id} is leased.")
    if message_id is not None and not found:
        raise typer.Exit(EXIT_NOT_DONE)


def _row(lease: LeaseInfo, now_ms: int) -> list[str]:
    return [
        lease.group,
        lease.topic,
        str(lease.queue_id),
        f"{lease.queue_offset:,}",
        str(lease.attempt),
        clock_time(lease.pop_time_ms),
        clock_time(lease.expiry_ms),
        relative(lease.expiry_ms, now_ms),
        show.plain(lease.message_id),
        show.plain(lease.reason or "for no reason given") if lease.is_backing_off else "",
        lease.receipt,
    ]


def _document(lease: LeaseInfo) -> dict[str, Any]:
    return {
        "group": lease.group,
        "topic": lease.topic,
        "queue_id": lease.queue_id,
        "queue_offset": lease.queue_offset,
        "message_id": lease.message_id,
        "attempt": lease.attempt,
        "is_backing_off": lease.is_backing_off,
        "reason": lease.reason,
        **show.times_document(pop_time=lease.pop_time_ms, first_pop=lease.first_pop_ms, expiry=lease.expiry_ms),
        "receipt": lease.receipt,
    }
