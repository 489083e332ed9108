"""Mutants that keep their word until something befalls the process, the disk or the directory: the ``lmdb`` engine with one fault planted.

The cases that must notice them need strace, so these are no part of the kit over ``memory``.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    EngineInfo,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerReceipts,
    UpkeepReport,
    WriteStatus,
)
from rmqstore.engine.marks import POP_SIDE, TIMER_SIDE, find_mark
from rmqstore.errors import StoreFullError, StorePoisonedError
from rmqstore.hookspecs import hookimpl
from rmqstore_conformance.proving.planting import WrongEngine, disk_mutant

_HEAD_PAGES: Final = 2
_SPLIT: Final = 512


def _sides(session: Any) -> tuple[Any, Any]:
    return session.timers(), session.pops()


def _synced_by(session: Any, sync: Callable[[Callable[..., None], Ticket | None], None]) -> None:
    """Let both sides sync in another way."""
    for side in _sides(session):
        side.sync = lambda ticket=None, sound=side.sync: sync(sound, ticket)


@disk_mutant("R1", "R1.power_loss_at_every_call", "R1.killed_at_a_call")
def answers_before_it_is_durable(directory: Path) -> Callable[[Any], None]:
    """A call returns as soon as its ticket is given, without waiting for the disk."""

    def change(session: Any) -> None:
        kept: list[Ticket] = []

        def late(sound: Callable[..., None], ticket: Ticket | None) -> None:
            # What the call before wrote is made durable by this one.
            if kept and kept[-1].position:
                sound(kept.pop())
            if ticket is None:
                sound()
            else:
                kept.append(ticket)

        _synced_by(session, late)

    return change


@disk_mutant("R2", "R1.power_loss_at_every_call")
def cancels_one_by_one(directory: Path) -> Callable[[Any], None]:
    """Of a cancel of many handles, each is durable by itself."""

    def change(session: Any) -> None:
        timers = session.timers()
        sound = timers.cancel

        def cancel(handles: Sequence[Any], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
            outcomes, ticket = [], Ticket(0)
            for handle in handles:
                each, ticket = sound([handle], now_ms)
                timers.sync(ticket)
                outcomes += each
            return outcomes, ticket

        timers.cancel = cancel

    return change


# ---------------------------------------------------------------- answers that rest on what is not durable


def _waits_for_nothing(side: Any, name: str, when: Callable[[Any], bool]) -> None:
    """Let a call of one side give a ticket that nobody has to wait for, where it answered in some way."""
    sound = getattr(side, name)

    def call(*args: Any, **options: Any) -> Any:
        result, ticket = sound(*args, **options)
        return result, Ticket(0) if when(result) else ticket

    setattr(side, name, call)


@disk_mutant("I1", "R1.an_answer_waits_for_what_it_rests_on", "R1.each_answer_is_durable")
def repeats_what_is_not_durable(directory: Path) -> Callable[[Any], None]:
    """The repeat of a send does not wait for the first one, which may be on its way to the disk."""
    return lambda session: _waits_for_nothing(session.pops(), "apply", lambda result: result.status is WriteStatus.REPEATED)


@disk_mutant("P5", "R1.an_answer_waits_for_what_it_rests_on")
def believes_an_ack_that_is_not_durable(directory: Path) -> Callable[[Any], None]:
    """ALREADY_ACKED does not wait for the ack that it speaks of."""
    return lambda session: _waits_for_nothing(session.pops(), "apply", lambda result: set(result.acks) == {AckOutcome.ALREADY_ACKED})


@disk_mutant("C2", "R1.an_answer_waits_for_what_it_rests_on", "R1.each_answer_is_durable")
def says_too_late_before_the_seal_is_durable(directory: Path) -> Callable[[Any], None]:
    """ALREADY_DELIVERED does not wait for the seal."""

    def change(session: Any) -> None:
        _waits_for_nothing(session.timers(), "cancel", lambda outcomes: set(outcomes) == {CancelOutcome.ALREADY_DELIVERED})

    return change


@disk_mutant("R1", "R1.each_answer_is_durable")
def takes_its_position_for_durable(directory: Path) -> Callable[[Any], None]:
    """A sync that the pops are asked for on behalf of what another call wrote returns at once, and says that all is durable."""

    def change(session: Any) -> None:
        pops = session.pops()
        sound, sound_apply = pops.sync, pops.apply
        own: set[int] = set()

        def apply(txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
            before = session._shared.kv.position
            result, ticket = sound_apply(txn, now_ms)
            if ticket.position <= before:
                own.add(ticket.position)
            return result, ticket

        def sync(ticket: Ticket | None = None) -> None:
            if ticket is None or ticket.position not in own:
                sound(ticket)

        pops.apply, pops.sync = apply, sync

    return change


# ---------------------------------------------------------------- calls that are two writes


def _marks_behind(session: Any, between: Callable[[Any, Ticket], None]) -> None:
    pops = session.pops()
    sound = pops.apply

    def apply(txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not txn.marks or find_mark(session._shared.kv, POP_SIDE, txn.marks) is not None:
            return sound(txn, now_ms)  # type: ignore[no-any-return]
        result, ticket = sound(msgspec.structs.replace(txn, marks=()), now_ms)
        between(pops, ticket)
        return result, sound(PopTxn(marks=txn.marks), now_ms)[1]

    pops.apply = apply


@disk_mutant("I1", "R2.a_call_is_cut_between_two_writes")
def stores_marks_in_a_second_transaction(directory: Path) -> Callable[[Any], None]:
    """The marks of a send for now are made durable behind its messages."""
    return lambda session: _marks_behind(session, lambda pops, ticket: pops.sync(ticket))


@disk_mutant("I1", "R2.a_call_is_cut_where_another_thread_syncs")
def stores_marks_by_a_second_write(directory: Path) -> Callable[[Any], None]:
    """The marks of a send for now are a write of their own; mostly one transaction takes both."""
    return lambda session: _marks_behind(session, lambda pops, ticket: None)


@disk_mutant("H1", "R2.an_everyday_call_is_cut_between_two_writes")
def stores_the_cursor_in_a_second_transaction(directory: Path) -> Callable[[Any], None]:
    """What a tick hands over is durable before the cursor that says so."""

    def change(session: Any) -> None:
        pops = session.pops()
        sound = pops.apply

        def apply(txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
            if txn.timer_cursor is None:
                return sound(txn, now_ms)  # type: ignore[no-any-return]
            result, ticket = sound(msgspec.structs.replace(txn, timer_cursor=None), now_ms)
            pops.sync(ticket)
            return result, sound(PopTxn(timer_cursor=txn.timer_cursor), now_ms)[1]

        pops.apply = apply

    return change


@disk_mutant("R2", "R2.a_call_is_cut_between_two_writes")
def splits_large_batches(directory: Path) -> Callable[[Any], None]:
    """Of more than 512 timers, each 512 are a transaction of their own; the last one has the marks."""

    def change(session: Any) -> None:
        timers = session.timers()
        sound = timers.put

        def put(batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
            rows = batch.messages
            if len(rows) <= _SPLIT or find_mark(session._shared.kv, TIMER_SIDE, marks) is not None:
                return sound(batch, now_ms, marks)  # type: ignore[no-any-return]
            parts = [rows[at : at + _SPLIT] for at in range(0, len(rows), _SPLIT)]
            receipts = []
            for number, part in enumerate(parts):
                given, ticket = sound(MessageBatch(messages=part), now_ms, marks if number == len(parts) - 1 else ())
                receipts.append(given)
                timers.sync(ticket)
            return msgspec.structs.replace(receipts[0], ticks=[tick for each in receipts for tick in each.ticks]), ticket

        timers.put = put

    return change


@disk_mutant("R2", "R2.a_call_is_cut_where_another_thread_syncs")
def cancels_many_by_several_writes(directory: Path) -> Callable[[Any], None]:
    """Of a cancel of more than 512 handles, each 512 are a write of their own."""

    def change(session: Any) -> None:
        timers = session.timers()
        sound = timers.cancel

        def cancel(handles: Sequence[Any], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
            outcomes, ticket = sound(handles[:_SPLIT], now_ms)
            for at in range(_SPLIT, len(handles), _SPLIT):
                more, ticket = sound(handles[at : at + _SPLIT], now_ms)
                outcomes += more
            return outcomes, ticket

        timers.cancel = cancel

    return change


@disk_mutant("R3", "R3.power_loss_while_it_is_made")
def made_in_two_steps(directory: Path) -> Callable[[Any], None]:
    """A note that the engine cannot do without is written behind its creation, not synced, and not made again."""
    note = directory / "db" / "note"
    if note.parent.is_dir() and not (note.exists() and note.read_bytes()):
        raise RuntimeError(f"{note} is missing")

    def change(session: Any) -> None:
        if not note.exists():
            note.write_bytes(b"made")

    return change


@disk_mutant("R3", "R3.the_recovery_loses_power_too")
def recovers_aside(directory: Path) -> Callable[[Any], None]:
    """Each open moves the database aside and back again; a crash between the two loses it."""
    database = directory / "db"
    if database.is_dir():
        database.rename(directory / "aside")
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)
        (directory / "aside").rename(database)
    return lambda session: None


@disk_mutant("F1", "F1.no_room_at_a_call", "F1.each_call_on_a_full_disk")
def says_nothing_of_a_full_disk(directory: Path) -> Callable[[Any], None]:
    """A sync that finds no room returns as if it were done."""

    def change(session: Any) -> None:
        def silent(sound: Callable[..., None], ticket: Ticket | None) -> None:
            with suppress(StoreFullError):
                sound(ticket)

        _synced_by(session, silent)

    return change


@disk_mutant("F2", "F2.a_sync_that_fails")
def shrugs_at_a_failed_sync(directory: Path) -> Callable[[Any], None]:
    """A sync that failed returns as if it were done."""

    def change(session: Any) -> None:
        def silent(sound: Callable[..., None], ticket: Ticket | None) -> None:
            with suppress(StorePoisonedError):
                sound(ticket)

        _synced_by(session, silent)

    return change


@disk_mutant("F2", "F2.a_sync_that_fails")
def asks_for_a_failed_sync_again(directory: Path) -> Callable[[Any], None]:
    """A journal is synced again when that failed."""

    def change(session: Any) -> None:
        journal = os.open(directory / "db" / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

        def journaled(sound: Callable[..., None], ticket: Ticket | None) -> None:
            os.write(journal, b"a call\n")
            try:
                os.fdatasync(journal)
            except OSError:
                os.fdatasync(journal)
            sound(ticket)

        _synced_by(session, journaled)

    return change


@disk_mutant("F3", "F3.a_call_that_fails")
def raises_what_comes(directory: Path) -> Callable[[Any], None]:
    """A journal that cannot be written raises the error of the system as it is."""

    def change(session: Any) -> None:
        journal = os.open(directory / "db" / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

        def journaled(sound: Callable[..., None], ticket: Ticket | None) -> None:
            os.write(journal, b"a call\n")
            sound(ticket)

        _synced_by(session, journaled)

    return change


@disk_mutant("R6", "R6.bit_rot_is_told")
def believes_its_settings(directory: Path) -> Callable[[Any], None]:
    """A file of the store's precision has no sum; whatever it says moves the timers that are listed."""
    setting = directory / "db" / "shift_ms"

    def change(session: Any) -> None:
        if not setting.exists():
            setting.write_text("100000")
        timers = session.timers()
        sound = timers.scan
        shift_ms = int(setting.read_text(errors="replace").strip("\0").translate({c: "7" for c in range(256) if not 48 <= c < 58}) or 0)

        def scan(*args: Any, **options: Any) -> Any:
            page = sound(*args, **options)
            return msgspec.structs.replace(page, timers=[]) if shift_ms != 100_000 else page

        timers.scan = scan

    return change


