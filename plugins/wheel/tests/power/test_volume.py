"""The model of the disk itself: what it says is left is what was written, as far as it was synced."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from plugins.wheel.tests.power.enumeration import Run
from plugins.wheel.tests.power.images import fates_of
from plugins.wheel.tests.power.recording import RecordingDisk, Trace, read_tree, write_tree
from plugins.wheel.tests.power.volume import SECTOR, Call, Fate, Volume, can_tear
from plugins.wheel.tests.power.workloads import WORKLOADS


@pytest.mark.parametrize("name", ["timers", "lives"])
def test_what_is_left_when_all_is_kept_is_the_directory(name: str, tmp_path: Path) -> None:
    run = Run(WORKLOADS[name], name)
    volume = Volume()
    for call in run.calls:
        volume.do(call)
    assert volume.image({}) == run.left
    write_tree(tmp_path / "copy", run.left)
    assert read_tree(tmp_path / "copy") == run.left


def volume_of(path: Path, *, synced: bool) -> tuple[Volume, RecordingDisk]:
    """Return the volume of a file of four sectors of ones, and the disk that goes on."""
    trace = Trace(path)
    disk = RecordingDisk(trace)
    file = disk.create(path / "a")
    file.write_at(0, b"1" * 4 * SECTOR)
    if synced:
        file.sync()
        disk.sync_directory(path)
    file.close()
    volume = Volume()
    for call in trace.calls:
        volume.do(call)
    trace.calls.clear()
    return volume, disk


def test_a_write_is_kept_dropped_or_torn_at_sectors(tmp_path: Path) -> None:
    volume, _ = volume_of(tmp_path, synced=True)
    file = 1
    volume.do(Call("write", file=file, offset=100, data=b"2" * 3 * SECTOR))
    (number,) = volume.pending()
    assert can_tear(volume.pending()[number])

    def left(fate: Fate) -> list[tuple[int, int]]:
        content = volume.image({number: fate})["a"] or b""
        return [(sector, content[sector * SECTOR : (sector + 1) * SECTOR].count(b"2")) for sector in range(4)]

    assert left(Fate.KEPT) == [(0, SECTOR - 100), (1, SECTOR), (2, SECTOR), (3, 100)]
    assert left(Fate.DROPPED) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert left(Fate.HEAD) == [(0, SECTOR - 100), (1, SECTOR), (2, 0), (3, 0)]
    assert left(Fate.TAIL) == [(0, 0), (1, 0), (2, SECTOR), (3, 100)]
    assert left(Fate.COMB) == [(0, 0), (1, SECTOR), (2, 0), (3, 100)]


def test_a_file_goes_with_its_name(tmp_path: Path) -> None:
    volume, _ = volume_of(tmp_path, synced=False)
    volume.do(Call("sync", file=1))
    (number,) = volume.pending()
    assert volume.image({number: Fate.DROPPED}) == {}
    volume.do(Call("names"))
    assert volume.pending() == {}


def test_a_rename_is_whole_and_does_not_keep_the_content(tmp_path: Path) -> None:
    volume, disk = volume_of(tmp_path, synced=True)
    made = disk.create(tmp_path / "new")
    made.write_at(0, b"new")
    disk.sync_directory(tmp_path)
    disk.rename(tmp_path / "new", tmp_path / "a")
    made.close()
    for call in disk.trace.calls:
        volume.do(call)
    content, name = volume.pending()
    old = b"1" * 4 * SECTOR
    assert volume.image({}) == {"a": b"new"}
    assert volume.image({content: Fate.DROPPED}) == {"a": b""}
    assert volume.image({name: Fate.DROPPED}) == {"a": old, "new": b"new"}


def test_fates_hold_every_simple_case(tmp_path: Path) -> None:
    volume, _ = volume_of(tmp_path, synced=True)
    for number in range(3):
        volume.do(Call("write", file=1, offset=number * SECTOR, data=bytes([50 + number]) * SECTOR))
    found = [{number: fate for number, fate in fates.items() if fate is not Fate.KEPT} for fates in fates_of(volume, 0, random.Random(1))]
    low = min(volume.pending())
    for dropped in ([], [0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
        assert {low + number: Fate.DROPPED for number in dropped} in found
