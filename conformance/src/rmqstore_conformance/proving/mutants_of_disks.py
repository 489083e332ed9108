"""Mutants that keep their word until something befalls the process, the disk or the directory: the ``lmdb`` engine with one fault planted.

The cases that must notice them need strace, so these are no part of the kit over ``memory``.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    EngineInfo,
    PopRequest,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerHandle,
    TimerReceipts,
    UpkeepReport,
    WriteStatus,
)
from rmqstore.engine.marks import POP_SIDE, TIMER_SIDE, find_mark
from rmqstore.engine.schema import CURSOR_KEY, META
from rmqstore.errors import StoreFullError, StorePoisonedError
from rmqstore.hookspecs import hookimpl
from rmqstore_conformance.proving import mutants_of_answers, mutants_of_writes
from rmqstore_conformance.proving.kinds import Opened, Sync, asks, at_once, but, opens, synced_by, syncs, two_writes
from rmqstore_conformance.proving.mutants import PARTS
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, WrongEngine, mutant, mutants_in

disk_mutant: Final = functools.partial(mutant, base=LMDB)
_HEAD_PAGES: Final = 2
_SPLIT: Final = 512


@disk_mutant("R1", "R1.power_loss_at_every_call", "R1.killed_at_a_call", at=syncs)
def answers_before_it_is_durable(directory: Path) -> Sync:
    """A call returns as soon as its ticket is given, without waiting for the disk."""
    kept: list[Ticket] = []

    def late(sound: Callable[..., None], ticket: Ticket | None) -> None:
        # What the call before wrote is made durable by this one.
        if kept and kept[-1].position:
            sound(kept.pop())
        if ticket is None:
            sound()
        else:
            kept.append(ticket)

    return late


@disk_mutant("R2", "R1.power_loss_at_every_call")
class CancelsOneByOne(Timers):
    """Of a cancel of many handles, each is durable by itself."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        outcomes, ticket = [], Ticket(0)
        for handle in handles:
            each, ticket = super().cancel([handle], now_ms)
            self.sync(ticket)
            outcomes += each
        return outcomes, ticket


# ---------------------------------------------------------------- answers that rest on what is not durable


@disk_mutant("I1", "R1.an_answer_waits_for_what_it_rests_on", "X3.no_answer_before_its_sync", at=at_once(Pops, "apply"))
def repeats_what_is_not_durable(txn: PopTxn, result: PopTxnResult) -> bool:
    """The repeat of a send does not wait for the first one, which may be on its way to the disk."""
    return result.status is WriteStatus.REPEATED


@disk_mutant("P5", "R1.an_answer_waits_for_what_it_rests_on", "X3.no_answer_before_its_sync", at=at_once(Pops, "apply"))
def believes_an_ack_that_is_not_durable(txn: PopTxn, result: PopTxnResult) -> bool:
    """ALREADY_ACKED does not wait for the ack that it speaks of."""
    return set(result.acks) == {AckOutcome.ALREADY_ACKED}


@disk_mutant("C2", "R1.an_answer_waits_for_what_it_rests_on", "X3.no_answer_before_its_sync", at=at_once(Timers, "cancel"))
def says_too_late_before_the_seal_is_durable(handles: Sequence[TimerHandle], outcomes: list[CancelOutcome]) -> bool:
    """ALREADY_DELIVERED does not wait for the seal."""
    return set(outcomes) == {CancelOutcome.ALREADY_DELIVERED}


@disk_mutant("R1", "R1.each_answer_is_durable")
class TakesItsPositionForDurable(Pops):
    """A sync that the pops are asked for on behalf of what another call wrote returns at once, and says that all is durable."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        before = self._shared.kv.position
        result, ticket = super().apply(txn, now_ms)
        if ticket.position <= before:
            self.noted[ticket.position] = True
        return result, ticket

    def sync(self, ticket: Ticket | None = None) -> None:
        if ticket is None or ticket.position not in self.noted:
            super().sync(ticket)


# ---------------------------------------------------------------- calls that are two writes


class _MarksBehind(Pops):
    def between(self, ticket: Ticket) -> None:
        """Called between the two writes."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not txn.marks or find_mark(self._shared.kv, POP_SIDE, txn.marks) is not None:
            return super().apply(txn, now_ms)
        result, ticket = super().apply(but(txn, marks=()), now_ms)
        self.between(ticket)
        return result, super().apply(PopTxn(marks=txn.marks), now_ms)[1]


@disk_mutant("I1", "R2.a_call_is_cut_between_two_writes")
class StoresMarksInASecondTransaction(_MarksBehind):
    """The marks of a send for now are made durable behind its messages."""

    def between(self, ticket: Ticket) -> None:
        self.sync(ticket)


@disk_mutant("R2", "R2.a_call_is_cut_where_another_thread_syncs")
class StoresMarksByASecondWrite(_MarksBehind):
    """The marks of a send for now are a write of their own; mostly one transaction takes both."""


@disk_mutant("H1", "R2.an_everyday_call_is_cut_between_two_writes", at=two_writes(Pops, "apply"))
def stores_the_cursor_in_a_second_transaction(space: int, key: bytes) -> bool:
    """What a tick hands over is durable before the cursor that says so."""
    return space == META and key == CURSOR_KEY


