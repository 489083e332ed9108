"""X1, S1: a store opened for reading beside its owner, beside another process, and when nobody has it open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import rmqstore
from rmqstore import Flow, Message, ReadStore, StoreClosedError, StoreForkedError, StorePathError, UnsupportedOperationError
from rmqstore.contract import PopStore, TimerStore
from rmqstore_conformance.cases.scenes import filled
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import GIVEN, HOUR_MS, START_MS, Pair, Stores, ids, message, pop_all, read_ids, stores_of

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

pytestmark = pytest.mark.needs("read_only_open")

_READS = {
    *("due", "get", "pending", "scan", "next_tick_ms", "stats", "verify", "durable_position", "sync", "close"),
    *("ready", "timer_cursor", "durable_cursor", "topic", "topics", "groups", "offsets", "read", "lag", "next_expiry_ms"),
    *("leases", "progress", "subscriptions", "group_settings", "notes", "export_state"),
}
"""What does not change a store; everything else that the contract asks for must be refused."""

_OWNER = """
import json, sys, rmqstore
from rmqstore import Message
path, timers, pops, now_ms, given = *sys.argv[1:4], int(sys.argv[4]), json.loads(sys.argv[5])
store = rmqstore.open(path, timer_engine=timers, pop_engine=pops, services=False, clock=rmqstore.ManualClock(now_ms), **given)
store.send_batch([Message("t", b"now %d" % n, message_id=f"n{n}") for n in range(10)])
store.send_batch([Message("t", b"later %d" % n, message_id=f"l{n}", deliver_at_ms=now_ms + 60_000 + n) for n in range(20)])
store.pop("t", "g", max_messages=4)
print("ready", flush=True)
for line in sys.stdin:
    store.send(Message("t", line.strip().encode(), message_id=line.strip()))
    print("sent", flush=True)
"""


@contextmanager
def _owner(path: Path, pair: Pair) -> Iterator[Callable[[str], None]]:
    """Have the store open in another process, which is killed at the end; gives what makes it send a message of an id."""
    command = [sys.executable, "-c", _OWNER, str(path), pair.timers, pair.pops, str(START_MS), json.dumps(GIVEN)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        to_owner, from_owner = process.stdin, process.stdout
        assert to_owner is not None
        assert from_owner is not None

        def send(message_id: str) -> None:
            print(message_id, file=to_owner, flush=True)
            assert from_owner.readline() == "sent\n"

        try:
            assert from_owner.readline() == "ready\n"
            yield send
        finally:
            process.kill()


def _reader(stores: Stores, name: str = "store", **settings: Any) -> ReadStore:
    return rmqstore.open(stores.root / name, read_only=True, **settings)


def _files(root: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file but LMDB's table of readers."""
    found = (path for path in root.rglob("*") if path.is_file() and path.name != "lock.mdb")
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.clause("T10", "P14")
def test_x1_a_reader_sees_one_state_beside_its_owner(durable_stores: Stores) -> None:
    """X1: the state as of the open, whatever the owner does; refresh moves it on; counts are exact on both."""
    store = filled(durable_stores, 5, reclaim="age")
    sent = store.send_batch([message(f"later{n}", deliver_at_ms=START_MS + HOUR_MS + n) for n in range(7)])
    store.pop(T, G, max_messages=2)
    with _reader(durable_stores) as reader:
        for _ in range(2):
            assert reader.pending([START_MS, START_MS + HOUR_MS + 3, START_MS + 2 * HOUR_MS]).counts == (3, 4)
            assert ids(timer.message for timer in reader.scan(limit=3).timers) == ["mlater0", "mlater1", "mlater2"]
            assert reader.lag(T, G).ready == 3
            assert reader.lag(T, G).in_flight == 2
            assert ids(reader.read(T).messages) == [f"m{n}" for n in range(5)]
            assert reader.groups.list() == [G]
            assert [topic.name for topic in reader.topics.list()] == [T]
            assert reader.stats().timers.pending == 7
            assert reader.verify() == []
            store.cancel(sent[0].handle or "")
            store.send(message("new"))
            pop_all(store)
            durable_stores.tick_after(store, HOUR_MS)
        reader.refresh()
        assert reader.verify() == []
        assert reader.pending().total == store.pending().total < 7
        assert reader.lag(T, G) == store.lag(T, G)
        assert "mnew" in ids(reader.read(T).messages)
    with pytest.raises(StoreClosedError):
        reader.pending()
    reader.close()


