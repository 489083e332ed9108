"""Damage at every place of a file that has a meaning of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rmqstore_wheel import frames
from rmqstore_wheel.facts import FACT
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats import consume_queue, index_file, log_reading, timer_log, wheel

ZEROED: Final = 16
_HEAD_FIELDS: Final = (0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84)
_FRAME_FIELDS: Final = (0, len(frames.PROPERTY), 9, 20, 29, 46)


class Damage(NamedTuple):
    """What is done to a file: ``kind`` is flip, zero, truncate or remove; ``has_sum``: RocketMQ's format has a sum over that place."""

    path: str
    kind: str
    at: int = 0
    has_sum: bool = True

    def done_to(self, content: bytes) -> bytes | None:
        """Return the damaged content; None for no file."""
        if self.kind == "remove":
            return None
        if self.kind == "truncate":
            return content[: self.at]
        left = bytearray(content)
        if self.kind == "flip":
            left[self.at] ^= 1 << self.at % 8
        else:
            left[self.at : self.at + ZEROED] = bytes(len(left[self.at : self.at + ZEROED]))
        return bytes(left)


def damages_of(path: str, content: bytes) -> Iterator[Damage]:
    """Yield what may happen to a file, as far as it changes anything."""
    yield Damage(path, "remove")
    bare = set(_bare_places(content)) if "/commitlog/" in path else set()
    for at in sorted({at for at in places_of(path, content) if at < len(content)}):
        for kind in ("flip", "zero", "truncate"):
            size = {"flip": 1, "zero": ZEROED, "truncate": 0}[kind]
            damage = Damage(path, kind, at, bare.isdisjoint(range(at, at + size)))
            if damage.done_to(content) != content:
                yield damage


def places_of(path: str, content: bytes) -> Iterator[int]:
    """Yield where something begins in a file."""
    if "/commitlog/" in path:
        yield from _log_places(content)
    elif "/consumequeue/" in path:
        yield from _unit_places(content, consume_queue.UNIT_BYTES, (0, 8, 12))
    elif "/timerlog/" in path:
        yield from _unit_places(content, timer_log.UNIT_BYTES, (0, 4, 12, 16, 24, 28, 36, 40, 44))
    elif "/facts/" in path:
        yield from _unit_places(content, FACT.itemsize, (0, 8, 12, 14))
    elif "timerwheel" in path:
        yield from _unit_places(content, wheel.SLOT_BYTES, (0, 8, 16, 24, 28))
    elif "/index/" in path:
        yield from (0, 8, 16, 24, 32, 36)
        yield from range(index_file.HEADER_BYTES, len(content), index_file.SLOT_BYTES)
    else:
        yield from (0, 8, 12, 16, 24, len(content) // 2, len(content) - 1)


def _bare_places(content: bytes) -> Iterator[int]:
    """Yield the bytes of a log that RocketMQ has no sum of, and that nothing else tells."""
    found = log_reading.scan(content)
    for start, size in zip(found.starts.tolist(), found.sizes.tolist(), strict=True):
        body = start + log.FIXED_BYTES
        yield from range(start + 16, start + 20)
        yield from range(start + 36, body - 4)
        yield from range(body + int.from_bytes(content[body - 4 : body]), start + size)


def _log_places(content: bytes) -> Iterator[int]:
    found = log_reading.scan(content)
    for start, size in zip(found.starts.tolist(), found.sizes.tolist(), strict=True):
        yield from (start + field for field in _HEAD_FIELDS)
        body = start + log.FIXED_BYTES
        topic = body + int.from_bytes(content[body - 4 : body])
        text = topic + 1 + content[topic]
        end = start + size
        yield from (body, (body + topic) // 2, topic, topic + 1, text, text + 1, text + 2, (text + end) // 2, end - 1)
        for at in (content.find(b"UNIQ_KEY", text, end), content.find(b"REAL_TOPIC", text, end), content.find(b"TIMER_", text, end)):
            if at >= 0:
                yield from (at, at + 12)
        trailer = content.find(frames.PROPERTY, text, end)
        if trailer >= 0:
            place = trailer
            for step in _FRAME_FIELDS:
                yield trailer + step if step < len(frames.PROPERTY) else place + step
            yield end - frames.TAIL_BYTES
    # The blank record at the end of a file, and what lies behind the last record.
    yield from (found.end, found.end + 4, found.end + 9)


def _unit_places(content: bytes, size: int, fields: tuple[int, ...]) -> Iterator[int]:
    used = [at for at in range(0, len(content), size) if any(content[at : at + size])]
    for at in sorted({*used[:2], *used[len(used) // 2 : len(used) // 2 + 1], *used[-2:]}):
        yield from (at + field for field in fields)
    if used:
        yield used[-1] + size
