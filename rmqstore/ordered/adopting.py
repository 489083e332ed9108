"""Stores whose state was taken in: their handles and receipts go on meaning what they meant (``rmqstore.contract.state.Adopted``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmqstore.contract import NO_RETRY, Receipt, TimerHandle
from rmqstore.contract.state import Adopted
from rmqstore.message import retry_topic
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import ADOPTED, IMPORTED, META, U32, after_prefix


def stored_adopted(kv: OrderedKV, side: bytes) -> dict[int, Adopted]:
    """Return what one side knows of other stores, by their tag."""
    prefix = ADOPTED + side
    return {
        U32.unpack_from(key, len(prefix))[0]: Adopted.from_bytes(value) for key, value in kv.scan_all(META, prefix, after_prefix(prefix))
    }


def put_adopted(write: WriteBatch, side: bytes, adopted: Adopted) -> None:
    """Add a record to a write; one that is complete takes the marks of its load away."""
    write.put(META, ADOPTED + side + U32.pack(adopted.store_tag), adopted.to_bytes())
    if adopted.is_complete and adopted.dump_id:
        prefix = IMPORTED + side + adopted.dump_id.encode()
        write.delete_range(META, prefix, prefix + b"\xff")


class Adoptions:
    """What the pop side knows of other stores, by the name that their receipts carry; ``broker`` is the name of this one."""

    def __init__(self, kv: OrderedKV, side: bytes, broker: str) -> None:
        self.by_tag = stored_adopted(kv, side)
        self._broker = broker
        self._by_broker = {record.broker: record for record in self.by_tag.values()}

    def form_of(self, granter: int, topic: str) -> tuple[str, int]:
        """Return (broker, queue shift) of the receipts of a lease, which are those that its own store gave."""
        record = self.by_tag.get(granter)
        return (self._broker, 0) if record is None or record.broker == self._broker else (record.broker, record.queue_shifts.get(topic, 0))

    def home_of(self, receipt: Receipt) -> tuple[int | None, int, int] | None:
        """Return (queue id, largest epoch, number of the store) of a receipt that another store gave; None when nothing of it is here.

        The queue is None when it did not come along, since the other store had deleted its topic.
        """
        record = self._by_broker.get(receipt.broker)
        if record is None:
            return None
        name = receipt.topic if receipt.retry_flag == NO_RETRY else retry_topic(receipt.group, receipt.topic)
        came_along = receipt.queue_id < record.queues.get(name, 0)
        return receipt.queue_id + record.queue_shifts.get(name, 0) if came_along else None, record.epoch, record.store_tag


def place_of(
    handle: TimerHandle, store_tag: int, adopted: Mapping[int, Adopted], precision_ms: int, is_known: Callable[[int, int, int], bool]
) -> tuple[int, int, int] | None:
    """Return (tick, seq, epoch) of the put that a handle names; None when it is of a store of which nothing is here.

    ``is_known`` tells whether a put of this tick, seq and epoch is or was here.
    """
    record = adopted.get(handle.store_tag)
    if record is None:
        if handle.store_tag != store_tag:
            return None
        own = (handle.tick, handle.seq, handle.epoch)
        # A mark of a merged store is answered with its ticks, which may have had another width.
        ticks = (tick for each in adopted.values() for tick in each.ticks_of(handle.tick, precision_ms))
        return next((place for tick in ticks if is_known(*(place := (tick, handle.seq, handle.epoch)))), own)
    if handle.store_tag != store_tag and (handle.epoch > record.epoch or handle.seq > record.last_seq):
        return None
    places = [(tick, handle.seq + record.seq_shift, handle.epoch) for tick in record.ticks_of(handle.tick, precision_ms)]
    return next((place for place in places if is_known(*place)), places[0])
