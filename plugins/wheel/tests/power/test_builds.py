"""Builds that are wrong on purpose: each must be noticed by the suite's own states and judge, or what passes there proves nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from plugins.wheel.tests.power.builds import SOUND, build
from plugins.wheel.tests.power.playing import PAIR, STORE, Run
from rmqstore_conformance.faults.cutting import judge, states_of
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.power import tracing
from rmqstore_conformance.power.content import write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.stores import directory
from rmqstore_wheel.log import check_point

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(300),
    pytest.mark.skipif(tracing.unusable() is not None, reason=str(tracing.unusable())),
]


@pytest.mark.parametrize("name", ["syncs_no_file", "syncs_no_queue", "syncs_no_names", "finds_no_slot"])
def test_power_losses_show_that_a_build_is_wrong(tmp_path: Path, name: str) -> None:
    with build(name):
        run = Run.of(tmp_path)
        with directory() as folder, Opener(PAIR, {}) as opener:
            assert judge(run.play, states_of(run.recorded, run.play, 200, 0, steps=run.play.calls), opener, folder, stop_at=1).wrong


# ---------------------------------------------------------------- check points


def without_check_point(run: Run, folder: Path) -> int:
    """Return in how many states no sound check point is left although one was finished: an open would read the whole log.

    That costs no message, so no case of the suite can see it.
    """
    where = f"{STORE}/{check_point.DIRECTORY}"
    chance = random.Random(0)
    volume = run.recorded.recording.volume()
    finished = missing = 0
    for call in run.recorded.recording.calls:
        volume.do(call)
        finished += call.kind == "rename" and call.target == f"{where}/{check_point.NAME}"
        if not finished or call.kind != "names" or call.path != where:
            continue
        for number, fates in enumerate(fates_of(volume, volume.calls - 10, chance)):
            image = volume.image(fates)
            left = folder / f"{volume.calls}-{number}"
            write_image(left, {path.removeprefix(f"{where}/"): content for path, content in image.items() if _is_check_point(path)})
            missing += not check_point.read_all(left)
    assert finished
    return missing


def _is_check_point(path: str) -> bool:
    return path.removesuffix(".bak").endswith(f"{check_point.DIRECTORY}/{check_point.NAME}")


@pytest.mark.parametrize(("name", "is_wrong"), [(SOUND, False), ("renames_before_it_syncs", True)])
def test_once_a_check_point_was_finished_there_is_one(tmp_path: Path, name: str, is_wrong: bool) -> None:
    with build(name):
        run = Run.of(tmp_path)
    with directory() as folder:
        assert (without_check_point(run, folder) > 0) == is_wrong
