"""The state of a store as an engine gives it and takes it in (docs/transfer.md).

Each side gives the tables of :mod:`rmqstore.contract.tables` page by page with ``Side.export_state`` and takes rows in with
``Side.import_state``.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from rmqstore.late import pa

_PLACE: Final = struct.Struct(">QQ")


def timers_from(tick: int) -> bytes | None:
    """Return the token behind which the timers of ``tick`` and later are, so that part of the table can be read; None = from the start."""
    return _PLACE.pack(tick - 1, 2**62) if tick > 0 else None


class StatePage(msgspec.Struct, frozen=True):
    """Some rows of a table; pass ``next`` as ``after`` to read on, None at the end.

    The tokens of ``timers`` are places, as :func:`timers_from` makes them; those of other tables are an engine's own.
    """

    rows: pa.RecordBatch
    next: bytes | None


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A store whose state was loaded into this one, so that what it gave out stays good here: handles, receipts.

    A load goes into an empty store, so all that is there is the loaded store's: offsets, seqs and epochs stay as they are.

    Attributes:
        store_tag, broker: the store's number and name, as they are in its handles and receipts.
        epoch: its largest epoch.
        last_seq: the largest seq that it had given, 0 for none; later ones were given by the store that took it in.
        precisions: widths of ticks, ms, by which handles of it may still go.
        dump_id: which dump it came from.
        is_complete: False while a load is under way.
    """

    store_tag: int
    broker: str
    epoch: int
    last_seq: int
    precisions: tuple[int, ...] = ()
    dump_id: str = ""
    is_complete: bool = False

    def to_bytes(self) -> bytes:
        """Return the stored form: JSON with sorted keys."""
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def from_bytes(cls, data: bytes) -> Adopted:
        """Read what :meth:`to_bytes` gave."""
        return msgspec.json.decode(data, type=cls)

    def ticks_of(self, tick: int, precision_ms: int) -> list[int]:
        """Return where a put may be that was given out at ``tick``, now that ticks are ``precision_ms`` wide; the likeliest first."""
        found = [tick]
        # What is remembered of a put may have stayed at any width that it ever had.
        for old_ms in self.precisions:
            for width_ms in dict.fromkeys((precision_ms, *self.precisions)):
                first = -(-(tick - old_ms + 1) // width_ms) * width_ms
                found += range(first, tick + width_ms, width_ms)
        return list(dict.fromkeys(each for each in found if each >= 0))
