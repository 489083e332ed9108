"""One call to the disk fails: typed errors, nothing changed by what failed, and everything that was acknowledged is there (F1–F3)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from plugins.wheel.tests.power.draining import Drain
from plugins.wheel.tests.power.enumeration import settings_of
from plugins.wheel.tests.power.failing import FailingDisk
from plugins.wheel.tests.power.life import START_MS, Life, abandon
from plugins.wheel.tests.power.small_store import remove, scratch, small_wheel
from plugins.wheel.tests.power.workloads import WORKLOADS, Workload
from rmqstore.contract import EngineSession
from rmqstore.errors import StoreFullError, StorePathError, StorePoisonedError
from rmqstore_wheel.engine import WheelEngine

pytestmark = pytest.mark.crash

NO_ROOM: Final = errno.ENOSPC
BROKEN: Final = errno.EIO
NAMES: Final = ("timers", "pops", "rolls", "files", "lazily", "reclaims")
STRIDE: Final = 53


def run_until(workload: Workload, root: Path, disk: FailingDisk) -> tuple[Life | None, Exception | None]:
    """Run a workload; returns it with the error that ended it, if one did. What it left is in ``root``, its files closed."""
    settings = settings_of(workload)
    life = Life.__new__(Life)
    error: Exception | None = None
    try:
        life.__init__(WheelEngine(disk, workload.sizes), root, settings, lambda: disk.calls)  # type: ignore[misc]
        workload.run(life)
    except (StorePoisonedError, StoreFullError, StorePathError) as found:
        error = found
    store: EngineSession | None = getattr(life, "session", None)
    if store is not None:
        if isinstance(error, StorePoisonedError) and life.events[-1].kind != "open":
            with pytest.raises(StorePoisonedError):
                store.pops().revive(START_MS, 1)
        with suppress(StorePoisonedError):
            abandon(store)
    return (life if store is not None else None), error


@cache
def count_of(name: str) -> int:
    """Return how many calls to the disk a workload makes."""
    disk = FailingDisk(0, 0)
    with scratch() as base, small_wheel():
        life, error = run_until(WORKLOADS[name], base, disk)
    assert life is not None
    assert error is None
    return disk.calls


def faults(name: str, failing: int, number: int, root: Path) -> list[str]:
    """Let one call fail; returns what is wrong afterwards."""
    workload = WORKLOADS[name]
    disk = FailingDisk(failing, number)
    root.mkdir()
    try:
        life, error = run_until(workload, root, disk)
        what = f"call {failing} ({disk.failed}, {errno.errorcode[number]})"
        if not disk.failed:
            return [f"{what}: never made"]
        wrong = [] if not isinstance(error, StoreFullError) else [f"{what}: {error}"]
        if number == NO_ROOM and disk.failed not in ("sync", "sync directory") and error is not None:
            wrong.append(f"{what}: {error}")
        if life is None:
            # Nobody was told anything; the directory opens.
            settings = settings_of(workload)
            shown = Drain(settings, workload.places, START_MS, [START_MS + 1]).of(WheelEngine(sizes=workload.sizes), root)
            return wrong + ([f"{what}: {shown}"] if shown.faults or shown.pending or shown.popped else [])
        known = {name for event in life.events if event.effect == "put" for name in event.arguments[1]}
        drain = Drain(
            life.settings,
            workload.places,
            life.now_ms,
            [time_ms for time_ms in (START_MS + each for each in workload.times_ms) if time_ms > life.now_ms],
            {} if workload.retention_ms else {name: handle for name, handle in life.handles.items() if name in known},
        )
        shown = drain.of(WheelEngine(sizes=workload.sizes), root)
        least = max((at for at, event in enumerate(life.events, 1) if event.told is not None), default=0)
        least = least if error is not None else len(life.events)
        nearest: list[str] = []
        for count in range(least, len(life.events) + 1):
            nearest = shown.differences(drain.expected(life.events[:count]))
            if not nearest:
                return wrong
        return [*wrong, f"{what}, {life.events[-1].kind}: {error}: {nearest}"[:1500]]
    except Exception as error:
        return [f"call {failing} ({disk.failed}, {errno.errorcode[number]}): {type(error).__name__}: {error}"]
    finally:
        remove(root)


def all_faults(name: str, number: int, calls: Iterator[int] | range) -> list[str]:
    """Return what is wrong after each of some calls failed."""
    found: list[str] = []
    with scratch() as base, small_wheel():
        for failing in calls:
            found += faults(name, failing, number, base / str(failing))
    return found


@pytest.mark.parametrize("number", [NO_ROOM, BROKEN], ids=["no room", "broken"])
@pytest.mark.parametrize("name", NAMES)
def test_some_calls_fail(name: str, number: int) -> None:
    assert all_faults(name, number, range(1 + number % STRIDE, count_of(name) + 1, STRIDE)) == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("number", [NO_ROOM, BROKEN], ids=["no room", "broken"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_call_fails(name: str, number: int) -> None:
    assert all_faults(name, number, range(1, count_of(name) + 1)) == []
