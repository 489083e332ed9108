"""Every fault planted above the engines is noticed by the test of the clause that it breaks, and by that fault alone.

Faults of engines are mutants of the conformance suite, see docs/mutants.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from rmqstore import delays
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.message import REQUEST_PROPERTIES
from rmqstore.store.opening import OwnedEngines
from rmqstore_conformance.cases import test_delays, test_handover
from rmqstore_conformance.stores import Pair, stores_of
from tests.engine import test_unsynced
from tests.pairs import MIXED, PAIRS

NO_SYNC_BETWEEN_THE_ENGINES = (OwnedEngines, "one_log", True)
FORGET_BEFORE_DURABLE = (OrderedPops, "durable_cursor", OrderedPops.timer_cursor)
THE_LAST_REQUEST_WINS = (delays, "REQUEST_PROPERTIES", REQUEST_PROPERTIES[::-1])


def asked_twice(pair: Pair) -> None:
    """A message with all four properties that ask for a time."""
    properties, due_ms = next(case for case in test_delays.CASES if len(case[0]) == 4)
    with stores_of(pair) as stores:
        test_delays.test_t4_properties_ask_for_a_time_in_their_order(stores, "messages", properties, due_ms)


def unplugged(pair: Pair) -> None:
    """Power losses at every step."""
    test_unsynced.test_h1_power_loss_at_every_step(pair, 1)


across = test_handover.test_h3_across_two_engines_the_timers_are_synced_first

CASES = [
    *((fault, unplugged, pair) for fault in (NO_SYNC_BETWEEN_THE_ENGINES, FORGET_BEFORE_DURABLE) for pair in MIXED[:1]),
    *((fault, across, pair) for fault in (NO_SYNC_BETWEEN_THE_ENGINES, FORGET_BEFORE_DURABLE) for pair in MIXED),
    (THE_LAST_REQUEST_WINS, asked_twice, PAIRS[0]),
]


@pytest.mark.parametrize(("fault", "body", "pair"), CASES, ids=lambda each: each[1] if isinstance(each, tuple) else each.__name__)
def test_the_clause_notices_the_fault(fault: tuple[Any, str, object], body: Callable[[Pair], object], pair: Pair) -> None:
    body(pair)
    with patch.object(*fault), pytest.raises((AssertionError, pytest.fail.Exception)):
        body(pair)
