"""Random histories of every engine and mixed pair against the oracle, checked after every step; see ``draining_machine``."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from rmqstore_conformance.model.draining_machine import PROFILE, SLOW, DrainingMachine
from rmqstore_conformance.stores import Pair


@pytest.mark.timeout(0 if SLOW else 900)
@pytest.mark.level("extended")
@pytest.mark.needs("cancel_by_key", "fifo", "sql92_filter", "retention")
@pytest.mark.clause("T1", "T2", "T3", "T10", "C1", "H1", "P1", "P5", "P7", "P9", "P14", "Q1", "Q2", "Q3", "K1")
def test_any_history_agrees_with_the_oracle(pair: Pair, seed: int) -> None:
    """Random calls on a store and on lists and dicts, side by side: every answer and all that can be seen is the same."""
    machine = type("Machine", (DrainingMachine,), {"pair": pair})
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings(PROFILE, derandomize=False))
