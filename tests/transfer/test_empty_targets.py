"""A load goes into an empty store and into no other; everything that the dumped store gave out stays good in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, Message, Store, TransferError, UnsupportedOperationError
from rmqstore.contract import Receipt, Support
from rmqstore.transfer import dump, load, load_into
from rmqstore_conformance.stores import DAY_MS, START_MS, Stores, ids, message, pop_all
from tests.pairs import ENGINES

durable = pytest.mark.parametrize("stores", [engine for engine in ENGINES if engine != "memory"], indirect=True)


def test_a_store_that_is_not_empty_is_left_as_it_is(stores: Stores) -> None:
    """The error names the store, what it holds, and what to do instead."""
    source, target = stores.open("source"), stores.open("target")
    source.send(message("theirs"))
    dump(source, stores.root / "dump")
    held: list[tuple[Callable[[], object], str]] = [
        (lambda: target.topics.create("t"), "rows of topics"),
        (lambda: target.groups.set("g", max_retries=1), "rows of group_settings"),
        (lambda: target.send_batch([message(n) for n in range(3)]), "0 timers, 3 messages"),
        (lambda: target.send(message("later"), delay_ms=1000), "1 timers, 0 messages"),
    ]
    for number, (fill, what) in enumerate(held):
        target = stores.open(f"target{number}")
        fill()
        before = target.transfer.digest()
        with pytest.raises(TransferError, match=f"store {target.path} is not empty, it holds {what}; load .* into an empty directory"):
            load_into(stores.root / "dump", target)
        assert target.transfer.digest() == before
        assert target.engine.timers.adopted() == target.engine.pops.adopted() == {}
    handle = target.scan().timers[0].handle.text()
    stores.clock.advance(1000)
    target.tick()
    target.topics.delete("t")
    stores.clock.advance(10 * DAY_MS)
    target.tick()
    assert not any(found.rows for found in target.transfer.digest().values())
    with pytest.raises(TransferError, match="seqs of timers that are gone"):
        load_into(stores.root / "dump", target)
    assert target.cancel(handle) is CancelOutcome.UNKNOWN
    empty = stores.open("empty")
    load_into(stores.root / "dump", empty)
    with pytest.raises(TransferError, match="0 timers, 1 messages"):
        load_into(stores.root / "dump", empty)
    empty.topics.delete("t")
    with pytest.raises(TransferError, match=f"what is left of store rmqs-{source.engine.store_id:08x}"):
        load_into(stores.root / "dump", empty)


@durable
def test_a_load_leaves_a_store_that_is_not_empty_as_it_is(stores: Stores) -> None:
    source, target = stores.open("source"), stores.open("target")
    source.send(message("theirs"))
    target.send(message("ours"))
    dump(source, stores.root / "dump")
    with pytest.raises(rmqstore.StoreLockedError):
        load(stores.root / "dump", target.path)
    target.close()
    with pytest.raises(TransferError, match=f"store {target.path} is not empty, it holds 0 timers, 1 messages"):
        load(stores.root / "dump", target.path)
    assert {path.name for path in stores.root.iterdir()} == {"source", "target", "dump"}
    assert ids(pop_all(stores.open("target"))) == ["mours"]


@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_an_engine_that_keeps_nothing_is_loaded_while_it_is_open(stores: Stores, tmp_path: Path) -> None:
    source = stores.open("source")
    source.send(message(1))
    dump(source, tmp_path / "dump")
    empty = stores.open("empty").path
    stores.close()
    for place in (tmp_path / "new", empty):
        with pytest.raises(UnsupportedOperationError, match="memory"):
            load(tmp_path / "dump", place)
    assert {path.name for path in tmp_path.iterdir()} == {"dump"}


@pytest.mark.parametrize("stores", ["rocksdb", "wheel"], indirect=True)
def test_a_store_that_was_filled_is_dumped_and_loaded_again(stores: Stores) -> None:
    """Receipts and handles of a store survive two loads, the second of a store that had taken in the first."""
    first, second, third = (stores.open(name, default_queues=2) for name in ("first", "second", "third"))
    first.send_batch([message(n) for n in range(6)])
    handles = [first.send(message("later"), delay_ms=60_000).handle or ""]
    held = list(first.pop("t", "g", max_messages=4))
    dump(first, stores.root / "1")
    load_into(stores.root / "1", second)
    handles.append(second.send(message("later"), delay_ms=60_000).handle or "")
    held += second.pop("t", "g")
    dump(second, stores.root / "2")
    load_into(stores.root / "2", third)
    handles.append(third.send(message("later"), delay_ms=60_000).handle or "")
    assert [each.handle.text() for each in third.scan().timers] == handles
    assert third.ack([each.receipt for each in held]) == [AckOutcome.ACKED] * len(held)
    assert third.cancel(handles) == [CancelOutcome.CANCELLED] * 3
    assert third.verify() == []
    later = second.send(message("later"), delay_ms=60_000).handle or ""
    assert third.cancel(later) is CancelOutcome.UNKNOWN


@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_a_handle_survives_stores_that_gave_none(stores: Stores) -> None:
    """What a store passes on that never had a timer of its own goes on naming the store that gave it."""
    store = stores.open("store")
    handle = store.send(message("later"), delay_ms=60_000).handle or ""
    for number in range(12):
        dump(store, stores.root / f"dump{number}")
        store = stores.open(f"store{number}")
        load_into(stores.root / f"dump{number}", store)
        assert [each.handle.text() for each in store.scan().timers] == [handle]
    own = store.send(message("own"), delay_ms=60_000).handle or ""
    assert store.cancel([handle, own]) == [CancelOutcome.CANCELLED] * 2


def _ordered(store: Store, *, order: bool) -> None:
    store.send(message(1))
    store.pop("t", "g", order=order)


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ({"max_body_bytes": 99}, "bodies of up to 99 bytes"),
        ({"max_properties_bytes": 9}, "properties of up to 9 bytes"),
        ({"max_key_bytes": 4}, "keys of up to 4 bytes"),
        ({"fifo": Support.NOT_YET}, "pop in order"),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_what_an_engine_cannot_hold_is_found_before_the_first_write(
    stores: Stores, limits: dict[str, object], what: str, tmp_path: Path
) -> None:
    source, target = stores.open("source"), stores.open("target")
    _ordered(source, order=True)
    source.send(message("big", keys=("abcde",), properties={"colour": "green"}, deliver_at_ms=START_MS + 5000))
    source.send(Message("t", b"x" * 100))
    dump(source, tmp_path / "dump")
    load_into(tmp_path / "dump", stores.open("able"))
    info = target.engine.infos["memory"]
    less = msgspec.structs.replace(info.capabilities, **limits)
    target.engine.infos["memory"] = msgspec.structs.replace(info, capabilities=less)
    before = target.transfer.digest()
    with pytest.raises(TransferError, match=what):
        load_into(tmp_path / "dump", target)
    assert target.transfer.digest() == before
    assert target.engine.timers.adopted() == target.engine.pops.adopted() == {}


@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_pop_times_rise_above_those_that_were_deleted_elsewhere(stores: Stores) -> None:
    """A topic of a name that the other store deleted is made here: no lease of it has the pop time of an old one."""
    source, target = stores.open("source"), stores.open("target")
    source.send(message(1))
    (old,) = source.pop("t", "g")
    source.topics.delete("t")
    dump(source, stores.root / "dump")
    load_into(stores.root / "dump", target)
    target.send(message(2))
    (new,) = target.pop("t", "g")
    mine, theirs = Receipt.parse(new.receipt), Receipt.parse(old.receipt)
    assert mine is not None
    assert theirs is not None
    assert mine.pop_time_ms > theirs.pop_time_ms
    assert target.ack(old.receipt) is AckOutcome.STALE
    assert target.ack(new.receipt) is AckOutcome.ACKED


def _two(stores: Stores) -> tuple[Store, Store]:
    source, target = stores.open("source"), stores.open("target")
    for store in (source, target):
        store.send(message(store.path.name))
    return source, target


@pytest.mark.clause("P2", "P5")
def test_a_receipt_of_a_deleted_topic_ends_no_loaded_lease(stores: Stores, tmp_path: Path) -> None:
    """P2: a store had the same queue and group by name, at one time, in one epoch; each receipt still ends the lease it was given for."""
    source, target = _two(stores)
    (old,) = target.pop("t", "g")
    target.topics.delete("t")
    (new,) = source.pop("t", "g")
    source.transfer.dump(tmp_path / "dump")
    load_into(tmp_path / "dump", target)
    assert target.ack(old) is not AckOutcome.ACKED
    assert [each.receipt for each in target.leases()] == [new.receipt]
    assert target.ack(new) is AckOutcome.ACKED


@pytest.mark.clause("P2")
@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_loaded_progress_gives_no_receipt_of_a_deleted_topic_again(stores: Stores, tmp_path: Path) -> None:
    """P2: pop times go on above those of what was deleted, also where a loaded group stands at an earlier one."""
    source, target = _two(stores)
    source.ack(source.pop("t", "g"))
    source.send(message("next"))
    source.transfer.dump(tmp_path / "dump")
    target.send(message("second"))
    stores.clock.advance(1000)
    target.ack(target.pop("t", "g", max_messages=1))
    (old,) = target.pop("t", "g")
    target.topics.delete("t")
    load_into(tmp_path / "dump", target)
    (new,) = target.pop("t", "g")
    assert new.receipt != old.receipt
    assert target.ack(old) is not AckOutcome.ACKED


@pytest.mark.clause("I1", "C3")
@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_a_mark_of_a_store_with_other_ticks_is_answered_with_handles_that_cancel(stores: Stores, tmp_path: Path) -> None:
    """I1: the repeat gives the first answer, and its handle names the timer."""
    source, target = stores.open("source", precision_ms=1000), stores.open("target", precision_ms=100)
    batch = [message(1, deliver_at_ms=START_MS + 500_150)]
    (sent,) = source.send_batch(batch, marks=[b"m"])
    source.transfer.dump(tmp_path / "dump")
    load_into(tmp_path / "dump", target)
    (again,) = target.send_batch(batch, marks=[b"m"])
    assert again.repeated
    assert again.handle == sent.handle
    assert target.cancel(str(again.handle)) is CancelOutcome.CANCELLED
    assert target.pending().total == 0
