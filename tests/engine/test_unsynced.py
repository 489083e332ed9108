"""H1 under ``flush = async``: the power goes between any two steps of a hand-over, and with it all that was not synced.

What LMDB has not committed lives in memory, so a copy of the directory has lost it; of RocksDB's write-ahead log a copy is cut back to what
the last sync covered, or kept as it is, since more than promised may have reached the disk. With ``flush = sync`` the suite does the same
at every system call (``rmqstore_conformance.cases.test_power_loss``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest

from rmqstore import CancelOutcome, Store
from rmqstore.engine.kv.group_commit import CommittedKV
from rmqstore_conformance.power.content import Image, digest_of, read_image, write_image
from rmqstore_conformance.stores import START_MS, Pair, Stores, message, read_ids, stores_of
from tests.pairs import DURABLE_PAIRS

NOW = START_MS + 2000


class Disk:
    """Watches the syncs of one open store, engine by engine, so that a copy can be made of what a power loss would leave of it."""

    def __init__(self, store: Store) -> None:
        self._store = Path(store.stats().path)
        self._synced: dict[Path, int] = {}
        store.flush()
        for side, engine in ((store.engine.timers, store.stats().timer_engine), (store.engine.pops, store.stats().pop_engine)):
            kv: CommittedKV = side._shared.kv  # type: ignore[attr-defined]
            kv._sync_to_disk = self._watched(kv._sync_to_disk, engine)
            self._note(engine)

    def _watched(self, sync_to_disk: Callable[[], int], engine: str) -> Callable[[], int]:
        def watched() -> int:
            reached = sync_to_disk()
            self._note(engine)
            return reached

        return watched

    def _note(self, engine: str) -> None:
        for path in (self._store / engine).rglob("*.log"):
            with suppress(FileNotFoundError):  # RocksDB removes old ones in the background
                self._synced[path] = path.stat().st_size

    def _now(self) -> Image:
        while True:
            with suppress(FileNotFoundError):  # RocksDB removes old ones in the background
                return read_image(self._store)

    def after_power_loss(self, keep: frozenset[str]) -> Image:
        """Return what is left; engines in ``keep`` keep what they wrote without a sync."""
        image = self._now()
        for path, content in image.items():
            if content is not None and path.endswith(".log") and Path(path).parts[0] not in keep:
                content.resize(min(content.length, self._synced.get(self._store / path, 0)))
        return image


def survivors(pair: Pair) -> list[frozenset[str]]:
    """Return which engines may have kept more than was synced."""
    logging = sorted({name for name in pair if name == "rocksdb"})
    return [
        frozenset(name for name, kept in zip(logging, choice, strict=True) if kept)
        for choice in product((False, True), repeat=len(logging))
    ]


SCHEDULES: tuple[dict[int, str], ...] = ({}, {3: "pops", 6: "timers"}, {5: "timers", 9: "pops"}, {12: "pops"})
"""Which side is synced by itself behind which step."""


def histories(pair: Pair, limit: int, schedule: dict[int, str]) -> Iterator[tuple[Stores, Image, dict[str, str], str]]:
    """Play a hand-over and yield, for every step and every way to lose power there, what is left."""
    with stores_of(pair) as stores:
        store = stores.open(flush="async", hand_over_limit=limit)
        disk = Disk(store)
        rows = [message(f"a{n}", deliver_at_ms=START_MS + (1000, 2000)[n % 2]) for n in range(5)]
        handles = {each.message_id: each.handle or "" for each in store.send_batch(rows)}
        assert store.cancel(handles["ma0"]) is CancelOutcome.CANCELLED
        store.flush()
        for n in range(3):
            handles[f"mb{n}"] = store.send(message(f"b{n}"), deliver_at_ms=START_MS + 1500).handle or ""
        assert store.cancel(handles["ma1"]) is CancelOutcome.CANCELLED
        stores.clock.set(NOW)
        for number, step in enumerate(store._hand_over.steps(NOW)):
            for keep in survivors(pair):
                yield stores, disk.after_power_loss(keep), handles, f"step {number} ({step}), kept beyond the sync: {sorted(keep)}"
            stores.clock.set(NOW)
            if number in schedule:
                (store.engine.timers if schedule[number] == "timers" else store.engine.pops).sync()
        store.flush()
        for keep in survivors(pair):
            yield stores, disk.after_power_loss(keep), handles, "the end"


def check(store: Store, stores: Stores, handles: dict[str, str], where: str) -> None:
    """Let all time pass in what is left, and look at every message."""
    asked = {name: store.cancel(handles[name]) for name in ("ma1", "ma2", "mb0", "mb2")}
    for name, outcome in asked.items():
        assert name[1] == "b" or outcome is not CancelOutcome.UNKNOWN, f"{name} was synced, and is unknown; {where}"
    late = store.send(message("late"), deliver_at_ms=START_MS + 2500)
    store.tick()
    stores.clock.set(NOW + 60_000)
    store.tick()
    lying = read_ids(store)
    assert len(lying) == len(set(lying)), f"twice: {lying}; {where}"
    assert {"ma3", "ma4"} <= set(lying), f"lost: {lying}; {where}"
    assert "ma0" not in lying, f"cancelled durably and delivered; {where}"
    assert "mlate" in lying, where
    for name, outcome in asked.items():
        if outcome is not CancelOutcome.UNKNOWN:
            assert (name in lying) == (outcome is CancelOutcome.ALREADY_DELIVERED), f"{name}: {outcome}, {lying}; {where}"
        else:
            assert name not in lying, f"{name} is unknown, and yet delivered; {where}"
    assert late.handle not in handles.values()
    assert store.pending().total == 0
    assert store.verify() == [], where


@pytest.mark.clause("H1", "H3", "R1", "C5")
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("pair", DURABLE_PAIRS, ids=str)
def test_h1_power_loss_at_every_step(pair: Pair, limit: int) -> None:
    """H1: what was synced is neither lost nor doubled, every answer about it stays true, and what was not synced comes once at most."""
    played = 0
    for schedule in SCHEDULES:
        seen: set[bytes] = set()
        for stores, image, handles, where in histories(pair, limit, schedule):
            # Many a step leaves the disk as it was.
            if (digest := digest_of(image)) in seen:
                continue
            seen.add(digest)
            for back_ms in (0, 1500) if limit == 1 else (0,):
                stores.clock.set(NOW - back_ms)
                write_image(stores.root / "copy", image)
                store = stores.open("copy", hand_over_limit=limit)
                check(store, stores, handles, f"{where}, clock {back_ms} ms back")
                store.close()
                shutil.rmtree(stores.root / "copy")
                played += 1
    assert played >= 8


@pytest.mark.clause("H1", "H3")
@pytest.mark.parametrize("pair", DURABLE_PAIRS, ids=str)
def test_h3_a_witness_that_is_planted_before_the_sync_of_a_hand_over_loses_nothing(pair: Pair) -> None:
    """H3: the pops read their state again for it; what was handed over and is not durable is still kept as a timer."""
    with stores_of(pair) as stores:
        store = stores.open(flush="async")
        store.send(message(1), delay_ms=1000)
        disk = Disk(store)
        stores.clock.advance(1000)
        assert store.tick().handed_over == 1
        # The power goes before the sync of the witness is done, and behind a tick of the background thread.
        with patch.object(type(store.engine.pops), "sync"):
            store.transfer.plant_witness(b"job/")
        store.tick()
        for keep in survivors(pair):
            write_image(stores.root / "copy", disk.after_power_loss(keep))
            left = stores.open("copy")
            left.tick()
            assert read_ids(left) == ["m1"], f"kept beyond the sync: {sorted(keep)}"
            assert left.verify() == []
            left.close()
            shutil.rmtree(stores.root / "copy")
