"""A dump that is not what was written is refused by the name of the file, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rmqstore
from rmqstore import CancelOutcome, CorruptStoreError, FormatVersionError, Store, StorePathError, TransferError, UnsupportedOperationError
from rmqstore.contract import Side
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.schema import QUEUES, TIMERS
from rmqstore.tables import TABLES
from rmqstore.transfer import dump, load, load_into, open_dump
from rmqstore.transfer.dumps import sha256_of
from rmqstore_conformance.cases.test_moving import used
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import START_MS, Stores, message

pytestmark = pytest.mark.parametrize("stores", ["memory"], indirect=True)


@pytest.fixture
def source(stores: Stores) -> Store:
    store = used(stores).store
    dump(store, stores.root / "dump")
    return store


def _refused(stores: Stores, kind: type[Exception], match: str) -> Exception:
    """Load into an open store and as a new one; both refuse, and nothing is there afterwards."""
    with stores.open("target") as target:
        before = target.transfer.digest()
        with pytest.raises(kind, match=match):
            load_into(stores.root / "dump", target)
        assert target.transfer.digest() == before
    with pytest.raises(kind, match=match) as caught:
        load(stores.root / "dump", stores.root / "new", engine="rocksdb")
    assert not list(stores.root.glob("new*"))
    return caught.value


@pytest.mark.parametrize("how", ["cut", "flipped", "longer", "emptied", "missing"])
def test_every_damaged_file_is_named(stores: Stores, source: Store, how: str) -> None:
    for file in sorted((stores.root / "dump").glob("*.parquet")):
        content = file.read_bytes()
        middle = len(content) // 2
        damaged = {
            "cut": content[:middle],
            "flipped": content[:middle] + bytes((content[middle] ^ 1,)) + content[middle + 1 :],
            "longer": content + b"x",
            "emptied": b"",
        }
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(damaged[how])
        error = _refused(stores, CorruptStoreError, f"{file.name} is {'missing' if how == 'missing' else 'damaged'}")
        assert getattr(error, "file", "") == str(file)
        file.write_bytes(content)
    load(stores.root / "dump", stores.root / "new", engine="rocksdb")


def test_a_damaged_manifest_is_named(stores: Stores, source: Store) -> None:
    file = stores.root / "dump" / "manifest.json"
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"[]", b"{}", b"\xff\xfe", content.replace(b'"epoch": 1', b'"epoch": 7')):
        assert damaged != content
        file.write_bytes(damaged)
        _refused(stores, CorruptStoreError, "manifest.json")
    fields = json.loads(content)
    file.write_text(json.dumps({**fields, "format_version": 2}))
    _refused(stores, FormatVersionError, "version 2")
    file.write_text(json.dumps({key: value for key, value in fields.items() if key != "check"}))
    _refused(stores, CorruptStoreError, "manifest.json")
    file.unlink()
    _refused(stores, TransferError, "no dump")
    with pytest.raises(TransferError, match="no dump"):
        open_dump(stores.root / "nothing")


def _rewritten(path: Path, name: str, rows: pa.Table) -> None:
    """Write a file anew and let the manifest agree, as a forger would."""
    from rmqstore.transfer import dumps

    pq.write_table(rows, path / name)
    fields = json.loads((path / "manifest.json").read_bytes())
    del fields["check"]
    for file in fields["files"]:
        if file["name"] == name:
            file |= {"sha256": sha256_of(path / name), "bytes": (path / name).stat().st_size}
    (path / "manifest.json").write_text(json.dumps({**fields, "check": dumps._check(fields)}))


def test_a_file_of_another_table_is_refused(stores: Stores, source: Store) -> None:
    path = stores.root / "dump"
    _rewritten(path, "topics-00000.parquet", pa.table({"topic": ["t"], "queue": [1]}))
    target = stores.open("target")
    with pytest.raises(CorruptStoreError, match="columns topic, queue"):
        load_into(path, target)
    _rewritten(path, "topics-00000.parquet", pa.table({name: ["text"] for name in TABLES["topics"].names}))
    with pytest.raises(CorruptStoreError, match="topics-00000"):
        load_into(path, target)


def test_the_digest_finds_rows_that_got_lost_on_the_way(stores: Stores, source: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that drops a row of any table is found out, and the store at the place is not touched."""
    found = 0
    for table in open_dump(stores.root / "dump").counts():
        if table.endswith("_head") or not open_dump(stores.root / "dump").counts()[table]:
            continue
        for kind in {type(source.engine.timers), type(source.engine.pops)}:
            original = kind.import_state

            def losing(self: Side, tables: Any, now_ms: int, marks: Any = (), original: Any = original, table: str = table) -> Any:
                return original(self, [(name, rows.slice(1) if name == table else rows) for name, rows in tables], now_ms, marks)

            monkeypatch.setattr(kind, "import_state", losing)
        with pytest.raises(CorruptStoreError, match=r"does not hold|no row of the table of topics"):
            load(stores.root / "dump", stores.root / "new", engine="rocksdb")
        assert not (stores.root / "new").exists()
        monkeypatch.undo()
        found += 1
    assert found >= 10


