"""Index files: bytes, many entries at once beside one by one, lookups beside a plain dictionary, damage."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.wheel.tests.broker_index import BrokerIndex
from rmqstore_wheel.formats import index_file
from rmqstore_wheel.formats.index_file import Header

SLOTS, ENTRIES = 4, 8
NOW = 1_700_000_000_000


def new(entries: int = ENTRIES) -> tuple[bytearray, BrokerIndex]:
    buffer = bytearray(index_file.file_bytes(SLOTS, entries))
    return buffer, BrokerIndex(buffer, SLOTS, entries)


def put(index: BrokerIndex, *rows: tuple[int, int, int]) -> int:
    return index.put(rows)


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
    assert index.lookup(6) == [100]


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


@given(ROWS, st.integers(0, 9))
def test_lookup_finds_what_was_put_newest_first(rows: list[tuple[int, int, int]], hashed: int) -> None:
    _, index = new(30)
    put(index, *rows)
    assert index.lookup(hashed) == [offset for each, offset, _ in reversed(rows) if each == hashed]


def test_a_full_file_takes_no_more() -> None:
    _, index = new()
    rows = [(number, number, NOW) for number in range(10)]
    assert put(index, *rows) == 7  # entry 0 is not used
    assert put(index, *rows) == 0
    assert index.header == Header(NOW, NOW, 0, 6, 4, 8)


def test_a_slot_ahead_of_the_header_is_empty() -> None:
    """After a crash a slot may be on disk whose entry the header does not count yet."""
    buffer, index = new()
    put(index, (1, 100, NOW))
    buffer[40 + 4 : 40 + 8] = (5).to_bytes(4)
    assert index.lookup(1) == []
    put(index, (1, 200, NOW))
    assert index.lookup(1) == [200]
