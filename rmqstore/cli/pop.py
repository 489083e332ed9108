"""``rmqstore pop``, ``ack`` and ``cancel``: lease messages and print them; end leases and timers, one outcome for each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_INTERRUPTED, EXIT_NOT_DONE, Interrupt
from rmqstore.cli.options import JsonOption, StoreArgument, TopicArgument, complete_group, examples, refuse_together
from rmqstore.cli.times import clock_and_relative, clock_time, duration_option
from rmqstore.contract import AckOutcome, CancelOutcome, InitMode, Receipt
from rmqstore.errors import IllegalArgumentError, UnsupportedOperationError
from rmqstore.message import MAX_POP, PoppedMessage
from rmqstore.store import Store
from rmqstore.store.pauses import Flow

_PAGE = 32
"""Messages of one pop and one ack: what may come again when the process is killed."""

_SLICE_MS = 250
"""How long one call waits: the time until Ctrl-C is seen."""


class Run(msgspec.Struct):
    """What to pop and how to show it, and what became of it; ``limit`` is None for no end.

    Attributes:
        not_acked: how many of those that were printed were not acked although they should be.
    """

    topic: str
    group: str
    limit: int | None
    invisible_ms: int
    filter: str
    order: bool
    queue: int | None
    attempt_id: str | None
    ack: bool
    as_json: bool
    printed: int = 0
    not_acked: int = 0


@examples(
    "rmqstore pop data orders --group billing",
    "rmqstore pop data orders -g billing --max 100 --json > orders.jsonl",
    "rmqstore pop data orders -g billing --follow --filter \"region = 'eu' AND amount > 10\"",
    "rmqstore pop data orders -g billing --no-ack --invisible 5m",
    "rmqstore pop data '%DLQ%billing' -g inspectors",
)
def pop(
    store: StoreArgument,
    topic: TopicArgument,
    group: Annotated[
        str, typer.Option("--group", "-g", metavar="GROUP", help="Consumer group that gets them.", autocompletion=complete_group)
    ],
    maximum: Annotated[
        int | None, typer.Option("--max", "-n", metavar="N", min=1, help="Messages in all; 1, or without end with --follow.")
    ] = None,
    invisible: Annotated[str, typer.Option(metavar="DURATION", help="Length of the leases.")] = "60s",
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the first message.")] = "0s",
    filter: Annotated[str, typer.Option(metavar="EXPR", help="Only what this lets through: tags 'a || b', or SQL92.")] = "*",
    order: Annotated[bool, typer.Option("--order", help="FIFO: one run at a time of each queue.")] = False,
    queue: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this queue.")] = None,
    attempt_id: Annotated[str | None, typer.Option(metavar="ID", help="Repeated with the same id, it gives the same leases.")] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Ack what was printed, or keep the leases and print receipts.")] = True,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    create: Annotated[bool, typer.Option("--create", help="With --wait or --follow: make a topic that is not there yet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Pop messages of a topic, print and ack them.

    Printed are: when it came, id, tag, keys, properties, attempt and body. Each message is acked after it was printed; what was not
    printed, because the reader went away or Ctrl-C came, is given back at once. With --no-ack the leases are kept until they end, and
    `rmqstore ack` takes the receipts.

    What is due or expired is moved first, so this works on a store that nobody had open for a while. With --wait or --follow the store
    hands over all the time. A topic that is not there is refused, lest a typing error makes one, and a group, for good; --create makes
    it.
    """
    show.check_stdout()
    refuse_together(follow=follow, attempt_id=attempt_id)
    wait_ms = duration_option("--wait", wait)
    if create and not (follow or wait_ms):
        raise typer.BadParameter("a new topic has no messages; add --wait or --follow", param_hint="--create")
    limit = maximum if maximum is not None else None if follow else 1
    if attempt_id is not None and limit is not None and limit > MAX_POP:
        raise typer.BadParameter(f"with --attempt-id at most {MAX_POP}", param_hint="--max")
    invisible_ms = duration_option("--invisible", invisible, minimum=1)
    run = Run(topic, group, limit, invisible_ms, filter, order, queue, attempt_id, ack, as_json)
    waits = follow or wait_ms > 0
    with Interrupt() as interrupt, stores.owning(store, services=waits) as opened:
        opened.tick()
        if not create:
            stores.require_topic(opened, topic)
        elif topic not in [info.name for info in opened.topics.list(system=True)]:
            show.note(f"Topic {topic} is not there yet; this makes it.")
        _check_way(opened, run)
        for pause in opened.pauses.list():
            if pause.flow is Flow.HAND_OVER:
                show.note(f"T{str(pause)[1:]}; `rmqstore resume {store} hand-over` ends that.")
        _consume(opened, run, interrupt, None if follow else wait_ms)
    _report(run, store=str(store))
    if interrupt.is_set and not follow:
        raise typer.Exit(EXIT_INTERRUPTED)
    if run.not_acked:
        raise typer.Exit(EXIT_NOT_DONE)


