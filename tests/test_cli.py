"""The ``rmqstore`` command, run in a process of its own: output, exit codes, errors in one paragraph."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib.metadata import version

import pytest

import rmqstore
from rmqstore.cli import app as cli
from rmqstore.cli.engines import _declared, _document
from rmqstore.contract import Capabilities, Durability, EngineInfo, Flush, Operation, Setting, Support, same_durability
from rmqstore.errors import ConfigError
from rmqstore.plugins import BrokenPluginWarning, EngineEntry, EngineState, Plugins

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


def run(*arguments: str, command: tuple[str, ...] = (sys.executable, "-m", "rmqstore")) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def test_version_by_module_and_by_script() -> None:
    expected = f"rmqstore {version('rmqstore')}\n"
    assert run("--version").stdout == expected
    script = "import sys; from rmqstore.cli import main; sys.argv[0] = 'rmqstore'; main()"
    assert run("--version", command=(sys.executable, "-c", script)).stdout == expected


def test_the_package_says_the_version_of_its_distribution() -> None:
    assert rmqstore.__version__ == version("rmqstore")


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "engines" in result.stdout
    assert "--debug" in result.stdout


@pytest.mark.parametrize("arguments", [["no-such-command"], ["engines", "--no-such-option"], ["--no-such-option"]])
def test_a_command_line_that_is_not_understood_ends_with_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Error: No such " in result.stderr
    assert "Traceback" not in result.stderr


def test_engines_lists_what_discovery_finds() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrokenPluginWarning)
        names = sorted({entry.name for entry in Plugins().engines()})
    table, document = run("engines"), run("engines", "--json")
    assert table.returncode == document.returncode == 0
    assert table.stderr == document.stderr == ""
    assert sorted({entry["name"] for entry in json.loads(document.stdout)}) == names
    for name in names:
        assert f"\n{name} " in table.stdout


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


def test_a_broken_plugin_has_no_declaration_to_show() -> None:
    document = _document(EngineEntry("acme", None, "acme-engines", "1.0", EngineState.BROKEN, "ImportError"))
    assert document == {"name": "acme", "distribution": "acme-engines", "version": "1.0", "state": "broken", "reason": "ImportError"}


def test_the_table_shows_the_weakest_durability_and_what_is_absent() -> None:
    survives, horizon, absent = _declared(CAPABILITIES)
    assert survives == "power loss / process crash"
    assert horizon == "5000 ms"
    assert "sql92 filter" in absent
    assert "fifo" not in absent
    assert _declared(Capabilities(durability=CAPABILITIES.durability))[1] == "unlimited"


# ---------------------------------------------------------------- errors


@pytest.fixture
def failing_command(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """A command ``fail`` that raises the exception put into the list."""
    raised: list[Exception] = []

    def fail() -> None:
        raise raised[0]

    monkeypatch.setattr(cli.app, "registered_commands", [*cli.app.registered_commands])
    cli.app.command()(fail)
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
        cli.main()
    assert stopped.value.code == 1
    assert capsys.readouterr() == ("", paragraph)
    monkeypatch.setattr(sys, "argv", ["rmqstore", "--debug", "fail"])
    with pytest.raises(type(error)) as raised:
        cli.main()
    assert raised.value is error


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    script = f"{sys.executable} -m rmqstore engines --json | head -n 1"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout in ("[\n", "[]\n")
    assert result.stderr == ""
