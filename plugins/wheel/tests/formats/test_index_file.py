"""Index files: bytes, many entries at once beside one by one, lookups beside a plain dictionary, damage."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import index_file
from rmqstore_wheel.formats.index_file import Header, IndexFile

SLOTS, ENTRIES = 4, 8
NOW = 1_700_000_000_000


def new(entries: int = ENTRIES) -> tuple[bytearray, IndexFile]:
    buffer = bytearray(index_file.file_bytes(SLOTS, entries))
    return buffer, IndexFile(buffer, SLOTS, entries)


def put(index: IndexFile, *rows: tuple[int, int, int]) -> int:
    hashes, offsets, times = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    return index.put(hashes, offsets, times)


def test_bytes() -> None:
    buffer, index = new()
    assert put(index, (6, 100, NOW), (3, 200, NOW + 1500), (2, 300, NOW + 2999)) == 3
    expected = bytes.fromhex(
        "0000018bcfe56800"  # first store time
        "0000018bcfe573b7"  # last: 2999 ms later
        "0000000000000064"  # first offset: 100
        "000000000000012c"  # last offset: 300
        "00000002"  # slots in use: 2 and 3
        "00000004"  # next entry
        "00000000 00000000 00000003 00000002"  # slot 2: entry 3, slot 3: entry 2
        + "00" * 20  # entry 0 is never used
        + "00000006 0000000000000064 00000000 00000000"  # entry 1
        + "00000003 00000000000000c8 00000001 00000000"  # entry 2: a second later
        + "00000002 000000000000012c 00000002 00000001"  # entry 3: behind entry 1 in slot 2
        + "00" * 80
    )
    assert buffer == expected
    assert index.lookup(6, 10) == [100]


def test_sizes_of_rocketmq() -> None:
    assert index_file.file_bytes() == 40 + 5_000_000 * 4 + 20_000_000 * 20
    assert index_file.file_bytes(500_000) == 40 + 500_000 * 4 + 2_000_000 * 20


@pytest.mark.parametrize(("text", "expected"), [("hello", 99162322), ("polygenelubricants", 0), ("", 0)])
def test_hash_of_a_key(text: str, expected: int) -> None:
    assert index_file.key_hash(text) == expected
    assert index_file.key_hashes(pa.array([text])).tolist() == [expected]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=10), max_size=6))
def test_hashes_by_column(texts: list[str]) -> None:
    assert index_file.key_hashes(pa.array(texts, pa.string())).tolist() == [index_file.key_hash(text) for text in texts]


def test_key_and_name() -> None:
    assert index_file.index_key("orders", "42") == "orders#42"
    assert index_file.file_name(NOW + 7) == "20231114221320007"


ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**6), st.integers(0, 5000).map(lambda ms: NOW + ms)), max_size=20)


@given(ROWS, st.lists(st.integers(0, 20), max_size=4))
def test_many_entries_are_as_one_by_one(rows: list[tuple[int, int, int]], cuts: list[int]) -> None:
    one, single = new(12)
    for row in rows:
        put(single, row)
    many, batched = new(12)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
        put(batched, *rows[begin:end])
    assert many == one


@given(ROWS, st.integers(0, 9), st.integers(0, 25), st.integers(-1000, 6000), st.integers(-1000, 6000))
def test_lookup_finds_what_was_put_newest_first(rows: list[tuple[int, int, int]], hashed: int, limit: int, begin: int, end: int) -> None:
    _, index = new(30)
    put(index, *rows)
    found = index.lookup(hashed, limit, NOW + begin, NOW + end)
    exact = [offset for each, offset, ms in reversed(rows) if each == hashed and NOW + begin <= ms <= NOW + end]
    assert len(found) <= limit
    if limit > len(rows):  # whole seconds are kept, so a lookup may find a little more, never less
        rest = iter(found)
        assert all(offset in rest for offset in exact)
        if all(earlier[2] <= later[2] for earlier, later in itertools.pairwise(rows)):
            last_ms = max(NOW + end + 1999, rows[0][2] + 999) if rows else 0
            assert set(found) <= {offset for each, offset, ms in rows if each == hashed and NOW + begin - 1999 <= ms <= last_ms}
        if begin <= 0 and end >= 5000:
            assert found == exact


def test_entries_from_while_the_clock_was_set_back_are_found() -> None:
    _, index = new()
    put(index, (1, 100, NOW), (1, 200, NOW - 60_000), (1, 300, NOW + 5000))
    assert 200 in index.lookup(1, 10, NOW - 61_000, NOW - 59_000)
    assert index.lookup(1, 10, NOW + 4000, NOW + 6000) == [300]


def test_a_full_file_takes_no_more() -> None:
    _, index = new()
    rows = [(number, number, NOW) for number in range(10)]
    assert put(index, *rows) == 7  # entry 0 is not used
    assert (index.room, put(index, *rows)) == (0, 0)
    assert index.header == Header(NOW, NOW, 0, 6, 4, 8)


def test_a_following_file_begins_where_the_one_before_ended() -> None:
    buffer, index = new()
    index.continue_from(500, NOW)
    assert index.header == Header(NOW, NOW, 500, 500, 0, 1)
    put(index, (1, 600, NOW + 7000), (1, 700, NOW + 9000))
    assert index.header == Header(NOW + 7000, NOW + 9000, 600, 700, 1, 3)
    entries = np.frombuffer(buffer, ">i4", offset=40 + 16).reshape(-1, 5)
    assert entries[1:3, 3].tolist() == [7, 2]  # the first counts from the file before, its follower from the first


def test_spans() -> None:
    _, index = new()
    assert not index.may_hold(0, 2**62)
    put(index, (1, 1, NOW), (1, 2, NOW + 100))
    assert index.may_hold(NOW + 100, NOW + 200)
    assert index.may_hold(0, NOW)
    assert index.may_hold(NOW - 1, NOW + 101)
    assert not index.may_hold(NOW + 101, NOW + 200)
    assert not index.may_hold(0, NOW - 1)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("length", [0, 39, 40, index_file.file_bytes(SLOTS, ENTRIES) - 1, index_file.file_bytes(SLOTS, ENTRIES) + 20])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(CorruptStoreError, match=f"{length} bytes; 4 slots and 8 entries take 216"):
        IndexFile(bytearray(length), SLOTS, ENTRIES)


def test_a_header_that_counts_too_much_is_refused() -> None:
    buffer, _ = new()
    buffer[36:40] = (9).to_bytes(4)
    with pytest.raises(CorruptStoreError, match="9 of 8 entries"):
        IndexFile(buffer, SLOTS, ENTRIES)


def test_a_chain_that_turns_back_ends_in_an_error() -> None:
    buffer, index = new()
    put(index, (1, 100, NOW), (1, 200, NOW))
    at = 40 + 16 + 20 * 1 + 16
    buffer[at : at + 4] = (2).to_bytes(4)
    with pytest.raises(CorruptStoreError, match="entry 1 is followed by 2") as caught:
        index.lookup(1, 10)
    assert caught.value.offset == at - 16


def test_a_slot_ahead_of_the_header_is_empty() -> None:
    """After a crash a slot may be on disk whose entry the header does not count yet."""
    buffer, index = new()
    put(index, (1, 100, NOW))
    buffer[40 + 4 : 40 + 8] = (5).to_bytes(4)
    assert index.lookup(1, 10) == []
    put(index, (1, 200, NOW))
    assert index.lookup(1, 10) == [200]


@given(ROWS.filter(bool), st.lists(st.tuples(st.integers(0, index_file.file_bytes(SLOTS, 30) - 1), st.integers(0, 255)), max_size=8))
def test_damage_ends_in_an_answer_or_a_typed_error(rows: list[tuple[int, int, int]], changes: list[tuple[int, int]]) -> None:
    buffer, index = new(30)
    put(index, *rows)
    for at, value in changes:
        buffer[at] = value
    try:
        damaged = IndexFile(buffer, SLOTS, 30)
        for hashed in range(10):
            assert len(damaged.lookup(hashed, 5)) <= 5
    except CorruptStoreError as error:
        assert error.offset != ""
