"""The ledger sees what is wrong: histories told and found by hand beside two shards that were played, all joined in one go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.tests.conftest import store_of
from rmqstore.spark import sessions
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.clients import run_round
from rmqstore_benchmarks.load.closing import FAULTS, FOUND, Closed, audit, close_ledger
from rmqstore_benchmarks.load.ledger import Event, LedgerFile, table_of
from rmqstore_benchmarks.load.plan import LEASE_MS, LONGER_MS, MAX_RETRIES, Failure, Plan

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

SOUND, LOST, HAND = range(3)
SHARDS, EACH = 3, 60


class Ledger(NamedTuple):
    plan: Plan
    closed: Closed
    faults: dict[int, set[str]]
    states: dict[int, str]


def play(plan: Plan) -> None:
    """Play two shards; one has stored something else under the mark of its first chunk, so that the chunk itself is taken for a repeat."""
    first = plan.batch(plan.ids(LOST, 0))
    for name, value in (("message_id", "no-id"), ("deliver_at_ms", START_MS + 1)):
        first = first.set_column(first.schema.get_field_index(name), name, pa.array([value] * plan.chunk))
    with store_of(plan, START_MS, LOST) as store:
        store.send_batch(first, marks=(plan.mark(LOST, 0),))
    for shard in (SOUND, LOST):
        for round_ in range(plan.rounds + 1):
            run_round(plan, shard, round_)


class History(NamedTuple):
    """What was told of one id, its faults, and where it was found.

    Events of ``told`` happen at 1000 ms and are of attempt 1; ``+MS`` is so much later, ``#N`` another attempt.
    """

    told: str
    faults: str = ""
    found: str = ""
    dead_attempts: int = 0


IN_DOUBT, BACK = "a cancel in doubt", "back after its ack"
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
    "parked": History("sent#0", "parked", "parked"),
    "early as it was told": History("sent#0 delivered early acking acked", "early", "passed"),
    "early in its topic": History("sent#0 delivered acking acked", "early", "passed early"),
    "twice in one place": History("sent#0", "stored twice", "ready ready"),
    "a timer, and ready": History("sent#0", "stored twice", "timer ready"),
    "ready, and leased": History("sent#0", "stored twice", "ready leased"),
    "waiting twice": History("sent#0", "stored twice", "retry leased"),
    "leased, and dead": History("sent#0", "stored twice; dead after other attempts", "leased dead", 3),
    "cancelled, and a timer": History("sent#0 cancelling#0 cancelled#0", "kept though cancelled", "timer"),
    "cancelled, and delivered": History("sent#0 cancelling#0 cancelled#0 delivered", "delivered though cancelled"),
    "acked twice": History("sent#0 delivered acking acked acking acked", "acked twice", "passed"),
    "again behind its ack": History(f"sent#0 delivered acking acked delivered+{LEASE_MS}#2", "delivered after its ack", "passed"),
    BACK: History("sending#0 sent#0 delivered acking acked", "back after its ack", "ready"),
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
    mine = range(SOUND, SHARDS * EACH, SHARDS)
    assert not closed.faults.keys() & set(mine)
    assert {closed.states[number] for number in mine} >= {"cancelled", "acked", "pending"}


def test_what_something_else_was_stored_for_is_lost_and_what_nobody_sent_is_foreign(closed: Ledger) -> None:
    lost = {number for number in range(LOST, SHARDS * EACH, SHARDS) if "lost" in closed.faults.get(number, ())}
    assert set() < lost <= set(closed.plan.ids(LOST, 0).tolist())
    assert "foreign id" in closed.faults[-1]


@pytest.mark.parametrize("name", HISTORIES)
def test_each_history_has_its_faults_and_no_other(closed: Ledger, name: str) -> None:
    number = dict(zip(HISTORIES, ids_by_hand(closed.plan), strict=True))[name]
    assert closed.faults.get(number, set()) == (set(HISTORIES[name].faults.split("; ")) - {""})
    assert name != IN_DOUBT or closed.states[number] == "cancelled"


def test_the_ledger_does_not_close_and_lists_shard_and_history(closed: Ledger) -> None:
    assert not closed.closed.is_closed
    assert set(closed.closed.faults) == {name for names in closed.faults.values() for name in names} <= set(FAULTS)
    lost = next(fault for fault in closed.closed.listed if "lost" in fault.faults)
    assert lost.shard == LOST
    assert any("sending" in line for line in lost.history)
    back = next(fault for fault in closed.closed.listed if "back after its ack" in fault.faults)
    assert [line for line in back.history if "acked" in line]
    assert f"found: ready on shard {HAND}" in back.history
