"""Message ids: one by one and by column, of a counter and of a mark."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch
from rmqstore.ids import MessageIds, id_of_mark, ids_of_mark

FORM = r"^01[0-9A-F]{32}$"
MARKS = st.binary(max_size=64)


@given(MARKS, st.integers(0, 300))
def test_ids_of_a_mark_are_those_of_its_rows(mark: bytes, count: int) -> None:
    ids = ids_of_mark(mark, count)
    assert ids.type == pa.string()
    assert ids.to_pylist() == [id_of_mark(mark, row) for row in range(count)]
    assert all(pa.compute.match_substring_regex(ids, FORM).to_pylist())


@given(st.sets(st.tuples(MARKS, st.integers(0, 2**32 - 1)), max_size=50))
def test_no_two_rows_of_any_marks_have_one_id(rows: set[tuple[bytes, int]]) -> None:
    assert len({id_of_mark(*row) for row in rows}) == len(rows)


def test_a_column_of_new_ids_goes_on_where_single_ones_ended() -> None:
    maker = MessageIds()
    maker._counter = 2**32 - 2
    first = maker.one(1_700_000_000_000)
    more = maker.column(1_700_000_000_000, 3).to_pylist()
    last = maker.one(1_700_000_000_000)
    assert [each[-8:] for each in (first, *more, last)] == ["FFFFFFFE", "FFFFFFFF", "00000000", "00000001", "00000002"]
    assert len({each[:-8] for each in (first, *more, last)}) == 1


def test_rows_and_columns_of_one_mark_get_the_same_ids(tmp_path: Path) -> None:
    """A call that is tried again in the other form is answered with the ids that it has (I1)."""
    messages = [Message("t", b"%d" % row, message_id="given" if row == 2 else None) for row in range(5)]
    columns = pa.RecordBatch.from_pylist([{"topic": each.topic, "body": each.body, "message_id": each.message_id} for each in messages])
    with rmqstore.open(tmp_path / "store", engine="memory", services=False, clock=ManualClock(1_700_000_000_000)) as store:
        first = store.send_batch(MessageBatch(messages=messages), marks=[b"mark"])
        again = store.send_batch(columns, marks=[b"mark"])
        assert not first.repeated
        assert again.repeated
        assert [each.message_id for each in first] == [each.message_id for each in again]
        assert [each.message_id for each in first] == [id_of_mark(b"mark", row) if row != 2 else "given" for row in range(5)]
        assert sorted(message.message_id for message in store.pop("t", "g", max_messages=32)) == sorted(each.message_id for each in first)
