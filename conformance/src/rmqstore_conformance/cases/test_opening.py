"""R4–R6, X1: what an open checks, what it costs, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from operator import methodcaller
from pathlib import Path
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import ConfigError, CorruptStoreError, FormatVersionError, Store, StoreClosedError, StoreLockedError, StorePathError
from rmqstore_conformance.damaging import renumber_records
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.power.content import read_image
from rmqstore_conformance.stores import START_MS, Stores, copied_as_it_is, ids, key_of, message, plain, pop_all, read_ids

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

_VERSION_IN_WORDS = re.compile(rb"(?P<words>(?:[A-Za-z]+ )+)(?P<version>\d+)\n")


def test_r4_baked_settings_are_checked(durable_stores: Stores) -> None:
    """R4: what was baked in cannot be opened differently; left out it is read from the store; the refusal changes nothing."""
    store = durable_stores.open(precision_ms=100)
    store.send(message(1), delay_ms=150)
    store.close()
    with pytest.raises(ConfigError, match="precision_ms"):
        durable_stores.open(precision_ms=1000)
    with pytest.raises(ConfigError, match="engine"):
        durable_stores.open(timer_engine="memory")
    store = durable_stores.open()
    assert store.engine.timers.precision_ms == 100
    assert durable_stores.tick_after(store, 200).handed_over == 1


def test_r4_a_newer_manifest_is_refused(durable_stores: Stores) -> None:
    """R4: the store's own format version, and no file is changed by the refusal."""
    durable_stores.open().close()
    path = durable_stores.root / "store" / "rmqstore.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": manifest["format"] + 1}))
    before = path.read_bytes()
    with pytest.raises(FormatVersionError):
        durable_stores.open()
    assert path.read_bytes() == before
    path.write_text(json.dumps(manifest))
    durable_stores.open()


def test_r4_a_file_that_names_another_version_is_refused(durable_stores: Stores) -> None:
    """R4: where an engine says in words which version its directory has, as ``engine 1``, a newer one is refused."""
    store = durable_stores.open()
    store.send(message(1))
    store.close()
    small = [path for path in (durable_stores.root / "store").rglob("*") if path.is_file() and path.stat().st_size < 100]
    named = {path: found for path in small if (found := _VERSION_IN_WORDS.fullmatch(path.read_bytes()))}
    if not named:
        pytest.skip("not run: no file of the store says its version in words")
    for path, found in named.items():
        path.write_bytes(b"%s%d\n" % (found["words"], int(found["version"]) + 1))
        with pytest.raises(FormatVersionError):
            durable_stores.open()
        path.write_bytes(found[0])
    assert ids(pop_all(durable_stores.open())) == ["m1"]


@pytest.mark.parametrize("read_only", [False, pytest.param(True, marks=pytest.mark.needs("read_only_open"))])
def test_r4_records_of_another_version_are_refused(durable_stores: Stores, read_only: bool) -> None:
    """R4: the version of the engine's records is looked at by each open, to write or to read, and not only that of the store."""
    store = durable_stores.open()
    store.send(message(1), delay_ms=1000)
    if not renumber_records(store):
        pytest.skip("not run: only of a key-ordered database is it known where it keeps its version")
    store.close()
    before = read_image(durable_stores.root / "store")
    with pytest.raises(FormatVersionError):
        durable_stores.open(read_only=read_only)
    after = read_image(durable_stores.root / "store")
    if before.keys() == after.keys():
        # Else the database itself begins new files whenever it is opened.
        changed = [path for path in before if before[path] != after[path] and "lock" not in path.lower()]
        assert not changed, f"the refusal changed {changed}"


