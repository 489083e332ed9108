"""Random histories of every engine and mixed pair against the oracle, checked after every step.

``RMQS_TEST_PROFILE=slow`` searches long, from a new seed each time (``RMQS_TEST_EXAMPLES`` histories); ``RMQS_TEST_SHRINK=1`` takes the
time to make a failing history short.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.operated_machine import OperatedMachine
from tests.store_machine import GROUPS, TOPICS
from tests.stores import PAIRS, Pair

SLOW = os.environ.get("RMQS_TEST_PROFILE") == "slow"
PROFILE = settings(
    max_examples=int(os.environ.get("RMQS_TEST_EXAMPLES", "2000")) if SLOW else 40,
    stateful_step_count=60 if SLOW else 40,
    deadline=None,
    derandomize=not SLOW,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink) if os.environ.get("RMQS_TEST_SHRINK") else (Phase.generate,),
)


class DrainingMachine(OperatedMachine):
    """Ends every history by letting all time pass and popping all there is."""

    def teardown(self) -> None:
        try:
            if hasattr(self, "store") and sys.exc_info()[0] is None:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        self.clock.set(max([self.now, *(timer.tick for timer in self.oracle.pending())]))
        for _ in range(40):
            self.clock.advance(120_000)
            self.tick()
            for group in GROUPS:
                self.remove_letters(group, range(len(self.oracle.letters.get(group, []))), resend=True)
                for topic in TOPICS:
                    self.pop(topic, group, 1024, 60_000, "*", None, None, "request", None, False)
            receipts = list(self.oracle.live)
            for receipt, outcome in zip(receipts, self.store.ack(receipts), strict=True):
                assert outcome in self.oracle.ack(receipt)
            self.looks_like_the_oracle()
            lags = [self.oracle.lag(topic, group) for topic in TOPICS for group in GROUPS]
            if not any(lag.ready + lag.retry for lag in lags) and not self.oracle.live and not any(self.oracle.letters.values()):
                break
        self.looks_like_the_oracle()
        assert not self.oracle.pending()
        sent = {str(timer.message.message_id): timer for timer in self.oracle.timers}
        for (_, message_id), times in self.oracle.deliveries.items():
            assert message_id not in sent or not sent[message_id].cancelled, "a cancelled timer was delivered"
            assert times >= 1
        for topic in TOPICS:
            for group in GROUPS:
                lag = self.store.lag(topic, group)
                assert (lag.ready, lag.in_flight, lag.retry, lag.dead) == (0, 0, 0, 0)
        assert not any(self.oracle.letters.values())


@pytest.mark.timeout(0 if SLOW else 300)
@pytest.mark.clause("T1", "T2", "T3", "T10", "C1", "H1", "P1", "P5", "P7", "P9", "P14", "Q1", "Q2", "Q3", "K1")
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_any_history_agrees_with_the_oracle(pair: Pair) -> None:
    machine = type("Machine", (DrainingMachine,), {"pair": pair})
    run_state_machine_as_test(machine, settings=PROFILE)
