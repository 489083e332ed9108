"""X5: what happens around an open store, to its name, to the directory it is in and to its process, is nothing to it."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

import rmqstore
from rmqstore import CancelOutcome, ManualClock, Store, StoreError, StoreForkedError, StoreFullError, StorePoisonedError
from rmqstore_conformance.cases.scenes import filled
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.faults.interrupting import belongs_to, stepped
from rmqstore_conformance.stores import (
    ANNOUNCED,
    GIVEN,
    START_MS,
    Stores,
    copied_as_it_is,
    ids,
    label,
    message,
    own_environment,
    pop_all,
    read_ids,
)
from rmqstore_conformance.targets import Target

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

FORKS = 30

BODY_BYTES = 1 << 20
"""So much a message makes engines begin new files."""


def _use(store: Store, first: int, stores: Stores) -> None:
    """Send what makes an engine write, begin files, and move timers; every id begins with ``first``."""
    for number in range(12):
        store.send(message(f"{first}-{number}", body=bytes([number]) * BODY_BYTES))
        store.send(message(f"{first}-q{number}", f"t{first}-{number}"))
    store.send(message(f"{first}-timer"), delay=timedelta(seconds=1))
    assert stores.tick_after(store, 2_000).handed_over == 1
    store.pop(T, f"g{first}", max_messages=1, invisible=timedelta(days=1))
    assert store.verify() == []


def _holds(store: Store, *firsts: int) -> None:
    """The store holds what :func:`_use` sent with these numbers, and nothing else."""
    assert store.verify() == []
    wanted = [f"m{first}-{number}" for first in firsts for number in [*range(12), "timer"]]
    assert read_ids(store) == wanted
    topics = {each.name for each in store.topics.list()} - {T}
    assert topics == {f"t{first}-{number}" for first in firsts for number in range(12)}
    for topic in topics:
        assert read_ids(store, topic) == [f"m{topic[1:].replace('-', '-q')}"]


def test_x5_the_working_directory_may_change(durable_stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: a store opened by a relative path stays where it is; one of the same name elsewhere is not touched."""
    here, there = durable_stores.root / "here", durable_stores.root / "there"
    here.mkdir()
    there.mkdir()
    relative = Stores(durable_stores.pair, Path())
    relative.clock = durable_stores.clock
    monkeypatch.chdir(there)
    other = relative.open()
    _use(other, 1, relative)
    other.close()
    monkeypatch.chdir(here)
    store = relative.open()
    _use(store, 2, relative)
    monkeypatch.chdir(there)
    _use(store, 3, relative)
    store.snapshot("copy")
    store.close()
    other = relative.open()
    _holds(other, 1)
    other.close()
    _holds(copy := relative.open("copy"), 2, 3)
    copy.close()
    monkeypatch.chdir(here)
    _holds(relative.open(), 2, 3)
    relative.close()


def test_x5_a_symlink_may_be_switched(durable_stores: Stores) -> None:
    """X5: a deployment that switches a symlink makes the store write nothing into the one that the symlink leads to now."""
    first, second, current = (durable_stores.root / name for name in ("r1", "r2", "current"))
    first.mkdir()
    second.mkdir()
    other = durable_stores.open("r2/store")
    _use(other, 1, durable_stores)
    other.close()
    current.symlink_to("r1")
    store = durable_stores.open("current/store")
    _use(store, 2, durable_stores)
    current.unlink()
    current.symlink_to("r2")
    _use(store, 3, durable_stores)
    store.close()
    _holds(durable_stores.open("r2/store"), 1)
    _holds(durable_stores.open("r1/store"), 2, 3)


@pytest.mark.parametrize("whole", [True, False], ids=["the_store", "what_it_is_in"])
def test_x5_a_store_may_be_renamed(durable_stores: Stores, whole: bool) -> None:
    """X5: the directory, or one above it, gets another name; the store goes on there, and nothing is made under the old name."""
    (durable_stores.root / "old").mkdir()
    store = durable_stores.open("old/store")
    _use(store, 1, durable_stores)
    old = durable_stores.root / ("old/store" if whole else "old")
    old.rename(durable_stores.root / "new")
    _use(store, 2, durable_stores)
    store.close()
    assert not old.exists()
    _holds(durable_stores.open("new" if whole else "new/store"), 1, 2)


def test_x5_a_name_that_leads_to_another_store_leads_there(durable_stores: Stores) -> None:
    """X5: a store made under the name of one that was moved away while it was open is another one; both can be open."""
    store = durable_stores.open()
    _use(store, 1, durable_stores)
    (durable_stores.root / "store").rename(durable_stores.root / "moved")
    other = durable_stores.open()
    _use(other, 2, durable_stores)
    _use(store, 3, durable_stores)
    _use(other, 4, durable_stores)
    store.close()
    other.close()
    _holds(durable_stores.open("moved"), 1, 3)
    _holds(durable_stores.open(), 2, 4)


