"""The account of messages finds every way in which a store can be wrong, and says nothing of one that is right."""

from __future__ import annotations

import numpy as np
import pytest

from rmqstore_benchmarks.grid.ledger import Ledger


def ids(*numbers: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(numbers, np.int64)


@pytest.fixture
def ledger() -> Ledger:
    """Ten messages: 0 to 2 are cancelled, 3 to 5 popped and acked, the others pending."""
    ledger = Ledger()
    ledger.make(np.arange(10), np.arange(10) * 1000, 1)
    ledger.cancel(ids(0, 1, 2))
    assert ledger.pop(ids(3, 4, 5), ids(1, 1, 1), ids(5000, 5000, 5000)).tolist() == [3000, 4000, 5000]
    ledger.ack(ids(3, 4, 5))
    return ledger


def test_what_is_right_has_no_verdict(ledger: Ledger) -> None:
    ledger.settle(ids(9, 8, 7, 6), 5000)
    assert ledger.verdict() == ""
    assert (ledger.made, ledger.cancelled, ledger.acked, ledger.kept) == (10, 3, 3, 4)


def test_a_message_that_comes_again_after_its_lease_is_right(ledger: Ledger) -> None:
    assert ledger.pop(ids(6), ids(1), ids(6000)).tolist() == [6000]
    assert ledger.pop(ids(6), ids(2), ids(9000)).tolist() == []
    ledger.ack(ids(6))
    ledger.settle(ids(7, 8, 9), 6000)
    assert ledger.verdict() == ""


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((6, 7, 9), "1 lost (ids 8)"),
        ((6, 7, 8, 9, 9), "1 held twice (ids 9)"),
        ((6, 7, 8, 9, 4), "1 held though it should be gone (ids 4)"),
        ((), "4 lost (ids 6, 7, 8 …)"),
    ],
)
def test_what_the_store_holds_is_compared(ledger: Ledger, held: tuple[int, ...], verdict: str) -> None:
    ledger.settle(ids(*held), 5000)
    assert ledger.verdict() == verdict


@pytest.mark.parametrize(
    ("popped", "attempts", "verdict"),
    [
        ((6, 6), (1, 1), "doubled"),
        ((6,), (2,), "doubled"),
        ((1,), (1,), "delivered though cancelled"),
        ((4,), (2,), "delivered again after its ack"),
        ((77,), (1,), "1 foreign (ids 77)"),
        ((-1,), (1,), "foreign"),
    ],
)
def test_what_comes_is_compared(ledger: Ledger, popped: tuple[int, ...], attempts: tuple[int, ...], verdict: str) -> None:
    ledger.pop(ids(*popped), ids(*attempts), np.full(len(popped), 10_000))
    assert verdict in ledger.verdict()


def test_what_comes_before_its_tick_is_early(ledger: Ledger) -> None:
    ledger.pop(ids(6, 7, 8, 77), ids(1, 1, 1, 1), ids(6000, 6999, 9000, 9000))
    assert ledger.verdict() == "1 foreign (ids 77); 1 early (ids 7)"


def test_what_is_due_and_still_held_was_not_handed_over(ledger: Ledger) -> None:
    ledger.settle(ids(6, 7, 8, 9), 7000)
    assert ledger.verdict() == "2 not handed over (ids 6, 7)"


def test_what_is_due_by_a_time_leaves_out_what_was_cancelled(ledger: Ledger) -> None:
    assert ledger.due_by(ids(0, 2999, 3000, 5500, 9000)).tolist() == [0, 0, 1, 3, 7]


def test_a_failure_is_told_in_words_beside_the_ids(ledger: Ledger) -> None:
    ledger.fail("it cannot be opened")
    ledger.settle(ids(7, 8, 9), 5000)
    assert ledger.verdict() == "1 lost (ids 6); it cannot be opened"


def test_only_what_is_neither_due_nor_cancelled_can_be_cancelled(ledger: Ledger) -> None:
    assert ledger.waiting(ids(0, 6, 9), 6000).tolist() == [9]


def test_it_grows() -> None:
    ledger = Ledger()
    for first in range(0, 300_000, 50_000):
        numbers = np.arange(first, first + 50_000)
        ledger.make(numbers, numbers, 1 + first)
    assert ledger.places(ids(299_999)) == ([300_000], [299_999])
    assert ledger.kept == 300_000
