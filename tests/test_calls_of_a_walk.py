"""How many Python functions run in one warm, synced call of a store, by engine: a count, so neither the clock nor the load matters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, TypeVar

import pytest

import rmqstore
from rmqstore import ManualClock, Message
from rmqstore_conformance.stores import directory
from tests.pairs import ENGINES

T = TypeVar("T")

WARM_CYCLES = 50
COUNTED_CYCLES = 10
LATER = timedelta(seconds=30)


class Walk(NamedTuple):
    """Python calls of a send with a delay, of a tick that hands over one timer, of a pop of one message, and of its ack."""

    send: int
    tick: int
    pop: int
    ack: int


# What Python 3.11 counted on 2026-11-29, and up to 5 percent. Who makes a call shorter lowers its limit; nobody raises one.
# The targets, wheel / rocksdb: send 90 / 60, tick 350 / 200, pop 110 / 80, ack 75 / 50.
LIMITS = {
    "wheel": Walk(send=74, tick=333, pop=104, ack=65),  # counted: 74, 333, 103, 65
    "rocksdb": Walk(send=56, tick=207, pop=73, ack=45),  # counted: 55, 206, 72, 45
    "lmdb": Walk(send=62, tick=227, pop=78, ack=51),  # counted: 60, 225, 77, 51
}


def counted(function: Callable[[], T]) -> tuple[T, int]:
    """Return what a function gives, and how many Python functions ran for that, itself included."""
    calls = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        given = function()
    finally:
        sys.setprofile(before)
    return given, calls


def fewest(engine: str, warm_cycles: int, **settings: str) -> Walk:
    """Return the calls of a walk behind some others: the fewest of each, as upkeep falls into some of them."""
    clock = ManualClock(1_800_000_000_000)
    message = Message("t", b"x" * 256)

    def walk() -> Walk:
        _, send = counted(lambda: store.send(message, delay=LATER))
        clock.advance(31_000)
        _, tick = counted(store.tick)
        (popped,), pop = counted(lambda: store.pop("t", "g", max_messages=1))
        _, ack = counted(lambda: store.ack(popped))
        return Walk(send, tick, pop, ack)

    with directory() as root, rmqstore.open(root / "store", engine=engine, clock=clock, services=False, **settings) as store:
        for _ in range(warm_cycles):
            walk()
        return Walk(*map(min, zip(*(walk() for _ in range(COUNTED_CYCLES)), strict=True)))


@pytest.mark.parametrize("engine", [name for name in LIMITS if name in ENGINES])
def test_a_walk_takes_no_more_calls_than_it_did(engine: str) -> None:
    found = fewest(engine, WARM_CYCLES)
    over = {name: (calls, limit) for name, calls, limit in zip(Walk._fields, found, LIMITS[engine], strict=True) if calls > limit}
    assert not over, f"{engine} takes more Python calls than its limit: {over}"


@pytest.mark.parametrize("engine", [name for name in LIMITS if name in ENGINES])
def test_what_is_not_durable_yet_costs_no_walk(engine: str) -> None:
    few, many = fewest(engine, WARM_CYCLES, flush="async"), fewest(engine, 10 * WARM_CYCLES, flush="async")
    over = {name: (first, then) for name, first, then in zip(Walk._fields, few, many, strict=True) if then > 1.2 * first}
    assert not over, f"{engine} takes more Python calls when ten times as much is not durable: {over}"
