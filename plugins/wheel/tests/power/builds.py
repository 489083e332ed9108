"""``wheel`` with files and a wheel so small that everything happens within a few calls, sound or wrong in one way.

A build holds for a whole process. The children of the suite take it on when they import this module as a plug-in of theirs, by the name
that stands in the environment.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from plugins.wheel.tests.power.playing import Reclaiming
from rmqstore_conformance.faults.scripts import SCRIPTS
from rmqstore_conformance.stores import ANNOUNCED
from rmqstore_wheel import engine
from rmqstore_wheel.files import chain
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.log import check_point, consume_queues, journal
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.reclaim import reclaim
from rmqstore_wheel.timers import index as timer_index, table as timer_table
from rmqstore_wheel.timers.index import TimerIndex
from rmqstore_wheel.timers.store import WheelTimers
from rmqstore_wheel.timers.wheel import WheelIndex

SIZES: Final = Sizes(
    log_file_bytes=4096,
    queue_file_units=32,
    timer_file_units=32,
    check_point_bytes=3000,
    check_point_calls=8,
    index_slots=64,
    index_entries=16,
)
ROOT: Final = Path(__file__).parents[4]
VARIABLE: Final = "WHEEL_BUILD"
SOUND: Final = "sound"

Patch = pytest.MonkeyPatch


def make_small(patch: Patch, sizes: Sizes = SIZES, *, slots: int = 256, roll_window: int = 16, again_ms: int = 1000) -> None:
    """Let engines that are opened from now on have small files, a small ring and a short roll window.

    They look at the files of the log anew after ``again_ms``.
    """
    patch.setattr(engine, "sizes_of", lambda options: sizes)
    # A record has to fit into a file, so a copy of the state is cut into many.
    patch.setattr(journal, "PIECE_BYTES", min(journal.PIECE_BYTES, sizes.log_file_bytes // 4))
    patch.setattr(timer_table, "PER_FILE", 16)
    patch.setattr(consume_queues, "_LONG", 8)
    patch.setattr(chain, "_LARGE", 512)
    patch.setattr(timer_index, "SLOTS", slots)
    patch.setattr(timer_index, "WheelIndex", functools.partial(WheelIndex, roll_window=roll_window))
    patch.setattr(reclaim, "AGAIN_MS", again_ms)


# ---------------------------------------------------------------- wrong builds


def sound(patch: Patch) -> None:
    """Nothing is wrong."""


def syncs_no_file(patch: Patch) -> None:
    """What is written is never made durable, only names are."""
    patch.setattr(DiskFile, "sync", lambda self: None)


def syncs_no_queue(patch: Patch) -> None:
    """Check points vouch for files of queues that were never made durable."""
    sync = DiskFile.sync
    patch.setattr(DiskFile, "sync", lambda self: None if "consumequeue" in self.path.parts else sync(self))


def syncs_no_names(patch: Patch) -> None:
    """The names in directories are never made durable."""
    patch.setattr(Disk, "sync_directory", lambda self, path: None)


def renames_before_it_syncs(patch: Patch) -> None:
    """The content of a check point is synced only after the check point has its name."""

    write = check_point.write

    def late(disk: Disk, directory: Path, found: check_point.CheckPoint, *, keep_before: bool) -> None:
        with Patch.context() as within:
            within.setattr(DiskFile, "sync", lambda self: None)
            write(disk, directory, found, keep_before=keep_before)
        file = disk.open(directory / check_point.NAME)
        file.sync()
        file.close()

    patch.setattr(check_point, "write", late)


def finds_no_slot(patch: Patch) -> None:
    """An open puts timers that it finds behind the check point into no slot, so that no tick comes upon them, and nothing says so."""
    patch.setattr(TimerIndex, "_place_all", lambda self, *found: None)
    patch.setattr(WheelTimers, "verify", lambda self: [])


BUILDS: Final[dict[str, Callable[[Patch], None]]] = {
    each.__name__: each for each in (sound, syncs_no_file, syncs_no_queue, syncs_no_names, renames_before_it_syncs, finds_no_slot)
}


def take_on(name: str, patch: Patch) -> None:
    """Let this process have a build, and know the script of this directory."""
    make_small(patch)
    patch.setitem(SCRIPTS, Reclaiming.name, Reclaiming)
    BUILDS[name](patch)


PLUGIN: Final = "plugins.wheel.tests.power.builds"


def environment(name: str) -> dict[str, str]:
    """Return what the environment of a process of the suite has to say for a build."""
    return {VARIABLE: name, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


@contextmanager
def build(name: str = SOUND) -> Iterator[None]:
    """Let this process, and those that the suite starts, have a build within a ``with`` block."""
    with Patch.context() as patch:
        take_on(name, patch)
        for variable, value in environment(name).items():
            patch.setenv(variable, value)
        ANNOUNCED.append(PLUGIN)
        try:
            yield
        finally:
            ANNOUNCED.remove(PLUGIN)


if VARIABLE in os.environ:  # a process of the suite, which has it for good
    take_on(os.environ[VARIABLE], Patch())
