"""``rmqstore group`` and ``rmqstore dlq``: when a group tries again, and what becomes of the messages that it gave up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import GroupArgument, JsonOption, StoreArgument, complete_group, examples
from rmqstore.cli.show import Cell
from rmqstore.cli.times import clock_time, duration_option, duration_text, relative
from rmqstore.contract.pops import GroupSettings
from rmqstore.delays import RETRY_BACKOFF_MS
from rmqstore.message import DLQ_PREFIX
from rmqstore.store.dead_letters import DeadLetter
from rmqstore.store.reader import Reader


@examples(
    "rmqstore group data billing",
    "rmqstore group data billing --max-retries 3 --backoff 1s,10s,5m",
    "rmqstore group data billing --reset",
)
def group(
    store: StoreArgument,
    name: GroupArgument,
    max_retries: Annotated[int | None, typer.Option(metavar="N", min=0, help="Redeliveries before the dead letter queue.")] = None,
    backoff: Annotated[
        str | None,
        typer.Option(metavar="D,D…", help="Waits after the 1st, 2nd … failed attempt; the last one repeats.", show_default=False),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Take back what is set for the group.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how often and when a group tries again, or set it.

    What is not set for a group is that of the store: `max_retries` of its configuration, and RocketMQ's table of waits. What is given here
    is added to what was set before, and may be set before the group pops for the first time.
    """
    changes = max_retries is not None or backoff is not None
    if reset and changes:
        raise typer.BadParameter("--reset takes everything back; give it alone", param_hint="--reset")
    waits_ms = None if backoff is None else tuple(duration_option("--backoff", each, minimum=1) for each in backoff.split(","))
    found: GroupSettings | None = None
    if changes or reset:
        with stores.owning(store) as owned:
            known = GroupSettings() if reset else owned.groups.settings(name)
            retries = known.max_retries if max_retries is None else max_retries
            table = known.backoff_ms if waits_ms is None else waits_ms
            owned.groups.set(name, max_retries=retries, backoff=[timedelta(milliseconds=each) for each in table])
            found = owned.groups.settings(name)  # with flush = async a reader may not see it yet
    with stores.reading(store) as opened:
        found, default = found or opened.groups.settings(name), opened.engine.config.max_retries
    retries, table = found.max_retries, found.backoff_ms
    if as_json:
        show.document({"group": name, "max_retries": retries, "backoff_ms": list(table) or None})
        return
    # The settings that a program opened the store with are not seen from outside.
    of_store = f"{default} (of the store)" if stores.holder(store) is None else "as the program that has the store open was told"
    show.line(f"max_retries  {of_store if retries is None else retries}")
    waits_text = ", ".join(map(duration_text, table or RETRY_BACKOFF_MS))
    show.line(f"backoff      {waits_text}{'' if table else ' (the default)'}")


# ---------------------------------------------------------------- dead letters

MaybeGroupArgument = Annotated[str | None, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_group)]
IdsOption = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="The message with this id; may be given again.")]
ParkedOption = Annotated[bool, typer.Option("--parked", help="The entries that could not be read, in place of a group's dead letters.")]


@examples("rmqstore dlq list data billing", "rmqstore dlq list data --parked", "rmqstore dlq list data billing --json")
def list_(store: StoreArgument, group: MaybeGroupArgument = None, parked: ParkedOption = False, as_json: JsonOption = False) -> None:
    """List the dead letters of a group.

    Those are messages that it did not ack in all their attempts. Without GROUP it tells which groups have any. --parked lists the entries
    of the store that could not be read, and why.
    """
    now_ms = stores.now_ms()
    with stores.reading(store) as opened:
        if group is None and not parked:
            _list_groups(opened, as_json=as_json)
            return
        letters = _letters(opened, group, parked=parked)
    if as_json:
        documents = [{**show.struct_document(each), "message": show.message_document(each.message)} for each in letters]
        show.document({**show.times_document(now=now_ms), "dead_letters": documents})
    elif letters:
        rows: list[dict[str, Cell]] = [
            {
                "died": clock_time(letter.died_ms),
                "ago": relative(letter.died_ms, now_ms),
                "origin topic": letter.origin_topic,
                "attempts": letter.attempts,
                "id": letter.message.message_id,
                "reason": letter.reason,
                "body": show.body_start(letter.message.body),
            }
            for letter in letters
        ]
        show.table(rows, long=["id", "reason", "body"])
        number = len(letters)
        what = show.count(number, "parked entry", "parked entries") if parked else f"{show.count(number, 'dead letter')} of group {group}"
        show.note(f"{what}; `rmqstore dlq {'drop' if parked else 'resend'} -h` tells what can be done.")
    else:
        show.line("Nothing is parked." if parked else f"Group {group} has no dead letters.")


