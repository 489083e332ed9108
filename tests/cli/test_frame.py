"""What holds for every command: help, exit codes, errors, output in a pipe, completion, and the page in docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

import rmqstore.cli
from rmqstore.cli import app as frame, exits
from rmqstore.cli.engines import _declared, _document
from rmqstore.contract import Capabilities, Durability, EngineInfo, Flush, Operation, Setting, Support, same_durability
from rmqstore.errors import ConfigError
from rmqstore.plugins import BrokenPluginWarning, EngineEntry, EngineState, Plugins, get_plugins
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
def test_every_command_explains_itself(cli: Command, command: tuple[str, ...]) -> None:
    text = cli.good(*command, "-h").out
    assert text == cli.good(*command, "--help").out
    assert text.startswith(f"Usage: rmqstore {' '.join(command)}")
    sentence = text.split("\n\n")[1].strip()
    assert re.fullmatch(r"[A-Z][^.]*\.", sentence)
    assert len(sentence) <= 64, "the list of commands shows it on one line"
    examples = text.partition("  Examples:\n")[2].splitlines()
    assert examples
    for example in examples:
        assert f"rmqstore {' '.join(command)}" in example
        assert example.startswith("    ")
    assert "No such option" in cli.bad(2, *command, "--no-such-option")


def test_the_list_of_commands_cuts_no_sentence(cli: Command) -> None:
    text = cli.good("-h").out.partition("Commands:")[2]
    assert "..." not in text
    assert len(text.split("\n")) >= len({command[0] for command in COMMANDS})


def test_no_arguments_show_the_help(cli: Command) -> None:
    result = cli()
    assert "Commands:" in result.out + result.err


def test_version_by_module_and_by_script() -> None:
    script = "import sys; from rmqstore.cli import main; sys.argv[0] = 'rmqstore'; main()"
    for command in (["-m", "rmqstore"], ["-c", script]):
        shown = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True).stdout
        assert shown == f"rmqstore {version('rmqstore')}\n" == f"rmqstore {rmqstore.__version__}\n"


# ---------------------------------------------------------------- exit codes


def test_exit_codes_are_told_in_one_place() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}
    defined = {value for name, value in vars(exits).items() if name.startswith("EXIT_")}
    assert told == defined == set(exits.MEANINGS)
    for code in defined:
        assert str(code) in (rmqstore.cli.__doc__ or "")


def test_ctrl_c_ends_with_130_and_a_closed_store(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()

    def interrupted(store: rmqstore.Store) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rmqstore.Store, "tick", interrupted)
    result = cli("pop", "data", "orders", "-g", "g")
    assert (result.code, result.out) == (130, "")
    with cli.owner() as store:
        assert store.lag("orders", "g").ready == 1


# ---------------------------------------------------------------- errors


@pytest.fixture
def failing_command(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """A command ``fail`` that raises the exception put into the list."""
    raised: list[Exception] = []

    def fail() -> None:
        raise raised[0]

    monkeypatch.setattr(frame.app, "registered_commands", [*frame.app.registered_commands])
    frame.app.command()(fail)
    return raised


@pytest.mark.parametrize(
    ("error", "paragraph"),
    [
        (ConfigError("flush must be 'sync'"), "rmqstore: flush must be 'sync'\n"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "rmqstore: [Errno 2] No such file or directory: '/x'\n"),
        (ZeroDivisionError("by zero"), "rmqstore: unexpected ZeroDivisionError: by zero; --debug shows where it came from\n"),
    ],
)
def test_an_error_is_one_paragraph_on_stderr_and_ends_with_1(
    failing_command: list[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, paragraph: str
) -> None:
    failing_command.append(error)
    monkeypatch.setattr(sys, "argv", ["rmqstore", "fail"])
    with pytest.raises(SystemExit) as stopped:
        frame.main()
    assert stopped.value.code == 1
    assert capsys.readouterr() == ("", paragraph)
    monkeypatch.setattr(sys, "argv", ["rmqstore", "--debug", "fail"])
    with pytest.raises(type(error)) as raised:
        frame.main()
    assert raised.value is error


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


# ---------------------------------------------------------------- engines

CAPABILITIES = Capabilities(
    durability=same_durability(sync=Durability.POWER_LOSS, asynchronous=Durability.PROCESS_CRASH), fifo=Support.FULL, horizon_ms=5000
)
INFO = EngineInfo(
    name="acme",
    capabilities=CAPABILITIES,
    factory="acme:Engine",
    requires=("acme_native",),
    install_hint="pip install acme",
    preference=3,
    settings=(Setting("acme.size", int, 1, "Its size.", minimum=1),),
)


def test_engines_lists_what_discovery_finds(cli: Command) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrokenPluginWarning)
        names = sorted({entry.name for entry in Plugins().engines()})
    table, document = cli.good("engines"), cli.good("engines", "--json")
    assert table.err == document.err == ""
    assert sorted({entry["name"] for entry in document.json}) == names
    for name in names:
        assert f"\n{name} " in table.out


def test_the_json_document_holds_all_that_an_engine_declares() -> None:
    entry = EngineEntry("acme", INFO, "acme-engines", "1.0", EngineState.NOT_INSTALLED, "needs acme_native")
    document = json.loads(json.dumps(_document(entry)))
    assert document["state"] == "not installed"
    assert document["requires"] == ["acme_native"]
    assert document["capabilities"]["durability"]["sync"] == {operation.value: "POWER_LOSS" for operation in Operation}
    assert document["capabilities"]["durability"][Flush.ASYNC.value]["ack"] == "PROCESS_CRASH"
    assert document["capabilities"]["fifo"] == "full"
    assert document["capabilities"]["horizon_ms"] == 5000
    (setting,) = document["settings"]
    assert (setting["key"], setting["type"], setting["minimum"]) == ("acme.size", "int", 1)
    broken = _document(EngineEntry("acme", None, "acme-engines", "1.0", EngineState.BROKEN, "ImportError"))
    assert broken == {"name": "acme", "distribution": "acme-engines", "version": "1.0", "state": "broken", "reason": "ImportError"}


def test_the_table_shows_the_weakest_durability_and_what_is_absent() -> None:
    survives, horizon, absent = _declared(CAPABILITIES)
    assert survives == "power loss / process crash"
    assert horizon == "5000 ms"
    assert "sql92 filter" in absent
    assert "fifo" not in absent
    assert _declared(Capabilities(durability=CAPABILITIES.durability))[1] == "unlimited"


# ---------------------------------------------------------------- completion


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("rmqstore ti", ["timers"]),
        ("rmqstore peek data o", ["orders"]),
        ("rmqstore lag data --topic ", ["orders"]),
        ("rmqstore pop data orders --group b", ["billing"]),
        ("rmqstore peek nowhere o", []),
        ("rmqstore conformance mem", ["memory"]),
    ],
)
def test_commands_engines_and_names_of_the_store_are_completed(
    cli: Command, monkeypatch: pytest.MonkeyPatch, typed: str, offered: list[str]
) -> None:
    cli.send()
    cli.good("pop", "data", "orders", "-g", "billing", "--no-ack")
    monkeypatch.chdir(cli.root)
    for name, value in {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_RMQSTORE_COMPLETE": "complete_bash"}.items():
        monkeypatch.setenv(name, value)
    done = cli.good()
    assert (done.out.split(), done.err) == (offered, "")


def test_the_scripts_of_shells(cli: Command) -> None:
    for shell in ("zsh", "fish"):
        assert "_RMQSTORE_COMPLETE=complete_" in cli.good("completion", shell).out
        assert "_RMQSTORE_COMPLETE" not in os.environ
    bash = cli.good("completion").out
    assert "complete -o default -F _rmqstore_completion rmqstore" in bash
    assert bash == cli.good("completion", "bash").out


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
        ("topics", "list", "data"),
        ("topics", "create", "data", "t"),
        ("groups", "list", "data"),
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


def test_what_could_be_printed_nowhere_is_not_acked(cli: Command) -> None:
    cli.send()
    for command in (("pop", "data", "orders", "-g", "g"), ("pop", "data", "orders", "-g", "g", "--json")):
        assert "stdout is closed" in cli.bad(1, *command, closed="stdout")
    assert len(cli.good("pop", "data", "orders", "-g", "g", "--json").lines) == 1


def test_what_is_to_be_read_from_nowhere_is_told(cli: Command) -> None:
    cli.send()
    for command in (("send", "data", "orders"), ("send", "data", "--from-file", "-"), ("ack", "data", "-"), ("cancel", "data", "-")):
        assert "stdin is closed" in cli.bad(1, *command, closed="stdin")


def test_a_width_that_nobody_knows_hides_nothing(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    monkeypatch.setenv("COLUMNS", "0")
    assert "orders" in cli.good("topics", "list", "data").out
