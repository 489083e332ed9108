"""The ledger of the second kind of worker can refute: what happens behind its back, or by half, does not pass (R1, P7, P9, Q1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqstore import InitMode, ManualClock, Message, Store
from rmqstore_conformance.kills.census import ACKED, DELETED, DROPPED, RECLAIMED, SKIPPED, UNSTORED, Census
from rmqstore_conformance.kills.consumer import RETENTION_MS, SETTINGS, do_pop, do_tick
from rmqstore_conformance.kills.worker import open_store
from rmqstore_conformance.stores import START_MS


class Life:
    """A store whose census is true, with messages in every place."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(START_MS)
        self.store: Store = open_store(str(path), {"engine": "memory"}, self.clock, **SETTINGS)
        self.census = Census(START_MS)
        self.receipts: dict[str, list[str]] = {}
        self.send("orders", 8)
        self.send("steps", 8)
        for wanted in (8, 3):
            self.pop("a", wanted)
            self.pop("f", 8)
            self.tick(1000)
        self.send("orders", 8)
        self.pop("a", 3)
        self.pop("f", 3)
        self.send("orders", 2, later_ms=5000)
        self.census.check(self.store)

    def do(self, op: str, act: Callable[[], object], **detail: object) -> object:
        self.census.now_ms = self.clock.now_ms()
        return self.census.do(self.store, op, act, **detail)

    def send(self, topic: str, count: int, later_ms: int | None = None) -> None:
        first = len(self.census.items)
        due_ms = None if later_ms is None else self.clock.now_ms() + later_ms
        sent = [Message(topic, b"x", message_id=f"m{first + n}", deliver_at_ms=due_ms) for n in range(count)]
        rows = [[message.message_id, due_ms] for message in sent]
        self.do("send", lambda: len(self.store.send_batch(sent)), topic=topic, messages=rows)

    def tick(self, ms: int) -> None:
        self.clock.advance(ms)
        self.do("tick", lambda: do_tick(self.store))

    def pop(self, group: str, wanted: int) -> None:
        popped = self.do("pop", lambda: do_pop(self.store, group, wanted, 1000), group=group, wanted=wanted, invisible=1000)
        assert isinstance(popped, list)
        self.receipts[group] = [receipt for receipt, _, _ in popped]


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    found = Life(tmp_path / "store")
    yield found
    found.store.close()


def test_every_end_is_reached_and_told_apart(life: Life) -> None:
    """P7, P9, Q1: acked, dropped, reclaimed, skipped, deleted; the rest is popped to the end, dead letters and all."""
    letters = life.store.dead_letters.list("a")[:1]
    life.do("drop", lambda: life.store.dead_letters.drop(letters), group="a", names=[each.origin_message_id for each in letters])
    life.send("steps", 2)
    life.do("reset", lambda: life.store.groups.reset_offset("steps", "f", InitMode.MAX), group="f")
    life.send("orders", 3)
    life.tick(RETENTION_MS + 1)
    life.send("steps", 2)
    life.do("delete_topic", lambda: life.store.topics.delete("steps"), group="f")
    life.do("delete_group", lambda: life.store.groups.delete("f"), group="f")
    life.census.check(life.store)
    life.census.drain(life.store, life.clock)
    assert life.census.fates().keys() == {ACKED, DROPPED, RECLAIMED, SKIPPED, DELETED}


TAMPERS: dict[str, Callable[[Life], object]] = {
    "an ack": lambda life: life.store.ack(life.receipts["a"][0]),
    "an ack in order": lambda life: life.store.ack(life.receipts["f"][0]),
    "a release in order": lambda life: life.store.release(life.receipts["f"][0]),
    "a longer lease": lambda life: life.store.change_invisible(life.receipts["a"][0], invisible_ms=9000),
    "a letter dropped": lambda life: life.store.dead_letters.drop(life.store.dead_letters.list("f")[:1]),
    "a letter resent": lambda life: life.store.dead_letters.resend(life.store.dead_letters.list("a")[:1]),
    "a message doubled": lambda life: life.store.send(Message("orders", b"x", message_id="m7")),
    "a stranger": lambda life: life.store.send(Message("orders", b"x", message_id="stranger")),
    "a pop": lambda life: life.store.pop("orders", "a", max_messages=1),
    "a reset": lambda life: life.store.groups.reset_offset("steps", "f", InitMode.MAX),
    "a topic deleted": lambda life: life.store.topics.delete("steps"),
    "a group deleted": lambda life: life.store.groups.delete("a"),
    "a tick": lambda life: (life.clock.advance(1000), life.store.tick()),
}


@pytest.mark.parametrize("tamper", TAMPERS)
def test_what_nobody_asked_for_is_noticed(life: Life, tamper: str) -> None:
    """R1: a change that no call of the book explains."""
    TAMPERS[tamper](life)
    with pytest.raises((AssertionError, KeyError)):
        life.census.check(life.store)


def test_half_a_call_is_noticed(life: Life) -> None:
    """R1: an ack of two messages of which one is acked, a send of which one message is there, a pop that gave too little."""
    halves: list[tuple[dict[str, object], Callable[[], object]]] = [
        ({"op": "ack", "group": "a", "receipts": life.receipts["a"][:2]}, lambda: life.store.ack(life.receipts["a"][0])),
        (
            {"op": "send", "topic": "steps", "messages": [["x1", None], ["x2", None]]},
            lambda: life.store.send(Message("steps", b"x", message_id="x1")),
        ),
        ({"op": "pop", "group": "a", "wanted": 2, "invisible": 700}, lambda: do_pop(life.store, "a", 1, 700)),
    ]
    for call, act in halves:
        life.census.begin({**call, "now": life.clock.now_ms()})
        act()
        with pytest.raises(AssertionError, match=r"a part of|1 of 2 popped"):
            life.census.check(life.store)


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("op", ["reset", "delete_topic", "resend", "drop", "tick", "release"])
def test_whole_calls_and_none_are_settled(life: Life, op: str, happened: bool) -> None:
    """R1: a call whose answer was lost is found out, and the ledger closes after it."""
    letters = life.store.dead_letters.list("f")
    acts: dict[str, Callable[[], object]] = {
        "reset": lambda: life.store.groups.reset_offset("steps", "f", InitMode.MAX),
        "delete_topic": lambda: life.store.topics.delete("steps"),
        "resend": lambda: life.store.dead_letters.resend(letters),
        "drop": lambda: life.store.dead_letters.drop(letters),
        "tick": life.store.tick,
        "release": lambda: life.store.release(life.receipts["f"]),
    }
    if op == "tick":
        life.clock.advance(1000)
    names = [each.origin_message_id for each in letters]
    life.census.begin({"op": op, "now": life.clock.now_ms(), "group": "f", "names": names, "receipts": life.receipts["f"]})
    if happened:
        acts[op]()
    life.census.check(life.store)
    life.census.drain(life.store, life.clock)
    assert UNSTORED not in life.census.fates()