def _check_way(store: Store, run: Run) -> None:
    """Refuse the way of popping that the group's first pop ruled out; tell where a group begins that never popped the topic.

    Raises:
        IllegalArgumentError: the group pops in order and ``--order`` is missing, or the reverse.
    """
    known = next((each for each in store.groups.subscriptions(run.group) if each.topic == run.topic), None)
    if known is not None and known.is_ordered != run.order:
        how, what = ("in order", "add --order") if known.is_ordered else ("out of order", "leave out --order")
        raise IllegalArgumentError(
            f"group {run.group!r} pops topic {run.topic!r} {how}, as its first pop fixed; {what}, or use another group"
        )
    has_stand = known is not None or any(each.topic == run.topic for each in store.groups.offsets(run.group))
    if not has_stand and run.topic in [info.name for info in store.topics.list(system=True)]:
        show.note(f"Group {run.group} is new to topic {run.topic} and begins {_start_in(store)}.")


def _start_in(store: Store) -> str:
    """Return where new groups begin, in words."""
    try:
        init = store.engine.config.init
    except UnsupportedOperationError:  # it is open in another process, whose settings are its own
        return "where init says"
    return "with the first kept message" if init is InitMode.MIN else "after the last message, since init is max"


def _consume(store: Store, run: Run, interrupt: Interrupt, wait_ms: int | None) -> None:
    """Pop page after page until the limit, the end of what is there, or Ctrl-C; ``wait_ms`` is None to go on for ever."""
    until_s = None if wait_ms is None else time.monotonic() + wait_ms / 1000
    while not interrupt.is_set and (run.limit is None or run.printed < run.limit):
        left = MAX_POP if run.limit is None else run.limit - run.printed
        left_ms = _SLICE_MS if until_s is None else max(int((until_s - time.monotonic()) * 1000), 0)
        messages = store.pop(
            run.topic,
            run.group,
            max_messages=min(left, MAX_POP if run.attempt_id is not None else _PAGE),
            invisible_ms=run.invisible_ms,
            wait_ms=min(left_ms, _SLICE_MS),
            order=run.order,
            filter=run.filter,
            attempt_id=run.attempt_id,
            queue=run.queue,
        )
        _print(store, run, messages, interrupt)
        if until_s is not None:
            if messages:
                until_s = 0.0  # the first ones are here: take what else is ready, wait no longer
            elif time.monotonic() >= until_s:
                break
        if run.attempt_id is not None and messages:
            break


def _print(store: Store, run: Run, messages: Sequence[PoppedMessage], interrupt: Interrupt) -> None:
    """Print messages; ack those that were printed and give the others back, whatever happens on the way."""
    printed = 0
    try:
        for message in messages:
            if interrupt.is_set:
                break
            if run.as_json:
                lease = {**show.times_document(lease_end=_lease_end_ms(message)), "receipt": message.receipt}
                show.json_line({**show.message_document(message), **lease})
            else:
                _show(message, run)
            printed += 1
    finally:
        run.printed += printed
        if printed < len(messages):
            store.release(messages[printed:])
        if run.ack and printed:
            outcomes = store.ack(messages[:printed])
            for message, outcome in zip(messages, outcomes, strict=False):
                if outcome is not AckOutcome.ACKED:
                    run.not_acked += 1
                    show.note(
                        f"rmqstore: message {show.plain(message.message_id)} was not acked, the lease is {outcome.value}; it may come again"
                    )


def _lease_end_ms(message: PoppedMessage) -> int | None:
    """Return when the lease ends, by its receipt, also that of a repeated attempt; its pop time may be ahead of the clock."""
    receipt = None if message.receipt is None else Receipt.parse(message.receipt)
    return None if receipt is None else min(receipt.pop_time_ms, stores.now_ms()) + receipt.invisible_ms


def _show(message: PoppedMessage, run: Run) -> None:
    attempt = "" if message.attempt == 1 else f"attempt {message.attempt}"
    parts = [show.plain(message.message_id), *show.words(message), attempt]
    show.line(Text.assemble((clock_time(message.store_ms), "bold"), *(f"  {part}" for part in parts if part)))
    for text in show.body_lines(message.body):
        show.line(f"  {text}")
    if not run.ack:
        ends_ms = _lease_end_ms(message)
        show.line(Text(f"  receipt: {message.receipt}", "dim"))
        if ends_ms is not None:
            show.line(Text(f"  lease ends {clock_and_relative(ends_ms, stores.now_ms())}", "dim"))


