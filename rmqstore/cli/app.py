"""The command line's frame: global options, how errors are shown, and the list of commands."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Final, Literal, TextIO

import typer

from rmqstore.cli import (
    administering,
    copies,
    demo,
    doctor,
    engines,
    groups,
    looking,
    pop,
    send,
    serving,
    suites,
    timers,
    top,
    working,
)
from rmqstore.cli.exits import EXIT_ERROR
from rmqstore.cli.options import EPILOGS, examples
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
        except Exception as error:  # a traceback is for those who ask for it
            if invocation.is_debug:
                raise
            is_told = isinstance(error, RmqstoreError | OSError)
            what = str(error) if is_told else f"unexpected {type(error).__name__}: {error}; --debug shows where it came from"
            typer.echo(f"rmqstore: {what}", err=True)
            sys.exit(EXIT_ERROR)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if not issubclass(category, DeprecationWarning | ResourceWarning):
        typer.echo(f"rmqstore: warning: {message}", err=True)


_VARIABLE: Final = "_RMQSTORE_COMPLETE"


@examples(
    'eval "$(rmqstore completion bash)"          # in ~/.bashrc',
    'eval "$(rmqstore completion zsh)"           # in ~/.zshrc, after compinit',
    "rmqstore completion fish > ~/.config/fish/completions/rmqstore.fish",
)
def completion(
    context: typer.Context,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Which shell.")] = "bash",
) -> None:
    """Print the script by which a shell completes.

    It completes commands and options of rmqstore, engines, topics and groups of the store, and files. `rmqstore --install-completion`
    installs it for the shell in use.
    """
    os.environ[_VARIABLE] = f"source_{shell}"
    try:
        context.find_root().command.main(args=[], prog_name="rmqstore")
    finally:
        del os.environ[_VARIABLE]


# ---------------------------------------------------------------- the list of commands

dead_letters, benchmarks, topics, consumers, repeating = (
    typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None, context_settings=_SETTINGS)
    for text in (
        "List, resend or drop dead letters.",
        "Compare the engines under load.",
        "List, make, widen or remove topics.",
        "List, move or remove groups.",
        "List, make or end what is sent again and again.",
    )
)


def _add(to: typer.Typer, *commands: Callable[..., None], **named: Callable[..., None]) -> None:
    for name, command in {**{each.__name__.strip("_"): each for each in commands}, **named}.items():
        to.command(name.replace("_", "-"), epilog=EPILOGS[command])(command)


_add(app, send.send, pop.pop, pop.ack, pop.cancel, timers.timers)
app.add_typer(topics, name="topics")
_add(topics, list=administering.list_topics, create=administering.create_topic, delete=administering.delete_topic)
app.add_typer(consumers, name="groups")
_add(consumers, list=administering.list_groups, reset_offset=administering.reset_offset, delete=administering.delete_group)
_add(app, administering.pause, administering.resume)
app.add_typer(repeating, name="schedules")
_add(repeating, list=administering.list_schedules, put=administering.put_schedule, delete=administering.delete_schedule)
_add(app, looking.lag, looking.peek, looking.leases, looking.where, groups.group)
app.add_typer(dead_letters, name="dlq")
_add(dead_letters, groups.list_, groups.resend, groups.drop)
_add(app, engines.config, doctor.doctor, doctor.inspect, suites.conformance)
app.add_typer(benchmarks, name="bench")
_add(benchmarks, suites.run, suites.workloads, suites.report)
_add(app, suites.load_test, engines.new_engine)
_add(app, serving.serve, working.worker, top.top)
_add(app, copies.verify, copies.snapshot, copies.restore, copies.dump, copies.load, copies.migrate)
_add(app, engines.engines, demo.demo, completion)
