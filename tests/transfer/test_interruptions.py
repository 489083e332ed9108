"""Dumps, loads and migrations that are cut short at any point, and go on when they are run again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import Store, TransferError
from rmqstore.store.directory import StoreDirectory
from rmqstore.store.opening import broker_name
from rmqstore.transfer import dump, dumps, load, load_into, migrate, replacing, taking
from rmqstore_conformance.cases.test_moving import shown, used
from rmqstore_conformance.stores import Pair, Stores, ids, message, pop_all, stores_of
from tests.pairs import ENGINES
from tests.transfer.conftest import CutShortError, cut, cut_at

DURABLE = [engine for engine in ENGINES if engine != "memory"]
SETTINGS: dict[str, Any] = {"max_retries": 1, "default_queues": 2}
OTHER = {"rocksdb": "lmdb", "lmdb": "wheel", "wheel": "rocksdb"}


_DYING = """
import os, signal, sys
import rmqstore.tables
from rmqstore.transfer import migrate

rmqstore.tables.PAGE_ROWS = 4
told = 0

def die(*_):
    global told
    told += 1
    if told == 6:
        os.kill(os.getpid(), signal.SIGKILL)

migrate(sys.argv[1], engine=sys.argv[2], progress=die)
"""


class _Cut:
    """Progress that ends the run when it was told for the n-th time."""

    def __init__(self, at: int) -> None:
        self.told = 0
        self._at = at

    def __call__(self, table: str, rows_done: int, rows_total: int) -> None:
        assert rows_done <= rows_total
        self.told += 1
        if self.told == self._at:
            raise CutShortError


@pytest.fixture(params=DURABLE)
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Small files and pages, so that there are many points to end at."""
    monkeypatch.setattr(dumps, "FILE_ROWS", 10)
    monkeypatch.setattr(rmqstore.tables, "PAGE_ROWS", 4)
    with stores_of(Pair(request.param, request.param)) as factory:
        yield factory


one_engine = pytest.mark.parametrize("stores", DURABLE[:1], indirect=True)
"""For what the framework does with files, whatever the engine."""


def _tear(store: Store, path: Path) -> None:
    """Leave a torn line and a file that nobody noted, as a power cut does."""
    with open(path / "progress.jsonl", "ab") as file:
        file.write(b'{"name": "tim')
    (path / "messages-00099.parquet.new").write_bytes(b"half")


def _send(store: Store, path: Path) -> None:
    store.send(message("onemore"))


def _damage(store: Store, path: Path) -> None:
    victim = sorted(path.glob("*.parquet"))[0]
    victim.write_bytes(victim.read_bytes()[:-1])


@pytest.mark.parametrize(("happens", "reused"), [(_tear, 5), (_send, 0), (_damage, 0)])
def test_a_dump_goes_on_or_starts_over(stores: Stores, happens: Callable[[Store, Path], None], reused: int) -> None:
    store = used(stores).store
    path = stores.root / "dump"
    with pytest.raises(CutShortError):
        dump(store, path, progress=_Cut(5))
    with pytest.raises(TransferError, match="interrupted"):
        load(path, stores.root / "new")
    happens(store, path)
    assert dump(store, path).reused_files == reused
    assert {entry.name for entry in path.iterdir() if entry.suffix != ".parquet"} == {"manifest.json"}
    load(path, stores.root / "new")
    with rmqstore.open(stores.root / "new", read_only=True) as new:
        assert new.transfer.digest() == store.transfer.digest()
    with pytest.raises(TransferError, match="holds a dump already"):
        dump(store, path)


def _loaded_anew(stores: Stores, cut: _Cut) -> Path:
    assert not (stores.root / "new").exists()
    load(stores.root / "dump", stores.root / "new", engine=OTHER[stores.pair.timers], progress=cut)
    return stores.root / "new"


def _loaded_into_a_closed_store(stores: Stores, cut: _Cut) -> Path:
    stores.open("target", **SETTINGS).close()
    load(stores.root / "dump", stores.root / "target", progress=cut)
    return stores.root / "target"


