"""The index of keys in RocketMQ's files: what is added is found, whatever a crash left of a check point; damage is said."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from plugins.wheel.tests.broker_view import BrokerIndex
from plugins.wheel.tests.stores import index_of, ledger_of, noted, opened, refusing
from rmqstore import CancelOutcome, ManualClock, Message
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.errors import CorruptStoreError
from rmqstore_conformance.stores import START_MS, directory
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import BLOCK, RebuildReason
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.timers import table as timer_table
from rmqstore_wheel.timers.keys import KeyFileSums, KeyIndex, RecentKeys
from rmqstore_wheel.timers.store import WheelTimers

SLOTS, ENTRIES = 3000, 40
NOW_MS = START_MS
Entries = Sequence[tuple[int, int]]


class Keys:
    """An index of keys in files, and what its last check point said of them."""

    def __init__(self, path: Path, slots: int = SLOTS, entries: int = ENTRIES, sums: Sequence[KeyFileSums] = ()) -> None:
        self.path = path / "index"
        self.reasons: list[RebuildReason] = []
        self.sums = sums
        self._sizes = slots, entries
        self.index = self._opened()

    def _opened(self) -> KeyIndex:
        index = KeyIndex(Disk(), self.path, *self._sizes, self.reasons.append)
        index.start(self.sums)
        return index

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.iterdir())

    def check_point(self) -> None:
        self.sums = self.index.check_point()

    def reopen(self) -> None:
        self.index.close()
        self.index = self._opened()


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


@given(st.lists(st.tuples(st.lists(HASH, max_size=60), HAPPENS, st.integers(0, 30)), min_size=1, max_size=8))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_that_was_added_is_found(tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[list[int], str, int]]) -> None:
    """Whatever becomes of check points; an open loses what came since the last one, which the log adds again.

    Of one that finds no room, or is killed, files have what it would have said, in whole or in part.
    """
    keys = Keys(tmp_path_factory.mktemp("keys"))
    entries: list[tuple[int, int]] = []
    kept = 0
    for hashes, happens, drawn in calls:
        new = [(hashed, 100 * (len(entries) + row)) for row, hashed in enumerate(hashes)]
        add(keys.index, new)
        entries += new
        check(keys.index, entries)
        if happens == "check point":
            keys.check_point()
            kept = len(entries)
        elif happens == "no room":
            try:
                with refusing(drawn):
                    keys.check_point()
            except OSError:
                for hashed, offsets in expected(entries).items():
                    assert sorted(set(keys.index.lookup(hashed))) == offsets
                copy = tmp_path_factory.mktemp("copy")
                copy_tree(keys.path, copy / "index")
                killed = Keys(copy, sums=keys.sums)
                check(killed.index, entries[:kept])
                killed.index.close()
                keys.check_point()
            kept = len(entries)
        elif happens == "killed":
            before = {path: path.read_bytes() for path in keys.path.glob("*")}
            keys.index.check_point()
            for path in before:
                path.write_bytes(torn(before[path], path.read_bytes(), Random(drawn)))
        if happens in ("open", "killed"):
            keys.reopen()
            check(keys.index, entries[:kept])
            add(keys.index, entries[kept:])
        check(keys.index, entries)
    assert not keys.reasons
    keys.index.close()


def torn(before: bytes, after: bytes, random: Random) -> bytes:
    """Return what is on disk when some sectors of a file were written."""
    sectors = [(before if random.random() < 0.5 else after)[at : at + 512] for at in range(0, len(after), 512)]
    return b"".join(sectors)


def test_a_reader_of_rocketmq_finds_the_same(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    entries = [(number % 7 * SLOTS + number % 3, 50 * number) for number in range(1, 100)]
    for first in range(0, 99, 25):
        add(keys.index, entries[first : first + 25], NOW_MS + 1000 * first)
        keys.check_point()
    keys.index.close()
    assert [file.name for file in keys.files] == ["20231114221320000", "20231114221345000", "20231114221435000"]
    found: dict[int, list[int]] = {}
    for file in keys.files:
        read = BrokerIndex(bytearray(file.read_bytes()), SLOTS, ENTRIES)
        for hashed in expected(entries):
            found.setdefault(hashed, []).extend(reversed(read.lookup(hashed)))
    assert found == expected(entries)


def test_files_go_when_the_log_has_gone_that_far(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    entries = [(number, 50 * number) for number in range(1, 100)]
    add(keys.index, entries)
    keys.check_point()
    assert len(keys.files) == 3
    keys.index.drop_before(50 * 39)
    keys.index.release()
    assert len(keys.files) == 3, "the last entry of the first file lies there"
    keys.index.drop_before(50 * 39 + 1)
    assert len(keys.files) == 3, "the last check point needs it"
    keys.check_point()
    with patch.object(Path, "unlink", side_effect=OSError(errno.EIO, "")), pytest.raises(OSError):
        keys.index.release()
    keys.index.release()
    assert len(keys.files) == 2
    for _ in range(2):
        check(keys.index, entries[39:])
        assert keys.index.lookup(5) == []
        keys.reopen()
    keys.index.drop_before(10**9)
    keys.index.check_point()
    keys.index.release()
    assert keys.files == []
    add(keys.index, entries)
    keys.index.check_point()
    check(keys.index, entries)
    keys.sums = ()
    keys.reopen()
    assert keys.files == [], "no check point knows them"


def test_damage_is_said_or_does_not_matter(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    entries = [(number % 5 * SLOTS + number % 11, 50 * number) for number in range(1, 30)]
    add(keys.index, entries)
    keys.check_point()
    (path,) = keys.files
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        keys.reopen()
        try:
            check(keys.index, entries)
        except CorruptStoreError as error:
            refused += 1
            assert error.file == str(path)
            assert keys.reasons.pop() is RebuildReason.DAMAGED
    assert refused > 100
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptStoreError, match="bytes, not"):
        keys.reopen()
    path.unlink()
    with pytest.raises(CorruptStoreError, match="is missing"):
        keys.reopen()


def test_a_store_whose_index_is_damaged_says_so_and_cancels_by_key_when_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: Sizes(index_slots=SLOTS, index_entries=100, check_point_calls=7))
    with opened(tmp_path) as store:
        for number in range(150):
            store.send_batch([Message("t", b"x", keys=(f"one-{number}", "all")) for _ in range(2)], delay_ms=3_600_000)
            store.tick()
        copy_tree(tmp_path, tmp_path.with_name("killed"))
    files = sorted((tmp_path.with_name("killed") / "wheel" / "db" / "index").iterdir())
    assert len(files) >= 4
    whole = files[0].read_bytes()
    files[0].write_bytes(b"".join([whole[:40], b"\x00\x00\x00\x01" * SLOTS, whole[40 + 4 * SLOTS :]]))
    with opened(tmp_path.with_name("killed")) as store, pytest.raises(CorruptStoreError, match="open the store again"):
        store.cancel_key("t", "one-3")
    with opened(tmp_path.with_name("killed")) as store:
        for number in range(0, 150, 6):
            assert store.cancel_key("t", f"one-{number}") == [CancelOutcome.CANCELLED] * 2
        assert store.cancel_key("t", "all") == [CancelOutcome.CANCELLED] * 250
        assert store.verify() == []


def test_a_failed_check_point_hides_no_damage(tmp_path: Path) -> None:
    """What nobody has looked at yet is still checked after a write was refused in the middle of a check point."""
    slots = 40_000
    keys = Keys(tmp_path, slots, 100)
    far = slots - 5
    add(keys.index, [(1, 10), (far, 20)])
    keys.check_point()
    (path,) = keys.files
    damaged = bytearray(path.read_bytes())
    damaged[40 + 4 * far : 44 + 4 * far] = bytes(4)
    path.write_bytes(damaged)
    keys.reopen()
    add(keys.index, [(1, 30)])
    with refusing(1), pytest.raises(OSError, match="No space"):
        keys.check_point()
    keys.check_point()
    assert keys.index.lookup(1) == [10, 30]
    with pytest.raises(CorruptStoreError):
        keys.index.lookup(far)
    keys.index.close()


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
        keys = Keys(root, slots=400_000)
        add(keys.index, [(7, 100), (300_000, 200)])
        keys.check_point()
        (path,) = keys.files
        blocks = path.stat().st_blocks
        keys.reopen()
        assert keys.index.lookup(7) == [100]
        assert not any(keys.index.lookup(hashed) for hashed in range(1000, 400_000, 20_000))
        assert path.stat().st_blocks == blocks
        keys.index.close()


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
    reads = noted(monkeypatch, CommitLog, "record")
    looked: list[int] = []
    noted(monkeypatch, KeyIndex, "lookup", lambda found, *_: looked.append(len(found)))
    noted(monkeypatch, KeyIndex, "lookup_many", lambda found, *_: looked.append(len(found[0])))
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
