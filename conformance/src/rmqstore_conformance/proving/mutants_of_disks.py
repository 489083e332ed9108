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
from typing import Any, Final

from rmqstore.batch import MessageBatch
from rmqstore.contract import AckOutcome, CancelOutcome, EngineInfo, PopTxn, Ticket, TimerHandle, WriteStatus
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.marks import POP_SIDE, TIMER_SIDE, find_mark
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.schema import CURSOR_KEY, META
from rmqstore.errors import StoreFullError, StorePoisonedError
from rmqstore.hookspecs import hookimpl
from rmqstore_conformance.proving import mutants_of_durability
from rmqstore_conformance.proving.kinds import Opened, Sync, asks, at_once, but, edit, instead, opens, synced_by, syncs, two_writes
from rmqstore_conformance.proving.mutants import PARTS
from rmqstore_conformance.proving.planting import (
    LMDB,
    Applied,
    Apply,
    Cancel,
    Cancelled,
    Placed,
    Pops,
    Put,
    Timers,
    WrongEngine,
    mutant,
    mutants_in,
)

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


@disk_mutant("R2", "R1.power_loss_at_every_call", at=instead(Timers, "cancel"))
def cancels_one_by_one(self: Timers, cancel: Cancel, handles: Sequence[TimerHandle], now_ms: int) -> Cancelled:
    """Of a cancel of many handles, each is durable by itself."""
    outcomes: list[CancelOutcome] = []
    ticket = Ticket(0)
    for handle in handles:
        each, ticket = cancel([handle], now_ms)
        self.sync(ticket)
        outcomes += each
    return outcomes, ticket


# ---------------------------------------------------------------- answers that rest on what is not durable

repeats_what_is_not_durable = disk_mutant("I1", "R1.an_answer_waits_for_what_it_rests_on", "X3.no_answer_before_its_sync")(
    "The repeat of a send does not wait for the first one, which may be on its way to the disk.",
    at_once(Pops, "apply")(lambda txn, result: result.status is WriteStatus.REPEATED),
)
believes_an_ack_that_is_not_durable = disk_mutant("P5", "R1.an_answer_waits_for_what_it_rests_on", "X3.no_answer_before_its_sync")(
    "ALREADY_ACKED does not wait for the ack that it speaks of.",
    at_once(Pops, "apply")(lambda txn, result: set(result.acks) == {AckOutcome.ALREADY_ACKED}),
)
says_too_late_before_the_seal_is_durable = disk_mutant("C2", "R1.an_answer_waits_for_what_it_rests_on", "X3.no_answer_before_its_sync")(
    "ALREADY_DELIVERED does not wait for the seal.",
    at_once(Timers, "cancel")(lambda handles, outcomes: set(outcomes) == {CancelOutcome.ALREADY_DELIVERED}),
)
takes_its_position_for_durable = disk_mutant("R1", "R1.each_answer_is_durable")(
    "The pops take what another call wrote for durable, and let no answer wait for it.",
    edit(OrderedPops._resting, "Ticket(self._shared.kv.position)", "Ticket(0)"),
)


# ---------------------------------------------------------------- calls that are two writes


def _marks_behind(side: Pops, apply: Apply, txn: PopTxn, now_ms: int, between: Callable[[Ticket], None] = lambda ticket: None) -> Any:
    """Store the marks of a call behind the call."""
    if not txn.marks or find_mark(side._shared.kv, POP_SIDE, txn.marks) is not None:
        return apply(txn, now_ms)
    result, ticket = apply(but(txn, marks=()), now_ms)
    between(ticket)
    return result, apply(PopTxn(marks=txn.marks), now_ms)[1]