def _migrated(stores: Stores, cut: _Cut) -> Path:
    with rmqstore.open(stores.root / "old", read_only=True) as old:
        assert old.engine.config.timer_engine == stores.pair.timers
    report = migrate(stores.root / "old", engine=OTHER[stores.pair.timers], progress=cut)
    assert report.previous.name.startswith(f"old.before-{stores.pair.timers}-")
    with rmqstore.open(report.previous, read_only=True) as old:
        assert old.engine.config.timer_engine == stores.pair.timers
    with pytest.raises(TransferError, match="already"):
        migrate(stores.root / "old", engine=OTHER[stores.pair.timers])
    report.previous.rename(stores.root / "previous")
    return stores.root / "old"


@pytest.mark.parametrize(
    ("stores", "move"),
    [
        *((engine, _migrated) for engine in DURABLE),
        *((engine, move) for engine in DURABLE[:1] for move in (_loaded_anew, _loaded_into_a_closed_store)),
    ],
    indirect=["stores"],
)
def test_a_move_goes_on_from_every_chunk(stores: Stores, move: Callable[[Stores, _Cut], Path]) -> None:
    """It is run again and again, each time cut one step later, until it comes to its end; nothing is lost, doubled or left behind."""
    source = used(stores).store
    view, digest = shown(source), source.transfer.digest()
    dump(source, stores.root / "dump")
    source.close()
    for cuts in range(1, 200):
        try:
            place = move(stores, _Cut(cuts))
            break
        except CutShortError:
            continue
    assert cuts > 10
    with rmqstore.open(place, read_only=True, clock=stores.clock) as new:
        assert new.transfer.digest() == digest
        assert shown(new) == view
        engines = {new.engine.config.timer_engine, new.engine.config.pop_engine}
    assert engines == {stores.pair.timers if place.name == "target" else OTHER[stores.pair.timers]}
    assert {entry.name for entry in stores.root.iterdir()} - {"previous"} == {"old", "dump", place.name}


@one_engine
def test_another_dump_does_not_mix_with_a_load_that_was_cut_short(stores: Stores) -> None:
    source, target = used(stores).store, stores.open("target", **SETTINGS)
    dump(source, stores.root / "first")
    dump(source, stores.root / "second")
    with pytest.raises(CutShortError):
        load_into(stores.root / "first", target, progress=_Cut(4))
    with pytest.raises(TransferError, match="in the middle of a load"):
        load_into(stores.root / "second", target)
    with pytest.raises(TransferError, match="in the middle of a load"):
        dump(target, stores.root / "half")
    dump(target.path, stores.root / "half")
    with pytest.raises(TransferError, match="finish that load first"):
        load_into(stores.root / "half", stores.open("third"))
    load_into(stores.root / "first", target)
    assert target.verify() == []


@one_engine
@pytest.mark.parametrize("is_complete", [False, True], ids=["half built", "complete"])
def test_another_dump_takes_the_place_of_a_load_that_was_killed(stores: Stores, monkeypatch: pytest.MonkeyPatch, is_complete: bool) -> None:
    store = used(stores).store
    dump(store, stores.root / "first")
    store.send(message("later"))
    dump(store, stores.root / "second")
    digest = store.transfer.digest()

    where = (replacing.Replacement, "publish") if is_complete else (taking.Taking, "_compare")
    cut_at(monkeypatch, *where, lambda: load(stores.root / "first", stores.root / "new"))
    assert (stores.root / "new.loading.json").exists()
    load(stores.root / "second", stores.root / "new")
    with rmqstore.open(stores.root / "new", read_only=True) as new:
        assert new.transfer.digest() == digest
    assert not list(stores.root.glob("new.*"))


