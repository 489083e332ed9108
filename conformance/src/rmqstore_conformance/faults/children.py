"""Child processes that take jobs, a line of JSON each, and answer by lines of JSON: what they do may take them down, or hang them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from rmqstore.plugins import get_plugins
from rmqstore_conformance.stores import ANNOUNCED, own_environment

HANGS_S = 30.0
"""A child that says nothing for so long is taken to hang."""


class Child:
    """A module of the suite that runs as a program of its own; used within ``with``."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=own_environment(),
        )
        self._said = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def tell(self, job: dict[str, Any]) -> None:
        """Hand over a job; it names the modules that announce engines of this run as well."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps({**job, "plugins": ANNOUNCED}) + "\n").encode())

    def hear(self) -> dict[str, Any] | None:
        """Return the next line that it says, None at its end.

        Raises:
            TimeoutError: it hangs.
        """
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            if not select.select([self._process.stdout], [], [], HANGS_S)[0]:
                raise TimeoutError(f"hangs for {HANGS_S:.0f} s")
            if not (more := os.read(self._process.stdout.fileno(), 1 << 20)):
                return None
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        found: dict[str, Any] = msgspec.json.decode(line)
        return found

    def kill(self) -> list[dict[str, Any]]:
        """End it as ``kill -9`` does, and return what it had said that was not heard yet."""
        self._process.kill()
        said = []
        while not self._process.stdout.closed and (each := self.hear()) is not None:  # type: ignore[union-attr]
            said.append(each)
        self._process.communicate()
        return said

    @property
    def status(self) -> int:
        return self._process.wait()


def say(**fields: object) -> None:
    """Write a line to whom this process was started by, in one system call."""
    os.write(1, msgspec.json.encode(fields) + b"\n")


def import_all(*pairs: Iterable[str]) -> None:
    """Import engines, and what pyarrow imports with its first array, so that no fork of this process has to."""
    for engine in set(chain.from_iterable(pairs)):
        get_plugins().load_engine(engine)
    pa.array([0])
