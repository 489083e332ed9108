"""A store moves to any engine and stays what it was: for its users, and for whoever holds a handle, a receipt or a mark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import Enum
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, Store
from rmqstore.contract import Receipt, TimerHandle
from rmqstore.store import opening
from rmqstore.store.directory import HeldDirectory
from rmqstore.tables import State
from rmqstore.transfer import dump, load, load_into, migrate, open_dump
from rmqstore_conformance.cases.test_moving import Past, T, shown, used
from rmqstore_conformance.stores import DAY_MS, Pair, Stores, ids, message, pop_all, stores_of
from tests.pairs import ENGINES, MIXED

SETTINGS: dict[str, Any] = {"max_retries": 1, "default_queues": 2, "outcome_memory_ms": 120_000}
DURABLE = [engine for engine in ENGINES if engine != "memory"]
durable = pytest.mark.parametrize("stores", DURABLE, indirect=True)


def _moved(stores: Stores, source: Store, engine: str, name: str = "moved", *, is_open: bool = False) -> Store:
    """Dump a store and load it into another one of ``engine``: a new one, or one that is open."""
    dump(source, stores.root / f"{name}.dump")
    if engine == "memory" or is_open:
        target = stores.open(name, timer_engine=engine, pop_engine=engine, **SETTINGS)
        load_into(stores.root / f"{name}.dump", target)
        return target
    load(stores.root / f"{name}.dump", stores.root / name, engine=engine)
    return stores.open(name, timer_engine=engine, pop_engine=engine, **SETTINGS)


def _told(outcomes: Sequence[Enum]) -> list[str]:
    """Outcomes in one word each; what is forgotten is UNKNOWN in the open store that forgot it, and STALE after any other open."""
    return [outcome.value if outcome.value != "unknown" else "stale" for outcome in outcomes]


def _check_callers(past: Past, new: Store) -> None:
    """What callers hold gives the same answers from both stores."""
    old = past.store
    assert new.cancel(past.handles) == old.cancel(past.handles)
    for _ in range(2):
        assert _told(new.ack(past.receipts)) == _told(old.ack(past.receipts))
    assert new.verify() == old.verify() == []


@pytest.mark.parametrize(
    ("stores", "after", "is_open"),
    [*((*pair, False) for pair in permutations(ENGINES, 2)), *((each, ENGINES[at - 1], True) for at, each in enumerate(ENGINES))],
    indirect=["stores"],
)
def test_a_store_stays_what_it_was_in_another_engine(stores: Stores, after: str, is_open: bool) -> None:
    """What moves within an engine, the suite tries on each: by chance, with all that callers can ask afterwards."""
    past = used(stores)
    old = past.store
    new = _moved(stores, old, after, is_open=is_open)
    assert shown(new) == shown(old)
    assert new.transfer.digest() == old.transfer.digest()
    assert (new.engine.store_id == old.engine.store_id) is (after != "memory" and not is_open)
    assert [each.handle for each in new.scan(limit=10**6).timers] == [each.handle for each in old.scan(limit=10**6).timers]
    assert [each.receipt for each in new.leases()] == [each.receipt for each in old.leases()]
    _check_callers(past, new)
    stores.clock.advance(4 * DAY_MS)
    for store in (new, old):
        store.tick()
    for group in store.groups.list():
        assert sorted(ids(pop_all(new, T, group))) == sorted(ids(pop_all(old, T, group)))


@pytest.mark.parametrize("pair", MIXED, ids=str)
def test_two_engines_become_one_and_two_again(pair: Pair) -> None:
    """What the pops' cursor covers and the timers have not forgotten is dumped once."""
    with stores_of(pair) as stores:
        root = stores.root
        past = used(stores)
        old = past.store
        # Handed over, and not forgotten: the last step of the hand-over is missing.
        old.send_batch([message(f"due{n}", T, deliver_at_ms=stores.clock.now_ms() + 500) for n in range(9)])
        stores.clock.advance(2000)
        for step in old._hand_over.steps(stores.clock.now_ms()):
            if isinstance(step, tuple):
                break
        old.flush()
        assert old.engine.timers.stats().pending > old.pending().total
        dump(old, root / "dump")
        load(root / "dump", root / "one", engine=pair.timers)
        with rmqstore.open(root / "one", read_only=True) as one:
            assert one.transfer.digest() == old.transfer.digest()
            dump(one, root / "again")
        load(root / "again", root / "two", timer_engine=pair.pops, pop_engine=pair.timers)
        new = stores.open("two", timer_engine=pair.pops, pop_engine=pair.timers, **SETTINGS)
        assert new.transfer.digest() == old.transfer.digest()
        assert shown(new) == shown(old)
        _check_callers(past, new)


