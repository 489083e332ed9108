"""The index of keys in RocketMQ's files: what is added is found, whatever a crash left of a check point; damage is said."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from plugins.wheel.tests.breaking import index_of, ledger_of, opened
from plugins.wheel.tests.broker_index import BrokerIndex
from rmqstore import CancelOutcome, ManualClock, Message
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.errors import CorruptStoreError
from rmqstore_conformance.stores import START_MS, directory
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.files.units import BLOCK, RebuildReason
from rmqstore_wheel.formats.index_file import file_bytes
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.timers import table as timer_table
from rmqstore_wheel.timers.keys import KeyFileSums, KeyIndex, RecentKeys
from rmqstore_wheel.timers.store import WheelTimers

SLOTS, ENTRIES = 3000, 40
NOW_MS = START_MS
Entries = Sequence[tuple[int, int]]


class Fixture:
    def __init__(self, path: Path, slots: int = SLOTS, entries: int = ENTRIES) -> None:
        self.path = path / "index"
        self.reasons: list[RebuildReason] = []
        self._sizes = slots, entries

    def opened(self, sums: Sequence[KeyFileSums] = ()) -> KeyIndex:
        index = KeyIndex(Disk(), self.path, *self._sizes, self.reasons.append)
        index.start(sums)
        return index


def add(index: KeyIndex, entries: Entries, store_ms: int = NOW_MS) -> None:
    hashes, offsets = np.array(entries, np.int64).reshape(-1, 2).T
    index.add_many(hashes, offsets, store_ms)


def expected(entries: Entries) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for hashed, offset in entries:
        found.setdefault(hashed, []).append(offset)
    return found


def check(index: KeyIndex, entries: Entries) -> None:
    for hashed, offsets in expected(entries).items():
        assert index.lookup(hashed) == offsets
    asked = [1, SLOTS - 1, *expected(entries), SLOTS + 5, 1, 2**31 - 1]
    for hashed in asked:
        assert index.lookup(hashed) == expected(entries).get(hashed, [])
    rows, offsets_of = index.lookup_many(np.array(asked))
    found = [offsets_of[rows == row].tolist() for row in range(len(asked))]
    assert found == [expected(entries).get(hashed, []) for hashed in asked]
    assert rows.tolist() == sorted(rows.tolist())


# Few hashes, so that chains grow and hashes share slots.
HASH = st.sampled_from([0, 1, 2, SLOTS, SLOTS + 1, 2 * SLOTS, 5 * SLOTS + 2, 1500, 2**31 - 1])
HAPPENS = st.sampled_from(["nothing", "check point", "open", "no room", "killed"])


@contextmanager
def refusing(left: int) -> Iterator[None]:
    """Refuse writes and syncs of files once there were so many."""
    calls = count()

    def refused(method: Callable[..., None]) -> Callable[..., None]:
        def call(file: DiskFile, *given: Any) -> None:
            if next(calls) >= left:
                raise OSError(errno.ENOSPC, "No space left on device")
            method(file, *given)

        return call

    with patch.object(DiskFile, "write_at", refused(DiskFile.write_at)), patch.object(DiskFile, "sync", refused(DiskFile.sync)):
        yield


@given(st.lists(st.tuples(st.lists(HASH, max_size=60), HAPPENS, st.integers(0, 30)), min_size=1, max_size=8))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_that_was_added_is_found(tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[list[int], str, int]]) -> None:
    """Whatever becomes of check points; an open loses what came since the last one, which the log adds again.

    Of one that finds no room, or is killed, files have what it would have said, in whole or in part.
    """
    fixture = Fixture(tmp_path_factory.mktemp("keys"))
    index = fixture.opened()
    sums: list[KeyFileSums] = []
    entries: list[tuple[int, int]] = []
    kept = 0
    for hashes, happens, drawn in calls:
        new = [(hashed, 100 * (len(entries) + row)) for row, hashed in enumerate(hashes)]
        add(index, new)
        entries += new
        check(index, entries)
        if happens == "check point":
            sums, kept = index.check_point(), len(entries)
        elif happens == "no room":
            try:
                with refusing(drawn):
                    sums, kept = index.check_point(), len(entries)
            except OSError:
                for hashed, offsets in expected(entries).items():
                    assert sorted(set(index.lookup(hashed))) == offsets
                copy = Fixture(tmp_path_factory.mktemp("copy"))
                copy_tree(fixture.path, copy.path)
                killed = copy.opened(sums)
                check(killed, entries[:kept])
                killed.close()
                sums, kept = index.check_point(), len(entries)
        elif happens == "killed":
            before = {path: path.read_bytes() for path in fixture.path.glob("*")}
            index.check_point()
            for path in before:
                path.write_bytes(torn(before[path], path.read_bytes(), Random(drawn)))
        if happens in ("open", "killed"):
            index.close()
            index = fixture.opened(sums)
            check(index, entries[:kept])
            add(index, entries[kept:])
        check(index, entries)
    assert not fixture.reasons
    index.close()


def torn(before: bytes, after: bytes, random: Random) -> bytes:
    """Return what is on disk when some sectors of a file were written."""
    sectors = [(before if random.random() < 0.5 else after)[at : at + 512] for at in range(0, len(after), 512)]
    return b"".join(sectors)


def test_a_reader_of_rocketmq_finds_the_same(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    index = fixture.opened()
    entries = [(number % 7 * SLOTS + number % 3, 50 * number) for number in range(1, 100)]
    for first in range(0, 99, 25):
        add(index, entries[first : first + 25], NOW_MS + 1000 * first)
        index.check_point()
    index.close()
    files = sorted(fixture.path.iterdir())
    assert [file.name for file in files] == ["20231114221320000", "20231114221345000", "20231114221435000"]
    found: dict[int, list[int]] = {}
    for file in files:
        data = file.read_bytes()
        assert len(data) == file_bytes(SLOTS, ENTRIES)
        read = BrokerIndex(bytearray(data), SLOTS, ENTRIES)
        for hashed in expected(entries):
            found.setdefault(hashed, []).extend(reversed(read.lookup(hashed)))
    assert found == expected(entries)


def test_files_go_when_the_log_has_gone_that_far(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    index = fixture.opened()
    entries = [(number, 50 * number) for number in range(1, 100)]
    add(index, entries)
    index.check_point()
    assert len(list(fixture.path.iterdir())) == 3
    index.drop_before(50 * 39)
    index.release()
    assert len(list(fixture.path.iterdir())) == 3, "the last entry of the first file lies there"
    index.drop_before(50 * 39 + 1)
    assert len(list(fixture.path.iterdir())) == 3, "the last check point needs it"
    sums = index.check_point()
    with patch.object(Path, "unlink", side_effect=OSError(errno.EIO, "")), pytest.raises(OSError):
        index.release()
    index.release()
    assert len(list(fixture.path.iterdir())) == 2
    check(index, entries[39:])
    assert index.lookup(5) == []
    index.close()
    index = fixture.opened(sums)
    check(index, entries[39:])
    index.drop_before(10**9)
    index.check_point()
    index.release()
    assert list(fixture.path.iterdir()) == []
    add(index, entries)
    index.check_point()
    check(index, entries)
    index.close()
    fixture.opened().close()
    assert list(fixture.path.iterdir()) == [], "no check point knows them"


def test_damage_is_said_or_does_not_matter(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    index = fixture.opened()
    entries = [(number % 5 * SLOTS + number % 11, 50 * number) for number in range(1, 30)]
    add(index, entries)
    sums = index.check_point()
    index.close()
    (path,) = fixture.path.iterdir()
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        index = fixture.opened(sums)
        try:
            check(index, entries)
        except CorruptStoreError as error:
            refused += 1
            assert error.file == str(path)
            assert fixture.reasons.pop() is RebuildReason.DAMAGED
        index.close()
    assert refused > 100
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptStoreError, match="bytes, not"):
        fixture.opened(sums)
    path.unlink()
    with pytest.raises(CorruptStoreError, match="is missing"):
        fixture.opened(sums)


def test_a_store_cancels_by_key_across_check_points_kills_and_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: Sizes(index_slots=SLOTS, index_entries=100, check_point_calls=7))
    clock = ManualClock(NOW_MS)

    store = opened(tmp_path / "first", clock)
    for number in range(150):
        timers = [Message("t", b"x", keys=(f"one-{number}", f"half-{number // 2}")), Message("t", b"y", keys=("all",))]
        store.send_batch(timers, delay_ms=3_600_000)
        store.tick()
    index = tmp_path / "first" / "wheel" / "db" / "index"
    assert len(list(index.iterdir())) >= 4
    copy_tree(tmp_path / "first", tmp_path / "killed")
    copy_tree(tmp_path / "first", tmp_path / "damaged")
    store.close()
    damaged = sorted((tmp_path / "damaged" / "wheel" / "db" / "index").iterdir())[0]
    damaged.write_bytes(b"".join([damaged.read_bytes()[:40], b"\x00\x00\x00\x01" * SLOTS, damaged.read_bytes()[40 + 4 * SLOTS :]]))
    store = opened(tmp_path / "damaged", clock)
    with pytest.raises(CorruptStoreError, match="open the store again"):
        store.cancel_key("t", "one-3")
    store.close()
    for name in ("first", "killed", "damaged"):
        store = opened(tmp_path / name, clock)
        for number in range(0, 150, 6):
            assert store.cancel_key("t", f"one-{number}") == [CancelOutcome.CANCELLED]
            assert store.cancel_key("t", f"half-{number // 2}") == [CancelOutcome.CANCELLED], "the other one is cancelled already"
            assert store.cancel_key("u", f"one-{number + 1}") == []
        assert store.cancel_key("t", "all") == [CancelOutcome.CANCELLED] * 150
        assert store.cancel_key("t", "nothing") == []
        assert store.pending().total == 100
        assert store.verify() == []
        store.close()


def test_a_failed_check_point_hides_no_damage(tmp_path: Path) -> None:
    """What nobody has looked at yet is still checked after a write was refused in the middle of a check point."""
    slots = 40_000
    fixture = Fixture(tmp_path, slots, 100)
    index = fixture.opened()
    far = slots - 5
    add(index, [(1, 10), (far, 20)])
    sums = index.check_point()
    index.close()
    (path,) = fixture.path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[40 + 4 * far : 44 + 4 * far] = bytes(4)
    path.write_bytes(damaged)
    index = fixture.opened(sums)
    add(index, [(1, 30)])
    with refusing(1), pytest.raises(OSError, match="No space"):
        index.check_point()
    index.check_point()
    assert index.lookup(1) == [10, 30]
    with pytest.raises(CorruptStoreError):
        index.lookup(far)
    index.close()


def test_a_key_of_timers_that_are_long_forgotten_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their messages lie in the log still, and the index leads there, but nothing else is known of them."""
    clock = ManualClock(NOW_MS)

    monkeypatch.setattr(timer_table, "PER_FILE", BLOCK)
    store = opened(tmp_path / "store", clock, cancel_memory_ms=60_000)
    for _ in range(3):
        store.send_batch([Message("t", b"x", keys=("again",)) for _ in range(BLOCK)], delay_ms=1000)
    clock.advance(1000)
    assert store.tick().handed_over == 3 * BLOCK
    late = store.send(Message("t", b"y", keys=("again",)), delay_ms=3_600_000)
    for _ in range(20):
        clock.advance(60_000)
        store.tick()
    store.close()
    store = opened(tmp_path / "store", clock, cancel_memory_ms=60_000)
    index = index_of(store)
    assert index.facts.first >= 2 * BLOCK, "facts of old timers are there"
    assert store.cancel_key("t", "again") == [CancelOutcome.CANCELLED]
    assert store.cancel(late.handle or "") is CancelOutcome.CANCELLED
    store.close()


