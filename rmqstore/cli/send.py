"""``rmqstore send``: one message from the command line, a file or stdin; or many from a file."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Annotated, TypeAlias

import msgspec
import typer
from rich.progress import DownloadColumn, MofNCompleteColumn

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_INTERRUPTED, Interrupt
from rmqstore.cli.options import EngineOption, JsonOption, SettingsOption, StoreArgument, examples, refuse_together
from rmqstore.cli.rows import SUFFIXES, Batch, Format, Reader, Shape, reader_of
from rmqstore.cli.times import clock_and_relative, duration_option, time_option
from rmqstore.delays import DELAY_LEVELS_MS, without_requests
from rmqstore.errors import IllegalArgumentError, RmqstoreError
from rmqstore.late import np, pa, pc
from rmqstore.message import Message, check_message
from rmqstore.store import Store
from rmqstore.store.sending import calls_of

_MIN_BATCH, _MAX_BATCH = 1000, 10_000


Due: TypeAlias = Callable[[int], int | None]
"""Gives the deliver time of what is sent now, which does not say so itself; None: at once."""


@examples(
    'rmqstore send data orders "close 42" --key 42 --delay 30m --create',
    "rmqstore send data orders --body-file order.json --at 2026-12-01T08:00+01:00",
    "generate | rmqstore send data orders --tag new",
    "rmqstore send data --from-file orders.csv",
    "zcat orders.jsonl.gz | rmqstore send data orders --from-file -",
)
def send(
    store: StoreArgument,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Where it goes. With --from-file: where rows go that name no topic.")
    ] = None,
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="The text to send; stdin when left out.")] = None,
    body_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Send what is in this file, as it is.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="One word to filter by.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="KEY", help="A word to find or cancel it by; may be given again.")
    ] = None,
    properties: Annotated[list[str] | None, typer.Option("--property", "-p", metavar="NAME=VALUE", help="May be given again.")] = None,
    message_group: Annotated[str | None, typer.Option(metavar="NAME", help="Its message group, for FIFO; not with a time.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id; made when left out.")] = None,
    queue: Annotated[int | None, typer.Option(metavar="N", min=0, help="Queue of the topic; chosen when left out.")] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", "-d", metavar="DURATION", help="Due so long from now: 90s, 5m, 2h, 1d, 250ms.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Due then: ISO 8601, local without an offset, or ms since the epoch: 1796108400000ms."),
    ] = None,
    delay_level: Annotated[int | None, typer.Option(metavar="N", help="RocketMQ's delay level: 1 is 1 s, 18 is 2 h.")] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", "-f", metavar="FILE", help="Send every row of a JSONL, CSV or Parquet file; - is JSONL on stdin."),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        Format | None, typer.Option("--format", metavar="jsonl|csv|parquet", help="What the file is; by its suffix when left out.")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="ROWS", min=_MIN_BATCH, max=_MAX_BATCH, help="Rows in one step.")] = 5000,
    run: Annotated[str, typer.Option(metavar="NAME", help="Name of this run: under another one the same file is stored again.")] = "",
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a step waits where flow control refuses it: 30s, 5m.")
    ] = None,
    create: Annotated[bool, typer.Option("--create/--no-create", help="Make the store when there is none.")] = False,
    engine: EngineOption = None,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a message now or for later, or those of a file.

    Prints the id of the message, and when it is for later the handle that cancels it.

    A file has columns topic, body (text) or body_base64, tag, keys (a list, or words), properties (an object; in CSV properties.NAME),
    message_group, deliver_at_ms or deliver_at, message_id, born_ms, queue_id; all but the body may be left out. Parquet has those of
    `rmqstore.IN_SCHEMA`. What `pop --json` and `peek --json` print for a message is such a row, too.

    A file is stored in batches. The same command run again, after Ctrl-C, a crash or a row at fault, goes on where it stopped and stores
    nothing twice, for 7 days (mark_memory_ms). A file that was stored to its end and grew has its last batch stored again, with the rows
    that it had before, and one of Parquet all of them: send what is new as a file of its own.

    With --timeout a step waits while its slot is full or sends are paused, and who owns the store hands over meanwhile.
    """
    refuse_together(delay=delay, at=at, delay_level=delay_level)
    due = _due(delay, at, delay_level)
    given = stores.parsed_settings(settings or ())
    patience = None if timeout is None else timedelta(milliseconds=duration_option("--timeout", timeout))
    owning = functools.partial(stores.owning, store, create=create, engine=engine, settings=given, services=patience is not None)
    if not create:
        stores.require(store)
    if from_file is not None:
        if body is not None:
            raise typer.BadParameter("BODY and --from-file exclude each other; give one", param_hint="BODY")
        single: dict[str, object] = {"body_file": body_file, "tag": tag, "key": key, "property": properties}
        single |= {"message_group": message_group, "id": message_id, "queue": queue is not None}
        for name, value in single.items():
            refuse_together(from_file=True, **{name: value})
        names = json.dumps(
            [from_file if from_file == "-" else os.fspath(Path(from_file).absolute()), topic, delay, at, delay_level, batch, run]
        )
        with _reader(from_file, format, Shape(topic, batch, names)) as reader:
            _send_rows(owning, reader, due, patience, as_json)
        return
    if topic is None:
        raise typer.BadParameter("give the topic", param_hint="TOPIC")
    if body_file is not None and body is not None:
        raise typer.BadParameter("BODY and --body-file exclude each other; give one", param_hint="--body-file")
    now_ms = stores.now_ms()
    message = Message(
        topic,
        _body(body, body_file),
        tag,
        tuple(key or ()),
        _pairs(properties or ()),
        message_group,
        due(now_ms),
        message_id,
        queue_id=queue,
    )
    check_message(message)  # before a store is made for it
    message = without_requests(message, now_ms)
    with owning() as opened:
        _send_one(opened, message, patience, as_json)


