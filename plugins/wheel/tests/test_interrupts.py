"""What the wheel answers when a second signal comes while it opens its files again behind a call that was cut short (F4)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugins.wheel.tests.breaking import opened
from rmqstore import CancelOutcome, ManualClock, Message, MessageBatch, Store, StorePathError
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.transfer import load_into
from rmqstore_conformance.stores import HOUR_MS, START_MS
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.log.journal import State
from rmqstore_wheel.log.ledger import Ledger


def _broken(*_: Any) -> None:
    raise KeyboardInterrupt


def _interrupted(monkeypatch: pytest.MonkeyPatch, where: type, name: str, act: Callable[[], object]) -> None:
    """Make a call that is interrupted where it would call something."""
    with monkeypatch.context() as patched:
        patched.setattr(where, name, _broken)
        with pytest.raises(KeyboardInterrupt):
            act()


def _cut_short(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a send interrupted behind its frame."""
    _interrupted(monkeypatch, State, "apply", lambda: store.send(Message("t", b"cut short")))


def test_a_sync_that_meets_a_log_which_is_being_opened_again_says_only_what_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = DiskFile.sync

    def noted(file: DiskFile) -> None:
        synced.append(file.path.parent.name)
        sync(file)

    with opened(tmp_path / "store") as store:
        pops = store.engine.pops
        # What another thread has written, for which it still waits.
        _, ticket = pops.append(MessageBatch.of([Message("t", b"written", message_id="m1", born_ms=START_MS, queue_id=0)]), START_MS)
        monkeypatch.setattr(DiskFile, "sync", noted)
        _cut_short(store, monkeypatch)
        _interrupted(monkeypatch, Ledger, "open", store.stats)
        pops.sync(ticket)
        assert "commitlog" in synced
        assert [message.body for message in store.read("t").messages] == [b"written", b"cut short"]


def test_a_close_that_is_interrupted_behind_an_interrupted_call_says_nothing_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "store")
    store.send(Message("t", b"first"))
    _cut_short(store, monkeypatch)
    _interrupted(monkeypatch, Ledger, "_open_again", store.close)
    with opened(tmp_path / "store") as store:
        assert store.verify() == []
        store.send(Message("t", b"next"))
        assert [message.body for message in store.read("t").messages] == [b"first", b"cut short", b"next"]


def test_behind_an_interrupt_handles_are_of_the_same_session_whatever_a_load_has_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """What was loaded may have been given at a later epoch than any of here."""
    clock = ManualClock(START_MS)
    for _ in range(3):
        opened(tmp_path / "from", clock).close()
    with opened(tmp_path / "from", clock) as store:
        store.send(Message("t", b"loaded"), delay_ms=HOUR_MS)
        store.transfer.dump(tmp_path / "dump")
    with opened(tmp_path / "store", clock) as store:
        load_into(tmp_path / "dump", store)
        _cut_short(store, monkeypatch)
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
    sync, sync_directory, failed = DiskFile.sync, Disk.sync_directory, []

    def fail_once(path: Path) -> None:
        if path.name == "commitlog" and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")

    def sync_it(file: DiskFile) -> None:
        fail_once(file.path.parent)
        sync(file)

    def sync_that(disk: Disk, path: Path) -> None:
        fail_once(path)
        sync_directory(disk, path)

    monkeypatch.setattr(*(DiskFile, "sync", sync_it) if what == "file" else (Disk, "sync_directory", sync_that))
    with pytest.raises(StorePathError, match="a sync failed: Input/output error"):
        opened(tmp_path / "killed")