def test_r5_an_open_does_no_more_for_a_long_past(durable_stores: Stores) -> None:
    """R5: forty times as many timers, messages and leases make an open by no means forty times as much work, counted in calls."""

    def fill(name: str, batches: int) -> None:
        store = durable_stores.open(name, flush="async")
        for step in range(batches):
            due_ms = START_MS + 10**9 + 60_000 * step
            store.send_batch([plain(f"{step}-{n}", deliver_at_ms=due_ms) for n in range(20)])
            store.send_batch([plain(f"now-{step}-{n}") for n in range(20)])
            store.ack(store.pop(T, G, max_messages=20))
        store.close()

    def calls_of(name: str) -> int:
        calls = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            store = durable_stores.open(name)
        finally:
            sys.setprofile(None)
        store.close()
        return calls

    fill("short", 5)
    fill("long", 200)
    short, long = calls_of("short"), calls_of("long")
    assert long < 2 * short, f"{short} calls with a short past, {long} with a long one"


def _pieces_of(store: Path) -> list[bytes]:
    """Return what the files of a store hold now, zeros left out, in pieces that fit into a message."""
    held = [file.read_bytes().strip(b"\0")[-60_000:] for file in sorted(store.rglob("*")) if file.is_file()]
    return [piece for piece in held if piece]


_END_BYTES = 128


@pytest.mark.clause("R6")
def test_r1_messages_may_hold_pieces_of_the_store(durable_stores: Stores) -> None:
    """R1: bodies are bytes; those that look like records, pages or logs of the engine itself are no part of its files' structure."""
    store = durable_stores.open()
    for number in range(5):
        store.send(message(f"first-{number}"))
        store.send(message(f"later-{number}"), delay=timedelta(seconds=1))
    sent: list[bytes] = []
    for _ in range(3):
        store.flush()
        for piece in _pieces_of(durable_stores.root / "store"):
            # Whole, and its end at any distance from the end of a record that others of its call follow.
            bodies = [piece, *(piece[-_END_BYTES:-cut] for cut in range(1, min(_END_BYTES, len(piece))))]
            store.send_batch([plain(0, "pieces", body=body, message_id=f"p{number}") for number, body in enumerate(bodies, len(sent))])
            sent += bodies
    # As a kill leaves it, and again with what the next owner wrote behind it.
    for name in ("killed", "again"):
        copied_as_it_is(store.path, durable_stores.root / name)
        store.close()
        store = durable_stores.open(name)
        pieces = store.engine.pops.topic("pieces")
        assert pieces is not None
        assert [each.body for page in store.engine.pops.pages(pieces) for each in page.messages] == sent
        assert store.verify() == []
        store.send(message("last", "pieces", body=b"last"))
        sent.append(b"last")
    assert durable_stores.tick_after(store, 2_000).handed_over == 5
    assert sorted(read_ids(store)) == sorted([f"mfirst-{number}" for number in range(5)] + [f"mlater-{number}" for number in range(5)])


_NAME = re.compile(rb"[A-Z_]{4,40}(?=\x01)")


@pytest.mark.clause("R6")
def test_r1_properties_may_be_called_like_those_of_the_store(durable_stores: Stores) -> None:
    """R1: what a user calls a property may end with a name that the engine writes, at any distance from the end of a record."""
    store = durable_stores.open()
    store.send(plain("first", keys=("k",), tag="a"))
    store.send(plain("later", keys=("k",), tag="a"), delay=timedelta(seconds=1))
    store.send(plain("group", message_group="a"))
    store.flush()
    names = sorted({name.decode() for piece in _pieces_of(durable_stores.root / "store") for name in _NAME.findall(piece)})
    sent = [{f"x{name}": "v" * length} for name in names or ["NAME"] for length in range(1, _END_BYTES)]
    for later in (None, START_MS + 1000):
        rows = [plain(0, "pieces", message_id=f"{number}", properties=each, deliver_at_ms=later) for number, each in enumerate(sent)]
        store.send_batch(rows)
    copied_as_it_is(store.path, durable_stores.root / "killed")
    store.close()
    store = durable_stores.open("killed")
    assert store.verify() == []
    assert durable_stores.tick_after(store, 2_000).handed_over == len(sent) + 1
    pieces = store.engine.pops.topic("pieces")
    assert pieces is not None
    assert [each.properties for page in store.engine.pops.pages(pieces) for each in page.messages] == [*sent, *sent]


