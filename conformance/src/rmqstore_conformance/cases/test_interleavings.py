"""H4: puts, cancels and sends race a tick: every place of every call between the steps of the hand-over, played one by one."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest

from rmqstore import CancelOutcome, Store
from rmqstore.contract import Support
from rmqstore_conformance.data import topics
from rmqstore_conformance.stores import START_MS, Pair, Stores, key_of, label, message, read_ids, stores_of
from rmqstore_conformance.targets import capabilities_of

(T,) = topics(__name__.rpartition(".")[2], 1)

CALLS = ("put", "cancel", "late", "send", "cancel own", "cancel key")
NOW = START_MS + 2000


def calls_of(pair: Pair) -> tuple[str, ...]:
    """Return the calls that a pair of engines can do."""
    by_key = capabilities_of(pair)[0].cancel_by_key is Support.FULL
    return CALLS if by_key else tuple(call for call in CALLS if call != "cancel key")


class Race:
    """One history: a hand-over, and calls at chosen places; afterwards every answer is held against what became of each message."""

    def __init__(self, stores: Stores, name: str, limit: int) -> None:
        self.store: Store = stores.open(name, hand_over_limit=limit, flush="async")
        self.clock = stores.clock
        self.clock.set(START_MS)
        rows = [
            message(f"r{n}", deliver_at_ms=START_MS + (1000, 2000, 2000, 1000)[n], keys=(key_of("k"),) if n == 3 else ()) for n in range(4)
        ]
        self.handles = {label(each): each.handle or "" for each in self.store.send_batch(rows)}
        self.sent = set(self.handles)
        self.cancelled: set[str] = set()
        self.is_sealed = False
        self.behind_the_seal: set[str] = set()
        self.by_key = 0
        self.made = 0
        self.clock.set(NOW)

    def call(self, what: str) -> None:
        """Do one of :data:`CALLS`."""
        self.made += 1
        name = f"{what}{self.made}".replace(" ", "-")
        if what == "put":
            self._keep(name, NOW + 3000)
        elif what == "late":
            # Sent while the clock stands further back, so that its tick is under what the running seal closed.
            self.clock.set(START_MS)
            self._keep(name, START_MS + 1500)
            self.clock.set(NOW)
        elif what == "send":
            self.store.send(message(name))
            self.sent.add(f"m{name}")
        elif what == "cancel":
            self._cancel("mr1")
        elif what == "cancel own":
            own = [each for each in self.handles if not each.startswith("mr")]
            self._cancel(own[-1] if own else "mr2")
        else:
            self.by_key += self.store.cancel_key(T, key_of("k")).count(CancelOutcome.CANCELLED)

    def _keep(self, name: str, at: int) -> None:
        handle = self.store.send(message(name, deliver_at_ms=at)).handle
        assert handle is not None
        self.handles[f"m{name}"] = handle
        self.sent.add(f"m{name}")
        if self.is_sealed:
            self.behind_the_seal.add(f"m{name}")

    def tick_ends(self) -> None:
        """Look that nothing went along that was put when the tick had its seal."""
        early = self.behind_the_seal.intersection(read_ids(self.store))
        assert not early, f"put behind the seal, and handed over with what was there before: {early}"

    def _cancel(self, name: str) -> None:
        outcome = self.store.cancel(self.handles[name])
        assert outcome in (CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED)
        assert (name in self.cancelled) <= (outcome is CancelOutcome.CANCELLED), "a cancel was taken back"
        if outcome is CancelOutcome.CANCELLED:
            self.cancelled.add(name)

    def end(self) -> None:
        """Let all time pass and compare."""
        self.store.tick()
        self.clock.set(NOW + 60_000)
        self.store.tick()
        lying = read_ids(self.store)
        assert len(lying) == len(set(lying)), f"twice: {lying}"
        gone = self.sent - set(lying)
        if self.by_key:
            assert "mr3" in gone, "cancelled by key and delivered"
            self.cancelled.add("mr3")
        assert gone == self.cancelled, f"lost or wrongly delivered: {gone ^ self.cancelled}"
        for name, handle in self.handles.items():
            expected = CancelOutcome.CANCELLED if name in gone else CancelOutcome.ALREADY_DELIVERED
            assert self.store.cancel(handle) is expected
        assert self.store.pending().total == 0
        assert self.store.verify() == []


def play(stores: Stores, calls: tuple[str, ...], places: tuple[int, ...], limit: int, name: str) -> bool:
    """Play one history; False when a place is behind the last step."""
    race = Race(stores, name, limit)
    waiting = list(zip(places, calls, strict=True))

    def call_those_at(place: int) -> None:
        while waiting and waiting[0][0] == place:
            race.call(waiting.pop(0)[1])

    call_those_at(0)
    for place, _ in enumerate(race.store._hand_over.steps(NOW), 1):
        race.is_sealed = True
        call_those_at(place)
    race.tick_ends()
    reached = not waiting
    for _, call in waiting:
        race.call(call)
    race.end()
    race.store.close()
    return reached


@pytest.mark.clause("H1", "T3", "C1", "C2")
@pytest.mark.parametrize("limit", [1, 2])
def test_h4_every_call_at_every_place(pair: Pair, limit: int) -> None:
    """H4: exactly once, and true answers, wherever a put, a late put, a send or a cancel falls into a running hand-over."""
    played = 0
    for what in calls_of(pair):
        for place in range(30):
            with stores_of(pair) as stores:
                if not play(stores, (what,), (place,), limit, "s"):
                    break
            played += 1
    assert played >= len(calls_of(pair)) * 7


@pytest.mark.clause("H1", "C1", "C2")
@pytest.mark.timeout(300)
def test_h4_every_pair_of_calls_at_every_two_places(first_pair: Pair) -> None:
    """H4: two racing calls, in both orders, at any two places; its steps are the same on all engines, so one will do."""
    played = 0
    for calls in product(calls_of(first_pair), repeat=2):
        for places in combinations_with_replacement(range(10), 2):
            with stores_of(first_pair) as stores:
                played += play(stores, calls, places, 1, "s")
    assert played >= len(calls_of(first_pair)) ** 2 * 40


@pytest.mark.clause("H1", "H3")
@pytest.mark.timeout(300)
def test_h4_three_calls_at_chosen_places(durable_pair: Pair) -> None:
    """H4: put, cancel and late put together, spread over the steps, on every durable engine and mixed pair."""
    for calls in (("late", "cancel", "late"), ("put", "cancel own", "send"), (calls_of(durable_pair)[-1], "late", "cancel own")):
        for places in ((0, 1, 2), (1, 2, 3), (1, 3, 5), (2, 2, 4), (3, 4, 6), (0, 4, 8)):
            with stores_of(durable_pair) as stores:
                play(stores, calls, places, 1, "s")
