"""R1, R3, X4: kill -9 at random moments: what was acknowledged is there exactly once, what was under way happened wholly or not at all."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqstore import ManualClock, Message
from rmqstore_conformance.kills.census import Census
from rmqstore_conformance.kills.ledger import Book
from rmqstore_conformance.kills.nursery import Nursery, Typical
from rmqstore_conformance.kills.worker import TOPIC, open_store
from rmqstore_conformance.stores import GIVEN, Pair
from rmqstore_conformance.targets import Target

ROUNDS = 20
KILLS_IN_A_ROW = 5
START_MS = 1_700_000_000_000

pytestmark = [
    pytest.mark.level("full"),
    pytest.mark.needs("cancel_by_key", "fifo", "retention"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(name="engines")
def _engines(durable_pair: Pair) -> dict[str, str]:
    return {"timer_engine": durable_pair.timers, "pop_engine": durable_pair.pops, **GIVEN}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


def _follow(child: Any, book: Book | Census, typical: Typical, chance: random.Random) -> tuple[str, bool]:
    """Follow a child for some calls, then kill it; returns in or after which call, and whether it was inside."""
    calls = chance.randint(2, 25)
    between = chance.random() < 0.15
    begun_s = 0.0
    while True:
        event = child.next_event()
        assert event is not None, f"the worker ended by itself: {child.reap()}"
        if event["event"] == "begin":
            begun_s = time.perf_counter()
            book.begin(event)
            calls -= 1
        else:
            typical.saw(book.open_call["op"] if book.open_call else "", time.perf_counter() - begun_s)
            book.end(event)
        if calls <= 0 and (event["event"] == "end") == between:
            break
    said = child.kill(0.0 if between else typical.moment(event["op"]))
    for event in said:
        book.begin(event) if event["event"] == "begin" else book.end(event)
    return (book.open_call["op"], True) if book.open_call else (book.last_op, False)


@pytest.mark.clause("R1", "R2", "H1", "P4", "C5", "X4")
def test_a_killed_store_keeps_its_word(
    tmp_path: Path, nursery: Nursery, engines: dict[str, str], target: Target, seed: int, tell: Callable[[object], None]
) -> None:
    """R1: workers that send, cancel, pop and ack are killed; what they were answered is true afterwards, each message comes once."""
    chance = random.Random(f"{engines} {seed}")
    rounds = target.times(ROUNDS)
    typical = Typical(chance.randrange(1 << 30))
    fallen: Counter[tuple[str, bool]] = Counter()
    fates: Counter[str] = Counter()
    kills = inside = 0
    # Where a kill falls is a matter of time, so it goes on until enough of them fell into a call.
    while kills < rounds or (inside < 0.6 * rounds and kills < 5 * rounds):
        path = tmp_path / f"store-{kills}"
        book: Book | Census = (Book if kills % (2 * KILLS_IN_A_ROW) else Census)(START_MS)
        for _ in range(KILLS_IN_A_ROW):
            seed = chance.randrange(1 << 30)
            job = {
                "do": book.kind,
                "path": str(path),
                "engines": engines,
                "seed": seed,
                "prefix": f"m{kills}",
                "calls": 10_000,
                **book.state_of(),
            }
            child = nursery.child(job)
            try:
                place = _follow(child, book, typical, chance)
                fallen[place] += 1
                inside += place[1]
                kills += 1
                clock = ManualClock(book.now_ms)
                with open_store(str(path), engines, clock, **book.settings) as store:
                    book.check(store)
            except BaseException as error:
                child.process.kill()
                error.add_note(f"kill {kills} on {path}, seed {seed}, engines {engines}")
                raise
        with open_store(str(path), engines, clock, **book.settings) as store:
            book.drain(store, clock)
        fates.update(book.fates() if isinstance(book, Census) else ())
    where = ", ".join(f"{count} {'in' if within else 'after'} {op}" for (op, within), count in fallen.most_common())
    tell(f"{kills} kills, {inside} within a call: {where}; what became of messages: {dict(fates)}")
    assert inside >= 0.6 * rounds
    assert kills < 50 or len(fates) >= 4, "the workers let messages come to few ends, so little is proved"


# ---------------------------------------------------------------- killed while it is made, opened, copied or closed


def _kill_in(nursery: Nursery, typical: Typical, job: dict[str, Any], op: str) -> bool:
    """Start ``job`` and kill it in ``op``; returns whether it was inside."""
    child = nursery.child(job)
    while (event := child.next_event()) is not None:
        if event["event"] == "begin" and event["op"] == op:
            begun_s = time.perf_counter()
            moment_s = typical.moment(op)
            said = child.kill(moment_s)
            if any(each["event"] == "end" for each in said):
                typical.saw(op, 0.8 * moment_s)
                return False
            typical.saw(op, max(1.05 * (time.perf_counter() - begun_s), 0.0005))
            return True
    raise AssertionError(f"the worker ended before {op}: {child.reap()}")


@pytest.mark.clause("R3", "X4")
def test_killed_while_it_is_made(tmp_path: Path, nursery: Nursery, engines: dict[str, str]) -> None:
    """R3: a store that was killed while it was made is made by the next open."""
    typical = Typical(1)
    typical.saw("open", 0.1)
    inside = 0
    stores = 0
    while stores < 3 or (inside < 4 and stores < 30):
        path = tmp_path / f"store-{stores}"
        stores += 1
        job = {"do": "close", "path": str(path), "engines": engines, "now": START_MS}
        inside += sum(_kill_in(nursery, typical, job, "open") for _ in range(4))
        with open_store(str(path), engines, ManualClock(START_MS)) as store:
            assert store.verify() == []
            assert store.topics.list() == []
            store.send(Message(TOPIC, b"x"))
        with open_store(str(path), engines, ManualClock(START_MS)) as store:
            assert len(store.pop(TOPIC, "a")) == 1
        assert not list(path.rglob("*.new"))
    assert inside >= 4, f"{4 * stores} kills fell into the making of a store {inside} times"


def _with_messages(path: Path, nursery: Nursery, engines: dict[str, str], kind: str) -> Book:
    """Make a store by a worker that is killed, so that the next open has something to recover."""
    book = Book(START_MS)
    job = {"do": "work", "path": str(path), "engines": engines, "seed": 7, "prefix": kind, "calls": 10_000, **book.state_of()}
    child = nursery.child(job)
    for _ in range(80):
        event = child.next_event()
        assert event is not None, child.reap()
        book.begin(event) if event["event"] == "begin" else book.end(event)
    for event in child.kill():
        book.begin(event) if event["event"] == "begin" else book.end(event)
    return book


@pytest.mark.clause("R3", "R1")
@pytest.mark.needs("snapshot")
@pytest.mark.parametrize("op", ["open", "snapshot", "close"])
def test_killed_at_the_ends_of_its_life(tmp_path: Path, nursery: Nursery, engines: dict[str, str], op: str) -> None:
    """R3: recovery may itself be killed; so may a snapshot, which is then no store, and a close."""
    path = tmp_path / "store"
    book = _with_messages(path, nursery, engines, op)
    typical = Typical(2)
    typical.saw(op, {"open": 0.05, "snapshot": 0.03, "close": 0.003}[op])
    for number in range(5):
        copy = tmp_path / f"copy-{number}"
        job = {
            "do": "snapshot" if op == "snapshot" else "close",
            "path": str(path),
            "engines": engines,
            "now": book.now_ms,
            "snapshot": str(copy),
        }
        _kill_in(nursery, typical, job, op)
        if copy.exists():
            _check_copy(copy, engines, book)
    clock = ManualClock(book.now_ms)
    with open_store(str(path), engines, clock) as store:
        book.drain(store, clock)


def _check_copy(copy: Path, engines: dict[str, str], book: Book) -> None:
    """A copy that was cut short is not there, one that was finished is whole."""
    assert (copy / "rmqstore.json").exists()
    with open_store(str(copy), engines, ManualClock(book.now_ms)) as store:
        assert store.verify() == []
