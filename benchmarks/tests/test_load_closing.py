"""The ledger sees what is wrong: faults planted in real stores between the rounds, one kind a shard, and all joined in one go."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rmqstore
from benchmarks.tests.conftest import store_of, told
from rmqstore.spark import sessions
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.audit import FOUND, audit
from rmqstore_benchmarks.load.clients import run_round
from rmqstore_benchmarks.load.closing import FAULTS, Closed, close_ledger
from rmqstore_benchmarks.load.failures import Failure
from rmqstore_benchmarks.load.ledger import Event, LedgerFile, last_ms, table_of
from rmqstore_benchmarks.load.plan import GROUP, LEASE_MS, LONGER_MS, MAX_RETRIES, TOPIC, Plan

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

SOUND, LOST, TWICE, UNCANCELLED, EARLY, UNTOLD, BACK, DAMAGED, AGAIN, SOON_DEAD, HAND = range(11)
SHARDS, EACH = 11, 60


class Ledger(NamedTuple):
    plan: Plan
    closed: Closed
    faults: dict[int, set[str]]
    states: dict[int, str]

    def of_shard(self, shard: int) -> dict[int, set[str]]:
        """The faulty ids of a shard."""
        return {number: names for number, names in self.faults.items() if number % SHARDS == shard and number >= 0}


def between_rounds(plan: Plan, shard: int, later_ms: int = 0, **settings: int) -> AbstractContextManager[rmqstore.Store]:
    return store_of(plan, max(START_MS, last_ms(plan.ledger_path(shard))) + later_ms, shard, **settings)


def instead_of(plan: Plan, shard: int, batch: pa.RecordBatch) -> None:
    """Store something else under the mark of the first chunk, so that the chunk itself is taken for a repeat."""
    with between_rounds(plan, shard) as store:
        store.send_batch(batch, marks=(plan.mark(shard, 0),))


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, column)


def play(plan: Plan) -> None:
    later = pa.array([START_MS + 1] * plan.chunk)
    for shard in range(SHARDS - 1):
        first = plan.batch(plan.ids(shard, 0))
        if shard == LOST:
            instead_of(plan, shard, with_column(with_column(first, "message_id", pa.array(["no-id"] * plan.chunk)), "deliver_at_ms", later))
        if shard == EARLY:
            instead_of(plan, shard, with_column(first, "deliver_at_ms", later))
        if shard == DAMAGED:
            instead_of(plan, shard, with_column(first, "body", plan.batch(plan.ids(shard, 1)).column("body")))
        run_round(plan, shard, 0)
        if shard == TWICE:
            with between_rounds(plan, shard) as store:
                store.send_batch(first)
        run_round(plan, shard, 1)
        run_round(plan, shard, 2)
        if shard == UNCANCELLED:
            with between_rounds(plan, shard) as store:
                store.send_batch(plan.batch(np.array(cancelled(plan, shard))))
        if shard == UNTOLD:
            with between_rounds(plan, shard, LEASE_MS) as store:
                store.tick()
                assert set(store.ack(store.pop_batch(TOPIC, GROUP))) == {rmqstore.AckOutcome.ACKED}
        if shard == AGAIN:
            with between_rounds(plan, shard) as store:
                store.groups.reset_offset(TOPIC, GROUP, 0)
        if shard == SOON_DEAD:
            with between_rounds(plan, shard, LEASE_MS, max_retries=0) as store:
                assert store.tick().dead > 0
        run_round(plan, shard, 3)
        if shard == BACK:
            with between_rounds(plan, shard) as store:
                store.groups.reset_offset(TOPIC, GROUP, 0)


def cancelled(plan: Plan, shard: int) -> list[int]:
    return [row["id"] for row in told(plan, shard) if row["event"] == "cancelled"]


class History(NamedTuple):
    """What was told of one id, its faults, and where it was found.

    Events of ``told`` happen at 1000 ms and are of attempt 1; ``+MS`` is so much later, ``#N`` another attempt.
    """

    told: str
    faults: str = ""
    found: str = ""
    dead_attempts: int = 0


IN_DOUBT = "a cancel in doubt"
_SOON, _DEAD = LEASE_MS - 1, MAX_RETRIES + 1
HISTORIES = {
    "a cancel in doubt, then one too late": History("sent#0 cancelling#0 cancelling#0 cancel_late#0", "lost"),
    "a cancel in doubt, then a delivery": History("sent#0 cancelling#0 delivered", "lost"),
    "an ack in doubt, then the next attempt": History(f"sent#0 delivered acking delivered+{LEASE_MS}#2", "consumed by nobody", "passed"),
    "an ack in doubt of the last attempt": History(f"sent#0 delivered delivered+{LEASE_MS}#2 acking+{LEASE_MS}#2", "", "passed"),
    "again within a longer lease": History(
        f"sent#0 delivered changing changed delivered+{LONGER_MS - 1}#2", "delivered while leased", "passed leased"
    ),
    "again behind a longer lease": History(f"sent#0 delivered changing changed delivered+{LONGER_MS}#2", "", "leased"),
    "again while held": History(f"sent#0 delivered changing held delivered+{LONGER_MS}#2", "delivered while leased", "leased"),
    "stale within a longer lease": History(f"sent#0 delivered changing changed ack_stale+{LEASE_MS}", "ack refused", "leased"),
    "a change in doubt": History(f"sent#0 delivered changing delivered+{LEASE_MS}#2", "", "passed leased"),
    "too late, and still there": History("sent#0 cancelling#0 cancel_late#0", "too late, but pending", "timer"),
    "again behind a refused release": History(
        f"sent#0 delivered releasing+{LEASE_MS} release_refused+{LEASE_MS} delivered", "delivered twice", "leased"
    ),
    "release refused": History("sent#0 delivered releasing release_refused", "release refused", "leased"),
    "change refused": History("sent#0 delivered changing change_refused", "change refused", "leased"),
    "release refused behind the lease": History(f"sent#0 delivered releasing+{LEASE_MS} release_refused+{LEASE_MS}", "", "leased"),
    "change refused behind the lease": History(f"sent#0 delivered changing+{LEASE_MS} change_refused+{LEASE_MS}", "", "leased"),
    "two copies under one key": History("sent#0 cancelling#0 cancelled#0 cancelled#0 copies#0", "stored twice"),
    "nobody sent it": History("", "never sent", "timer"),
    "dead too soon, with a false number": History(
        f"sent#0 delivered delivered+{LEASE_MS}#2 delivered+{2 * LEASE_MS}#3", "dead after other attempts", "passed dead", _DEAD
    ),
    "dead in time": History(" ".join(["sent#0", *(f"delivered+{n * LEASE_MS}#{1 + n}" for n in range(_DEAD))]), "", "passed dead", _DEAD),
    "again within the lease": History(f"sent#0 delivered delivered+{_SOON}#2", "delivered while leased", "leased"),
    "stale within the lease": History(f"sent#0 delivered ack_stale+{_SOON}", "ack refused", "leased"),
    "acked already": History("sent#0 delivered ack_repeated", "acked already", "leased"),
    "an old receipt": History("sent#0 old_honoured", "old receipt honoured", "leased"),
    "unknown": History("sent#0 cancel_unknown#0", "unknown", "timer"),
    "cancelled, then too late": History("sent#0 cancelled#0 cancel_late#0", "cancelled and too late"),
    "again when the lease is over": History(f"sent#0 delivered ack_stale+{LEASE_MS} delivered+{LEASE_MS}#2", "", "leased"),
    "again behind a release": History("sent#0 delivered releasing delivered+1", "", "leased"),
    # An intent, and then its process died. Another call on the same lease is told that the first one was made.
    "an ack in doubt, then acked already": History("sent#0 delivered acking acking+1 ack_repeated+1", "", "passed"),
    IN_DOUBT: History("sent#0 cancelling#0"),
    "due, and a timer": History("sent#0", "left behind", "timer left"),
    "another body, and a timer": History("sent#0", "damaged", "timer damaged"),
}
"""Told and found by hand, one id each, from the second chunk of the shard on."""


def ids_by_hand(plan: Plan) -> list[int]:
    return np.concatenate([plan.ids(HAND, chunk) for chunk in range(1, 6)]).tolist()[: len(HISTORIES)]


def write_histories(plan: Plan) -> pa.RecordBatch:
    """Write :data:`HISTORIES` into the ledger, and return what is found of them."""
    file, found = LedgerFile(plan.ledger_path(HAND), HAND), []
    for number, history in zip(ids_by_hand(plan), HISTORIES.values(), strict=True):
        for name, later_ms, attempt in re.findall(r"([a-z_]+)(?:\+(\d+))?(?:#(\d+))?", history.told):
            at_ms = 1000 + int(later_ms or 0)
            file.tell(Event(name), np.array([number]), file.moment(at_ms), at_ms, np.array([int(attempt or 1)]))
        places = history.found.split()
        found += [{"shard": HAND, "id": number, "place": place, "attempts": history.dead_attempts, "note": None} for place in places]
    file.close()
    return pa.RecordBatch.from_pylist(found, FOUND)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Ledger:
    if reason := sessions.why_not():
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("closing") / "run"
    plan = Plan(engine, str(place), SHARDS * EACH, SHARDS, failures=(Failure.CONSUMER,), chunk=EACH // 6)
    plan.make_directories()
    play(plan)
    found = [write_histories(plan), *(batch for shard in range(SHARDS - 1) for batch in audit(plan, shard))]
    rows = [batch for shard in range(SHARDS) for batch in table_of(plan.ledger_path(shard))]
    Path(plan.table_path("found")).parent.mkdir()
    for name, batches in (("found", found), ("told", rows)):
        pq.write_table(pa.Table.from_batches(batches), plan.table_path(name))
    with sessions.session(quick=True) as spark:
        result = close_ledger(spark, plan, most=1000)
        rows = spark.table("accounts").select("id", "state", "faults").toArrow().to_pylist()
    return Ledger(plan, result, {row["id"]: set(row["faults"]) for row in rows if row["faults"]}, {row["id"]: row["state"] for row in rows})


def test_a_sound_shard_has_no_fault_and_all_four_ends(closed: Ledger) -> None:
    assert closed.of_shard(SOUND) == {}
    mine = [closed.states[number] for number in range(SOUND, SHARDS * EACH, SHARDS)]
    assert set(mine) >= {"cancelled", "acked", "pending"}


@pytest.mark.parametrize(
    ("shard", "fault"),
    [
        (LOST, "lost"),
        (TWICE, "stored twice"),
        (TWICE, "delivered twice"),
        (TWICE, "acked twice"),
        (UNCANCELLED, "delivered though cancelled"),
        (UNCANCELLED, "kept though cancelled"),
        (EARLY, "early"),
        (EARLY, "damaged"),
        (UNTOLD, "consumed by nobody"),
        (BACK, "back after its ack"),
        (DAMAGED, "damaged"),
        (AGAIN, "delivered after its ack"),
        (AGAIN, "acked twice"),
        (SOON_DEAD, "dead after other attempts"),
    ],
)
def test_what_was_planted_is_listed(closed: Ledger, shard: int, fault: str) -> None:
    found = {number for number, names in closed.of_shard(shard).items() if fault in names}
    assert found
    if shard in (LOST, EARLY, DAMAGED, TWICE):
        assert found <= set(closed.plan.ids(shard, 0).tolist())
    if shard == UNCANCELLED:
        assert set(closed.of_shard(shard)) <= set(cancelled(closed.plan, shard))


def test_what_nobody_sent_is_foreign(closed: Ledger) -> None:
    assert "foreign id" in closed.faults[-1]


@pytest.mark.parametrize("name", HISTORIES)
def test_each_history_has_its_faults_and_no_other(closed: Ledger, name: str) -> None:
    number = dict(zip(HISTORIES, ids_by_hand(closed.plan), strict=True))[name]
    assert closed.faults.get(number, set()) == ({HISTORIES[name].faults} - {""})
    assert name != IN_DOUBT or closed.states[number] == "cancelled"


def test_the_ledger_does_not_close_and_lists_shard_and_history(closed: Ledger) -> None:
    assert not closed.closed.is_closed
    assert set(closed.closed.faults) == {name for names in closed.faults.values() for name in names} <= set(FAULTS)
    lost = next(fault for fault in closed.closed.listed if "lost" in fault.faults)
    assert lost.shard == LOST
    assert any("sending" in line for line in lost.history)
    back = next(fault for fault in closed.closed.listed if "back after its ack" in fault.faults)
    assert [line for line in back.history if "acked" in line]
    assert f"found: ready on shard {BACK}" in back.history
