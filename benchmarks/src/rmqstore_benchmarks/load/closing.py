"""The end: what the stores hold, read without a lease, and the ledger closed in Spark SQL: what clients were told, joined with it by id.

Every id must be exactly once cancelled, acked, dead-lettered or pending. A call in doubt (an intent without an answer, since its process
died) may have happened or not, so it explains an end that nobody was told of, but never two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

import rmqstore
from rmqstore.message import retry_topic
from rmqstore.tables import State
from rmqstore_benchmarks.grid.load import Ids, Mask
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.ledger import NO_ID, Event, last_ms
from rmqstore_benchmarks.load.owner import open_store
from rmqstore_benchmarks.load.plan import (
    GROUP,
    HELD_MS,
    KEPT_TOPIC,
    LEASE_MS,
    LONGER_MS,
    MAX_RETRIES,
    NO_TIME,
    TOPIC,
    Plan,
    ids_in,
)

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

# ---------------------------------------------------------------- the audit

FOUND: Final = pa.schema(
    [("shard", pa.int32()), ("id", pa.int64()), ("place", pa.string()), ("attempts", pa.int32()), ("note", pa.string())]
)
"""Places: ``timer``; ``passed`` and ``ready`` (in the topic, before and behind the group's position); ``retry``; ``leased``; ``dead``;
``parked``; and, beside one of these, ``early``: it came to its topic before it was due; ``left``: a due timer, a message that a consumer
should have got, or a lease that is over; ``damaged``: body or deliver time are not what was sent. ``broken`` is what ``verify`` found."""

_RETRY_TOPIC: Final = retry_topic(GROUP, TOPIC)
_QUEUE: Final = ["topic", "queue_id"]


def audit(plan: Plan, number: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of :data:`FOUND` for all that the store of a shard holds behind the drain."""
    clock = rmqstore.ManualClock(START_MS)
    store, _ = open_store(plan, number, clock)
    with store:
        now_ms = max(START_MS, last_ms(plan.ledger_path(number)))
        clock.set(now_ms)
        notes = store.verify()
        yield _found_rows(number, [NO_ID] * len(notes), "broken", notes=notes)
        state = State(store.engine.timers, store.engine.pops)
        for _, page in state.pages("timers"):
            yield from _placed(plan, number, page, {"timer": np.ones(len(page), bool), "left": page["tick"].to_numpy() <= now_ms})
        passed = pd.DataFrame(state.rows("standings"), columns=["group", *_QUEUE, "next_offset"])
        passed = passed[passed.group == GROUP].astype({"next_offset": "int64"})
        for _, page in state.pages("messages"):
            yield from _messages(plan, number, page, passed)
        leases = store.leases()
        ids = ids_in(pa.array([each.message_id for each in leases], pa.string()))
        yield _found_rows(number, ids, "leased", [each.attempt for each in leases])
        yield _found_rows(number, ids[np.array([each.expiry_ms <= now_ms for each in leases], bool)], "left")
        for place, letters in (("dead", store.dead_letters.list(GROUP)), ("parked", store.dead_letters.parked())):
            texts = [each.origin_message_id or each.message.message_id for each in letters]
            ids = ids_in(pa.array(texts, pa.string()))
            yield _found_rows(number, ids, place, [each.attempts for each in letters], [each.reason for each in letters])
            bodies = pa.array([each.message.body for each in letters], pa.binary())
            deliver_at_ms = pa.array([each.message.deliver_at_ms for each in letters], pa.int64())
            yield _found_rows(number, ids[plan.is_damaged(ids, bodies, deliver_at_ms)], "damaged")


def _messages(plan: Plan, number: int, page: pa.RecordBatch, passed: pd.DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield where messages are; what the group has passed of its retry topic has gone elsewhere. ``passed`` has its ``next_offset``."""
    page = page.filter(pa.array(np.isin(page["topic"].to_numpy(zero_copy_only=False), (TOPIC, KEPT_TOPIC, _RETRY_TOPIC))))
    rows = page.select([*_QUEUE, "queue_offset", "store_ms", "deliver_at_ms"]).to_pandas().merge(passed, "left", on=_QUEUE)
    is_first, is_passed = rows.topic != _RETRY_TOPIC, rows.queue_offset < rows.next_offset.fillna(0)
    due_ms = np.maximum(plan.due_ms(ids_in(page["message_id"])), rows.deliver_at_ms.fillna(NO_TIME))
    places = {
        "passed": is_first & is_passed,
        "early": is_first & (rows.store_ms < due_ms),
        "ready": is_first & ~is_passed,
        "retry": ~is_first & ~is_passed,
        "left": ~is_passed & (rows.topic != KEPT_TOPIC),
    }
    yield from _placed(plan, number, page, {place: are_there.to_numpy() for place, are_there in places.items()})


def _placed(plan: Plan, number: int, page: pa.RecordBatch, places: dict[str, Mask]) -> Iterator[pa.RecordBatch]:
    """Yield the places of messages, each for those that its mask names, and which of them are damaged."""
    ids = ids_in(page["message_id"])
    is_damaged = plan.is_damaged(ids, page["body"], page["deliver_at_ms"])
    for place, are_there in (places | {"damaged": is_damaged}).items():
        yield _found_rows(number, ids[are_there], place)


def _found_rows(
    number: int, ids: Ids | list[int], place: str, attempts: Sequence[int] | None = None, notes: Sequence[str | None] | None = None
) -> pa.RecordBatch:
    count = len(ids)
    columns = {
        "shard": np.full(count, number, np.int32),
        "id": ids,
        "place": [place] * count,
        "attempts": np.zeros(count, np.int32) if attempts is None else attempts,
        "note": [None] * count if notes is None else notes,
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in FOUND], schema=FOUND)


# ---------------------------------------------------------------- what is wrong

_DELIVERIES: Final = MAX_RETRIES + 1
STATES: Final = ("cancelled", "acked", "dead", "pending")

FAULTS: Final[dict[str, tuple[str, str]]] = {
    "foreign id": ("an id that was never sent, or on a shard that is not its own", "is_foreign"),
    "never sent": ("its send was never answered, though its task ended well", "not is_foreign and sent = 0"),
    "lost": ("sent, not cancelled, and nowhere", "sent > 0 and places = 0 and cancelled = 0 and cancels_in_doubt <= 0"),
    "consumed by nobody": (
        "gone for its group, though no ack was answered or in doubt",
        "in_passed > 0 and in_ready + waiting + in_dead = 0 and acked = 0 and acks_in_doubt <= 0",
    ),
    "stored twice": (
        "in two places at once, or twice in one, or cancelled by key more than once",
        "in_timer + in_passed + in_ready > 1 or waiting + in_dead > 1 or (in_ready > 0 and waiting + in_dead > 0) or copies > 0",
    ),
    "left behind": ("due, ready, or its lease over, but nobody got it though nothing else was left to do (T2, P3)", "in_left > 0"),
    "back after its ack": ("ACKED, but still pending or dead", "acked > 0 and in_timer + in_ready + waiting + in_dead > 0"),
    "kept though cancelled": ("CANCELLED, but still in the store", "cancelled > 0 and places > 0"),
    "delivered though cancelled": ("CANCELLED, but delivered", "cancelled > 0 and delivered > 0"),
    "cancelled and too late": ("CANCELLED once, ALREADY_DELIVERED another time (C4)", "cancelled > 0 and cancel_late > 0"),
    "too late, but pending": ("ALREADY_DELIVERED, but still a timer (C2)", "cancel_late > 0 and in_timer > 0"),
    "acked twice": ("ACKED more than once", "acked > 1"),
    "acked already": ("ALREADY_ACKED, though no ack was answered or in doubt", "acked_before > 0"),
    "delivered after its ack": (
        "popped by a call that began behind the ACKED one, or with a higher attempt (P4)",
        "acked > 0 and (last_delivered > acked_at or last_attempt > acked_attempt)",
    ),
    "delivered twice": ("the same attempt given twice without a release", "twice > 0"),
    "delivered while leased": ("given again before the lease ended (P1)", "leased_twice > 0"),
    "ack refused": ("STALE within its lease (P5)", "acks_refused > 0"),
    "release refused": ("not RELEASED within its lease (P5)", "releases_refused > 0"),
    "change refused": ("not CHANGED within its lease (P6)", "changes_refused > 0"),
    "early": ("delivered, or in its topic, before its deliver time (T1)", "early + in_early > 0"),
    "damaged": ("body or deliver time are not what was sent", "damaged + in_damaged > 0"),
    "old receipt honoured": ("ACKED by a receipt that a change had replaced (P6)", "old_honoured > 0"),
    "unknown": ("UNKNOWN for a handle or a receipt that the store gave", "cancel_unknown + ack_unknown > 0"),
    "dead after other attempts": (
        f"dead-lettered, but not after {_DELIVERIES} deliveries (P7), by its own count or by the ledger's",
        f"in_dead > 0 and not (dead_attempts = {_DELIVERIES} and {_DELIVERIES} between attempts_told and attempts_told + pops_in_doubt)",
    ),
    "parked": ("parked as unreadable", "in_parked > 0"),
}
"""Name of each fault, what it means, and the condition by which SQL finds it: over how often each event was told, in which places
(``in_PLACE``) the id was found how often, and what follows from both."""

_EVENTS: Final = [event.value for event in Event if event not in (Event.OPENED, Event.WAITED, Event.CLOSED, Event.TIME)]
_PLACES: Final = ["timer", "passed", "ready", "retry", "leased", "dead", "parked", "early", "damaged", "left"]
"""Of the audit, but for ``broken``, which concerns no id."""


def _each(form: str, names: Iterable[str]) -> str:
    """Return a list of SQL with each of the names in the place of ``$``."""
    return ", ".join(form.replace("$", name) for name in names)


# By id and attempt: the leases of one delivery. An attempt is given again only after a release, and the next one only after its lease,
# which a change makes longer. A call counts from its begin at the earliest, and was answered at its end at the latest.
_ATTEMPTS: Final = f"""
select id, attempt, {_each("count_if(event = '$') $", _EVENTS)},
  {_each("min(if(event = '$', to_ms, null)) $_ms", ("delivered", "ack_stale", "release_refused", "change_refused"))},
  max(case event when 'delivered' then from_ms + {LEASE_MS} end) lease_ends_ms,
  max(case event when 'changed' then from_ms + {LONGER_MS} when 'held' then from_ms + {HELD_MS} end) change_ends_ms,
  min(if(event = 'acked', ended, null)) acked_at, max(if(event = 'delivered', began, null)) last_delivered,
  max(shard) shard, min(shard) other_shard
from told where id >= 0 or event = 'delivered' group by id, attempt
"""

_WITH_NEXT: Final = f"""
select *, lead(delivered_ms) over (partition by id order by attempt) next_ms,
  if(releasing + changing = 0, lease_ends_ms, change_ends_ms) leased_until_ms,
  acking - acked - ack_repeated - ack_stale - ack_unknown acks_unanswered,
  cancelling - cancelled - cancel_late - cancel_missed - cancel_unknown cancels_unanswered
from ({_ATTEMPTS})
"""
"""``leased_until_ms`` is null where a release or a change in doubt leaves it open."""

_DERIVED: Final = {
    "twice": "count_if(delivered > 1 + releasing - release_refused)",
    "attempts_told": "count_if(delivered > 0)",
    "leased_twice": "count_if(delivered > 0 and next_ms < leased_until_ms)",
    "acks_refused": "count_if(delivered > 0 and ack_stale_ms < leased_until_ms)",
    "releases_refused": "count_if(delivered > 0 and release_refused_ms < lease_ends_ms)",
    "changes_refused": "count_if(delivered > 0 and change_refused_ms < lease_ends_ms)",
    "acked_before": "count_if(ack_repeated > 0 and acked = 0 and acks_unanswered <= 0)",
    # A cancel in doubt was not made when another one came too late, or the message was delivered; nor was an ack when the next attempt was.
    "acks_in_doubt": "sum(if(next_ms is null, acks_unanswered, 0))",
    "cancels_in_doubt": "if(sum(cancel_late) > 0 or sum(delivered) > 0, 0, sum(cancels_unanswered))",
}
"""Of an id, from its attempts."""

_TOLD: Final = f"""
select id, {_each("sum($) $", _EVENTS)}, {", ".join(f"{sql} {name}" for name, sql in _DERIVED.items())},
  min(acked_at) acked_at, min(if(acked > 0, attempt, null)) acked_attempt,
  max(last_delivered) last_delivered, max(if(delivered > 0, attempt, null)) last_attempt,
  max(shard) shard, min(other_shard) other_shard
from ({_WITH_NEXT}) group by id
"""

_FOUND: Final = f"""
select id, {_each("count_if(place = '$') in_$", _PLACES)},
  max(if(place = 'dead', attempts, null)) dead_attempts, max(shard) shard, min(shard) other_shard
from found where place <> 'broken' group by id
"""

# A process that dies takes with it what it popped last: at most one pop for each of its consumers, of which the ledger has nothing.
_DEATHS: Final = """
select shard, (count_if(event = 'opened') - count_if(event = 'closed')) * {consumers} pops_in_doubt from told_rows group by shard
"""


# ---------------------------------------------------------------- the account of every id


class Fault(msgspec.Struct, frozen=True):
    """One id whose account does not close."""

    id: int
    shard: int
    faults: list[str]
    history: list[str]


class Closed(msgspec.Struct, frozen=True):
    """What came out of joining the ledger with the stores.

    Attributes:
        states: ids in each of :data:`STATES`, and under ``none`` those that are nowhere.
        in_doubt: how many of the cancelled and of the acked ones rest on a call in doubt.
        deliveries, redeliveries: rows of messages that consumers were given, and those beyond the first of each id.
        attempts, died, waited: attempts of tasks that opened a store, those that died, and those that waited for another one.
        deaths: consumers that died.
        repeated: messages that were sent again under a mark, and not stored again.
        faults: ids of each fault.
        listed: the first of them, with their history.
        broken: what ``verify`` said.
    """

    ids: int
    states: dict[str, int]
    in_doubt: dict[str, int]
    deliveries: int
    redeliveries: int
    attempts: int
    died: int
    waited: int
    deaths: int
    repeated: int
    faults: dict[str, int]
    listed: list[Fault]
    broken: list[str]

    @property
    def is_closed(self) -> bool:
        """Every id has exactly one end, and nothing is wrong."""
        return not self.faults and not self.broken and sum(self.states[state] for state in STATES) == self.ids


def close_ledger(spark: SparkSession, plan: Plan, most: int = 20) -> Closed:
    """Join the tables ``told`` and ``found`` of a plan by id; lists at most ``most`` faulty ids with their history."""
    spark.read.parquet(plan.table_path("told")).createOrReplaceTempView("told_rows")
    spark.read.parquet(plan.table_path("found")).createOrReplaceTempView("found")
    # One shuffle serves both levels of grouping.
    spark.table("told_rows").repartition("id").createOrReplaceTempView("told")
    accounts = spark.sql(_accounts(plan))
    accounts.write.mode("overwrite").parquet(plan.table_path("accounts"))
    spark.read.parquet(plan.table_path("accounts")).createOrReplaceTempView("accounts")
    totals = _row(
        spark,
        f"""select {", ".join(f"count_if(state = '{state}' and not is_foreign) {state}" for state in (*STATES, "none"))},
        count_if(state = 'cancelled' and cancelled = 0) cancelled_in_doubt, count_if(state = 'acked' and acked = 0) acked_in_doubt,
        sum(delivered) deliveries, sum(redelivered) redeliveries from accounts""",
    )
    in_doubt = {state: totals.pop(f"{state}_in_doubt") for state in ("cancelled", "acked")}
    tasks = _row(
        spark,
        """select count_if(event = 'opened') attempts, count_if(event = 'opened') - count_if(event = 'closed') died,
        count_if(event = 'waited') waited, count(distinct if(event = 'abandoned', struct(shard, began), null)) deaths,
        count_if(event = 'repeated') repeated from told_rows""",
    )
    counted = spark.sql("select fault, count(*) ids from (select explode(faults) fault from accounts) group by fault order by fault")
    broken = spark.sql("select shard, note from found where place = 'broken' order by shard, note").limit(most).collect()
    return Closed(
        ids=plan.messages,
        states={state: totals.pop(state) for state in (*STATES, "none")},
        in_doubt=in_doubt,
        **totals,
        **tasks,
        faults={row["fault"]: row["ids"] for row in counted.collect()},
        listed=_listed(spark, most),
        broken=[f"shard {row['shard']}: {row['note']}" for row in broken],
    )


def _accounts(plan: Plan) -> str:
    """Return the query that gives every id its state and its faults."""
    faults = ", ".join(f"if({condition}, '{name}', null)" for name, (_, condition) in FAULTS.items())
    away = f"coalesce($.shard <> pmod(i.id, {plan.shards}) or $.other_shard <> $.shard, false)"
    return f"""
    with told_ids as ({_TOLD}), found_ids as ({_FOUND}), deaths as ({_DEATHS.format(consumers=plan.consumers)}), joined as (
      select coalesce(i.id, t.id, f.id) id, coalesce(t.shard, f.shard, cast(pmod(i.id, {plan.shards}) as int)) shard,
        {_each("coalesce(t.$, 0) $", (*_EVENTS, *_DERIVED))}, {_each("coalesce(f.in_$, 0) in_$", _PLACES)},
        coalesce(f.in_retry + f.in_leased, 0) waiting,
        coalesce(f.in_timer + f.in_passed + f.in_ready + f.in_retry + f.in_leased + f.in_dead + f.in_parked, 0) places,
        coalesce(d.pops_in_doubt, 0) pops_in_doubt,
        t.acked_at, t.acked_attempt, t.last_delivered, t.last_attempt, f.dead_attempts,
        i.id is null or {away.replace("$", "t")} or {away.replace("$", "f")} is_foreign
      from range(0, {plan.messages}) i full outer join told_ids t on i.id = t.id
      full outer join found_ids f on coalesce(i.id, t.id) = f.id
      left join deaths d on d.shard = coalesce(t.shard, f.shard))
    select id, shard, is_foreign, delivered, greatest(delivered - 1, 0) redelivered, cancelled, acked,
      case when in_dead > 0 then 'dead' when in_timer + in_ready + waiting > 0 then 'pending' when in_passed > 0 then 'acked'
        when cancelled > 0 or cancels_in_doubt > 0 then 'cancelled' else 'none' end state,
      array_compact(array({faults})) faults
    from joined"""


def _row(spark: SparkSession, query: str) -> dict[str, int]:
    (row,) = spark.sql(query).collect()
    return {name: int(value or 0) for name, value in row.asDict().items()}


def _listed(spark: SparkSession, most: int) -> list[Fault]:
    faulty = spark.sql("select id, shard, faults from accounts where size(faults) > 0 order by id").limit(most).collect()
    numbers = ", ".join(str(row["id"]) for row in faulty) or "null"
    told = spark.sql(f"select * from told_rows where id in ({numbers}) order by ended").limit(most * 200).collect()
    found = spark.sql(f"select * from found where id in ({numbers}) order by place").limit(most * 20).collect()
    histories: dict[int, list[str]] = defaultdict(list)
    for row in told:
        histories[row["id"]].append(_said(row))
    for row in found:
        attempts = f", {row['attempts']} deliveries" if row["place"] == "dead" else ""
        histories[row["id"]].append(f"found: {row['place']} on shard {row['shard']}{attempts}")
    return [Fault(row["id"], row["shard"], list(row["faults"]), histories[row["id"]]) for row in faulty]


def _said(row: Row) -> str:
    """Return one row of the ledger as words."""
    attempt = f" #{row['attempt']}" if row["attempt"] else ""
    return (
        f"{(row['to_ms'] - START_MS) / 1000:.1f} s, file {row['file']} of shard {row['shard']}: {row['event'].replace('_', ' ')}{attempt}"
    )
