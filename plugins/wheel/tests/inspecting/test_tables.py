"""What is told of a store that is well: a broker's, and parts of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore.contract import Moment
from rmqstore_wheel.formats import config_files, wheel
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.inspecting import index_check, inspect, queues, timers
from rmqstore_wheel.inspecting.log import LogReader

from .conftest import LOG_BYTES, NOW, REVIVE, RING, TIMER_BYTES, Built, Sizes, fill, rows, section


def test_what_is_told_of_a_sound_store(broker: Built) -> None:
    found = broker.look()
    assert found.damage == ()
    assert found.title == "RocketMQ 5 store: 34 records in 2 files of the commit log"
    for table in found.sections:
        assert all(len(row) == len(table.columns) for row in table.rows)
    first, second = rows(found, "Commit log")
    assert (first["records"], second["records"]) == (27, 7)
    assert (first["first record"], first["valid up to"], first["where it ends"]) == (0, LOG_BYTES, "a blank record fills the file")
    assert (second["first record"], second["valid up to"]) == (LOG_BYTES, len(broker.log))
    assert second["where it ends"] == "nothing was written so far"
    counts = {row["name"]: (row["files"], row["bytes"]) for row in rows(found, "Files")}
    assert [counts[name] for name in ("commitlog", "timerlog", "abort")] == [(2, 2 * LOG_BYTES), (1, TIMER_BYTES), (1, 4)]
    assert {row["topic"]: row["messages"] for row in rows(found, "Topics")} == {"t": 20, WHEEL_TOPIC: 9, REVIVE: 5}
    queues = {(row["topic"], row["queue"]): row for row in rows(found, "Consume queues")}
    assert queues["t", 1]["next offset"] == queues["t", 1]["units"] == 10
    assert {row["in the log without a unit"] for row in queues.values()} == {0}
    values = {row["what"]: row["value"] for row in rows(found, "Check points")}
    assert values["slots before this time are delivered"] == Moment(NOW)
    assert values["next offset of the wheel's topic"] == 9
    assert values["log confirmed up to"] == len(broker.log)
    assert "process 4711" in section(found, "Check points").note
    assert [row["behind"] for row in rows(found, "Consumer offsets")] == [7, 8]
    (run,) = rows(found, "Ordered pops")
    assert (run["messages"], run["not acked"], run["invisible until"]) == (2, 1, Moment(NOW + 60_000))
    (metric,) = rows(found, "Timers by topic")
    assert (metric["topic"], metric["timers"]) == ("t", 3)
    (index,) = rows(found, "Index files")
    assert (index["slots"], index["entries"], index["from"]) == (8, 20, Moment(NOW))
    (ring,) = rows(found, "Timer wheel")
    assert (ring["slots"], ring["written"], ring["slots that wait"], ring["timers in them"]) == (RING.length, 4, 4, 7)
    assert section(found, "Timer wheel").note == "Precision 1000 ms, from the units of the timer log."
    (units,) = rows(found, "Timer log")
    assert (units["units"], units["cancels"], units["units up to"]) == (9, 1, 9 * 52)


def test_what_is_not_in_a_queue_yet_is_counted(broker: Built) -> None:
    broker.patch("consumequeue/t/0/00000000000000000000", 9 * 20, bytes(20))
    found = broker.look()
    assert found.damage == ()
    (row,) = [row for row in rows(found, "Consume queues") if (row["topic"], row["queue"]) == ("t", 0)]
    assert (row["next offset"], row["in the log without a unit"]) == (9, 1)


@pytest.mark.parametrize("precision_ms", wheel.PRECISIONS_MS)
def test_the_precision_is_found(tmp_path: Path, precision_ms: int) -> None:
    store = Built(tmp_path / "store", Sizes(ring=wheel.Ring(precision_ms, 3600)))
    for ticks in (7, 20, 20, 21):
        store.timer("t", NOW + ticks * precision_ms)
    store.write()
    found = store.look()
    assert section(found, "Timer wheel").note == f"Precision {precision_ms} ms, from the units of the timer log."
    assert found.damage == ()
    for path in (store.path / "timerlog").iterdir():
        path.unlink()
    assert section(store.look(), "Timer wheel").note == f"Precision {precision_ms} ms, from the wheel's ticks beside the clock."


# ---------------------------------------------------------------- parts of a store


def test_a_directory_of_something_else_is_not_known(empty: Built) -> None:
    assert inspect(empty.path) is None
    empty.path.mkdir()
    assert inspect(empty.path) is None
    (empty.path / "index").mkdir()
    (empty.path / "config").mkdir()
    assert inspect(empty.path) is None


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "timerlog"])
def test_an_empty_directory_of_a_store_is_one(empty: Built, name: str) -> None:
    (empty.path / name).mkdir(parents=True)
    found = empty.look()
    assert found.damage == ()
    assert found.title == "RocketMQ 5 store: 0 records in 0 files of the commit log"


def test_the_engines_directory_is_looked_at_below(empty: Built) -> None:
    inner = Built(empty.path / "db")
    fill(inner)
    inner.write()
    inner.patch("commitlog/00000000000000000000", 90, b"\xff")
    (damage, *_) = empty.look().damage
    assert damage.file == "db/commitlog/00000000000000000000"
    assert "in db/" in empty.look().title


@pytest.mark.parametrize("missing", ["consumequeue", "timerlog", "timerwheel", "config", "index", "checkpoint", "abort"])
def test_a_store_may_lack_anything_but_the_log(broker: Built, missing: str) -> None:
    path = broker.path / missing
    path.rename(broker.path.parent / missing)
    found = broker.look()
    assert {each.file for each in found.damage} <= {"timerwheel", "config/consumerOffset.json"}
    assert {row["topic"]: row["messages"] for row in rows(found, "Topics")}["t"] == 20


def test_without_a_commit_log_the_rest_is_told(broker: Built) -> None:
    (broker.path / "commitlog").rename(broker.path.parent / "gone")
    found = broker.look()
    assert found.damage == ()
    assert rows(found, "Timer log")


def test_reclaimed_files_are_no_damage(empty: Built) -> None:
    """A broker removes old files of the log before those of the consume queues, and the timer log's when all of it is delivered."""
    empty.append("quiet")
    empty.timer("t", NOW + 5_000)
    for number in range(80):
        empty.append("t", b"%d" % number)
    for number in range(45):
        empty.timer("t", NOW + 30_000 + number % 3 * 1000)
    empty.check = config_files.TimerCheck(NOW + 29_000, empty.check.timer_log_position, empty.check.queue_offset)
    empty.offsets = config_files.ConsumerOffsets({"quiet@g": {0: 1}})
    empty.write()
    assert empty.damage() == []
    (empty.path / "commitlog" / f"{0:020d}").unlink()
    found = empty.look()
    assert found.damage == (), "neither the timer is missed that was delivered"
    left = {row["topic"]: (row["first offset"], row["next offset"], row["units"]) for row in rows(found, "Consume queues")}
    assert left["quiet"] == (None, 1, 0)
    assert 0 < left["t"][0] < left["t"][1] == 80
    empty.check = config_files.TimerCheck(NOW + 40_000, empty.check.timer_log_position, empty.check.queue_offset)
    empty.write()
    (empty.path / "timerlog" / f"{0:020d}").unlink()
    assert empty.damage() == []


