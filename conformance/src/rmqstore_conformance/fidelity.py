"""Whether a message came out as it was sent: every field of it, in whatever form it comes, compared in one way.

What came out may be a :class:`PoppedMessage` (popped, read, found, a dead letter's), a :class:`Message` (of a pending timer), or one row of
columns, as ``columns.to_pylist()`` gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from rmqstore import Message, MessageBatch, PoppedMessage

T = TypeVar("T")

Seen: TypeAlias = Message | PoppedMessage | dict[str, Any]
"""A message that came out: a struct, or a row of columns."""

FIELDS: Final = Message.__struct_fields__
"""What is sent; all of it comes out."""

PLACE_FIELDS: Final = ("queue_offset", "store_ms", "attempt", "first_pop_ms")
"""What a message has only on its way out."""

_LEFT_TO_THE_STORE: Final = ("message_id", "born_ms", "queue_id")
_SHOWN: Final = 100


def differences(sent: Message, seen: Seen, **known: Any) -> list[str]:
    """Return how what came out differs from what was sent: one line for each field, with its name, what was sent and what is seen.

    Fields that the sender left to the store (id, born time, queue) must have some value.

    Args:
        known: fields of which more is known than ``sent`` says: the fields of :data:`PLACE_FIELDS`, and those that the store fills in or
            changes, such as the topic of a copy in a retry topic. ``receipt`` may be given too.
    """
    lines: list[str] = []
    for name in dict.fromkeys((*FIELDS, *known)):
        expected = known[name] if name in known else getattr(sent, name)
        found = _field(seen, name)
        if expected is None and name in _LEFT_TO_THE_STORE and name not in known:
            if found is None:
                lines.append(f"{name}: the store fills it in, seen None")
        elif not _same(expected, found):
            how = "sent" if name in FIELDS else "expected"
            lines += (
                _of_properties(expected, found) if name == "properties" else [f"{name}: {how} {_shown(expected)}, seen {_shown(found)}"]
            )
    return lines


def check(sent: Message, seen: Seen, where: str, **known: Any) -> None:
    """Raise an ``AssertionError`` that says ``where`` a message came out otherwise than it was sent; ``known`` as above."""
    found = differences(sent, seen, **known)
    assert not found, f"{where}, message {_shown(sent.message_id)}: " + "; ".join(found)


def matching(what: str, candidates: Iterable[T], differences_of: Callable[[T], list[str]]) -> T:
    """Return the first candidate without a difference; raises an ``AssertionError`` that says how ``what`` differs from the nearest."""
    nearest: list[str] = ["nothing more was expected"]
    for number, each in enumerate(candidates):
        if not (lines := differences_of(each)):
            return each
        nearest = lines if not number else min(nearest, lines, key=len)
    raise AssertionError(f"{what}: {'; '.join(nearest)}")


def came_out(batch: MessageBatch) -> list[PoppedMessage]:
    """Return the messages of a batch that was popped or read, after comparing its columns with them field by field."""
    messages = [each for each in batch.messages if isinstance(each, PoppedMessage)]
    rows = batch.columns.to_pylist()
    assert len(rows) == len(messages), f"{len(messages)} messages, {len(rows)} rows of columns"
    for number, (message, row) in enumerate(zip(messages, rows, strict=True)):
        places = {name: getattr(message, name) for name in (*PLACE_FIELDS, "receipt")}
        check(as_sent(message), row, f"row {number} of the columns beside the struct", **places)
    return messages


def as_sent(message: PoppedMessage) -> Message:
    """Return what a message that came out would be as one to send, with its id, born time and queue."""
    return Message(*(getattr(message, name) for name in FIELDS))


def _field(seen: Seen, name: str) -> Any:
    found = seen.get(name) if isinstance(seen, dict) else getattr(seen, name, None)
    if isinstance(seen, dict) and name == "keys":
        return () if found is None else tuple(found)
    return found


def _of_properties(expected: Mapping[str, str], found: Mapping[str, str] | Iterable[tuple[str, str]] | None) -> list[str]:
    pairs = list(found.items()) if isinstance(found, Mapping) else list(found or ())
    seen = dict(pairs)
    lines = [] if len(seen) == len(pairs) else [f"properties: a name stands there twice, seen {_shown(pairs)}"]
    for name in [*expected, *(name for name in seen if name not in expected)]:
        if not _same(expected.get(name), seen.get(name)):
            lines.append(f"property {_shown(name)}: sent {_shown(expected.get(name))}, seen {_shown(seen.get(name))}")
    return lines


def _same(expected: object, found: object) -> bool:
    """Say whether two values are equal and of one type: 1 is neither True nor 1.0, and a list of keys is what a tuple of them is."""
    if isinstance(expected, list):
        expected = tuple(expected)
    return type(expected) is type(found) and expected == found


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    size = f" ({len(value)} long)" if isinstance(value, str | bytes) else ""
    return f"{text[: _SHOWN * 2 // 3]} … {text[-_SHOWN // 3 :]}{size}"
