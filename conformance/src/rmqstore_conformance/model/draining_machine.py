"""Random histories that end by letting all time pass and popping all there is, and how long they are searched.

``RMQS_TEST_PROFILE=slow`` searches long (``RMQS_TEST_EXAMPLES`` histories). A history that fails is made short, which takes some time, and
comes with a program that does the same by the public API.
"""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, Phase, settings

from rmqstore_conformance.model.operated_machine import OperatedMachine
from rmqstore_conformance.model.store_machine import GROUPS, TOPICS

SLOW = os.environ.get("RMQS_TEST_PROFILE") == "slow"
PROFILE = settings(
    max_examples=int(os.environ.get("RMQS_TEST_EXAMPLES", "2000")) if SLOW else 30,
    stateful_step_count=60 if SLOW else 40,
    deadline=None,
    derandomize=not SLOW,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
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
