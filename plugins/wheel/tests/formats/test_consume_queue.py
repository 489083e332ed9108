"""Units of a consume queue."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import consume_queue as cq

BYTES = bytes.fromhex(
    "0000000040000000"  # commit-log offset 1 GiB
    "00000068"  # 104 bytes
    "000000000027a807"  # hash of "TagA": 2 598 919
    "0000000040000068"  # the record behind it
    "0000005b"  # 91 bytes
    "ffffffff80000000"  # hash of "polygenelubricants": -2**31, sign-extended
)


def test_bytes() -> None:
    codes = cq.tags_codes(pa.array(["TagA", "polygenelubricants"]))
    assert cq.rows_of(np.array([1 << 30, (1 << 30) + 104]), np.array([104, 91]), codes).tobytes() == BYTES
    assert cq.encode_one(1 << 30, 104, 2598919) == BYTES[:20]
    units = cq.decode(BYTES)
    assert units["log_offset"].tolist() == [1 << 30, (1 << 30) + 104]
    assert units["size"].tolist() == [104, 91]
    assert units["tags_code"].tolist() == [2598919, -(2**31)]


def test_no_tag_is_0() -> None:
    assert cq.tags_code(None) == cq.tags_code("") == 0
    assert cq.tags_code("TagA") == 2598919
    assert cq.tags_codes(pa.array([None, "TagA", ""])).tolist() == [0, 2598919, 0]
    assert cq.tags_codes(pa.nulls(2, pa.string())).tolist() == [0, 0]


def test_fill_units() -> None:
    assert cq.encode_fill(2) == bytes.fromhex("0000000000000000 7fffffff 0000000000000000") * 2
    units = cq.decode(cq.encode_fill(1) + BYTES + bytes(20))
    assert cq.is_message(units).tolist() == [False, True, True, False]


def test_file_is_300_000_units() -> None:
    assert cq.FILE_BYTES == 6_000_000


@pytest.mark.parametrize("length", [length for length in range(len(BYTES)) if length % 20])
def test_a_torn_unit_is_refused(length: int) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        cq.decode(BYTES[:length])
    assert caught.value.offset == length // 20 * 20


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2**31 - 2), st.integers(-(2**63), 2**63 - 1)), max_size=20))
def test_round_trip(rows: list[tuple[int, int, int]]) -> None:
    offsets, sizes, codes = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    units = cq.decode(cq.rows_of(offsets, sizes, codes).tobytes())
    assert [unit.item() for unit in units] == rows
    assert cq.is_message(units).all()
