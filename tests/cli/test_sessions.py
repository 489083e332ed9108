"""Sessions of the command line: the files in ``sessions`` hold commands, and below each what it prints.

``== TITLE`` begins a session in an empty directory; what comes before the first one is played before each. ``$ COMMAND`` is run by
``rmqstore``, with the lines up to ``END`` as its stdin where it ends with ``<<END``; ``$ sleep 5m`` moves the clock, and
``$ export NAME=VALUE`` sets a variable. Of what is printed, lines of stderr begin with ``!``, and an exit code that is not 0 comes last, as
``[3]``. In a line ``...`` stands for anything, alone for any lines; ``{name}`` is what it stood for first. Blanks count as one, empty lines
not at all, and a document of JSON is one line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from rmqstore.cli.times import parse_duration
from tests.cli.conftest import ENGINE, Command
from tests.pairs import DURABLE_PAIRS

FILES = sorted((Path(__file__).parent / "sessions").glob("*.txt"))
OTHER = next((pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops != ENGINE), ENGINE)

_STEP = re.compile(r"^\$ ([^\n]*?)(?:<<END\n(.*?)^END)?\n((?:(?!\$ )[^\n]+\n)*)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"\\\{(\w+)\\\}")


def sessions_of(file: Path) -> dict[str, str]:
    """Return the sessions of a file by their titles."""
    before, *parts = re.split(r"^== ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: before + body for title, _, body in (part.partition("\n") for part in parts)}


class Session:
    """One run through a session."""

    def __init__(self, cli: Command) -> None:
        self._cli = cli
        self._names = {"engine": ENGINE, "other": OTHER}

    def shown(self, command: str, stdin: str) -> str:
        """Run a command and return what it prints."""
        for name, text in self._names.items():
            command, stdin = (each.replace(f"{{{name}}}", text) for each in (command, stdin))
        match shlex.split(command):
            case ["sleep", duration]:
                self._cli.clock.advance(parse_duration(duration))
                return ""
            case ["export", setting]:
                name, _, os.environ[name] = setting.partition("=")
                return ""
            case words:
                code, out, err = self._cli(*words, stdin=stdin)
        with suppress(json.JSONDecodeError):
            out = json.dumps(json.loads(out), ensure_ascii=False)
        lines = [*out.splitlines(), *(f"! {line}" for line in err.splitlines()), *([f"[{code}]"] if code else [])]
        return "".join(f"{line.rstrip()}\n" for line in lines if line.strip("! ")).replace(f"{self._cli.root}/", "")

    def agrees(self, expected: str, shown: str) -> bool:
        """Compare what was printed with what the file says, and learn the names in it."""
        found = re.fullmatch("".join(map(self._pattern, expected.splitlines())), _with_single_blanks(shown))
        self._names |= found.groupdict() if found else {}
        return found is not None

    def _pattern(self, line: str) -> str:
        if line == "...":
            return r"(?:.*\n)*?"
        line = re.escape(_with_single_blanks(line)).replace(r"\.\.\.", ".*?").replace("\\ ", " ")
        return _NAME.sub(lambda name: re.escape(self._names.get(name[1], "")) or f"(?P<{name[1]}>.+?)", line) + "\n"


def _with_single_blanks(text: str) -> str:
    return re.sub(r"^ | $", "", re.sub(r"[^\S\n]+", " ", text), flags=re.MULTILINE)


CASES = [(file.stem, title, body) for file in FILES for title, body in sessions_of(file).items()]


@pytest.mark.parametrize(("name", "title", "body"), CASES, ids=[f"{name}: {title}" for name, title, _ in CASES])
def test_a_session_prints_what_its_file_says(cli: Command, monkeypatch: pytest.MonkeyPatch, name: str, title: str, body: str) -> None:
    monkeypatch.chdir(cli.root)
    assert not _STEP.sub("", body).strip(), "these lines belong to no command"
    session = Session(cli)
    with patch.dict(os.environ):
        for command, stdin, expected in _STEP.findall(body):
            shown = session.shown(command, stdin)
            assert session.agrees(expected, shown), f"$ {command}\nprints\n{shown}and not\n{expected}"