def test_a_store_is_dumped_while_it_is_in_use(stores: Stores) -> None:
    """A dump beside senders, hand-overs and consumers is one state: a prefix of what was sent, each message in one place."""
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


def test_a_dump_is_of_the_store_that_is_open_whatever_its_path_leads_to_now(stores: Stores) -> None:
    """X5: another store in its old place is not what is dumped, nor are the settings there."""
    (stores.root / "store").mkdir()
    (stores.root / "store" / "rmqstore.toml").write_text("max_retries = 3\n")
    store = stores.open()
    store.send(message("ours"))
    (stores.root / "store").rename(stores.root / "moved")
    other = stores.open()
    other.send(message("theirs"))
    dump(store, stores.root / "dump")
    found = open_dump(stores.root / "dump")
    assert [row["message_id"] for row in found.rows("messages")] == ["mours"]
    assert found.store_id == store.engine.store_id
    assert found.manifest.given == {"max_retries": 3}


@pytest.mark.parametrize("stores", DURABLE[:1], indirect=True)
def test_what_is_read_is_one_directory_though_another_takes_its_place(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that a migration overtakes does not look by the manifest of one store for the files of the other."""
    other = next(each for each in DURABLE if each != stores.pair.timers)
    store = stores.open()
    store.send(message("ours"))
    store.close()
    held = opening.HeldDirectory

    def overtaken(path: Path) -> HeldDirectory:
        monkeypatch.setattr(opening, "HeldDirectory", held)
        migrate(store.path, engine=other)
        return held(path)

    monkeypatch.setattr(opening, "HeldDirectory", overtaken)
    with rmqstore.open(store.path, read_only=True) as reader:
        assert reader.engine.config.timer_engine == other
        assert [each.message_id for each in reader.read("t").messages] == ["mours"]


def test_a_lost_handle_names_no_timer_that_was_loaded(stores: Stores) -> None:
    """A put that a crash took away had a seq and an epoch that a loaded timer has, too; the number of the store tells them apart."""
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


@durable
def test_what_serves_the_records_moves_with_them(stores: Stores) -> None:
    """Timers are found by key, epochs go on from the largest, and what is remembered for a time is forgotten after it."""
    engine = stores.pair.timers
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
    assert State(new.engine.timers, new.engine.pops).rows("attempts") == State(old.engine.timers, old.engine.pops).rows("attempts") != []
    for key in ("k0", "k1", "all", "none"):
        assert new.cancel_key("t", key) == old.cancel_key("t", key)
    assert new.pending().total == 0
    stores.clock.advance(8 * 86_400_000)
    for _ in range(3):
        new.tick()
    left = {table for table, digest in new.transfer.digest().items() if digest.rows}
    assert left <= {"topics", "messages", "standings", "subscriptions"}
    assert new.verify() == []


@pytest.mark.parametrize("stores", ["rocksdb"], indirect=True)
def test_what_a_loaded_store_gave_out_later_names_nothing_here(stores: Stores) -> None:
    """The source goes on in its own place: its handles and receipts of a later epoch meet seqs and pop times that are used here too."""
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


def test_a_letter_with_all_the_properties_and_the_reason_that_are_allowed_moves(stores: Stores) -> None:
    largest = 32_767 - 500
    source = stores.open("source", **SETTINGS | {"default_queues": 1})
    source.send_batch([rmqstore.Message(T, b"x", properties={"p": "v" * size}) for size in (10, largest - 400, largest)])
    letters = source.pop(T, "g")
    assert len(letters) == 3
    for letter in letters:
        source.reject(letter, reason="é" * 512)
    reasons = [letter.reason for letter in source.dead_letters.list("g")]
    assert reasons[0] == "é" * 512 > reasons[1] > reasons[2] > ""
    for target in ENGINES:
        moved = _moved(stores, source, target, f"in-{target}")
        assert [letter.reason for letter in moved.dead_letters.list("g")] == reasons


def test_what_was_spared_when_its_head_died_stays_spared(stores: Stores) -> None:
    """P9: its lease ends in the new store, and it comes once more."""
    engine = stores.pair.timers
    store = stores.open("old", max_retries=0)
    store.send_batch([message(number) for number in range(3)])
    for number, popped in enumerate(store.pop(T, "g", order=True, max_messages=3, invisible_ms=DAY_MS)):
        store.change_invisible(popped, invisible_ms=1000 * (1 + number))
    assert stores.tick_after(store, 1000).dead == 1
    target = _moved(stores, store, engine)
    target.groups.set("g", max_retries=0)
    assert stores.tick_after(target, 2000).dead == 0
    assert ids(target.pop(T, "g", order=True, max_messages=3)) == ["m1", "m2"]
