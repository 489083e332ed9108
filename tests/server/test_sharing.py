"""Stores of several processes: one owns, the others follow, and when it dies another takes over."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import rmqstore
from rmqstore import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    Message,
    StoreClosedError,
    StoreFullError,
    StoreLockedError,
    StorePoisonedError,
    StoreUnavailableError,
)
from rmqstore.server import sharing
from rmqstore.server.sharing import SharedStore
from rmqstore.store.directory import SOCKET_NAME
from rmqstore.store.placing import Placing
from rmqstore.transfer import migrate
from tests.pairs import DURABLE_PAIRS
from tests.server.served import Lost, soon

ENGINES = [pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops]
ROOT = Path(__file__).parents[2]
NOW = Message("t", b"x")
KILLS = 4

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")


def shared(path: Path, **settings: object) -> SharedStore:
    """Open a store that others share."""
    store = rmqstore.open(path, share=True, engine=ENGINES[0], **settings)  # type: ignore[arg-type]
    assert isinstance(store, SharedStore)
    return store


def no_room(*_: object, **__: object) -> None:
    """Fail as the system does when the disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_first_one_owns_and_the_others_follow(tmp_path: Path) -> None:
    with shared(tmp_path / "s") as first, shared(tmp_path / "s") as second:
        assert (first.is_owner, second.is_owner) == (True, False)
        second.send(NOW)
        (popped,) = first.pop("t", "g")
        assert second.ack(popped) is rmqstore.AckOutcome.ACKED
        assert [each.name for each in second.topics.list()] == ["t"]


def test_an_owner_serves_whatever_loops_its_program_uses(tmp_path: Path) -> None:
    """A web server may have made uvloop the loop of the whole program; its transports are no subclass of asyncio's."""
    uvloop = pytest.importorskip("uvloop")
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        with rmqstore.open(tmp_path / "s", engine=ENGINES[0], share=True) as owner:
            with rmqstore.open(tmp_path / "s", engine=ENGINES[0], share=True) as follower:
                assert not follower.is_owner
                follower.send(NOW)
            assert len(owner.pop("t", "g")) == 1
    finally:
        asyncio.set_event_loop_policy(None)


def test_when_the_owner_closes_another_takes_over(tmp_path: Path) -> None:
    first, second = shared(tmp_path / "s"), shared(tmp_path / "s")
    second.send(NOW)
    first.close()
    assert len(second.pop("t", "g")) == 1
    assert second.is_owner
    third = shared(tmp_path / "s")
    assert not third.is_owner
    assert third.lag("t", "g").in_flight == 1
    second.close()
    third.close()


def test_a_take_over_finds_the_store_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that opens a relative path and then becomes a daemon."""
    monkeypatch.chdir(tmp_path)
    first, second = shared(Path("s")), shared(Path("s"))
    second.send(NOW)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    first.close()
    assert len(second.pop("t", "g")) == 1
    assert not (tmp_path / "elsewhere" / "s").exists()
    second.close()


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """The name by which a deployment has its store: below a symlink, which leads to ``a``; there is ``b`` beside it."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "current").symlink_to("a")
    return tmp_path / "current" / "store"


def switch(current: Path) -> None:
    """Let the symlink lead to ``b``."""
    current.parent.unlink()
    current.parent.symlink_to("b")


def test_an_owner_leaves_the_socket_of_another_store_alone(current: Path, tmp_path: Path) -> None:
    """X5: its own goes, wherever that is by now."""
    old = shared(current)
    switch(current)
    with shared(current) as new:
        (tmp_path / "a" / "store").rename(tmp_path / "moved")
        old.close()
        assert not (tmp_path / "moved" / SOCKET_NAME).exists()
        rmqstore.connect(current).close()
        assert new.topics.list() == []


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_follower_stays_with_its_store(current: Path, tmp_path: Path, is_moved: bool) -> None:
    """X5: it meets the next owner of that directory, and becomes one itself, whatever has its name now."""
    first, second = shared(current), shared(current)
    second.send(NOW)
    switch(current)
    place = tmp_path / "a" / "store"
    if is_moved:
        place = place.rename(tmp_path / "moved")
    with shared(current) as other:
        first.close()
        with shared(place) as third:
            second.send(NOW)
            assert (second.is_owner, third.is_owner) == (False, True)
        second.send(NOW)
        assert second.is_owner
        assert (second.lag("t", "g").ready, other.topics.list()) == (3, [])
        assert (second.path, second.stats().path) == (current, str(place))
        second.close()
        with pytest.raises(StoreClosedError, match=f"store {current} is closed"):
            second.pending()


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
def test_a_follower_of_a_store_that_was_migrated_says_so(tmp_path: Path) -> None:
    """X5: what it sends would be in the old one, which is kept to be removed; nor does it own that."""
    first, second, third = (shared(tmp_path / "s") for _ in range(3))
    third.send(NOW)
    first.close()
    previous = migrate(tmp_path / "s", engine=ENGINES[1]).previous
    for _ in range(2):
        with pytest.raises(StorePoisonedError, match=f"open it again.*{previous}"):
            second.send(NOW)
    with ThreadPoolExecutor(1) as threads, pytest.raises(StorePoisonedError):
        threads.submit(third.pop, "t", "g", wait=timedelta(seconds=30)).result()
    second.close()
    third.close()
    with rmqstore.open(tmp_path / "s", share=True) as again:
        assert again.lag("t", "g").ready == 1
    assert previous is not None
    with rmqstore.open(previous, share=True) as old:
        assert old.lag("t", "g").ready == 1


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
def test_a_send_that_was_under_way_when_the_store_was_migrated_may_have_been_done(tmp_path: Path, lost: Lost) -> None:
    first, second = shared(tmp_path / "s"), shared(tmp_path / "s")

    def migrated() -> None:
        first.close()
        migrate(tmp_path / "s", engine=ENGINES[1])

    lost(migrated)
    with pytest.raises(StoreUnavailableError, match=r"open it again.*may have been done"):
        second.send(NOW)
    with pytest.raises(StorePoisonedError, match="open it again"):
        second.send(NOW)
    second.close()
    with rmqstore.open(tmp_path / "s", share=True) as again:
        assert again.lag("t", "g").ready == 1


