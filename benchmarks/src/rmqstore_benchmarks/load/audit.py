"""What the stores hold at the end, read without a lease: where every id is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

import rmqstore
from rmqstore.message import retry_topic
from rmqstore.tables import State
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.ledger import NO_ID, last_ms
from rmqstore_benchmarks.load.owner import open_store
from rmqstore_benchmarks.load.plan import GROUP, KEPT_TOPIC, NO_TIME, TOPIC, Mask, Plan, ids_in

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
        yield _rows(number, [NO_ID] * len(notes), "broken", notes=notes)
        state = State(store.engine.timers, store.engine.pops)
        for _, page in state.pages("timers"):
            yield from _placed(plan, number, page, {"timer": np.ones(len(page), bool), "left": page["tick"].to_numpy() <= now_ms})
        passed = pd.DataFrame(state.rows("standings"), columns=["group", *_QUEUE, "next_offset"])
        passed = passed[passed.group == GROUP].astype({"next_offset": "int64"})
        for _, page in state.pages("messages"):
            yield from _messages(plan, number, page, passed)
        leases = store.leases()
        ids = ids_in(pa.array([each.message_id for each in leases], pa.string()))
        yield _rows(number, ids, "leased", [each.attempt for each in leases])
        yield _rows(number, ids[np.array([each.expiry_ms <= now_ms for each in leases], bool)], "left")
        for place, letters in (("dead", store.dead_letters.list(GROUP)), ("parked", store.dead_letters.parked())):
            texts = [each.origin_message_id or each.message.message_id for each in letters]
            ids = ids_in(pa.array(texts, pa.string()))
            yield _rows(number, ids, place, [each.attempts for each in letters], [each.reason for each in letters])
            bodies = pa.array([each.message.body for each in letters], pa.binary())
            deliver_at_ms = pa.array([each.message.deliver_at_ms for each in letters], pa.int64())
            yield _rows(number, ids[plan.is_damaged(ids, bodies, deliver_at_ms)], "damaged")


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
        yield _rows(number, ids[are_there], place)


def _rows(number: int, ids: Any, place: str, attempts: Any = None, notes: Any = None) -> pa.RecordBatch:
    count = len(ids)
    columns = {
        "shard": np.full(count, number, np.int32),
        "id": ids,
        "place": [place] * count,
        "attempts": np.zeros(count, np.int32) if attempts is None else attempts,
        "note": [None] * count if notes is None else notes,
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in FOUND], schema=FOUND)
