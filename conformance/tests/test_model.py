"""Random histories meet what they are expected to meet, are the same for the same seed, and are made short when they fail."""

from __future__ import annotations

import re

import pytest

from rmqstore_conformance.model.coverage import Met, expected
from rmqstore_conformance.model.history import Histories, support_of
from rmqstore_conformance.proving import mutants as kit
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import announce

MEMORY, LMDB = Pair("memory", "memory"), Pair("lmdb", "lmdb")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pair", [MEMORY, LMDB], ids=str)
def test_histories_meet_what_they_are_expected_to_meet(pair: Pair) -> None:
    histories = Histories(pair)
    for number in range(80):
        histories.run(f"met {number}", steps=120)
        if "not reached" not in histories.told():
            break
    else:
        pytest.fail(histories.told())


def test_what_is_expected_follows_from_what_is_declared() -> None:
    everything = expected(support_of(LMDB), durable=True, survives_crashes=True)
    core = expected(frozenset(), durable=False, survives_crashes=False)
    assert core < everything
    assert Met("ack", "STALE", "crashed") in everything
    assert not [each for each in core if re.search("fifo|SQL92|cancel key|crashed|reopened|loaded|copied", str(each))]
    no_crash = expected(support_of(LMDB), durable=True, survives_crashes=False)
    assert {each.state for each in everything - no_crash} | {each.operation for each in everything - no_crash} >= {"crashed"}


def test_a_history_is_the_same_for_the_same_seed_and_another_one_for_another() -> None:
    def met(seed: str) -> dict[Met, int]:
        histories = Histories(MEMORY)
        histories.run(seed, steps=60)
        return dict(histories.coverage.met)

    assert met("one") == met("one") != met("two")


@pytest.mark.timeout(120)
def test_a_history_that_fails_is_made_short_and_says_how_to_play_it_again() -> None:
    announce([kit.__name__])
    engine = "mutant_releases_count"
    histories = Histories(Pair(engine, engine))

    def play() -> None:
        for number in range(30):
            histories.run(f"short {number}", steps=120)

    with pytest.raises(AssertionError, match="its steps:") as failed:
        play()
    text = str(failed.value)
    steps = text.partition("its steps:\n")[2].partition("\n\n")[0].splitlines()
    assert 1 <= len(steps) <= 12
    assert "plain: " in text
    assert "does the same to a store of its own" in text
    assert "store.release(" in text
