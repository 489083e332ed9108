"""R2: a call that makes more than one write or sync is cut between each two of them, by a kill and by a loss of power."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore.contract import Durability, Flush
from rmqstore_conformance.cases.test_power_loss import judged
from rmqstore_conformance.faults.boundaries import between_writes, writes_told
from rmqstore_conformance.faults.recorded import played, recorded
from rmqstore_conformance.faults.scripts import SCRIPTS
from rmqstore_conformance.stores import Pair, survives
from rmqstore_conformance.targets import Target

CUTS_OF_A_CLASS = 4
"""Places, for each operation and size."""

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(1800)]


@pytest.mark.clause("R2", "R1", "F3", "H1")
@pytest.mark.parametrize("script", list(SCRIPTS))
def test_cut_between_two_writes(
    durable_pair: Pair, script: str, target: Target, tmp_path: Path, tell: Callable[[object], None]
) -> None:  # fmt: skip
    """R2: cut between any two writes or syncs that a call makes, large calls above all, it happened wholly or not at all."""
    play = played(durable_pair, target.settings, script)
    found = recorded(durable_pair, target.settings, target.recorder, script)
    tell(writes_told(found, play))
    outlives_power = all(survives(name, Flush.SYNC) >= Durability.POWER_LOSS for name in durable_pair)
    states = between_writes(found, play, target.times(CUTS_OF_A_CLASS), power=outlives_power)
    verdict = judged(play, states, target, tmp_path, found.notes)
    tell(verdict)
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])
