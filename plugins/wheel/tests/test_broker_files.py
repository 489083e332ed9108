"""The files beside the log that a broker reads: what they say after a check point, and when they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rmqstore
from plugins.wheel.tests.broker_view import BROKER, REVIVE_TOPIC
from rmqstore import ManualClock
from rmqstore.batch import MessageBatch
from rmqstore.contract import Change, EngineOptions, EngineSession, PopRequest, PopStore, PopTxn, Receipt, TimerCursor
from rmqstore.errors import StoreLockedError
from rmqstore.message import Message
from rmqstore_wheel.engine import WheelEngine
from rmqstore_wheel.formats import config_files, consume_queue
from rmqstore_wheel.formats.config_files import OrderInfo

NOW = 1_700_000_000_000


def opened(path: Path) -> EngineSession:
    path.mkdir(exist_ok=True)
    return WheelEngine().open(path, EngineOptions(store_tag=7, broker=BROKER))


def send(pops: PopStore, count: int, queue: int = 0, **fields: object) -> None:
    messages = [Message("t", b"x", message_id=f"{n}", born_ms=NOW, queue_id=queue, **fields) for n in range(count)]  # type: ignore[arg-type]
    pops.apply(PopTxn(appends=MessageBatch(messages=messages)), NOW)


def take(
    pops: PopStore, count: int, group: str = "g", *, order: bool = False, queue: int | None = None, now_ms: int = NOW
) -> list[Receipt]:
    return list(pops.pop(PopRequest("t", group, count, 60_000, queue, order), now_ms)[0].messages.receipts())


def offsets_of(path: Path) -> dict[str, dict[int, int]]:
    return config_files.decode_offsets((path / "db" / "config" / config_files.OFFSETS_FILE).read_bytes()).table


def runs_of(path: Path) -> dict[str, dict[int, OrderInfo]]:
    return config_files.decode_orders((path / "db" / "config" / config_files.ORDERS_FILE).read_bytes())


def test_offsets_of_groups_and_of_the_reader_of_the_revive_log(tmp_path: Path) -> None:
    session = opened(tmp_path)
    pops = session.pops()
    send(pops, 10)
    send(pops, 5, queue=1)
    first = take(pops, 4, queue=0)
    take(pops, 2, "h", queue=1)
    session.close()
    assert offsets_of(tmp_path) == {"t@g": {0: 4, 1: 0}, "t@h": {0: 0, 1: 2}}
    session = opened(tmp_path)
    session.pops().apply(PopTxn(acks=first), NOW)
    session.close()
    assert offsets_of(tmp_path) == {"t@g": {0: 4, 1: 0}, "t@h": {0: 0, 1: 2}}
    session = opened(tmp_path)
    pops = session.pops()
    pops.apply(PopTxn(acks=take(pops, 1, "h", queue=1)), NOW)
    pops.revive(NOW + 60_000, 10)
    take(pops, 1, queue=0)
    session.close()
    assert offsets_of(tmp_path)[f"{REVIVE_TOPIC}@CID_RMQ_SYS_REVIVE_GROUP"] == {0: 3, 1: 1}


def test_fifo_runs_and_their_offsets(tmp_path: Path) -> None:
    session = opened(tmp_path)
    pops = session.pops()
    send(pops, 10)
    receipts = take(pops, 5, order=True)
    pops.apply(PopTxn(acks=[receipts[0], receipts[2]]), NOW + 1)
    session.close()
    assert offsets_of(tmp_path) == {"t@g": {0: 1}}
    assert runs_of(tmp_path) == {"t@g": {0: OrderInfo(NOW, 60_000, [1, 3, 4], NOW)}}
    session = opened(tmp_path)
    pops = session.pops()
    pops.apply(PopTxn(changes=[Change(receipts[3], 5_000)], releases=[receipts[4]]), NOW + 10)
    session.close()
    # The latest lease is that of the change.
    run = OrderInfo(NOW + 10, 5_000, [1, 3, 4], NOW + 10, visible_ms={1: NOW + 60_000, 4: NOW + 10})
    assert runs_of(tmp_path) == {"t@g": {0: run}}
    session = opened(tmp_path)
    pops = session.pops()
    pops.revive(NOW + 60_000, 10)
    session.close()
    run = OrderInfo(NOW + 10, 0, [1, 3, 4], NOW + 10, consumed={1: 1, 3: 1})
    assert runs_of(tmp_path) == {"t@g": {0: run}}
    session = opened(tmp_path)
    pops = session.pops()
    pops.apply(PopTxn(acks=take(pops, 10, order=True, now_ms=NOW + 70_000)), NOW + 70_000)
    session.close()
    assert runs_of(tmp_path) == {}
    assert offsets_of(tmp_path) == {"t@g": {0: 10}}


def test_how_far_the_timers_are(tmp_path: Path) -> None:
    session = opened(tmp_path)
    timers, pops = session.timers(), session.pops()
    due = [NOW + 5_000, NOW + 5_000, NOW + 9_000]
    timers.put(MessageBatch(messages=[Message("t", b"x", message_id="m", born_ms=NOW, deliver_at_ms=at) for at in due]), NOW)
    session.close()
    path = tmp_path / "db" / "config" / config_files.TIMER_CHECK_FILE
    assert path.stat().st_size == config_files.TIMER_CHECK_BYTES
    check = config_files.decode_timer_check(path.read_bytes())
    assert (check.read_ms, check.timer_log_position, check.queue_offset) == (NOW + 4_000, 3 * 52, 3)
    session = opened(tmp_path)
    timers, pops = session.timers(), session.pops()
    timers.recover(pops.timer_cursor())
    timers.seal(NOW + 5_000)
    batch = timers.due(TimerCursor.from_bytes(b""), 10)
    pops.apply(PopTxn(appends=batch.messages, timer_cursor=batch.cursor), NOW + 5_000)
    pops.sync()
    timers.forget(pops.durable_cursor())
    session.close()
    assert config_files.decode_timer_check(path.read_bytes()).read_ms == NOW + 8_000


def test_the_times_of_the_log(tmp_path: Path) -> None:
    session = opened(tmp_path)
    send(session.pops(), 1)
    session.close()
    data = (tmp_path / "db" / "checkpoint").read_bytes()
    assert len(data) == 4096
    assert [int.from_bytes(data[at : at + 8]) for at in range(0, 48, 8)] == [NOW, NOW, 0, 0, 0, 0]


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    session = opened(tmp_path)
    send(session.pops(), 10)
    take(session.pops(), 2)
    session.close()
    path = tmp_path / "db" / "config" / config_files.OFFSETS_FILE
    before = path.stat()
    opened(tmp_path).close()
    session = opened(tmp_path)
    send(session.pops(), 10)
    session.close()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not path.with_name(f"{path.name}.bak").exists()
    session = opened(tmp_path)
    take(session.pops(), 2)
    session.close()
    assert config_files.decode_offsets(path.with_name(f"{path.name}.bak").read_bytes()).table == {"t@g": {0: 2}}
    assert offsets_of(tmp_path) == {"t@g": {0: 4}}
    assert not (path.with_name(config_files.ORDERS_FILE)).exists()


def test_what_is_damaged_is_written_anew_and_never_read(tmp_path: Path) -> None:
    session = opened(tmp_path)
    send(session.pops(), 10)
    take(session.pops(), 2)
    session.close()
    (tmp_path / "db" / "config" / config_files.OFFSETS_FILE).write_text('{"offsetTable":{"t@g":{0:')
    (tmp_path / "db" / "checkpoint").write_bytes(b"")
    session = opened(tmp_path)
    assert [each.next_offset for each in session.pops().offsets("g")] == [2]
    session.close()
    assert offsets_of(tmp_path) == {"t@g": {0: 2}}


def test_abort_says_that_a_store_was_not_closed(tmp_path: Path) -> None:
    abort = tmp_path / "db" / "abort"
    session = opened(tmp_path)
    assert abort.read_text() == str(os.getpid())
    session.snapshot(tmp_path / "copy")
    assert not (tmp_path / "copy" / "db" / "abort").exists()
    assert not (tmp_path / "copy" / "db" / "lock").exists()
    session.close()
    assert not abort.exists()


def test_a_snapshot_keeps_topics_of_these_names(tmp_path: Path) -> None:
    session = opened(tmp_path)
    for topic in ("lock", "abort"):
        session.pops().apply(PopTxn(appends=MessageBatch(messages=[Message(topic, b"x", message_id="m", born_ms=NOW)])), NOW)
    session.snapshot(tmp_path / "copy")
    session.close()
    session = opened(tmp_path / "copy")
    assert [len(session.pops().read(topic, 0, 0, 10)) for topic in ("lock", "abort")] == [1, 1]
    session.close()


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
    session = opened(tmp_path)
    command = [sys.executable, "-c", _BROKER, tmp_path / "db" / "lock"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"refused\n"
    session.close()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline() == b"open\n"
            with pytest.raises(StoreLockedError, match="broker"):
                opened(tmp_path)
        finally:
            broker.kill()
    opened(tmp_path).close()


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
