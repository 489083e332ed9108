"""``PackFinder``: timers in packs (``packs``) by their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rmqstore.contract import TimerCursor
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import TIMERS
from rmqstore.ordered.packs import Pack, behind_bucket, bucket_of, decode_pack, pack_key
from rmqstore.ordered.runs import DamagedRunError
from rmqstore.ordered.timerlayout import LivePut, Located

_BEHIND: Final = 2**63 - 2
"""A tick behind those of all timers."""

_DECODED_BYTES: Final = 4 * 1024 * 1024


class PackFinder:
    """Looks for timers in the packs of a database; packs do not change, so some of them stay decoded.

    Args:
        forgotten: gives what was forgotten, though packs still hold it.
    """

    def __init__(self, kv: OrderedKV, forgotten: Callable[[], TimerCursor]) -> None:
        self._kv = kv
        self._forgotten = forgotten
        self._decoded: dict[bytes, Pack] = {}
        self._decoded_bytes = 0

    def locate(self, tick: int, seq: int) -> Located | None:
        """Find the kept timer of a place, cancelled or not; a damaged pack holds none."""
        pack = self._readable(self.entry_of(tick, seq))
        return None if pack is None else self._in_pack(pack, tick, seq)

    def locate_each(self, places: Sequence[tuple[int, int, int]]) -> Iterator[Located | None]:
        """Yield what :meth:`locate` gives for each (tick, seq, epoch), by bucket and seq; those of one call are often together."""
        pack: Pack | None = None
        behind_packs = (-1, 0)
        for tick, seq, _ in places:
            bucket = bucket_of(tick)
            found = None if pack is None or pack.bucket != bucket else self._in_pack(pack, tick, seq)
            if found is None and (bucket != behind_packs[0] or seq < behind_packs[1]):
                entry = self.entry_of(tick, seq)
                if entry is None:
                    behind_packs = (bucket, seq)
                pack = self._readable(entry)
                found = None if pack is None else self._in_pack(pack, tick, seq)
            yield found

    def entry_of(self, tick: int, seq: int) -> tuple[bytes, bytes] | None:
        """Return the pack that would hold a place: the first of its bucket whose largest seq is not below."""
        if tick >= _BEHIND or seq >= 2**63:
            return None
        found = self._kv.scan(TIMERS, pack_key(bucket_of(tick), seq), behind_bucket(tick), 1)
        return found[0] if found else None

    def _in_pack(self, pack: Pack, tick: int, seq: int) -> Located | None:
        back, step = pack.last_seq - seq, tick - pack.bucket
        if back < 0 or back not in pack.backs or pack.steps[at := pack.backs.index(back)] != step or self._forgotten().covers(tick, seq):
            return None
        key = pack_key(pack.bucket, pack.last_seq, pack.steps[0])
        return Located(key, LivePut(tick, seq, pack.epoch, pack.store_ms, pack.records[at]), is_alone=False)

    def _readable(self, entry: tuple[bytes, bytes] | None) -> Pack | None:
        try:
            return None if entry is None else self._decode(*entry)
        except DamagedRunError:
            return None

    def _decode(self, key: bytes, value: bytes) -> Pack:
        pack = self._decoded.get(key)
        if pack is None:
            self._decoded_bytes += len(value)
            if self._decoded_bytes > _DECODED_BYTES:
                self._decoded.clear()
                self._decoded_bytes = len(value)
            pack = self._decoded[key] = decode_pack(key, value)
        return pack
