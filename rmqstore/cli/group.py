"""``rmqstore group``: how often and when a group tries again."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.options import JsonOption, StoreArgument, complete_group, examples
from rmqstore.cli.times import duration_option, duration_text
from rmqstore.delays import RETRY_BACKOFF_MS

EXAMPLES: Final = examples(
    "rmqstore group data billing",
    "rmqstore group data billing --max-retries 3 --backoff 1s,10s,5m",
    "rmqstore group data billing --reset",
)


def group(
    store: StoreArgument,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False, autocompletion=complete_group)],
    max_retries: Annotated[
        int | None, typer.Option("--max-retries", metavar="N", min=0, help="Redeliveries before the dead letter queue.", show_default=False)
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            "--backoff", metavar="D,D…", help="Waits after the 1st, 2nd … failed attempt; the last one repeats.", show_default=False
        ),
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
    if changes or reset:
        waits = None if backoff is None else [timedelta(milliseconds=_wait_ms(each)) for each in backoff.split(",")]
        with stores.owning(store) as owned:
            known = owned.groups.settings(name)
            if reset:
                owned.groups.set(name)
            else:
                owned.groups.set(
                    name,
                    max_retries=known.max_retries if max_retries is None else max_retries,
                    backoff=[timedelta(milliseconds=each) for each in known.backoff_ms] if waits is None else waits,
                )
            found, default = owned.groups.settings(name), owned.engine.config.max_retries
    else:
        with stores.reading(store) as opened:
            found, default = opened.groups.settings(name), opened.engine.config.max_retries
    retries, table = found.max_retries, found.backoff_ms
    if as_json:
        show.document({"group": name, "max_retries": retries, "backoff_ms": list(table) or None})
        return
    show.line(f"max_retries  {default if retries is None else retries}{' (of the store)' if retries is None else ''}")
    waits_text = ", ".join(map(duration_text, table or RETRY_BACKOFF_MS))
    show.line(f"backoff      {waits_text}{'' if table else ' (the default)'}")


def _wait_ms(text: str) -> int:
    return duration_option("--backoff", text, minimum=1)
