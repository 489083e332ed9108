"""``rmqstore lag``, ``peek``, ``leases`` and ``where``: what is where, and who holds it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import GroupOption, IdOption, JsonOption, StoreArgument, TopicOption, complete_topic, examples
from rmqstore.cli.show import Cell
from rmqstore.cli.times import clock_and_relative, clock_time, relative
from rmqstore.contract import Lag, TopicInfo
from rmqstore.message import DLQ_PREFIX, PARKED_TOPIC, RETRY_PREFIX, PoppedMessage
from rmqstore.store.lookup import Whereabouts
from rmqstore.store.reader import Reader


class Standing(msgspec.Struct, frozen=True):
    """Where a group stands on a topic, and on each of its queues, as a document has it; one that it never popped has no next offset."""

    group: str
    topic: str
    lag: Lag
    queues: list[dict[str, int | None]]


@examples("rmqstore lag data", "rmqstore lag data --group billing --queues", "rmqstore lag data --json")
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
        stores.require_topic(opened, topic)
        stores.require_group(opened, group)
        standings = _standings(opened, group, topic)
    if as_json:
        show.document({"lags": [_standing_document(standing) for standing in standings]})
        return
    if not standings:
        nobody = "No group has popped yet." if topic is None else f"No group has popped topic {topic}."
        show.line(nobody if group is None else f"Group {group} has not popped yet; --topic shows what it would get.")
        return
    if queues:
        _show_queues(standings)
    else:
        seldom = ("expired", "backing_off")
        counts = [name for name in Lag.__struct_fields__ if name not in seldom or any(getattr(each.lag, name) for each in standings)]
        show.table(
            {"group": each.group, "topic": each.topic, **{name.replace("_", " "): getattr(each.lag, name) for name in counts}}
            for each in standings
        )
    if any(standing.lag.in_flight or standing.lag.backing_off for standing in standings):
        show.note(f"`rmqstore leases {store}` shows who holds what is in flight.")
    if dead := next((standing for standing in standings if standing.lag.dead), None):
        show.note(f"`rmqstore dlq list {store} {dead.group}` shows what is dead.")


def _standings(store: Reader, group: str | None, topic: str | None) -> list[Standing]:
    parts = [(shard, each, {info.name: info.max_offsets for info in each.topics.list(system=True)}) for shard, each in stores.parts(store)]
    found = []
    for name in store.groups.list() if group is None else [group]:
        popped = {each.topic for each in store.groups.offsets(name) if not each.topic.startswith(RETRY_PREFIX)}
        asked = popped if topic is None else {topic}
        for wanted in sorted(asked & popped if group is None else asked):
            queues: list[dict[str, int | None]] = []
            for shard, part, ends in parts:
                own = {each.queue_id: (each.next_offset, each.in_flight) for each in part.groups.offsets(name) if each.topic == wanted}
                for queue, end in enumerate(ends.get(wanted, ())):
                    at, in_flight = own.get(queue, (None, None))
                    queues.append({**shard, "queue_id": queue, "next_offset": at, "end_offset": end, "in_flight": in_flight})
            found.append(Standing(name, wanted, store.lag(wanted, name), queues))
    return found


def _show_queues(standings: list[Standing]) -> None:
    rows: list[dict[str, Cell]] = []
    for standing in standings:
        for each in standing.queues:
            at, end = each["next_offset"], each["end_offset"] or 0
            stand: tuple[Cell, ...] = ("-", end, "-", "-") if at is None else (at, end, max(end - at, 0), each["in_flight"])
            shard = {"shard": each["shard"]} if "shard" in each else {}
            row: dict[str, Cell] = {"group": standing.group, "topic": standing.topic, **shard, "queue": each["queue_id"]}
            rows.append(row | dict(zip(("next offset", "end", "behind", "in flight"), stand, strict=True)))
    show.table(rows, right=["next offset", "behind", "in flight"])


def _standing_document(standing: Standing) -> dict[str, Any]:
    queues = [each for each in standing.queues if each["next_offset"] is not None]
    return {"group": standing.group, "topic": standing.topic, **msgspec.structs.asdict(standing.lag), "queues": queues}


@examples(
    "rmqstore peek data orders",
    "rmqstore peek data orders --queue 1 --offset 100 --max 5 --json",
    "rmqstore peek data --id 7F000001000100000000000000000000AB",
    "rmqstore peek data '%PARKED%'",
)
def peek(
    store: StoreArgument,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Name of the topic; not with --id.", autocompletion=complete_topic)
    ] = None,
    queue: Annotated[int, typer.Option(metavar="N", min=0, help="Which queue.")] = 0,
    offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="Where to start; the first kept message when left out.")] = None,
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
            info = _topic(opened, topic)
            if queue >= info.queues:
                raise typer.BadParameter(f"topic {topic} has {show.count(info.queues, 'queue')}, counted from 0", param_hint="--queue")
            start = info.min_offsets[queue] if offset is None else offset
            messages = _from(opened, info.name, queue, start, maximum)
            behind = messages[-1].queue_offset + 1 if messages else start
            missing = behind - max(start, _topic(opened, topic).min_offsets[queue]) - len(messages)
            next_offset = behind if messages and behind < info.max_offsets[queue] else None
    if as_json:
        show.document({"messages": [show.message_document(message) for message in messages], "next_offset": next_offset})
    else:
        for message in messages:
            _show_message(message)
        is_nothing = not messages and message_id is None
        lacks_all = is_nothing and info.min_offsets[queue] <= start < info.max_offsets[queue]
        if message_id is None and (missing > 0 or lacks_all) and (info.name == PARKED_TOPIC or info.name.startswith(DLQ_PREFIX)):
            show.note(f"What is missing here was removed, or cannot be read; `rmqstore verify {store}` names what is damaged.")
        elif message_id is None and missing > 0:
            show.note(f"{show.count(missing, 'message')} in between cannot be read; `rmqstore verify {store}` says why.")
        elif lacks_all:
            show.note(f"What is there from offset {start} on cannot be read; `rmqstore verify {store}` says why.")
        if next_offset is not None:
            show.note(f"More follow: `rmqstore peek {store} {topic} --queue {queue} --offset {next_offset}`.")
        elif is_nothing and not lacks_all:
            show.note(f"Nothing is there; `rmqstore topics list {store}` shows the offsets.")
    if message_id is not None and not messages:
        show.note(f"No message with id {message_id} is in a topic; `rmqstore timers {store} --list` shows those whose time has not come.")
        raise typer.Exit(EXIT_NOT_DONE)


def _topic(opened: Reader, name: str | None) -> TopicInfo:
    return next(each for each in opened.topics.list(system=True) if each.name == name)


def _from(opened: Reader, topic: str, queue: int, offset: int, maximum: int) -> list[PoppedMessage]:
    messages: list[PoppedMessage] = []
    while len(messages) < maximum and (page := opened.read(topic, queue, offset, maximum - len(messages)).messages):
        messages += [each for each in page if isinstance(each, PoppedMessage)]
        offset = messages[-1].queue_offset + 1
    return messages


def _show_message(message: PoppedMessage) -> None:
    place = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
    parts = [show.plain(message.message_id), *show.words(message)]
    show.line(Text.assemble((place, "bold"), *(f"  {part}" for part in parts)))
    before = f", delivered {show.count(message.attempt, 'time')} before" if message.attempt else ""
    show.line(Text(f"  came {clock_and_relative(message.store_ms, stores.now_ms())}{before}", "dim"))
    for text in show.body_lines(message.body):
        show.line(f"  {text}")


@examples(
    "rmqstore leases data",
    "rmqstore leases data --group billing --topic orders",
    "rmqstore leases data --id 7F000001000100000000000000000000AB",
)
def leases(
    store: StoreArgument,
    group: GroupOption = None,
    topic: TopicOption = None,
    message_id: IdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who holds which messages until when.

    Of a message that is backing off, the attempt failed for this reason, and the next one waits for its time. A lease that ended and is
    not yet given back says how long ago; that happens while nobody has the store open. The receipt acks the message:
    `rmqstore ack STORE 'RECEIPT'`. Queue and offset are those of the retry topic when the message came from there.
    """
    now_ms = stores.now_ms()
    with stores.reading(store) as opened:
        stores.require_topic(opened, topic)
        stores.require_group(opened, group)
        found = opened.leases(topic, group)
    if message_id is not None:
        found = [lease for lease in found if lease.message_id == message_id]
    if as_json:
        show.document({**show.times_document(now=now_ms), "leases": [show.struct_document(lease) for lease in found]})
    elif found:
        rows: list[dict[str, Cell]] = [
            {
                "group": lease.group,
                "topic": lease.topic,
                "queue": lease.queue_id,
                "offset": lease.queue_offset,
                "attempt": lease.attempt,
                "popped at": clock_time(lease.pop_time_ms),
                "lease ends": clock_time(lease.expiry_ms),
                "in": relative(lease.expiry_ms, now_ms),
                "id": lease.message_id,
                "backing off": (lease.reason or "for no reason given") if lease.is_backing_off else "",
                "receipt": lease.receipt,
            }
            for lease in found
        ]
        show.table(rows, long=["popped at", "id", "backing off", "receipt"])
        show.note(f"{show.count(len(found), 'lease')}, of {show.count(len({lease.group for lease in found}), 'group')}.")
    else:
        show.note("No message is leased." if message_id is None else f"No message with id {message_id} is leased.")
    if message_id is not None and not found:
        raise typer.Exit(EXIT_NOT_DONE)


