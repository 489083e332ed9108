"""Ticks of another width: order by due time, handles from before, marks, and cancels that came too late."""

from __future__ import annotations

import pytest

import rmqstore
from rmqstore import CancelOutcome
from rmqstore.transfer import dump, load, load_into, migrate
from rmqstore_conformance.stores import START_MS, Stores, ids, message, pop_all
from tests.pairs import ENGINES

durable = pytest.mark.parametrize("stores", [engine for engine in ENGINES if engine != "memory"], indirect=True)


def _filled(stores: Stores, precision_ms: int) -> tuple[rmqstore.Store, list[str]]:
    store = stores.open("source", precision_ms=precision_ms)
    stores.clock.set(START_MS + 5000)
    batch = [message(n, deliver_at_ms=START_MS + 60_000 + 37 * n) for n in range(100)]
    handles = [each.handle or "" for each in store.send_batch(batch, marks=[b"m"])]
    # A late one keeps its tick, which no width of ticks explains.
    handles += [each.handle or "" for each in store.send_batch([message("late", deliver_at_ms=START_MS + 4321)], marks=[b"late"])]
    return store, handles


@pytest.mark.parametrize(("before_ms", "after_ms"), [(1000, 100), (100, 1000), (500, 200), (200, 500)])
@durable
def test_a_new_precision_keeps_handles_and_marks(stores: Stores, before_ms: int, after_ms: int) -> None:
    engine = stores.pair.timers
    store, handles = _filled(stores, before_ms)
    assert store.cancel(handles[7]) is CancelOutcome.CANCELLED
    store.close()
    migrate(store.path, engine=engine, precision_ms=after_ms)
    store = stores.open("source")
    assert store.engine.timers.precision_ms == after_ms
    assert store.verify() == []
    assert store.pending().total == 100
    for number in range(0, 100, 9):
        expected = CancelOutcome.CANCELLED
        assert store.cancel(handles[number]) is expected
    assert store.cancel(handles[7]) is CancelOutcome.CANCELLED
    sent = store.send_batch([message(n, deliver_at_ms=START_MS + 60_000 + 37 * n) for n in range(100)], marks=[b"m"])
    assert sent.repeated
    assert [each.handle for each in sent] == handles[:100]
    # What is due by the new ticks comes then, and in order of its due time to their width.
    arrived: list[str] = []
    for now_ms in range(START_MS + 60_000, START_MS + 65_000, 100):
        stores.clock.set(now_ms)
        store.tick()
        got = ids(pop_all(store))
        for each in got:
            due_ms = START_MS + 60_000 + 37 * int(each[1:]) if each != "mlate" else START_MS
            assert now_ms >= due_ms
            assert each == "mlate" or now_ms - due_ms < after_ms + 100
        arrived += got
    cancelled = {7, *range(0, 100, 9)}
    assert arrived == ["mlate", *(f"m{n}" for n in range(100) if n not in cancelled)]
    assert store.cancel(handles[1]) is CancelOutcome.ALREADY_DELIVERED


@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_a_dump_of_another_precision_fills_an_open_store(stores: Stores) -> None:
    store, handles = _filled(stores, 1000)
    target = stores.open("target", precision_ms=100)
    dump(store, stores.root / "dump")
    load_into(stores.root / "dump", target)
    target.send(message("own", deliver_at_ms=START_MS + 60_020))
    assert target.pending().total == 102
    assert target.cancel(handles[::2]) == [CancelOutcome.CANCELLED] * 51
    stores.clock.set(START_MS + 60_100)
    target.tick()
    assert ids(pop_all(target)) == ["m1", "mown"]
    assert target.verify() == []


@durable
def test_a_load_may_choose_a_precision(stores: Stores) -> None:
    store, _ = _filled(stores, 1000)
    dump(store, stores.root / "dump")
    load(stores.root / "dump", stores.root / "new", precision_ms=100)
    load(stores.root / "dump", stores.root / "same")
    with rmqstore.open(stores.root / "new", read_only=True) as new, rmqstore.open(stores.root / "same", read_only=True) as same:
        assert new.engine.config.precision_ms == 100
        assert same.engine.config.precision_ms == 1000
        assert new.pending() == same.pending() == store.pending()
        assert new.transfer.digest()["timers"] != same.transfer.digest()["timers"] == store.transfer.digest()["timers"]


@pytest.mark.clause("C4", "C5")
@pytest.mark.parametrize("stores", ["rocksdb"], indirect=True)
def test_answers_outlive_two_changes_of_the_precision(stores: Stores) -> None:
    """C4: 1000, 100 and 1000 ms again: what was cancelled stays so, what was delivered too."""
    store = stores.open(precision_ms=1000)
    sent = store.send_batch([message(n, deliver_at_ms=START_MS + 1150) for n in range(2)])
    handles = [str(each.handle) for each in sent]
    store.close()
    for precision_ms in (100, 1000):
        migrate(stores.root / "store", engine="rocksdb", precision_ms=precision_ms)
        store = stores.open()
        if precision_ms == 100:
            assert store.cancel(handles[0]) is CancelOutcome.CANCELLED
            stores.clock.advance(2000)
            assert store.tick().handed_over == 1
            store.flush()
            store.tick()
        assert store.cancel(handles) == [CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED]
        store.close()
