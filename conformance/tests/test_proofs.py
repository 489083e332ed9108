"""The mutants that are named with no case are wrong, each in one way: its proof holds on the engine that it was made of and not on it."""

from __future__ import annotations

import pytest

from conformance.tests import proofs_of_crashes, proofs_of_memory  # noqa: F401 - fill PROOFS
from conformance.tests.proofs import PROOFS
from rmqstore.plugins import get_plugins
from rmqstore_conformance.proving import mutants, mutants_of_disks
from rmqstore_conformance.proving.planting import WrongEngine
from rmqstore_conformance.stores import Pair, stores_of

UNNAMED = [each for kit in (mutants, mutants_of_disks) for each in kit.MUTANTS if not each.caught_by]


@pytest.fixture(scope="module", autouse=True)
def _announced() -> None:
    for kit in (mutants, mutants_of_disks):
        if kit.MUTANTS[0].engine not in {each.name for each in get_plugins().engines()}:
            get_plugins().add(kit)


@pytest.mark.parametrize("mutant", UNNAMED, ids=lambda mutant: mutant.name)
def test_the_proof_tells_the_mutant_from_the_engine(mutant: WrongEngine) -> None:
    prove = PROOFS[mutant.name]
    with stores_of(Pair(mutant.base, mutant.base)) as stores:
        prove(stores)
    with stores_of(Pair(mutant.engine, mutant.engine)) as stores, pytest.raises(AssertionError):
        prove(stores)


def test_there_is_a_proof_for_each_and_no_other() -> None:
    assert set(PROOFS) == {each.name for each in UNNAMED}
