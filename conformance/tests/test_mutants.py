"""Every mutant is noticed by the cases that are named with it, which the engine that it is made of passes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from conformance.tests.mutant_runs import PARTS_OF_ALL, Results, assert_noticed, in_parts, results_of
from rmqstore_conformance.clauses import clauses
from rmqstore_conformance.proving import mutants as kit
from rmqstore_conformance.proving.mutants import MUTANTS, PARTS, WITHOUT_A_MUTANT
from rmqstore_conformance.proving.planting import PREFIX, WrongEngine

ROOT = Path(__file__).parents[2]
SOUND = "memory"
NAMED = [each for each in MUTANTS if each.caught_by]


@cache
def ran(part: int) -> Results:
    """Run the cases of a part of the mutants, and the same ones on the sound engine."""
    mutants = NAMED[part::PARTS_OF_ALL]
    sound = (SOUND, tuple(case for each in mutants for case in each.caught_by))
    return results_of(kit.__name__, mutants, "--rmq-level", "extended", "--timeout", "120", sound=sound)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("part", "mutant"), in_parts(NAMED))
def test_the_cases_notice_the_mutant(part: int, mutant: WrongEngine) -> None:
    for case in mutant.caught_by:
        assert {each["outcome"] for each in ran(part)[SOUND, case]} == {"pass"}, f"{case} on {SOUND}"
    assert_noticed(mutant, ran(part))


def test_every_part_has_its_mutants_and_no_name_is_there_twice() -> None:
    assert len(MUTANTS) >= 200
    assert max(Counter(each.name for each in MUTANTS).values()) == 1
    assert {each.place[0] for each in MUTANTS} == {part.__name__ for part in PARTS}
    assert {each.kind for each in MUTANTS} == {"data", "fidelity", "pairs", "concurrency", "logic"}
    assert all(each.name.startswith(PREFIX) for each in kit.rmqstore_engines())


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
