"""A producer: sends the chunks of its round, and cancels some of what it sent a little later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from rmqstore import CancelOutcome
from rmqstore.sending import SendReceipts
from rmqstore_benchmarks.load.ledger import Event
from rmqstore_benchmarks.load.plan import KEPT_TOPIC, TOPIC, Ids, key_of
from rmqstore_benchmarks.load.shard import Shard

_CANCEL_LATER: Final = 2
"""So many chunks lie between a send and its cancels, so that some come too late."""

_EVENTS: Final = {
    CancelOutcome.CANCELLED: Event.CANCELLED,
    CancelOutcome.ALREADY_DELIVERED: Event.CANCEL_LATE,
    CancelOutcome.UNKNOWN: Event.CANCEL_UNKNOWN,
}


def produce(shard: Shard, chunks: Sequence[int], sent: Callable[[], None]) -> None:
    """Send ``chunks`` in order, time passing as planned, and call ``sent`` behind each.

    An attempt behind one that died sends all of them again, under the same marks, and cancels again.
    """
    waiting: deque[tuple[Ids, SendReceipts]] = deque()
    for number in chunks:
        ids = shard.plan.ids(shard.number, number)
        shard.move_to(int(shard.plan.sent_ms(np.array([number]))[0]))
        waiting.append((ids, _send(shard, ids, number)))
        if len(waiting) > _CANCEL_LATER:
            _cancel(shard, *waiting.popleft())
        sent()
    while waiting:
        _cancel(shard, *waiting.popleft())


def _send(shard: Shard, ids: Ids, number: int) -> SendReceipts:
    batch, mark = shard.plan.batch(ids), shard.plan.mark(shard.number, number)
    began = shard.ledger.intend(Event.SENDING, ids, shard.now_ms)
    receipts = shard.call("send_batch", partial(shard.store.send_batch, batch, marks=(mark,)), len)
    shard.ledger.tell(Event.SENT, ids, began, shard.now_ms)
    if receipts.repeated:
        shard.ledger.tell(Event.REPEATED, ids, began, shard.now_ms)
    return receipts


def _cancel(shard: Shard, ids: Ids, receipts: SendReceipts) -> None:
    rows = np.flatnonzero(shard.plan.cancelled_by_handle(ids))
    if len(rows):
        handles = [handle for row in rows.tolist() if (handle := receipts[row].handle) is not None]
        began = shard.ledger.intend(Event.CANCELLING, ids[rows], shard.now_ms)
        outcomes = shard.call("cancel", lambda: shard.store.cancel(handles), len)
        shard.ledger.tell(np.array([_EVENTS[outcome] for outcome in outcomes]), ids[rows], began, shard.now_ms)
    for row in np.flatnonzero(shard.plan.cancelled_by_key(ids)).tolist():
        mine = ids[row : row + 1]
        topic = KEPT_TOPIC if shard.plan.is_kept(mine)[0] else TOPIC
        began = shard.ledger.intend(Event.CANCELLING, mine, shard.now_ms)
        found = shard.call("cancel_key", partial(shard.store.cancel_key, topic, key_of(int(mine[0]))), len)
        # None is found when the timer was delivered, or cancelled by an attempt that died before it was told.
        events = [_EVENTS[outcome] for outcome in found] or [Event.CANCEL_MISSED]
        shard.ledger.tell(np.array(events), np.repeat(mine, len(events)), began, shard.now_ms)
        if len(found) > 1:
            shard.ledger.tell(Event.COPIES, mine, began, shard.now_ms)
