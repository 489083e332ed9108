"""R2: a call that makes more than one write or sync is cut between each two of them, by a kill and by a loss of power."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore.contract import Durability, Flush
from rmqstore_conformance.cases.test_power_loss import judged
from rmqstore_conformance.faults.answers import Answers
from rmqstore_conformance.faults.boundaries import between_writes, split_by_others, writes_told
from rmqstore_conformance.faults.eager import keeps_back
from rmqstore_conformance.faults.large import Large
from rmqstore_conformance.faults.recorded import played, recorded
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.stores import Pair, stores_of, survives
from rmqstore_conformance.targets import Target

CUTS_OF_A_KIND = 4
"""Places, for each operation, size, and number of syncs and writes."""

CUTS_OF_A_SPLIT = 8

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(1800)]


def cut(pair: Pair, script: str, target: Target, kept: Path, tell: Callable[[object], None]) -> None:
    """Cut the calls of a script between their writes."""
    play = played(pair, target.settings, script)
    found = recorded(pair, target.settings, target.recorder, script)
    tell(writes_told(found, play))
    states = between_writes(found, play, target.times(CUTS_OF_A_KIND), power=_outlives_power(pair))
    verdict = judged(play, states, target, kept, found.notes)
    tell(verdict)
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])


@pytest.mark.clause("R1", "F3", "H1", "H3", "C5", "T10", "P3", "P4", "P7", "P9", "P14")
def test_r2_an_everyday_call_is_cut_between_two_writes(
    durable_pair: Pair, target: Target, tmp_path: Path, tell: Callable[[object], None]
) -> None:  # fmt: skip
    """R2: cut between any two writes or syncs that a call makes, in either engine, it happened wholly or not at all."""
    cut(durable_pair, Workload.name, target, tmp_path, tell)


@pytest.mark.clause("R1", "F3", "I1", "C4", "C5", "P1", "P3", "P4", "P5", "P7", "P8", "P9", "P11", "P14", "T10")
@pytest.mark.parametrize("script", [Answers.name, Large.name])
def test_r2_a_call_is_cut_between_two_writes(
    durable_engine: Pair, script: str, target: Target, tmp_path: Path, tell: Callable[[object], None]
) -> None:  # fmt: skip
    """R2: so it is with calls of every outcome, and with calls of over 1,000 rows or above 1 MiB; made again, they answer in accord."""
    cut(durable_engine, script, target, tmp_path, tell)


@pytest.mark.clause("F3", "H1")
@pytest.mark.parametrize("script", [Answers.name, Large.name])
def test_r2_a_call_is_cut_where_another_thread_syncs(
    durable_engine: Pair, script: str, target: Target, tmp_path: Path, tell: Callable[[object], None]
) -> None:  # fmt: skip
    """R2: an engine that keeps writes back is cut where another thread's sync comes between two of them, within one call."""
    with stores_of(durable_engine) as stores:
        if not keeps_back(stores.open(**target.settings)):
            pytest.skip("declared absent: the engine has no seam that keeps writes back; its system calls show each of them")
    play = played(durable_engine, target.settings, script)
    eager = recorded(durable_engine, target.settings, target.recorder, script, eager=True)
    split = split_by_others(eager, recorded(durable_engine, target.settings, target.recorder, script), play)
    states = between_writes(eager, play, target.times(CUTS_OF_A_SPLIT), power=_outlives_power(durable_engine), stretches=split)
    verdict = judged(play, states, target, tmp_path, eager.notes)
    names = ", ".join(play.steps[each.step].name for each in split) or "no call"
    tell(f"several writes, which another thread can sync one by one, are made by {names}; {verdict}")
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])


def _outlives_power(pair: Pair) -> bool:
    return all(survives(name, Flush.SYNC) >= Durability.POWER_LOSS for name in pair)
