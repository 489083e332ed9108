"""F3, S1, I1: a failed call changes nothing, an absent capability is refused, a repeated mark gives the first answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rmqstore
from rmqstore import IllegalArgumentError, Message, Store, UnsupportedOperationError
from rmqstore.contract import Support
from rmqstore.plugins import get_plugins
from rmqstore.transfer import dump
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.probing import FLAGS
from rmqstore_conformance.stores import HOUR_MS, START_MS, Stores, key_of, message, pop_all, read_ids, state_of
from rmqstore_conformance.targets import capabilities_of

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)


@pytest.mark.parametrize(
    "bad",
    [
        Message(T, b""),
        Message("bad topic", b"x"),
        Message("%RETRY%x", b"x"),
        Message("x" * 128, b"x"),
        Message(T, b"x", tag="a b"),
        Message(T, b"x", tag="a|b"),
        Message(T, b"x", keys=("a b",)),
        Message(T, b"x", properties={"": "x"}),
        Message(T, b"x", properties={"a": ""}),
        Message(T, b"x", properties={"a": "\x01"}),
        Message(T, b"x", properties={"a": "x" * 33_000}),
        Message(T, b"x", properties={"KEYS": "x"}),
        Message(T, b"x", deliver_at_ms=-1),
        Message(T, b"x", queue_id=-1),
    ],
)
def test_f3_one_bad_row_refuses_the_batch(engine_stores: Stores, bad: Message) -> None:
    """F3, §5.8: nothing of the batch is stored, now or later, by structs or by columns, and the error names the row or the column."""
    store = engine_stores.open()
    good = [message(1), message(2, deliver_at_ms=START_MS + 1000)]
    before = state_of(store)
    with pytest.raises(IllegalArgumentError, match=r"row 1"):
        store.send_batch([good[0], bad, good[1]])
    with pytest.raises(IllegalArgumentError):
        store.send(bad)
    columns = rmqstore.batch.columns_of([good[0], bad, good[1]])
    with pytest.raises(IllegalArgumentError):
        store.send_batch(columns)
    assert state_of(store) == before


def test_s1_declared_capabilities_are_there(stores: Stores) -> None:
    """S1: what the engines declare is so: precisions, body size, cancel by key, snapshot."""
    timers, pops = (get_plugins().load_engine(name)[0].capabilities for name in stores.pair)
    store = stores.open(precision_ms=timers.min_precision_ms)
    largest = Message(
        T, b"x" * min(timers.max_body_bytes, pops.max_body_bytes), message_id="large", deliver_at_ms=START_MS + 1, keys=("k" * 100,)
    )
    store.send(largest)
    stores.tick_after(store, timers.min_precision_ms)
    assert read_ids(store) == ["large"]
    if timers.cancel_by_key is Support.FULL:
        store.send(message(1, keys=(key_of("key"),)), delay_ms=1000)
        assert len(store.cancel_key(T, key_of("key"))) == 1
    if Support.FULL is timers.snapshot is pops.snapshot:
        store.send(message(2), delay_ms=1000)
        store.snapshot(stores.root / "copy")
        copy = stores.open("copy")
        assert copy.pending() == store.pending()
        assert pop_all(copy)[0].body == largest.body
        assert copy.verify() == []


@pytest.mark.clause("S1")
def test_names_that_are_legal_are_seen(engine_stores: Stores) -> None:
    """§5.8: ``%`` is a legal letter; such a topic is a user's topic unless its prefix is reserved."""
    store = engine_stores.open(default_queues=2)
    store.send(message(1, "%mine"))
    assert [topic.name for topic in store.topics.list()] == ["%mine"]
    assert store.topics.list()[0].queues == 2


@pytest.mark.clause("F3")
@pytest.mark.parametrize("max_delay_ms", [0, 1000])
@pytest.mark.parametrize("delay_ms", [None, 500])
def test_t5_a_batch_of_nothing_stores_nothing(engine_stores: Stores, max_delay_ms: int, delay_ms: int | None) -> None:
    """T5: a batch without messages is a call like others, with a limit of delays and without."""
    store = engine_stores.open(max_delay_ms=max_delay_ms)
    assert len(store.send_batch([], delay_ms=delay_ms)) == 0
    assert store.topics.list() == []
    assert store.pending().total == 0
    receipts, _ = store.engine.timers.put(rmqstore.MessageBatch.of([]), engine_stores.clock.now_ms())
    assert len(receipts) == 0


# ---------------------------------------------------------------- what is not declared


Call = Callable[[Stores, Store], Any]


def _open_fresh(**settings: Any) -> Call:
    return lambda stores, store: stores.open("fresh", **settings).close()


CALLS: dict[str, tuple[Call, ...]] = {
    "cancel_by_key": (lambda stores, store: store.cancel_key(T, key_of("k")),),
    "fifo": (lambda stores, store: store.pop("elsewhere", "g2", order=True),),
    "sql92_filter": (lambda stores, store: store.pop("elsewhere", "g3", filter="price > 10"),),
    "read_only_open": (lambda stores, store: rmqstore.open(stores.root / "store", read_only=True, clock=stores.clock).close(),),
    "retention": (_open_fresh(retention_ms=HOUR_MS),),
    "import_state": (lambda stores, store: dump(store, stores.root / "dump"), lambda stores, store: store.transfer.digest()),
    "snapshot": (lambda stores, store: store.snapshot(stores.root / "copy"),),
    "pop_buffer": (_open_fresh(pop__buffer=True),),
}
"""By capability: calls that have no use but for it, and that would leave a trace if they did something before they are refused."""


@pytest.mark.parametrize("flag", FLAGS)
def test_s1_declared_is_offered_and_absent_is_refused(stores: Stores, flag: str) -> None:
    """S1: a call that needs a capability works when both engines declare it, and changes nothing when one does not."""
    store = stores.open()
    store.send(message(1, keys=(key_of("k"),)), delay_ms=5000)
    store.send(message(2))
    before, files = state_of(store), {path.name for path in stores.root.iterdir()}
    declared = [getattr(each, flag) for each in capabilities_of(stores.pair)]
    asked = {"cancel_by_key": declared[:1]}.get(flag, declared if flag in ("read_only_open", "import_state", "snapshot") else declared[1:])
    if all(each is Support.FULL for each in asked):
        for call in CALLS[flag]:
            call(stores, store)
        return
    for call in CALLS[flag]:
        with pytest.raises(UnsupportedOperationError):
            call(stores, store)
    if flag in ("cancel_by_key", "fifo", "sql92_filter"):
        # Refused for what it is, also where it would have found nothing.
        with pytest.raises(UnsupportedOperationError):
            CALLS[flag][0](stores, stores.open("empty"))
        files.add("empty")
    assert state_of(store) == before
    assert {path.name for path in stores.root.iterdir()} == files
