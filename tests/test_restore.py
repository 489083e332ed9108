"""Snapshots taken under full load and restored: nothing lost, nothing twice, receipts and handles still count."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, FormatVersionError, StoreFullError, StoreLockedError, StorePathError
from rmqstore.engine.kv.directory import EngineHome, copy_file
from rmqstore_conformance.stores import START_MS, Pair, Stores, message, pop_all, read_ids, stores_of
from tests.pairs import DURABLE_PAIRS

PRODUCERS, CONSUMERS, CALLS = 2, 3, 60


class Traffic:
    """Threads that send, cancel, pop and ack, and remember what was answered before which moment."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.store = stores.open(flush="async")
        self.store.topics.create("t", 3)
        self.lock = threading.Condition()
        self.moment = 0
        self.sent: dict[str, int] = {}
        self.sending: dict[str, int] = {}
        self.cancelled: dict[str, int] = {}
        self.cancelling: set[str] = set()
        self.acked: dict[str, int] = {}
        self.acking: dict[str, int] = {}
        self.handles: dict[str, str] = {}
        self.errors: list[BaseException] = []

    def note(self, table: dict[str, int], names: list[str]) -> None:
        with self.lock:
            table.update(dict.fromkeys(names, self.moment))
            self.lock.notify_all()

    def produce(self, worker: int) -> None:
        for call in range(CALLS):
            names = [f"{worker}-{call}-{row}" for row in range(5)]
            self.note(self.sending, [f"m{name}" for name in names])
            later = call % 2 == 1
            rows = [message(name, deliver_at_ms=START_MS + 1000 * (1 + row) if later else None) for row, name in enumerate(names)]
            receipts = self.store.send_batch(rows)
            self.note(self.sent, [f"m{name}" for name in names])
            if later:
                with self.lock:
                    self.cancelling.add(receipts[0].message_id)
                if self.store.cancel(str(receipts[0].handle)) is CancelOutcome.CANCELLED:
                    self.note(self.cancelled, [receipts[0].message_id])
                self.handles[receipts[4].message_id] = str(receipts[4].handle)

    def consume(self) -> None:
        empty = 0
        while empty < 20:
            popped = self.store.pop("t", "g", max_messages=4, invisible_ms=3_600_000)
            empty = 0 if popped else empty + 1
            names = [each.message_id for each in popped]
            self.note(self.acking, names)
            assert set(self.store.ack(popped)) <= {AckOutcome.ACKED}
            self.note(self.acked, names)
            if not popped:
                self.stores.clock.advance(10)
                self.store.tick()

    def run(self, snapshots: list[Path]) -> list[tuple[int, int]]:
        """Run everything, taking the snapshots in between; returns the moments around each."""

        def guarded(work: object, *arguments: object) -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except BaseException as error:
                self.errors.append(error)

        threads = [threading.Thread(target=guarded, args=(self.produce, worker)) for worker in range(PRODUCERS)]
        threads += [threading.Thread(target=guarded, args=(self.consume,)) for _ in range(CONSUMERS)]
        for thread in threads:
            thread.start()
        moments = []
        for number, path in enumerate(snapshots, start=1):
            with self.lock:
                # In the middle of everything, whatever the speed of the machine.
                enough = PRODUCERS * CALLS * 5 * number // (len(snapshots) + 1)
                assert self.lock.wait_for(lambda: len(self.sent) >= enough or self.errors, timeout=60)  # noqa: B023 - used at once
                self.moment += 1
                before = self.moment
            self.store.snapshot(path)
            with self.lock:
                self.moment += 1
                moments.append((before, self.moment))
        for thread in threads:
            thread.join()
        assert self.errors == []
        return moments


