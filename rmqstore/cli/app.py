"""The command line's frame: global options, how errors are shown, and the list of commands."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

import typer

from rmqstore.cli.demo import demo
from rmqstore.cli.engines import engines
from rmqstore.errors import RmqstoreError

EXIT_ERROR = 1

app = typer.Typer(
    name="rmqstore",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
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


def main() -> None:
    """Run the command line of this process and exit; an error becomes one paragraph on stderr, or a traceback with ``--debug``."""
    invocation = _Invocation()
    try:
        app(obj=invocation)
    except (RmqstoreError, OSError) as error:
        _fail(invocation, error, f"rmqstore: {error}")
    except Exception as error:  # a traceback is for those who ask for it
        _fail(invocation, error, f"rmqstore: unexpected {type(error).__name__}: {error}; --debug shows where it came from")


def _fail(invocation: _Invocation, error: Exception, paragraph: str) -> None:
    if invocation.is_debug:
        raise error
    typer.echo(paragraph, err=True)
    sys.exit(EXIT_ERROR)


app.command()(engines)
app.command()(demo)
