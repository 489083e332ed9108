"""The columns of messages, as Arrow schemas (docs/contract.md).

A module of its own since it needs pyarrow when it is imported, which ``rmqstore.late`` puts off until somebody asks for a schema.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

PROPERTIES: Final = pa.map_(pa.string(), pa.string())
"""The type of the column ``properties``."""

IN_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("tag", pa.string()),
        pa.field("keys", pa.list_(pa.string())),
        pa.field("properties", PROPERTIES),
        pa.field("message_group", pa.string()),
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("born_ms", pa.int64()),
        pa.field("queue_id", pa.int32()),
    ]
)
"""The columns of a batch on its way in. ``topic`` and ``body`` are required, all others may be absent or null."""

OUT_SCHEMA: Final = pa.schema(
    [
        *IN_SCHEMA,
        pa.field("queue_offset", pa.int64()),
        pa.field("store_ms", pa.int64()),
        pa.field("attempt", pa.int32()),
        pa.field("receipt", pa.string()),
        pa.field("first_pop_ms", pa.int64()),
    ]
)
"""The columns of a batch on its way out."""
