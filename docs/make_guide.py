"""Write the output of the commands in docs/guide.md below them; with ``-`` as argument print the page instead.

A block of the kind ``console`` holds commands after ``$`` and what they print. They are run in a scratch directory, with a store as
``make demo`` leaves it, at a fixed moment and with a fixed store id, so that the page is the same every time.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from rmqstore import ManualClock
from rmqstore.cli import main, stores
from rmqstore.cli.demo import leave_store
from rmqstore.plugins import get_plugins

PAGE = Path(__file__).with_name("guide.md")
NOW_MS = 1_772_443_800_000
_WIDTH = 110
_CHANGING = ((r"\d{8}T\d{6}", "20260302T093000"), (r"has \d+ KiB", "has 90 KiB"))
"""What differs from run to run and from version to version: the name of a store that is kept, the size of compressed files."""

_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(>>>.*?)^```$", re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def scratch() -> Iterator[None]:
    """Work in an empty directory, at a fixed time, in UTC, without settings from outside."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RMQSTORE_")}
    settings = {**kept, "TZ": "UTC", "COLUMNS": str(_WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        patch.dict(os.environ, settings, clear=True),
        patch.object(stores, "clock_factory", lambda: ManualClock(NOW_MS)),
        patch("rmqstore.store.directory.secrets.randbits", return_value=0x5109),
    ):
        time.tzset()
        yield
    time.tzset()


def run(command: str) -> str:
    """Run one command of the page; return what a terminal would show."""
    words = shlex.split(command)
    assert words[0] == "rmqstore", f"the page may run rmqstore only, not {command!r}"
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), contextlib.suppress(SystemExit):
        main(words[1:])
    text = "".join(f"{line.rstrip()}\n" for line in shown.getvalue().splitlines())
    for changing, fixed in _CHANGING:
        text = re.sub(changing, fixed, text)
    return text


def filled(block: re.Match[str]) -> str:
    """Return a console block with the output of its commands."""
    commands = [line for line in block[1].splitlines() if line.startswith("$ ")]
    return "```console\n" + "\n".join(f"{line}\n{run(line[2:])}" for line in commands) + "```"


def page(text: str) -> str:
    """Return the page with all output as it is now."""
    with scratch():
        leave_store(Path("demo-store"), get_plugins().default_engine(), NOW_MS)
        return _CONSOLE.sub(filled, text)


def failures(text: str) -> list[str]:
    """Run the Python sessions of the page one after the other; return what did not print what stands there."""
    session = "\n".join(match[1] for match in _PYTHON.finditer(text))
    test = doctest.DocTestParser().get_doctest(session, {}, "guide.md", "guide.md", 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    with scratch():
        runner.run(test, out=report.append)
    return report


if __name__ == "__main__":
    made = page(PAGE.read_text(encoding="utf-8"))
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(made)
    else:
        PAGE.write_text(made, encoding="utf-8")
    if problems := failures(made):
        raise SystemExit("".join(problems))
