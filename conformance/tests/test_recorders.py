"""An engine that writes through a mapping: strace does not see what it writes, and says so; the file system of the suite does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from conformance.tests.mutant_runs import result_of
from rmqstore_conformance.power import fusing, tracing
from rmqstore_conformance.proving import mutants_of_disks as kit
from rmqstore_conformance.proving.planting import LMDB

ENGINE = "mutant_writes_through_a_mapping"

pytestmark = [pytest.mark.skipif(find_spec(LMDB) is None, reason=f"{LMDB} is not installed"), pytest.mark.timeout(200)]


def result(folder: Path, recorder: str, engine: str = ENGINE) -> tuple[str, str]:
    """Return what became of the case of power losses, and why."""
    options = f"--rmq-recorder {recorder} --rmq-effort 0.2 -k power_loss_at_every_call".split()
    found = result_of(folder, engine, kit.__name__, "full", *options)
    return found["outcome"], found["reason"] or found["seen"]


@pytest.mark.skipif(tracing.unusable() is not None, reason=str(tracing.unusable()))
def test_strace_says_what_it_does_not_see(tmp_path: Path) -> None:
    outcome, reason = result(tmp_path, "strace")
    assert outcome == "not run"
    assert "through a mapping to lmdb/db/count" in reason.replace(ENGINE, LMDB)


@pytest.mark.skipif(fusing.unusable() is not None, reason=str(fusing.unusable()))
def test_fuse_sees_it(tmp_path: Path) -> None:
    outcome, seen = result(tmp_path, "fuse")
    assert outcome == "fail"
    assert "counts more calls than there were" in seen


@pytest.mark.skipif(fusing.unusable() is not None, reason=str(fusing.unusable()))
def test_a_sound_engine_is_sound_by_fuse_too(tmp_path: Path) -> None:
    assert result(tmp_path, "fuse", LMDB)[0] == "pass"


def test_without_strace_the_tier_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert result(tmp_path, "strace", LMDB) == ("not run", "install strace")
