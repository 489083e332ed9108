"""What a store's own settings file says goes with the store: a copy with another retention would lose what the original keeps."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import config
from rmqstore.config import as_toml
from rmqstore.plugins import get_plugins
from rmqstore.settings import Source
from rmqstore.transfer import dump, load, migrate
from rmqstore.transfer.replacing import Replacement
from rmqstore_conformance.stores import DAY_MS, Pair, Stores, message, stores_of

FILE = """
retention_ms = 0
max_retries = 3
flush = "async"
[clock]
max_step_ms = 5000000000
[rocksdb]
write_buffer_mib = 8
"""


@pytest.fixture
def stores() -> Iterator[Stores]:
    with stores_of(Pair("rocksdb", "rocksdb")) as factory:
        yield factory


def made(stores: Stores, name: str = "store", text: str = FILE) -> Path:
    """Make a store whose message is older than any default keeps it."""
    (stores.root / name).mkdir()
    (stores.root / name / "rmqstore.toml").write_text(text)
    with rmqstore.open(stores.root / name, engine="rocksdb", clock=stores.clock, services=False) as store:
        store.send(message(1))
    stores.clock.advance(10 * DAY_MS)
    return stores.root / name


def keeps(stores: Stores, path: Path) -> bool:
    """Say whether the copy has the settings and, after its upkeep, the message."""
    with rmqstore.open(path, clock=stores.clock, services=False) as store:
        store.tick()
        given = {key for key, origin in store.engine.config.origins.items() if origin.source is Source.STORE_FILE}
        assert given >= {"retention_ms", "max_retries", "flush", "clock.max_step_ms"}
        return store.get("m1") is not None


def test_a_snapshot_and_what_is_restored_from_it(stores: Stores) -> None:
    path = made(stores)
    with rmqstore.open(path, clock=stores.clock, services=False) as store:
        store.snapshot(stores.root / "snapshot")
    rmqstore.restore(stores.root / "snapshot", stores.root / "restored")
    assert keeps(stores, stores.root / "restored")
    assert keeps(stores, stores.root / "snapshot")


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_dump_and_what_is_loaded_from_it(stores: Stores, engine: str) -> None:
    """Settings of an engine that the new store does not use stay behind."""
    dump(made(stores), stores.root / "dump")
    load(stores.root / "dump", stores.root / "new", engine=engine, clock=stores.clock)
    assert keeps(stores, stores.root / "new")
    text = (stores.root / "new" / "rmqstore.toml").read_text()
    assert ("[rocksdb]" in text) == (engine == "rocksdb")


def test_a_dump_with_settings_of_an_engine_that_is_not_installed(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(stores)
    given = config.given_settings(path, get_plugins().engine_settings())
    monkeypatch.setattr(config, "given_settings", lambda *_: given | {"elsewhere.size_mib": 8})
    dump(path, stores.root / "dump")
    load(stores.root / "dump", stores.root / "loaded", engine="lmdb", clock=stores.clock)
    assert keeps(stores, stores.root / "loaded")


def test_a_migrated_store(stores: Stores) -> None:
    path = made(stores)
    migrate(path, engine="lmdb")
    assert keeps(stores, path)


def test_the_file_of_the_place_wins(stores: Stores) -> None:
    dump(made(stores), stores.root / "dump")
    (stores.root / "new").mkdir()
    (stores.root / "new" / "rmqstore.toml").write_text("max_retries = 7\n")
    load(stores.root / "dump", stores.root / "new", clock=stores.clock)
    assert (stores.root / "new" / "rmqstore.toml").read_text() == "max_retries = 7\n"


@pytest.mark.parametrize("text", ['engine = "lmdb"\n', "precision_ms = 100\n"], ids=str.strip)
def test_a_file_in_the_place_that_contradicts_the_new_store_is_found_first(stores: Stores, text: str) -> None:
    """Else the store would be there, and could not be opened."""
    dump(made(stores), stores.root / "dump")
    new = stores.root / "new"
    new.mkdir()
    (new / "rmqstore.toml").write_text(text)
    with pytest.raises(rmqstore.ConfigError, match=r"new/rmqstore\.toml gives .* and the new store has .*; take it out first"):
        load(stores.root / "dump", new, clock=stores.clock)
    assert sorted(each.name for each in stores.root.iterdir()) == ["dump", "new", "store"]
    assert [each.name for each in new.iterdir()] == ["rmqstore.toml"]
    load(stores.root / "dump", new, clock=stores.clock, **tomllib.loads(text))
    with rmqstore.open(new, clock=stores.clock, services=False) as store:
        assert store.get("m1") is not None


def test_a_load_that_was_killed_before_its_first_row_keeps_the_settings(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are durable before the plan is, as the run that goes on with the plan gives none."""
    dump(made(stores), stores.root / "dump")
    synced: list[str] = []
    fsync, write = os.fsync, Replacement._write

    def noting(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(stores.root)))
        fsync(descriptor)

    def killed(self: Replacement, note: dict[str, Any]) -> None:
        write(self, note)
        if "plan" in note:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", noting)
        patched.setattr(Replacement, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            load(stores.root / "dump", stores.root / "new", clock=stores.clock)
    assert {"new.loading/rmqstore.toml", "new.loading"} <= set(synced)
    load(stores.root / "dump", stores.root / "new", clock=stores.clock)
    assert keeps(stores, stores.root / "new")


def test_any_value_can_be_written_as_toml() -> None:
    settings = {"a": 1, "b.c": True, "b.d": 'quote " and \\ and ü', "e": 0.5, "b.c2": 2**40}
    assert tomllib.loads(as_toml(settings)) == {"a": 1, "e": 0.5, "b": {"c": True, "d": 'quote " and \\ and ü', "c2": 2**40}}
    assert as_toml({}) == ""
