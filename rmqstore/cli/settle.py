"""``rmqstore ack`` and ``rmqstore cancel``: end leases and timers, one outcome for each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer
from rich.text import Text

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import JsonOption, StoreArgument, examples
from rmqstore.contract import AckOutcome, CancelOutcome, Receipt

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
    with stores.owning(store) as opened:
        outcomes = opened.ack(given)
    _report("receipt", given, outcomes, AckOutcome.ACKED, as_json)


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
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="Cancel every pending timer of the topic with this key.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel timers, by their handles or by topic and key.

    The outcomes: cancelled (it will never be delivered); already delivered (too late); unknown (no such timer was ever in this store).
    """
    if bool(handles) == (topic is not None or key is not None):
        raise typer.BadParameter("give handles, or both --topic and --key", param_hint="HANDLE")
    if not handles:
        if topic is None or key is None:
            raise typer.BadParameter("--topic and --key go together", param_hint="--key" if key is None else "--topic")
        with stores.owning(store) as opened:
            outcomes = opened.cancel_key(topic, key)
            if not outcomes:
                stores.require_topic(opened, topic, or_timers=True)
        if not outcomes and not as_json:
            show.note(f"No timer of topic {topic} with key {key} is pending.")
        _report("key", [key] * len(outcomes), outcomes, CancelOutcome.CANCELLED, as_json)
        if not outcomes:
            raise typer.Exit(EXIT_NOT_DONE)
        return
    given = _lines_of_stdin() if handles == ["-"] else handles
    with stores.owning(store) as opened:
        outcomes = opened.cancel(given)
    _report("handle", given, outcomes, CancelOutcome.CANCELLED, as_json)


def _lines_of_stdin() -> list[str]:
    return [text for line in sys.stdin if (text := line.strip())]


def _joined(words: Sequence[str]) -> Sequence[str]:
    """Return receipts as they are; those that the shell split at their blanks, for want of quotes, are put together again."""
    if len(words) % _RECEIPT_WORDS or any(" " in word for word in words):
        return words
    joined = [" ".join(words[at : at + _RECEIPT_WORDS]) for at in range(0, len(words), _RECEIPT_WORDS)]
    return joined if all(Receipt.parse(text) is not None for text in joined) else words


def _report(noun: str, given: Sequence[str], outcomes: Sequence[Enum], good: Enum, as_json: bool) -> None:
    """Print an outcome per item, then the sum; ends with the exit code for it when one is not the good one."""
    if as_json:
        items = [{noun: text, "outcome": outcome.value} for text, outcome in zip(given, outcomes, strict=True)]
        show.document({"items": items, "all_done": bool(items) and all(outcome is good for outcome in outcomes)})
    else:
        width = max((len(str(outcome.value)) for outcome in outcomes), default=0)
        for text, outcome in zip(given, outcomes, strict=True):
            style = "green" if outcome is good else "yellow"
            show.line(Text.assemble((str(outcome.value).ljust(width), style), "  ", show.plain(text)))
        sums = Counter(str(outcome.value) for outcome in outcomes)
        if len(outcomes) > 1:
            show.note(", ".join(f"{number:,} {name}" for name, number in sums.items()) + ".")
    if any(outcome is not good for outcome in outcomes):
        raise typer.Exit(EXIT_NOT_DONE)
