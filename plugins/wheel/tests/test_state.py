"""What another store had is here, however it comes in and whatever happens then: after a close, a kill, and without any cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from rmqstore import CancelOutcome, CorruptStoreError, Store
from rmqstore.contract import EMPTY_CURSOR, TimerCursor, TimerHandle
from rmqstore.contract.state import CANCELLED, DELIVERED, TIMER_TRACES, TIMERS
from rmqstore.store.reader import Reader
from rmqstore_conformance.stores import DAY_MS, START_MS, Pair, Stores, message, stores_of

WHEEL = Pair("wheel", "wheel")
EPOCH = 7
SEQS = np.array([900, 3, 41, 700_000, 5, 2**33, 42, 6])
DUES = np.array([-90_000, -300, 700, 1700, 60_300, 3_600_000, 3 * DAY_MS, 40 * DAY_MS]) + START_MS
TICKS = -(-DUES // 1000) * 1000


@pytest.fixture
def stores() -> Iterator[Stores]:
    with stores_of(WHEEL) as factory:
        yield factory


def _rows(at: slice) -> pa.RecordBatch:
    count = len(SEQS[at])
    given: dict[str, Any] = {
        "topic": ["t"] * count,
        "body": [b"body %d" % seq for seq in SEQS[at]],
        "keys": [[f"k{seq}"] for seq in SEQS[at]],
        "message_id": [f"m{seq}" for seq in SEQS[at]],
        "deliver_at_ms": DUES[at],
        "born_ms": [START_MS - 100_000] * count,
        "tick": TICKS[at],
        "seq": SEQS[at],
        "epoch": [EPOCH] * count,
        "store_ms": START_MS - 100_000 + SEQS[at] % 977,
    }
    columns = [pa.array(given[each.name], each.type) if each.name in given else pa.nulls(count, each.type) for each in TIMERS]
    return pa.RecordBatch.from_arrays(columns, schema=TIMERS)


def _head() -> pa.RecordBatch:
    sealed = TimerCursor(((START_MS - 60_000, 950),)).to_bytes()
    return pa.RecordBatch.from_pylist([{"last_seq": 2**34, "epoch": EPOCH, "precision_ms": 1000, "sealed": sealed}])


def _traces() -> pa.RecordBatch:
    rows = [(CANCELLED, START_MS, 77, EPOCH), (DELIVERED, START_MS - 5000, 78, EPOCH)]
    return pa.RecordBatch.from_pylist([dict(zip(TIMER_TRACES.names, row, strict=True)) for row in rows], schema=TIMER_TRACES)


def _fill(store: Store) -> None:
    """Take everything in, page by page, some of them twice."""
    for _ in range(2):
        store.engine.timers.import_state([("timer_head", _head())], START_MS, [b"load/head"])
        for begin in range(0, len(SEQS), 2):
            store.engine.timers.import_state([("timers", _rows(slice(begin, begin + 2)))], START_MS, [b"load/%d" % begin])
        store.engine.timers.import_state([("timer_traces", _traces())], START_MS, [b"load/traces"])
    store.engine.timers.sync()


def _exported(store: Reader, table: str, limit: int = 3) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: bytes | None = None
    while True:
        page = store.engine.timers.export_state(table, after, limit)
        rows += page.rows.to_pylist()
        if page.next is None:
            return rows
        after = page.next


def _check(store: Store) -> None:
    """Everything that was taken in is here, and counts."""
    order = np.lexsort((SEQS, TICKS))
    assert _exported(store, "timers") == _rows(slice(None)).take(pa.array(order)).to_pylist()
    assert _exported(store, "timer_traces") == _traces().to_pylist()
    head = _exported(store, "timer_head")[0]
    assert head["last_seq"] == store.engine.timers.stats().last_seq >= 2**34
    assert head["epoch"] >= EPOCH
    assert TimerCursor.from_bytes(head["sealed"]).covers(START_MS - 90_000, 900)
    assert store.engine.timers.stats().pending == len(SEQS)
    assert store.engine.timers.next_tick_ms() == int(TICKS.min())
    assert store.engine.timers.verify() == []
    counts = store.engine.timers.pending([0, START_MS, START_MS + DAY_MS])
    assert (counts.counts, counts.total) == ((2, 4), len(SEQS))
    tag = store.engine.store_id
    assert store.engine.timers.get(TimerHandle(tag, EPOCH, 2**33, int(TICKS[5]))) is not None
    asked = [(77, START_MS), (78, START_MS - 5000), (79, START_MS)]
    outcomes, _ = store.engine.timers.cancel([TimerHandle(tag, EPOCH, seq, tick) for seq, tick in asked], START_MS)
    assert outcomes == [CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED, CancelOutcome.UNKNOWN]


def _drain(store: Store) -> list[str]:
    """Cancel two, one of them by its key, and let the others become due, those far ahead as well."""
    handle = TimerHandle(store.engine.store_id, EPOCH, 5, int(TICKS[4]))
    assert store.engine.timers.cancel([handle], START_MS)[0] == [CancelOutcome.CANCELLED]
    assert store.engine.timers.cancel_key("t", "k700000", START_MS)[0] == [CancelOutcome.CANCELLED]
    got: list[str] = []
    cursor = EMPTY_CURSOR
    for now_ms in range(START_MS, START_MS + 41 * DAY_MS, DAY_MS // 2):
        store.engine.timers.seal(now_ms)
        while len((due := store.engine.timers.due(cursor, 3)).messages):
            got += [each.message_id or "" for each in due.messages.messages]
            cursor = due.cursor
            store.engine.timers.forget(cursor)
    assert store.engine.timers.verify() == []
    return got


LEFT = [f"m{seq}" for seq in (900, 3, 41, 2**33, 42, 6)]


@pytest.mark.parametrize("how", ["at once", "closed", "killed", "without check points"])
def test_what_another_store_had_is_here(stores: Stores, how: str) -> None:
    if how == "killed":
        stores.open().close()
        child = os.fork()
        if not child:
            try:
                _fill(Stores(WHEEL, stores.root).open())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        store = stores.open()
    else:
        store = stores.open()
        _fill(store)
    if how in ("closed", "without check points"):
        store.close()
        files = list(stores.root.rglob("checkpoint*"))
        assert files
        for file in files if how == "without check points" else ():
            file.unlink()
        store = stores.open()
    _check(store)
    assert _drain(store) == LEFT
    gone = {(row["kind"], row["seq"]) for row in _exported(store, "timer_traces")}
    assert gone >= {(CANCELLED, 5), (CANCELLED, 700_000), (DELIVERED, 900), (DELIVERED, 2**33), (CANCELLED, 77), (DELIVERED, 78)}


def test_a_reader_sees_what_is_taken_in_meanwhile(stores: Stores) -> None:
    """Files of numbers that it did not know when it was opened, and that are made while it looks, are read as well."""
    store = stores.open()
    store.send(message("first", deliver_at_ms=START_MS + 100_000))
    store = stores.reopen(store)
    with rmqstore.open(stores.root / "store", read_only=True) as view:
        assert view.pending().total == 1
        _fill(store)
        view.refresh()
        assert view.pending().total == len(SEQS) + 1
        assert _exported(view, "timers") == _exported(store, "timers")
        store.engine.timers.cancel_key("t", "k3", START_MS)
        store = stores.reopen(store)
        view.refresh()
        assert view.pending().total == len(SEQS)
        assert _exported(view, "timers") == _exported(store, "timers")
        assert view.verify() == []


def test_a_reader_leaves_the_files_of_the_owner(stores: Stores) -> None:
    """Those that were made since the check point lie where it says that none are."""
    store = stores.open()
    store.engine.timers.import_state([("timers", _rows(slice(5, 6)))], START_MS)
    store = stores.reopen(store)
    store.engine.timers.import_state([("timers", _rows(slice(3, 4)))], START_MS)
    store.engine.timers.import_state([("timers", _rows(slice(0, 1)))], START_MS)
    store.engine.timers.sync()
    files = sorted(stores.root.rglob("facts/*"))
    with rmqstore.open(stores.root / "store", read_only=True) as view:
        assert _exported(view, "timers") == _exported(store, "timers")
    assert sorted(stores.root.rglob("facts/*")) == files
    assert store.engine.timers.verify() == []


def test_new_timers_go_behind_what_was_taken_in(stores: Stores) -> None:
    store = stores.open()
    _fill(store)
    store = stores.reopen(store)
    store.send(message("new", deliver_at_ms=START_MS + 5000))
    assert _exported(store, "timers")[4]["seq"] == 2**34 + 1
    # The gap takes no room.
    assert sum(file.stat().st_blocks for file in stores.root.rglob("*") if file.is_file()) * 512 < 200 * 2**20


def test_a_damaged_timer_ends_an_export_and_parks(stores: Stores) -> None:
    store = stores.open()
    _fill(store)
    store.close()
    (log,) = stores.root.rglob("commitlog/*")
    content = bytearray(log.read_bytes())
    content[content.index(b"body 41")] ^= 1
    log.write_bytes(content)
    store = stores.open()
    with pytest.raises(CorruptStoreError, match="offset"):
        _exported(store, "timers")
    stores.clock.advance(10_000)
    store.tick()
    assert len(_exported(store, "timers")) == 4