@disk_mutant("R2", "R2.a_call_is_cut_between_two_writes")
class SplitsLargeBatches(Timers):
    """Of more than 512 timers, each 512 are a transaction of their own; the last one has the marks."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        rows = batch.messages
        if len(rows) <= _SPLIT or find_mark(self._shared.kv, TIMER_SIDE, marks) is not None:
            return super().put(batch, now_ms, marks)
        receipts = []
        for at in range(0, len(rows), _SPLIT):
            part = MessageBatch(messages=rows[at : at + _SPLIT])
            given, ticket = super().put(part, now_ms, marks if at + _SPLIT >= len(rows) else ())
            receipts.append(given)
            self.sync(ticket)
        return but(receipts[0], ticks=[tick for each in receipts for tick in each.ticks]), ticket


@disk_mutant("R2", "R2.a_call_is_cut_where_another_thread_syncs")
class CancelsManyBySeveralWrites(Timers):
    """Of a cancel of more than 512 handles, each 512 are a write of their own."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        outcomes, ticket = super().cancel(handles[:_SPLIT], now_ms)
        for at in range(_SPLIT, len(handles), _SPLIT):
            more, ticket = super().cancel(handles[at : at + _SPLIT], now_ms)
            outcomes += more
        return outcomes, ticket


# ---------------------------------------------------------------- opens


@disk_mutant("R3", "R3.power_loss_while_it_is_made", at=opens)
def made_in_two_steps(directory: Path) -> Opened:
    """A note that the engine cannot do without is written behind its creation, not synced, and not made again."""
    note = directory / "db" / "note"
    if note.parent.is_dir() and not (note.exists() and note.read_bytes()):
        raise RuntimeError(f"{note} is missing")
    return lambda session: None if note.exists() else note.write_bytes(b"made")


@disk_mutant("R3", "R3.the_recovery_loses_power_too", at=opens)
def recovers_aside(directory: Path) -> Opened:
    """Each open moves the database aside and back again; a crash between the two loses it."""
    database = directory / "db"
    if database.is_dir():
        database.rename(directory / "aside")
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)
        (directory / "aside").rename(database)
    return lambda session: None


@disk_mutant("R1", "R1.messages_may_hold_pieces_of_the_store", at=opens)
def counts_its_marks(directory: Path) -> Opened:
    """An open takes more marks of the database's own than it has head pages for damage, whoever wrote them."""
    data = directory / "db" / "data.mdb"
    if data.exists() and data.read_bytes().count(b"\xde\xc0\xef\xbe") > _HEAD_PAGES:
        raise RuntimeError(f"{data} has too many head pages")
    return lambda session: None


def _shows_no_timers(session: Any) -> None:
    timers = session.timers()
    sound = timers.scan

    def scan(*args: Any, **options: Any) -> Any:
        return but(sound(*args, **options), timers=[])

    timers.scan = scan


@disk_mutant("R6", "R6.bit_rot_is_told", at=opens)
def believes_its_settings(directory: Path) -> Opened:
    """A file of the store's precision has no sum; whatever it says moves the timers that are listed."""
    setting = directory / "db" / "shift_ms"

    def change(session: Any) -> None:
        if not setting.exists():
            setting.write_text("100000")
        elif setting.read_bytes().strip(b"\0") != b"100000":
            _shows_no_timers(session)

    return change


@disk_mutant("R6", "R6.damage_in_two_places_is_told", at=opens)
def begins_anew_without_a_sound_copy(directory: Path) -> Opened:
    """A note that the timers hang on is kept twice, so that either may be damaged; when both are, it begins anew and shows none."""
    copies = [directory / "db" / f"note-{number}" for number in (1, 2)]
    found = [copy.read_bytes() for copy in copies if copy.exists()]
    is_lost = bool(found) and not any(each[:4] == zlib.crc32(each[4:]).to_bytes(4) and len(each) > 4 for each in found)

    def change(session: Any) -> None:
        for copy in copies:
            copy.write_bytes(zlib.crc32(bytes(4092)).to_bytes(4) + bytes(4092))
        if is_lost:
            _shows_no_timers(session)

    return change


@disk_mutant("R7", "R7.a_snapshot_is_one_moment", at=opens)
def copies_what_lies_on_the_disk(directory: Path) -> Opened:
    """A snapshot is of what was flushed last: of what was answered since then, nothing is in it."""

    def change(session: Any) -> None:
        session.snapshot = session._shared.kv._base.snapshot

    return change


# ---------------------------------------------------------------- syncs that fail, and files of its own


@disk_mutant("F1", "F1.no_room_at_a_call", "F1.each_call_on_a_full_disk", at=syncs)
def says_nothing_of_a_full_disk(directory: Path) -> Sync:
    """A sync that finds no room returns as if it were done."""

    def silent(sound: Callable[..., None], ticket: Ticket | None) -> None:
        with suppress(StoreFullError):
            sound(ticket)

    return silent