def test_a_look_at_what_was_never_written_takes_no_room() -> None:
    """On a file system in memory a map makes room for each page that is looked at, and the process ends by SIGBUS where there is none."""
    with directory() as root:
        fixture = Fixture(root, slots=400_000)
        index = fixture.opened()
        add(index, [(7, 100), (300_000, 200)])
        sums = index.check_point()
        index.close()
        (path,) = fixture.path.iterdir()
        blocks = path.stat().st_blocks
        index = fixture.opened(sums)
        assert index.lookup(7) == [100]
        assert not any(index.lookup(hashed) for hashed in range(1000, 400_000, 20_000))
        assert path.stat().st_blocks == blocks
        index.close()


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["send", "cancel", "cancel many", "check point", "tick"])), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_keys_are_looked_up_together_as_each_alone(tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, str]]) -> None:
    clock, asked = ManualClock(NOW_MS), [f"key-{number}" for number in (*range(10), 3)]
    with opened(tmp_path_factory.mktemp("keys") / "store", clock) as store:
        timers = store.engine.sessions["wheel"].timers()
        assert isinstance(timers, WheelTimers)
        for number, happens in calls:
            if happens == "send":
                keys = (f"key-{number}", f"key-{number // 2}", f"key-{number}0")
                store.send_batch([Message(topic, b"x", keys=keys) for topic in "ttu"], delay=timedelta(seconds=1 + number % 4))
            elif happens == "cancel":
                store.cancel_key("t", f"key-{number}")
            elif happens == "cancel many":
                store.cancel_keys("t", asked[number:])
            elif happens == "check point":
                timers._ledger.make_check_point()
            else:
                clock.advance(1000)
                store.tick()
            together = timers._places_of_keys("t", asked)
            assert together == [timers._places_of_key("t", key) for key in asked]


