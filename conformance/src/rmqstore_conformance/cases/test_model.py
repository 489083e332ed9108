"""Random histories of every engine and mixed pair against the oracle; see ``rmqstore_conformance.model.history``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import pytest

from rmqstore_conformance.model.history import Histories
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import Target

HISTORIES: Final = int(os.environ.get("RMQS_TEST_HISTORIES", "0"))
"""So many histories in place of the usual number, to search long."""


@pytest.mark.timeout(0 if HISTORIES else 900)
@pytest.mark.level("extended")
@pytest.mark.clause("P8", "P9", "P10", "P11", "P12", "P13", "P14", "Q1", "Q2", "Q3", "R1", "S1", "K1", "I1")
@pytest.mark.clause("T1", "T2", "T3", "T4", "T10", "C1", "C2", "C3", "C4", "C5", "C6", "H1", "H2", "P1", "P2", "P3", "P4", "P5", "P6", "P7")
def test_any_history_agrees_with_the_oracle(pair: Pair, seed: int, target: Target, tell: Callable[[object], None]) -> None:
    """Random calls on a store and on lists and dicts, side by side: every answer and all that can be seen is the same, whole."""
    histories = Histories(pair)
    for number in range(HISTORIES or target.times(16 if pair.durable else 48)):
        histories.run(f"{seed} {number}", steps=120)
    tell(histories.told())


@pytest.mark.timeout(600)
@pytest.mark.level("core")
@pytest.mark.clause("P8", "P10", "P11", "P12", "P13", "P14", "K1", "I1")
@pytest.mark.clause("T1", "T2", "T3", "T4", "T10", "C1", "C2", "C3", "C4", "C5", "C6", "H1", "H2", "P1", "P2", "P3", "P4", "P5", "P6", "P7")
def test_any_history_of_core_calls_agrees_with_the_oracle(
    engine_pair: Pair, seed: int, target: Target, tell: Callable[[object], None]
) -> None:  # fmt: skip
    """Random calls without anything optional, side by side with lists and dicts: every answer and all that can be seen is the same."""
    histories = Histories(engine_pair, support=frozenset())
    for number in range(max(5, target.times(30))):
        histories.run(f"{seed} core {number}", steps=100)
    tell(histories.told())
