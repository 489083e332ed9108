"""The template engine: what it keeps, what it refuses, and that it stays small enough to read."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
from rmqstore.contract.engine import Durability, EngineOptions, Flush, Operation, Support
from rmqstore.errors import FormatVersionError, UnsupportedOperationError
from rmqstore_memory.engine import MemoryEngine
from rmqstore_memory.plugin import INFO, rmqstore_engines

OPTIONS = EngineOptions(store_tag=1, broker="b")


def test_it_leaves_the_directory_empty(tmp_path: Path) -> None:
    for _ in range(2):
        session = MemoryEngine().open(tmp_path, OPTIONS)
        assert session.pops() is session.pops()
        with pytest.raises(UnsupportedOperationError):
            session.snapshot(tmp_path / "copy")
        session.close()
    assert list(tmp_path.iterdir()) == []


def test_it_does_not_hide_the_files_of_another_engine(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    with pytest.raises(FormatVersionError, match="db"):
        MemoryEngine().open(tmp_path, OPTIONS)


def test_it_declares_what_it_is() -> None:
    assert rmqstore_engines() == [INFO]
    assert {INFO.capabilities.durability_of(operation, flush) for operation in Operation for flush in Flush} == {Durability.NONE}
    assert INFO.capabilities.snapshot is Support.IMPOSSIBLE


def test_it_is_about_200_lines() -> None:
    import rmqstore_memory

    assert sum(len(file.read_text().splitlines()) for file in Path(rmqstore_memory.__file__).parent.glob("*.py")) < 220


def test_s1_an_engine_that_keeps_nothing_cannot_be_read(tmp_path: Path) -> None:
    """S1: the memory engine declares read_only_open impossible, and refuses."""
    path = tmp_path / "store"
    with rmqstore.open(path, engine="memory", services=False), pytest.raises(UnsupportedOperationError, match="memory"):
        rmqstore.open(path, read_only=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsupportedOperationError, match="memory"):
        rmqstore.open(path, read_only=True)
    assert sorted(tmp_path.rglob("*")) == before