@pytest.mark.clause("S1")
def test_x1_a_reader_refuses_every_call_of_an_owner(durable_stores: Stores) -> None:
    """X1: what would change something, or only an owner does, is UnsupportedOperationError; what no store has is no attribute."""
    store = durable_stores.open()
    with _reader(durable_stores) as reader:
        names = {name for name in dir(store) if not name.startswith("_")} - {name for name in dir(reader) if not name.startswith("_")}
        assert {"send", "pop", "ack", "cancel", "tick", "flush", "snapshot"} <= names
        calls = {name: partial(getattr(reader, name)) for name in sorted(names)}
        calls |= {"topics.create": partial(reader.topics.create, T), "topics.delete": partial(reader.topics.delete, T)}
        calls |= {"groups.set": partial(reader.groups.set, G), "groups.delete": partial(reader.groups.delete, G)}
        calls |= {"groups.reset_offset": partial(reader.groups.reset_offset, T, G, 0)}
        calls |= {
            "dead_letters.resend": partial(reader.dead_letters.resend, []),
            "dead_letters.drop": partial(reader.dead_letters.drop, []),
        }
        calls |= {
            "schedules.put": partial(reader.schedules.put, "s", timedelta(hours=1), message(0)),
            "schedules.delete": partial(reader.schedules.delete, "s"),
            "pauses.begin": partial(reader.pauses.begin, Flow.SENDS),
            "pauses.end": partial(reader.pauses.end, Flow.SENDS),
        }
        calls |= {
            "transfer.wake": partial(reader.transfer.wake),
            "transfer.plant_witness": partial(reader.transfer.plant_witness, b"job/"),
        }
        for name, call in calls.items():
            with pytest.raises(UnsupportedOperationError, match=name):
                call()
        with pytest.raises(AttributeError):
            reader.sned  # type: ignore[attr-defined] # noqa: B018


def test_x1_a_reader_beside_another_process(durable_pair: Pair) -> None:
    """X1: the owner is another process; the reader neither waits for it nor stops it."""
    with stores_of(durable_pair) as stores, _owner(stores.root / "store", durable_pair) as send, _reader(stores) as reader:
        assert reader.pending().total == 20
        assert reader.lag("t", "g").in_flight == 4
        send("more")
        assert len(reader.read("t", limit=100)) == 10
        reader.refresh()
        assert ids(reader.read("t", limit=100).messages)[-1] == "more"
        assert reader.get("more") is not None
        assert reader.verify() == []
        with pytest.raises(rmqstore.StoreLockedError):
            stores.open()


@pytest.mark.clause("R1")
def test_x1_a_killed_store_can_be_read_before_it_is_recovered(durable_pair: Pair) -> None:
    """X1: after kill -9 a reader finds everything that was acknowledged, changes no file, and the next owner finds it too."""
    with stores_of(durable_pair) as stores:
        with _owner(stores.root / "store", durable_pair) as send:
            send("last")
        before = _files(stores.root)
        with _reader(stores) as reader:
            assert reader.pending().total == 20
            assert ids(reader.read("t", limit=100).messages)[-1] == "last"
            assert reader.lag("t", "g").in_flight == 4
            assert reader.verify() == []
            reader.refresh()
        assert _files(stores.root) == before
        store = stores.open()
        assert store.pending().total == 20
        assert store.verify() == []


def test_x1_a_reader_changes_no_file(durable_stores: Stores) -> None:
    """X1: not one file of a closed store is made, grows, shrinks or is touched; an owner opens it as if nothing had been."""
    store = durable_stores.open()
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000 * n) for n in range(50)])
    durable_stores.tick_after(store, 20_000)
    epoch = store.stats().timers.epoch
    store.close()
    before = _files(durable_stores.root)
    for _ in range(3):
        with _reader(durable_stores) as reader:
            assert reader.pending().total == 29
            reader.refresh()
            assert reader.stats().timers.epoch == epoch
    assert _files(durable_stores.root) == before
    assert durable_stores.open().stats().timers.epoch == epoch + 1


