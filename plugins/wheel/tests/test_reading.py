"""Reading the files of the wheel beside an owner that writes, makes check points and removes files, and when nobody owns them."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from plugins.wheel.tests.stores import flip, index_of, ledger_of, meanwhile, noted, opened, overwrite
from rmqstore import CorruptStoreError, ManualClock, Message, ReadStore, Store
from rmqstore.engine.kv.directory import copy_tree
from rmqstore_conformance.stores import START_MS
from rmqstore_wheel import engine as engine_module
from rmqstore_wheel.log import check_point
from rmqstore_wheel.log.ledger import Ledger, Sizes
from rmqstore_wheel.log.replay import Replay
from rmqstore_wheel.reader.log import ReadLog
from rmqstore_wheel.reader.view import ReadLedger

_SMALL = Sizes(log_file_bytes=64 * 1024, queue_file_units=100, timer_file_units=100, check_point_calls=10**9)

Seen = tuple[list[str], list[str], int, int]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: _SMALL)


class Owner:
    """A store whose every call is followed by a note of what is there then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(START_MS)
        self.store = opened(self.path, self.clock)
        self.calls = 0
        self.history = [seen(self.store)]

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.store)

    def call(self, count: int = 1, body: bytes = b"x") -> None:
        for _ in range(count):
            kind = self.calls % 4
            if kind == 0:
                self.store.send_batch([_message(f"m{self.calls}.{n}", body) for n in range(3)])
            elif kind == 1:
                due = START_MS + 3_600_000 + self.calls
                self.store.send_batch([_message(f"l{self.calls}.{n}", body, deliver_at_ms=due) for n in range(3)])
            elif kind == 2:
                self.store.pop("t", "g", max_messages=1)
            else:
                self.store.cancel(self.store.scan(limit=1).timers[0].handle)
            self.calls += 1
            self.history.append(seen(self.store))

    def make_check_point(self) -> None:
        self.ledger.make_check_point()

    def restart(self) -> None:
        self.call(1)
        self.store.close()
        self.store = opened(self.path, self.clock)
        self.history.append(seen(self.store))

    def restart_from_the_log(self) -> None:
        self.call(1)
        self.store.close()
        shutil.rmtree(self.path / "wheel" / "db" / "rmqstore")
        (self.path / "wheel" / "db" / "timerwheel").unlink(missing_ok=True)
        self.store = opened(self.path, self.clock)
        self.history.append(seen(self.store))

    def drop_topic(self) -> None:
        """Drop a topic with its files and begin it anew, with other messages at the same offsets."""
        self.store.engine.pops.sync(self.store.engine.pops.delete_topic("t"))
        self.history.append(seen(self.store))
        self.calls -= self.calls % 4
        self.call(4)

    def copy(self, path: Path) -> Path:
        """Copy the directory as a kill would leave it now."""
        copy_tree(self.path, path)
        return path


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    found = Owner(tmp_path / "store")
    yield found
    found.store.close()


def _message(message_id: str, body: bytes = b"x", **fields: Any) -> Message:
    return Message("t", body, message_id=message_id, **fields)


def seen(store: Store | ReadStore) -> Seen:
    """Return what a store shows: messages, timers, leases, the epoch."""
    arrived: list[str] = []
    if store.engine.pops.topic("t") is not None:
        arrived = [each.message_id or "" for each in store.engine.pops.read("t", 0, 0, 100_000).messages]
    waiting = [each.message.message_id or "" for each in store.scan(limit=100_000).timers]
    return arrived, waiting, store.lag("t", "g").in_flight, store.engine.timers.stats().epoch


def _reader(path: Path) -> ReadStore:
    return rmqstore.open(path, read_only=True)