def test_r6_a_damaged_manifest_is_named(durable_stores: Stores) -> None:
    """R6: a manifest that is no JSON, or says too little, is CorruptStoreError with its file; never is a new store made over it."""
    store = durable_stores.open()
    store.send(message(1), delay_ms=1000)
    store.close()
    path = durable_stores.root / "store" / "rmqstore.json"
    good = path.read_bytes()
    for bad in (b"", b"{", b"[]", b"{}", good[: len(good) // 2], b"\xff\xfe"):
        path.write_bytes(bad)
        with pytest.raises(CorruptStoreError) as caught:
            durable_stores.open()
        assert caught.value.file == str(path)
    path.write_bytes(good)
    assert durable_stores.open().pending().total == 1


def test_x1_a_second_open_is_refused(stores: Stores) -> None:
    """X1: by the same process; the first goes on unharmed; after its close the next open succeeds."""
    store = stores.open()
    store.send(message(1))
    for _ in range(2):
        with pytest.raises(StoreLockedError):
            stores.open()
    link = stores.root / "link"
    link.symlink_to(stores.root / "store")
    with pytest.raises(StoreLockedError):
        stores.open("link")
    store.send(message(2))
    assert read_ids(store) == ["m1", "m2"]
    store.close()
    stores.open()


def test_x1_an_open_that_fails_lets_go_of_the_lock(durable_stores: Stores) -> None:
    """X1: a refused open does not keep the store locked."""
    first = durable_stores.open()
    first.close()
    with pytest.raises(ConfigError):
        durable_stores.open(precision_ms=100)
    with (
        patch.object(type(first.engine.timers), "recover", side_effect=rmqstore.StoreFullError("no room")),
        pytest.raises(rmqstore.StoreFullError),
    ):
        durable_stores.open()
    durable_stores.open()


def test_x1_what_is_no_store_is_refused(engine_stores: Stores) -> None:
    """X1: a file, a directory of something else, a missing parent: typed, and nothing is touched."""
    root = engine_stores.root
    (root / "file").write_text("x")
    (root / "full").mkdir()
    (root / "full" / "thesis.txt").write_text("years of work")
    for name in ("file", "full", "missing/parent"):
        with pytest.raises(StorePathError):
            engine_stores.open(name)
    assert (root / "full" / "thesis.txt").read_text() == "years of work"


def test_x1_a_closed_store_says_so(stores: Stores) -> None:
    """X1: every public call of a closed store raises StoreClosedError; close is idempotent."""
    store = stores.open()
    sent = store.send(message(1), delay_ms=1000)
    store.send(message(2))
    (popped,) = store.pop(T, G)
    store.close()
    store.close()
    calls: list[Callable[[Store], object]] = [
        lambda s: s.send(message(3)), lambda s: s.send_batch([message(3)]), lambda s: s.cancel(sent.handle or ""),
        lambda s: s.cancel_key(T, key_of("k")),
        lambda s: s.pop(T, G), lambda s: s.pop_batch(T, G), lambda s: s.ack(popped),
        lambda s: s.change_invisible(popped, invisible_ms=1),
        lambda s: s.release(popped), lambda s: s.lag(T, G),
        lambda s: s.topics.list(), lambda s: s.topics.create("x"), lambda s: s.groups.list(), lambda s: s.groups.offsets(G),
        lambda s: s.groups.reset_offset(T, G, 0), lambda s: s.read(T),
        lambda s: s.snapshot(stores.root / "copy"),
        *map(methodcaller, ("tick", "pending", "scan", "stats", "verify", "flush", "confirm_clock_step", "next_wake_ms")),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StoreClosedError):
            call(store)