@pytest.mark.parametrize("is_reopened", [True, False], ids=["reopened", "open"])
def test_nothing_is_done_to_a_part_of_a_load(stores: Stores, is_reopened: bool) -> None:
    """A send or a tick beside a part would be written over by what is still to come, and be lost although it was answered."""
    source, target = stores.open("source"), stores.open("target")
    source.send_batch([message(n) for n in range(9)])
    for number in range(9):
        source.send(message(f"later{number}"), delay_ms=1000)
    dump(source, stores.root / "dump")
    stores.clock.advance(2000)
    held, broker = source.pop("t", "g")[0].receipt, broker_name(source.engine.store_id)
    with pytest.raises(CutShortError):
        load_into(stores.root / "dump", target, progress=_Cut(2))
    if is_reopened:
        target.close()
        target = stores.open("target")
    assert target.engine.timers.export_state("timers", None, 100).rows.num_rows == 8
    calls: list[Callable[[], object]] = [
        target.tick,
        lambda: target.send(message("ours")),
        lambda: target.send(message("ours"), delay_ms=1000),
        lambda: target.pop("t", "g"),
        lambda: target.ack(held),
        lambda: target.topics.create("t"),
        target.stats,
    ]
    for call in calls:
        with pytest.raises(TransferError, match=f"{target.path} is in the middle of a load of store {broker}; load the same dump"):
            call()
    load_into(stores.root / "dump", target)
    target.tick()
    target.send(message("ours"))
    assert sorted(ids(pop_all(target))) == sorted([*(f"m{n}" for n in range(9)), *(f"mlater{n}" for n in range(9)), "mours"])
    assert target.verify() == []


