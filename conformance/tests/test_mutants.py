"""Every mutant is noticed by the cases that are named with it, which the engine that it is made of passes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.tests.mutant_runs import Results, assert_noticed, results_of
from rmqstore_conformance.clauses import clauses
from rmqstore_conformance.power import fusing, tracing
from rmqstore_conformance.proving import mutants, mutants_of_disks
from rmqstore_conformance.proving.mutants import MUTANTS, PARTS, WITHOUT_A_MUTANT
from rmqstore_conformance.proving.planting import LMDB, MEMORY, PREFIX, WrongEngine

ROOT = Path(__file__).parents[2]
NAMED = [each for each in MUTANTS if each.caught_by]
OF_DISKS = [each for each in mutants_of_disks.MUTANTS if each.caught_by]
PARTS_OF_ALL = 24
TODAY = int(time.time() // 86_400) % PARTS_OF_ALL
"""Every 24th mutant is tried by a run of the tests, each day other ones, and all of them by ``make crash``."""

needs_lmdb = pytest.mark.skipif(find_spec(LMDB) is None, reason=f"{LMDB} is not installed")


def in_parts(chosen: list[WrongEngine]) -> list[Any]:
    """Return the parameters of a test: (part, mutant), all but those of the day for the slow tier."""
    return [
        pytest.param(at % PARTS_OF_ALL, each, id=each.name, marks=() if at % PARTS_OF_ALL == TODAY else pytest.mark.slow)
        for at, each in enumerate(chosen)
    ]


@cache
def ran(part: int) -> Results:
    """Run the cases of a part of the mutants."""
    return results_of(mutants.__name__, NAMED[part::PARTS_OF_ALL], "--rmq-level", "extended", "--timeout", "120")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("part", "mutant"), in_parts(NAMED))
def test_the_cases_notice_the_mutant(part: int, mutant: WrongEngine) -> None:
    assert_noticed(mutant, ran(part))


@cache
def ran_on_disk(part: int, recorder: str) -> Results:
    """Run the cases of those of a part of the mutants that one recorder sees."""
    chosen = [each for each in OF_DISKS[part::PARTS_OF_ALL] if each.recorder == recorder]
    return results_of(mutants_of_disks.__name__, chosen, "--rmq-level", "full", "--rmq-recorder", recorder)


@needs_lmdb
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("part", "mutant"), in_parts(OF_DISKS))
def test_the_cases_notice_the_mutant_that_breaks_its_word_in_a_crash(part: int, mutant: WrongEngine) -> None:
    if reason := {"strace": tracing, "fuse": fusing}[mutant.recorder].unusable():
        pytest.skip(reason)
    assert_noticed(mutant, ran_on_disk(part, mutant.recorder))


@needs_lmdb
@pytest.mark.slow  # the suite runs these cases on them, too
@pytest.mark.timeout(900)
@pytest.mark.skipif(tracing.unusable() is not None, reason=str(tracing.unusable()))
@pytest.mark.parametrize(("kit", "sound", "level"), [(mutants, MEMORY, "extended"), (mutants_of_disks, LMDB, "full")])
def test_the_sound_engine_passes_them(kit: ModuleType, sound: str, level: str) -> None:
    cases = tuple(sorted({case for each in kit.MUTANTS for case in each.caught_by}))
    found = results_of(kit.__name__, [], "--rmq-level", level, sound=(sound, cases))
    assert found.keys() == {(sound, case) for case in cases}
    assert {each["outcome"] for of_case in found.values() for each in of_case} == {"pass"}


def test_every_part_has_its_mutants_and_no_name_is_there_twice() -> None:
    assert len(MUTANTS) >= 200
    assert max(Counter(each.name for each in (*MUTANTS, *mutants_of_disks.MUTANTS)).values()) == 1
    assert {each.place.partition(":")[0] for each in MUTANTS} == {part.__name__ for part in PARTS}
    assert {each.kind for each in MUTANTS} == {"data", "fidelity", "pairs", "concurrency", "logic"}
    assert all(each.name.startswith(PREFIX) for each in mutants.rmqstore_engines())


def test_every_clause_has_a_mutant_or_a_reason_why_not() -> None:
    with_one = {each.clause for each in MUTANTS}
    assert with_one | set(WITHOUT_A_MUTANT) == set(clauses())
    assert not with_one & set(WITHOUT_A_MUTANT)


def test_the_page_is_current() -> None:
    script = ROOT / "docs" / "make_mutants.py"
    made = subprocess.run([sys.executable, str(script), "-"], capture_output=True, text=True, check=True).stdout
    page = ROOT / "docs" / "mutants.md"
    assert page.read_text(encoding="utf-8") == made, "run: python docs/make_mutants.py"
    assert all(f"| `{each.name}` |" in made for each in MUTANTS)
