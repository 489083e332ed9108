"""The suite's kills, power losses, failing calls and bit rot, on a ``wheel`` whose files and ring are small.

With the usual sizes a script of the suite fits into the first file of everything. Here it meets what is special to the engine: frames over
several files, the change to the next file, check points, timers that roll, files that go, and messages that are copied out of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.wheel.tests.power.builds import PLUGIN, SOUND, build, environment
from plugins.wheel.tests.power.playing import PAIR, SETTINGS, Reclaiming, Run
from rmqstore_conformance.faults.cutting import judge, states_of
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.power import tracing
from rmqstore_conformance.stores import directory

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(600),
    pytest.mark.skipif(tracing.unusable() is not None, reason=str(tracing.unusable())),
]

CASES = {
    "test_power_loss": "at_every_call or recovery or a_killed_one or test_r2_an_everyday_call",
    "test_failing_calls": "",
    "test_bit_rot": "",
    "test_kill": "",
}
"""Modules, and which of their cases; the other scripts of the suite have calls that do not fit into files this small.

All but the first are for the slow tier: a small run of them says little more than one with files of the usual size, which CI has, and
``test_disk_calls`` lets calls fail here.
"""


def judged(folder: Path, effort: float, module: str, chosen: str) -> None:
    """Run cases of a module on the small wheel in a process of their own; all must pass, and none be skipped but for what is declared."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    own = ["-c", "pytest.ini", "-p", "no:cacheprovider", "-q", "-rs", "-k", chosen, "--pyargs", f"rmqstore_conformance.cases.{module}"]
    options = ["--rmq-engine", "wheel", "--rmq-plugin", PLUGIN, "--rmq-level", "full", "--rmq-effort", str(effort), "--rmq-seed", "fresh"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *options],
        cwd=folder,
        env={**os.environ, **environment(SOUND)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:]
    assert re.search(r"\d passed", run.stdout)
    assert "not run" not in run.stdout, run.stdout[-5000:]


def test_some_places_at_which_power_is_lost(tmp_path: Path) -> None:
    judged(tmp_path, 0.01, "test_power_loss", CASES["test_power_loss"])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("module", CASES)
def test_many_places(tmp_path: Path, module: str) -> None:
    judged(tmp_path, 20, module, CASES[module])


@pytest.mark.parametrize("states", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_power_is_lost_while_files_go(tmp_path: Path, states: int) -> None:
    """Files of the log go, and what is live in them is copied."""
    with build(), directory() as kept, Opener(PAIR, SETTINGS) as opener:
        run = Run.of(tmp_path, Reclaiming.name, **SETTINGS)
        calls = run.recorded.recording.calls
        gone = {call.path.split("/")[2] for call in calls if call.kind == "remove" and call.path.count("/") > 2}
        assert {"commitlog", "timerlog", "rmqstore"} <= gone
        assert sum(call.kind == "make" and "/commitlog/" in call.path for call in calls) > 10
        assert sum(call.kind == "rename" and call.target.endswith("rmqstore/checkpoint") for call in calls) > 5
        found = judge(run.play, states_of(run.recorded, run.play, states, 0, steps=run.play.calls), opener, kept)
    assert found.wrong == []
