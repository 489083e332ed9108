"""The disk says no, at the first system call of a kind, then at the second, until a run meets none (F1, F2, F3).

An error of a sync poisons the store: it is never asked again, and what was acknowledged is there at the next open. A full disk fails
the one call, which has changed nothing and succeeds when it is made again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rmqstore.errors
from rmqstore import RmqstoreError
from tests.crash.script import START_MS, states
from tests.crash.test_power_loss import Opener
from tests.crash.test_syncs import unusable
from tests.faults.victim import AT

# A setting of these tests, not of the store, which refuses variables that it does not know.
EVERY_CALL = os.environ.pop("RMQSTORE_FAULTS_EVERY_CALL", "") == "1"
SYNC_STEPS = {"wheel": 3, "lmdb": 1, "rocksdb": 2}
WRITE_STEPS = {"wheel": 6, "lmdb": 2, "rocksdb": 4}
"""Every so many calls fail, unless all are asked for; the wheel's own tests let each of its calls to the disk fail without processes."""

ROOT = Path(__file__).parents[2]
_DATA = re.compile(r"<(\S*(data\.mdb|\d+\.log))>")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


def inject(folder: Path, engine: str, kind: str, error: str, step: int = 1) -> tuple[dict[int, list[list[str]]], str]:
    """Return what each run reported, by the number of the call that failed, and the trace; ``step`` leaves calls out."""
    if reason := unusable():
        pytest.skip(reason)
    if find_spec(f"rmqstore_{engine}") is None:
        pytest.skip(f"rmqstore-{engine} is not installed")
    trace = folder / "trace"
    command = [
        "strace",
        "-f",
        "-y",
        "--seccomp-bpf",
        "-o",
        str(trace),
        "-e",
        f"trace={kind}",
        "-e",
        f"inject={kind}:error={error}:when={AT}",
    ]
    victim = [sys.executable, "-m", "tests.faults.victim", str(folder), engine, kind, str(1 if EVERY_CALL else step)]
    run = subprocess.run([*command, *victim], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    reports = sorted(folder.glob("report-*"), key=lambda path: int(path.name.partition("-")[2]))
    said = {int(path.name.partition("-")[2]): [json.loads(line) for line in path.read_text().splitlines()] for path in reports}
    return said, trace.read_text()


def is_typed(name: str) -> bool:
    """Whether an exception's name is one of rmqstore's."""
    return issubclass(getattr(rmqstore.errors, name, Exception), RmqstoreError)


@pytest.mark.parametrize(("engine", "kind"), [(engine, kind) for engine in ("wheel", "lmdb", "rocksdb") for kind in ("fdatasync", "fsync")])
def test_a_sync_that_fails_poisons_the_store(tmp_path: Path, engine: str, kind: str) -> None:
    expected = states()
    reports, trace = inject(tmp_path, engine, kind, "EIO", step=SYNC_STEPS[engine])
    opener = Opener()
    wrong: list[str] = []
    poisoned = 0
    for number, report in reports.items():
        what = f"{kind} number {number}"
        outcomes = [(name, rest[0]) for name, *rest in report]
        failed = next((at for at, (_, outcome) in enumerate(outcomes) if outcome != "ok"), None)
        if failed is not None:
            name, outcome = outcomes[failed]
            calls = [entry for entry in outcomes[failed:] if entry[0] != "close"]
            if name != "open" and name != "close" and {outcome for _, outcome in calls} != {"StorePoisonedError"}:
                wrong.append(f"{what} fails in {name!r}, then the calls answer {calls}")
            if not is_typed(outcome):
                wrong.append(f"{what}: {name!r} raises {report[failed][1:]}")
            poisoned += outcome == "StorePoisonedError"
        acknowledged = sum(outcome == "ok" and name not in ("open", "close") and not name.startswith("then") for name, outcome in outcomes)
        shown = opener.show(tmp_path / f"store-{number}", START_MS + 6_000)
        if shown not in expected[acknowledged : acknowledged + 2]:
            wrong.append(f"{what}: after {acknowledged} acknowledged calls the store shows {str(shown).strip().splitlines()[-1][:300]}")
    opener.close()
    wrong += retried(trace)
    print(f"\n{engine}, {kind}: {len(reports)} runs, {poisoned} of them poisoned")
    assert len(reports) > 1
    assert not wrong, "\n".join(wrong)
    if kind == "fdatasync":
        assert poisoned >= 10


def retried(trace: str) -> list[str]:
    """Return the first sync of each file that came after one that failed, in the same process."""
    failed: dict[tuple[str, str], str] = {}
    found: dict[tuple[str, str], str] = {}
    for line in trace.splitlines():
        if data := _DATA.search(line):
            file = (line.split(maxsplit=1)[0], data[0])
            if "(INJECTED)" in line:
                failed[file] = line
            elif file in failed:
                found.setdefault(file, f"asked again: {line}")
    return list(found.values())


@pytest.mark.parametrize(("engine", "kind"), [("wheel", "pwrite64"), ("lmdb", "pwrite64"), ("rocksdb", "write")])
def test_a_write_that_finds_no_room_changes_nothing(tmp_path: Path, engine: str, kind: str) -> None:
    reports, _ = inject(tmp_path, engine, kind, "ENOSPC", step=WRITE_STEPS[engine])
    opener = Opener()
    expected = states()
    wrong: list[str] = []
    full = 0
    for number, report in reports.items():
        bad = [entry for entry in report if entry[1] not in ("ok", "unchanged", "StoreFullError")]
        again = [entry for entry in report if entry[0].startswith("again") and entry[1] != "ok"]
        full += any(entry[1] == "StoreFullError" for entry in report)
        if bad or again:
            wrong.append(f"{kind} number {number}: {bad + again}")
        last = 0 if report[0][0] == "open" else -1
        shown = opener.show(tmp_path / f"store-{number}", START_MS + 6_000)
        if shown != expected[last]:
            wrong.append(f"{kind} number {number}: {report[-1]}, then the store shows {str(shown).strip().splitlines()[-1][:300]}")
    opener.close()
    print(f"\n{engine}, {kind}: {len(reports)} runs, {full} of them full")
    assert full > 10
    assert not wrong, "\n".join(wrong)
