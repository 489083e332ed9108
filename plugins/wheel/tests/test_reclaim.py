"""Files of the commit log go when nothing is live in them, and what is live in nearly dead ones is copied forward (T7, Q1-Q3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plugins.wheel.tests.stores import (
    AGAIN_MS,
    FAR_MS,
    FILE_BYTES,
    HOUR_MS,
    SMALL,
    START_MS,
    Run,
    drop_check_points,
    flip,
    index_of,
    meanwhile,
    noted,
    sync_queues,
)
from rmqstore import CancelOutcome, CorruptStoreError, Message
from rmqstore.contract import TimerHandle
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log import check_point, journal
from rmqstore_wheel.log.check_point import CheckPoint
from rmqstore_wheel.reclaim import liveness, reclaim

pytestmark = pytest.mark.usefixtures("small_log")


def seq_of(handle: str) -> int:
    found = TimerHandle.parse(handle)
    assert found is not None
    return found.seq


# ---------------------------------------------------------------- going


def test_a_file_goes_once_a_check_point_that_needs_it_no_more_is_durable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash leaves a store that nothing can open; and no two names go at once, as one in the middle might be the first to go."""
    durable: list[CheckPoint] = []
    gone: list[int] = []
    settled: list[int] = []

    def synced(_: None, disk: Disk, path: Path) -> None:
        if path.name == check_point.DIRECTORY:
            durable[:] = check_point.read_all(path)[:1]
        elif path.name == "commitlog":
            settled[:] = gone

    def goes(disk: Disk, path: Path) -> None:
        if path.parent.name == "commitlog":
            assert durable[0].offset > durable[0].restart >= int(path.name) + FILE_BYTES
            assert settled == gone
            gone.append(int(path.name))

    noted(monkeypatch, Disk, "sync_directory", synced)
    meanwhile(monkeypatch, Disk, "remove", goes)
    run.far("kept")
    run.fill(5)
    run.upkeep()
    assert gone == [start * FILE_BYTES for start in range(len(gone))]
    assert len(gone) >= 4


@pytest.mark.parametrize(("timers", "pops"), [("memory", "wheel"), ("wheel", "memory")])
def test_one_side_alone_is_enough_for_check_points_and_for_files_to_go(tmp_path: Path, timers: str, pops: str) -> None:
    run = Run(tmp_path / "store", timer_engine=timers, pop_engine=pops, outcome_memory_ms=1000)
    try:
        for number in range(200):
            run.store.send(Message("t", b"x" * 700, message_id=f"m{number}"), delay_ms=1000 if timers == "wheel" else 0)
            run.clock.advance(1000)
            run.store.tick()
            assert run.consume() == [f"m{number}"]
        run.upkeep()
        assert run.files[0] > 5
        assert run.ledger._check_point.offset > run.ledger.log.chain.first
    finally:
        run.store.close()


def test_what_one_long_lease_needs_is_copied(run: Run) -> None:
    """Its message, and its check point for brokers, which is a record without a sum of ours."""
    run.store.send(Message("held", b"z", message_id="h"))
    run.store.pop("held", "g", invisible_ms=10 * HOUR_MS)
    run.fill(6)
    run.upkeep()
    assert run.files[0] > 3
    run.reopen(rebuild=True)
    assert run.store.verify() == []
    run.clock.advance(11 * HOUR_MS)
    run.store.tick()
    assert run.consume("held") == ["h"]


