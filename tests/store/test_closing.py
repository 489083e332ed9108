"""Opens and closes that are interrupted, refused, or meet other calls: the directory is free behind them (F4)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import LostCallsError, ManualClock, Message, Store, StoreClosedError
from rmqstore.plugins import Plugins
from rmqstore.store.opening import OwnedEngines
from rmqstore.store.ticker import Ticker
from tests.pairs import DURABLE_PAIRS, ENGINES
from tests.server.served import ENGINE, soon


class StoppedError(Exception):
    """As a signal handler raises."""


@contextmanager
def interrupted(at: int) -> Iterator[list[int]]:
    """Raise where the function of the store or of its server that is the ``at``-th to be entered begins; gives how many were."""
    entered = [0]

    def enter(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith(("rmqstore.store.", "rmqstore.server.")):
            entered[0] += 1
            if entered[0] == at:
                sys.setprofile(None)
                raise StoppedError

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        yield entered
    finally:
        sys.setprofile(before)


@pytest.mark.skipif(not DURABLE_PAIRS, reason="needs a durable engine")
@pytest.mark.parametrize(("engine", "share"), [*((engine, False) for engine in ENGINES[1:]), (ENGINES[-1], True)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a task of the server that was made and not begun
def test_a_close_that_is_interrupted_is_made_whole_by_the_next(tmp_path: Path, engine: str, share: bool) -> None:
    def opened() -> Store:
        return rmqstore.open(tmp_path / "s", engine=engine, services=False, share=share)

    with interrupted(0) as entered:
        opened().close()
    for at in range(1, entered[0]):
        store = opened()
        store.send(Message("t", b"%d" % at))
        with suppress(StoppedError), interrupted(at):
            store.close()
        store.close()
        with rmqstore.open(tmp_path / "s", services=False) as again:
            assert [each.body for each in again.pop("t", "g")] == [b"%d" % at]
            again.topics.delete("t")


def test_a_subclass_may_close_in_its_own_way(tmp_path: Path) -> None:
    class Mine(Store):
        def close(self) -> None:
            super().close()

    for _ in range(2):
        Mine(OwnedEngines(tmp_path / "s", {"engine": ENGINES[-1]}), ManualClock(0), services=False).close()


@pytest.mark.parametrize(
    ("owner", "step", "error"), [(Ticker, "start", RuntimeError("can't start new thread")), (Plugins, "notify_opened", KeyboardInterrupt())]
)
def test_an_open_that_fails_at_its_end_leaves_the_directory_free(tmp_path: Path, owner: type, step: str, error: BaseException) -> None:
    with patch.object(owner, step, side_effect=error), pytest.raises(type(error)) as raised:
        rmqstore.open(tmp_path / "s", engine=ENGINES[-1])
    assert raised.value is error
    rmqstore.open(tmp_path / "s", engine=ENGINES[-1]).close()


def test_a_close_of_a_shared_store_within_a_call_is_refused_and_closes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    with rmqstore.open(tmp_path / "s", engine=ENGINE, share=True, services=False) as store:
        mine: Any = store._mine  # type: ignore[attr-defined]
        settle = mine._settle

        def within(*arguments: Any) -> None:
            monkeypatch.undo()
            with pytest.raises(RuntimeError, match="within another call") as error:
                store.close()
            refused.append(str(error.value))
            settle(*arguments)

        monkeypatch.setattr(mine, "_settle", within)
        store.send(Message("t", b"x"))
        with rmqstore.connect(tmp_path / "s") as client:
            assert len(client.pop("t", "g")) == 1
    assert refused
    rmqstore.open(tmp_path / "s", engine=ENGINE).close()


def test_a_close_that_is_interrupted_as_it_waits_for_its_server_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = rmqstore.open(tmp_path / "s", engine=ENGINE, share=True, services=False)
    thread = store._server._thread
    join, left = thread.join, [StoppedError()]

    def interrupted_join() -> None:
        if left:
            join()  # it may have ended by now, or be about to
            raise left.pop()
        join()

    monkeypatch.setattr(thread, "join", interrupted_join)
    monkeypatch.setattr(thread, "is_alive", lambda: True)
    with pytest.raises(StoppedError):
        store.close()
    assert not store._mine._is_closed, "a server may be using it"
    store.close()
    rmqstore.open(tmp_path / "s", engine=ENGINE).close()


def test_a_close_of_a_shared_store_in_a_thread_of_its_server_is_refused_and_closes_nothing(tmp_path: Path) -> None:
    """As by a finalizer that the collector runs there."""
    with rmqstore.open(tmp_path / "s", engine=ENGINE, share=True, services=False) as store:

        async def close() -> None:
            store.close()

        server: Any = store._server  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="nothing was done"):
            server._done(close())
        with rmqstore.connect(tmp_path / "s") as client:
            client.send(Message("t", b"x"))
        assert len(store.pop("t", "g")) == 1


CHANGES: dict[str, Callable[[Store], object]] = {
    "schedules.put": lambda store: store.schedules.delete("x"),
    "confirm_clock_step": lambda store: store.confirm_clock_step(),
    "tick": lambda store: store.tick(),
    "snapshot": lambda store: store.snapshot(store.path.parent / "copy"),
    "pauses.begin": lambda store: store.pauses.begin(rmqstore.Flow.SENDS),
}


@pytest.mark.parametrize("call", CHANGES)
def test_what_takes_locks_of_its_own_is_refused_within_a_call_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:  # fmt: skip
    """The ticker may hold such a lock, and wait for the call around."""
    refused: list[str] = []
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=ManualClock(10**12), services=False) as store:
        apply = store.engine.pops.apply

        def within(*arguments: Any) -> Any:
            with pytest.raises(RuntimeError, match="within another call") as error:
                CHANGES[call](store)
            refused.append(str(error.value))
            return apply(*arguments)

        monkeypatch.setattr(store.engine.pops, "apply", within)
        store.schedules.put("x", timedelta(days=1), Message("t", b"x"))
        assert refused


def test_who_is_told_how_far_a_dump_is_may_call_the_store(tmp_path: Path) -> None:
    told: list[int] = []
    with rmqstore.open(tmp_path / "s", engine=ENGINE, services=False) as store:
        store.send(Message("t", b"x"))
        store.transfer.dump(tmp_path / "dump", progress=lambda *_: told.append(store.tick().moved))
    assert told


def is_within(thread: threading.Thread, call: Callable[..., object]) -> bool:
    """Say whether a thread waits in a call, in no function of Python that the call has called."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is getattr(call, "__code__", None) and frame.f_lasti > 0


