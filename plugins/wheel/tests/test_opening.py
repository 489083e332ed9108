"""Opens of the wheel: of caches that are gone in part, which are made again from the log; and behind a call that was cut short (F4)."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from plugins.wheel.tests.stores import Run, meanwhile, noted, opened
from rmqstore import CancelOutcome, ManualClock, Message, MessageBatch, Store, StorePathError
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.errors import CorruptStoreError, FormatVersionError
from rmqstore.transfer import load_into
from rmqstore_conformance.stores import HOUR_MS, START_MS
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.inspecting import inspect
from rmqstore_wheel.log import check_point
from rmqstore_wheel.log.journal import State
from rmqstore_wheel.log.ledger import Ledger, Sizes
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


def _interrupted(where: type, name: str, act: Callable[[], object]) -> None:
    """Make a call that is interrupted where it would call something."""
    with patch.object(where, name, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        act()


@pytest.mark.parametrize("again", [False, True], ids=["made anew", "while made anew"])
def test_a_check_point_from_before_all_was_made_anew_is_not_left(tmp_path: Path, again: bool) -> None:
    clock = ManualClock(START_MS)
    path = tmp_path / "store"
    for _ in range(2):
        _made(path, clock)
    own = path / "wheel" / "db" / "rmqstore"
    assert (own / "checkpoint.bak").exists()
    shutil.rmtree(own / "facts")
    if again:
        _interrupted(Replay, "finish", lambda: opened(path, clock))
        assert (own / "rebuild").exists(), "what is half made is not taken for what a check point vouches for"
    _made(path, clock)
    assert sorted(each.name for each in own.glob("*") if "check" in each.name or each.name == "rebuild") == ["checkpoint"]


def _cut_short(store: Store) -> None:
    """Have a send interrupted behind its frame."""
    _interrupted(State, "apply", lambda: store.send(Message("t", b"cut short")))


def test_a_sync_that_meets_a_log_which_is_being_opened_again_says_only_what_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as store:
        pops = store.engine.pops
        # What another thread has written, for which it still waits.
        _, ticket = pops.append(MessageBatch.of([Message("t", b"written", message_id="m1", born_ms=START_MS, queue_id=0)]), START_MS)
        synced = noted(monkeypatch, DiskFile, "sync", lambda _, file: file.path.parent.name)
        _cut_short(store)
        _interrupted(Ledger, "open", store.stats)
        pops.sync(ticket)
        assert "commitlog" in synced
        assert [message.body for message in store.read("t").messages] == [b"written", b"cut short"]


def test_a_close_that_is_interrupted_behind_an_interrupted_call_says_nothing_of_memory(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    store.send(Message("t", b"first"))
    _cut_short(store)
    _interrupted(Ledger, "_open_again", store.close)
    with opened(tmp_path / "store") as store:
        assert store.verify() == []
        store.send(Message("t", b"next"))
        assert [message.body for message in store.read("t").messages] == [b"first", b"cut short", b"next"]


def test_behind_an_interrupt_handles_are_of_the_same_session_whatever_a_load_has_noted(tmp_path: Path) -> None:
    """What was loaded may have been given at a later epoch than any of here."""
    clock = ManualClock(START_MS)
    for _ in range(3):
        opened(tmp_path / "from", clock).close()
    with opened(tmp_path / "from", clock) as store:
        store.send(Message("t", b"loaded"), delay_ms=HOUR_MS)
        store.transfer.dump(tmp_path / "dump")
    with opened(tmp_path / "store", clock) as store:
        load_into(tmp_path / "dump", store)
        _cut_short(store)
        handle = store.send(Message("t", b"later"), delay_ms=HOUR_MS).handle or ""
        copy_tree(tmp_path / "store", tmp_path / "killed")
    with opened(tmp_path / "killed", clock) as killed:
        assert killed.cancel(handle) is CancelOutcome.CANCELLED


@pytest.mark.parametrize("what", ["file", "directory"])
def test_an_open_whose_sync_fails_does_not_try_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """F2: the system tells of a failed write once, so what a second sync says is not true."""
    opened(tmp_path / "store").close()
    with opened(tmp_path / "store", flush="async") as store:
        store.send(Message("t", b"not synced"))
        copy_tree(tmp_path / "store", tmp_path / "killed")
    failed: list[Path] = []

    def fail_once(path: Path) -> None:
        if path.name == "commitlog" and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")

    if what == "file":
        meanwhile(monkeypatch, DiskFile, "sync", lambda file: fail_once(file.path.parent))
    else:
        meanwhile(monkeypatch, Disk, "sync_directory", lambda disk, path: fail_once(path))
    with pytest.raises(StorePathError, match="a sync failed: Input/output error"):
        opened(tmp_path / "killed")


@pytest.mark.parametrize("units", [1, 100])
def test_what_a_killed_owner_left_behind_the_timer_log_is_taken_away(run: Run, monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """It may have rolled timers that an open does not roll again; brokers, and an inspection, read as far as there is something."""
    run.resize(monkeypatch, index_slots=16)
    run.far("a", "b", "c")
    killed = run.path.with_name("killed")
    copy_tree(run.path, killed)
    end = 3 * timer_log.UNIT_BYTES
    for file in (killed / "wheel" / "db" / "timerlog").iterdir():
        with file.open("r+b") as timers:
            timers.seek(end + timer_log.BLANK_BYTES)
            timers.write(bytes([7]) * units * timer_log.UNIT_BYTES)
        file.with_name(f"{64 * timer_log.UNIT_BYTES + timer_log.BLANK_BYTES:020}").write_bytes(bytes([7]) * 99)
    with run.opened(killed) as store:
        found = inspect(killed / "wheel")
        assert found is not None
        assert found.damage == ()
        assert store.pending().total == 3
