"""The account of messages finds every way in which a store can be wrong, and says nothing of one that is right."""

from __future__ import annotations

import numpy as np
import pytest

from rmqstore_benchmarks.grid.account import Account


def ids(*numbers: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(numbers, np.int64)


@pytest.fixture
def account() -> Account:
    """Ten messages: 0 to 2 are cancelled, 3 to 5 popped and acked, the others pending."""
    account = Account()
    account.make(np.arange(10), np.arange(10) * 1000, 1)
    account.cancel(ids(0, 1, 2))
    assert account.pop(ids(3, 4, 5), ids(1, 1, 1), ids(5000, 5000, 5000)).tolist() == [3000, 4000, 5000]
    account.ack(ids(3, 4, 5))
    return account


def test_what_is_right_has_no_verdict(account: Account) -> None:
    account.settle(ids(9, 8, 7, 6), 5000)
    assert account.verdict() == ""
    assert (account.made, account.cancelled, account.acked, account.kept) == (10, 3, 3, 4)


def test_a_message_that_comes_again_after_its_lease_is_right(account: Account) -> None:
    assert account.pop(ids(6), ids(1), ids(6000)).tolist() == [6000]
    assert account.pop(ids(6), ids(2), ids(9000)).tolist() == []
    account.ack(ids(6))
    account.settle(ids(7, 8, 9), 6000)
    assert account.verdict() == ""


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((6, 7, 9), "1 lost (ids 8)"),
        ((6, 7, 8, 9, 9), "1 held twice (ids 9)"),
        ((6, 7, 8, 9, 4), "1 held though it should be gone (ids 4)"),
        ((), "4 lost (ids 6, 7, 8 …)"),
    ],
)
def test_what_the_store_holds_is_compared(account: Account, held: tuple[int, ...], verdict: str) -> None:
    account.settle(ids(*held), 5000)
    assert account.verdict() == verdict


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
def test_what_comes_is_compared(account: Account, popped: tuple[int, ...], attempts: tuple[int, ...], verdict: str) -> None:
    account.pop(ids(*popped), ids(*attempts), np.full(len(popped), 10_000))
    assert verdict in account.verdict()


def test_what_comes_before_its_tick_is_early(account: Account) -> None:
    account.pop(ids(6, 7, 8, 77), ids(1, 1, 1, 1), ids(6000, 6999, 9000, 9000))
    assert account.verdict() == "1 foreign (ids 77); 1 early (ids 7)"


def test_what_is_due_and_still_held_was_not_handed_over(account: Account) -> None:
    account.settle(ids(6, 7, 8, 9), 7000)
    assert account.verdict() == "2 not handed over (ids 6, 7)"


def test_what_is_due_by_a_time_leaves_out_what_was_cancelled(account: Account) -> None:
    assert account.due_by(ids(0, 2999, 3000, 5500, 9000)).tolist() == [0, 0, 1, 3, 7]


def test_a_failure_is_told_in_words_beside_the_ids(account: Account) -> None:
    account.fail("it cannot be opened")
    account.settle(ids(7, 8, 9), 5000)
    assert account.verdict() == "1 lost (ids 6); it cannot be opened"


def test_only_what_is_neither_due_nor_cancelled_can_be_cancelled(account: Account) -> None:
    assert account.waiting(ids(0, 6, 9), 6000).tolist() == [9]


def test_it_grows() -> None:
    account = Account()
    for first in range(0, 300_000, 50_000):
        numbers = np.arange(first, first + 50_000)
        account.make(numbers, numbers, 1 + first)
    assert account.places(ids(299_999)) == ([300_000], [299_999])
    assert account.kept == 300_000