@examples(
    "rmqstore where data --id 7F000001000100000000000000000000AB",
    "rmqstore where data --key order-42 --topic orders",
)
def where(
    store: StoreArgument,
    message_id: IdOption = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Messages with this key.")] = None,
    topic: TopicOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find messages by id or key, wherever they are.

    They are looked for among timers, in queues, under leases, in waits and in dead letters. A message is listed once for each group that
    pops its topic. "done" says that the group acked it. Of a message that was cancelled,
    or that every group acked and that was taken away, nothing is known any more. This reads all that the store holds.
    """
    if (message_id is None) == (key is None):
        raise typer.BadParameter("give --id or --key, and not both", param_hint="--id")
    now_ms = stores.now_ms()
    with stores.reading(store) as opened:
        found = opened.where(id=message_id, key=key, topic=topic)
        if not found:  # a topic that was deleted may still have dead letters
            stores.require_topic(opened, topic, or_timers=True)
    if as_json:
        show.document({**show.times_document(now=now_ms), "places": [_place_document(each) for each in found]})
    elif found:
        show.table(map(_place_row, found), long=["id", "reason", "handle or receipt"])
    else:
        what = f"with id {message_id}" if message_id is not None else f"with key {key}"
        show.note(f"No message {show.plain(what)} is here: it never was, it was cancelled, or every group is done with it.")
    if not found:
        raise typer.Exit(EXIT_NOT_DONE)


def _place_row(place: Whereabouts) -> dict[str, Cell]:
    until_ms = place.until_ms
    return {
        "state": place.state.value,
        "topic": place.message.topic,
        "queue": _stored(place, "queue_id"),
        "offset": _stored(place, "queue_offset"),
        "group": place.group,
        "attempt": place.attempt or None,
        "until": None if until_ms is None else clock_time(until_ms),
        "in": None if until_ms is None else relative(until_ms, stores.now_ms()),
        "id": place.message.message_id,
        "reason": place.reason,
        "handle or receipt": place.handle or place.receipt,
    }


def _place_document(place: Whereabouts) -> dict[str, Any]:
    return {
        "state": place.state.value,
        "topic": place.message.topic,
        "queue_id": _stored(place, "queue_id"),
        "queue_offset": _stored(place, "queue_offset"),
        "group": place.group or None,
        "attempt": place.attempt or None,
        "message_id": place.message.message_id,
        "reason": place.reason or None,
        **({} if place.until_ms is None else show.times_document(until=place.until_ms)),
        "handle": place.handle or None,
        "receipt": place.receipt or None,
    }


def _stored(place: Whereabouts, name: str) -> int | None:
    """Return where in its topic a message is; None for a timer, which is not there yet."""
    return getattr(place.message, name) if isinstance(place.message, PoppedMessage) else None
