"""Snapshots and what is restored from them: calls go on meanwhile, receipts and handles still count, what cannot be restored is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, FormatVersionError, StoreFullError, StoreLockedError, StorePathError
from rmqstore.engine.kv.directory import EngineHome, copy_file
from rmqstore_conformance.stores import Stores, message, read_ids


@pytest.mark.clause("R7")
def test_every_call_goes_on_while_a_copy_is_made_durable(durable_stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the syncs of a snapshot, nor, where both sides are in one log, a tick; what is done meanwhile is not in it."""
    pair = durable_stores.pair
    store = durable_stores.open(services=False)
    store.send_batch([message(number) for number in range(4)])
    done: list[str] = []

    def calls() -> None:
        store.send(message("late"))
        receipt = store.send(message("timer"), delay=timedelta(hours=1))
        assert store.cancel(str(receipt.handle)) is CancelOutcome.CANCELLED
        assert store.ack(store.pop("t", "g", max_messages=2)) == [AckOutcome.ACKED] * 2
        store.groups.set("g", max_retries=3)
        store.flush()
        assert store.verify() == []
        if pair.timers == pair.pops:
            durable_stores.clock.advance(timedelta(seconds=10))
            store.tick()
        done.append("all")

    def stamp(home: EngineHome, database: Path, real: Callable[[EngineHome, Path], None] = EngineHome.stamp) -> None:
        thread = threading.Thread(target=calls, daemon=True)
        thread.start()
        thread.join(60)
        real(home, database)

    monkeypatch.setattr(EngineHome, "stamp", stamp)
    store.snapshot(durable_stores.root / "snapshot")
    monkeypatch.undo()
    assert done == ["all"] * len({*pair}), "calls wait for the copy"
    with durable_stores.open("snapshot") as copy:
        assert copy.verify() == []
        if pair.timers == pair.pops:
            assert read_ids(copy) == ["m0", "m1", "m2", "m3"]
            assert copy.groups.list() == []


def test_receipts_and_handles_count_in_the_restored_store(durable_stores: Stores) -> None:
    store = durable_stores.open()
    store.send(message(1))
    (held,) = store.pop("t", "g")
    sent = store.send(message(2), delay_ms=60_000)
    store.snapshot(durable_stores.root / "snapshot")
    assert store.ack(held) is AckOutcome.ACKED
    restored = durable_stores.open(rmqstore.restore(durable_stores.root / "snapshot", durable_stores.root / "restored").name)
    assert restored.ack(held) is AckOutcome.ACKED
    assert restored.cancel(str(sent.handle)) is CancelOutcome.CANCELLED
    assert store.pending().total == 1


def test_what_cannot_be_restored(durable_stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    root = durable_stores.root
    store = durable_stores.open()
    store.send(message(1), delay_ms=60_000)
    store.snapshot(root / "snapshot")
    with pytest.raises(StorePathError, match="is no snapshot"):
        rmqstore.restore(root, root / "x")
    with pytest.raises(StorePathError, match="is no snapshot"):
        rmqstore.restore(root / "nowhere", root / "x")
    with pytest.raises(StorePathError, match="exists already"):
        rmqstore.restore(root / "snapshot", root / "store")
    with pytest.raises(StorePathError, match="does not exist"):
        rmqstore.restore(root / "snapshot", root / "a" / "b")
    with pytest.raises(StoreLockedError):
        rmqstore.restore(root / "store", root / "x")
    copied = []

    def full(source: object, target: object) -> None:
        copied.append(target)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rmqstore.engine.kv.directory.copy_file", full)
        with pytest.raises(StoreFullError):
            rmqstore.restore(root / "snapshot", root / "x")
    assert copied
    assert sorted(each.name for each in root.iterdir()) == ["snapshot", "store"]
    rmqstore.restore(root / "snapshot", root / "x")
    assert durable_stores.open("x").pending().total == 1
    manifest = root / "snapshot" / "rmqstore.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(FormatVersionError):
        rmqstore.restore(root / "snapshot", root / "y")


def test_a_restore_removes_nothing_that_is_not_its_own(durable_stores: Stores) -> None:
    store = durable_stores.open()
    store.send(message(1))
    store.snapshot(durable_stores.root / "x.restoring")
    rmqstore.restore(durable_stores.root / "x.restoring", durable_stores.root / "x")
    assert (durable_stores.root / "x.restoring" / "rmqstore.json").exists()
    assert durable_stores.open("x").get("m1") is not None


@pytest.mark.parametrize("place", ["copy", "deep/copy", "../store/copy"])
def test_a_snapshot_within_the_store_itself_is_refused(durable_stores: Stores, place: str) -> None:
    store = durable_stores.open()
    (store.path / "deep").mkdir()
    with pytest.raises(StorePathError, match="lies in the store itself"):
        store.snapshot(store.path / place)
    store.snapshot(durable_stores.root / "store-copy")


def test_a_copy_of_a_file_keeps_its_holes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.seek(64 * 1024 * 1024)
        file.write(b"end")
    copy_file(tmp_path / "sparse", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "sparse").read_bytes()
    assert (tmp_path / "copy").stat().st_blocks * 512 < 1024 * 1024
