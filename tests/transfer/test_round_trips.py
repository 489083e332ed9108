"""A store moves to any engine and stays what it was: for its users, and for whoever holds a handle, a receipt or a mark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import product

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, Store
from rmqstore.contract import Receipt, TimerHandle
from rmqstore.tables import State
from rmqstore.transfer import dump, load, load_into, open_dump
from rmqstore_conformance.stores import Pair, Stores, directory, message
from tests.pairs import ENGINES, MIXED
from tests.transfer.states import SETTINGS, Past, drained, shown

DURABLE = [engine for engine in ENGINES if engine != "memory"]
ALL_PAIRS = list(product(ENGINES, ENGINES))


@contextmanager
def _stores(engine: str) -> Iterator[Stores]:
    with directory() as root:
        stores = Stores(Pair(engine, engine), root)
        try:
            yield stores
        finally:
            stores.close()


def _moved(stores: Stores, source: Store, engine: str, name: str = "moved", *, is_open: bool = False) -> Store:
    """Dump a store and load it into another one of ``engine``: a new one, or one that is open."""
    dump(source, stores.root / f"{name}.dump")
    if engine == "memory" or is_open:
        target = stores.open(name, timer_engine=engine, pop_engine=engine, **SETTINGS)
        load_into(stores.root / f"{name}.dump", target)
        return target
    load(stores.root / f"{name}.dump", stores.root / name, engine=engine)
    return stores.open(name, timer_engine=engine, pop_engine=engine, **SETTINGS)


def _check_callers(past: Past, old: Store, new: Store) -> None:
    """What callers hold gives the same answers from both, and marks are known."""
    assert new.cancel(past.handles) == old.cancel(past.handles)
    for attempt_id, (topic, group, receipts) in past.attempts.items():
        running = {lease.receipt for lease in old.engine.pops.leases(topic, group) if lease.expiry_ms > past.now_ms}
        if running & receipts:
            assert _popped(new, topic, group, attempt_id) == _popped(old, topic, group, attempt_id)
    changed = [
        (new.change_invisible(each, invisible_ms=50_000).outcome, old.change_invisible(each, invisible_ms=50_000).outcome)
        for each in past.receipts[::5]
    ]
    assert _told([mine for mine, _ in changed]) == _told([theirs for _, theirs in changed])
    assert _told(new.release(past.receipts[::7])) == _told(old.release(past.receipts[::7]))
    for _ in range(2):
        assert _told(new.ack(past.receipts)) == _told(old.ack(past.receipts))
    for mark, (batch, handles) in past.marks.items():
        sent = new.send_batch(batch, marks=[mark])
        assert sent.repeated
        assert [each.handle for each in sent] == handles


def _told(outcomes: Sequence[Enum]) -> list[str]:
    """Outcomes in one word each; what is forgotten is UNKNOWN in the open store that forgot it, and STALE after any other open."""
    return [outcome.value if outcome.value != "unknown" else "stale" for outcome in outcomes]


def _popped(store: Store, topic: str, group: str, attempt_id: str) -> list[str | None]:
    return sorted(each.message_id or "" for each in store.pop(topic, group, max_messages=8, invisible_ms=1, attempt_id=attempt_id))


@pytest.mark.parametrize(("before", "after"), ALL_PAIRS, ids=lambda name: name)
@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 10**6), calls=st.integers(10, 120), is_open=st.booleans())
def test_a_store_stays_what_it_was(before: str, after: str, seed: int, calls: int, is_open: bool) -> None:
    with _stores(before) as stores:
        past = Past(stores, seed)
        old = stores.open(**SETTINGS)
        past.live(old, calls)
        view = shown(old)
        assert view["verify"] == []
        new = _moved(stores, old, after, is_open=is_open)
        assert shown(new) == view
        assert new.transfer.digest() == old.transfer.digest()
        assert (new.engine.store_id == old.engine.store_id) is (after != "memory" and not is_open)
        assert [each.handle for each in new.scan(limit=10**6).timers] == [each.handle for each in old.scan(limit=10**6).timers]
        assert [each.receipt for each in new.leases()] == [each.receipt for each in old.leases()]
        _check_callers(past, old, new)
        assert new.verify() == []
        assert drained(new, stores) == drained(old, stores)
        assert new.verify() == []


@pytest.mark.parametrize("pair", MIXED, ids=str)
def test_two_engines_become_one_and_two_again(pair: Pair) -> None:
    """What the pops' cursor covers and the timers have not forgotten is dumped once."""
    with directory() as root:
        stores = Stores(pair, root)
        past = Past(stores, 11)
        old = stores.open(**SETTINGS)
        past.live(old, 60)
        # Handed over, and not forgotten: the last step of the hand-over is missing.
        old.send_batch([message(f"due{n}", "a", deliver_at_ms=past.now_ms + 500) for n in range(9)])
        stores.clock.advance(2000)
        for step in old._hand_over.steps(past.now_ms):
            if isinstance(step, tuple):
                break
        old.flush()
        assert old.engine.timers.stats().pending > old.pending().total
        view = shown(old)
        dump(old, root / "dump")
        load(root / "dump", root / "one", engine=pair.timers)
        with rmqstore.open(root / "one", read_only=True) as one:
            assert one.transfer.digest() == old.transfer.digest()
            dump(one, root / "again")
        load(root / "again", root / "two", timer_engine=pair.pops, pop_engine=pair.timers)
        new = stores.open("two", timer_engine=pair.pops, pop_engine=pair.timers, **SETTINGS)
        assert new.transfer.digest() == old.transfer.digest()
        assert shown(new) == view
        _check_callers(past, old, new)
        stores.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_is_dumped_while_it_is_in_use(engine: str) -> None:
    """A dump beside senders, hand-overs and consumers is one state: a prefix of what was sent, each message in one place."""
    with _stores(engine) as stores:
        store = stores.open(hand_over_limit=5, reclaim="age")
        stop, busy = threading.Event(), threading.Event()
        sent = 0

        def use() -> None:
            nonlocal sent
            while not stop.is_set():
                now_ms = stores.clock.now_ms()
                store.send_batch([message(sent + n, deliver_at_ms=now_ms + 1500 * (n % 3)) for n in range(10)])
                sent += 10
                if sent >= 50:
                    busy.set()
                stores.clock.advance(400)
                store.tick()
                store.ack(store.pop("t", "g", max_messages=7)[::2])

        user = threading.Thread(target=use)
        user.start()
        try:
            assert busy.wait(timeout=60)
            for number in range(3):
                dump(store, stores.root / f"dump{number}")
        finally:
            stop.set()
            user.join()
        for number in range(3):
            found = open_dump(stores.root / f"dump{number}")
            ids = [row["message_id"] for table in ("timers", "messages") for row in found.rows(table) if "RETRY" not in row["topic"]]
            assert sorted(ids, key=lambda each: int(each[1:])) == [f"m{n}" for n in range(len(ids))]
            assert 50 <= len(ids) <= sent
            target = stores.open(f"target{number}")
            load_into(stores.root / f"dump{number}", target)
            assert target.verify() == []


