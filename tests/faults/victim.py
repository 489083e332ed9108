"""A traced program that runs the script of ``tests.crash.script`` again and again, failing one system call further each time.

strace fails the ``AT``-th system call of a kind in each process. Each run is a fork of this one (made before any store is open); it makes
``AT - n`` calls of that kind on a scratch file first, so that the n-th call of the store fails. What happened goes to one file a run, by
``writev``, which nothing else here uses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import rmqstore
from rmqstore import ManualClock, RmqstoreError, Store
from tests.crash.script import SETTINGS, START_MS, Script, Shown, show, states

AT = 400

Report = Callable[..., None]


def run(path: Path, engine: str, expected: list[Shown], report: Report) -> None:
    """Make every call of the script once; after ``StoreFullError`` look, and make it again."""
    clock = ManualClock(START_MS)
    try:
        store = rmqstore.open(path, engine=engine, clock=clock, **SETTINGS)
    except RmqstoreError as error:
        report("open", type(error).__name__, str(error))
        return
    calls = Script(store, clock).calls
    for number, (name, call) in enumerate(calls.items()):
        outcome = _outcome(call)
        report(name, *outcome)
        if outcome[0] == "StoreFullError":
            allowed = expected[number : number + 2] if name.startswith("tick") else expected[number : number + 1]
            report("look", _look(store, allowed))
            report(f"again {name}", *_outcome(call))
        elif outcome[0] != "ok":
            for what, try_again in {
                "send": calls["send"],
                "pop": lambda: store.pop("t", "g"),
                "tick": store.tick,
                "flush": store.flush,
            }.items():
                report(f"then {what}", *_outcome(try_again))
            break
    report("close", *_outcome(store.close))


def _outcome(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["ok"]


def _look(store: Store, allowed: list[Shown]) -> str:
    try:
        shown = json.loads(json.dumps(show(store)))
    except RmqstoreError as error:
        return f"{type(error).__name__}: {error}"
    return "unchanged" if shown in allowed else f"changed: {shown}"


def _write(file: int, *words: str) -> None:
    os.writev(file, [(json.dumps(words) + "\n").encode()])


def main() -> None:
    """Run in the directory that the command line names, with its engine, kind of system call and step, until nothing is left to fail."""
    folder, engine, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    expected = states()
    scratch = os.open(folder / "scratch", os.O_RDWR | os.O_CREAT)
    dummies: dict[str, Callable[[], Any]] = {
        "fsync": lambda: os.fsync(scratch),
        "fdatasync": lambda: os.fdatasync(scratch),
        "pwrite64": lambda: os.pwrite(scratch, b"x", 0),
        "write": lambda: os.write(scratch, b"x"),
    }
    for number in range(1, AT, int(sys.argv[4])):
        child = os.fork()
        if child == 0:
            lines = os.open(folder / f"report-{number}", os.O_WRONLY | os.O_CREAT)
            for _ in range(AT - number):
                dummies[kind]()
            run(folder / f"store-{number}", engine, expected, partial(_write, lines))
            try:
                for _ in range(AT):
                    dummies[kind]()
            except OSError:
                os._exit(7)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7:
            return
    raise SystemExit(f"more than {AT} calls")


if __name__ == "__main__":
    main()