@pytest.mark.parametrize("is_damaged", [False, True])
def test_windows_of_any_size_read_the_same(broker: Built, monkeypatch: pytest.MonkeyPatch, is_damaged: bool) -> None:
    for _ in range(15):
        broker.timer("t", NOW + 33_000)
    broker.write()
    if is_damaged:
        broker.patch("consumequeue/t/0/00000000000000000000", 3 * 20, bytes(40))
        broker.patch("consumequeue/t/1/00000000000000000000", 5 * 20, b"\x01")
        broker.patch("timerlog/00000000000000000000", 12 * 52 + 4, bytes(8))
        broker.patch("timerlog/00000000000000000000", 20 * 52 + 3, b"\x11")
    expected = broker.look()
    assert len(expected.damage) == (4 if is_damaged else 0)
    for log_bytes, units in zip((1, 91, 137, 1000, LOG_BYTES - 1, LOG_BYTES), (1, 2, 3, 7, 20, 100), strict=True):
        monkeypatch.setattr(LogReader.__init__, "__defaults__", (log_bytes,))
        for module, name in ((timers, "_WINDOW_UNITS"), (queues, "_WINDOW_UNITS"), (index_check, "_WINDOW_ENTRIES")):
            monkeypatch.setattr(module, name, units)
        assert broker.look() == expected


def test_what_is_not_read_is_told(broker: Built) -> None:
    (broker.path / "commitlog" / "0000.tmp").write_bytes(b"x")
    (broker.path / "kvStore").mkdir()
    found = broker.look()
    assert found.damage == ()
    assert "commitlog/0000.tmp" in section(found, "Files").note
    assert "Not looked at: kvStore." in section(found, "Files").note


def test_offsets_of_a_topic_without_a_queue(broker: Built) -> None:
    broker.offsets = config_files.ConsumerOffsets({"gone@g": {0: 5}, "odd": {0: 1}})
    broker.write()
    found = broker.look()
    assert found.damage == ()
    assert [row["queue ends at"] for row in rows(found, "Consumer offsets")] == [None, None]


def test_the_newest_snapshot_of_the_wheel_counts(broker: Built) -> None:
    """Newer brokers write whole copies of the wheel, each as of a position of the timer log."""
    whole = (broker.path / "timerwheel").read_bytes()
    for name in ("timerwheel", "timerwheel.0", "timerwheel.tmp"):
        (broker.path / name).write_bytes(bytes(len(whole)))
    (broker.path / f"timerwheel.{9 * 52}").write_bytes(whole)
    found = broker.look()
    assert found.damage == ()
    waiting = {row["file"]: row["slots that wait"] for row in rows(found, "Timer wheel")}
    assert waiting == {"timerwheel": None, "timerwheel.0": None, f"timerwheel.{9 * 52}": 4}
    (broker.path / f"timerwheel.{9 * 52}").write_bytes(bytes(len(whole)))
    assert {file for file, _ in broker.damage()} == {f"timerwheel.{9 * 52}"}
    (broker.path / f"timerwheel.{9 * 52}").rename(broker.path / "timerwheel.52")
    assert len(broker.damage()) == 0, "only what lies before the position of a snapshot must be in it"