@pytest.mark.parametrize("engine", DURABLE)
def test_a_seal_moves_with_the_store(engine: str) -> None:
    """What was sealed and not handed over is too late to cancel there too; what was put into a sealed tick afterwards is not."""
    with _stores(engine) as stores:
        old = stores.open()
        now_ms = stores.clock.now_ms()
        early = [each.handle or "" for each in old.send_batch([message(n, deliver_at_ms=now_ms + 1000) for n in range(3)])]
        old.engine.timers.seal(now_ms + 1000)
        # The same tick, the same store time and the next seqs, and yet not sealed: the clock went ahead and back.
        late = [each.handle or "" for each in old.send_batch([message(n, deliver_at_ms=now_ms + 1000) for n in range(3, 6)])]
        new = _moved(stores, old, engine)
        assert new.stats().timers.sealed == old.stats().timers.sealed
        for store in (old, new):
            assert store.cancel(early[0]) is CancelOutcome.ALREADY_DELIVERED
            assert store.cancel(late[0]) is CancelOutcome.CANCELLED
        stores.clock.advance(1000)
        for store in (old, new):
            assert store.tick().handed_over == 5
            assert [each.message_id for each in store.pop("t", "g")] == ["m0", "m1", "m2", "m4", "m5"]
            assert store.verify() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lost_handle_names_no_timer_that_was_loaded(engine: str) -> None:
    """A put that a crash took away had a seq and an epoch that a loaded timer has, too; the number of the store tells them apart."""
    with _stores(engine) as stores:
        source, target = stores.open("source"), stores.open("target")
        loaded = [TimerHandle.parse(source.send(message(n), delay_ms=1000).handle or "") for n in range(3)]
        dump(source, stores.root / "dump")
        load_into(stores.root / "dump", target)
        for handle in loaded:
            assert handle is not None
            lost = TimerHandle(target.engine.store_id, handle.epoch, handle.seq, handle.tick)
            assert target.cancel(lost) is CancelOutcome.UNKNOWN
            unknown = TimerHandle(source.engine.store_id, handle.epoch + 1, handle.seq, handle.tick)
            assert target.cancel(unknown) is CancelOutcome.UNKNOWN
        assert target.pending().total == 3
        assert target.cancel([each for each in loaded if each]) == [CancelOutcome.CANCELLED] * 3