@pytest.mark.parametrize("space", [TIMERS, QUEUES])
def test_what_cannot_be_read_is_not_left_out(stores: Stores, space: int) -> None:
    """A damaged run ends a dump with the place of the run; once it is parked the dump succeeds and holds the parked entry."""
    store = stores.open()
    store.send(message(1, deliver_at_ms=START_MS + 1000)) if space == TIMERS else store.send(message(1))
    kv = store.engine.timers._shared.kv  # type: ignore[attr-defined]
    ((key, value),) = kv.scan(space, b"", None, 2)
    write = WriteBatch()
    write.put(space, key, value[:-1] + b"?")
    kv.write(write)
    with pytest.raises(CorruptStoreError, match="damaged"):
        dump(store, stores.root / "dump")
    stores.clock.advance(5000)
    store.tick()
    store.pop("t", "g")
    report = dump(store, stores.root / "dump")
    assert report.tables["messages"] == 1
    assert open_dump(stores.root / "dump").rows("messages")[0]["topic"] == "%PARKED%"


@pytest.mark.parametrize("is_own_damaged", [False, True])
def test_a_handle_from_ticks_of_another_width_ends_its_timer_beside_a_damaged_one(stores: Stores, is_own_damaged: bool) -> None:
    """C1, T12: it may be at several places; what cannot be read at one of them says nothing of a timer that is at another."""
    store = stores.open("old", precision_ms=1000)
    bodies = [b"0" * 16, b"1" * 16]
    sent = [store.send(message(n, body=body), deliver_at_ms=START_MS + 2000 - 500 * n) for n, body in enumerate(bodies)]
    dump(store, stores.root / "dump")
    with stores.open("new", precision_ms=100) as new:
        load_into(stores.root / "dump", new)
        damage_timers(new, bodies[1] if is_own_damaged else bodies[0])
        if is_own_damaged:
            with pytest.raises(CorruptStoreError):
                new.cancel(sent[1])
        else:
            assert new.cancel(sent[1]) == CancelOutcome.CANCELLED
            assert new.cancel([sent[1], sent[1]]) == [CancelOutcome.CANCELLED] * 2


def test_a_dump_goes_into_a_new_directory(stores: Stores, source: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TransferError, match="is a file"):
        dump(source, tmp_path / "file")
    with pytest.raises(TransferError, match="not empty"):
        dump(source, tmp_path)
    with pytest.raises(StorePathError, match="does not exist"):
        dump(source, tmp_path / "a" / "b")
    with pytest.raises(StorePathError, match="no store"):
        dump(tmp_path / "nothing", tmp_path / "dump")
    with pytest.raises(rmqstore.IllegalArgumentTypeError):
        dump(5, tmp_path / "dump")  # type: ignore[arg-type]
    with pytest.raises(rmqstore.IllegalArgumentTypeError):
        load([stores.root / "dump"], tmp_path / "new")  # type: ignore[arg-type]
    with pytest.raises(StorePathError, match="does not exist"):
        load(stores.root / "dump", tmp_path / "a" / "b")
    with pytest.raises(StorePathError, match="no store and not empty"):
        load(stores.root / "dump", tmp_path, engine="rocksdb")
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_an_engine_without_the_tables_is_refused(stores: Stores, source: Store) -> None:
    for side in (source.engine.timers, source.engine.pops):
        with pytest.raises(UnsupportedOperationError, match="no table"):
            side.export_state("nosuch", None, 10)
        with pytest.raises(UnsupportedOperationError, match="no table"):
            side.import_state([("nosuch", pa.RecordBatch.from_pylist([], schema=TABLES["topics"]))], 0)
        with pytest.raises(UnsupportedOperationError, match="cannot export"):
            Side.export_state(side, "timers", None, 10)
        with pytest.raises(UnsupportedOperationError, match="cannot take in"):
            Side.import_state(side, [], 0)
