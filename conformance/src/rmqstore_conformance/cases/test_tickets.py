"""R1: a ticket covers what its answer rests on, not only what its call wrote; without a disk, on any engine.

The script of answers makes calls on the lower interface that no call waits for, each followed by a public call whose answer rests on it.
Behind that answer the side must say that the earlier call is durable. Whether it is true that it is, the crash cases see.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqstore import MessageBatch, Store
from rmqstore.contract import EMPTY_CURSOR, MAX_CORNERS, PopRequest, PopTxn, Receipt, Side, Ticket, TimerCursor, WriteStatus
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.faults.answers import UNSYNCED, Answers
from rmqstore_conformance.faults.script import SETTINGS
from rmqstore_conformance.stores import START_MS, Stores, message

(T,) = topics(__name__.rpartition(".")[2], 1)
(G,) = groups(__name__.rpartition(".")[2], 1)

LATER_MS = START_MS + 60_000


def sides_of(store: Store) -> dict[str, Side]:
    return {"timers": store.engine.timers, "pops": store.engine.pops}


def positions_of(store: Store) -> dict[str, int]:
    return {"timers": store.engine.timers.stats().position, "pops": store.engine.pops.stats().position}


@pytest.mark.needs("retention")
@pytest.mark.clause("I1", "C2", "C4", "P1", "P4", "P5", "P6", "P7", "P11")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_r1_an_answer_waits_for_what_it_rests_on(stores: Stores, flush: str) -> None:
    """R1: what an answer rests on is durable when it is given, and under flush = async when flush returns."""
    store = stores.open(**{**SETTINGS, "flush": flush})
    owed: dict[str, int] = {}
    rested = 0
    for name, call in Answers(store, stores.clock).calls.items():
        before = positions_of(store)
        call()
        if not call.is_promised:
            owed.update({side: position for side, position in positions_of(store).items() if position > before[side]})
            continue
        if flush == "async":
            store.flush()
        for side, position in owed.items() if call.rests_on.startswith(UNSYNCED) else ():
            durable = sides_of(store)[side].durable_position
            assert durable >= position, f"{name} was answered, rests on position {position} of the {side}, and durable is {durable}"
            rested += 1
    assert rested >= 40, "few answers rest on what was not waited for, so little is proved"


def batch(*numbers: int, due_ms: int | None = None) -> MessageBatch:
    """Return messages as the store completes them."""
    return MessageBatch.of([message(number, born_ms=START_MS, queue_id=0, deliver_at_ms=due_ms) for number in numbers])


def test_r1_tickets_rise_and_a_sync_reaches_them(stores: Stores) -> None:
    """R1: each call that changes something has a ticket above all before it, and a sync of it makes all of them durable."""
    store = stores.open()
    timers, pops = store.engine.timers, store.engine.pops

    def popped() -> Ticket:
        result, ticket = pops.pop(PopRequest(T, G, 2, attempt_id="a"), START_MS)
        held[:] = result.messages.receipts()
        return ticket

    held: list[Receipt] = []
    calls: dict[str, list[Callable[[], Ticket]]] = {
        "timers": [
            lambda: timers.put(batch(1, 2, due_ms=LATER_MS), START_MS, [b"t"])[1],
            lambda: timers.cancel([timers.scan(0, 2**62).timers[0].handle], START_MS)[1],
        ],
        "pops": [
            lambda: pops.append(batch(3, 4), START_MS, [b"p"])[1],
            popped,
            lambda: pops.ack(held[:1], START_MS)[1],
            lambda: pops.release(held[1:], START_MS)[1],
        ],
    }
    for name, side in sides_of(store).items():
        last = positions_of(store)[name]
        for number, call in enumerate(calls[name]):
            ticket = call()
            assert ticket.position > last, f"call {number} of the {name}"
            last = ticket.position
            assert positions_of(store)[name] >= last
        side.sync(Ticket(last))
        assert side.durable_position >= last
        side.sync(Ticket(0))


def test_i1_a_repeat_says_the_position_of_the_first_call(stores: Stores) -> None:
    """I1: a repeat on the lower interface gives the first call's position, and a ticket that covers it, whatever came between."""
    pops = stores.open().engine.pops
    first, ticket = pops.append(batch(1), START_MS, [b"a", b"b"])
    pops.append(batch(2), START_MS)
    again, covering = pops.append(batch(1), START_MS, [b"b"])
    assert again.status is WriteStatus.REPEATED
    assert again.position == first.position
    assert covering.position >= ticket.position
    pops.sync(covering)
    assert pops.durable_position >= ticket.position
    # Durable long since, it costs no further wait.
    assert pops.append(batch(1), START_MS, [b"a"])[0] == again


@pytest.mark.clause("H3", "R1")
def test_h1_the_durable_cursor_is_what_is_durable(stores: Stores) -> None:
    """H1: a cursor is called durable when its call is, never sooner, as the timers forget what it covers."""
    pops = stores.open().engine.pops
    before = pops.durable_cursor()
    tickets = []
    cursors = [TimerCursor(((START_MS + number, number),)) for number in range(1, MAX_CORNERS)]
    for number, cursor in enumerate(cursors):
        _, ticket = pops.apply(PopTxn(appends=batch(number), timer_cursor=cursor), START_MS)
        tickets.append(ticket)
        assert pops.timer_cursor() == cursor
        reached = [each for each, waits in zip(cursors, tickets, strict=False) if waits.position <= pops.durable_position]
        assert pops.durable_cursor() == ([before, *reached][-1])
    pops.sync(tickets[4])
    assert pops.durable_position >= tickets[4].position
    assert cursors.index(pops.durable_cursor()) >= 4
    pops.sync()
    assert pops.durable_cursor() == cursors[-1]


@pytest.mark.clause("H1")
def test_h3_a_batch_says_that_it_rests_on_what_is_not_durable(stores: Stores) -> None:
    """H3: due timers are ``soft`` while their put, or the cancel of another one, is not durable: another engine must not outlive them."""
    timers = stores.open().engine.timers
    _, ticket = timers.put(batch(*range(4), due_ms=START_MS + 1000), START_MS)
    timers.seal(START_MS + 1000)
    if timers.durable_position < ticket.position:
        assert timers.due(EMPTY_CURSOR, 10).soft
    timers.sync()
    assert not timers.due(EMPTY_CURSOR, 10).soft
    timers.put(batch(*range(4, 8), due_ms=START_MS + 2000), START_MS)
    timers.sync()
    _, cancelled = timers.cancel([timers.scan(START_MS + 2000, 2**62).timers[0].handle], START_MS)
    timers.seal(START_MS + 2000)
    if timers.durable_position < cancelled.position:
        assert timers.due(EMPTY_CURSOR, 10).soft
    timers.sync()
    found = timers.due(EMPTY_CURSOR, 10)
    assert not found.soft
    assert len(found.messages) == 7