def test_x1_owners_come_and_go_while_a_reader_stays(durable_stores: Stores) -> None:
    """X1: an open and a close of the owner in the reader's process leave the reader's state as it is; several readers share."""
    store = durable_stores.open()
    store.send(message(1))
    first = _reader(durable_stores)
    store.send(message(2))
    second = _reader(durable_stores)
    store.close()
    third = _reader(durable_stores)
    store = durable_stores.open()
    store.send(message(3))
    fourth = _reader(durable_stores)
    seen = [ids(reader.read(T).messages) for reader in (first, second, third, fourth)]
    assert seen == [["m1"], ["m1", "m2"], ["m1", "m2"], ["m1", "m2", "m3"]]
    store.close()
    for reader in (fourth, first, third, second):
        reader.refresh()
        assert ids(reader.read(T).messages) == ["m1", "m2", "m3"]
        reader.close()
    assert read_ids(durable_stores.open()) == ["m1", "m2", "m3"]


@pytest.mark.clause("H3")
def test_x1_nothing_is_missing_from_both_sides_or_in_both(durable_stores: Stores) -> None:
    """X1: a message is either a pending timer or in its topic, in every state that a reader can get of a hand-over."""
    store = durable_stores.open(hand_over_limit=7)
    store.send_batch([message(n, deliver_at_ms=START_MS + 100 + n // 3) for n in range(60)])
    durable_stores.clock.advance(5000)
    with _reader(durable_stores) as reader:
        for _ in store._hand_over.steps(durable_stores.clock.now_ms()):
            store.flush()
            reader.refresh()
            waiting = ids(timer.message for timer in reader.scan().timers)
            arrived = ids(reader.read(T, limit=100).messages) if reader.topics.list() else []
            assert sorted(waiting + arrived) == sorted(f"m{n}" for n in range(60))
            assert reader.pending().total == len(waiting)


@pytest.mark.clause("S1")
@pytest.mark.needs("snapshot")
def test_x1_what_would_change_the_store_is_refused(durable_stores: Stores) -> None:
    """X1, S1: every call of both sides that is not a read raises, and leaves no trace; none is missing from the list."""
    store = durable_stores.open()
    store.send(message(1))
    store.close()
    before = _files(durable_stores.root)
    with _reader(durable_stores) as reader:
        refused = 0
        for side, kind in ((reader._timers, TimerStore), (reader._pops, PopStore)):
            for name in sorted(kind.__abstractmethods__ - _READS):
                with pytest.raises(UnsupportedOperationError):
                    getattr(side, name)(*[None] * _arguments(kind, name))
                refused += 1
        assert refused >= 13
        for session in reader.engine.sessions.values():
            with pytest.raises(UnsupportedOperationError):
                session.snapshot(durable_stores.root / "copy")
    assert _files(durable_stores.root) == before
    owner = durable_stores.open()
    for session in owner.engine.sessions.values():
        with pytest.raises(UnsupportedOperationError):
            session.refresh()


def _arguments(kind: type, name: str) -> int:
    code: CodeType = getattr(kind, name).__code__
    return code.co_argcount - 1 - len(getattr(kind, name).__defaults__ or ())


@pytest.mark.clause("R4")
def test_x1_there_must_be_a_store(durable_stores: Stores) -> None:
    """X1: a reader makes no store and says so; settings that differ from what is stored are refused as for an owner."""
    for name in ("missing", "file", "empty"):
        path = durable_stores.root / name
        if name == "file":
            path.write_text("no store")
        elif name == "empty":
            path.mkdir()
        with pytest.raises(StorePathError, match="no store"):
            _reader(durable_stores, name)
    assert not (durable_stores.root / "missing").exists()
    assert list((durable_stores.root / "empty").iterdir()) == []
    durable_stores.open(precision_ms=100).close()
    with pytest.raises(rmqstore.ConfigError, match="precision_ms"):
        _reader(durable_stores, precision_ms=1000)
    with pytest.raises(rmqstore.IllegalArgumentTypeError, match="read_only"):
        rmqstore.open(durable_stores.root / "store", read_only="no")  # type: ignore[call-overload]


@pytest.mark.clause("X2")
def test_x1_a_forked_child_is_refused(durable_stores: Stores) -> None:
    """X2: the child of a reader may not use its parent's view, and does it no harm."""
    store = durable_stores.open()
    store.send(message(1))
    with _reader(durable_stores) as reader:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                reader.read(T)
            except StoreForkedError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert ids(reader.read(T).messages) == ["m1"]
        reader.refresh()
        store.send(Message(T, b"x"))
