"""The audit finds what a store kept to itself: due timers, messages that nobody got, leases that are over, and damaged bodies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.tests.conftest import store_of, told
from rmqstore_benchmarks.grid.load import Ids
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.clients import run_round
from rmqstore_benchmarks.load.closing import audit
from rmqstore_benchmarks.load.ledger import Event, LedgerFile
from rmqstore_benchmarks.load.plan import BODY_BYTES, GROUP, KEPT_TOPIC, LEASE_MS, NO_TIME, TOPIC, Fate, Plan

LATER_MS = START_MS + 1_000_000


@pytest.fixture
def plan(new_plan: Callable[..., Plan]) -> Plan:
    return new_plan(1000, chunk=200)


def found(plan: Plan, now_ms: int) -> dict[str, set[int]]:
    """Return the ids in each place, as the audit finds them when the ledger ends at ``now_ms``."""
    ledger = LedgerFile(plan.ledger_path(0), 0)
    ledger.say(Event.TIME, now_ms)
    ledger.close()
    places: defaultdict[str, set[int]] = defaultdict(set)
    for batch in audit(plan, 0):
        for row in batch.to_pylist():
            places[row["place"]].add(row["id"])
    return places


def ids_of(plan: Plan, *, topic: str) -> Ids:
    """Return the ids that are due at once, of a topic."""
    ids = np.arange(plan.messages)
    return ids[(plan.due_ms(ids) == NO_TIME) & (plan.has(ids, Fate.KEPT) == (topic == KEPT_TOPIC))]


def test_timers_that_are_due_are_left_and_others_are_not(plan: Plan) -> None:
    ids = np.arange(200)
    due_ms = plan.due_ms(ids)
    with store_of(plan, START_MS) as store:
        store.send_batch(plan.batch(ids[due_ms != NO_TIME]))
    places = found(plan, LATER_MS)
    assert places["left"] == set(ids[(due_ms != NO_TIME) & (due_ms < LATER_MS)].tolist())
    assert places["timer"] - places["left"] == set(ids[due_ms > LATER_MS].tolist()) != set()
    assert not places["damaged"]


def test_ready_messages_are_left_but_in_the_topic_that_nobody_pops(plan: Plan) -> None:
    popped, kept = (set(ids_of(plan, topic=topic).tolist()) for topic in (TOPIC, KEPT_TOPIC))
    with store_of(plan, START_MS) as store:
        store.send_batch(plan.batch(np.array([*popped, *kept])))
    places = found(plan, START_MS)
    assert places["left"] == popped
    assert places["ready"] == popped | kept > popped


def test_a_lease_that_is_over_is_left_and_so_is_what_waits_for_its_retry(plan: Plan) -> None:
    ids = ids_of(plan, topic=TOPIC)[:5]
    with store_of(plan, START_MS) as store:
        store.send_batch(plan.batch(ids))
        assert len(store.pop_batch(TOPIC, GROUP, invisible_ms=LEASE_MS)) == 5
    assert not found(plan, START_MS + LEASE_MS - 1)["left"]
    assert found(plan, START_MS + LEASE_MS)["left"] == set(ids.tolist())
    with store_of(plan, START_MS + LEASE_MS) as store:
        store.tick()
    places = found(plan, START_MS + LEASE_MS)
    assert places["retry"] == places["left"] == set(ids.tolist())
    assert not places["damaged"]


def test_every_kept_body_and_time_is_compared(plan: Plan) -> None:
    """Far timers, the topic that nobody pops, and dead letters: one of each is cut, one has a bit of another value."""
    ids = np.arange(plan.messages)
    far, kept, dead = ids[plan.due_ms(ids) > LATER_MS][:3], ids_of(plan, topic=KEPT_TOPIC)[:3], ids_of(plan, topic=TOPIC)[:3]
    mine = np.concatenate([far, kept, dead])
    columns = plan.batch(mine).to_pydict()
    bodies = columns["body"]
    for first in (0, 3, 6):
        bodies[first] = bodies[first][:-1]
        bodies[first + 1] = bodies[first + 1][:-1] + bytes([bodies[first + 1][-1] ^ 1])
    columns["deliver_at_ms"][2] += 1
    assert {len(body) for body in bodies} == {BODY_BYTES, BODY_BYTES - 1}
    with store_of(plan, START_MS) as store:
        store.send_batch(pa.RecordBatch.from_pydict(columns, plan.batch(mine).schema))
        store.tick()
        assert len(store.pop_batch(TOPIC, GROUP, invisible_ms=LEASE_MS)) == 3
    with store_of(plan, START_MS + LEASE_MS, max_retries=0) as store:
        assert store.tick().dead == 3
    places = found(plan, START_MS + LEASE_MS)
    assert places["damaged"] == set(mine[[0, 1, 2, 3, 4, 6, 7]].tolist())
    assert places["dead"] == set(dead.tolist())
    assert [row["attempts"] for batch in audit(plan, 0) for row in batch.to_pylist() if row["place"] == "dead"] == [1, 1, 1]


def test_what_comes_too_early_or_with_another_body_is_told_and_found(plan: Plan) -> None:
    """Something else is stored under the mark of the first chunk, so that the chunk itself is taken for a repeat."""
    first = plan.ids(0, 0)
    timed, later = (set(first[plan.due_ms(first) > at_ms].tolist()) for at_ms in (START_MS, START_MS + 10_000))
    columns = plan.batch(first).to_pydict() | {"deliver_at_ms": [START_MS + 1] * len(first)}
    columns["body"][0] = b"another"
    with store_of(plan, START_MS) as store:
        store.send_batch(pa.RecordBatch.from_pydict(columns, plan.batch(first).schema), marks=(plan.mark(0, 0),))
    for round_ in range(2):
        run_round(plan, 0, round_)
    events = {name: {row["id"] for row in told(plan) if row["event"] == name} for name in ("repeated", "delivered", "early", "damaged")}
    assert events["repeated"] == set(first.tolist())
    # What was to go at once comes as a timer, which is damaged, and not early.
    assert set() != events["delivered"] & later <= events["early"] <= timed
    assert events["damaged"] == events["delivered"] & set(first.tolist()) > events["early"]
    assert events["early"] <= found(plan, LATER_MS)["early"] <= timed


def test_a_cancel_by_key_that_finds_two_copies_is_told(plan: Plan) -> None:
    first = plan.ids(0, 0)
    keyed = first[plan.has(first, Fate.CANCELLED_BY_KEY) & (plan.due_ms(first) > START_MS + 10_000)]
    with store_of(plan, START_MS) as store:
        store.send_batch(plan.batch(keyed))
    run_round(plan, 0, 0)
    assert {row["id"] for row in told(plan) if row["event"] == "copies"} == set(keyed.tolist()) != set()
