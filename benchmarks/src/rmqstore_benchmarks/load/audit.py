"""What the stores hold at the end, read without a lease: where every id is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

import rmqstore
from rmqstore.message import PoppedMessage, retry_topic
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.ledger import NO_ID, last_ms
from rmqstore_benchmarks.load.owner import open_store
from rmqstore_benchmarks.load.plan import GROUP, KEPT_TOPIC, NO_TIME, TOPIC, Ids, Plan, ids_in

FOUND: Final = pa.schema(
    [("shard", pa.int32()), ("id", pa.int64()), ("place", pa.string()), ("attempts", pa.int32()), ("note", pa.string())]
)
"""Places: ``timer``; ``passed`` and ``ready`` (in the topic, before and behind the group's position); ``retry``; ``leased``; ``dead``;
``parked``; and, beside one of these, ``early``: it came to its topic before it was due; ``left``: a due timer, a message that a consumer
should have got, or a lease that is over; ``damaged``: body or deliver time are not what was sent. ``broken`` is what ``verify`` found."""

_PAGE: Final = 10_000


def audit(plan: Plan, number: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of :data:`FOUND` for all that the store of a shard holds behind the drain."""
    clock = rmqstore.ManualClock(START_MS)
    store, _ = open_store(plan, number, clock)
    with store:
        now_ms = max(START_MS, last_ms(plan.ledger_path(number)))
        clock.set(now_ms)
        notes = store.verify()
        yield _rows(number, [NO_ID] * len(notes), "broken", notes=notes)
        yield from _timers(store, number, plan, now_ms)
        for topic in (TOPIC, KEPT_TOPIC):
            yield from _topic(store, number, topic, ("passed", "ready"), plan)
        yield from _topic(store, number, retry_topic(GROUP, TOPIC), (None, "retry"), plan)
        leases = store.leases()
        ids = ids_in(pa.array([each.message_id for each in leases], pa.string()))
        yield _rows(number, ids, "leased", [each.attempt for each in leases])
        yield _rows(number, ids[np.array([each.expiry_ms <= now_ms for each in leases], bool)], "left")
        for place, letters in (("dead", store.dead_letters.list(GROUP)), ("parked", store.dead_letters.parked())):
            texts = [each.origin_message_id or each.message.message_id for each in letters]
            ids = ids_in(pa.array(texts, pa.string()))
            yield _rows(number, ids, place, [each.attempts for each in letters], [each.reason for each in letters])
            yield _damaged(number, plan, ids, [each.message for each in letters])


def _timers(store: rmqstore.Store, number: int, plan: Plan, now_ms: int) -> Iterator[pa.RecordBatch]:
    after: tuple[int, int] | None = None
    while True:
        page = store.scan(after=after, limit=_PAGE)
        ids = ids_in(pa.array([each.message.message_id for each in page.timers], pa.string()))
        yield _rows(number, ids, "timer")
        yield _rows(number, ids[np.array([each.handle.tick <= now_ms for each in page.timers], bool)], "left")
        yield _damaged(number, plan, ids, [each.message for each in page.timers])
        after = page.next_after
        if after is None:
            return


def _topic(store: rmqstore.Store, number: int, topic: str, places: tuple[str | None, str], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a topic; ``places`` are those that the group has passed, left out if None, and of the others."""
    info = next((each for each in store.topics.list(system=True) if each.name == topic), None)
    next_offsets = {each.queue_id: each.next_offset for each in store.groups.offsets(GROUP) if each.topic == topic}
    for queue in range(0 if info is None else info.queues):
        next_offset, offset = next_offsets.get(queue, 0), 0
        while len(page := store.engine.pops.read(topic, queue, offset, _PAGE)):
            columns = page.columns
            ids, offsets = ids_in(columns.column("message_id")), columns.column("queue_offset").to_numpy()
            offset = int(offsets[-1]) + 1
            is_passed = offsets < next_offset
            if places[0] is not None:
                yield _rows(number, ids[is_passed], places[0])
                is_early = columns.column("store_ms").to_numpy() < columns.column("deliver_at_ms").fill_null(NO_TIME).to_numpy()
                is_early |= columns.column("store_ms").to_numpy() < plan.due_ms(ids)
                yield _rows(number, ids[is_early], "early")
            yield _rows(number, ids[~is_passed], places[1])
            if topic != KEPT_TOPIC:
                yield _rows(number, ids[~is_passed], "left")
            yield _rows(number, ids[plan.is_damaged(ids, columns.column("body"), columns.column("deliver_at_ms"))], "damaged")


def _damaged(number: int, plan: Plan, ids: Ids, messages: Sequence[rmqstore.Message | PoppedMessage]) -> pa.RecordBatch:
    bodies = pa.array([each.body for each in messages], pa.binary())
    deliver_at_ms = pa.array([each.deliver_at_ms for each in messages], pa.int64())
    return _rows(number, ids[plan.is_damaged(ids, bodies, deliver_at_ms)], "damaged")


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
