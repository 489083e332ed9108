"""``rmqstore worker``: give the messages of a topic to a function, until the command is ended."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

import rmqstore
from rmqstore.cli import show, stores
from rmqstore.cli.options import AddressArgument, GroupArgument, TokenOption, TopicArgument, certificates, examples, file_option
from rmqstore.cli.times import duration_option
from rmqstore.errors import IllegalArgumentError
from rmqstore.services.consuming import Kind, kind_of

if TYPE_CHECKING:
    from rmqstore.aio import AsyncStore
    from rmqstore.services.consuming import WorkerStats
    from rmqstore.store import Store


_LOOK_S: Final = 0.2
"""So often the command looks whether a signal has come."""


@examples(
    "rmqstore worker data orders billing shop.jobs:close",
    "rmqstore worker data orders billing shop.jobs:close --threads 8 --invisible 30s",
    "rmqstore worker rmqstore://127.0.0.1:7450 orders billing shop.jobs:close",
    "rmqstore worker rmqstores://shop.example:7450 orders billing shop.jobs:close --token-file token --tls-ca authority.pem",
)
def worker(
    store: AddressArgument,
    topic: TopicArgument,
    group: GroupArgument,
    handler: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What takes a message; looked for here too.")],
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, help="How many handlers run at a time.")] = 1,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="How many messages are popped at a time.")] = 32,
    invisible: Annotated[str, typer.Option("--invisible", metavar="DURATION", help="So soon others get what a dead worker held.")] = "60s",
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="After that a handler's message is given to others, and an async handler is cancelled."),
    ] = None,
    order: Annotated[bool, typer.Option("--order", help="Keep the order of message groups.")] = False,
    filter_: Annotated[str, typer.Option("--filter", metavar="EXPRESSION", help="Only what this filter lets through.")] = "*",
    token_file: TokenOption = None,
    tls_ca: Annotated[Path | None, file_option(help="The server's certificate must be signed by these.")] = None,
    tls_cert: Annotated[Path | None, file_option(help="Certificate that the server asks for.")] = None,
    tls_key: Annotated[Path | None, file_option(help="Its private key.")] = None,
) -> None:
    """Give messages to a Python function.

    A message is acked when the function returns. When it raises, the message comes again after the back-off of its group, and the error is
    kept as the reason. An `async def` function is awaited, so many at a time as `--threads` says, all in one thread. The store is shared:
    other workers and programs may have it open with `share=True`. Ctrl-C or SIGTERM ends it when the handlers that run are done; SIGHUP
    begins it anew then, with the code as it is now.
    """
    lease = timedelta(milliseconds=duration_option("--invisible", invisible, minimum=1000))
    longest = None if timeout is None else timedelta(milliseconds=duration_option("--timeout", timeout, minimum=1))
    function = _function(handler)
    access = _access(store, token_file, tls_cert, tls_key, tls_ca)
    work = {"topics": topic, "group": group, "handler": function, "batch": batch, "invisible": lease, "timeout": longest}
    work |= {"order": order, "filter": filter_}
    told = _Signals()
    begins = f"{handler} consumes {topic} as {group}"
    if kind_of(function) is Kind.COROUTINE:
        import asyncio  # with the client for it, it is slow to begin with

        opening = rmqstore.aio.open(store) if access is None else rmqstore.aio.connect(store, **access)
        work["at_once"] = threads
        done = asyncio.run(_in_tasks(opening, work, told, f"{begins}, {threads:,} at a time; Ctrl-C ends it"))
    else:
        work["threads"] = threads
        with rmqstore.open(store, share=True) if access is None else rmqstore.connect(store, **access) as opened:
            done = _in_threads(opened, work, told, f"{begins}, with {show.count(threads, 'thread')}; Ctrl-C ends it")
    show.note(f"{done.done:,} done, {done.retried:,} to be tried again, {done.rejected:,} rejected, {done.lost:,} lost to others.")
    if told.begins_anew and not told.ends:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        # One that comes before the program that begins is ready for it waits for that; it would end it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this program


def _in_threads(opened: Store, work: Mapping[str, Any], told: _Signals, begins: str) -> WorkerStats:
    with told, opened.consume(**work) as running:
        show.note(begins)
        while not told.is_set and not running.join(_LOOK_S):
            pass
    return running.stats


async def _in_tasks(opening: AsyncStore, work: Mapping[str, Any], told: _Signals, begins: str) -> WorkerStats:
    import asyncio

    async with opening as opened:
        with told:
            async with opened.consume(**work) as running:
                show.note(begins)
                ended = asyncio.create_task(running.join())
                while not told.is_set and not ended.done():
                    await asyncio.wait([ended], timeout=_LOOK_S)
    return running.stats


def _access(store: str, token_file: Path | None, cert: Path | None, key: Path | None, ca: Path | None) -> Mapping[str, Any] | None:
    """Return what the server at an address asks for; None for a directory, which is there."""
    if key is not None and cert is None:
        raise typer.BadParameter("a key is for a certificate that the server asks for: give --tls-cert", param_hint="--tls-key")
    tls = [name for name, file in (("--tls-cert", cert), ("--tls-ca", ca)) if file is not None]
    if stores.is_address(store):
        if tls and not store.startswith("rmqstores://"):
            raise typer.BadParameter("TLS is for an address of the form rmqstores://HOST:PORT", param_hint=tls[0])
        return {
            "token": stores.token_for(store, token_file),
            "tls": certificates("SERVER_AUTH", cert, key, ca) if tls else None,
        }
    if tls:
        raise typer.BadParameter("a directory is shared without certificates; they are for a server's address", param_hint=tls[0])
    stores.token_for(store, token_file)
    stores.require(Path(store))
    return None


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

    @property
    def is_set(self) -> bool:
        """Whether one has come."""
        return self.ends or self.begins_anew

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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            if number is not signal.SIGHUP or not self.begins_anew:  # another one says the same
                signal.signal(number, before)
