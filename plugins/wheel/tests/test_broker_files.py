"""The files beside the log that a broker reads: what they say after a check point, and when they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from plugins.wheel.tests.broker_view import NOW, REVIVE_TOPIC, opened, pops_in, send, take
from plugins.wheel.tests.stores import WheelStores, index_of, ledger_of
from rmqstore import CancelOutcome, ManualClock, Message, Store
from rmqstore.batch import MessageBatch
from rmqstore.contract import Change, PopTxn, TimerCursor
from rmqstore.errors import StoreLockedError
from rmqstore_conformance.stores import DAY_MS, START_MS, message
from rmqstore_wheel.formats import config_files, consume_queue, log_reading, timer_log
from rmqstore_wheel.formats.commit_log import decode_record
from rmqstore_wheel.formats.config_files import OrderInfo
from rmqstore_wheel.timers.records import encode_cancel, encode_cancels, encode_timers


def offsets_of(path: Path) -> dict[str, dict[int, int]]:
    return config_files.decode_offsets((path / "db" / "config" / config_files.OFFSETS_FILE).read_bytes()).table


def runs_of(path: Path) -> dict[str, dict[int, OrderInfo]]:
    return config_files.decode_orders((path / "db" / "config" / config_files.ORDERS_FILE).read_bytes())


def test_offsets_of_groups_and_of_the_reader_of_the_revive_log(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        send(pops, 5, queue=1)
        first = take(pops, 4, queue=0)
        take(pops, 2, group="h", queue=1)
    assert offsets_of(tmp_path) == {"t@g": {0: 4, 1: 0}, "t@h": {0: 0, 1: 2}}
    with pops_in(tmp_path) as pops:
        pops.apply(PopTxn(acks=first), NOW)
    assert offsets_of(tmp_path) == {"t@g": {0: 4, 1: 0}, "t@h": {0: 0, 1: 2}}
    with pops_in(tmp_path) as pops:
        pops.apply(PopTxn(acks=take(pops, 1, group="h", queue=1)), NOW)
        pops.revive(NOW + 60_000, 10)
        take(pops, 1, queue=0)
    assert offsets_of(tmp_path)[f"{REVIVE_TOPIC}@CID_RMQ_SYS_REVIVE_GROUP"] == {0: 3, 1: 1}


def test_fifo_runs_and_their_offsets(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        receipts = take(pops, 5, order=True)
        pops.apply(PopTxn(acks=[receipts[0], receipts[2]]), NOW + 1)
    assert offsets_of(tmp_path) == {"t@g": {0: 1}}
    assert runs_of(tmp_path) == {"t@g": {0: OrderInfo(NOW, 60_000, [1, 3, 4], NOW)}}
    with pops_in(tmp_path) as pops:
        pops.apply(PopTxn(changes=[Change(receipts[3], 5_000)], releases=[receipts[4]]), NOW + 10)
    # The latest lease is that of the change.
    run = OrderInfo(NOW + 10, 5_000, [1, 3, 4], NOW + 10, visible_ms={1: NOW + 60_000, 4: NOW + 10})
    assert runs_of(tmp_path) == {"t@g": {0: run}}
    with pops_in(tmp_path) as pops:
        pops.revive(NOW + 60_000, 10)
    run = OrderInfo(NOW + 10, 0, [1, 3, 4], NOW + 10, consumed={1: 1, 3: 1})
    assert runs_of(tmp_path) == {"t@g": {0: run}}
    with pops_in(tmp_path) as pops:
        pops.apply(PopTxn(acks=take(pops, 10, order=True, now_ms=NOW + 70_000)), NOW + 70_000)
    assert runs_of(tmp_path) == {}
    assert offsets_of(tmp_path) == {"t@g": {0: 10}}


def test_how_far_the_log_and_the_timers_are(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        timers, pops = session.timers(), session.pops()
        due = [NOW + 5_000, NOW + 5_000, NOW + 9_000]
        timers.put(MessageBatch(messages=[Message("t", b"x", message_id="m", born_ms=NOW, deliver_at_ms=at) for at in due]), NOW)
    path = tmp_path / "db" / "config" / config_files.TIMER_CHECK_FILE
    assert path.stat().st_size == config_files.TIMER_CHECK_BYTES
    times = (tmp_path / "db" / "checkpoint").read_bytes()
    assert len(times) == 4096
    assert [int.from_bytes(times[at : at + 8]) for at in range(0, 48, 8)] == [NOW, NOW, 0, 0, 0, 0]
    check = config_files.decode_timer_check(path.read_bytes())
    assert (check.read_ms, check.timer_log_position, check.queue_offset) == (NOW + 4_000, 3 * 52, 3)
    with opened(tmp_path) as session:
        timers, pops = session.timers(), session.pops()
        timers.recover(pops.timer_cursor())
        timers.seal(NOW + 5_000)
        batch = timers.due(TimerCursor.from_bytes(b""), 10)
        pops.apply(PopTxn(appends=batch.messages, timer_cursor=batch.cursor), NOW + 5_000)
        pops.sync()
        timers.forget(pops.durable_cursor())
    assert config_files.decode_timer_check(path.read_bytes()).read_ms == NOW + 8_000


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        take(pops, 2)
    path = tmp_path / "db" / "config" / config_files.OFFSETS_FILE
    before = path.stat()
    with opened(tmp_path):
        pass
    with opened(tmp_path) as session:
        send(session.pops(), 10)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not path.with_name(f"{path.name}.bak").exists()
    with opened(tmp_path) as session:
        take(session.pops(), 2)
    assert config_files.decode_offsets(path.with_name(f"{path.name}.bak").read_bytes()).table == {"t@g": {0: 2}}
    assert offsets_of(tmp_path) == {"t@g": {0: 4}}
    assert not (path.with_name(config_files.ORDERS_FILE)).exists()


def test_what_is_damaged_is_written_anew_and_never_read(tmp_path: Path) -> None:
    with pops_in(tmp_path) as pops:
        send(pops, 10)
        take(pops, 2)
    (tmp_path / "db" / "config" / config_files.OFFSETS_FILE).write_text('{"offsetTable":{"t@g":{0:')
    (tmp_path / "db" / "checkpoint").write_bytes(b"")
    with opened(tmp_path) as session:
        assert [each.next_offset for each in session.pops().offsets("g")] == [2]
    assert offsets_of(tmp_path) == {"t@g": {0: 2}}


def test_abort_says_that_a_store_was_not_closed(tmp_path: Path) -> None:
    abort = tmp_path / "db" / "abort"
    with opened(tmp_path) as session:
        assert abort.read_text() == str(os.getpid())
        for topic in ("lock", "abort"):
            session.pops().apply(PopTxn(appends=MessageBatch(messages=[Message(topic, b"x", message_id="m", born_ms=NOW)])), NOW)
        session.snapshot(tmp_path / "copy")
        assert not (tmp_path / "copy" / "db" / "abort").exists()
        assert not (tmp_path / "copy" / "db" / "lock").exists()
    assert not abort.exists()
    with pops_in(tmp_path / "copy") as pops:
        assert [len(pops.read(topic, 0, 0, 10)) for topic in ("lock", "abort")] == [1, 1], "a snapshot keeps topics of these names"


_BROKER = """
import fcntl, os, sys
try:
    fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