def test_a_send_in_doubt_says_so_when_its_process_cannot_own_the_store(tmp_path: Path, lost: Lost) -> None:
    first, second = shared(tmp_path / "s"), shared(tmp_path / "s", precision_ms=100)  # which only an owner compares
    lost(first.close)
    with pytest.raises(StoreUnavailableError, match=r"precision_ms.* it may have been done"):
        second.send(NOW)
    second.close()


def test_a_send_in_doubt_says_so_when_its_process_owns_a_store_that_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Lost
) -> None:
    first, second = shared(tmp_path / "s"), shared(tmp_path / "s")

    def full(*_: object, **__: object) -> None:
        raise StoreFullError("no room")

    lost(first.close)
    monkeypatch.setattr(Placing, "put", full)
    with pytest.raises(StoreUnavailableError, match=r"no room.* it may have been done"):
        second.send(NOW)
    second.close()


def test_a_store_that_was_moved_and_left_a_link_goes_on(tmp_path: Path) -> None:
    first, second = shared(tmp_path / "s"), shared(tmp_path / "s")
    (tmp_path / "s").rename(tmp_path / "moved")
    (tmp_path / "s").symlink_to("moved")
    first.close()
    second.send(NOW)
    assert second.is_owner
    second.close()


def test_a_pop_that_waits_takes_over(tmp_path: Path) -> None:
    first, second = shared(tmp_path / "s"), shared(tmp_path / "s")
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(second.pop, "t", "g", wait=timedelta(seconds=30))
        first.close()
        soon(lambda: second._mine is not None)
        second.send(NOW, delay_ms=50)
        assert len(found.result(20)) == 1
    assert second.is_owner
    second.close()


@pytest.mark.parametrize("place", ["ServerThread", "HeldDirectory"])
def test_an_open_that_finds_no_room_to_listen_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """F1."""
    monkeypatch.setattr(sharing, place, no_room)
    with pytest.raises(StoreFullError, match="make room and try again"):
        shared(tmp_path / "s")
    monkeypatch.undo()
    with shared(tmp_path / "s") as store:
        store.send(NOW)


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_take_over_that_finds_no_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Lost, is_sent: bool) -> None:
    """F1: and not that nothing was done, where the owner before may have done it."""
    first, second = shared(tmp_path / "s"), shared(tmp_path / "s")
    if is_sent:
        lost(first.close)
    else:
        first.close()
    monkeypatch.setattr(sharing, "ServerThread", no_room)
    with pytest.raises(StoreUnavailableError if is_sent else StoreFullError, match="may have been done" if is_sent else "make room"):
        second.send(NOW)
    monkeypatch.undo()
    second.send(NOW)
    assert second.is_owner
    assert second.lag("t", "g").ready == 1 + is_sent
    second.close()