@pytest.mark.clause("X1")
@pytest.mark.needs("read_only_open")
def test_x5_a_reader_stays_with_its_store(durable_stores: Stores) -> None:
    """X5: a reader of a store that was moved reads and refreshes there, whatever has its name now."""
    store = durable_stores.open()
    _use(store, 1, durable_stores)
    reader = rmqstore.open(durable_stores.root / "store", read_only=True)
    (durable_stores.root / "store").rename(durable_stores.root / "moved")
    other = durable_stores.open()
    _use(other, 2, durable_stores)
    _use(store, 3, durable_stores)
    assert "m1-timer" in read_ids(reader)
    reader.refresh()
    assert read_ids(reader) == read_ids(store)
    reader.close()


@contextmanager
def _descriptors(left: int) -> Iterator[None]:
    """Within this block the process may open only so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")), default=0) + 1  # noqa: PTH208 - the names alone
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(used + left, soft), hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.clause("F3")
def test_f1_a_call_that_finds_no_descriptor_changes_nothing(durable_stores: Stores) -> None:
    """F1: a process that has no descriptor left for a moment gets an error and has changed nothing; later the store goes on."""
    store = durable_stores.open(default_queues=1)
    store.send(message("first"))
    sent = []
    with _descriptors(0):
        for number in range(20):
            with suppress(StoreFullError):
                store.send(message(number, f"t{number}"))
                sent.append(number)
    store.send(message("last"))
    assert read_ids(store) == ["mfirst", "mlast"]
    assert {each.name for each in store.topics.list()} == {T, *(f"t{number}" for number in sent)}
    assert store.verify() == []
    store = durable_stores.reopen(store)
    assert read_ids(store) == ["mfirst", "mlast"]


@pytest.mark.clause("F3", "H1")
def test_f1_a_read_that_finds_no_descriptor_changes_nothing(durable_stores: Stores) -> None:
    """F1: what reads behind an open, a hand-over and a pop above all, finds few descriptors; later nothing is missing and nothing twice."""
    store = durable_stores.open(default_queues=1)
    expected, taken = [], []
    for left in range(8):
        names = [f"{left}-{number}" for number in range(20)]
        expected += [f"m{name}-{kind}" for name in names for kind in ("now", "late")]
        store.send_batch([message(f"{name}-now") for name in names])
        store.send_batch([message(f"{name}-late", keys=(f"k{name}",)) for name in names], delay=timedelta(seconds=1))
        store = durable_stores.reopen(store)
        durable_stores.clock.advance(2_000)
        with _descriptors(left):
            for _ in range(3):
                for call in (partial(store.cancel_key, T, "none"), store.tick, store.pending, partial(store.lag, T, G)):
                    with suppress(StoreFullError):
                        call()
                with suppress(StoreFullError):
                    popped = store.pop(T, G, max_messages=5)
                    taken += ids(popped)
                    store.ack(popped)
        durable_stores.tick_after(store, 0)
        taken += ids(pop_all(store))
        assert store.verify() == []
    assert sorted(taken) == sorted(expected)


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """Let the process write no file beyond a length within this block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.clause("F3", "H3")
@pytest.mark.parametrize("size", [4 * BODY_BYTES, 4 * BODY_BYTES + 1000], ids=["whole_pages", "parts_of_pages"])
def test_f1_files_may_not_grow(durable_stores: Stores, size: int) -> None:
    """F1: a limit for the length of files (RLIMIT_FSIZE) is as a full disk: calls fail whole, and succeed when it is lifted."""
    store = durable_stores.open(default_queues=1)
    store.send(message("first"))
    store.send(message("timer"), delay=timedelta(seconds=1))
    sent = ["mfirst"]
    with _largest_file(size):
        for number in range(12):
            with suppress(StoreFullError):
                store.send(message(number, body=bytes([number]) * (BODY_BYTES // 2 + 1)))
                sent.append(f"m{number}")
        assert len(sent) <= 12, "no file came to its limit"
        with suppress(StoreFullError):
            durable_stores.tick_after(store, 2000)
    durable_stores.tick_after(store, 0)
    store.send(message("last"))
    for _ in range(2):
        assert read_ids(store) == [*sent, "mtimer", "mlast"]
        assert store.verify() == []
        store = durable_stores.reopen(store)


@pytest.mark.clause("R1")
def test_f1_an_open_that_finds_no_descriptor_changes_nothing(durable_stores: Stores) -> None:
    """F1: an open of a process that has few descriptors left gets the error of a full disk, or opens; what is stored is there later."""
    store = durable_stores.open()
    store.send(message("first"))
    store.close()
    refused = opened = left = 0
    while opened < 5:
        with _descriptors(left):
            try:
                durable_stores.open().close()
                opened += 1
            except StoreFullError:
                refused += 1
        left += 1
    assert refused, "a store without a file"
    store = durable_stores.open()
    assert read_ids(store) == ["mfirst"]


@pytest.mark.clause("R1")
def test_f1_there_may_be_more_queues_than_descriptors(durable_stores: Stores) -> None:
    """F1: topics and queues by the hundred in a process that may open few files: sends, syncs, pops, a close and an open."""
    with _descriptors(120):
        store = durable_stores.open(flush="async", default_queues=1)
        store.topics.create("wide", 150)
        store.send_batch([message(f"w{queue}", "wide", queue_id=queue) for queue in range(150)])
        store.send_batch([message(number, f"t{number}") for number in range(150)])
        store.flush()
        for number in range(150):
            store.ack(store.pop(f"t{number}", G, max_messages=1))
        store = durable_stores.reopen(store)
        assert len(pop_all(store, "wide")) == 150
        assert all(store.lag(f"t{number}", G).ready == 0 for number in range(150))
        assert store.verify() == []
        store.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_x2_a_forked_child_opens_a_store_of_its_own_or_is_told(durable_stores: Stores, is_open: bool) -> None:
    """X2: whether its parent has a store open or only had one, a child never hangs; the parent goes on."""
    store = durable_stores.open()
    store.send(message("parent"))
    if not is_open:
        store.close()
    child = os.fork()
    if not child:
        _live_as_a_child(durable_stores, "child")
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child hangs" if os.WIFSIGNALED(status) else "the child failed"
    if not is_open:
        store = durable_stores.open()
    store.send(message("again"))
    assert read_ids(store) == ["mparent", "magain"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_x2_a_forked_child_opens_what_its_parent_had_open_or_is_told(durable_stores: Stores) -> None:
    """X2: when the parent has closed it, the child has it, or hears of the fork, and not that somebody has it open."""
    store = durable_stores.open()
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.read(told, 1)
        _live_as_a_child(durable_stores, "store")
    store.close()
    os.write(tells, b"x")
    os.close(told)
    os.close(tells)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child hangs" if os.WIFSIGNALED(status) else "the child failed"
    assert durable_stores.open().verify() == []


@pytest.mark.level("extended")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_x2_a_fork_while_another_thread_is_in_a_call(durable_stores: Stores, target: Target, seed: int) -> None:
    """X2: wherever another thread is in a call or an open, and whatever it holds there: a forked child opens a store, or is told."""
    store = durable_stores.open()
    chance = random.Random(f"{durable_stores.pair} {seed}")
    own = belongs_to(store)

    def opened() -> None:
        durable_stores.open("other").close()

    calls: list[Callable[[], object]] = [partial(store.send, message("now")), partial(store.send, message("later"), delay_ms=1000), opened]
    steps = [stepped(call, 0, lambda: None, own)[1] for call in calls]
    for number in range(target.times(FORKS)):
        which = number % len(calls)
        is_there, goes_on = threading.Event(), threading.Event()

        def come(is_there: threading.Event = is_there, goes_on: threading.Event = goes_on) -> None:
            is_there.set()
            goes_on.wait(60)

        other = threading.Thread(target=stepped, args=(calls[which], chance.randint(1, steps[which]), come, own))
        other.start()
        while other.is_alive() and not is_there.wait(0.01):
            pass
        child = os.fork()
        if not child:
            _live_as_a_child(durable_stores, f"child-{number}")
        goes_on.set()
        other.join()
        _, status = os.waitpid(child, 0)
        assert status == 0, "the child hangs" if os.WIFSIGNALED(status) else "the child failed"


def _live_as_a_child(stores: Stores, name: str) -> NoReturn:
    signal.alarm(60)  # what hangs ends by it
    # Another thread may hold the lock of the parent's.
    stores.clock = ManualClock(START_MS)
    status = 1
    try:
        with suppress(StoreForkedError), stores.open(name) as own:
            own.send(message("child"))
            assert read_ids(own) == ["mchild"]
        status = 0
    finally:
        os._exit(status)


_LEAVER = """
import json, os, signal, sys
from datetime import timedelta
import rmqstore
from rmqstore import Message
path, timers, pops, end, modules, given = *sys.argv[1:5], json.loads(sys.argv[5]), json.loads(sys.argv[6])
if modules:
    from rmqstore_conformance.targets import announce
    announce(modules)
store = rmqstore.open(path, timer_engine=timers, pop_engine=pops, clock=rmqstore.ManualClock(1_700_000_000_000), **given)
store.send_batch([Message("t", b"x", message_id=f"m{n}") for n in range(10)])
store.send(Message("t", b"later", message_id="later"), delay=timedelta(hours=1))
store.cancel(store.send(Message("t", b"never", message_id="never"), delay=timedelta(hours=1)))
held = {each.message_id: each for each in store.pop("t", "g", max_messages=10, invisible=timedelta(hours=2))}
store.ack([held.pop(f"m{n}") for n in range(4)])
store.release(held["m4"])
if end == "quit":
    os._exit(0)
if end == "killed":
    child = os.fork()
    if not child:
        os.close(1)
        os.close(2)
        signal.alarm(60)
        signal.pause()
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.clause("X2", "X4")
@pytest.mark.parametrize("has_services", [True, False], ids=["services", "alone"])
@pytest.mark.parametrize("end", ["quit", "return", "killed"])
def test_r1_an_exit_without_a_close_loses_nothing(durable_stores: Stores, end: str, has_services: bool) -> None:
    """R1: a process that ends with its store open, at once or after Python's own end, ends well and leaves all that was answered.

    So does one that is killed, whose forked child lives on and keeps no one out.
    """
    pair, path = durable_stores.pair, durable_stores.root / "store"
    given = {**GIVEN, "services": has_services}
    command = [sys.executable, "-c", _LEAVER, str(path), pair.timers, pair.pops, end, json.dumps(ANNOUNCED), json.dumps(given)]
    durable_stores.clock.set(1_700_000_001_000)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own_environment()) as left:
        assert left.stdout is not None
        assert left.stderr is not None
        child, complaint = left.stdout.read(), left.stderr.read()
        os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
        try:
            # Its end was not asked for yet, so there still is a process of its number.
            store = durable_stores.open()
        finally:
            if end == "killed":
                os.kill(int(child), signal.SIGKILL)
    assert left.returncode == (-signal.SIGKILL if end == "killed" else 0), complaint
    assert end == "killed" or not complaint
    assert store.verify() == []
    assert {label(each) for each in store.leases()} == {f"m{n}" for n in range(5, 10)}
    assert store.pending().total == 1
    store.tick()
    (back,) = store.pop("t", "g", max_messages=20)
    assert label(back) == "m4"
    store.ack(back)
    durable_stores.tick_after(store, timedelta(hours=1))
    assert [label(each) for each in store.pop("t", "g", max_messages=20)] == ["later"]


def _remove_all(path: Path) -> None:
    shutil.rmtree(path)


def _empty(path: Path) -> None:
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _unlock(path: Path) -> None:
    (path / "LOCK").unlink()


@pytest.mark.parametrize("remove", [_remove_all, _empty, _unlock], ids=["removed", "emptied", "unlocked"])
def test_x5_a_removed_store_acknowledges_nothing(durable_stores: Stores, remove: Callable[[Path], None]) -> None:
    """X5: a caller that still uses a store whose files were removed is told at once, in every call, and nothing is made under its name."""
    store = durable_stores.open()
    _use(store, 1, durable_stores)
    (held,) = store.pop(T, G, max_messages=1)
    path = durable_stores.root / "store"
    remove(path)
    calls: list[Callable[[], object]] = [
        lambda: store.send(message("late")),
        lambda: store.send(message("late"), delay=timedelta(seconds=1)),
        lambda: store.pop(T, G),
        lambda: store.ack(held),
        store.tick,
        store.flush,
        store.scan,
        lambda: store.snapshot(durable_stores.root / "copy"),
    ]
    for call in calls:
        with pytest.raises(StorePoisonedError, match="removed"):
            call()
    try:
        store.close()
    except StoreError as error:
        assert "removed" in str(error) or os.fspath(path) in str(error)
    assert remove is _unlock or not path.exists() or not any(path.iterdir())


@pytest.mark.clause("P5", "P1", "P2")
def test_c6_what_a_crash_took_is_named_by_nothing_that_came_later(durable_stores: Stores) -> None:
    """C6, P5: handles and receipts of calls that were lost before they were durable mean nothing that the store gave out since."""
    store = filled(durable_stores, 4, flush="async")
    store.flush()
    # What the disk holds now is what a loss of power leaves of all that comes next.
    copied_as_it_is(durable_stores.root / "store", durable_stores.root / "left")

    def used(store: Store, name: str) -> tuple[list[Any], list[Any]]:
        timers = [store.send(message(f"{name}{n}"), delay=timedelta(seconds=5)) for n in range(2)]
        return timers, store.pop(T, G, max_messages=2, invisible=timedelta(minutes=1), attempt_id=f"attempt-{name}")

    timers, held = used(store, "lost")
    left = durable_stores.open("left")
    _, own = used(left, "kept")
    assert left.cancel(timers) == [CancelOutcome.UNKNOWN] * 2
    assert {each.name for each in left.ack(held)} <= {"UNKNOWN", "STALE"}
    assert left.pending().total == 2
    assert left.lag(T, G).in_flight == 2
    assert {each.name for each in left.ack(own)} == {"ACKED"}