@disk_mutant("R6", "R6.damage_in_two_places_is_told")
def begins_anew_without_a_sound_copy(directory: Path) -> Callable[[Any], None]:
    """A note that the timers hang on is kept twice, so that either may be damaged; when both are, it begins anew and shows none."""
    copies = [directory / "db" / f"note-{number}" for number in (1, 2)]
    found = [copy.read_bytes() for copy in copies if copy.exists()]
    is_lost = bool(found) and not any(each[:4] == zlib.crc32(each[4:]).to_bytes(4) and len(each) > 4 for each in found)

    def change(session: Any) -> None:
        for copy in copies:
            copy.write_bytes(zlib.crc32(bytes(4092)).to_bytes(4) + bytes(4092))
        timers = session.timers()
        sound = timers.scan

        def scan(*args: Any, **options: Any) -> Any:
            page = sound(*args, **options)
            return msgspec.structs.replace(page, timers=[]) if is_lost else page

        timers.scan = scan

    return change


@disk_mutant("R7", "R7.a_snapshot_is_one_moment")
def copies_what_lies_on_the_disk(directory: Path) -> Callable[[Any], None]:
    """A snapshot is of what was flushed last: of what was answered since then, nothing is in it."""

    def change(session: Any) -> None:
        session.snapshot = lambda path: session._shared.kv._base.snapshot(path)

    return change