def _contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return time of change and content of every file and directory."""
    found = [root, *sorted(root.rglob("*"))]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in found}


# ---------------------------------------------------------------- every touch of a file


_on_touch: Callable[[str, int], None] | None = None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _on_touch is not None and event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], str | os.PathLike):
        _on_touch(os.fspath(args[0]), args[2] if event == "open" else 0)


sys.addaudithook(_audit)


@contextmanager
def touches(root: Path, act: Callable[[int], None]) -> Iterator[list[str]]:
    """Call ``act(n)`` before the n-th time that a file below ``root`` is opened or a directory listed; yields their paths."""
    global _on_touch
    found: list[str] = []
    busy = False

    def touch(path: str, flags: int) -> None:
        nonlocal busy
        if busy or not os.path.realpath(path).startswith(str(root)):
            return
        assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) == 0, path
        found.append(path)
        busy = True
        try:
            act(len(found))
        finally:
            busy = False

    _on_touch = touch
    try:
        yield found
    finally:
        _on_touch = None


def _make_two_check_points(owner: Owner) -> None:
    for _ in range(2):
        owner.call(1)
        owner.make_check_point()


DISTURBANCES: dict[str, Callable[[Owner], None]] = {
    "calls": lambda owner: owner.call(5),
    "check points": _make_two_check_points,
    "roll": lambda owner: owner.call(4, b"r" * 12_000),
    "restart": Owner.restart,
    "rebuild": Owner.restart_from_the_log,
    "drop": Owner.drop_topic,
}


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", DISTURBANCES)
def test_whatever_the_owner_does_between_two_steps_of_an_open_a_prefix_is_seen(tmp_path: Path, kind: str, stride: int) -> None:
    """Before single touches of a file, in a store of its own; then again before touches of late reads and of a refresh."""
    step = reached = reached_late = 1
    while step <= reached:
        owner = Owner(tmp_path / str(step))
        owner.call(12)
        owner.make_check_point()
        owner.call(4)
        with _disturbed(owner, kind, step) as found, _reader(owner.path) as reader:
            opened = seen(reader)
            assert opened in owner.history[16:]
        if step <= reached_late:
            with _reader(owner.path) as reader:
                opened = owner.history[-1]
                owner.call(1)
                before = len(owner.history) - 1
                with _disturbed(owner, kind, step) as late:
                    assert seen(reader) == opened
                    reader.refresh()
                    assert seen(reader) in owner.history[before:]
                reader.refresh()
                assert seen(reader) == owner.history[-1]
                assert reader.verify() == []
                reached_late = max(reached_late, len(late))
        owner.store.close()
        reached, step = max(reached, len(found)), step + stride
    assert reached > 10


def _disturbed(owner: Owner, kind: str, step: int) -> AbstractContextManager[list[str]]:
    return touches(owner.path / "wheel", lambda n: DISTURBANCES[kind](owner) if n == step else None)


def test_a_reader_stays_on_its_state_whatever_becomes_of_the_files(owner: Owner) -> None:
    """Queues that were not looked into before the owner dropped, cleared, replaced them are made anew from the log, whose names may go."""
    owner.call(4)
    owner.make_check_point()
    owner.call(36, b"b" * 5000)
    readers = [_reader(owner.path) for _ in range(2)]
    expected = seen(owner.store)
    owner.drop_topic()
    owner.make_check_point()
    for reader in readers:
        assert seen(reader) == expected
        assert reader.verify() == []
    readers[0].refresh()
    assert seen(readers[0]) == seen(owner.store)
    assert len(owner.ledger.log.chain.starts) > 3
    for directory in ("consumequeue", "timerlog", "rmqstore", "commitlog"):
        shutil.rmtree(owner.path / "wheel" / "db" / directory)
    assert seen(readers[0]) == seen(owner.store)
    assert seen(readers[1]) == expected
    for reader in readers:
        reader.close()


# ---------------------------------------------------------------- nobody owns it


def _last_call(owner: Owner, killed: Path, **fields: Any) -> tuple[Path, int, bytes]:
    """Make one more call; returns the log's file in a copy made before it, where in it the call goes, and its bytes."""
    owner.calls -= owner.calls % 4
    owner.copy(killed)
    begin = owner.ledger.log.tail
    owner.call(1, **fields)
    source = owner.ledger.log.chain.path_of(begin)
    start = int(source.name)
    data = source.read_bytes()[begin - start : owner.ledger.log.tail - start]
    return killed / source.resolve().relative_to(owner.path), begin - start, data


