"""Times and durations as users write them, turned into milliseconds.

Each has two keywords: ``delay`` takes a ``timedelta`` and ``delay_ms`` an int, ``deliver_at`` an aware ``datetime`` and ``deliver_at_ms``
an int. A bare number is refused where the keyword names no unit, 0 as well: ``time.time()``, Celery and redis count in seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.message import check_time_ms

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(what: str, value: datetime | None, value_ms: int | None) -> int | None:
    """Return the time that was given, as an aware ``datetime`` or in ms since the epoch, in ms since the epoch; None when none was.

    A part of a millisecond is rounded up, so that nothing is early. ``what`` is the keyword of the ``datetime``; ``_ms`` is added for the
    other one.

    Raises:
        IllegalArgumentTypeError: one of them is something else, such as a bare number for the ``datetime``.
        IllegalArgumentError: both were given, the ``datetime`` is naive, or the time is out of range.
    """
    if value is None:
        return _given_ms(what, value_ms, 0)
    _check_alone(what, value_ms)
    if not isinstance(value, datetime):
        raise IllegalArgumentTypeError(
            f"{what} must be an aware datetime, not {value!r}; ms since the epoch are written {_keyword_ms(what)}=…"
        )
    if value.tzinfo is None or value.utcoffset() is None:
        raise IllegalArgumentError(f"{what} {value!r} is naive; give it a time zone, e.g. datetime.now(timezone.utc)")
    milliseconds = -((value - _EPOCH) // -_MS)
    check_time_ms(what, milliseconds)
    return milliseconds


def duration_ms(what: str, value: timedelta | None, value_ms: int | None, minimum: int = 0) -> int | None:
    """Return the duration that was given, as a ``timedelta`` or in ms, in ms, a part of one rounded up; None when none was.

    Raises:
        IllegalArgumentTypeError: one of them is something else, such as a bare number for the ``timedelta``.
        IllegalArgumentError: both were given, or the duration is out of range.
    """
    if value is None:
        return _given_ms(what, value_ms, minimum)
    if value_ms is None and isinstance(value, timedelta):
        return timedelta_ms(what, value, minimum)
    _check_alone(what, value_ms)
    return timedelta_ms(what, value, minimum, f"; ms are written {_keyword_ms(what)}=…")


def timedelta_ms(what: str, value: timedelta, minimum: int = 0, way_out: str = "") -> int:
    """Return a ``timedelta`` in ms, a part of one rounded up, so far as it stays one; ``way_out`` ends the error about anything else."""
    if not isinstance(value, timedelta):
        raise IllegalArgumentTypeError(f"{what} must be a timedelta, such as timedelta(seconds=30), not {value!r}{way_out}")
    milliseconds = min(-(value // -_MS), timedelta.max // _MS)
    check_time_ms(what, milliseconds, minimum)
    return milliseconds


def moment(ms: int) -> str:
    """Return ms since the epoch as ISO 8601 text in UTC, for a ``repr``."""
    try:
        return (_EPOCH + ms * _MS).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{ms} ms"


def _given_ms(what: str, value_ms: int | None, minimum: int) -> int | None:
    if value_ms is not None:
        check_time_ms(_keyword_ms(what), value_ms, minimum)
    return value_ms


def _check_alone(what: str, value_ms: int | None) -> None:
    if value_ms is not None:
        raise IllegalArgumentError(f"{what} and {_keyword_ms(what)} exclude each other; give one")


def _keyword_ms(what: str) -> str:
    return f"{what.rstrip('_')}_ms"
