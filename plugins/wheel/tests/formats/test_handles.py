"""The texts that go with popped messages, and the recall handle: both directions, and what is none."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.contract.receipts import Receipt
from rmqstore.errors import IllegalArgumentError
from rmqstore_wheel.formats import handles
from rmqstore_wheel.formats.handles import Handle, RecallHandle

HANDLE = Handle(100, 1_700_000_000_000, 60_000, 5, handles.RETRY_V2, "broker-a", 3, 104)
TEXT = "100 1700000000000 60000 5 2 broker-a 3 104"


def test_handle_text() -> None:
    assert HANDLE.text() == TEXT
    assert Handle.parse(TEXT) == HANDLE
    assert Handle.parse(f"{TEXT} 4660") == Handle(100, 1_700_000_000_000, 60_000, 5, 2, "broker-a", 3, 104, 4660)
    assert Handle.parse(f"{TEXT} 4660").text() == f"{TEXT} 4660"


def test_a_receipt_begins_with_a_handle() -> None:
    receipt = Receipt("orders", "g", 3, 104, 100, 1_700_000_000_000, 60_000, 2, "broker-a", 1, 5, 4660)
    assert Handle.parse(" ".join(receipt.text().split(" ")[:9])).text() == f"{TEXT} 4660"


BROKERS = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
I64 = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(Handle, I64, I64, I64, I64, st.sampled_from(handles.FLAGS), BROKERS, I64, I64, st.none() | I64))
def test_handle_round_trip(handle: Handle) -> None:
    assert Handle.parse(handle.text()) == handle


@pytest.mark.parametrize(
    "text", ["", "100", TEXT[:-4], f"{TEXT} x", f"{TEXT} 1 2", TEXT.replace(" 2 ", " 3 "), TEXT.replace("5", "five"), f" {TEXT}"]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="no POP_CK handle"):
        Handle.parse(text)


@pytest.mark.parametrize(
    ("topic", "flag"), [("orders", 0), ("%RETRY%g_orders", 1), ("%RETRY%g+orders", 2), ("a+b", 0), ("orders%RETRY%", 0)]
)
def test_flag_of_a_topic(topic: str, flag: int) -> None:
    assert handles.retry_flag(topic) == flag


def test_topic_of_a_flag() -> None:
    assert [handles.stored_topic("orders", "g", flag) for flag in handles.FLAGS] == ["orders", "%RETRY%g_orders", "%RETRY%g+orders"]


def test_texts_of_a_reply() -> None:
    assert handles.start_offset_info({(0, 3): 100, (2, 0): 7}) == "0 3 100;2 0 7"
    assert handles.parse_start_offset_info("0 3 100;2 0 7") == {(0, 3): 100, (2, 0): 7}
    assert handles.message_offset_info({(0, 3): [100, 101, 104], (0, 4): [], (2, 0): [7]}) == "0 3 100,101,104;2 0 7"
    assert handles.parse_message_offset_info("0 3 100,101,104;2 0 7") == {(0, 3): [100, 101, 104], (2, 0): [7]}
    assert handles.order_count_info([((0, 3), {100: 2, 101: 1}, 1), ((0, 4), {}, 0)]) == "0 qo3%100 2;0 qo3%101 1;0 3 1;0 4 0"
    assert handles.parse_order_count_info("0 qo3%100 2;0 qo3%101 1;0 3 1;0 4 0") == (
        {(0, 3): 1, (0, 4): 0},
        {(0, 3, 100): 2, (0, 3, 101): 1},
    )


def test_empty_texts() -> None:
    assert handles.parse_start_offset_info("") == handles.parse_message_offset_info("") == {}
    assert handles.parse_order_count_info("") == ({}, {})
    assert handles.start_offset_info({}) == handles.message_offset_info({}) == handles.order_count_info([]) == ""


QUEUES = st.tuples(st.sampled_from(handles.FLAGS), st.integers(0, 2**31 - 1))
OFFSETS = st.integers(0, 2**63 - 1)


@given(st.dictionaries(QUEUES, OFFSETS, max_size=4), st.dictionaries(QUEUES, st.lists(OFFSETS, min_size=1, max_size=4), max_size=4))
def test_reply_round_trip(starts: dict[handles.Queue, int], offsets: dict[handles.Queue, list[int]]) -> None:
    assert handles.parse_start_offset_info(handles.start_offset_info(starts)) == starts
    assert handles.parse_message_offset_info(handles.message_offset_info(offsets)) == offsets


@given(st.dictionaries(QUEUES, st.tuples(st.dictionaries(OFFSETS, st.integers(0, 99), max_size=3), st.integers(0, 99)), max_size=3))
def test_order_counts_round_trip(counts: dict[handles.Queue, tuple[dict[int, int], int]]) -> None:
    text = handles.order_count_info((queue, each, least) for queue, (each, least) in counts.items())
    queues, by_offset = handles.parse_order_count_info(text)
    assert queues == {queue: least for queue, (_, least) in counts.items()}
    assert by_offset == {(*queue, offset): count for queue, (each, _) in counts.items() for offset, count in each.items()}


@pytest.mark.parametrize("text", ["0 3", "0 3 x", "0 3 1 2", "3 3 1", "0 3 1;0 3 2", ";", "0 x 1", "0 3 1;", "0 3 1,2"])
def test_what_is_no_start_offset_info_is_refused(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="no startOffsetInfo"):
        handles.parse_start_offset_info(text)


# ---------------------------------------------------------------- recall handle

RECALL = RecallHandle("orders", "broker-a", 1_700_000_000_001, "01AB")
RECALL_TEXT = "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgMDFBQg=="  # v1 orders broker-a 1700000000001 01AB


def test_recall_text() -> None:
    assert RECALL.text() == RECALL_TEXT
    assert RecallHandle.parse(RECALL_TEXT) == RecallHandle.parse(RECALL_TEXT.rstrip("=")) == RECALL


def test_the_alphabet_is_url_safe() -> None:
    handle = RecallHandle("orders", "???>>>", 1, "ÿÿÿ~~~")
    assert not set(handle.text()) & set("+/")
    assert RecallHandle.parse(handle.text()) == handle


FIELDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1, max_size=10)


@given(st.builds(RecallHandle, FIELDS, FIELDS, st.integers(-(2**63), 2**63 - 1), FIELDS))
def test_recall_round_trip(handle: RecallHandle) -> None:
    assert RecallHandle.parse(handle.text()) == handle


def coded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "text",
    ["", "!!!", "a", "djE=", coded("v2 t b 1 m"), coded("v1 t b 1"), coded("v1 t b x m"), coded("v1  b 1 m"), RECALL_TEXT + "=", "_w=="]
    + [RECALL_TEXT[:length] for length in range(44)],
)
def test_what_is_no_recall_handle_is_refused(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="no recall handle"):
        RecallHandle.parse(text)


@pytest.mark.parametrize("handle", [RecallHandle("a b", "b", 1, "m"), RecallHandle("a", "", 1, "m"), RecallHandle("a", "b", 1, "m n")])
def test_a_field_with_a_blank_cannot_be_written(handle: RecallHandle) -> None:
    with pytest.raises(IllegalArgumentError, match="hold no blank"):
        handle.text()