def _report(run: Run, store: str) -> None:
    if not run.printed:
        show.note(f"Nothing is ready in topic {run.topic} for group {run.group}; `rmqstore lag {store}` shows what is leased or waits.")
    elif run.ack:
        show.note(f"{show.count(run.printed, 'message')}, {'acked' if not run.not_acked else f'{run.not_acked:,} of them not acked'}.")
    else:
        show.note(f"{show.count(run.printed, 'message')}, leased; `rmqstore ack {store} 'RECEIPT'` acks one.")


# ---------------------------------------------------------------- ack and cancel


_RECEIPT_WORDS = 13


@examples(
    "rmqstore ack data '4 1764576000000 60000 0 0 rmqs-0a1b2c3d 0 4 0 orders billing 7 5f0e1a2b'",
    "rmqstore pop data orders -g billing --no-ack --json | jq -r .receipt | rmqstore ack data -",
)
def ack(
    store: StoreArgument,
    receipts: Annotated[
        list[str], typer.Argument(metavar="RECEIPT...", help="As pop printed them, in quotes; - reads one a line from stdin.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Ack leased messages by their receipts.

    Acked messages never come back to the group. The outcomes: acked; already acked; stale (the lease ended, and the message is somebody
    else's by now); unknown (no receipt of this store).
    """
    given = _lines_of_stdin() if receipts == ["-"] else _joined(receipts)
    with stores.owning_all(store) as opened:
        outcomes = opened.ack(given)
    _show_outcomes("receipt", list(zip(given, outcomes, strict=True)), AckOutcome.ACKED, as_json)


@examples(
    "rmqstore cancel data AQoLDA0AAAABAAAAAAAAAAEAAAGa8_Yk-GiR0Q4",
    "rmqstore cancel data --topic orders --key 42",
)
def cancel(
    store: StoreArgument,
    handles: Annotated[
        list[str] | None, typer.Argument(metavar="HANDLE...", help="As send printed them; - reads one a line from stdin.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="With --key: the topic of the timers.")] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", metavar="KEY", help="Cancel every pending timer of the topic with this key; may be given again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel timers, by their handles or by topic and keys.

    The outcomes: cancelled (it will never be delivered); already delivered (too late); unknown (no such timer was ever in this store).
    """
    if bool(handles) == (topic is not None or bool(keys)):
        raise typer.BadParameter("give handles, or both --topic and --key", param_hint="HANDLE")
    if not handles and (topic is None or not keys):
        raise typer.BadParameter("--topic and --key go together", param_hint="--topic" if keys else "--key")
    given = _lines_of_stdin() if handles == ["-"] else handles or keys or []
    with stores.owning_all(store) as opened:
        if topic is None:
            found = [[outcome] for outcome in opened.cancel(given)]
        elif not any(found := opened.cancel_keys(topic, given)):
            stores.require_topic(opened, topic, or_timers=True)
    lacking = [key for key, outcomes in zip(given, found, strict=True) if not outcomes]
    for key in [] if as_json else lacking:
        show.note(f"No timer of topic {topic} with key {key} is pending.")
    items = [(each, outcome) for each, outcomes in zip(given, found, strict=True) for outcome in outcomes]
    _show_outcomes("handle" if topic is None else "key", items, CancelOutcome.CANCELLED, as_json, lacks=bool(lacking))


def _lines_of_stdin() -> list[str]:
    return [text for line in show.stdin() if (text := line.strip())]


def _joined(words: Sequence[str]) -> Sequence[str]:
    """Return receipts as they are; those that the shell split at their blanks, for want of quotes, are put together again."""
    if len(words) % _RECEIPT_WORDS or any(" " in word for word in words):
        return words
    joined = [" ".join(words[at : at + _RECEIPT_WORDS]) for at in range(0, len(words), _RECEIPT_WORDS)]
    return joined if all(Receipt.parse(text) is not None for text in joined) else words


def _show_outcomes(noun: str, items: Sequence[tuple[str, Enum]], good: Enum, as_json: bool, *, lacks: bool = False) -> None:
    """Print an outcome per item, then the sum; ends with the exit code for it when one is not the good one, or for some there is none."""
    is_all_good = not lacks and all(outcome is good for _, outcome in items)
    if as_json:
        documents = [{noun: text, "outcome": outcome.value} for text, outcome in items]
        show.document({"items": documents, "all_done": is_all_good})
    else:
        width = max((len(outcome.value) for _, outcome in items), default=0)
        for text, outcome in items:
            style = "green" if outcome is good else "yellow"
            show.line(Text.assemble((outcome.value.ljust(width), style), "  ", show.plain(text)))
        if len(items) > 1:
            sums = Counter(outcome.value for _, outcome in items)
            show.note(", ".join(f"{number:,} {name}" for name, number in sums.items()) + ".")
    if not is_all_good:
        raise typer.Exit(EXIT_NOT_DONE)