def test_a_snapshot_that_comes_behind_a_close_says_that_the_store_is_closed(tmp_path: Path) -> None:
    store = rmqstore.open(tmp_path / "s", engine=ENGINE, services=False)
    told: list[BaseException] = []

    def snapshot() -> None:
        try:
            store.snapshot(tmp_path / "copy")
        except StoreClosedError as error:
            told.append(error)

    thread = threading.Thread(target=snapshot)
    with store._snapshot_lock:
        thread.start()
        soon(lambda: is_within(thread, Store.snapshot))
        store.close()
    thread.join(60)
    assert len(told) == 1


def test_lost_calls_are_told_while_the_ticker_is_within_a_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: by the next call; the ticker goes on without being told."""
    clock = ManualClock(10**12)
    store = rmqstore.open(tmp_path / "s", engine=ENGINES[0], clock=clock)
    run, begun, may_go_on = store._ticking.run, threading.Event(), threading.Event()

    def held(*arguments: Any, **named: Any) -> Any:
        begun.set()
        may_go_on.wait(60)
        return run(*arguments, **named)

    monkeypatch.setattr(store._ticking, "run", held)
    store._untold = LostCallsError("gone")
    clock.advance(1000)
    assert begun.wait(60)
    with pytest.raises(LostCallsError, match="gone"):
        store.send(Message("t", b"x"))
    may_go_on.set()
    store.send(Message("t", b"x"))
    store.close()


def test_lost_calls_are_told_to_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rmqstore.open(tmp_path / "s", engine=ENGINES[0], services=False) as store:

        class Other:
            @property
            def is_here(self) -> bool:
                store._untold = None  # another thread is told in this moment
                return False

        with monkeypatch.context() as patched:
            patched.setattr(store, "_ticker", Other())
            store._untold = LostCallsError("gone")
            store.send(Message("t", b"x"))
        assert len(store.pop("t", "g")) == 1


def test_when_to_wake_is_not_told_of_a_closed_store(tmp_path: Path) -> None:
    store = rmqstore.open(tmp_path / "s", engine=ENGINES[0], services=False)
    store.close()
    with pytest.raises(StoreClosedError):
        store.next_wake_ms()