@pytest.mark.parametrize("engine", DURABLE)
def test_what_serves_the_records_moves_with_them(engine: str) -> None:
    """Timers are found by key, epochs go on from the largest, and what is remembered for a time is forgotten after it."""
    with _stores(engine) as stores:
        old = stores.open(**SETTINGS)
        for _ in range(4):
            old = stores.reopen(old, **SETTINGS)
        sent = [message(n, keys=(f"k{n % 3}", "all"), deliver_at_ms=stores.clock.now_ms() + 1000 * n) for n in range(1, 9)]
        old.send_batch([*sent, message("now")], marks=[b"m"])
        old.send(message("ready"))
        old.tick()
        old.ack(old.pop("t", "g", attempt_id="a"))
        new = _moved(stores, old, engine)
        assert new.stats().timers.epoch > old.stats().timers.epoch == 5
        assert (
            State(new.engine.timers, new.engine.pops).rows("attempts") == State(old.engine.timers, old.engine.pops).rows("attempts") != []
        )
        for key in ("k0", "k1", "all", "none"):
            assert new.cancel_key("t", key) == old.cancel_key("t", key)
        assert new.pending().total == 0
        stores.clock.advance(8 * 86_400_000)
        for _ in range(3):
            new.tick()
        left = {table for table, digest in new.transfer.digest().items() if digest.rows}
        assert left <= {"topics", "messages", "standings", "subscriptions"}
        assert new.verify() == []


def test_what_a_loaded_store_gave_out_later_names_nothing_here() -> None:
    """The source goes on in its own place: its handles and receipts of a later epoch meet seqs and pop times that are used here too."""
    with _stores("rocksdb") as stores:
        source, target = stores.open("source"), stores.open("target")
        source.send_batch([message(n, deliver_at_ms=stores.clock.now_ms() + 60_000) for n in range(3)])
        source.send(message("now"))
        source.pop("t", "g")
        dump(source, stores.root / "dump")
        load_into(stores.root / "dump", target)
        target = stores.reopen(target)
        own = TimerHandle.parse(target.send(message("own"), delay_ms=60_000).handle or "")
        assert own is not None
        record = target.engine.timers.adopted()[source.engine.store_id]
        assert (own.epoch, own.seq) > (record.epoch, record.last_seq)
        later = TimerHandle(source.engine.store_id, own.epoch, own.seq, own.tick)
        assert target.cancel(later) is CancelOutcome.UNKNOWN
        target.send(message("here"))
        (popped,) = target.pop("t", "g")
        receipt = Receipt.parse(popped.receipt)
        assert receipt is not None
        assert target.ack(msgspec.structs.replace(receipt, broker=f"rmqs-{source.engine.store_id:08x}")) is AckOutcome.UNKNOWN
        assert target.ack(receipt) is AckOutcome.ACKED
        assert target.pending().total == 4
