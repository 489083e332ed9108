"""Several stores become one, and everything that they gave out stays good."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, Message, Store, TransferError, UnsupportedOperationError
from rmqstore.contract import Engine, EngineInfo, Receipt, Support
from rmqstore.plugins import get_plugins
from rmqstore.transfer import dump, load, load_into, taking
from rmqstore_conformance.stores import START_MS, Pair, Stores, ids, message, pop_all, stores_of
from tests.pairs import ENGINES
from tests.transfer.states import SETTINGS, Past, drained, everything, shown

DURABLE = [engine for engine in ENGINES if engine != "memory"]

_KEEPING = {**SETTINGS, "reclaim": "age"}
"""What was consumed stays: where groups of several stores meet, it goes later than it would in any one of them."""


def _told(outcomes: list[AckOutcome]) -> list[str]:
    return [outcome.value if outcome is not AckOutcome.UNKNOWN else "stale" for outcome in outcomes]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("engine", DURABLE)
@pytest.mark.parametrize("seed", range(3))
def test_stores_become_one(engine: str, count: int, seed: int) -> None:
    with stores_of(Pair(engine, engine)) as stores:
        pasts = [Past(stores, 100 * seed + number, prefix=f"s{number}-") for number in range(count)]
        olds = [stores.open(f"old{number}", **_KEEPING) for number in range(count)]
        for past, old in zip(pasts, olds, strict=True):
            past.live(old, 60)
        for old in olds:
            dump(old, stores.root / f"{old.path.name}.dump")
        report = load([stores.root / f"{old.path.name}.dump" for old in olds], stores.root / "new", engine=engine)
        assert report.previous is None
        assert report.stores == [old.store_id for old in olds]
        new = stores.open("new", **_KEEPING)
        assert new.verify() == []
        assert sorted(everything(new)) == sorted(entry for old in olds for entry in everything(old))
        assert new.pending().total == sum(old.pending().total for old in olds)
        for topic in ("a", "b", "ordered"):
            for group in ("g", "h", "fifo"):
                lags = [old.lag(topic, group) for old in olds]
                lag = new.lag(topic, group)
                assert lag.in_flight == sum(each.in_flight for each in lags)
                assert lag.dead == sum(each.dead for each in lags)
                assert lag.ready == sum(each.ready for each in lags)
        for past, old in zip(pasts, olds, strict=True):
            assert new.cancel(past.handles) == old.cancel(past.handles)
            assert _told(new.ack(past.receipts)) == _told(old.ack(past.receipts))
            for mark, (batch, handles) in past.marks.items():
                sent = new.send_batch(batch, marks=[mark])
                assert sent.repeated
                assert len(sent) == len(handles)
        assert new.verify() == []
        expected = [drained(old, stores) for old in olds]
        got = drained(new, stores)
        for place, found in got.items():
            assert sorted(found) == sorted(each for one in expected for each in one[place])
        assert new.verify() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dump_is_merged_into_an_open_store(engine: str) -> None:
    with stores_of(Pair(engine, engine)) as stores:
        source, target = stores.open("source", **SETTINGS), stores.open("target", **SETTINGS)
        past, own = Past(stores, 1, "s-"), Past(stores, 2, "t-")
        past.live(source, 80)
        own.live(target, 80)
        before, theirs = shown(target), shown(source)
        dump(source, stores.root / "dump")
        report = load_into(stores.root / "dump", target)
        assert report.tables["messages"] == len(theirs["messages"])
        after = shown(target)
        assert after["verify"] == []
        assert after["scan"] == sorted(before["scan"] + theirs["scan"])
        assert after["messages"] == sorted(before["messages"] + theirs["messages"])
        assert target.cancel(own.handles[:5]) is not None
        assert target.cancel(past.handles) == source.cancel(past.handles)
        assert _told(target.ack(past.receipts)) == _told(source.ack(past.receipts))
        with pytest.raises(TransferError, match="double"):
            load_into(stores.root / "dump", target)


@pytest.mark.parametrize("engine", DURABLE)
def test_a_dump_is_merged_into_a_store_that_exists(engine: str) -> None:
    """The old store is kept; a second load, a dump of the store itself, and the same store twice are refused before anything is written."""
    with stores_of(Pair(engine, engine)) as stores:
        source, target = stores.open("source", **SETTINGS), stores.open("target", **SETTINGS)
        source.send(message("theirs"))
        later = source.send(message("later"), delay_ms=60_000)
        target.send(message("ours"))
        for store in (source, target):
            dump(store, stores.root / f"{store.path.name}.dump")
        with pytest.raises(rmqstore.StoreLockedError):
            load(stores.root / "source.dump", target.path)
        target.close()
        report = load(stores.root / "source.dump", target.path)
        assert report.previous is not None
        assert report.previous.name.startswith("target.before-load-")
        for name in ("source.dump", "target.dump"):
            with pytest.raises(TransferError, match="double"):
                load(stores.root / name, target.path)
        with pytest.raises(TransferError, match="same store"):
            load([stores.root / "source.dump", stores.root / "source.dump"], stores.root / "other")
        assert not (stores.root / "other").exists()
        with rmqstore.open(report.previous, mode="read") as old:
            assert ids(old.read("t").messages) == ["mours"]
        target = stores.open("target", **SETTINGS)
        assert sorted(ids(pop_all(target))) == ["mours", "mtheirs"]
        assert target.cancel(later.handle or "") is CancelOutcome.CANCELLED
        left = {path.name for path in stores.root.iterdir()}
        assert left == {"source", "target", "source.dump", "target.dump", report.previous.name}


def test_a_merged_store_is_dumped_and_merged_again() -> None:
    """Receipts and handles of a store survive two merges, the second of a store that had adopted the first."""
    with stores_of(Pair("rocksdb", "rocksdb")) as stores:
        first, second, third = (stores.open(name, default_queues=2) for name in ("first", "second", "third"))
        for number, store in enumerate((first, second, third)):
            store.send_batch([message(f"{number}-{n}") for n in range(6)])
        handle = first.send(message("later"), delay_ms=60_000).handle or ""
        held = first.pop("t", "g", max_messages=4)
        dump(first, stores.root / "1")
        load_into(stores.root / "1", second)
        dump(second, stores.root / "2")
        with pytest.raises(TransferError, match="holds"):
            load_into([stores.root / "1", stores.root / "2"], third)
        target = stores.open("target", default_queues=2)
        target.send_batch([message(f"own-{n}") for n in range(6)])
        load_into(stores.root / "2", target)
        assert target.ack([each.receipt for each in held]) == [AckOutcome.ACKED] * 4
        assert target.cancel(handle) is CancelOutcome.CANCELLED
        assert len(pop_all(target, group="other")) == 18
        assert len(pop_all(target)) == 14
        with pytest.raises(TransferError, match="holds already"):
            load_into(stores.root / "1", target)


def _ordered(store: Store, *, order: bool) -> None:
    store.send(message(1))
    store.pop("t", "g", order=order)


def test_what_cannot_be_merged_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = stores.open("source"), stores.open("target")
        _ordered(source, order=True)
        _ordered(target, order=False)
        dump(source, tmp_path / "dump")
        before = target.digest()
        with pytest.raises(TransferError, match="in order"):
            load_into(tmp_path / "dump", target)
        wide = stores.open("wide")
        wide.create_topic("t", 1024)
        with pytest.raises(TransferError, match="1025 queues"):
            load_into(tmp_path / "dump", wide)
        assert target.digest() == before
        with pytest.raises(UnsupportedOperationError, match="memory"):
            load(tmp_path / "dump", tmp_path / "new")
        assert {path.name for path in tmp_path.iterdir()} == {"dump"}


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
def test_what_an_engine_cannot_hold_is_found_before_the_first_write(
    limits: dict[str, object], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = stores.open("source"), stores.open("target")
        _ordered(source, order=True)
        source.send(message("big", keys=("abcde",), properties={"colour": "green"}, deliver_at_ms=START_MS + 5000))
        source.send(Message("t", b"x" * 100))
        dump(source, tmp_path / "dump")
        load_into(tmp_path / "dump", stores.open("able"))
        found = get_plugins()

        class Limited:
            def load_engine(self, name: str) -> tuple[EngineInfo, Engine]:
                info, engine = found.load_engine(name)
                return msgspec.structs.replace(info, capabilities=msgspec.structs.replace(info.capabilities, **limits)), engine

        monkeypatch.setattr(taking, "get_plugins", Limited)
        before = target.digest()
        with pytest.raises(TransferError, match=what):
            load_into(tmp_path / "dump", target)
        assert target.digest() == before
        assert target.timers.adopted() == target.pops.adopted() == {}


def test_a_receipt_of_a_deleted_topic_names_no_lease_here() -> None:
    """The same topic, group, queue, offset, pop time and epoch: only that the topic did not come along tells them apart."""
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = stores.open("source"), stores.open("target")
        source.send(message(1))
        old = source.pop("t", "g")
        source.delete_topic("t")
        target.send(message(2))
        new = target.pop("t", "g")
        dump(source, stores.root / "dump")
        load_into(stores.root / "dump", target)
        mine, theirs = Receipt.parse(new[0].receipt), Receipt.parse(old[0].receipt)
        assert mine is not None
        assert theirs is not None
        assert msgspec.structs.replace(mine, broker=theirs.broker) == theirs
        assert target.ack(old[0].receipt) is AckOutcome.STALE
        assert target.ack(new[0].receipt) is AckOutcome.ACKED


def test_pop_times_rise_above_those_that_were_deleted_elsewhere() -> None:
    """A topic of a name that the other store deleted is made here: no lease of it has the pop time of an old one."""
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = stores.open("source"), stores.open("target")
        source.send(message(1))
        (old,) = source.pop("t", "g")
        source.delete_topic("t")
        dump(source, stores.root / "dump")
        load_into(stores.root / "dump", target)
        target.send(message(2))
        (new,) = target.pop("t", "g")
        mine, theirs = Receipt.parse(new.receipt), Receipt.parse(old.receipt)
        assert mine is not None
        assert theirs is not None
        assert mine.pop_time_ms > theirs.pop_time_ms


def test_an_attempt_that_is_repeated_after_a_merge_gets_its_leases() -> None:
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = stores.open("source"), stores.open("target")
        for store, name in ((source, "theirs"), (target, "ours")):
            store.send_batch([message(f"{name}-{n}") for n in range(3)])
        held = source.pop("t", "g", attempt_id="a", max_messages=2)
        dump(source, stores.root / "dump")
        load_into(stores.root / "dump", target)
        again = target.pop("t", "g", attempt_id="a")
        assert ids(again) == ids(held) == ["mtheirs-0", "mtheirs-1"]
        assert [each.queue_id for each in again] == [1, 1]
        assert target.ack(again) == [AckOutcome.ACKED] * 2


def _dying(store: Store, stores: Stores, *topics: str) -> None:
    """Let one message of each topic die, one after the other."""
    for topic in topics:
        store.send(message(topic, topic))
        store.pop(topic, "g", invisible_ms=1000)
        stores.clock.advance(2000)
        store.tick()


def test_dead_letters_of_both_stores_are_counted_off() -> None:
    """Dead letters of a topic begin at another offset in each store; dropped, resent or left, the counts stay exact."""
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = stores.open("source", max_retries=0), stores.open("target", max_retries=0)
        _dying(target, stores, "b", "a")
        _dying(source, stores, "a", "b", "c")
        dump(source, stores.root / "dump")
        load_into(stores.root / "dump", target)
        assert [target.lag(topic, "g").dead for topic in ("a", "b", "c")] == [2, 2, 1]
        assert target.drop_dead(target.dead_letters("g")) == 5
        assert [target.lag(topic, "g").dead for topic in ("a", "b", "c")] == [0, 0, 0]
        assert target.verify() == []


def test_the_later_activity_of_a_group_counts() -> None:
    with stores_of(Pair("memory", "memory")) as stores:
        early, late = stores.open("early", group_expiry_ms=3_600_000), stores.open("late", group_expiry_ms=3_600_000)
        early.send(message(1))
        early.pop("t", "g")
        stores.clock.advance(3_000_000)
        late.send(message(2))
        late.pop("t", "g")
        (active,) = late.subscriptions()
        for source, target in ((early, late), (late, early)):
            dump(source, stores.root / f"{source.path.name}.dump")
            into = stores.open(f"into-{source.path.name}", group_expiry_ms=3_600_000)
            dump(target, stores.root / f"{target.path.name}.other")
            load_into([stores.root / f"{source.path.name}.dump", stores.root / f"{target.path.name}.other"], into)
            assert into.subscriptions() == [active]


@pytest.mark.clause("P13")
def test_retries_of_merged_stores_take_turns(tmp_path: Path) -> None:
    """P13: a merged retry topic has a queue a store; small pops take from each, so that none starves while another is always full."""
    with stores_of(Pair("rocksdb", "rocksdb")) as stores:
        for number in range(2):
            old = stores.open(f"old{number}")
            old.send_batch([message(f"{number}-{row}") for row in range(10)])
            assert len(old.pop("t", "g", invisible_ms=1)) == 10
            stores.clock.advance(1)
            assert old.tick().retried == 10
            dump(old, stores.root / f"dump{number}")
        load([stores.root / "dump0", stores.root / "dump1"], stores.root / "new", engine="rocksdb")
        new = stores.open("new", retry_share=1.0)
        taken = [new.pop("t", "g", max_messages=1)[0].queue_id for _ in range(10)]
        assert taken == [0, 1] * 5
        assert len(pop_all(new)) == 10


def _two(stores: Stores) -> tuple[Store, Store]:
    source, target = stores.open("source"), stores.open("target")
    for store in (source, target):
        store.send(message(store.path.name))
    return source, target


@pytest.mark.clause("P2", "P5")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_receipt_of_a_deleted_topic_ends_no_merged_lease(engine: str, tmp_path: Path) -> None:
    """P2: seats of merged stores meet by name, at one time and in one epoch; each receipt still ends the lease that it was given for."""
    with stores_of(Pair(engine, engine)) as stores:
        source, target = _two(stores)
        (old,) = target.pop("t", "g")
        target.delete_topic("t")
        (new,) = source.pop("t", "g")
        source.dump(tmp_path / "dump")
        load_into(tmp_path / "dump", target)
        assert target.ack(old) is not AckOutcome.ACKED
        assert [each.receipt for each in target.leases()] == [new.receipt]
        assert target.ack(new) is AckOutcome.ACKED


@pytest.mark.clause("P2")
def test_a_merged_standing_gives_no_receipt_of_a_deleted_topic_again(tmp_path: Path) -> None:
    """P2: pop times go on above those of what was deleted, also where a merged group stands at an earlier one."""
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = _two(stores)
        source.ack(source.pop("t", "g"))
        source.send(message("next"))
        source.dump(tmp_path / "dump")
        target.send(message("second"))
        stores.clock.advance(1000)
        target.ack(target.pop("t", "g", max_messages=1))
        (old,) = target.pop("t", "g")
        target.delete_topic("t")
        load_into(tmp_path / "dump", target)
        (new,) = target.pop("t", "g")
        assert new.receipt != old.receipt
        assert target.ack(old) is not AckOutcome.ACKED


@pytest.mark.clause("C6", "P5")
def test_what_the_source_gave_out_after_its_dump_names_nothing_here(tmp_path: Path) -> None:
    """C6: a dump of an open store goes on in the same epoch; what that store gives later is not of this one."""
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = _two(stores)
        source.dump(tmp_path / "dump")
        later = source.send(message("later"), delay_ms=9000)
        (popped,) = source.pop("t", "g")
        load_into(tmp_path / "dump", target)
        target.send(message("own"), delay_ms=9000)
        target.pop("t", "g", max_messages=1)
        held = len(target.leases())
        assert target.cancel(str(later.handle)) is CancelOutcome.UNKNOWN
        assert target.ack(popped) is not AckOutcome.ACKED
        assert target.pending().total == 1
        assert len(target.leases()) == held


@pytest.mark.clause("I1", "C3")
def test_a_mark_of_a_store_with_other_ticks_is_answered_with_handles_that_cancel(tmp_path: Path) -> None:
    """I1: the repeat gives the first answer, and its handle names the timer."""
    with stores_of(Pair("memory", "memory")) as stores:
        source, target = stores.open("source", precision_ms=1000), stores.open("target", precision_ms=100)
        batch = [message(1, deliver_at_ms=START_MS + 500_150)]
        source.send_batch(batch, marks=[b"m"])
        source.dump(tmp_path / "dump")
        load_into(tmp_path / "dump", target)
        (again,) = target.send_batch(batch, marks=[b"m"])
        assert again.repeated
        assert target.cancel(str(again.handle)) is CancelOutcome.CANCELLED
        assert target.pending().total == 0


def test_settings_of_groups_move_along_and_give_way(tmp_path: Path) -> None:
    """A merge adds the settings of groups, and leaves those that are there; what waits for its next attempt still does, with its reason."""
    clock = rmqstore.ManualClock(START_MS)
    minute = timedelta(minutes=1)
    for name, retries in (("one", 1), ("two", 2)):
        with rmqstore.open(tmp_path / name, engine="wheel", clock=clock, services=False) as store:
            store.set_group("both", max_retries=retries)
            store.set_group("same", max_retries=5)
            store.set_group(name, max_retries=7, backoff=[minute])
            store.send(rmqstore.Message("t", b"x"))
            store.retry_later(store.pop("t", name), minute, reason="no answer")
            dump(store, tmp_path / f"dump-{name}")
    with rmqstore.open(tmp_path / "one", clock=clock, services=False) as store:
        load_into(tmp_path / "dump-two", store)
        assert [store.group_settings(name).max_retries for name in ("both", "one", "two")] == [1, 7, 7]
        assert [(each.group, each.is_backing_off, each.reason) for each in store.leases()] == [
            ("one", True, "no answer"), ("two", True, "no answer"),
        ]  # fmt: skip
        assert store.lag("t", "two").backing_off == 1
        assert store.verify() == []
