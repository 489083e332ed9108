"""Units in files: their numbers come in any order and leave gaps of any size, which take no room; damage is told by the sums of blocks.

So are the timers of another store: after a kill, without any cache, and for readers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import rmqstore
from plugins.wheel.tests.stores import WheelStores
from rmqstore import CorruptStoreError, Store
from rmqstore.contract.tables import TIMERS
from rmqstore.store.reader import Reader
from rmqstore_conformance.stores import DAY_MS, START_MS, directory, message
from rmqstore_wheel.files.bitmap import Bits
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import BLOCK, Sums, UnitLog
from rmqstore_wheel.formats import consume_queue
from rmqstore_wheel.formats.binary_columns import Rows
from rmqstore_wheel.reader.log import ReadDisk
from rmqstore_wheel.reader.units import ReadUnits

PER_FILE = 5000
"""No multiple of a block of sums, as the number of units in a file of a consume queue is none."""

SIZE = consume_queue.UNIT_BYTES
FILL = consume_queue.decode(consume_queue.FILL)[0]
NUMBERS = st.one_of(st.integers(0, 3 * PER_FILE), st.integers(10**6, 10**6 + 3 * PER_FILE), st.integers(2**32, 2**32 + PER_FILE))
KINDS = st.sampled_from(["place", "follow", "append", "refused", "check point", "hold", "reopen", "trim"])
CALLS = st.lists(st.tuples(KINDS, st.sets(NUMBERS, min_size=1, max_size=12)), max_size=12)
OPTIONS: Any = {"fill": consume_queue.FILL, "fill_bytes": 4096}


def _log(place: Path, sums: Sums, kind: type[UnitLog] = UnitLog) -> UnitLog:
    log = kind(ReadDisk() if kind is ReadUnits else Disk(), place, consume_queue.UNIT, PER_FILE, **OPTIONS)
    log.start(sums)
    return log


def _units(numbers: np.ndarray) -> Rows:
    return consume_queue.rows_of(numbers * 3, np.full(len(numbers), 99))


@settings(max_examples=50)
@given(calls=CALLS)
def test_units_stay_where_they_were_put(calls: list[tuple[str, set[int]]]) -> None:
    """Also for a reader that does the same to the units of the last check point as the owner, and writes nothing."""
    with directory() as root:
        sums = Sums()
        log, view = (_log(root / "units", sums, kind) for kind in (UnitLog, ReadUnits))
        there: set[int] = set()
        for kind, chosen in calls:
            numbers = np.array(sorted(chosen))
            if kind in ("follow", "append"):
                numbers = log.count + np.arange(len(chosen) * (400 if kind == "append" else 1))
            if kind == "hold":
                # What a check point holds that syncs nothing; what it finds rewritten, or trimmed, is synced.
                if not log.is_rewritten and log.first == sums.first:
                    stretches = log.unsynced()
                    for each in (log, view):
                        each.close()
                    log, view = (_log(root / "units", sums, each) for each in (UnitLog, ReadUnits))
                    for first, units in stretches:
                        for each in (log, view):
                            each.reserve(first + np.arange(len(units) // SIZE), consume_queue.decode(units))()
            elif kind in ("check point", "reopen", "trim"):
                if kind == "trim" and numbers[0] < log.count:
                    log.trim(int(numbers[0]))
                    there = {number for number in there if number >= log.first}
                sums = log.sync()
                log.release()
                view.close()
                if kind == "reopen":
                    log.close()
                    log = _log(root / "units", sums)
                view = _log(root / "units", sums, ReadUnits)
            elif kind == "append":
                for each in (log, view):
                    each.write_ahead(_units(numbers).tobytes())
                    each.advance(_units(numbers).tobytes())
                there.update(numbers.tolist())
            else:
                numbers = numbers[numbers >= log.first]
                commits = [each.reserve(numbers, _units(numbers)) for each in (log, view) if len(numbers)]
                for commit in commits if kind != "refused" else []:
                    commit()
                there.update(numbers.tolist() if kind != "refused" else [])
            assert (view.first, view.count) == (log.first, log.count)
            looked = there if len(there) < 100 else set(sorted(there)[:: len(there) // 50])
            for number in sorted(looked | {at + 1 for at in looked if at + 1 < log.count}):
                expected = _units(np.array([number]))[0] if number in there else FILL
                first = max(number - 7000, log.first)
                for each in (log, view):
                    assert each.gather(np.array([number, number]))[0] == expected
                    assert each.read(first, number + 1 - first)[-1] == expected
                    begin, data = each.around(number)
                    assert data[(number - begin) * SIZE :][:SIZE] == expected.tobytes()
            held = [range(*stretch) for stretch in log.held(0)]
            assert all(any(number in stretch for stretch in held) for number in there)
            # Two files hold a gap of thousands of millions.
            assert len(list((root / "units").glob("*"))) <= 20
        for each in (log, view):
            each.close()


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("looks", ["never", "before", "behind"])
def test_a_block_grows_over_check_points(tmp_path: Path, is_damaged: bool, looks: str) -> None:
    """Who appends to it need not look into it: what was damaged before is found by the next one who does."""
    place, sums = tmp_path / "units", Sums()
    data = _units(np.arange(31)).tobytes()

    def append(log: UnitLog, count: int) -> None:
        more = data[log.count * SIZE : (log.count + count) * SIZE]
        log.write_ahead(more)
        log.advance(more)

    for count in (10, 9, 12):
        log = _log(place, sums)
        for part in (count // 2, count - count // 2):
            if looks == "before":
                assert log.read(0, log.count).tobytes() == data[: log.count * SIZE]
            append(log, part)
            if looks == "behind":
                assert log.read(0, log.count).tobytes() == data[: log.count * SIZE]
            sums = log.sync()
        log.close()
        if is_damaged and count == 9:
            path = log.chain.path_of(log.position(3))
            path.write_bytes(path.read_bytes().replace(data[3 * SIZE : 4 * SIZE], bytes(SIZE)))
            looks = "never"
    log = _log(place, sums)
    if is_damaged:
        for look in (lambda: log.read(25, 1), lambda: log.around(25), lambda: log.gather(np.array([25]))):
            with pytest.raises(CorruptStoreError, match="units 0 to 30 are not what was written"):
                look()
    else:
        assert log.read(0, 31).tobytes() == data[: 31 * SIZE]
    log.close()


def test_what_is_around_a_unit_ends_where_nobody_looked(tmp_path: Path) -> None:
    log = _log(tmp_path / "units", Sums())
    log.reserve(np.arange(PER_FILE + 3 * BLOCK), _units(np.arange(PER_FILE + 3 * BLOCK)))()
    sums = log.sync()
    log.close()
    log = _log(tmp_path / "units", sums)
    ends = []
    for number in (3 * BLOCK + 1, PER_FILE, PER_FILE - 1, 2 * BLOCK, 0):
        begin, data = log.around(number)
        assert data == _units(begin + np.arange(len(data) // SIZE)).tobytes()
        ends.append((begin, begin + len(data) // SIZE))
    assert ends == [(3 * BLOCK, 3 * PER_FILE), (PER_FILE, 2 * BLOCK), (BLOCK, PER_FILE), (PER_FILE, 2 * PER_FILE), (0, PER_FILE)]
    log.close()


def test_files_are_those_that_the_check_point_knows(tmp_path: Path) -> None:
    """What was written into a gap after it is gone with it; a lost file is missed, and an absent one is not."""
    numbers, later = np.array([3, 2**32]), np.array([10**6])
    log = _log(tmp_path / "units", Sums())
    log.reserve(numbers, _units(numbers))()
    sums = log.sync()
    assert sums.absent == [(1, 2**32 // PER_FILE)]
    log.reserve(later, _units(later))()
    log.close()
    log = _log(tmp_path / "units", sums)
    assert log.gather(later)[0] == FILL
    log.close()
    sorted((tmp_path / "units").iterdir())[0].unlink()
    with pytest.raises(CorruptStoreError, match="does not hold units 0 to"):
        _log(tmp_path / "units", sums)


@settings(max_examples=25, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(["set", "set one by one", "clear", "dump"]), st.sets(NUMBERS, min_size=1)), max_size=8))
def test_bits_are_what_was_set(calls: list[tuple[str, set[int]]]) -> None:
    bits, there = Bits(), set[int]()
    for kind, chosen in calls:
        if kind == "dump":
            dumped = bits.dump()
            assert len(dumped[1]) < 10**5
            bits = Bits.load(dumped)
        elif kind == "clear":
            bits.set_many(np.array(sorted(chosen)), on=False)
            there -= chosen
        else:
            bits.set_many(np.array(sorted(chosen))) if kind == "set" else [bits.set(number) for number in sorted(chosen)]
            there |= chosen
        asked = np.array(sorted(there | chosen | {number + 1 for number in chosen}))
        assert asked[bits.get_many(asked)].tolist() == [number for number in asked.tolist() if bits.get(number)] == sorted(there)


def test_bits_before_a_page_are_forgotten() -> None:
    bits = Bits()
    bits.set_many(np.array([5, 70_000, 2**32]))
    bits.drop_before(66_000)
    assert [bits.get(number) for number in (5, 70_000, 2**32)] == [False, True, True]
    bits.set_many(np.array([5]))
    bits.set(5)
    assert not Bits.load(bits.dump()).get(5)


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