@pytest.mark.parametrize("part", [1, 4, 100, 0.5, -1])
def test_a_call_that_is_being_written_is_not_seen_until_it_is_whole(owner: Owner, tmp_path: Path, part: float) -> None:
    owner.call(10)
    log, at, data = _last_call(owner, tmp_path / "killed")
    cut = int(part * len(data)) if isinstance(part, float) else part
    overwrite(log, at, data[:cut])
    with _reader(tmp_path / "killed") as reader:
        assert seen(reader) == owner.history[-2]
        reader.refresh()
        assert seen(reader) == owner.history[-2]
        overwrite(log, at, data)
        assert seen(reader) == owner.history[-2]
        reader.refresh()
        assert seen(reader) == owner.history[-1]


def test_an_owner_that_cuts_off_half_a_call_does_not_disturb_a_reader(owner: Owner, tmp_path: Path) -> None:
    """The next owner makes the log shorter there, and then writes another call in its place."""
    owner.call(10)
    log, at, data = _last_call(owner, tmp_path / "killed", body=b"z" * 15_000)
    overwrite(log, at, data[:-20])
    with _reader(tmp_path / "killed") as reader:
        assert seen(reader) == owner.history[-2]
        with rmqstore.open(tmp_path / "killed", services=False, clock=owner.clock) as store:
            assert seen(reader) == owner.history[-2]
            store.send(_message("other"))
            reader.refresh()
            assert seen(reader) == seen(store)
            assert "other" in seen(reader)[0]


