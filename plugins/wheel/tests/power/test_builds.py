"""Builds that are wrong on purpose: each must be noticed by the suite's own states and judge, or what passes there proves nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.wheel.tests.power.builds import SOUND, build
from plugins.wheel.tests.power.playing import PAIR, STORE, Run
from rmqstore import ManualClock, Message
from rmqstore.batch import MessageBatch
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.schema import EPOCH_KEY, META
from rmqstore_conformance.faults.cutting import State, judge, states_of
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.faults.recording import Playing, record
from rmqstore_conformance.faults.script import START_MS, open_script
from rmqstore_conformance.power import tracing
from rmqstore_conformance.power.content import Image, read_image, write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.stores import directory
from rmqstore_wheel.log import check_point

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(300),
    pytest.mark.skipif(tracing.unusable() is not None, reason=str(tracing.unusable())),
]

STATES = 200


def first_wrong(run: Run, states: Iterator[State]) -> list[str]:
    """Return what the suite says of the first of some states that is wrong."""
    with directory() as folder, Opener(PAIR, {}) as opener:
        return judge(run.play, states, opener, folder, stop_at=1).wrong


@pytest.mark.parametrize("name", ["syncs_no_file", "syncs_no_names", "syncs_nothing", "finds_no_slot"])
def test_power_losses_show_that_a_build_is_wrong(tmp_path: Path, name: str) -> None:
    with build(name):
        run = Run.of(tmp_path)
        assert first_wrong(run, states_of(run.recorded, run.play, STATES, 0, steps=run.play.calls))


def test_power_losses_within_a_long_call_show_that_sums_of_frames_are_skipped(tmp_path: Path) -> None:
    with build("skips_sums_of_frames"):
        run = Run.of(tmp_path)
        (step,) = [number for number in run.play.calls if run.play.steps[number].name == "send_batch big"]
        calls = run.recorded.recording.calls
        _, behind = [mark.calls for mark in run.recorded.recording.marks if mark.number == step]
        # The call is written whole, and its last write is torn, or one of the others is.
        last = max(number for number in range(behind) if calls[number].kind == "write")
        states = states_of(run.recorded, run.play, 40 * STATES, 0, steps=[step])
        assert first_wrong(run, (state for state in states if state.cut == last + 1))


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


# ---------------------------------------------------------------- epochs


def with_a_frame_too_many(folder: Path) -> Image:
    """Return what a power loss leaves of two calls that nobody waited for: the second one, which an open has to cut off.

    The first one is as long as what an open writes, so the second one would fit behind that.
    """
    store = open_script(folder / "store", PAIR, {}, ManualClock(START_MS))
    before = read_image(folder / "store")
    batch = WriteBatch()
    batch.put(META, b"?" * len(EPOCH_KEY), bytes(4))
    store.engine.timers._shared.write(batch)  # type: ignore[attr-defined]
    between = read_image(folder / "store")
    store.engine.timers.put(MessageBatch.of([Message("t", b"late", deliver_at_ms=START_MS + 5000)]), START_MS)
    image = read_image(folder / "store")
    store.close()
    for path, content in image.items():
        old, new = before.get(path), between.get(path)
        if content is None or old is None or new is None:
            continue
        was, became = bytes(old).ljust(new.length, b"\0"), bytes(new)
        if changed := [at for at in range(new.length) if was[at] != became[at]]:
            content.write(changed[0], was[changed[0] : changed[-1] + 1])
    return image


def pending_after_an_open(folder: Path, image: Image) -> set[int]:
    """Return how many timers are found when an open of this loses power, too: at each of its calls, in all plain ways."""
    (folder / "again").mkdir()
    write_image(folder / "again" / "store", image)
    recording = record(folder / "again", Playing(PAIR, {}, before=image, now_ms=START_MS)).recording
    volume = recording.volume()
    found = set()
    with Opener(PAIR, {}) as opener:
        for call in recording.calls:
            volume.do(call)
            for number, fates in enumerate(fates_of(volume, 0, random.Random(1))):
                path = folder / f"{volume.calls}-{number}"
                write_image(path, volume.image(fates))
                answer = opener.open(path, START_MS)
                assert answer.shown is not None, answer.error
                found.add(answer.shown["pending"]["total"])
    return found


@pytest.mark.parametrize(
    ("name", "found"),
    [(SOUND, {0}), ("cuts_without_a_sync", {0}), ("looks_at_no_epoch", {0, 1})],
    ids=["what was cut off does not come back", "the epoch keeps it away while it is there", "a log that looks at no epoch is found"],
)
def test_what_an_open_cut_off(name: str, found: set[int]) -> None:
    with build(name), directory() as folder:
        assert pending_after_an_open(folder, with_a_frame_too_many(folder)) == found
