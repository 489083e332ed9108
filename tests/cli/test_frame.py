"""What holds for every command: help, exit codes, errors, output in a pipe, completion, and the page in docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import rmqstore.cli
from rmqstore.cli import app as frame
from rmqstore.cli import exits
from rmqstore.plugins import BrokenPluginWarning, get_plugins
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"


def commands(group: Any = None, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    group = typer.main.get_command(frame.app) if group is None else group
    for child, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*name, child))
        else:
            yield (*name, child)


COMMANDS = list(commands())


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_with_one_plain_sentence_first(cli: Command, command: tuple[str, ...]) -> None:
    text = cli.good(*command, "-h").out
    assert text == cli.good(*command, "--help").out
    assert text.startswith(f"Usage: rmqstore {' '.join(command)}")
    sentence = text.split("\n\n")[1].strip()
    assert re.fullmatch(r"[A-Z][^.]*\.", sentence)
    assert len(sentence) <= 64, "the list of commands shows it on one line"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_has_examples_of_its_command(cli: Command, command: tuple[str, ...]) -> None:
    examples = cli.good(*command, "-h").out.partition("  Examples:\n")[2].splitlines()
    assert examples
    for example in examples:
        assert f"rmqstore {' '.join(command)}" in example
        assert example.startswith("    ")


def test_the_list_of_commands_cuts_no_sentence(cli: Command) -> None:
    text = cli.good("-h").out.partition("Commands:")[2]
    assert "..." not in text
    assert len(text.split("\n")) >= len({command[0] for command in COMMANDS})


def test_no_arguments_show_the_help(cli: Command) -> None:
    result = cli()
    assert "Commands:" in result.out + result.err


# ---------------------------------------------------------------- exit codes


def test_exit_codes_are_told_in_one_place() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}
    defined = {value for name, value in vars(exits).items() if name.startswith("EXIT_")}
    assert told == defined == set(exits.MEANINGS)
    for code in defined:
        assert str(code) in (rmqstore.cli.__doc__ or "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_option_that_is_not_there_ends_with_2(cli: Command, command: tuple[str, ...]) -> None:
    assert "No such option" in cli.bad(2, *command, "--no-such-option")


def test_ctrl_c_ends_with_130_and_a_closed_store(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()

    def interrupted(store: rmqstore.Store) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rmqstore.Store, "tick", interrupted)
    result = cli("pop", "data", "orders", "-g", "g")
    assert (result.code, result.out) == (130, "")
    with cli.owner() as store:
        assert store.lag("orders", "g").ready == 1


def test_debug_shows_where_an_error_came_from(cli: Command) -> None:
    with pytest.raises(rmqstore.StorePathError):
        rmqstore.cli.main(["--debug", "topics", str(cli.root / "none")])


# ---------------------------------------------------------------- warnings


def test_a_warning_is_one_line(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    load_engine = get_plugins().load_engine

    def warning(name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("plug-in 'x' is broken", BrokenPluginWarning, stacklevel=1)
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        return load_engine(name)

    cli.send()
    monkeypatch.setattr(get_plugins(), "load_engine", warning)
    assert set(cli.good("send", "data", "orders", "x").err.splitlines()) == {
        "rmqstore: warning: plug-in 'x' is broken",
        "It is in topic orders.",
    }


# ---------------------------------------------------------------- output


def test_nothing_is_coloured_cut_or_wrapped_in_a_pipe(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    key = "k" * 300
    cli.send("--key", key, "--delay", "1h")
    cli.send("--property", f"p={key}")
    for command in (("timers", "data", "--list"), ("timers", "data"), ("peek", "data", "orders"), ("config", "data"), ("lag", "data")):
        text = cli.good(*command).out
        assert "\x1b" not in text
        assert command[-1] in ("data",) or key in text


def test_a_terminal_gets_colours(cli: Command, terminal: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send("--delay", "1h")
    terminal(80)
    monkeypatch.setattr("tests.cli.conftest._STYLE", re.compile("no style"))
    assert "\x1b[1m" in cli.good("timers", "data").out


def test_a_terminal_of_ascii_gets_ascii_bars(cli: Command) -> None:
    cli.send("--delay", "1h")
    script = "from rmqstore.cli import main; main()"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    shown = subprocess.run(
        [sys.executable, "-c", script, "timers", str(cli.data), "--from", "0ms"], capture_output=True, env=environment, check=True
    ).stdout
    assert b"#####" in shown
    assert b"\\u" not in shown


# ---------------------------------------------------------------- completion


def test_the_bash_script_completes_timers(cli: Command) -> None:
    script = cli.good("completion", "bash").out
    assert "complete -o default -F _rmqstore_completion rmqstore" in script
    environment = os.environ | {"COMP_WORDS": "rmqstore ti", "COMP_CWORD": "1", "_RMQSTORE_COMPLETE": "complete_bash"}
    offered = subprocess.run([sys.executable, "-m", "rmqstore"], capture_output=True, text=True, env=environment, check=True).stdout
    assert offered.split() == ["timers"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("rmqstore peek data o", ["orders"]),
        ("rmqstore lag data --topic ", ["orders"]),
        ("rmqstore pop data orders --group b", ["billing"]),
        ("rmqstore peek nowhere o", []),
        ("rmqstore conformance mem", ["memory"]),
    ],
)
def test_names_of_the_store_and_engines_are_completed(cli: Command, typed: str, offered: list[str]) -> None:
    cli.send()
    cli.good("pop", "data", "orders", "-g", "billing", "--no-ack")
    words = typed.split(" ")
    environment = os.environ | {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1), "_RMQSTORE_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "rmqstore"], capture_output=True, text=True, env=environment, check=True, cwd=cli.data.parent
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(cli: Command, shell: str) -> None:
    assert "_RMQSTORE_COMPLETE=complete_" in cli.good("completion", shell).out
    assert "_RMQSTORE_COMPLETE" not in os.environ


def test_bash_is_the_default_and_others_are_refused(cli: Command) -> None:
    assert cli.good("completion").out == cli.good("completion", "bash").out
    assert "tcsh" in cli.bad(2, "completion", "tcsh")


# ---------------------------------------------------------------- the page


def test_the_page_is_current() -> None:
    script = ROOT / "docs" / "make_cli.py"
    made = subprocess.run([sys.executable, str(script), "-"], capture_output=True, text=True, check=True).stdout
    assert PAGE.read_text() == made, "run: python docs/make_cli.py"
    for command in COMMANDS:
        assert f"\n### rmqstore {' '.join(command)}\n" in made


def told_members(command: str) -> set[str]:
    """Return the top-level members that the page names for a command's document."""
    section = PAGE.read_text().partition(f"\n### {command}\n")[2].partition("\n### ")[0]
    members = re.findall(r"^- `([^`]+)`: ", section.partition("With `--json`:")[2], re.MULTILINE)
    return {name for member in members for name in member.split(", ")}


