"""Damage in every file of a store: the right answers all the same, an error that names the place, or the message parked (R6, T12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from plugins.wheel.tests.power.damage import Damage, damages_of
from plugins.wheel.tests.power.draining import Shown
from plugins.wheel.tests.power.enumeration import Run
from plugins.wheel.tests.power.life import Life
from plugins.wheel.tests.power.small_store import remove, scratch, small_wheel
from plugins.wheel.tests.power.workloads import FAR, SECOND, G, H, Workload
from rmqstore.errors import CorruptStoreError, FormatVersionError
from rmqstore_conformance.power.content import Content, write_image
from rmqstore_wheel.engine import WheelEngine

pytestmark = pytest.mark.crash

STRIDE: Final = 31
FOLDERS: Final = ("commitlog", "consumequeue", "/index/", "timerlog", "timerwheel", "facts", "checkpoint", "FORMAT")


def everything(life: Life) -> None:
    """Leave timers near and far, cancelled and handed over, messages leased, acked, given back and dead; some only behind a check point."""
    life.put(2 * SECOND, 9 * SECOND, 11 * SECOND, 50 * SECOND, keys=("k",), marks=(b"one",))
    cancelled = life.put(8 * SECOND, 60 * SECOND)
    life.cancel(cancelled[0])
    life.append(5, body=b"n" * 200)
    taken = life.pop(3, invisible_ms=100 * SECOND)
    life.pop(2, group="h", invisible_ms=1 * SECOND)
    life.ack(taken[:1])
    life.tick(2 * SECOND)
    life.pop(4, group="h", invisible_ms=1 * SECOND)
    life.maintain()
    life.tick(2 * SECOND)
    life.pop(1, group="h", invisible_ms=200 * SECOND)
    life.put(*(30 * SECOND for _ in range(4)), body=b"o" * 800)
    life.append(3)


WORKLOAD: Final = Workload(everything, (G, H), (9 * SECOND, 31 * SECOND, FAR, 2 * FAR))


@cache
def run_of() -> Run:
    """Return the workload, run and closed."""
    return Run(WORKLOAD, "everything")


def outcome(damage: Damage, root: Path) -> str:
    """Return what a damaged store does: right, refused, parked; or what is wrong."""
    run = run_of()
    image = dict(run.left)
    content = image.pop(damage.path)
    assert content is not None
    damaged = damage.done_to(bytes(content))
    write_image(root, image if damaged is None else {**image, damage.path: Content(damaged)})
    cut = len(run.calls)
    try:
        shown = run.drain_at(cut).of(WheelEngine(sizes=WORKLOAD.sizes), root)
    except CorruptStoreError as error:
        return "refused" if error.file and error.offset != "" else f"{damage}: no place in {error}"
    except FormatVersionError as error:
        is_version = "FORMAT" in damage.path or "checkpoint" in damage.path
        return "refused" if is_version else f"{damage}: {error}"
    except Exception as error:
        return f"{damage}: {type(error).__name__}: {error}"
    finally:
        remove(root)
    if not (faults := run.faults(cut, shown)):
        return "right"
    return "parked" if _is_told(shown, run.drain_at(cut).expected(run.events)) else f"{damage}: {faults}"[:900]


def _is_told(shown: Shown, expected: Shown) -> bool:
    """Say whether all that is missing is parked, or told of where nobody waits for it, and nothing else is different."""
    missing: set[str] = set()
    for ours, theirs in ((_popped(shown), _popped(expected)), (_all(shown.dead), _all(expected.dead))):
        if ours - theirs:
            return False
        missing.update(name for name, _ in theirs - ours)
    read = not _all(shown.topics) - _all(expected.topics)
    return read and len(missing) <= len(shown.parked) and bool(shown.parked or shown.verified) and not shown.faults


def _popped(shown: Shown) -> Counter[tuple[str, int]]:
    return Counter(each for _, _, popped in shown.popped for each in popped)


def _all(topics: dict[str, list[str]]) -> Counter[tuple[str, int]]:
    return Counter((name, 0) for names in topics.values() for name in names)


def outcomes(damages: Iterable[Damage]) -> tuple[Counter[str], list[str]]:
    """Return how often the outcomes came, and what is wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    with scratch() as base, small_wheel():
        for number, damage in enumerate(damages):
            found = outcome(damage, base / str(number))
            if found in ("right", "refused", "parked"):
                counts[found] += 1
            else:
                wrong.append(found)
    return counts, wrong


def files_in(folder: str) -> list[tuple[str, bytes]]:
    """Return the files of which the path has this in it, that are not empty."""
    return sorted((path, bytes(content)) for path, content in run_of().left.items() if content and content.length and folder in path)


def all_damages(folder: str = "") -> list[Damage]:
    """Return all damage to files of which the path has this in it."""
    files = files_in(folder)
    return [damage for path, content in files for damage in damages_of(path, content) if damage.has_sum]


def test_every_kind_of_file_is_damaged() -> None:
    kinds = {damage.kind for damage in all_damages()}
    assert kinds == {"flip", "zero", "truncate", "remove"}
    assert [folder for folder in FOLDERS if not all_damages(folder)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_some_damage(folder: str) -> None:
    counts, wrong = outcomes(all_damages(folder)[::STRIDE])
    print(f"\n{folder}: {dict(counts)}")
    assert wrong == []
    assert counts


def test_damage_of_what_rocketmq_has_no_sum_of() -> None:
    damages = [damage for path, content in files_in("/commitlog/") for damage in damages_of(path, content) if not damage.has_sum]
    _, wrong = outcomes(damages[::STRIDE])
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("folder", FOLDERS)
def test_damage_everywhere(folder: str) -> None:
    counts, wrong = outcomes(all_damages(folder))
    print(f"\n{folder}: {dict(counts)}")
    assert wrong == []
