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


REST = (6, 7, 8, 9)


@pytest.mark.parametrize(
    ("popped", "held", "now_ms", "verdict"),
    [
        ((), REST[::-1], 5000, ""),
        ((), (6, 7, 9), 5000, "1 lost (ids 8)"),
        ((), (), 5000, "4 lost (ids 6, 7, 8 …)"),
        ((), (*REST, 9), 5000, "1 held twice (ids 9)"),
        ((), (*REST, 4), 5000, "1 held though it should be gone (ids 4)"),
        ((), REST, 7000, "2 not handed over (ids 6, 7)"),
        # A delivery is a number, its attempt, and when it was.
        (((6, 1, 6000), (6, 2, 9000)), REST, 5000, ""),
        (((6, 2, 9000),), REST, 5000, "1 doubled (ids 6)"),
        (((1, 1, 9000),), REST, 5000, "1 delivered though cancelled (ids 1)"),
        (((4, 2, 9000),), REST, 5000, "1 delivered again after its ack (ids 4)"),
        (((77, 1, 9000),), REST, 5000, "1 foreign (ids 77)"),
        (((-1, 1, 9000),), REST, 5000, "1 foreign (ids -1)"),
        (((7, 1, 6999), (6, 1, 6000)), REST, 5000, "1 early (ids 7)"),
    ],
)
def test_what_came_and_what_is_held_is_compared(
    account: Account, popped: tuple[tuple[int, int, int], ...], held: tuple[int, ...], now_ms: int, verdict: str
) -> None:
    for number, attempt, at_ms in popped:
        account.pop(ids(number), ids(attempt), ids(at_ms))
    account.settle(ids(*held), now_ms)
    assert account.verdict() == verdict
    assert (account.made, account.cancelled, account.acked, account.kept) == (10, 3, 3, 4)


def test_one_pop_tells_the_first_deliveries_and_doubles_in_itself(account: Account) -> None:
    assert account.pop(ids(6, 8, 77), ids(1, 1, 1), ids(9000, 9000, 9000)).tolist() == [6000, 8000]
    assert account.pop(ids(6, 9, 9), ids(2, 1, 1), ids(9000, 9000, 9000)).tolist() == [9000, 9000]
    assert account.verdict() == "1 foreign (ids 77); 1 doubled (ids 9)"


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