@pytest.mark.parametrize(
    "command",
    [
        ("send", "data", "orders", "x"),
        ("send", "data", "orders", "--from-file", "-"),
        ("ack", "data", "x"),
        ("cancel", "data", "x"),
        ("timers", "data"),
        ("timers", "data", "--list"),
        ("topics", "data"),
        ("lag", "data"),
        ("peek", "data", "orders"),
        ("leases", "data"),
        ("group", "data", "g"),
        ("dlq", "list", "data"),
        ("dlq", "list", "data", "g"),
        ("dlq", "resend", "data", "g", "--all"),
        ("dlq", "drop", "data", "g", "--all"),
        ("config", "data"),
        ("doctor", "data"),
        ("verify", "data"),
    ],
    ids=" ".join,
)
def test_the_page_tells_every_member_of_a_document(cli: Command, command: tuple[str, ...]) -> None:
    cli.send()
    with cli.owner() as store:
        store.pop("orders", "g", invisible_ms=1)  # commands that are asked about a group want one that is known
    name = " ".join(["rmqstore", *command[: command.index("data")]])
    assert set(cli(*command, "--json").json) <= told_members(name)


def test_the_page_tells_every_member_of_a_message(cli: Command) -> None:
    cli.send()
    section = PAGE.read_text().partition("\n### rmqstore pop\n")[2].partition("\n### ")[0]
    (line,) = cli.good("pop", "data", "orders", "-g", "g", "--json").lines
    assert [name for name in json.loads(line) if f"`{name}`" not in section] == []
