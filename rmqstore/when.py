"""Times and durations as users write them, turned into milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.message import check_time_ms

When: TypeAlias = datetime | int
Duration: TypeAlias = timedelta | int

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(what: str, value: When) -> int:
    """Return an aware ``datetime`` or an int of milliseconds as milliseconds since the epoch.

    A part of a millisecond is rounded up, so that nothing is early.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise IllegalArgumentError(f"{what} {value!r} is naive; give it a time zone, e.g. datetime.now(timezone.utc)")
        milliseconds = -(-(value - _EPOCH) // _MS)
        check_time_ms(what, milliseconds)
        return milliseconds
    if isinstance(value, bool) or not isinstance(value, int):
        raise IllegalArgumentTypeError(f"{what} must be an aware datetime or an int of milliseconds since the epoch, not {value!r}")
    check_time_ms(what, value)
    return value


def duration_ms(what: str, value: Duration, minimum: int = 0) -> int:
    """Return a ``timedelta`` or an int of milliseconds as milliseconds, a part of one rounded up."""
    if isinstance(value, timedelta):
        milliseconds = -(-value // _MS)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise IllegalArgumentTypeError(f"{what} must be a timedelta or an int of milliseconds, not {value!r}")
    else:
        milliseconds = value
    check_time_ms(what, milliseconds, minimum)
    return milliseconds
