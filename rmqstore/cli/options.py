"""Arguments and options that several commands share, and the form of examples in help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmqstore.opening import checked_path

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the store.", show_default=False, parser=checked_path)]
"""Parsed here, since an empty text would become the current directory."""

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group.", show_default=False)]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.", show_default=False)]


def examples(*lines: str) -> str:
    """Return examples as the end of a help text; each stays on its own line."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def refuse_together(**given: object) -> None:
    """Refuse a command line that gives more than one of these options; one that is None, False or empty counts as not given."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(names) > 1:
        raise typer.BadParameter(f"{' and '.join(names)} exclude each other; give one", param_hint=names[1])
