"""``rmqstore worker``: give the messages of a topic to a function, until the command is ended."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any, Self

import typer

import rmqstore
from rmqstore.cli import show, stores
from rmqstore.cli.options import AddressArgument, TokenOption, TopicArgument, complete_group, examples
from rmqstore.cli.times import duration_option
from rmqstore.errors import IllegalArgumentError
from rmqstore.store import Store


@examples(
    "rmqstore worker data orders billing shop.jobs:close",
    "rmqstore worker data orders billing shop.jobs:close --threads 8 --invisible 30s",
    "rmqstore worker rmqstore://127.0.0.1:7450 orders billing shop.jobs:close",
)
def worker(
    store: AddressArgument,
    topic: TopicArgument,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_group)],
    handler: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What takes a message; looked for here too.")],
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, help="How many handlers run at a time.")] = 1,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="How many messages a thread pops at a time.")] = 32,
    invisible: Annotated[str, typer.Option("--invisible", metavar="DURATION", help="So soon others get what a dead worker held.")] = "60s",
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="After that a handler's message is given to others.", show_default=False),
    ] = None,
    order: Annotated[bool, typer.Option("--order", help="Keep the order of message groups.")] = False,
    filter_: Annotated[str, typer.Option("--filter", metavar="EXPRESSION", help="Only what this filter lets through.")] = "*",
    token_file: TokenOption = None,
) -> None:
    """Give messages to a Python function.

    A message is acked when the function returns. When it raises, the message comes again after the back-off of its group, and the error is
    kept as the reason. The store is shared: other workers and programs may have it open with `share=True`. Ctrl-C or SIGTERM ends it when
    the handlers that run are done; SIGHUP begins it anew then, with the code as it is now.
    """
    lease = timedelta(milliseconds=duration_option("--invisible", invisible, minimum=1000))
    longest = None if timeout is None else timedelta(milliseconds=duration_option("--timeout", timeout, minimum=1))
    function = _function(handler)
    with (
        _opened(store, stores.token_for(store, token_file)) as opened,
        _Signals() as told,
        opened.consume(
            topic, group, function, threads=threads, batch=batch, invisible=lease, timeout=longest, order=order, filter=filter_
        ) as running,
    ):
        show.note(f"{handler} consumes {topic} as {group}, with {show.count(threads, 'thread')}; Ctrl-C ends it")
        while not told.ends and not told.begins_anew and not running.join(0.2):
            pass
    done = running.stats
    show.note(f"{done.done:,} done, {done.retried:,} to be tried again, {done.rejected:,} rejected, {done.lost:,} lost to others.")
    if told.begins_anew and not told.ends:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this program


def _opened(store: str, token: str | None) -> Store:
    if stores.is_address(store):
        return rmqstore.connect(store, token=token)
    stores.require(Path(store))
    return rmqstore.open(store, share=True)


def _function(text: str) -> Callable[[Any], object]:
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise typer.BadParameter(f"{text} is not MODULE:FUNCTION, as in shop.jobs:close", param_hint="MODULE:FUNCTION")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise IllegalArgumentError(f"{text} cannot be found: {error}; modules are looked for here and where Python finds them") from error
    if not callable(found):
        raise IllegalArgumentError(f"{text} is no function, but {found!r}")
    function: Callable[[Any], object] = found
    return function


class _Signals:
    """What signals have asked for. The second one that ends the command does so at once, whatever handler runs.

    Plain flags: an event has a lock, which the thread that waits for it may hold when the signal comes.
    """

    def __init__(self) -> None:
        self.ends = False
        self.begins_anew = False
        self._before: dict[signal.Signals, Any] = {}

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.ends:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.ends = True

    def _begin_anew(self, number: int, frame: FrameType | None) -> None:
        self.begins_anew = True

    def __enter__(self) -> Self:
        meanings = {signal.SIGINT: self._end, signal.SIGTERM: self._end}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            meanings[signal.SIGHUP] = self._begin_anew
        self._before = {number: signal.signal(number, meaning) for number, meaning in meanings.items()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
