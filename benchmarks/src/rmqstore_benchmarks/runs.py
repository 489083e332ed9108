"""What a measuring command says of itself: the engines that it can measure, how it was called, and all its figures as JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rmqstore.plugins import EngineState, get_plugins


def installed(engines: Sequence[str]) -> tuple[str, ...]:
    """Return those engines that can be opened; the others are named on stderr.

    Raises:
        SystemExit: none is left.
    """
    works = {entry.name for entry in get_plugins().engines() if entry.state is EngineState.OK}
    if missing := [engine for engine in engines if engine not in works]:
        print(f"left out, not installed: {', '.join(missing)}", file=sys.stderr)
    if not works.intersection(engines):
        raise SystemExit("none of the engines is installed; for example: pip install 'rmqstore[all]'")
    return tuple(engine for engine in engines if engine in works)


def require_room(directory: Path, timers: int, timer_bytes: int) -> None:
    """Refuse to fill a disk.

    Raises:
        SystemExit: so many timers of so many bytes have no room in ``directory``.
    """
    if shutil.disk_usage(directory).free < timers * timer_bytes:
        raise SystemExit(f"{directory} has not the room for {timers:,} timers; give --directory")


def command_line(module: str, arguments: Sequence[str] | None) -> str:
    """Return how ``module`` was called, without where its results go."""
    return " ".join([f"python -m {module}", *_without_outputs(sys.argv[1:] if arguments is None else arguments)])


def _without_outputs(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without where the results go, which does not change them."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in ("--json", "--markdown"):
            next(words, None)
        elif not word.startswith(("--json=", "--markdown=")):
            kept.append(word)
    return kept


def keep_results(file: Path, command: str, machine: dict[str, Any], plan: msgspec.Struct, results: Any) -> None:
    """Write every figure, and what it was measured with, to a JSON file."""
    document = {"command": command, "machine": machine, "plan": msgspec.to_builtins(plan, enc_hook=os.fspath), "results": results}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
