"""One owner at a time: second opens, forked children, killed holders (X1, X2, X4)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import rmqstore
from rmqstore import Flow, ManualClock, Message, RmqstoreError, Store, StoreForkedError, StoreLockedError
from rmqstore.server.calls import PARTS
from rmqstore.store.ticker import Duties

NOW_MS = 1_700_000_000_000
pytestmark = pytest.mark.timeout(60)


def _open(path: Path, engine: str) -> Store:
    return rmqstore.open(path, engine=engine, clock=ManualClock(NOW_MS), services=False)


@pytest.fixture
def store(tmp_path: Path, engine: str) -> Iterator[Store]:
    with _open(tmp_path / "store", engine) as found:
        found.send_batch([Message("t", b"1"), Message("t", b"2")])
        found.send(Message("t", b"later", keys=("k",)), delay_ms=1000)
        yield found


def test_a_second_open_is_told_who_has_the_store(store: Store, tmp_path: Path, engine: str) -> None:
    with pytest.raises(StoreLockedError, match=rf"\b{os.getpid()}\b"):
        _open(tmp_path / "store", engine)
    script = "import sys, rmqstore; rmqstore.open(sys.argv[1], engine=sys.argv[2], services=False)"
    other = subprocess.run([sys.executable, "-c", script, tmp_path / "store", engine], capture_output=True, text=True, check=False)
    assert "StoreLockedError" in other.stderr
    assert f"pid {os.getpid()}" in other.stderr
    store.send(Message("t", b"3"))
    assert store.lag("t", "g").ready == 3


CALLS: dict[str, Callable[[Store, Path], object]] = {
    "send": lambda s, p: s.send(Message("t", b"x")),
    "send later": lambda s, p: s.send(Message("t", b"x"), delay_ms=5),
    "send_batch": lambda s, p: s.send_batch([Message("t", b"x")]),
    "cancel": lambda s, p: s.cancel("x"),
    "cancel_key": lambda s, p: s.cancel_key("t", "k"),
    "cancel_keys": lambda s, p: s.cancel_keys("t", ["k"]),
    "pop": lambda s, p: s.pop("t", "g"),
    "pop_batch": lambda s, p: s.pop_batch("t", "g"),
    "ack": lambda s, p: s.ack("x"),
    "change_invisible": lambda s, p: s.change_invisible("x", invisible_ms=5),
    "release": lambda s, p: s.release("x"),
    "consume": lambda s, p: s.consume("t", "g", print),
    "tick": lambda s, p: s.tick(),
    "health": lambda s, p: s.health(),
    "_duties.tick": lambda s, p: Duties(s).tick(),
    "_duties.flush": lambda s, p: Duties(s).flush(),
    "_duties.wake_ms": lambda s, p: Duties(s).wake_ms(),
    "confirm_clock_step": lambda s, p: s.confirm_clock_step(),
    "next_wake_ms": lambda s, p: s.next_wake_ms(),
    "pending": lambda s, p: s.pending(),
    "scan": lambda s, p: s.scan(),
    "lag": lambda s, p: s.lag("t", "g"),
    "topics.list": lambda s, p: s.topics.list(),
    "topics.create": lambda s, p: s.topics.create("u"),
    "groups.list": lambda s, p: s.groups.list(),
    "groups.offsets": lambda s, p: s.groups.offsets("g"),
    "groups.reset_offset": lambda s, p: s.groups.reset_offset("t", "g", 0),
    "read": lambda s, p: s.read("t"),
    "get": lambda s, p: s.get("m"),
    "where": lambda s, p: s.where(id="m"),
    "transfer.digest": lambda s, p: s.transfer.digest(),
    "transfer.dump": lambda s, p: s.transfer.dump(p),
    "dead_letters.list": lambda s, p: s.dead_letters.list("g"),
    "dead_letters.parked": lambda s, p: s.dead_letters.parked(),
    "dead_letters.drop": lambda s, p: s.dead_letters.drop([]),
    "dead_letters.resend": lambda s, p: s.dead_letters.resend([]),
    "retry_later": lambda s, p: s.retry_later([]),
    "reject": lambda s, p: s.reject([]),
    "groups.set": lambda s, p: s.groups.set("g"),
    "groups.settings": lambda s, p: s.groups.settings("g"),
    "leases": lambda s, p: s.leases(),
    "groups.subscriptions": lambda s, p: s.groups.subscriptions(),
    "topics.delete": lambda s, p: s.topics.delete("t"),
    "groups.delete": lambda s, p: s.groups.delete("g"),
    "stats": lambda s, p: s.stats(),
    "verify": lambda s, p: s.verify(),
    "snapshot": lambda s, p: s.snapshot(p),
    "flush": lambda s, p: s.flush(),
    "schedules.list": lambda s, p: s.schedules.list(),
    "schedules.put": lambda s, p: s.schedules.put("s", timedelta(hours=1), Message("t", b"x")),
    "schedules.delete": lambda s, p: s.schedules.delete("s"),
    "pauses.list": lambda s, p: s.pauses.list(),
    "pauses.begin": lambda s, p: s.pauses.begin(Flow.SENDS),
    "pauses.end": lambda s, p: s.pauses.end(Flow.SENDS),
    "transfer.plant_witness": lambda s, p: s.transfer.plant_witness(b"job/"),
    "transfer.has_witness": lambda s, p: s.transfer.has_witness(b"job/", 5),
    "transfer.wake": lambda s, p: s.transfer.wake(),
    "close": lambda s, p: s.close(),
}


def in_child(act: Callable[[], str]) -> str:
    """Run ``act`` in a forked child, which then goes the way of all Python processes; returns what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, act().encode() or b"nothing")
        except BaseException as error:
            os.write(writing, repr(error).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def test_every_public_call_is_in_the_table() -> None:
    public = {name for name in dir(Store) if not name.startswith("_")} - {"path", *PARTS}
    public |= {f"{part}.{name}" for part, kind in PARTS.items() for name in dir(kind) if not name.startswith("_")}
    assert public == {name for name in CALLS if not name.startswith("_")} - {"send later"}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(store: Store, tmp_path: Path, engine: str) -> None:
    def try_all() -> str:
        passed = []
        for name, call in CALLS.items():
            try:
                call(store, tmp_path / "copy")
            except StoreForkedError:
                continue
            except BaseException as error:
                passed.append(f"{name}: {error!r}")
            else:
                passed.append(f"{name} passed")
        return "; ".join(passed) or "refused"

    assert in_child(try_all) == "refused"
    store.send(Message("t", b"3"))
    assert len(store.pop("t", "g")) == 3
    assert store.verify() == []
    assert not (tmp_path / "copy").exists()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_drops_the_store_does_not_hurt_it(tmp_path: Path, engine: str) -> None:
    """Freed in the child, a database must not flush, delete files, or let the parent's lock go."""
    import gc

    path = tmp_path / "store"
    holding = [_open(path, engine)]
    holding[0].send_batch([Message("t", b"x")] * 5)

    def drop() -> str:
        holding.clear()
        gc.collect()
        return "dropped"

    # Nothing else may hold the store meanwhile, or the child would not free it.
    said = in_child(drop)
    with holding[0] as store:
        assert said == "dropped"
        with pytest.raises(StoreLockedError):
            _open(path, engine)
        store.send(Message("t", b"y"))
        assert len(store.pop("t", "g")) == 6
    if engine != "memory":
        with _open(path, engine) as again:
            assert again.lag("t", "g").in_flight == 6
            assert again.verify() == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_closed_store_opens_again_while_a_forked_child_lives(tmp_path: Path, engine: str) -> None:
    """The child has copies of the lock's descriptors; they must not keep the lock."""
    path = tmp_path / "store"
    store = _open(path, engine)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        store.close()
        _open(path, engine).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


def test_a_closed_store_refuses_every_call(tmp_path: Path, engine: str) -> None:
    store = _open(tmp_path / "store", engine)
    store.close()
    for name, call in CALLS.items():
        if name == "close":
            continue
        with pytest.raises(RmqstoreError, match="closed"):
            call(store, tmp_path / "copy")
    store.close()
    assert not (tmp_path / "copy").exists()
