"""docs/shop.md and docs/operations.md are typed into a shell each, the scripts of docs/spark.md run, and what they show must come."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqstore.spark.sessions import why_not
from rmqstore_conformance.stores import directory, own_environment
from tests.pairs import DURABLE_PAIRS

DOCS = Path(__file__).parents[1] / "docs"
_FILE = re.compile(r'^```python title="(.+?)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"(?<=127\.0\.0\.1:)(\d+)|(?<=shop\.web )(\d+)")
PATIENCE_S = 30
READS = ("ls ", "rmqstore lag", "rmqstore timers", "rmqstore dlq list", "rmqstore where")
"""Commands that somebody who waits for something types again."""


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Return each command of a page with the lines shown below it; its port is one that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    lines = _PORT.sub(port, "".join(_CONSOLE.findall(page))).splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    ends = [*starts[1:], len(lines)]
    return [(lines[at][2:], lines[at + 1 : end]) for at, end in zip(starts, ends, strict=True)]


class Shell:
    """A shell, and all that it and what it started has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._marks = 0
        self.shown = ""
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._came:
                self.shown += line
                self._came.notify_all()

    def type(self, command: str) -> int:
        """Type a command and wait for the prompt; returns where its output begins."""
        assert self._process.stdin is not None
        self._marks += 1
        begin = len(self.shown)
        self._process.stdin.write(f"{command}\necho prompt-{self._marks} $?\n")
        self._process.stdin.flush()
        self.wait_for(f"prompt-{self._marks} ", begin)
        if command.startswith("rmqstore") and "&" not in command:
            assert f"prompt-{self._marks} 0\n" in self.shown, f"{command}: {self.shown[begin:]}"
        return begin

    def wait_for(self, text: str, begin: int, patience_s: float = PATIENCE_S) -> bool:
        """Wait until this is shown."""
        with self._came:
            return self._came.wait_for(lambda: text in self.shown[begin:], patience_s)


@contextmanager
def shell(root: Path) -> Iterator[Shell]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**own_environment(), "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(
        ["bash", "--norc"],
        cwd=root,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # whoever runs the tests may ignore it, as nohup does
    ) as process:
        try:
            yield Shell(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.crash
@pytest.mark.skipif(not DURABLE_PAIRS, reason="a shop needs an engine that keeps something")
@pytest.mark.parametrize("page", ["shop.md", "operations.md"])
def test_a_page_does_what_it_shows(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    with directory() as root, shell(root) as typed:
        for name, content in _FILE.findall(text):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(content)
        for command, shown in commands(text):
            until_s = time.monotonic() + PATIENCE_S
            begin = typed.type(command)
            for line in shown:
                while not typed.wait_for(line, begin, 0.5 if command.startswith(READS) else PATIENCE_S):
                    assert command.startswith(READS), f"{command} did not show {line!r}: {typed.shown[begin:]}"
                    assert time.monotonic() < until_s, f"{command} did not show {line!r}: {typed.shown[begin:]}"
                    typed.type(command)
        assert "Traceback" not in typed.shown


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.skipif(not DURABLE_PAIRS, reason="a data set needs an engine that keeps something")
def test_the_scripts_of_the_page_on_spark_run_as_written(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    page = (DOCS / "spark.md").read_text(encoding="utf-8")
    scripts = re.findall(r"<!-- script -->\n```python\n(.*?)```", page, re.DOTALL)
    outputs = re.findall(r"<!-- output -->\n```text\n(.*?)```", page, re.DOTALL)
    assert len(scripts) > 1
    # In one process, as the JVM of the first serves the others as well.
    program = "import sys\nfor script in sys.argv[1:]:\n    exec(script, {})\n    print(end='\\f')"
    command = [sys.executable, "-W", "ignore", "-c", program, *scripts]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\f") == [*outputs, ""]
