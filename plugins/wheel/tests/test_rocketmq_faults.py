"""Faults of RocketMQ's file wheel and pops, as far as it takes this engine's own files to see that it has none of them (docs/rip43.md)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from plugins.wheel.tests.stores import WheelStores, index_of, ledger_of, overwrite
from rmqstore import CancelOutcome, CorruptStoreError, IllegalMessageError, Message, Store
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, message, read_ids
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.timers.table import TIMER

# ---------------------------------------------------------------- timers that are lost


def test_l1_a_log_file_that_somebody_removed_is_told_of(stores: WheelStores) -> None:
    """RocketMQ counts a timer whose log file is gone as delivered; here a call says which file is missing, or the timer is parked."""
    sizes = Sizes(log_file_bytes=64 * 1024)
    with patch("rmqstore_wheel.engine.sizes_of", lambda options: sizes):
        store = stores.open()
        for n in range(4):
            store.send(message(n, body=b"x" * 40_000), delay_ms=HOUR_MS)
        store = stores.reopen(store)
        first = min((stores.path(store) / "commitlog").iterdir())
        first.unlink()
        stores.clock.advance(HOUR_MS)
        with pytest.raises(CorruptStoreError, match=f"{first.name} is missing"):
            store.tick()
        store = stores.reopen(store)
        assert store.tick().handed_over == 4
        assert read_ids(store) == ["m1", "m2", "m3"]
        assert [each.origin_message_id for each in store.dead_letters.parked()] == ["timer 1"]
        store.close()
        third = sorted(first.parent.iterdir())[1]
        third.unlink()
        with pytest.raises(CorruptStoreError, match=f"{third.name} is missing"):
            stores.open()


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _spoil(path: Path) -> None:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        data = bytearray(file.read_bytes())
        at = next(at for at in range(len(data)) if data[at])
        data[at : at + 200] = bytes(byte ^ 0x5A for byte in data[at : at + 200])
        file.write_bytes(data)


@pytest.mark.parametrize("cache", ["timerlog", "timerwheel", "rmqstore/facts", "consumequeue/rmq_sys_wheel_timer"])
@pytest.mark.parametrize("harm", [_remove, _spoil], ids=["removed", "damaged"])
def test_l6_a_broken_chain_hides_no_timer(stores: WheelStores, cache: str, harm: object) -> None:
    """RocketMQ ends a slot without a word where its chain breaks; here an error names the file, and the next open mends it."""
    store = stores.open()
    store.send_batch([message(n) for n in range(30)], delay_ms=1000)
    store.close()
    harm(stores.root / "store" / "wheel" / "db" / cache)  # type: ignore[operator]
    stores.clock.advance(1000)
    refused = 0
    for _ in range(3):
        try:
            store = stores.open()
            store.tick()
            break
        except CorruptStoreError as error:
            refused += 1
            assert cache.split("/")[0] in str(error)
            store.close()
    assert refused <= 1
    assert read_ids(store) == [f"m{n}" for n in range(30)]
    assert store.verify() == []


def test_l6_a_chain_that_breaks_while_the_store_is_open_is_an_error(stores: WheelStores) -> None:
    """RocketMQ takes what it can walk and calls the slot done; here the tick fails, hands nothing over, and a new open has it all."""
    store = stores.open()
    for n in range(40):
        store.send(message(f"a{n}"), deliver_at_ms=START_MS + 1000)
        store.send(message(f"b{n}", "u"), deliver_at_ms=START_MS + 2000)
    units = index_of(store).wheel.units
    overwrite(units.chain.path_of(0), units.position(40) + 4, (52 * 79).to_bytes(8))
    stores.clock.advance(2000)
    with pytest.raises(CorruptStoreError, match="timerlog"):
        store.tick()
    assert store.pending().total == 80
    store = stores.killed(store)
    store.tick()
    assert read_ids(store) == [f"ma{n}" for n in range(40)]
    assert read_ids(store, "u") == [f"mb{n}" for n in range(40)]


@pytest.mark.parametrize("name", ["TIMER_OUT_MS", "REAL_TOPIC", "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES"])
def test_l12_a_user_cannot_set_what_the_wheel_sets(stores: WheelStores, name: str) -> None:
    """RocketMQ delivers at once what carries TIMER_OUT_MS already; here such a message is refused, one by one and in a batch."""
    store = stores.open()
    wrong = Message("t", b"x", properties={name: str(START_MS + 1000)})
    with pytest.raises(IllegalMessageError, match=name):
        store.send(wrong, delay_ms=1000)
    with pytest.raises(IllegalMessageError, match=name):
        store.send_batch([message(1), wrong], delay_ms=1000)
    assert store.pending().total == 0
    assert store.topics.list() == []


# ---------------------------------------------------------------- timers that roll


def rolls(store: Store) -> int:
    """Return how many times timers were put into a slot that is not their first, since the timer log was made."""
    index = index_of(store)
    units = index.wheel.units
    puts = int((index.facts.read(index.facts.first, index.facts.count - index.facts.first)["kind"] == TIMER).sum())
    cancels = int(((units.read(units.first, units.count - units.first)["flags"] & timer_log.DELETE) != 0).sum())
    return int(units.count) - puts - cancels


def test_a_roll_by_copy_writes_the_messages_again(stores: WheelStores) -> None:
    """As RocketMQ does; what was copied has its keys, and a message that cannot be read rolls by reference and is parked."""
    copying: dict[str, Any] = {"wheel__roll": "copy"}
    bodies = [b"%04d" % n * 250 for n in range(100)]
    store = stores.open(**copying)
    store.send_batch([message(n, body=bodies[n], keys=(f"k{n}",)) for n in range(100)], delay_ms=9 * DAY_MS)
    tail = ledger_of(store).log.tail
    assert store.cancel_key("t", "k7") == [CancelOutcome.CANCELLED]
    store = stores.reopen(store, **copying)
    assert damage_timers(store, bodies[8]) == 1
    for _ in range(30):
        stores.clock.advance(6 * HOUR_MS)
        store.tick()
    assert rolls(store) >= 98
    assert 1000 * rolls(store) < ledger_of(store).log.tail - tail < 1500 * rolls(store)
    for _ in range(3):
        store = stores.killed(store, **copying)
        stores.clock.advance(HOUR_MS)
        store.tick()
    assert store.cancel_key("t", "k9") == [CancelOutcome.CANCELLED]
    stores.clock.advance(9 * DAY_MS)
    assert store.tick().handed_over == 98
    assert read_ids(store) == [f"m{n}" for n in range(100) if n not in (7, 8, 9)]
    assert len(store.dead_letters.parked()) == 1
    assert store.verify() == []


def test_8203_what_was_put_at_once_does_not_roll_at_once(stores: WheelStores) -> None:
    """RocketMQ rolls a burst into one slot again and again; here its timers are spread over half of the window."""
    store = stores.open()
    store.send_batch([message(n) for n in range(1000)], delay_ms=9 * DAY_MS)
    slots = index_of(store).wheel.slots
    assert int(slots["timers"].max()) <= 5
    assert np.count_nonzero(slots["timers"]) > 900
    tail = ledger_of(store).log.tail
    for _ in range(30):
        stores.clock.advance(6 * HOUR_MS)
        store.tick()
    assert rolls(store) >= 1000
    assert ledger_of(store).log.tail - tail < 30_000, "rolling wrote the messages again"
    stores.clock.advance(9 * DAY_MS)
    assert store.tick().handed_over == 1000
    assert not index_of(store).wheel.slots["timers"].any(), "some slot still counts what is gone"
    assert read_ids(store) == [f"m{n}" for n in range(1000)]