@one_engine
def test_what_waits_for_a_load_that_fails_is_refused(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick and a send that were let in while the load had the store do not go on with the part that it leaves."""
    source, target = stores.open("source"), stores.open("target")
    for number in range(9):
        source.send(message(f"later{number}"), delay_ms=1000)
    dump(source, stores.root / "dump")
    stores.clock.advance(2000)
    waiting: list[Future[object]] = []
    are_in, check, seen = threading.Barrier(3), target._check_open, {threading.get_ident()}

    def let_in() -> None:
        check()
        if (caller := threading.get_ident()) not in seen:
            seen.add(caller)
            are_in.wait(10)

    def cut(table: str, rows_done: int, rows_total: int) -> None:
        if table == "timers":
            monkeypatch.setattr(target, "_check_open", let_in)
            waiting.extend([pool.submit(target.tick), pool.submit(target.send, message("ours"))])
            are_in.wait(10)
            raise CutShortError

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(CutShortError):
            load_into(stores.root / "dump", target, progress=cut)
        for each in waiting:
            assert isinstance(each.exception(), TransferError)
    assert target.engine.timers.export_state("timers", None, 100).rows.num_rows == 8
    handed_over = target.engine.pops.export_state("messages", None, 100).rows["message_id"].to_pylist()
    assert set(handed_over) <= {"mours"}  # whose call was refused; the rest of the load takes its place


def _closed(stores: Stores) -> tuple[Path, str, Any]:
    """Make a store that was used, and return its path, an engine that it can go to, and its digest."""
    with used(stores).store as store:
        return store.path, OTHER[stores.pair.timers], store.transfer.digest()


def _check_migrated(path: Path, engine: str, digest: Any) -> None:
    with rmqstore.open(path, read_only=True) as new:
        assert new.engine.config.timer_engine == new.engine.config.pop_engine == engine
        assert new.transfer.digest() == digest
        assert new.verify() == []


@one_engine
@pytest.mark.parametrize("can_exchange", [True, False], ids=["exchange", "renames"])
@pytest.mark.parametrize("cut_at", range(8))
def test_a_migration_survives_a_cut_at_every_step_of_the_change(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, cut_at: int, can_exchange: bool
) -> None:
    """Every rename, exchange and removal of the last part is a point to end at; what lies at DIR is the old store or the new one."""
    place, engine, digest = _closed(stores)
    steps = 0

    def cutting(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == cut_at + 1:
                raise CutShortError
            return original(*arguments, **options)

        return step

    if not can_exchange:
        monkeypatch.setattr(replacing, "exchanged", lambda one, other: False)
    with monkeypatch.context() as patched:
        patched.setattr(replacing.Replacement, "ready", cutting(replacing.Replacement.ready))
        patched.setattr(replacing.Replacement, "publish", cutting(replacing.Replacement.publish))
        patched.setattr(replacing, "sync_path", cutting(replacing.sync_path))
        if can_exchange:
            patched.setattr(replacing, "exchanged", cutting(replacing.exchanged))
        patched.setattr(taking.Taking, "_compare", cutting(taking.Taking._compare))
        patched.setattr(Path, "rename", cutting(Path.rename))
        try:
            migrate(place, engine=engine)
        except CutShortError:
            if can_exchange:
                with rmqstore.open(place, read_only=True) as found:
                    assert found.transfer.digest() == digest
    report = migrate(place, engine=engine) if (place.with_name("old.migrating.json")).exists() else None
    _check_migrated(place, engine, digest)
    kept = [path for path in stores.root.iterdir() if path.name.startswith("old.before-")]
    assert len(kept) == 1
    assert report is None or report.previous == kept[0]
    assert {path.name for path in stores.root.iterdir()} == {"old", kept[0].name}


@one_engine
@pytest.mark.parametrize("moment", ["half built", "complete", "exchanged", "between two renames"])
def test_a_migration_to_something_else_than_one_that_was_killed_does_what_it_is_asked(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    place, engine, digest = _closed(stores)
    asked: dict[str, Any] = {"engine": OTHER[engine], "precision_ms": None}
    if asked["engine"] not in DURABLE:
        asked = {"engine": stores.pair.timers, "precision_ms": 2000}
    with monkeypatch.context() as patched:
        match moment:
            case "half built":
                patched.setattr(taking.Taking, "_compare", cut)
            case "complete":
                patched.setattr(replacing.Replacement, "publish", cut)
            case "exchanged":
                exchanged = replacing.exchanged
                patched.setattr(replacing, "exchanged", lambda one, other: exchanged(one, other) and cut())
            case _:
                rename = Path.rename
                patched.setattr(replacing, "exchanged", lambda one, other: False)
                patched.setattr(Path, "rename", lambda one, other: cut() if one.name == "old.migrating" else rename(one, other))
        with pytest.raises(CutShortError):
            migrate(place, engine=engine)
    report = migrate(place, **asked)
    with rmqstore.open(place, read_only=True) as new:
        assert new.engine.config.timer_engine == new.engine.config.pop_engine == asked["engine"]
        if asked["precision_ms"] is None:
            assert new.transfer.digest() == digest
    assert report.previous is not None
    kept = 1 if moment in ("half built", "complete") else 2
    assert len(list(stores.root.iterdir())) == 1 + kept


def test_a_killed_migration_leaves_the_old_store_and_goes_on(stores: Stores) -> None:
    place, engine, digest = _closed(stores)
    killed = subprocess.run([sys.executable, "-c", _DYING, str(place), engine], check=False)
    assert killed.returncode == -signal.SIGKILL
    with rmqstore.open(place, read_only=True) as old:
        assert old.transfer.digest() == digest
    migrate(place, engine=engine)
    _check_migrated(place, engine, digest)


@one_engine
def test_a_migration_of_a_store_that_was_used_meanwhile_begins_anew(stores: Stores) -> None:
    place, engine, _ = _closed(stores)
    with pytest.raises(CutShortError):
        migrate(place, engine=engine, progress=_Cut(6))
    store = stores.open("old", **SETTINGS)
    with pytest.raises(rmqstore.StoreLockedError):
        migrate(place, engine=engine)
    store.send(message("meanwhile"))
    digest = store.transfer.digest()
    store.close()
    migrate(place, engine=engine)
    _check_migrated(place, engine, digest)


@one_engine
@pytest.mark.parametrize("is_there", [True, False], ids=["empty directory", "nothing"])
def test_a_store_that_is_made_while_a_dump_is_loaded_stays(stores: Stores, is_there: bool) -> None:
    """It has answered sends by then; its owner would go on in a directory that is out of the way."""
    dump(used(stores).store, stores.root / "dump")
    place, made = stores.root / "new", []
    if is_there:
        place.mkdir()

    def make(*_: object) -> None:
        if not made:
            made.append(stores.open("new"))
            made[0].send(message("answered"))

    with pytest.raises(rmqstore.StoreLockedError):
        load(stores.root / "dump", place, progress=make)
    made[0].send(message("later"))
    made[0].close()
    with pytest.raises(TransferError, match="is not empty"):
        load(stores.root / "dump", place)
    assert ids(pop_all(stores.open("new"))) == ["manswered", "mlater"]


@one_engine
def test_a_store_that_was_made_meanwhile_can_be_moved_away(stores: Stores) -> None:
    """What was loaded waits beside it, and takes the place at once."""
    source = used(stores).store
    dump(source, stores.root / "dump")
    place = stores.root / "new"

    def make(table: str, *_: int) -> None:
        if table == "timers":
            stores.open("new").close()

    with pytest.raises(TransferError, match=r"a store was made at .*new while .* the loaded one is .*new\.loading"):
        load(stores.root / "dump", place, progress=make)
    place.rename(stores.root / "away")
    load(stores.root / "dump", place, progress=_Cut(1))
    with rmqstore.open(place, read_only=True) as new:
        assert new.transfer.digest() == source.transfer.digest()
    assert {entry.name for entry in stores.root.iterdir()} == {"old", "dump", "new", "away"}


@one_engine
def test_an_open_that_a_migration_overtakes_does_not_own_the_old_store(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had the directory, and got the lock that the migration let go of, when the new store was in the place already."""
    place, engine, _ = _closed(stores)
    locked = StoreDirectory._locked

    def overtaken(self: StoreDirectory) -> Any:
        monkeypatch.setattr(StoreDirectory, "_locked", locked)
        migrate(place, engine=engine)
        return locked(self)

    monkeypatch.setattr(StoreDirectory, "_locked", overtaken)
    with pytest.raises(rmqstore.StoreLockedError, match="moved or replaced while it was opened"):
        rmqstore.open(place, services=False)
    with rmqstore.open(place, services=False) as new:
        assert new.engine.config.timer_engine == engine


@one_engine
def test_a_store_is_loaded_and_migrated_from_within_its_directory(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    place, engine, digest = _closed(stores)
    dump(place, stores.root / "dump")
    (stores.root / "new").mkdir()
    for name, move in (("old", lambda: migrate(".", engine=engine)), ("new", lambda: load("../dump", ".", engine=engine))):
        monkeypatch.chdir(stores.root / name)
        move()
        _check_migrated(stores.root / name, engine, digest)


@one_engine
def test_a_store_behind_a_link_is_loaded_and_migrated_where_it_is(stores: Stores) -> None:
    """So the link stays one, and who has the other name of the directory has the same store."""
    place, engine, digest = _closed(stores)
    dump(place, stores.root / "dump")
    disk = stores.root / "disk"
    (disk / "new").mkdir(parents=True)
    place.rename(disk / "old")
    for name in ("old", "new"):
        (stores.root / name).symlink_to(disk / name)
    assert migrate(stores.root / "old", engine=engine).previous in set(disk.iterdir())
    load(stores.root / "dump", stores.root / "new", engine=engine)
    for name in ("old", "new"):
        assert (stores.root / name).is_symlink()
        _check_migrated(disk / name, engine, digest)


@one_engine
def test_settings_that_contradict_a_migration_are_found_first(stores: Stores) -> None:
    place, engine, _ = _closed(stores)
    (place / "rmqstore.toml").write_text(f'engine = "{stores.pair.timers}"\n')
    with pytest.raises(rmqstore.ConfigError, match="engine"):
        migrate(place, engine=engine)
    (place / "rmqstore.toml").write_text("max_retries = 5\n")
    migrate(place, engine=engine)
    with stores.open("old", timer_engine=None, pop_engine=None) as moved:
        assert moved.engine.config.max_retries == 5
    with pytest.raises(rmqstore.StorePathError, match="no store"):
        migrate(stores.root / "nothing", engine="lmdb")
    with pytest.raises(rmqstore.UnknownEngineError):
        migrate(place, engine="nosuch")


@one_engine
def test_what_is_in_the_way_stays(stores: Stores) -> None:
    """A directory that happens to have the name of the place where a new store is built is not removed."""
    place, engine, _ = _closed(stores)
    dump(place, stores.root / "dump")
    for name in ("new.loading", "old.migrating"):
        (stores.root / name).mkdir()
        (stores.root / name / "mine").write_text("x")
    with pytest.raises(TransferError, match=r"new\.loading is in the way"):
        load(stores.root / "dump", stores.root / "new")
    with pytest.raises(TransferError, match=r"old\.migrating is in the way"):
        migrate(place, engine=engine)
    assert len(list(stores.root.glob("*ing/mine"))) == 2
    assert not list(stores.root.glob("*.json"))


@one_engine
@pytest.mark.parametrize("cut_at", range(5))
def test_a_load_that_ends_between_its_sides_goes_on(stores: Stores, monkeypatch: pytest.MonkeyPatch, cut_at: int) -> None:
    """The records of the source are written to one side after the other; a cut between them loses and doubles nothing."""
    source, target = used(stores).store, stores.open("target", **SETTINGS)
    dump(source, stores.root / "dump")
    theirs = shown(source)
    adopted = 0
    for kind in {type(target.engine.timers), type(target.engine.pops)}:
        original = kind.import_state

        def cutting(self: Any, tables: Any, now_ms: int, marks: Any = (), original: Any = original) -> Any:
            nonlocal adopted
            if tables[0][0].endswith("_adopted"):
                adopted += 1
                if adopted == cut_at + 1:
                    raise CutShortError
            return original(self, tables, now_ms, marks)

        monkeypatch.setattr(kind, "import_state", cutting)
    try:
        load_into(stores.root / "dump", target)
    except CutShortError:
        target.close()
        target = stores.open("target", **SETTINGS)
        load_into(stores.root / "dump", target)
    for _ in range(2):
        assert shown(target) == theirs
        with pytest.raises(TransferError, match="is not empty"):
            load_into(stores.root / "dump", target)
        assert all(record.is_complete for side in (target.engine.timers, target.engine.pops) for record in side.adopted().values())
        assert len(target.engine.timers.adopted()) == len(target.engine.pops.adopted()) == 1
        target = stores.reopen(target, **SETTINGS)


@pytest.mark.parametrize("wrong", [{"precision_ms": 7}, {"engine": "nope"}, {"bad": 1}, {"engine": "lmdb", "retention_ms": -1}], ids=str)
def test_settings_that_cannot_be_leave_nothing_behind(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with rmqstore.open(tmp_path / "store", engine="rocksdb", services=False) as store:
        store.send(rmqstore.Message("t", b"x"))
        store.transfer.dump(tmp_path / "dump")
    for call in (lambda: load(tmp_path / "dump", tmp_path / "new", **wrong), lambda: migrate_with(tmp_path / "store", wrong)):
        with pytest.raises((rmqstore.ConfigError, rmqstore.EngineLookupError)):
            call()
        assert sorted(each.name for each in tmp_path.iterdir()) == ["dump", "store"]


def migrate_with(path: Path, wrong: dict[str, Any]) -> object:
    given = {"engine": wrong.get("engine", "lmdb"), "precision_ms": wrong.get("precision_ms")}
    if given == {"engine": "lmdb", "precision_ms": None}:
        given["precision_ms"] = 33
    return migrate(path, **given)