@disk_mutant("I2", "R2.a_call_is_cut_between_two_writes", at=instead(Pops, "apply"))
def keeps_notes_in_a_second_transaction(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """The notes of a step are made durable behind what it sends."""
    if not txn.notes or txn.appends is None:
        return apply(txn, now_ms)
    result, ticket = apply(but(txn, notes={}), now_ms)
    self.sync(ticket)
    return result, apply(PopTxn(notes=txn.notes), now_ms)[1]


stores_marks_in_a_second_transaction = disk_mutant("I1", "R2.a_call_is_cut_between_two_writes")(
    "The marks of a send for now are made durable behind its messages.",
    instead(Pops, "apply")(lambda self, apply, txn, now_ms: _marks_behind(self, apply, txn, now_ms, self.sync)),
)
stores_marks_by_a_second_write = disk_mutant("R2", "R2.a_call_is_cut_where_another_thread_syncs")(
    "The marks of a send for now are a write of their own; mostly one transaction takes both.",
    instead(Pops, "apply")(lambda self, apply, txn, now_ms: _marks_behind(self, apply, txn, now_ms)),
)
stores_the_cursor_in_a_second_transaction = disk_mutant("H1", "R2.an_everyday_call_is_cut_between_two_writes")(
    "What a tick hands over is durable before the cursor that says so.",
    two_writes(Pops, "apply")(lambda space, key: space == META and key == CURSOR_KEY),
)


@disk_mutant("R2", "R2.a_call_is_cut_between_two_writes", at=instead(Timers, "put"))
def splits_large_batches(self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> Placed:
    """Of more than 512 timers, each 512 are a transaction of their own; the last one has the marks."""
    rows = batch.messages
    if len(rows) <= _SPLIT or find_mark(self._shared.kv, TIMER_SIDE, marks) is not None:
        return put(batch, now_ms, marks)
    receipts = []
    for at in range(0, len(rows), _SPLIT):
        given, ticket = put(MessageBatch(messages=rows[at : at + _SPLIT]), now_ms, marks if at + _SPLIT >= len(rows) else ())
        receipts.append(given)
        self.sync(ticket)
    return but(receipts[0], ticks=[tick for each in receipts for tick in each.ticks]), ticket


@disk_mutant("R2", "R2.a_call_is_cut_where_another_thread_syncs", at=instead(Timers, "cancel"))
def cancels_many_by_several_writes(self: Timers, cancel: Cancel, handles: Sequence[TimerHandle], now_ms: int) -> Cancelled:
    """Of a cancel of more than 512 handles, each 512 are a write of their own."""
    parts = [cancel(handles[at : at + _SPLIT], now_ms) for at in range(0, len(handles), _SPLIT)] or [cancel((), now_ms)]
    return [outcome for outcomes, _ in parts for outcome in outcomes], parts[-1][1]


@disk_mutant("R2", "R2.a_call_is_cut_where_another_thread_syncs", at=instead(Timers, "cancel_keys"))
def cancels_each_key_by_a_write(self: Timers, cancel_keys: Any, topic: str, keys: Sequence[str], now_ms: int) -> Any:
    """Of a cancel by many keys, the timers of each key are a write of their own."""
    parts = [cancel_keys(topic, [key], now_ms) for key in keys] or [cancel_keys(topic, (), now_ms)]
    return [outcomes for found, _ in parts for outcomes in found], parts[-1][1]


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


def _silent(error: type[Exception]) -> type:
    """Let a sync that ends with an error return as if it were done."""

    def sync(sound: Callable[..., None], ticket: Ticket | None) -> None:
        with suppress(error):
            sound(ticket)

    return syncs(lambda directory: sync)


says_nothing_of_a_full_disk = disk_mutant("F1", "F1.no_room_at_a_call", "F1.each_call_on_a_full_disk")(
    "A sync that finds no room returns as if it were done.", _silent(StoreFullError)
)
shrugs_at_a_failed_sync = disk_mutant("F2", "F2.a_sync_that_fails")(
    "A sync that failed returns as if it were done.", _silent(StorePoisonedError)
)


def _before_syncs(fault: Callable[[Path], Callable[[], object]]) -> type:
    """Do something before each sync of a session, which is made of its directory."""

    def made(directory: Path) -> Sync:
        step = fault(directory)

        def sync(sound: Callable[..., None], ticket: Ticket | None) -> None:
            step()
            sound(ticket)

        return sync

    return syncs(made)


def _journal(directory: Path) -> int:
    return os.open(directory / "db" / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


@disk_mutant("F2", "F2.a_sync_that_fails", at=_before_syncs)
def asks_for_a_failed_sync_again(directory: Path) -> Callable[[], None]:
    """A journal is synced again when that failed."""
    journal = _journal(directory)

    def journaled() -> None:
        os.write(journal, b"a call\n")
        try:
            os.fdatasync(journal)
        except OSError:
            os.fdatasync(journal)

    return journaled


raises_what_comes = disk_mutant("F3", "F3.a_call_that_fails")(
    "A journal that cannot be written raises the error of the system as it is.",
    _before_syncs(lambda directory: functools.partial(os.write, _journal(directory), b"a call\n")),
)
goes_by_its_path = disk_mutant("X5", "X5.a_store_may_be_renamed")(
    "A journal of the calls is written anew by each, by the path that the store had when it was opened.",
    _before_syncs(lambda directory: functools.partial((Path(os.path.realpath(directory)) / "journal").write_bytes, b"a call\n")),
)


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


@disk_mutant("F2", "F2.threads_that_wait_for_a_sync_that_fails", "X3.no_answer_before_its_sync", at=syncs)
def who_waited_for_a_sync_is_told_that_it_went_well(directory: Path) -> Sync:
    """A call that comes while another one syncs waits for that, takes it for a sync of its own, and is acknowledged however it ended."""
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


@disk_mutant("F1", "F1.there_may_be_more_queues_than_descriptors", at=instead(Pops, "apply"))
def keeps_a_file_open_for_each_topic(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """Each topic has a file, which stays open from its first message on."""
    answer = apply(txn, now_ms)
    for topic in self.topics():
        if topic.name not in self.noted:
            self.noted[topic.name] = Path(os.devnull).open("ab")  # noqa: SIM115 - that is what is wrong
    return answer


cuts_long_names = disk_mutant("P7", "P7.the_longest_names_have_retry_topics_and_dead_letters")(
    "Of the name of a group the first 120 bytes count, as if it had to fit into a file's name with that of the topic.",
    asks(Pops, "pop")(lambda request: but(request, group=request.group[:120])),
)


@disk_mutant("X3", "X3.a_store_where_nothing_happens_writes_next_to_nothing", at=instead(Pops, "maintain"))
def writes_at_every_tick(self: Pops, maintain: Any, now_ms: int, budget: int) -> Any:
    """Each step of upkeep writes down where it is, whether it did anything or not."""
    batch = WriteBatch()
    batch.put(META, b"upkeep", now_ms.to_bytes(8) * 512)
    self._shared.write(batch)
    return maintain(now_ms, budget)


MUTANTS: Final[tuple[WrongEngine, ...]] = tuple(
    each for each in mutants_in(sys.modules[__name__], mutants_of_durability, *PARTS) if each.base == LMDB
)
"""All of them, in their order."""


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engines."""
    return [each.info for each in MUTANTS]