@disk_mutant("F2", "F2.a_sync_that_fails", at=syncs)
def shrugs_at_a_failed_sync(directory: Path) -> Sync:
    """A sync that failed returns as if it were done."""

    def silent(sound: Callable[..., None], ticket: Ticket | None) -> None:
        with suppress(StorePoisonedError):
            sound(ticket)

    return silent


def _journal(directory: Path) -> int:
    return os.open(directory / "db" / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


@disk_mutant("F2", "F2.a_sync_that_fails", at=syncs)
def asks_for_a_failed_sync_again(directory: Path) -> Sync:
    """A journal is synced again when that failed."""
    journal = _journal(directory)

    def journaled(sound: Callable[..., None], ticket: Ticket | None) -> None:
        os.write(journal, b"a call\n")
        try:
            os.fdatasync(journal)
        except OSError:
            os.fdatasync(journal)
        sound(ticket)

    return journaled


@disk_mutant("F3", "F3.a_call_that_fails", at=syncs)
def raises_what_comes(directory: Path) -> Sync:
    """A journal that cannot be written raises the error of the system as it is."""
    journal = _journal(directory)

    def journaled(sound: Callable[..., None], ticket: Ticket | None) -> None:
        os.write(journal, b"a call\n")
        sound(ticket)

    return journaled


@disk_mutant("X5", "X5.a_store_may_be_renamed", at=syncs)
def goes_by_its_path(directory: Path) -> Sync:
    """A journal of the calls is opened anew for each, by the path that the store had when it was opened."""
    journal = Path(os.path.realpath(directory)) / "journal"

    def journaled(sound: Callable[..., None], ticket: Ticket | None) -> None:
        with journal.open("ab") as file:
            file.write(b"a call\n")
        sound(ticket)

    return journaled


@disk_mutant("R1", "R1.power_loss_at_every_call", recorder="fuse", at=opens)
def writes_through_a_mapping(directory: Path) -> Opened:
    """A count of calls that an open insists on is kept through a mapping, synced before the call that it counts: too early."""
    count = directory / "db" / "count"
    if count.exists() and int.from_bytes(count.read_bytes()[:8]) > 3:
        raise RuntimeError(f"{count} counts more calls than there were")

    def change(session: Any) -> None:
        count.write_bytes(bytes(mmap.PAGESIZE))
        fd = os.open(count, os.O_RDWR | os.O_CLOEXEC)
        mapping = mmap.mmap(fd, mmap.PAGESIZE)

        def counted(sound: Callable[..., None], ticket: Ticket | None) -> None:
            mapping[:8] = (int.from_bytes(mapping[:8]) + 1).to_bytes(8)
            mapping.flush()
            sound(ticket)

        synced_by(session, counted)

    return change


@disk_mutant("F2", "F2.threads_that_wait_for_a_sync_that_fails", at=syncs)
def who_waited_for_a_sync_is_told_that_it_went_well(directory: Path) -> Sync:
    """A call that comes while another one syncs waits for that, and is acknowledged however it ended."""
    leading = threading.Lock()

    def sync(sound: Callable[..., None], ticket: Ticket | None) -> None:
        if leading.acquire(blocking=False):
            try:
                sound(ticket)
            finally:
                leading.release()
        else:
            with leading:
                pass

    return sync


@disk_mutant("F1", "F1.there_may_be_more_queues_than_descriptors", at=opens)
def keeps_a_file_open_for_each_topic(directory: Path) -> Opened:
    """Each topic has a file, which stays open from its first message on."""
    files: dict[str, IO[bytes]] = {}

    def change(session: Any) -> None:
        pops = session.pops()
        sound = pops.apply

        def apply(txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
            result: tuple[PopTxnResult, Ticket] = sound(txn, now_ms)
            for topic in pops.topics():
                if topic.name not in files:
                    files[topic.name] = (directory / f"topic-{topic.name}").open("ab")
            return result

        pops.apply = apply

    return change


@disk_mutant("P7", "P7.the_longest_names_have_retry_topics_and_dead_letters", at=asks(Pops, "pop"))
def cuts_long_names(request: PopRequest) -> PopRequest:
    """Of the name of a group the first 120 bytes count, as if it had to fit into a file's name with that of the topic."""
    return but(request, group=request.group[:120])


@disk_mutant("X3", "X3.a_store_where_nothing_happens_writes_next_to_nothing", at=opens)
def writes_at_every_tick(directory: Path) -> Opened:
    """Each step of upkeep writes down where it is, whether it did anything or not."""

    def change(session: Any) -> None:
        for side in session.timers(), session.pops():

            def maintain(now_ms: int, budget: int, sound: Callable[..., UpkeepReport] = side.maintain) -> UpkeepReport:
                (directory / "upkeep").write_bytes(now_ms.to_bytes(8) * 512)
                return sound(now_ms, budget)

            side.maintain = maintain

    return change


MUTANTS: Final[tuple[WrongEngine, ...]] = tuple(
    each for each in mutants_in([sys.modules[__name__], mutants_of_answers, mutants_of_writes, *PARTS]) if each.base == LMDB
)
"""All of them, in their order."""


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engines."""
    return [each.info for each in MUTANTS]
