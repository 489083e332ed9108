"""Files of a closed store that are gone, or end too early: a log of frames with sums and a check point can tell of it (R6).

Flipped bits and zeroed sectors in every file are tried by the suite's cases, see ``test_small_wheel``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from plugins.wheel.tests.power.builds import build
from plugins.wheel.tests.power.playing import PAIR
from rmqstore import ManualClock
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.faults.rotting import Rot, judge_rot
from rmqstore_conformance.faults.script import START_MS, open_script
from rmqstore_conformance.faults.scripts import play_of
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.power.content import Image, read_image
from rmqstore_conformance.stores import directory

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

FOLDERS: Final = ("commitlog", "consumequeue", "/index/", "timerlog", "timerwheel", "facts", "checkpoint", "FORMAT")


def closed() -> Image:
    """Return a store in which the suite's script was played."""
    clock = ManualClock(START_MS)
    with directory() as folder:
        with open_script(folder / "store", PAIR, {}, clock) as store:
            for call in Workload(store, clock).calls.values():
                call()
        return read_image(folder / "store")


def damages(image: Image) -> Iterator[Rot]:
    """Yield for each file that holds something that it is gone, that it ends in the middle or a byte early, and that it is empty."""
    for path, content in sorted(image.items()):
        if content is not None and content.places:
            yield Rot(path, "missing", 0)
            yield from (Rot(path, "cut", at) for at in sorted({0, content.length // 2, content.length - 1}))


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_files_are_gone_or_end_too_early(stride: int) -> None:
    with build(), directory() as folder, Opener(PAIR, {}) as opener:
        play, image = play_of(PAIR, {}), closed()
        found = list(damages(image))
        assert [each for each in FOLDERS if not any(each in rot.path for rot in found)] == []
        outcomes, wrong = judge_rot(image, play, ((rot,) for rot in found[::stride]), opener, folder)
    print(f"\n{dict(outcomes)}")
    assert wrong == []
