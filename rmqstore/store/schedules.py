"""``store.schedules``: messages that come again and again, at the times of a cron expression or every so often.

A schedule is a note of the pop side (I2): the message, its times, and which of them is next. A tick at or after that time appends the
message and moves the note on, both in one step of ``PopStore.apply``. So each time has exactly one message, whoever owns the store and
wherever an owner dies: the step was done, and the next time is another one; or it was not, and the next tick does it.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, takewhile
from operator import attrgetter
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from msgspec import structs

from rmqstore.batch import MessageBatch
from rmqstore.contract import PopStore, PopTxn, Ticket, WriteStatus
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, IllegalMessageError, IllegalMessageTypeError
from rmqstore.ids import id_of_mark
from rmqstore.message import (
    MAX_NOTE_BYTES,
    PROPERTY_SCHEDULE,
    PROPERTY_SCHEDULED_MS,
    REQUEST_PROPERTIES,
    Message,
    check_message,
    check_name,
)
from rmqstore.store.administration import Part
from rmqstore.store.pauses import Held
from rmqstore.store.sending import Completer
from rmqstore.when import timedelta_ms

_PREFIX: Final = "schedule/"
_SHORTEST_MS: Final = 1000
_STEP_BYTES: Final = 8 * 1024 * 1024
"""So much one step sends at most, or one message."""

_MESSAGE_BYTES: Final = MAX_NOTE_BYTES - 2048
"""What a schedule leaves of a note for its message."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A message that comes again and again.

    Attributes:
        message: what is sent. Each copy says in its properties ``SCHEDULE`` and ``SCHEDULED_MS`` of which schedule it is, and of which
            time; its id follows from these two.
        cron: at which times, as a cron expression of five fields; None where ``every_ms`` says it.
        zone: the time zone of ``cron``, such as ``Europe/Berlin``.
        every_ms: how long from one time to the next.
        catch_up: whether times that passed while nobody had the store open have a message each; else they have one together, the first's.
        next_ms: the time of the next message, ms since the epoch.
    """

    name: str
    message: Message
    cron: str | None = None
    zone: str = "UTC"
    every_ms: int | None = None
    catch_up: bool = True
    next_ms: int = 0

    def times(self, after_ms: int) -> Iterator[int]:
        """Yield its times behind one of them, or, by a cron expression, behind any time."""
        if self.every_ms is not None:
            return count(after_ms + self.every_ms, self.every_ms)
        return _times_of(self.cron or "", _zone(self.zone), after_ms)

    def on(self, now_ms: int) -> Schedule | None:
        """Return it as it is when all that is due is sent; None when no time is left."""
        if self.every_ms is not None:
            return structs.replace(self, next_ms=self.next_ms + ((now_ms - self.next_ms) // self.every_ms + 1) * self.every_ms)
        next_ms = next(self.times(max(now_ms, self.next_ms)), None)
        return None if next_ms is None else structs.replace(self, next_ms=next_ms)


class Schedules(Part):
    """The schedules of a store."""

    def list(self) -> builtins.list[Schedule]:
        """List the schedules by name."""
        self._store._check_open()
        return _schedules_in(self._store.engine.pops.notes())

    def put(self, name: str, when: str | timedelta, message: Message, *, zone: str = "UTC", catch_up: bool = True) -> Schedule:
        """Send a message at each time of a cron expression, or every so often, until :meth:`delete`; kept in the store.

        A program may do that at each start: a schedule that is there with the same times goes on with them, and has the new message. One
        with other times begins anew; what was due of those before is sent first, unless the hand-over is paused.

        Args:
            when: five fields as in crontab (minute, hour, day of month, month, day of week), or a ``timedelta`` of at least 1 s, the
                first one from now.
            message: without a deliver time and an id, and of at most 62 KiB.
            zone: the time zone of a cron expression. Where a clock is set forward or back by an hour, times come as with Debian's cron.
                Where it is by half an hour, or at midnight, one may be left out, or come in an hour that the expression leaves out.
            catch_up: whether times that passed while nobody had the store open have a message each; else they have one together.

        Raises:
            IllegalArgumentError: there are no such times, or no such zone.
            IllegalMessageError: the message breaks a limit.
            ClockStepError: the clock went forward by more than ``clock.max_step_ms`` (K2).
        """
        store = self._store._as_owner("schedules.put")
        check_name("schedule", name)
        if not isinstance(catch_up, bool):
            raise IllegalArgumentTypeError(f"catch_up must be True or False, not {catch_up!r}")
        message = _scheduled(message)
        if isinstance(when, timedelta):
            made = Schedule(name=name, message=message, every_ms=timedelta_ms("when", when, _SHORTEST_MS), catch_up=catch_up)
        elif isinstance(when, str):
            made = Schedule(name=name, message=message, cron=when, zone=zone, catch_up=catch_up)
        else:
            raise IllegalArgumentTypeError(f"when must be a cron expression, such as '0 3 * * *', or a timedelta, not {when!r}")
        now_ms = store._clock.now_ms()
        store._ticking.check_step(now_ms)  # else it would send, or wait for, what a wrong clock says
        made, ticket = store._scheduler.put(made, now_ms)
        store._settle(store.engine.pops, ticket)
        store._ticker_wake.notify()
        store._arrived()  # what was due of the times before
        return made

    def delete(self, name: str) -> bool:
        """End a schedule; says whether there was one. What it has sent stays."""
        store = self._store._as_owner("schedules.delete")
        check_name("schedule", name)
        was_there, ticket = store._scheduler.delete(name, store._clock.now_ms())
        store._settle(store.engine.pops, ticket)
        return was_there


class Scheduler:
    """Sends what schedules have due; their notes change here alone, one at a time.

    What is in memory follows from the notes, and is looked up again whenever they are other ones: a step that failed, was interrupted or
    was lost with its disk has left what it has left.

    Args:
        limit: messages in one step.

    Attributes:
        seen: the notes that were looked at last.
        next_ms: when the first one is due by them, ms since the epoch; None when there is none.
        sent: messages that the last run has sent, also one that ended by an error.
    """

    def __init__(self, pops: PopStore, completer: Completer, held: Held, limit: int) -> None:
        self._pops = pops
        self._completer = completer
        self._held = held
        self._limit = limit
        self._lock = threading.Lock()
        self.seen: Mapping[str, bytes] = {}
        self._all: dict[str, Schedule] = {}
        self.next_ms: int | None = None
        self.sent = 0
        self.look()

    def look(self) -> None:
        """Know what the notes of the store say by now."""
        with self._lock:  # what is looked at last is the latest, and all that is known is of one look
            self._look()

    def _look(self) -> None:
        notes = self._pops.notes()
        if notes is not self.seen:
            self._all = {each.name: each for each in _schedules_in(notes)}
            self.next_ms = min((each.next_ms for each in self._all.values()), default=None)
            self.seen = notes

    def put(self, made: Schedule, now_ms: int) -> tuple[Schedule, Ticket]:
        """Keep a schedule, which begins from now, unless it has the times of the one that has its name.

        What is due of the times that it had before is sent first.
        """
        while True:
            with self._lock:
                self._look()
                known, due = self._all.get(made.name), []
                if known is not None and (known.cron, known.zone, known.every_ms) == (made.cron, made.zone, made.every_ms):
                    made = structs.replace(made, next_ms=known.next_ms)
                    return made, self._step(made.name, made, (), now_ms)
                if known is not None and known.next_ms <= now_ms and self._held.is_moving:
                    try:
                        self._send(known, now_ms)
                        continue
                    except IllegalArgumentError:  # of its times nobody here knows more than the first
                        due = [_copy(known, known.next_ms)]
                if (next_ms := next(made.times(now_ms), None)) is None:
                    raise IllegalArgumentError(f"the cron expression {made.cron!r} names no time within 50 years")
                made = structs.replace(made, next_ms=next_ms)
                return made, self._step(made.name, made, due, now_ms)

    def delete(self, name: str, now_ms: int) -> tuple[bool, Ticket]:
        """End a schedule."""
        with self._lock:
            self._look()
            was_there = name in self._all
            return was_there, self._step(name, None, (), now_ms)

    def run(self, now_ms: int) -> tuple[int, Ticket, IllegalArgumentError | None]:
        """Send all that is due; returns how many messages that were, the ticket of the last step, and why a schedule stands still.

        Other calls come between steps. Of a schedule whose times cannot be told here nothing is sent, and others go on.
        """
        self.sent, ticket = 0, Ticket(0)
        failed: dict[str, IllegalArgumentError] = {}
        while self._held.is_moving:
            with self._lock:
                self._look()
                able = (each for each in self._all.values() if each.name not in failed)
                first = min(able, key=attrgetter("next_ms"), default=None)
                if first is None or first.next_ms > now_ms:
                    break
                try:
                    number, ticket = self._send(first, now_ms)
                    self.sent += number
                except IllegalArgumentError as error:
                    error.args = (f"schedule {first.name!r} stands still: {error}",)
                    failed[first.name] = error
        return self.sent, ticket, next(iter(failed.values()), None)

    def _send(self, schedule: Schedule, now_ms: int) -> tuple[int, Ticket]:
        """Send what one schedule has due, or as much as a step holds."""
        due = [schedule.next_ms]
        after: Schedule | None
        if schedule.catch_up:
            later = takewhile(lambda at: at <= now_ms, schedule.times(schedule.next_ms))
            due += islice(later, min(self._limit, max(_STEP_BYTES // len(schedule.message.body), 1)) - 1)
            after = schedule.on(due[-1])
        else:
            after = schedule.on(now_ms)
        assert after is None or after.next_ms > due[-1], f"the times of schedule {schedule.name} rise"
        return len(due), self._step(schedule.name, after, [_copy(schedule, at) for at in due], now_ms)

    def _step(self, name: str, after: Schedule | None, messages: Sequence[Message], now_ms: int) -> Ticket:
        """Send messages, and note how the schedule is behind them; None lets go of it."""
        notes = {_PREFIX + name: None if after is None else msgspec.msgpack.encode(after)}
        while True:
            queues: Mapping[str, int] = {
                each.topic: self._completer.group_queues(each.topic) for each in messages[:1] if each.message_group is not None
            }
            batch = self._completer.batch(MessageBatch(messages=messages), None, now_ms, (), queues) if messages else None
            result, ticket = self._pops.apply(PopTxn(appends=batch, notes=notes, group_queues=queues), now_ms)
            if result.status is not WriteStatus.MOVED:
                self._look()
                return ticket


def _schedules_in(notes: Mapping[str, bytes]) -> builtins.list[Schedule]:
    found = (value for name, value in notes.items() if name.startswith(_PREFIX))
    return sorted((msgspec.msgpack.decode(value, type=Schedule) for value in found), key=lambda each: each.name)


def _copy(schedule: Schedule, at_ms: int) -> Message:
    message = schedule.message
    return structs.replace(
        message,
        properties={**message.properties, PROPERTY_SCHEDULE: schedule.name, PROPERTY_SCHEDULED_MS: str(at_ms)},
        message_id=id_of_mark(f"{schedule.name} {at_ms}".encode(), 0),
    )


def _scheduled(message: Message) -> Message:
    """Return the message of a schedule, checked, so that it can be kept and copied."""
    if not isinstance(message, Message):
        raise IllegalMessageTypeError(f"a schedule sends a Message, not {type(message).__name__}")
    check_message(message)
    message = structs.replace(message, properties=dict(message.properties))
    if message.deliver_at_ms is not None or message.message_id is not None or not message.properties.keys().isdisjoint(REQUEST_PROPERTIES):
        raise IllegalMessageError("the message of a schedule has neither a deliver time nor an id; each copy gets its own")
    check_message(_copy(Schedule(name="x" * 127, message=message), 2**62))
    size = len(msgspec.msgpack.encode(message))
    if size > _MESSAGE_BYTES:
        raise IllegalMessageError(
            f"the message of a schedule has {size} bytes; {_MESSAGE_BYTES} are allowed: let it name what is to be done, and keep the data "
            "elsewhere"
        )
    return message


def _zone(name: str) -> tzinfo:
    if name == "UTC":  # also where no time zones are installed
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, TypeError, OSError, LookupError) as error:
        raise IllegalArgumentError(
            f"zone {name!r} is no time zone that this machine knows, such as Europe/Berlin; `pip install tzdata` brings them all"
        ) from error


def _times_of(expression: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    from cronsim import CronSim, CronSimError  # few programs need it

    try:
        if len(expression.split()) != 5:
            raise ValueError("it has another number of fields")
        times = CronSim(expression, datetime.fromtimestamp(after_ms / 1000, zone))
    except (CronSimError, ValueError, OverflowError) as error:
        raise IllegalArgumentError(f"{expression!r} is no cron expression of five fields, such as '0 3 * * *': {error}") from error
    try:
        for each in times:
            # In an hour that comes twice it begins with the first one again.
            if (at_ms := int(each.timestamp()) * 1000) > after_ms:
                yield at_ms
    except OverflowError:  # the end of what a datetime can say
        return