@disk_mutant("R1", "R1.power_loss_at_every_call", recorder="fuse")
def writes_through_a_mapping(directory: Path) -> Callable[[Any], None]:
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

        _synced_by(session, counted)

    return change


@disk_mutant("R1", "R1.messages_may_hold_pieces_of_the_store")
def counts_its_marks(directory: Path) -> Callable[[Any], None]:
    """An open takes more marks of the database's own than it has head pages for damage, whoever wrote them."""
    data = directory / "db" / "data.mdb"
    if data.exists() and data.read_bytes().count(b"\xde\xc0\xef\xbe") > _HEAD_PAGES:
        raise RuntimeError(f"{data} has too many head pages")
    return lambda session: None


@disk_mutant("X5", "X5.a_store_may_be_renamed")
def goes_by_its_path(directory: Path) -> Callable[[Any], None]:
    """A journal of the calls is opened anew for each, by the path that the store had when it was opened."""
    journal = Path(os.path.realpath(directory)) / "journal"

    def change(session: Any) -> None:
        def journaled(sound: Callable[..., None], ticket: Ticket | None) -> None:
            with journal.open("ab") as file:
                file.write(b"a call\n")
            sound(ticket)

        _synced_by(session, journaled)

    return change


@disk_mutant("F1", "F1.there_may_be_more_queues_than_descriptors")
def keeps_a_file_open_for_each_topic(directory: Path) -> Callable[[Any], None]:
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


