"""R6: bytes of a closed store change by themselves, in every file, in one place or in two."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqstore import ManualClock
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.faults.recording import played
from rmqstore_conformance.faults.rotting import Rot, judge_rot, losses_of, pairs_of, rots_of
from rmqstore_conformance.faults.script import START_MS, open_script
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.power.content import Image, read_image
from rmqstore_conformance.stores import Pair, directory
from rmqstore_conformance.targets import Target

PLACES_OF_A_FILE = 5
PAIRS_OF_A_FILE = 1
SHOWN_FAULTS = 5

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(1800)]


def _closed(pair: Pair, target: Target) -> Image:
    clock = ManualClock(START_MS)
    with directory() as folder:
        with open_script(folder / "store", pair, target.settings, clock) as store:
            for call in Workload(store, clock).calls.values():
                call()
        return read_image(folder / "store")


@pytest.mark.clause("R6")
def test_bit_rot_is_told(durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """R6: a bit is flipped, or a sector zeroed: the store answers right, refuses with an error that names the place, or parks the entry."""
    _judge(durable_engine, target, tmp_path, tell, lambda image: ((rot,) for rot in rots_of(image, target.times(PLACES_OF_A_FILE), seed)))


@pytest.mark.clause("R6")
def test_a_file_that_is_lost_is_told(durable_engine: Pair, target: Target, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """R6: a file is gone, empty, or ends too early: the store rebuilds it and answers right, or refuses; never is it taken for new."""
    _judge(durable_engine, target, tmp_path, tell, lambda image: ((rot,) for rot in losses_of(image)))


@pytest.mark.clause("R6")
def test_damage_in_two_places_is_told(
    durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:  # fmt: skip
    """R6: what would make one damaged place good is damaged itself, or gone: never is anything lost without a word."""
    _judge(durable_engine, target, tmp_path, tell, lambda image: pairs_of(image, target.times(PAIRS_OF_A_FILE), seed))


def _judge(
    pair: Pair, target: Target, tmp_path: Path, tell: Callable[[object], None], damage: Callable[[Image], Iterator[tuple[Rot, ...]]]
) -> None:  # fmt: skip
    play = played(pair, target.settings)
    image = _closed(pair, target)
    with directory() as folder, Opener(pair, target.settings) as opener:
        outcomes, wrong = judge_rot(image, play, damage(image), opener, folder)
        for path in folder.iterdir():
            shutil.move(path, tmp_path / path.name)
    tell(f"{outcomes.total()} places in {sum(each is not None for each in image.values())} files: {dict(outcomes)}")
    assert not wrong, "\n".join(wrong[:SHOWN_FAULTS]).replace(str(folder), str(tmp_path))
