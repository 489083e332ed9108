"""An open of the wheel whose caches are gone in part: they are made again from the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plugins.wheel.tests.breaking import opened
from rmqstore import ManualClock, Message
from rmqstore.errors import CorruptStoreError, FormatVersionError
from rmqstore_conformance.stores import START_MS
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.log import check_point
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.log.replay import Replay


@pytest.mark.parametrize("directory", ["timerlog", "consumequeue/t/0"])
def test_a_gap_in_the_files_of_a_cache_is_filled_from_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: Sizes(queue_file_units=100, timer_file_units=100))
    path = tmp_path / "store"
    clock = ManualClock(START_MS)
    with opened(path, clock) as store:
        store.send_batch([Message("t", b"x", message_id=f"m{n}") for n in range(500)])
        store.send_batch([Message("t", b"x", message_id=f"l{n}", deliver_at_ms=START_MS + 60_000) for n in range(500)])
    files = sorted((path / "wheel" / "db" / directory).iterdir())
    assert len(files) >= 5
    files[2].unlink()
    with opened(path, clock) as store:
        assert store.verify() == []
        assert store.pending().total == 500
        assert len(store.read("t", limit=1000)) == 500


def _made(path: Path, clock: ManualClock) -> list[Path]:
    """Make a store with 10 timers; returns its check points."""
    with opened(path, clock) as store:
        store.send_batch([Message("t", b"x", deliver_at_ms=START_MS + 60_000) for _ in range(10)])
    files = list((path / "wheel" / "db" / "rmqstore").glob("checkpoint*"))
    assert files
    return files


def test_a_check_point_of_another_version_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    for file in _made(tmp_path / "store", clock):
        content = bytearray(file.read_bytes())
        content[8:12] = (check_point.VERSION + 1).to_bytes(4, "little")
        file.write_bytes(content)
    with pytest.raises(FormatVersionError, match=f"format version {check_point.VERSION + 1}"):
        opened(tmp_path / "store", clock)


def test_damage_to_an_early_call_is_told_when_a_cache_is_gone_too(tmp_path: Path) -> None:
    """All is made anew from the log then, which ends at the damage; the check point knows that it went on."""
    clock = ManualClock(START_MS)
    path = tmp_path / "store"
    with opened(path, clock, flush="async") as store:
        for number in range(100):
            store.send(Message("t", b"body %d" % number))
    db = path / "wheel" / "db"
    (log,) = (db / "commitlog").iterdir()
    content = bytearray(log.read_bytes())
    content[content.index(b"body 2")] ^= 1
    log.write_bytes(content)
    (db / "timerwheel").unlink()
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match="is damaged; a check point says"):
            opened(path, clock)
        assert log.read_bytes() == content


_CACHES = ("rmqstore/checkpoint", "timerwheel", "timerlog", "consumequeue", "index", "rmqstore/facts")


@pytest.mark.parametrize("second", _CACHES)
@pytest.mark.parametrize("first", _CACHES)
def test_a_second_cache_may_be_lost_after_a_first_one(tmp_path: Path, first: str, second: str) -> None:
    """What the check points from before all was made anew say of the caches no longer holds, and none of them is believed."""
    clock = ManualClock(START_MS)
    path = tmp_path / "store"
    db = path / "wheel" / "db"

    for step in ("made", "more", first, second):
        if (db / step).exists():
            found = db / step
            shutil.rmtree(found) if found.is_dir() else found.unlink()
        with opened(path, clock) as store:
            for n in range(20):
                handle = store.send(Message("t", b"x", keys=(f"k{n}",), deliver_at_ms=START_MS + 1000 + 100 * n)).handle
                assert handle is not None
                if n % 4 == 0:
                    store.cancel(handle)
            store.send(Message("now", b"x"))
            store.ack(store.pop("now", "g")[0].receipt)
            assert store.verify() == []
    with opened(path, clock) as store:
        assert store.pending().total == 60
        clock.advance(60_000)
        store.tick()
        assert len(store.pop("t", "g", max_messages=100)) == 60
        assert store.verify() == []


@pytest.mark.parametrize("again", [False, True], ids=["made anew", "while made anew"])
def test_a_check_point_from_before_all_was_made_anew_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    clock = ManualClock(START_MS)
    path = tmp_path / "store"
    for _ in range(2):
        _made(path, clock)
    own = path / "wheel" / "db" / "rmqstore"
    assert (own / "checkpoint.bak").exists()
    shutil.rmtree(own / "facts")
    if again:
        with monkeypatch.context() as patched:
            patched.setattr(Replay, "finish", _killed)
            with pytest.raises(KeyboardInterrupt):
                opened(path, clock)
        assert (own / "rebuild").exists(), "what is half made is not taken for what a check point vouches for"
    _made(path, clock)
    assert sorted(each.name for each in own.glob("*") if "check" in each.name or each.name == "rebuild") == ["checkpoint"]


def _killed(_: Replay) -> None:
    raise KeyboardInterrupt
