"""Stores of many queues: a check point holds the units for which no file was synced; files are synced behind it (``consume_queues``)."""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from zlib_ng.zlib_ng import crc32

import rmqstore
from plugins.wheel.tests.stores import START_MS, WheelStores, ledger_of, meanwhile, noted, opened, sync_queues
from rmqstore import ManualClock, Message, ReadStore, Store
from rmqstore_conformance.stores import read_ids
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.files.units import UnitLog
from rmqstore_wheel.formats import consume_queue
from rmqstore_wheel.log import check_point, consume_queues
from rmqstore_wheel.log.ledger import Ledger

TOPICS = [f"t{number}" for number in range(50)]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics of which a file of a queue is synced from now on; nothing but the name of a directory where that is synced."""
    found: list[str] = []

    def note(path: Path) -> None:
        if "consumequeue" in path.parts:
            found.append(path.parts[-3] if path.name.isdecimal() and len(path.name) == 20 else f"{path.name}/")

    meanwhile(monkeypatch, DiskFile, "sync", lambda file: note(file.path))
    meanwhile(monkeypatch, Disk, "sync_directory", lambda _, path: note(path))
    return found


def _fill(store: Store, name: str, topics: list[str] = TOPICS, each: int = 1) -> None:
    store.send_batch([Message(topic, b"x", message_id=f"{topic}.{name}.{number}") for topic in topics for number in range(each)])


def _all_ids(store: Store | ReadStore, topics: list[str] = TOPICS) -> list[list[str]]:
    return [[each.message_id for each in store.read(topic, limit=1000).messages] for topic in topics]


def test_a_check_point_waits_for_no_file_of_a_queue(tmp_path: Path, synced: list[str]) -> None:
    with opened(tmp_path) as store:
        for name in ("a", "b"):
            _fill(store, name)
            ledger_of(store).make_check_point()
            store.tick()
        assert synced == []
        expected = _all_ids(store)
    assert synced == [], "nor does a close"
    with opened(tmp_path) as store:
        assert synced == [], "nor an open"
        assert _all_ids(store) == expected
        assert store.verify() == []


def _to_nothing(path: Path) -> None:
    for file in path.rglob("0" * 20):
        file.write_bytes(b"")


def _to_other_bytes(path: Path) -> None:
    for number, file in enumerate(sorted(path.rglob("0" * 20))):
        content = bytearray(file.read_bytes())
        content[number % 20 :: 2] = bytes([0xA5]) * len(content[number % 20 :: 2])
        file.write_bytes(content)


def _to_some_files(path: Path) -> None:
    for number, topic in enumerate(sorted(path.iterdir())):
        if number % 3 == 0:
            shutil.rmtree(topic)
        elif number % 3 == 1:
            shutil.rmtree(topic / "0")
        else:
            _to_nothing(topic)


@pytest.mark.parametrize("change", [shutil.rmtree, _to_nothing, _to_other_bytes, _to_some_files])
def test_what_a_crash_leaves_of_files_that_were_not_synced_does_not_matter(
    stores: WheelStores, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """The open does without the log before the check point, and a reader without a byte of these files."""
    store = stores.open()
    _fill(store, "a")
    ledger_of(store).make_check_point()
    _fill(store, "b", TOPICS[:25], each=3)
    ledger_of(store).make_check_point()
    _fill(store, "c", TOPICS[10:40])
    expected = _all_ids(store)
    fits = noted(monkeypatch, Ledger, "resume", lambda fits, *_: fits)
    restarts = noted(monkeypatch, Ledger, "rebuild")
    with stores.killed(store, lambda db: change(db / "consumequeue")) as again:
        assert _all_ids(again) == expected
        assert again.verify() == []
        path = again.path
        _fill(again, "d")
        expected = _all_ids(again)
    change(path / "wheel" / "db" / "consumequeue")
    with rmqstore.open(path, read_only=True) as reader:
        assert _all_ids(reader) == expected
    assert fits == [True, True]
    assert restarts == []


def test_a_queue_with_many_units_in_a_check_point_is_synced_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:  # fmt: skip
    monkeypatch.setattr(consume_queues, "_LONG", 20)
    clock = ManualClock(START_MS)
    with opened(tmp_path, clock) as store:
        _fill(store, "a", TOPICS[:2], each=20)
        _fill(store, "b", TOPICS[1:], each=1)
        ledger_of(store).make_check_point()
        assert synced == []
        store.tick()
        assert [topic for topic in synced if not topic.endswith("/")] == ["t1", "t0"]
        _fill(store, "c", ["t0"])
        ledger_of(store).make_check_point()
        synced.clear()
        store.tick()
        assert synced == []
        assert _held(tmp_path) == {topic: 1 for topic in TOPICS if topic != "t1"}
        expected = _all_ids(store)
    with opened(tmp_path, clock) as store:
        assert _all_ids(store) == expected


def _held(path: Path) -> dict[str, int]:
    """Return how many units of each topic the newest check point holds."""
    (newest, *_) = check_point.read_all(path / "wheel" / "db" / check_point.DIRECTORY)
    size = consume_queue.UNIT_BYTES
    return {topic: sum(len(units) for _, units in stretches) // size for topic, _, stretches in newest.unsynced if topic in TOPICS}


def test_a_check_point_holds_no_more_units_than_it_may(tmp_path: Path, synced: list[str]) -> None:
    """Those with most are synced for it at once, and more of them behind it, one a step of upkeep, so that others have their turn."""
    with opened(tmp_path) as store:
        queues = ledger_of(store).queues
        queues._most_unsynced = 100
        for number, topic in enumerate(TOPICS[:20], 1):
            _fill(store, "a", [topic], each=number)
        ledger_of(store).make_check_point()
        files = [topic for topic in synced if not topic.endswith("/")]
        assert files == [f"t{number}" for number in range(19, 12, -1)], "14 + … + 20 of 210, which leaves 91"
        assert _held(tmp_path) == {f"t{number}": number + 1 for number in range(13)}
        steps = []
        while queues.due:
            synced.clear()
            ledger_of(store).upkeep(START_MS)
            steps.append([topic for topic in synced if not topic.endswith("/")])
        assert steps == [["t12"], ["t11"], ["t10"], ["t9"]], "10 + … + 13 of 91, which leaves 45"
        _fill(store, "b", ["t0"])
        synced.clear()
        ledger_of(store).make_check_point()
        assert synced == []
        assert _held(tmp_path) == {"t0": 2} | {f"t{number}": number + 1 for number in range(1, 9)}
        expected = _all_ids(store, TOPICS[:20])
    with opened(tmp_path) as store:
        assert _all_ids(store, TOPICS[:20]) == expected


def test_units_that_were_rewritten_wait_for_the_check_point(tmp_path: Path, synced: list[str]) -> None:
    """A sync between two of them would change what the last one says, and have the next open make all anew."""
    with opened(tmp_path) as store:
        _fill(store, "a", ["t0"], each=3)
        ledger = ledger_of(store)
        ledger.make_check_point()
        log = ledger.queues.of("t0", 0)
        log.reserve(np.array([1]), log.read(1, 1))()
        ledger.queues.due.append(("t0", 0))
        ledger.upkeep(START_MS)
        assert (synced, ledger.queues.due) == ([], [])
        assert not (tmp_path / "wheel" / "db" / "rmqstore" / "rebuild").exists()
        _fill(store, "b", ["t0"])
        ledger.make_check_point()
        assert "t0" in synced
        assert _held(tmp_path) == {}
        expected = read_ids(store, "t0")
    with opened(tmp_path) as store:
        assert read_ids(store, "t0") == expected


def test_units_whose_sync_failed_halfway_are_synced_by_the_next_check_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their file has other bytes by then, for which there are no sums yet."""
    with opened(tmp_path) as store:
        _fill(store, "a", ["t0"], each=3)
        sync_queues(store)
    with opened(tmp_path) as store:
        ledger = ledger_of(store)
        log = ledger.queues.of("t0", 0)
        units = log.read(0, 3).copy()
        units["tags_code"] += 1
        log.reserve(np.arange(3), units)()
        with monkeypatch.context() as failing:
            failing.setattr(UnitLog, "_sum_of", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
            with pytest.raises(rmqstore.StoreFullError):
                ledger.make_check_point()
        assert log.read(0, 3).tolist() == units.tolist()
        ledger.make_check_point()
        assert not (tmp_path / "wheel" / "db" / "rmqstore" / "rebuild").exists()
        _fill(store, "b", ["t0"])
        expected = read_ids(store, "t0")
    with opened(tmp_path) as store:
        assert read_ids(store, "t0") == expected
        assert store.verify() == []


def test_a_tick_ends_where_a_check_point_finds_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when queues are to be synced behind it."""
    monkeypatch.setattr(consume_queues, "_LONG", 20)
    with opened(tmp_path) as store:
        _fill(store, "a", ["t0"], each=20)
        with monkeypatch.context() as full:
            full.setattr(Ledger, "is_long", lambda _: True)
            full.setattr(check_point, "write", write := Mock(side_effect=[OSError(errno.ENOSPC, "no space left")] * 5))
            store.tick()
            assert 1 <= write.call_count < 5
        assert ledger_of(store).queues.due == []
        expected = read_ids(store, "t0")
    with opened(tmp_path) as store:
        assert read_ids(store, "t0") == expected


def test_a_check_point_that_holds_no_units_is_read_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 had no place for them."""
    with opened(tmp_path) as store:
        sync_queues(store)
        _fill(store, "a")
        expected = _all_ids(store)
    for file in (tmp_path / "wheel" / "db" / check_point.DIRECTORY).glob("checkpoint*"):
        fields: list[Any] = msgspec.msgpack.decode(file.read_bytes()[24:])
        assert fields.pop() == []
        body = msgspec.msgpack.encode(fields)
        file.write_bytes(struct.pack("<8sIIQ", b"RMQSCKPT", 2, crc32(body), len(body)) + body)
    fits = noted(monkeypatch, Ledger, "resume", lambda fits, *_: fits)
    with opened(tmp_path) as store:
        assert _all_ids(store) == expected
    assert fits == [True]


def test_brokers_are_told_from_where_on_queues_may_be_short(tmp_path: Path) -> None:
    """One that finds a store as a loss of power left it reads the log from this time on."""

    def times() -> list[int]:
        ledger_of(store).make_check_point()
        return list(struct.unpack(">2q", (tmp_path / "wheel" / "db" / "checkpoint").read_bytes()[:16]))

    clock = ManualClock(START_MS)
    with opened(tmp_path, clock) as store:
        for number in range(3):
            clock.set(START_MS + 1000 * number)
            _fill(store, "a", [f"t{number}"])
        assert times() == [START_MS + 2000, START_MS]
        sync_queues(store)
        clock.set(START_MS + 3000)
        _fill(store, "b", ["t0"])
        assert times() == [START_MS + 3000, START_MS + 3000]


def test_a_deleted_topic_leaves_no_units(tmp_path: Path, synced: list[str]) -> None:
    with opened(tmp_path) as store:
        _fill(store, "a")
        ledger_of(store).make_check_point()
        for topic in TOPICS[:10]:
            store.topics.delete(topic)
        _fill(store, "b", TOPICS[5:])
        ledger_of(store).make_check_point()
        assert _held(tmp_path) == {topic: 1 + (number >= 10) for number, topic in enumerate(TOPICS) if number >= 5}
        expected = _all_ids(store, TOPICS[5:])
    with opened(tmp_path) as store:
        assert _all_ids(store, TOPICS[5:]) == expected
        assert [each.name for each in store.topics.list()] == sorted(TOPICS[5:])
    assert synced == []


def test_an_open_behind_a_kill_makes_no_names_anew(stores: WheelStores, synced: list[str]) -> None:
    """Of a queue that the check point does not know, four directories would be synced to remove its file, and four to make it again."""
    store = stores.open()
    _fill(store, "a")
    with stores.killed(store) as again:
        assert synced == []
        assert _all_ids(again) == _all_ids(store)


def test_a_reader_keeps_few_bytes_of_a_queue_with_few_units(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        _fill(store, "a")
        ledger_of(store).make_check_point()
        _fill(store, "b", each=5)
        expected = _all_ids(store)
        with rmqstore.open(tmp_path, read_only=True) as reader:
            ledger: Any = reader.engine.timers._ledger  # type: ignore[attr-defined]
            owned = [own.nbytes for topic in TOPICS for own in ledger.queues.of(topic, 0)._own.values()]
            assert len(owned) == len(TOPICS)
            assert sum(owned) <= len(TOPICS) * 2 * 6 * consume_queue.UNIT_BYTES
            assert _all_ids(reader) == expected
