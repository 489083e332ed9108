"""T12, R6: what every call does that meets a stored message that cannot be read, wherever that is."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
from msgspec import structs

from rmqstore import AckOutcome, CancelOutcome, CorruptStoreError
from rmqstore.contract import EMPTY_CURSOR, TimerHandle
from rmqstore.message import PARKED_TOPIC, dlq_topic
from rmqstore_conformance.cases.scenes import buried
from rmqstore_conformance.damaging import Spoiling, cut, damage_messages, damage_timer_near, damage_timers, flipped
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.power.content import PAGE_BYTES, Content
from rmqstore_conformance.stores import START_MS, Stores, copied_as_it_is, ids, label, plain, pop_all, read_ids
from rmqstore_conformance.targets import Target

T, OTHER = topics(__name__, 2)
G, H = groups(__name__, 2)

BYTES_OF_A_TIMER = 64
"""So many bytes of a timer and around it are changed, one at a time."""


BODIES = [b"%d" % n * 100 for n in range(3)]
"""Long enough to be cut short."""


@pytest.mark.clause("P7")
@pytest.mark.parametrize("resend", [True, False], ids=["resent", "dropped"])
def test_t12_a_letter_that_went_bad_stops_no_other(stores: Stores, resend: bool) -> None:
    """T12: of a list of letters, one of which cannot be read any more, the others are sent back, or dropped, and counted."""
    store = stores.open(max_retries=0)
    letters = buried(stores, store, *map(plain, range(4)))
    damage_messages(store, b"body 1")
    assert (store.dead_letters.resend(letters) if resend else store.dead_letters.drop(letters)) == 3
    assert ids(pop_all(store)) == (["m0", "m2", "m3"] if resend else [])
    assert pop_all(store, dlq_topic(G), "repair") == []
    assert len(store.dead_letters.parked()) == 1


@pytest.mark.clause("P7", "T12")
@pytest.mark.parametrize("spoil", [flipped, cut(0)], ids=["changed", "emptied"])
def test_p14_a_letter_that_went_bad_is_counted_off_once_it_is_parked(stores: Stores, spoil: Spoiling) -> None:
    """P14: the lag of the topic that a letter came from counts it no more once it is parked, and that of another topic stays."""
    store = stores.open(max_retries=0)
    buried(stores, store, *map(plain, range(3)), plain(3, OTHER), plain(4, OTHER))
    damage_messages(store, b"body 1", b"body 4", spoil=spoil)
    left = ids(store.pop(dlq_topic(G), "repair", max_messages=32))
    assert left == ["m0", "m2", "m3"]
    assert len(store.dead_letters.parked()) == 2
    assert [store.lag(topic, G).dead for topic in (T, OTHER)] == [2, 1]
    assert store.verify() == []
    assert store.dead_letters.drop(store.dead_letters.list(G)) == 3
    assert [store.lag(topic, G).dead for topic in (T, OTHER)] == [0, 0]


@pytest.mark.clause("P7")
def test_p14_leases_are_listed_after_a_letter_among_them_was_dropped(stores: Stores) -> None:
    """P14: a lease of a letter that another caller dropped is listed still, or not, and the others are, with their messages."""
    store = stores.open(max_retries=0)
    letters = buried(stores, store, *map(plain, range(3)))
    held = store.pop(dlq_topic(G), "repair")
    assert store.dead_letters.drop(letters[1:2]) == 1
    listed = {each.receipt: each.message_id for each in store.leases(group="repair")}
    assert [listed[str(each.receipt)] for each in (held[0], held[2])] == [held[0].message_id, held[2].message_id]


def test_r6_a_bit_that_changes_in_what_a_killed_store_wrote_is_told(durable_stores: Stores) -> None:
    """R6: single calls, and a kill; a bit of a message that others follow changes: it is told at each open, not cut as a tail."""
    store = durable_stores.open()
    for number in range(6):
        store.send(plain(number))
    copied_as_it_is(Path(store.stats().path), durable_stores.root / "killed")
    store.close()
    for number in range(5):
        name = f"killed {number}"
        copied_as_it_is(durable_stores.root / "killed", durable_stores.root / name)
        _change_everywhere(durable_stores.root / name, f"body {number}".encode())
        for _ in range(2):
            try:
                with durable_stores.open(name) as again:
                    given = ids(pop_all(again))
                    told = again.dead_letters.parked() or again.verify()
            except CorruptStoreError:
                continue
            assert told or given == [f"m{each}" for each in range(6)], f"of {name}, only {given} are left, and nothing is told"
            break


def _change_everywhere(root: Path, body: bytes) -> None:
    """Change some bytes in the files of a directory wherever they are."""
    for path in (each for each in root.rglob("*") if each.is_file()):
        content = Content.of_file(path)
        for page in content.places:
            # A body may go on in the next page.
            at = content.read(page, PAGE_BYTES + len(body)).find(body)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(page + at)
                    file.write(flipped(body))


@pytest.mark.clause("T12")
@pytest.mark.parametrize("spoil", [flipped, cut(0)], ids=["changed", "emptied"])
def test_r6_a_message_that_changed_on_the_disk_is_given_to_nobody(stores: Stores, spoil: Spoiling) -> None:
    """R6: alone in its call or among others, as a timer or in a queue: it is parked with what was found, and comes to no consumer."""
    store = stores.open(default_queues=1)
    for number in range(2):
        store.send(plain(number))
    store.send_batch([plain(number) for number in range(2, 6)])
    timers = [plain("later"), plain("sooner")]
    for number, message in enumerate(timers):
        store.send(message, delay_ms=1000 * number + 1000)
    damage_messages(store, b"body 1", b"body 3", spoil=spoil)
    damage_timers(store, b"body later", spoil=spoil)
    large = bytes(range(256)) * 40
    store.send(plain("large", body=large + b"the end of it"))
    damage_messages(store, b"the end of it")
    stores.tick_after(store, 5000)
    bodies = {label(each): each.body for each in pop_all(store)}
    assert {"m0", "msooner"} <= set(bodies)
    assert not {"m1", "m3", "mlater", "mlarge"}.intersection(bodies)
    assert any(large in bytes(each.message.body) for each in store.dead_letters.parked()), "what was found is parked whole"
    assert all(body == f"body {name[1:]}".encode() for name, body in bodies.items())
    assert len(store.dead_letters.parked()) >= 3


# ---------------------------------------------------------------- timers and queue entries


@pytest.mark.parametrize("spoil", [flipped, cut(0), cut(3), cut(10), cut(40)], ids=["flipped", "empty", "3 bytes", "10 bytes", "40 bytes"])
def test_t12_a_damaged_timer_is_parked(stores: Stores, spoil: Spoiling) -> None:
    """T12: it comes out as a message of ``%PARKED%`` with a reason; those before and behind it are delivered."""
    store = stores.open()
    for n in range(3):
        store.send(plain(n, body=BODIES[n]), deliver_at_ms=START_MS + 1000 * (n + 1))
    damage_timers(store, BODIES[1], spoil=spoil)
    stores.tick_after(store, 5000)
    assert read_ids(store) == ["m0", "m2"]
    parked = store.read(PARKED_TOPIC).messages
    assert len(parked) == 1
    assert parked[0].properties["PARKED_REASON"]
    assert parked[0].body, "a body has a byte at least, also when nothing was found"
    store.tick()
    assert len(store.read(PARKED_TOPIC)) == 1, "parked once"
    assert store.pending().total == 0
    assert store.verify() == []
    assert ids(store.pop(PARKED_TOPIC, "doctor")) == ids(parked)


@pytest.mark.clause("C2", "C6")
@pytest.mark.parametrize("spoil", [flipped, cut(0), cut(10)], ids=["flipped", "empty", "10 bytes"])
def test_t12_a_cancel_of_a_damaged_timer_ends_it_or_tells(stores: Stores, spoil: Spoiling) -> None:
    """T12: by its handle, alone or in a list: it is ended and not parked, or the call raises, and ends none of the list."""
    store = stores.open()
    sent = [store.send(plain(n, body=BODIES[n]), deliver_at_ms=START_MS + 1000 * (n + 1)) for n in range(3)]
    damage_timers(store, BODIES[1], spoil=spoil)
    assert store.cancel(sent[2]) == CancelOutcome.CANCELLED, "another one is ended as ever"
    damaged = TimerHandle.parse(sent[1].handle or "")
    assert damaged is not None
    never_given = [structs.replace(damaged, seq=damaged.seq + 99), structs.replace(damaged, epoch=damaged.epoch + 99)]
    assert store.cancel([each.text() for each in never_given]) == [CancelOutcome.UNKNOWN] * 2
    try:
        outcomes = store.cancel([sent[1], sent[0]])
    except CorruptStoreError:
        outcomes = []
        with pytest.raises(CorruptStoreError):
            store.cancel(sent[1])
    assert outcomes in ([], [CancelOutcome.CANCELLED, CancelOutcome.CANCELLED])
    stores.tick_after(store, 5000)
    assert (read_ids(store), len(store.dead_letters.parked())) == (([], 0) if outcomes else (["m0"], 1))
    assert store.pending().total == 0
    assert store.verify() == []


@pytest.mark.needs("cancel_by_key")
@pytest.mark.clause("C2", "R6")
def test_t12_a_cancel_by_key_ends_no_timer_but_those_with_the_key(stores: Stores, seed: int, target: Target) -> None:
    """T12: whatever byte of a timer changes, a cancel by its key ends it or says that it cannot tell; it ends no other one."""
    bodies = {f"m{number}": b"%d" % number * 8 for number in range(4)}
    missed: list[str] = []
    around = list(product(range(-88, 160), (1, 20)))
    for step, asked in random.Random(seed).sample(around, min(target.times(BYTES_OF_A_TIMER), len(around))):
        stores.clock.set(START_MS)
        store = stores.open(f"{asked} {step}")
        for number, (name, body) in enumerate(bodies.items()):
            store.send(plain(name[1:], body=body, keys=(f"key{number}",)), deliver_at_ms=START_MS + 1000 * number + 1000)
        if not damage_timer_near(store, bodies["m2"], step):
            store.close()
            continue
        try:
            outcomes = store.cancel_keys(T, ["key2", *(f"nobody{number}" for number in range(asked - 1))])
        except CorruptStoreError:
            outcomes = []
        else:
            if outcomes[0] == []:
                missed.append(f"byte {step} changed: not found by its key, and nothing was told")
        stores.tick_after(store, 10_000)
        gone = bodies.keys() - {*read_ids(store)}
        parked = len(store.dead_letters.parked())
        ended = sum(map(len, outcomes))
        assert gone <= {"m2"} or (not ended and len(gone) <= parked), f"byte {step} changed: {gone} are gone, {outcomes}, {parked} parked"
        assert bool(ended) + parked >= len(gone), f"byte {step} changed: {gone} are gone, {outcomes}, {parked} parked"
        # What is parked counts as done.
        keys = ["key2", *(f"nobody{number}" for number in range(asked - 1))]
        assert not store.cancel_keys(T, keys)[0], f"byte {step} changed"
        store.send(plain("again", keys=("key2",)), delay_ms=1000)
        assert store.cancel_keys(T, keys)[0] == [CancelOutcome.CANCELLED], f"byte {step} changed"
        store.close()
    assert not missed, "\n".join(missed)


def test_t12_a_damaged_run_of_many_timers_parks_and_the_rest_goes_on(stores: Stores) -> None:
    """T12: timers that are in one piece cannot be told apart any more: one parked entry a piece, no other touched, counters right."""
    store = stores.open(hand_over_limit=1)
    store.send_batch([plain(n, deliver_at_ms=START_MS + 1000) for n in range(5)])
    store.send_batch([plain(n, deliver_at_ms=START_MS + 1000) for n in range(5, 8)])
    pieces = damage_timers(store, *(f"body {n}".encode() for n in range(5)))
    stores.tick_after(store, 5000)
    assert read_ids(store) == ["m5", "m6", "m7"]
    assert len(store.read(PARKED_TOPIC)) == pieces
    assert store.pending().total == 0


@pytest.mark.clause("T10")
@pytest.mark.parametrize("step_ms", [1000, 20_000], ids=["tick by tick", "all at once"])
def test_t12_what_went_bad_of_one_call_stops_no_other(stores: Stores, step_ms: int) -> None:
    """T12: timers of one call that are due one after the other may be stored as one: each piece is parked once, and the others come."""
    store = stores.open()
    for call in (0, 1):
        store.send_batch([plain(n, deliver_at_ms=START_MS + 1000 * (n + 1)) for n in range(call, 10, 2)])
    pieces = damage_timers(store, b"body 2", b"body 6")
    for _ in range(0, 20_000, step_ms):
        stores.tick_after(store, step_ms)
    apart = ["m0", "m1", "m3", "m4", "m5", "m7", "m8", "m9"]
    assert read_ids(store) == (apart if pieces == 2 else ["m1", "m3", "m5", "m7", "m9"])
    assert len(store.dead_letters.parked()) == pieces
    assert store.pending().total == 0


@pytest.mark.clause("P14")
@pytest.mark.parametrize("spoil", [flipped, cut(0), cut(10)], ids=["flipped", "empty", "10 bytes"])
def test_t12_a_damaged_queue_entry_is_parked_by_the_pop(stores: Stores, spoil: Spoiling) -> None:
    """T12: the pop steps over it, parks it once, and gives the others to every group."""
    store = stores.open()
    for n in range(3):
        store.send(plain(n, body=BODIES[n]))
    damage_messages(store, BODIES[1], spoil=spoil)
    assert ids(pop_all(store, group=G)) == ["m0", "m2"]
    assert store.lag(T, H).ready == 2, "what was parked, no group has before it"
    assert ids(pop_all(store, group=H)) == ["m0", "m2"]
    assert [bool(each.body) for each in store.read(PARKED_TOPIC).messages] == [True], "a body has a byte at least"
    for group in (G, H):
        assert store.lag(T, group).ready == 0


def test_t12_a_leased_message_that_went_bad_is_parked_when_its_lease_ends(stores: Stores) -> None:
    """T12: the revive of others is not held up, and acking the bad one still works before."""
    store = stores.open()
    for n in range(4):
        store.send(plain(n))
    popped = store.pop(T, G, invisible_ms=1000)
    damage_messages(store, b"body 0", b"body 2")
    assert store.ack(popped[0]) is AckOutcome.ACKED
    report = stores.tick_after(store, 1000)
    assert (report.retried, report.parked, report.moved) == (2, 1, 3)
    assert sorted(ids(pop_all(store))) == ["m1", "m3"]
    parked = store.read(PARKED_TOPIC).messages
    assert len(parked) == 1
    assert G in parked[0].properties["PARKED_REASON"]
    assert b"bod" in parked[0].body, "the body is what was found"


def test_t12_due_reads_a_damaged_timer_alike_every_time(stores: Stores) -> None:
    """T12: ``due`` stays a pure read over damage."""
    store = stores.open()
    for n in range(2):
        store.send(plain(n), deliver_at_ms=START_MS + 1000)
    damage_timers(store, b"body 0")
    store.engine.timers.seal(START_MS + 1000)
    first, again = (store.engine.timers.due(EMPTY_CURSOR, 10) for _ in range(2))
    assert [m.topic for m in first.messages.messages] == [PARKED_TOPIC, T]
    assert first.cursor == again.cursor
    assert first.messages.columns.equals(again.messages.columns)
    assert stores.tick_after(store, 1000).handed_over == 2


@pytest.mark.clause("Q1")
def test_t12_a_damaged_run_of_parked_entries_is_parked_for_good(stores: Stores) -> None:
    """T12: the entry that stands for it is behind it in the same queue, is counted, and outlives the upkeep."""
    store = stores.open()
    store.send(plain(1))
    damage_messages(store, b"body 1")
    assert store.pop(T, G) == []
    damage_messages(store, store.read(PARKED_TOPIC).messages[0].body[-8:])
    store.pop(PARKED_TOPIC, "operator")
    for _ in range(2):
        assert [label(each.origin_message_id) for each in store.dead_letters.parked()] == [f"{PARKED_TOPIC}/0/0"]
        store.tick()


@pytest.mark.clause("P14", "T12")
@pytest.mark.needs("fifo")
def test_p9_a_damaged_run_is_parked_once(stores: Stores) -> None:
    """P9: several un-acked messages of one damaged run: one entry, exact counts, and the pop goes on with what can be read."""
    store = stores.open()
    store.send_batch([plain(n) for n in range(5)])
    assert len(store.pop(T, G, order=True, max_messages=3, invisible_ms=1)) == 3
    stores.tick_after(store, 1)
    pieces = damage_messages(store, *(f"body {n}".encode() for n in range(5)))
    store.send(plain("sound"))
    assert ids(store.pop(T, G, order=True, max_messages=1)) == ["msound"]
    assert len(store.dead_letters.parked()) == pieces
    assert store.lag(T, "other").ready == 1


TEN = [b"body %d" % n * 10 for n in range(10)]
SPOILED: dict[str, Spoiling] = {
    "changed": flipped,
    "emptied": cut(0),
    "cut in its head": cut(8),
    "counts fewer": lambda data: data[:8] + b"\x02\0\0\0" + data[12:],
    "counts none": lambda data: data[:8] + bytes(4) + data[12:],
}
"""What becomes of a run, or of a body where messages lie one by one. All but the first take messages off the count in a run's head."""