def test_far_timers_survive_the_removal_of_fifty_files(run: Run) -> None:
    handles = run.far(*(f"a{number}" for number in range(10)))
    for _ in range(25):
        run.fill(2)
        run.upkeep(8)
        assert len(run.files) <= 12
    assert run.files[0] >= 50
    assert sum(each.is_file() for each in run.path.rglob("consumequeue/*/*/*")) < 40
    assert len(list((run.path / "wheel" / "db" / "index").iterdir())) <= 3
    assert run.store.cancel(handles[3]) is CancelOutcome.CANCELLED
    assert list(run.store.cancel_key("late", "k-a5")) == [CancelOutcome.CANCELLED]
    assert {each.message.message_id for each in run.store.scan().timers} == {f"a{number}" for number in (0, 1, 2, 4, 6, 7, 8, 9)}
    assert run.store.cancel(handles[3]) is CancelOutcome.CANCELLED
    assert run.take_late() == [f"a{number}" for number in (0, 1, 2, 4, 6, 7, 8, 9)]


# ---------------------------------------------------------------- copying


@pytest.mark.parametrize(("most", "percent", "goes"), [(30, 29, True), (30, 31, False), (80, 75, True), (0, 28, False)])
def test_what_is_live_is_copied_below_a_share(run: Run, monkeypatch: pytest.MonkeyPatch, most: int, percent: int, goes: bool) -> None:
    run.resize(monkeypatch, copy_live_percent=most)
    names = [f"a{number}" for number in range(10)]
    run.far(*names, size=FILE_BYTES * percent // 1000 - 305)
    while run.ledger.log.tail < FILE_BYTES:
        run.fill(0)
        run.store.send(Message("t", b"x" * 300))
        run.consume()
    share = 100 * int(run.ledger.queues.read(WHEEL_TOPIC, 0, 0, 1000)[1]["size"].sum()) / FILE_BYTES
    assert abs(share - percent) < 0.5
    run.upkeep()
    assert (run.files[0] > 0) is goes
    assert run.take_late() == names


@pytest.mark.parametrize("rebuild", [False, True])
def test_the_body_of_a_cancelled_timer_goes_with_its_file(run: Run, rebuild: bool) -> None:
    """It would stay until the timer is due and its answer forgotten; what is copied says what a cancel must answer, and no more."""
    cancelled = run.far(*(f"c{n}" for n in range(6)), size=1000)
    kept = run.far("kept", size=1000)
    assert run.store.cancel(cancelled) == [CancelOutcome.CANCELLED] * 6
    run.fill(3)
    run.upkeep()
    assert 0 not in run.files
    index = index_of(run.store)
    sizes = index.queue_units(np.arange(1, 8))["size"].tolist()
    assert max(sizes[:6]) < 500
    assert sizes[6] > 1000
    run.reopen(rebuild=rebuild)
    assert run.store.verify() == []
    assert run.store.cancel(cancelled) == [CancelOutcome.CANCELLED] * 6
    assert run.store.cancel_key("late", "k-c1") == []
    assert run.store.cancel(kept[0]) is CancelOutcome.CANCELLED
    run.fill(3)
    run.upkeep()
    assert run.store.cancel([*cancelled, *kept]) == [CancelOutcome.CANCELLED] * 7
    assert run.store.verify() == []


def test_numbers_of_timers_are_never_given_twice(run: Run) -> None:
    """The last timers are gone with their files, and with them what says how far the numbers went."""
    run.store.cancel(run.far("gone", due_ms=FAR_MS)[0])
    last = run.far("last", due_ms=START_MS + 1000 * HOUR_MS)[0]
    run.store.cancel(last)
    run.fill(3)
    run.clock.advance(HOUR_MS)
    run.upkeep()
    assert run.files[0] > 0
    # Cancels have numbers, too.
    last_seq = run.store.engine.timers.stats().last_seq
    assert last_seq > seq_of(last)
    run.reopen(rebuild=True)
    assert seq_of(run.far("new")[0]) > last_seq


@pytest.mark.parametrize(("percent", "size"), [(50, 7800), (80, 5200), (80, 3000), (80, 100)])
def test_copies_are_not_copied_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percent: int, size: int) -> None:
    """Less than so much is live in files of copies when records of this size leave the ends of files empty."""
    monkeypatch.setattr("rmqstore_wheel.engine.sizes_of", lambda _: SMALL._replace(copy_live_percent=percent))
    run = Run(tmp_path / "store")
    names = [f"a{number:03}" for number in range(4 * FILE_BYTES // (size + 330))]
    run.far(*names, size=size)
    run.fill(8)
    run.upkeep(40)
    tail = run.ledger.log.tail
    run.upkeep(40)
    assert run.ledger.log.tail - tail < 2 * FILE_BYTES
    assert run.files[0] > 0
    assert run.store.verify() == []
    assert run.take_late() == names
    run.store.close()


# ---------------------------------------------------------------- bounds


@pytest.fixture
def done(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of each slice that is looked at or copied from now on, a kilobyte or so each; much is to be looked at."""
    monkeypatch.setattr(liveness, "_LEAST_PAGE_BYTES", 1)
    monkeypatch.setattr(liveness.Look, "page", 10)
    monkeypatch.setattr(reclaim, "_MOST_OWED_BYTES", 5000)
    slices: list[int] = []
    for kind in (liveness.Look, reclaim.FileCopy):
        noted(monkeypatch, kind, "go_on", lambda done, *_: slices.append(done))
    run.resize(monkeypatch, slice_bytes=1000)
    run.fill(200, consume=False)
    run.store.tick()
    assert 5000 <= sum(slices) < 7000
    slices.clear()
    return slices


def test_how_often_ticks_come_adds_nothing_to_their_work(run: Run, done: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second that passes does: a slice beside calls that write much, more of them where little is written."""
    monkeypatch.setattr(reclaim, "_IDLE_BYTES", 0)
    for _ in range(20):
        run.clock.advance(40)
        run.store.tick()
    assert done == []
    for seconds in (1, 1, 5):
        run.clock.advance(1000 * seconds)
        run.store.tick()
        run.store.tick()
        assert len(done) == 1
        done.clear()
    monkeypatch.setattr(reclaim, "_IDLE_BYTES", 1000)
    run.clock.advance(1000)
    run.store.tick()
    assert 6 <= len(done) <= 10


def test_what_is_written_is_worked_off_three_times_over(run: Run, done: list[int]) -> None:
    before = run.ledger.log.tail
    for _ in range(12):
        run.store.send(Message("t", b"x" * 700))
        run.store.tick()
        written = run.ledger.log.tail - before
        assert 3 * written - 1000 <= sum(done) <= 3 * written + 1000


def test_copies_are_not_owed_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a tick would go on for as long as what it copies is live, a whole file of far timers here."""
    monkeypatch.setattr(reclaim, "_IDLE_BYTES", 0)
    run.resize(monkeypatch, slice_bytes=1000)
    copied = noted(monkeypatch, reclaim.FileCopy, "go_on")
    run.far(*(f"a{number}" for number in range(40)))
    run.fill(8)
    most = ticks = 0
    while run.files[0] == 0:
        ticks += 1
        assert ticks < 1000, "a first file that is full of live ones keeps dead ones for ever"
        run.clock.advance(1000)
        before = len(copied)
        run.store.tick()
        most = max(most, len(copied) - before)
    assert len(copied) > 12
    assert most <= 2
    assert run.take_late() == sorted(f"a{number}" for number in range(40))


def test_what_cannot_go_is_not_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues say that it is live; what is read and checked is what is copied."""
    run.far(*(f"a{number}" for number in range(200)), size=1500)
    assert len(run.files) > 15
    viewed = noted(monkeypatch, run.ledger.log.chain, "view")
    looked = noted(monkeypatch, liveness.Look, "go_on", lambda done, *_: done)
    run.upkeep()
    assert looked
    assert viewed == []
    assert sum(looked) < 12 * 200 * 20 + 12 * 6 * liveness._LEAST_PAGE_BYTES


def test_calls_between_two_pages_lose_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics go and come again, timers are put, cancelled and handed over, messages are popped and go back, and queues go."""
    monkeypatch.setattr(reclaim, "_MOST_OWED_BYTES", 1)
    monkeypatch.setattr(liveness.Look, "page", 4)
    monkeypatch.setattr(liveness.Records, "page", 4)
    run.resize(monkeypatch, slice_bytes=1)
    far = run.far(*(f"a{number}" for number in range(12)))
    soon = run.far(*(f"s{number}" for number in range(12)), due_ms=START_MS + 600_000)
    for number in range(12):
        run.store.send(Message("held", b"z" * 100, message_id=f"h{number}"))
        run.store.send(Message("other", b"z" * 100, message_id=f"o{number}"))
    run.store.pop("held", "g", max_messages=6, invisible_ms=900_000)
    run.fill(6)
    expected = {f"a{number}" for number in range(12)} | {f"s{number}" for number in range(12)}
    held: list[str] = []
    other = "o0"
    for turn in range(1500):
        run.clock.advance(1000)
        run.store.tick()
        match turn % 150:
            case 20:
                assert run.store.cancel(far.pop()) is CancelOutcome.CANCELLED
                expected.discard(f"a{len(far)}")
            case 40 if run.store.cancel(soon.pop()) is CancelOutcome.CANCELLED:
                expected.discard(f"s{len(soon)}")
            case 60:
                run.store.topics.delete("other")
                run.store.send(Message("other", b"new", message_id=(other := f"o{turn}")))
            case 80:
                run.far(f"more{turn}")
                expected.add(f"more{turn}")
            case 100:
                run.fill(1)
            case 120:
                held += run.consume("held")
    assert run.files[0] > 3
    run.reopen(rebuild=True)
    assert run.store.verify() == []
    late = []
    while more := run.consume("late"):
        late += more
    while more := run.consume("held"):
        held += more
    assert sorted(held) == sorted(f"h{number}" for number in range(12))
    assert run.consume("other") == [other]
    assert sorted(late + run.take_late()) == sorted(expected)


def test_a_queue_that_is_trimmed_between_two_pages_is_gone_through_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning moves into the next file of the queue, to which a page then reaches; records are copied once, cancels count once."""
    monkeypatch.setattr(reclaim, "_MOST_OWED_BYTES", 1)
    monkeypatch.setattr(liveness.Records, "page", 40)
    run.resize(monkeypatch, slice_bytes=1)
    old = run.far(*(f"o{n}" for n in range(70)), size=10, due_ms=START_MS + 1000)
    gone = run.far(*(f"g{n}" for n in range(10)), size=10, due_ms=START_MS + 1_000_000)
    run.far("kept0", "kept1", size=10, due_ms=START_MS + 1_000_000)
    assert run.store.cancel(old + gone) == [CancelOutcome.CANCELLED] * 80
    run.fill(12)
    looked: list[int] = []

    def taken(_: int, records: liveness.Records, found: liveness.LiveRows) -> None:
        if found.topic == WHEEL_TOPIC:
            looked.extend(found.offsets.tolist())

    noted(monkeypatch, liveness.Records, "_take", taken)
    for turn in range(3000):
        run.clock.advance(100)
        run.store.tick()
        if looked and max(looked) < 64:
            # What is answered for no more goes from the queue.
            run.clock.set(max(run.clock.now_ms(), START_MS + 640_000))
        if turn % 50 == 0:
            run.fill(1)
        if turn > 600 and run.files[0] > 3:
            break
    assert len(looked) > 40
    assert run.files[0] > 3
    run.reopen(rebuild=True)
    assert run.store.verify() == []
    assert run.store.pending().total == 2
    run.clock.set(START_MS + 1_000_000)
    run.store.tick()
    assert run.consume("late") == ["kept0", "kept1"]


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("others", ["none", "one in each file"])
def test_a_damaged_record_keeps_no_file_before_its_own(run: Run, others: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        run.fill(1)
        if others != "none":
            run.far(f"t{number}")
    run.far("hurt")
    place = int(run.ledger.queues.read(WHEEL_TOPIC, 0, 0, 100)[1]["log_offset"][-1])
    flip(run.ledger.log.chain.path_of(place), place % FILE_BYTES + 100)
    for _ in range(20):
        run.fill(1)
        run.upkeep(4)
    assert run.files[0] == place // FILE_BYTES > 8
    run.fill(4, topic="kept", consume=False)
    run.upkeep(4)
    looked = noted(monkeypatch, liveness.Look, "go_on", lambda done, *_: done)
    for _ in range(100):
        run.clock.advance(1000)
        run.store.tick()
    assert len(looked) < 10, "it is looked at again after a while, and not all the time"


def test_a_damaged_page_of_a_queue_keeps_the_files(run: Run) -> None:
    """A tick says so, and nothing goes by what the other pages say."""
    for number in range(100):
        run.store.send(Message("held", b"z" * 100, message_id=f"h{number}"))
    run.fill(3)
    sync_queues(run.store)
    run.reopen()
    flip(min(run.path.rglob("consumequeue/held/0/*")), 20 * 5)
    for _ in range(12):
        run.clock.advance(AGAIN_MS)
        with pytest.raises(CorruptStoreError, match="open the store again"):
            run.store.tick()
    assert run.files[0] == 0


def test_a_log_whose_first_files_are_missing_is_refused(run: Run) -> None:
    run.fill(3)
    run.store.close()
    drop_check_points(run.path)
    min(run.path.rglob("commitlog/*")).unlink()
    with pytest.raises(CorruptStoreError, match="are missing"):
        run.opened()


def test_a_damaged_file_stays_until_nothing_leads_into_it(run: Run) -> None:
    (handle,) = run.far("hurt", due_ms=START_MS + HOUR_MS)
    place = int(run.ledger.queues.read(WHEEL_TOPIC, 0, 0, 1)[1]["log_offset"][0])
    flip(run.ledger.log.chain.path_of(place), place + 90)
    run.fill(5)
    run.upkeep()
    assert run.files[0] == 0
    run.store.cancel(handle)
    run.clock.advance(2 * HOUR_MS)
    run.upkeep()
    assert run.files[0] > 0


@pytest.mark.parametrize("at", [0, 4, 30, 90], ids=["size", "magic", "offset", "body"])
def test_damage_to_what_nobody_needs_keeps_no_file(run: Run, at: int) -> None:
    """A bit of a journal record, in a file in which messages are live, before and behind it."""
    run.far("before")
    place = run.ledger.log.tail
    run.store.topics.create("named", 3)
    run.far("behind")
    flip(run.ledger.log.chain.path_of(place), place + at, 1)
    run.fill(5)
    run.upkeep()
    assert run.files[0] > 0
    assert run.store.verify() == []
    run.reopen(rebuild=True)
    assert run.take_late() == ["before", "behind"]


def test_a_store_where_nothing_happens_writes_nothing_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is larger than a file of the log, so a copy of it fills more than the removal of a file gives back."""
    monkeypatch.setattr(journal, "PIECE_BYTES", FILE_BYTES // 4)
    run = Run(tmp_path / "store", mark_memory_ms=1000 * HOUR_MS)
    for number in range(100):
        run.store.send_batch([Message("t", b"x")], marks=[b"%05d" % number + bytes(240)])
    while run.consume():
        pass
    run.fill(2)
    run.upkeep()
    assert run.ledger.state.bytes > 1.2 * FILE_BYTES
    tail = run.ledger.log.tail
    run.upkeep(100)
    assert run.ledger.log.tail - tail < 2 * run.ledger.state.bytes
    held = len(run.files)
    for _ in range(10):
        run.fill(4)
        run.upkeep(8)
    assert len(run.files) < held + 12, "files go all the same"
    run.reopen(rebuild=True)
    assert run.store.verify() == []
    run.store.close()
