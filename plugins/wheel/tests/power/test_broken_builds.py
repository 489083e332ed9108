"""Builds that are wrong on purpose: each must lose something under the same enumeration, or the enumeration proves nothing."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plugins.wheel.tests.power.enumeration import Run, State, Verdict, judge
from plugins.wheel.tests.power.life import Life, abandon, open_store, options
from plugins.wheel.tests.power.recording import Trace, recorded
from plugins.wheel.tests.power.small_store import SIZES, remove, scratch, small_wheel
from plugins.wheel.tests.power.workloads import SECOND, WORKLOADS
from rmqstore.ordered.kv import WriteBatch
from rmqstore.ordered.layout import EPOCH_KEY, META
from rmqstore_conformance.power.content import write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.power.volume import Fate, Volume
from rmqstore_wheel import check_point, commit_log, frames
from rmqstore_wheel.check_point import CheckPoint
from rmqstore_wheel.commit_log import CommitLog
from rmqstore_wheel.disk import Disk
from rmqstore_wheel.engine import WheelEngine

pytestmark = pytest.mark.crash


def found_in(run: Run, per_cut: int = 4, stride: int = 3, kind: str = "", **changes: Any) -> list[str]:
    """Return what is found in the first wrong one of the states of a run; ``kind``: only of those."""
    verdict = Verdict()
    states = run.states(per_cut, stride=stride, **changes)
    judge(run, (state for state in states if not kind or kind in state.kinds), verdict, stop_at=1)
    return [str(wrong) for wrong in verdict.wrong]


@pytest.mark.parametrize("name", ["timers", "pops"])
def test_a_disk_whose_syncs_do_nothing_loses(name: str) -> None:
    assert found_in(Run(WORKLOADS[name], name), syncs=False)


@pytest.mark.parametrize("kind", ["sync", "names"])
def test_a_disk_that_forgets_one_kind_of_sync_loses(kind: str) -> None:
    run = Run(WORKLOADS["timers"], "timers")
    run.calls = [call._replace(kind="forgotten") if call.kind == kind else call for call in run.calls]
    assert found_in(run)


@contextmanager
def renamed_before_it_is_synced() -> Iterator[None]:
    """Write check points whose content is synced only after they have their name."""

    def write(disk: Disk, directory: Path, found: CheckPoint, *, keep_before: bool) -> None:
        path, new = directory / check_point.NAME, directory / f"{check_point.NAME}.new"
        body = msgspec.msgpack.encode(found)
        data = check_point._HEAD.pack(check_point._MAGIC, check_point.VERSION, zlib.crc32(body), len(body)) + body
        file = disk.create(new, len(data))
        file.write_at(0, data)
        if keep_before and path.exists():
            disk.rename(path, directory / f"{check_point.NAME}.bak")
        disk.rename(new, path)
        disk.sync_directory(directory)
        file.sync()
        file.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_point, "write", write)
        yield


def test_a_check_point_that_is_renamed_before_it_is_synced_is_found() -> None:
    # It costs no message, since all is made anew from the log; but an open should find one once one was finished.
    run = Run(WORKLOADS["check points"], "check points", renamed_before_it_is_synced)
    found = found_in(run, per_cut=12, stride=1, kind="check point")
    assert any("none is left" in each for each in found), found


def without_crc(text: bytes) -> frames.Trailer | None:
    """Read a trailer that any content fits."""
    found = frames.read_trailer(text)
    return None if found is None else found._replace(crc=_ANY)


class _Any(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


_ANY = _Any(0)


class _Frames:
    """The module of frames, but for one function."""

    def __init__(self, read_trailer: Callable[[bytes], frames.Trailer | None]) -> None:
        self.read_trailer = read_trailer

    def __getattr__(self, name: str) -> Any:
        return getattr(frames, name)


def test_a_log_that_skips_the_sum_of_a_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(WORKLOADS["files"], "files")
    monkeypatch.setattr(commit_log, "frames", _Frames(without_crc))
    assert found_in(run, per_cut=8, stride=1)


# ---------------------------------------------------------------- epochs


def states_with_a_frame_too_many(base: Path) -> Iterator[State]:
    """Yield what is left when an open loses power that cut off a frame, which fits exactly behind the first frame of that open."""
    settings = options()
    trace = Trace(base / "first")
    trace.root.mkdir()
    with recorded(trace) as disk:
        life = Life(WheelEngine(disk, SIZES), trace.root, settings, lambda: len(trace))
        volume = Volume()
        for call in trace.calls:
            volume.do(call)
        first = len(volume.call_of)
        life.is_lazy = True
        batch = WriteBatch()
        batch.put(META, b"?" * len(EPOCH_KEY), bytes(4))
        life.session._shared.write(batch)  # type: ignore[attr-defined]
        written = len(trace)
        life.put(5 * SECOND)
        abandon(life.session)
    for call in trace.calls[volume.calls :]:
        volume.do(call)
    lost = {number: Fate.DROPPED for number in volume.pending() if number >= first and volume.call_of[number] < written}
    image = volume.image(lost)
    again = Trace(base / "second")
    write_image(again.root, image)
    with recorded(again) as disk:
        abandon(open_store(WheelEngine(disk, SIZES), again.root, settings))
    volume = Volume(image)
    for call in again.calls:
        volume.do(call)
        for fates in fates_of(volume, 0, random.Random(1)):
            yield State(0, volume.calls, frozenset(), volume.image(fates))


def come_back(base: Path) -> set[int]:
    """Return how many timers are found in the states, of which each should have none."""
    found = set()
    with small_wheel():
        for number, state in enumerate(states_with_a_frame_too_many(base)):
            root = base / str(number)
            write_image(root, state.image)
            store = open_store(WheelEngine(sizes=SIZES), root, options())
            found.add(store.timers().pending().total)
            abandon(store)
            remove(root)
    return found


def cut_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    """Let an open not wait until what it cut off is gone for good."""
    cut = CommitLog._cut

    def hasty(self: CommitLog, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(self.chain, "sync", lambda: None)
            cut(self, *args)

    patch.setattr(CommitLog, "_cut", hasty)


class _Latest(int):
    def __lt__(self, other: int) -> bool:
        return False


def of_any_epoch(text: bytes) -> frames.Trailer | None:
    """Read a trailer whose epoch is not before any other."""
    found = frames.read_trailer(text)
    return None if found is None else found._replace(epoch=_Latest(found.epoch))


def test_what_an_open_cut_off_does_not_come_back() -> None:
    with scratch() as base:
        assert come_back(base) == {0}


def test_the_epoch_keeps_away_what_was_cut_off_and_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_without_a_sync(monkeypatch)
    with scratch() as base:
        assert come_back(base) == {0}


def test_a_log_that_looks_at_no_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_without_a_sync(monkeypatch)
    monkeypatch.setattr(commit_log, "frames", _Frames(of_any_epoch))
    with scratch() as base:
        assert come_back(base) == {0, 1}
