"""Whatever lies in the files, or is written to them meanwhile, looking at them raises nothing, ends, and changes nothing."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from plugins.wheel.tests.made_records import encode_record
from rmqstore.plugins import get_plugins
from rmqstore_wheel.formats import check_points, wheel
from rmqstore_wheel.formats.commit_log import Record
from rmqstore_wheel.inspecting import files, inspect, log, reading

from .conftest import LOG_BYTES, NOW, Built, Sizes, rows

SMALL = Sizes(log_bytes=600, queue_units=3, timer_bytes=3 * 52 + 16, ring=wheel.Ring(1000, 4), index_slots=1)


def small_store(path: Path) -> Built:
    store = Built(path, SMALL)
    for number in range(4):
        store.append("t", b"%d" % number, KEYS="k", TAGS="a")
    store.pop(check_points.CheckPoint("t", "g", 0, 0, NOW, 60_000, 2), acks=(0,))
    for number in range(4):
        store.timer("t", NOW + 5_000 + number % 2 * 1000, UNIQ_KEY=f"m{number}")
    store.timer("t", NOW + 6_000, flags=5, TIMER_DEL_UNIQKEY="t+m1")
    store.write()
    return store


@pytest.fixture
def small(tmp_path: Path) -> Built:
    return small_store(tmp_path / "store")


NAMES = ("abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "timerlog", "timerwheel")


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_truncation_at_every_byte(small: Built, name: str) -> None:
    for path in files_of(small.path / name):
        content = path.read_bytes()
        for length in range(min(len(content.rstrip(b"\0")) + 2, len(content)), -1, -1):
            path.write_bytes(content[:length])
            small.look()
        path.write_bytes(content)
    assert small.damage() == []


@pytest.mark.parametrize("seed", range(100))
def test_harm_anywhere(small: Built, seed: int) -> None:
    """Files that end early, are overwritten here and there, or hold nothing but garbage."""
    draw = random.Random(seed)
    for path in draw.sample(files_of(small.path), draw.randint(1, 4)):
        content = bytearray(path.read_bytes())
        if seed % 3 == 0:
            del content[draw.randrange(len(content.rstrip(b"\0")) + 2) :]
        elif seed % 3 == 1:
            content[:] = draw.randbytes(max(64, len(content)))
        for _ in range(draw.randint(1, 6) if seed % 3 == 2 else 0):
            at = draw.randrange(max(1, min(len(content), 700)))
            piece = draw.choice([draw.randbytes(8), b"\xff" * 8, b"\0" * 20, b"\x7f" + b"\xff" * 7, draw.randbytes(1)])
            content[at : at + len(piece)] = piece
        path.write_bytes(content)
    small.look()


def test_a_directory_where_a_file_should_be(small: Built) -> None:
    for name in ("timerwheel", "checkpoint", "abort", "config/timercheck"):
        (small.path / name).unlink()
        (small.path / name).mkdir()
    (small.path / "commitlog" / f"{1200:020d}.d").mkdir()
    (small.path / "index" / "20231114221320001").mkdir()
    (small.path / "commitlog" / f"{60000:020d}").mkdir()
    small.look()


def test_without_a_time(small: Built) -> None:
    assert inspect(small.path) == inspect(small.path, NOW)
    (small.path / "config/timercheck").unlink()
    assert inspect(small.path) is not None
    (small.path / "checkpoint").unlink()
    assert inspect(small.path) is not None


# ---------------------------------------------------------------- nothing changes


def state_of(path: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found = {}
    for each in [path, *sorted(path.rglob("*"))]:
        stat = each.stat()
        found[str(each)] = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, each.read_bytes() if each.is_file() else b"")
    return found


def test_nothing_changes(broker: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    real, flags = os.open, []
    monkeypatch.setattr(os, "open", lambda path, how, *rest, **named: flags.append(how) or real(path, how, *rest, **named))
    before = state_of(broker.path)
    broker.look()
    assert state_of(broker.path) == before
    assert flags
    assert all(each & os.O_ACCMODE == os.O_RDONLY and not each & (os.O_CREAT | os.O_TRUNC) for each in flags)


# ---------------------------------------------------------------- size


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """A file of a GiB, sparse behind 60 MiB of records."""
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        for number in range(60):
            record = Record(topic=b"t", body=bytes(1024 * 1024), queue_offset=number, physical_offset=file.tell(), store_ms=NOW)
            file.write(encode_record(record))
        file.truncate(1024**3)
    tracemalloc.start()
    try:
        found = inspect(tmp_path / "store", NOW)
        assert tracemalloc.get_traced_memory()[1] < 40 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found.damage == ()
    assert [row["messages"] for row in rows(found, "Topics")] == [60]


LOG_2 = f"{LOG_BYTES:020d}"


def read_torn(monkeypatch: pytest.MonkeyPatch, broker: Built, written: int, times: int) -> list[int]:
    """Let the first readings of the last log file find so many bytes of its last record, as if its owner were writing at that moment."""
    end = rows(broker.look(), "Commit log")[1]["last record"] - LOG_BYTES + written
    real, looked = files.read, []

    def read(name: Path, at: int, length: int) -> bytes:
        data = real(name, at, length)
        if name != broker.path / "commitlog" / LOG_2 or len(looked) == times:
            return data
        looked.append(at)
        return data[:end].ljust(len(data), b"\0")

    monkeypatch.setattr(reading, "read", read)
    return looked


@pytest.mark.parametrize("written", [3, 8, 20, 60, 100])
def test_a_record_that_is_being_written(broker: Built, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    looked = read_torn(monkeypatch, broker, written, times=1)
    assert broker.damage() == []
    assert looked
    assert rows(broker.look(), "Commit log")[1]["records"] == 7


def test_a_record_that_stays_torn_is_told(broker: Built) -> None:
    (_, second) = rows(broker.look(), "Commit log")
    last, end = second["last record"] - LOG_BYTES, second["valid up to"] - LOG_BYTES
    broker.patch(f"commitlog/{LOG_2}", last + 80, bytes(end - last - 80))
    broker.see_damage(f"commitlog/{LOG_2}", last, "which the next start cuts off", only=False)


def test_records_that_come_after_the_log_was_read(broker: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of the consume queues lead to them; they are looked up once more."""
    (broker.path / "config/timercheck").unlink()
    looked = read_torn(monkeypatch, broker, written=0, times=1000)
    monkeypatch.setattr(reading, "first_written", lambda *_: None)
    assert broker.damage() == []
    assert looked


def test_a_file_that_goes_away(broker: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    real = log.LogReader.records

    def records(self: Any, findings: Any) -> Any:
        (broker.path / "commitlog" / LOG_2).unlink(missing_ok=True)
        return real(self, findings)

    monkeypatch.setattr(log.LogReader, "records", records)
    broker.look()


def test_the_command_finds_it() -> None:
    assert get_plugins().load_inspector("wheel") is inspect
