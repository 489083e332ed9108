"""Reading the runs of a whole space in the order of their keys, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator

from rmqstore.errors import CorruptStoreError
from rmqstore.ordered import layout
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import PAIR, QUEUE, TIMERS
from rmqstore.ordered.runs import DamagedRunError, Run, decode_run


def runs_behind(kv: OrderedKV, space: int, after: bytes | None, limit: int) -> Iterator[tuple[bytes, Run]]:
    """Yield (key, run) behind ``after`` until they hold ``limit`` records.

    Raises:
        CorruptStoreError: a run is damaged.
    """
    rows = 0
    for key, value in kv.scan(space, b"" if after is None else after + b"\x00", None, limit):
        try:
            run = decode_run(value)
        except DamagedRunError as error:
            where = "/".join(map(str, (PAIR if space == TIMERS else QUEUE).unpack(key)))
            raise CorruptStoreError(
                f"the run at {where} of {layout.SPACES[space]} is damaged ({error}); deliver or pop it first, which parks it", offset=where
            ) from error
        yield key, run
        rows += len(run.records)
        if rows >= limit:
            return