except OSError:
    print("refused")
    sys.exit()
print("open", flush=True)
sys.stdin.read()
"""


def test_a_broker_and_the_engine_keep_each_other_out(tmp_path: Path) -> None:
    with opened(tmp_path):
        command = [sys.executable, "-c", _BROKER, tmp_path / "db" / "lock"]
        assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"refused\n"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline() == b"open\n"
            with pytest.raises(StoreLockedError, match="broker"), opened(tmp_path):
                pass
        finally:
            broker.kill()
    with opened(tmp_path):
        pass


@pytest.mark.parametrize("count", [1, 5, 100])
@pytest.mark.parametrize("tagged", [0, 1, 3], ids=["none", "all", "some"])
def test_the_tags_of_timers_lie_in_the_queues_they_go_to(tmp_path: Path, count: int, tagged: int) -> None:
    tags = [f"tag-{n % 3}" if tagged and not n % tagged else None for n in range(count)]
    clock = ManualClock(NOW)
    with rmqstore.open(tmp_path / "s", engine="wheel", clock=clock, services=False) as store:
        store.send_batch([Message("t", b"x", tag=tag, deliver_at_ms=NOW + 1000 * (n % 7 + 1)) for n, tag in enumerate(tags)])
        clock.advance(60_000)
        assert store.tick().handed_over == count
        order = [message.tag for message in store.read("t", limit=count).messages]
    (file,) = (tmp_path / "s" / "wheel" / "db" / "consumequeue" / "t" / "0").iterdir()
    units = consume_queue.decode(file.read_bytes()[: count * consume_queue.UNIT_BYTES])
    assert sorted(order, key=str) == sorted(tags, key=str)
    assert units["tags_code"].tolist() == [consume_queue.tags_code(tag) for tag in order]


@pytest.mark.parametrize("precision_ms", [1000, 100])
def test_one_cancel_is_the_same_as_many(precision_ms: int) -> None:
    rows = [
        Message("t", b"x", message_id="id"),
        Message("über", b"y", tag="a", keys=("k", "l"), message_id="ß", deliver_at_ms=START_MS + 50),
    ]
    found = encode_timers(MessageBatch(messages=rows), START_MS, precision_ms)
    read = log_reading.decode_columns(found.records.data.data, found.records.starts, found.records.sizes)
    (texts,) = read.properties
    assert isinstance(texts, pa.Array)
    for columns, row in ((texts, 0), (texts, 1), (pa.array([b""], pa.binary()), 0)):
        tick = int(found.ticks[row])
        seqs, ticks = np.full(len(columns), 9), np.full(len(columns), tick)
        many = encode_cancels(columns, seqs, ticks, START_MS, precision_ms)
        start, size = int(many.starts[row]), int(many.sizes[row])
        assert encode_cancel(columns[row].as_py(), 9, tick, START_MS, precision_ms) == many.data[start : start + size].tobytes()


def chain(store: Store, slot: int) -> list[tuple[str, bool]]:
    """Return (message id, whether it is a cancel) of the units of a slot, the oldest first, as a broker reads them."""
    index = index_of(store)
    ledger = ledger_of(store)
    row = index.wheel.slots[slot % index.wheel.ring.length]
    position, found = int(row["last"]), []
    while position != timer_log.NO_POSITION:
        unit = index.wheel.units.read(int(index.wheel.units.numbers(np.array([position]))[0]), 1)[0]
        record = decode_record(ledger.log.record(int(unit["log_offset"]), int(unit["message_bytes"])))
        is_cancel = bool(unit["flags"] & timer_log.DELETE)
        assert is_cancel == (b"TIMER_DEL_UNIQKEY" in record.properties)
        text = record.properties.split(b"TIMER_DEL_UNIQKEY\x01t+" if is_cancel else b"UNIQ_KEY\x01")[1]
        found.append((text.split(b"\x02")[0].decode(), is_cancel))
        position = int(unit["previous"])
    return found[::-1]


def test_a_broker_finds_the_cancel_of_a_timer_in_its_slot(stores: WheelStores) -> None:
    store = stores.open()
    receipts = [store.send(message(n), deliver_at_ms=START_MS + 5000) for n in range(6)]
    far = store.send(message("far"), deliver_at_ms=START_MS + 9 * DAY_MS)
    slot = index_of(store).wheel.slot_of(START_MS + 5000)
    timers = [(f"m{n}", False) for n in range(6)]
    assert store.cancel(receipts[2].handle) is CancelOutcome.CANCELLED
    assert store.cancel([receipts[4].handle, receipts[1].handle]) == [CancelOutcome.CANCELLED] * 2
    assert store.cancel(receipts[2].handle) is CancelOutcome.CANCELLED
    # What waits in another slot has no unit of its own for its cancel.
    assert store.cancel(far.handle) is CancelOutcome.CANCELLED
    expected = [*timers, ("m2", True), ("m4", True), ("m1", True)]
    assert chain(store, slot) == expected
    assert index_of(store).wheel.count_in(slot) == 3
    assert store.pending().total == 3
    assert store.next_wake_ms() == 5000
    store = stores.killed(store)
    assert sorted(chain(store, slot)) == sorted(expected)
    assert index_of(store).wheel.count_in(slot) == 3
    assert store.verify() == []
    stores.clock.advance(5000)
    assert store.tick().handed_over == 3
    assert store.next_wake_ms() is None
    assert store.verify() == []


def test_a_slot_that_cancels_emptied_begins_anew(stores: WheelStores) -> None:
    store = stores.open()
    handle = store.send(message(1), deliver_at_ms=START_MS + 5000).handle
    assert store.cancel(handle) is CancelOutcome.CANCELLED
    store.send(message(2), deliver_at_ms=START_MS + 5000)
    slot = index_of(store).wheel.slot_of(START_MS + 5000)
    assert chain(store, slot) == [("m2", False)]
    stores.clock.advance(5000)
    assert store.tick().handed_over == 1
    assert store.verify() == []