@pytest.mark.clause("H1", "R1")
@pytest.mark.parametrize("pair", DURABLE_PAIRS, ids=str)
def test_a_snapshot_under_load_closes_the_ledger(pair: Pair) -> None:
    """What was answered before the snapshot is in it, what was begun after it is not; every id comes at most once, and none is lost."""
    with stores_of(pair) as stores:
        traffic = Traffic(stores)
        paths = [stores.root / f"snapshot{n}" for n in range(3)]
        moments = traffic.run(paths)
        for number, (before, after) in enumerate(moments):
            rmqstore.restore(paths[number], stores.root / f"restored{number}")
            store = stores.open(f"restored{number}")
            assert store.verify() == []
            leased = {each.message_id for each in store.leases()}
            stores.clock.set(START_MS + 7_200_000)
            store.tick()
            found = Counter(each.message_id for each in pop_all(store))
            assert set(found.values()) <= {1}, "an id came twice"
            must = {name for name, at in traffic.sent.items() if at < before} - traffic.acking.keys() - traffic.cancelling
            # An ack or a cancel that was begun only after the snapshot is not in it.
            must |= {name for name, at in traffic.acking.items() if at >= after and traffic.sent[name] < before}
            assert must <= found.keys(), f"lost: {sorted(must - found.keys())[:5]}"
            mustnt = {name for name, at in traffic.acked.items() if at < before}
            mustnt |= {name for name, at in traffic.cancelled.items() if at < before}
            mustnt |= {name for name, at in traffic.sending.items() if at >= after}
            assert not mustnt & found.keys(), f"came again: {sorted(mustnt & found.keys())[:5]}"
            assert leased <= found.keys()
            assert 0 < len(found) < PRODUCERS * CALLS * 5
            assert store.verify() == []
            store.close()


@pytest.mark.clause("R7")
@pytest.mark.parametrize("pair", DURABLE_PAIRS, ids=str)
def test_every_call_goes_on_while_a_copy_is_made_durable(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the syncs of a snapshot, nor, where both sides are in one log, a tick; what is done meanwhile is not in it."""
    with stores_of(pair) as stores:
        store = stores.open(services=False)
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
                stores.clock.advance(timedelta(seconds=10))
                store.tick()
            done.append("all")

        def stamp(home: EngineHome, database: Path, real: Callable[[EngineHome, Path], None] = EngineHome.stamp) -> None:
            thread = threading.Thread(target=calls, daemon=True)
            thread.start()
            thread.join(60)
            real(home, database)

        monkeypatch.setattr(EngineHome, "stamp", stamp)
        store.snapshot(stores.root / "snapshot")
        monkeypatch.undo()
        assert done == ["all"] * len({*pair}), "calls wait for the copy"
        with stores.open("snapshot") as copy:
            assert copy.verify() == []
            if pair.timers == pair.pops:
                assert read_ids(copy) == ["m0", "m1", "m2", "m3"]
                assert copy.groups.list() == []


@pytest.mark.parametrize("pair", DURABLE_PAIRS, ids=str)
def test_receipts_and_handles_count_in_the_restored_store(pair: Pair) -> None:
    with stores_of(pair) as stores:
        store = stores.open()
        store.send(message(1))
        (held,) = store.pop("t", "g")
        sent = store.send(message(2), delay_ms=60_000)
        store.snapshot(stores.root / "snapshot")
        assert store.ack(held) is AckOutcome.ACKED
        restored = stores.open(rmqstore.restore(stores.root / "snapshot", stores.root / "restored").name)
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
        patch.setattr("rmqstore.store.snapshots.copy_file", full)
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


@pytest.mark.clause("C6", "P2")
def test_a_restored_store_and_its_original_give_different_handles_and_receipts(durable_stores: Stores) -> None:
    """C6: both go on from the same state, one after the other; a handle of one names nothing in the other."""
    store = durable_stores.open()
    store.send(message(1))
    store.snapshot(durable_stores.root / "snapshot")
    store = durable_stores.reopen(store)
    lost = store.send(message(2), delay_ms=1000)
    (held,) = store.pop("t", "g")
    store.close()
    rmqstore.restore(durable_stores.root / "snapshot", durable_stores.root / "restored")
    restored = durable_stores.open("restored")
    sent = restored.send(message(3), delay_ms=1000)
    (new,) = restored.pop("t", "g")
    assert sent.handle != lost.handle
    assert new.receipt != held.receipt
    assert restored.cancel(str(lost.handle)) is CancelOutcome.UNKNOWN
    assert restored.ack(held) is not AckOutcome.ACKED
    assert restored.pending().total == 1


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