@examples("rmqstore dlq resend data billing --all", "rmqstore dlq resend data billing --id 7F000001000100000000000000000000AB")
def resend(
    store: StoreArgument,
    group: GroupArgument,
    ids: IdsOption = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give dead letters back to their group.

    They are delivered to it as if for the first time, and to no other group; a message that was popped in order goes back into its topic,
    for all groups.
    """
    with stores.owning(store) as opened:
        letters, missing = _chosen(_letters(opened, group, parked=False), ids, wants_all=all_)
        done = opened.dead_letters.resend(letters)
    _report("given back", done, missing, as_json)


@examples("rmqstore dlq drop data billing --all --older-than 7d", "rmqstore dlq drop data --parked --all")
def drop(
    store: StoreArgument,
    group: MaybeGroupArgument = None,
    ids: IdsOption = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    older_than: Annotated[str | None, typer.Option(metavar="DURATION", help="Only what died so long ago: 7d.")] = None,
    parked: ParkedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove dead letters for good."""
    age_ms = None if older_than is None else duration_option("--older-than", older_than)
    with stores.owning(store) as opened:
        letters, missing = _chosen(_letters(opened, group, parked=parked), ids, wants_all=all_ or age_ms is not None)
        if age_ms is not None:
            letters = [letter for letter in letters if letter.died_ms <= stores.now_ms() - age_ms]
        done = opened.dead_letters.drop(letters)
    _report("dropped", done, missing, as_json)


def _letters(store: Reader, group: str | None, *, parked: bool) -> list[DeadLetter]:
    if parked == (group is not None):
        raise typer.BadParameter("give a group, or --parked", param_hint="GROUP")
    if group is None:
        return store.dead_letters.parked()
    stores.require_group(store, group)
    return store.dead_letters.list(group)


def _chosen(letters: Sequence[DeadLetter], ids: list[str] | None, *, wants_all: bool) -> tuple[list[DeadLetter], list[str]]:
    """Return the letters that the options choose, and the ids that none of them has."""
    if bool(ids) == wants_all:
        raise typer.BadParameter("say which: --id, which may be given again, or --all", param_hint="--id")
    if not ids:
        return list(letters), []
    known = {name for letter in letters for name in _names(letter)}
    return [letter for letter in letters if not _names(letter).isdisjoint(ids)], [each for each in ids if each not in known]


def _names(letter: DeadLetter) -> set[str]:
    return {letter.message.message_id, letter.origin_message_id}


def _report(what: str, done: int, missing: Sequence[str], as_json: bool) -> None:
    if as_json:
        show.document({"done": done, "not_found": list(missing)})
    else:
        show.line(f"{show.count(done, 'dead letter')} {what}")
        for each in missing:
            show.note(f"There is none with id {each}.")
    if missing:
        raise typer.Exit(EXIT_NOT_DONE)


def _list_groups(store: Reader, *, as_json: bool) -> None:
    groups = [info.name.removeprefix(DLQ_PREFIX) for info in store.topics.list(system=True) if info.name.startswith(DLQ_PREFIX)]
    counts = {group: number for group in groups if (number := len(store.dead_letters.list(group)))}
    if as_json:
        show.document({"groups": counts})
    elif counts:
        show.table({"group": group, "dead letters": number} for group, number in counts.items())
    else:
        show.line("No group has dead letters.")