def _due(delay: str | None, at: str | None, level: int | None) -> Due:
    if delay is not None:
        delay_ms = duration_option("--delay", delay)
    elif level is not None:
        if not 1 <= level <= len(DELAY_LEVELS_MS):
            what = f"it must be 1 to {len(DELAY_LEVELS_MS)} (1 s to 2 h), not {level}; give --delay for any other time"
            raise typer.BadParameter(what, param_hint="--delay-level")
        delay_ms = DELAY_LEVELS_MS[level - 1]
    else:
        at_ms = None if at is None else time_option("--at", at)
        return lambda now_ms: at_ms
    return lambda now_ms: now_ms + delay_ms


def _body(text: str | None, path: Path | None) -> bytes:
    if text is not None:
        return os.fsencode(text)
    if path is not None:
        with _open(path) as stream:
            return stream.read()
    if show.stdin().isatty():
        show.note("Type the body; Ctrl-D ends it.")
    return sys.stdin.buffer.read()


def _pairs(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} has no '='; write NAME=VALUE", param_hint="--property")
        found[name] = value
    return found


def _send_one(store: Store, message: Message, patience: timedelta | None, as_json: bool) -> None:
    receipt = store.send(message, timeout=patience)
    deliver_ms = message.deliver_at_ms
    if as_json:
        show.document(
            {
                "topic": message.topic,
                "message_id": receipt.message_id,
                "handle": receipt.handle,
                **show.times_document(deliver_at=deliver_ms),
            }
        )
        return
    show.fields((("id", receipt.message_id), ("handle", receipt.handle or "")))
    if receipt.handle is None:
        show.note(f"It is in topic {message.topic}.")
    elif deliver_ms is not None:
        show.note(
            f"It is due {clock_and_relative(deliver_ms, stores.now_ms())}; `rmqstore cancel {store.path} HANDLE` stops it until then."
        )


# ---------------------------------------------------------------- files


@contextmanager
def _reader(name: str, format: Format | None, shape: Shape) -> Iterator[Reader]:  # noqa: A002 - what users call it
    if name == "-":
        if format not in (None, "jsonl", "csv"):
            raise typer.BadParameter("stdin is JSONL, or CSV with --format csv", param_hint="--format")
        yield reader_of(None, show.stdin().buffer, format or "jsonl", shape)
        return
    path = Path(name)
    kind = format or SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise typer.BadParameter(f"{name} has none of the suffixes .jsonl, .csv, .parquet; say --format", param_hint="--from-file")
    with _open(path) as stream:
        yield reader_of(path, stream, kind, shape)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise IllegalArgumentError(f"{path} cannot be read: {error.strerror}") from None


class Tally(msgspec.Struct):
    """What became of a file's rows so far; ``before`` of them were stored by an earlier run already."""

    rows: int = 0
    before: int = 0
    batches: int = 0


def _send_rows(
    owning: Callable[[], AbstractContextManager[Store]], reader: Reader, due: Due, patience: timedelta | None, as_json: bool
) -> None:
    tally = Tally()
    amount = MofNCompleteColumn() if reader.counts_rows else DownloadColumn()
    progress = show.progress("{task.description}", amount)
    task = progress.add_task("sending", total=reader.total)
    try:
        with Interrupt() as interrupt, owning() as opened, progress:
            while True:
                # Only while the file is read, and not while a batch is stored, does Ctrl-C end the command.
                with interrupt.at_once():
                    batch = next(reader.batches, None)
                if batch is None:
                    break
                _send_batch(opened, batch, due, patience, tally)
                progress.update(task, completed=batch.progress)
    except RmqstoreError as error:
        error.args = (f"{error}; {_stored_so_far(tally)}",)
        raise
    except KeyboardInterrupt:
        show.note(f"Interrupted: {_stored_so_far(tally)}.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        show.document({"rows": tally.rows, "stored": tally.rows - tally.before, "stored_before": tally.before, "batches": tally.batches})
        return
    show.line(f"{show.count(tally.rows - tally.before, 'message')} stored in {show.count(tally.batches, 'batch', 'batches')}")
    if tally.before:
        show.note(f"{show.count(tally.before, 'row')} were stored before by the same command, and not again; --run NAME stores them again.")


def _stored_so_far(tally: Tally) -> str:
    if not tally.rows:
        return "nothing was stored"
    return f"the first {show.count(tally.rows, 'row')} are stored; run the same command again to go on, it stores nothing twice"


def _send_batch(store: Store, batch: Batch, due: Due, patience: timedelta | None, tally: Tally) -> None:
    rows = batch.rows
    deliver_ms = due(stores.now_ms())
    if deliver_ms is not None:
        at = rows.schema.names.index("deliver_at_ms")
        given = pa.array(np.full(rows.num_rows, deliver_ms), pa.int64())
        rows = rows.set_column(at, rows.schema.field(at), pc.coalesce(rows.column(at), given))
    try:
        for mark, part in calls_of(rows, batch.mark):
            sent = store.send_batch(part, marks=(mark,), timeout=patience)
            tally.rows += len(part)
            tally.before += len(part) if sent.repeated else 0
    except RmqstoreError as error:
        error.args = (f"{batch.place}: {error}",)
        raise
    tally.batches += 1
