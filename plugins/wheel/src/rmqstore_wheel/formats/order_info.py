"""``config/consumerOrderInfo.json``: the un-acked run of every FIFO queue (``ConsumerOrderInfoManager``).

::

    {"table":{"topic@group":{<queue>:{
        "a": attempt id            "cm": acked messages as bits, i64        "i": invisible time, ms
        "l": last consumed, ms     "o": queue offsets: the first as it is, the others as distances from it
        "oc": {offset: times consumed before}    "ot": {offset: visible again at, ms}    "popTime": ms
    }}}}

The names come in alphabetical order, those that are null are left out, maps have bare keys. Written by the rules of ``config_files``.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rmqstore_wheel.formats import fastjson
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.fastjson import Fields

FILE_NAME: Final = "consumerOrderInfo.json"


class OrderInfo(msgspec.Struct):
    """The run of one queue. Bit i of ``acked_bits`` (0 to 2**64 - 1) says that the message at ``offsets[i]`` is acked.

    ``visible_ms`` and ``consumed`` hold only offsets that differ from the rest: a changed invisible time, a count above 0.
    """

    pop_ms: int
    invisible_ms: int | None
    offsets: list[int]
    last_consume_ms: int
    acked_bits: int = 0
    attempt_id: str | None = None
    visible_ms: dict[int, int] | None = None
    consumed: dict[int, int] | None = None

    def is_acked(self, place: int) -> bool:
        """Say whether the message at ``offsets[place]`` is acked."""
        return bool(self.acked_bits >> place & 1)


Table = dict[str, dict[int, OrderInfo]]
"""Runs by ``topic@group`` and queue."""


def encode(table: Table) -> bytes:
    """Return the file."""
    value = {"table": {name: {queue: _to_json(info) for queue, info in queues.items()} for name, queues in table.items()}}
    return fastjson.dumps(value).encode()


def _to_json(info: OrderInfo) -> dict[str, Any]:
    first = info.offsets[0] if info.offsets else 0
    return {
        "a": info.attempt_id,
        "cm": info.acked_bits - (info.acked_bits >> 63 << 64),
        "i": info.invisible_ms,
        "l": info.last_consume_ms,
        "o": [*info.offsets[:1], *(offset - first for offset in info.offsets[1:])],
        "oc": info.consumed,
        "ot": info.visible_ms,
        "popTime": info.pop_ms,
    }


def decode(data: Bytes) -> Table:
    """Read the file.

    Raises:
        CorruptStoreError: it is no such file.
    """
    fields = fastjson.Fields.read(data, FILE_NAME)
    return {
        name: {queue: _from_json(info) for queue, info in queues.numbered().items()} for name, queues in fields.objects("table").items()
    }


def _from_json(fields: Fields) -> OrderInfo:
    offsets = fields.integers("o") or []
    return OrderInfo(
        pop_ms=fields.integer("popTime"),
        invisible_ms=fields.optional_integer("i"),
        offsets=[*offsets[:1], *(offsets[0] + distance for distance in offsets[1:])],
        last_consume_ms=fields.integer("l"),
        acked_bits=fields.integer("cm") & 0xFFFF_FFFF_FFFF_FFFF,
        attempt_id=fields.text("a"),
        visible_ms=fields.integer_map("ot"),
        consumed=fields.integer_map("oc"),
    )