@pytest.mark.parametrize("together", [1, 10])
@pytest.mark.parametrize("check_points", [False, True], ids=["in memory", "in files"])
def test_a_key_that_is_cancelled_and_sent_again_costs_what_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_points: bool, together: int
) -> None:
    """Debounce: each round reads from the log as much as the first ones did, however many there were."""
    reads: list[int] = []
    read = CommitLog.record
    monkeypatch.setattr(CommitLog, "record", lambda log, offset, size: (reads.append(size), read(log, offset, size))[1])
    looked: list[int] = []
    lookup = KeyIndex.lookup
    monkeypatch.setattr(KeyIndex, "lookup", lambda index, hashed: (found := lookup(index, hashed), looked.append(len(found)))[0])
    many = KeyIndex.lookup_many
    monkeypatch.setattr(KeyIndex, "lookup_many", lambda index, hashes: (found := many(index, hashes), looked.append(len(found[0])))[0])
    with opened(tmp_path / "store") as store:
        store.send(Message("t", b"x", keys=("other",)), delay=timedelta(hours=1))
        costs: list[int] = []
        for number in range(300):
            reads.clear()
            looked.clear()
            keys = ["again", *(f"nobody-{each}" for each in range(together - 1))]
            assert store.cancel_keys("t", keys)[0] == ([CancelOutcome.CANCELLED] if number else [])
            store.send(Message("t", b"y", keys=("again",)), delay=timedelta(hours=1))
            costs.append(len(reads) + sum(looked))
            if check_points and number % 50 == 49:
                ledger_of(store).make_check_point()
        assert max(costs[2:]) <= costs[2]


def test_a_cancel_by_many_keys_copies_no_body(tmp_path: Path) -> None:
    keys = tuple(f"key-{number}" for number in range(40))
    with opened(tmp_path / "store") as store:
        store.send(Message("t", bytes(2_000_000), keys=keys), delay=timedelta(hours=1))
        usual = pa.default_memory_pool()
        pool = pa.proxy_memory_pool(usual)
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            assert store.cancel_keys("t", keys) == [[CancelOutcome.CANCELLED]] * 40
            assert tracemalloc.get_traced_memory()[1] + pool.max_memory() < 2_000_000
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(usual)


# ---------------------------------------------------------------- keys that are in no file yet


def test_there_are_few_runs_of_many_calls() -> None:
    recent = RecentKeys()
    for call in range(1000):
        recent.add_many(np.arange(600), np.arange(600) + 600 * call)
    assert len(recent._runs) <= 3 * 6
    assert recent.lookup(5) == [5 + 600 * call for call in range(1000)]
