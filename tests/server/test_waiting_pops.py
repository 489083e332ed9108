"""Pops at a server: who looks, when, and how often."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from rmqstore.server import serving
from tests.server.served import NOW, Raw, Served, answer, asked, let_turn, soon, waiting


def test_a_repeated_pop_finds_its_leases_although_others_wait(served: Served) -> None:
    served.store.send(NOW)
    leased = served.store.pop("t", "g", max_messages=1, attempt_id="a")
    first, second = (served.raw() for _ in range(2))
    first.say([1, "pop", *asked("b")])
    soon(lambda: waiting(served) == 1)
    second.say([1, "pop", *asked("a", is_fresh=False)])
    ((_, found),) = [answer(second)]
    assert [each.receipt for each in found] == [leased[0].receipt]  # type: ignore[attr-defined]


def test_an_attempt_that_finds_nothing_any_more_keeps_nobody_waiting(served: Served) -> None:
    served.store.send(NOW)
    served.store.ack(served.store.pop("t", "g", max_messages=1, attempt_id="a"))
    first, second = (served.raw() for _ in range(2))
    first.say([1, "pop", *asked("a", is_fresh=False)])
    soon(lambda: waiting(served) == 1)
    second.say([1, "pop", *asked("b")])
    soon(lambda: waiting(served) == 2)
    served.store.send(NOW)
    assert len(answer(second)[1]) == 1  # type: ignore[arg-type]


def test_pops_that_are_repeated_look_no_more_often_than_others(served: Served, connection: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are behind a restart of their server: each looks for itself, and a message is looked for by who gets it, and one more."""
    looks, step = [], served.store._popping.step

    def counted(request: Any) -> Any:
        looks.append(request.attempt_id)
        return step(request)

    monkeypatch.setattr(served.store._popping, "step", counted)
    connection.say(*([1 + number, "pop", *asked(str(number), is_fresh=False)] for number in range(100)))
    soon(lambda: waiting(served) == 100)
    let_turn(served.thread)
    assert looks == [str(number) for number in range(100)]
    served.store.send(NOW)
    assert answer(connection)[0] == 1
    let_turn(served.thread)
    assert looks[100:] == ["0", "1"]


def test_a_round_ends_when_it_has_lasted_for_long(served: Served, connection: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where many pops pass over messages; what is left comes with the next, and others are answered in between."""
    monkeypatch.setattr(serving, "_ROUND_S", -1.0, raising=False)
    server, step, round_, looks, most = served.thread._server, served.store._popping.step, served.thread._server._round, [0], [0]

    def passing_over(request: Any) -> Any:
        looks[0] += 1
        return structs.replace(step(request), more=looks[0] < 500)

    def counted() -> None:
        before = looks[0]
        round_()
        most[0] = max(most[0], looks[0] - before)

    monkeypatch.setattr(served.store._popping, "step", passing_over)
    monkeypatch.setattr(server, "_round", counted)
    connection.say(*([1 + number, "pop", *asked(wait_ms=0)] for number in range(50)), [51, "topics.list", [], {}])
    assert {answer(connection)[0] for _ in range(51)} == set(range(1, 52))
    assert looks[0] >= 500
    assert most == [2], "one that is new, and one that goes on"


def test_a_repeated_pop_takes_the_place_of_its_first_copy(served: Served) -> None:
    """The connection of the first copy is dead, which the server does not know yet."""
    first, second, third = (served.raw() for _ in range(3))
    first.say([1, "pop", *asked("a")])
    soon(lambda: waiting(served) == 1)
    second.say([1, "pop", *asked("b")])
    soon(lambda: waiting(served) == 2)
    third.say([1, "pop", *asked("a", is_fresh=False)])
    assert answer(first) == (1, [])
    served.store.send_batch([NOW, NOW])
    assert [len(answer(each)[1]) for each in (second, third)] == [1, 1]  # type: ignore[arg-type]
