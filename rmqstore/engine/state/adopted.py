"""Stores whose state was loaded: their handles and receipts go on meaning what they meant (``rmqstore.contract.state.Adopted``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmqstore.contract import TimerHandle
from rmqstore.contract.state import Adopted
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import ADOPTED, IMPORTED, META, U32, after_prefix


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

    def broker_of(self, granter: int) -> str:
        """Return the name in the receipts of a lease, which is that of the store that gave it."""
        record = self.by_tag.get(granter)
        return self._broker if record is None else record.broker

    def store_of(self, broker: str) -> Adopted | None:
        """Return the store of a name; None when nothing of it is here."""
        return self._by_broker.get(broker)


def giver_of(seq: int, store_tag: int, adopted: Mapping[int, Adopted]) -> int:
    """Return the number of the store that gave a seq: each one that is loaded was there before those that the next one gave."""
    return min(((each.last_seq, each.store_tag) for each in adopted.values() if seq <= each.last_seq), default=(0, store_tag))[1]


def place_of(
    handle: TimerHandle, store_tag: int, adopted: Mapping[int, Adopted], precision_ms: int, is_known: Callable[[int, int, int], bool]
) -> tuple[int, int, int] | None:
    """Return (tick, seq, epoch) of the put that a handle names; None when the store that it names did not give it, or is not here.

    ``is_known`` tells whether a put of this tick, seq and epoch is or was here.
    """
    if handle.store_tag != giver_of(handle.seq, store_tag, adopted):
        return None
    own = (handle.tick, handle.seq, handle.epoch)
    record = adopted.get(handle.store_tag)
    if record is None:
        return own
    places = ((tick, handle.seq, handle.epoch) for tick in record.ticks_of(handle.tick, precision_ms))
    return next((place for place in places if is_known(*place)), own)