@pytest.mark.clause("R6", "P14")
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("order", [False, pytest.param(True, marks=pytest.mark.needs("fifo"))], ids=["", "in order"])
def test_t12_a_run_that_went_bad_behind_a_first_pop_is_parked(stores: Stores, spoil: Spoiling, order: bool) -> None:
    """T12: a group that stands within it is told like one that comes to its beginning; what can still be read is given."""
    store = stores.open(default_queues=1)
    store.send_batch([plain(n, body=TEN[n]) for n in range(10)])
    assert len(store.ack(store.pop(T, G, max_messages=5, order=order))) == 5
    damage_messages(store, TEN[9], spoil=spoil)
    given = ids(pop_all(store, order=order))
    assert given in ([], ["m5", "m6", "m7", "m8"]), "of one call, or one by one"
    assert len(store.dead_letters.parked()) == 1
    assert store.lag(T, G).ready == 0


@pytest.mark.clause("R6", "P9", "P14")
@pytest.mark.needs("fifo")
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_t12_a_run_that_went_bad_while_it_waited_in_its_place_is_parked(stores: Stores, spoil: Spoiling) -> None:
    """T12: what waits in order to be given again leaves its place by being parked, and in no other way."""
    store = stores.open(default_queues=1)
    store.send_batch([plain(n, body=TEN[n]) for n in range(10)])
    popped = store.pop(T, G, order=True)
    store.ack(popped[:5])
    store.release(popped[5:])
    damage_messages(store, TEN[9], spoil=spoil)
    given = ids(pop_all(store, order=True))
    assert given in ([], ["m5", "m6", "m7", "m8"]), "of one call, or one by one"
    assert len(store.dead_letters.parked()) == 1
    assert store.lag(T, G).retry == 0


@pytest.mark.clause("R6")
def test_t12_what_was_parked_is_not_taken_for_a_run_that_went_bad_before_it(stores: Stores) -> None:
    """T12: a lease whose message another group's pop parked ends with nothing found, though what lies before it is bad by now, too."""
    store = stores.open(default_queues=1)
    for first in (0, 5):
        store.send_batch([plain(n) for n in range(first, first + 5)])
    popped = store.pop(T, G, invisible_ms=1000)
    store.ack(popped[:5])
    damage_messages(store, b"body 9")
    pop_all(store, group=H)
    assert len(store.dead_letters.parked()) == 1
    damage_messages(store, b"body 4")
    stores.tick_after(store, 1000)
    bodies = [bytes(each.message.body) for each in store.dead_letters.parked()]
    assert not any(b"body 0" in body for body in bodies), "it was acked, and nobody looked at it again"
