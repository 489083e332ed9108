"""The texts that go with popped messages, and the recall handle: both directions, and what is none."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.contract.receipts import Receipt
from rmqstore.errors import IllegalArgumentError
from rmqstore_wheel.formats.handles import Handle, RecallHandle

HANDLE = Handle(100, 1_700_000_000_000, 60_000, 5, 2, "broker-a", 3, 104)
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


@given(st.builds(Handle, I64, I64, I64, I64, st.sampled_from([0, 1, 2]), BROKERS, I64, I64, st.none() | I64))
def test_handle_round_trip(handle: Handle) -> None:
    assert Handle.parse(handle.text()) == handle


@pytest.mark.parametrize(
    "text", ["", "100", TEXT[:-4], f"{TEXT} x", f"{TEXT} 1 2", TEXT.replace(" 2 ", " 3 "), TEXT.replace("5", "five"), f" {TEXT}"]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="no POP_CK handle"):
        Handle.parse(text)


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
