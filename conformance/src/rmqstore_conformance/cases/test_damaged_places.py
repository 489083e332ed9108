"""T12: what every call does that meets a stored message that cannot be read, wherever that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore import CorruptStoreError, DeadLetter, Store
from rmqstore.message import dlq_topic
from rmqstore_conformance.damaging import Spoiling, cut, damage_messages, damage_timers, flipped
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.power.content import PAGE_BYTES, Content
from rmqstore_conformance.stores import Stores, copied_as_it_is, ids, label, plain, pop_all

T, OTHER = topics(__name__.rpartition(".")[2], 2)
(G,) = groups(__name__.rpartition(".")[2], 1)


def buried(stores: Stores, store: Store, count: int, topic: str = T, first: int = 0) -> list[DeadLetter]:
    """Let the group of a store without retries use up messages, one after the other."""
    for number in range(first, first + count):
        store.send(plain(number, topic))
        store.pop(topic, G, invisible_ms=1)
        assert stores.tick_after(store, 1).dead == 1
    return store.dead_letters.list(G)


@pytest.mark.clause("P7")
@pytest.mark.parametrize("resend", [True, False], ids=["resent", "dropped"])
def test_t12_a_letter_that_went_bad_stops_no_other(stores: Stores, resend: bool) -> None:
    """T12: of a list of letters, one of which cannot be read any more, the others are sent back, or dropped, and counted."""
    store = stores.open(max_retries=0)
    letters = buried(stores, store, 4)
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
    buried(stores, store, 3)
    buried(stores, store, 2, OTHER, first=3)
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
    letters = buried(stores, store, 3)
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