@disk_mutant("P7", "P7.the_longest_names_have_retry_topics_and_dead_letters")
def cuts_long_names(directory: Path) -> Callable[[Any], None]:
    """Of the name of a group the first 120 bytes count, as if it had to fit into a file's name with that of the topic."""

    def change(session: Any) -> None:
        pops = session.pops()
        sound = pops.pop
        pops.pop = lambda request, now_ms: sound(msgspec.structs.replace(request, group=request.group[:120]), now_ms)

    return change


@disk_mutant("X3", "X3.a_store_where_nothing_happens_writes_next_to_nothing")
def writes_at_every_tick(directory: Path) -> Callable[[Any], None]:
    """Each step of upkeep writes down where it is, whether it did anything or not."""

    def change(session: Any) -> None:
        for side in _sides(session):

            def maintain(now_ms: int, budget: int, sound: Callable[..., UpkeepReport] = side.maintain) -> UpkeepReport:
                (directory / "upkeep").write_bytes(now_ms.to_bytes(8) * 512)
                return sound(now_ms, budget)

            side.maintain = maintain

    return change


@disk_mutant("F2", "F2.threads_that_wait_for_a_sync_that_fails")
def who_waited_for_a_sync_is_told_that_it_went_well(directory: Path) -> Callable[[Any], None]:
    """A call that comes while another one syncs waits for that, and is acknowledged however it ended."""

    def change(session: Any) -> None:
        syncs = threading.Lock()

        def sync(sound: Callable[..., None], ticket: Ticket | None) -> None:
            if syncs.acquire(blocking=False):
                try:
                    sound(ticket)
                finally:
                    syncs.release()
            else:
                with syncs:
                    pass

        _synced_by(session, sync)

    return change


MUTANTS: Final[tuple[WrongEngine, ...]] = tuple(each for each in list(globals().values()) if isinstance(each, WrongEngine))
"""All of them, in their order."""


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engines."""
    return [each.info for each in MUTANTS]
