"""An open of the wheel whose caches are gone in part: they are made again from the log."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
from rmqstore import ManualClock, Message
from rmqstore.errors import FormatVersionError
from rmqstore_wheel import check_point
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.ledger_ports import Sizes

_START_MS = 1_700_000_000_000


@pytest.mark.parametrize("directory", ["timerlog", "consumequeue/t/0"])
def test_a_gap_in_the_files_of_a_cache_is_filled_from_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: Sizes(queue_file_units=100, timer_file_units=100))
    path = tmp_path / "store"
    clock = ManualClock(_START_MS)
    with rmqstore.open(path, engine="wheel", services=False, clock=clock) as store:
        store.send_batch([Message("t", b"x", message_id=f"m{n}") for n in range(500)])
        store.send_batch([Message("t", b"x", message_id=f"l{n}", deliver_at_ms=_START_MS + 60_000) for n in range(500)])
    files = sorted((path / "wheel" / "db" / directory).iterdir())
    assert len(files) >= 5
    files[2].unlink()
    with rmqstore.open(path, engine="wheel", services=False, clock=clock) as store:
        assert store.verify() == []
        assert store.pending().total == 500
        assert len(store.read("t", limit=1000)) == 500


@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_a_check_point_of_another_version(tmp_path: Path, newer: bool) -> None:
    path = tmp_path / "store"
    clock = ManualClock(_START_MS)
    with rmqstore.open(path, engine="wheel", services=False, clock=clock) as store:
        store.send_batch([Message("t", b"x", deliver_at_ms=_START_MS + 60_000) for _ in range(10)])
    files = list((path / "wheel" / "db" / "rmqstore").glob("checkpoint*"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[8:12] = (check_point.VERSION + (1 if newer else -1)).to_bytes(4, "little")
        file.write_bytes(content)
    if newer:
        with pytest.raises(FormatVersionError, match=f"format version {check_point.VERSION + 1}"):
            rmqstore.open(path, engine="wheel", services=False, clock=clock)
        return
    # What an older release knew of the log is found out anew.
    with rmqstore.open(path, engine="wheel", services=False, clock=clock) as store:
        assert store.verify() == []
        assert store.pending().total == 10
