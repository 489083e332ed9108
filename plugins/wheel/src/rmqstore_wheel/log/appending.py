"""What a call appends: messages of one queue, gathered so that each queue has one piece in the call's frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from rmqstore_wheel.formats import consume_queue
from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Bytes, Ints
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.log.journal import Change
from rmqstore_wheel.records import message_records as records
from rmqstore_wheel.records.addressing import placed, placed_one

_FEW = 32


Prepare = Callable[[Ints, Ints], Callable[[], None]]
"""Takes offsets and sizes of records in the log."""


class Messages(msgspec.Struct, frozen=True, gc=False):
    """Messages of one queue, ready for the log.

    Attributes:
        offset: queue offset of the first one, or those of all, which rise.
        records: their bytes; store times are in them, offsets are not.
        store_ms: the latest of their store times.
        codes: hashes of their tags.
        prepare: called with their places in the log before the call is written, to do what may fail; returns what is done after it.
    """

    topic: str
    queue: int
    offset: Ints | int
    records: Encoded
    store_ms: int
    codes: Ints | int = 0
    prepare: Prepare | None = None

    @property
    def offsets(self) -> Ints:
        """The queue offset of each."""
        return self.offset + np.arange(len(self.records.starts)) if isinstance(self.offset, int) else self.offset


class One(msgspec.Struct, frozen=True, gc=False):
    """One message of a queue, as :class:`Messages`; its queue offset is in its record."""

    topic: str
    queue: int
    offset: int
    record: Bytes
    store_ms: int
    code: int = 0
    prepare: Callable[[int, int], Callable[[], None]] | None = None

    def many(self) -> Messages:
        """Return it as a batch of one."""
        prepare = self.prepare
        wrapped = None if prepare is None else lambda offsets, sizes: prepare(int(offsets[0]), int(sizes[0]))
        return Messages(self.topic, self.queue, self.offset, joined([self.record]), self.store_ms, self.code, wrapped)


class Append(msgspec.Struct, frozen=True, gc=False):
    """Records that go to a queue, whatever topic they name."""

    topic: str
    queue: int
    offset: int
    records: Sequence[bytes]
    store_ms: int


def gathered(parts: Sequence[Any]) -> tuple[list[Messages | One], list[Change]]:
    """Return what a call appends, and what else it changes; appends to one queue that follow one another become one."""
    appended: list[Messages | One | Append] = []
    changes: list[Change] = []
    for part in parts:
        (appended if isinstance(part, (Messages, One, Append)) else changes).append(part)
    if len(appended) == 1 and (one := _one_of(appended[0])) is not None:
        return [one], changes
    messages: list[Messages | One] = []
    appends: dict[tuple[str, int, int, int], Sequence[bytes]] = {}
    growing: dict[tuple[str, int, int, int], list[bytes]] = {}
    ends: dict[tuple[str, int, int], tuple[str, int, int, int]] = {}
    for part in appended:
        if isinstance(part, Messages):
            messages.append(part)
        elif isinstance(part, One):
            messages.append(part.many())
        else:
            name = (part.topic, part.queue, part.store_ms)
            key = ends.get(name)
            if key is None or key[2] + len(appends[key]) != part.offset:
                key = ends[name] = (part.topic, part.queue, part.offset, part.store_ms)
                appends[key] = part.records
                continue
            # A revive appends its messages one by one.
            if key not in growing:
                appends[key] = growing[key] = list(appends[key])
            growing[key] += part.records
    for (topic, queue, offset, store_ms), found in appends.items():
        messages.append(Messages(topic, queue, offset, placed(found, topic.encode(), queue, offset, store_ms), store_ms, tags_codes(found)))
    return messages, changes


def _one_of(part: Messages | One | Append) -> One | None:
    """Return a message that goes alone; None when there are more."""
    if isinstance(part, One):
        return part
    if isinstance(part, Messages) or len(part.records) != 1:
        return None
    record = part.records[0]
    code = consume_queue.tags_code(records.tag_of(record).decode())
    made = placed_one(record, part.topic.encode(), part.queue, part.offset, part.store_ms)
    return One(part.topic, part.queue, part.offset, made, part.store_ms, code)


def tags_codes(found: Sequence[bytes]) -> Ints | int:
    """Return what consume queues hold of the tags of records."""
    if isinstance(found, records.LogRecords):
        if not found.may_have_tags or records.TAGS not in found.encoded.data.tobytes():
            return 0
    elif len(found) <= _FEW:
        return np.array([consume_queue.tags_code(records.tag_of(each).decode()) for each in found], np.int64)
    elif not any(records.TAGS in each for each in found):
        return 0
    return consume_queue.tags_codes(records.property_columns(found, [texts.TAG])[texts.TAG])
