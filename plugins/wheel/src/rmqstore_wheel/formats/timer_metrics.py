"""``config/timermetrics``: how many timers wait per topic (``TimerMetrics``). One line, ASCII only (the feature BrowserCompatible)::

    {"dataVersion":{"counter":…,"stateVersion":…,"timestamp":…},"timingCount":{"topic":{"count":5,"timeStamp":…},…}}

RocketMQ's counts are estimates and may be negative. Written by the rules of ``config_files``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rmqstore_wheel.formats import fastjson
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.config_files import DataVersion

FILE_NAME: Final = "timermetrics"


class TimingCount(msgspec.Struct, frozen=True):
    """Timers that wait for a topic, and when their number last changed, ms."""

    count: int
    changed_ms: int


class TimerMetrics(msgspec.Struct):
    """The file."""

    counts: dict[str, TimingCount] = msgspec.field(default_factory=dict)
    version: DataVersion = DataVersion()


def decode(data: Bytes) -> TimerMetrics:
    """Read the file.

    Raises:
        CorruptStoreError: it is no such file.
    """
    fields = fastjson.Fields.read(data, FILE_NAME)
    counts = {topic: TimingCount(each.integer("count"), each.integer("timeStamp")) for topic, each in fields.objects("timingCount").items()}
    return TimerMetrics(counts, DataVersion.from_fields(fields))
