"""What every ``OrderedKV`` promises, run on every adapter: against a model, across reopening, from many threads."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from rmqstore.engine.kv.base import PAGE_BYTES, OrderedKV, WriteBatch, take_page
from rmqstore.engine.kv.buffered import BufferedKV
from rmqstore.engine.kv.overlay import Overlay
from rmqstore.errors import StoreClosedError, StorePathError
from rmqstore_lmdb.kv import open_lmdb
from rmqstore_memory.kv import MemoryKV
from rmqstore_rocksdb.kv import open_rocksdb
from rmqstore_rocksdb.tuning import RocksDBTuning
from tests.engine.databases import SPACES, FakeBase, Model, apply, changes, keys, page_of, put, spaces, with_keys


class Adapter(NamedTuple):
    name: str
    durable: bool
    examples: int
    open: Callable[[Path], OrderedKV]


ADAPTERS = (
    Adapter("memory", False, 80, lambda path: MemoryKV(str(path), len(SPACES))),
    Adapter("buffered", False, 200, lambda _: BufferedKV(FakeBase(), len(SPACES))),
    Adapter("lmdb", True, 40, lambda path: open_lmdb(path, SPACES, map_bytes=1 << 20)),
    Adapter("rocksdb", True, 15, lambda path: open_rocksdb(path, SPACES, RocksDBTuning(write_buffer_mib=4))),
    Adapter("rocksdb-separated", True, 10, lambda path: open_rocksdb(path, SPACES, RocksDBTuning(values="separated", separate_bytes=64))),
)
every_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
durable_adapter = pytest.mark.parametrize("adapter", [each for each in ADAPTERS if each.durable], ids=lambda adapter: adapter.name)


@contextmanager
def opened(adapter: Adapter, path: Path) -> Iterator[OrderedKV]:
    path.mkdir(exist_ok=True)
    kv = adapter.open(path)
    try:
        yield kv
    finally:
        kv.close()


# ---------------------------------------------------------------- against a model


class Get(NamedTuple):
    space: int
    keys: list[bytes]


class Scan(NamedTuple):
    space: int
    start: bytes
    stop: bytes | None
    limit: int
    reverse: bool
    page_bytes: int


class Floor(NamedTuple):
    space: int
    key: bytes


limits, page_bounds = st.sampled_from([1, 2, 5, 100]), st.sampled_from([0, 5, PAGE_BYTES])
reads = st.one_of(
    st.builds(Get, spaces, st.lists(keys, max_size=6)),
    st.builds(Scan, spaces, st.just(b"") | keys, st.none() | keys, limits, st.booleans(), page_bounds),
    st.builds(Floor, spaces, keys),
)
writes = st.lists(changes, min_size=1, max_size=4)
syncs = st.sampled_from(["sync", "sync", "sync", "reopen", "close"])
kinds = {"w": writes, "r": reads, "s": syncs, "b": st.just("begin a flush"), "c": st.just("commit a flush")}
steps = st.sampled_from("wwwwbbcrrs").flatmap(kinds.__getitem__)


@every_adapter
def test_matches_a_model(adapter: Adapter) -> None:
    @settings(max_examples=adapter.examples, deadline=None)
    @given(st.lists(steps, min_size=1, max_size=40))
    def run(script: list[object]) -> None:
        with tempfile.TemporaryDirectory() as name:
            follow(adapter, Path(name), script)

    run()


def follow(adapter: Adapter, path: Path, script: list[object]) -> None:
    model: Model = [{} for _ in SPACES]
    written = synced = 0
    kv = adapter.open(path)
    try:
        for step in script:
            match step:
                case list():
                    batch = WriteBatch()
                    for change in step:
                        batch.ops.append(with_keys(model[change.space], change))
                        apply(model[change.space], change)
                    assert kv.write(batch) == written + 1
                    written += 1
                case Get(space, wanted):
                    assert kv.get_many(space, wanted) == [model[space].get(key) for key in wanted]
                    assert [kv.get(space, key) for key in wanted] == [model[space].get(key) for key in wanted]
                case Floor(space, key):
                    assert kv.floor(space, key) == max((entry for entry in model[space].items() if entry[0] <= key), default=None)
                case Scan(space, start, stop, limit, reverse, page_bytes):
                    expected = take_page(iter(page_of(model[space], start, stop, limit, reverse)), limit, page_bytes)
                    assert kv.scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes) == expected
                case "sync":
                    kv.sync(written)
                    synced = written
                case "begin a flush" if isinstance(kv, BufferedKV) and len(kv._layers) == 1:
                    kv._layers = (Overlay(len(SPACES), kv.position), kv._layers[0])
                case "commit a flush" if isinstance(kv, BufferedKV) and len(kv._layers) == 2:
                    kv._base.commit(kv._layers[1].effects())
                case "reopen":
                    kv.reopen()
                    assert kv.position >= written
                    synced = written = kv.position
                case "close" if adapter.durable:
                    kv.close()
                    kv = adapter.open(path)
                    written = synced = 0
            assert kv.position == written
            assert synced <= kv.durable_position <= written
            if not adapter.durable:  # the others take too long for that
                check_all(kv, model)
        check_all(kv, model)
    finally:
        kv.close()


def check_all(kv: OrderedKV, model: Model) -> None:
    assert [dict(kv.scan_all(space, page=7)) for space in range(len(SPACES))] == model
    assert [dict(kv.scan(space, b"", None, 1000, reverse=True)) for space in range(len(SPACES))] == model


# ---------------------------------------------------------------- pages


@every_adapter
def test_pages_end_at_their_bytes_in_both_directions(adapter: Adapter, tmp_path: Path) -> None:
    with opened(adapter, tmp_path / "s") as kv:
        batch = WriteBatch()
        batch.put_many(1, [(b"%03d" % number, b"x" * 100) for number in range(50)])
        kv.write(batch)
        for _ in ("in memory", "on disk"):
            assert len(kv.scan(1, b"", None, 50, page_bytes=999)) == 10
            assert [key for key, _ in kv.scan(1, b"010", b"020", 50, reverse=True, page_bytes=200)] == [b"019", b"018", b"017"]
            assert len(kv.scan(1, b"", None, 50, page_bytes=0)) == 1
            assert kv.scan(1, b"", None, 0) == []
            assert kv.scan(1, b"020", b"020", 5) == []
            assert [len(list(kv.scan_all(1, b"005", b"045", page=page))) for page in (1, 7, 1000)] == [40, 40, 40]
            kv.sync()


@every_adapter
def test_large_values_are_paged_and_found(adapter: Adapter, tmp_path: Path) -> None:
    big = bytes(4 * 1024 * 1024)
    with opened(adapter, tmp_path / "s") as kv:
        for number in range(4):
            kv.sync(put(kv, b"%d" % number, big + b"%d" % number, space=2))
        assert [key for key, _ in kv.scan(2, b"", None, 10)] == [b"0", b"1"]
        assert kv.get(2, b"3") == big + b"3"


# ---------------------------------------------------------------- life cycle


@durable_adapter
def test_closed_and_snapshot_copies_open_with_what_they_had(adapter: Adapter, tmp_path: Path) -> None:
    with opened(adapter, tmp_path / "s") as kv:
        put(kv, b"k", b"v")
        kv.snapshot(tmp_path / "copy")
        put(kv, b"later", b"v")
        with pytest.raises(StorePathError):
            kv.snapshot(tmp_path / "copy")
        with opened(adapter, tmp_path / "copy") as copy:
            assert list(copy.scan_all(0)) == [(b"k", b"v")]
            copy.sync(put(copy, b"own", b"v"))
    with opened(adapter, tmp_path / "s") as kv:
        assert list(kv.scan_all(0)) == [(b"k", b"v"), (b"later", b"v")]


@every_adapter
def test_a_closed_one_refuses(adapter: Adapter, tmp_path: Path) -> None:
    with opened(adapter, tmp_path / "s") as kv:
        put(kv, b"k", b"v")
    kv.close()
    for call in (
        lambda: kv.get(0, b"k"),
        lambda: kv.get_many(0, [b"k"]),
        lambda: kv.scan(0, b"", None, 1),
        lambda: put(kv, b"k", b""),
        kv.sync,
        kv.reopen,
    ):
        with pytest.raises(StoreClosedError):
            call()


@durable_adapter
def test_closing_lets_go_of_a_lock_whose_descriptor_was_copied(adapter: Adapter, tmp_path: Path) -> None:
    """As by a fork that runs no Python."""
    kv = adapter.open(tmp_path)
    part = kv._base if isinstance(kv, BufferedKV) else kv
    copy = os.dup(part._home._lock.fd)  # type: ignore[attr-defined]
    kv.close()
    adapter.open(tmp_path).close()
    os.close(copy)


@durable_adapter
def test_a_half_created_directory_starts_afresh(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / "LOCK").touch()
    (tmp_path / "db.new").mkdir()
    (tmp_path / "db.new" / "data.mdb").write_bytes(b"\x00" * 5000)
    (tmp_path / "db.new" / "CURRENT").write_bytes(b"")
    kv = adapter.open(tmp_path)
    kv.sync(put(kv, b"k", b"v"))
    kv.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["LOCK", "db"]


# ---------------------------------------------------------------- threads


@every_adapter
def test_threads_lose_nothing_and_see_whole_batches(adapter: Adapter, tmp_path: Path) -> None:
    """Writers move a pair of keys in two spaces together and delete behind themselves; readers must never see half of it."""
    rounds, writers = 60, 4
    stop = threading.Event()
    problems: list[str] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                problems.append(repr(error))
                stop.set()

        return run

    def write(name: int) -> None:
        for turn in range(rounds):
            batch = WriteBatch()
            prefix = b"%d/" % name
            batch.delete_range(0, prefix, prefix + b"\xff")
            batch.put_many(0, [(prefix + b"%04d" % (turn + number), b"%d" % turn) for number in range(8)])
            batch.put_many(1, [(prefix + b"%04d" % turn, b"x" * 300)])
            kv.sync(kv.write(batch))

    def read(name: int) -> None:
        prefix = b"%d/" % name
        while not stop.is_set():
            page = kv.scan(0, prefix, prefix + b"\xff", 100, reverse=bool(name % 2))
            turns = {value for _, value in page}
            if page and (len(page) != 8 or len(turns) != 1):
                problems.append(f"half a batch: {page}")
                return
            if page:
                turn = b"%04d" % int(next(iter(turns)))
                if kv.get(1, prefix + turn) is None:
                    problems.append(f"{turn!r} is in one space only")
                    return

    with opened(adapter, tmp_path / "s") as kv:
        writing = [threading.Thread(target=guarded(lambda name=name: write(name))) for name in range(writers)]
        reading = [threading.Thread(target=guarded(lambda name=name: read(name))) for name in range(2)]
        for thread in reading + writing:
            thread.start()
        for thread in writing:
            thread.join()
        stop.set()
        for thread in reading:
            thread.join()
        assert problems == []
        assert kv.durable_position == kv.position == rounds * writers
    if adapter.durable:
        with opened(adapter, tmp_path / "s") as kv:
            assert sum(1 for _ in kv.scan_all(1)) == rounds * writers
            assert sum(1 for _ in kv.scan_all(0)) == 8 * writers
