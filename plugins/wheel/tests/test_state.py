"""Timers of another store, whose numbers come in any order and leave gaps of any size: after a kill, without any cache, and for readers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from plugins.wheel.tests.breaking import WheelStores
from rmqstore import Store
from rmqstore.contract.tables import TIMERS
from rmqstore.store.reader import Reader
from rmqstore_conformance.stores import DAY_MS, START_MS, message

EPOCH = 7
SEQS = np.array([900, 3, 41, 700_000, 5, 2**33, 42, 6])
DUES = np.array([-90_000, -300, 700, 1700, 60_300, 3_600_000, 3 * DAY_MS, 40 * DAY_MS]) + START_MS
TICKS = -(-DUES // 1000) * 1000


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


def _fill(store: Store) -> None:
    """Take everything in, page by page, some of them twice."""
    for _ in range(2):
        for begin in range(0, len(SEQS), 2):
            store.engine.timers.import_state([("timers", _rows(slice(begin, begin + 2)))], START_MS, [b"load/%d" % begin])
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


@pytest.mark.parametrize("how", ["killed", "without check points"])
def test_what_another_store_had_is_here(stores: WheelStores, how: str) -> None:
    store = stores.open()
    _fill(store)
    if how == "killed":
        store = stores.killed(store)
    else:
        store.close()
        for file in stores.root.rglob("checkpoint*"):
            file.unlink()
        store = stores.open()
    assert _exported(store, "timers") == _rows(slice(None)).take(pa.array(np.lexsort((SEQS, TICKS)))).to_pylist()
    assert store.verify() == []
    store.send(message("new", deliver_at_ms=START_MS + 5000))
    assert _exported(store, "timers")[4]["seq"] == SEQS.max() + 1
    # The gaps take no room.
    assert sum(file.stat().st_blocks for file in stores.path(store).rglob("*") if file.is_file()) * 512 < 100 * 2**20


def test_a_reader_sees_what_is_taken_in_meanwhile(stores: WheelStores) -> None:
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
        store.engine.timers.cancel_keys("t", ["k3"], START_MS)
        store = stores.reopen(store)
        view.refresh()
        assert view.pending().total == len(SEQS)
        assert _exported(view, "timers") == _exported(store, "timers")
        assert view.verify() == []


def test_a_reader_leaves_the_files_of_the_owner(stores: WheelStores) -> None:
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
