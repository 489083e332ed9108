"""Whole stores of LMDB with packed timers: reopened, copied, read beside their owner, and moved from one layout to the other and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rmqstore
from rmqstore import CancelOutcome, FormatVersionError, Store
from rmqstore.ordered.kv import WriteBatch
from rmqstore.ordered.layout import FORMAT_KEY, META, TIMERS
from rmqstore.ordered.packs import is_pack
from rmqstore.transfer import dump, load
from rmqstore_conformance.stores import START_MS, Pair, Stores, ids, message, pop_all, stores_of

PACKED = {"lmdb__layout": "packed"}


@pytest.fixture
def stores() -> Iterator[Stores]:
    with stores_of(Pair("lmdb", "lmdb")) as factory:
        yield factory


def packs(store: Store) -> int:
    """Return how many packs there are."""
    kv = store.timers._shared.kv  # type: ignore[attr-defined]
    return sum(is_pack(key) for key, _ in kv.scan_all(TIMERS))


def send_spread(store: Store, first: int, seconds: list[int]) -> list[str]:
    rows = [message(first + n, deliver_at_ms=START_MS + 1000 * each, keys=(f"k{n}",)) for n, each in enumerate(seconds)]
    return [sent.handle or "" for sent in store.send_batch(rows)]


def test_a_store_is_reopened_in_the_middle_of_a_bucket(stores: Stores) -> None:
    """What was handed over does not come again, counts are exact, and the rest comes at its time, after every close."""
    store = stores.open(**PACKED)
    handles = send_spread(store, 0, [2, 5, 8, 11, 14, 17])
    got: list[str] = []
    for second in range(1, 20):
        stores.clock.advance(1000)
        store.tick()
        got += ids(pop_all(store))
        if second % 4 == 0:
            store = stores.reopen(store)
            assert store.verify() == []
            assert store.pending().total == sum(each > second for each in (2, 5, 8, 11, 14, 17))
        if second == 9:
            assert store.cancel(handles[4:]) == [CancelOutcome.CANCELLED, CancelOutcome.CANCELLED]
            assert store.cancel(handles[:1]) == [CancelOutcome.ALREADY_DELIVERED]
            store.cancel_key("t", "k0")
            send_spread(store, 10, [10, 12, 30])
            handles += [""]
        if second == 9:
            break
    stores.clock.advance(30_000)
    store.tick()
    got += ids(pop_all(store))
    assert got == ["m0", "m1", "m2", "m10", "m3", "m11", "m12"]
    assert store.verify() == []


def test_a_snapshot_and_a_reader_see_the_same_timers(stores: Stores) -> None:
    store = stores.open(**PACKED)
    send_spread(store, 0, [2, 5, 8])
    stores.clock.advance(6000)
    store.tick()
    with rmqstore.open(stores.root / "store", mode="read") as reader:
        assert ids(each.message for each in reader.scan().timers) == ["m2"]
        assert reader.verify() == []
        send_spread(store, 10, [7, 9])
        reader.refresh()
        assert ids(each.message for each in reader.scan().timers) == ["m10", "m2", "m11"]
    store.snapshot(stores.root / "copy")
    copy = stores.open("copy")
    assert copy.config.values["lmdb.layout"] == "packed"
    stores.clock.advance(10_000)
    for each in (store, copy):
        each.tick()
        assert ids(pop_all(each)) == ["m0", "m1", "m10", "m2", "m11"]
        assert each.verify() == []


def test_a_dump_moves_timers_from_one_layout_to_the_other_and_back(stores: Stores) -> None:
    """In the middle of a bucket, with a cancelled timer in it; handles and tombstones stay good."""
    store = stores.open("first")
    handles = send_spread(store, 0, [2, 5, 8, 90, 91, 92])
    totals = []
    for number, layout in enumerate(("packed", "row", "packed")):
        dump(store, stores.root / f"dump{number}")
        store.close()
        load(stores.root / f"dump{number}", stores.root / f"store{number}", lmdb__layout=layout)
        store = stores.open(f"store{number}")
        assert store.config.values["lmdb.layout"] == layout
        assert store.verify() == []
        totals.append(store.pending().total)
        send_spread(store, 10 * (number + 1), [93, 94])
        assert bool(packs(store)) == (layout == "packed")
        assert store.cancel(handles[3 + number]) is CancelOutcome.CANCELLED
        stores.clock.advance(3000)
        store.tick()
        assert store.cancel(handles[number]) is CancelOutcome.ALREADY_DELIVERED
    # Each time two came, one was cancelled, and one handed over.
    assert totals == [6, 6, 6]
    stores.clock.advance(200_000)
    store.tick()
    assert ids(pop_all(store)) == [f"m{n}" for n in (0, 1, 2, 10, 20, 30, 11, 21, 31)]
    assert [store.cancel(each) for each in handles] == [CancelOutcome.ALREADY_DELIVERED] * 3 + [CancelOutcome.CANCELLED] * 3


def test_a_store_of_the_other_layout_is_refused(stores: Stores) -> None:
    """R4: also when the manifest is older than the setting, by the version of the records."""
    store = stores.open(**PACKED)
    with pytest.raises(rmqstore.ConfigError, match="layout"):
        stores.reopen(store, lmdb__layout="row")
    store = stores.open()
    assert store.config.values["lmdb.layout"] == "packed"
    kv = store.timers._shared.kv  # type: ignore[attr-defined]
    write = WriteBatch()
    write.put(META, FORMAT_KEY, b"\x02")
    kv.sync(kv.write(write))
    store.close()
    with pytest.raises(FormatVersionError, match="layout = 'row'"):
        stores.open()
    assert Path(stores.root / "store").is_dir()
