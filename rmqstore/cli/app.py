"""The command line's frame: global options, how errors are shown, and the list of commands."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any, TextIO

import typer

from rmqstore.cli import (
    bench,
    bench_report,
    completion,
    config,
    conformance,
    demo,
    dlq,
    doctor,
    engines,
    group,
    inspect,
    keep,
    leases,
    load_test,
    new_engine,
    peek,
    pop,
    send,
    settle,
    timers,
    topics,
    transfer,
    where,
)
from rmqstore.cli.exits import EXIT_ERROR, EXIT_INTERRUPTED
from rmqstore.errors import RmqstoreError

_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="rmqstore",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
)


@dataclass
class _Invocation:
    """What one run of the command must remember until its end."""

    is_debug: bool = False


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"rmqstore {version('rmqstore')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    _version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)] = False,
) -> None:
    """Durable timed and popped messages, with storage engines as plug-ins."""
    context.obj.is_debug = debug


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, that of this process by default, and exit.

    An error becomes one paragraph on stderr, or a traceback with ``--debug``; a warning becomes one line there.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow encoding must not stop the output
    invocation = _Invocation()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            app(arguments, prog_name="rmqstore", obj=invocation)
        except (RmqstoreError, OSError) as error:
            _fail(invocation, error, f"rmqstore: {error}")
        except Exception as error:  # a traceback is for those who ask for it
            _fail(invocation, error, f"rmqstore: unexpected {type(error).__name__}: {error}; --debug shows where it came from")


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if not issubclass(category, DeprecationWarning | ResourceWarning):
        typer.echo(f"rmqstore: warning: {message}", err=True)


def _fail(invocation: _Invocation, error: Exception, paragraph: str) -> None:
    if invocation.is_debug:
        raise error
    typer.echo(paragraph, err=True)
    sys.exit(EXIT_ERROR)


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command so that Ctrl-C ends it with the exit code for that, without a word."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return run


def _add(command: Callable[..., None], examples: str, *, to: typer.Typer = app) -> None:
    to.command(command.__name__.strip("_").replace("_", "-"), epilog=examples)(_interruptible(command))


dead_letters = typer.Typer(
    help="List, resend or drop dead letters.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
)

benchmarks = typer.Typer(
    help="Compare the engines under load.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
)


_add(send.send, send.EXAMPLES)
_add(pop.pop, pop.EXAMPLES)
_add(settle.ack, settle.ACK_EXAMPLES)
_add(settle.cancel, settle.CANCEL_EXAMPLES)
_add(timers.timers, timers.EXAMPLES)
_add(topics.topics, topics.TOPICS_EXAMPLES)
_add(topics.lag, topics.LAG_EXAMPLES)
_add(peek.peek, peek.EXAMPLES)
_add(leases.leases, leases.EXAMPLES)
_add(where.where, where.EXAMPLES)
_add(group.group, group.EXAMPLES)
app.add_typer(dead_letters, name="dlq")
_add(dlq.list_, dlq.LIST_EXAMPLES, to=dead_letters)
_add(dlq.resend, dlq.RESEND_EXAMPLES, to=dead_letters)
_add(dlq.drop, dlq.DROP_EXAMPLES, to=dead_letters)
_add(config.config, config.EXAMPLES)
_add(doctor.doctor, doctor.EXAMPLES)
_add(inspect.inspect, inspect.EXAMPLES)
_add(conformance.conformance, conformance.EXAMPLES)
app.add_typer(benchmarks, name="bench")
_add(bench.run, bench.RUN_EXAMPLES, to=benchmarks)
_add(bench.workloads, bench.WORKLOADS_EXAMPLES, to=benchmarks)
_add(bench_report.report, bench_report.EXAMPLES, to=benchmarks)
_add(load_test.load_test, load_test.EXAMPLES)
_add(new_engine.new_engine, new_engine.EXAMPLES)
_add(keep.verify, keep.VERIFY_EXAMPLES)
_add(keep.snapshot, keep.SNAPSHOT_EXAMPLES)
_add(keep.restore, keep.RESTORE_EXAMPLES)
_add(transfer.dump, transfer.DUMP_EXAMPLES)
_add(transfer.load, transfer.LOAD_EXAMPLES)
_add(transfer.migrate, transfer.MIGRATE_EXAMPLES)
_add(engines.engines, engines.EXAMPLES)
_add(demo.demo, demo.EXAMPLES)
_add(completion.completion, completion.EXAMPLES)
