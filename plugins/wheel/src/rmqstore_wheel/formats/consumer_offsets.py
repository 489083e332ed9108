r"""``config/consumerOffset.json``: how far each group has read each queue (``ConsumerOffsetManager``).

::

    {
    \t"dataVersion":{"counter":…,"stateVersion":…,"timestamp":…},       each on a line of its own
    \t"groupTopicMap":{"group":["topic",…]},                            follows from the table; not read
    \t"offsetTable":{
    \t\t"topic@group":{0:12,1:7
    \t\t}
    \t}
    }

An offset is that of the next message. Written by the rules of ``config_files``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rmqstore_wheel.formats import fastjson
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.config_files import DataVersion

FILE_NAME: Final = "consumerOffset.json"
SEPARATOR: Final = "@"


class ConsumerOffsets(msgspec.Struct):
    """The file. ``table`` has the next offset per queue, by ``topic@group``."""

    table: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    version: DataVersion = DataVersion()


def key(topic: str, group: str) -> str:
    """Return the name of a group on a topic."""
    return f"{topic}{SEPARATOR}{group}"


def split_key(name: str) -> tuple[str, str] | None:
    """Return (topic, group); None for a name that RocketMQ would pass over."""
    parts = name.split(SEPARATOR)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def encode(offsets: ConsumerOffsets) -> bytes:
    """Return the file."""
    topics: dict[str, set[str]] = {}
    for name in offsets.table:
        parts = split_key(name)
        if parts is not None:
            topics.setdefault(parts[1], set()).add(parts[0])
    value = {"dataVersion": offsets.version.to_json(), "groupTopicMap": topics, "offsetTable": offsets.table}
    return fastjson.dumps(value).encode()


def decode(data: Bytes) -> ConsumerOffsets:
    """Read the file.

    Raises:
        CorruptStoreError: it is no such file.
    """
    fields = fastjson.Fields.read(data, FILE_NAME)
    table = {name: queues.as_integers() for name, queues in fields.objects("offsetTable").items()}
    return ConsumerOffsets(table, DataVersion.from_fields(fields))
