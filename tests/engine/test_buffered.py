"""``BufferedKV`` over a base that the tests hold up, break and interrupt."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import given, strategies as st

from rmqstore.engine.kv.base import DeleteMany, DeleteRange, PutMany, Refusal, WriteBatch
from rmqstore.engine.kv.buffered import OVERLAY_ENTRIES, BufferedKV
from rmqstore.engine.kv.overlay import Overlay, SortedKeys, SortedMap
from rmqstore.errors import IllegalArgumentError, StoreClosedError, StoreForkedError, StoreFullError, StorePoisonedError
from tests.engine.databases import SPACES, FakeBase, apply, changes, keys, page_of, put, raiser

Changes = list[PutMany | DeleteMany | DeleteRange]


@pytest.fixture
def base() -> FakeBase:
    return FakeBase()


@pytest.fixture
def kv(base: FakeBase) -> BufferedKV:
    return BufferedKV(base, len(SPACES))


class Held:
    """Holds the first commit up until ``release``; every commit then begins with ``then``."""

    def __init__(self, base: FakeBase, then: Callable[[], None] = lambda: None) -> None:
        self.reached = threading.Event()
        self._go_on = threading.Event()
        self._then = then
        base.before_commit = self._hold

    def _hold(self) -> None:
        self.reached.set()
        assert self._go_on.wait(30)
        self._then()

    def release(self) -> None:
        self._go_on.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


# ---------------------------------------------------------------- reads and writes beside a commit


def test_reads_and_writes_go_on_beside_a_commit(base: FakeBase, kv: BufferedKV, pool: ThreadPoolExecutor) -> None:
    held = Held(base)
    put(kv, b"a", b"1")
    put(kv, b"b", b"1")
    call = pool.submit(kv.sync)
    assert held.reached.wait(30)
    put(kv, b"b", b"2")
    batch = WriteBatch()
    batch.delete(0, b"a")
    batch.put(0, b"c", b"2")
    kv.write(batch)
    assert kv.scan(0, b"", None, 10) == [(b"b", b"2"), (b"c", b"2")]
    assert (kv.get(0, b"a"), kv.get(0, b"b")) == (None, b"2")
    assert base.state[0] == {}
    held.release()
    call.result(30)
    assert base.state[0] == {b"a": b"1", b"b": b"1"}
    assert (kv.position, kv.durable_position) == (4, 2)
    assert kv.scan(0, b"", None, 10) == [(b"b", b"2"), (b"c", b"2")]
    kv.sync()
    assert base.state[0] == {b"b": b"2", b"c": b"2"}


def test_a_durable_position_needs_no_commit(base: FakeBase, kv: BufferedKV) -> None:
    position = put(kv, b"a", b"")
    kv.sync(position)
    kv.sync(position)
    kv.sync(0)
    kv.sync()
    assert len(base.commits) == 1
    with pytest.raises(IllegalArgumentError):
        kv.sync(position + 1)


def test_a_sync_of_what_is_durable_does_not_disturb_the_leader(base: FakeBase, kv: BufferedKV, pool: ThreadPoolExecutor) -> None:
    """Otherwise a second leader would commit beside the first."""
    durable = put(kv, b"a", b"")
    kv.sync(durable)
    held = Held(base)
    second = put(kv, b"b", b"")
    calls = [pool.submit(kv.sync, second)]
    assert held.reached.wait(30)
    kv.sync(durable)
    assert kv.leading.locked()
    third = put(kv, b"c", b"")
    calls.append(pool.submit(kv.sync, third))
    held.release()
    assert [call.exception(30) for call in calls] == [None, None]
    assert len(base.commits) == 3


def test_untouched_spaces_are_read_without_the_lock(base: FakeBase, kv: BufferedKV) -> None:
    base.state[1][b"k"] = b"v"
    put(kv, b"k", b"w", space=0)
    with kv.lock:
        assert kv.get(1, b"k") == b"v"
        assert kv.scan(1, b"", None, 5) == [(b"k", b"v")]


@given(*[st.lists(changes, max_size=6)] * 3, st.sampled_from([1, 3, 50]), st.booleans(), st.integers(0, 3))
def test_a_commit_between_two_pages_of_a_read_does_not_show(
    stored: Changes, flushing: Changes, active: Changes, limit: int, reverse: bool, at: int
) -> None:
    """It is of the flushing overlay, over which the read sees the database."""
    base = FakeBase()
    kv = BufferedKV(base, len(SPACES))
    kv.write(WriteBatch(stored))
    kv.sync()
    kv.write(WriteBatch(flushing))
    kv._layers = (Overlay(len(SPACES), kv.position), kv._layers[0])
    kv.write(WriteBatch(active))
    expected = kv.scan(0, b"", None, limit, reverse=reverse)
    pages = count()
    base.before_scan = lambda: base.commit(kv._layers[1].effects()) if next(pages) == at else None
    assert kv.scan(0, b"", None, limit, reverse=reverse) == expected


def test_a_large_overlay_is_committed_by_the_next_write(base: FakeBase, kv: BufferedKV) -> None:
    batch = WriteBatch()
    batch.put_many(0, [(number.to_bytes(4, "big"), b"") for number in range(OVERLAY_ENTRIES + 1)])
    kv.write(batch)
    assert base.commits == []
    put(kv, b"next", b"")
    assert len(base.commits) == 1
    assert kv.durable_position == 1


# ---------------------------------------------------------------- failures


def test_full_disk_refuses_until_reopened_and_drops_what_was_not_durable(base: FakeBase, kv: BufferedKV, pool: ThreadPoolExecutor) -> None:
    kept = put(kv, b"kept", b"1")
    kv.sync(kept)
    held = Held(base, then=raiser(StoreFullError("no room")))
    gone = put(kv, b"gone", b"1")
    calls = [pool.submit(kv.sync, gone)]
    assert held.reached.wait(30)
    later = put(kv, b"later", b"1")
    calls += [pool.submit(kv.sync, later) for _ in range(3)]
    held.release()
    errors = [call.exception(30) for call in calls]
    assert all(isinstance(error, StoreFullError) for error in errors), errors
    for call in (lambda: kv.get(0, b"kept"), lambda: kv.scan(0, b"", None, 1), lambda: put(kv, b"x", b""), kv.sync):
        with pytest.raises(StoreFullError):
            call()
    base.free()
    kv.reopen()
    assert base.reopened == 1
    assert kv.scan(0, b"", None, 10) == [(b"kept", b"1")]
    # The last one is that of what is there, as a call of no change may rest on it.
    assert (kv.position, kv.durable_position) == (4, 4)
    kv.sync(kv.position)
    kv.sync(kept)
    for lost in (gone, later):
        with pytest.raises(StoreFullError, match=f"position {lost} "):
            kv.sync(lost)
    kv.sync()
    assert put(kv, b"new", b"1") == 5
    kv.sync(5)
    assert base.state[0] == {b"kept": b"1", b"new": b"1"}


def test_what_a_full_disk_dropped_is_known_for_long_and_takes_little(base: FakeBase, kv: BufferedKV) -> None:
    kept, gone = [], []
    for number in range(2000):
        base.free()
        kept.append(put(kv, b"%d" % number, b"1"))
        kv.sync(kept[-1])
        base.fill()
        gone.append(put(kv, b"gone", b"1"))
        with pytest.raises(StoreFullError):
            kv.sync(gone[-1])
        kv.reopen()
    assert len(kv._lost) <= 1024
    for position in gone[-1000:]:
        with pytest.raises(StoreFullError, match=f"position {position} "):
            kv.sync(position)
        # It is the one of the reopen.
        kv.sync(position + 1)
    for position in kept:
        kv.sync(position)


def test_any_other_failure_poisons_for_good(base: FakeBase, kv: BufferedKV) -> None:
    put(kv, b"a", b"")
    base.before_commit = raiser(OSError(errno.EIO, "broken"))
    with pytest.raises(StorePoisonedError, match="broken"):
        kv.sync()
    base.free()
    for call in (lambda: kv.get(0, b"a"), lambda: kv.scan(0, b"", None, 1), lambda: put(kv, b"x", b""), kv.sync, kv.reopen):
        with pytest.raises(StorePoisonedError):
            call()
    kv.close()
    assert (base.closed, base.commits) == (1, [])


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent(kv: BufferedKV) -> None:
    kv.refusal = Refusal(StoreForkedError, "opened before the fork")
    with kv.leading:
        for call in (kv.sync, kv.reopen):
            with pytest.raises(StoreForkedError):
                call()
    kv.refusal = None


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_an_interrupted_leader_is_followed_by_one_that_commits_first_what_it_left(base: FakeBase, kv: BufferedKV, moment: str) -> None:
    put(kv, b"a", b"1")
    setattr(base, moment, raiser(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        kv.sync()
    assert kv.durable_position == 0
    put(kv, b"a", b"2")
    batch = WriteBatch()
    batch.delete_range(0, b"a", b"b")
    kv.write(batch)
    assert kv.get(0, b"a") is None
    setattr(base, moment, lambda: None)
    kv.sync()
    assert base.state[0] == {}
    assert [change.puts for commit in base.commits[-2:] for change in commit] == [[(b"a", b"1")], []]
    assert kv.durable_position == 3


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_no_room_behind_an_interrupted_commit_does_not_say_that_nothing_is_there(base: FakeBase, kv: BufferedKV, moment: str) -> None:
    position = put(kv, b"a", b"1")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(base, moment, raiser(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            kv.sync(position)
    base.fill()
    with pytest.raises(StorePoisonedError, match="interrupted"):
        kv.sync(position)


def test_a_leader_interrupted_after_its_commit_leaves_nothing_to_wait_for(base: FakeBase, kv: BufferedKV) -> None:
    """Also when what was written later finds no room, and is dropped."""
    position = put(kv, b"a", b"1")

    def interrupted() -> int:
        sync_to_disk()
        raise KeyboardInterrupt

    sync_to_disk = kv._sync_to_disk
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kv, "_sync_to_disk", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kv.sync(position)
    assert kv.durable_position == position
    assert base.state[0] == {b"a": b"1"}
    later = put(kv, b"b", b"1")
    base.fill()
    kv.sync(position)
    with pytest.raises(StoreFullError):
        kv.sync(later)
    base.free()
    kv.reopen()
    kv.sync(position)
    assert kv.get(0, b"a") == b"1"


@pytest.mark.parametrize("is_whole", [False, True], ids=["half", "whole"])
@pytest.mark.parametrize("mends", [lambda kv: kv.sync(), lambda kv: kv.after_interrupt()], ids=["sync", "after interrupt"])
def test_a_batch_that_was_interrupted_is_there_as_a_whole(
    base: FakeBase, kv: BufferedKV, monkeypatch: pytest.MonkeyPatch, mends: Callable[[BufferedKV], None], is_whole: bool
) -> None:
    apply = Overlay.apply

    def interrupted(overlay: Overlay, batch: WriteBatch) -> None:
        monkeypatch.setattr(Overlay, "apply", apply)
        apply(overlay, batch)
        if not is_whole:
            overlay.spaces[0] = None
        raise KeyboardInterrupt

    put(kv, b"a", b"1")
    monkeypatch.setattr(Overlay, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(kv, b"b", b"2")
    mends(kv)
    assert (kv.scan(0, b"", None, 9), kv.position) == ([(b"a", b"1"), (b"b", b"2")], 2)
    kv.sync()
    assert base.state[0] == {b"a": b"1", b"b": b"2"}


def test_close_commits_once_and_refuses_afterwards(base: FakeBase, kv: BufferedKV) -> None:
    put(kv, b"a", b"1")
    kv.close()
    kv.close()
    assert (base.closed, base.state[0]) == (1, {b"a": b"1"})
    with pytest.raises(StoreClosedError):
        kv.get(0, b"a")


# ---------------------------------------------------------------- what overlays are made of


@given(st.lists(st.tuples(st.sampled_from(["put", "remove", "range"]), st.lists(keys, min_size=2, max_size=40)), max_size=20))
def test_sorted_map_matches_a_dict(script: list[tuple[str, list[bytes]]]) -> None:
    entries: SortedMap[bytes] = SortedMap()
    model: dict[bytes, bytes] = {}
    for what, some in script:
        if what == "put":
            entries.items.update((key, key) for key in some)
            model.update((key, key) for key in some)
        elif what == "remove":
            entries.remove_many(some)
            for key in some:
                model.pop(key, None)
        else:
            entries.remove_range(min(some), max(some))
            apply(model, DeleteRange(0, min(some), max(some)))
        for reverse in (False, True):
            assert list(entries.range(min(some), max(some), reverse=reverse)) == page_of(model, min(some), max(some), 1000, reverse)
    assert list(entries.range(b"", None)) == page_of(model, b"", None, 1000, False)


@pytest.mark.parametrize("batch_keys", [3, 700, 5000])
def test_sorted_keys_in_many_chunks(batch_keys: int) -> None:
    sorted_keys = SortedKeys()
    here: set[int] = set()
    for turn in range(8):
        fresh = {(number * 7919 + turn * 31) % 40_009 for number in range(batch_keys)} - here
        sorted_keys.add([number.to_bytes(4, "big") for number in fresh])
        here |= fresh
        for number in sorted(here)[:: 97 + turn]:
            sorted_keys.remove(number.to_bytes(4, "big"))
            here.discard(number)
        low, high = 5000 * turn, 5000 * turn + 1700
        gone = sorted_keys.remove_range(low.to_bytes(4, "big"), high.to_bytes(4, "big"))
        assert gone == [number.to_bytes(4, "big") for number in sorted(here) if low <= number < high]
        here = {number for number in here if not low <= number < high}
        assert [key for run in sorted_keys.runs(b"", None) for key in run] == [number.to_bytes(4, "big") for number in sorted(here)]
    assert len(sorted_keys) == len(here)
