"""Times and durations on the command line: read from what users write, shown in the local time zone and relative to now."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import typer

from rmqstore.errors import IllegalArgumentError
from rmqstore.message import MAX_TIME_MS, check_time_ms
from rmqstore.when import time_ms

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
_YEAR_MS: Final = 365 * DAY_MS

_UNITS_MS: Final = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_NEGATIVE: Final = re.compile(rf"-(?:\d+|(?:{_PART.pattern})+)", re.ASCII)
_MILLISECONDS: Final = re.compile(r"(\d+)ms", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION_EXAMPLES: Final = "90s, 5m, 2h, 1d, 1h30m or 250ms"
_TIME_EXAMPLES: Final = "2026-12-01T08:00+01:00, 2026-12-01T08:00 (local time), or 1796108400000ms since the epoch"


def parse_duration(text: str) -> int:
    """Return a duration such as ``90s``, ``1h30m`` or ``250ms`` in ms, a part of one rounded up; a bare number is none.

    Raises:
        IllegalArgumentError: it is none; the message shows how to write one.
    """
    written = text.strip()
    if _NEGATIVE.fullmatch(written):
        raise IllegalArgumentError(f"{text!r} is less than nothing; a duration must not be negative")
    parts = _PART.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        raise IllegalArgumentError(f"{text!r} is no duration; write {_DURATION_EXAMPLES}")
    milliseconds = math.ceil(sum((Decimal(number) * _UNITS_MS[unit] for number, unit in parts), Decimal()))
    if milliseconds > MAX_TIME_MS:
        raise IllegalArgumentError(f"{text!r} is too long; a duration has at most 2**62 ms")
    return milliseconds


def parse_time(text: str) -> int:
    """Return a point in time, ISO 8601 or such as ``1796108400000ms``, as ms since the epoch; without an offset it is local time.

    Raises:
        IllegalArgumentError: it is none; the message shows how to write one.
    """
    written = text.strip()
    try:
        if (number := _MILLISECONDS.fullmatch(written)) is not None:
            milliseconds = int(number[1])
            check_time_ms("a time", milliseconds)
            return milliseconds
        if not written.isdecimal():  # Python takes 20261201 for a date; it may as well be a number of seconds or ms
            given = datetime.fromisoformat(written)
            if given.tzinfo is None:  # of a time that a clock passes over, the offset before: it would be early by that behind it
                given = datetime.fromtimestamp(given.timestamp(), UTC)
            return time_ms("a time", given, None) or 0
    except (ValueError, OverflowError):
        pass
    raise IllegalArgumentError(f"{text!r} is no time; write {_TIME_EXAMPLES}")


_LONGEST_MS: Final = timedelta.max // timedelta(milliseconds=1)


def duration_option(option: str, text: str, *, minimum: int = 0) -> int:
    """Return the duration that ``option`` was given, ms; a bad one is a bad command line."""
    try:
        milliseconds = parse_duration(text)
    except IllegalArgumentError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if milliseconds > _LONGEST_MS:
        raise typer.BadParameter(f"{text!r} is too long; at most {_LONGEST_MS} ms", param_hint=option)
    if milliseconds < minimum:
        raise typer.BadParameter(f"{text!r} is too short; at least {minimum} ms", param_hint=option)
    return milliseconds


def time_option(option: str, text: str) -> int:
    """Return the time that ``option`` was given, ms since the epoch; a bad one is a bad command line."""
    try:
        return parse_time(text)
    except IllegalArgumentError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


# ---------------------------------------------------------------- showing


def local(ms: int) -> datetime | None:
    """Return ms since the epoch as local time; None when it is beyond the calendar."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).astimezone()
    except (OverflowError, ValueError, OSError):
        return None


def iso(ms: int | None) -> str | None:
    """Return ms since the epoch as ISO 8601 text with the local offset; None when there is no time, or no calendar goes that far."""
    moment = None if ms is None else local(ms)
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def clock_time(ms: int) -> str:
    """Return ms since the epoch for people: local date, time and offset, with ms where there are any."""
    moment = local(ms)
    if moment is None:
        return f"{ms} ms"
    return moment.isoformat(" ", "milliseconds" if ms % 1000 else "seconds")


def span(ms: int) -> str:
    """Return a length of time in one unit, rounded to the nearest one, such as ``12 min``."""
    if ms < SECOND_MS:
        return f"{ms} ms"
    for limit_ms, unit_ms, unit in (
        (2 * MINUTE_MS, SECOND_MS, "s"),
        (2 * HOUR_MS, MINUTE_MS, "min"),
        (2 * DAY_MS, HOUR_MS, "h"),
        (2 * _YEAR_MS, DAY_MS, "d"),
    ):
        number = _nearest(ms, unit_ms)
        if number * unit_ms < limit_ms:
            return f"{number} {unit}"
    return f"{_nearest(ms, _YEAR_MS)} y"


def _nearest(ms: int, unit_ms: int) -> int:
    return (ms + unit_ms // 2) // unit_ms


def duration_text(ms: int) -> str:
    """Return a length of time exactly, in the form that :func:`parse_duration` reads: ``1h30m``."""
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, ms = divmod(ms, _UNITS_MS[unit])
        parts += [f"{number}{unit}"] if number else []
    return "".join(parts) or "0ms"


def relative(ms: int, now_ms: int) -> str:
    """Return a point in time as seen from now, such as ``in 12 min`` or ``3 h ago``."""
    if ms == now_ms:
        return "now"
    return f"in {span(ms - now_ms)}" if ms > now_ms else f"{span(now_ms - ms)} ago"


def clock_and_relative(ms: int, now_ms: int) -> str:
    """Return both: ``2026-12-01 08:00:00+01:00 (in 12 min)``."""
    return f"{clock_time(ms)} ({relative(ms, now_ms)})"
