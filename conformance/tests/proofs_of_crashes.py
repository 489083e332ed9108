"""Proofs about the mutants on ``lmdb``, and about those that threads show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from conformance.tests.proofs import S, copied, many, meeting, moments, proof
from rmqstore import Store
from rmqstore.contract import (
    CancelOutcome,
    GroupSettings,
    InitMode,
)
from rmqstore_conformance.stores import DAY_MS, Stores, message, read_ids
from rmqstore_lmdb.kv import LmdbBase

# ---------------------------------------------------------------- after a reopen


@proof
def parks_short(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1, body=b"q" * 3000))
    store.close()
    for file in (stores.root / "store").glob("**/data.mdb"):
        data = file.read_bytes()
        assert b"q" * 3000 in data
        file.write_bytes(data.replace(b"q" * 3000, b"z" + b"q" * 2999))
    store = stores.open()
    store.pop("t", "g")
    assert len(store.dead_letters.parked()[0].message.body) >= 3000


# ---------------------------------------------------------------- threads


@proof
def settings_read_before_they_are_set(stores: Stores) -> None:
    store = stores.open()
    meeting(store.engine.pops, [partial(store.groups.set, group, max_retries=3) for group in ("g", "h")])
    assert [store.groups.settings(group).max_retries for group in ("g", "h")] == [3, 3]


# ---------------------------------------------------------------- answers: timers


@proof
def large_puts_wait_for_less(stores: Stores) -> None:
    stores.open().send_batch(many(1200), delay_ms=5000)
    assert copied(stores).pending().total == 1200


# ---------------------------------------------------------------- answers: pops


@proof
def large_pops_wait_for_less(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(50))
    store.pop("t", "g", max_messages=50)
    assert copied(stores).lag("t", "g").in_flight == 50


@proof
def resets_at_once(stores: Stores) -> None:
    store = stores.open(reclaim="age")
    store.send(message(1))
    store.ack(store.pop("t", "g"))
    store.groups.reset_offset("t", "g", InitMode.MIN)
    assert copied(stores, reclaim="age").lag("t", "g").ready == 1


@proof
def settings_at_once(stores: Stores) -> None:
    stores.open().groups.set("g", max_retries=3)
    assert copied(stores).groups.settings("g") == GroupSettings(max_retries=3)


# ---------------------------------------------------------------- answers: sessions


@proof
def closes_without_sync(stores: Stores) -> None:
    store = stores.open(flush="async")
    store.send(message(1))
    assert read_ids(stores.reopen(store)) == ["m1"]


# ---------------------------------------------------------------- two writes


def _parts(stores: Stores, call: Callable[[], object], count: Callable[[Store], int], whole: set[int], **settings: Any) -> None:
    """Show that after each transaction of a call a count is one of those that whole calls leave."""
    with moments(stores) as opened:
        call()
    seen = [count(each) for each in opened(**settings)]
    assert seen
    assert set(seen) <= whole, seen


@proof
def marks_before_puts(stores: Stores) -> None:
    store = stores.open()

    def send(to: Store) -> int:
        to.send(message(1), delay_ms=5000, marks=[b"k"])
        return to.pending().total

    _parts(stores, lambda: send(store), send, {1})


@proof
def counters_behind_puts(stores: Stores) -> None:
    store = stores.open()
    both = [message(1, "a"), message(2, "b")]
    _parts(stores, lambda: store.send_batch(both, delay_ms=5000), lambda each: len(each.verify()), {0})


@proof
def traces_behind_cancels(stores: Stores) -> None:
    store = stores.open()
    receipt = store.send(message(1), delay_ms=5000)
    _parts(stores, lambda: store.cancel(receipt), lambda each: each.cancel(receipt) is CancelOutcome.CANCELLED, {1})


@proof
def large_sends_in_parts(stores: Stores) -> None:
    store = stores.open()
    _parts(stores, lambda: store.send_batch(many(2500)), lambda each: each.lag("t", "g").ready, {0, 2500})


@proof
def changes_in_two(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    leased = store.pop("t", "g")

    def comes_back(to: Store) -> int:
        stores.clock.set(S + DAY_MS)
        to.tick()
        return len(to.pop("t", "g"))

    _parts(stores, lambda: store.change_invisible(leased, invisible_ms=5000), comes_back, {1})


@proof
def large_acks_in_parts(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(600))
    leased = store.pop("t", "g", max_messages=600)
    _parts(stores, lambda: store.ack(leased), lambda each: each.lag("t", "g").in_flight, {0, 600})


@proof
def resent_before_removed(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"))
    letters = store.dead_letters.list("g")
    _parts(
        stores, lambda: store.dead_letters.resend(letters), lambda each: len(each.dead_letters.list("g")) + each.lag("t", "g").retry, {1}
    )


@proof
def retries_before_leases_end(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.pop("t", "g", invisible_ms=1000)
    stores.clock.advance(1000)

    def tick(of: Store) -> int:
        of.tick()
        return of.lag("t", "g").retry

    _parts(stores, store.tick, tick, {1})


@proof
def dead_counted_behind(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    leased = store.pop("t", "g")
    _parts(stores, lambda: store.reject(leased), lambda each: each.lag("t", "g").dead - len(each.dead_letters.list("g")), {0})


@proof
def offsets_behind_leases(stores: Stores) -> None:
    store = stores.open()
    store.pop("t", "g")
    store.send(message(1))

    def given(by: Store) -> int:
        stores.clock.set(S + DAY_MS)
        by.tick()
        return len(by.pop("t", "g"))

    _parts(stores, lambda: store.pop("t", "g", invisible_ms=1000), given, {1})


@proof
def runs_behind_leases(stores: Stores) -> None:
    store = stores.open(max_retries=0)
    store.send(message(1))

    def dead(of: Store) -> int:
        of.pop("t", "g", order=True, invisible_ms=1000)
        stores.clock.set(S + DAY_MS)
        of.tick()
        return of.lag("t", "g").dead

    _parts(stores, lambda: store.pop("t", "g", order=True, invisible_ms=1000), dead, {1}, max_retries=0)


@proof
def names_behind_messages(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    _parts(stores, lambda: store.topics.delete("t"), lambda each: each.lag("t", "g").ready - len(read_ids(each)), {0})


@proof
def expired_counted_behind(stores: Stores) -> None:
    store = stores.open(retention_ms=1000)
    store.pop("t", "g")
    store.send(message(1))
    stores.clock.advance(5000)

    def accounted(of: Store) -> int:
        lag = of.lag("t", "g")
        return lag.ready + lag.expired

    _parts(stores, lambda: (store.tick(), store.flush()), accounted, {1}, retention_ms=1000)


# ---------------------------------------------------------------- a bad disk


def _fails(count: int, error: Exception) -> tuple[Callable[[], None], list[int]]:
    """Let the next transactions fail; returns what ends that, and the list that each of them is noted in."""
    plain, calls = LmdbBase.commit, []

    def commit(base: LmdbBase, changes: Any) -> None:
        calls.append(len(calls))
        if len(calls) <= count:
            raise error
        plain(base, changes)

    def end() -> None:
        LmdbBase.commit = plain

    LmdbBase.commit = commit
    return end, calls
