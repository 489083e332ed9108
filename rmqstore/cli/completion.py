"""``rmqstore completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

import enum
import os
from typing import Annotated, Final

import typer

from rmqstore.cli.options import examples

EXAMPLES: Final = examples(
    'eval "$(rmqstore completion bash)"          # in ~/.bashrc',
    'eval "$(rmqstore completion zsh)"           # in ~/.zshrc, after compinit',
    "rmqstore completion fish > ~/.config/fish/completions/rmqstore.fish",
)

_VARIABLE: Final = "_RMQSTORE_COMPLETE"


class Shell(enum.Enum):
    """A shell that can be told how to complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    context: typer.Context, shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Which shell.")] = Shell.BASH
) -> None:
    """Print the script by which a shell completes.

    It completes commands and options of rmqstore, engines, topics and groups of the store, and files. `rmqstore --install-completion`
    installs it for the shell in use.
    """
    os.environ[_VARIABLE] = f"source_{shell.value}"
    try:
        context.find_root().command.main(args=[], prog_name="rmqstore")
    finally:
        del os.environ[_VARIABLE]
