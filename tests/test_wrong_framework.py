"""Every fault planted above the engines is noticed by the test of the clause that it breaks, and by that fault alone.

Faults of engines are mutants of the conformance suite, see docs/mutants.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import rmqstore.delays as delays
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.message import REQUEST_PROPERTIES
from rmqstore.store.handover import HandOver
from rmqstore_conformance.cases import test_delays, test_handover
from rmqstore_conformance.stores import Pair, stores_of
from tests.engine import test_unsynced
from tests.pairs import MIXED, PAIRS


@contextmanager
def apply_before_the_timers_sync() -> Iterator[None]:
    """The sync between the two engines is left out."""
    init = HandOver.__init__

    def mutated(self: HandOver, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{**kwargs, "one_log": True})

    with patch.object(HandOver, "__init__", mutated):
        yield


@contextmanager
def forget_before_durable() -> Iterator[None]:
    """What the pops hold, but not durably, is reclaimed already."""
    with patch.object(OrderedPops, "durable_cursor", OrderedPops.timer_cursor):
        yield


@contextmanager
def requests_in_the_wrong_order() -> Iterator[None]:
    """Of several properties that ask for a time the last one wins (T4)."""
    with patch.object(delays, "REQUEST_PROPERTIES", tuple(reversed(REQUEST_PROPERTIES))):
        yield


def asked_twice(pair: Pair) -> None:
    """A message with all four properties that ask for a time."""
    properties, due_ms = next(case for case in test_delays.CASES if len(case[0]) == 4)
    with stores_of(pair) as stores:
        test_delays.test_t4_properties_ask_for_a_time_in_their_order(stores, "messages", properties, due_ms)


def unplugged(pair: Pair) -> None:
    """Power losses at every step."""
    test_unsynced.test_h1_power_loss_at_every_step(pair, 1)


CASES = [
    *((fault, unplugged, pair) for fault in (apply_before_the_timers_sync, forget_before_durable) for pair in MIXED[:1]),
    *(
        (fault, test_handover.test_h3_across_two_engines_the_timers_are_synced_first, pair)
        for fault in (apply_before_the_timers_sync, forget_before_durable)
        for pair in MIXED
    ),
    (requests_in_the_wrong_order, asked_twice, PAIRS[0]),
]


@pytest.mark.parametrize(("fault", "body", "pair"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_the_clause_notices_the_fault(
    fault: Callable[[], AbstractContextManager[None]], body: Callable[[Pair], object], pair: Pair
) -> None:
    body(pair)
    with fault(), pytest.raises((AssertionError, pytest.fail.Exception)):
        body(pair)