def test_an_outage_of_the_server_begins_with_the_call_that_misses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was given up in an earlier one, and saw no end of it, is no reason to take over at once."""
    now_s = [0.0]
    with shared(tmp_path / "s") as store:
        monkeypatch.setattr(sharing, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
        store._met({"is_server": True})

        def waits_at(time_s: float) -> bool:
            now_s[0] = time_s
            return store._waits_for_server()

        assert [waits_at(time_s) for time_s in (0, 0.25, 0.5)] == [True] * 3  # and then it is given up
        assert [waits_at(time_s) for time_s in (100, 105, 110, 114.9, 115)] == [True] * 4 + [False]
        store._met({"is_server": True})
        # Calls that end before, as by a timeout of the program, do not keep it out either.
        assert [waits_at(time_s) for time_s in (200, 210, 220)] == [True, True, False]


def test_an_owner_that_does_not_share_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.server.PATIENCE", timedelta(0))
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0]), pytest.raises(StoreLockedError, match="does not share it"):
        shared(tmp_path / "s")


def test_a_snapshot_that_was_shared_is_restored(tmp_path: Path) -> None:
    """Its directory may have the socket of an owner that was killed."""
    with shared(tmp_path / "s") as store:
        store.send(NOW)
        store.snapshot(tmp_path / "copy")
        assert not (tmp_path / "copy" / SOCKET_NAME).exists()
    assert not (tmp_path / "s" / SOCKET_NAME).exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "copy" / SOCKET_NAME))
    rmqstore.restore(tmp_path / "copy", tmp_path / "again")
    with shared(tmp_path / "again") as store:
        assert len(store.pop("t", "g")) == 1


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentTypeError, match="share must be"):
        rmqstore.open(tmp_path / "s", share=1)  # type: ignore[call-overload]
    with pytest.raises(IllegalArgumentError, match="exclude each other"):
        rmqstore.open(tmp_path / "s", share=True, read_only=True)
    with pytest.raises(rmqstore.ConfigError):
        shared(tmp_path / "s", nonsense=1)
    assert not (tmp_path / "s").exists()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = shared(tmp_path / "s")
    store.close()
    store.close()
    with pytest.raises(StoreClosedError, match="open it again"):
        store.pending()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forked_child_follows_and_survives_its_parent(tmp_path: Path, engine: str) -> None:
    """The child closes nothing of its parent's, and sees the parent's death, although it was born with all of the parent's sockets."""
    code = f"""
import os, sys, rmqstore, rmqstore.server
from datetime import timedelta
from rmqstore import Message, StoreForkedError, StoreUnavailableError
rmqstore.server.PATIENCE = timedelta(seconds=1)
store = rmqstore.open({str(tmp_path / "s")!r}, share=True, engine={engine!r})
store.send(Message("t", b"parent"))
ready, go = os.pipe(), os.pipe()
if not os.fork():
    store.send(Message("t", b"child"))
    assert not store.is_owner
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    try:
        store.send(Message("t", b"orphan"))
    except StoreUnavailableError as error:  # its library does not live through a fork
        assert "was forked from one" in str(error), error
        assert {engine!r} != "wheel"
    else:
        assert store.is_owner
        assert sorted(each.body for each in store.pop("t", "g")) == [b"child", b"orphan", b"parent"]
    store.close()
    print("well", flush=True)
    os._exit(0)
os.read(ready[0], 1)
os.write(go[1], b"x")
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stdout == "well\n"


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def close_in_a_child(store: SharedStore) -> None:
    child = os.fork()
    if not child:
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_closes_although_its_parent_has_a_worker_or_was_taking_over(tmp_path: Path) -> None:
    with shared(tmp_path / "s") as store:
        with store._lock:
            close_in_a_child(store)
        worker = store.consume("t", "g", lambda message: None)
        close_in_a_child(store)
        worker.stop()


@contextmanager
def sharers() -> Iterator[list[subprocess.Popen[str]]]:
    """Give a list for processes that share a store, which end with the block."""
    running: list[subprocess.Popen[str]] = []
    try:
        yield running
    finally:
        for each in running:
            end(each)


def another(running: list[subprocess.Popen[str]], tmp_path: Path, engine: str, name: str) -> None:
    """Start one more process."""
    command = [sys.executable, "-m", "tests.server.sharer", str(tmp_path / "s"), engine, str(tmp_path / "journal"), name]
    running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=dict(os.environ)))


def role(process: subprocess.Popen[str]) -> str:
    """Return what a process says that it is, the next time."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.crash
@pytest.mark.parametrize("engine", ENGINES)
def test_owners_are_killed_and_every_message_is_acked_once(tmp_path: Path, engine: str) -> None:
    """X1, H1, P4: three processes send and consume; the owner is killed again and again."""
    with sharers() as running:
        for number in range(3):
            another(running, tmp_path, engine, f"p{number}")
        for kill in range(KILLS):
            owner = next(each for _ in range(10_000) for each in list(running) if role(each) == "owner")
            for _ in range(20):  # so that at least so much is sent, however slow the machine is
                role(owner)
            running.remove(owner)
            end(owner)
            for each in running:
                role(each)  # they go on
            another(running, tmp_path, engine, f"p{kill + 3}")
        for each in running:
            assert each.stdin is not None
            each.stdin.close()
            assert each.stdout is not None
            each.stdout.read()
            assert each.wait(60) == 0
    with rmqstore.open(tmp_path / "s") as store:
        left: list[str] = []
        while store.pending().total or (lag := store.lag("t", "g")).ready + lag.in_flight + lag.retry:
            popped = store.pop("t", "g", wait=timedelta(seconds=5))
            left += [each.body.decode() for each in popped]
            store.ack(popped)
        assert store.verify() == []
    lines = [line.split() for line in (tmp_path / "journal").read_text().splitlines()]
    send, sent, ack = ({line[1] for line in lines if line[0] == kind} for kind in ("send", "sent", "ack"))
    acked = Counter(line[1] for line in lines if line[0] == "acked" and line[2] == "acked")
    assert len(sent) > 100
    assert {*acked, *left} <= send
    assert max((acked + Counter(left)).values()) == 1, "some message was done twice"
    assert sent <= ack | {*left}, "some message was lost"
