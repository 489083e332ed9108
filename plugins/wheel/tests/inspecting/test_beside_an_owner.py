"""Files that their owner writes to, or removes, while they are looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqstore.plugins import get_plugins
from rmqstore_wheel.inspecting import files, inspect, log, reading

from .conftest import LOG_BYTES, Built, rows

LOG_2 = f"{LOG_BYTES:020d}"


def read_first_as(monkeypatch: pytest.MonkeyPatch, path: Path, change: Any) -> list[int]:
    """Let the first reading of a log file give what ``change`` makes of it, as if its owner were writing at that moment."""
    real, changed = files.read, []

    def read(name: Path, at: int, length: int) -> bytes:
        data = real(name, at, length)
        if name == path and not changed:
            changed.append(at)
            return bytes(change(bytearray(data)))
        return data

    monkeypatch.setattr(reading, "read", read)
    return changed


@pytest.mark.parametrize("written", [3, 8, 20, 60, 100])
def test_a_record_that_is_being_written(broker: Built, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    (_, second) = rows(broker.look(), "Commit log")
    last = second["last record"] - LOG_BYTES

    def torn(data: bytearray) -> bytearray:
        data[last + written :] = bytes(len(data) - last - written)
        return data

    changed = read_first_as(monkeypatch, broker.path / "commitlog" / LOG_2, torn)
    assert broker.damage() == []
    assert changed
    assert rows(broker.look(), "Commit log")[1]["records"] == 7


def test_a_record_that_stays_torn_is_told(broker: Built) -> None:
    (_, second) = rows(broker.look(), "Commit log")
    last, end = second["last record"] - LOG_BYTES, second["valid up to"] - LOG_BYTES
    broker.patch(f"commitlog/{LOG_2}", last + 80, bytes(end - last - 80))
    (damage, *_) = broker.look().damage
    assert (damage.file, damage.offset) == (f"commitlog/{LOG_2}", last)
    assert "which the next start cuts off" in damage.what


def test_records_that_come_after_the_log_was_read(broker: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of the consume queues lead to them; they are looked up once more."""
    (_, second) = rows(broker.look(), "Commit log")
    last = second["last record"] - LOG_BYTES
    (broker.path / "config/timercheck").unlink()
    real = files.read
    looked: list[int] = []

    def read(name: Path, at: int, length: int) -> bytes:
        data = bytearray(real(name, at, length))
        if name.name == LOG_2 and name.parent.name == "commitlog":
            looked.append(at)
            data[last:] = bytes(len(data) - last)
        return bytes(data)

    monkeypatch.setattr(reading, "read", read)
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
