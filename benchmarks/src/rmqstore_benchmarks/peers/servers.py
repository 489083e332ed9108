"""Servers that a measurement starts for itself: found, started without a fixed port, waited for, and ended by process id."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rmqstore_benchmarks.peers.peer import PeerError

_START_S = 30
_STOP_S = 30


def program(name: str, places: str = "") -> str | None:
    """Return the path of a program on ``PATH``, or the last one that the pattern ``places`` finds under /usr/lib."""
    if found := shutil.which(name):
        return found
    if places and (there := sorted(Path("/usr/lib").glob(places), key=_by_number)):
        return str(there[-1])
    return None


def _by_number(path: Path) -> list[int]:
    return [int(part) for part in path.parts if part.isdigit()]


def said(*command: str) -> str:
    """Return what a program prints on stdout; empty when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def unprivileged() -> dict[str, Any]:
    """Return arguments for ``subprocess`` that run a program as nobody when this process is root."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def running(
    command: Sequence[str], directory: Path, ready: Callable[[], object], stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[int]:
    """Run a server for the length of a block; gives its process id once ``ready`` no longer raises.

    Raises:
        PeerError: it ended at once or was not ready in time; with the end of its log.
    """
    log = directory / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options)
    try:
        _wait(command[0], server, ready, log)
        yield server.pid
    finally:
        server.send_signal(stop)
        # One that was stopped must go on to end.
        server.send_signal(signal.SIGCONT)
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait(name: str, server: subprocess.Popen[bytes], ready: Callable[[], object], log: Path) -> None:
    give_up_s = time.monotonic() + _START_S
    while True:
        try:
            ready()
        except Exception as error:
            ended = server.poll()
            if ended is None and time.monotonic() < give_up_s:
                time.sleep(0.02)
                continue
            tail = log.read_text(errors="replace")[-500:]
            raise PeerError(f"{name} did not start (exit status {ended}): {tail}") from error
        return
