"""Every mutant that breaks its word in a crash is noticed by the cases that are named with it, which the sound engine passes."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest

from conformance.tests.mutant_runs import PARTS_OF_ALL, Results, assert_noticed, in_parts, results_of
from rmqstore_conformance.power import fusing, tracing
from rmqstore_conformance.proving import mutants_of_disks as kit
from rmqstore_conformance.proving.mutants_of_disks import MUTANTS
from rmqstore_conformance.proving.planting import LMDB, WrongEngine

NAMED = [each for each in MUTANTS if each.caught_by]
FULL = ("--rmq-level", "full")

pytestmark = [
    pytest.mark.skipif(find_spec(LMDB) is None, reason=f"{LMDB} is not installed"),
    pytest.mark.timeout(900),
]


@cache
def ran(part: int, recorder: str) -> Results:
    """Run the cases of those of a part of the mutants that one recorder sees."""
    chosen = [each for each in NAMED[part::PARTS_OF_ALL] if each.recorder == recorder]
    return results_of(kit.__name__, chosen, "--rmq-recorder", recorder, *FULL)


@pytest.mark.parametrize(("part", "mutant"), in_parts(NAMED))
def test_the_cases_notice_the_mutant(part: int, mutant: WrongEngine) -> None:
    if reason := {"strace": tracing, "fuse": fusing}[mutant.recorder].unusable():
        pytest.skip(reason)
    assert_noticed(mutant, ran(part, mutant.recorder))


@pytest.mark.slow  # conformance-small runs these cases on it, too
@pytest.mark.skipif(tracing.unusable() is not None, reason=str(tracing.unusable()))
def test_the_sound_engine_passes_them() -> None:
    cases = tuple(sorted({case for each in MUTANTS for case in each.caught_by}))
    found = results_of(kit.__name__, [], *FULL, sound=(LMDB, cases))
    assert found.keys() == {(LMDB, case) for case in cases}
    assert {each["outcome"] for of_case in found.values() for each in of_case} == {"pass"}
