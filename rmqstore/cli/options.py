"""Arguments and options that several commands share, what a shell completes them to, and examples in help texts."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import typer

from rmqstore.cli import stores
from rmqstore.errors import IllegalArgumentError, RmqstoreError
from rmqstore.plugins import get_plugins
from rmqstore.store.opening import checked_path
from rmqstore.store.reader import Reader

if TYPE_CHECKING:
    import ssl


def _in_the_store(names: Callable[[Reader], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Return what completes to names that the store of the command line holds, as far as it can be read."""

    def completed(context: typer.Context, incomplete: str) -> list[str]:
        path = context.params.get("store") or next(iter(context.args), "")  # the latter while an option has no value yet
        try:
            with stores.reading(Path(path)) as opened:
                return sorted(name for name in names(opened) if name.startswith(incomplete))
        except (RmqstoreError, OSError):
            return []  # while somebody types there may be no store, or it may not be looked into

    return completed


def complete_engine(incomplete: str) -> list[str]:
    """Return the engines that are installed and begin so."""
    return sorted(entry.name for entry in get_plugins().engines() if entry.name.startswith(incomplete))


complete_topic = _in_the_store(lambda store: [topic.name for topic in store.topics.list()])
complete_group = _in_the_store(lambda store: store.groups.list())

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the store.", parser=checked_path)]
"""Parsed here, since an empty text would become the current directory."""

AddressArgument = Annotated[str, typer.Argument(metavar="STORE|URL", help="Directory of the store, or the address of a server.")]
file_option = functools.partial(typer.Option, metavar="FILE", exists=True, dir_okay=False)
"""Makes an option that takes a file which is there."""

TokenOption = Annotated[Path | None, file_option(help="The token that the server asks for.")]

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_group)]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group.", autocompletion=complete_group)]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.", autocompletion=complete_topic)]
IdOption = Annotated[str | None, typer.Option("--id", metavar="ID", help="Only messages with this id.")]

EngineOption = Annotated[
    str | None, typer.Option("--engine", "-e", metavar="NAME", help="Storage engine of a new store.", autocompletion=complete_engine)
]
EnginesOption = Annotated[
    list[str] | None,
    typer.Option("--engine", "-e", metavar="NAME", help="Only this engine; may be given again.", autocompletion=complete_engine),
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, as precision_ms=100; may be given again.")
]


_Command = TypeVar("_Command", bound=Callable[..., None])

EPILOGS: Final[dict[Callable[..., None], str]] = {}
"""The end of the help text of each command."""


def examples(*lines: str) -> Callable[[_Command], _Command]:
    """Give a command examples at the end of its help text; each stays on its own line."""

    def given(command: _Command) -> _Command:
        EPILOGS[command] = "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
        return command

    return given


def refuse_together(**given: object) -> None:
    """Refuse a command line that gives more than one of these options; one that is None, False or empty counts as not given."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(names) > 1:
        raise typer.BadParameter(f"{' and '.join(names)} exclude each other; give one", param_hint=names[1])


def imported(module: str, what_fails: str, distribution: str) -> ModuleType:
    """Import what only some commands need.

    Raises:
        IllegalArgumentError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise IllegalArgumentError(f"{what_fails} ({error}): pip install '{distribution}'") from error


def certificates(others: Literal["CLIENT_AUTH", "SERVER_AUTH"], cert: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext:
    """Return what ``--tls-cert``, ``--tls-key`` and ``--tls-ca`` ask for; ``others`` are who is known by the last.

    Raises:
        IllegalArgumentError: a file holds something else.
    """
    import ssl  # few commands need it

    try:
        context = ssl.create_default_context(ssl.Purpose[others], cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise IllegalArgumentError(f"--tls-ca {ca} cannot be used: {error}") from error
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (ssl.SSLError, OSError) as error:
            raise IllegalArgumentError(f"--tls-cert {cert} cannot be used: {error}") from error
    return context