def test_a_check_point_that_comes_while_the_log_is_looked_at_is_no_damage(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner begins a file of the log in between, each time."""
    times: list[Path] = []

    def goes_on(directory: Path) -> None:
        times.append(directory)
        owner.call(8, body=b"x" * 20_000)
        owner.make_check_point()

    meanwhile(monkeypatch, check_point, "read_all", goes_on)
    with _reader(owner.path) as reader:
        assert times
        assert seen(reader) in owner.history


# ---------------------------------------------------------------- damage


def test_a_damaged_cache_costs_time_and_nothing_else(owner: Owner, tmp_path: Path) -> None:
    owner.call(60)
    owner.make_check_point()
    owner.call(3)
    root = owner.path / "wheel" / "db"
    caches = {"consumequeue", "timerlog", "timerwheel", "rmqstore"}
    kept = [path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] in caches and path.stat().st_size]
    assert {path.relative_to(root).parts[0] for path in kept} == caches
    for number, path in enumerate(kept):
        copy = owner.copy(tmp_path / f"copy{number}")
        damaged = copy / path.relative_to(owner.path)
        content = damaged.read_bytes()
        at = next((at for at, byte in enumerate(content) if byte and at >= 40), len(content) - 1)
        flip(damaged, at)
        before = _contents(copy)
        with _reader(copy) as reader:
            assert seen(reader) == owner.history[-1]
            assert reader.verify() == []
        damaged.unlink()
        with _reader(copy) as reader:
            assert seen(reader) == owner.history[-1]
        damaged.write_bytes(content)
        assert _contents(copy).keys() == before.keys()


def test_damage_of_the_log_is_told_by_an_open_and_by_a_refresh(owner: Owner, tmp_path: Path) -> None:
    """A later call says that the damaged one was on disk; a reader that has not seen it yet can go on when it is mended."""
    owner.call(10)
    copy = owner.copy(tmp_path / "copy")
    begin = owner.ledger.log.tail
    log = copy / "wheel" / "db" / "commitlog" / owner.ledger.log.chain.path_of(begin).name
    with _reader(copy) as reader:
        before = seen(reader)
        owner.call(4)
        source = owner.ledger.log.chain.path_of(begin)
        log.write_bytes(source.read_bytes())
        flip(log, begin + 60)
        with pytest.raises(CorruptStoreError, match="damaged"):
            reader.refresh()
        with pytest.raises(CorruptStoreError, match="damaged"):
            reader.scan()
        flip(log, begin + 60)
        reader.refresh()
        assert seen(reader) == owner.history[-1] != before
    flip(log, begin + 60)
    with pytest.raises(CorruptStoreError, match="damaged"):
        _reader(copy)


def test_a_call_that_becomes_whole_while_damage_is_looked_for_is_no_damage(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first look finds half a call, and behind it a later one that says that it is on disk: the owner went on meanwhile."""
    owner.call(10)
    copy = owner.copy(tmp_path / "copy")
    begin = owner.ledger.log.tail
    owner.call(4)
    source = owner.ledger.log.chain.path_of(begin)
    log = copy / source.resolve().relative_to(owner.path)
    log.write_bytes(source.read_bytes())
    flip(log, begin + 60)
    refuse = ReadLog._refuse_damage
    looks = []

    def refuse_once(self: ReadLog, epoch: int) -> None:
        looks.append(self.tail)
        try:
            refuse(self, epoch)
        finally:
            if len(looks) == 1:
                flip(log, begin + 60)

    monkeypatch.setattr(ReadLog, "_refuse_damage", refuse_once)
    found = ReadLog(log.parent, _SMALL.log_file_bytes)
    assert list(found.recover(0))[-1].end == found.tail == owner.ledger.log.tail
    assert looks == [begin, found.tail]
    found.close()


def test_a_log_that_is_cut_before_its_check_point_is_damaged(owner: Owner, tmp_path: Path) -> None:
    owner.call(10)
    owner.make_check_point()
    copy = owner.copy(tmp_path / "copy")
    (log,) = (copy / "wheel" / "db" / "commitlog").iterdir()
    os.truncate(log, 3000)
    with pytest.raises(CorruptStoreError, match="it was on disk up to"):
        _reader(copy)


# ---------------------------------------------------------------- moving on


def test_a_refresh_applies_only_what_is_new(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an open applies only what came after the check point."""
    applied = noted(monkeypatch, Replay, "add")
    for n in range(3000):
        owner.store.engine.pops.apply(rmqstore.contract.PopTxn(appends=rmqstore.MessageBatch.of([_message(f"m{n}")])), START_MS)
    with _reader(owner.path) as early:
        assert len(applied) >= 3000
        owner.make_check_point()
        applied.clear()
        owner.call(2)
        with _reader(owner.path) as late:
            assert len(applied) == 2
            assert seen(late) == seen(early) or len(seen(late)[0]) == 3003
        applied.clear()
        early.refresh()
        assert len(applied) == 2
        assert seen(early) == seen(owner.store)
        applied.clear()
        early.refresh()
        assert applied == []


def test_a_refresh_begins_with_a_newer_check_point_when_much_was_applied(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what a reader keeps in memory does not grow for ever."""
    monkeypatch.setattr(engine_module, "sizes_of", lambda _: _SMALL._replace(check_point_calls=50))
    started = noted(monkeypatch, ReadLedger, "_start", lambda _, ledger, found: found.offset)
    owner.call(10)
    with _reader(owner.path) as reader:
        owner.call(60)
        for _ in range(2):
            reader.refresh()
            assert len(started) == 1
        owner.make_check_point()
        offset = owner.ledger.log.tail
        owner.call(3)
        reader.refresh()
        assert started[1:] == [offset]
        assert seen(reader) == seen(owner.store)
        owner.call(3)
        reader.refresh()
        assert started[1:] == [offset]
        assert seen(reader) == seen(owner.store)


def test_a_reader_that_lets_go_of_queues_keeps_what_came_since_the_check_point(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader keeps few queues open, and what was applied behind the check point is in no file."""
    monkeypatch.setattr("rmqstore_wheel.log.consume_queues._OPEN_QUEUES", 2)
    topics = [f"t{number}" for number in range(6)]
    owner.make_check_point()
    owner.store.send_batch([Message(topic, b"x", message_id=f"{topic}.{n}") for topic in topics for n in range(3)])
    owner.store.send_batch([Message("later", b"x") for _ in range(3)], delay_ms=60_000)
    with _reader(owner.path) as reader:
        for _ in range(2):
            read = {topic: [each.message_id for each in reader.read(topic).messages] for topic in topics}
            assert read == {topic: [f"{topic}.{n}" for n in range(3)] for topic in topics}
            assert [each.message.topic for each in reader.scan().timers] == ["later"] * 3
            owner.store.send(Message("other", b"x"))
            reader.refresh()


def test_no_descriptor_is_left_behind(owner: Owner) -> None:
    owner.call(40, b"b" * 5000)
    owner.make_check_point()
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with _reader(owner.path) as reader:
            reader.refresh()
            ledger: Any = reader.engine.timers._ledger  # type: ignore[attr-defined]
            ledger.seal = b"of another log"
            reader.refresh()
            assert reader.engine.timers._ledger is not ledger  # type: ignore[attr-defined]
            seen(reader)
            reader.verify()
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208


def test_a_log_that_goes_on_from_an_earlier_call_is_read_anew(owner: Owner, tmp_path: Path) -> None:
    """Another history has taken the place of the one that was seen, in the same files."""
    owner.call(10)
    older = owner.copy(tmp_path / "older")
    owner.call(2)
    copy = owner.copy(tmp_path / "copy")
    with rmqstore.open(older, services=False, clock=owner.clock) as other:
        for n in range(10):
            other.send(_message(f"o{n}"))
        expected = seen(other)
    with _reader(copy) as reader:
        assert seen(reader) == owner.history[-1]
        for path in older.rglob("*"):
            if path.is_file():
                (copy / path.relative_to(older)).parent.mkdir(parents=True, exist_ok=True)
                (copy / path.relative_to(older)).write_bytes(path.read_bytes())
        reader.refresh()
        assert seen(reader) == expected


@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_store_keeps_no_slots_until_the_collector_comes(tmp_path: Path, read_only: Any) -> None:
    """A task that opens one store after the other would hold some GiB of them, as references go round in circles."""
    store = rmqstore.open(tmp_path / "s", engine="wheel", services=False)
    slots_bytes = index_of(store).wheel.slots.nbytes
    store.send(Message("t", b"x"), delay_ms=60_000)
    store.close()
    assert slots_bytes > 2**24
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            rmqstore.open(tmp_path / "s", read_only=read_only, services=False).close()
        assert tracemalloc.get_traced_memory()[0] < slots_bytes / 4
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_view_of_a_store_whose_files_went_finds_nothing_wrong(tmp_path: Path) -> None:
    """What went of a queue is missing to nobody who reads beside the owner, or after it."""
    clock = ManualClock(START_MS)

    def seen() -> list[str]:
        with rmqstore.open(tmp_path / "store", read_only=True, clock=clock) as view:
            return list(view.verify())

    with opened(tmp_path / "store", clock) as store:
        for minute in range(30):
            clock.advance(60_000)
            if minute < 15:
                store.send(Message("t", b"x" * 30_000))
            store.tick()
            store.ack(store.pop("t", "g"))
        assert store.topics.list()[0].min_offsets != (0,) * len(store.topics.list()[0].min_offsets), "nothing went"
        assert seen() == store.verify() == []
    assert seen() == []
